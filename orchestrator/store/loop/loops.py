"""`loop_state`: whether a group's agent wakes by itself, the next time, and the turn of its cycle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.domain.values import Folder, Group, TurnId
from orchestrator.store.database import Tx, returned
from orchestrator.store.row_mapper import Json, RowMapper


class LoopStatus(StrEnum):
    ON = "on"
    PAUSED = "paused"
    """The loop does not wake by itself; questions in the chat are answered."""
    STOPPED = "stopped"
    """The loop is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The state of one group's loop."""

    folder: Folder
    status: LoopStatus
    auto_ms: int
    """The sleep that the host chooses if the agent requests none, in milliseconds."""
    next_wake_ms: int | None
    """When it wakes if nothing happens before; None if it does not wake by itself."""
    set_by: str
    """The part that set this time, a value of `SetBy`."""
    reason: str
    trace: tuple[str, ...]
    """The steps of the decision about this time, for people."""
    held: str | None
    """The reason why the next cycle does not start although it is due; None if nothing holds it up."""
    last_start_ms: int | None
    """When the last cycle began; None before the first."""
    last_end_ms: int | None
    """When the last cycle ended; None before the first end."""
    lease_owner: str | None
    """The turn that has the loop's lease, as text: its cycle runs or starts next. None if none."""
    lease_until_ms: int | None
    """When that turn's lease ends, if it is not renewed."""
    soonest_streak: int
    """The number of cycles in a row that have requested the soonest wake."""
    noop_streak: int
    """The number of cycles in a row that have done nothing."""


