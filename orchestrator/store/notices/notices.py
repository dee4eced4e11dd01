"""`cross_session_notifications`: notices for a group's agent, until they are delivered and expire.

`pending → delivered → acknowledged`; a notice that was not acknowledged can be `cancelled`, and is `expired`
after its time. `notice_claims` assigns notices to turns.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agent_runner.wire.notices import DeliverAt, InjectAt, Priority, Severity
from orchestrator.domain.values import Folder, TurnId
from orchestrator.store.database import Tx, returned

DAY_MS = 24 * 3_600_000
RETENTION_MS = 30 * DAY_MS
"""Milliseconds after its end for which a notice can still be read."""
MAX_HOST_FACTS = 20
"""Most facts of the host that wait for one group at once."""


class NoticeState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    ACKNOWLEDGED = "acknowledged"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        return self in (NoticeState.PENDING, NoticeState.DELIVERED)


class NoticeScope(StrEnum):
    SESSION = "session"
    """The notice ends with the conversation in which it was made."""
    CROSS_SESSION = "cross_session"


class NoticeMaker(StrEnum):
    SELF = "self"
    """The group's own agent."""
    HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNotice:
    """A notice that is to be stored."""

    folder: Folder
    maker: NoticeMaker
    event_type: str
    source: str
    payload: Mapping[str, Any]
    severity: Severity = "info"
    priority: Priority = "normal"
    category: str | None = None
    scope: NoticeScope = NoticeScope.CROSS_SESSION
    session_id: str | None = None
    deliver_at: DeliverAt = "next_turn"
    inject_at: InjectAt = "turn_start"
    turns: int | None = None
    tool_name: str | None = None
    condition: str | None = None
    dedupe_key: str | None = None
    made_turn: TurnId | None = None
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeRow:
    """A stored notice."""

    id: int
    folder: Folder
    maker: NoticeMaker
    scope: NoticeScope
    session_id: str | None
    event_type: str
    source: str
    severity: Severity
    priority: Priority
    category: str | None
    payload: Mapping[str, Any] = field(default_factory=dict)
    content: str | None
    """The text that the model reads."""
    deliver_at: DeliverAt
    inject_at: InjectAt
    turns_remaining: int | None
    tool_name: str | None
    condition: str | None
    dedupe_key: str | None
    count: int
    made_turn: int | None
    created_ms: int
    expires_ms: int | None
    state: NoticeState
    reason: str | None
    delivered_ms: int | None
    acknowledged_ms: int | None
    ended_ms: int | None
    deliveries: int
    claim_turn: int | None

    @property
    def message(self) -> str:
        """Return the notice's message, empty if it has none."""
        return str(self.payload.get("message", ""))


async def add(tx: Tx, fresh: NewNotice, *, now_ms: int) -> NoticeRow:
    """Store a notice; a pending one with the same key takes its contents and increments its count.

    A turn that had claimed the older one loses its claim: the turn delivers the older text, not the new one.
    """
    cursor = await tx.execute(
        """
        INSERT INTO cross_session_notifications
            (group_folder, agent, scope, session_id, event_type, source, severity, priority, category,
             payload_json, deliver_at, inject_at, turns_remaining, tool_name, condition, dedupe_key,
             made_turn, created_ms, expires_ms)
        VALUES (:folder, :agent, :scope, :session, :type, :source, :severity, :priority, :category,
                :payload, :deliver_at, :inject_at, :turns, :tool, :condition, :key, :turn, :now, :expires)
        ON CONFLICT (group_folder, dedupe_key) WHERE state = 'pending' AND dedupe_key IS NOT NULL
        DO UPDATE SET count = count + 1, scope = excluded.scope, session_id = excluded.session_id,
            event_type = excluded.event_type, severity = excluded.severity, priority = excluded.priority,
            category = excluded.category, payload_json = excluded.payload_json,
            deliver_at = excluded.deliver_at, inject_at = excluded.inject_at,
            turns_remaining = excluded.turns_remaining, counted_turn = NULL,
            tool_name = excluded.tool_name, condition = excluded.condition,
            made_turn = excluded.made_turn, expires_ms = excluded.expires_ms,
            claim_turn = NULL, claim_attempt = NULL, claimed_ms = NULL
        RETURNING *
        """,
        {
            "folder": fresh.folder,
            "agent": fresh.maker,
            "scope": fresh.scope,
            "session": fresh.session_id,
            "type": fresh.event_type,
            "source": fresh.source,
            "severity": fresh.severity,
            "priority": fresh.priority,
            "category": fresh.category,
            "payload": json.dumps(dict(fresh.payload), ensure_ascii=False),
            "deliver_at": fresh.deliver_at,
            "inject_at": fresh.inject_at,
            "turns": fresh.turns,
            "tool": fresh.tool_name,
            "condition": fresh.condition,
            "key": fresh.dedupe_key,
            "turn": fresh.made_turn,
            "now": now_ms,
            "expires": fresh.expires_ms,
        },
    )
    return from_row(await returned(cursor))


