"""Files that messages carry come into the folder of their group, and hold nothing up."""

from __future__ import annotations

import pytest

pytest.importorskip("tests.support.whatsapp_library", exc_type=ImportError)

from neonize.proto.waE2E import WAWebProtobufsE2E_pb2 as e2e
from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import Message

from orchestrator.base.clock import SystemClock
from orchestrator.channels import attachments
from orchestrator.channels.whatsapp import media_download
from orchestrator.store.runs import turns
from tests.doubles import whatsapp_events as wa
from tests.support.until import until
from tests.support.whatsapp_home import a_photo, a_whole, has_file, has_files, has_messages, has_text, living


async def test_a_photo_lies_in_the_groups_folder_and_is_named_in_the_text(harness, phone):
    phone.files[b"k"] = b"picture"
    part = e2e.ImageMessage(
        mediaKey=b"k", directPath="/v", mimetype="image/jpeg", fileLength=7, caption="@Andy what is this"
    )
    phone.write(wa.heard(Message(imageMessage=part), message_id="3A1"))
    voice = e2e.AudioMessage(
        mediaKey=b"k", directPath="/v", mimetype="audio/ogg; codecs=opus", PTT=True, seconds=9
    )
    phone.write(wa.heard(Message(audioMessage=voice), message_id="3A2"))

    await until(lambda: has_files(harness, 2), "both")
    photo, note = await harness.texts()
    assert photo == "@Andy what is this\n[image attachments/20260528-2026-image.jpg]"
    assert note == "[voice note attachments/20260528-2026-voice_note.ogg, 9 s]"
    assert (harness.home / "groups/family/attachments/20260528-2026-image.jpg").read_bytes() == b"picture"
    assert list((harness.home / "data/whatsapp").glob("in-*")) == []


async def test_a_file_that_does_not_come_holds_up_no_message_and_its_turn_only_for_a_while(
    harness, phone, monkeypatch
):
    monkeypatch.setattr(media_download, "FETCH_PAUSE_SECONDS", 0)
    phone.hanging.add(b"k")
    phone.write(wa.heard(Message(imageMessage=a_photo("@Andy what is this")), message_id="3A1"))
    phone.write(wa.heard("and this?", message_id="3A2"))

    await until(lambda: has_messages(harness, 2), "both, though the file hangs")
    assert await harness.texts() == ["@Andy what is this\n[image: not fetched yet]", "and this?"]
    async with harness.database.reading() as tx:
        (turn,) = await turns.unsettled(tx)
    now_ms = SystemClock().now_ms()
    assert now_ms < turn.not_before_ms <= now_ms + 60_000

    phone.hanging.clear()
    monkeypatch.setattr(attachments, "FETCH_SECONDS", 0.05)
    phone.hanging.add(b"other")
    phone.write(wa.heard(Message(imageMessage=a_photo(key=b"other")), message_id="3A3"))
    await until(lambda: has_file(harness, "3A3"), "given up")
    assert (await harness.texts())[-1] == "[image: it could not be fetched]"


async def test_a_file_that_hangs_when_the_host_dies_is_fetched_by_the_next_for_the_same_turn(phone, build):
    phone.pair()
    phone.hanging.add(b"k")
    async with living(build()) as first:
        await first.until_state("connected")
        phone.write(wa.heard(Message(imageMessage=a_photo("@Andy what is this")), message_id="3A1"))
        await until(lambda: has_messages(first, 1), "the message")
    await until(lambda: not phone.is_connected, "gone")
    phone.hanging.clear()
    phone.files[b"k"] = b"picture"

    async with living(build()) as second:
        await until(lambda: has_files(second, 1), "the file")
        assert await second.texts() == ["@Andy what is this\n[image attachments/20260528-2026-image.jpg]"]
        async with second.database.reading() as tx:
            (turn,) = await turns.unsettled(tx)
        assert (turn.attempt, turn.not_before_ms) == (1, turn.queued_ms)
        assert second.wakeups.lanes._event.is_set()


