"""The agent without a model."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from agent_runner.agents.offline import notices, reading
from agent_runner.agents.offline.board import Board
from agent_runner.agents.offline.checklists import Checklists
from agent_runner.agents.offline.conversation import (
    MAX_AGE_SECONDS,
    MAX_QUESTIONS,
    Conversation,
    ConversationState,
    OpenQuestion,
    RequestContext,
    take_answer,
)
from agent_runner.agents.offline.host_requests import HostRequests
from agent_runner.agents.offline.intents import ParsedRequest, long_day, say
from agent_runner.agents.offline.lists import Lists
from agent_runner.agents.offline.recall import Recall
from agent_runner.agents.offline.reminders import Reminders
from agent_runner.ans.noticing import LazyNotices
from agent_runner.interfaces import Say, TurnOutcome
from agent_runner.ipc_client import HostClient
from agent_runner.wire import mailbox
from agent_runner.wire.order import Request, RestoreMode, RunOrder, TurnOrder
from agent_runner.workspace import Workspace

NOTHING_TO_COMPACT = "There is nothing to compact: without a model I keep no conversation."
_AFTER_NAME = r"(?![A-Za-z0-9_])(?:(?:님아|이?야|아|님|씨)(?=[\s,.!?:]|$))?"
"""No letter goes on with the name but a Korean vocative."""
Now = Callable[[], datetime]
"""Returns the time, aware."""
Handler = Callable[[ParsedRequest, RequestContext], Awaitable[str]]
"""Carries out one parsed request and returns what to say."""


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
        host = notices.ObservedHost(host, noticing)
        checklists = Checklists(workspace.group)
        self._noticing = noticing
        self._order = order
        self._now = now
        self._host = host
        self._lists = Lists(checklists)
        self._host_requests = HostRequests(host, is_main=order.is_main)
        self._reminders = Reminders(host, order.group)
        self._board = Board(host, checklists, self._reminders)
        self._recall = Recall(workspace.snapshots, name=order.assistant_name)
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
        known, said = before, []
        for number, request in enumerate(requests):
            known, text = await self._answer_one(turn, request, _request_id(turn, number, request), known)
            said.append(text)
        await asyncio.to_thread(self._conversation.keep, turn.turn, before, known)
        await notices.turn_end(self._noticing)
        noted = notices.told(self._noticing, turn, reading.language_of(requests[0].text))
        await say("\n\n".join(filter(None, (noted, *said))))
        return TurnOutcome()

    async def close(self) -> None:
        """There is nothing to let go of."""

    # One request

    async def _answer_one(
        self, turn: TurnOrder, request: Request, request_id: str, known: ConversationState
    ) -> tuple[ConversationState, str]:
        context = RequestContext(
            sender=reading.plain(request.sender),
            now=self._now().astimezone(self._zone),
            zone=self._zone,
            language=reading.language_of(request.text),
            request_id=request_id,
            known=replace(known, questions=self._recent(known)),
        )
        text = reading.plain(request.text)
        said = await self._answer_to_question(text, context, turn)
        if said is None:
            parsed_requests = await asyncio.to_thread(reading.read, text)
            said = await self._do_all(parsed_requests, context, turn)
            said += self._again(parsed_requests, context)
        questions = (*context.new_questions, *context.known.questions)[:MAX_QUESTIONS]
        return replace(context.known, questions=questions), "\n".join(filter(None, said))

    def _recent(self, known: ConversationState) -> tuple[OpenQuestion, ...]:
        oldest = self._now().timestamp() - MAX_AGE_SECONDS
        return tuple(one for one in known.questions if one.at >= oldest)

    async def _answer_to_question(
        self, text: str, context: RequestContext, turn: TurnOrder
    ) -> list[str] | None:
        """Go on with what was asked, if this answers it; the next question follows."""
        if not context.known.questions or not text.strip():
            return None
        question, *others = context.known.questions
        found = await asyncio.to_thread(take_answer, question, text, now=context.now, zone=context.zone)
        if found is None:
            return None
        context.known = replace(context.known, questions=tuple(others))
        context.language = question.wish.language
        if found.is_no:
            said = [context.say("dropped")]
        else:
            sender = question.wish.slot("sender") or question.sender
            said = await self._do_all(
                [parsed.having(sender=sender) for parsed in found.wishes], context, turn
            )
        if others and not context.new_questions:
            said.append(say("next_question", others[0].wish.language, question=others[0].text))
        return said

    def _again(self, parsed_requests: list[ParsedRequest], context: RequestContext) -> list[str]:
        """Repeat what is still asked, where the message was neither an answer nor understood."""
        is_lost = all(parsed.intent in ("unknown", "yes", "no") for parsed in parsed_requests)
        if not is_lost or not context.known.questions:
            return []
        question = context.known.questions[0]
        return [say("still", question.wish.language, question=question.text)]

    async def _do_all(
        self, parsed_requests: list[ParsedRequest], context: RequestContext, turn: TurnOrder
    ) -> list[str]:
        said = []
        for parsed in parsed_requests:
            context.language = parsed.language
            questions = len(context.new_questions)
            text = await self._do(parsed, context, turn, is_part=len(parsed_requests) > 1)
            if not text and len(context.new_questions) > questions:
                what = context.new_questions[-1].wish
                text = context.say(
                    "later_question", what=what.slot("what") or what.slot("title") or what.slot("one")
                )
            said.append(text)
        return said

    # One parsed request

    def _handler_of(self, intent: str) -> Handler:
        """Return what carries an intent out; what has a sentence of its own in the table is just said."""
        board, lists, reminders, host = self._board, self._lists, self._reminders, self._host_requests
        groups = (
            (("remind", "get_up", "timer"), reminders.remind),
            (("show_reminders",), reminders.show),
            (("cancel_reminder",), reminders.cancel),
            (("add_group", "drop_group"), host.change_group),
            (("show_groups",), host.show_groups),
            (("note",), host.keep_note),
            (("send_file",), host.send_file),
            (("wake",), host.set_wake),
            (("show_lists",), lists.overview),
            (("one_or_more", "add_items", "remove", "clear_done", "clear_list", "show_list"), lists.act),
            (("add_task",), board.add),
            (("add_tasks",), board.add_several),
            (("progress", "drop_task", "block", "unblock"), board.change),
            (("finish",), board.finish),
            (("yes", "no"), board.answer),
            (("show_open",), board.show),
            (("due",), board.due),
            (("agenda",), board.agenda),
            (("before_deadline",), board.before_deadline),
        )
        return next((handler for intents, handler in groups if intent in intents), self._say)

    async def _do(
        self, parsed: ParsedRequest, context: RequestContext, turn: TurnOrder, *, is_part: bool
    ) -> str:
        match parsed.intent:
            case "unknown":
                return await self._not_understood(parsed, context, is_part=is_part)
            case "recall":
                return await self._recall.told(context, turn)
            case "echo":
                return parsed.slot("text")
            case _:
                return await self._handler_of(parsed.intent)(parsed, context)

    async def _say(self, parsed: ParsedRequest, context: RequestContext) -> str:
        said = context.say(
            "nothing_asked" if parsed.intent == "never_mind" else parsed.intent,
            name=self._order.assistant_name,
            sender=f" {context.sender}" if context.sender else "",
            clock=f"{context.now:%H:%M}",
            zone=self._order.timezone,
            day=long_day(context.now, context.language),
        )
        return said + context.say("help_main") if parsed.intent == "help" and self._order.is_main else said

    async def _not_understood(self, parsed: ParsedRequest, context: RequestContext, *, is_part: bool) -> str:
        """Say so in plain words. How more would be understood is for the owner: told in main, once a day."""
        said = context.say("not_understood", text=parsed.slot("text")) if is_part else context.say("no_model")
        today = context.now.date().isoformat()
        if context.known.told_day != today:
            context.known = replace(context.known, told_day=today)
            if self._order.is_main:
                return said + context.say("add_model")
            await self._host.ask(mailbox.ModelMissing(request_id=context.next_id()))
        return said


def _requests(turn: TurnOrder, *, name: str) -> tuple[Request, ...]:
    """A task's prompt is its request; workers and free cycles ask nothing that needs no model.

    A call in the middle or at the end is no part of what is asked: “what's on today @Andy?”.
    """
    if turn.requests or turn.kind not in ("chat", "task"):
        call = re.compile(rf"[ \t,]*(?<![^\W_])(?<!\.)@{re.escape(name)}{_AFTER_NAME}", re.IGNORECASE)
        texts = [call.sub("", one.text).strip() or one.text for one in turn.requests]
        return tuple(
            one.model_copy(update={"text": text}) for one, text in zip(turn.requests, texts, strict=True)
        )
    return (Request(sender="", text=turn.prompt),)


def _request_id(turn: TurnOrder, number: int, request: Request) -> str:
    """The same when a turn is tried again; the digest keeps an old store's reply from being taken for it."""
    digest = hashlib.sha256(request.text.encode("utf-8", "replace")).hexdigest()[:12]
    return f"t{turn.turn}-r{number}-{digest}"
