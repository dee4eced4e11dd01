"""Reads homes of OpenClaw and nanobot: conversations as JSON lines, scheduled jobs, a workspace of notes.

Both have one agent for all chats. Its notes, and what its owner said to it alone, come to main; each other
chat becomes a group.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.backup import foreign_home
from orchestrator.backup.foreign_home import (
    MAX_GROUPS,
    MAX_ID_CHARS,
    MAX_MESSAGES,
    MAX_TASKS,
    MAX_TEXT_CHARS,
    ForeignGroup,
    ForeignHome,
    ForeignMessage,
    ForeignTask,
    moment_ms,
    text,
)
from orchestrator.base.dirfd import inner, opened
from orchestrator.domain.errors import BackupError

MAX_JSON_BYTES = 64 * 2**20
MAX_LINE_BYTES = 2**20
JOBS = "cron/jobs.json"
JOBS_VERSION = 1
MAIN = "main"
NOTE_FOLDERS = ("memory",)
OPENCLAW_INDEX = "agents/main/sessions/sessions.json"
OPENCLAW_DATABASE = "state/openclaw.sqlite"
NANOBOT_SESSIONS = ("workspace/sessions", "sessions")
NANOBOT_DATABASES = ("workspace/sessions.db", *(f"{folder}/sessions.sqlite3" for folder in NANOBOT_SESSIONS))
_OPENCLAW_KEY = re.compile(
    r"agent:main:([a-z0-9_-]{1,40}):(group|channel|room|direct|dm):([^\s:]{1,120})(?::.*)?"
)
_NANOBOT_KEY = re.compile(r"([a-z0-9_-]{1,40}):(\S{1,160})")
_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,120}")


@dataclass(slots=True)
class _Reading:
    """One home while it is read."""

    root: Path
    found: ForeignHome
    groups: dict[str, ForeignGroup] = field(default_factory=dict)
    """The groups by channel and chat; main has the empty name."""
    messages: int = 0

    def main(self) -> ForeignGroup:
        return self._group("", MAIN, "", "", is_main=True)

    def chat(self, channel: str, chat: str, *, is_direct: bool = False) -> ForeignGroup:
        folder = re.sub(r"[^A-Za-z0-9]+", "-", f"{channel}-{chat}").strip("-")[:48]
        return self._group(f"{channel}:{chat}", folder, channel, chat, is_direct=is_direct)

    def _group(
        self,
        key: str,
        folder: str,
        channel: str,
        chat: str,
        *,
        is_main: bool = False,
        is_direct: bool = False,
    ) -> ForeignGroup:
        if key not in self.groups:
            self.groups[key] = ForeignGroup(
                key=key or MAIN,
                folder=folder,
                name=f"{channel} {chat}".strip() or MAIN,
                channel=channel,
                chat=chat,
                is_main=is_main,
                requires_trigger=not is_direct,
            )
            self.found.groups.append(self.groups[key])
        return self.groups[key]


def read_openclaw(root: Path, scratch: Path) -> ForeignHome:
    """Return what a home of OpenClaw holds, as far as it is in files. Blocks.

    Raises:
        BackupError: it is none, or of a version that is not known.
    """
    del scratch  # nothing of it is a database that is read
    index = _json(root, OPENCLAW_INDEX)
    if not isinstance(index, dict):
        raise BackupError(f"{root} is no home of OpenClaw that can be read: it has no {OPENCLAW_INDEX}.")
    reading = _Reading(root, ForeignHome(program="openclaw"))
    reading.main().notes.extend(_notes(reading, "workspace"))
    for key, entry in list(index.items())[:MAX_GROUPS]:
        group = _openclaw_group(reading, key)
        name = text(entry, "sessionId") if isinstance(entry, dict) else ""
        if group is None or not _SESSION_ID.fullmatch(name):
            continue  # a session of a scheduled job or of a helper, which is no chat
        lines = _lines(root, f"agents/main/sessions/{name}.jsonl")
        _add_messages(reading, group, (_openclaw_message(line) for line in lines))
    _add_jobs(reading)
    others = [name for name in _names_in(root, "agents") if name != MAIN]
    reading.found.left += [f"agents/{name}: only the agent 'main' is read" for name in others]
    if foreign_home.has_file(root, OPENCLAW_DATABASE):
        reading.found.left.append(f"{OPENCLAW_DATABASE}: what a newer OpenClaw has in its database")
    return reading.found


def _openclaw_group(reading: _Reading, key: str) -> ForeignGroup | None:
    if key == "agent:main:main":
        return reading.main()
    parts = _OPENCLAW_KEY.fullmatch(key)
    if parts is None:
        return None
    channel, kind, chat = parts.groups()
    return reading.chat(channel, chat, is_direct=kind in ("direct", "dm"))


def _openclaw_message(line: Mapping[str, Any]) -> ForeignMessage | None:
    message = line.get("message")
    if line.get("type") != "message" or not isinstance(message, dict):
        return None
    return _message(message, line.get("timestamp"), text(line, "id", limit=MAX_ID_CHARS))


def read_nanobot(root: Path, scratch: Path) -> ForeignHome:
    """Return what a home of nanobot holds, as far as it is in files. Blocks.

    Raises:
        BackupError: it is none, or of a version that is not known.
    """
    del scratch
    names = [
        (folder, name)
        for folder in NANOBOT_SESSIONS
        for name in _names_in(root, folder)
        if name.endswith(".jsonl")
    ]
    if not names and not foreign_home.has_file(root, "config.json"):
        raise BackupError(f"{root} is no home of nanobot: it has neither config.json nor sessions.")
    reading = _Reading(root, ForeignHome(program="nanobot"))
    reading.main().notes.extend(_notes(reading, "workspace"))
    for folder, name in names[:MAX_GROUPS]:
        lines = _lines(root, f"{folder}/{name}")
        head = next(lines, {})
        group = _nanobot_group(reading, text(head, "key") if head.get("_type") == "metadata" else "")
        if group is None:
            reading.found.left.append(f"{folder}/{name}: it does not say which chat it is of")
        else:
            _add_messages(reading, group, (_message(line, line.get("timestamp"), "") for line in lines))
    _add_jobs(reading)
    for path in NANOBOT_DATABASES:
        if foreign_home.has_file(root, path):
            reading.found.left.append(f"{path}: the conversations that a newer nanobot has in its database")
    return reading.found


def _nanobot_group(reading: _Reading, key: str) -> ForeignGroup | None:
    parts = _NANOBOT_KEY.fullmatch(key)
    if parts is None:
        return None
    channel, chat = parts.groups()
    return reading.main() if channel == "cli" else reading.chat(channel, chat)


def _notes(reading: _Reading, folder: str) -> list[foreign_home.ForeignNote]:
    return foreign_home.notes(reading.root, folder, deep=NOTE_FOLDERS, leave=reading.found.left.append)


def _add_messages(reading: _Reading, group: ForeignGroup, messages: Iterator[ForeignMessage | None]) -> None:
    for one in messages:
        if one is not None and reading.messages < MAX_MESSAGES:
            reading.messages += 1
            group.messages.append(one)


def _message(message: Mapping[str, Any], at: object, name: str) -> ForeignMessage | None:
    """Return a message of a person or of the agent; None of a tool's, and of what has no words or time."""
    role, content = message.get("role"), _words(message.get("content"))
    # A time without a zone is one of the machine's own clocks.
    sent_ms = moment_ms(at, zone_of_naive=None)
    if role not in ("user", "assistant") or not content.strip() or sent_ms is None:
        return None
    digest = hashlib.sha256(f"{sent_ms} {role} {content}".encode("utf-8", "replace")).hexdigest()
    return ForeignMessage(
        id=name or digest[:32],
        sender="imported",
        sender_name="Andy" if role == "assistant" else "someone",
        text=content,
        sent_ms=sent_ms,
        is_bot=role == "assistant",
    )


