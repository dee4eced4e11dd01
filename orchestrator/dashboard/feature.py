"""Build the dashboard's services from the host's context, and connect them with turns and the outbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict
from zoneinfo import ZoneInfo

import structlog

from agent_runner.wire.order import TurnOrder
from orchestrator.dashboard.delivery import instant_replies, question_polls
from orchestrator.dashboard.delivery.due_notifications import NotificationDispatcher
from orchestrator.dashboard.delivery.outcomes import DeliveryOutcomes
from orchestrator.dashboard.files.export import DashboardExporter
from orchestrator.dashboard.rules.slots import Hours
from orchestrator.dashboard.service import DashboardService
from orchestrator.dashboard.services.context import BoardLimits
from orchestrator.dashboard.views import board
from orchestrator.dashboard.views.board import BoardData
from orchestrator.dashboard.words import when
from orchestrator.dashboard.worker import prompt
from orchestrator.dashboard.worker.loop import WorkerLoop, WorkerPorts, worker_mode
from orchestrator.domain.dashboard import Actor, Caller, ToolRefused
from orchestrator.domain.errors import BadTime
from orchestrator.domain.polls import Poll
from orchestrator.domain.values import Group, Quote, RunId, Turn
from orchestrator.groups import memory_templates
from orchestrator.groups.host_context import HostContext
from orchestrator.home.settings import Settings
from orchestrator.outbound.delivery import DeliveryHooks
from orchestrator.store.board import dashboards, worker_cycles
from orchestrator.store.conversation.polls import PollVote
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups

log = structlog.get_logger(__name__)

OWN_INSTRUCTIONS_SECONDS = 1.0
"""Seconds that reading a group's own `WORKER.md` may take."""


def read_time(text: str, *, now_ms: int, zone: ZoneInfo) -> int:
    """Return a future time that people wrote, in epoch ms: `in 2 hours`, `tomorrow 9am`, ISO.

    A time of day is one in `zone`. Raises `BadTime` if the text is no time, or one in the past.
    """
    try:
        return when.parse_due_time(text, now_ms=now_ms, zone=zone).at_ms
    except ToolRefused as error:
        raise BadTime(str(error)) from error


class ToolAnswerView(TypedDict):
    """The answer of a tool; `text` is for people, `code` for programs."""

    ok: bool
    code: str
    text: str
    data: dict[str, object]


class WorkerQueued(TypedDict):
    """The turn in which a model updates a dashboard."""

    turn: int


