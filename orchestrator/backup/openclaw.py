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
    with_id,
    words_of,
)
from orchestrator.domain.errors import BackupError

JOBS = "cron/jobs.json"
JOBS_DATABASE = "state/openclaw.sqlite"
MAX_EVENT_CHARS, MAX_KEY_CHARS, MAX_SESSIONS = 2**22, 400, 10_000
NEEDED_EVENT_COLUMNS = {"session_id", "event_json", "created_at"}
NEEDED_INDEX_COLUMNS = {"c0", "c1", "c2", "c3", "c4"}
"""The columns of the full-text index, named by SQLite: text, session, message, role and time."""
UPKEEP_JOBS = ("heartbeat:", "memory-core:", "skill-collection-review:")
UPKEEP_BEGINNINGS = ("Read HEARTBEAT.md", "[OpenClaw heartbeat", "[cron:")
SILENT_ANSWERS = ("NO_REPLY", "HEARTBEAT_OK")
_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,120}")
_KEY = re.compile(
    r"([a-z0-9_-]{1,40}):(?:[a-z0-9_-]{1,40}:)?(group|channel|room|direct|dm):"
    r"(\S{1,160}?)(?::(?:topic|thread):(\S{1,80}))?"
)
_ENDED_SESSION = re.compile(r"\.jsonl\.(?:reset|deleted)\.")
_EVENTS = re.compile(r"\A(?:System(?: \(untrusted\))?: \[[^\n]*\n*)+")
"""The lines about events that OpenClaw writes before a person's message."""
_STAMP = re.compile(r"\A\n*\[(?:[^\]\n]{1,160} )?[A-Z][a-z]{2} \d{4}-\d\d-\d\d \d\d:\d\d[^\]\n]{0,40}\] ?")
"""The time, and in older versions the chat, that OpenClaw writes before a person's message."""
_DESCRIPTION = re.compile(
    r"^(?P<title>[^\n]{1,160})(?:\(untrusted[^\n)]{0,40}\):|⟦openclaw:ctx⟧)[ \t]*\n"
    r"```json\n(?P<json>.{0,16384}?)\n```[ \t]*\n*",
    re.DOTALL | re.MULTILINE,
)
"""The description of sender, chat and quoted message that OpenClaw writes around a person's message."""
SENDER_TITLES = ("Conversation info", "Sender")
"""The beginnings of descriptions that name the sender."""


@dataclass(slots=True)
class _OpenClaw(Reading):
    """A home of OpenClaw while it is read."""

    agent: str = MAIN
    without_chat: set[str] = field(default_factory=set)
    """The keys of conversations that belong to no chat."""
    upkeep_messages: int = 0
    """The number of messages of OpenClaw's own background work."""
    known_ids: set[tuple[str, str]] = field(default_factory=set)
    """Group and id of each message that was read, since files and databases may have it twice."""


def read(root: Path, scratch: Path) -> ForeignHome:
    """Return the conversations, jobs and notes of one agent in the OpenClaw home `root`. Blocks.

    The agent `main` is read, or the first one if there is no `main`; the others are noted as left out.
    `scratch` is a folder for copies of the home's databases.

    Raises:
        BackupError: it is no home of OpenClaw, or of an unknown version.
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
    for group in reading.foreign.groups:
        group.messages.sort(key=lambda message: message.sent_ms)
    other_agents = [name for name in names_in(root, "agents") if name != reading.agent]
    reading.foreign.left_out += [
        f"agents/{name}: only the agent '{reading.agent}' is read" for name in other_agents
    ]
    reading.leave_out_some(
        len(reading.without_chat),
        "conversations of jobs, helpers and the command line: they belong to no chat",
    )
    reading.leave_out_some(
        reading.upkeep_messages, "messages between OpenClaw and itself, such as heartbeats"
    )
    return reading.foreign


def _index(agent: str) -> str:
    """Return the path, below the home, of the file that lists an agent's conversations."""
    return f"agents/{agent}/sessions/sessions.json"


def _database(agent: str) -> str:
    """Return the path, below the home, of an agent's database."""
    return f"agents/{agent}/agent/openclaw-agent.sqlite"


