"""`chats` and `chat_members`: every chat that was seen, registered or not, and its members.

`router_state` has each channel's position in its messenger's stream.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from orchestrator.domain.values import Chat, ChatJid, ChatMember, Group
from orchestrator.store.database import Tx, returned
from orchestrator.store.row_mapper import RowMapper

_REFERRED_BY = ("messages", "turns", "outbox", "scheduled_tasks", "notifications", "access_requests")
# A chat without a message was listed by its messenger, and will be listed again.
_IS_UNUSED = "last_message_ms IS NOT NULL AND NOT EXISTS (SELECT 1 FROM group_chats AS g WHERE g.jid = c.jid)"
for _table in _REFERRED_BY:
    _IS_UNUSED += f" AND NOT EXISTS (SELECT 1 FROM {_table} AS r WHERE r.chat_jid = c.jid)"  # noqa: S608 - ours


_MAPPER = RowMapper(Chat, "chats", {})


async def upsert(
    tx: Tx, jid: ChatJid, *, name: str | None, channel: str | None, is_group: bool, at_ms: int | None
) -> None:
    """Insert a chat or update it; an argument that is None leaves the stored value unchanged.

    `channel` is the name of its messenger. `at_ms` is the time of a message in the chat; an earlier time than
    the stored one changes nothing. A chat that is stored as a group chat remains one. A new chat without a
    name gets its address as its name.
    """
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


async def forget_unused(tx: Tx, *, newest: int, excluded: ChatJid) -> None:
    """Delete the chats that no group and no record refers to, except for the chat `excluded`.

    The `newest` most recently active of them stay, and so do chats in which no message was seen: their
    messenger would list them again. This bounds the table, since strangers can create any number of chats.
    """
    # Only when the number of chats is a multiple of 100, so that not every message of a flood runs this
    # search; about a hundred more may stay until then.
    cursor = await tx.execute("SELECT count(*) AS n FROM chats")
    chat_count = (await returned(cursor))["n"]
    if chat_count <= newest or chat_count % 100:
        return
    await tx.execute(
        f"""
        DELETE FROM chats WHERE jid IN (
            SELECT jid FROM chats AS c WHERE jid <> ? AND {_IS_UNUSED}
            ORDER BY last_message_ms DESC LIMIT -1 OFFSET ?)
        """,  # noqa: S608 - constants
        (excluded, newest),
    )


async def get(tx: Tx, jid: ChatJid) -> Chat | None:
    """Return the chat with this address, or None if it is not known."""
    return await _MAPPER.fetch_one(tx, "SELECT * FROM chats WHERE jid = ?", (jid,))


async def every(tx: Tx) -> list[Chat]:
    """Return all known chats, registered or not, the most recently active first."""
    return await _MAPPER.fetch_all(tx, "SELECT * FROM chats ORDER BY last_message_ms DESC NULLS LAST, jid")


async def of_group(tx: Tx, group: Group) -> list[Chat]:
    """Return the chats of a group, in the order in which the group lists them."""
    rows = await tx.execute_fetchall(
        "SELECT * FROM chats WHERE jid IN (SELECT value FROM json_each(?))", (json.dumps(group.chats),)
    )
    return sorted((_MAPPER.read(row) for row in rows), key=lambda chat: group.chats.index(chat.jid))


async def replace_members(tx: Tx, chat_jid: ChatJid, members: Sequence[ChatMember]) -> bool:
    """Store these members of a chat in place of the earlier ones; return whether they differ."""
    by_jid = {member.jid: member for member in members}
    if {member.jid: member for member in await members_of(tx, chat_jid)} == by_jid:
        return False
    await tx.execute("DELETE FROM chat_members WHERE chat_jid = ?", (chat_jid,))
    await tx.executemany(
        "INSERT INTO chat_members (chat_jid, member_jid, name, is_admin) VALUES (?, ?, ?, ?)",
        [(chat_jid, member.jid, member.name, member.is_admin) for member in by_jid.values()],
    )
    return True


async def members_of(tx: Tx, chat_jid: ChatJid) -> list[ChatMember]:
    """Return the members of a chat as its messenger last listed them, by address."""
    rows = await tx.execute_fetchall(
        "SELECT * FROM chat_members WHERE chat_jid = ? ORDER BY member_jid", (chat_jid,)
    )
    return [
        ChatMember(jid=row["member_jid"], name=row["name"], is_admin=bool(row["is_admin"])) for row in rows
    ]


def _cursor_key(name: str) -> str:
    """Return the key in the table `router_state` of the value that a channel stores under a name."""
    return f"channel:{name}"


async def cursor(tx: Tx, name: str) -> str | None:
    """Return the value that a channel has stored with `set_cursor` under a name, or None.

    Under the channel's own name, it is the position in its messenger's stream up to which everything is
    stored.
    """
    result = await tx.execute("SELECT value FROM router_state WHERE key = ?", (_cursor_key(name),))
    row = await result.fetchone()
    return str(row["value"]) if row else None


async def set_cursor(tx: Tx, name: str, value: str) -> None:
    """Store a value of a channel under a name.

    Under the channel's own name, it is the position in its messenger's stream up to which everything is
    stored. Under other names it is any text that the channel needs later, such as an update that waits.
    """
    await tx.execute(
        """
        INSERT INTO router_state (key, value) VALUES (:key, :value)
        ON CONFLICT (key) DO UPDATE SET value = :value
        """,
        {"key": _cursor_key(name), "value": value},
    )


async def cursors_of(tx: Tx, prefix: str) -> dict[str, str]:
    """Return the values that were stored with `set_cursor` under names that begin with `prefix`.

    They are keyed by the part of the name after the prefix.
    """
    key = _cursor_key(prefix)
    # `~` sorts after every character of a channel's name, so these are all keys that begin with `key`.
    rows = await tx.execute_fetchall(
        "SELECT key, value FROM router_state WHERE key >= ? AND key < ?", (key, f"{key}~")
    )
    return {row["key"].removeprefix(key): row["value"] for row in rows}


async def forget_cursor(tx: Tx, name: str) -> None:
    """Delete the value that was stored with `set_cursor` under a name, if there is one."""
    await tx.execute("DELETE FROM router_state WHERE key = ?", (_cursor_key(name),))
