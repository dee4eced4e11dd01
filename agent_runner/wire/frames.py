"""Frames: a container's messages on stdout.

A frame is one line of JSON between two marker lines. Every `---` in it is escaped, so no text can end a
frame; text outside of frames is log output. The decoder takes bytes as they come, divided anywhere, even
inside a character.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from agent_runner.wire import END, START
from agent_runner.wire.document import WIRE_VERSION, Document, OtherVersion, WireError, first_reason
from agent_runner.wire.notices import MAX_DELIVERED, DeliveredNotice
from agent_runner.wire.order import RestoreMode

UNBROKEN = r"\u002d\u002d\u002d"
MAX_LINE_CHARS = 4 * 1024 * 1024
"""Most characters of a line of stdout; a longer one is dropped."""

ErrorCode = Literal["agent", "session_gone", "order", "check", "timeout", "internal"]
NOT_RETRIED: frozenset[ErrorCode | None] = frozenset({"check", "timeout"})
"""Errors after which a turn is not tried again: a check runs again at the task's next time, and a turn over
its time limit would repeat its tools' effects.
"""


def time_limit_reason(seconds: float) -> str:
    """Return the end of a sentence for the chat: that a turn took longer than its limit in seconds."""
    limit = f"{seconds / 60:g} minutes" if seconds >= 120 else f"{seconds:g} seconds"
    return f"it took longer than {limit}."


def _without_halves(text: str) -> str:
    """Return a text with `?` in place of each half of a surrogate pair, which UTF-8 cannot encode.

    Such a half may be left where the text of a model was cut.
    """
    return text.encode("utf-8", "replace").decode("utf-8")


Sendable = Annotated[str, AfterValidator(_without_halves)]
FrameNumber = Annotated[int, Field(ge=1, lt=2**53)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Name = Annotated[Sendable, Field(max_length=200)]
"""The id of a session or the name of a model."""
Mark = Annotated[Sendable, Field(max_length=64)]
"""The uuid of a message in a session's transcript, or the id of a call of a tool."""
MAX_SUMMARY_CHARS = 600
"""Characters of a tool's input in a frame. The host shows fewer, because it first removes secrets."""
MAX_TOOL_CALLS = 300
"""Calls of tools in one turn that are shown; the agent may make more, which are not shown."""
MAX_DRAFT_PIECE = 4_000
"""Most characters of a text in one frame about it."""
MAX_DRAFT_CHARS = 20_000
"""Characters of one text that are shown while it is written."""


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


class Standby(_Frame):
    """The agent of a run that was started ahead waits for its first turn. Sent once, if it could start."""

    kind: Literal["standby"] = "standby"
    cpu_seconds: float = Field(default=0.0, ge=0, le=3600, allow_inf_nan=False)
    """The processor time that the runner and its agent have used to get there."""


class Ack(_Frame):
    """The turn was handed to the agent."""

    kind: Literal["ack"] = "ack"
    turn: int
    restored: RestoreMode | None = None
    """In the first turn of a run: how the conversation was really restored."""


class Result(_Frame):
    """Text for the chat. The host sends it when the turn ends well, so that a retried turn answers once."""

    kind: Literal["result"] = "result"
    turn: int


class TurnEnd(_Frame):
    """The turn is over. `status` says whether it succeeded, `error` and `code` why it failed.

    `note` is for the record: why a turn that succeeded said nothing.
    """

    kind: Literal["turn_end"] = "turn_end"
    turn: int
    code: ErrorCode | None = None
    note: Sendable | None = None
    # At the first fault: to describe a million of them takes the host many seconds.
    told: tuple[DeliveredNotice, ...] = Field(default=(), max_length=MAX_DELIVERED, fail_fast=True)
    """The notices that reached the model in this turn."""
    checkpoint: Mark | None = None
    """The last message of the session's transcript, which now contains the whole turn."""
    restored: RestoreMode | None = None
    """The same as in `Ack`, if it was not known by then."""


class Heartbeat(_Frame):
    """The runner is alive; sent every `HEARTBEAT_SECONDS`, whatever the agent does."""

    kind: Literal["heartbeat"] = "heartbeat"


class Usage(_Frame):
    """The tokens that a turn used, as the SDK reports them."""

    kind: Literal["usage"] = "usage"
    turn: int
    model: Name | None = None
    input_tokens: Count = 0
    output_tokens: Count = 0
    cache_read_tokens: Count = 0
    cache_write_tokens: Count = 0
    context_tokens: Count = 0
    """Tokens of the model's window that the conversation filled at the end; 0 where it is unknown."""
    context_window: Count = 0
    """The size of that window in tokens, 0 where it is unknown."""


class ToolStart(_Frame):
    """The agent has called a tool. Like `ToolEnd` and `Draft`, sent only if the host's order requests it."""

    kind: Literal["tool_start"] = "tool_start"
    turn: int
    call: Mark
    tool: Name
    summary: Annotated[Sendable, Field(max_length=MAX_SUMMARY_CHARS)] = ""
    """The tool's input in one line."""
    parent: Mark | None = None
    """The call that started the subagent which made this one; None for one of the agent itself."""


class ToolEnd(_Frame):
    """A call of a tool has ended: `status` says whether well."""

    kind: Literal["tool_end"] = "tool_end"
    turn: int
    call: Mark
    ms: Count = 0
    """Milliseconds that it took."""


