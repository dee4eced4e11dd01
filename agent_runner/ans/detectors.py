"""Find facts that an agent should know: budgets that run out, a window that fills, repeated calls.

An agent's loop reports figures and calls to the detectors, which return an `EventDraft` for each finding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, TypedDict

from agent_runner.ans.event import EventDraft

# Budgets of a turn

BudgetType = Literal["token", "iteration", "time"]

TOKEN_WARNING = 0.80
ITERATION_WARNING = 0.70
TIME_WARNING = 0.80
"""Share of a turn's seconds from which to warn; the two above are those of its tokens and requests."""
MAX_ITERATIONS = 30
"""Requests to the model in one turn, by default."""


class BudgetUse(TypedDict):
    """The tokens, requests to the model (`iterations`) and seconds that a turn has used so far."""

    tokens: int
    iterations: int
    seconds: float


class BudgetWatch:
    """Reports when a turn has used up a limit, or nearly. A limit of 0 means no limit.

    Tokens are those of the answer, iterations the requests to the model, time the seconds of the turn. Each
    event is reported once per turn.
    """

    def __init__(
        self, *, max_tokens: int = 0, max_iterations: int = MAX_ITERATIONS, max_seconds: float = 0
    ) -> None:
        """The limits apply to one turn; 0 means no limit."""
        self._max_tokens = max_tokens
        self._max_iterations = max_iterations
        self._max_seconds = max_seconds
        self._reported: set[str] = set()
        """The types of events that were reported in this turn; each is reported once."""

    def begin_turn(self) -> None:
        """Allow each event to be reported again, because a turn begins."""
        self._reported.clear()

    def judge(self, *, tokens: int, iterations: int, seconds: float) -> list[EventDraft]:
        """Return the events for all limits that a turn has reached, or nearly, while it goes on.

        Tokens, requests to the model (`iterations`) and seconds are those that the turn has used.
        """
        drafts = (self.tokens_used(tokens), self.iterations_used(iterations), self.seconds_used(seconds))
        return [draft for draft in drafts if draft is not None]

    def look_back(self, *, tokens: int, iterations: int, seconds: float) -> list[EventDraft]:
        """Return the events that a turn has not reported by its end, worded for the next turn.

        The arguments are those of `judge`, for the whole turn.
        """
        drafts = self.judge(tokens=tokens, iterations=iterations, seconds=seconds)
        return [
            replace(draft, payload={**draft.payload, "message": _message_for_next_turn(draft.payload)})
            for draft in drafts
        ]

    def tokens_used(self, current: int) -> EventDraft | None:
        """Return `budget.token.warning`, `budget.token.exceeded` or None for the tokens written so far."""
        return self._judge("token", current, self._max_tokens, TOKEN_WARNING, "tokens")

    def iterations_used(self, current: int) -> EventDraft | None:
        """Return `budget.iteration.warning` or `.exceeded`, or None, for the requests to the model so far."""
        return self._judge("iteration", current, self._max_iterations, ITERATION_WARNING, "iterations")

    def seconds_used(self, current: float) -> EventDraft | None:
        """Return `budget.timeout.warning` or None for the seconds that the turn has taken."""
        # At the limit the turn is stopped from outside, so there is nobody to warn.
        if current >= self._max_seconds:
            return None
        return self._judge("time", int(current), int(self._max_seconds), TIME_WARNING, "seconds")

    def _judge(
        self, kind: BudgetType, current: int, limit: int, share: float, unit: str
    ) -> EventDraft | None:
        """Return the event for a limit that is reached, or nearly; None if neither, or if reported already.

        `kind` names the budget, and `unit` is the word for what it counts, such as "tokens". `current` is the
        number used so far; `share` is the part of the limit from which to warn.
        """
        if limit <= 0 or current < int(limit * share):
            return None
        is_exceeded = current >= limit
        type_ = f"budget.{'timeout' if kind == 'time' else kind}.{'exceeded' if is_exceeded else 'warning'}"
        if type_ in self._reported:
            return None
        # After the report that a budget is exceeded, a warning about it is never needed.
        self._reported |= {type_, type_.replace("exceeded", "warning")}
        return EventDraft(
            type=type_,
            severity="critical" if is_exceeded else "warning",
            payload=_payload(kind, current, limit, unit),
        )


