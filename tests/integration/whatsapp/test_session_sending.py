"""The bridge's session sends each message once, as the library wants it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("tests.support.whatsapp_library", exc_type=ImportError)

from neonize.aioze import events
from neonize.exc import SendMessageError
from neonize.proto.Neonize_pb2 import (
    GroupEphemeral,
    GroupInfo,
)
from neonize.proto.waE2E import WAWebProtobufsE2E_pb2 as e2e
from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import Message

from orchestrator.channels.whatsapp import neonize_database, neonize_session, sending
from orchestrator.channels.whatsapp.protocol import (
    MessageAcknowledged,
    QuotedMessage,
    React,
    Read,
    Receipt,
    SendRequest,
    TypingRequest,
)
from tests.doubles import whatsapp_events as wa
from tests.doubles.whatsapp_client import FakeWhatsApp
from tests.support.until import DEADLINE_SECONDS, until
from tests.support.whatsapp_session import FAMILY, SessionHarness, a_send, running


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
    async with running(SessionHarness(other, tmp_path / "spool.db")) as later:
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
    [
        ("image/png", "imageMessage"),
        ("video/mp4", "videoMessage"),
        ("application/pdf", "documentMessage"),
        ("image/svg+xml", "documentMessage"),
        ("audio/mpeg", "documentMessage"),
    ],
)
async def test_a_file_is_uploaded_and_shown_as_what_it_is(bridge, whatsapp, tmp_path, mime, field):
    path = tmp_path / "out"
    path.write_bytes(b"body")

    answer = await bridge.ask(a_send("look", file=str(path), file_name="a.pdf", mime=mime))

    assert answer.ok
    part = getattr(whatsapp.shown[0][2], field)
    assert (part.caption, part.fileLength, part.mimetype) == ("look", 4, mime)
    assert whatsapp.files[part.mediaKey] == b"body"
    # A phone derives the keys of the file from what the message shows it as.
    assert field == f"{whatsapp.uploaded_as[part.mediaKey].name.removeprefix('Media').lower()}Message"


@pytest.mark.parametrize(
    ("positions", "seconds"),
    [
        ((0, 48_000, 4 * 48_000 + 312), 4),
        ((0, 4 * 48_000 + 312, 2**64 - 1), 4),  # -1: no sound ends in the last page
        ((2**64 - 1, 2**63), 1),
    ],
)
async def test_a_spoken_reply_is_shown_as_a_voice_note_with_its_length(
    bridge, whatsapp, tmp_path, positions, seconds
):
    path = tmp_path / "out"
    pages = [b"OggS\0\2" + samples.to_bytes(8, "little") + b"rest" for samples in positions]
    path.write_bytes(b"OpusHead".join(pages))

    mime = "audio/ogg; codecs=opus"
    answer = await bridge.ask(a_send("", file=str(path), file_name="voice.ogg", mime=mime))

    assert answer.ok
    part = whatsapp.shown[0][2].audioMessage
    assert (part.PTT, part.seconds, part.mimetype) == (True, seconds, mime)


class HangingUploads:
    """Uploads that never end."""

    def __init__(self, whatsapp: FakeWhatsApp) -> None:
        self.begun = 0
        whatsapp.client.upload = self._upload

    async def _upload(self, *_: object) -> None:
        self.begun += 1
        await asyncio.Event().wait()


async def test_a_text_waits_for_no_file_that_is_being_uploaded(bridge, whatsapp, tmp_path):
    uploads = HangingUploads(whatsapp)
    (tmp_path / "out").write_bytes(b"body")
    sending_file = asyncio.create_task(bridge.ask(a_send(file=str(tmp_path / "out"), mime="text/plain")))
    await until(lambda: uploads.begun, "the upload has begun")
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert (await bridge.ask(a_send("a text", number=2, mark="3EB0AB"))).ok
    assert whatsapp.texts() == ["a text"]
    sending_file.cancel()


async def test_an_upload_that_hangs_may_be_tried_again_later(bridge, whatsapp, tmp_path, monkeypatch):
    HangingUploads(whatsapp)
    monkeypatch.setattr(sending, "UPLOAD_SECONDS", 0.01)
    (tmp_path / "out").write_bytes(b"body")
    async with asyncio.timeout(DEADLINE_SECONDS):
        answer = await bridge.ask(a_send(file=str(tmp_path / "out"), mime="text/plain"))
    assert (answer.ok, answer.code) == (False, "down")
    assert "in time" in answer.text


async def test_uploads_that_hang_leave_threads_for_everything_else(bridge, whatsapp, tmp_path, monkeypatch):
    uploads = HangingUploads(whatsapp)
    monkeypatch.setattr(sending, "UPLOAD_SECONDS", 0.01)
    (tmp_path / "out").write_bytes(b"body")
    for number in range(sending.MAX_UPLOADS + 1):
        async with asyncio.timeout(DEADLINE_SECONDS):
            request = a_send(
                number=number, mark=f"3EB0B{number}", file=str(tmp_path / "out"), mime="text/plain"
            )
            answer = await bridge.ask(request)
    assert (answer.code, answer.text) == ("down", "too many files are being sent")
    await until(lambda: uploads.begun >= sending.MAX_UPLOADS, "the uploads have begun")
    assert uploads.begun == sending.MAX_UPLOADS
    assert (await bridge.ask(a_send("a text", number=99))).ok


async def test_a_file_that_hangs_and_is_tried_again_leaves_room_for_others(
    bridge, whatsapp, tmp_path, monkeypatch
):
    uploads = HangingUploads(whatsapp)
    monkeypatch.setattr(sending, "UPLOAD_SECONDS", 0.01)
    (tmp_path / "out").write_bytes(b"body")
    for number in range(sending.MAX_UPLOADS + 1):
        async with asyncio.timeout(DEADLINE_SECONDS):
            answer = await bridge.ask(
                a_send(number=number, mark="3EB0A1", file=str(tmp_path / "out"), mime="text/plain")
            )
        assert "in time" in answer.text
    await until(lambda: uploads.begun, "the upload has begun")
    assert uploads.begun == 1


async def test_files_that_are_sent_at_once_are_uploaded_a_few_at_a_time(
    bridge, whatsapp, tmp_path, monkeypatch
):
    uploads = HangingUploads(whatsapp)
    monkeypatch.setattr(sending, "UPLOAD_SECONDS", 0.01)
    (tmp_path / "out").write_bytes(b"body")
    requests = [
        a_send(number=number, mark=f"3EB0B{number}", file=str(tmp_path / "out"), mime="text/plain")
        for number in range(sending.MAX_UPLOADS + 1)
    ]
    async with asyncio.timeout(DEADLINE_SECONDS):
        answers = await asyncio.gather(*map(bridge.ask, requests))
    assert [answer.text for answer in answers].count("too many files are being sent") == 1
    await until(lambda: uploads.begun >= sending.MAX_UPLOADS, "the uploads have begun")
    assert uploads.begun == sending.MAX_UPLOADS


async def test_a_file_that_is_gone_is_refused_for_good(bridge):
    answer = await bridge.ask(a_send(file="/nowhere/x", mime="text/plain"))

    assert (answer.ok, answer.code) == (False, "refused")


async def test_before_it_is_connected_the_library_is_not_called(whatsapp, tmp_path):
    async with running(SessionHarness(whatsapp, tmp_path / "s.db")) as bridge:
        answer = await bridge.ask(a_send())
        typing = await bridge.ask(TypingRequest(id=2, chat=FAMILY, is_typing=True))

    assert (answer.ok, answer.code, typing.code) == (False, "down", "down")
    whatsapp.client.send_message.assert_not_called()


async def test_a_call_that_takes_too_long_is_answered_with_a_reason(bridge, whatsapp, monkeypatch):
    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(neonize_session, "CALL_SECONDS", 0.01)
    monkeypatch.setattr(whatsapp.client, "send_chat_presence", hang)

    answer = await bridge.ask(TypingRequest(id=1, chat=FAMILY, is_typing=True))

    assert (answer.ok, answer.code, answer.text) == (False, "down", "it did not answer in time")


async def test_the_typing_sign_is_shown_and_hidden(bridge, whatsapp):
    await bridge.ask(TypingRequest(id=1, chat=FAMILY, is_typing=True))
    await bridge.ask(TypingRequest(id=2, chat=FAMILY, is_typing=False))

    assert whatsapp.signs == [(FAMILY, True), (FAMILY, False)]


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
    async with running(SessionHarness(whatsapp, tmp_path / "s.db")) as bridge:
        await bridge.until_connected()
        await until(lambda: bridge.spool.timer(FAMILY), "the group's timer")
        await whatsapp.tell(wa.heard(wa.text("hi", expiration=604_800), chat=wa.jid(wa.JANE)))
        await until(bridge.texts, "the message")
        await bridge.ask(a_send(number=1, mark="A"))

    again = FakeWhatsApp()
    async with running(SessionHarness(again, tmp_path / "s.db")) as later:
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
