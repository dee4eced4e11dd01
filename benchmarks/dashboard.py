"""Dashboards of a full home: 10,000 tasks, 100,000 notifications in ten groups, and 1,000 due in a minute."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import structlog

from benchmarks.figures import Check, Figure, Series, median_of, p99_of
from benchmarks.places import Effort, progress
from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.dashboard.feature import DashboardFeature
from orchestrator.dashboard.files import export
from orchestrator.dashboard.services import notifications
from orchestrator.dashboard.views import board, summary
from orchestrator.dashboard.worker import rules_pass
from orchestrator.domain.dashboard import Actor, Caller
from orchestrator.domain.protocols import Feature
from orchestrator.domain.values import ChatJid, Folder, Group, MessageId
from orchestrator.groups import registration
from orchestrator.groups.host_context import HostContext
from orchestrator.home.directory import Home
from orchestrator.home.settings import Settings
from orchestrator.outbound.delivery import Delivery
from orchestrator.store.database import Database
from orchestrator.store.groups import groups

ZONE = ZoneInfo("Asia/Seoul")
GROUPS, TASKS, NOTIFICATIONS = 10, 10_000, 100_000
TO_COME_OF_100 = 5
LIMIT_MS, PASS_LIMIT_MS, LATE_LIMIT_MS = 200.0, 1_000.0, 1_000.0
DUE, WITHIN_SECONDS = 500, 30.0
DAY_MS = 86_400_000


class Seen:
    """A channel that takes everything and notes when."""

    name = "bench"
    features = frozenset({Feature.IDEMPOTENT})
    max_text_chars = None
    max_file_bytes = None

    def __init__(self) -> None:
        self.at_ms: dict[str, float] = {}

    def owns(self, jid: ChatJid) -> bool:
        del jid
        return True

    async def run(self, receive: Any) -> None:
        del receive

    async def send(self, jid: ChatJid, text: str, message_id: MessageId, **_: Any) -> None:
        del jid, message_id
        self.at_ms[text] = time.time() * 1000

    async def set_typing(self, jid: ChatJid, *, is_typing: bool) -> None:
        del jid, is_typing

    def status(self) -> dict[str, Any]:
        return {}


async def measure(effort: Effort) -> list[Figure]:
    """Every look is at one group of the ten; the rules pass is over all of them, one after another."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store" / "messages.db"
        async with _home(path) as (database, boards, wakeups, bus):
            began = time.perf_counter()
            await _fill(database)
            progress(f"filled in {time.perf_counter() - began:.1f} s, {path.stat().st_size / 2**20:.0f} MiB")
            figures = await _looks(database, boards, effort.times(20, at_least=5))
            figures.append(await _rules(database, boards, effort.times(4) + 1))
            figures.append(await _delivery(database, boards, wakeups, bus, effort))
    return figures


@asynccontextmanager
async def _home(path: Path) -> Any:
    database = await Database.open(path)
    clock, wakeups = SystemClock(), Wakeups()
    bus = EventBus(clock)
    settings = Settings(tz="Asia/Seoul", notify_daily_limit=0)
    host = HostContext(
        home=Home(path.parent.parent),
        settings=settings,
        clock=clock,
        database=database,
        reader=database,
        bus=bus,
        wakeups=wakeups,
    )
    boards = DashboardFeature(host, can_deliver=lambda _: True, has_model=lambda _: False)
    try:
        yield database, boards, wakeups, bus
    finally:
        await database.close()


def _folder(number: int) -> Folder:
    return Folder(f"group{number}")


async def _fill(database: Database) -> None:
    now_ms = SystemClock().now_ms()
    async with database.transaction() as tx:
        for number in range(GROUPS):
            folder = _folder(number)
            jid = ChatJid(f"bench:{folder}")
            await registration.register(tx, Group(jid=jid, name=folder, folder=folder))
            await tx.execute(
                "INSERT INTO dashboards (group_folder, created_ms) VALUES (?, ?)", (folder, now_ms)
            )
            await _fill_one(tx, folder, now_ms)


async def _fill_one(tx: Any, folder: Folder, now_ms: int) -> None:
    tasks = TASKS // GROUPS
    await tx.executemany(
        "INSERT INTO dashboard_tasks (group_folder, id, title, deadline_ms, deadline_date, pct,"
        " last_update_ms, status, priority, context, created_ms, updated_ms, version)"
        " VALUES (?, ?, ?, ?, NULL, ?, ?, 'active', 'medium', ?, ?, ?, 1)",
        [
            (
                folder,
                f"task_{number:08x}",
                f"Write part {number} of the book",
                now_ms + (number % 60 + 2) * DAY_MS,
                number % 90 + 5,
                now_ms - number % 40 * 3_600_000,
                "What is known of it, in a sentence or two.",
                now_ms - 30 * DAY_MS,
                now_ms - DAY_MS,
            )
            for number in range(tasks)
        ],
    )
    count = NOTIFICATIONS // GROUPS
    await tx.executemany(
        "INSERT INTO notifications (group_folder, id, message, due_ms, type, priority, task_id, status,"
        " created_by, created_ms, delivered_ms, version)"
        " VALUES (?, ?, ?, ?, 'reminder', 'medium', ?, ?, 'main_agent', ?, ?, 1)",
        [_notification(folder, number, tasks, now_ms) for number in range(count)],
    )


def _notification(folder: Folder, number: int, tasks: int, now_ms: int) -> tuple[Any, ...]:
    is_to_come = number % 100 < TO_COME_OF_100
    at_ms = now_ms + (number + 1) * 600_000 if is_to_come else now_ms - (number + 1) * 60_000
    return (
        folder,
        f"n_{number:08x}",
        f"Remember part {number}",
        at_ms,
        f"task_{number % tasks:08x}",
        "pending" if is_to_come else "delivered",
        now_ms - DAY_MS,
        None if is_to_come else at_ms,
    )


