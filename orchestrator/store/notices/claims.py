"""Assign notices to turns: a turn claims the notices for its agent; they are delivered if it ends well.

A claim belongs to one attempt at one turn. The transaction that ends the attempt confirms it for the notices
that the agent really received; any other end of the attempt releases it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent_runner.wire.notices import MAX_DELIVERED, MAX_NOTICE_CHARS, DeliveredNotice
from orchestrator.domain.values import Folder, Turn, TurnId, TurnKind
from orchestrator.store.database import Tx
from orchestrator.store.notices import notices
from orchestrator.store.notices.notices import IS_OPEN, RANK, NoticeRow

MAX_DELIVERIES = 3
"""Times that one urgent notice is delivered at most, once in each new session."""
CLAIM_MS = 600_000
"""Milliseconds after which a claim is free again if its turn does not run."""
LEFT_SESSION = "its conversation has ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredNoticeRow:
    """A notice that a model received, as people are shown it."""

    folder: Folder
    turn_id: int
    notice_id: int | None
    event_type: str
    priority: str
    text: str
    delivered_ms: int


# A turn begins


async def claim(tx: Tx, turn: Turn, *, session_id: str | None, now_ms: int) -> list[NoticeRow]:
    """Claim the notices that an attempt at a turn gives to its agent.

    A notice is a line for a group's agent. `session_id` is the session that the attempt continues. Return all
    notices that the attempt has claimed by now, the most urgent first: at most `MAX_DELIVERED`, however often
    this is called. Of the notices that have not expired and that no turn has claimed, it claims:

    - Pending ones for every session, or for this one. One that was made for a session without an id yet is
      for this one, as notices of an earlier session have ended with its conversation. A notice that waits for
      a number of chat turns is claimed when they have started; a chat turn is counted here, and only once
      however often it is tried. A notice for a later turn is not claimed while the turn that made it is
      queued or runs.
    - Urgent ones for every session that were delivered in another session, so that each new session gets
      them, too, until they were delivered `MAX_DELIVERIES` times in total.
    """
    # "After n turns" means turns of the chat, not those of tasks.
    if turn.kind is TurnKind.CHAT:
        await _count_turn(tx, turn)
    # A second call in one attempt counts the claims of the first, or the limit would apply twice.
    room = MAX_DELIVERED - len(await claimed_by(tx, turn))
    await tx.execute(
        f"""
        UPDATE cross_session_notifications SET claim_turn = :turn, claim_attempt = :attempt, claimed_ms = :now
        WHERE id IN (
            SELECT id FROM cross_session_notifications
            WHERE group_folder = :folder AND {IS_OPEN} AND claim_turn IS NULL
              AND (expires_ms IS NULL OR expires_ms > :now)
              AND ((state = 'pending' AND coalesce(turns_remaining, 0) = 0
                       AND (scope = 'cross_session' OR session_id IS NULL OR session_id IS :session)
                       AND NOT (deliver_at IN ('next_turn', 'after_n_turns') AND {_MADE_IN_OPEN_TURN}))
                   OR (state = 'delivered' AND scope = 'cross_session' AND priority IN ('high', 'critical')
                       AND deliveries < :most_deliveries AND told_session IS NOT :session))
            ORDER BY {RANK}, created_ms, id LIMIT :room)
        """,  # noqa: S608 - our own text
        {
            "turn": turn.id,
            "attempt": turn.attempt,
            "now": now_ms,
            "folder": turn.folder,
            "session": session_id,
            "most_deliveries": MAX_DELIVERIES,
            "room": max(0, room),
        },
    )
    return await claimed_by(tx, turn)


_MADE_IN_OPEN_TURN = """coalesce(made_turn IN (
    SELECT id FROM turns WHERE id = made_turn AND state IN ('queued', 'running')), 0)"""


async def _count_turn(tx: Tx, turn: Turn) -> None:
    """Count a chat turn that starts: notices that wait for a number of such turns wait for one less.

    The turn is not counted for notices that were made in it. A further call for the same turn changes
    nothing.
    """
    # `counted_turn` is the last turn that was counted for a notice. It is stored across retries and restarts,
    # so a turn that is tried three times counts once.
    await tx.execute(
        f"""
        UPDATE cross_session_notifications SET turns_remaining = turns_remaining - 1, counted_turn = :turn
        WHERE group_folder = :folder AND state = 'pending' AND {IS_OPEN} AND turns_remaining > 0
          AND made_turn IS NOT :turn AND coalesce(counted_turn, 0) < :turn
        """,  # noqa: S608 - our own text
        {"turn": turn.id, "folder": turn.folder},
    )


async def take_now(tx: Tx, turn: Turn, notice_id: int, *, now_ms: int) -> None:
    """Claim a notice for the attempt at a turn in which it was just made, so that the agent gets it in that
    attempt.
    """
    await tx.execute(
        """
        UPDATE cross_session_notifications SET claim_turn = ?, claim_attempt = ?, claimed_ms = ?
        WHERE group_folder = ? AND id = ?
        """,
        (turn.id, turn.attempt, now_ms, turn.folder, notice_id),
    )


async def claimed_by(tx: Tx, turn: Turn) -> list[NoticeRow]:
    """Return the notices that this attempt at a turn has claimed, the most urgent first, then the oldest."""
    return await notices.MAPPER.fetch_all(
        tx,
        f"""
        SELECT * FROM cross_session_notifications
        WHERE group_folder = ? AND claim_turn = ? AND claim_attempt = ? ORDER BY {RANK}, created_ms, id
        """,  # noqa: S608 - our own text
        (turn.folder, turn.id, turn.attempt),
    )


# It ends


async def settle(
    tx: Tx, turn: Turn, delivered: Sequence[DeliveredNotice], *, session_id: str | None, now_ms: int
) -> list[int]:
    """Record that a turn ended well, and return the ids of the notices that its agent received.

    `delivered` is the container's report of the notices it gave to the agent. Claimed notices in it become
    delivered, other claims are released; reports about notices that this attempt has not claimed are ignored.
    `session_id` is the session in which the turn ended; None if the agent has none. The urgent notices are
    stored for people to see.
    """
    # Only ids of this attempt count: a container must not mark another turn's notices as delivered.
    texts = {notice.id: plain(notice.text) for notice in delivered if notice.id is not None}
    received = [notice for notice in await claimed_by(tx, turn) if notice.id in texts]
    await tx.executemany(
        """
        UPDATE cross_session_notifications
        SET deliveries = deliveries + 1, delivered_ms = ?, told_session = ?, formatted_content = ?,
            state = CASE state WHEN 'pending' THEN 'delivered' ELSE state END
        WHERE id = ?
        """,
        [(now_ms, session_id, texts[notice.id], notice.id) for notice in received],
    )
    # Notices that the agent did not receive come again with the next turn, so they are released here.
    await release(tx, turn, now_ms=now_ms)
    await _record(tx, turn, _for_people(turn, delivered, received, now_ms=now_ms))
    return [notice.id for notice in received]


async def release(tx: Tx, turn: Turn, *, now_ms: int) -> None:
    """Release all notices that a turn has claimed.

    If the turn is isolated, its pending notices for its own session expire.
    """
    await tx.execute(
        """
        UPDATE cross_session_notifications SET claim_turn = NULL, claim_attempt = NULL, claimed_ms = NULL
        WHERE claim_turn = ?
        """,
        (turn.id,),
    )
    # An isolated task has a session that nobody resumes, so its notices can reach nobody.
    if turn.is_isolated:
        await _end_session_notices(tx, turn.folder, made_turn=turn.id, now_ms=now_ms)


async def free_stale(tx: Tx, *, now_ms: int) -> int:
    """Release the notices claimed by attempts that no longer run; return how many (normally none).

    A claim that is younger than `CLAIM_MS` is not released.
    """
    # Releasing by time alone would release the claims of a turn that works for half an hour, and deliver
    # twice.
    cursor = await tx.execute(
        """
        UPDATE cross_session_notifications SET claim_turn = NULL, claim_attempt = NULL, claimed_ms = NULL
        WHERE claim_turn IS NOT NULL AND claimed_ms <= :before AND NOT EXISTS (
            SELECT 1 FROM turns WHERE id = claim_turn AND attempt = claim_attempt AND state = 'running')
        """,
        {"before": now_ms - CLAIM_MS},
    )
    return cursor.rowcount


# Its conversation goes on, or not


async def enter_session(tx: Tx, folder: Folder, session_id: str | None) -> None:
    """Move a group's waiting notices to the session `session_id`, in which its conversation goes on.

    None stands for a session without an id yet. They move also if the old session was lost or too old: for
    the people it is the same conversation, and the notices may be all that remains of it.
    """
    # Only pending notices move; delivered ones belong to the session that has read them.
    await tx.execute(
        f"""
        UPDATE cross_session_notifications SET session_id = :session
        WHERE group_folder = :folder AND scope = 'session' AND state = 'pending' AND {IS_OPEN}
          AND session_id IS NOT :session
        """,  # noqa: S608 - our own text
        {"session": session_id, "folder": folder},
    )


async def leave_session(tx: Tx, folder: Folder, *, now_ms: int) -> None:
    """Record that the group's conversation has ended: pending notices that were only for it end with it."""
    await _end_session_notices(tx, folder, now_ms=now_ms)


