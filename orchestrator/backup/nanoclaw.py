"""Reads a home of NanoClaw: of version 1, which is `store/messages.db` and `groups/`, or of version 2."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.backup import foreign_home, nanoclaw_v2
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
from orchestrator.base.tables import counted
from orchestrator.domain.errors import BackupError

DATABASE = "store/messages.db"
NEEDED_COLUMNS = {
    "messages": {"id", "chat_jid", "sender", "sender_name", "content", "timestamp", "is_from_me"},
    "registered_groups": {"jid", "name", "folder", "trigger_pattern"},
    "scheduled_tasks": {"id", "group_folder", "prompt", "schedule_type", "schedule_value", "status"},
}
NOTE_FOLDERS = ("conversations", "memory")
MAIN = "main"
SHARED_NOTES = "groups/global/CLAUDE.md"


def read(root: Path, scratch: Path) -> ForeignHome:
    """Return the contents of NanoClaw's home in the folder `root`. Blocks.

    `scratch` is a folder for a copy of its database.

    Raises:
        BackupError: it is no home of a known version, or cannot be read.
    """
    if foreign_home.has_file(root, nanoclaw_v2.DATABASE):
        return nanoclaw_v2.read(root, scratch)
    if not foreign_home.has_file(root, DATABASE):
        raise BackupError(f"{root} is no home of NanoClaw: it has no {DATABASE}.")
    foreign = ForeignHome(program="nanoclaw", has_chat_ids=True)
    with foreign_home.database(root, DATABASE, scratch) as database:
        for table, needed_columns in NEEDED_COLUMNS.items():
            if not needed_columns <= foreign_home.columns(database, table):
                raise BackupError(f"{root / DATABASE} is of a version of NanoClaw that is not known.")
        _read_groups(database, root, foreign)
        _read_tasks(database, foreign)
        _read_messages(database, foreign)
        sessions = list(foreign_home.rows(database, "sessions", limit=MAX_GROUPS))
    if foreign_home.has_file(root, SHARED_NOTES):
        foreign.left_out.append(
            f"{SHARED_NOTES}: it is for all groups; copy what shall stay to Andy's {SHARED_NOTES}"
        )
    if sessions:
        foreign.left_out.append(
            f"{counted(len(sessions), 'session')} of agents: Andy's start afresh, with the notes"
        )
    return foreign


def _read_groups(database: sqlite3.Connection, root: Path, foreign: ForeignHome) -> None:
    """Add the registered groups with their notes to `foreign`; what is not imported is noted there.

    Of more than `MAX_GROUPS` groups, only the newest are read.
    """
    for row in foreign_home.rows(database, "registered_groups", limit=MAX_GROUPS):
        folder, chat = text(row, "folder"), text(row, "jid")
        if not folder or not chat:
            foreign.left_out.append("a group without a folder or chat")
            continue
        if row.get("container_config"):
            foreign.left_out.append(f"{folder}: its container settings, such as folders that it may read")
        requires_trigger = row.get("requires_trigger")
        # Another name would be a path, and could lead to notes outside of the group's folder.
        is_plain_name = "/" not in folder and folder not in (".", "..")
        foreign.groups.append(
            ForeignGroup(
                key=chat,
                folder=folder,
                name=text(row, "name") or folder,
                chat=chat,
                is_main=bool(row.get("is_main")) or folder == MAIN,
                # NanoClaw's trigger is `@Andy`; Andy answers to his name by himself.
                trigger=text(row, "trigger_pattern") or None,
                # Without a value, as in databases that lack this column, a group requires it.
                requires_trigger=requires_trigger is None or bool(requires_trigger),
                notes=foreign_home.notes(
                    root, f"groups/{folder}", subfolders=NOTE_FOLDERS, leave_out=foreign.left_out.append
                )
                if is_plain_name
                else [],
            )
        )


def _read_tasks(database: sqlite3.Connection, foreign: ForeignHome) -> None:
    """Add the scheduled tasks that have not ended to their groups; what is not imported is noted.

    A task with a script is added without it.
    """
    by_folder = {group.folder: group for group in foreign.groups}
    for row in foreign_home.rows(database, "scheduled_tasks", limit=MAX_TASKS):
        group = by_folder.get(text(row, "group_folder"))
        task_id = text(row, "id", limit=MAX_ID_CHARS)
        if text(row, "status") not in ("active", "paused"):
            continue  # the task has ended
        if group is None:
            foreign.left_out.append(f"task {task_id}: its group is not registered")
            continue
        if row.get("script"):
            foreign.left_out.append(
                f"{group.folder}: the script of task {task_id}, which is written for NanoClaw"
            )
        group.tasks.append(
            ForeignTask(
                id=task_id,
                prompt=text(row, "prompt", limit=MAX_TEXT_CHARS),
                kind=text(row, "schedule_type"),
                value=text(row, "schedule_value"),
                is_paused=text(row, "status") == "paused",
                is_in_conversation=text(row, "context_mode") == "group",
            )
        )


def _read_messages(database: sqlite3.Connection, foreign: ForeignHome) -> None:
    """Add the messages to their groups, oldest first.

    The number of those without a group, an id or a time is noted as left out.
    """
    by_chat = {group.chat: group for group in foreign.groups}
    unplaced = 0
    for row in foreign_home.rows(database, "messages", limit=MAX_MESSAGES, order="timestamp"):
        group = by_chat.get(text(row, "chat_jid"))
        message = _message(row)
        if group is None or message is None:
            if text(row, "content"):  # a row without a text is no loss
                unplaced += 1
        else:
            group.messages.append(message)
    if unplaced:
        foreign.left_out.append(
            f"{counted(unplaced, 'message')}: they are in no registered group, or not whole"
        )


def _message(row: Mapping[str, Any]) -> ForeignMessage | None:
    """Return the message in a row of the table of messages; None if it lacks an id, a time or a text."""
    sent_ms = moment_ms(row["timestamp"])
    content = text(row, "content", limit=MAX_TEXT_CHARS)
    message_id = text(row, "id", limit=MAX_ID_CHARS)
    if sent_ms is None or not content or not message_id:
        return None
    # Older versions know the assistant's messages only as those of their own account.
    is_bot = row["is_bot_message"] if "is_bot_message" in row else row["is_from_me"]
    return ForeignMessage(
        id=message_id,
        sender=text(row, "sender"),
        sender_name=text(row, "sender_name") or text(row, "sender"),
        text=content,
        sent_ms=sent_ms,
        is_bot=bool(is_bot),
    )