def _add_files(reading: _OpenClaw) -> None:
    """Add the conversations that are stored in files: the first `MAX_GROUPS` that their index lists.

    Without an index there are none. Noted as left out are further conversations, those that were restarted
    or deleted, and an index of an unknown version. An entry is skipped if it belongs to no chat, or if its
    session id cannot be the name of a file.

    Raises:
        BackupError: the index is no JSON, or too large.
    """
    index_path = _index(reading.agent)
    index = json_of(reading.root, index_path)
    if index is not None and not isinstance(index, dict):
        reading.foreign.left_out.append(f"{index_path}: it is of a version of OpenClaw that is not known")
    entries = (
        [(foreign_home.storable(key), entry) for key, entry in index.items()]
        if isinstance(index, dict)
        else []
    )
    reading.leave_out_some(
        len(entries[MAX_GROUPS:]), f"conversations in {index_path}: only the first {MAX_GROUPS:,} are read"
    )
    folder = index_path.rpartition("/")[0]
    for key, entry in entries[:MAX_GROUPS]:
        name = text(entry, "sessionId") if isinstance(entry, dict) else ""
        group = _group(reading, key, entry)
        # The session id becomes a part of the file's path.
        if group is None or not _SESSION_ID.fullmatch(name):
            continue
        # The file of a topic may have the topic in its name: both names are tried.
        topic = key.rpartition(":topic:")[2] if ":topic:" in key else ""
        for path in (f"{folder}/{name}.jsonl", f"{folder}/{name}-topic-{topic}.jsonl"):
            reading.add(group, (_message(reading, group, line) for line in lines_of(reading.root, path)))
    ended_files = [name for name in names_in(reading.root, folder) if _ENDED_SESSION.search(name)]
    reading.leave_out_some(len(ended_files), f"conversations in {folder} that were restarted or deleted")


def _group(reading: _OpenClaw, key: str, entry: object) -> ForeignGroup | None:
    """Return the group of a conversation by its key, made at its first use.

    `entry` is the value that the index has for the conversation. None if the conversation belongs to no chat;
    its key is then added to `reading.without_chat`.
    """
    chat_part = key.removeprefix(f"agent:{reading.agent}:")
    if chat_part == MAIN:
        return reading.main()
    parts = _KEY.fullmatch(chat_part)
    if parts is None:
        reading.without_chat.add(key)
        return None
    channel, kind, chat, _ = parts.groups()
    chat_key = f"{channel}:{chat}"
    if chat_key not in reading.groups:
        row = entry if isinstance(entry, dict) else {}
        # `reading.chat` stores the group by a key that may have capital letters, which keys of conversations
        # lack. It is stored by the conversation's key, too, so that the chat's next conversation finds it.
        reading.groups[chat_key] = reading.chat(
            channel, _as_written(chat, row), is_direct=kind in ("direct", "dm"), name=_name(row)
        )
    return reading.groups[chat_key]


def _name(entry: Mapping[str, Any]) -> str:
    """Return the name of a group, or of the person in a direct chat; empty if it is not known.

    `entry` is the value that the index has for a conversation. Its fields differ in newer and older versions.
    """
    newer, older = part_of(part_of(entry, "delivery"), "origin"), part_of(entry, "origin")
    # A label is a name, which may have ` id:` and the messenger's id of the chat after it.
    label = text(newer, "label") or text(older, "label")
    return text(entry, "subject") or label.partition(" id:")[0]


def _as_written(chat: str, entry: Mapping[str, Any]) -> str:
    """Return the messenger's id of a chat with its capital letters, which conversation keys lack.

    `chat` is the id from the key, in small letters; it is returned if `entry`, the value that the index has
    for the conversation, lacks the id.
    """
    newer, older = part_of(part_of(entry, "delivery"), "context"), part_of(entry, "deliveryContext")
    # An address may have more before the id, such as the name of the messenger.
    for address in (text(newer, "to"), text(older, "to"), text(entry, "lastTo")):
        if address.lower().endswith(chat):
            return address[-len(chat) :]
    return chat


def _message(reading: _OpenClaw, group: ForeignGroup, line: Mapping[str, Any]) -> ForeignMessage | None:
    """Return the message of an entry in a conversation.

    None for another kind of entry, and for a message that `_conversation_message` does not import.
    """
    row, message_id = part_of(line, "message"), text(line, "id", limit=MAX_ID_CHARS)
    if line.get("type") != "message":
        return None
    return _conversation_message(reading, group, row, line.get("timestamp"), message_id)


