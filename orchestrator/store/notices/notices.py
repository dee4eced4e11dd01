"""`cross_session_notifications`: notices for a group's agent, until they are delivered and expire.

`pending → delivered → acknowledged`; a notice that was not acknowledged can be `cancelled`, and is `expired`
after its time. `notice_claims` assigns notices to turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agent_runner.wire.notices import DeliverAt, InjectAt, Priority, Severity
from orchestrator.domain.values import Folder, TurnId
from orchestrator.store.database import Tx, returned
from orchestrator.store.row_mapper import Json, RowMapper

DAY_MS = 24 * 3_600_000
RETENTION_MS = 30 * DAY_MS
"""Milliseconds after its end for which a notice can still be read."""
MAX_HOST_FACTS = 20
"""Most facts of the host that wait for one group at once."""


class NoticeState(StrEnum):
    """The state of a notice: pending, then delivered, then one of the ends."""

    PENDING = "pending"
    DELIVERED = "delivered"
    """It was part of a turn, and may still be acknowledged by the agent."""
    ACKNOWLEDGED = "acknowledged"
    EXPIRED = "expired"
    """It was not delivered, or not acknowledged, in its time."""
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        """Whether a notice in this state may still be delivered or acknowledged."""
        return self in (NoticeState.PENDING, NoticeState.DELIVERED)


class NoticeScope(StrEnum):
    """The conversations in which a notice may be delivered."""

    SESSION = "session"
    """The notice ends with the conversation in which it was made."""
    CROSS_SESSION = "cross_session"
    """Later conversations of the group get it, too."""


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
    """The part of Andy or the tool that it is from."""
    payload: Mapping[str, Any]
    severity: Severity = "info"
    priority: Priority = "normal"
    category: str | None = None
    """The category that an agent gave its note, such as `discovery`; None for others."""
    scope: NoticeScope = NoticeScope.CROSS_SESSION
    session_id: str | None = None
    """The only session that gets it; None for a notice of any session."""
    deliver_at: DeliverAt = "next_turn"
    """When the agent asked to get it."""
    inject_at: InjectAt = "turn_start"
    """The point of a turn at which it is shown."""
    turns_remaining: int | None = None
    """The turns that it still waits for; None if it waits for none."""
    tool_name: str | None = None
    """The tool after whose call it is shown; None for any other point."""
    condition: str | None = None
    """The words of the condition under which it is shown; None if there is none."""
    dedupe_key: str | None = None
    """A notice with the same key takes its place; None if none does."""
    made_turn: TurnId | None = None
    """The turn that made it; None if the host did outside of a turn."""
    expires_ms: int | None = None
    """When it is dropped if it was not delivered; None for never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeRow:
    """A stored notice. `NewNotice` describes the fields that it has, too."""

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
    """The number of times that the same was noticed since it was stored."""
    made_turn: int | None
    created_ms: int
    expires_ms: int | None
    state: NoticeState
    reason: str | None
    """The reason why it ended without a delivery; None for others."""
    delivered_ms: int | None
    """When an agent got it last; None before the first time."""
    acknowledged_ms: int | None
    """When the agent confirmed it; None until then."""
    ended_ms: int | None
    """When it was settled for good; None until then."""
    deliveries: int
    """The number of times that an agent got it."""
    claim_turn: int | None
    """The turn that is to deliver it now; None if none is."""

    @property
    def message(self) -> str:
        """The text in the notice's payload; empty if it has none."""
        return str(self.payload.get("message", ""))


MAPPER = RowMapper(
    NoticeRow,
    "cross_session_notifications",
    {
        "folder": "group_folder",
        "maker": "agent",
        "payload": Json("payload_json"),
        "content": "formatted_content",
    },
    unread=("counted_turn", "told_session", "claim_attempt", "claimed_ms"),
)


