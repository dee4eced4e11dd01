"""A task at its time: from its due time to the first request of its Claude, in a container of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import claude, engine
from benchmarks.figures import Figure, Series, excess_of
from benchmarks.host import RunningHost, of_kind, running_host
from benchmarks.places import Effort, progress
from orchestrator.cli.terminal import change
from orchestrator.domain.values import ContextMode, Schedule, ScheduledTask, ScheduleKind, TaskStatus
from orchestrator.store.groups import groups
from orchestrator.store.schedule import tasks
from tests.doubles.messages_api import ScriptedMessagesApi

PAIRS = 5
ABOVE_A_COLD_START_MS = 50
AHEAD_MS = 4_000
"""How long before its due time a task is set: longer than that takes, and than a container that is started
ahead takes to get ready."""
REST_SECONDS = 1.5
CLOSE_AT_ONCE = {"IDLE_TIMEOUT": "1000"}


async def measure(effort: Effort) -> list[Figure]:
    """In turns with a first message, which needs the same container and the same Claude.

    Each in a group of its own: what a group's first container has to make is made for both.
    """
    await asyncio.to_thread(engine.ensure_image)
    times = effort.times(PAIRS, at_least=3) + effort.warm_ups
    pairs = [(f"due{number}", f"cold{number}") for number in range(times)]
    folders = [folder for pair in pairs for folder in pair]
    due: list[Due] = []
    cold: list[float] = []
    with engine.bare_engine() as bare, claude.api_on(bare) as api:
        settings = {**claude.host_settings(api), **CLOSE_AT_ONCE}
        async with running_host(runtime="docker", agent="claude", groups=folders, settings=settings) as host:
            for number, (task_folder, chat_folder) in enumerate(pairs):
                if number % 2:
                    cold.append(await _cold(host, api, chat_folder))
                due.append(await _due(host, api, task_folder))
                if not number % 2:
                    cold.append(await _cold(host, api, chat_folder))
                progress(f"{task_folder}: due {due[-1].request_ms:.0f} ms, cold {cold[-1]:.0f} ms")
    return [_figure(due[effort.warm_ups :], cold[effort.warm_ups :])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """One task, in milliseconds from its due time."""

    queued_ms: float
    request_ms: float


async def _due(host: RunningHost, api: ScriptedMessagesApi, folder: str) -> Due:
    before = len(api.turns)
    due_ms = await _set(host, folder)
    queued = await host.event(of_kind("task.due", group=folder))
    requests = await asyncio.to_thread(api.wait_for_turns, before + 1)
    await host.event(of_kind("run.ended", group=folder))
    return Due(queued_ms=queued["at_ms"] - due_ms, request_ms=1000 * requests[before].at - due_ms)


async def _set(host: RunningHost, folder: str) -> int:
    """Write a task that rests, and let the host resume it; returns its due time."""
    due_ms = round(1000 * time.time()) + AHEAD_MS

    async def put(tx: Any, now_ms: int) -> None:
        group = await groups.known(tx, folder)
        task = ScheduledTask(
            id=f"task-{folder}",
            folder=group.folder,
            chat_jid=group.jid,
            prompt="hi",
            schedule=Schedule(kind=ScheduleKind.ONCE, value="", timezone="UTC"),
            context_mode=ContextMode.ISOLATED,
            status=TaskStatus.PAUSED,
            next_ms=due_ms,
            status_ms=now_ms,
            created_ms=now_ms,
        )
        await tasks.put(tx, task)

    await change(host.home.root, put)
    await host.client.act_on_task(f"task-{folder}", "resume")
    return due_ms


async def _cold(host: RunningHost, api: ScriptedMessagesApi, folder: str) -> float:
    before = len(api.turns)
    await asyncio.sleep(REST_SECONDS)  # a task waits too: the machine has done with the last container
    message = await host.say(folder, "hi")
    queued = await host.event(of_kind("message.queued", message=message))
    requests = await asyncio.to_thread(api.wait_for_turns, before + 1)
    await host.event(of_kind("run.ended", group=folder))
    return float(1000 * requests[before].at) - float(queued["at_ms"])


def _figure(due: Sequence[Due], cold: Sequence[float]) -> Figure:
    def series(name: str, values: Sequence[float]) -> Series:
        return Series(name=name, unit="ms", values=tuple(values))

    measured = series("due → first request", [one.request_ms for one in due])
    floor = series("floor: a first message → first request", cold)
    return Figure(
        name="A task at its time, Claude agent, docker",
        measured=measured,
        floor=floor,
        checks=(excess_of(measured, floor, ABOVE_A_COLD_START_MS),),
        details=(series("due → queued", [one.queued_ms for one in due]),),
    )
