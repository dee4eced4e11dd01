"""Call dashboard tools: the one way in for an agent's command, the command line and HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from pydantic import ValidationError

from agent_runner.wire import dashboard as wire
from agent_runner.wire.mailbox import Reply
from orchestrator.base.clock import Clock
from orchestrator.dashboard.files import export, import_files
from orchestrator.dashboard.services import answers, knowledge, notifications, questions, tasks
from orchestrator.dashboard.services.context import BoardLimits, ServiceContext
from orchestrator.dashboard.services.reminders import ReminderService
from orchestrator.dashboard.views import board
from orchestrator.dashboard.worker import prompt
from orchestrator.domain.dashboard import (
    OK,
    Actor,
    BoardTaskStatus,
    Caller,
    Category,
    NotificationStatus,
    NotificationType,
    Priority,
    QuestionType,
    ToolRefused,
    ToolResult,
)
from orchestrator.domain.values import Group, Turn, TurnKind
from orchestrator.store import audit
from orchestrator.store.board import dashboards
from orchestrator.store.database import Database, Tx, announce
from orchestrator.store.groups import groups

_ENUMS: Mapping[str, Mapping[str, Callable[[str], Any]]] = {
    "": {"priority": Priority},
    "schedule_notification": {"type": NotificationType},
    "list_notifications": {"type": NotificationType, "status": NotificationStatus},
    "create_question": {"type": QuestionType},
    "update_question": {"type": QuestionType},
    "update_task": {"status": BoardTaskStatus},
    "save_insight": {"category": Category},
}
"""A tool's fields that are converted to an enum; those under "" are fields of every tool."""


async def _update_task(ctx: ServiceContext, *, task_id: str, **changes: Any) -> ToolResult:
    """Change a task; `changes` are new values by field name. Raises `ToolRefused`."""
    return await tasks.update(ctx, task_id, tasks.TaskChanges(**changes))


SERVICES: Mapping[str, Callable[..., Awaitable[ToolResult]]] = {
    "schedule_notification": notifications.schedule,
    "update_notification": notifications.update,
    "cancel_notification": notifications.cancel,
    "list_notifications": notifications.list_notifications,
    "create_question": questions.create,
    "update_question": questions.update,
    "remove_question": questions.remove,
    "update_task": _update_task,
    "move_to_history": tasks.move_to_history,
    "archive_task": tasks.move_to_history,
    "create_task": tasks.create,
    "answer_question": answers.answer,
    "save_insight": knowledge.save_insight,
    "set_recurring": tasks.set_recurring,
}
"""A tool's name → the function that carries it out."""
TOOLS = {declared.name: declared for declared in wire.TOOLS}
TOOLS |= {alias: TOOLS[name] for alias, name in wire.ALIASES.items()}
LISTING = "list_notifications"
"""The tool that changes nothing."""


