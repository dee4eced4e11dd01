"""Reminders that were set otherwise are listed, changed and cancelled as notifications."""

from __future__ import annotations

from orchestrator.dashboard.views import board, summary
from orchestrator.domain.values import ChatJid, Folder, Group, ReminderState
from orchestrator.store import chats, groups, reminders
from tests.support.dashboard_harness import (
    FEB_9_0830,
    FEB_9_1200,
    FOLDER,
    HOUR_MS,
    DashboardHouse,
    alert,
    blog,
)


async def set_pill(home: DashboardHouse, *, due_ms: int = FEB_9_1200) -> int:
    async with home.house.database.transaction() as tx:
        group = await groups.known(tx, FOLDER)
        return await reminders.add(tx, group, text="pill", due_ms=due_ms, now_ms=FEB_9_0830)


async def stored(home: DashboardHouse, number: int) -> tuple[str, int, ReminderState]:
    async with home.house.database.reading() as tx:
        one = await reminders.get(tx, number)
    assert one is not None
    return one.text, one.due_ms, one.state


async def test_they_are_listed_together_by_due_time(home: DashboardHouse) -> None:
    await home.put(blog(), alert())
    await set_pill(home, due_ms=FEB_9_0830 + 10 * 60_000)
    listed = await home.chat("list_notifications", status="pending")
    assert [one["id"] for one in listed.data["notifications"]] == ["reminder_1", "n_001"]
    assert "pill" in listed.text
    for elsewhere in ({"status": "delivered"}, {"type": "deadline_alert"}, {"related_task_id": "task_001"}):
        assert "pill" not in (await home.chat("list_notifications", **elsewhere)).text
    assert "pill" not in (await home.chat("list_notifications", from_time="2026-02-09T10:00")).text
    assert "pill" in (await home.chat("list_notifications", notification_id="reminder_1")).text


async def test_an_agent_sees_them_on_its_dashboard(home: DashboardHouse) -> None:
    await home.put(blog())
    await set_pill(home)
    async with home.house.database.reading() as tx:
        seen = await board.active(tx, FOLDER)
    assert seen is not None
    assert "reminder_1" in summary.render(seen, now_ms=FEB_9_0830, zone=home.zone)


async def test_one_is_moved_reworded_and_cancelled(home: DashboardHouse) -> None:
    number = await set_pill(home)
    moved = await home.chat(
        "update_notification", notification_id="reminder_1", message="two pills", scheduled_at="in 1 hour"
    )
    assert moved.ok, moved.text
    assert await stored(home, number) == ("two pills", FEB_9_0830 + HOUR_MS, ReminderState.PENDING)
    same = await home.chat("update_notification", notification_id="reminder_1", priority="high")
    assert same.code == "NOTHING_TO_CHANGE"
    past = await home.chat(
        "update_notification", notification_id="reminder_1", scheduled_at="2026-02-08T09:00"
    )
    assert (past.ok, past.code) == (False, "PAST_TIME")
    for said in ("is cancelled", "was cancelled before"):
        cancelled = await home.chat("cancel_notification", notification_id="reminder_1", reason="done")
        assert cancelled.ok
        assert said in cancelled.text
    assert (await stored(home, number))[2] is ReminderState.CANCELLED
    late = await home.chat("update_notification", notification_id="reminder_1", message="x")
    assert late.code == "NOT_PENDING"


async def test_one_that_was_sent_is_not_cancelled(home: DashboardHouse) -> None:
    number = await set_pill(home)
    async with home.house.database.transaction() as tx:
        await reminders.close(tx, number, ReminderState.SENT)
    assert (await home.chat("cancel_notification", notification_id="reminder_1")).code == "ALREADY_DELIVERED"


async def test_nothing_is_said_of_another_groups(home: DashboardHouse) -> None:
    other = Group(folder=Folder("work"), jid=ChatJid("local:work"), name="Work")
    async with home.house.database.transaction() as tx:
        await chats.upsert(tx, other.jid, channel="local", is_group=True, name="Work", at_ms=FEB_9_0830)
        await reminders.add(tx, other, text="secret", due_ms=FEB_9_1200, now_ms=FEB_9_0830)
    for tool, more in (
        ("list_notifications", {}),
        ("update_notification", {"message": "x"}),
        ("cancel_notification", {}),
    ):
        reply = await home.chat(tool, notification_id="reminder_1", **more)
        assert (reply.code, "secret" in reply.text) == ("NOT_FOUND", False)
    assert "secret" not in (await home.chat("list_notifications")).text