_MAPPER = RowMapper(
    Loop,
    "loop_state",
    {
        "folder": "group_folder",
        "auto_ms": "auto_interval_ms",
        "set_by": "wake_set_by",
        "reason": "wake_reason",
        "trace": Json("trace_json"),
        "held": "held_reason",
        "soonest_streak": "now_streak",
    },
    unread=("changed_ms",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NextWake:
    """The next time when a loop wakes if nothing happens before, and the reason."""

    at_ms: int | None
    """None if the loop does not wake by itself."""
    set_by: str
    reason: str
    trace: Sequence[str]


async def get(tx: Tx, folder: Folder) -> Loop | None:
    """Return the state of a group's loop, or None if the loop was never switched on."""
    return await _MAPPER.fetch_one(tx, "SELECT * FROM loop_state WHERE group_folder = ?", (folder,))


async def every(tx: Tx) -> list[Loop]:
    """Return the states of all groups' loops, in the order of the groups' folders."""
    return await _MAPPER.fetch_all(tx, "SELECT * FROM loop_state ORDER BY group_folder")


async def alive(tx: Tx) -> list[Loop]:
    """Return the states of the loops that are on or paused, in the order of the groups' folders."""
    return await _MAPPER.fetch_all(
        tx, "SELECT * FROM loop_state WHERE status <> 'stopped' ORDER BY group_folder"
    )


async def switch_on(tx: Tx, folder: Folder, *, auto_ms: int, next_wake: NextWake, now_ms: int) -> None:
    """Switch a group's loop on: its agent wakes by itself from now on, first at `next_wake`.

    `auto_ms` is the sleep in milliseconds that applies when the agent chooses none.
    """
    # Old streaks and an old reason to wait belong to the time before, and would affect the new start.
    await tx.execute(
        """
        INSERT INTO loop_state (group_folder, status, auto_interval_ms, next_wake_ms, wake_set_by,
                                wake_reason, trace_json, changed_ms)
        VALUES (:folder, 'on', :auto, :at, :set_by, :reason, :trace, :now)
        ON CONFLICT (group_folder) DO UPDATE
        SET status = 'on', auto_interval_ms = :auto, next_wake_ms = :at, wake_set_by = :set_by,
            wake_reason = :reason, trace_json = :trace, changed_ms = :now, held_reason = NULL,
            now_streak = 0, noop_streak = 0
        """,
        {"folder": folder, "auto": auto_ms, "now": now_ms, **_wake_values(next_wake)},
    )


async def change_status(tx: Tx, folder: Folder, status: LoopStatus, *, now_ms: int) -> None:
    """Switch a group's loop on or off, or pause it. A reason that held up its next cycle is deleted."""
    await tx.execute(
        "UPDATE loop_state SET status = ?, changed_ms = ?, held_reason = NULL WHERE group_folder = ?",
        (status, now_ms, folder),
    )


async def set_wake(tx: Tx, folder: Folder, next_wake: NextWake) -> None:
    """Set when a group's agent wakes next by itself, and why."""
    await tx.execute(
        """
        UPDATE loop_state SET next_wake_ms = :at, wake_set_by = :set_by, wake_reason = :reason,
                              trace_json = :trace
        WHERE group_folder = :folder
        """,
        {"folder": folder, **_wake_values(next_wake)},
    )


async def set_times(tx: Tx, folder: Folder, *, next_wake_ms: int | None, last_start_ms: int | None) -> None:
    """Set the times of a loop (epoch ms) after the machine's clock was changed; None where it has none."""
    await tx.execute(
        "UPDATE loop_state SET next_wake_ms = ?, last_start_ms = ? WHERE group_folder = ?",
        (next_wake_ms, last_start_ms, folder),
    )


async def hold(tx: Tx, folder: Folder, reason: str | None) -> None:
    """Store why no cycle of a loop starts although one is due; None means that nothing prevents it."""
    # Written only when it changes: the loop looks after each event and mostly finds the same reason.
    await tx.execute(
        "UPDATE loop_state SET held_reason = ? WHERE group_folder = ? AND held_reason IS NOT ?",
        (reason, folder, reason),
    )


async def lease(
    tx: Tx, folder: Folder, turn_id: TurnId, *, next_wake_ms: int, now_ms: int, until_ms: int
) -> bool:
    """Give a queued turn the lease of a group's loop, which reserves the loop for it as the next cycle.

    Return False, and change nothing, if the loop is not on, or if another turn has the lease.

    The lease ends at `until_ms` at the latest. It counts as a start of the cycle, and the agent wakes
    again at `next_wake_ms` (epoch ms), so that a turn that fails to start is not tried again at once.
    """
    # The condition and the write are one statement, so that of two concurrent attempts only one can win.
    cursor = await tx.execute(
        """
        UPDATE loop_state SET lease_owner = :owner, lease_until_ms = :until, last_start_ms = :now,
                              next_wake_ms = :at
        WHERE group_folder = :folder AND status = 'on' AND (lease_owner IS NULL OR lease_until_ms <= :now)
        """,
        {
            "folder": folder,
            "owner": lease_of(turn_id),
            "now": now_ms,
            "until": until_ms,
            "at": next_wake_ms,
        },
    )
    return cursor.rowcount == 1


async def renew(tx: Tx, folder: Folder, *, until_ms: int) -> None:
    """Extend the lease of a group's loop, which its running turn has, until `until_ms`; if there is one."""
    await tx.execute(
        "UPDATE loop_state SET lease_until_ms = ? WHERE group_folder = ? AND lease_owner IS NOT NULL",
        (until_ms, folder),
    )


async def start(tx: Tx, folder: Folder, turn_id: TurnId, *, now_ms: int, until_ms: int) -> None:
    """Record that a turn has started as a cycle of the loop, and give it the loop's lease until `until_ms`.

    The lease of another turn, which still waits, is replaced.
    """
    # The turn of a free cycle has the lease while it is queued, but a turn for a person may start before it.
    await tx.execute(
        """
        UPDATE loop_state SET lease_owner = ?, lease_until_ms = ?, last_start_ms = ?, held_reason = NULL
        WHERE group_folder = ?
        """,
        (lease_of(turn_id), until_ms, now_ms, folder),
    )


async def release(tx: Tx, folder: Folder, turn_id: TurnId | None = None) -> None:
    """End the lease that this turn has on a group's loop; with None, whichever turn has it."""
    # With a turn passed, a lease that a later turn has taken meanwhile stays.
    await tx.execute(
        """
        UPDATE loop_state SET lease_owner = NULL, lease_until_ms = NULL
        WHERE group_folder = :folder AND (:owner IS NULL OR lease_owner = :owner)
        """,
        {"folder": folder, "owner": None if turn_id is None else lease_of(turn_id)},
    )


async def end(
    tx: Tx, folder: Folder, *, auto_ms: int, soonest_streak: int, is_noop: bool, ended_ms: int
) -> None:
    """Record the end of a cycle of a loop, except for the time of the next one.

    `auto_ms` is the sleep that applies next time if the agent chooses none, `soonest_streak` the number of
    cycles in a row that wanted the soonest waking ("now"). `is_noop` says that the agent did nothing in this
    one.
    """
    await tx.execute(
        """
        UPDATE loop_state
        SET auto_interval_ms = :auto, now_streak = :streak, last_end_ms = :ended,
            noop_streak = CASE WHEN :is_noop THEN noop_streak + 1 ELSE 0 END
        WHERE group_folder = :folder
        """,
        {"folder": folder, "auto": auto_ms, "streak": soonest_streak, "ended": ended_ms, "is_noop": is_noop},
    )


async def add_turn(tx: Tx, group: Group, *, now_ms: int) -> TurnId:
    """Queue a turn for a cycle that no question starts, and return its id.

    Raises `sqlite3.IntegrityError` when such a turn of the group waits or runs already.
    """
    cursor = await tx.execute(
        """
        INSERT INTO turns (group_folder, chat_jid, kind, state, queued_ms, not_before_ms)
        VALUES (?, ?, 'auto', 'queued', ?, ?) RETURNING id
        """,
        (group.folder, group.jid, now_ms, now_ms),
    )
    return TurnId((await returned(cursor))["id"])


async def set_prompt(tx: Tx, turn_id: TurnId, prompt: str) -> None:
    """Replace the text that the agent is given in a turn."""
    await tx.execute("UPDATE turns SET prompt = ? WHERE id = ?", (prompt, turn_id))


async def drop_waiting_turn(tx: Tx, folder: Folder) -> bool:
    """Delete the group's queued cycle that no question started, unless a run has begun it.

    Return whether there was one.
    """
    # One that was in a run may have sent messages, so it has to end like any other turn.
    cursor = await tx.execute(
        """
        DELETE FROM turns WHERE group_folder = ? AND kind = 'auto' AND state = 'queued' AND run_id IS NULL
        """,
        (folder,),
    )
    return cursor.rowcount > 0


def lease_of(turn_id: TurnId) -> str:
    """Return the name under which a turn has its loop's lease."""
    return f"turn:{turn_id}"


def _wake_values(next_wake: NextWake) -> dict[str, object]:
    """Return the SQL parameters `at`, `set_by`, `reason` and `trace` for a next waking."""
    return {
        "at": next_wake.at_ms,
        "set_by": next_wake.set_by,
        "reason": next_wake.reason,
        "trace": json.dumps(list(next_wake.trace), ensure_ascii=False),
    }
