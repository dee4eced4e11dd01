"""A message to a store that holds 100,000 of its chat, beside one that holds 100."""

from __future__ import annotations

import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from zoneinfo import ZoneInfo

from benchmarks.figures import Figure, Series, ratio_of
from benchmarks.places import Effort, progress
from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.domain.values import (
    ChatJid,
    Folder,
    Group,
    Inbound,
    MessageId,
    Run,
    RunId,
    Seq,
    TurnId,
    TurnState,
)
from orchestrator.groups import registration
from orchestrator.groups.registration import local_address
from orchestrator.inbound import prompt
from orchestrator.inbound.intake import Intake
from orchestrator.store.conversation import messages
from orchestrator.store.database import Database, Tx
from orchestrator.store.runs import runs, sessions, turns

FEW, MANY = 100, 100_000
PAST = 100
"""So many have been said since the last answer."""
TIMES = 200
TIMES_THE_FEW = 1.25
FOLDER = Folder("family")
RUN = RunId("bench")
UTC = ZoneInfo("UTC")
TEXT = "what was said on a day like any other, in about as many words as people use"


async def measure(effort: Effort) -> list[Figure]:
    """In turns, in one process: the stages as the host joins them, on databases of their own."""
    with tempfile.TemporaryDirectory(prefix="andy-bench-") as folder:
        async with AsyncExitStack() as stack:
            few = await _house(stack, Path(folder) / "few.db", FEW)
            many = await _house(stack, Path(folder) / "many.db", effort.size(MANY, smallest=2 * FEW))
            for number in range(effort.times(TIMES) + 5):
                for house in (few, many):
                    await _message(house, number, is_counted=number >= 5)
    return [
        _figure("Intake", many.intake_ms, few.intake_ms),
        _figure("A prompt of a new message", many.prompt_ms, few.prompt_ms),
        _figure(f"A prompt of {PAST} messages of the past", many.past_ms, few.past_ms),
    ]


@dataclass(slots=True, kw_only=True)
class House:
    database: Database
    intake: Intake
    clock: SystemClock
    group: Group
    intake_ms: list[float] = field(default_factory=list)
    prompt_ms: list[float] = field(default_factory=list)
    past_ms: list[float] = field(default_factory=list)


async def _house(stack: AsyncExitStack, path: Path, stored: int) -> House:
    database = await Database.open(path)
    stack.push_async_callback(database.close)
    clock = SystemClock()
    group = Group(jid=local_address(FOLDER), name="Family", folder=FOLDER, requires_trigger=False)
    async with database.transaction() as tx:
        await registration.register(tx, group)
        await runs.begin(tx, _run(clock.now_ms()))
        for number in range(stored):
            await _store(tx, _inbound(f"old-{number}", clock.now_ms()), clock.now_ms())
        await sessions.move_cursor(tx, FOLDER, Seq(stored))
    progress(f"{stored:,} messages are stored")
    intake = Intake(database, clock=clock, name="Andy", wakeups=Wakeups(), bus=EventBus(clock))
    return House(database=database, intake=intake, clock=clock, group=group)


async def _store(tx: Tx, message: Inbound, now_ms: int) -> None:
    await messages.add(
        tx, message, received_ms=now_ms, is_request=False, turn_id=None, ignored_reason="no trigger"
    )


async def _message(house: House, number: int, *, is_counted: bool) -> None:
    began = time.perf_counter()
    accepted = await house.intake.accept(_inbound(f"new-{number}", house.clock.now_ms()))
    took = [1000 * (time.perf_counter() - began)]
    assert accepted.turn_id is not None
    assert accepted.seq is not None
    took.append(await _prompt(house, accepted.turn_id, Seq(accepted.seq - 1)))
    took.append(await _prompt(house, accepted.turn_id, Seq(max(0, accepted.seq - PAST))))
    async with house.database.transaction() as tx:
        now_ms = house.clock.now_ms()
        await turns.start(tx, accepted.turn_id, RUN, now_ms=now_ms)
        await turns.settle(tx, accepted.turn_id, TurnState.ANSWERED, reason=None, now_ms=now_ms)
    if is_counted:
        for series, ms in zip((house.intake_ms, house.prompt_ms, house.past_ms), took, strict=True):
            series.append(ms)


async def _prompt(house: House, turn_id: TurnId, cursor: Seq) -> float:
    """Milliseconds to write a turn's order, when all up to `cursor` has been answered."""
    async with house.database.transaction() as tx:
        await tx.execute("UPDATE router_state SET value = ? WHERE key LIKE 'cursor%'", (str(cursor),))
        turn = await turns.get(tx, turn_id)
        assert turn is not None
        assert await sessions.cursor_of(tx, FOLDER) == cursor
        began = time.perf_counter()
        await prompt.compose(
            tx, turn, house.group, run_id=RUN, name="Andy", zone=UTC, now_ms=house.clock.now_ms()
        )
        return 1000 * (time.perf_counter() - began)


def _inbound(name: str, now_ms: int) -> Inbound:
    return Inbound(
        chat_jid=ChatJid(local_address(FOLDER)),
        id=MessageId(name),
        sender="local:jane",
        sender_name="Jane",
        text=f"{TEXT} ({name})",
        sent_ms=now_ms,
    )


def _run(now_ms: int) -> Run:
    return Run(
        id=RUN,
        folder=FOLDER,
        is_isolated=False,
        runtime="none",
        container_ref=None,
        token_hash="bench",
        last_frame=0,
        started_ms=now_ms,
        ended_ms=None,
        exit_kind=None,
        exit_detail=None,
    )


def _figure(name: str, many: list[float], few: list[float]) -> Figure:
    measured = Series(name=f"{MANY:,} stored", unit="ms", values=tuple(many))
    floor = Series(name=f"{FEW:,} stored", unit="ms", values=tuple(few))
    return Figure(
        name=f"{name}, {MANY:,} messages beside {FEW:,}",
        measured=measured,
        floor=floor,
        checks=(ratio_of(measured, floor, TIMES_THE_FEW),),
    )
