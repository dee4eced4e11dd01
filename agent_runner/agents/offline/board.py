"""The dashboard: asked of the host, told as a numbered list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agent_runner.agents.offline.asked import Asked
from agent_runner.agents.offline.checklists import Item
from agent_runner.agents.offline.intents import AddTask, DropTask, SetProgress
from agent_runner.host import Host
from agent_runner.wire.mailbox import Dashboard, Reply, ShowDashboard

MAX_SHOWN = 50
_DATE_CHARS = len("2026-02-10")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTask:
    """A task as `what's open?` numbers it."""

    number: int
    id: str
    title: str
    pct: int
    deadline: str | None
    is_blocked: bool


class Board:
    """Adds tasks, notes how far they are, ends them. A refusal of the host is told in its own words."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def add(self, asked: Asked, wish: AddTask) -> str:
        if not wish.title:
            return asked.words.task_what
        arguments: dict[str, Any] = {"title": wish.title}
        if wish.deadline:
            arguments["deadline"] = wish.deadline
        reply = await self._use(asked, "create_task", arguments)
        if not reply.ok:
            return _refusal(reply)
        deadline = reply.data.get("deadline")
        form = asked.words.task_added_until if deadline else asked.words.task_added
        return form.format(title=reply.data.get("title", wish.title), date=_shown(deadline))

    async def change(self, asked: Asked, wish: SetProgress | DropTask) -> str:
        """Change the task that is meant; a share of what is no task only a model could make sense of."""
        tasks = await self.open_tasks()
        found = find(tasks, wish.which)
        if not found:
            is_ours = bool(tasks) or isinstance(wish, DropTask)
            return asked.words.task_unknown.format(item=wish.which) if is_ours else asked.words.no_model
        if len(found) > 1:
            return asked.words.task_many.format(item=wish.which)
        return await (
            self._drop(asked, found[0])
            if isinstance(wish, DropTask)
            else self._set_progress(asked, found[0], wish.pct)
        )

    async def _set_progress(self, asked: Asked, task: OpenTask, pct: int) -> str:
        if pct == 100:
            return await self.finish(asked, task)
        reply = await self._use(asked, "update_task", {"task_id": task.id, "progress": pct})
        return asked.words.task_progress.format(title=task.title, pct=pct) if reply.ok else _refusal(reply)

    async def _drop(self, asked: Asked, task: OpenTask) -> str:
        reply = await self._use(asked, "update_task", {"task_id": task.id, "status": "cancelled"})
        return asked.words.task_dropped.format(title=task.title) if reply.ok else _refusal(reply)

    async def finish(self, asked: Asked, task: OpenTask) -> str:
        reply = await self._use(asked, "update_task", {"task_id": task.id, "status": "completed"})
        return asked.words.task_done.format(title=task.title) if reply.ok else _refusal(reply)

    async def open_tasks(self) -> list[OpenTask]:
        """Those that are worked on, in the order of their numbers; none where the host tells of none."""
        reply = await self._host.ask(ShowDashboard())
        return _tasks(reply) if reply.ok else []

    async def told(self, asked: Asked, todos: list[Item]) -> str:
        """Say what is open: tasks by number, to-dos, questions."""
        reply = await self._host.ask(ShowDashboard())
        if not reply.ok:
            return reply.text
        words = asked.words
        tasks = [_line(one, asked) for one in _tasks(reply)]
        questions = [f"• {one['question']}" for one in reply.data.get("questions", [])]
        parts = [
            [words.open_tasks, *_some(tasks)] if tasks else [],
            [
                f"{words.todo_name[:1].upper()}{words.todo_name[1:]}:",
                *(f"{one.number}. {one.text}" for one in todos),
            ]
            if todos
            else [],
            [words.open_questions, *_some(questions)] if questions else [],
        ]
        return "\n\n".join("\n".join(part) for part in parts if part) or words.nothing_open

    async def _use(self, asked: Asked, tool: str, arguments: dict[str, Any]) -> Reply:
        return await self._host.ask(Dashboard(request_id=asked.request_id, tool=tool, arguments=arguments))


def find(tasks: list[OpenTask], which: str) -> list[OpenTask]:
    """The tasks that a number, a title or a part of one means."""
    which = " ".join(which.casefold().split())
    same = [one for one in tasks if one.title.casefold() == which]
    numbered = [one for one in tasks if which == str(one.number)]
    alike = [one for one in tasks if len(which) > 1 and which in one.title.casefold()]
    return same or numbered or alike


def _tasks(reply: Reply) -> list[OpenTask]:
    rows: list[dict[str, Any]] = reply.data.get("tasks", [])
    return [
        OpenTask(
            number=number,
            id=row["id"],
            title=row["title"],
            pct=row["progress"],
            deadline=row["deadline"],
            is_blocked=row["blocked"],
        )
        for number, row in enumerate(rows, 1)
    ]


def _line(one: OpenTask, asked: Asked) -> str:
    until = asked.words.task_until.format(date=_shown(one.deadline)) if one.deadline else ""
    blocked = f", {asked.words.task_blocked}" if one.is_blocked else ""
    return f"{one.number}. {one.title} ({one.pct}%{until}{blocked})"


def _some(lines: list[str]) -> list[str]:
    return [*lines[:MAX_SHOWN], "…"] if len(lines) > MAX_SHOWN else lines


def _shown(deadline: str | None) -> str:
    """`2026-02-10`, and its time if it has one."""
    if not deadline or len(deadline) == _DATE_CHARS:
        return deadline or ""
    return deadline[:16].replace("T", " ")


def _refusal(reply: Reply) -> str:
    return reply.text.removeprefix(f"{reply.code}: ")
