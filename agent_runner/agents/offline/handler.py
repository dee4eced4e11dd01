"""The base class of all request handlers, and the context that they share while one message is answered."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, tzinfo
from typing import Any

from agent_runner.agents.offline.conversation import ConversationState, OpenQuestion, Option, ShownEntry
from agent_runner.agents.offline.intents import ANSWERS, PATTERNS, ROWS, ParsedRequest, filled, say
from agent_runner.ipc_client import HostClient
from agent_runner.wire import times
from agent_runner.wire.document import WireError
from agent_runner.wire.mailbox import Command, Reply, UseDashboard, parse_command
from agent_runner.wire.order import Request, RunOrder
from agent_runner.workspace import Workspace

MAX_SHOWN = 50
"""Most lines of a list in one answer."""


class AnswerNow(Exception):
    """Ends the handling of a request; `text` is the answer: a refusal, or a question to the chat."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


@dataclass(slots=True, kw_only=True)
class RequestContext:
    """The sender, time and shared state of one message, which all its handlers use.

    Ids of requests to the host are the same when the turn is tried again, so that nothing is done twice.
    """

    handlers: Sequence[type[RequestHandler]] = ()
    """The classes of handlers; the first with a method for an intent carries it out."""
    order: RunOrder
    turn: int
    workspace: Workspace
    host: HostClient
    request: Request
    """The message, in composed characters; its `person` is the sender's name if the host gave none."""
    now: datetime
    zone: tzinfo
    request_id: str
    state: ConversationState
    calls: int = 0
    """Requests sent to the host for this message; they number the ids of those after the first."""
    new_questions: list[OpenQuestion] = field(default_factory=list)
    undo: list[ParsedRequest] = field(default_factory=list)
    """The requests that undo this message's changes, the last change first."""

    def may_answer(self, question: OpenQuestion) -> bool:
        """Return whether a question was put to the sender or to anybody; the owner may answer any."""
        return self.request.is_owner or question.person in ("", self.request.person)

    @property
    def own_questions(self) -> list[OpenQuestion]:
        """Return the open questions that the sender may answer, those put to them first."""
        answerable = [question for question in self.state.questions if self.may_answer(question)]
        return sorted(answerable, key=lambda question: question.person != self.request.person)

    @property
    def last(self) -> ShownEntry | None:
        """Return the reminder or task that this person last referred to; None if another person did."""
        last = self.state.last
        return last if last is not None and last.person in ("", self.request.person) else None

    async def ask(self, command: Callable[..., Command], /, **fields: Any) -> Reply:
        """Send a command to the host and return its reply, which may be a refusal.

        `command` is the command's class and `fields` are its fields. A turn that is tried again gets the same
        reply, since it sends the same ids.
        """
        self.calls += 1
        request_id = self.request_id if self.calls == 1 else f"{self.request_id}-{self.calls}"
        return await self.host.ask(command(request_id=request_id, **fields))

    def read_time(self, words: str, *, takes_past: bool = False) -> times.Reading:
        """Return the time that words name, relative to now, or a refusal with the reason if they name none.

        `takes_past`: whether a time that has passed is accepted.
        """
        policy = times.TimePolicy(takes_past=takes_past)
        return times.read(words, now=self.now, zone=self.zone, policy=policy)

    def read_span(self, words: str) -> times.Reading:
        """Return the `Duration` that words such as `20 minutes` or `한 시간` name.

        Words that name no span give a `TimeRefusal`, or another kind of time if they can be read as one: the
        caller has to check the type.
        """
        return self.read_time(f"{words} 뒤" if PATTERNS["hangul"].search(words) else f"in {words}")

    def shifted(self, at: datetime, move: ParsedRequest) -> datetime | times.TimeRefusal:
        """Return a moment moved by the span in the slot `later` or `earlier` of `move`, such as `an hour`.

        A refusal if the words in that slot name no span.
        """
        span = self.read_span(move.slot("later") or move.slot("earlier"))
        if not isinstance(span, times.Duration):
            no_span = times.TimeRefusal(reason=times.Reason.NO_TIME)
            return span if isinstance(span, times.TimeRefusal) else no_span
        # Months differ in length: those of the span are counted from now.
        distance = span.at - self.now if span.months else timedelta(days=span.days) + span.elapsed
        return at + distance if move.slot("later") else at - distance

    def halves(self, words: str) -> tuple[times.Instant, ...]:
        """Return the moments, am and pm, that a day with a bare hour can mean, such as `tomorrow at 5`.

        A moment in the past is moved by a day. Words that are no such time give none.
        """
        readings = (self._ahead(self.read_time(f"{words} {half}")) for half in ("am", "pm"))
        return tuple(moment for moment in readings if isinstance(moment, times.Instant))

    def _ahead(self, parsed_time: times.Reading) -> times.Reading:
        """Return the same time of the next day for a time that was refused as past; others unchanged."""
        if (
            not isinstance(parsed_time, times.TimeRefusal)
            or parsed_time.reason is not times.Reason.PAST
            or not parsed_time.at
        ):
            return parsed_time
        return self.read_time((parsed_time.at + timedelta(days=1)).isoformat(timespec="seconds"))


