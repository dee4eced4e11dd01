"""`cycles`: the turns of groups whose loop is on, each from its start to the decision at its end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.domain.values import Folder, Turn, TurnId
from orchestrator.store.database import Tx, returned
from orchestrator.store.row_mapper import Column, Json, RowMapper


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One cycle of a loop. The fields `schedule_…` have the agent's last request for a wake-up."""

    id: int
    folder: Folder
    turn_id: TurnId
    kind: str
    set_by: str | None
    """The part that had set the time at which it began, a `SetBy`; None if it began for another reason."""
    triggers: tuple[str, ...]
    """A description, for people, of each wake request that it has taken."""
    started_ms: int
    ended_ms: int | None
    """When it ended; None until then, as in `outcome`."""
    outcome: str | None
    """The way in which it ended, a value of `CycleOutcome`."""
    has_spoken: bool
    """Whether a message to people was sent in its turn."""
    error: str | None
    """The reason why its turn failed; None if it did not."""
    schedule_raw: str | None
    """The words of the request; None if the agent made none."""
    schedule_reason: str
    schedule_asked_ms: int | None
    """The sleep that the words ask for, in milliseconds from the request on; None if there is none."""
    schedule_at_ms: int | None
    """The moment that the words name, in epoch milliseconds; None for a span, which counts from the end."""
    is_soonest: bool
    schedule_applied_ms: int | None
    """The sleep that follows, in milliseconds; None if the loop does not wake by itself."""
    schedule_bounded: bool
    """Whether the sleep differs from the requested one."""
    capped_by: int | None
    """The unanswered turn that limits the sleep; None if none does."""
    next_wake_ms: int | None
    """When the next cycle begins if nothing happens before."""
    trace: tuple[str, ...]
    """The steps of the decision about that time, for people."""


_MAPPER = RowMapper(
    Cycle,
    "cycles",
    {
        "folder": "group_folder",
        "triggers": Json("trigger_json"),
        "schedule_reason": Column("schedule_reason", lambda text: text or "", str),
        "trace": Json("trace_json"),
    },
)


async def begin(tx: Tx, turn: Turn, *, set_by: str | None, now_ms: int) -> int:
    """Record that the turn of a loop's cycle begins, or another attempt at it, and return the cycle's id.

    A cycle is one waking of a group's agent. `set_by` is the part of Andy that set the time of the waking;
    None if something else woke the agent. Another attempt deletes the recorded end of the attempt before.
    """
    # A further attempt at the turn leaves the agent's request for the next wake in the row: if the agent
    # repeats its command, it gets the recorded reply, and the request is not stored again.
    cursor = await tx.execute(
        """
        INSERT INTO cycles (group_folder, turn_id, kind, set_by, started_ms) VALUES (?, ?, ?, ?, ?)
        ON CONFLICT (turn_id) DO UPDATE SET has_spoken = 0, ended_ms = NULL, outcome = NULL
        RETURNING id
        """,
        (turn.folder, turn.id, turn.kind, set_by, now_ms),
    )
    return int((await returned(cursor))["id"])


async def note_triggers(tx: Tx, cycle_id: int, triggers: Sequence[str]) -> None:
    """Store a description, for people, of each wake request that a cycle has taken."""
    await tx.execute(
        "UPDATE cycles SET trigger_json = ? WHERE id = ?",
        (json.dumps(list(triggers), ensure_ascii=False), cycle_id),
    )


async def note_wake_request(
    tx: Tx, cycle_id: int, *, raw: str, reason: str, asked_ms: int, at_ms: int | None, is_soonest: bool
) -> None:
    """Store when the agent wants to wake next, in place of its earlier wish in this cycle.

    `raw` is the wish as the agent wrote it, `asked_ms` the sleep until then in milliseconds, and `at_ms` the
    moment, in epoch milliseconds, if it names one. `is_soonest` says that this is the shortest possible
    sleep. A cycle that has ended is left unchanged.
    """
    await tx.execute(
        """
        UPDATE cycles SET schedule_raw = ?, schedule_reason = ?, schedule_asked_ms = ?, schedule_at_ms = ?,
            is_soonest = ?
        WHERE id = ? AND ended_ms IS NULL
        """,
        (raw, reason, asked_ms, at_ms, is_soonest, cycle_id),
    )


