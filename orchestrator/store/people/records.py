"""Rows of several tables about one person of a group: their messages, requests and names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from orchestrator.domain.values import Folder, Message, Seq, TurnId
from orchestrator.store.conversation import messages
from orchestrator.store.database import Tx, returned

_FILE = re.compile(r"attachments/([\w.,()+-]+)")
_RECORDED = {
    "notification_history": ("detail_json",),
    "worker_cycles": ("detail_json", "error"),
    "events": ("data_json",),
    "wakes": ("reason",),
    "cycles": ("trigger_json", "trace_json", "schedule_raw", "schedule_reason", "error"),
    "loop_state": ("wake_reason", "trace_json"),
}
"""The columns by table with texts that the host has recorded, of its own or of others; some are JSON."""
_KEYWORDS = frozenset({"event", "kind", "kinds", "outcome", "row", "source", "type", "what"})
"""Keys whose values are always words of the host's own, even if somebody is called like one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedEntry:
    """An open reminder or board task that a person requested."""

    id: str
    text: str
    due_ms: int | None


async def askers_of(tx: Tx, turn_id: TurnId | int) -> list[str]:
    """Return the addresses of the people whose messages a turn answers, by their first message."""
    rows = await tx.execute_fetchall(
        "SELECT sender FROM messages WHERE turn_id = ? AND is_request = 1 AND sender <> ''"
        " GROUP BY sender ORDER BY min(seq)",
        (turn_id,),
    )
    return [row["sender"] for row in rows]


async def names_of(tx: Tx, folder: Folder, addresses: Collection[str]) -> list[str]:
    """Return the names that the person with these addresses had in a group.

    The present names of the addresses come first, then those in messages, the newest first.
    """
    # The names in `group_people` are the present ones: with `1 << 62` they come before those of messages.
    rows = await tx.execute_fetchall(
        """
        SELECT name FROM (
            SELECT name, 1 << 62 AS place FROM group_people
            WHERE group_folder = :folder AND address IN (SELECT value FROM json_each(:addresses))
            UNION ALL
            SELECT sender_name, max(seq) FROM messages
            WHERE group_folder = :folder AND sender IN (SELECT value FROM json_each(:addresses))
                AND is_bot_message = 0
            GROUP BY sender_name)
        WHERE name <> '' GROUP BY name ORDER BY max(place) DESC, name
        """,
        {"folder": folder, "addresses": _as_json(addresses)},
    )
    return [row["name"] for row in rows]


async def count_messages(tx: Tx, folder: Folder, addresses: Collection[str]) -> int:
    """Count the stored messages of a person in a group that still have text."""
    cursor = await tx.execute(
        """
        SELECT count(*) AS n FROM messages WHERE group_folder = ? AND content <> '' AND is_bot_message = 0
            AND sender IN (SELECT value FROM json_each(?))
        """,
        (folder, _as_json(addresses)),
    )
    return int((await returned(cursor))["n"])


async def messages_of(tx: Tx, folder: Folder, addresses: Collection[str], *, last_seq: int) -> list[Message]:
    """Return a person's messages in a group up to `last_seq`, oldest first, also those without text."""
    return await messages.MAPPER.fetch_all(
        tx,
        """
        SELECT * FROM messages WHERE group_folder = ? AND seq <= ? AND is_bot_message = 0
            AND sender IN (SELECT value FROM json_each(?)) ORDER BY seq
        """,
        (folder, last_seq, _as_json(addresses)),
    )


async def answers_to(tx: Tx, folder: Folder, addresses: Collection[str], *, last_seq: int) -> list[Message]:
    """Return the messages that Andy sent in turns in which only the person with these addresses asked.

    Those up to `last_seq` are returned, the oldest first. They are deleted with the person's own messages
    when the person says "forget me".
    """
    return await messages.MAPPER.fetch_all(
        tx,
        """
        SELECT m.* FROM outbox o JOIN messages m ON m.chat_jid = o.chat_jid AND m.id = o.message_id
        WHERE o.turn_id IN (SELECT value FROM json_each(?)) AND m.group_folder = ? AND m.seq <= ?
        ORDER BY m.seq
        """,
        (json.dumps(await turns_of(tx, folder, addresses, last_seq=last_seq)), folder, last_seq),
    )


