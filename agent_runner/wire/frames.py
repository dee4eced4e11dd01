"""Frames: what a container says on stdout.

A frame is one line of JSON between two marker lines. Every `---` in it is written as an escape, so
no text can end a frame; what stands outside frames is log. The decoder takes bytes as they come, cut
anywhere, also inside a character.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from agent_runner.wire.document import Document, WireError
from agent_runner.wire.notices import MAX_TOLD, ToldNotice
from agent_runner.wire.order import RestoreMode

START = "---NANOCLAW_OUTPUT_START---"
END = "---NANOCLAW_OUTPUT_END---"
UNBROKEN = r"\u002d\u002d\u002d"
MAX_LINE_CHARS = 4 * 1024 * 1024

ErrorCode = Literal["agent", "session_gone", "order", "check", "timeout", "internal"]
NOT_RETRIED: frozenset[ErrorCode | None] = frozenset({"check", "timeout"})
"""Errors that end a turn at once. A check comes again at its task's next time; a turn over its time limit
would only do once more what its tools have done already.
"""


def time_limit_reason(seconds: float) -> str:
    """Finish the sentence that tells a person why a turn was stopped at its limit."""
    return f"it took longer than {f'{seconds / 60:g} minutes' if seconds >= 120 else f'{seconds:g} seconds'}."


def _without_halves(text: str) -> str:
    """Half a surrogate pair, as a model's text may be cut, cannot be written as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


Sendable = Annotated[str, AfterValidator(_without_halves)]
FrameNumber = Annotated[int, Field(ge=1, lt=2**53)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Name = Annotated[Sendable, Field(max_length=200)]
"""A session, a model: what others store and show."""
Mark = Annotated[Sendable, Field(max_length=64)]
"""A message of a session's transcript, by its uuid."""


class _Frame(Document):
    n: FrameNumber
    status: Literal["success", "error"] = "success"
    result: Sendable | None = None
    new_session_id: Name | None = Field(default=None, alias="newSessionId")
    error: Sendable | None = None
    turn: int | None = None


class Ready(_Frame):
    """The runner has read its order and is starting the agent."""

    kind: Literal["ready"] = "ready"


class Ack(_Frame):
    """The turn was handed to the agent."""

    kind: Literal["ack"] = "ack"
    turn: int
    restored: RestoreMode | None = None
    """With the first turn of a run: how its conversation really goes on."""


class Result(_Frame):
    """Text for the chat. It goes out when its turn ends well, so that a turn tried again speaks once."""

    kind: Literal["result"] = "result"
    turn: int


class TurnEnd(_Frame):
    """The turn is over: `status` says how, `error` why not, `code` of which sort.

    `note` is for the record: why a turn that ended well said nothing.
    """

    kind: Literal["turn_end"] = "turn_end"
    turn: int
    code: ErrorCode | None = None
    note: Sendable | None = None
    told: tuple[ToldNotice, ...] = Field(default=(), max_length=MAX_TOLD)
    """The notices that the model was told in it."""
    checkpoint: Mark | None = None
    """Where the session's transcript stands now that the turn is complete in it."""
    restored: RestoreMode | None = None
    """As in `Ack`, where that was known only later."""


class Heartbeat(_Frame):
    """The runner is alive. Every `HEARTBEAT_SECONDS`, whatever the agent does."""

    kind: Literal["heartbeat"] = "heartbeat"


class Usage(_Frame):
    """What a turn used, as the SDK reports it."""

    kind: Literal["usage"] = "usage"
    turn: int
    model: Name | None = None
    input_tokens: Count = 0
    output_tokens: Count = 0
    cache_read_tokens: Count = 0
    cache_write_tokens: Count = 0
    context_tokens: Count = 0
    """What the conversation filled of the model's window when the turn ended; 0 where that is not known."""
    context_window: Count = 0
    """How large that window is; 0 where that is not known."""


class FailureFrame(_Frame):
    """The runner itself cannot go on and ends."""

    kind: Literal["error"] = "error"
    status: Literal["success", "error"] = "error"
    code: ErrorCode = "internal"


Frame = Annotated[
    Ready | Ack | Result | TurnEnd | Heartbeat | Usage | FailureFrame, Field(discriminator="kind")
]
HEARTBEAT_SECONDS = 10.0

_adapter: TypeAdapter[Frame] = TypeAdapter(Frame)


def parse_frame(line: str) -> Frame:
    """Read the line between the markers.

    Raises:
        WireError: it is no frame of this version.
    """
    try:
        frame = _adapter.validate_json(line)
    except (ValidationError, RecursionError) as error:
        raise WireError(f"not a frame: {str(error).splitlines()[0]}") from error
    return frame.checked()


def encode_frame(frame: Frame) -> bytes:
    """The three lines of a frame, ASCII: an engine's log cuts long lines and spoils a cut character."""
    body = frame.model_dump_json(by_alias=True, exclude_none=True, ensure_ascii=True)
    return f"{START}\n{body.replace('---', UNBROKEN)}\n{END}\n".encode("ascii")


class FrameDecoder:
    """Turn a byte stream into frame lines and log lines, whatever its chunks.

    A line above `MAX_LINE_CHARS` is dropped, so an endless one costs no memory.
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._rest: list[str] = []
        self._rest_chars = 0
        self._overlong = False
        self._inside = False
        self._body: str | None = None

    def feed(self, chunk: bytes) -> Iterator[FrameLine | LogLine]:
        text = self._decode(chunk)
        *whole, rest = text.split("\n")
        for piece in whole:
            line = self._take(piece)
            if line is not None:
                yield from self._line(line)
        self._keep(rest)

    def _keep(self, piece: str) -> None:
        self._rest_chars += len(piece)
        if self._rest_chars > MAX_LINE_CHARS:
            self._rest.clear()
            self._overlong = True
        elif piece:
            self._rest.append(piece)

    def _take(self, piece: str) -> str | None:
        self._keep(piece)
        line = None if self._overlong else "".join(self._rest).removesuffix("\r")
        self._rest.clear()
        self._rest_chars, self._overlong = 0, False
        return line

    def _line(self, line: str) -> Iterator[FrameLine | LogLine]:
        if line == START:
            self._inside, self._body = True, None
        elif line == END and self._inside:
            self._inside = False
            if self._body is not None:
                yield FrameLine(self._body)
        elif self._inside and self._body is None:
            self._body = line
        elif line:
            yield LogLine(line)


class FrameLine(str):
    """The JSON line of one frame, not yet parsed."""

    __slots__ = ()


class LogLine(str):
    """A line outside frames."""

    __slots__ = ()
