"""Carry out the commands of containers: parse, authorise, call the handler in one transaction, reply."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

import structlog

from agent_runner.wire.context_tools import MEMORY
from agent_runner.wire.mailbox import (
    Command,
    Remember,
    Reply,
    SearchHistory,
    SearchWeb,
    SendFile,
    parse_command,
)
from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.domain.protocols import Feature
from orchestrator.domain.values import Attachment, ChatJid, Group, Role, Turn, TurnId, least
from orchestrator.groups import roles, settings
from orchestrator.groups.attachments import FileRefused
from orchestrator.groups.roles import Permission, Rights, rights_of
from orchestrator.ipc import late_answers
from orchestrator.ipc.authorise import refusal, role_refusal, worker_refusal
from orchestrator.ipc.command_context import (
    CommandCaller,
    CommandResult,
    ContextCommands,
    DashboardCommands,
    LoopCommands,
    NoticeCommands,
    ReadIsoTime,
    SearchCommands,
    refused,
)
from orchestrator.ipc.handlers import (
    abilities,
    files,
    groups,
    history,
    messages,
    models,
    reminders,
    tasks,
    web,
)
from orchestrator.ipc.handlers.files import CopyFile, no_files
from orchestrator.scheduler.scheduled_task_service import ScheduleReader
from orchestrator.store import audit
from orchestrator.store.database import Database, Tx
from orchestrator.store.groups import groups as groups_store
from orchestrator.store.notices import host_events
from orchestrator.store.reader import read_once
from orchestrator.store.runs import commands, runs, turn_outages, turns
from orchestrator.store.undo import turn_effects

log = structlog.get_logger(__name__)

UNREGISTERED = "the group is not registered any more"
STOPPED = "what it was asked in this turn was stopped in the chat"

HANDLERS: dict[str, Callable[[Tx, CommandCaller, Any], Awaitable[CommandResult]]] = {
    "message": messages.send_message,
    "send_file": files.send_file,
    "react": messages.react,
    "send_poll": messages.send_poll,
    "set_reminder": reminders.set_reminder,
    "cancel_reminder": reminders.cancel_reminder,
    "list_reminders": reminders.list_reminders,
    "register_group": groups.register_group,
    "change_group": groups.change_group,
    "unregister_group": groups.unregister_group,
    "refresh_groups": groups.refresh_groups,
    "choose_model": models.choose_model,
    "schedule_task": tasks.schedule_task,
    "update_task": tasks.update_task,
    "pause_task": tasks.act_on_task,
    "resume_task": tasks.act_on_task,
    "cancel_task": tasks.act_on_task,
    "run_task": tasks.act_on_task,
    "list_tasks": tasks.list_tasks,
    "dashboard": abilities.use_dashboard,
    "show_dashboard": abilities.show_dashboard,
    "set_next_wake": abilities.set_next_wake,
    "control_loop": abilities.control_loop,
    "remember": abilities.remember,
    "notify_self": abilities.use_notices,
    "acknowledge_notification": abilities.use_notices,
    "list_notices": abilities.use_notices,
    "cancel_notice": abilities.use_notices,
    "search_history": history.search_history,
    "web_search": web.search_web,
    "model_missing": messages.notify_model_missing,
}
"""Maps a command's type to its handler."""
NOTE_TOOLS = frozenset(
    {"create_plan", "update_plan_task", "set_active_plan", "set_active_task", "record_decision"}
)
"""Context tools that write plans and decisions into files, which an undo does not change back."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """The results of a command's slow work, which is done before its transaction."""

    file: Attachment | FileRefused | None = None
    """The copy of a file to send, or why there is none; None for every other command."""
    early_result: CommandResult | None = None
    """The result of `_act_early`."""
    written_ms: int | None = None
    """The time when the request file was written, in epoch milliseconds; None if it came without a file."""


