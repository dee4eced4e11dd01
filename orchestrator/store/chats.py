"""`chats`: every chat that was seen, registered or not."""

from __future__ import annotations

import sqlite3

from orchestrator.domain.values import Chat, ChatJid
from orchestrator.store.database import Tx


async def see(
    tx: Tx, jid: ChatJid, *, name: str | None, channel: str | None, is_group: bool, at_ms: int | None
) -> None:
    """Note a chat's name and last activity; what is not told stays as it was."""
    await tx.execute(
        """
        INSERT INTO chats (jid, name, channel, is_group, last_message_ms)
        VALUES (:jid, coalesce(:name, :jid), :channel, :is_group, :at_ms)
        ON CONFLICT (jid) DO UPDATE SET
            name = coalesce(:name, name),
            channel = coalesce(:channel, channel),
            is_group = max(is_group, :is_group),
            last_message_ms = max(coalesce(last_message_ms, 0), coalesce(:at_ms, last_message_ms))
        """,
        {"jid": jid, "name": name, "channel": channel, "is_group": is_group, "at_ms": at_ms},
    )


async def known(tx: Tx) -> list[Chat]:
    """All chats, the one that spoke last first."""
    rows = await tx.execute_fetchall("SELECT * FROM chats ORDER BY last_message_ms DESC NULLS LAST, jid")
    return [_from_row(row) for row in rows]


def _from_row(row: sqlite3.Row) -> Chat:
    return Chat(
        jid=ChatJid(row["jid"]),
        name=row["name"],
        channel=row["channel"],
        is_group=bool(row["is_group"]),
        last_message_ms=row["last_message_ms"],
    )
