"""Report the tool calls of a turn as events: pending, succeeded, failed, timed out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_runner.ans.notices import RunNotices
from agent_runner.wire.notices import OWN_TOOLS

_TIMEOUT_MESSAGE = re.compile(
    r"^(?:Command timed out after (?P<amount>\d{1,9}(?:\.\d+)?) ?(?P<unit>ms|m|s)\b"
    r"|The host did not answer in (?P<seconds>\d{1,9}(?:\.\d+)?) s\b"
    r"|MCP error -32001: Request timed out)",
    re.MULTILINE,
)
"""Matches the timeout messages of the CLI's tools, of Andy's tools and of other MCP servers."""
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0}
"""Map the units in such messages to seconds."""
MAX_ARGUMENT_CHARS = 200
"""Characters of an argument that an event contains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a tool. `name` is the tool's name as the model knows it."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTimeout:
    """The timeout of a tool, with its limit in seconds; None if that is not known."""

    seconds: float | None


def timeout_in(error: str) -> ToolTimeout | None:
    """Return the timeout that the text of a tool's error reports; None if it is another error.

    `Command timed out after 2m` → 120 seconds, `The host did not answer in 30 s` → 30 seconds, `MCP error
    -32001: Request timed out` → a timeout of an unknown number of seconds.
    """
    match = _TIMEOUT_MESSAGE.search(error)
    if match is None:
        return None
    if match["seconds"]:
        return ToolTimeout(seconds=float(match["seconds"]))
    if match["amount"]:
        return ToolTimeout(seconds=float(match["amount"]) * _UNIT_SECONDS[match["unit"]])
    return ToolTimeout(seconds=None)


class ToolCallEvents:
    """Reports the tool calls of a run, turn by turn. Each call ends once, well or not."""

    def __init__(self, notices: RunNotices) -> None:
        """The events are recorded in `notices`."""
        self._notices = notices
        self._failed: dict[str, bool] = {}
        """Map each call of this turn that has ended to whether it failed."""
        self._durations: dict[str, int] = {}
        """Milliseconds that each ended call of this turn took, by the call's id."""
        self._batches = 0
        """Number of groups of calls made together that have ended so far, as in `batch_ended`."""

    @property
    def count(self) -> int:
        """Return how many calls have ended in this turn."""
        return len(self._failed)

    def begin_turn(self) -> None:
        """Forget the calls of the turn before."""
        self._failed.clear()
        self._durations.clear()

    def has_ended(self, call_id: str) -> bool:
        """Return whether the end of a call of this turn was reported."""
        return call_id in self._failed

    def pending(self, call: ToolCall) -> None:
        """Report that the model has asked for a call."""
        arguments = {name: str(value)[:MAX_ARGUMENT_CHARS] for name, value in call.arguments.items()}
        payload = {"tool_name": call.name, "call_id": call.id, "arguments": arguments}
        self._notices.emit("tool.call.pending", "info", payload, dedupe_key=call.id)

    def succeeded(self, call: ToolCall, *, result_chars: int, duration_ms: int) -> None:
        """Report that a call has succeeded: the length of its result, and the milliseconds that it took."""
        self._end(call, has_failed=False, duration_ms=duration_ms)
        payload = {
            "tool_name": call.name,
            "call_id": call.id,
            "duration_ms": duration_ms,
            "result_length": result_chars,
        }
        self._notices.emit("tool.call.success", "info", payload, dedupe_key=call.id)

    def failed(
        self, call: ToolCall, error: str, *, duration_ms: int = 0, error_type: str = "execution_error"
    ) -> None:
        """Report that a call has failed after `duration_ms`; `error` is the text of its result.

        If `error` is the message of a timeout, a timeout is reported, whatever `error_type` is.
        """
        self._end(call, has_failed=True, duration_ms=duration_ms)
        fields = {
            "tool_name": call.name,
            "call_id": call.id,
            "error_message": error,
            "duration_ms": duration_ms,
        }
        timeout = timeout_in(error)
        if timeout is None:
            failure = {"error_type": error_type, "retry_count": 0}
            self._notices.emit("tool.call.failure", "error", fields | failure)
            return
        seconds = timeout.seconds if timeout.seconds is not None else duration_ms / 1000
        limits = {"timeout_seconds": seconds, "timeout_ms": round(seconds * 1000)}
        self._notices.emit("tool.call.timeout", "warning", fields | limits | {"error_type": "timeout"})

    def batch_ended(self, calls: list[ToolCall]) -> None:
        """Report the outcome of calls that were made together, after all have ended."""
        self._batches += 1
        failures = sum(self._failed.get(call.id, False) for call in calls)
        payload = {
            "batch_id": f"batch-{self._batches}",
            "tool_count": len(calls),
            "success_count": len(calls) - failures,
            "failure_count": failures,
            "total_duration_ms": sum(self._durations.get(call.id, 0) for call in calls),
        }
        self._notices.emit("tool.batch.complete", "info", payload)

    def _end(self, call: ToolCall, *, has_failed: bool, duration_ms: int) -> None:
        """Record that a call has ended, and how.

        Notices that wait for the tool become due at the next delivery, unless it is a tool for notices.
        """
        self._failed[call.id] = has_failed
        self._durations[call.id] = duration_ms
        # A notice must not be released by the tool call that created it.
        if not call.name.startswith(OWN_TOOLS):
            self._notices.tool_ended(call.name)
