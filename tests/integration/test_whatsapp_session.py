"""The bridge's handlers, fed by the library's own events on the library's own dispatch."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tests.support.whatsapp_library", exc_type=ImportError)

from neonize.aioze import events
from neonize.exc import NeonizeError, SendMessageError
from neonize.proto.Neonize_pb2 import (
    GroupEphemeral,
    GroupInfo,
    GroupName,
    GroupParticipant,
    UndecryptableMessage,
)
from neonize.proto.waCommon.WACommon_pb2 import MessageKey
from neonize.proto.waE2E import WAWebProtobufsE2E_pb2 as e2e
from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import Message

from orchestrator.channels.whatsapp import message_text, neonize_database, neonize_session, sending
from orchestrator.channels.whatsapp.addresses import Address
from orchestrator.channels.whatsapp.neonize_session import NeonizeSession
from orchestrator.channels.whatsapp.pairing_session import PairingSession
from orchestrator.channels.whatsapp.protocol import (
    BridgeResponse,
    Delivered,
    DownloadRequest,
    GroupsReport,
    MessageAcknowledged,
    PairingCode,
    PairingEnd,
    QuotedMessage,
    React,
    Read,
    Receipt,
    SendRequest,
    StateReport,
    TypingRequest,
)
from orchestrator.channels.whatsapp.spool import Spool
from tests.doubles import whatsapp_events as wa
from tests.doubles.whatsapp_client import FakeWhatsApp
from tests.support.until import until

FAMILY = f"{wa.FAMILY}@g.us"
OWN = Address(user=wa.ANDY, server="s.whatsapp.net")


class Bridge:
    """A session with what it said."""

    def __init__(self, whatsapp: FakeWhatsApp, spool: Path, *, name: str = "") -> None:
        self.whatsapp = whatsapp
        self.said: list[Any] = []
        self.spool = Spool(spool)
        self.session = NeonizeSession(whatsapp.client, self.spool, self.said.append, own=OWN, name=name)

    def heard(self, kind: type) -> list[Any]:
        return [one for one in self.said if isinstance(one, kind)]

    def texts(self) -> list[str]:
        return [one.message.text for one in self.heard(Delivered)]

    async def ask(self, ask: Any) -> BridgeResponse:
        await self.session.handle(ask)
        return next(one for one in self.heard(BridgeResponse) if one.id == ask.id)

    async def until_connected(self) -> None:
        await self.whatsapp.connect_as()
        await until(lambda: [one for one in self.heard(StateReport) if one.state == "connected"], "connected")


@asynccontextmanager
async def running(bridge: Bridge) -> AsyncIterator[Bridge]:
    task = asyncio.create_task(bridge.session.run())
    await until(lambda: bridge.heard(StateReport), "started")
    try:
        yield bridge
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        bridge.spool.close()


@pytest.fixture
def whatsapp() -> FakeWhatsApp:
    return FakeWhatsApp()


@pytest.fixture
async def bridge(whatsapp: FakeWhatsApp, tmp_path: Path) -> AsyncIterator[Bridge]:
    async with running(Bridge(whatsapp, tmp_path / "spool.db")) as opened:
        await opened.until_connected()
        yield opened


def a_send(text: str = "hello", *, number: int = 1, mark: str = "3EB0AA", **more: Any) -> SendRequest:
    return SendRequest(id=number, chat=FAMILY, text=text, mark=mark, **more)


# Coming in


async def test_messages_are_told_in_the_order_they_came(bridge, whatsapp):
    for number in range(50):
        await whatsapp.tell(wa.heard(f"m{number}", message_id=f"3A{number}"))

    await until(lambda: len(bridge.texts()) == 50, "fifty messages")
    assert bridge.texts() == [f"m{number}" for number in range(50)]


async def test_one_bad_message_stops_no_other(bridge, whatsapp, monkeypatch):
    sound = message_text.text_of

    def breaks(message):
        if message.conversation == "bad":
            raise RuntimeError("a message nobody thought of")
        return sound(message)

    monkeypatch.setattr(message_text, "text_of", breaks)
    for text in ("one", "bad", "two"):
        await whatsapp.tell(wa.heard(text))

    await until(lambda: bridge.texts() == ["one", "two"], "the good ones")
    assert bridge.session.failed == 1


async def test_a_number_behind_a_lid_is_looked_up_in_the_librarys_store(bridge, whatsapp):
    await whatsapp.tell(wa.heard("hi", sender=wa.lid(wa.JANE_LID)))

    await until(lambda: bridge.texts(), "the message")
    assert bridge.heard(Delivered)[0].message.sender == f"{wa.JANE}@s.whatsapp.net"


async def test_a_look_up_that_fails_holds_nothing_up(bridge, whatsapp):
    await whatsapp.tell(wa.heard("hi", sender=wa.lid("42")))

    await until(lambda: bridge.texts() == ["hi"], "the message")
    assert bridge.heard(Delivered)[0].message.sender == "42@lid"


def unreadable(message_id: str, *, mode: str = "DECRYPT_FAIL_SHOW", **more: Any) -> Any:
    return UndecryptableMessage(
        Info=wa.heard("?", message_id=message_id, **more).Info,
        DecryptFailMode=UndecryptableMessage.DecryptFailModeT.Value(mode),
    )


async def test_a_message_that_cannot_be_decrypted_and_stays_away_is_told_once(bridge, whatsapp, monkeypatch):
    monkeypatch.setattr(neonize_session, "UNREADABLE_SECONDS", 0.01)
    await whatsapp.tell(unreadable("HIDDEN", mode="DECRYPT_FAIL_HIDE"))
    await whatsapp.tell(unreadable("OWN", is_from_me=True))
    await whatsapp.tell(unreadable("3A1"))
    await whatsapp.tell(unreadable("3A1"))

    await until(lambda: bridge.heard(Delivered), "told")
    await whatsapp.tell(wa.heard("after it"))
    await until(lambda: "after it" in bridge.texts(), "what came after it")
    told = bridge.heard(Delivered)[0].message
    assert (told.id, told.is_unreadable, told.text, told.sender_name) == ("3A1", True, "", "Jane")
    assert bridge.texts() == ["", "after it"]


async def test_a_message_that_could_be_read_at_the_second_try_is_told_as_it_is(bridge, whatsapp):
    await whatsapp.tell(unreadable("3A1"))
    await until(lambda: bridge.session._unreadable, "waited for")
    await whatsapp.tell(wa.heard("hello", message_id="3A1"))

    await until(lambda: bridge.texts() == ["hello"], "the message")
    assert bridge.session._unreadable == {}


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


async def test_a_vote_in_a_poll_is_told_by_the_names_of_its_options(bridge, whatsapp):
    options = [e2e.PollCreationMessage.Option(optionName=name) for name in ("Friday", "Sunday")]
    poll = e2e.PollCreationMessage(name="When?", options=options)
    await whatsapp.tell(wa.heard(Message(pollCreationMessageV3=poll), message_id="POLL"))
    whatsapp.votes["V1"] = [hashlib.sha256(b"Sunday").digest()]
    for number in ("V1", "V2"):
        vote = e2e.PollUpdateMessage(pollCreationMessageKey=MessageKey(ID="POLL"))
        await whatsapp.tell(wa.heard(Message(pollUpdateMessage=vote), message_id=number))

    await until(lambda: len(bridge.texts()) == 3, "the poll and both votes")
    assert bridge.texts()[1:] == ["[voted for Sunday]", "[voted in a poll; what for cannot be read]"]
    assert bridge.heard(Delivered)[1].message.quote.text == "[poll] When?"


async def test_what_is_no_message_is_counted_with_its_reason(bridge, whatsapp):
    await whatsapp.tell(wa.heard("x", chat=wa.jid("status", "broadcast")))
    await whatsapp.tell(wa.heard("real"))

    await until(lambda: bridge.texts() == ["real"], "the real one")
    assert bridge.session.dropped == {"status broadcast": 1}


async def test_what_the_host_has_not_taken_comes_again_first_and_once_taken_never(whatsapp, tmp_path):
    async with running(Bridge(whatsapp, tmp_path / "s.db")) as first:
        await first.until_connected()
        for text in ("one", "two"):
            await whatsapp.tell(wa.heard(text, message_id=text))
        await until(lambda: len(first.texts()) == 2, "both")
        await first.session.handle(MessageAcknowledged(n=first.heard(Delivered)[0].n))

    again = FakeWhatsApp()
    async with running(Bridge(again, tmp_path / "s.db")) as second:
        await second.until_connected()
        await again.tell(wa.heard("three", message_id="three"))
        await until(lambda: len(second.texts()) == 2, "the rest")
        assert second.texts() == ["two", "three"]


# Going out


async def test_a_message_is_sent_with_the_hosts_mark_in_its_secret(bridge, whatsapp):
    answer = await bridge.ask(a_send())

    assert (answer.ok, answer.text) == (True, "3EBFAKE0")
    ((chat, _, message),) = whatsapp.shown
    assert (chat, message.conversation) == (FAMILY, "hello")
    assert neonize_database.mark_in(message.messageContextInfo.messageSecret) == "3EB0AA"
    assert len(message.messageContextInfo.messageSecret) == 32


async def test_the_same_mark_again_sends_nothing_even_in_another_life(bridge, whatsapp, tmp_path):
    await bridge.ask(a_send(number=1))
    again = await bridge.ask(a_send(number=2))
    assert (again.ok, again.text) == (True, "3EBFAKE0")

    other = FakeWhatsApp()
    async with running(Bridge(other, tmp_path / "spool.db")) as later:
        await later.until_connected()
        assert (await later.ask(a_send(number=3))).ok
    assert other.shown == []
    assert whatsapp.texts() == ["hello"]


async def test_who_asks_again_while_it_is_being_sent_gets_the_same_answer(bridge, whatsapp):
    whatsapp.gate = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(bridge.ask(a_send(number=1)))
        await until(lambda: whatsapp.shown, "shown")
        second = tasks.create_task(bridge.ask(a_send(number=2)))
        await asyncio.sleep(0)
        whatsapp.gate.set()

    assert first.result().text == second.result().text
    assert whatsapp.texts() == ["hello"]


async def test_what_may_have_arrived_before_is_taken_back_before_it_is_sent_again(
    bridge, whatsapp, monkeypatch
):
    monkeypatch.setattr(sending, "PROOF_SECONDS", 0.01)
    whatsapp.shown.append((FAMILY, "3EBOLD", Message(conversation="hello")))

    answer = await bridge.ask(a_send(earlier=("3EBOLD",)))

    assert answer.ok
    assert whatsapp.texts() == ["hello"]
    assert [one for _, one, _ in whatsapp.shown] != ["3EBOLD"]


async def test_what_has_a_receipt_has_arrived_and_is_left_alone(bridge, whatsapp):
    whatsapp.shown.append((FAMILY, "3EBOLD", Message(conversation="hello")))
    asked = asyncio.create_task(bridge.ask(a_send(earlier=("3EBOLD",))))
    await whatsapp.tell(events.ReceiptEv(MessageIDs=["3EBOLD"], Timestamp=1))

    answer = await asked

    assert (answer.ok, answer.text) == (True, "3EBOLD")
    assert [one for _, one, _ in whatsapp.shown] == ["3EBOLD"]
    whatsapp.client.revoke_message.assert_not_called()


@pytest.mark.parametrize("kind", ["RETRY", "SERVER_ERROR", "PEER_MSG", "HISTORY_SYNC"])
async def test_a_receipt_of_another_kind_proves_no_arrival(bridge, whatsapp, monkeypatch, kind):
    monkeypatch.setattr(sending, "PROOF_SECONDS", 0.01)
    whatsapp.shown.append((FAMILY, "3EBOLD", Message(conversation="hello")))
    number = events.ReceiptEv.ReceiptType.Value(kind)
    await whatsapp.tell(events.ReceiptEv(MessageIDs=["3EBOLD"], Timestamp=1, Type=number))
    await whatsapp.tell(wa.heard("after it"))
    await until(bridge.texts, "what came after the receipt")

    answer = await bridge.ask(a_send(earlier=("3EBOLD",)))

    assert answer.text != "3EBOLD"
    assert whatsapp.texts() == ["hello"]
    assert bridge.heard(Receipt) == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("websocket not connected", "down"),
        ("timed out waiting for message send response", "down"),
        ("failed to get group members: you're not participating in that group", "refused"),
        ("no LID found for 49@s.whatsapp.net from server", "refused"),
    ],
)
async def test_a_refusal_says_whether_it_may_work_later(bridge, whatsapp, error, code):
    whatsapp.trouble = [SendMessageError(error)]

    answer = await bridge.ask(a_send())

    assert (answer.ok, answer.code, answer.text) == (False, code, error)


async def test_a_failed_send_can_be_sent_again(bridge, whatsapp):
    whatsapp.trouble = [SendMessageError("websocket not connected")]

    assert not (await bridge.ask(a_send(number=1))).ok
    assert (await bridge.ask(a_send(number=2))).ok
    assert whatsapp.texts() == ["hello"]


@pytest.mark.parametrize(
    ("mime", "field"),
    [("image/png", "imageMessage"), ("video/mp4", "videoMessage"), ("application/pdf", "documentMessage")],
)
async def test_a_file_is_uploaded_and_shown_as_what_it_is(bridge, whatsapp, tmp_path, mime, field):
    path = tmp_path / "out"
    path.write_bytes(b"body")

    answer = await bridge.ask(a_send("look", file=str(path), file_name="a.pdf", mime=mime))

    assert answer.ok
    part = getattr(whatsapp.shown[0][2], field)
    assert (part.caption, part.fileLength, part.mimetype) == ("look", 4, mime)
    assert whatsapp.files[part.mediaKey] == b"body"


async def test_a_file_that_is_gone_is_refused_for_good(bridge):
    answer = await bridge.ask(a_send(file="/nowhere/x", mime="text/plain"))

    assert (answer.ok, answer.code) == (False, "refused")


async def test_before_it_is_connected_the_library_is_not_called(whatsapp, tmp_path):
    async with running(Bridge(whatsapp, tmp_path / "s.db")) as bridge:
        answer = await bridge.ask(a_send())
        typing = await bridge.ask(TypingRequest(id=2, chat=FAMILY, is_typing=True))

    assert (answer.ok, answer.code, typing.code) == (False, "down", "down")
    whatsapp.client.send_message.assert_not_called()


async def test_the_typing_sign_is_shown_and_hidden(bridge, whatsapp):
    await bridge.ask(TypingRequest(id=1, chat=FAMILY, is_typing=True))
    await bridge.ask(TypingRequest(id=2, chat=FAMILY, is_typing=False))

    assert whatsapp.signs == [(FAMILY, True), (FAMILY, False)]


# What a message belongs to


async def test_an_answer_quotes_and_a_reminder_mentions_as_the_library_sends_it(bridge, whatsapp):
    quote = QuotedMessage(id="3AAA", author=f"{wa.JANE}@s.whatsapp.net", text="where?")
    await bridge.ask(a_send("here", number=1, mark="A", quote=quote))
    await bridge.ask(a_send(f"@{wa.JANE} the bread", number=2, mark="B", mention=f"{wa.JANE}@s.whatsapp.net"))

    quoting, mentioning = (message.extendedTextMessage for _, _, message in whatsapp.shown)
    context = quoting.contextInfo
    assert (context.stanzaID, context.participant) == ("3AAA", f"{wa.JANE}@s.whatsapp.net")
    assert context.quotedMessage.conversation == "where?"
    assert list(mentioning.contextInfo.mentionedJID) == [f"{wa.JANE}@s.whatsapp.net"]
    assert whatsapp.texts() == ["here", f"@{wa.JANE} the bread"]


@pytest.mark.parametrize("is_told", [True, False])
async def test_where_members_are_known_by_lid_people_are_named_by_it(bridge, whatsapp, is_told):
    alternative = wa.jid(wa.JANE) if is_told else wa.jid("", "")
    await whatsapp.tell(wa.heard("hi", sender=wa.lid(wa.JANE_LID), sender_alt=alternative))
    await until(bridge.texts, "the message")
    person = f"{wa.JANE}@s.whatsapp.net"

    quote = QuotedMessage(id="3AAA", author=person, text="hi")
    await bridge.ask(a_send(f"@{wa.JANE} the bread", mention=person, quote=quote))
    await bridge.ask(React(id=2, chat=FAMILY, message="3AAA", author=person, sign="👀"))
    await bridge.session.handle(
        MessageAcknowledged(n=1, read=Read(chat=FAMILY, message="3AAA", author=person))
    )
    await until(lambda: whatsapp.read, "marked as read")

    sent = whatsapp.shown[0][2].extendedTextMessage
    lid = f"{wa.JANE_LID}@lid"
    assert (sent.text, list(sent.contextInfo.mentionedJID)) == (f"@{wa.JANE_LID} the bread", [lid])
    assert sent.contextInfo.participant == lid
    assert whatsapp.reactions == [("3AAA", lid, "👀")]
    assert whatsapp.read == [("3AAA", FAMILY, lid)]


async def test_a_sign_is_put_under_a_message_and_taken_away(bridge, whatsapp):
    for number, sign in ((1, "👀"), (2, "")):
        answer = await bridge.ask(
            React(id=number, chat=FAMILY, message="3AAA", author=f"{wa.JANE}@s.whatsapp.net", sign=sign)
        )
        assert answer.ok
    assert [sign for _, _, sign in whatsapp.reactions] == ["👀", ""]
    assert whatsapp.shown == []


async def test_where_messages_disappear_andys_do_too_also_in_another_life(whatsapp, tmp_path):
    group = GroupInfo(
        JID=wa.group(), GroupEphemeral=GroupEphemeral(IsEphemeral=True, DisappearingTimer=86_400)
    )
    whatsapp.groups = [group]
    direct = f"{wa.JANE}@s.whatsapp.net"
    async with running(Bridge(whatsapp, tmp_path / "s.db")) as bridge:
        await bridge.until_connected()
        await until(lambda: bridge.spool.timer(FAMILY), "the group's timer")
        await whatsapp.tell(wa.heard(wa.text("hi", expiration=604_800), chat=wa.jid(wa.JANE)))
        await until(bridge.texts, "the message")
        await bridge.ask(a_send(number=1, mark="A"))

    again = FakeWhatsApp()
    async with running(Bridge(again, tmp_path / "s.db")) as later:
        await later.until_connected()
        await later.ask(SendRequest(id=2, chat=direct, text="hi", mark="B"))
        setting = e2e.ProtocolMessage(type=e2e.ProtocolMessage.EPHEMERAL_SETTING, ephemeralExpiration=0)
        await again.tell(wa.heard(Message(protocolMessage=setting), chat=wa.jid(wa.JANE)))
        await again.tell(wa.heard("after it"))
        await until(later.texts, "what came after it")
        await later.ask(SendRequest(id=3, chat=direct, text="hi", mark="C"))

    sent = [message for _, _, message in (*whatsapp.shown, *again.shown)]
    assert [one.extendedTextMessage.contextInfo.expiration for one in sent] == [86_400, 604_800, 0]
    assert sent[2].conversation == "hi"


# Files that came


async def test_a_file_is_fetched_to_where_the_host_says(bridge, whatsapp, tmp_path):
    whatsapp.files[b"k"] = b"picture"
    part = e2e.ImageMessage(mediaKey=b"k", directPath="/v", fileLength=7)
    await whatsapp.tell(wa.heard(Message(imageMessage=part)))
    await until(lambda: bridge.heard(Delivered), "the message")
    media = bridge.heard(Delivered)[0].message.media

    answer = await bridge.ask(
        DownloadRequest(id=1, ref=media.ref, to=str(tmp_path / "f"), limit=10, seconds=60)
    )

    assert answer.ok
    assert (tmp_path / "f").read_bytes() == b"picture"
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600


async def test_a_file_larger_than_it_said_is_not_kept(bridge, whatsapp, tmp_path):
    whatsapp.files[b"k"] = b"x" * 100
    ref = message_text.media_of(Message(imageMessage=e2e.ImageMessage(mediaKey=b"k", directPath="/v"))).ref

    answer = await bridge.ask(DownloadRequest(id=1, ref=ref, to=str(tmp_path / "f"), limit=10, seconds=60))

    assert (answer.ok, answer.code) == (False, "refused")
    assert not (tmp_path / "f").exists()


async def test_a_file_that_is_gone_from_whatsapp_is_an_answer(bridge, tmp_path):
    ref = message_text.media_of(Message(imageMessage=e2e.ImageMessage(mediaKey=b"?", directPath="/v"))).ref

    answer = await bridge.ask(DownloadRequest(id=1, ref=ref, to=str(tmp_path / "f"), limit=10, seconds=60))

    assert not answer.ok
    assert "404" in answer.text


# The connection


def named(event: Any, field: str, name: str) -> int:
    """The number of an enum's value."""
    return int(event.DESCRIPTOR.fields_by_name[field].enum_type.values_by_name[name].number)


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
    bridge = Bridge(whatsapp, tmp_path / "s.db")

    with pytest.raises(ExceptionGroup):
        await bridge.session.run()
    bridge.spool.close()


