"""Reads a home of OpenClaw: conversations as JSON lines or in a database, scheduled jobs, notes.

Older versions have files only; newer ones have the jobs, and then also the conversations, in databases.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.backup import foreign_home
from orchestrator.backup.foreign_home import (
    MAX_GROUPS,
    MAX_ID_CHARS,
    MAX_MESSAGES,
    MAX_TASKS,
    ForeignGroup,
    ForeignHome,
    ForeignMessage,
    text,
)
from orchestrator.backup.session_homes import (
    MAIN,
    Reading,
    jobs_of,
    json_of,
    lines_of,
    message,
    names_in,
    object_of,
    part_of,
    task_of,
    words_of,
)
from orchestrator.domain.errors import BackupError

JOBS = "cron/jobs.json"
JOBS_DATABASE = "state/openclaw.sqlite"
MAX_EVENT_CHARS, MAX_KEY_CHARS, MAX_SESSIONS = 2**22, 400, 10_000
NEEDED_EVENTS = {"session_id", "event_json", "created_at"}
NEEDED_WORDS = {"c0", "c1", "c2", "c3", "c4"}
"""The columns of the index of words, which SQLite names: text, session, message, role and time."""
UPKEEP_JOBS = ("heartbeat:", "memory-core:", "skill-collection-review:")
UPKEEP_WORDS = ("Read HEARTBEAT.md", "[OpenClaw heartbeat", "[cron:")
SILENT_ANSWERS = ("NO_REPLY", "HEARTBEAT_OK")
_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,120}")
_KEY = re.compile(
    r"([a-z0-9_-]{1,40}):(?:[a-z0-9_-]{1,40}:)?(group|channel|room|direct|dm):"
    r"(\S{1,160}?)(?::(?:topic|thread):(\S{1,80}))?"
)
_ENDED_SESSION = re.compile(r"\.jsonl\.(?:reset|deleted)\.")
_EVENTS = re.compile(r"\A(?:System(?: \(untrusted\))?: \[[^\n]*\n*)+")
"""The news of what has happened meanwhile, which OpenClaw writes before what was said."""
_STAMP = re.compile(r"\A\n*\[(?:[^\]\n]{1,160} )?[A-Z][a-z]{2} \d{4}-\d\d-\d\d \d\d:\d\d[^\]\n]{0,40}\] ?")
"""The time, and in older versions the chat, that OpenClaw writes before what was said."""
_ABOUT = re.compile(
    r"^([^\n]{1,160})(?:\(untrusted[^\n)]{0,40}\):|⟦openclaw:ctx⟧)[ \t]*\n"
    r"```json\n(.{0,16384}?)\n```[ \t]*\n*",
    re.DOTALL | re.MULTILINE,
)
"""The description of who said it where and in reply to what, which OpenClaw writes around what was said."""
ABOUT_SENDER = ("Conversation info", "Sender")
"""The beginnings of descriptions that name who said it."""


@dataclass(slots=True)
class _OpenClaw(Reading):
    """A home of OpenClaw while it is read."""

    agent: str = MAIN
    others: set[str] = field(default_factory=set)
    """The names of conversations that are of no chat."""
    upkeep: int = 0
    """The number of messages that OpenClaw said to itself."""
    seen: set[tuple[str, str]] = field(default_factory=set)


def read(root: Path, scratch: Path) -> ForeignHome:
    """Return what a home holds. Blocks.

    Raises:
        BackupError: it is none, or of a version that is not known.
    """
    agents = [
        name
        for name in names_in(root, "agents")
        if any(foreign_home.has_file(root, path) for path in (_index(name), _database(name)))
    ]
    if not agents:
        raise BackupError(
            f"{root} is no home of OpenClaw that can be read:"
            f" it has neither {_index(MAIN)} nor {_database(MAIN)}."
        )
    reading = _OpenClaw(root, ForeignHome(program="openclaw"))
    reading.agent = MAIN if MAIN in agents else agents[0]
    reading.add_notes()
    _add_files(reading)
    _add_database(reading, scratch)
    _add_jobs(reading, scratch)
    for group in reading.found.groups:
        group.messages.sort(key=lambda one: one.sent_ms)
    others = [name for name in names_in(root, "agents") if name != reading.agent]
    reading.found.left += [f"agents/{name}: only the agent '{reading.agent}' is read" for name in others]
    reading.leave_some(
        len(reading.others), "conversations of jobs, helpers and the command line: they are of no chat"
    )
    reading.leave_some(reading.upkeep, "messages between OpenClaw and itself, such as heartbeats")
    return reading.found


def _index(agent: str) -> str:
    return f"agents/{agent}/sessions/sessions.json"


def _database(agent: str) -> str:
    return f"agents/{agent}/agent/openclaw-agent.sqlite"


def _add_files(reading: _OpenClaw) -> None:
    """Add the conversations in files. Raises `BackupError` for an index that is broken."""
    index = json_of(reading.root, _index(reading.agent))
    folder = _index(reading.agent).rpartition("/")[0]
    for key, entry in list(index.items() if isinstance(index, dict) else ())[:MAX_GROUPS]:
        name = text(entry, "sessionId") if isinstance(entry, dict) else ""
        group = _group(reading, key, entry)
        if group is None or not _SESSION_ID.fullmatch(name):
            continue
        topic = key.rpartition(":topic:")[2] if ":topic:" in key else ""
        for path in (f"{folder}/{name}.jsonl", f"{folder}/{name}-topic-{topic}.jsonl"):
            reading.add(group, (_message(reading, group, line) for line in lines_of(reading.root, path)))
    ended = [name for name in names_in(reading.root, folder) if _ENDED_SESSION.search(name)]
    reading.leave_some(len(ended), f"conversations in {folder} that were begun anew or deleted")


def _group(reading: _OpenClaw, key: str, entry: object) -> ForeignGroup | None:
    """Return the group of a conversation; None of one that is of no chat."""
    rest = key.removeprefix(f"agent:{reading.agent}:")
    if rest == MAIN:
        return reading.main()
    parts = _KEY.fullmatch(rest)
    if parts is None:
        reading.others.add(key)
        return None
    channel, kind, chat, _ = parts.groups()
    known = f"{channel}:{chat}"
    if known not in reading.groups:
        row = entry if isinstance(entry, dict) else {}
        reading.groups[known] = reading.chat(
            channel, _as_written(chat, row), is_direct=kind in ("direct", "dm"), name=_name(row)
        )
    return reading.groups[known]


def _name(entry: Mapping[str, Any]) -> str:
    """Return the name of a group, or of the person in a direct chat; empty where it is not known."""
    newer, older = part_of(part_of(entry, "delivery"), "origin"), part_of(entry, "origin")
    label = text(newer, "label") or text(older, "label")
    return text(entry, "subject") or label.partition(" id:")[0]


def _as_written(chat: str, entry: Mapping[str, Any]) -> str:
    """Return the messenger's id of a chat with its capitals, which the name of a conversation has lost."""
    newer, older = part_of(part_of(entry, "delivery"), "context"), part_of(entry, "deliveryContext")
    for place in (text(newer, "to"), text(older, "to"), text(entry, "lastTo")):
        if place.lower().endswith(chat):
            return place[-len(chat) :]
    return chat