async def turns_of(tx: Tx, folder: Folder, addresses: Collection[str], *, last_seq: int) -> list[TurnId]:
    """Return the turns of a group in which only the person with these addresses asked.

    Only questions up to the message whose `seq` is `last_seq` are considered.
    """
    # `sender IN (…)` is 1 or 0: its smallest value is 1 if each question of the turn is from this person.
    rows = await tx.execute_fetchall(
        """
        SELECT turn_id FROM messages
        WHERE group_folder = :folder AND is_request = 1 AND turn_id IS NOT NULL AND seq <= :last
        GROUP BY turn_id
        HAVING min(sender IN (SELECT value FROM json_each(:addresses))) = 1
        """,
        {"folder": folder, "last": last_seq, "addresses": _as_json(addresses)},
    )
    return [TurnId(row["turn_id"]) for row in rows]


async def reminders_of(tx: Tx, folder: Folder, addresses: Collection[str]) -> list[RequestedEntry]:
    """Return a group's pending notifications to people that one person, with these addresses, requested.

    The person asked in the turn that made or last changed the notification. Most are reminders. The next due
    come first.
    """
    rows = await tx.execute_fetchall(
        """
        SELECT id, message AS text, due_ms FROM notifications
        WHERE group_folder = :folder AND status = 'pending' AND audience = 'user'
            AND changed_turn IN (
                SELECT turn_id FROM messages
                WHERE is_request = 1 AND sender IN (SELECT value FROM json_each(:addresses)))
        ORDER BY due_ms, id
        """,
        {"folder": folder, "addresses": _as_json(addresses)},
    )
    return [RequestedEntry(**dict(row)) for row in rows]


async def tasks_of(tx: Tx, folder: Folder, addresses: Collection[str]) -> list[RequestedEntry]:
    """Return the open tasks on a group's dashboard whose last change was made at the request of a person.

    It was made in a turn with a request from one of the person's `addresses`.
    """
    rows = await tx.execute_fetchall(
        """
        SELECT id, title AS text, deadline_ms AS due_ms FROM dashboard_tasks
        WHERE group_folder = :folder AND status IN ('active', 'someday') AND archived_ms IS NULL
            AND changed_turn IN (
                SELECT turn_id FROM messages
                WHERE is_request = 1 AND sender IN (SELECT value FROM json_each(:addresses)))
        ORDER BY id
        """,
        {"folder": folder, "addresses": _as_json(addresses)},
    )
    return [RequestedEntry(**dict(row)) for row in rows]


async def files_of_others(tx: Tx, folder: Folder, addresses: Collection[str]) -> list[str]:
    """Return the names of the files that came with a group's messages from anybody but one person.

    `addresses` are all addresses of that person.
    """
    rows = await tx.execute_fetchall(
        """
        SELECT DISTINCT file_words FROM messages WHERE group_folder = ? AND file_words IS NOT NULL
            AND sender NOT IN (SELECT value FROM json_each(?))
        """,
        (folder, _as_json(addresses)),
    )
    return [name for row in rows for name in files_in(row["file_words"])]


def files_in(placeholder: str) -> list[str]:
    """Return the file names in the placeholder text of a message's files. Pure.

    Such a text has paths, for example `attachments/report.pdf`.
    """
    # A comma may belong to a name, but at its end it separates two files.
    return [name.rstrip(",") for name in _FILE.findall(placeholder)]