async def test_the_owners_phone_keeps_ringing_unless_the_account_is_the_assistants(tmp_path):
    for name, presence in (("", "UNAVAILABLE"), ("Andy", "AVAILABLE")):
        whatsapp = FakeWhatsApp()
        async with running(Bridge(whatsapp, tmp_path / f"{presence}.db", name=name)) as bridge:
            await bridge.until_connected()
            await until(lambda shown=whatsapp: shown.presences, "presence")
        assert whatsapp.presences == [presence]


async def test_receipts_tell_the_host_that_the_line_works(bridge, whatsapp):
    await whatsapp.tell(events.ReceiptEv(MessageIDs=["3EB1"], Timestamp=1))
    await whatsapp.tell(events.ReceiptEv(MessageIDs=["3EB2"], Timestamp=1))

    await until(lambda: bridge.spool.has_receipt("3EB2"), "both receipts")
    assert len(bridge.heard(Receipt)) == 1


# Groups


def a_group(name: str = "Family") -> GroupInfo:
    return GroupInfo(
        JID=wa.group(),
        GroupName=GroupName(Name=name),
        Participants=[
            GroupParticipant(JID=wa.lid(wa.JANE_LID), PhoneNumber=wa.jid("4999"), LID=wa.lid(wa.JANE_LID)),
            GroupParticipant(JID=wa.lid(wa.ANDY_LID), PhoneNumber=wa.jid(wa.ANDY), IsAdmin=True),
        ],
    )