async def get(tx: Tx, folder: Folder, notice_id: int) -> NoticeRow | None:
    """Return a notice of a group, or None; those of other groups are not found."""
    cursor = await tx.execute(
        "SELECT * FROM cross_session_notifications WHERE group_folder = ? AND id = ?", (folder, notice_id)
    )
    row = await cursor.fetchone()
    return from_row(row) if row else None


async def pending_by_key(tx: Tx, folder: Folder, key: str) -> NoticeRow | None:
    cursor = await tx.execute(
        """
        SELECT * FROM cross_session_notifications
        WHERE group_folder = ? AND dedupe_key = ? AND state = 'pending'
        """,
        (folder, key),
    )
    row = await cursor.fetchone()
    return from_row(row) if row else None


async def part_from_key(tx: Tx, notice_id: int) -> None:
    """Remove the key from a pending notice, so that the next one with this key becomes another notice."""
    await tx.execute("UPDATE cross_session_notifications SET dedupe_key = NULL WHERE id = ?", (notice_id,))


async def undelivered(tx: Tx, folder: Folder, maker: NoticeMaker) -> int:
    """Count the notices that wait for delivery."""
    cursor = await tx.execute(
        f"""
        SELECT count(*) AS n FROM cross_session_notifications
        WHERE group_folder = ? AND agent = ? AND state = 'pending' AND {IS_OPEN}
        """,  # noqa: S608 - our own text
        (folder, maker),
    )
    return int((await returned(cursor))["n"])


async def of_group(tx: Tx, folder: Folder, *, with_over: bool, limit: int) -> list[NoticeRow]:
    """Return the notices that are pending or delivered and not acknowledged, the most urgent first."""
    # With ended notices included, the newest come first, however urgent an older one was.
    rows = await tx.execute_fetchall(
        f"""
        SELECT * FROM cross_session_notifications
        WHERE group_folder = :folder AND (:all OR state IN ('pending', 'delivered'))
        ORDER BY CASE WHEN :all THEN -id ELSE {RANK} END, created_ms, id LIMIT :limit
        """,  # noqa: S608 - our own text
        {"folder": folder, "all": with_over, "limit": limit},
    )
    return [from_row(row) for row in rows]


async def acknowledge(tx: Tx, folder: Folder, notice_id: int, *, now_ms: int) -> bool:
    """Record that the agent has handled a notice; return False if it is not the group's, or has ended."""
    cursor = await tx.execute(
        """
        UPDATE cross_session_notifications SET state = 'acknowledged', acknowledged_ms = :now, ended_ms = :now
        WHERE group_folder = :folder AND id = :id AND state IN ('pending', 'delivered')
        """,
        {"folder": folder, "id": notice_id, "now": now_ms},
    )
    return cursor.rowcount == 1