async def _looks(database: Database, boards: DashboardFeature, times: int) -> list[Figure]:
    async def summarise(folder: Folder) -> int:
        async with database.reading() as tx:
            seen = await board.active(tx, folder)
        assert seen is not None
        return len(summary.render(seen, now_ms=SystemClock().now_ms(), zone=ZONE))

    async def list_them(folder: Folder) -> int:
        async with database.reading() as tx:
            group = await groups.known(tx, folder)
            caller = Caller(actor=Actor.USER, now_ms=SystemClock().now_ms())
            ctx = boards.service.service_context(tx, group, caller)
            return len((await notifications.list_notifications(ctx)).text)

    async def write_out(folder: Folder) -> int:
        found = await asyncio.to_thread(export.read, await database.path(), folder, ZONE)
        assert found is not None
        return sum(len(text) for text in found.contents.values())

    looks: dict[str, Callable[[Folder], Awaitable[int]]] = {
        "summary": summarise,
        "list": list_them,
        "export": write_out,
    }
    return [await _timed(name, look, times) for name, look in looks.items()]


async def _timed(name: str, look: Callable[[Folder], Awaitable[int]], times: int) -> Figure:
    values, chars = [], 0
    for number in range(times + 1):  # the first warms the caches
        began = time.perf_counter()
        chars = await look(_folder(number % GROUPS))
        values.append(1000 * (time.perf_counter() - began))
    progress(f"{name}: {chars:,} characters")
    series = Series(name=f"{name} of one group", unit="ms", values=tuple(values[1:]))
    return Figure(
        name=f"Dashboard: {name}, 1,000 tasks and 10,000 notifications of a home with ten times that",
        measured=series,
        checks=(median_of(series, LIMIT_MS),),
    )


async def _rules(database: Database, boards: DashboardFeature, times: int) -> Figure:
    """The first pass has the most to do; those after it find that done."""
    values, used = [], []
    for number in range(times):
        began, began_using = time.perf_counter(), time.process_time()
        for group in range(GROUPS):
            await _one_pass(database, boards, _folder(group))
        values.append(1000 * (time.perf_counter() - began))
        used.append(1000 * (time.process_time() - began_using))
        progress(f"rules pass {number + 1}: {values[-1]:.0f} ms")
    series = Series(name="a pass over ten dashboards", unit="ms", values=tuple(values))
    first = Check(what="the first", value=values[0], limit=PASS_LIMIT_MS, unit="ms")
    rest = Series(name="a pass, the first left out", unit="ms", values=tuple(values[1:]))
    return Figure(
        name="Dashboard: the rules over 10,000 tasks",
        measured=rest,
        checks=(median_of(rest, PASS_LIMIT_MS), first),
        details=(series, Series(name="processor time of a pass", unit="ms", values=tuple(used))),
    )


async def _one_pass(database: Database, boards: DashboardFeature, folder: Folder) -> None:
    async with database.transaction() as tx:
        group = await groups.known(tx, folder)
        seen = await board.snapshot(tx, folder)
        assert seen is not None
        caller = Caller(actor=Actor.WORKER, now_ms=SystemClock().now_ms())
        await rules_pass.apply(
            boards.service.service_context(tx, group, caller), seen, boards.hours_of(group)
        )


async def _delivery(
    database: Database, boards: DashboardFeature, wakeups: Wakeups, bus: EventBus, effort: Effort
) -> Figure:
    """So many a minute, for as long as there is time: a fifth of them in a fifth of a minute."""
    part = min(1.0, max(effort.of_full, 0.2))
    count, seconds = round(DUE * part), WITHIN_SECONDS * part
    first_ms = SystemClock().now_ms() + 3_000
    due_ms = {f"due {number}": first_ms + round(number * seconds * 1000 / count) for number in range(count)}
    async with database.transaction() as tx:
        await tx.executemany(
            "INSERT INTO notifications (group_folder, id, message, due_ms, type, priority, status,"
            " created_by, created_ms, version)"
            " VALUES (?, ?, ?, ?, 'reminder', 'medium', 'pending', 'user', ?, 1)",
            [
                (_folder(number % GROUPS), f"n_due{number}", text, at_ms, at_ms - 1)
                for number, (text, at_ms) in enumerate(due_ms.items())
            ],
        )
    seen = Seen()
    async with asyncio.TaskGroup() as tasks:
        delivery = Delivery(
            database,
            clock=SystemClock(),
            name="Andy",
            channel_for=lambda _: seen,  # type: ignore[arg-type,return-value]
            tasks=tasks,
            wakeup=wakeups.outbox,
            bus=bus,
            hooks=boards.delivery_hooks,
        )
        loops = [delivery.run, boards.loops()["notifications"]]
        running = [tasks.create_task(loop(), name=f"bench:{number}") for number, loop in enumerate(loops)]
        async with asyncio.timeout(seconds + 60):
            while not due_ms.keys() <= seen.at_ms.keys():  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        for task in running:
            task.cancel()
    late = tuple(max(0.0, seen.at_ms[text] - at_ms) for text, at_ms in due_ms.items())
    series = Series(name=f"lateness of {count} due in {seconds:.0f} s", unit="ms", values=late)
    return Figure(
        name="Dashboard: notifications at their time, 1,000 a minute",
        measured=series,
        checks=(p99_of(series, LATE_LIMIT_MS),),
    )
