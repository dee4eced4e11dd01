"""What the tools change is what the chat is told, and when: tools, ledger, dispatcher and outbox are real."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.dashboard_house import DashboardHouse, a_question, alert, blog
from tests.fakes.household import Household
from tests.fakes.notified import NotifiedHouse


class Told:
    """One dashboard, used by its tools, and the messenger that its group hears."""

    def __init__(self, household: Household) -> None:
        self.board = DashboardHouse(household)
        self.chat = NotifiedHouse(household)

    async def at(self, text: str) -> list[str]:
        """Let it become a time of Seoul; gives all that the chat has been told."""
        async with self.chat.delivering():
            await self.chat.look(text)
            await self.chat.until_quiet()
        return self.chat.channel.texts()

    async def use(self, tool: str, /, **arguments: Any) -> None:
        reply = await self.board.chat(tool, **arguments)
        assert reply.ok, reply.text


@pytest.fixture
async def told(household: Household) -> Told:
    await household.add_group("family")
    return Told(household)


async def test_at_07_a_moved_notification_comes_at_its_new_time_only(told: Told) -> None:
    await told.board.put(blog(), alert())
    await told.use("update_notification", notification_id="n_001", scheduled_at="2026-02-10T10:00:00")
    assert await told.at("2026-02-09T23:59:59") == []
    assert await told.at("2026-02-10T09:59:59") == []
    assert await told.at("2026-02-10T10:00:00") == ["Blog due tomorrow"]
    assert (await told.board.notification("n_001")).delivered_ms == 1_770_685_200_000


async def test_at_08_the_new_text_is_what_comes(told: Told) -> None:
    await told.board.put(blog(), alert())
    await told.use("update_notification", notification_id="n_001", message="Post it today")
    assert await told.at("2026-02-09T09:00:00") == ["Post it today"]


async def test_at_09_nothing_comes_of_what_is_completed(told: Told) -> None:
    await told.board.put(blog(), alert(), alert(id="n_002", due_ms=1_770_627_600_000), a_question())
    await told.use("update_task", task_id="task_001", status="completed")
    assert await told.at("2026-02-09T09:00:00") == []
    assert await told.at("2026-02-09T18:00:00") == []


async def test_at_10_nothing_comes_of_what_is_cancelled(told: Told) -> None:
    await told.board.put(blog(), alert())
    await told.use("cancel_notification", notification_id="n_001")
    assert await told.at("2026-02-09T09:00:00") == []
