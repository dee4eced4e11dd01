"""The state of the conversation: open questions, and what was last shown or referred to.

It is stored in a file of the group's folder, so that an answer is understood in the next container, too.
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
"""The name of the file in the group's folder."""
MAX_FILE_BYTES = 1024 * 1024
"""Most bytes of the file that are read; a longer file counts as missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownEntry:
    """One entry of a list that was shown to the chat, so that its number can be used in an answer."""

    kind: str
    """`task`, `item` of a list, `reminder` or `repeat`."""
    label: str
    id: str = ""
    """The id of a task, the number of an item or reminder, the scheduled task of a repeating one."""
    list: str = ""
    """The list of an item."""
    person: str = ""
    """The short name of the person who mentioned it; empty if unknown."""

    @property
    def slots(self) -> dict[str, str]:
        """The slots by which a request refers to this entry and no other."""
        return {"kind": self.kind, "id": self.id, "label": self.label, "list": self.list}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One of several possible meanings."""

    label: str
    number: str = ""
    """The number by which people know it; without one, its position among the options counts."""
    request: Annotated[ParsedRequest, Field(alias="wish")]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuestion:
    """A question that was asked: the request that waits for it, and the slot that the answer fills."""

    request: Annotated[ParsedRequest, Field(alias="wish")]
    slot: str
    """`when`, `what`, `list`, `which` of the options, or `sure`."""
    text: str
    """The question as it was sent to the chat, with the options."""
    sender: str = ""
    """The name of the person it was put to."""
    person: str = ""
    """The short name of the person it was put to; empty if anybody may answer."""
    at: float
    """The time when it was asked, in epoch seconds."""
    options: tuple[Option, ...] = ()

    def is_same(self, other: OpenQuestion) -> bool:
        """Return whether another question asks the same person the same, perhaps in another language."""
        if self.person != other.person or self.slot != other.slot:
            return False
        option_ids = self._option_ids()  # the same question in another language has the same options
        return self.request == other.request or (bool(option_ids) and option_ids == other._option_ids())

    def _option_ids(self) -> list[tuple[str, str]]:
        """Return the intent and the entry's id of each option; empty if the entry of an option has no id."""
        entries = [(option.request.intent, option.request.slot("id")) for option in self.options]
        return entries if all(entry_id for _, entry_id in entries) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationState:
    """The state of a conversation between two turns."""

    questions: tuple[OpenQuestion, ...] = ()
    """The first question has been asked; the others wait for it."""
    shown: Mapping[str, ShownEntry] = field(default_factory=dict)
    """The entries of the list that was shown last, by their numbers."""
    list: str = ""
    """The list that was last referred to."""
    task: str = ""
    """The id of the task that was last referred to."""
    last: ShownEntry | None = None
    """The reminder or task that was last referred to: “move it to 10” means it."""
    undo: tuple[ParsedRequest, ...] = ()
    """The requests that undo the last change."""
    repeats: Mapping[str, str] = field(default_factory=dict)
    """The number of each repeating reminder, by the id of its scheduled task. No number is used again."""
    explained_day: Annotated[str, Field(alias="told_day")] = ""
    """The last day (ISO) on which the agent explained how to add a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredStates:
    """The states around the turn that was answered last; a repeated turn starts from `before` again."""

    turn: int
    before: ConversationState
    after: ConversationState


@cache
def _adapter() -> TypeAdapter[_StoredStates]:
    """Return the parser and serializer of the state's file."""
    return TypeAdapter(_StoredStates)  # built when first needed: it would make each start of an agent slower


class Conversation:
    """Reads and writes the state. A repeated turn starts from the same state as its first attempt."""

    def __init__(self, group: Path) -> None:
        """`group` is the group's folder."""
        self._path = group / FILE
        self._stored: _StoredStates | None = None
        """The content of the file; None before it was read."""

    def before(self, turn: int) -> ConversationState:
        """Return the state before the turn with this number; an empty one if the file cannot be read. Blocks.

        A turn that was answered before, and is tried again, gets the state of its first attempt.
        """
        if self._stored is None:
            try:
                self._stored = _adapter().validate_json(
                    read_plain(str(self._path), limit=MAX_FILE_BYTES).data
                )
            except (OSError, ValidationError):
                return ConversationState()
        return self._stored.before if self._stored.turn == turn else self._stored.after

    def store(self, turn: int, before: ConversationState, after: ConversationState) -> None:
        """Store the states before and after a turn in the group's file, if they differ. Blocks.

        If the file cannot be written, they are stored in memory only.
        """
        self._stored = _StoredStates(turn=turn, before=before, after=after)
        if before != after:
            with suppress(OSError):
                write_whole(self._path, _adapter().dump_json(self._stored, by_alias=True).decode())