class CommandDispatcher:
    """Handles requests, one at a time for each group; a repeated request gets its earlier reply."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        read_time: ReadIsoTime,
        times: ScheduleReader,
        zone_of: Callable[[Group], ZoneInfo],
        wakeups: Wakeups,
        bus: EventBus,
        copy_file: CopyFile = no_files,
        dashboards: DashboardCommands | None = None,
        loops: LoopCommands | None = None,
        notices: NoticeCommands | None = None,
        contexts: ContextCommands | None = None,
        web: SearchCommands | None = None,
        features_of: Callable[[ChatJid], frozenset[Feature]] = lambda _: frozenset(),
        has_gateway: Callable[[], bool] = lambda: False,
    ) -> None:
        """`dashboards`, `loops`, `notices`, `contexts` and `web` carry out the commands of other packages.

        The commands of one that is None are refused. `read_time` reads ISO times, `times` reads schedules.
        `copy_file` copies a file that an agent sends. `zone_of` returns a group's time zone, and
        `features_of` the features of a chat's messenger (none for an unknown chat). `has_gateway` returns
        whether the model service of `.env` is a gateway, whose models may have any names.
        """
        self._dashboards = dashboards
        self._loops = loops
        self._notices = notices
        self._contexts = contexts
        self._web = web
        self._features_of = features_of
        self._has_gateway = has_gateway
        self._copy_file = copy_file
        self._database = database
        self._clock = clock
        self._read_time = read_time
        self._times = times
        self._zone_of = zone_of
        self._wakeups = wakeups
        self._bus = bus

    async def handle(self, group: Group, name: str, body: bytes, *, written_ms: int | None = None) -> Reply:
        """Carry out the command in a request of the group's container, and return the reply to it.

        `name` and `body` are the name and the content of the request's file; they identify a request that has
        no id. A request that comes again gets its earlier reply. `written_ms` is the time when the file was
        written, in epoch milliseconds; None counts as now. The group is read again to decide what is allowed:
        it may have changed since `group` was read.

        Raises:
            WireError: the file contains no command; nothing was done.
        """
        command = parse_command(body)
        request_id = command.request_id or fallback_id(name, body)
        # Slow work, which is copying a file, searching, or calling a context tool, is done before the
        # transaction: a second of it there would hold up every other writer.
        file = await self._copy_for(group, command, request_id)
        early_result = await self._act_early(group, command, request_id, written_ms)
        prepared = _Prepared(file=file, early_result=early_result, written_ms=written_ms)
        is_copy_needed = False
        try:
            reply = await self._execute(group, command, request_id, prepared)
            # A refused request leaves no copy; only an accepted one has an outbox row that names it.
            is_copy_needed = reply.code == "ok"
        except asyncio.CancelledError:
            # The transaction may be committed all the same. A copy that no row names is removed at the next
            # start, by the `MailboxWorker`.
            is_copy_needed = True
            raise
        finally:
            if isinstance(file, Attachment) and not is_copy_needed:
                await asyncio.to_thread(file.path.unlink, missing_ok=True)
        return reply

    async def _copy_for(
        self, group: Group, command: Command, request_id: str
    ) -> Attachment | FileRefused | None:
        """Copy the file that a `SendFile` command sends, and return the copy, or why it cannot be sent.

        Return None if the command sends no file, or was answered before: `_execute` replies to it. Whether
        the asker's role may send files is decided later, in the transaction.
        """
        if not isinstance(command, SendFile):
            return None
        try:
            async with self._database.reading() as tx:
                current = await groups_store.by_folder(tx, group.folder)
                why_not = UNREGISTERED if current is None else refusal(current, command)
                if why_not is not None:
                    return FileRefused(why_not)
                # A request that is repeated after a crash needs no second copy: its reply is stored.
                if await commands.answered(tx, group.folder, request_id) is not None:
                    return None
                await files.check_room(tx, group, now_ms=self._clock.now_ms())
            return await asyncio.to_thread(self._copy_file, group.folder, command.path)
        except FileRefused as refusal_of_file:
            return refusal_of_file

    async def _act_early(
        self, group: Group, command: Command, request_id: str, written_ms: int | None
    ) -> CommandResult | None:
        """Carry out a search or a context tool, which may take a second, before the command's transaction.

        Return None if the command does neither, was answered before, or is not allowed: `_execute` replies to
        it.
        """
        if not isinstance(command, SearchHistory | Remember | SearchWeb):
            return None
        async with self._database.reading() as tx:
            if await commands.answered(tx, group.folder, request_id) is not None:
                return None
            turn = await turns.requesting_turn(
                tx,
                group.folder,
                claimed=command.turn,
                written_ms=written_ms,
                now_ms=self._clock.now_ms(),
            )
            # Read again, because the group may have changed since the batch of requests was begun.
            current = await groups_store.by_folder(tx, group.folder)
            if current is None:
                return None
            asker = await _asker(tx, current, turn, written_ms=written_ms, now_ms=self._clock.now_ms())
            why_not = await _refusal(tx, asker, command, turn)
        if why_not is not None:
            return None
        return await self._search_or_call_tool(asker, turn, command, request_id)

    async def _search_or_call_tool(
        self, asker: _Asker, turn: Turn | None, command: SearchHistory | Remember | SearchWeb, request_id: str
    ) -> CommandResult | None:
        """Carry out a search or a context tool for `asker`, outside of any transaction; return the result.

        Return None if this host has no service for it.
        """
        group = asker.group
        if isinstance(command, SearchHistory):
            zone, path = self._zone_of(group), await self._database.path()
            return await asyncio.to_thread(
                read_once, path, lambda tx: history.search(tx, group, command, zone=zone)
            )
        if isinstance(command, Remember):
            return await self._call_context_tool(asker, turn, command, request_id)
        if self._web is None:
            return None
        return await web.search(self._web, group, turn, command, now_ms=self._clock.now_ms())

    async def _call_context_tool(
        self, asker: _Asker, turn: Turn | None, command: Remember, request_id: str
    ) -> CommandResult | None:
        """Call a context tool, which writes files, and return its result.

        None if this host has no such tools. In a turn of an isolated task, it is refused with the code
        `apart`, except for looking up what is known about people, which adds nothing to the conversation.
        """
        if self._contexts is None:
            return None
        # An isolated task has a session of its own. Its notes would appear in the group's conversation, in
        # which the task was never mentioned.
        looks_up_people = command.tool == MEMORY and command.arguments.get("action") == "person"
        if turn is not None and turn.is_isolated and not looks_up_people:
            return refused("apart", abilities.ISOLATED)
        reply = await self._contexts.use(
            asker.group,
            command.tool,
            command.arguments,
            request_id,
            turn=turn,
            reads_history=Permission.HISTORY in asker.rights.may,
        )
        return abilities.result_of(reply)

    async def _execute(self, group: Group, command: Command, request_id: str, prepared: _Prepared) -> Reply:
        """Carry out a command in one transaction, and return the reply. Then its event is published.

        A repeated request is not carried out again but gets the reply that it got before. Only a command that
        reads stored texts runs again, as its reply is not stored.
        """

        async def reply_once(tx: Tx) -> tuple[Reply, bool]:
            """Return the reply, and whether the command was carried out now and not answered before."""
            earlier_reply = await commands.answered(tx, group.folder, request_id)
            if earlier_reply is not None:
                return earlier_reply, False
            return await self._carry_out(tx, group, command, request_id, prepared), True

        # One round trip to the database's thread for the whole command, which has over a hundred statements.
        reply, is_new = await self._database.write(reply_once)
        if is_new:
            # After the commit, so that the woken loops see the rows.
            self._publish(group, command, reply)
        return reply

    async def _carry_out(
        self, tx: Tx, group: Group, command: Command, request_id: str, prepared: _Prepared
    ) -> Reply:
        """Carry out a command in the transaction, and return the reply.

        The reply is recorded, unless the command only reads stored texts, and an audit entry is added. A
        reply that the agent no longer waits for may also be sent to the chat that asked.
        """
        now_ms = self._clock.now_ms()
        # Read again: the group may have changed, or be gone, since the batch of requests was begun.
        current = await groups_store.by_folder(tx, group.folder)
        # Read inside the transaction: the turn may have ended since the file was written.
        turn = await turns.requesting_turn(
            tx, group.folder, claimed=command.turn, written_ms=prepared.written_ms, now_ms=now_ms
        )
        if current is None:
            result = refused("not_allowed", f"This is not allowed: {UNREGISTERED}.")
        else:
            result = await self._call_handler(tx, current, turn, command, request_id, prepared)
        reply = Reply(
            request_id=request_id, ok=result.ok, code=result.code, text=result.text, data=result.data
        )
        # The reply to a search has texts of messages. They are stored in one place only, so that deleting
        # them there deletes them for good.
        if not _reply_quotes_stored_texts(command):
            await commands.record(tx, group.folder, command.title, reply, now_ms=now_ms)
        if current is not None:
            await late_answers.send_late_answer(tx, current, command, reply, now_ms=now_ms)
        await audit.append(tx, _event(group, turn, command, reply, now_ms=now_ms))
        return reply

    async def _call_handler(
        self,
        tx: Tx,
        group: Group,
        turn: Turn | None,
        command: Command,
        request_id: str,
        prepared: _Prepared,
    ) -> CommandResult:
        """Check whether the command is allowed, and call its handler. A refusal is returned as a result, too.

        Unless the askers' rights are restricted, the group's agent also gets a notice of the refusal. `turn`
        is the running turn of this group that the request is from; None if there is none. The changes that
        the handler makes are recorded for the turn, so that they can be undone; so is a change that an undo
        cannot reverse, for the undo to report it. `prepared` has the results of the command's slow work,
        which was done before this transaction.
        """
        now_ms = self._clock.now_ms()
        # Here and not earlier: refusals are recorded and audited in the transaction of the command.
        asker = await _asker(tx, group, turn, written_ms=prepared.written_ms, now_ms=now_ms)
        why_not = await _refusal(tx, asker, command, turn)
        if why_not is not None:
            log.warning("command.refused", group=group.folder, type=command.type, reason=why_not)
            if not asker.is_restricted:  # strangers must not fill the notices of the group's agent
                await host_events.command_refused(tx, group.folder, command.title, why_not, now_ms=now_ms)
            return refused("not_allowed", f"This is not allowed: {why_not}.")
        caller = CommandCaller(
            group=asker.group,
            role=asker.role,
            request_id=request_id,
            now_ms=now_ms,
            # The container says when it asked, and its clock may be ahead: no request is from the future.
            asked_ms=now_ms if command.asked_ms is None else min(command.asked_ms, now_ms),
            turn=turn,
            zone=self._zone_of(group),
            read_time=self._read_time,
            times=self._times,
            dashboards=self._dashboards,
            loops=self._loops,
            notices=self._notices,
            features_of=self._features_of,
            has_gateway=self._has_gateway,
            file=prepared.file,
            early_result=prepared.early_result,
        )
        handler = HANDLERS[command.type]
        if turn is None:
            # Nothing is recorded, because an undo always undoes a turn.
            return await handler(tx, caller, command)
        async with turn_effects.recording(tx, turn.id, now_ms=now_ms):
            result = await handler(tx, caller, command)
        irreversible_kind = _irreversible_change(command) if result.ok else None
        if irreversible_kind is not None:
            await turn_effects.note_out_of_reach(tx, turn.id, irreversible_kind, request_id, now_ms=now_ms)
        return result

    def _publish(self, group: Group, command: Command, reply: Reply) -> None:
        """Publish the event of a command, and wake the loops that may have work after it."""
        self._bus.publish(f"command.{command.type}", group=group.folder, detail=reply.code)
        # All are woken: to find out which loop a command concerns is not worth it, because a wake-up for
        # nothing costs only one look.
        self._wakeups.outbox.set()
        self._wakeups.scheduler.set()
        self._wakeups.notifications.set()
        self._wakeups.lanes.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asker:
    """The people for whom a container makes a request, by their lowest role."""

    group: Group
    """The group, limited to that role."""
    role: Role
    rights: Rights
    is_restricted: bool


async def _asker(tx: Tx, group: Group, turn: Turn | None, *, written_ms: int | None, now_ms: int) -> _Asker:
    """Return for whom a request is made, with the role that decides what the request may do.

    It is the role with the fewest rights among that of the turn and those of the group's restricted
    containers, which each have the rights of one role only. Without any of them it is the owner's, as for a
    request outside of turns, which only a container without restriction can have made.

    The turn alone proves little: a container may name any turn of its group, and leave requests behind when
    it ends. If a restricted container ran when the file was written, the file is from it, because no other
    container of its group runs at the same time. `turn` is None outside of a turn. `written_ms` is the time
    of the file; None for a request without a file, which counts as written now.
    """
    container_roles = await runs.restricted_at(tx, group.folder, now_ms if written_ms is None else written_ms)
    role = least([*container_roles, *([turn.role] if turn is not None else [])])
    rights = rights_of(role, settings.of(group))
    return _Asker(
        group=settings.narrowed(group, role),
        role=role,
        rights=rights,
        is_restricted=roles.is_restricted(rights, group),
    )


async def _refusal(tx: Tx, asker: _Asker, command: Command, turn: Turn | None) -> str | None:
    """Return why a command may not be carried out for these people; None when it may.

    Checked are, in this order: the people's role, the group, a worker turn, and a turn that was stopped.
    """
    chat = turn.chat_jid if turn is not None else None
    return (
        role_refusal(asker.role, asker.rights, command, chat=chat, is_restricted=asker.is_restricted)
        or refusal(asker.group, command)
        or worker_refusal(turn, command)
        or await _stop_refusal(tx, asker.group, command, turn)
    )


async def _stop_refusal(tx: Tx, group: Group, command: Command, turn: Turn | None) -> str | None:
    """Return a reason if the command names a turn that somebody has stopped in the chat; else None.

    `turn` is the running turn that the request is from, if any. `command.turn` is the one that it claims to
    be from.
    """
    # A stopped turn has failed, and `turn` is never a failed one. So if both are the same, it was not
    # stopped.
    if command.turn is None or (turn is not None and turn.id == command.turn):
        return None
    claimed = await turns.get(tx, TurnId(command.turn))
    stop = await turn_outages.stop_of(tx, TurnId(command.turn))
    is_stopped = stop is not None and stop.code == turn_outages.IN_CHAT
    # A container may name any number, and must not learn whether a turn of another group was stopped.
    is_own = claimed is not None and claimed.folder == group.folder
    return STOPPED if is_stopped and is_own else None


def _irreversible_change(command: Command) -> str | None:
    """Return the kind of the change that a command makes in the host's files, which an undo cannot reverse.

    The kinds are `forgotten` and `noted`. Return None if an undo can reverse all that the command changes.
    """
    if not isinstance(command, Remember):
        return None
    if command.tool == MEMORY:
        return "forgotten" if command.arguments.get("action") == "forget" else None
    return "noted" if command.tool in NOTE_TOOLS else None


def _reply_quotes_stored_texts(command: Command) -> bool:
    """Return whether the reply to a command quotes stored texts, so that it must not be stored as well.

    The commands are a search of the history, and the actions that show what is remembered, also of a person.
    """
    is_show = isinstance(command, Remember) and command.arguments.get("action") in ("show", "person")
    return is_show or isinstance(command, SearchHistory)


def fallback_id(name: str, body: bytes) -> str:
    """Return an id for the request in a file that has none, from the file's name and its content, `body`.

    So the same file gets the same id again, and a file of the same name with another content gets another id.
    """
    digest = hashlib.sha256(os.fsencode(name) + b"/" + body).hexdigest()
    return f"{_UNSAFE.sub('-', name)[:40]}-{digest[:20]}"


def _event(
    group: Group, turn: Turn | None, command: Command, reply: Reply, *, now_ms: int
) -> audit.AuditEvent:
    """Return the audit entry of a command: who sent it, in which turn, and how it was answered."""
    detail = {"type": command.title, "request": reply.request_id, "ok": reply.ok, "code": reply.code}
    return audit.AuditEvent(
        at_ms=now_ms,
        kind="command",
        folder=group.folder,
        run_id=turn.run_id if turn else None,
        turn_id=turn.id if turn else None,
        detail=detail,
    )
