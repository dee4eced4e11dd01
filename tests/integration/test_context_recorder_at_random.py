"""Whatever happens in whatever order, with writes that fail: the context says what the store says."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator.context import disk
from orchestrator.context.files import CONTEXT
from orchestrator.context.message_mapping import answer_text, question_text
from orchestrator.context.models import Context
from orchestrator.context.recorder import ContextRecorder
from orchestrator.context.tokens import EstimatingCounter
from orchestrator.domain.errors import ContextBusy
from orchestrator.domain.values import Folder, SessionCommand, TurnState
from orchestrator.store.conversation import exchanges
from orchestrator.store.groups import groups
from orchestrator.store.runs import turns
from tests.support.store_harness import StoreHarness

STEPS = 25
FAMILY = Folder("family")


class World:
    """A group that talks, and hosts that come and go."""

    def __init__(self, store_harness: StoreHarness, home: Path, dice: random.Random) -> None:
        self.store_harness = store_harness
        self.home = home
        self.dice = dice
        self.number = 0
        self.recorder = self._host()

    def _host(self) -> ContextRecorder:
        return ContextRecorder(
            self.store_harness.database,
            contexts=self.home / "context",
            env=self.home / "env",
            counter=EstimatingCounter(),
            clock=self.store_harness.clock,
            bus=self.store_harness.bus,
            name="Andy",
            on_notified=self.store_harness.wakeups.outbox.set,
        )

    async def step(self) -> None:
        self.store_harness.clock.wall_ms += self.dice.randrange(2_000)
        await self.dice.choice((self.ask, self.ask, self.answer, self.answer, self.lose, self.clear))()
        if self.dice.random() < 0.2:
            self.recorder = self._host()
        if self.dice.random() < 0.7:
            with suppress(OSError, ContextBusy):
                await self.recorder.catch_up(FAMILY)

    async def ask(self) -> None:
        self.number += 1
        await self.store_harness.hear(f"@Andy question {self.number}")

    async def answer(self) -> None:
        if await self._may_start():
            await self.store_harness.answer(
                *self.dice.choice((("yes",), ("let me see", "no"), (), ("SILENT",)))
            )

    async def lose(self) -> None:
        """A turn that is tried again, or fails, after a look in the middle of it."""
        if not await self._may_start():
            return
        _, run, _ = await self.store_harness.start_next()
        with suppress(OSError, ContextBusy):
            await self.recorder.catch_up(FAMILY)
        await self.store_harness.lose(run, is_retryable=self.dice.random() < 0.7)

    async def clear(self) -> None:
        if self.dice.random() < 0.6 or await self.store_harness.queued():
            return
        async with self.store_harness.database.transaction() as tx:
            group = await groups.known(tx, FAMILY)
            turn = await turns.add_command(tx, group.folder, group.jid, SessionCommand.CLEAR, now_ms=0)
            await turns.settle(tx, turn, TurnState.ANSWERED, reason="cleared", now_ms=0)

    async def _may_start(self) -> bool:
        return bool(await self.store_harness.queued())

    async def told(self) -> list[tuple[str, str]]:
        """What the store says since the conversation was cleared last."""
        async with self.store_harness.database.reading() as tx:
            group = await groups.known(tx, FAMILY)
            found = await exchanges.after(tx, FAMILY, 0, limit=1_000)
        told: list[tuple[str, str]] = []
        for one in found:
            if one.command is SessionCommand.CLEAR:
                told = []
                continue
            told.append((f"t{one.turn}.u", question_text(one, group, name="Andy")))
            if one.is_settled and answer_text(one):
                told.append((f"t{one.turn}.a", answer_text(one)))
        return told

    def kept(self) -> Context:
        return self.recorder.manager(FAMILY).load(now_ms=0).context


@pytest.mark.parametrize("seed", range(12))
async def test_in_the_end_the_context_says_what_the_store_says(
    store_harness: StoreHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = random.Random(seed)
    await store_harness.add_group()
    world = World(store_harness, tmp_path, dice)
    write = disk.write_durably

    def write_perhaps(path: Path, data: bytes) -> None:
        if path.name == CONTEXT and dice.random() < 0.3:
            raise OSError(28, "No space left on device")
        write(path, data)

    with monkeypatch.context() as broken:
        broken.setattr(disk, "write_durably", write_perhaps)
        for _ in range(STEPS):
            await world.step()
    await world.recorder.catch_up(FAMILY)
    kept = world.kept()
    window: list[Any] = [(one.id, one.content) for one in kept.conversation.recent_window]
    told = await world.told()
    assert sorted(window) == sorted(told)
    assert len(window) < 60, "nothing has left the window, or this would prove nothing"
    open_turns = {f"t{one.id}.u" for one in await store_harness.queued()}
    assert kept.pending_user in {None, *open_turns}
