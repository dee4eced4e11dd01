"""The state of the host for `GET /status` and `andy status`. Its keys are stable; it has no texts of chats.

It lists the urgent notices that models have received: whoever runs Andy should see them, too.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import structlog

from orchestrator import __version__
from orchestrator.base.supervision import LoopFailure, LoopFailureView, reason_of
from orchestrator.channels.discovery import find
from orchestrator.channels.registry import Channels
from orchestrator.containers.feature import ContainersFeature
from orchestrator.containers.live_runs import ForesightFigures, ForesightView
from orchestrator.domain.protocols import Channel
from orchestrator.domain.values import Folder, Group, LiveRun, Run, RunId, TaskStatus, Turn, TurnState
from orchestrator.groups import settings
from orchestrator.groups.failed_parts import CHANNEL_PREFIX
from orchestrator.groups.host_context import HostContext
from orchestrator.home.settings import changed_since
from orchestrator.proxies.feature import ContainerProxies
from orchestrator.proxies.model.credentials import CredentialStatus, CredentialView
from orchestrator.queue.feature import QueueFeature
from orchestrator.reports import models, notices
from orchestrator.reports.models import ServiceConditionView
from orchestrator.reports.notices import DeliveredNoticeView
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.notices import claims as notice_claims
from orchestrator.store.runs import runs, turn_outages, turns
from orchestrator.store.runs.runs import FailureCount
from orchestrator.store.schedule import tasks

log = structlog.get_logger(__name__)

ChannelState = dict[str, Any]
"""A messenger's own document about its connection, with `state` and `advice` where it has them."""
DAY_MS = 24 * 3_600_000
MAX_NEXT = 3
MAX_NOTICES = 10
MAX_WAITING = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """The facts of the running host that the store does not have."""

    version: str
    home: str
    runtime: str
    is_isolated: bool
    image: str | None
    agent: str
    credential: CredentialStatus
    slots: int
    live: Sequence[LiveRun]
    is_stopping: bool
    started_ms: int
    now_ms: int
    steady_ms: int
    disk_free_bytes: int
    channels: Mapping[str, ChannelState] = field(default_factory=dict)
    """The connection status of each channel that has a connection, by its name."""
    foresight: ForesightView = field(default_factory=lambda: ForesightFigures().as_data())
    """Counts of the containers that were started before their first turn."""
    zone: str = "Etc/UTC"
    """The owner's time zone that is in force."""
    settings_changed: Sequence[SettingChange] = ()
    """The settings that the next start would read differently: `{name, source}`."""
    has_engine: bool = True
    """Whether the runtime can start containers at this moment."""
    image_problem: str | None = None
    """One line that says that the image is missing, with the fix; None where it is there."""
    failing: Sequence[LoopFailure] = ()
    """The loops that fail at this moment."""
    models: Sequence[ServiceConditionView] = ()
    """The model services, as `reports.models.conditions` returns them."""


class TurnAtWorkView(TypedDict):
    """The turn that a container works on."""

    id: int
    kind: str
    attempt: int
    seconds: float


class ContainerView(TypedDict):
    """A container that holds a slot, or one that was given up."""

    run: str
    group: str
    state: str
    state_seconds: float
    age_seconds: float
    turn: TurnAtWorkView | None


class ConversationView(TypedDict):
    """The way in which a group's newest container continued the conversation."""

    group: str
    run: str
    started_ms: int
    mode: str | None
    reason: str | None


class WaitingTurnView(TypedDict):
    """A turn in the queue."""

    turn: int
    group: str
    kind: str
    place: int
    attempt: int
    waited_seconds: float
    next_try_seconds: float
    reason: str | None


class OutageView(TypedDict):
    """An outage for whose end turns wait."""

    cause: str
    turns: int
    since_ms: int


class SettingChange(TypedDict):
    """A setting that the next start would read differently, and the place that it would be read from."""

    name: str
    source: str


class DueView(TypedDict):
    """A reminder or a task to come."""

    id: int | str | None
    group: str
    due_ms: int
    timezone: str
    """The time zone of its group."""


class PendingReminders(TypedDict):
    """The number of reminders to come, and the next ones."""

    pending: int
    next: list[DueView]


