"""What came of a wish: a result, or a refusal that says with a code what to do instead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """`text` is for a model or a person to read, `code` and `data` to act on."""

    text: str
    ok: bool = True
    code: str = OK
    data: dict[str, Any] = field(default_factory=dict)


class ToolRefused(Exception):
    """A wish that cannot be done as it stands. Raised before anything is written.

    Codes: VALIDATION, NOTHING_TO_CHANGE, NOT_FOUND, UNKNOWN_TASK, UNKNOWN_QUESTION, TASK_TERMINAL,
    NOT_TERMINAL, NOT_PENDING, ALREADY_DELIVERED, ALREADY_ANSWERED, CLOSED, EMPTY, DUPLICATE, COOLDOWN, CAP,
    NO_TARGET, UNPARSEABLE_TIME, PAST_TIME, TOO_FAR, BAD_DATE, STALE, NOT_ALLOWED, NO_TURN, UNKNOWN_TOOL.
    """

    def __init__(self, code: str, text: str, **data: Any) -> None:
        super().__init__(text)
        self.code = code
        self.data = data

    def result(self) -> ToolResult:
        """The refusal as a model reads it: the code first."""
        return ToolResult(ok=False, code=self.code, text=f"{self.code}: {self}", data=self.data)