async def note_spoken(tx: Tx, cycle_id: int) -> None:
    """Record that a message to people was sent in the turn of a cycle."""
    await tx.execute("UPDATE cycles SET has_spoken = 1 WHERE id = ?", (cycle_id,))


async def unfinished(tx: Tx) -> list[Cycle]:
    """Return the cycles of all groups that have not ended, oldest first."""
    return await _MAPPER.fetch_all(tx, "SELECT * FROM cycles WHERE ended_ms IS NULL ORDER BY id")


async def of_turn(tx: Tx, turn_id: TurnId) -> Cycle | None:
    """Return the cycle whose turn this is; None for a turn of a group whose loop is off."""
    return await _MAPPER.fetch_one(tx, "SELECT * FROM cycles WHERE turn_id = ?", (turn_id,))


async def running_of(tx: Tx, folder: Folder) -> Cycle | None:
    """Return the cycle of a group that has not ended; None if there is none."""
    return await _MAPPER.fetch_one(
        tx, "SELECT * FROM cycles WHERE group_folder = ? AND ended_ms IS NULL", (folder,)
    )


async def end(
    tx: Tx,
    cycle_id: int,
    *,
    outcome: str,
    error: str | None,
    ended_ms: int,
    applied_ms: int | None,
    is_bounded: bool,
    capped_by: int | None,
    next_wake_ms: int | None,
    trace: Sequence[str],
) -> None:
    """Record how a cycle ended, and what was decided about the next waking of the agent.

    `outcome` is a value of `CycleOutcome`, `error` the reason of a failure. `applied_ms` is the sleep that
    follows, in milliseconds (None: the agent does not wake by itself), and `is_bounded` says that it differs
    from the one that the agent wanted. `capped_by` is the id of the turn whose question has no reply yet, so
    that the sleep was shortened for it; None if it was not. `next_wake_ms` is the end of the sleep (epoch
    ms), and `trace` has the steps of the decision, for people.
    """
    await tx.execute(
        """
        UPDATE cycles SET outcome = ?, error = ?, ended_ms = ?, schedule_applied_ms = ?,
                          schedule_bounded = ?, capped_by = ?, next_wake_ms = ?, trace_json = ?
        WHERE id = ?
        """,
        (
            outcome,
            error,
            ended_ms,
            applied_ms,
            is_bounded,
            capped_by,
            next_wake_ms,
            json.dumps(list(trace), ensure_ascii=False),
            cycle_id,
        ),
    )


async def self_set_starts(tx: Tx, folder: Folder, *, since_ms: int) -> tuple[int, ...]:
    """Return the starts (epoch ms) after `since_ms` of cycles whose time the agent itself had chosen.

    The oldest come first.
    """
    rows = await tx.execute_fetchall(
        """
        SELECT started_ms FROM cycles WHERE group_folder = ? AND set_by = 'agent' AND started_ms > ?
        ORDER BY started_ms
        """,
        (folder, since_ms),
    )
    return tuple(row["started_ms"] for row in rows)


async def file_starts(tx: Tx, folder: Folder, *, since_ms: int) -> tuple[int, ...]:
    """Return the starts (epoch ms) after `since_ms` of cycles that had no other wake than of changed files.

    The oldest come first. Only free cycles count, no turns of messages or scheduled tasks.
    """
    # `workspace` is the wake for changed files. A free cycle without a wake counts too: another cycle may
    # have taken its wakes before it started.
    rows = await tx.execute_fetchall(
        """
        SELECT started_ms FROM cycles
        WHERE group_folder = ? AND started_ms > ? AND kind = 'auto'
            AND NOT EXISTS (SELECT 1 FROM wakes WHERE cycle_id = cycles.id AND wakes.kind <> 'workspace')
        ORDER BY started_ms
        """,
        (folder, since_ms),
    )
    return tuple(row["started_ms"] for row in rows)