async def test_on_connecting_all_groups_are_told_with_their_members_by_number(whatsapp, tmp_path):
    whatsapp.groups = [a_group()]
    async with running(Bridge(whatsapp, tmp_path / "s.db")) as bridge:
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


async def test_a_look_at_groups_that_fails_stops_no_later_one(bridge, whatsapp):
    await whatsapp.tell(events.GroupInfoEv(JID=wa.group()))
    whatsapp.groups = [a_group()]
    await whatsapp.tell(events.GroupInfoEv(JID=wa.group()))

    await until(lambda: [one for one in bridge.heard(GroupsReport) if not one.is_all], "the second look")


# Pairing


async def test_pairing_shows_codes_until_a_phone_takes_one(monkeypatch):
    monkeypatch.setattr("orchestrator.channels.whatsapp.pairing_session.SETTLE_SECONDS", 0)
    whatsapp, said = FakeWhatsApp(), []
    task = asyncio.create_task(PairingSession(whatsapp.client, said.append).run())
    await until(lambda: whatsapp.login is not None, "connecting")
    for code in (b"2@one", b"2@two"):
        await whatsapp.client.event._qr(whatsapp.client, code)
    await until(lambda: len(said) == 2, "two codes")
    await whatsapp.connect_as()

    assert await task == 0
    assert [(one.qr, one.seconds) for one in said[:2]] == [("2@one", 60), ("2@two", 20)]
    assert said[2] == PairingEnd(ok=True, jid=f"{wa.ANDY}@s.whatsapp.net")


