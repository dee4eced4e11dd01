"""`group_changes`: changes of a group's name, settings and memory, so that they can be reversed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, TypedDict, cast

from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Folder
from orchestrator.store.database import Tx, all_or_nothing, returned
from orchestrator.store.row_mapper import RowMapper

MAX_CHANGES = 30
"""Changes that are stored of each part of each group; older ones are deleted."""


class GroupPart(StrEnum):
    """A part of a group that the owner may change."""

    PROFILE = "profile"
    """Its name, its trigger, and whether it answers every message."""
    SETTINGS = "settings"
    MEMORY = "memory"
    """The group's CLAUDE.md."""


class UnknownGroupChange(BadRequest):
    """No change of this group has this number."""

    code = "unknown_change"
    http_status = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChange:
    """One change, with the whole text before it and after it."""

    number: int = 0
    """Assigned by the database."""
    folder: Folder
    part: GroupPart
    at_ms: int
    by: str
    """`browser` or `command line`."""
    before: str
    after: str
    added: int
    """The number of added lines; `removed` is the number of removed ones."""
    removed: int
    undoes: int | None = None
    """The number of the change that this one reverses; None for other changes."""
    made_with: int | None = None
    """The number of the first of the changes that were made in one step; None for one that stands alone."""


_MAPPER = RowMapper(
    GroupChange,
    "group_changes",
    {"number": "id", "folder": "group_folder", "by": "by_whom"},
    assigned=("id",),
)


async def add(tx: Tx, change: GroupChange) -> int:
    """Store a change of a group and return its number.

    The oldest changes of the same part of the group beyond `MAX_CHANGES` are deleted.
    """
    row = _MAPPER.values(change)
    cursor = await tx.execute(_MAPPER.insert_sql(row), row)
    number = cursor.lastrowid
    assert number is not None
    # `OFFSET` skips the newest `MAX_CHANGES`. If there are no more, the inner query returns no id, and no row
    # is deleted.
    await tx.execute(
        """
        DELETE FROM group_changes WHERE group_folder = :folder AND part = :part AND id <= (
            SELECT id FROM group_changes WHERE group_folder = :folder AND part = :part
            ORDER BY id DESC LIMIT 1 OFFSET :limit)
        """,
        {"folder": change.folder, "part": change.part, "limit": MAX_CHANGES},
    )
    return number


@asynccontextmanager
async def in_one_step(tx: Tx, folder: Folder) -> AsyncIterator[None]:
    """Mark all changes of a group that the block stores as one step, which is undone as a whole.

    If the block raises, none of its changes stays in the transaction.
    """
    # No other transaction can store a change meanwhile, so all higher numbers are the block's.
    cursor = await tx.execute("SELECT coalesce(max(id), 0) AS id FROM group_changes")
    last = (await returned(cursor))["id"]
    async with all_or_nothing(tx):
        yield
    await tx.execute(
        """
        UPDATE group_changes SET made_with = (
            SELECT min(id) FROM group_changes WHERE group_folder = :folder AND id > :last
        ) WHERE group_folder = :folder AND id > :last
        """,
        {"folder": folder, "last": last},
    )


async def rewrite(tx: Tx, folder: Folder, change: Callable[[str], str]) -> None:
    """Replace the stored texts of a group's memory, before and after each change, by `change(text)`.

    This removes, for example, a line that is to be forgotten.
    """
    rows = await tx.execute_fetchall(
        "SELECT id, before, after FROM group_changes WHERE group_folder = ? AND part = 'memory'", (folder,)
    )
    for row in rows:
        texts = (change(row["before"]), change(row["after"]))
        if texts != (row["before"], row["after"]):
            await tx.execute(
                "UPDATE group_changes SET before = ?, after = ? WHERE id = ?", (*texts, row["id"])
            )


class GroupChangeView(TypedDict):
    """A change of a group's settings or memory, without the changed texts."""

    number: int
    group: str
    part: Annotated[str, "profile (the group's name and trigger), settings or memory."]
    at_ms: int
    by: str
    added: Annotated[int, "The number of lines that were added."]
    removed: Annotated[int, "The number of lines that were removed."]
    undoes: int | None


async def views(tx: Tx, folder: Folder) -> list[GroupChangeView]:
    """Return the stored changes of a group for a list, newest first, without their texts."""
    changes = await tx.execute_fetchall(
        """
        SELECT id AS number, group_folder AS "group", part, at_ms, by_whom AS "by", added, removed, undoes
        FROM group_changes WHERE group_folder = ? ORDER BY id DESC
        """,
        (folder,),
    )
    return [cast("GroupChangeView", dict(row)) for row in changes]


async def last_settings(tx: Tx, folder: Folder) -> dict[str, Any]:
    """Return a group's settings after the newest stored change of them; empty if no change is stored."""
    cursor = await tx.execute(
        "SELECT after FROM group_changes WHERE group_folder = ? AND part = 'settings'"
        " ORDER BY id DESC LIMIT 1",
        (folder,),
    )
    row = await cursor.fetchone()
    return {} if row is None else dict(json.loads(row["after"]))


async def switched_on_ms(tx: Tx, folder: Folder, setting: str) -> int:
    """Return when a group's boolean `setting` last became true (epoch ms); 0 if no change records it."""
    path = f"$.{setting}"
    cursor = await tx.execute(
        """
        SELECT coalesce(max(at_ms), 0) AS at_ms FROM group_changes
        WHERE group_folder = ? AND part = 'settings'
            AND json_extract(after, ?) = 1 AND coalesce(json_extract(before, ?), 0) = 0
        """,
        (folder, path, path),
    )
    row = await cursor.fetchone()
    return int(row["at_ms"]) if row is not None else 0


async def get(tx: Tx, folder: Folder, number: int) -> GroupChange:
    """Return the change of a group with this number. Raises `UnknownGroupChange` if it is not stored."""
    cursor = await tx.execute(
        "SELECT * FROM group_changes WHERE group_folder = ? AND id = ?", (folder, number)
    )
    if (row := await cursor.fetchone()) is None:
        raise UnknownGroupChange(
            f"'{folder}' has no change {number}: 'andy groups history {folder}' lists those that are kept."
        )
    return _MAPPER.read(row)


async def made_with(tx: Tx, change: GroupChange) -> list[GroupChange]:
    """Return a change and all others that were made in the same step, newest first."""
    # A change that was made alone has None as `made_with`, which equals the value of no row.
    return await _MAPPER.fetch_all(
        tx,
        "SELECT * FROM group_changes WHERE group_folder = ? AND (id = ? OR made_with = ?) ORDER BY id DESC",
        (change.folder, change.number, change.made_with),
    )
