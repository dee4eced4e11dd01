"""What fails of something that may pass is tried again, later each time."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.base.retry import attempts


async def tries_of(failures: list[Exception], monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[float]]:
    """How often something was tried that fails of these in turn, and the pauses between."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", pause)
    left, tries = iter(failures), 0
    async for attempt in attempts(
        lambda error: isinstance(error, OSError), first_seconds=1, longest_seconds=4
    ):
        with attempt:
            tries += 1
            if (failure := next(left, None)) is not None:
                raise failure
    return tries, pauses


async def test_it_is_tried_until_it_does_not_fail_with_pauses_that_grow_to_a_bound(monkeypatch):
    tries, pauses = await tries_of([OSError()] * 5, monkeypatch)

    assert tries == 6
    assert [
        longest / 2 <= pause <= longest for pause, longest in zip(pauses, (1, 2, 4, 4, 4), strict=True)
    ] == [True] * 5


async def test_an_error_that_will_not_pass_is_raised_at_once(monkeypatch):
    with pytest.raises(ValueError, match="broken"):
        await tries_of([OSError(), ValueError("broken")], monkeypatch)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError()])
async def test_an_end_is_no_failure(monkeypatch, error):
    with pytest.raises(type(error)):
        await tries_of([error], monkeypatch)
