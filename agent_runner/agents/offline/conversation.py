"""What the agent knows of the talk so far: what it asked and waits for, and the list it showed last.

It is kept in one file of the group's folder, so that an answer is understood in the next container too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from agent_runner.agents.offline.checklists import ListFault, read_plain
from agent_runner.agents.offline.intents import Wish, say
from agent_runner.wire import times
from agent_runner.wire.files import write_whole
from agent_runner.wire.times import Language

FILE = ".andy-talk.json"
MAX_QUESTIONS = 10
MAX_AGE_SECONDS = 24 * 3600
"""An older question is asked no more: nobody remembers what a "yes" would answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """One entry of a list that was shown: what a number means."""

    kind: str
    """`task`, `item` of a list, `reminder` or `repeat`."""
    label: str
    id: str = ""
    list: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One of several things that may be meant."""

    label: str
    wish: Wish


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuestion:
    """What was asked: the wish that waits, and which slot of it the answer fills."""

    wish: Wish
    slot: str
    """`when`, `what`, `list`, `which` of the options, or `sure`."""
    text: str
    sender: str = ""
    at: float
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known at one moment."""

    questions: tuple[OpenQuestion, ...] = ()
    """The one that is asked first; the others wait for it."""
    shown: Mapping[str, Ref] = field(default_factory=dict)
    list: str = ""
    """The list that was spoken of last."""
    task: str = ""
    """The id of the task that was spoken of last."""
    told_day: str = ""
    """When it was last told how more would be understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    turn: int
    before: Known
    after: Known


_ADAPTER: TypeAdapter[_Kept] | None = None


def _adapter() -> TypeAdapter[_Kept]:
    global _ADAPTER  # noqa: PLW0603  # building it takes a while, and a start pays only for what it needs
    if _ADAPTER is None:
        _ADAPTER = TypeAdapter(_Kept)
    return _ADAPTER


class Conversation:
    """Reads and writes what is known. A turn that is tried again begins where it began before."""

    def __init__(self, group: Path) -> None:
        self._path = group / FILE
        self._kept: _Kept | None = None

    def before(self, turn: int) -> Known:
        """Return what was known when `turn` began. Blocks; a file that cannot be read is none."""
        if self._kept is None:
            try:
                self._kept = _adapter().validate_json(read_plain(self._path))
            except (OSError, ListFault, UnicodeDecodeError, ValidationError):
                return Known()
        return self._kept.before if self._kept.turn == turn else self._kept.after

    def keep(self, turn: int, before: Known, after: Known) -> None:
        """Note what is known after `turn`. Blocks; a disk that refuses costs the memory of a restart."""
        self._kept = _Kept(turn=turn, before=before, after=after)
        if before == after:
            return
        try:
            write_whole(self._path, _adapter().dump_json(self._kept).decode())
        except OSError:
            return


@dataclass(slots=True, kw_only=True)
class Asked:
    """One request on its way to an answer: who asked, when, in which language, and what is known.

    Ids are the same when the turn is tried again, so that the host does nothing twice.
    """

    sender: str
    now: datetime
    zone: tzinfo
    language: Language
    request_id: str
    known: Known
    calls: int = 0
    new_questions: list[OpenQuestion] = field(default_factory=list)

    def next_id(self) -> str:
        """Return the id of the next thing that is asked of the host."""
        self.calls += 1
        return self.request_id if self.calls == 1 else f"{self.request_id}-{self.calls}"

    def say(self, form: str, /, **blanks: object) -> str:
        return say(form, self.language, **blanks)

    def moment(self, at: datetime, *, has_seconds: bool | None = None) -> str:
        return times.say_moment(at.astimezone(self.zone), self.language, has_seconds=has_seconds)

    def ask(self, wish: Wish, slot: str, text: str, options: tuple[Option, ...] = ()) -> str:
        """Ask for what is missing; a second question of one message waits for the first."""
        lines = [text, *(f"{number}. {one.label}" for number, one in enumerate(options, 1))]
        question = OpenQuestion(
            wish=wish,
            slot=slot,
            text="\n".join(lines),
            sender=self.sender,
            at=self.now.timestamp(),
            options=options,
        )
        self.new_questions.append(question)
        return question.text if len(self.new_questions) == 1 else ""

    def show(self, refs: Mapping[str, Ref]) -> None:
        """Remember what the numbers of the list mean that is shown now."""
        self.known = replace(self.known, shown=dict(refs))

    def speak_of(self, *, task: str = "", list_name: str = "") -> None:
        """Remember what was spoken of."""
        self.known = replace(self.known, task=task or self.known.task, list=list_name or self.known.list)
