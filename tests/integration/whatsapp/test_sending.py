"""Messages go out through the channel with its real bridge process: once, in WhatsApp's marks."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

pytest.importorskip("tests.support.whatsapp_library", exc_type=ImportError)

from neonize.aioze import events

from orchestrator.channels.whatsapp.send_rate import SendRate
from orchestrator.domain.errors import ChannelDown, ChannelRefused
from orchestrator.domain.values import Attachment, ChatMember, MessageId
from orchestrator.outbound.format import split
from orchestrator.store.conversation import messages
from tests.doubles import whatsapp_events as wa
from tests.doubles import whatsapp_store
from tests.support.until import until
from tests.support.whatsapp_home import (
    FAMILY,
    a_whole,
    living,
)


async def test_a_reply_is_shown_once_in_whatsapps_marks_and_told_apart_on_a_shared_number(harness, phone):
    for _ in range(3):
        await harness.channel.send(FAMILY, "# Title\n**bold**", MessageId("3EB0AA"))

    assert phone.texts() == ["Andy: *Title*\n*bold*"]
    assert phone.shown[0].mark == "3EB0AA"


@pytest.mark.parametrize(
    "text", ["x" * 9_000, "Paragraph of some words.\n\n" * 400, "|a|b|c|\n" * 1_000, "```\n" + "c\n" * 4_000]
)
async def test_no_message_is_longer_than_4000_characters_with_the_name_and_in_whatsapps_marks(build, text):
    channel = build().channel
    parts = split(text, channel.max_text_chars)

    shown = [channel._formatted(part, is_caption=False) for part in parts]
    assert max(map(len, shown)) <= 4_000
    assert len(parts) <= len(text) // 2_900 + 1


async def test_what_starts_a_line_still_does_behind_the_name(harness, phone):
    await harness.channel.send(FAMILY, "- one\n- two", MessageId("3EB0AA"))

    assert phone.texts() == ["Andy:\n- one\n- two"]


async def test_on_a_number_of_its_own_the_assistant_needs_no_name(phone, build):
    phone.pair()
    async with living(build(has_own_number=True)) as harness:
        await harness.until_state("connected")
        await harness.channel.send(FAMILY, "hello", MessageId("3EB0AA"))

    assert phone.texts() == ["hello"]


async def test_a_send_whose_answer_never_came_is_not_shown_twice_by_the_next_life(phone, build):
    phone.pair()
    phone.trouble.append("swallow")
    async with living(build()) as first:
        await first.until_state("connected")
        sending = asyncio.create_task(first.channel.send(FAMILY, "once", MessageId("3EB0AA")))
        await until(lambda: phone.shown, "shown")
        sending.cancel()
    (before,) = phone.shown

    async with living(build()) as second:
        await second.until_state("connected")
        phone.write(events.ReceiptEv(MessageIDs=[before.id], Timestamp=1))
        await second.channel.send(FAMILY, "once", MessageId("3EB0AA"))

    assert [one.id for one in phone.shown] == [before.id]


async def test_without_a_receipt_the_first_is_taken_back_so_that_one_is_left(phone, build, monkeypatch):
    phone.pair()
    phone.haste["sending.PROOF_SECONDS"] = 0.01
    whatsapp_store.put_secret(phone.store, chat=FAMILY, message_id="3EBOLD", key=b"andy:3EB0AA\0" + b"x" * 20)
    async with living(build()) as harness:
        await harness.until_state("connected")
        await harness.channel.send(FAMILY, "once", MessageId("3EB0AA"))

    assert phone.texts() == ["Andy: once"]


async def test_what_whatsapp_never_takes_is_told_apart_from_what_may_work_later(harness, phone):
    phone.trouble.extend(["you're not participating in that group", "websocket not connected"])

    with pytest.raises(ChannelRefused, match="not participating"):
        await harness.channel.send(FAMILY, "x", MessageId("3EB0AA"))
    with pytest.raises(ChannelDown):
        await harness.channel.send(FAMILY, "x", MessageId("3EB0BB"))


async def test_a_file_goes_with_its_words(harness, phone, tmp_path):
    (tmp_path / "out").write_bytes(b"body")
    file = Attachment(path=tmp_path / "out", name="plan.pdf", mime="application/pdf")

    await harness.channel.send(FAMILY, "the **plan**", MessageId("3EB0AA"), attachment=file)

    part = phone.shown[0].message.documentMessage
    assert (part.fileName, part.caption) == ("plan.pdf", "Andy: the *plan*")
    assert phone.files[part.mediaKey] == b"body"


async def test_a_reminder_mentions_its_person_in_the_place_of_their_name(harness, phone):
    person = ChatMember(jid=f"{wa.JANE}@s.whatsapp.net", name="Jane")
    await harness.channel.send(FAMILY, "⏰ Reminder for Jane: bread", MessageId("3EB0AA"), mention=person)
    await harness.channel.send(FAMILY, "⏰ Reminder: bread", MessageId("3EB0BB"), mention=person)

    assert phone.texts() == [
        f"Andy: ⏰ Reminder for @{wa.JANE}: bread",
        f"Andy: @{wa.JANE} ⏰ Reminder: bread",
    ]
    context = phone.shown[0].message.extendedTextMessage.contextInfo
    assert list(context.mentionedJID) == [f"{wa.JANE}@s.whatsapp.net"]


async def test_signs_take_no_message_its_turn(phone, build):
    phone.pair()
    async with living(build(rate=SendRate(burst=4, every_ms=60_000))) as harness:
        await harness.until_state("connected")
        await harness.channel.send(FAMILY, "one", MessageId("3EB0A1"))
        await harness.intake.receive(a_whole("3A1", file="f"))
        async with harness.database.reading() as tx:
            question = await messages.find(tx, FAMILY, MessageId("3A1"))
        for _ in range(9):
            with suppress(ChannelDown):
                await harness.channel.react(question, "👀")
        await harness.channel.send(FAMILY, "two", MessageId("3EB0A2"))

    assert phone.texts() == ["Andy: one", "Andy: two"]
    assert phone.reactions == [("3A1", "👀")] * 2


async def test_typing_is_shown_and_hidden(harness, phone):
    await harness.channel.set_typing(FAMILY, is_typing=True)
    await harness.channel.set_typing(FAMILY, is_typing=False)

    assert phone.signs == [(FAMILY, True), (FAMILY, False)]


async def test_too_many_messages_at_once_wait_instead_of_risking_a_ban(phone, build):
    phone.pair()
    async with living(build(rate=SendRate(burst=1, every_ms=60_000))) as harness:
        await harness.until_state("connected")
        await harness.channel.send(FAMILY, "one", MessageId("3EB0AA"))
        with pytest.raises(ChannelDown, match="bans"):
            await harness.channel.send(FAMILY, "two", MessageId("3EB0BB"))

    assert phone.texts() == ["Andy: one"]