class Draft(_Frame):
    """A piece of the text that the model is writing. It is for people who watch and is never an answer."""

    kind: Literal["draft"] = "draft"
    turn: int
    at: Count = 0
    """The number of earlier characters of the same text; 0 starts another text."""
    text: Annotated[Sendable, Field(max_length=MAX_DRAFT_PIECE)] = ""


class FailureFrame(_Frame):
    """The runner itself cannot go on and ends."""

    kind: Literal["error"] = "error"
    status: Literal["success", "error"] = "error"
    code: ErrorCode = "internal"


Frame = Annotated[
    Ready | Standby | Ack | Result | TurnEnd | Heartbeat | Usage | ToolStart | ToolEnd | Draft | FailureFrame,
    Field(discriminator="kind"),
]
HEARTBEAT_SECONDS = 10.0
"""Seconds from one sign of life of the runner to the next."""

_adapter: TypeAdapter[Frame] = TypeAdapter(Frame, config=ConfigDict(defer_build=True))


class UnknownKind(WireError):
    """A frame of a kind that a later runner may send: it is ignored."""


def build() -> None:
    """Build the models of frames, which takes some milliseconds that a first frame should not wait for."""
    _adapter.rebuild(force=False)


def parse_frame(line: str) -> Frame:
    """Return the frame in a line of JSON, which stood between the two marker lines.

    Raises:
        UnknownKind: it is a frame of a kind that is not known here.
        OtherVersion: it is a frame of another version.
        WireError: it is no frame.
    """
    try:
        frame = _adapter.validate_json(line)
    except (ValidationError, RecursionError) as error:
        if (version := _other_version(line)) is not None:
            raise OtherVersion(version) from error
        # A newer runner with an older host is usual during an upgrade: unknown frames are ignored.
        if isinstance(error, ValidationError) and _first_type(error) == "union_tag_invalid":
            raise UnknownKind("not a frame of a kind that is known here") from error
        raise WireError(f"not a frame: {first_reason(error)}") from error
    return frame.checked()


def _first_type(error: ValidationError) -> str:
    """Return pydantic's word for the kind of the first error that it found."""
    return error.errors(include_input=False, include_url=False, include_context=False)[0]["type"]


def _other_version(line: str) -> int | None:
    """Return the version of the contract that a frame's line names; None if it is ours, or none is named."""
    try:
        # By pydantic, which makes no objects of the fields that it ignores: there may be a million.
        version = Document.model_validate_json(line, strict=True).v
    except (ValidationError, RecursionError):
        return None
    return version if version != WIRE_VERSION else None


def encode_frame(frame: Frame) -> bytes:
    """Return the three lines of a frame, in ASCII: an engine's log may cut a line inside a character."""
    body = frame.model_dump_json(by_alias=True, exclude_none=True, ensure_ascii=True)
    return f"{START}\n{body.replace('---', UNBROKEN)}\n{END}\n".encode("ascii")


class FrameDecoder:
    """Turn a byte stream into frame lines and log lines, whatever its chunks.

    A line above `MAX_LINE_CHARS` is dropped, so an endless one costs no memory.
    """

    def __init__(self) -> None:
        """Begin outside of a frame."""
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._pieces: list[str] = []
        self._line_chars = 0
        """Characters of the present line so far."""
        self._is_overlong = False
        """Whether the present line is too long, so that its text is dropped."""
        self._is_in_frame = False
        """Whether a frame has begun whose end did not come yet."""
        self._body: str | None = None
        """The line of the frame that is being read; None before that line."""

    def feed(self, chunk: bytes) -> Iterator[FrameLine | LogLine]:
        """Yield the frames and log lines that end in this chunk; an unfinished line waits for the next."""
        # The decoder stores the bytes of a divided character.
        text = self._decode(chunk)
        *line_ends, unfinished = text.split("\n")
        for piece in line_ends:
            line = self._end_line(piece)
            if line is not None:
                yield from self._process_line(line)
        self._add_piece(unfinished)

    def _add_piece(self, piece: str) -> None:
        """Add a piece to the present line; a line that gets too long is dropped."""
        self._line_chars += len(piece)
        # An agent can write a line without an end, which must not grow in the host's memory.
        if self._line_chars > MAX_LINE_CHARS:
            self._pieces.clear()
            self._is_overlong = True
        elif piece:
            self._pieces.append(piece)

    def _end_line(self, piece: str) -> str | None:
        """End the present line with this piece, and return it; None if it was too long."""
        self._add_piece(piece)
        line = None if self._is_overlong else "".join(self._pieces).removesuffix("\r")
        self._pieces.clear()
        self._line_chars, self._is_overlong = 0, False
        return line

    def _process_line(self, line: str) -> Iterator[FrameLine | LogLine]:
        """Process a whole line: yield the frame that it ends, or the line itself if it is outside of frames.

        A frame is one line between the two marker lines; a further line there counts as outside. An empty
        line outside, and a frame without its end, are dropped.
        """
        # A second start without an end means that the first frame was cut off; it is dropped.
        if line == START:
            self._is_in_frame = True
            self._body = None
        elif line == END and self._is_in_frame:
            self._is_in_frame = False
            if self._body is not None:
                yield FrameLine(self._body)
        elif self._is_in_frame and self._body is None:
            self._body = line
        elif line:
            yield LogLine(line)


class FrameLine(str):
    """The JSON line of one frame, not yet parsed."""

    __slots__ = ()


class LogLine(str):
    """A line outside frames."""

    __slots__ = ()