def _words(content: object) -> str:
    """Return the words of a message, which may be in parts."""
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
        return "\n".join(text(part, "text", limit=MAX_TEXT_CHARS) for part in parts)[:MAX_TEXT_CHARS]
    return text({"": content}, "", limit=MAX_TEXT_CHARS) if isinstance(content, str) else ""


def _add_jobs(reading: _Reading) -> None:
    """Read the scheduled jobs. Raises `BackupError` for a version that is not known."""
    for path in (JOBS, f"workspace/{JOBS}"):
        store = _json(reading.root, path)
        if store is None:
            continue
        if not isinstance(store, dict) or store.get("version") != JOBS_VERSION:
            raise BackupError(f"{reading.root / path} is of a version that is not known.")
        jobs = store.get("jobs")
        for job in (jobs if isinstance(jobs, list) else [])[:MAX_TASKS]:
            if isinstance(job, dict):
                _add_job(reading, job)


def _add_job(reading: _Reading, job: Mapping[str, Any]) -> None:
    payload, schedule = _object(job, "payload"), _object(job, "schedule")
    name = text(job, "id", limit=MAX_ID_CHARS)
    if payload.get("kind") == "system_event":
        return  # nanobot's own upkeep
    kind, value = _schedule(schedule)
    _job_group(reading, job).tasks.append(
        ForeignTask(
            id=name,
            prompt=text(payload, "message", limit=MAX_TEXT_CHARS)
            or text(payload, "text", limit=MAX_TEXT_CHARS),
            kind=kind,
            value=value,
            zone=text(schedule, "tz"),
            is_paused=job.get("enabled") is False,
            is_in_conversation=job.get("sessionTarget") == MAIN,
        )
    )