async def count_capped_by(tx: Tx, folder: Folder, turn_id: TurnId) -> int:
    """Return after how many of a group's cycles the agent slept less than it wanted, because of this turn.

    As long as people's messages in a turn have no reply, this turn shortens the sleep.
    """
    cursor = await tx.execute(
        "SELECT count(*) AS n FROM cycles WHERE group_folder = ? AND capped_by = ?", (folder, turn_id)
    )
    return int((await returned(cursor))["n"])


async def unanswered(tx: Tx, folder: Folder) -> TurnId | None:
    """Return a group's newest ended chat turn, if the agent has not replied to it; otherwise None.

    A reply is any message that the agent sent in that turn or in a later cycle, or any later message of
    Andy's in the turn's chat. None also if the turn failed or was no cycle of the loop.
    """
    cursor = await tx.execute(
        """
        SELECT turns.id FROM turns JOIN cycles ON cycles.turn_id = turns.id
        WHERE turns.id = (SELECT max(id) FROM turns WHERE group_folder = :folder AND kind = 'chat'
                              AND command IS NULL AND state IN ('answered', 'failed'))
            AND turns.state = 'answered' AND NOT has_spoken
            AND NOT EXISTS (SELECT 1 FROM cycles AS later
                            WHERE later.group_folder = :folder AND later.id > cycles.id AND later.has_spoken)
            AND NOT EXISTS (SELECT 1 FROM messages WHERE messages.chat_jid = turns.chat_jid
                                AND seq > turns.last_seq AND is_bot_message)
        """,
        {"folder": folder},
    )
    row = await cursor.fetchone()
    return TurnId(row["id"]) if row else None


async def count_actions(tx: Tx, folder: Folder, *, since_ms: int, passive: Sequence[str]) -> int:
    """Count the successful commands of a group's agent since `since_ms`, other than those that change
    nothing.

    `passive` has the types of commands that change nothing.
    """
    placeholders = ", ".join("?" for _ in passive)
    cursor = await tx.execute(
        f"""
        SELECT count(*) AS n FROM commands
        WHERE at_ms >= ? AND group_folder = ? AND ok AND type NOT IN ({placeholders})
        """,  # noqa: S608 - only placeholders are joined
        (since_ms, folder, *passive),
    )
    return int((await returned(cursor))["n"])


async def newest(tx: Tx, folder: Folder, *, limit: int) -> list[Cycle]:
    """Return at most `limit` of a group's newest cycles, newest first."""
    return await _MAPPER.fetch_all(
        tx, "SELECT * FROM cycles WHERE group_folder = ? ORDER BY id DESC LIMIT ?", (folder, limit)
    )


async def counts_since(tx: Tx, folder: Folder, *, since_ms: int) -> dict[str, int]:
    """Return how many messages people wrote and how many turns ended in a group since `since_ms`.

    The keys are `messages` and `turns`. Turns that the loop itself started are not counted. Only the newest
    500 messages and the newest 500 turns of the group are considered.
    """
    cursor = await tx.execute(
        """
        SELECT (SELECT count(*) FROM (
                    SELECT m.received_ms, m.is_bot_message
                    FROM messages m WHERE m.group_folder = :folder ORDER BY m.seq DESC LIMIT 500)
                WHERE received_ms >= :since AND NOT is_bot_message) AS messages,
               (SELECT count(*) FROM (
                    SELECT ended_ms, kind FROM turns WHERE group_folder = :folder ORDER BY id DESC LIMIT 500)
                WHERE ended_ms >= :since AND kind <> 'auto') AS turns
        """,
        {"folder": folder, "since": since_ms},
    )
    return dict(await returned(cursor))
