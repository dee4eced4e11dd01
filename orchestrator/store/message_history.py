"""All messages of a group by the time when they were sent, and those that an import brings."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator

from orchestrator.domain.values import ChatJid, Folder, MessageId, Seq
from orchestrator.store.database import Tx
from orchestrator.store.messages import OWN_MESSAGE

IMPORTED = "imported"
"""The reason why no turn has a message that another program has brought: no prompt has it either."""
_KEY = "import:"


async def by_time(tx: Tx, folder: Folder) -> AsyncIterator[sqlite3.Row]:
    """Yield the messages of a group that have words or a file, oldest first, each with the chat's name.

    `sent_file` is the name of the file that Andy sent with it.
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


async def add_imported(
    tx: Tx,
    folder: Folder,
    chat_jid: ChatJid,
    message_id: MessageId,
    *,
    sender: str,
    sender_name: str,
    text: str,
    sent_ms: int,
    is_own: bool,
    now_ms: int,
) -> Seq | None:
    """Store a message of the past, which nobody answers; None where the chat has one of this id already."""
    cursor = await tx.execute(
        """
        INSERT INTO messages (chat_jid, id, sender, sender_name, content, sent_ms, received_ms,
                              is_from_me, is_bot_message, ignored_reason, group_folder)
        VALUES (:jid, :id, :sender, :name, :text, :sent, :now, :own, :own, :reason, :folder)
        ON CONFLICT (chat_jid, id) DO NOTHING RETURNING seq
        """,
        {
            "jid": chat_jid,
            "id": message_id,
            "sender": "andy" if is_own else sender,
            "name": sender_name,
            "text": text,
            "sent": sent_ms,
            "now": now_ms,
            "own": is_own,
            "reason": OWN_MESSAGE if is_own else IMPORTED,
            "folder": folder,
        },
    )
    row = await cursor.fetchone()
    return Seq(row["seq"]) if row else None


async def import_note(tx: Tx, key: str) -> str | None:
    """Return what an import has noted under a key, or None."""
    cursor = await tx.execute("SELECT value FROM router_state WHERE key = ?", (_KEY + key,))
    row = await cursor.fetchone()
    return str(row["value"]) if row else None


async def set_import_note(tx: Tx, key: str, value: str) -> None:
    """Note something by which the next import sees what this one has brought."""
    await tx.execute(
        """
        INSERT INTO router_state (key, value) VALUES (:key, :value)
        ON CONFLICT (key) DO UPDATE SET value = :value
        """,
        {"key": _KEY + key, "value": value},
    )
