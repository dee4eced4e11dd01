"""The conversation so far: which questions are open, and what was shown or spoken of last.

It is kept in one file of the group's folder, so that an answer is understood in the next container too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from agent_runner.agents.offline.checklists import Checklists, ListError, read_plain
from agent_runner.agents.offline.intents import ParsedRequest, say
from agent_runner.ipc_client import HostClient
from agent_runner.wire import times
from agent_runner.wire.files import write_whole
from agent_runner.wire.mailbox import Command, Reply
from agent_runner.wire.order import RunOrder
from agent_runner.wire.times import Language
from agent_runner.workspace import Workspace

FILE = ".andy-talk.json"


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


_ADAPTER: TypeAdapter[_Kept] | None = None


def _adapter() -> TypeAdapter[_Kept]:
    global _ADAPTER  # noqa: PLW0603  # building it takes a while, and a start pays only for what it needs
    if _ADAPTER is None:
        _ADAPTER = TypeAdapter(_Kept)
    return _ADAPTER


class Conversation:
    """Reads and writes the state. A turn that is tried again begins where it began before."""

    def __init__(self, group: Path) -> None:
        self._path = group / FILE
        self._kept: _Kept | None = None

    def before(self, turn: int) -> ConversationState:
        """Return the state at the beginning of `turn`, an empty one if the file cannot be read. Blocks."""
        if self._kept is None:
            try:
                self._kept = _adapter().validate_json(read_plain(self._path))
            except (OSError, ListError, UnicodeDecodeError, ValidationError):
                return ConversationState()
        return self._kept.before if self._kept.turn == turn else self._kept.after

    def keep(self, turn: int, before: ConversationState, after: ConversationState) -> None:
        """Keep the state after `turn`. Blocks. On a disk that refuses, it lasts until the next start."""
        self._kept = _Kept(turn=turn, before=before, after=after)
        if before == after:
            return
        try:
            write_whole(self._path, _adapter().dump_json(self._kept, by_alias=True).decode())
        except OSError:
            return


class AnswerNow(Exception):
    """Ends the handling of a request; `text` is the answer: a refusal, or a question to the chat."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


@dataclass(slots=True, kw_only=True)
class RequestContext:
    """What a handler needs beside the request: who asked, when, in which language, and whom it may ask.

    Ids of requests to the host are the same when the turn is tried again, so that nothing is done twice.
    """

    order: RunOrder
    turn: int
    workspace: Workspace
    host: HostClient
    sender: str
    now: datetime
    zone: tzinfo
    language: Language
    request_id: str
    state: ConversationState
    calls: int = 0
    new_questions: list[OpenQuestion] = field(default_factory=list)

    @property
    def lists(self) -> Checklists:
        """The lists of the group."""
        return Checklists(self.workspace.group)

    def next_id(self) -> str:
        """Return the id of the next request to the host."""
        self.calls += 1
        return self.request_id if self.calls == 1 else f"{self.request_id}-{self.calls}"

    async def request(self, command: Command) -> Reply:
        """Return the host's reply.

        Raises:
            AnswerNow: the host refuses; the text is the host's own.
        """
        reply = await self.host.ask(command)
        if not reply.ok:
            raise AnswerNow(reply.text.removeprefix(f"{reply.code}: "))
        return reply

    def say(self, form: str, /, **blanks: object) -> str:
        """Return the sentence of that name in the language of the request."""
        return say(form, self.language, **blanks)

    def moment(self, at: datetime, *, has_seconds: bool | None = None) -> str:
        """Return a moment as it is written in a chat, in the group's zone."""
        return times.say_moment(at.astimezone(self.zone), self.language, has_seconds=has_seconds)

    def read_time(self, words: str, *, takes_past: bool = False) -> times.Reading:
        """Read words as a time, seen from now."""
        policy = times.TimePolicy(takes_past=takes_past)
        return times.read(words, now=self.now, zone=self.zone, policy=policy)

    def question(
        self, parsed: ParsedRequest, slot: str, text: str, options: Sequence[Option] = ()
    ) -> AnswerNow:
        """Note a question for what a request lacks, and return it to be raised.

        A second question of one message waits for the answer to the first: its text is empty.
        """
        lines = [text, *(f"{number}. {option.label}" for number, option in enumerate(options, 1))]
        question = OpenQuestion(
            request=parsed,
            slot=slot,
            text="\n".join(lines),
            sender=self.sender,
            at=self.now.timestamp(),
            options=tuple(options),
        )
        self.new_questions.append(question)
        return AnswerNow(question.text if len(self.new_questions) == 1 else "")

    def choose(self, options: Sequence[Option], form: str, parsed: ParsedRequest) -> ParsedRequest:
        """Return the request of the only option.

        Raises:
            AnswerNow: there are several, and the sentence `form` asks which one is meant.
        """
        if len(options) > 1:
            raise self.question(parsed, "which", self.say(form), options)
        return options[0].request

    def show(self, entries: Mapping[str, ShownEntry]) -> None:
        """Remember what the numbers of the list mean that is shown now."""
        self.state = replace(self.state, shown=dict(entries))

    def speak_of(self, *, task: str = "", list_name: str = "") -> None:
        """Remember what was spoken of."""
        self.state = replace(self.state, task=task or self.state.task, list=list_name or self.state.list)