def _payload(kind: BudgetType, current: int, limit: int, unit: str) -> dict[str, int | str]:
    """Return the payload of an event about a budget: its figures, and a message for the model.

    `current` is the number used so far; `unit` is the word for what is counted, such as "tokens".
    """
    remaining = max(0, limit - current)
    state = f"{remaining:,} of {limit:,} {unit} are left" if remaining else f"all {limit:,} {unit} are used"
    fields = {
        "budget_type": kind,
        "current": current,
        "limit": limit,
        "percent": min(100, current * 100 // limit),
        "remaining": remaining,
        "message": f"{state}: finish what matters most, and say what is open.",
    }
    if kind != "time":
        return fields
    return fields | {"elapsed_seconds": current, "limit_seconds": limit, "remaining_seconds": remaining}


def _message_for_next_turn(payload: Mapping[str, Any]) -> str:
    """Return the sentence that tells the next turn's model how much of a budget the last turn used.

    `payload` has the fields of the budget's event.
    """
    used = f"{payload['current']:,} of {payload['limit']:,}"
    sentences = {
        "token": f"your last answer took {used} tokens",
        "iteration": f"your last turn went to the model {used} times",
        "time": f"your last turn took {used} seconds",
    }
    return f"{sentences[payload['budget_type']]}: do less in one turn."


# The model's window

WARN_SHARE = 0.70
"""Share of the window from which to warn."""
COMPACTION_SHARE = 0.90
"""Part of the number of tokens at which the CLI compacts: from it on, a warning is due even if the window is
not yet full to `WARN_SHARE`.
"""
REARM_SHARE = 0.60
"""Share of the window below which use has to fall before the next warning."""


def threshold(max_tokens: int, compaction_at: int | None = None) -> int:
    """Return the number of tokens in a model's window from which to warn that it fills up.

    `max_tokens` is the size of the window. `compaction_at` is the number of tokens at which the CLI compacts
    the conversation, None if it is not known; the result is below that number, also in small windows.
    """
    full = int(max_tokens * WARN_SHARE)
    return min(full, int(compaction_at * COMPACTION_SHARE)) if compaction_at else full


class ContextUse:
    """Reports `context.approaching_limit` once when use of the window reaches the `threshold`.

    It reports again only after a compaction, or after use has fallen below `REARM_SHARE` of the window. If
    the CLI compacts early, the threshold is lower than `WARN_SHARE`; then this limit is lower in proportion.
    """

    def __init__(self) -> None:
        self._is_armed = True
        """Whether the event is reported when use reaches the threshold the next time."""

    def compacted(self) -> None:
        """Allow the event to be reported again, because the conversation was compacted."""
        self._is_armed = True

    def measured(
        self, current_tokens: int, max_tokens: int, *, compaction_at: int | None = None
    ) -> EventDraft | None:
        """Return the event if use has reached the `threshold` and was not reported yet, else None.

        `current_tokens` are used of a window of `max_tokens`, 0 if its size is not known. `compaction_at` is
        the number of tokens at which the CLI compacts the conversation, None if it is not known.
        """
        if max_tokens <= 0:
            return None
        warn_at = threshold(max_tokens, compaction_at)
        # Lower than `warn_at`: use that varies around one threshold would cause a warning each time.
        rearm_below = min(max_tokens * REARM_SHARE, warn_at * REARM_SHARE / WARN_SHARE)
        if current_tokens < rearm_below:
            self._is_armed = True
        if current_tokens < warn_at or not self._is_armed:
            return None
        self._is_armed = False
        return _approaching(current_tokens, max_tokens, compaction_at)


def _approaching(current: int, maximum: int, compaction_at: int | None) -> EventDraft:
    """Return the event for a window of `maximum` tokens that fills up, of which `current` are used.

    The conversation is compacted at `compaction_at` tokens; None if that is not known.
    """
    remaining = max(0, (compaction_at or maximum) - current)
    return EventDraft(
        type="context.approaching_limit",
        severity="warning",
        payload={
            "current_tokens": current,
            "max_tokens": maximum,
            "percent": min(100, round(current * 100 / maximum)),
            "remaining_tokens": remaining,
            "message": "The conversation will be summarised soon: write down what must not be forgotten.",
        },
    )


# Checkpoints

EVERY_TURNS = 10
"""Turns from one checkpoint to the next."""


class CheckpointPrompts:
    """Counts turns, and reports `task.checkpoint` at every tenth, or on request.

    `turn` is the number of the conversation's turns before this container: one container may answer fewer
    than ten.
    """

    def __init__(self, *, turn: int = 0, every: int = EVERY_TURNS) -> None:
        """`turn` is the number of earlier turns, `every` that of turns from one checkpoint to the next."""
        self._every = every
        self._turn = turn

    @property
    def turn(self) -> int:
        """The number of the conversation's turns."""
        return self._turn

    def begin_turn(self) -> EventDraft | None:
        """Count a turn, and return the event if it is a checkpoint, else None."""
        self._turn += 1
        if self._turn % self._every:
            return None
        return self.reached(f"{self._every} turns since the last look back: is the plan still right?")

    def reached(self, message: str) -> EventDraft:
        """Return the event for a checkpoint now, with a message for the model."""
        return EventDraft(
            type="task.checkpoint", severity="info", payload={"message": message, "turn": self._turn}
        )


# Repeated calls

KEY_ARGUMENTS = ("path", "query", "thread_id", "file_path", "command", "pattern", "url")
"""Names of the arguments that identify a call."""
WRITTEN = ("command", "content", "old_string", "new_string", "edits", "new_source")
"""Names of the arguments with written text, which distinguish edits of the same file: compared as a whole."""
KEY_CHARS = 50
"""Characters of a main argument that are compared and shown."""
WINDOW = 6
"""Most recent calls of a turn that are compared with each other."""
REPETITIONS = 3
"""Equal calls among them that are reported."""


def pattern_of(tool_name: str, arguments: Mapping[str, Any]) -> str:
    """Return a short text for a call of a tool, by which a person recognises it: `Read(file_path=a.md)`.

    It has the beginnings of the arguments in `KEY_ARGUMENTS`.
    """
    parts = (f"{key}={str(arguments[key])[:KEY_CHARS]}" for key in KEY_ARGUMENTS if arguments.get(key))
    return f"{tool_name}({', '.join(parts)})"


def likeness(tool_name: str, arguments: Mapping[str, Any]) -> int:
    """Return a hash of a call of a tool, which is equal for calls that repeat each other."""
    # The pattern has the beginnings of the main arguments (`KEY_ARGUMENTS`). Besides, only written text is
    # compared, as a whole: three different edits of a file are progress, three equal ones a loop. A call
    # without any main argument is compared by all its arguments.
    has_main_argument = any(arguments.get(key) for key in KEY_ARGUMENTS)
    compared_whole = [name for name in sorted(arguments) if not has_main_argument or name in WRITTEN]
    texts = (f"{name}={arguments[name]}" for name in compared_whole)
    return hash((pattern_of(tool_name, arguments), *texts))


class RepeatDetector:
    """Reports, once per turn, that `REPETITIONS` of its last `WINDOW` calls are equal."""

    def __init__(self) -> None:
        self._last: deque[int] = deque(maxlen=WINDOW)
        """Hashes of the last tool calls with their arguments."""
        self._is_reported = False

    def begin_turn(self) -> None:
        """Forget the calls of the turn before."""
        self._last.clear()
        self._is_reported = False

    def called(self, tool_name: str, arguments: Mapping[str, Any]) -> EventDraft | None:
        """Record a call, and return `agent.loop.detected` if it was repeated too often, else None."""
        call_hash = likeness(tool_name, arguments)
        self._last.append(call_hash)
        count = self._last.count(call_hash)
        if count < REPETITIONS or self._is_reported:
            return None
        self._is_reported = True
        suggestion = "The result will not change: try another way, or say what is in the way."
        return EventDraft(
            type="agent.loop.detected",
            severity="critical",
            payload={"pattern": pattern_of(tool_name, arguments), "count": count, "suggestion": suggestion},
        )
