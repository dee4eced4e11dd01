"""The bridge's session receives: the library's events become messages for the host, and files are fetched."""

from __future__ import annotations

import hashlib
import sqlite3
from typing import Any

import pytest

pytest.importorskip("tests.support.whatsapp_library", exc_type=ImportError)

from neonize.proto.Neonize_pb2 import (
    UndecryptableMessage,
)
from neonize.proto.waCommon.WACommon_pb2 import MessageKey
from neonize.proto.waE2E import WAWebProtobufsE2E_pb2 as e2e
from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import Message

from orchestrator.channels.whatsapp import message_text, neonize_session
from orchestrator.channels.whatsapp.protocol import (
    Delivered,
    DownloadRequest,
    MessageAcknowledged,
)
from tests.doubles import whatsapp_events as wa
from tests.doubles.whatsapp_client import FakeWhatsApp
from tests.support.until import until
from tests.support.whatsapp_session import SessionHarness, running


def unreadable(message_id: str, *, mode: str = "DECRYPT_FAIL_SHOW", **more: Any) -> Any:
    return UndecryptableMessage(
        Info=wa.heard("?", message_id=message_id, **more).Info,
        DecryptFailMode=UndecryptableMessage.DecryptFailModeT.Value(mode),
    )


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


async def test_a_full_disk_loses_no_message_and_does_not_end_the_session(bridge, whatsapp, monkeypatch):
    monkeypatch.setattr(neonize_session, "SPOOL_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(neonize_session, "UNREADABLE_SECONDS", 0.01)
    add, failed = bridge.session._spool.add, []

    def add_at_the_second_try(message):
        if message.id not in failed:
            failed.append(message.id)
            raise sqlite3.OperationalError("database or disk is full")
        return add(message)

    def remove_nothing(n):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(bridge.session._spool, "add", add_at_the_second_try)
    monkeypatch.setattr(bridge.session._spool, "remove", remove_nothing)
    await whatsapp.tell(wa.heard("one", message_id="3A1"))
    await whatsapp.tell(unreadable("3A2"))
    await until(lambda: len(bridge.texts()) == 2, "both messages")
    await bridge.session.handle(MessageAcknowledged(n=1))
    await whatsapp.tell(wa.heard("two", message_id="3A3"))

    await until(lambda: bridge.texts() == ["one", "", "two"], "the messages in order")
    assert failed == ["3A1", "3A2", "3A3"]
    assert bridge.session.failed == 0


async def test_a_number_behind_a_lid_is_looked_up_in_the_librarys_store(bridge, whatsapp):
    await whatsapp.tell(wa.heard("hi", sender=wa.lid(wa.JANE_LID)))

    await until(lambda: bridge.texts(), "the message")
    assert bridge.heard(Delivered)[0].message.sender == f"{wa.JANE}@s.whatsapp.net"


async def test_a_look_up_that_fails_holds_nothing_up(bridge, whatsapp):
    await whatsapp.tell(wa.heard("hi", sender=wa.lid("42")))

    await until(lambda: bridge.texts() == ["hi"], "the message")
    assert bridge.heard(Delivered)[0].message.sender == "42@lid"


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


async def test_a_lost_message_that_cannot_be_reported_is_waited_for_no_longer(bridge, whatsapp, monkeypatch):
    def breaks(*_: Any, **__: Any) -> None:
        raise RuntimeError("a message nobody thought of")

    monkeypatch.setattr(neonize_session, "UNREADABLE_SECONDS", 0.01)
    monkeypatch.setattr(neonize_session.convert, "unreadable", breaks)
    await whatsapp.tell(unreadable("3A1"))

    await until(lambda: bridge.session.failed == 1, "it has failed")
    assert bridge.session._unreadable == {}


async def test_a_lost_message_is_reported_once_the_disk_has_room_again(bridge, whatsapp, monkeypatch):
    add, failed = bridge.session._spool.add, []

    def add_at_the_second_try(message):
        if not failed:
            failed.append(message)
            raise sqlite3.OperationalError("database or disk is full")
        return add(message)

    monkeypatch.setattr(neonize_session, "SPOOL_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(neonize_session, "UNREADABLE_SECONDS", 0.01)
    monkeypatch.setattr(bridge.session._spool, "add", add_at_the_second_try)
    await whatsapp.tell(unreadable("3A1"))

    await until(lambda: bridge.texts() == [""], "it is reported")
    assert bridge.session._unreadable == {}


async def test_a_message_that_could_be_read_at_the_second_try_is_told_as_it_is(bridge, whatsapp):
    await whatsapp.tell(unreadable("3A1"))
    await until(lambda: bridge.session._unreadable, "waited for")
    await whatsapp.tell(wa.heard("hello", message_id="3A1"))

    await until(lambda: bridge.texts() == ["hello"], "the message")
    assert bridge.session._unreadable == {}


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
    async with running(SessionHarness(whatsapp, tmp_path / "s.db")) as first:
        await first.until_connected()
        for text in ("one", "two"):
            await whatsapp.tell(wa.heard(text, message_id=text))
        await until(lambda: len(first.texts()) == 2, "both")
        await first.session.handle(MessageAcknowledged(n=first.heard(Delivered)[0].n))

    again = FakeWhatsApp()
    async with running(SessionHarness(again, tmp_path / "s.db")) as second:
        await second.until_connected()
        await again.tell(wa.heard("three", message_id="three"))
        await until(lambda: len(second.texts()) == 2, "the rest")
        assert second.texts() == ["two", "three"]


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