def _message(reading: _OpenClaw, group: ForeignGroup, line: Mapping[str, Any]) -> ForeignMessage | None:
    said, name = part_of(line, "message"), text(line, "id", limit=MAX_ID_CHARS)
    if line.get("type") != "message":
        return None
    return _said(reading, group, said, line.get("timestamp"), name)


def _said(
    reading: _OpenClaw, group: ForeignGroup, said: Mapping[str, Any], at: object, name: str
) -> ForeignMessage | None:
    """Return a message of a person or the agent; None of a second one with its id, and of upkeep."""
    if name and (group.key, name) in reading.seen:
        return None
    reading.seen.add((group.key, name))
    words, about = words_of(said.get("content")), part_of(said, "__openclaw")
    sender = text(about, "senderName") or text(about, "senderUsername")
    if said.get("role") == "user":
        words, named = _without_frame(words)
        is_direct = not (group.is_main or group.requires_trigger)
        sender = sender or named or (group.name if is_direct else "")
    if words.startswith(UPKEEP_WORDS) or words.strip() in SILENT_ANSWERS:
        reading.upkeep += 1
        return None
    written_ms = said.get("timestamp")
    return message(said, written_ms if isinstance(written_ms, int) else at, name, sender=sender, words=words)


def _without_frame(words: str) -> tuple[str, str]:
    """Return what a person said without what OpenClaw wrote around it, and their name if it is known."""
    words, sender = _EVENTS.sub("", words, count=1), ""
    for about in _ABOUT.finditer(words):
        row = object_of(about[2]) if about[1].startswith(ABOUT_SENDER) else None
        if row is not None:
            sender = text(row, "name") or sender or text(row, "label") or text(row, "sender")
    return _STAMP.sub("", _ABOUT.sub("", words), count=1).rstrip("\n"), sender


def _add_database(reading: _OpenClaw, scratch: Path) -> None:
    """Add the conversations in the agent's database; one that cannot be read is left."""
    path = _database(reading.agent)
    if not foreign_home.has_file(reading.root, path):
        return
    try:
        with foreign_home.database(reading.root, path, scratch, has_function_checks=True) as database:
            if foreign_home.columns(database, "transcript_events") >= NEEDED_EVENTS:
                _add_events(reading, database, path)
            else:
                reading.found.left.append(f"{path}: it is of a version of OpenClaw that is not known")
    except BackupError as error:
        reading.found.left.append(f"{path}: {error}")