def _conversation_message(
    reading: _OpenClaw, group: ForeignGroup, row: Mapping[str, Any], at: object, message_id: str
) -> ForeignMessage | None:
    """Return the message of a person or the agent in `row`; None if it is not imported.

    Not imported are a message whose id was read already, one of OpenClaw's background work (counted in
    `reading.upkeep_messages`), one of a tool, and one without a text or a time. `at` is the time of the
    message if the row has none. `message_id` may be empty; it is added to `reading.known_ids`.
    """
    if message_id and (group.key, message_id) in reading.known_ids:
        return None
    reading.known_ids.add((group.key, message_id))
    body, sender_fields = words_of(row.get("content")), part_of(row, "__openclaw")
    sender = text(sender_fields, "senderName") or text(sender_fields, "senderUsername")
    if row.get("role") == "user":
        body, sender_in_body = _without_added_text(body)
        # A direct chat is named after its person, and is the only kind in which no trigger is required.
        is_direct = not (group.is_main or group.requires_trigger)
        sender = sender or sender_in_body or (group.name if is_direct else "")
    if body.startswith(UPKEEP_BEGINNINGS) or body.strip() in SILENT_ANSWERS:
        reading.upkeep_messages += 1
        return None
    written_ms = row.get("timestamp")
    return message(
        row, written_ms if isinstance(written_ms, int) else at, message_id, sender=sender, body=body
    )


def _without_added_text(body: str) -> tuple[str, str]:
    """Return a person's message without the text that OpenClaw writes around it, and the person's name.

    So `[Thu 2026-01-01 09:00 UTC] hello` becomes `hello`. Removed are lines about events, descriptions of the
    sender and the chat as JSON, and the time. The name is from the descriptions; empty if they have none.
    """
    body = _EVENTS.sub("", body, count=1)
    sender = ""
    for description in _DESCRIPTION.finditer(body):
        row = object_of(description["json"]) if description["title"].startswith(SENDER_TITLES) else None
        if row is not None:
            # A real name of any description comes before other names of the sender.
            sender = text(row, "name") or sender or text(row, "label") or text(row, "sender")
    return _STAMP.sub("", _DESCRIPTION.sub("", body), count=1).rstrip("\n"), sender


def _add_database(reading: _OpenClaw, scratch: Path) -> None:
    """Add the conversations in the agent's database, if it has one.

    A database that cannot be read, or is of an unknown version, is noted as left out.
    """
    path = _database(reading.agent)
    if not foreign_home.has_file(reading.root, path):
        return
    try:
        with foreign_home.database(reading.root, path, scratch, allows_functions_in_checks=True) as database:
            if foreign_home.columns(database, "transcript_events") >= NEEDED_EVENT_COLUMNS:
                _add_events(reading, database, path)
            else:
                reading.foreign.left_out.append(f"{path}: it is of a version of OpenClaw that is not known")
    except BackupError as error:
        reading.foreign.left_out.append(f"{path}: {error}")


def _add_events(reading: _OpenClaw, database: sqlite3.Connection, path: str) -> None:
    """Add the messages of a database: from the events or, where these are compressed, from the text index.

    Messages that neither has, and the conversations in the archive, are noted as left out. `path` names the
    database in these notes.
    """
    groups = _sessions(reading, database)
    compressed_messages = set()
    for row in foreign_home.rows(database, "transcript_events", limit=MAX_MESSAGES, order="created_at"):
        group = groups.get(text(row, "session_id"))
        if group is None:
            continue
        event = object_of(text(row, "event_json", limit=MAX_EVENT_CHARS))
        if event is None:  # no JSON, so the event is compressed
            compressed_messages.add((group.key, _compressed_id(row)))
        else:
            reading.add(group, [_message(reading, group, event)])
    if foreign_home.columns(database, "session_transcript_fts_content") >= NEEDED_INDEX_COLUMNS:
        # Longer messages are compressed in the events, but plain in the full-text index.
        for row in foreign_home.rows(database, "session_transcript_fts_content", limit=MAX_MESSAGES):
            group = groups.get(text(row, "c1"))
            if group is not None:
                # SQLite names the columns: text (`c0`), session (`c1`), message (`c2`), role (`c3`), time
                # (`c4`).
                entry = {"role": row["c3"], "content": row["c0"]}
                reading.add(group, [_conversation_message(reading, group, entry, row["c4"], text(row, "c2"))])
    unread = [message_id for _, message_id in compressed_messages - reading.known_ids if message_id]
    reading.leave_out_some(len(unread), f"long messages in {path}, which are compressed")
    archived_count = sum(
        1 for _ in foreign_home.rows(database, "session_transcript_archives", limit=MAX_GROUPS)
    )
    reading.leave_out_some(archived_count, f"conversations in {path} that were restarted or deleted")