class ActiveTasks(TypedDict):
    """The number of tasks to come, and the next ones."""

    active: int
    next: list[DueView]


class OutboxCounts(TypedDict):
    """The numbers of messages in the outbox: not sent yet, perhaps sent, and given up."""

    waiting: int
    unknown: int
    dead: int


class StatusView(TypedDict):
    """The state of the host at one moment."""

    version: str
    home: str
    started_ms: int
    uptime_seconds: float
    stopping: bool
    runtime: str
    isolated: bool
    engine: bool
    image: str | None
    image_problem: str | None
    agent: str
    credential: CredentialView
    models: list[ServiceConditionView]
    outages: list[OutageView]
    disk_free_bytes: int
    channels: dict[str, ChannelState]
    failing: list[LoopFailureView]
    zone: str
    settings_changed: list[SettingChange]
    groups: list[Folder]
    open: list[Folder]
    containers: list[ContainerView]
    conversations: list[ConversationView]
    slots: int
    foresight: ForesightView
    turns: dict[str, int]
    waiting: list[WaitingTurnView]
    reminders: PendingReminders
    tasks: ActiveTasks
    outbox: OutboxCounts
    errors: list[FailureCount]
    notices: list[DeliveredNoticeView]


class StatusService:
    """Answers `GET /status` and `andy status`."""

    def __init__(
        self,
        host: HostContext,
        *,
        started_ms: int,
        containers: ContainersFeature,
        proxies: ContainerProxies,
        queue: QueueFeature,
        channels: Channels,
        failing: Callable[[], Mapping[str, LoopFailure]],
    ) -> None:
        """`started_ms` is when the host began to start, in epoch milliseconds.

        `failing` returns the loops that fail, by name.
        """
        self._host = host
        self._started_ms = started_ms
        self._containers = containers
        self._proxies = proxies
        self._queue = queue
        self._channels = channels
        self._failing = failing

    async def status(self) -> StatusView:
        """Return the state of the running host: what runs, what waits and what fails, as JSON types."""
        settings = self._host.settings
        clock = self._host.clock
        selected = self._containers.selected  # the runtime that the host has chosen for its containers
        home = self._host.home.root
        # The settings that the next start would read differently, each with the place it would read.
        changed = await asyncio.to_thread(changed_since, settings, home)
        free_bytes = (await asyncio.to_thread(shutil.disk_usage, home)).free
        credential = await asyncio.to_thread(self._proxies.credential)
        has_engine = await selected.has_engine()
        image_problem = await selected.image_problem() if has_engine else None
        failing = self._failing()
        channels = channel_states(self._channels.all, failing)
        async with self._host.database.reading() as tx:
            first_group = next(iter(await groups.every(tx)), None)
            # With 'auto' the agent depends on the credential; while that is unreadable, the setting is shown.
            is_known = not credential.problem
            facts = HostFacts(
                version=__version__,
                home=str(home),
                runtime=selected.runtime.name,
                is_isolated=selected.runtime.is_isolated,
                image=selected.image,
                agent=self._containers.orders.agent(first_group)
                if first_group and is_known
                else settings.andy_agent,
                credential=credential,
                slots=self._containers.cap(),
                live=self._containers.pool.live(),
                is_stopping=not self._queue.is_taking_work,
                started_ms=self._started_ms,
                now_ms=clock.now_ms(),
                steady_ms=clock.steady_ms(),
                disk_free_bytes=free_bytes,
                channels=channels,
                zone=settings.tz,
                settings_changed=[{"name": name.upper(), "source": place} for name, place in changed.items()],
                has_engine=has_engine,
                image_problem=image_problem,
                failing=tuple(failing.values()),
                models=await models.conditions(tx, self._proxies.models),
                foresight=self._containers.pool.foresight.as_data(),
            )
            return await gather(tx, facts)


