"""The agent without a model."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from agent_runner.agents.offline import dates, lists, notes, points, reading, reminders
from agent_runner.agents.offline.asked import Asked
from agent_runner.agents.offline.board import Board, find
from agent_runner.agents.offline.checklists import Checklists, Item, ListFault
from agent_runner.agents.offline.groups import Groups
from agent_runner.agents.offline.intents import (
    TODO,
    AddGroup,
    AddItems,
    AddTask,
    CancelReminder,
    DropGroup,
    DropTask,
    Echo,
    ListAct,
    NoteToSelf,
    OnList,
    Plain,
    Remind,
    RemindUnclear,
    SendFile,
    SetProgress,
    Wake,
    Wish,
)
from agent_runner.agents.offline.recall import Recall
from agent_runner.agents.offline.reminders import Reminders
from agent_runner.agents.offline.texts import words_of
from agent_runner.agents.offline.words import Words
from agent_runner.ans.noticing import Noticing
from agent_runner.host import Host
from agent_runner.interfaces import Outcome, Say
from agent_runner.wire import mailbox
from agent_runner.wire.order import Request, RestoreMode, RunOrder, TurnOrder
from agent_runner.workspace import Workspace

NOTHING_TO_COMPACT = "There is nothing to compact: without a model I keep no conversation."
Now = Callable[[], datetime]
"""Tells the time, aware."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


