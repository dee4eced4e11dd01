"""`tool_calls`: the agents' tool calls in each turn, as their containers report them.

People see them, a turn that is tried again is shown those of its earlier runs, and the replies to "stop" and
"undo" count them.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.domain.values import Run, RunId, Turn, TurnId
from orchestrator.store.database import Tx
from orchestrator.store.row_mapper import RowMapper

MAX_CALLS = 300
"""Most stored calls of a turn, over all of its attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallRecord:
    """One call of a tool. Its texts come from a container."""

    run_id: RunId
    attempt: int
    call_id: str
    parent_id: str | None
    """The call that started the subagent which made this one."""
    tool: str
    summary: str
    started_ms: int
    duration_ms: int | None
    """None until it ended."""
    is_ok: bool | None
    """Whether the call succeeded; None until it has ended."""


_MAPPER = RowMapper(ToolCallRecord, "tool_calls", {}, unread=("id", "turn_id"))


async def begin(
    tx: Tx, turn: Turn, run: Run, *, call_id: str, parent_id: str | None, tool: str, summary: str, now_ms: int
) -> bool:
    """Store a tool call that an agent's container has reported as started; return whether it was stored.

    It is not stored a second time, nor if the turn has `MAX_CALLS` calls already. `parent_id` is the call
    that started the subagent which makes this one; None for a call of the agent itself. `summary` is a short
    text about the call.
    """
    cursor = await tx.execute(
        """
        INSERT INTO tool_calls (turn_id, run_id, attempt, call_id, parent_id, tool, summary, started_ms)
        SELECT :turn, :run, :attempt, :call, :parent, :tool, :summary, :now
        WHERE (SELECT count(*) FROM tool_calls WHERE turn_id = :turn) < :limit
        ON CONFLICT DO NOTHING
        """,
        {
            "turn": turn.id,
            "run": run.id,
            "attempt": turn.attempt,
            "call": call_id,
            "parent": parent_id,
            "tool": tool,
            "summary": summary,
            "now": now_ms,
            "limit": MAX_CALLS,
        },
    )
    return cursor.rowcount == 1


async def end(tx: Tx, turn: Turn, run: Run, *, call_id: str, is_ok: bool, took_ms: int, now_ms: int) -> bool:
    """Record that a tool call has ended, and whether it succeeded; return False if none is open under this
    id.

    `took_ms` is its duration as the container reports it; it is limited to the time since the turn was
    started.
    """
    cursor = await tx.execute(
        """
        UPDATE tool_calls SET is_ok = ?, duration_ms = ?
        WHERE turn_id = ? AND run_id = ? AND call_id = ? AND is_ok IS NULL
        """,
        (
            is_ok,
            # The container reports the duration, so it may be any number.
            max(0, min(took_ms, now_ms - (turn.started_ms or turn.queued_ms))),
            turn.id,
            run.id,
            call_id,
        ),
    )
    return cursor.rowcount == 1


async def of_turn(tx: Tx, turn_id: TurnId) -> list[ToolCallRecord]:
    """Return the tool calls in all attempts of a turn, in the order in which they were reported."""
    return await _MAPPER.fetch_all(tx, "SELECT * FROM tool_calls WHERE turn_id = ? ORDER BY id", (turn_id,))
