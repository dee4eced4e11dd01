"""Facts of the host that reach a group's agent as notices: each kept with the fact, none beginning a turn."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from orchestrator.containers import mount_allowlist
from orchestrator.containers.run_orders import RunOrders
from orchestrator.domain.dashboard import Actor, NotificationType, Priority
from orchestrator.domain.errors import ChannelRefused
from orchestrator.domain.values import ChatJid, Folder, MessageId, OutboxState, Outgoing
from orchestrator.groups import owner
from orchestrator.store.conversation import outbox
from orchestrator.store.notices import host_events, notices
from orchestrator.store.notices.host_events import joined_line
from orchestrator.store.notices.notices import MAX_HOST_FACTS, NoticeRow
from tests.support.dashboards import a_notification, a_task
from tests.support.host_contexts import host_context
from tests.support.notice_harness import NoticeHarness, told
from tests.support.notification_harness import NotificationHarness

FAMILY = Folder("family")
REMINDER = {"type": NotificationType.REMINDER, "priority": Priority.MEDIUM, "created_by": Actor.MAIN_AGENT}


@pytest.fixture
async def home(store_harness) -> NoticeHarness:
    await store_harness.add_group()
    return NoticeHarness(store_harness)


async def waiting(home: NoticeHarness, folder: str = "family") -> list[NoticeRow]:
    async with home.harness.database.reading() as tx:
        found = await notices.of_group(tx, Folder(folder), with_ended=False, limit=100)
    return [one for one in found if one.maker is notices.NoticeMaker.HOST]


async def no_turn_waits(home: NoticeHarness) -> bool:
    return not await home.harness.queued()


async def post(home: NoticeHarness, text: str, key: str) -> None:
    async with home.harness.database.transaction() as tx:
        now_ms = home.harness.clock.now_ms()
        await outbox.add(
            tx, chat_jid=ChatJid("local:family"), text=text, dedupe_key=key, folder=FAMILY, now_ms=now_ms
        )


async def test_a_reply_that_could_not_be_delivered_is_noticed_in_the_next_turn(home):
    told_harness = NotificationHarness(home.harness)
    told_harness.channel.will("local:family", ChannelRefused("no such chat"))
    await post(home, f"the answer is 42 {'and so on ' * 50}", "k1")
    async with told_harness.delivering():
        await told_harness.until_quiet()

    (fact,) = await waiting(home)
    assert (fact.event_type, fact.priority, fact.severity) == ("host.reply.undelivered", "high", "error")
    assert fact.message.startswith("Not delivered, and not tried again: “the answer is 42 and so on")
    assert (len(fact.message) < 200, "no such chat" in fact.message) == (True, True)
    assert await no_turn_waits(home)
    turn, run, order = await home.begin()
    assert [one.event_type for one in order.notices] == ["host.reply.undelivered"]
    await home.end(turn, run, told(fact.id))
    assert await home.turn() == ()


async def test_a_notice_that_was_lost_too_is_quoted_by_the_answer_that_it_named(home):
    first, second = "Added to your list: yam.", "Added to your list: jam."
    async with home.harness.database.transaction() as tx:
        lost = an_outgoing(first)
        await host_events.reply_undelivered(
            tx, lost, "no answer", is_known=False, now_ms=home.harness.clock.now_ms()
        )
    (fact,) = await waiting(home)
    turn, run, _ = await home.begin()
    await home.end(turn, run, told(fact.id))
    # As the agent without a model shows it: before its answer, which is lost as well.
    async with home.harness.database.transaction() as tx:
        lost = an_outgoing(f"⚠️ {fact.message}\n\n{second}")
        await host_events.reply_undelivered(
            tx, lost, "no answer", is_known=False, now_ms=home.harness.clock.now_ms()
        )
    (again,) = [one for one in await waiting(home) if one.id != fact.id]
    lead = "Perhaps not delivered, and not tried again lest it be read twice"
    assert again.message == f"{lead}: “{first}” (no answer); “{second}” (no answer)"


async def test_what_may_have_arrived_is_not_said_to_be_missing_when_its_notice_is_refused(home):
    lost = an_outgoing(f"⚠️ {host_events.PERHAPS_NOT_DELIVERED}: “yam” (no answer)\n\njam")
    async with home.harness.database.transaction() as tx:
        now_ms = home.harness.clock.now_ms()
        await host_events.reply_undelivered(tx, lost, "refused", is_known=True, now_ms=now_ms)
    assert sorted(one.message for one in await waiting(home)) == [
        "Not delivered, and not tried again: “jam” (refused)",
        "Perhaps not delivered, and not tried again lest it be read twice: “yam” (no answer)",
    ]


def an_outgoing(text: str) -> Outgoing:
    return Outgoing(
        id=1, folder=FAMILY, chat_jid=ChatJid("local:family"), text=text, message_id=MessageId("M"),
        state=OutboxState.SENDING, attempts=1, next_attempt_ms=0, created_ms=0, sent_ms=None, turn_id=None,
        error=None,
    )  # fmt: skip


async def test_facts_of_one_kind_are_one_notice_while_they_wait_counted_and_the_newest_named(home):
    """N-21, N-26."""
    async with home.harness.database.transaction() as tx:
        for number in range(7):
            await host_events.notification_delivered(tx, FAMILY, f"text {number}", now_ms=number)
    (fact,) = await waiting(home)
    assert (fact.count, fact.payload["items"]) == (7, [f"“text {number}”" for number in range(2, 7)])
    assert fact.message == "Sent to the chat: “text 2”; “text 3”; “text 4”; “text 5”; “text 6” and 2 before"


async def test_a_fact_that_comes_while_its_kind_is_being_told_is_told_in_the_next_turn(home):
    async with home.harness.database.transaction() as tx:
        await host_events.notification_delivered(tx, FAMILY, "one", now_ms=home.harness.clock.now_ms())
    turn, run, order = await home.begin()
    async with home.harness.database.transaction() as tx:
        await host_events.notification_delivered(tx, FAMILY, "two", now_ms=home.harness.clock.now_ms())
    await home.end(turn, run, told(order.notices[0]))
    assert [one.payload["items"] for one in await home.turn()] == [["“two”"]]
    assert await home.turn() == ()


async def test_notifications_that_were_delivered_or_came_too_late_are_noticed(store_harness):
    await store_harness.add_group()
    told_harness = NotificationHarness(store_harness)
    told_harness.is_now("2026-02-09 08:30")
    await told_harness.put(
        a_task(deadline="2026-02-10"),
        a_notification("n_001", message="The blog is due"),
        a_notification("n_002", due="2026-01-10 09:00", message="too late", task_id=None, **REMINDER),
    )
    async with told_harness.delivering():
        await told_harness.look("2026-02-09 09:00:00")
        await told_harness.until_status("n_001", "delivered")
    found = {one.event_type: one.message for one in await waiting(NoticeHarness(store_harness))}
    assert found == {
        "host.notification.delivered": "Sent to the chat: “The blog is due”",
        "host.notification.expired": "Too late, and so never sent; the chat was told: “too late”",
    }


async def test_a_command_that_is_refused_is_noticed_once_however_often_it_is_tried(home):
    for _ in range(30):
        reply = await home.ask("register_group", jid="local:x", name="X", folder="x")
        assert reply.code == "not_allowed"
    (fact,) = await waiting(home)
    assert (fact.event_type, fact.count) == ("host.command.refused", 30)
    assert fact.message == "Refused: register_group: only the main group may do this (5 times) and 25 before"


def test_a_fact_that_came_twice_is_named_once_with_its_number():
    assert joined_line("Lost", ["a"], 1) == "Lost: a"
    assert joined_line("Lost", ["a", "a"], 2) == "Lost: a (2 times)"
    assert joined_line("Lost", ["a", "b", "a"], 7) == "Lost: a (2 times); b and 4 before"


async def test_a_folder_that_is_not_shown_is_noticed_by_its_name_and_not_by_its_place(
    store_harness, tmp_path, monkeypatch
):
    """Where things are on the host is no business of an agent's."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    rules = owner.owner_directory() / mount_allowlist.FILE
    rules.parent.mkdir(parents=True)
    rules.write_text(json.dumps({"allowedRoots": [{"path": str(tmp_path / "shown")}]}))
    (tmp_path / "shown" / "album").mkdir(parents=True)
    (tmp_path / "private-place").mkdir()
    await store_harness.add_group("main", is_main=True)
    wishes = [
        {"path": str(tmp_path / "private-place"), "name": "letters"},
        {"path": str(tmp_path / "shown" / "album"), "writable": True},
    ]
    group = await store_harness.add_group(container_config={"mounts": wishes})
    unused: Any = None
    provision = RunOrders(
        host_context(store_harness, tmp_path / "home"), credentials=unused, proxies=unused, uid=os.getuid()
    )
    for _ in range(3):
        await provision.prepare(group)
    (fact,) = await waiting(NoticeHarness(store_harness))
    assert fact.message == "Not shown, or not writable; the owner was told why: letters; album"
    assert "private-place" not in json.dumps(dict(fact.payload))
    assert [one.chat_jid for one in await store_harness.outgoing()] == ["local:main"]


async def test_facts_are_bounded(home):
    async with home.harness.database.transaction() as tx:
        for number in range(MAX_HOST_FACTS + 10):
            await host_events.budget_warning(
                tx, FAMILY, "x" * 5_000, percent=80, key=str(number), now_ms=number
            )
    found = await waiting(home)
    assert len(found) == MAX_HOST_FACTS
    assert all(len(one.message) < 300 for one in found)


async def test_of_many_folders_that_are_not_shown_some_are_named_and_all_are_counted(home):
    async with home.harness.database.transaction() as tx:
        names = [f"folder {number}" for number in range(8)]
        await host_events.mounts_refused(tx, FAMILY, names, now_ms=home.harness.clock.now_ms())
    (fact,) = await waiting(home)
    assert fact.message.endswith("folder 3; folder 4; folder 5; folder 6; folder 7 and 3 before")


async def test_facts_take_no_room_from_the_agents_own(home):
    async with home.harness.database.transaction() as tx:
        for number in range(MAX_HOST_FACTS):
            await host_events.budget_warning(tx, FAMILY, "x", percent=80, key=str(number), now_ms=number)
    assert await home.note()
