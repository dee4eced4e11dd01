"""The agent without a model: it reads the requests of a turn, carries each out, and answers in one text."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from agent_runner.agents.offline import reading
from agent_runner.agents.offline.about import About
from agent_runner.agents.offline.answers import (
    NOON,
    bare_clock,
    joined_time,
    person_asked_instead,
    take_answer,
)
from agent_runner.agents.offline.board import Board
from agent_runner.agents.offline.conversation import Conversation, ConversationState, OpenQuestion
from agent_runner.agents.offline.handler import RequestContext, answered, carry_out
from agent_runner.agents.offline.intents import ROWS, ParsedRequest, say
from agent_runner.agents.offline.lists import Lists
from agent_runner.agents.offline.reminders import Reminders
from agent_runner.ans.lazy_notices import LazyNotices
from agent_runner.ans.observed_host import ObservedHost
from agent_runner.interfaces import Say, TurnOutcome
from agent_runner.ipc_client import HostClient
from agent_runner.progress import TurnProgress
from agent_runner.wire import times
from agent_runner.wire.notices import Notice
from agent_runner.wire.order import MAX_RESTORE_CHARS, Request, RestoreMode, RunOrder, TurnOrder
from agent_runner.wire.times import Language
from agent_runner.workspace import Workspace

MAX_QUESTIONS = 10
"""Open questions that a group's file stores; beyond it the oldest are dropped."""
MAX_REPEATED_LINES = 3
"""Most lines of an open question that is repeated whole; a longer one is repeated by its first line."""
MAX_AGE_SECONDS = 24 * 3600
"""Seconds after which an open question lapses: nobody remembers what a "yes" would answer."""
NOTHING_TO_COMPACT = "There is nothing to compact: without a model I keep no conversation."
"""The answer to the command `compact`."""
_REQUEST_NOTHING = ("unknown", "unknown_part", "yes", "no")
"""Intents that request nothing by themselves: after one of them an open question is repeated."""
_MAY_BE_ANSWERS = ("unknown", "show_list")
"""Intents of texts that may answer another person's question: `shopping` names a list."""
_AFTER_NAME = r"(?![A-Za-z0-9_])(?:(?:님아|이?야|아|님|씨)(?=[\s,.!?:]|$))?"
"""Matches the end of the assistant's name: no ASCII letter, digit or `_` follows, and a Korean vocative
ending is part of it.
"""

READ_ALREADY = (
    "host.notification.delivered",
    "host.notification.expired",
    "host.command.refused",
    "host.turn.undone",
    "host.budget.warning",
)
"""Types of notices about texts that the chat was sent: a model needs them, people have read them already."""