class DashboardService:
    """Calls a dashboard's tools for any caller, one transaction a call."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        zone_of: Callable[[Group], ZoneInfo],
        can_deliver: Callable[[Group], bool],
        limits: BoardLimits | None = None,
    ) -> None:
        """`zone_of` returns a group's time zone, `can_deliver` whether a channel takes messages for its chat.

        `limits` are the largest numbers of rows; None means the default ones.
        """
        self._database = database
        self._clock = clock
        self._zone_of = zone_of
        self._can_deliver = can_deliver
        self._limits = limits or BoardLimits()
        self.reminders = ReminderService(zone_of=zone_of, can_deliver=can_deliver, limits=self._limits)

    def service_context(self, tx: Tx, group: Group, caller: Caller) -> ServiceContext:
        """Return the context of a call of the dashboard's functions on a group's dashboard.

        It is for callers that use these functions directly and not as tools: the rules, replies to people.
        """
        return ServiceContext(
            tx,
            group.folder,
            caller,
            zone=self._zone_of(group),
            limits=self._limits,
            can_deliver=self._can_deliver(group),
            chat_jid=group.jid,
        )

    async def call_tool(
        self,
        folder: str,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        actor: Actor = Actor.USER,
        expect_version: int | None = None,
    ) -> ToolResult:
        """Call a tool on a group's dashboard for the command line or HTTP, and return its result.

        A refusal is a result, too. The call is recorded in the audit. `expect_version` is the version of the
        row that the caller was shown: with another one the call is refused; None compares none.

        Raises:
            UnknownGroup: there is no such group.
        """
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as tx:
            group = await groups.known(tx, folder)
            caller = Caller(
                actor=actor, now_ms=now_ms, is_person=actor is Actor.USER, expect_version=expect_version
            )
            result = await call_tool(self.service_context(tx, group, caller), tool, arguments)
            # A refused call is audited as well, and writes nothing else.
            detail = {"type": f"dashboard.{tool}", "by": actor.value, "ok": result.ok, "code": result.code}
            await audit.append(
                tx, audit.AuditEvent(at_ms=now_ms, kind="dashboard", folder=group.folder, detail=detail)
            )
            # After a refusal, too: the event's detail is the code of the result.
            announce(tx, "dashboard.changed", group=group.folder, detail=result.code)
        return result

    async def export(self, folder: str, directory: Path) -> list[str]:
        """Write the files of a group's dashboard into a directory, and return their names.

        The list is empty for a group without a dashboard.

        Raises:
            UnknownGroup: there is no such group.
            OSError: a file cannot be written.
        """
        group = await self._database.read(lambda tx: groups.known(tx, folder))
        database = await self._database.path()
        exported = await asyncio.to_thread(export.read, database, group.folder, self._zone_of(group))
        if exported is None:
            return []
        await asyncio.to_thread(export.write, directory, exported.contents)
        return list(exported.contents)

    async def import_from(
        self, folder: str, directory: Path, *, replaces: bool = False
    ) -> import_files.ImportRows:
        """Import a dashboard's files into a group's dashboard, in one transaction.

        With `replaces` the present contents are deleted first, else the rows are added to them. Returns the
        rows that were written, and notes of what was left out.

        Raises:
            UnknownGroup: there is no such group.
            ImportRefused: the files do not fit; the text names each row.
        """
        documents = await asyncio.to_thread(import_files.read, directory)
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as tx:
            group = await groups.known(tx, folder)
            rows = import_files.rows_of(documents, group.folder, zone=self._zone_of(group), now_ms=now_ms)
            caller = Caller(actor=Actor.USER, now_ms=now_ms, is_person=True)
            rows = await import_files.write_rows(
                self.service_context(tx, group, caller), rows, replaces=replaces
            )
            # The rules run over the imported rows at once.
            await dashboards.wake_rules(tx, group.folder, now_ms=now_ms)
            detail = {"type": "dashboard.import", "by": Actor.USER.value, **rows.counts()}
            await audit.append(
                tx, audit.AuditEvent(at_ms=now_ms, kind="dashboard", folder=group.folder, detail=detail)
            )
            announce(tx, "dashboard.changed", group=group.folder, detail=OK)
        return rows

    # Called by the command dispatcher

    async def answer(
        self,
        tx: Tx,
        group: Group,
        turn: Turn | None,
        tool: str,
        arguments: Mapping[str, Any],
        request_id: str,
    ) -> Reply:
        """Call a tool for the agent of a group, and return the reply to its request.

        `turn` is the turn that runs; without one the call is refused. If it is a turn in which a model
        updates the dashboard, the reply also shows the dashboard as it is now, unless the tool only lists.
        """
        caller = caller_of(turn, now_ms=self._clock.now_ms())
        if caller is None:
            refused = ToolRefused("NO_TURN", "No turn of this group runs: nothing was done.")
            return _reply(refused.result(), request_id)
        ctx = self.service_context(tx, group, caller)
        result = await call_tool(ctx, tool, arguments)
        # The worker gets the present dashboard after a refusal too: mostly the reason is that the dashboard
        # changed since it was shown.
        if turn is not None and caller.actor is Actor.WORKER and tool != LISTING:
            state = await prompt.after_tool(
                tx, turn.id, group.folder, zone=ctx.zone, now_ms=self._clock.now_ms()
            )
            result = replace(result, text=f"{result.text}\n\n{state}")
        return _reply(result, request_id)

    async def show(self, tx: Tx, group: Group, request_id: str) -> Reply:
        """Return the contents of a group's dashboard, as a reply to its agent."""
        return _reply(await board.show(tx, group.folder, self._zone_of(group)), request_id)


def caller_of(turn: Turn | None, *, now_ms: int) -> Caller | None:
    """Return who calls the dashboard's tools in a turn; None without a turn.

    The kind of the turn decides it, which the host set, and never the messages in the turn.
    """
    if turn is None:
        return None
    is_worker = turn.kind is TurnKind.WORKER
    return Caller(
        actor=Actor.WORKER if is_worker else Actor.MAIN_AGENT,
        now_ms=now_ms,
        turn_id=turn.id,
        is_person=turn.kind is TurnKind.CHAT,
    )


async def call_tool(ctx: ServiceContext, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
    """Check the arguments and the caller's rights, then call a tool of the dashboard, and return its result.

    A refusal is returned as a result, with its code; no row of the dashboard was changed then.
    """
    try:
        checked_arguments = _checked_arguments(ctx, tool, arguments)
        return await SERVICES[tool](ctx, **checked_arguments)
    except ToolRefused as refused:
        return refused.result()


def _checked_arguments(ctx: ServiceContext, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a tool as its function takes them, after checking them and the caller's rights.

    Values that are None are left out; names of enum members are converted.

    Raises:
        ToolRefused: UNKNOWN_TOOL, NOT_ALLOWED or VALIDATION.
    """
    declared = TOOLS.get(tool)
    if declared is None:
        raise ToolRefused("UNKNOWN_TOOL", f"There is no tool '{tool[:64]}'. There are: {', '.join(TOOLS)}.")
    if ctx.caller.actor is Actor.WORKER and not declared.is_for_worker:
        raise ToolRefused(
            "NOT_ALLOWED", f"The worker may not use {tool}: that is for people and their agent."
        )
    try:
        model = declared.arguments.model_validate(dict(arguments))
    except ValidationError as error:
        raise ToolRefused("VALIDATION", _mistakes_text(error)) from error
    # Of the tool's fields: each field's name → the enum to which its value is converted.
    enums = {**_ENUMS[""], **_ENUMS.get(tool, {})}
    fields = model.model_dump(exclude_unset=True)
    return {
        name: enums[name](value) if name in enums and value is not None else value
        for name, value in fields.items()
        if value is not None
    }


def _mistakes_text(error: ValidationError) -> str:
    """Return the text for the caller that names the first five arguments that do not fit."""
    mistakes = error.errors(include_input=False, include_url=False, include_context=False)
    lines = [
        f"{'.'.join(str(part)[:60] for part in mistake['loc'])}: {mistake['msg']}" for mistake in mistakes[:5]
    ]
    return f"The arguments do not fit. {'; '.join(lines)}"


def _reply(result: ToolResult, request_id: str) -> Reply:
    """Return the result of a tool as the reply to an agent's request."""
    return Reply(request_id=request_id, ok=result.ok, code=result.code, text=result.text, data=result.data)