async def _end_session_notices(
    tx: Tx, folder: Folder, *, made_turn: TurnId | None = None, now_ms: int
) -> None:
    """End a group's pending notices that are for one session only, with the reason `LEFT_SESSION`.

    With `made_turn`, only those that were made in that turn.
    """
    # The table has all notices. `IS_OPEN` adds no condition here, but without it SQLite would not use the
    # index `notices_open`.
    await tx.execute(
        f"""
        UPDATE cross_session_notifications
        SET state = 'expired', reason = :reason, ended_ms = :now
        WHERE group_folder = :folder AND scope = 'session' AND state = 'pending' AND {IS_OPEN}
          AND (:turn IS NULL OR made_turn = :turn)
        """,  # noqa: S608 - our own text
        {"reason": LEFT_SESSION, "now": now_ms, "folder": folder, "turn": made_turn},
    )


# For people to see


def _for_people(
    turn: Turn, delivered: Sequence[DeliveredNotice], received: Sequence[NoticeRow], *, now_ms: int
) -> list[DeliveredNoticeRow]:
    """Return the urgent notices that people are shown, out of those that a container reports as delivered.

    `received` are the stored notices among the reported ones; for these the host's priority counts. A report
    without an id is about a notice of the run itself; for it the container's priority counts. Reports with
    any other id are left out, and so are all after the first `MAX_DELIVERED`.
    """
    stored = {notice.id: notice for notice in received}
    shown: list[DeliveredNoticeRow] = []
    for report in delivered[:MAX_DELIVERED]:
        # Removed from the map, so that a container that names one notice twice shows it once.
        notice = stored.pop(report.id, None) if report.id is not None else None
        if report.id is not None and notice is None:
            continue
        # For a stored notice the host's priority counts: a container could call anything critical.
        priority = notice.priority if notice else report.priority
        if priority not in ("high", "critical"):
            continue
        shown.append(
            DeliveredNoticeRow(
                folder=turn.folder,
                turn_id=turn.id,
                notice_id=notice.id if notice else None,
                event_type=notice.event_type if notice else plain(report.event_type),
                priority=priority,
                text=plain(report.text),
                delivered_ms=now_ms,
            )
        )
    return shown


