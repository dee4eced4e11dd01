"""The agent without a model."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from agent_runner.agents.offline import answers, notes, points, reading
from agent_runner.agents.offline.board import Board
from agent_runner.agents.offline.checklists import Checklists
from agent_runner.agents.offline.conversation import (
    MAX_AGE_SECONDS,
    MAX_QUESTIONS,
    Asked,
    Conversation,
    Known,
    OpenQuestion,
)
from agent_runner.agents.offline.groups import Groups
from agent_runner.agents.offline.intents import Wish, long_day, say
from agent_runner.agents.offline.lists import Lists
from agent_runner.agents.offline.recall import Recall
from agent_runner.agents.offline.reminders import Reminders
from agent_runner.ans.noticing import LazyNotices
from agent_runner.interfaces import Say, TurnOutcome
from agent_runner.ipc_client import HostClient
from agent_runner.wire import mailbox
from agent_runner.wire.order import Request, RestoreMode, RunOrder, TurnOrder
from agent_runner.wire.times import Language
from agent_runner.workspace import Workspace

NOTHING_TO_COMPACT = "There is nothing to compact: without a model I keep no conversation."
_AFTER_NAME = r"(?![A-Za-z0-9_])(?:(?:님아|이?야|아|님|씨)(?=[\s,.!?:]|$))?"
"""No letter goes on with the name but a Korean vocative."""
Now = Callable[[], datetime]
"""Tells the time, aware."""


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
        host = points.ObservedHost(host, noticing)
        checklists = Checklists(workspace.group)
        self._noticing = noticing
        self._order = order
        self._now = now
        self._host = host
        self._lists = Lists(checklists)
        self._groups = Groups(host, is_main=order.is_main)
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
        await points.turn_start(self._noticing, turn)
        before = await asyncio.to_thread(self._conversation.before, turn.turn)
        known, said = before, []
        for number, request in enumerate(requests):
            known, text = await self._answer_one(turn, request, _request_id(turn, number, request), known)
            said.append(text)
        await asyncio.to_thread(self._conversation.keep, turn.turn, before, known)
        await points.turn_end(self._noticing)
        noted = points.told(self._noticing, turn, reading.language_of(requests[0].text))
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
        found = await asyncio.to_thread(answers.take, question, text, now=asked.now, zone=asked.zone)
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

    async def _do(self, wish: Wish, asked: Asked, turn: TurnOrder, *, is_part: bool) -> str:
        match wish.intent:
            case "remind" | "get_up" | "timer":
                return await self._reminders.remind(_as_reminder(wish, asked), asked)
            case "show_reminders":
                return await self._reminders.told(asked)
            case "cancel_reminder":
                return await self._reminders.cancel(wish, asked)
            case "add_group" | "drop_group":
                return await self._groups.change(wish, asked)
            case "show_groups":
                return await self._groups.told(asked)
            case "show_lists":
                return await self._lists.overview(asked)
            case "one_or_more" | "add_items" | "remove" | "clear_done" | "clear_list" | "show_list":
                return await self._lists.act(wish, asked)
            case "recall":
                return await self._recall.told(asked, turn)
            case "unknown":
                return await self._not_understood(wish, asked, is_part=is_part)
            case _:
                return await self._on_board(wish, asked)

    async def _on_board(self, wish: Wish, asked: Asked) -> str:
        match wish.intent:
            case "add_task":
                return await self._board.add(wish, asked)
            case "add_tasks":
                titles = wish.slot("titles").splitlines()
                wishes = [
                    Wish(
                        intent="add_task",
                        language=wish.language,
                        slots={"title": one, "when": wish.slot("when")},
                    )
                    for one in titles
                ]
                return "\n".join([await self._board.add(one, asked) for one in wishes])
            case "progress" | "drop_task" | "block" | "unblock":
                return await self._board.change(wish, asked)
            case "finish":
                return await self._board.finish(wish, asked)
            case "yes" | "no":
                # What the agent itself asked last, and this does not answer, is asked again.
                return "" if asked.known.questions else await self._board.answer(wish, asked)
            case "show_open":
                return await self._board.told(asked)
            case "due":
                return await self._board.due(wish, asked)
            case "agenda":
                return await self._board.agenda(wish, asked)
            case "before_deadline":
                return await self._board.before_deadline(wish, asked)
            case _:
                return await self._by_itself(wish, asked)

    async def _by_itself(self, wish: Wish, asked: Asked) -> str:
        """What needs neither dashboard nor lists."""
        match wish.intent:
            case "echo":
                return wish.slot("text")
            case "note":
                return await notes.keep(self._host, wish.slot("note"), asked)
            case "send_file":
                return await self._send_file(wish.slot("path"), asked)
            case "wake":
                return await self._set_wake(wish.slot("after"), asked)
            case "help":
                told = asked.say("help", name=self._order.assistant_name)
                return told + (asked.say("help_main") if self._order.is_main else "")
            case "never_mind":
                return asked.say("nothing_asked")
            case _:
                return self._small_talk(wish, asked)

    def _small_talk(self, wish: Wish, asked: Asked) -> str:
        day = long_day(asked.now, asked.language)
        return asked.say(
            wish.intent,
            name=self._order.assistant_name,
            sender=f" {asked.sender}" if asked.sender else "",
            clock=f"{asked.now:%H:%M}",
            zone=self._order.timezone,
            day=day,
        )

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

    async def _send_file(self, path: str, asked: Asked) -> str:
        if len(path) > mailbox.MAX_PATH_CHARS:
            return asked.say("no_model")
        reply = await self._host.ask(mailbox.SendFile(request_id=asked.next_id(), path=path))
        return asked.say("file_sent", path=path) if reply.ok else reply.text

    async def _set_wake(self, after: str, asked: Asked) -> str:
        after = (
            after.replace("시간", "h").replace("분", "m").replace(" ", "")
            if asked.language is Language.KOREAN
            else after
        )
        reply = await self._host.ask(mailbox.SetNextWake(next=after.strip(), reason="you asked for it"))
        minutes = reply.data.get("applied_minutes")
        if not reply.ok or not isinstance(minutes, int | float):
            return reply.text
        return asked.say("wake_set", minutes=round(minutes))


def _as_reminder(wish: Wish, asked: Asked) -> Wish:
    """A timer and a call to get up are reminders with words of their own."""
    if wish.intent == "timer":
        span = wish.slot("span").replace("-", " ")
        has_form = span.lower().startswith(("in ", "at ")) or span.endswith(("뒤", "후"))
        when = span if has_form else f"{span} 뒤" if wish.language is Language.KOREAN else f"in {span}"
        return wish.having(what=asked.say("what_timer"), when=when)
    if wish.intent == "get_up":
        half = "오전" if wish.language is Language.KOREAN else "am"
        return wish.having(what=asked.say("what_wake"), half=half)
    return wish


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