class OfflineAgent:
    """Answers what can be answered without a model, and says so where it cannot.

    It keeps nothing between turns: lists are files of the group, reminders are the host's.
    """

    session_id: str | None = None
    restored: RestoreMode | None = None

    def __init__(
        self,
        order: RunOrder,
        workspace: Workspace,
        host: Host,
        noticing: Noticing,
        *,
        now: Now = _utc_now,
    ) -> None:
        host = points.ObservedHost(host, noticing)
        self._noticing = noticing
        self._order = order
        self._now = now
        self._checklists = Checklists(workspace.group)
        self._host = host
        self._groups = Groups(host, is_main=order.is_main)
        self._reminders = Reminders(host)
        self._board = Board(host)
        self._recall = Recall(workspace.snapshots, name=order.assistant_name)
        self._zone: tzinfo = UTC

    async def start(self) -> None:
        """Load the group's time zone. Raises `ZoneInfoNotFoundError` for one that does not exist."""
        self._zone = await asyncio.to_thread(ZoneInfo, self._order.timezone)

    async def answer(self, turn: TurnOrder, say: Say) -> Outcome:
        """Answer every request of the turn in one text. Turns that nobody asked for end in silence."""
        if turn.command == "compact":
            await say(NOTHING_TO_COMPACT)
            return Outcome()
        requests = _requests(turn)
        if not requests:
            return Outcome()
        self._host.turn = turn.turn
        await points.turn_start(self._noticing, turn)
        said = [
            await self._answer_one(turn, request, _request_id(turn, number, request))
            for number, request in enumerate(requests)
        ]
        await points.turn_end(self._noticing)
        noted = points.told(self._noticing, turn, await _words(requests))
        await say("\n\n".join(filter(None, (noted, *said))))
        return Outcome()

    async def close(self) -> None:
        """There is nothing to let go of."""

    async def _answer_one(self, turn: TurnOrder, request: Request, request_id: str) -> str:
        intent = await asyncio.to_thread(reading.read, request.text)
        asked = Asked(
            sender=reading.plain(request.sender),
            now=self._now().astimezone(self._zone),
            words=words_of(intent.language),
            request_id=request_id,
        )
        if intent.wish is Plain.RECALL:
            return await self._recall.told(asked, turn)
        return await self._do(intent.wish, asked)

    async def _do(self, wish: Wish, asked: Asked) -> str:
        match wish:
            case Plain():
                return await self._tell(wish, asked)
            case Echo(text=text):
                return text
            case Remind():
                return await self._set_reminder(wish, asked)
            case RemindUnclear(trouble=trouble):
                return reminders.unclear(asked, trouble)
            case CancelReminder(reminder_id=reminder_id):
                return await self._reminders.cancel(asked, reminder_id)
            case AddTask() | SetProgress() | DropTask():
                return await self._on_board(wish, asked)
            case AddItems() | OnList():
                return await self._on_list(wish, asked)
            case AddGroup() | DropGroup():
                return await self._groups.change(wish, asked)
            case SendFile() | Wake() | NoteToSelf():
                return await self._ask_host(wish, asked)

    async def _send_file(self, path: str, asked: Asked) -> str:
        if len(path) > mailbox.MAX_PATH_CHARS:
            return asked.words.no_model
        reply = await self._host.ask(mailbox.SendFile(request_id=asked.request_id, path=path))
        return asked.words.file_sent.format(path=path) if reply.ok else reply.text

    async def _ask_host(self, wish: SendFile | Wake | NoteToSelf, asked: Asked) -> str:
        match wish:
            case NoteToSelf(text=text):
                return await notes.keep(self._host, text, asked)
            case SendFile(path=path):
                return await self._send_file(path, asked)
            case Wake(after=after):
                return await self._set_wake(after, asked)

    async def _set_wake(self, after: str, asked: Asked) -> str:
        reply = await self._host.ask(mailbox.SetNextWake(next=after.strip(), reason="you asked for it"))
        minutes = reply.data.get("applied_minutes")
        if not reply.ok or not isinstance(minutes, int | float):
            return reply.text
        return asked.words.wake_set.format(minutes=round(minutes))

    async def _tell(self, wish: Plain, asked: Asked) -> str:
        match wish:
            case Plain.TELL_TODAY:
                return await self._today(asked)
            case Plain.SHOW_REMINDERS:
                return await self._reminders.told(asked)
            case Plain.SHOW_LISTS:
                return await lists.overview(self._checklists, asked)
            case Plain.SHOW_GROUPS:
                return await self._groups.told(asked)
            case Plain.SHOW_OPEN:
                return await self._board.told(asked, await self._todos())
            case _:
                return self._say(wish, asked)

    def _say(self, wish: Plain, asked: Asked) -> str:
        words, now, name = asked.words, asked.now, self._order.assistant_name
        match wish:
            case Plain.GREET:
                return words.greeting.format(name=name, sender=f" {asked.sender}" if asked.sender else "")
            case Plain.THANK:
                return words.welcome
            case Plain.HELP:
                return words.help.format(name=name) + (words.help_main if self._order.is_main else "")
            case Plain.TELL_TIME:
                return words.time.format(
                    clock=f"{now:%H:%M}", zone=self._order.timezone, day=words.long_day(now)
                )
            case Plain.TELL_DAY:
                return words.day.format(day=words.long_day(now))
            case _:
                return words.no_model

    async def _set_reminder(self, wish: Remind, asked: Asked) -> str:
        try:
            moment = await asyncio.to_thread(dates.resolve, wish.when, asked.now)
        except dates.Unclear as error:
            return reminders.unclear(asked, error.trouble, error.at)
        return await self._reminders.set(asked, wish.what, moment, is_for_all=wish.is_for_all)

    async def _on_board(self, wish: AddTask | SetProgress | DropTask, asked: Asked) -> str:
        if isinstance(wish, AddTask):
            return await self._board.add(asked, wish)
        return await self._board.change(asked, wish)

    async def _on_list(self, wish: AddItems | OnList, asked: Asked) -> str:
        if isinstance(wish, OnList) and wish.act is ListAct.FINISH and wish.list_name == TODO:
            return await self._finish(wish, wish.item, asked)
        return await lists.answer(self._checklists, wish, asked)

    async def _finish(self, wish: OnList, item: str, asked: Asked) -> str:
        """End a task of the dashboard or check off a to-do; what could be both is not guessed."""
        open_tasks, open_todos = await self._board.open_tasks(), await self._todos()
        tasks = find(open_tasks, item)
        todos = [one for one in open_todos if item in (str(one.number), one.text)]
        if tasks and todos:
            return asked.words.task_or_todo.format(item=item, task=tasks[0].title, todo=todos[0].text)
        if len(tasks) > 1:
            return asked.words.task_many.format(item=item)
        if tasks:
            return await self._board.finish(asked, tasks[0])
        if open_tasks and not open_todos:
            return asked.words.task_unknown.format(item=item)
        return await lists.answer(self._checklists, wish, asked)

    async def _todos(self) -> list[Item]:
        """The open to-dos; none where they cannot be read: whoever asks for them is told."""
        try:
            return await lists.open_todos(self._checklists)
        except (ListFault, OSError):
            return []

    async def _today(self, asked: Asked) -> str:
        """Say what is still to come today: reminders, then the open to-dos."""
        words, day = asked.words, asked.words.long_day(asked.now)
        try:
            todos = lists.lines(await lists.open_todos(self._checklists))
        except (ListFault, OSError):
            todos = [await lists.answer(self._checklists, OnList(ListAct.SHOW), asked)]
        due = await self._reminders.lines_of_today(asked)
        if not due and not todos:
            return words.nothing_today.format(day=day)
        parts = [due, [f"{words.todo_name[:1].upper()}{words.todo_name[1:]}:", *todos] if todos else []]
        return "\n\n".join([words.today.format(day=day), *("\n".join(part) for part in parts if part)])


async def _words(requests: Sequence[Request]) -> Words:
    """What comes before the answers is in the language of the first request."""
    intent = await asyncio.to_thread(reading.read, requests[0].text)
    return words_of(intent.language)


def _requests(turn: TurnOrder) -> tuple[Request, ...]:
    """A task's prompt is its request; workers and free cycles ask nothing that needs no model."""
    if turn.requests or turn.kind not in ("chat", "task"):
        return turn.requests
    return (Request(sender="", text=turn.prompt),)


def _request_id(turn: TurnOrder, number: int, request: Request) -> str:
    """The same when a turn is tried again; the digest keeps an old store's reply from being taken for it."""
    digest = hashlib.sha256(request.text.encode("utf-8", "replace")).hexdigest()[:12]
    return f"t{turn.turn}-r{number}-{digest}"
