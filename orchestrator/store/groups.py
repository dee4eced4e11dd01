"""`registered_groups`: the chats that have an agent."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any

from orchestrator.domain.errors import UnknownGroup
from orchestrator.domain.values import ChatJid, Folder, Group
from orchestrator.store.database import Tx

_CONFIGURED = "configured:"


async def add(tx: Tx, group: Group) -> None:
    """Register `group`, whose chat must be known.

    Raises `sqlite3.IntegrityError` when its jid or folder is taken.
    """
    await tx.execute(
        """
        INSERT INTO registered_groups
            (jid, name, folder, trigger_pattern, requires_trigger, is_main, container_config, added_ms)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?)
        """,
        (
            group.jid,
            group.name,
            group.folder,
            group.trigger,
            group.requires_trigger,
            group.is_main,
            json.dumps(group.container_config),
            group.added_ms,
        ),
    )


async def remove(tx: Tx, folder: Folder) -> None:
    """Delete the registration of a group; its history and files stay."""
    await tx.execute("DELETE FROM registered_groups WHERE folder = ?", (folder,))


async def set_jid(tx: Tx, folder: Folder, jid: ChatJid) -> None:
    """Move a group to another chat, which must be known and free."""
    await tx.execute("UPDATE registered_groups SET jid = ? WHERE folder = ?", (jid, folder))


async def set_config(tx: Tx, folder: Folder, config: Mapping[str, Any], *, now_ms: int) -> None:
    """Replace a group's configuration, checked beforehand, and note when."""
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
    """Return when each folder was configured last (epoch ms); folders that never were are left out."""
    rows = await tx.execute_fetchall(
        "SELECT key, value FROM router_state WHERE key >= ? AND key < ?", (_CONFIGURED, f"{_CONFIGURED}~")
    )
    return {Folder(row["key"].removeprefix(_CONFIGURED)): int(row["value"]) for row in rows}


async def every(tx: Tx) -> list[Group]:
    rows = await tx.execute_fetchall("SELECT * FROM registered_groups ORDER BY is_main DESC, folder")
    return [_from_row(row) for row in rows]


async def by_folder(tx: Tx, folder: str) -> Group | None:
    cursor = await tx.execute("SELECT * FROM registered_groups WHERE folder = ? COLLATE NOCASE", (folder,))
    row = await cursor.fetchone()
    return _from_row(row) if row else None


async def known(tx: Tx, folder: str) -> Group:
    """Return the group of a folder. Raises `UnknownGroup`, which lists the folders there are."""
    group = await by_folder(tx, folder)
    if group is None:
        raise UnknownGroup(folder, [one.folder for one in await every(tx)])
    return group


async def by_jid(tx: Tx, jid: ChatJid) -> Group | None:
    cursor = await tx.execute("SELECT * FROM registered_groups WHERE jid = ?", (jid,))
    row = await cursor.fetchone()
    return _from_row(row) if row else None


def _from_row(row: sqlite3.Row) -> Group:
    return Group(
        jid=ChatJid(row["jid"]),
        name=row["name"],
        folder=Folder(row["folder"]),
        trigger=row["trigger_pattern"],
        requires_trigger=bool(row["requires_trigger"]),
        is_main=bool(row["is_main"]),
        container_config=json.loads(row["container_config"]),
        added_ms=row["added_ms"],
    )