async def gather(tx: Tx, host: HostFacts) -> StatusView:
    """Return the state of the host at one moment as JSON types.

    It has the facts `host` of the running process, and what the database has of turns, messages and failures.
    Failures and notices are those of the last 24 hours. Of unsent messages, at most 1,000 are counted.
    """
    runs_by_id = {run.id: run for run in await runs.live(tx)}
    unsettled = await turns.unsettled(tx)
    unsent = await outbox.unsent(tx, limit=1000)
    registered = await groups.every(tx)
    return {
        "version": host.version,
        "home": host.home,
        "started_ms": host.started_ms,
        "uptime_seconds": _seconds(host.now_ms - host.started_ms),
        "stopping": host.is_stopping,
        "runtime": host.runtime,
        "isolated": host.is_isolated,
        "engine": host.has_engine,
        "image": host.image,
        "image_problem": host.image_problem,
        "agent": host.agent,
        "credential": host.credential.to_json_dict(),
        "models": list(host.models),
        "outages": [
            {"cause": cause.value, "turns": outage.turns, "since_ms": outage.since_ms}
            for cause, outage in (await turn_outages.current(tx)).items()
        ],
        "disk_free_bytes": host.disk_free_bytes,
        "channels": dict(host.channels),
        "failing": [failure.to_json_dict() for failure in host.failing],
        "zone": host.zone,
        "settings_changed": list(host.settings_changed),
        "groups": [group.folder for group in registered],
        "open": [group.folder for group in registered if settings.of(group).egress == "open"],
        "containers": [_container(run, runs_by_id, unsettled, host) for run in host.live],
        "conversations": [_conversation(run) for run in await runs.last_restores(tx)],
        "slots": host.slots,
        "foresight": host.foresight,
        "turns": await turns.counts(tx),
        "waiting": _waiting(unsettled, host),
        "reminders": await _reminders(tx, registered, host.zone),
        "tasks": await _tasks(tx),
        "outbox": {
            "waiting": sum(message.state not in ("unknown", "dead") for message in unsent),
            "unknown": sum(message.state == "unknown" for message in unsent),
            "dead": sum(message.state == "dead" for message in unsent),
        },
        "errors": await _errors(tx, since_ms=host.now_ms - DAY_MS),
        "notices": await _notices(tx, since_ms=host.now_ms - DAY_MS),
    }


def channel_states(
    channels: Sequence[Channel], failures: Mapping[str, LoopFailure]
) -> dict[str, ChannelState]:
    """Return the states of the channels that are on, by name; `failures` are the failures of loops, by name.

    One that is always on, such as the chats of this machine, is left out if its state is empty.
    """
    states = {
        channel.name: channel_state(channel, failures.get(f"{CHANNEL_PREFIX}{channel.name}"))
        for channel in channels
    }
    return {name: state for name, state in states.items() if state or not find(name).is_always_on}


def channel_state(channel: Channel, failure: LoopFailure | None) -> ChannelState:
    """Return the state of a channel (a messenger's connection) as it reports it, or `broken` with advice.

    It is broken if it cannot report its state, or if its loop fails. `failure` is the failure of its loop;
    None while the loop runs.
    """
    try:
        state = channel.status()
    except Exception as error:  # a channel of somebody else's package must not hide the others
        log.exception("channel.status_broken", channel=channel.name)
        state = {"state": "broken", "advice": f"It cannot say how it is ({reason_of(error)}): upgrade it."}
    if failure is None:
        return state
    advice = f"It fails ({failure.reason}) and is tried again: upgrade it, or see 'andy logs'."
    return {**state, "state": "broken", "advice": advice, "next_try_ms": failure.next_try_ms}


def _conversation(run: Run) -> ConversationView:
    """Return how a group's newest container, `run`, continued the conversation."""
    return {
        "group": run.folder,
        "run": run.id,
        "started_ms": run.started_ms,
        "mode": run.restore_mode,
        "reason": run.restore_reason,
    }


def _container(
    live: LiveRun, runs_by_id: dict[RunId, Run], unsettled: Sequence[Turn], host: HostFacts
) -> ContainerView:
    """Return a live container as the API and `--json` show it, with the turn that it works on.

    `runs_by_id` are the stored runs of containers, `unsettled` the turns that have not ended.
    """
    run = runs_by_id.get(live.id)
    # A container that is just starting has no row yet; its own times are by the steady clock.
    age_ms = host.now_ms - run.started_ms if run else host.steady_ms - live.started_ms
    turn = next((candidate for candidate in unsettled if _is_turn_of(live, candidate)), None)
    return {
        "run": live.id,
        "group": live.folder,
        "state": live.state.value,
        # `idle_since_ms` is when the container entered its present state, whichever that is.
        "state_seconds": _seconds(host.steady_ms - live.idle_since_ms),
        "age_seconds": _seconds(age_ms),
        "turn": _turn(turn, host.now_ms) if turn else None,
    }