async def add(tx: Tx, notice: NewNotice, *, now_ms: int) -> NoticeRow:
    """Store a notice for a group's agent, and return it.

    If a notice of the group with the same `dedupe_key` is pending, that row takes the new contents and its
    count is incremented. A turn that had claimed it loses its claim: the turn delivers the older text, not
    the new one.
    """
    row = MAPPER.values(notice) | {"created_ms": now_ms}
    cursor = await tx.execute(
        MAPPER.insert_sql(row)
        + """
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
        row,
    )
    return MAPPER.read(await returned(cursor))


async def get(tx: Tx, folder: Folder, notice_id: int) -> NoticeRow | None:
    """Return the notice of a group with this id, or None; another group's notice is not found."""
    return await MAPPER.fetch_one(
        tx, "SELECT * FROM cross_session_notifications WHERE group_folder = ? AND id = ?", (folder, notice_id)
    )


async def pending_by_key(tx: Tx, folder: Folder, key: str) -> NoticeRow | None:
    """Return the pending notice of a group that has this `dedupe_key`, or None."""
    return await MAPPER.fetch_one(
        tx,
        """
        SELECT * FROM cross_session_notifications
        WHERE group_folder = ? AND dedupe_key = ? AND state = 'pending'
        """,
        (folder, key),
    )


async def remove_key(tx: Tx, notice_id: int) -> None:
    """Remove the `dedupe_key` from a notice, so that the next notice with this key becomes another row."""
    await tx.execute("UPDATE cross_session_notifications SET dedupe_key = NULL WHERE id = ?", (notice_id,))


async def count_undelivered(tx: Tx, folder: Folder, maker: NoticeMaker) -> int:
    """Count the notices by this maker that still wait for delivery to the group's agent."""
    cursor = await tx.execute(
        f"""
        SELECT count(*) AS n FROM cross_session_notifications
        WHERE group_folder = ? AND agent = ? AND state = 'pending' AND {IS_OPEN}
        """,  # noqa: S608 - our own text
        (folder, maker),
    )
    return int((await returned(cursor))["n"])


async def of_group(
    tx: Tx, folder: Folder, *, maker: NoticeMaker | None = None, with_ended: bool, limit: int | None
) -> list[NoticeRow]:
    """Return the notices of a group that are pending, or delivered and not acknowledged.

    The most urgent come first. With `with_ended`, all notices are returned, the newest first. At most `limit`
    are returned (None: any number), and only those by `maker` (None: by all).
    """
    return await MAPPER.fetch_all(
        tx,
        f"""
        SELECT * FROM cross_session_notifications
        WHERE group_folder = :folder AND (:all OR state IN ('pending', 'delivered'))
          AND (:maker IS NULL OR agent = :maker)
        ORDER BY CASE WHEN :all THEN -id ELSE {RANK} END, created_ms, id LIMIT :limit
        """,  # noqa: S608 - our own text
        # SQLite takes a negative limit for none. `-id` ascends from the newest notice to the oldest.
        {"folder": folder, "all": with_ended, "maker": maker, "limit": -1 if limit is None else limit},
    )


async def acknowledge(tx: Tx, folder: Folder, notice_id: int, *, now_ms: int) -> bool:
    """Record that the agent has handled a notice.

    Return False, and change nothing, if the notice is not the group's, or has ended.
    """
    cursor = await tx.execute(
        """
        UPDATE cross_session_notifications SET state = 'acknowledged', acknowledged_ms = :now, ended_ms = :now
        WHERE group_folder = :folder AND id = :id AND state IN ('pending', 'delivered')
        """,
        {"folder": folder, "id": notice_id, "now": now_ms},
    )
    return cursor.rowcount == 1


async def cancel(tx: Tx, folder: Folder, notice_id: int, *, reason: str, now_ms: int) -> bool:
    """End a notice with a `reason`, so that it is not delivered (again).

    Return False, and change nothing, if the notice is not the group's, or has ended.
    """
    cursor = await tx.execute(
        """
        UPDATE cross_session_notifications SET state = 'cancelled', reason = :reason, ended_ms = :now
        WHERE group_folder = :folder AND id = :id AND state IN ('pending', 'delivered')
        """,
        {"folder": folder, "id": notice_id, "reason": reason, "now": now_ms},
    )
    return cursor.rowcount == 1


async def forget(tx: Tx, folder: Folder, notice_id: int, *, now_ms: int) -> None:
    """Cancel a notice of a group and delete its text."""
    await cancel(tx, folder, notice_id, reason="forgotten", now_ms=now_ms)
    # The row stays for the counts; its text is deleted, because it quotes a message that was deleted.
    await tx.execute(
        """
        UPDATE cross_session_notifications SET payload_json = '{}', formatted_content = NULL
        WHERE group_folder = ? AND id = ?
        """,
        (folder, notice_id),
    )


async def expire(tx: Tx, *, now_ms: int) -> list[NoticeRow]:
    """End the open notices whose time has passed and that no turn has claimed, and return them.

    Open ones are pending, or delivered and not acknowledged.
    """
    # A claimed notice is being delivered right now: its turn decides, and the next pass comes anyway.
    return await MAPPER.fetch_all(
        tx,
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


async def prune(tx: Tx, *, now_ms: int) -> None:
    """Delete notices that ended over `RETENTION_MS` ago, and those delivered that long ago that never expire.

    The records of delivered notices that people were shown are deleted after the same time.
    """
    # A delivered notice ends when it is acknowledged or expires. Without the second case, one that does
    # neither would never be deleted; one that a turn has claimed is about to be delivered again, so it stays.
    parameters = {"before": now_ms - RETENTION_MS}
    await tx.execute(
        """
        DELETE FROM cross_session_notifications
        WHERE ended_ms < :before
           OR (state = 'delivered' AND expires_ms IS NULL AND claim_turn IS NULL AND delivered_ms < :before)
        """,
        parameters,
    )
    await tx.execute("DELETE FROM told_notices WHERE told_ms < :before", parameters)


async def counts(tx: Tx) -> dict[str, int]:
    """Return the number of notices in each state; states without notices are left out."""
    rows = await tx.execute_fetchall(
        "SELECT state, count(*) AS n FROM cross_session_notifications GROUP BY state"
    )
    return {row["state"]: row["n"] for row in rows}


IS_OPEN = "state IN ('pending', 'delivered')"
"""The SQL condition for open notices. Queries for one state repeat it, or SQLite misses the partial index."""
RANK = "CASE priority WHEN 'critical' THEN 0 WHEN 'high' THEN 1 WHEN 'normal' THEN 2 ELSE 3 END"
"""The SQL rank of a priority: the most urgent first."""
