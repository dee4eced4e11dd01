"""The agent without a model: it reads the requests of a turn, carries each out, and answers in one text."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from agent_runner.agents.offline import board, host_requests, lists, notices, reading, recall, reminders
from agent_runner.agents.offline.answers import take_answer
from agent_runner.agents.offline.conversation import (
    AnswerNow,
    Conversation,
    ConversationState,
    RequestContext,
)
from agent_runner.agents.offline.intents import ROWS, ParsedRequest, long_day, say
from agent_runner.ans.noticing import LazyNotices
from agent_runner.interfaces import Say, TurnOutcome
from agent_runner.ipc_client import HostClient
from agent_runner.wire.mailbox import ModelMissing
from agent_runner.wire.order import Request, RestoreMode, RunOrder, TurnOrder
from agent_runner.workspace import Workspace

MAX_QUESTIONS = 10
MAX_AGE_SECONDS = 24 * 3600
"""An older question is asked no more: nobody remembers what a "yes" would answer."""
NOTHING_TO_COMPACT = "There is nothing to compact: without a model I keep no conversation."
_AFTER_NAME = r"(?![A-Za-z0-9_])(?:(?:님아|이?야|아|님|씨)(?=[\s,.!?:]|$))?"
"""No letter goes on with the name but a Korean vocative."""
Now = Callable[[], datetime]
"""Returns the time, aware."""
Handler = Callable[[ParsedRequest, RequestContext], Awaitable[str]]
"""Carries out one parsed request and returns what to say. May raise `AnswerNow`."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


class OfflineAgent:
    """Answers what can be answered without a model, and says so where it cannot.

    Lists are files of the group, reminders and tasks are the host's. Between turns it keeps what it asked
    and what it showed last, in one file of the group.
    """

    session_id: str | None = None
    restored: RestoreMode | None = None

    def __init__(
        self,
        order: RunOrder,
        workspace: Workspace,
        host: HostClient,
        noticing: LazyNotices,
        *,
        now: Now = _utc_now,
    ) -> None:
        self._order = order
        self._workspace = workspace
        self._host = notices.ObservedHost(host, noticing)
        self._noticing = noticing
        self._now = now
        self._conversation = Conversation(workspace.group)
        self._zone: tzinfo = UTC

    async def start(self) -> None:
        """Load the group's time zone. Raises `ZoneInfoNotFoundError` for one that does not exist."""
        self._zone = await asyncio.to_thread(ZoneInfo, self._order.timezone)

    async def answer(self, turn: TurnOrder, say: Say) -> TurnOutcome:
        """Answer every request of the turn in one text. Turns that nobody asked for end in silence."""
        if turn.command == "compact":
            await say(NOTHING_TO_COMPACT)
            return TurnOutcome()
        requests = _requests(turn, name=self._order.assistant_name)
        if not requests:
            return TurnOutcome()
        self._host.turn = turn.turn
        await notices.turn_start(self._noticing, turn)
        before = await asyncio.to_thread(self._conversation.before, turn.turn)
        state, texts = before, []
        for number, request in enumerate(requests):
            context = self._context(turn, number, request, state)
            texts.append(await _answer_request(reading.plain(request.text), context))
            questions = (*context.new_questions, *context.state.questions)[:MAX_QUESTIONS]
            state = replace(context.state, questions=questions)
        await asyncio.to_thread(self._conversation.keep, turn.turn, before, state)
        await notices.turn_end(self._noticing)
        noted = notices.shown_lines(self._noticing, turn, reading.language_of(requests[0].text))
        await say("\n\n".join(filter(None, (noted, *texts))))
        return TurnOutcome()

    async def close(self) -> None:
        """There is nothing to let go of."""

    def _context(
        self, turn: TurnOrder, number: int, request: Request, state: ConversationState
    ) -> RequestContext:
        now = self._now().astimezone(self._zone)
        oldest = now.timestamp() - MAX_AGE_SECONDS
        recent = tuple(question for question in state.questions if question.at >= oldest)
        return RequestContext(
            order=self._order,
            turn=turn.turn,
            workspace=self._workspace,
            host=self._host,
            sender=reading.plain(request.sender),
            now=now,
            zone=self._zone,
            language=reading.language_of(request.text),
            request_id=_request_id(turn, number, request),
            state=replace(state, questions=recent),
        )


def _requests(turn: TurnOrder, *, name: str) -> tuple[Request, ...]:
    """Return what is asked. A task's prompt is its request; workers and free cycles ask nothing of it.

    A call in the middle or at the end is no part of what is asked: “what's on today @Andy?”.
    """
    if turn.requests or turn.kind not in ("chat", "task"):
        call = re.compile(rf"[ \t,]*(?<![^\W_])(?<!\.)@{re.escape(name)}{_AFTER_NAME}", re.IGNORECASE)
        return tuple(
            one.model_copy(update={"text": call.sub("", one.text).strip() or one.text})
            for one in turn.requests
        )
    return (Request(sender="", text=turn.prompt),)


