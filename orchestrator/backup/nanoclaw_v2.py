"""Reads a home of NanoClaw 2: `data/v2.db`, two databases for each session, and `groups/`."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
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
    ForeignNote,
    ForeignTask,
    moment_ms,
    text,
)
from orchestrator.domain.errors import BackupError

DATABASE = "data/v2.db"
NEEDED_COLUMNS = {
    "agent_groups": {"id", "name", "folder"},
    "messaging_groups": {"id", "channel_type", "platform_id"},
    "messaging_group_agents": {"messaging_group_id", "agent_group_id"},
    "sessions": {"id", "agent_group_id"},
}
MAX_SESSIONS = 10_000
NOTE_FOLDERS = ("conversations", "memory")
EVERY_MESSAGE = "."
"""The pattern of a group that answers every message."""
CHAT_KINDS = ("chat", "chat-sdk")
"""The kinds of messages that people write: of NanoClaw's own messengers, and of those of its Chat SDK."""
MEMORY, COMPOSED = "CLAUDE.local.md", b"<!-- Composed at spawn"
"""The file with a group's memory, and the beginning of a `CLAUDE.md` that NanoClaw rewrites at each start."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,120}")
_FOLDER = re.compile(r"[^/\0]{1,64}")
# A pattern that is only a name, such as `@Andy`; other regular expressions are no trigger of Andy's.
_PLAIN_PATTERN = re.compile(r"@?\w[\w -]*")


def read(root: Path, scratch: Path) -> ForeignHome:
    """Return the contents of the home of NanoClaw 2 in the folder `root`. Blocks.

    `scratch` is a folder for copies of its databases.

    Raises:
        BackupError: it is of an unknown version, or its database cannot be read.
    """
    foreign = ForeignHome(program="nanoclaw")
    with foreign_home.database(root, DATABASE, scratch) as database:
        for table, needed_columns in NEEDED_COLUMNS.items():
            if not needed_columns <= foreign_home.columns(database, table):
                raise BackupError(f"{root / DATABASE} is of a version of NanoClaw that is not known.")
        groups = _groups(database, root, foreign)
        sessions = list(foreign_home.rows(database, "sessions", limit=MAX_SESSIONS))
    for row in sessions:
        agent, name = text(row, "agent_group_id"), text(row, "id")
        # Both become parts of a path, so they must be plain names.
        if agent in groups and _ID.fullmatch(agent) and _ID.fullmatch(name):
            _read_session(root, f"data/v2-sessions/{agent}/{name}", groups[agent], scratch, foreign)
    for group in foreign.groups:
        group.messages.sort(key=lambda message: message.sent_ms)
    return foreign


def _groups(database: sqlite3.Connection, root: Path, foreign: ForeignHome) -> dict[str, ForeignGroup]:
    """Add the groups to `foreign`, and return them by the ids of their agents.

    A wiring is NanoClaw's row that connects an agent with one of its chats. The first chat becomes that of
    the group; the owner is shown how to add the others.
    """
    chats = {
        text(row, "id"): row for row in foreign_home.rows(database, "messaging_groups", limit=MAX_GROUPS)
    }
    wirings: dict[str, list[dict[str, Any]]] = {}
    for row in foreign_home.rows(database, "messaging_group_agents", limit=MAX_GROUPS):
        wirings.setdefault(text(row, "agent_group_id"), []).append(row)
    groups = {}
    for row in foreign_home.rows(database, "agent_groups", limit=MAX_GROUPS):
        agent_id, folder = text(row, "id"), text(row, "folder")
        if not _FOLDER.fullmatch(folder) or folder in (".", ".."):
            foreign.left_out.append(f"the group {folder}: its folder has no name that can be used")
            continue
        # An agent without a chat becomes a group without a chat: an empty wiring stands for its first one.
        first, *other_wirings = [
            wiring for wiring in wirings.get(agent_id, []) if text(wiring, "messaging_group_id") in chats
        ] or [{}]
        chat_row = chats.get(text(first, "messaging_group_id"), {})
        channel, chat = _chat(chat_row)
        pattern = text(first, "engage_pattern")
        for wiring in other_wirings:
            other_chat = " ".join(_chat(chats[text(wiring, "messaging_group_id")]))
            foreign.left_out.append(
                f"{folder}: its chat {other_chat}: 'andy groups add-chat {folder} CHAT' adds one more"
            )
        groups[agent_id] = ForeignGroup(
            key=agent_id,
            folder=folder,
            # The chat's name first: an agent's name is the assistant's, which many groups share.
            name=text(chat_row, "name") or text(row, "name") or folder,
            channel=channel,
            chat=chat,
            trigger=pattern if _PLAIN_PATTERN.fullmatch(pattern) else None,
            requires_trigger=pattern != EVERY_MESSAGE,
            notes=_notes(root, f"groups/{folder}", foreign),
        )
    foreign.groups.extend(groups.values())
    return groups


def _notes(root: Path, folder: str, foreign: ForeignHome) -> list[ForeignNote]:
    """Return the notes of a group, from `folder`, a path below `root`.

    A `CLAUDE.md` that NanoClaw composed itself is no note, and is not returned. The file with the group's
    memory is renamed to `CLAUDE.md`, which Andy's agents read, unless the group has a `CLAUDE.md` of its own.
    Notes and folders that cannot be read are listed in `foreign.left_out`.
    """
    notes = [
        note
        for note in foreign_home.notes(
            root, folder, subfolders=NOTE_FOLDERS, leave_out=foreign.left_out.append
        )
        if not (note.path == "CLAUDE.md" and note.body.startswith(COMPOSED))
    ]
    if any(note.path == "CLAUDE.md" for note in notes):
        return notes
    return [replace(note, path="CLAUDE.md") if note.path == MEMORY else note for note in notes]


def _chat(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the messenger of a chat and the chat's id in it; both are empty for an empty row."""
    channel = text(row, "channel_type")
    return channel, text(row, "platform_id").removeprefix(f"{channel}:")


