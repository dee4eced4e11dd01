"""Takes what containers ask: read, authorised, done in one transaction, answered, removed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog

from agent_runner.wire.mailbox import Command, Remember, Reply, SendFile, parse_command
from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.domain.values import Attachment, Group
from orchestrator.groups.attachments import FileRefused
from orchestrator.ipc import late_answers
from orchestrator.ipc.authorise import refusal, worker_refusal
from orchestrator.ipc.handlers import (
    CommandCaller,
    CommandResult,
    ContextCommands,
    DashboardCommands,
    LoopCommands,
    NoticeCommands,
    ReadIsoTime,
    refused,
)
from orchestrator.ipc.handlers import context as memory_handlers
from orchestrator.ipc.handlers import dashboard as dashboard_handlers
from orchestrator.ipc.handlers import files as file_handlers
from orchestrator.ipc.handlers import groups as group_handlers
from orchestrator.ipc.handlers import loop as loop_handlers
from orchestrator.ipc.handlers import messages as message_handlers
from orchestrator.ipc.handlers import notices as notice_handlers
from orchestrator.ipc.handlers import reminders as reminder_handlers
from orchestrator.ipc.handlers import tasks as task_handlers
from orchestrator.ipc.outgoing_files import CopyFile, no_files
from orchestrator.scheduler.scheduled_task_service import ScheduleReader
from orchestrator.store import audit, commands, host_events, turns
from orchestrator.store.database import Database, Tx

log = structlog.get_logger(__name__)

HANDLERS: dict[str, Callable[[Tx, CommandCaller, Any], Awaitable[CommandResult]]] = {
    "message": message_handlers.send_message,
    "send_file": file_handlers.send_file,
    "set_reminder": reminder_handlers.set_reminder,
    "cancel_reminder": reminder_handlers.cancel_reminder,
    "list_reminders": reminder_handlers.list_reminders,
    "register_group": group_handlers.register_group,
    "unregister_group": group_handlers.unregister_group,
    "refresh_groups": group_handlers.refresh_groups,
    "schedule_task": task_handlers.schedule_task,
    "update_task": task_handlers.update_task,
    "pause_task": task_handlers.pause_task,
    "resume_task": task_handlers.resume_task,
    "cancel_task": task_handlers.cancel_task,
    "run_task": task_handlers.run_task,
    "list_tasks": task_handlers.list_tasks,
    "dashboard": dashboard_handlers.use_dashboard,
    "show_dashboard": dashboard_handlers.show_dashboard,
    "set_next_wake": loop_handlers.set_next_wake,
    "control_loop": loop_handlers.control_loop,
    "remember": memory_handlers.remember,
    "notify_self": notice_handlers.use_notices,
    "acknowledge_notification": notice_handlers.use_notices,
    "list_notices": notice_handlers.use_notices,
    "cancel_notice": notice_handlers.use_notices,
    "model_missing": message_handlers.tell_model_missing,
}
"""A command's type → what does it."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Before:
    """What was done for a command before its transaction, because it takes a while."""

    file: Attachment | FileRefused | None = None
    remembered: CommandResult | None = None