class DashboardFeature:
    """The dashboard ability: its services, dispatcher, exporter and worker. Each host has one instance."""

    def __init__(
        self,
        host: HostContext,
        *,
        can_deliver: Callable[[Group], bool],
        has_model: Callable[[Group], bool],
    ) -> None:
        """`can_deliver` returns whether a channel takes messages for a group's chat; `has_model`, whether a
        model is configured for the group.
        """
        database, clock, wakeups, bus = host.database, host.clock, host.wakeups, host.bus
        settings = host.settings
        self._host = host
        self._exporter = DashboardExporter(host.home.data / "env", database, bus=bus, zone_of=host.zone_of)
        self.service = DashboardService(
            database,
            clock=clock,
            zone_of=host.zone_of,
            can_deliver=can_deliver,
            limits=limits_of(settings),
        )
        outcomes = DeliveryOutcomes(wakeup=wakeups.notifications)
        self.delivery_hooks = DeliveryHooks(
            why_not=outcomes.why_not,
            note_sent=outcomes.note_sent,
            note_failed=outcomes.note_failed,
            note_given_up=outcomes.note_given_up,
        )
        self._dispatcher = NotificationDispatcher(
            database,
            clock=clock,
            wakeups=wakeups,
            bus=bus,
            hours_of=self.hours_of,
            daily_limit=settings.notify_daily_limit,
        )

        self.worker = WorkerLoop(
            database,
            WorkerPorts(
                mode=worker_mode(
                    enabled=settings.agents_worker_enabled,
                    use_llm=settings.agents_worker_use_llm,
                    fallback_to_rules=settings.agents_worker_fallback_to_rules,
                ),
                beat_ms=settings.heartbeat_interval_s * 1000,
                hours_of=self.hours_of,
                service_context=self.service.service_context,
                has_model=has_model,
                queue=worker_cycles.add_turn,
            ),
            clock=clock,
            wakeups=wakeups,
            bus=bus,
        )
        # One warning for each setting that has no effect.
        for warning in settings.warnings():
            log.warning("settings.do_nothing", reason=warning)

    def loops(self) -> dict[str, Callable[[], Any]]:
        """Return the endless loops of the dashboard by the name of their task."""
        return {
            "dashboard-files": self._exporter.run,
            "notifications": self._dispatcher.run,
            "worker": self.worker.run,
        }

    async def compose(self, tx: Tx, turn: Turn, group: Group, run_id: RunId) -> TurnOrder:
        """Return the order to a container to run a turn in which a model updates the group's dashboard.

        Its instructions are the group's own `WORKER.md`, or else the built-in ones. The state of the
        dashboard that the prompt shows is recorded as seen by the turn.
        """
        hours = self.hours_of(group)
        own_instructions = await self._own_instructions(group)
        return TurnOrder(
            run=run_id,
            turn=turn.id,
            kind=turn.kind.value,
            prompt=await prompt.first_prompt(
                tx, turn.id, group.folder, zone=hours.zone, now_ms=self._host.clock.now_ms()
            ),
            instructions=prompt.instructions(
                own_instructions, hours, cap=self._host.settings.notify_cap_per_task
            ),
        )

    async def _own_instructions(self, group: Group) -> str | None:
        """Return the text of the group's own `WORKER.md`; None if it has none or its disk is slow."""
        # Bounded, because the caller's transaction makes all other writers wait meanwhile.
        try:
            async with asyncio.timeout(OWN_INSTRUCTIONS_SECONDS):
                return await asyncio.to_thread(
                    memory_templates.own_text, self._host.home.root, group.folder, prompt.TEMPLATE
                )
        except TimeoutError:
            log.warning("worker.own_part_not_read", group=group.folder)
            return None

    async def brief(self, tx: Tx, turn: Turn, group: Group) -> str | None:
        """Return the dashboard as text for the prompt of a turn; None if the group has no dashboard.

        This state is recorded as seen by the turn.
        """
        return await board.brief(tx, turn, zone=self._host.zone_of(group), now_ms=self._host.clock.now_ms())

    async def show(self, folder: str) -> BoardData:
        """Return the contents of a group's dashboard as data; empty without one. Raises `UnknownGroup`."""
        async with self._host.database.reading() as tx:
            group = await groups.known(tx, folder)
            return await board.content(tx, group.folder, self._host.zone_of(group))

    async def call_tool(
        self, folder: str, tool: str, arguments: Mapping[str, Any], *, expect_version: int | None = None
    ) -> ToolAnswerView:
        """Call a dashboard tool on behalf of a person, and return its result; a refusal is a result, too.

        `expect_version` is the version of the row that the person was shown: if the row has another one, the
        code of the result is STALE and nothing is done. With None it is not compared. Raises `UnknownGroup`.
        """
        result = await self.service.call_tool(folder, tool, arguments, expect_version=expect_version)
        return {"text": result.text, "ok": result.ok, "code": result.code, "data": {**result.data}}

    async def ask_worker(self, folder: str) -> WorkerQueued:
        """Queue a turn in which a model updates a group's dashboard now, and return its number.

        If such a turn is queued or runs already, its number is returned.

        Raises:
            UnknownGroup: there is no such group.
            BadRequest: the group has no dashboard, or no model is configured for it.
        """
        return {"turn": await self.worker.ask_now(folder)}

    async def instant_reply(
        self, tx: Tx, group: Group, text: str, quote: Quote | None, *, is_asked: bool
    ) -> str | None:
        """Carry out a message that needs no model to understand it, and return the reply.

        None for any other message, and for a group without a dashboard. `quote` is the message that it
        quotes; `is_asked` says whether the message calls Andy.
        """
        if await dashboards.get(tx, group.folder) is None:
            return None
        caller = Caller(actor=Actor.USER, now_ms=self._host.clock.now_ms(), is_person=True)
        return await instant_replies.answer(
            self.service.service_context(tx, group, caller), text, quote, is_asked=is_asked
        )

    async def answer_poll(
        self, tx: Tx, group: Group, poll: Poll, votes: Sequence[PollVote], *, newest: str, is_text: bool
    ) -> str | None:
        """Record the votes of a poll as the answer to its question on the dashboard, and return the reply.

        `newest` is the answer that was chosen last; `is_text` says that it was written as a text, not chosen
        in the messenger's poll. The reply is empty if the poll itself shows the vote and no task was changed;
        None where the question was removed or is closed.
        """
        caller = Caller(actor=Actor.USER, now_ms=self._host.clock.now_ms(), is_person=True)
        ctx = self.service.service_context(tx, group, caller)
        return await question_polls.record_votes(ctx, poll, votes, newest=newest, is_text=is_text)

    def hours_of(self, group: Group) -> Hours:
        """Return at which hours a group gets notifications."""
        return hours_of(self._host.settings, self._host.zone_of(group))


def limits_of(settings: Settings) -> BoardLimits:
    """Return how many rows of each kind a group may have; the settings limit notifications about one task."""
    return BoardLimits(pending_a_task=settings.notify_cap_per_task)


def hours_of(settings: Settings, zone: ZoneInfo) -> Hours:
    """Return the hours for notifications of groups in a time zone, from the settings.

    `slots` are the times of day at which notifications without a time of their own are sent.
    """
    return Hours(
        zone=zone,
        slots=settings.slots,
        quiet_start=settings.notify_quiet_start,
        quiet_end=settings.notify_quiet_end,
    )
