"""Notice that a budget of a turn runs out: tokens, iterations, time. Each level is said once a turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, TypedDict

from agent_runner.ans.event import Happening

BudgetType = Literal["token", "iteration", "time"]

TOKEN_WARNING = 0.80
ITERATION_WARNING = 0.70
TIME_WARNING = 0.80
MAX_ITERATIONS = 30


class BudgetUse(TypedDict):
    """What a turn has used so far."""

    tokens: int
    iterations: int
    seconds: float


class BudgetWatch:
    """What a turn may use. A limit of 0 is none.

    Tokens are those of the answer, iterations the times the model was asked, time the seconds of the turn.
    """

    def __init__(
        self, *, max_tokens: int = 0, max_iterations: int = MAX_ITERATIONS, max_seconds: float = 0
    ) -> None:
        self._max_tokens = max_tokens
        self._max_iterations = max_iterations
        self._max_seconds = max_seconds
        self._said: set[str] = set()

    def begin_turn(self) -> None:
        self._said.clear()

    def judge(self, *, tokens: int, iterations: int, seconds: float) -> list[Happening]:
        """Judge all of it, while something can still be done."""
        found = (self.tokens_used(tokens), self.iterations_used(iterations), self.seconds_used(seconds))
        return [each for each in found if each is not None]

    def look_back(self, *, tokens: int, iterations: int, seconds: float) -> list[Happening]:
        """Judge all of it as the turn is over: what was not said in it is of use to the next."""
        found = self.judge(tokens=tokens, iterations=iterations, seconds=seconds)
        return [replace(each, payload={**each.payload, "message": _past(each.payload)}) for each in found]

    def tokens_used(self, current: int) -> Happening | None:
        """Judge the tokens used so far: `budget.token.warning`, `budget.token.exceeded` or nothing."""
        return self._judge("token", current, self._max_tokens, TOKEN_WARNING, "tokens")

    def iterations_used(self, current: int) -> Happening | None:
        """Judge how often the model was asked: `budget.iteration.warning`, `budget.iteration.exceeded`."""
        return self._judge("iteration", current, self._max_iterations, ITERATION_WARNING, "iterations")

    def seconds_used(self, current: float) -> Happening | None:
        """Judge the time that the turn has taken. Returns `budget.timeout.warning` or nothing."""
        if current >= self._max_seconds:
            return None
        return self._judge("time", int(current), int(self._max_seconds), TIME_WARNING, "seconds")

    def _judge(self, kind: BudgetType, current: int, limit: int, share: float, unit: str) -> Happening | None:
        if limit <= 0 or current < int(limit * share):
            return None
        is_exceeded = current >= limit
        type_ = f"budget.{'timeout' if kind == 'time' else kind}.{'exceeded' if is_exceeded else 'warning'}"
        if type_ in self._said:
            return None
        self._said |= {type_, type_.replace("exceeded", "warning")}
        return Happening(
            type=type_,
            severity="critical" if is_exceeded else "warning",
            payload=_payload(kind, current, limit, unit),
        )


def _payload(kind: BudgetType, current: int, limit: int, unit: str) -> dict[str, int | str]:
    remaining = max(0, limit - current)
    left = f"{remaining:,} of {limit:,} {unit} are left" if remaining else f"all {limit:,} {unit} are used"
    about = {
        "budget_type": kind,
        "current": current,
        "limit": limit,
        "percent": min(100, current * 100 // limit),
        "remaining": remaining,
        "message": f"{left}: finish what matters most, and say what is open.",
    }
    if kind != "time":
        return about
    return about | {"elapsed_seconds": current, "limit_seconds": limit, "remaining_seconds": remaining}


def _past(payload: Mapping[str, Any]) -> str:
    used = f"{payload['current']:,} of {payload['limit']:,}"
    what = {
        "token": f"your last answer took {used} tokens",
        "iteration": f"your last turn went to the model {used} times",
        "time": f"your last turn took {used} seconds",
    }
    return f"{what[payload['budget_type']]}: do less in one turn."
