"""Reads the common parts of OpenClaw's and nanobot's homes: JSON messages, scheduled jobs, a workspace.

Both have one agent for all chats. Its notes, and its owner's direct messages, come to main; each other chat
becomes a group.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.backup import foreign_home
from orchestrator.backup.foreign_home import (
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
JOBS_VERSION = 1
"""The version of the file of scheduled jobs that can be read."""
_JOB_CONTENT = (
    "agentId",
    "name",
    "schedule",
    "payload",
    "delivery",
    "sessionTarget",
    "trigger",
    "declarationKey",
)
"""The fields that say what a scheduled job does, which no run of it changes."""
MAIN = "main"
WORKSPACE = "workspace"
NOTE_FOLDERS = ("memory",)


@dataclass(slots=True)
class Reading:
    """One home while it is read."""

    root: Path
    foreign: ForeignHome
    groups: dict[str, ForeignGroup] = field(default_factory=dict)
    """The groups by `channel:chat`; main by the empty text."""
    messages: int = 0
    """The number of messages that were added so far, to all groups."""

    def main(self) -> ForeignGroup:
        """Return the group whose contents come to Andy's main group; it is made at its first use."""
        return self._group("", MAIN, "", "", is_main=True)

    def chat(self, channel: str, chat: str, *, is_direct: bool = False, name: str = "") -> ForeignGroup:
        """Return the group of a chat, made at its first use.

        `channel` is the messenger and `chat` its id of the chat. `is_direct` says that it has only one person
        and the agent. Without a `name` it is named after both ids.
        """
        folder = re.sub(r"[^A-Za-z0-9]+", "-", f"{channel}-{chat}").strip("-")[:48]
        return self._group(f"{channel}:{chat}", folder, channel, chat, is_direct=is_direct, name=name)

    def _group(
        self,
        key: str,
        folder: str,
        channel: str,
        chat: str,
        *,
        is_main: bool = False,
        is_direct: bool = False,
        name: str = "",
    ) -> ForeignGroup:
        """Return the group with this key; if there is none, add one with the other arguments.

        The key of main is empty. In a direct chat no trigger is required.
        """
        if key not in self.groups:
            self.groups[key] = ForeignGroup(
                key=key or MAIN,
                folder=folder,
                name=name or f"{channel} {chat}".strip() or MAIN,
                channel=channel,
                chat=chat,
                is_main=is_main,
                requires_trigger=not is_direct,
            )
            self.foreign.groups.append(self.groups[key])
        return self.groups[key]

    def add(self, group: ForeignGroup, messages: Iterable[ForeignMessage | None]) -> None:
        """Add messages to a group, up to `MAX_MESSAGES` in all; None entries are skipped."""
        for message in messages:
            if message is not None and self.messages < MAX_MESSAGES:
                self.messages += 1
                group.messages.append(message)

    def add_notes(self) -> None:
        """Add the notes in the agent's folder (workspace) to the main group.

        If that folder is missing or empty, it is noted as left out.
        """
        if not names_in(self.root, WORKSPACE):
            self.foreign.left_out.append(f"the notes of the agent: there is no {WORKSPACE}/ in this folder")
        self.main().notes.extend(
            foreign_home.notes(
                self.root, WORKSPACE, subfolders=NOTE_FOLDERS, leave_out=self.foreign.left_out.append
            )
        )

    def leave_out_some(self, number: int, text: str) -> None:
        """Note that `number` items are left out, if there are any; `text` describes them."""
        if number:
            self.foreign.left_out.append(f"{number:,} {text}")


def message(
    row: Mapping[str, Any], at: object, message_id: str, *, sender: str = "", body: str | None = None
) -> ForeignMessage | None:
    """Return the message in `row`, of a person or the agent.

    None for a message of a tool, and for one without a text or a time. `at` is the message's time as the file
    has it: ISO text or epoch ms. An empty `message_id` is replaced by one made from the content. `sender` is
    the person's name. `body` is the text of the message; None for the whole content of the row.
    """
    role = row.get("role")
    content = words_of(row.get("content")) if body is None else body
    # A time without a zone is in the machine's own zone.
    sent_ms = moment_ms(at, zone_of_naive=None)
    if role not in ("user", "assistant") or not content.strip() or sent_ms is None:
        return None
    # Without an id of its own a message gets one from its content, by which a second import recognises it.
    digest = hashlib.sha256(f"{sent_ms} {role} {content}".encode("utf-8", "replace")).hexdigest()
    return ForeignMessage(
        id=message_id or digest[:32],
        sender="imported",
        sender_name="Andy" if role == "assistant" else (sender or "someone"),
        text=content,
        sent_ms=sent_ms,
        is_bot=role == "assistant",
    )


