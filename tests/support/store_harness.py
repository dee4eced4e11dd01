"""A host's stages on a real database, without containers.

A test takes the place of the pool: it starts and ends the turns.
"""

from __future__ import annotations

import itertools
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from agent_runner.wire.frames import Ack, Frame, Result, TurnEnd
from agent_runner.wire.order import TurnOrder
from orchestrator.base.announcements import announce_in_host
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.containers import frame_effects
from orchestrator.domain.failures import FailureOwner
from orchestrator.domain.protocols import Channel
from orchestrator.domain.values import (
    ChatJid,
    Folder,
    Group,
    Inbound,
    Message,
    MessageId,
    Outgoing,
    Role,
    Run,
    RunId,
    Turn,
    TurnState,
)
from orchestrator.groups import registration
from orchestrator.inbound import prompt
from orchestrator.inbound.intake import Accepted, Intake
from orchestrator.outbound.delivery import Delivery, DeliveryHooks
from orchestrator.queue.retries import requeue_or_fail
from orchestrator.store.conversation import messages, outbox
from orchestrator.store.database import Database
from orchestrator.store.groups import groups
from orchestrator.store.runs import runs, turns
from tests.doubles.clock import FakeClock
from tests.support.delivering import delivering

SEOUL = ZoneInfo("Asia/Seoul")


def a_group(folder: str = "family", **changes: Any) -> Group:
    fields = {"jid": ChatJid(f"local:{folder}"), "name": folder.title(), "folder": Folder(folder)}
    return Group(**{**fields, **changes})


def a_message(text: str, folder: str = "family", **changes: Any) -> Inbound:
    fields = {
        "chat_jid": ChatJid(f"local:{folder}"),
        "id": MessageId(f"M{next(_NUMBERS)}"),
        "sender": "local:jane",
        "sender_name": "Jane",
        "text": text,
        "sent_ms": 1_780_000_000_000,
    }
    return Inbound(**{**fields, **changes})


_NUMBERS = itertools.count(1)


@dataclass
class StoreHarness:
    """A store with groups, and whoever writes in them; what the pool would do, a test does."""

    database: Database
    clock: FakeClock
    wakeups: Wakeups = field(default_factory=Wakeups)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.bus = EventBus(self.clock)
        self.database.announce = partial(announce_in_host, self.bus, self.wakeups)
        self.intake = Intake(self.database, clock=self.clock, name="Andy", wakeups=self.wakeups, bus=self.bus)

    async def add_group(self, folder: str = "family", **changes: Any) -> Group:
        group = a_group(folder, **changes)
        async with self.database.transaction() as tx:
            await registration.register(tx, group)
        return group

    async def hear(self, text: str, folder: str = "family", **changes: Any) -> Accepted:
        return await self.intake.accept(a_message(text, folder, **changes))

    # What the pool does

    async def begin_run(
        self, folder: str = "family", *, is_isolated: bool = False, role: Role | None = None
    ) -> Run:
        number = next(self.numbers)
        run = Run(
            id=RunId(f"run-{number}"),
            folder=Folder(folder),
            is_isolated=is_isolated,
            runtime="none",
            container_ref=None,
            token_hash=f"hash-{number}",
            last_frame=0,
            started_ms=self.clock.now_ms(),
            ended_ms=None,
            exit_kind=None,
            exit_detail=None,
            role=role,
        )
        async with self.database.transaction() as tx:
            await runs.begin(tx, run)
        return run

    async def give(self, turn: Turn, run: Run) -> TurnOrder:
        """Start a queued turn in a run, with the order as the store makes it then."""
        async with self.database.transaction() as tx:
            await turns.start(tx, turn.id, run.id, now_ms=self.clock.now_ms())
            group = await groups.known(tx, turn.folder)
            return await prompt.compose(
                tx, turn, group, run_id=run.id, name="Andy", zone=SEOUL, now_ms=self.clock.now_ms()
            )

    async def start_next(self, folder: str = "family") -> tuple[Turn, Run, TurnOrder]:
        """Start the group's queued turn in a new run, at its time."""
        turn = (await self.queued(folder))[0]
        self.clock.wall_ms = max(self.clock.wall_ms, turn.not_before_ms)
        role = turn.role if turn.is_restricted else None
        run = await self.begin_run(folder, is_isolated=turn.is_isolated, role=role)
        return turn, run, await self.give(turn, run)

    async def take(self, run: Run, frame: Frame) -> frame_effects.FrameEffect | None:
        async with self.database.transaction() as tx:
            return await frame_effects.apply(
                tx, run, frame, requeue=requeue_or_fail, now_ms=self.clock.now_ms()
            )

    async def answer(self, *texts: str, folder: str = "family") -> Turn:
        """A whole good turn: started, acknowledged, said, ended."""
        turn, run, _ = await self.start_next(folder)
        said: list[Frame] = [Result(n=n, turn=turn.id, result=text) for n, text in enumerate(texts, start=2)]
        for frame in [Ack(n=1, turn=turn.id), *said, TurnEnd(n=len(said) + 2, turn=turn.id)]:
            await self.take(run, frame)
        return turn

    async def lose(
        self, run: Run, *, is_retryable: bool = True, fault: FailureOwner = FailureOwner.TURN
    ) -> None:
        """The container is gone; what was in it goes back."""
        now_ms = self.clock.now_ms()
        async with self.database.transaction() as tx:
            await runs.end(tx, run.id, kind="lost", detail="", now_ms=now_ms)
            turn = await turns.running_in(tx, run.id)
            if turn is not None:
                await requeue_or_fail(
                    tx, turn, reason="it broke.", is_retryable=is_retryable, now_ms=now_ms, fault=fault
                )

    async def deliver_all(self) -> list[str]:
        """Send what waits in the outbox, in its order; gives the texts."""
        sent = []
        async with self.database.transaction() as tx:
            while due := await outbox.heads(tx):
                for one in due:
                    await outbox.finish(tx, one.id, outbox.OutboxState.SENT, now_ms=self.clock.now_ms())
                    await messages.add_own(tx, one, text=one.text, name="Andy", now_ms=self.clock.now_ms())
                    sent.append(one.text)
        return sent

    def delivering(
        self, channel: Channel, hooks: DeliveryHooks | None = None
    ) -> AbstractAsyncContextManager[Delivery]:
        """Send what waits in the outbox to a messenger, while the block runs."""
        wakeup = self.wakeups.outbox
        return delivering(self.database, channel, clock=self.clock, wakeup=wakeup, bus=self.bus, hooks=hooks)

    # What the store holds

    async def turn(self, turn_id: int) -> Turn:
        async with self.database.reading() as tx:
            found = await turns.get(tx, turn_id)  # type: ignore[arg-type]
        assert found is not None
        return found

    async def queued(self, folder: str = "family") -> list[Turn]:
        async with self.database.reading() as tx:
            found = await turns.unsettled(tx)
        return [one for one in found if one.folder == folder and one.state is TurnState.QUEUED]

    async def outgoing(self) -> list[Outgoing]:
        async with self.database.reading() as tx:
            return await outbox.unsent(tx, limit=10_000)

    async def messages(self, folder: str = "family") -> list[Message]:
        async with self.database.reading() as tx:
            return await messages.newest(tx, ChatJid(f"local:{folder}"), limit=10_000)

    async def rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        async with self.database.reading() as tx:
            return [dict(row) for row in await tx.execute_fetchall(sql, values)]
