"""How models count is learned from the ledger, from answers that were nothing but text."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orchestrator.context.tokens import START_FACTOR, EstimatingCounter, TokenCalibration, TokenFactors
from orchestrator.domain.values import Folder, RunId, TurnKind
from orchestrator.store.money import usage
from tests.support.store_harness import StoreHarness
from tests.support.until import until

TEXT = "x" * 3_000
"""A thousand tokens of the counter."""


@pytest.fixture
async def harness(store_harness: StoreHarness) -> StoreHarness:
    await store_harness.add_group()
    return store_harness


@pytest.fixture
def factors(tmp_path: Path) -> TokenFactors:
    return TokenFactors(tmp_path / "token-factors.json")


@pytest.fixture
def lessons(harness: StoreHarness, factors: TokenFactors) -> TokenCalibration:
    return TokenCalibration(
        harness.database, factors=factors, counter=EstimatingCounter(), clock=harness.clock, bus=harness.bus
    )


async def answered(harness: StoreHarness, *outputs: int, model: str | None = "opus", **changes: Any) -> None:
    """A turn that took an answer of a model for each of `outputs`."""
    await harness.hear("@Andy tell me")
    harness.clock.wall_ms += 1_000
    turn = await harness.answer(TEXT)
    async with harness.database.transaction() as tx:
        for tokens in outputs:
            fields = {
                "at_ms": harness.clock.now_ms(),
                "folder": Folder("family"),
                "run_id": RunId("run-1"),
                "turn_id": turn.id,
                "kind": TurnKind.CHAT,
                "task_id": None,
                "model": model,
                "input_tokens": 9_000,
                "output_tokens": tokens,
                "cache_read_tokens": 0,
                "cache_write_tokens": 0,
                "cost_nano_usd": None,
                "is_whole": True,
            }
            await usage.add(tx, usage.UsageEntry(**{**fields, **changes}))


async def test_an_answer_of_text_teaches_once(
    harness: StoreHarness, lessons: TokenCalibration, factors: TokenFactors
):
    await answered(harness, 1_400)
    await lessons.learn()
    assert factors.of("opus") == START_FACTOR, "the ledger may not have all of it yet"

    harness.clock.wall_ms += 10_000
    for _ in range(2):
        await lessons.learn()

    assert factors.of("opus") == pytest.approx(1.24)


@pytest.mark.parametrize(
    ("outputs", "changes"),
    [
        ((700, 700), {}),
        ((), {}),
        ((1_400,), {"model": None}),
        ((1_400,), {"is_whole": False}),
        ((9_000,), {}),
        ((1_400,), {"turn_id": None}),
    ],
    ids=["tools_were_used", "no_model", "which_model", "cut", "mostly_thought", "no_turn"],
)
async def test_what_is_not_the_text_alone_teaches_nothing(
    harness: StoreHarness,
    lessons: TokenCalibration,
    factors: TokenFactors,
    outputs: tuple[int, ...],
    changes: dict[str, Any],
):
    await answered(harness, *outputs, **changes)
    harness.clock.wall_ms += 10_000

    await lessons.learn()

    assert factors.of("opus") == factors.of(None) == START_FACTOR


async def test_each_answered_turn_has_it_look_at_those_before(
    harness: StoreHarness, lessons: TokenCalibration, factors: TokenFactors
):
    await answered(harness, 1_400)
    harness.clock.wall_ms += 10_000

    following = asyncio.create_task(lessons.run(), name="token-lessons")
    try:

        def has_learned() -> bool:
            harness.bus.publish("turn.answered", group="family", turn=2)
            return factors.of("opus") > START_FACTOR

        await until(has_learned, "a lesson")
    finally:
        following.cancel()


async def test_a_clock_that_was_ahead_and_is_set_right_teaches_on(
    harness: StoreHarness, lessons: TokenCalibration, factors: TokenFactors
):
    harness.clock.wall_ms += 31_536_000_000
    await lessons.learn()
    harness.clock.wall_ms -= 31_536_000_000
    await lessons.learn()

    await answered(harness, 1_400)
    harness.clock.wall_ms += 10_000
    await lessons.learn()

    assert factors.of("opus") > START_FACTOR