async def test_a_quoted_picture_reaches_the_agent_with_its_path_known_before_or_not(harness, phone):
    phone.files[b"k"] = b"picture"
    # One after the other: which of two pictures comes first decides what its file is called.
    phone.write(wa.heard(Message(imageMessage=a_photo("our cat")), message_id="3A1"))
    await until(lambda: has_file(harness, "3A1"), "the picture that is quoted")
    for number, quoted in (("3A2", "3A1"), ("3A3", "3ALONGAGO")):
        reply = wa.text(
            "@Andy what is this?",
            stanzaID=quoted,
            participant=f"{wa.JANE}@s.whatsapp.net",
            quotedMessage=Message(imageMessage=a_photo("our dog")),
        )
        phone.write(wa.heard(reply, message_id=number))
        await until(lambda number=number: has_file(harness, number), "the picture")

    assert await has_files(harness, 3)
    rows = await harness.rows("SELECT quoted_content FROM messages WHERE quoted_id IS NOT NULL ORDER BY seq")
    assert [row["quoted_content"] for row in rows] == [
        "our cat\n[image attachments/20260528-2026-image.jpg]",
        "our dog\n[image attachments/20260528-2026-image-2.jpg]",
    ]
    assert len(list((harness.home / "groups/family/attachments").iterdir())) == 2


async def test_a_quoted_picture_that_is_just_being_fetched_is_in_the_quote_when_it_came(harness, phone):
    phone.hanging.add(b"k")
    phone.write(wa.heard(Message(imageMessage=a_photo("our cat")), message_id="3A1"))
    reply = wa.text("@Andy what is this?", stanzaID="3A1", participant=f"{wa.JANE}@s.whatsapp.net")
    phone.write(wa.heard(reply, message_id="3A2"))
    await until(lambda: has_messages(harness, 2), "both")

    await harness.intake.receive(a_whole("3A1", file="[image attachments/cat.jpg]"))

    rows = await harness.rows("SELECT quoted_content FROM messages WHERE id = '3A2'")
    assert rows == [{"quoted_content": "our cat\n[image attachments/cat.jpg]"}]


async def test_an_edit_leaves_a_message_its_file_whenever_that_comes(harness, phone):
    phone.hanging.add(b"k")
    phone.write(wa.heard(Message(imageMessage=a_photo("the cat")), message_id="3A1"))
    await until(lambda: has_messages(harness, 1), "the message")
    new = Message(imageMessage=e2e.ImageMessage(caption="the dog"))
    phone.write(wa.heard(wa.edit("3A1", new), message_id="3A2"))
    await until(lambda: has_text(harness, "the dog\n[image: not fetched yet]"), "the edit")

    await harness.intake.receive(a_whole("3A1", file="[image attachments/cat.jpg]"))

    assert await harness.texts() == ["the dog\n[image attachments/cat.jpg]"]


async def test_a_file_that_is_too_large_or_gone_is_told_in_words(harness, phone):
    big = e2e.DocumentMessage(mediaKey=b"k", directPath="/v", fileName="../../x.pdf", fileLength=5_000_000)
    phone.write(wa.heard(Message(documentMessage=big), message_id="3A1"))
    gone = e2e.ImageMessage(mediaKey=b"?", directPath="/v", fileLength=5)
    phone.write(wa.heard(Message(imageMessage=gone), message_id="3A2"))

    await until(lambda: has_files(harness, 2), "both")
    assert await harness.texts() == [
        "[document, 4.8 MB: too large to fetch, at most 0.0 MB]",
        "[image: it could not be fetched]",
    ]


async def test_a_container_that_plants_a_link_gets_no_file_written_through_it(harness, phone):
    (harness.home / "elsewhere").mkdir()
    (harness.home / "groups/family/attachments").symlink_to(harness.home / "elsewhere")
    phone.files[b"k"] = b"picture"
    part = e2e.ImageMessage(mediaKey=b"k", directPath="/v", fileLength=7)
    phone.write(wa.heard(Message(imageMessage=part)))

    await until(lambda: has_files(harness, 1), "the message")
    assert await harness.texts() == ["[image: it could not be fetched]"]
    assert list((harness.home / "elsewhere").iterdir()) == []


async def test_files_of_chats_without_an_agent_are_not_fetched(harness, phone):
    phone.files[b"k"] = b"picture"
    part = e2e.ImageMessage(mediaKey=b"k", directPath="/v", fileLength=7)
    chat = wa.jid(wa.JANE)
    phone.write(wa.heard(Message(imageMessage=part), chat=chat))
    phone.write(wa.heard("done", message_id="3A9"))

    await until(lambda: has_messages(harness, 1), "the message after it")
    seen = await harness.rows("SELECT name, is_group, channel FROM chats WHERE jid LIKE ?", f"{wa.JANE}%")
    assert seen == [{"name": "Jane", "is_group": 0, "channel": "whatsapp"}]
    assert await harness.texts() == ["done"]
