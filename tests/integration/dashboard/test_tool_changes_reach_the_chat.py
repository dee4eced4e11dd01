"""What the tools change is what the chat is told, and when: tools, ledger, dispatcher and outbox are real."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.domain.values import Outgoing
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Tx
from tests.support.dashboard_harness import DashboardHarness, a_question, alert, blog
from tests.support.notification_harness import NotificationHarness
from tests.support.store_harness import StoreHarness


class Told:
    """One dashboard, used by its tools, and the messenger that its group hears."""

    def __init__(self, store_harness: StoreHarness) -> None:
        self.board = DashboardHarness(store_harness)
        self.chat = NotificationHarness(store_harness)

    async def at(self, text: str) -> list[str]:
        """Let it become a time of Seoul; gives all that the chat has been told."""
        async with self.chat.delivering():
            await self.chat.look(text)
            await self.chat.until_quiet()
        return self.chat.channel.texts()

    async def call_tool(self, tool: str, /, **arguments: Any) -> None:
        reply = await self.board.chat(tool, **arguments)
        assert reply.ok, reply.text


@pytest.fixture
async def told(store_harness: StoreHarness) -> Told:
    await store_harness.add_group("family")
    return Told(store_harness)


async def test_at_07_a_moved_notification_comes_at_its_new_time_only(told: Told) -> None:
    await told.board.put(blog(), alert())
    await told.call_tool("update_notification", notification_id="n_001", scheduled_at="2026-02-10T10:00:00")
    assert await told.at("2026-02-09T23:59:59") == []
    assert await told.at("2026-02-10T09:59:59") == []
    assert await told.at("2026-02-10T10:00:00") == ["Blog due tomorrow"]
    assert (await told.board.notification("n_001")).delivered_ms == 1_770_685_200_000


async def test_at_08_the_new_text_is_what_comes(told: Told) -> None:
    await told.board.put(blog(), alert())
    await told.call_tool("update_notification", notification_id="n_001", message="Post it today")
    assert await told.at("2026-02-09T09:00:00") == ["Post it today"]


async def test_at_09_nothing_comes_of_what_is_completed(told: Told) -> None:
    await told.board.put(blog(), alert(), alert(id="n_002", due_ms=1_770_627_600_000), a_question())
    await told.call_tool("update_task", task_id="task_001", status="completed")
    assert await told.at("2026-02-09T09:00:00") == []
    assert await told.at("2026-02-09T18:00:00") == []


async def test_at_10_nothing_comes_of_what_is_cancelled(told: Told) -> None:
    await told.board.put(blog(), alert())
    await told.call_tool("cancel_notification", notification_id="n_001")
    assert await told.at("2026-02-09T09:00:00") == []


async def test_at_08_a_text_that_is_changed_after_the_claim_is_what_comes(told: Told) -> None:
    await told.board.put(blog(), alert())
    await told.chat.look("2026-02-09T09:00:00")
    assert (await told.board.notification("n_001")).status.value == "sending"
    await told.call_tool("update_notification", notification_id="n_001", message="Post it today")
    assert await told.at("2026-02-09T09:00:00") == ["Post it today"]
    sent = await told.board.notification("n_001")
    assert (sent.status.value, sent.attempts) == ("delivered", 1)


async def test_at_07_one_that_is_moved_after_the_claim_comes_at_its_new_time_only(told: Told) -> None:
    await told.board.put(blog(), alert())
    await told.chat.look("2026-02-09T09:00:00")
    await told.call_tool("update_notification", notification_id="n_001", scheduled_at="2026-02-10T10:00:00")
    assert await told.at("2026-02-09T09:00:00") == []
    assert await told.at("2026-02-10T10:00:00") == ["Blog due tomorrow"]


async def test_what_the_messenger_has_already_is_past_changing(told: Told) -> None:
    await told.board.put(blog(), alert())
    await told.chat.look("2026-02-09T09:00:00")
    async with told.board.harness.database.transaction() as tx:
        await tx.execute("UPDATE outbox SET state = 'sending'")
    reply = await told.board.chat("update_notification", notification_id="n_001", message="Post it today")
    assert (reply.code, reply.data["status"]) == ("NOT_PENDING", "sending")
    assert (await told.board.notification("n_001")).message == "Blog due tomorrow"


async def test_a_message_called_back_after_it_was_read_from_the_outbox_is_not_sent(told: Told) -> None:
    """As when the change is committed between the reading of what waits and the last look before the send."""
    await told.board.put(blog(), alert())
    await told.chat.look("2026-02-09T09:00:00")
    read = outbox.heads

    async def changed_meanwhile(tx: Tx) -> list[Outgoing]:
        found = await read(tx)
        await tx.execute("UPDATE outbox SET state = 'held'")
        await tx.execute(
            "UPDATE notifications SET status = 'pending', message = 'Post it today', claim_token = NULL, "
            "claim_until_ms = NULL"
        )
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outbox, "heads", changed_meanwhile)
        async with told.chat.delivering():
            await told.chat.until_quiet()
    assert told.chat.channel.texts() == []
    assert await told.at("2026-02-09T09:00:00") == ["Post it today"]
