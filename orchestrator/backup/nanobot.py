"""Reads a home of nanobot: conversations as JSON lines, scheduled jobs, and a workspace with its memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.backup import foreign_home
from orchestrator.backup.foreign_home import (
    MAX_GROUPS,
    MAX_NOTE_BYTES,
    MAX_TASKS,
    MAX_TEXT_CHARS,
    ForeignGroup,
    ForeignHome,
    ForeignMessage,
    ForeignNote,
    text,
)
from orchestrator.backup.session_homes import (
    Reading,
    jobs_of,
    lines_of,
    message,
    names_in,
    part_of,
    task_of,
)
from orchestrator.domain.errors import BackupError

SESSIONS = "sessions"
SESSION_FOLDERS = (f"workspace/{SESSIONS}", SESSIONS)
"""The folders of conversations in older homes; newer ones have `sessions/ID/`, one for each workspace."""
DATABASES = ("workspace/sessions.db", *(f"{folder}/sessions.sqlite3" for folder in SESSION_FOLDERS))
CRON_FOLDERS = ("cron", "workspace/cron")
SUMMARIES = "workspace/memory/history.jsonl"
OWNER_CHANNELS = ("cli", "unified")
"""Channels of the owner alone, or with all chats in one; their messages come to main."""
UPKEEP_CHANNELS = ("cron", "dream", "heartbeat", "system")
"""Channels of nanobot's own background work, which are not imported."""
HIDDEN_FIELDS = ("_hidden_history", "_automation_turn", "_cron_turn")
"""Fields that are set in messages which nanobot does not show in a conversation."""
_WORKSPACE_ID = re.compile(r"[0-9a-f]{32}")
_CONVERSATION_KEY = re.compile(r"([a-z0-9_-]{1,40}):(\S{1,160}?)(?::(?:topic|thread):\S{1,160})?")
"""The key of a conversation: its channel and chat; a topic or thread in the chat is ignored."""
_UNDERSCORE_LETTER = re.compile(r"_([a-z])")


def read(root: Path, scratch: Path) -> ForeignHome:
    """Return the contents of nanobot's home in the folder `root`. Blocks.

    Raises:
        BackupError: it is no home of nanobot, or of an unknown version.
    """
    # All readers of homes have this parameter, a folder for copies of databases; this one copies none.
    del scratch
    newer_folders = [
        f"{SESSIONS}/{name}" for name in names_in(root, SESSIONS) if _WORKSPACE_ID.fullmatch(name)
    ]
    conversation_paths = [
        f"{folder}/{name}"
        for folder in (*SESSION_FOLDERS, *newer_folders)
        for name in names_in(root, folder)
        if name.endswith(".jsonl") and not name.startswith(".")
    ]
    if not conversation_paths and not foreign_home.has_file(root, "config.json"):
        raise BackupError(f"{root} is no home of nanobot: it has neither config.json nor sessions.")
    reading = Reading(root, ForeignHome(program="nanobot"))
    reading.add_notes()
    _add_summaries(reading)
    reading.leave_out_some(
        len(conversation_paths[MAX_GROUPS:]), f"conversations: only the first {MAX_GROUPS:,} are read"
    )
    for path in conversation_paths[:MAX_GROUPS]:
        _add_session(reading, path)
    _add_jobs(reading)
    for path in DATABASES:
        if foreign_home.has_file(root, path):
            reading.foreign.left_out.append(
                f"{path}: a database, which no nanobot that is known here has made"
            )
    return reading.foreign


def _add_session(reading: Reading, path: str) -> None:
    """Add the messages of a conversation's file to the group of its chat.

    `path` is below the home. The first line of the file is the head, with the key of the conversation, such
    as `telegram:123`. A conversation of nanobot's own background work is skipped; one that names no chat is
    noted as left out.
    """
    lines = lines_of(reading.root, path)
    head = next(lines, {})
    key = text(head, "key") if head.get("_type") == "metadata" else ""
    if key.partition(":")[0] in UPKEEP_CHANNELS:
        return
    group = _group(reading, key)
    if group is None:
        reading.foreign.left_out.append(f"{path}: it does not say which chat it is of")
    else:
        reading.add(group, (_message(line) for line in lines))