def _is_turn_of(live: LiveRun, turn: Turn) -> bool:
    """Return whether a container works on a turn."""
    return turn.id == live.turn_id or (turn.run_id == live.id and turn.state is TurnState.RUNNING)


def _turn(turn: Turn, now_ms: int) -> TurnAtWorkView:
    """Return the turn of a container as the status shows it, with its running seconds; 0 before it begins."""
    started_ms = turn.started_ms if turn.state is TurnState.RUNNING else None
    return {
        "id": turn.id,
        "kind": turn.kind.value,
        "attempt": turn.attempt,
        "seconds": _seconds(now_ms - (started_ms or now_ms)),
    }


def _waiting(unsettled: Sequence[Turn], host: HostFacts) -> list[WaitingTurnView]:
    """Return the turns in the queue, with their places from 1, at most `MAX_WAITING`.

    `unsettled` are the turns that have not ended, in the order of the queue.
    """
    # While its container starts, a turn is still queued; it is listed with the container.
    turns_at_containers = {run.turn_id for run in host.live}
    queued = [
        turn for turn in unsettled if turn.state is TurnState.QUEUED and turn.id not in turns_at_containers
    ]
    return [
        {
            "turn": turn.id,
            "group": turn.folder,
            "kind": turn.kind.value,
            "place": place,
            "attempt": turn.attempt,
            "waited_seconds": _seconds(host.now_ms - turn.queued_ms),
            "next_try_seconds": _seconds(turn.not_before_ms - host.now_ms),
            "reason": turn.reason,
        }
        for place, turn in enumerate(queued[:MAX_WAITING], start=1)
    ]


async def _reminders(tx: Tx, registered: Sequence[Group], zone: str) -> PendingReminders:
    """Return the number of pending reminders, and the next `MAX_NEXT` of them.

    `zone` is the time zone of groups without one of their own.
    """
    pending = await board_notifications.reminders(tx)
    zones = {group.folder: settings.of(group).timezone or zone for group in registered}
    coming: list[DueView] = [
        {
            "id": reminder.number,
            "group": reminder.folder,
            "due_ms": reminder.due_ms,
            "timezone": zones.get(reminder.folder, zone),
        }
        for reminder in pending[:MAX_NEXT]
    ]
    return {"pending": len(pending), "next": coming}


async def _tasks(tx: Tx) -> ActiveTasks:
    """Return the number of active scheduled tasks that have a next time, and the next `MAX_NEXT` of them."""
    # The store returns active tasks by their next time.
    active: list[DueView] = [
        {
            "id": task.id,
            "group": task.folder,
            "due_ms": task.next_ms,
            "timezone": task.schedule.timezone,
        }
        for task in await tasks.every(tx)
        if task.status is TaskStatus.ACTIVE and task.next_ms
    ]
    return {"active": len(active), "next": active[:MAX_NEXT]}


async def _errors(tx: Tx, *, since_ms: int) -> list[FailureCount]:
    """Return the counts of failures since `since_ms` by kind, the latest first.

    They are failures of containers, and turns that were given up.
    """
    counts = [*await runs.bad_ends(tx, since_ms=since_ms), *await turns.failures(tx, since_ms=since_ms)]
    return sorted(counts, key=lambda count: -count["last_ms"])


async def _notices(tx: Tx, *, since_ms: int) -> list[DeliveredNoticeView]:
    """Return the newest urgent notices, lines for agents' prompts, that models received since `since_ms`."""
    delivered = await notice_claims.recently_delivered(tx, since_ms=since_ms, limit=MAX_NOTICES)
    return [notices.delivered_row(notice) for notice in delivered]


def _seconds(milliseconds: int) -> float:
    """Return milliseconds as seconds with one decimal; negative ones as 0."""
    return round(max(0, milliseconds) / 1000, 1)