def _add_events(reading: _OpenClaw, database: sqlite3.Connection, path: str) -> None:
    groups = _sessions(reading, database)
    packed = set()
    for row in foreign_home.rows(database, "transcript_events", limit=MAX_MESSAGES, order="created_at"):
        group = groups.get(text(row, "session_id"))
        if group is None:
            continue
        event = object_of(text(row, "event_json", limit=MAX_EVENT_CHARS))
        if event is None:
            packed.add((group.key, _packed_message(row)))
        else:
            reading.add(group, [_message(reading, group, event)])
    if foreign_home.columns(database, "session_transcript_fts_content") >= NEEDED_WORDS:
        # Longer messages are packed there, and as they are in the index of words.
        for row in foreign_home.rows(database, "session_transcript_fts_content", limit=MAX_MESSAGES):
            group = groups.get(text(row, "c1"))
            if group is not None:
                said = {"role": row["c3"], "content": row["c0"]}
                reading.add(group, [_said(reading, group, said, row["c4"], text(row, "c2"))])
    left = [one for one in packed - reading.seen if one[1]]
    reading.leave_some(len(left), f"long messages in {path}, which are packed")
    archived = sum(1 for _ in foreign_home.rows(database, "session_transcript_archives", limit=MAX_GROUPS))
    reading.leave_some(archived, f"conversations in {path} that were begun anew or deleted")


def _sessions(reading: _OpenClaw, database: sqlite3.Connection) -> dict[str, ForeignGroup]:
    """Return the groups by the ids of the sessions in which they spoke."""
    groups, by_id = {}, {}
    for row in foreign_home.rows(database, "session_nodes", limit=MAX_GROUPS, order="updated_at"):
        key = text(row, "session_key", limit=MAX_KEY_CHARS)
        group = _group(reading, key, object_of(text(row, "entry_json", limit=MAX_EVENT_CHARS)))
        if group is not None:
            groups[key] = by_id[text(row, "current_session_id")] = group
    for row in foreign_home.rows(database, "session_windows", limit=MAX_SESSIONS):
        key = text(row, "session_key", limit=MAX_KEY_CHARS)
        if key in groups:
            by_id[text(row, "session_id")] = groups[key]
    return by_id


def _packed_message(row: Mapping[str, Any]) -> str:
    """Return the id of a message of a person or the agent that is packed; empty for other entries."""
    about = part_of(object_of(text(row, "navigation_json", limit=MAX_EVENT_CHARS)) or {}, "navigation")
    is_said = part_of(about, "message").get("role") in ("user", "assistant")
    return text(about, "id", limit=MAX_ID_CHARS) if is_said else ""


def _add_jobs(reading: _OpenClaw, scratch: Path) -> None:
    """Add the scheduled jobs. Raises `BackupError` for a file of them that is of an unknown version."""
    jobs = {text(job, "id"): job for job in jobs_of(reading.root, JOBS)}
    jobs.update({text(job, "id"): job for job in _jobs_in_database(reading, scratch)})
    for name, job in list(jobs.items())[:MAX_TASKS]:
        payload = part_of(job, "payload")
        if payload.get("kind") == "heartbeat" or text(job, "declarationKey").startswith(UPKEEP_JOBS):
            continue  # OpenClaw's own upkeep
        if text(job, "agentId") not in ("", reading.agent):
            reading.found.left.append(f"job {name}: it is of the agent '{text(job, 'agentId')}'")
        elif job.get("trigger"):
            reading.found.left.append(
                f"job {name}: a script says when it is due, which is written for OpenClaw"
            )
        else:
            _job_group(reading, job).tasks.append(task_of(job))


def _jobs_in_database(reading: _OpenClaw, scratch: Path) -> list[dict[str, Any]]:
    if not foreign_home.has_file(reading.root, JOBS_DATABASE):
        return []
    try:
        with foreign_home.database(
            reading.root, JOBS_DATABASE, scratch, has_function_checks=True
        ) as database:
            rows = foreign_home.rows(database, "cron_jobs", limit=MAX_TASKS)
            found = [object_of(text(row, "job_json", limit=MAX_EVENT_CHARS)) for row in rows]
    except BackupError as error:
        reading.found.left.append(f"{JOBS_DATABASE}: {error}")
        return []
    if None in found:
        reading.found.left.append(f"{JOBS_DATABASE}: {found.count(None)} jobs that cannot be read")
    return [job for job in found if job is not None]


def _job_group(reading: _OpenClaw, job: Mapping[str, Any]) -> ForeignGroup:
    """Return the group of the chat that a job answers in; main where that is none that is known."""
    for place in (part_of(job, "delivery"), part_of(job, "payload")):
        channel, chat = text(place, "channel"), text(place, "to")
        chat = re.sub(rf"^(?:{re.escape(channel)}:)?(?:group:)?", "", chat).partition(":topic:")[0]
        if f"{channel}:{chat}" in reading.groups:
            return reading.groups[f"{channel}:{chat}"]
    return reading.main()
