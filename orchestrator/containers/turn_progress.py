"""Make a container's reports on the progress of its turn safe to show, and collect the text that it writes.

A container may be hostile and report anything. So its reports are only shown to people, and nothing is
decided by them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from agent_runner.wire.frames import MAX_DRAFT_CHARS, Draft, ToolEnd, ToolStart
from orchestrator.base.clock import Clock

MAX_TOOL_CHARS, MAX_SUMMARY_CHARS = 80, 300
NOTIFY_MS = 100
"""Milliseconds at least between two events by which watchers learn that a run's text has grown."""
MISSING = "… "
"""The mark in a draft at which an earlier piece is missing."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def safe_start(frame: ToolStart, redact: Callable[[str], str]) -> ToolStart:
    """Return a copy of the frame, which reports the start of a tool call, with texts that are safe to show.

    Each text is on one line. The tool's name and the summary are also without secrets (`redact` removes them)
    and of limited length. The ids of the call and its parent are only put on one line. Texts are redacted
    before they are cut, because a secret that was cut would no longer be recognised.
    """
    return frame.model_copy(
        update={
            "tool": _one_line(redact(frame.tool))[:MAX_TOOL_CHARS] or "?",
            "summary": _shortened(_one_line(redact(frame.summary)), MAX_SUMMARY_CHARS),
            "call": _one_line(frame.call),
            "parent": _one_line(frame.parent) if frame.parent else None,
        }
    )


def safe_report(frame: ToolStart | ToolEnd, redact: Callable[[str], str]) -> ToolStart | ToolEnd:
    """Return a copy of the frame, which reports on a tool call, with texts that are safe to show.

    The id of the call is put on one line at its end as at its start, so that the two match.
    """
    if isinstance(frame, ToolStart):
        return safe_start(frame, redact)
    return frame.model_copy(update={"call": _one_line(frame.call)})


def _one_line(text: str) -> str:
    """Return the text on one line: control characters and line ends in a row become a space."""
    return _CONTROL.sub(" ", text).strip()


def _shortened(text: str, limit: int) -> str:
    """Return the text, cut to `limit` characters with an ellipsis if it is longer."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


@dataclass(slots=True)
class DraftText:
    """The text that the model of one run is writing now, as far as it was received."""

    turn: int | None = None
    text: str = ""
    _next_position: int = 0
    _notified_ms: int | None = None

    def take(self, frame: Draft) -> None:
        """Add a piece of text, which begins at the character `frame.at` of the whole text.

        A piece of another turn, or one that begins at 0, starts a new text. If earlier pieces are missing, as
        after a restart of the host, the mark `MISSING` is added first. What is beyond `MAX_DRAFT_CHARS` is
        dropped.
        """
        if frame.turn != self.turn or frame.at == 0:
            self.turn = frame.turn
            self.text = ""
            self._next_position = 0
        if frame.at != self._next_position:
            self.text += MISSING
        self.text = (self.text + frame.text)[:MAX_DRAFT_CHARS]
        self._next_position = frame.at + len(frame.text)

    def of(self, turn: int) -> str:
        """Return the text if it is of this turn, else an empty string."""
        return self.text if turn == self.turn else ""

    def forget(self) -> None:
        """Delete the text, because its turn has ended."""
        self.turn, self.text, self._next_position = None, "", 0

    def claim_notification(self, clock: Clock) -> bool:
        """Return whether watchers are to be notified of a change now.

        If so, the time is recorded, so that the next calls return False for `NOTIFY_MS`.
        """
        now_ms = clock.steady_ms()
        if self._notified_ms is not None and now_ms - self._notified_ms < NOTIFY_MS:
            return False
        self._notified_ms = now_ms
        return True
