"""Read all messages of a group by the time they were sent, and store imported ones."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from orchestrator.domain.values import ChatJid, Folder, MessageId
from orchestrator.store.conversation.messages import OWN_MESSAGE
from orchestrator.store.database import Tx

IMPORTED = "imported"
"""The `ignored_reason` of a message from another program: it belongs to no turn and no prompt."""
_KEY = "import:"


async def by_time(tx: Tx, folder: Folder) -> AsyncIterator[sqlite3.Row]:
    """Yield the messages of a group that have text or a file, in the order in which they were sent.

    A row has the columns of `messages`, `chat_name`, and `sent_file`, the name of a file that Andy sent with
    it.
    """
    cursor = await tx.execute(
        """
        SELECT m.*, c.name AS chat_name, (
            SELECT o.file_name FROM outbox o WHERE o.message_id = m.id AND o.file_path IS NOT NULL
        ) AS sent_file
        FROM messages m JOIN chats c ON c.jid = m.chat_jid
        WHERE m.group_folder = ? ORDER BY m.sent_ms, m.seq
        """,
        (folder,),
    )
    async for row in cursor:
        if row["content"] or row["sent_file"]:
            yield row


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedMessage:
    """A past message, which nobody answers."""

    id: MessageId
    sender: str
    sender_name: str
    text: str
    sent_ms: int
    is_own: bool
    """Whether the assistant wrote it."""


async def add_imported(
    tx: Tx, folder: Folder, chat_jid: ChatJid, messages: Iterable[ImportedMessage], *, now_ms: int
) -> int:
    """Store past messages of a chat that nobody is to answer, and return how many were stored.

    A message whose id exists in the chat already is left out.
    """
    # All at once: 200,000 messages came in 9 s this way, and in 24 s one by one.
    cursor = await tx.executemany(
        """
        INSERT INTO messages (chat_jid, id, sender, sender_name, content, sent_ms, received_ms,
                              is_from_me, is_bot_message, ignored_reason, group_folder)
        VALUES (:jid, :id, :sender, :name, :text, :sent, :now, :own, :own, :reason, :folder)
        ON CONFLICT (chat_jid, id) DO NOTHING
        """,
        [
            {
                "jid": chat_jid,
                "id": message.id,
                "sender": "andy" if message.is_own else message.sender,
                "name": message.sender_name,
                "text": message.text,
                "sent": message.sent_ms,
                "now": now_ms,
                "own": message.is_own,
                "reason": OWN_MESSAGE if message.is_own else IMPORTED,
                "folder": folder,
            }
            for message in messages
        ],
    )
    return max(0, cursor.rowcount)  # it is -1 if there were no messages


async def import_value(tx: Tx, key: str) -> str | None:
    """Return the value that an earlier import stored under `key`, such as the folder of a group; or None."""
    cursor = await tx.execute("SELECT value FROM router_state WHERE key = ?", (_KEY + key,))
    row = await cursor.fetchone()
    return str(row["value"]) if row else None


async def set_import_value(tx: Tx, key: str, value: str) -> None:
    """Store a value under `key` for later imports, such as the folder of the group that was imported."""
    await tx.execute(
        """
        INSERT INTO router_state (key, value) VALUES (:key, :value)
        ON CONFLICT (key) DO UPDATE SET value = :value
        """,
        {"key": _KEY + key, "value": value},
    )
