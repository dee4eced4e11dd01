"""`wakes`: requests to wake a group's agent; each waits until a cycle takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.domain.values import Folder
from orchestrator.store.database import Tx
from orchestrator.store.loop import events
from orchestrator.store.row_mapper import RowMapper

MAX_REASON_CHARS = 100
MESSAGE = "message:"
"""Prefix of the `dedupe_key` of requests that came with a message.

A chat turn takes these and the timer's; a cycle that no question started takes all requests.
"""
MAX_PENDING = 1_000
RETENTION_MS = 30 * 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeRequest:
    """A reason for a cycle in a few words; the event itself is stored elsewhere."""

    id: int
    folder: Folder
    kind: str
    is_direct: bool
    reason: str
    dedupe_key: str
    created_ms: int


_MAPPER = RowMapper(WakeRequest, "wakes", {"folder": "group_folder"}, unread=("cycle_id",))


async def add(
    tx: Tx,
    folder: Folder,
    *,
    kind: str,
    key: str,
    source: str,
    now_ms: int,
    reason: str = "",
    is_direct: bool = False,
) -> bool:
    """Request that the loop of a group starts a cycle, and record an event of the request.

    Return False, and do nothing, when the loop is off, a request with the same `key` waits already, or too
    many requests wait. `key` identifies what the request is about. `source` is the part of Andy, or the
    messenger, that requests it, such as `api`. `reason` says in a few words why; it is cut after
    `MAX_REASON_CHARS`. A request that `is_direct`, such as for a message to Andy, may start a cycle sooner.
    """
    cursor = await tx.execute(
        """
        INSERT INTO wakes (group_folder, kind, is_direct, reason, dedupe_key, created_ms)
        SELECT group_folder, :kind, :is_direct, :reason, :key, :now FROM loop_state
        WHERE group_folder = :folder AND status <> 'stopped'
            AND (SELECT count(*) FROM wakes WHERE group_folder = :folder AND cycle_id IS NULL) < :most
        ON CONFLICT DO NOTHING
        """,
        {
            "folder": folder,
            "kind": kind,
            "is_direct": is_direct,
            "reason": " ".join(reason.split())[:MAX_REASON_CHARS],
            "key": key,
            "now": now_ms,
            "most": MAX_PENDING,
        },
    )
    if cursor.rowcount != 1:
        return False
    await events.append(tx, f"trigger:{kind}", group=folder, now_ms=now_ms, source=source, key=key)
    return True


async def pending(tx: Tx, folder: Folder) -> list[WakeRequest]:
    """Return the wake requests of a group that no cycle has taken, oldest first."""
    return await _MAPPER.fetch_all(
        tx, "SELECT * FROM wakes WHERE group_folder = ? AND cycle_id IS NULL ORDER BY id", (folder,)
    )


async def of_cycle(tx: Tx, cycle_id: int) -> list[WakeRequest]:
    """Return the wake requests that a cycle has taken, oldest first."""
    return await _MAPPER.fetch_all(tx, "SELECT * FROM wakes WHERE cycle_id = ? ORDER BY id", (cycle_id,))


async def take(tx: Tx, wakes: Sequence[WakeRequest], cycle_id: int) -> None:
    """Record that a cycle has taken these wake requests, so that no later cycle does."""
    await tx.executemany(
        "UPDATE wakes SET cycle_id = ? WHERE id = ?", [(cycle_id, wake.id) for wake in wakes]
    )


async def prune(tx: Tx, *, now_ms: int) -> None:
    """Delete the wake requests that a cycle has taken and that are older than `RETENTION_MS`."""
    await tx.execute(
        "DELETE FROM wakes WHERE cycle_id IS NOT NULL AND created_ms < ?", (now_ms - RETENTION_MS,)
    )