async def test_pairing_by_number_shows_letters():
    whatsapp, said = FakeWhatsApp(), []
    task = asyncio.create_task(PairingSession(whatsapp.client, said.append, phone="+49 170 0").run())
    await until(lambda: whatsapp.login is not None, "connecting")
    await whatsapp.client.event._qr(whatsapp.client, b"2@one")
    await until(lambda: said, "the letters")
    task.cancel()

    assert said == [PairingCode(letters="ABCD-EFGH", seconds=160)]
    whatsapp.client.PairPhone.assert_called_once_with("491700", show_push_notification=True)


async def test_codes_that_run_out_are_told_as_expired(monkeypatch):
    for name in ("FIRST_SECONDS", "SLACK_SECONDS"):
        monkeypatch.setattr(f"orchestrator.channels.whatsapp.pairing_session.{name}", 0)
    whatsapp, said = FakeWhatsApp(), []
    task = asyncio.create_task(PairingSession(whatsapp.client, said.append).run())
    await until(lambda: whatsapp.login is not None, "connecting")
    await whatsapp.client.event._qr(whatsapp.client, b"2@one")

    assert await task == 1
    assert said[-1] == PairingEnd(ok=False, text="expired")


async def test_a_pairing_that_whatsapp_refuses_says_why():
    whatsapp, said = FakeWhatsApp(), []
    task = asyncio.create_task(PairingSession(whatsapp.client, said.append).run())
    await until(lambda: whatsapp.login is not None, "connecting")
    await whatsapp.tell(events.PairStatusEv(Error="client outdated"))

    assert await task == 1
    assert said == [PairingEnd(ok=False, text="client outdated")]
