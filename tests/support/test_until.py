"""Test that waiting returns once its condition is true, and names the condition when the deadline passes."""

from __future__ import annotations

import pytest

from tests.support import until as waiting
from tests.support.until import until


async def test_it_returns_once_the_condition_holds():
    answers = iter([False, False, True])

    await until(lambda: next(answers), "the third answer")

    assert list(answers) == []


async def test_it_asks_coroutines_too():
    async def holds():
        return True

    await until(holds, "at once")


async def test_it_says_what_it_waited_for(monkeypatch):
    monkeypatch.setattr(waiting, "DEADLINE_SECONDS", 0.01)

    with pytest.raises(AssertionError, match="the moon"):
        await until(lambda: False, "the moon")