async def cancel(tx: Tx, folder: Folder, notice_id: int, *, reason: str, now_ms: int) -> bool:
    """Cancel a notice; return False if it is not the group's, or has ended."""
    cursor = await tx.execute(
        """
        UPDATE cross_session_notifications SET state = 'cancelled', reason = :reason, ended_ms = :now
        WHERE group_folder = :folder AND id = :id AND state IN ('pending', 'delivered')
        """,
        {"folder": folder, "id": notice_id, "reason": reason, "now": now_ms},
    )
    return cursor.rowcount == 1


async def forget(tx: Tx, folder: Folder, notice_id: int, *, now_ms: int) -> None:
    """Cancel a notice and delete its text."""
    await cancel(tx, folder, notice_id, reason="forgotten", now_ms=now_ms)
    # The row stays for the counts; its text goes, because the message that it quotes was deleted.
    await tx.execute(
        """
        UPDATE cross_session_notifications SET payload_json = '{}', formatted_content = NULL
        WHERE group_folder = ? AND id = ?
        """,
        (folder, notice_id),
    )


async def expire(tx: Tx, *, now_ms: int) -> list[NoticeRow]:
    """End and return all notices whose time has passed and that no turn has claimed."""
    # A claimed notice is being delivered right now: its turn decides, and the next pass comes anyway.
    rows = await tx.execute_fetchall(
        """
        UPDATE cross_session_notifications
        SET state = 'expired', ended_ms = :now,
            reason = CASE state WHEN 'pending' THEN 'it was not told in its time'
                                ELSE 'it was told, and not acknowledged in its time' END
        WHERE state IN ('pending', 'delivered') AND expires_ms <= :now AND claim_turn IS NULL
        RETURNING *
        """,
        {"now": now_ms},
    )
    return [from_row(row) for row in rows]


async def prune(tx: Tx, *, now_ms: int) -> None:
    """Delete notices that ended long ago, and those delivered long ago that never expire."""
    # A delivered notice that is never acknowledged may have no end; without the second case it would stay for
    # ever.
    before = {"before": now_ms - RETENTION_MS}
    await tx.execute(
        """
        DELETE FROM cross_session_notifications
        WHERE ended_ms < :before
           OR (state = 'delivered' AND expires_ms IS NULL AND claim_turn IS NULL AND delivered_ms < :before)
        """,
        before,
    )
    await tx.execute("DELETE FROM told_notices WHERE told_ms < :before", before)


async def counts(tx: Tx) -> dict[str, int]:
    """Count the notices in each state."""
    rows = await tx.execute_fetchall(
        "SELECT state, count(*) AS n FROM cross_session_notifications GROUP BY state"
    )
    return {row["state"]: row["n"] for row in rows}


IS_OPEN = "state IN ('pending', 'delivered')"
"""The SQL condition for open notices. Queries for one state repeat it, or SQLite misses the partial index."""
RANK = "CASE priority WHEN 'critical' THEN 0 WHEN 'high' THEN 1 WHEN 'normal' THEN 2 ELSE 3 END"
"""The SQL rank of a priority: the most urgent first."""


def from_row(row: sqlite3.Row) -> NoticeRow:
    return NoticeRow(
        id=row["id"],
        folder=Folder(row["group_folder"]),
        maker=NoticeMaker(row["agent"]),
        scope=NoticeScope(row["scope"]),
        session_id=row["session_id"],
        event_type=row["event_type"],
        source=row["source"],
        severity=row["severity"],
        priority=row["priority"],
        category=row["category"],
        payload=json.loads(row["payload_json"]),
        content=row["formatted_content"],
        deliver_at=row["deliver_at"],
        inject_at=row["inject_at"],
        turns_remaining=row["turns_remaining"],
        tool_name=row["tool_name"],
        condition=row["condition"],
        dedupe_key=row["dedupe_key"],
        count=row["count"],
        made_turn=row["made_turn"],
        created_ms=row["created_ms"],
        expires_ms=row["expires_ms"],
        state=NoticeState(row["state"]),
        reason=row["reason"],
        delivered_ms=row["delivered_ms"],
        acknowledged_ms=row["acknowledged_ms"],
        ended_ms=row["ended_ms"],
        deliveries=row["deliveries"],
        claim_turn=row["claim_turn"],
    )