def _sessions(reading: _OpenClaw, database: sqlite3.Connection) -> dict[str, ForeignGroup]:
    """Return the group of each session, present or earlier, by the session's id.

    Only those of the `MAX_GROUPS` conversations that changed last, and at most `MAX_SESSIONS` earlier ones.
    """
    groups, by_session = {}, {}
    # These rows are the conversations, each with its present session; those below are the earlier sessions.
    for row in foreign_home.rows(database, "session_nodes", limit=MAX_GROUPS, order="updated_at"):
        key = text(row, "session_key", limit=MAX_KEY_CHARS)
        group = _group(reading, key, object_of(text(row, "entry_json", limit=MAX_EVENT_CHARS)))
        if group is not None:
            groups[key] = by_session[text(row, "current_session_id")] = group
    for row in foreign_home.rows(database, "session_windows", limit=MAX_SESSIONS):
        key = text(row, "session_key", limit=MAX_KEY_CHARS)
        if key in groups:
            by_session[text(row, "session_id")] = groups[key]
    return by_session


def _compressed_id(row: Mapping[str, Any]) -> str:
    """Return the id of the compressed message in an event's row; empty if no person or agent wrote it."""
    # The id and the role of a compressed event are also in this field, as plain JSON.
    plain = part_of(object_of(text(row, "navigation_json", limit=MAX_EVENT_CHARS)) or {}, "navigation")
    is_message = part_of(plain, "message").get("role") in ("user", "assistant")
    return text(plain, "id", limit=MAX_ID_CHARS) if is_message else ""


def _add_jobs(reading: _OpenClaw, scratch: Path) -> None:
    """Add the scheduled jobs to the groups of their chats; what is not imported is noted as left out.

    Not noted are jobs of OpenClaw's own upkeep, and those beyond `MAX_TASKS`.

    Raises:
        BackupError: the file of jobs is of an unknown version.
    """
    jobs = {text(job, "id"): job for job in jobs_of(reading.root, JOBS)}
    # If a job is in both, that of the database is used: newer versions change it there.
    jobs.update({text(job, "id"): job for job in _jobs_in_database(reading, scratch)})
    for name, job in list(jobs.items())[:MAX_TASKS]:
        payload = part_of(job, "payload")
        if payload.get("kind") == "heartbeat" or text(job, "declarationKey").startswith(UPKEEP_JOBS):
            continue  # OpenClaw's own upkeep
        if text(job, "agentId") not in ("", reading.agent):
            reading.foreign.left_out.append(f"job {name}: it is of the agent '{text(job, 'agentId')}'")
        elif job.get("trigger"):
            reading.foreign.left_out.append(
                f"job {name}: a script written for OpenClaw decides when it is due"
            )
        else:
            _job_group(reading, job).tasks.append(task_of(job))


def _jobs_in_database(reading: _OpenClaw, scratch: Path) -> list[dict[str, Any]]:
    """Return the scheduled jobs in the database of jobs; none if there is no such database.

    A database or a job that cannot be read is noted as left out. Of more than `MAX_TASKS` jobs, only the
    newest are read, and the others are not noted.
    """
    if not foreign_home.has_file(reading.root, JOBS_DATABASE):
        return []
    try:
        with foreign_home.database(
            reading.root, JOBS_DATABASE, scratch, allows_functions_in_checks=True
        ) as database:
            rows = foreign_home.rows(database, "cron_jobs", limit=MAX_TASKS)
            jobs = [object_of(text(row, "job_json", limit=MAX_EVENT_CHARS)) for row in rows]
    except BackupError as error:
        reading.foreign.left_out.append(f"{JOBS_DATABASE}: {error}")
        return []
    if None in jobs:
        reading.foreign.left_out.append(f"{JOBS_DATABASE}: {jobs.count(None)} jobs that cannot be read")
    return [with_id(job) for job in jobs if job is not None]


def _job_group(reading: _OpenClaw, job: Mapping[str, Any]) -> ForeignGroup:
    """Return the group of the chat that a scheduled job answers in; main if no group has that chat."""
    for target in (part_of(job, "delivery"), part_of(job, "payload")):
        channel, chat = text(target, "channel"), text(target, "to")
        # `telegram:group:-100:topic:7` is the chat `-100`.
        chat = re.sub(rf"^(?:{re.escape(channel)}:)?(?:group:)?", "", chat).partition(":topic:")[0]
        if f"{channel}:{chat}" in reading.groups:
            return reading.groups[f"{channel}:{chat}"]
    return reading.main()
