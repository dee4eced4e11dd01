"""What was seen last of a group's folder, so that a host that begins knows whether it has changed."""

from __future__ import annotations

import json
from dataclasses import dataclass

from orchestrator.domain.values import Folder
from orchestrator.store.database import Tx


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceSnapshot:
    """All files of a folder at one moment."""

    at_ms: int
    digest: str
    """Of their paths, times and sizes."""


async def last_seen(tx: Tx, folder: Folder) -> WorkspaceSnapshot | None:
    cursor = await tx.execute("SELECT value FROM router_state WHERE key = ?", (_key(folder),))
    row = await cursor.fetchone()
    if row is None:
        return None
    found = json.loads(row["value"])
    return WorkspaceSnapshot(at_ms=found["at_ms"], digest=found["digest"])


async def note_seen(tx: Tx, folder: Folder, seen: WorkspaceSnapshot) -> None:
    await tx.execute(
        """
        INSERT INTO router_state (key, value) VALUES (:key, :value)
        ON CONFLICT (key) DO UPDATE SET value = excluded.value
        """,
        {"key": _key(folder), "value": json.dumps({"at_ms": seen.at_ms, "digest": seen.digest})},
    )


async def forget(tx: Tx, folder: Folder) -> None:
    """Nobody looks at it any more."""
    await tx.execute("DELETE FROM router_state WHERE key = ?", (_key(folder),))


def _key(folder: Folder) -> str:
    return f"workspace:{folder}"
