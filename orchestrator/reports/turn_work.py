"""Reports one turn: its state, and the tool calls of its agent, as its container reported them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypedDict
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_second
from orchestrator.base.tables import table
from orchestrator.domain.errors import UnknownTurn
from orchestrator.domain.values import Turn, TurnId, TurnState
from orchestrator.reports.queues import TurnView, turn_row
from orchestrator.store.database import Tx
from orchestrator.store.runs import tool_calls, turns
from orchestrator.store.runs.tool_calls import ToolCallRecord

OWN_TOOL_PREFIX = "mcp__andy__"
"""The prefix of the names of tools that the host itself gives an agent."""


class ToolCallView(TypedDict):
    """One call of a tool, as its container reported it, without secrets."""

    call: str
    parent: Annotated[str | None, "The call that started the subagent which made this call."]
    tool: str
    input: Annotated[str, "The arguments of the call: one line, at most 300 characters."]
    attempt: int
    run: str
    started_ms: int
    duration_ms: int | None
    state: Annotated[str, "running, ok, failed, or broken_off, if the end of the call was not reported."]


class TurnWorkView(TurnView):
    """A turn with the calls of its agent's tools."""

    tools: list[ToolCallView]


class TurnDocumentView(TurnWorkView):
    """A turn with the tool calls of its agent and the text that is being written."""

    draft: Annotated[str, "The text that is being written, which is not the answer before the turn ends."]


async def find(tx: Tx, number: int) -> TurnWorkView:
    """Return the turn with this number and the tool calls of its agent, as the API and `--json` show them.

    Raises:
        UnknownTurn: there is no such turn.
    """
    # A larger number could not be read by programs in JavaScript, and may not fit into the database.
    turn = await turns.get(tx, TurnId(number)) if 0 < number < 2**53 else None
    if turn is None:
        raise UnknownTurn(number)
    return {**turn_row(turn), "tools": await tool_rows(tx, turn)}


async def tool_rows(tx: Tx, turn: Turn) -> list[ToolCallView]:
    """Return the tool calls of the agent in all attempts at a turn, in the order in which they began."""
    return [_tool_row(turn, call) for call in await tool_calls.of_turn(tx, turn.id)]


def _tool_row(turn: Turn, call: ToolCallRecord) -> ToolCallView:
    """Return a call of a tool as the API and `--json` show it."""
    return {
        "call": call.call_id,
        "parent": call.parent_id,
        "tool": call.tool.removeprefix(OWN_TOOL_PREFIX),
        "input": call.summary,
        "attempt": call.attempt,
        "run": call.run_id,
        "started_ms": call.started_ms,
        "duration_ms": call.duration_ms,
        "state": _state(turn, call),
    }


def _state(turn: Turn, call: ToolCallRecord) -> str:
    """Return the state of a tool call: `ok`, `failed`, `running`, or `broken_off`.

    A call is broken off if its end was not reported, but the attempt in which it was made is over.
    """
    if call.is_ok is not None:
        return "ok" if call.is_ok else "failed"
    is_under_way = turn.state is TurnState.RUNNING and (turn.run_id, turn.attempt) == (
        call.run_id,
        call.attempt,
    )
    return "running" if is_under_way else "broken_off"


def tool_text(row: ToolCallView) -> str:
    """Return a tool call in one line: the tool, its input, and how the call ended. Pure."""
    caller = "subagent: " if row["parent"] else ""
    call_input = f" {row['input']}" if row["input"] else ""
    return f"{caller}{row['tool']}{call_input} ({_end_text(row)})"


def _end_text(row: ToolCallView) -> str:
    """Return in words how a tool call ended and how long it took: `1.2 s`, `failed after 1.2 s`."""
    match row["state"]:
        case "running":
            return "under way"
        case "broken_off":
            return "broken off"
        case state:
            took = f"{(row['duration_ms'] or 0) / 1000:.1f} s"
            return took if state == "ok" else f"failed after {took}"


def lines(turn: TurnWorkView, *, zone: ZoneInfo) -> list[str]:
    """Return a turn as lines for people: its state, then a table of the tool calls of its agent."""
    reason = f", {turn['reason']}" if turn["reason"] else ""
    head = f"Turn {turn['id']} of {turn['group']} ({turn['kind']}): {turn['state']}{reason}"
    return [head, *_tool_lines(turn["tools"], zone=zone)]


def _tool_lines(rows: Sequence[ToolCallView], *, zone: ZoneInfo) -> list[str]:
    """Return tool calls as a table for people, with times in `zone`."""
    if not rows:
        return ["Its agent called no tool."]
    return table(
        ("at", "try", "tool", "took"),
        [
            (
                local_second(row["started_ms"], zone),
                row["attempt"],
                tool_text(row).rpartition(" (")[0],  # without the end in brackets, which has its own column
                _end_text(row),
            )
            for row in rows
        ],
    )