class CommandDispatcher:
    """Handles one request of one group at a time; a request that comes again gets the answer it got."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        read_time: ReadIsoTime,
        times: ScheduleReader,
        zone_of: Callable[[Group], Any],
        hints: Wakeups,
        bus: EventBus,
        copy_file: CopyFile = no_files,
        dashboards: DashboardCommands | None = None,
        loops: LoopCommands | None = None,
        notices: NoticeCommands | None = None,
        memories: ContextCommands | None = None,
    ) -> None:
        self._dashboards = dashboards
        self._loops = loops
        self._notices = notices
        self._memories = memories
        self._copy_file = copy_file
        self._database = database
        self._clock = clock
        self._read_time = read_time
        self._times = times
        self._zone_of = zone_of
        self._hints = hints
        self._bus = bus

    async def handle(self, group: Group, name: str, body: bytes) -> Reply:
        """Do what a file asks, whose name and content stand for its request where it gives no id.

        Raises:
            WireError: it asks nothing that can be understood; nothing was done.
        """
        command = parse_command(body)
        request_id = command.request_id or _request_id(name, body)
        file = await self._copied(group, command, request_id)
        remembered = await self._remembered(group, command, request_id)
        reply: Reply | None = None
        try:
            reply = await self._answered(
                group, command, request_id, _Before(file=file, remembered=remembered)
            )
        finally:
            if isinstance(file, Attachment) and (reply is None or reply.code != "ok"):
                await asyncio.to_thread(file.path.unlink, missing_ok=True)
        return reply

    async def _copied(
        self, group: Group, command: Command, request_id: str
    ) -> Attachment | FileRefused | None:
        """Copy the file that is to be sent before the transaction: a large one takes a while."""
        if not isinstance(command, SendFile) or refusal(group, command) is not None:
            return None
        try:
            async with self._database.reading() as tx:
                if await commands.answered(tx, group.folder, request_id) is not None:
                    return None
                await file_handlers.check_room(tx, group, now_ms=self._clock.now_ms())
            return await asyncio.to_thread(self._copy_file, group.folder, command.path)
        except FileRefused as refused_file:
            return refused_file

    async def _remembered(self, group: Group, command: Command, request_id: str) -> CommandResult | None:
        """Write what is to be kept of a conversation; None where nothing was done."""
        if not isinstance(command, Remember) or self._memories is None:
            return None
        async with self._database.reading() as tx:
            if await commands.answered(tx, group.folder, request_id) is not None:
                return None
            turn = await turns.asking(tx, group.folder, claimed=command.turn, now_ms=self._clock.now_ms())
        if worker_refusal(turn, command) is not None:
            return None
        if turn is not None and turn.is_isolated:
            return refused("apart", memory_handlers.APART)
        reply = await self._memories.use(group, command.tool, command.arguments, request_id)
        return CommandResult(ok=reply.ok, code=reply.code, text=reply.text, data=reply.data)

    async def _answered(self, group: Group, command: Command, request_id: str, before: _Before) -> Reply:
        async with self._database.transaction() as tx:
            answered = await commands.answered(tx, group.folder, request_id)
            if answered is not None:
                return answered
            answer = await self._do(tx, group, command, request_id, before)
            reply = Reply(
                request_id=request_id, ok=answer.ok, code=answer.code, text=answer.text, data=answer.data
            )
            now_ms = self._clock.now_ms()
            await commands.record(tx, group.folder, command.title, reply, now_ms=now_ms)
            await late_answers.tell(tx, group, command, reply, now_ms=now_ms)
            await audit.append(tx, _event(group, command, reply, now_ms=now_ms))
        self._tell(group, command, reply)
        return reply

    async def _do(
        self, tx: Tx, group: Group, command: Command, request_id: str, before: _Before
    ) -> CommandResult:
        now_ms = self._clock.now_ms()
        turn = await turns.asking(tx, group.folder, claimed=command.turn, now_ms=now_ms)
        why_not = refusal(group, command) or worker_refusal(turn, command)
        if why_not is not None:
            log.warning("command.refused", group=group.folder, type=command.type, reason=why_not)
            await host_events.command_refused(tx, group.folder, command.title, why_not, now_ms=now_ms)
            return refused("not_allowed", f"This is not allowed: {why_not}.")
        caller = CommandCaller(
            group=group,
            request_id=request_id,
            now_ms=now_ms,
            # A clock in a container may be ahead; nothing was asked after it was read.
            asked_ms=now_ms if command.asked_ms is None else min(command.asked_ms, now_ms),
            turn=turn,
            zone=self._zone_of(group),
            read_time=self._read_time,
            times=self._times,
            dashboards=self._dashboards,
            loops=self._loops,
            notices=self._notices,
            file=before.file,
            remembered=before.remembered,
        )
        return await HANDLERS[command.type](tx, caller, command)

    def _tell(self, group: Group, command: Command, reply: Reply) -> None:
        self._bus.publish(f"command.{command.type}", group=group.folder, detail=reply.code)
        self._hints.outbox.give()
        self._hints.scheduler.give()
        self._hints.notifications.give()
        self._hints.lanes.give()


def _request_id(name: str, body: bytes) -> str:
    """The same for a file that is read again, another for one that takes its name later."""
    return f"{_UNSAFE.sub('-', name)[:40]}-{hashlib.sha256(os.fsencode(name) + b'/' + body).hexdigest()[:20]}"


def _event(group: Group, command: Command, reply: Reply, *, now_ms: int) -> audit.AuditEvent:
    detail = {"type": command.title, "request": reply.request_id, "ok": reply.ok, "code": reply.code}
    return audit.AuditEvent(at_ms=now_ms, kind="command", folder=group.folder, detail=detail)