def _job_group(reading: _Reading, job: Mapping[str, Any]) -> ForeignGroup:
    """Return the group of the chat that a job answers in; main where that is none that is known."""
    for place in (_object(job, "delivery"), _object(job, "payload")):
        channel, chat = text(place, "channel"), text(place, "to")
        chat = re.sub(rf"^(?:{re.escape(channel)}:)?(?:group:)?", "", chat).partition(":topic:")[0]
        if f"{channel}:{chat}" in reading.groups:
            return reading.groups[f"{channel}:{chat}"]
    return reading.main()


def _schedule(schedule: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kind and the value of a schedule in Andy's words."""
    match schedule.get("kind"):
        case "cron":
            return "cron", text(schedule, "expr")
        case "every":
            return "interval", text(schedule, "everyMs")
        case "at":
            at_ms = moment_ms(schedule.get("at", schedule.get("atMs")))
            return "once", "" if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()
        case _:
            return text(schedule, "kind"), ""


def _object(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = row.get(name)
    return value if isinstance(value, dict) else {}


def _json(root: Path, path: str) -> object:
    """Return the value of a JSON file; None where there is none. Raises `BackupError` for a broken one."""
    try:
        with foreign_home.readable_file(root, path) as file:
            body = file.read(MAX_JSON_BYTES + 1)
    except OSError:
        return None
    try:
        return json.loads(body[:MAX_JSON_BYTES])
    except (ValueError, RecursionError) as error:
        raise BackupError(f"{root / path} cannot be read: it is no JSON of at most 64 MiB.") from error


def _lines(root: Path, path: str) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a file of JSON lines; other lines, and too long ones, are passed over."""
    try:
        with foreign_home.readable_file(root, path) as file:
            while line := file.readline(MAX_LINE_BYTES):
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(value, dict):
                    yield value
    except OSError:
        return


def _names_in(root: Path, folder: str) -> list[str]:
    """Return the names in a folder that is reached without a link; none where it is missing."""
    try:
        with ExitStack() as stack:
            here = stack.enter_context(opened(root))
            for part in PurePosixPath(folder).parts:
                here = stack.enter_context(inner(here, part))
            with os.scandir(here) as entries:
                return sorted(entry.name for entry in entries)
    except OSError:
        return []