def words_of(content: object) -> str:
    """Return the text in a message's content, which is a text or a list of parts; empty if it has none."""
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
        return "\n".join(text(part, "text", limit=MAX_TEXT_CHARS) for part in parts)[:MAX_TEXT_CHARS]
    # `text` also cleans and shortens, but only reads fields of a mapping: the content is wrapped in one.
    return text({"": content}, "", limit=MAX_TEXT_CHARS) if isinstance(content, str) else ""


def jobs_of(root: Path, path: str) -> list[dict[str, Any]]:
    """Return the scheduled jobs in the JSON file at `path` below `root`; none if it is missing.

    Entries that are no objects, and those beyond `MAX_TASKS`, are skipped. Each job has an id (`with_id`).

    Raises:
        BackupError: the file is of an unknown version.
    """
    store = json_of(root, path)
    if store is None:
        return []
    if not isinstance(store, dict) or store.get("version") != JOBS_VERSION:
        raise BackupError(f"{root / path} is of a version that is not known.")
    jobs = store.get("jobs")
    found = [job for job in (jobs if isinstance(jobs, list) else []) if isinstance(job, dict)]
    return [with_id(job) for job in found[:MAX_TASKS]]


def with_id(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job unchanged if it has an id, else with one made of what it does: the same at each import.

    What the other program stores of each run of a job, such as `state`, is no part of that.
    """
    if text(job, "id"):
        return job
    content = json.dumps({name: job.get(name) for name in _JOB_CONTENT}, sort_keys=True)
    return {**job, "id": f"without-id-{hashlib.sha256(content.encode()).hexdigest()[:8]}"}


def task_of(job: Mapping[str, Any]) -> ForeignTask:
    """Return a scheduled job of the other program as a task.

    Its `value`, the time, is empty if Andy has no such schedule.
    """
    payload, schedule = part_of(job, "payload"), part_of(job, "schedule")
    kind, value = _schedule(schedule)
    return ForeignTask(
        id=text(job, "id", limit=MAX_ID_CHARS),
        prompt=text(payload, "message", limit=MAX_TEXT_CHARS) or text(payload, "text", limit=MAX_TEXT_CHARS),
        kind=kind,
        value=value,
        zone=text(schedule, "tz"),
        is_paused=job.get("enabled") is False,
        # Other jobs run in a conversation of their own.
        is_in_conversation=job.get("sessionTarget") == MAIN,
    )


def _schedule(schedule: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kind and the value of a job's schedule in Andy's form, such as `cron` and `0 9 * * *`.

    The value is empty if Andy has no such schedule.
    """
    match schedule.get("kind"):
        case "cron":
            return "cron", text(schedule, "expr")
        case "every":
            return "interval", text(schedule, "everyMs")
        case "at":
            # The time is in either field: as ISO text, or in epoch ms.
            at_ms = moment_ms(schedule.get("at", schedule.get("atMs")))
            return "once", "" if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()
        case _:
            return text(schedule, "kind"), ""


def part_of(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the JSON object in the field `name` of a row; an empty one if there is none."""
    value = row.get(name)
    return value if isinstance(value, dict) else {}


def object_of(line: str | bytes) -> dict[str, Any] | None:
    """Return the object in a JSON text; None for other values, and for invalid JSON."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def json_of(root: Path, path: str) -> object:
    """Return the decoded value of the JSON file at `path` below `root`; None if the file cannot be read.

    Raises:
        BackupError: it is no valid JSON, or larger than 64 MiB.
    """
    try:
        with foreign_home.readable_file(root, path) as file:
            body = file.read(MAX_JSON_BYTES + 1)
    except OSError:
        return None
    # A larger file is cut, and so ends within its JSON.
    try:
        return json.loads(body[:MAX_JSON_BYTES])
    except (ValueError, RecursionError) as error:
        raise BackupError(f"{root / path} cannot be read: it is no JSON of at most 64 MiB.") from error


def lines_of(root: Path, path: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON object in each line of the file at `path` below `root`; none if it cannot be read.

    Lines that are no objects, or longer than `MAX_LINE_BYTES`, are skipped.
    """
    try:
        with foreign_home.readable_file(root, path) as file:
            # A longer line comes in pieces, which are no JSON objects by themselves.
            while line := file.readline(MAX_LINE_BYTES):
                value = object_of(line)
                if value is not None:
                    yield value
    except OSError:
        return


def names_in(root: Path, folder: str) -> list[str]:
    """Return the sorted names of the files and folders in `folder`, a path below `root`.

    The list is empty if the folder is missing, unreadable, or reached through a link.
    """
    try:
        with ExitStack() as stack:
            directory = stack.enter_context(opened(root))
            for part in PurePosixPath(folder).parts:
                directory = stack.enter_context(inner(directory, part))
            with os.scandir(directory) as entries:
                return sorted(entry.name for entry in entries)
    except OSError:
        return []