class OfflineAgent:
    """Answers what can be answered without a model, and otherwise says that it cannot.

    Lists are files of the group; reminders and tasks are at the host. Between turns it stores its questions
    and what it last showed, in one file of the group.
    """

    session_id: str | None = None
    restored: RestoreMode | None = None

    def __init__(
        self,
        order: RunOrder,
        workspace: Workspace,
        host: HostClient,
        noticing: LazyNotices,
        progress: TurnProgress | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Set up the agent.

        `order` is the host's order for the run, `host` sends requests to the host, `noticing` has the notices
        of the run. `progress` reports what the agent does, to nobody if it is None; `now` returns the time,
        with a time zone.
        """
        self._order = order
        self._workspace = workspace
        self._progress = progress or TurnProgress()
        self._host = ObservedHost(host, noticing, self._progress)
        self._noticing = noticing
        self._now = now
        self._conversation = Conversation(workspace.group)
        self._zone: tzinfo = UTC

    async def start(self) -> None:
        """Load the group's time zone. Raises `ZoneInfoNotFoundError` for one that does not exist."""
        self._zone = await asyncio.to_thread(ZoneInfo, self._order.timezone)

    async def begin(self, order: RunOrder) -> bool:
        """Use the order of the first turn in place of the one that the run was started with.

        Return False, so that `start` is called again: the order may name another time zone.
        """
        self._order = order
        return False

    async def answer(self, turn: TurnOrder, say: Say) -> TurnOutcome:
        """Carry out every request of the turn, and pass the answers to `say` in one text.

        Each notice of the turn that people have not read yet is a line before them. The questions that the
        answers ask are stored for the next turn, up to `MAX_QUESTIONS`. A turn without a request gets no
        answer.
        """
        if turn.command == "compact":
            await say(NOTHING_TO_COMPACT)
            return TurnOutcome()
        requests = _requests(turn, name=self._order.assistant_name)
        if not requests:
            return TurnOutcome()
        self._host.turn = turn.turn
        await self._take_notices(turn)
        before = await asyncio.to_thread(self._conversation.before, turn.turn)
        state = before
        texts = []
        for number, request in enumerate(requests):
            context = self._context(turn, number, request, state)
            texts.append(await _answer_request(context))
            self._progress.text(texts[-1] if number == 0 else f"\n\n{texts[-1]}")
            # A question is open only once: if it was asked again, its newer form replaces the older one.
            new = context.new_questions
            older = [
                old for old in context.state.questions if not any(old.is_same(question) for question in new)
            ]
            # A request that changed nothing leaves the last change undoable.
            undo = tuple(context.undo) or context.state.undo
            state = replace(context.state, questions=(*new, *older)[:MAX_QUESTIONS], undo=undo)
        await asyncio.to_thread(self._conversation.store, turn.turn, before, state)
        notice_lines = "\n".join(await self._lines_of_notices(turn, reading.language_of(requests[0].text)))
        await say("\n\n".join(filter(None, (notice_lines, *texts))))
        return TurnOutcome()

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""

    async def _take_notices(self, turn: TurnOrder) -> None:
        """Withdraw the turn's notices that people have read, and mark those due at its start as delivered.

        Do nothing if people have read all of its notices: the rules of notices are slow to load.
        """
        if all(_is_read(notice) for notice in turn.notices):
            return
        rules = await self._noticing.load()
        for notice in turn.notices:
            if _is_read(notice):
                rules.notices.withdraw(notice.id)
        # `drain` returns a text for a model, which is not used: `_lines_of_notices` makes lines for people.
        await rules.drain("turn_start", limit=MAX_RESTORE_CHARS)

    async def _lines_of_notices(self, turn: TurnOrder, language: Language) -> Iterator[str]:
        """Deliver the urgent notices that still wait; return a line for each delivered notice of the turn.

        A notice may also have been delivered when the turn started, or while it was answered.
        """
        rules = self._noticing.rules
        if rules is None:
            return iter(())
        # No model will read an urgent notice later; in a line of this answer the person sees it.
        await rules.drain("turn_end", limit=MAX_RESTORE_CHARS, at_least="high")
        delivered = {notice.id for notice in rules.notices.delivered}
        return (_line(notice, language) for notice in turn.notices if notice.id in delivered)

    def _context(
        self, turn: TurnOrder, number: int, request: Request, state: ConversationState
    ) -> RequestContext:
        """Return the context that the handlers of one request share, without questions that have lapsed.

        `number` is the request's place in the turn, from 0; `state` is the conversation's state before the
        request.
        """
        now = self._now().astimezone(self._zone)
        oldest = now.timestamp() - MAX_AGE_SECONDS
        recent = tuple(question for question in state.questions if question.at >= oldest)
        # The digest distinguishes this request from another one with the same id in an older store.
        digest = hashlib.sha256(request.text.encode()).hexdigest()[:12]
        return RequestContext(
            handlers=(Reminders, Lists, Board, About),
            order=self._order,
            turn=turn.turn,
            workspace=self._workspace,
            host=self._host,
            request=request,
            now=now,
            zone=self._zone,
            request_id=f"t{turn.turn}-r{number}-{digest}",
            state=replace(state, questions=recent),
        )


def _is_read(notice: Notice) -> bool:
    """Return whether people have read in the chat what a notice is about; False for an urgent one."""
    return notice.event_type in READ_ALREADY and notice.priority not in ("high", "critical")


def _line(notice: Notice, language: Language) -> str:
    """Return a notice as a line of the answer."""
    message = " ".join(str(notice.payload.get("message") or notice.event_type).split())
    is_own = notice.event_type.startswith("agent.self.")  # a note that the agent has sent to itself
    return say("own_note" if is_own else "host_fact", language, message=message)


def _requests(turn: TurnOrder, *, name: str) -> tuple[Request, ...]:
    """Return the messages that a turn has to answer; `what's on @Andy?` becomes `what's on?`.

    A message that is only such a call of the assistant stays as it is. If a chat's or a scheduled task's turn
    has no messages, its prompt is the only one. A turn of another kind, such as the dashboard worker's, has
    none then.
    """
    if turn.requests or turn.kind not in ("chat", "task"):
        escaped_name = re.escape(name)
        # `@Andy` anywhere but inside of a word or an address such as `me@andy`, or `Andy:` at the start.
        name_pattern = re.compile(
            # Only from the first of several blanks: tried from each, a long run would take quadratic time.
            rf"(?:(?<![ \t,])[ \t,]+)?(?<![^\W_])(?<![^\W_]\.)@{escaped_name}{_AFTER_NAME}"
            rf"|^\s*{escaped_name}\s*[:,]\s+",
            re.IGNORECASE,
        )
        return tuple(
            _with_plain_text(request, name_pattern.sub("", request.text).strip() or request.text)
            for request in turn.requests
        )
    return (_with_plain_text(Request(sender="", text=turn.prompt), turn.prompt),)


def _with_plain_text(request: Request, text: str) -> Request:
    """Return a message with another text, its characters made plain (`reading.plain`).

    The same is done to the sender's name and the quoted text. An empty `person` becomes the sender's name.
    """
    sender, quoted = reading.plain(request.sender), reading.plain(request.quoted)
    names = {"sender": sender, "person": request.person or sender}
    return request.model_copy(update={"text": reading.plain(text), "quoted": quoted, **names})


async def _answer_request(context: RequestContext) -> str:
    """Return the reply to one message, after what it asks for was done.

    The message is taken as the answer to the sender's open question if it can be one, else as new requests.
    Then that question is repeated if the message was not understood or is only a yes or no, and dropped if
    the requests have changed something. If the message could only answer the question of another person,
    nothing is done, and the reply says whose question it is.
    """
    text = context.request.text
    texts = await _answer_to_question(text, context)
    if texts is None:  # it is no answer
        parsed_requests = await asyncio.to_thread(reading.read, text)
        requests_nothing = all(parsed.intent in _REQUEST_NOTHING for parsed in parsed_requests)
        # It may be the answer to a question that another person was asked.
        may_be_answer = all(parsed.intent in _MAY_BE_ANSWERS for parsed in parsed_requests)
        if may_be_answer and (name := await asyncio.to_thread(person_asked_instead, text, context)):
            return say("not_yours", reading.language_of(text), name=name)
        texts = await _do_all(parsed_requests, context)
        if requests_nothing and context.own_questions:
            texts.append(_repeated("still", context.own_questions[0]))
        elif context.undo:  # a request has changed something
            texts += _drop_older_questions(context)
    return "\n".join(filter(None, texts))


async def _answer_to_question(text: str, context: RequestContext) -> list[str] | None:
    """Take a text as the answer to the sender's first open question, and return the replies to it.

    The answer completes the request that the question belongs to; the question is then closed, and the
    request is carried out. If that leads to no new question, the sender's next open question is repeated as
    the last reply. None if the text is no answer or no question is open.
    """
    if not text.strip() or not context.own_questions:
        return None
    question = context.own_questions[0]
    completed = await asyncio.to_thread(take_answer, question, text, context)
    if completed is None:
        return None
    others = tuple(other for other in context.state.questions if other is not question)
    context.state = replace(context.state, questions=others)
    # The request stays that of the person who made it, also if another person has answered.
    sender = question.request.slot("sender") or question.sender
    texts = await _do_all([parsed.having(sender=sender) for parsed in completed], context)
    if not completed:  # the answer was "no": the request is given up
        texts.append(say("left", question.request.language))
    if context.own_questions and not context.new_questions:
        texts.append(_repeated("next_question", context.own_questions[0]))
    return texts


def _drop_older_questions(context: RequestContext) -> list[str]:
    """Drop the sender's older questions after a newer request was carried out; return a text about each."""
    older = [question for question in context.state.questions if question.person == context.request.person]
    questions = tuple(question for question in context.state.questions if question not in older)
    context.state = replace(context.state, questions=questions)
    return [_repeated("lapsed", question) for question in older]


def _repeated(form: str, question: OpenQuestion) -> str:
    """Return a sentence with an open question in it, in the language of the question.

    `form` names the sentence in `intents.toml`; the one named `still` leaves out a long list of choices. If
    a question about a time does not say what the request is about (slot `what`), that is added in brackets.
    """
    lines = question.text.splitlines()
    text = question.text if len(lines) <= MAX_REPEATED_LINES or form != "still" else f"{lines[0]} …"
    what = question.request.slot("what") if question.slot == "when" else ""
    # When the question was asked, it may have been the only one, and clear without these words.
    if what and what not in text:
        text += f" ({what})"
    return say(form, question.request.language, question=text)


async def _do_all(parsed_requests: list[ParsedRequest], context: RequestContext) -> list[str]:
    """Carry out requests in order, and return the reply to each.

    A request that only main, the owner's group, may make is refused in any other group. The first request
    that leads to a question is replied to with that question; the reply to a later one says that its question
    waits.
    """
    texts = []
    for request in parsed_requests:
        parsed = request
        fix = request.slot("fix")
        if fix:  # the correction in "at 8pm to call, no wait, 9pm"
            parsed = request.having(when=_with_correction(request.slot("when"), fix, context), fix="")
        question_count = len(context.new_questions)
        if ROWS.get(parsed.intent, {}).get("is_for_main") and not context.order.is_main:
            parsed = parsed.of("only_main")
        text = await answered(carry_out(parsed, context))
        # A question after the first has no text yet.
        if not text and len(context.new_questions) > question_count:
            later = context.new_questions[-1].request
            what = later.slot("what") or later.slot("title") or later.slot("one")
            text = say("later_question", parsed.language, what=what)
        texts.append(text)
    return texts


def _with_correction(before: str, fix: str, context: RequestContext) -> str:
    """Return the words of a time that a person corrected, as in "at 8pm, no wait, 9".

    `before` has the words of the first time, "at 8pm", and `fix` those of the correction, "9". An hour
    without am or pm after an afternoon time means the afternoon. Empty if the corrected time has two
    meanings; a request without a time asks for one.
    """
    parsed_time, clock = context.read_time(before), bare_clock(fix)
    if not isinstance(parsed_time, times.Instant) or parsed_time.at.hour < NOON or not clock:
        return joined_time(before, fix, context)
    # After "11pm", "no wait, 12:30" may be half past noon or half past midnight.
    return "" if clock.startswith("12") else f"{parsed_time.at:%Y-%m-%d} at {clock} pm"
