"""The bridge's session reports how the connection is, and which groups there are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("tests.support.whatsapp_library", exc_type=ImportError)

from neonize.aioze import events
from neonize.exc import NeonizeError
from neonize.proto.Neonize_pb2 import (
    GroupDelete,
    GroupInfo,
    GroupName,
    GroupParticipant,
)

from orchestrator.channels.whatsapp import neonize_session
from orchestrator.channels.whatsapp.protocol import (
    Delivered,
    GroupsReport,
    Receipt,
    StateReport,
)
from tests.doubles import whatsapp_events as wa
from tests.doubles.whatsapp_client import FakeWhatsApp
from tests.support.until import until
from tests.support.whatsapp_session import FAMILY, SessionHarness, a_send, running


def named(event: Any, field: str, name: str) -> int:
    """The number of an enum's value."""
    return int(event.DESCRIPTOR.fields_by_name[field].enum_type.values_by_name[name].number)


def a_group(name: str = "Family") -> GroupInfo:
    return GroupInfo(
        JID=wa.group(),
        GroupName=GroupName(Name=name),
        Participants=[
            GroupParticipant(JID=wa.lid(wa.JANE_LID), PhoneNumber=wa.jid("4999"), LID=wa.lid(wa.JANE_LID)),
            GroupParticipant(JID=wa.lid(wa.ANDY_LID), PhoneNumber=wa.jid(wa.ANDY), IsAdmin=True),
        ],
    )


async def test_a_line_that_goes_silent_is_a_broken_one_until_it_answers_again(bridge, whatsapp):
    def states() -> list[str]:
        return [one.state for one in bridge.heard(StateReport)]

    await whatsapp.tell(events.KeepAliveTimeoutEv(ErrorCount=1, LastSuccess=1))
    await until(lambda: states()[-1] == "disconnected", "told")
    assert (await bridge.ask(a_send())).code == "down"

    await whatsapp.tell(events.KeepAliveRestoredEv())
    await until(lambda: states()[-1] == "connected", "told again")
    assert (await bridge.ask(a_send(number=2))).ok

    await whatsapp.tell(events.LoggedOutEv(OnConnect=True, Reason=1))
    await whatsapp.tell(events.KeepAliveRestoredEv())
    await whatsapp.tell(wa.heard("after it"))
    await until(lambda: "after it" in bridge.texts(), "what came after it")
    assert states()[-1] == "logged_out"


@pytest.mark.parametrize(
    ("event", "state", "words"),
    [
        (events.DisconnectedEv(status=True), "disconnected", "broke"),
        (
            events.LoggedOutEv(OnConnect=True, Reason=named(events.LoggedOutEv, "Reason", "LOGGED_OUT")),
            "logged_out",
            "logged out",
        ),
        (
            events.TemporaryBanEv(Code=named(events.TemporaryBanEv, "Code", "BROADCAST_LIST"), Expire=60),
            "banned",
            "broadcast list",
        ),
        (events.StreamReplacedEv(), "replaced", "elsewhere"),
        (events.ClientOutdatedEv(), "outdated", "version"),
        (events.ConnectFailureEv(Message="x"), "disconnected", "refused"),
    ],
)
async def test_the_end_of_a_connection_is_a_state_with_its_reason(bridge, whatsapp, event, state, words):
    await whatsapp.tell(event)

    await until(lambda: bridge.heard(StateReport)[-1].state == state, state)
    assert words in bridge.heard(StateReport)[-1].reason
    assert (await bridge.ask(a_send())).code == "down"


async def test_a_connection_that_comes_back_goes_on_in_the_same_session(bridge, whatsapp):
    await whatsapp.tell(events.DisconnectedEv(status=True))
    await until(lambda: bridge.heard(StateReport)[-1].state == "disconnected", "disconnected")
    await bridge.until_connected()
    await until(lambda: bridge.heard(StateReport)[-1].state == "connected", "connected")
    await whatsapp.tell(wa.heard("once"))
    await until(lambda: bridge.texts(), "the message")

    assert bridge.texts() == ["once"]
    assert whatsapp.client.connect.call_count == 1
    assert (await bridge.ask(a_send())).ok


async def test_a_client_that_cannot_connect_ends_the_session(tmp_path):
    whatsapp = FakeWhatsApp(refusal=NeonizeError("no such host"))
    bridge = SessionHarness(whatsapp, tmp_path / "s.db")

    with pytest.raises(ExceptionGroup):
        await bridge.session.run()
    bridge.spool.close()