def _read_session(root: Path, folder: str, group: ForeignGroup, scratch: Path, foreign: ForeignHome) -> None:
    """Add the messages and tasks in the two databases of a session to its group.

    `folder` is the session's folder below `root`, and `scratch` one for copies of the databases. A database
    that cannot be read is noted as left out in `foreign`; a missing one is skipped.
    """
    for name, table, is_bot in (("inbound.db", "messages_in", False), ("outbound.db", "messages_out", True)):
        path = f"{folder}/{name}"
        if not foreign_home.has_file(root, path):
            continue
        try:
            with foreign_home.database(root, path, scratch) as database:
                for row in foreign_home.rows(database, table, limit=MAX_MESSAGES):
                    session = folder.rpartition("/")[2]
                    _add_row(row, group, foreign, session=session, is_bot=is_bot)
        except BackupError as error:
            foreign.left_out.append(f"{path}: {error}")


def _add_row(
    row: Mapping[str, Any], group: ForeignGroup, foreign: ForeignHome, *, session: str, is_bot: bool
) -> None:
    """Add the message or the scheduled task of a row to `group`.

    Skipped are tasks that have ended or have no time, messages that are no chat messages or have no text or
    time, and all beyond the first `MAX_TASKS` tasks and `MAX_MESSAGES` messages of the group. A task's script
    is noted in `foreign` as left out. `is_bot` says that the row is from the assistant. `session` is the
    session's id: rows of two sessions may have the same id.
    """
    kind, content, row_id = row.get("kind"), _content(row), text(row, "id", limit=MAX_ID_CHARS)
    if kind == "task" and not is_bot:
        task = _task(row, content, row_id)
        # A task without a time is a request of NanoClaw's own, such as to welcome a new chat.
        if task.value and row.get("status") in ("pending", "paused") and len(group.tasks) < MAX_TASKS:
            group.tasks.append(task)
        if content.get("script"):
            foreign.left_out.append(
                f"{group.folder}: the script of task {row_id}, which is written for NanoClaw"
            )
        return
    body, sent_ms = text(content, "text", limit=MAX_TEXT_CHARS), moment_ms(row.get("timestamp"))
    if "operation" in content or kind not in CHAT_KINDS:
        return  # a change of a message, or a message between programs
    if body.strip() and sent_ms is not None and len(group.messages) < MAX_MESSAGES:
        sender = text(content, "sender") or "someone"
        group.messages.append(
            ForeignMessage(
                id=f"{session}:{row_id}",
                sender=text(content, "senderId") or sender,
                sender_name="Andy" if is_bot else sender,
                text=body,
                sent_ms=sent_ms,
                is_bot=is_bot,
            )
        )


def _task(row: Mapping[str, Any], content: Mapping[str, Any], row_id: str) -> ForeignTask:
    """Return the scheduled task of a row; its `value`, the time, is empty if the row has none.

    `content` is the row's decoded content, and `row_id` its id.
    """
    cron, at_ms = text(row, "recurrence"), moment_ms(row.get("process_after"))
    at = "" if at_ms is None else text(row, "process_after")
    return ForeignTask(
        # Each run of a repeated task is a row of its own in the same series. With the id of the series, all
        # of them are one task to the import.
        id=text(row, "series_id", limit=MAX_ID_CHARS) or row_id,
        prompt=text(content, "prompt", limit=MAX_TEXT_CHARS),
        kind="cron" if cron else "once",
        value=cron or at,
        is_paused=row.get("status") == "paused",
    )


def _content(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON object in a row's content; an empty one if it has none."""
    try:
        value = json.loads(text(row, "content", limit=2**22))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
