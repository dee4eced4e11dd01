"""The channel holds its login: states, new tries, and what it knows of groups."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import pytest

pytest.importorskip("tests.support.whatsapp_library", exc_type=ImportError)

from neonize.aioze import events
from neonize.proto.Neonize_pb2 import GroupInfo, GroupName, GroupParticipant

from orchestrator.base.clock import SystemClock
from orchestrator.channels import status
from orchestrator.channels.whatsapp import bridge_process, protocol, reconnect_policy
from orchestrator.channels.whatsapp import channel as channel_module
from orchestrator.channels.whatsapp.description import CHANNEL
from orchestrator.channels.whatsapp.protocol import StateReport
from orchestrator.domain.errors import ChannelDown, ChannelRefused
from orchestrator.domain.values import ChatJid, MessageId
from orchestrator.groups import registration
from orchestrator.outbound.delivery import Delivery
from orchestrator.store.conversation import chats, outbox
from tests.doubles import whatsapp_events as wa
from tests.doubles import whatsapp_store
from tests.support.store_harness import a_group
from tests.support.until import until
from tests.support.whatsapp_home import (
    FAMILY,
    WhatsAppHome,
    has_messages,
    knows_chat,
    living,
)


async def test_nobody_paired_is_a_state_and_costs_no_process(phone, build):
    async with living(build()) as harness:
        await harness.until_state("unpaired")
        with pytest.raises(ChannelDown):
            await harness.channel.send(FAMILY, "x", MessageId("3EB0AA"))
        await harness.channel.set_typing(FAMILY, is_typing=True)
        assert phone.logins == 0

        phone.pair()
        harness.channel.pairing_wakeup.set()
        await harness.until_state("connected")


async def test_a_broken_login_is_tried_again_by_the_one_loop(harness, phone, monkeypatch):
    monkeypatch.setattr(reconnect_policy, "FIRST_SECONDS", 0.01)
    for number in range(2, 4):
        await until(lambda: harness.state == "connected", "connected")
        phone.hang_up()
        await until(lambda wanted=number: phone.logins == wanted, f"login {number}")

    await harness.until_state("connected")
    phone.write(wa.heard("once", message_id="3A1"))
    await until(lambda: has_messages(harness, 1), "the message")
    assert await harness.texts() == ["once"]
    assert phone.logins == 3


async def test_a_process_that_cannot_be_started_says_why(phone, build, monkeypatch):
    phone.pair()
    harness = build()
    monkeypatch.setattr(harness.channel, "_command", lambda *_: ("/no/such/program",))
    async with living(harness):
        await harness.until_state("disconnected")
        assert "No such file or directory" in harness.channel.status()["last_error"]


async def test_a_login_that_is_refused_waits_longer_each_time_and_harms_nothing(phone, build, monkeypatch):
    monkeypatch.setattr(reconnect_policy, "FIRST_SECONDS", 0.001)
    phone.pair()
    phone.refusal = "no such host"
    async with living(build()) as harness:
        await until(lambda: harness.channel._failures >= 2, "two failures")
        await harness.until_state("disconnected")  # between two tries it is that again and again
        await until(lambda: "no such host" in harness.channel.status()["last_error"], "the reason")
        phone.refusal = None
        await harness.until_state("connected")
        assert harness.channel._failures == 0


@pytest.mark.parametrize(
    ("event", "state", "advice"),
    [
        (events.LoggedOutEv(OnConnect=True, Reason=1), "logged_out", "pair it with the phone again"),
        (events.TemporaryBanEv(Code=1, Expire=3600), "banned", "nothing is sent"),
        (events.StreamReplacedEv(), "replaced", "stop the other one"),
    ],
)
async def test_an_end_that_only_the_owner_can_mend_is_a_state_that_is_told(
    harness, phone, monkeypatch, event, state, advice
):
    publish, seen = harness.bus.publish, {}

    def look_and_publish(kind, **ids):
        seen.setdefault(ids.get("detail"), harness.channel.status())
        publish(kind, **ids)

    monkeypatch.setattr(harness.bus, "publish", look_and_publish)
    phone.write(event)

    await harness.until_state(state)
    await until(lambda: f"whatsapp {state}" in seen, "it is told")
    shown = seen[f"whatsapp {state}"]
    assert advice in shown["advice"], "whoever is told can look at once"
    assert shown["advice"] == CHANNEL.advice[state]["en"].format(reason=shown["last_disconnect"])
    await until(lambda: not phone.is_connected, "left alone")
    with pytest.raises(ChannelDown, match=advice):
        await harness.channel.send(FAMILY, "x", MessageId("3EB0AA"))
    assert phone.logins == 1
    condition = harness.home / "data/whatsapp/condition.json"
    await until(lambda: status.read(condition).state == state, "it is kept")  # the file is written after
    assert status.read(condition).last_disconnect_ms is not None


async def test_a_line_that_stays_silent_is_given_up_for_a_new_login(harness, phone, monkeypatch):
    monkeypatch.setattr(reconnect_policy, "FIRST_SECONDS", 0.01)
    # No time at all for a line that went silent. A login has its own, however slow the machine is.
    monkeypatch.setattr(reconnect_policy, "GRACE_SECONDS", 0.0)
    phone.write(events.KeepAliveTimeoutEv(ErrorCount=1, LastSuccess=1))

    await until(lambda: phone.logins == 2, "a second login")
    await harness.until_state("connected")


async def test_a_bridge_that_is_ended_twice_at_once_is_not_left_behind(phone):
    phone.pair()
    states: list[str] = []
    bridge = bridge_process.BridgeProcess(
        bridge_process.command(phone.store, "--own", f"{wa.ANDY}@s.whatsapp.net"),
        lambda report: states.append(getattr(report, "state", "")),
    )
    running = asyncio.create_task(bridge.run(), name="bridge")
    await until(lambda: "connected" in states, "connected")

    running.cancel()
    await until(lambda: not bridge.is_alive, "its end has begun")
    running.cancel()
    await asyncio.wait([running])

    assert bridge._process.returncode is not None


async def test_who_was_logged_out_and_pairs_again_is_connected_again(harness, phone, monkeypatch):
    monkeypatch.setattr(channel_module, "UNPAIRED_SECONDS", 0.05)
    whatsapp_store.log_out(phone.store)
    phone.write(events.LoggedOutEv(OnConnect=True, Reason=1))
    await harness.until_state("logged_out")

    def told() -> int:
        return sum(one.detail == "whatsapp logged_out" for one in harness.bus.ring)

    await until(lambda: told() == 2, "it is told, and told again as nothing more is tried")
    phone.store.unlink()
    await until(lambda: told() == 3, "it is told that a phone can be paired")
    phone.pair(device=10)

    await harness.until_state("connected")


async def test_what_waited_for_whatsapp_goes_out_when_it_is_back(phone, build):
    harness = build()
    async with harness.database.transaction() as tx:
        await outbox.add(tx, chat_jid=FAMILY, text="x", dedupe_key="k", now_ms=1)
        (head,) = await outbox.heads(tx)
        await outbox.begin_attempt(tx, head.id)
        await outbox.try_later(tx, head.id, at_ms=2**50, error="down")
    phone.pair()

    async with living(harness):
        await harness.until_state("connected")

        async def is_due() -> bool:
            return (await harness.rows("SELECT next_attempt_ms AS at FROM outbox"))[0]["at"] < 2**50

        await until(is_due, "due now")


async def test_a_process_that_dies_is_started_again_and_says_why_it_died(harness, phone, monkeypatch):
    monkeypatch.setattr(reconnect_policy, "FIRST_SECONDS", 0.01)
    harness.channel._bridge._process.kill()

    await until(lambda: phone.logins == 2, "a second login")
    await harness.until_state("connected")
    assert "code -9" in harness.channel.status()["last_disconnect"]


async def test_groups_are_known_before_anyone_writes_in_them(phone, build):
    phone.pair()
    phone.groups = [
        GroupInfo(
            JID=wa.group("777"),
            GroupName=GroupName(Name="Cooking"),
            Participants=[GroupParticipant(PhoneNumber=wa.jid(wa.JANE), IsAdmin=True)],
        )
    ]
    async with living(build()) as harness:
        with harness.bus.listening() as told:
            await until(lambda: knows_chat(harness, "777@g.us"), "the group")
            await until(lambda: any(one.kind == "chats.seen" for one in harness.bus.ring), "told")
            del told
        async with harness.database.reading() as tx:
            (chat,) = [one for one in await chats.every(tx) if one.jid == "777@g.us"]
            people = await chats.members_of(tx, ChatJid("777@g.us"))
    assert (chat.name, chat.is_group, chat.channel) == ("Cooking", True, "whatsapp")
    assert [(one.jid, one.is_admin) for one in people] == [(f"{wa.JANE}@s.whatsapp.net", True)]


def cooking(*people: GroupParticipant) -> GroupInfo:
    return GroupInfo(JID=wa.group("777"), GroupName=GroupName(Name="Cooking"), Participants=people)


COOKING = ChatJid("777@g.us")
JANE = GroupParticipant(PhoneNumber=wa.jid(wa.JANE))


async def register_cooking(harness: WhatsAppHome) -> None:
    async with harness.database.transaction() as tx:
        await registration.register(tx, a_group("main", is_main=True))
        await registration.register(tx, a_group("cooking", name="Cooking", jid=COOKING))


async def members(harness: WhatsAppHome) -> list[dict[str, Any]]:
    return await harness.rows("SELECT 1 FROM chat_members")


async def notices(harness: WhatsAppHome) -> list[str]:
    return [row["text"] for row in await harness.rows("SELECT text FROM outbox WHERE group_folder = 'main'")]


async def test_being_removed_from_a_group_ends_what_waits_and_is_told_to_the_owner_once(phone, build):
    phone.pair()
    phone.groups = [cooking(JANE)]
    harness = build()
    await register_cooking(harness)
    async with living(harness), asyncio.TaskGroup() as tasks:
        await until(lambda: members(harness), "its members are known")
        for _ in range(2):
            phone.write(events.GroupInfoEv(JID=wa.group("777"), Leave=[wa.jid(wa.ANDY)]))
        await until(lambda: notices(harness), "main is notified")
        async with harness.database.transaction() as tx:
            await outbox.add(tx, chat_jid=COOKING, text="soup", dedupe_key="k", now_ms=1)
        delivery = Delivery(
            harness.database, clock=SystemClock(), name="Andy", channel_for=lambda jid: harness.channel,
            tasks=tasks, wakeup=harness.wakeups.outbox, bus=harness.bus,
        )  # fmt: skip
        sending = tasks.create_task(delivery.run())
        dead = "SELECT error FROM outbox WHERE state = 'dead' AND text = 'soup'"
        await until(lambda: harness.rows(dead), "the answer ends")
        sending.cancel()
        (row,) = await harness.rows(dead)
        assert "no member" in row["error"]
        phone.write(events.JoinedGroupEv(GroupInfo=cooking(JANE)))
        await until(lambda: is_sent(harness), "it sends again")
    (text,) = await notices(harness)
    assert "'Cooking'" in text
    assert "andy groups remove cooking" in text


async def is_sent(harness: WhatsAppHome) -> bool:
    try:
        await harness.channel.send(COOKING, "again", MessageId("3EB0AA"))
    except ChannelRefused:
        return False
    return True


async def test_a_removal_that_came_while_nothing_ran_is_seen_with_the_next_list_of_groups(phone, build):
    phone.pair()
    phone.groups = [cooking(JANE)]
    harness = build()
    await register_cooking(harness)
    async with living(harness):
        await until(lambda: members(harness), "its members are known")
    phone.groups = [GroupInfo(JID=wa.group("778"), GroupName=GroupName(Name="Chess"))]
    async with living(harness):
        await until(lambda: notices(harness), "main is notified")
        with pytest.raises(ChannelRefused, match="no member"):
            await harness.channel.send(COOKING, "soup", MessageId("3EB0AA"))


async def test_a_list_of_no_groups_at_all_is_taken_for_a_fault_and_not_for_a_removal(phone, build):
    phone.pair()
    phone.groups = [cooking(JANE)]
    harness = build()
    await register_cooking(harness)
    async with living(harness):
        await until(lambda: members(harness), "its members are known")
    phone.groups = []
    async with living(harness):
        await until(lambda: "0 groups" in [event.detail for event in harness.bus.ring], "the empty list")
        await harness.channel.send(COOKING, "soup", MessageId("3EB0AA"))
    assert await notices(harness) == []


async def test_all_groups_are_looked_at_again_each_day(phone, build, monkeypatch):
    monkeypatch.setattr(channel_module, "DAY_SECONDS", 0.05)
    phone.pair()
    async with living(build()) as harness:
        await harness.until_state("connected")
        phone.groups = [GroupInfo(JID=wa.group("777"), GroupName=GroupName(Name="Cooking"))]
        await until(lambda: knows_chat(harness, "777@g.us"), "the group, though nothing told of it")


def test_the_login_of_the_channel_is_what_the_ledger_reads(phone):
    phone.pair()
    with closing(sqlite3.connect(phone.store)) as connection:
        assert connection.execute("SELECT count(*) FROM whatsmeow_device").fetchone() == (1,)


async def test_a_line_that_is_too_long_costs_no_other(monkeypatch, tmp_path):
    monkeypatch.setattr(protocol, "MAX_LINE_BYTES", 1_000)
    lines = tmp_path / "lines"
    good = protocol.line_of(StateReport(state="connected"))
    lines.write_bytes(good + b"x" * 100_000 + b"\n" + good)
    states: list[str] = []
    bridge = bridge_process.BridgeProcess(
        ["cat", str(lines)], lambda report: states.append(getattr(report, "state", ""))
    )

    assert await bridge.run() == 0

    assert states == ["connected", "connected"]


async def test_a_crash_with_a_long_stack_is_explained_by_its_first_line():
    stack = "goroutine 7 [running]:\n" + "main.call(0x1)\n\t/go/src/main.go:12 +0x1d\n" * 20
    text = f"a warning\npanic: nil map\npanic: another\n{stack}gs     0x0\n"
    bridge = bridge_process.BridgeProcess(
        ["sh", "-c", 'printf %s "$0" >&2; exit 2', text], lambda report: None
    )

    assert await bridge.run() == 2

    assert bridge.exit_state().reason == "its process ended with code 2: panic: nil map"