class RequestHandler:
    """Carries out one request: the method `do_<intent>` of a subclass returns the reply.

    Any method may raise `AnswerNow`.
    """

    def __init__(self, parsed: ParsedRequest, context: RequestContext) -> None:
        """`parsed` is the request to carry out; methods replace it as details become known.

        `context` is shared by the handlers of one message.
        """
        self.parsed = parsed
        self.context = context

    def slot(self, name: str) -> str:
        """Return the text of a slot of the request, empty if there is none; `intents.toml` describes them."""
        return self.parsed.slot(name)

    def say(self, form: str, /, **blanks: object) -> str:
        """Return the sentence named `form` in `intents.toml` in the language of the request.

        `blanks` are the values for the placeholders in it.
        """
        return say(form, self.parsed.language, **blanks)

    @property
    def entry(self) -> ShownEntry:
        """Return the task, list entry or reminder that the request means, once known."""
        kind, label, name = self.slot("kind"), self.slot("label"), self.slot("list")
        return ShownEntry(kind=kind, id=self.slot("id"), label=label, list=name)

    def moment(self, at: datetime, *, has_seconds: bool | None = None) -> str:
        """Return a moment as it is written in a chat, in the group's zone.

        `has_seconds`: whether to show seconds; None shows them unless they are 0.
        """
        local = at.astimezone(self.context.zone)
        return times.say_moment(local, self.parsed.language, has_seconds=has_seconds)

    def unclear(self, parsed_time: times.TimeRefusal | times.DateOnly) -> str:
        """Return a question that says why a time cannot be used: it was refused, or is a day without an hour.

        If the words have several meanings, the question lists them.
        """
        if isinstance(parsed_time, times.DateOnly):
            day = times.say_day(parsed_time.day, self.parsed.language)
            return self.say("time.needs_clock", on=self.say("on_day", day=day))
        moment = self.moment(parsed_time.at) if parsed_time.at else "—"
        form = f"time.{parsed_time.reason.value}"
        if parsed_time.reason is times.Reason.WHICH_MEANING and len(parsed_time.choices) == 1:
            form = "time.one_meaning"  # `the last Friday of the month` when that of this month is past
        names_choices = len(parsed_time.choices) > 1 or parsed_time.reason is times.Reason.WHICH_MEANING
        choices = times.say_choices(parsed_time, self.parsed.language) if names_choices else ""
        # Each form uses some of these blanks; one without its choices ends with a space. `on` is for the day
        # of a time without an hour, and a refused time has none.
        return self.say(form, moment=moment, on="", choices=choices).strip()

    def question(self, slot: str, text: str, options: Sequence[Option] = ()) -> AnswerNow:
        """Record an open question, whose answer fills `slot` of the request; return an `AnswerNow` to raise.

        `text` is the question, and `options` are the choices that are listed under it. A second question of
        one message waits for the answer to the first: the returned text is empty.
        """
        lines = [
            text,
            *(f"{option.number or place}. {option.label}" for place, option in enumerate(options, 1)),
        ]
        question = OpenQuestion(
            request=self.parsed,
            slot=slot,
            text="\n".join(lines),
            sender=self.context.request.sender,
            person=self.context.request.person,
            at=self.context.now.timestamp(),
            options=tuple(options),
        )
        self.context.new_questions.append(question)
        return AnswerNow(question.text if len(self.context.new_questions) == 1 else "")

    def option(self, label: str, number: str = "", /, **slots: str) -> Option:
        """Return the request with other slots as one of several possible meanings.

        `label` is its text in the question; `number` is the number by which people know it, empty for none.
        """
        return Option(label=label, number=number, request=self.parsed.having(**slots))

    def choose(self, options: Sequence[Option], form: str, *, is_sure: bool = True) -> ParsedRequest:
        """Return the request of the only option. Raises `AnswerNow` to ask which of several is meant.

        `options` has at least one. `form` names the sentence that asks about several. If `is_sure` is false,
        a single option is asked about, too: "did you mean …?"
        """
        if len(options) > 1:
            raise self.question("which", self.say(form), options)
        if not is_sure:
            own_form = f"did_you_mean.{self.parsed.intent}"  # its question says what a "yes" would do
            form_of_one = own_form if own_form in ANSWERS else "did_you_mean"
            raise self.question("which", self.say(form_of_one), options)
        return options[0].request

    def record_change(self, *undo: ParsedRequest, last: ShownEntry | None = None) -> None:
        """Record the requests that undo a change, and the entry that the change was about.

        `last` is that entry, to which `it` in the next message refers; None changes nothing.
        """
        author = {"by": self.context.request.person, "by_name": self.context.request.sender}
        # Put before those of earlier changes of this message: the last change is undone first.
        self.context.undo[:0] = [request.having(**author) for request in undo]
        if last is not None:
            self.remember(last=replace(last, person=self.context.request.person))
        if last is not None and last.kind == "task":
            self.remember(task=last.id)

    def remember(self, **changes: Any) -> None:
        """Change fields of the conversation's state: `shown`, `list`, `task` and so on."""
        self.context.state = replace(self.context.state, **changes)

    def listed(self, head: str, lines: Sequence[str], *, most: int = MAX_SHOWN) -> str:
        """Return a heading with lines under it: at most `most` of them, then "…" if there are more."""
        return "\n".join([head, *lines[:most], *(["…"] if len(lines) > most else [])])

    def joined(self, head: str, *parts: str) -> str:
        """Return a heading with the non-empty parts under it; nothing if all are empty."""
        written = [part for part in parts if part]
        return "\n\n".join([head, *written]) if written else ""

    async def request(self, command: Callable[..., Command], /, **fields: Any) -> Reply:
        """Send a command to the host and return its reply. Raises `AnswerNow` with the reason if it refuses.

        `command` is the command's class and `fields` are its fields.
        """
        reply = await self.context.ask(command, **fields)
        # If the sender's role may not change files, this raises a sentence of our own about it.
        if reply.code == "not_allowed":
            self.check_files(writes=True)
        # The host's text is for an owner at the command line.
        if reply.code == "loop_off":
            raise AnswerNow(self.say("loop_off"))
        if not reply.ok:
            raise AnswerNow(reply.text.removeprefix(f"{reply.code}: "))
        return reply

    def check_files(self, *, writes: bool) -> None:
        """Raise `AnswerNow` if the sender's role may not read the group's files, or not change them.

        `writes`: whether the files are to be changed.
        """
        files = self.context.request.files
        if files == "none" or (writes and files == "read"):
            raise AnswerNow(self.say("not_for_role"))

    async def use(self, tool: str, **arguments: Any) -> Reply:
        """Call a tool of the dashboard at the host and return the reply; empty arguments are left out.

        Raises `AnswerNow` with the reason if the host refuses.
        """
        named = {name: value for name, value in arguments.items() if value != ""}
        return await self.request(UseDashboard, tool=tool, arguments=named)

    async def answer_of_intent(self) -> str:
        """Return the answer that `intents.toml` has for the request's intent.

        If the intent's row there has a command, it is sent to the host first.
        """
        if command := ROWS.get(self.parsed.intent, {}).get("request"):
            return await self._send_row(command)
        order, now = self.context.order, self.context.now
        return self.say(
            self.parsed.intent,
            text=self.slot("text"),
            name=order.assistant_name,
            sender=f" {self.context.request.sender}" if self.context.request.sender else "",
            clock=f"{now:%H:%M}",
            zone=order.timezone,
            day=times.say_long_day(now, self.parsed.language),
        )

    async def _send_row(self, row: dict[str, object]) -> str:
        """Send the command in a row of `intents.toml`, and return the answer.

        The placeholders in the command's fields are filled from the slots; those in the answer from the
        host's reply and the slots. Raises `AnswerNow` if the host refuses.
        """
        # A group that is registered without a name gets that of its folder.
        slots = {"name": self.slot("folder"), **self.parsed.slots}
        try:
            # The row names the command by its type, so `_command_of_type` stands for the command's class.
            reply = await self.request(_command_of_type, **filled(row, slots))
        except WireError as error:
            return self.say("not_possible", reason=str(error).removeprefix(f"{row['type']}."))
        return self.say(self.parsed.intent, **(reply.data | slots))


