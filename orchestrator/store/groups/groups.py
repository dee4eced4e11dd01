"""`registered_groups`, `group_chats`, `former_addresses`: the groups, each with an agent, and their chats."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.domain.errors import UnknownGroup
from orchestrator.domain.values import ChatJid, Folder, Group
from orchestrator.store.database import Database, Tx
from orchestrator.store.row_mapper import Json, RowMapper

_CONFIGURED = "configured:"
_GROUPS = """
    SELECT g.*, (
        SELECT json_group_array(jid) FROM (
            SELECT jid FROM group_chats
            WHERE group_folder = g.folder AND jid <> g.jid ORDER BY added_ms, rowid)) AS other_chats
    FROM registered_groups g
"""


_MAPPER = RowMapper(
    Group,
    "registered_groups",
    {
        "trigger": "trigger_pattern",
        "container_config": Json("container_config"),
        "other_chats": Json("other_chats"),
    },
    joined=("other_chats",),
)


async def add(tx: Tx, group: Group) -> None:
    """Store a new group, with its first chat `group.jid`, which must be stored as a chat.

    Raises `sqlite3.IntegrityError` when a group has this chat or this folder already.
    """
    await add_chat(tx, group.folder, group.jid, now_ms=group.added_ms)
    await _MAPPER.insert(tx, group)


async def remove(tx: Tx, folder: Folder) -> None:
    """Delete the registration of a group and of its chats; its history and its files stay."""
    await tx.execute("DELETE FROM group_chats WHERE group_folder = ?", (folder,))
    await tx.execute("DELETE FROM registered_groups WHERE folder = ?", (folder,))


async def add_chat(tx: Tx, folder: Folder, jid: ChatJid, *, now_ms: int) -> None:
    """Add a chat to a group.

    Raises `sqlite3.IntegrityError` when the chat belongs to a group already, or the table `chats` lacks it.
    """
    await tx.execute(
        "INSERT INTO group_chats (jid, group_folder, added_ms) VALUES (?, ?, ?)", (jid, folder, now_ms)
    )


async def remove_chat(tx: Tx, folder: Folder, jid: ChatJid) -> None:
    """Remove a chat from a group; it must not be the one that receives the group's notifications."""
    await tx.execute("DELETE FROM group_chats WHERE group_folder = ? AND jid = ?", (folder, jid))


async def record_move(tx: Tx, old: ChatJid, new: ChatJid) -> None:
    """Record that the chat with the address `old` has the address `new` from now on."""
    await tx.execute("UPDATE former_addresses SET chat_jid = ? WHERE chat_jid = ?", (new, old))
    await tx.execute("INSERT OR REPLACE INTO former_addresses (former, chat_jid) VALUES (?, ?)", (old, new))
    await tx.execute("DELETE FROM former_addresses WHERE former = chat_jid")


async def former_addresses(tx: Tx, jid: ChatJid) -> list[ChatJid]:
    """Return the addresses that a chat had before its present one, the latest first."""
    cursor = await tx.execute(
        "SELECT former FROM former_addresses WHERE chat_jid = ? ORDER BY rowid DESC", (jid,)
    )
    return [ChatJid(row["former"]) for row in await cursor.fetchall()]


async def set_jid(tx: Tx, folder: Folder, jid: ChatJid) -> None:
    """Set the chat of a group that receives its notifications."""
    await tx.execute("UPDATE registered_groups SET jid = ? WHERE folder = ?", (jid, folder))


async def set_profile(tx: Tx, group: Group) -> None:
    """Store the name and trigger of `group`, which the caller has checked, and whether it is required."""
    await tx.execute(
        "UPDATE registered_groups SET name = ?, trigger_pattern = ?, requires_trigger = ? WHERE folder = ?",
        (group.name, group.trigger, group.requires_trigger, group.folder),
    )


async def set_config(tx: Tx, folder: Folder, config: Mapping[str, Any], *, now_ms: int) -> None:
    """Replace the settings of a group, which the caller has checked, and record the time of the change."""
    await tx.execute(
        "UPDATE registered_groups SET container_config = ? WHERE folder = ?", (json.dumps(config), folder)
    )
    await tx.execute(
        """
        INSERT INTO router_state (key, value) VALUES (:key, :now)
        ON CONFLICT (key) DO UPDATE SET value = excluded.value
        """,
        {"key": f"{_CONFIGURED}{folder}", "now": str(now_ms)},
    )


async def configured_ms(tx: Tx) -> dict[Folder, int]:
    """Return when the settings of each group were last changed (epoch ms), keyed by the group's folder.

    Groups whose settings were never changed are left out.
    """
    # `~` sorts after every character of a folder's name, so these are all keys with this prefix.
    rows = await tx.execute_fetchall(
        "SELECT key, value FROM router_state WHERE key >= ? AND key < ?", (_CONFIGURED, f"{_CONFIGURED}~")
    )
    return {Folder(row["key"].removeprefix(_CONFIGURED)): int(row["value"]) for row in rows}


async def registered(database: Database) -> Sequence[Group]:
    """Return all groups, the main group first; cheap to call again and again.

    As long as no group and no chat of a group has changed, it is the same list object, which callers must not
    change.
    """
    return await database.read_unless_same(every, version=revision)


async def revision(tx: Tx) -> str:
    """Return a text that changes with each change of a group or of the chats of groups."""
    cursor = await tx.execute("SELECT value FROM router_state WHERE key = 'group_revision'")
    row = await cursor.fetchone()
    return row["value"] if row else ""


async def every(tx: Tx) -> list[Group]:
    """Return all groups, the main group first."""
    return await _MAPPER.fetch_all(tx, f"{_GROUPS} ORDER BY is_main DESC, folder")


async def folders_of_chats(tx: Tx) -> dict[ChatJid, Folder]:
    """Return the folder of the group to which each chat belongs, keyed by chat; other chats are left out."""
    rows = await tx.execute_fetchall("SELECT jid, group_folder FROM group_chats")
    return {ChatJid(row["jid"]): Folder(row["group_folder"]) for row in rows}


async def by_folder(tx: Tx, folder: str) -> Group | None:
    """Return the group with this folder, in upper or lower case, or None."""
    # In any case, since `Main` and `main` are one folder on a disk that ignores case.
    return await _MAPPER.fetch_one(tx, f"{_GROUPS} WHERE folder = ? COLLATE NOCASE", (folder,))


async def known(tx: Tx, folder: str) -> Group:
    """Return the group with this folder. Raises `UnknownGroup`, whose text lists the folders that exist."""
    group = await by_folder(tx, folder)
    if group is None:
        raise UnknownGroup(folder, [other.folder for other in await every(tx)])
    return group


async def by_jid(tx: Tx, jid: ChatJid) -> Group | None:
    """Return the group that a chat belongs to, or None."""
    # The index of the folders ignores case, and SQLite uses it only for a comparison that does so, too.
    # Without the index, all groups would be read for each message.
    return await _MAPPER.fetch_one(
        tx,
        f"{_GROUPS} JOIN group_chats c ON g.folder = c.group_folder COLLATE NOCASE WHERE c.jid = ?",
        (jid,),
    )
