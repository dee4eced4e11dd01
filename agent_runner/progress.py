"""Report to the host what an agent does during its turn: its tool calls, and the text it writes.

Nothing depends on it: reports are limited in size and number, and text is collected for `DRAFT_SECONDS`
before it is sent, so that a model that writes word by word costs five frames a second.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

from agent_runner.frame_writer import FrameWriter
from agent_runner.wire.frames import (
    MAX_DRAFT_CHARS,
    MAX_DRAFT_PIECE,
    MAX_SUMMARY_CHARS,
    MAX_TOOL_CALLS,
    Draft,
    ToolEnd,
    ToolStart,
)

DRAFT_SECONDS = 0.2
"""Seconds for which text is collected before it is sent."""
MAX_DRAFTS = 10_000
"""Pieces of text that one turn may send."""
MAX_ID_CHARS, MAX_NAME_CHARS = 64, 200
"""Most characters of a call's id and of a tool's name in a report; longer ones are cut."""
MAIN_ARGUMENTS = ("command", "file_path", "notebook_path", "path", "url", "query", "pattern", "text")
"""The arguments that best describe a call; the first that exists is used."""


class TurnProgress:
    """Sends the progress of the open turn. Used from the event loop only."""

    def __init__(self, outlet: FrameWriter | None = None) -> None:
        """`outlet` sends frames to the host; with None nothing is sent, because the host does not want it."""
        self._outlet = outlet
        self._turn: int | None = None
        """The turn that runs; None between turns."""
        self._started_calls: dict[str, float | None] = {}
        """Maps each reported tool call to its start time; None after its end was reported."""
        self._calls = 0
        self._drafts = 0
        """Pieces of text that were sent in this turn, which are limited."""
        self._sent = 0
        """Characters of the present text that were sent."""
        self._pending = ""
        self._timer: asyncio.TimerHandle | None = None

    def begin_turn(self, turn: int) -> None:
        """Open a turn: later reports belong to it."""
        self.end_turn()
        self._turn = turn

    def end_turn(self) -> None:
        """Close the turn. Unsent text is dropped, because the whole answer follows."""
        self._turn = None
        self._started_calls.clear()
        self._calls = self._drafts = 0
        self._forget_text()

    def tool_started(
        self, call: str, tool: str, arguments: Mapping[str, Any], *, parent: str | None = None
    ) -> None:
        """Report that a tool was called.

        A call that was reported already is ignored, as is any call outside of a turn or beyond
        `MAX_TOOL_CALLS`.

        `call` is the id of the call. `parent` is the id of the call that started the subagent which made it;
        None for a call of the agent itself.
        """
        call = call[:MAX_ID_CHARS]
        if (
            self._outlet is None
            or self._turn is None
            or call in self._started_calls
            or self._calls >= MAX_TOOL_CALLS
        ):
            return
        # First, so that the text before the call is shown before it.
        self._send_text()
        self._calls += 1
        self._started_calls[call] = time.monotonic()
        self._outlet.put(
            ToolStart,
            turn=self._turn,
            call=call,
            tool=tool[:MAX_NAME_CHARS],
            summary=summary(arguments),
            parent=parent[:MAX_ID_CHARS] if parent else None,
        )

    def tool_ended(self, call: str, *, ok: bool) -> None:
        """Report that a call has ended, once, and only if its start was reported.

        `ok`: whether it succeeded.
        """
        call = call[:MAX_ID_CHARS]
        began = self._started_calls.get(call)
        if self._outlet is None or self._turn is None or began is None:
            return
        self._started_calls[call] = None
        ms = round((time.monotonic() - began) * 1000)
        self._outlet.put(ToolEnd, turn=self._turn, call=call, ms=ms, status="success" if ok else "error")

    def text_begins(self) -> None:
        """Start another text; the previous one is complete."""
        self._send_text()
        self._forget_text()

    def text(self, piece: str) -> None:
        """Add the next piece of the text that the agent is writing; it is sent within `DRAFT_SECONDS`.

        What exceeds `MAX_DRAFT_CHARS` of this text, or comes outside of a turn, is dropped.
        """
        room = MAX_DRAFT_CHARS - self._sent - len(self._pending)
        if self._outlet is None or self._turn is None or not piece or room <= 0:
            return
        self._pending += piece[:room]
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DRAFT_SECONDS, self._send_text)

    def _send_text(self) -> None:
        """Send the text collected so far, in pieces; beyond `MAX_DRAFTS` pieces in a turn it is dropped."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._pending and self._outlet is not None and self._drafts < MAX_DRAFTS:
            piece, self._pending = self._pending[:MAX_DRAFT_PIECE], self._pending[MAX_DRAFT_PIECE:]
            self._outlet.put(Draft, turn=self._turn, at=self._sent, text=piece)
            self._sent += len(piece)
            self._drafts += 1
        self._pending = ""

    def _forget_text(self) -> None:
        """Drop the text that was not sent, and begin a new one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pending, self._sent = "", 0


def summary(arguments: Mapping[str, Any]) -> str:
    """Return the arguments of a tool call in one line of at most `MAX_SUMMARY_CHARS` characters. Pure.

    It is the argument that describes the call best, by `MAIN_ARGUMENTS`; without one, the first 20 as JSON.
    """
    description = next(
        (arguments[name] for name in MAIN_ARGUMENTS if isinstance(arguments.get(name), str)), None
    )
    if description is None:
        # Cut before they become JSON: an argument may be a whole file, and there may be any number.
        short = {name: _short(value) for name, value in list(arguments.items())[:20]}
        description = json.dumps(short, ensure_ascii=False, default=str) if short else ""
    # Cut once more before the blanks are joined, with room for runs of blanks.
    return " ".join(description[: 4 * MAX_SUMMARY_CHARS].split())[:MAX_SUMMARY_CHARS]


def _short(value: Any) -> Any:
    """Return a value of a tool's arguments in a short form: as it is, or as text that may be cut."""
    if isinstance(value, str):
        return value[:MAX_SUMMARY_CHARS]
    if isinstance(value, int | float | None):
        return value
    return str(value)[:MAX_SUMMARY_CHARS]