def _command_of_type(request_id: str, **fields: object) -> Command:
    """Return the command to the host with these fields, one of which is its `type`.

    Raises `WireError` if they are invalid.
    """
    return parse_command(json.dumps(fields | {"requestId": request_id}))


async def carry_out(parsed: ParsedRequest, context: RequestContext) -> str:
    """Carry out a request and return the reply. May raise `AnswerNow`.

    The first handler with a method named after the intent does it. Without one, `answer_of_intent` does what
    the intent's row in `intents.toml` says.
    """
    # The method is found by its name, as in the standard library's cmd.Cmd: no table has to be kept in step.
    name = f"do_{parsed.intent}"
    handlers = (handler for handler in context.handlers if hasattr(handler, name))
    handler = next(handlers, RequestHandler)(parsed, context)
    carry: Callable[[], Awaitable[str]] = getattr(handler, name, handler.answer_of_intent)
    return await carry()


async def answered(work: Awaitable[str]) -> str:
    """Await the work on a request; return its reply, or the text of the `AnswerNow` that it raises."""
    try:
        return await work
    except AnswerNow as answer:
        return answer.text


async def carry_out_undo(undo: Sequence[ParsedRequest], context: RequestContext) -> str:
    """Carry out the requests that undo the last change, and return their replies, one per line."""
    # What is undone cannot be undone again.
    context.state = replace(context.state, undo=())
    return "\n".join([await answered(carry_out(request, context)) for request in undo])
