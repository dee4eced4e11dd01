"""`chat_members`: who is in a chat, as its messenger told last."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.domain.values import ChatJid, ChatMember
from orchestrator.store.database import Tx


async def replace(tx: Tx, chat_jid: ChatJid, members: Sequence[ChatMember]) -> bool:
    """Note who is in a chat now; tells whether that is news. The chat must be known."""
    told = {one.jid: one for one in members}
    if {one.jid: one for one in await of(tx, chat_jid)} == told:
        return False
    await tx.execute("DELETE FROM chat_members WHERE chat_jid = ?", (chat_jid,))
    await tx.executemany(
        "INSERT INTO chat_members (chat_jid, member_jid, name, is_admin) VALUES (?, ?, ?, ?)",
        [(chat_jid, one.jid, one.name, one.is_admin) for one in told.values()],
    )
    return True


async def of(tx: Tx, chat_jid: ChatJid) -> list[ChatMember]:
    """The members of a chat, as far as its messenger told."""
    rows = await tx.execute_fetchall(
        "SELECT * FROM chat_members WHERE chat_jid = ? ORDER BY member_jid", (chat_jid,)
    )
    return [
        ChatMember(jid=row["member_jid"], name=row["name"], is_admin=bool(row["is_admin"])) for row in rows
    ]
