"""All messages of a group by the time when they were sent, as an export reads them."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator

from orchestrator.domain.values import Folder
from orchestrator.store.database import Tx


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