async def forget_names_and_texts(
    tx: Tx, folder: Folder, addresses: Collection[str], seqs: Collection[Seq]
) -> None:
    """Delete a person from the list of a group's people, and the names and texts in messages of theirs.

    `seqs` are the `seq` of these messages. The person's names as a member of chats, and the quotes of these
    messages in others, are removed, too. The addresses stay in the messages' rows: roles and the stopping of
    turns depend on them.
    """
    parameters = {"folder": folder, "addresses": _as_json(addresses), "seqs": json.dumps(list(seqs))}
    await tx.execute(
        "DELETE FROM group_people WHERE group_folder = :folder"
        " AND address IN (SELECT value FROM json_each(:addresses))",
        parameters,
    )
    await tx.execute(
        "UPDATE chat_members SET name = '' WHERE member_jid IN (SELECT value FROM json_each(:addresses))"
        " AND chat_jid IN (SELECT jid FROM group_chats WHERE group_folder = :folder)",
        parameters,
    )
    await tx.execute(
        """
        UPDATE messages SET quoted_sender = '', quoted_content = ''
        WHERE group_folder = :folder AND quoted_id IS NOT NULL AND (chat_jid, quoted_id) IN (
            SELECT chat_jid, id FROM messages WHERE seq IN (SELECT value FROM json_each(:seqs)))
        """,
        parameters,
    )
    await tx.execute(
        """
        UPDATE messages SET sender_name = '', content = '', file_words = NULL, quoted_content = NULL,
            quoted_sender = NULL, quoted_id = NULL
        WHERE seq IN (SELECT value FROM json_each(:seqs))
        """,
        parameters,
    )


async def forget_calls(tx: Tx, turn_ids: Collection[TurnId]) -> None:
    """Delete the summaries of all tool calls in these turns: they may quote the person who is forgotten."""
    await tx.execute(
        "UPDATE tool_calls SET summary = '' WHERE turn_id IN (SELECT value FROM json_each(?))",
        (json.dumps(list(turn_ids)),),
    )


async def forget_recorded(tx: Tx, folder: Folder, is_forgotten: Callable[[str], bool]) -> None:
    """Delete each text for which `is_forgotten` returns True from what the host has recorded of a group.

    These are the history of its notifications, the passes of its dashboard's worker, and the wake requests,
    cycles and events of its loop. The rows stay, and so do their numbers and the host's own keywords.
    """
    for table, columns in _RECORDED.items():
        rows = await tx.execute_fetchall(
            f"SELECT rowid AS number, {', '.join(columns)} FROM {table} WHERE group_folder = ?",  # noqa: S608
            (folder,),
        )
        for row in rows:
            before = {column: row[column] for column in columns if row[column]}
            after = {column: _without(column, text, is_forgotten) for column, text in before.items()}
            if after != before:
                assignments = ", ".join(f"{column} = :{column}" for column in after)
                await tx.execute(
                    f"UPDATE {table} SET {assignments} WHERE rowid = :number",  # noqa: S608 - constants
                    {**after, "number": row["number"]},
                )


def _without(column: str, text: str, is_forgotten: Callable[[str], bool]) -> str:
    """Return the text of a column without the texts for which `is_forgotten` returns True.

    An empty text takes their place. A column whose name ends with `_json` has a JSON document, in which each
    text is judged by itself.
    """
    if not column.endswith("_json"):
        return "" if is_forgotten(text) else text
    before = json.loads(text)
    after = _document_without(before, is_forgotten)
    return text if after == before else json.dumps(after, ensure_ascii=False)


def _document_without(document: Any, is_forgotten: Callable[[str], bool]) -> Any:
    """Return a decoded JSON document in which each text is emptied for which `is_forgotten` returns True.

    The values of the host's own keywords (`_KEYWORDS`), and values that are no texts, stay.
    """
    if isinstance(document, str):
        return "" if is_forgotten(document) else document
    if isinstance(document, list):
        return [_document_without(part, is_forgotten) for part in document]
    if isinstance(document, dict):
        return {
            name: part if name in _KEYWORDS else _document_without(part, is_forgotten)
            for name, part in document.items()
        }
    return document


def _as_json(addresses: Collection[str]) -> str:
    """Return addresses as a JSON array, which SQL reads with `json_each`."""
    return json.dumps(sorted(addresses), ensure_ascii=False)