def _group(reading: Reading, key: str) -> ForeignGroup | None:
    """Return the group of a conversation by its key, `channel:chat`; None if the key names no chat.

    The conversations of the owner alone belong to main.
    """
    parts = _CONVERSATION_KEY.fullmatch(key)
    if parts is None:
        return None
    channel, chat = parts.groups()
    return reading.main() if channel in OWNER_CHANNELS else reading.chat(channel, chat)


def _message(line: Mapping[str, Any]) -> ForeignMessage | None:
    """Return the message of a line of a conversation; None for a hidden one and for other entries."""
    if any(line.get(name) for name in HIDDEN_FIELDS):
        return None
    return message(line, line.get("timestamp"), message_id="")  # nanobot's messages have no ids


def _add_summaries(reading: Reading) -> None:
    """Add nanobot's summaries of restarted conversations, as one note of main.

    If they are too long for a note, they are noted as left out.
    """
    entries = [
        f"## {text(line, 'timestamp')} {text(line, 'session_key')}".rstrip()
        + f"\n\n{text(line, 'content', limit=MAX_TEXT_CHARS).strip()}\n"
        for line in lines_of(reading.root, SUMMARIES)
        if text(line, "content").strip()
    ]
    body = "\n".join(entries).encode("utf-8", "replace")
    if len(body) > MAX_NOTE_BYTES:
        reading.foreign.left_out.append(f"{SUMMARIES}: it is longer than {MAX_NOTE_BYTES // 2**20} MiB")
    elif body:
        reading.main().notes.append(ForeignNote(path="memory/history.md", body=body))


def _add_jobs(reading: Reading) -> None:
    """Add the scheduled jobs to the groups of their chats.

    Only the first `MAX_TASKS` jobs are read, and those of nanobot's own upkeep among them are skipped. Raises
    `BackupError` if a `jobs.json` is of an unknown version.
    """
    jobs = {}
    for folder in CRON_FOLDERS:
        jobs.update({text(job, "id"): job for job in jobs_of(reading.root, f"{folder}/jobs.json")})
        # Changes that were requested while nanobot's gateway did not run are in a second file. Each line
        # deletes a job, or, with any other action, adds or replaces one.
        for line in lines_of(reading.root, f"{folder}/action.jsonl"):
            change = _with_camel_keys(part_of(line, "params"))
            if line.get("action") == "del":
                jobs.pop(text(change, "jobId"), None)
            elif "action" in line and change.get("id"):
                jobs[text(change, "id")] = change
    for job in list(jobs.values())[:MAX_TASKS]:
        if part_of(job, "payload").get("kind") != "system_event":  # nanobot's own upkeep
            _job_group(reading, part_of(job, "payload")).tasks.append(task_of(job))


def _with_camel_keys(row: Mapping[str, Any], depth: int = 2) -> dict[str, Any]:
    """Return a job of `action.jsonl`, whose keys may be in snake case, with the keys that `jobs.json` has.

    So `job_id` becomes `jobId`. `depth` is the number of levels of objects in it whose keys are renamed, too.
    """
    renamed = {}
    for name, value in row.items():
        camel_name = _UNDERSCORE_LETTER.sub(lambda match: match[1].upper(), name)
        is_inner_object = isinstance(value, dict) and depth > 0
        renamed[camel_name] = _with_camel_keys(value, depth - 1) if is_inner_object else value
    return renamed


def _job_group(reading: Reading, payload: Mapping[str, Any]) -> ForeignGroup:
    """Return the group of the chat that a scheduled job answers in; main if that chat is not known.

    `payload` is the part of the job that names the chat: by the key of a conversation or, if that is missing
    or is one of nanobot's own background work, by the fields `channel` and `to`.
    """
    key = text(payload, "sessionKey")
    if key and key.partition(":")[0] not in UPKEEP_CHANNELS:
        return _group(reading, key) or reading.main()
    return reading.groups.get(f"{text(payload, 'channel')}:{text(payload, 'to')}") or reading.main()
