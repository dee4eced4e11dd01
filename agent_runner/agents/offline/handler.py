"""What carries a request out: the base of all handlers, and what they share while one message is answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo

from agent_runner.agents.offline.conversation import ConversationState, OpenQuestion, Option, ShownEntry
from agent_runner.agents.offline.intents import ParsedRequest, say
from agent_runner.ipc_client import HostClient
from agent_runner.wire import times
from agent_runner.wire.mailbox import Command, Reply
from agent_runner.wire.order import RunOrder
from agent_runner.workspace import Workspace

MAX_SHOWN = 50


class AnswerNow(Exception):
    """Ends the handling of a request; `text` is the answer: a refusal, or a question to the chat."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


@dataclass(slots=True, kw_only=True)
class RequestContext:
    """Who asked for something and when, and what the handlers of one message share.

    Ids of requests to the host are the same when the turn is tried again, so that nothing is done twice.
    """

    order: RunOrder
    turn: int
    workspace: Workspace
    host: HostClient
    sender: str
    now: datetime
    zone: tzinfo
    request_id: str
    state: ConversationState
    calls: int = 0
    new_questions: list[OpenQuestion] = field(default_factory=list)

    def next_id(self) -> str:
        """Return the id of the next request to the host."""
        self.calls += 1
        return self.request_id if self.calls == 1 else f"{self.request_id}-{self.calls}"

    def read_time(self, words: str, *, takes_past: bool = False) -> times.Reading:
        """Read words as a time, seen from now."""
        policy = times.TimePolicy(takes_past=takes_past)
        return times.read(words, now=self.now, zone=self.zone, policy=policy)


class RequestHandler:
    """Carries out one request: the method `do_<intent>` of a subclass returns what to say.

    Any method may raise `AnswerNow`.
    """

    def __init__(self, parsed: ParsedRequest, context: RequestContext) -> None:
        self.parsed = parsed
        self.context = context

    def slot(self, name: str) -> str:
        """Return the words of a slot of the request, empty where there are none."""
        return self.parsed.slot(name)

    def say(self, form: str, /, **blanks: object) -> str:
        """Return the sentence of that name in the language of the request."""
        return say(form, self.parsed.language, **blanks)

    def moment(self, at: datetime, *, has_seconds: bool | None = None) -> str:
        """Return a moment as it is written in a chat, in the group's zone."""
        local = at.astimezone(self.context.zone)
        return times.say_moment(local, self.parsed.language, has_seconds=has_seconds)

    def question(self, slot: str, text: str, options: Sequence[Option] = ()) -> AnswerNow:
        """Note a question for a slot of the request, and return it to be raised.

        A second question of one message waits for the answer to the first: its text is empty.
        """
        lines = [text, *(f"{number}. {option.label}" for number, option in enumerate(options, 1))]
        question = OpenQuestion(
            request=self.parsed,
            slot=slot,
            text="\n".join(lines),
            sender=self.context.sender,
            at=self.context.now.timestamp(),
            options=tuple(options),
        )
        self.context.new_questions.append(question)
        return AnswerNow(question.text if len(self.context.new_questions) == 1 else "")

    def choose(self, options: Sequence[Option], form: str) -> ParsedRequest:
        """Return the request of the only option. Raises `AnswerNow` to ask which of several is meant."""
        if len(options) > 1:
            raise self.question("which", self.say(form), options)
        return options[0].request

    def show(self, entries: Mapping[str, ShownEntry]) -> None:
        """Remember what the numbers of the list mean that is shown now."""
        self.context.state = replace(self.context.state, shown=dict(entries))

    def listed(self, head: str, lines: Sequence[str], *, most: int = MAX_SHOWN) -> str:
        """Return a head and the lines under it, of very many the first."""
        return "\n".join([head, *lines[:most], *(["…"] if len(lines) > most else [])])

    async def request(self, command: Command) -> Reply:
        """Return the host's reply. Raises `AnswerNow` with the host's words where it refuses."""
        reply = await self.context.host.ask(command)
        if not reply.ok:
            raise AnswerNow(reply.text.removeprefix(f"{reply.code}: "))
        return reply