def _request_id(turn: TurnOrder, number: int, request: Request) -> str:
    """The same when a turn is tried again; the digest keeps an old store's reply from being taken for it."""
    digest = hashlib.sha256(request.text.encode("utf-8", "replace")).hexdigest()[:12]
    return f"t{turn.turn}-r{number}-{digest}"


# One request


async def _answer_request(text: str, context: RequestContext) -> str:
    """Take a message as the answer to the open question, else as requests of its own."""
    texts = await _answer_to_question(text, context)
    if texts is None:
        parsed_requests = await asyncio.to_thread(reading.read, text)
        texts = await _do_all(parsed_requests, context)
        is_lost = all(parsed.intent in ("unknown", "yes", "no") for parsed in parsed_requests)
        if is_lost and context.state.questions:
            texts.append(_repeated("still", context))
    return "\n".join(filter(None, texts))


async def _answer_to_question(text: str, context: RequestContext) -> list[str] | None:
    """Go on with what was asked and ask the next question; None where the text is no answer."""
    if not context.state.questions or not text.strip():
        return None
    question, *others = context.state.questions
    completed = await asyncio.to_thread(take_answer, question, text, context)
    if completed is None:
        return None
    context.state = replace(context.state, questions=tuple(others))
    context.language = question.request.language
    if completed:
        sender = question.request.slot("sender") or question.sender
        texts = await _do_all([parsed.having(sender=sender) for parsed in completed], context)
    else:
        texts = [context.say("left")]
    if others and not context.new_questions:
        texts.append(_repeated("next_question", context))
    return texts


def _repeated(form: str, context: RequestContext) -> str:
    """Ask the open question again, in its own language."""
    question = context.state.questions[0]
    return say(form, question.request.language, question=question.text)


async def _do_all(parsed_requests: list[ParsedRequest], context: RequestContext) -> list[str]:
    texts = []
    for parsed in parsed_requests:
        context.language = parsed.language
        asked_before = len(context.new_questions)
        text = await _do(parsed, context, is_part=len(parsed_requests) > 1)
        if not text and len(context.new_questions) > asked_before:
            waiting = context.new_questions[-1].request
            what = waiting.slot("what") or waiting.slot("title") or waiting.slot("one")
            text = context.say("later_question", what=what)
        texts.append(text)
    return texts


# One parsed request


async def _do(parsed: ParsedRequest, context: RequestContext, *, is_part: bool) -> str:
    if parsed.intent == "unknown":
        return await _not_understood(parsed, context, is_part=is_part)
    row = ROWS.get(parsed.intent)
    if row is not None and row.is_for_main and not context.order.is_main:
        return context.say("only_main")
    handler = HANDLERS.get(parsed.intent, host_requests.send if row is not None and row.request else _say)
    try:
        return await handler(parsed, context)
    except AnswerNow as answer:
        return answer.text


async def _say(parsed: ParsedRequest, context: RequestContext) -> str:
    """Answer what takes no more than a sentence."""
    blanks = {
        "name": context.order.assistant_name,
        "sender": f" {context.sender}" if context.sender else "",
        "clock": f"{context.now:%H:%M}",
        "zone": context.order.timezone,
        "day": long_day(context.now, context.language),
    }
    text = context.say(parsed.intent, **{**parsed.slots, **blanks})
    return text + context.say("help_main") if parsed.intent == "help" and context.order.is_main else text


async def _not_understood(parsed: ParsedRequest, context: RequestContext, *, is_part: bool) -> str:
    """Say so in plain words. Main learns once a day how more would be understood: that is for the owner."""
    text = context.say("not_understood", text=parsed.slot("text")) if is_part else context.say("no_model")
    today = context.now.date().isoformat()
    if context.state.explained_day != today:
        context.state = replace(context.state, explained_day=today)
        if context.order.is_main:
            return text + context.say("add_model")
        await context.host.ask(ModelMissing(request_id=context.next_id()))
    return text


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("remind", "get_up", "timer"), reminders.remind),
    "show_reminders": reminders.show,
    "cancel_reminder": reminders.cancel,
    **dict.fromkeys(("add_items", "remove", "clear_done", "clear_list", "show_list"), lists.act),
    "show_lists": lists.overview,
    "one_or_more": lists.one_or_more,
    **dict.fromkeys(("add_task", "add_tasks"), board.add),
    **dict.fromkeys(("progress", "drop_task", "block", "unblock"), board.change),
    "finish": board.finish,
    **dict.fromkeys(("yes", "no"), board.answer),
    "show_open": board.show,
    "due": board.due,
    "agenda": board.agenda,
    "before_deadline": board.before_deadline,
    "show_groups": host_requests.show_groups,
    "recall": recall.recall,
}
"""What carries an intent out. All others are one request to the host, or just answered, as the table says."""