async def _record(tx: Tx, turn: Turn, urgent_notices: Iterable[DeliveredNoticeRow]) -> None:
    """Store the urgent notices that a model received, for people to see later."""
    await tx.executemany(
        """
        INSERT INTO told_notices (group_folder, turn_id, notice_id, event_type, priority, text, told_ms)
        VALUES (?, ?, ?, ?, ?, ?, ?)
        """,
        [
            (
                turn.folder,
                turn.id,
                notice.notice_id,
                notice.event_type,
                notice.priority,
                notice.text,
                notice.delivered_ms,
            )
            for notice in urgent_notices
        ],
    )


async def recently_delivered(tx: Tx, *, since_ms: int, limit: int) -> list[DeliveredNoticeRow]:
    """Return at most `limit` urgent notices that models have received since `since_ms`, newest first."""
    # Only urgent ones are stored in this table: see `_record`.
    rows = await tx.execute_fetchall(
        "SELECT * FROM told_notices WHERE told_ms >= ? ORDER BY id DESC LIMIT ?", (since_ms, limit)
    )
    return [
        DeliveredNoticeRow(
            folder=Folder(row["group_folder"]),
            turn_id=row["turn_id"],
            notice_id=row["notice_id"],
            event_type=row["event_type"],
            priority=row["priority"],
            text=row["text"],
            delivered_ms=row["told_ms"],
        )
        for row in rows
    ]


def plain(text: str) -> str:
    """Return a container's text in a form that can be stored and shown, cut after `MAX_NOTICE_CHARS`.

    Control characters other than line breaks become spaces; characters that cannot be stored become question
    marks.
    """
    # Half a surrogate pair cannot be stored as UTF-8, and a container may send one.
    storable = text[:MAX_NOTICE_CHARS].encode("utf-8", "replace").decode("utf-8")
    return "".join(char if char.isprintable() or char == "\n" else " " for char in storable)
