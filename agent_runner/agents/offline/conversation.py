"""The conversation so far: which questions are open, and what was shown or spoken of last.

It is kept in one file of the group's folder, so that an answer is understood in the next container too.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from agent_runner.agents.offline.intents import ParsedRequest
from agent_runner.ans.safe_folder import read_plain
from agent_runner.wire.files import write_whole

FILE = ".andy-talk.json"
MAX_FILE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownEntry:
    """One entry of a list that was shown to the chat, so that its number can be answered with."""

    kind: str
    """`task`, `item` of a list, `reminder` or `repeat`."""
    label: str
    id: str = ""
    list: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One of several things that may be meant."""

    label: str
    request: Annotated[ParsedRequest, Field(alias="wish")]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuestion:
    """A question that was asked: the request that waits for it, and which slot the answer fills."""

    request: Annotated[ParsedRequest, Field(alias="wish")]
    slot: str
    """`when`, `what`, `list`, `which` of the options, or `sure`."""
    text: str
    sender: str = ""
    at: float
    """When it was asked, in epoch seconds."""
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationState:
    """What the agent remembers of a conversation between two turns."""

    questions: tuple[OpenQuestion, ...] = ()
    """The first one has been asked; the others wait for it."""
    shown: Mapping[str, ShownEntry] = field(default_factory=dict)
    """The entries of the list that was shown last, by their numbers."""
    list: str = ""
    """The list that was spoken of last."""
    task: str = ""
    """The id of the task that was spoken of last."""
    explained_day: Annotated[str, Field(alias="told_day")] = ""
    """The last day (ISO) on which it said how more would be understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    turn: int
    before: ConversationState
    after: ConversationState


@cache
def _adapter() -> TypeAdapter[_Kept]:
    return TypeAdapter(_Kept)  # building it takes a while, and a start pays only for what it needs


class Conversation:
    """Reads and writes the state. A turn that is tried again begins where it began before."""

    def __init__(self, group: Path) -> None:
        self._path = group / FILE
        self._kept: _Kept | None = None

    def before(self, turn: int) -> ConversationState:
        """Return the state at the beginning of `turn`, an empty one if the file cannot be read. Blocks."""
        if self._kept is None:
            try:
                self._kept = _adapter().validate_json(read_plain(str(self._path), limit=MAX_FILE_BYTES).data)
            except (OSError, ValidationError):
                return ConversationState()
        return self._kept.before if self._kept.turn == turn else self._kept.after

    def keep(self, turn: int, before: ConversationState, after: ConversationState) -> None:
        """Keep the state after `turn`. Blocks. On a disk that refuses, it lasts until the next start."""
        self._kept = _Kept(turn=turn, before=before, after=after)
        if before != after:
            with suppress(OSError):
                write_whole(self._path, _adapter().dump_json(self._kept, by_alias=True).decode())