async def test_the_owners_phone_keeps_ringing_unless_the_account_is_the_assistants(tmp_path):
    for name, presence in (("", "UNAVAILABLE"), ("Andy", "AVAILABLE")):
        whatsapp = FakeWhatsApp()
        async with running(SessionHarness(whatsapp, tmp_path / f"{presence}.db", name=name)) as bridge:
            await bridge.until_connected()
            await until(lambda shown=whatsapp: shown.presences, "presence")
        assert whatsapp.presences == [presence]


async def test_receipts_tell_the_host_that_the_line_works(bridge, whatsapp):
    await whatsapp.tell(events.ReceiptEv(MessageIDs=["3EB1"], Timestamp=1))
    await whatsapp.tell(events.ReceiptEv(MessageIDs=["3EB2"], Timestamp=1))

    await until(lambda: bridge.spool.has_receipt("3EB2"), "both receipts")
    assert len(bridge.heard(Receipt)) == 1


async def test_on_connecting_all_groups_are_told_with_their_members_by_number(whatsapp, tmp_path):
    whatsapp.groups = [a_group()]
    async with running(SessionHarness(whatsapp, tmp_path / "s.db")) as bridge:
        await bridge.until_connected()
        await until(lambda: bridge.heard(GroupsReport), "groups")

    (told,) = bridge.heard(GroupsReport)
    (group,) = told.groups
    assert told.is_all
    assert (group.jid, group.name) == (FAMILY, "Family")
    assert [(one.jid, one.is_admin) for one in group.members] == [
        ("4999@s.whatsapp.net", False),
        (f"{wa.ANDY}@s.whatsapp.net", True),
    ]


async def test_a_change_of_a_group_is_told_and_its_members_numbers_are_learned(bridge, whatsapp):
    whatsapp.groups = [a_group("New name")]
    await whatsapp.tell(events.GroupInfoEv(JID=wa.group(), Name=GroupName(Name="New name")))
    await until(lambda: [one for one in bridge.heard(GroupsReport) if not one.is_all], "the change")

    assert bridge.heard(GroupsReport)[-1].groups[0].name == "New name"
    await whatsapp.tell(wa.heard("hi", sender=wa.lid(wa.JANE_LID)))
    await until(lambda: bridge.texts(), "the message")
    assert bridge.heard(Delivered)[0].message.sender == "4999@s.whatsapp.net"


async def test_a_group_that_one_is_taken_into_is_told_before_anyone_writes(bridge, whatsapp):
    await whatsapp.tell(events.JoinedGroupEv(GroupInfo=a_group("Fresh")))

    await until(lambda: [one for one in bridge.heard(GroupsReport) if not one.is_all], "the new group")
    assert bridge.heard(GroupsReport)[-1].groups[0].name == "Fresh"


@pytest.mark.parametrize("own", [wa.jid(wa.ANDY), wa.lid(wa.ANDY_LID)], ids=["phone", "lid"])
async def test_being_removed_from_a_group_is_reported(bridge, whatsapp, own):
    await whatsapp.tell(events.GroupInfoEv(JID=wa.group(), Leave=[wa.lid(wa.JANE_LID), own]))

    await until(lambda: [one for one in bridge.heard(GroupsReport) if one.left], "the removal")
    assert bridge.heard(GroupsReport)[-1].left == (FAMILY,)


async def test_a_group_that_is_deleted_is_one_that_andy_was_removed_from(bridge, whatsapp):
    await whatsapp.tell(events.GroupInfoEv(JID=wa.group(), Delete=GroupDelete(Deleted=True)))

    await until(lambda: [one for one in bridge.heard(GroupsReport) if one.left], "the removal")
    assert bridge.heard(GroupsReport)[-1].left == (FAMILY,)


async def test_a_look_at_groups_that_fails_stops_no_later_one(bridge, whatsapp):
    await whatsapp.tell(events.GroupInfoEv(JID=wa.group()))
    whatsapp.groups = [a_group()]
    await whatsapp.tell(events.GroupInfoEv(JID=wa.group()))

    await until(lambda: [one for one in bridge.heard(GroupsReport) if not one.is_all], "the second look")


async def test_a_look_at_a_group_that_takes_too_long_is_logged_with_the_reason(
    bridge, whatsapp, monkeypatch, caplog
):
    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(neonize_session, "CALL_SECONDS", 0.01)
    monkeypatch.setattr(whatsapp.client, "get_group_info", hang)
    await whatsapp.tell(events.GroupInfoEv(JID=wa.group()))

    await until(lambda: "was not done" in caplog.text, "the warning")
    assert "what could wait was not done: it did not answer in time" in caplog.text
