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
    Asked,
    Conversation,
    Known,
    OpenQuestion,
    take_answer,
)
from agent_runner.agents.offline.host_requests import HostRequests
from agent_runner.agents.offline.intents import Wish, long_day, say
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
Handler = Callable[[Wish, Asked], Awaitable[str]]
"""Carries out one wish and returns what to say."""


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
        self, turn: TurnOrder, request: Request, request_id: str, known: Known
    ) -> tuple[Known, str]:
        asked = Asked(
            sender=reading.plain(request.sender),
            now=self._now().astimezone(self._zone),
            zone=self._zone,
            language=reading.language_of(request.text),
            request_id=request_id,
            known=replace(known, questions=self._recent(known)),
        )
        text = reading.plain(request.text)
        said = await self._answer_to_question(text, asked, turn)
        if said is None:
            wishes = await asyncio.to_thread(reading.read, text)
            said = await self._do_all(wishes, asked, turn)
            said += self._again(wishes, asked)
        questions = (*asked.new_questions, *asked.known.questions)[:MAX_QUESTIONS]
        return replace(asked.known, questions=questions), "\n".join(filter(None, said))

    def _recent(self, known: Known) -> tuple[OpenQuestion, ...]:
        oldest = self._now().timestamp() - MAX_AGE_SECONDS
        return tuple(one for one in known.questions if one.at >= oldest)

    async def _answer_to_question(self, text: str, asked: Asked, turn: TurnOrder) -> list[str] | None:
        """Go on with what was asked, if this answers it; the next question follows."""
        if not asked.known.questions or not text.strip():
            return None
        question, *others = asked.known.questions
        found = await asyncio.to_thread(take_answer, question, text, now=asked.now, zone=asked.zone)
        if found is None:
            return None
        asked.known = replace(asked.known, questions=tuple(others))
        asked.language = question.wish.language
        if found.is_no:
            said = [asked.say("dropped")]
        else:
            sender = question.wish.slot("sender") or question.sender
            said = await self._do_all([wish.having(sender=sender) for wish in found.wishes], asked, turn)
        if others and not asked.new_questions:
            said.append(say("next_question", others[0].wish.language, question=others[0].text))
        return said

    def _again(self, wishes: list[Wish], asked: Asked) -> list[str]:
        """Repeat what is still asked, where the message was neither an answer nor understood."""
        is_lost = all(wish.intent in ("unknown", "yes", "no") for wish in wishes)
        if not is_lost or not asked.known.questions:
            return []
        question = asked.known.questions[0]
        return [say("still", question.wish.language, question=question.text)]

    async def _do_all(self, wishes: list[Wish], asked: Asked, turn: TurnOrder) -> list[str]:
        said = []
        for wish in wishes:
            asked.language = wish.language
            questions = len(asked.new_questions)
            text = await self._do(wish, asked, turn, is_part=len(wishes) > 1)
            if not text and len(asked.new_questions) > questions:
                what = asked.new_questions[-1].wish
                text = asked.say(
                    "later_question", what=what.slot("what") or what.slot("title") or what.slot("one")
                )
            said.append(text)
        return said

    # One wish

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

    async def _do(self, wish: Wish, asked: Asked, turn: TurnOrder, *, is_part: bool) -> str:
        match wish.intent:
            case "unknown":
                return await self._not_understood(wish, asked, is_part=is_part)
            case "recall":
                return await self._recall.told(asked, turn)
            case "echo":
                return wish.slot("text")
            case _:
                return await self._handler_of(wish.intent)(wish, asked)

    async def _say(self, wish: Wish, asked: Asked) -> str:
        said = asked.say(
            "nothing_asked" if wish.intent == "never_mind" else wish.intent,
            name=self._order.assistant_name,
            sender=f" {asked.sender}" if asked.sender else "",
            clock=f"{asked.now:%H:%M}",
            zone=self._order.timezone,
            day=long_day(asked.now, asked.language),
        )
        return said + asked.say("help_main") if wish.intent == "help" and self._order.is_main else said

    async def _not_understood(self, wish: Wish, asked: Asked, *, is_part: bool) -> str:
        """Say so in plain words. How more would be understood is for the owner: told in main, once a day."""
        said = asked.say("not_understood", text=wish.slot("text")) if is_part else asked.say("no_model")
        today = asked.now.date().isoformat()
        if asked.known.told_day != today:
            asked.known = replace(asked.known, told_day=today)
            if self._order.is_main:
                return said + asked.say("add_model")
            await self._host.ask(mailbox.ModelMissing(request_id=asked.next_id()))
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
