"""The channel with its real process; the client in it is held to the library's signatures."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tests.support.whatsapp_library", exc_type=ImportError)

from neonize.aioze import events
from neonize.proto.Neonize_pb2 import GroupInfo, GroupName, GroupParticipant
from neonize.proto.waCommon.WACommon_pb2 import MessageKey
from neonize.proto.waE2E import WAWebProtobufsE2E_pb2 as e2e
from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import Message

from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.whatsapp import channel as channel_module
from orchestrator.channels.whatsapp import incoming, media_download, reconnect_policy, status
from orchestrator.channels.whatsapp.channel import WhatsAppChannel
from orchestrator.channels.whatsapp.send_rate import SendRate
from orchestrator.domain.errors import ChannelDown, ChannelRefused
from orchestrator.domain.values import Attachment, ChatJid, ChatMember, Inbound, MessageId
from orchestrator.inbound.intake import Intake
from orchestrator.outbound import splitting
from orchestrator.store import chat_members, chats, messages, outbox, turns
from orchestrator.store.database import Database
from tests.doubles import whatsapp_events as wa
from tests.doubles import whatsapp_store
from tests.doubles.whatsapp_phone import Phone
from tests.support.household import a_group
from tests.support.until import until

FAMILY = ChatJid(f"{wa.FAMILY}@g.us")
FAST = SendRate(chat_gap_ms=0, burst=1_000, every_ms=0)


class House:
    """A home with WhatsApp."""

    def __init__(self, home: Path, database: Database, *, has_own_number: bool, **more: Any) -> None:
        clock = SystemClock()
        self.home, self.database = home, database
        self.bus, self.hints = EventBus(clock), Wakeups()
        self.intake = Intake(database, clock=clock, name="Andy", hints=self.hints, bus=self.bus)
        context = ChannelContext(
            home=home,
            database=database,
            clock=clock,
            bus=self.bus,
            assistant="Andy",
            has_own_number=has_own_number,
            attachment_bytes=1_000,
            wake_outbox=self.hints.outbox.give,
        )
        self.channel = WhatsAppChannel(context, **{"rate": FAST, "chance": lambda: 0.0, **more})

    @property
    def state(self) -> str:
        return str(self.channel.status()["state"])

    async def until_state(self, state: str) -> None:
        await until(lambda: self.state == state, f"{state}, not {self.channel.status()}")

    async def rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        async with self.database.reading() as tx:
            return [dict(row) for row in await tx.execute_fetchall(sql, values)]

    async def texts(self) -> list[str]:
        return [row["content"] for row in await self.rows("SELECT content FROM messages ORDER BY seq")]


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with Phone(tmp_path) as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


@asynccontextmanager
async def living(house: House) -> AsyncIterator[House]:
    async with asyncio.TaskGroup() as tasks:
        loop = tasks.create_task(house.channel.run(house.intake.receive))
        try:
            yield house
        finally:
            loop.cancel()


@pytest.fixture
async def build(tmp_path: Path, database: Database) -> Callable[..., House]:
    (tmp_path / "groups" / "family").mkdir(parents=True)
    async with database.transaction() as tx:
        from orchestrator.groups import registration

        await registration.register(tx, a_group(jid=FAMILY))
    return lambda **more: House(tmp_path, database, **{"has_own_number": False, **more})


@pytest.fixture
async def house(phone: Phone, build: Callable[..., House]) -> AsyncIterator[House]:
    phone.pair()
    async with living(build()) as opened:
        await opened.until_state("connected")
        yield opened


# Coming in


async def test_what_people_write_comes_in_once_in_order_and_by_number(house, phone):
    phone.write(
        wa.heard("@Andy one", message_id="3A1", sender=wa.lid(wa.JANE_LID), sender_alt=wa.jid(wa.JANE))
    )
    phone.write(wa.heard("two", message_id="3A2"))
    phone.write(wa.heard("two", message_id="3A2"))
    phone.write(wa.heard("three", message_id="3A3"))

    await until(lambda: _has(house, 3), "three messages")
    rows = await house.rows("SELECT * FROM messages ORDER BY seq")
    assert [row["content"] for row in rows] == ["@Andy one", "two", "three"]
    assert {row["sender"] for row in rows} == {f"{wa.JANE}@s.whatsapp.net"}
    assert await house.rows("SELECT state FROM turns") == [{"state": "queued"}]


async def _has(house: House, count: int) -> bool:
    return len(await house.texts()) >= count


async def test_what_was_written_while_the_host_was_away_is_taken_once_in_order(phone, build):
    phone.pair()
    async with living(build()) as first:
        await first.until_state("connected")
        phone.write(wa.heard("before", message_id="3A0"))
        await until(lambda: _has(first, 1), "the first")
    await until(lambda: not phone.is_connected, "gone")
    for number in range(1, 20):
        phone.write(wa.heard(f"m{number}", message_id=f"3A{number}"))

    async with living(build()) as second:
        await until(lambda: _has(second, 20), "all")
        assert await second.texts() == ["before", *(f"m{number}" for number in range(1, 20))]


async def test_a_message_that_the_host_could_not_keep_comes_again(phone, build, monkeypatch):
    monkeypatch.setattr(incoming, "TAKE_PAUSE_SECONDS", 0.001)
    phone.pair()
    broken = build()

    tries = 0

    async def full(_: Any) -> None:
        nonlocal tries
        tries += 1
        raise OSError("disk full")

    async with asyncio.TaskGroup() as tasks:
        loop = tasks.create_task(broken.channel.run(full))
        await broken.until_state("connected")
        phone.write(wa.heard("kept", message_id="3A1"))
        await until(lambda: tries == incoming.TAKE_TRIES, "the last try")
        await until(
            lambda: broken.channel._receiver is not None and broken.channel._receiver.is_idle, "given up"
        )
        loop.cancel()
    assert await broken.texts() == []

    async with living(build()) as sound:
        await until(lambda: _has(sound, 1), "the message")
        assert await sound.texts() == ["kept"]


async def test_a_photo_lies_in_the_groups_folder_and_is_named_in_the_text(house, phone):
    phone.files[b"k"] = b"picture"
    part = e2e.ImageMessage(
        mediaKey=b"k", directPath="/v", mimetype="image/jpeg", fileLength=7, caption="@Andy what is this"
    )
    phone.write(wa.heard(Message(imageMessage=part), message_id="3A1"))
    voice = e2e.AudioMessage(
        mediaKey=b"k", directPath="/v", mimetype="audio/ogg; codecs=opus", PTT=True, seconds=9
    )
    phone.write(wa.heard(Message(audioMessage=voice), message_id="3A2"))

    await until(lambda: _has_files(house, 2), "both")
    photo, note = await house.texts()
    assert photo == "@Andy what is this\n[image attachments/20260528-2026-image.jpg]"
    assert note == "[voice note attachments/20260528-2026-voice_note.ogg, 9 s]"
    assert (house.home / "groups/family/attachments/20260528-2026-image.jpg").read_bytes() == b"picture"
    assert list((house.home / "data/whatsapp").glob("in-*")) == []


async def test_a_file_that_does_not_come_holds_up_no_message_and_its_turn_only_for_a_while(
    house, phone, monkeypatch
):
    monkeypatch.setattr(media_download, "FETCH_PAUSE_SECONDS", 0)
    phone.hanging.add(b"k")
    phone.write(wa.heard(Message(imageMessage=a_photo("@Andy what is this")), message_id="3A1"))
    phone.write(wa.heard("and this?", message_id="3A2"))

    await until(lambda: _has(house, 2), "both, though the file hangs")
    assert await house.texts() == ["@Andy what is this\n[image: not fetched yet]", "and this?"]
    async with house.database.reading() as tx:
        (turn,) = await turns.unsettled(tx)
    now_ms = SystemClock().now_ms()
    assert now_ms < turn.not_before_ms <= now_ms + 60_000

    phone.hanging.clear()
    monkeypatch.setattr(media_download, "FETCH_SECONDS", 0.05)
    phone.hanging.add(b"other")
    phone.write(wa.heard(Message(imageMessage=a_photo(key=b"other")), message_id="3A3"))
    await until(lambda: _has_file(house, "3A3"), "given up")
    assert (await house.texts())[-1] == "[image: it could not be fetched]"


async def test_a_file_that_hangs_when_the_host_dies_is_fetched_by_the_next_for_the_same_turn(phone, build):
    phone.pair()
    phone.hanging.add(b"k")
    async with living(build()) as first:
        await first.until_state("connected")
        phone.write(wa.heard(Message(imageMessage=a_photo("@Andy what is this")), message_id="3A1"))
        await until(lambda: _has(first, 1), "the message")
    await until(lambda: not phone.is_connected, "gone")
    phone.hanging.clear()
    phone.files[b"k"] = b"picture"

    async with living(build()) as second:
        await until(lambda: _has_files(second, 1), "the file")
        assert await second.texts() == ["@Andy what is this\n[image attachments/20260528-2026-image.jpg]"]
        async with second.database.reading() as tx:
            (turn,) = await turns.unsettled(tx)
        assert (turn.attempt, turn.not_before_ms) == (1, turn.queued_ms)
        assert second.hints.lanes._event.is_set()


async def test_a_quoted_picture_reaches_the_agent_with_its_path_known_before_or_not(house, phone):
    phone.files[b"k"] = b"picture"
    phone.write(wa.heard(Message(imageMessage=a_photo("our cat")), message_id="3A1"))
    for number, quoted in (("3A2", "3A1"), ("3A3", "3ALONGAGO")):
        reply = wa.text(
            "@Andy what is this?",
            stanzaID=quoted,
            participant=f"{wa.JANE}@s.whatsapp.net",
            quotedMessage=Message(imageMessage=a_photo("our dog")),
        )
        phone.write(wa.heard(reply, message_id=number))

    await until(lambda: _has_files(house, 3), "all with their files")
    rows = await house.rows("SELECT quoted_content FROM messages WHERE quoted_id IS NOT NULL ORDER BY seq")
    assert [row["quoted_content"] for row in rows] == [
        "our cat\n[image attachments/20260528-2026-image.jpg]",
        "our dog\n[image attachments/20260528-2026-image-2.jpg]",
    ]
    assert len(list((house.home / "groups/family/attachments").iterdir())) == 2


async def test_a_quoted_picture_that_is_just_being_fetched_is_in_the_quote_when_it_came(house, phone):
    phone.hanging.add(b"k")
    phone.write(wa.heard(Message(imageMessage=a_photo("our cat")), message_id="3A1"))
    reply = wa.text("@Andy what is this?", stanzaID="3A1", participant=f"{wa.JANE}@s.whatsapp.net")
    phone.write(wa.heard(reply, message_id="3A2"))
    await until(lambda: _has(house, 2), "both")

    await house.intake.receive(a_whole("3A1", file="[image attachments/cat.jpg]"))

    rows = await house.rows("SELECT quoted_content FROM messages WHERE id = '3A2'")
    assert rows == [{"quoted_content": "our cat\n[image attachments/cat.jpg]"}]


async def test_a_reaction_comes_with_the_text_it_belongs_to(house, phone):
    await house.channel.send(FAMILY, "Shall I book it?", MessageId("3EB0AA"))
    async with house.database.transaction() as tx:
        await outbox.add(tx, chat_jid=FAMILY, text="Shall I book it?", dedupe_key="k", now_ms=1)
        await tx.execute("UPDATE outbox SET message_id = '3EB0AA'")
        (sent,) = await outbox.unsent(tx, limit=1)
        await messages.add_own(tx, sent, text=sent.text, name="Andy", now_ms=1)
    key = MessageKey(ID=phone.shown[0].id, fromMe=True, remoteJID=FAMILY)
    phone.write(wa.heard(Message(reactionMessage=e2e.ReactionMessage(key=key, text="👍")), message_id="3A1"))

    await until(lambda: _has(house, 2), "the reaction")
    (row,) = await house.rows("SELECT * FROM messages WHERE id = '3A1'")
    assert (row["content"], row["quoted_sender"], row["quoted_content"]) == (
        "[reacted 👍]",
        "Andy",
        "Shall I book it?",
    )


async def test_an_edit_leaves_a_message_its_file_whenever_that_comes(house, phone):
    phone.hanging.add(b"k")
    phone.write(wa.heard(Message(imageMessage=a_photo("the cat")), message_id="3A1"))
    await until(lambda: _has(house, 1), "the message")
    new = Message(imageMessage=e2e.ImageMessage(caption="the dog"))
    phone.write(wa.heard(wa.edit("3A1", new), message_id="3A2"))
    await until(lambda: _says(house, "the dog\n[image: not fetched yet]"), "the edit")

    await house.intake.receive(a_whole("3A1", file="[image attachments/cat.jpg]"))

    assert await house.texts() == ["the dog\n[image attachments/cat.jpg]"]


def a_photo(caption: str = "", key: bytes = b"k") -> e2e.ImageMessage:
    return e2e.ImageMessage(
        mediaKey=key, directPath="/v", mimetype="image/jpeg", fileLength=7, caption=caption
    )


def a_whole(message_id: str, *, file: str) -> Inbound:
    """A message again, with its file."""
    return Inbound(
        chat_jid=FAMILY,
        id=MessageId(message_id),
        sender=f"{wa.JANE}@s.whatsapp.net",
        sender_name="Jane",
        text="the cat",
        sent_ms=1,
        file=file,
    )


async def _has_files(house: House, count: int) -> bool:
    rows = await house.rows("SELECT file_until_ms FROM messages")
    return len(rows) >= count and all(row["file_until_ms"] is None for row in rows)


async def _has_file(house: House, message_id: str) -> bool:
    return bool(await house.rows("SELECT 1 FROM messages WHERE id = ? AND file_until_ms IS NULL", message_id))


async def _says(house: House, text: str) -> bool:
    return text in await house.texts()


async def test_a_file_that_is_too_large_or_gone_is_told_in_words(house, phone):
    big = e2e.DocumentMessage(mediaKey=b"k", directPath="/v", fileName="../../x.pdf", fileLength=5_000_000)
    phone.write(wa.heard(Message(documentMessage=big), message_id="3A1"))
    gone = e2e.ImageMessage(mediaKey=b"?", directPath="/v", fileLength=5)
    phone.write(wa.heard(Message(imageMessage=gone), message_id="3A2"))

    await until(lambda: _has_files(house, 2), "both")
    assert await house.texts() == [
        "[document, 4.8 MB: too large to fetch, at most 0.0 MB]",
        "[image: it could not be fetched]",
    ]


async def test_a_container_that_plants_a_link_gets_no_file_written_through_it(house, phone):
    (house.home / "elsewhere").mkdir()
    (house.home / "groups/family/attachments").symlink_to(house.home / "elsewhere")
    phone.files[b"k"] = b"picture"
    part = e2e.ImageMessage(mediaKey=b"k", directPath="/v", fileLength=7)
    phone.write(wa.heard(Message(imageMessage=part)))

    await until(lambda: _has_files(house, 1), "the message")
    assert await house.texts() == ["[image: it could not be fetched]"]
    assert list((house.home / "elsewhere").iterdir()) == []


async def test_files_of_chats_without_an_agent_are_not_fetched(house, phone):
    phone.files[b"k"] = b"picture"
    part = e2e.ImageMessage(mediaKey=b"k", directPath="/v", fileLength=7)
    chat = wa.jid(wa.JANE)
    phone.write(wa.heard(Message(imageMessage=part), chat=chat))
    phone.write(wa.heard("done", message_id="3A9"))

    await until(lambda: _has(house, 1), "the message after it")
    seen = await house.rows("SELECT name, is_group, channel FROM chats WHERE jid LIKE ?", f"{wa.JANE}%")
    assert seen == [{"name": "Jane", "is_group": 0, "channel": "whatsapp"}]
    assert await house.texts() == ["done"]


# Going out


async def test_a_reply_is_shown_once_in_whatsapps_marks_and_told_apart_on_a_shared_number(house, phone):
    for _ in range(3):
        await house.channel.send(FAMILY, "# Title\n**bold**", MessageId("3EB0AA"))

    assert phone.texts() == ["Andy: *Title*\n*bold*"]
    assert phone.shown[0].mark == "3EB0AA"


@pytest.mark.parametrize(
    "text", ["x" * 9_000, "Paragraph of some words.\n\n" * 400, "|a|b|c|\n" * 1_000, "```\n" + "c\n" * 4_000]
)
async def test_no_message_is_longer_than_4000_characters_with_the_name_and_in_whatsapps_marks(build, text):
    channel = build().channel
    parts = splitting.split(text, channel.max_text_chars)

    shown = [channel._shown(part, is_caption=False) for part in parts]
    assert max(map(len, shown)) <= 4_000
    assert len(parts) <= len(text) // 2_900 + 1


async def test_what_starts_a_line_still_does_behind_the_name(house, phone):
    await house.channel.send(FAMILY, "- one\n- two", MessageId("3EB0AA"))

    assert phone.texts() == ["Andy:\n- one\n- two"]


async def test_on_a_number_of_its_own_the_assistant_needs_no_name(phone, build):
    phone.pair()
    async with living(build(has_own_number=True)) as house:
        await house.until_state("connected")
        await house.channel.send(FAMILY, "hello", MessageId("3EB0AA"))

    assert phone.texts() == ["hello"]


async def test_andys_own_words_are_known_by_their_id_and_a_name_in_front_means_nothing(house, phone):
    await house.channel.send(FAMILY, "Shall I?", MessageId("3EB0AA"))
    async with house.database.transaction() as tx:
        await outbox.add(tx, chat_jid=FAMILY, text="Shall I?", dedupe_key="k", now_ms=1)
    (sent,) = phone.shown

    own = wa.jid(wa.ANDY, device=9)
    phone.write(wa.heard(sent.message, message_id=sent.id, sender=own, is_from_me=True))
    phone.write(wa.heard("Andy: this is the owner", message_id="3A1", sender=own, is_from_me=True))
    quoting = wa.text(
        "yes", stanzaID=sent.id, participant=f"{wa.ANDY}@s.whatsapp.net", quotedMessage=sent.message
    )
    phone.write(wa.heard(quoting, message_id="3A2"))

    await until(lambda: _has(house, 2), "both that are not Andy's")
    rows = await house.rows("SELECT content, is_from_me, quoted_id, quoted_sender FROM messages ORDER BY seq")
    assert [(row["content"], row["is_from_me"]) for row in rows] == [
        ("Andy: this is the owner", 1),
        ("yes", 0),
    ]
    # The quote names the id that the host chose, not the one that WhatsApp got.
    assert (rows[1]["quoted_id"], rows[1]["quoted_sender"]) == ("3EB0AA", "Andy")


async def test_a_mention_of_his_number_and_a_reply_to_what_an_earlier_login_sent_call_andy(phone, build):
    phone.pair()
    async with living(build(has_own_number=True)) as house:
        await house.until_state("connected")
        mention = wa.text("what do you think?", mentionedJID=[f"{wa.ANDY_LID}@lid"])
        phone.write(wa.heard(mention, message_id="3A1"))
        await until(lambda: _has(house, 1), "the mention")
        assert (await house.rows("SELECT is_request FROM messages")) == [{"is_request": 1}]

        reply = wa.text(
            "monday",
            stanzaID="3EB0FROMANEARLIERLOGIN",
            participant=f"{wa.ANDY_LID}@lid",
            quotedMessage=Message(conversation="Which day?"),
        )
        phone.write(wa.heard(reply, message_id="3A2"))
        await until(lambda: _has(house, 2), "the reply")
        assert (await house.rows("SELECT is_request FROM messages WHERE id = '3A2'")) == [{"is_request": 1}]


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
    async with living(build()) as house:
        await house.until_state("connected")
        await house.channel.send(FAMILY, "once", MessageId("3EB0AA"))

    assert phone.texts() == ["Andy: once"]


async def test_what_whatsapp_never_takes_is_told_apart_from_what_may_work_later(house, phone):
    phone.trouble.extend(["you're not participating in that group", "websocket not connected"])

    with pytest.raises(ChannelRefused, match="not participating"):
        await house.channel.send(FAMILY, "x", MessageId("3EB0AA"))
    with pytest.raises(ChannelDown):
        await house.channel.send(FAMILY, "x", MessageId("3EB0BB"))


async def test_a_file_goes_with_its_words(house, phone, tmp_path):
    (tmp_path / "out").write_bytes(b"body")
    file = Attachment(path=tmp_path / "out", name="plan.pdf", mime="application/pdf")

    await house.channel.send(FAMILY, "the **plan**", MessageId("3EB0AA"), attachment=file)

    part = phone.shown[0].message.documentMessage
    assert (part.fileName, part.caption) == ("plan.pdf", "Andy: the *plan*")
    assert phone.files[part.mediaKey] == b"body"


async def test_a_reminder_mentions_its_person_in_the_place_of_their_name(house, phone):
    person = ChatMember(jid=f"{wa.JANE}@s.whatsapp.net", name="Jane")
    await house.channel.send(FAMILY, "⏰ Reminder for Jane: bread", MessageId("3EB0AA"), mention=person)
    await house.channel.send(FAMILY, "⏰ Reminder: bread", MessageId("3EB0BB"), mention=person)

    assert phone.texts() == [
        f"Andy: ⏰ Reminder for @{wa.JANE}: bread",
        f"Andy: @{wa.JANE} ⏰ Reminder: bread",
    ]
    context = phone.shown[0].message.extendedTextMessage.contextInfo
    assert list(context.mentionedJID) == [f"{wa.JANE}@s.whatsapp.net"]


@pytest.mark.parametrize(("has_own_number", "read"), [(True, ["3A1"]), (False, [])])
async def test_on_a_number_of_his_own_who_writes_sees_that_it_was_read(phone, build, has_own_number, read):
    phone.pair()
    async with living(build(has_own_number=has_own_number)) as house:
        await house.until_state("connected")
        phone.write(wa.heard("hello", message_id="3A0", chat=wa.jid(wa.JANE)))
        phone.write(wa.heard("hello", message_id="3A1"))
        await until(lambda: _has(house, 1), "the message")
        await until(lambda: phone.read == read, "read, or not")
        await house.channel.send(FAMILY, "x", MessageId("3EB0AA"))
    assert phone.read == read


async def test_signs_take_no_message_its_turn(phone, build):
    phone.pair()
    async with living(build(rate=SendRate(burst=4, every_ms=60_000))) as house:
        await house.until_state("connected")
        await house.channel.send(FAMILY, "one", MessageId("3EB0A1"))
        await house.intake.receive(a_whole("3A1", file="f"))
        async with house.database.reading() as tx:
            question = await messages.find(tx, FAMILY, MessageId("3A1"))
        for _ in range(9):
            await house.channel.react(question, "👀")
        await house.channel.send(FAMILY, "two", MessageId("3EB0A2"))

    assert phone.texts() == ["Andy: one", "Andy: two"]
    assert phone.reactions == [("3A1", "👀")] * 2


async def test_typing_is_shown_and_hidden(house, phone):
    await house.channel.set_typing(FAMILY, is_typing=True)
    await house.channel.set_typing(FAMILY, is_typing=False)

    assert phone.signs == [(FAMILY, True), (FAMILY, False)]


async def test_too_many_messages_at_once_wait_instead_of_risking_a_ban(phone, build):
    phone.pair()
    async with living(build(rate=SendRate(burst=1, every_ms=60_000))) as house:
        await house.until_state("connected")
        await house.channel.send(FAMILY, "one", MessageId("3EB0AA"))
        with pytest.raises(ChannelDown, match="bans"):
            await house.channel.send(FAMILY, "two", MessageId("3EB0BB"))

    assert phone.texts() == ["Andy: one"]


# The connection


async def test_nobody_paired_is_a_state_and_costs_no_process(phone, build):
    async with living(build()) as house:
        await house.until_state("unpaired")
        with pytest.raises(ChannelDown):
            await house.channel.send(FAMILY, "x", MessageId("3EB0AA"))
        await house.channel.set_typing(FAMILY, is_typing=True)
        assert phone.logins == 0

        phone.pair()
        house.channel.paired.give()
        await house.until_state("connected")


async def test_a_broken_login_is_tried_again_by_the_one_loop(house, phone, monkeypatch):
    monkeypatch.setattr(reconnect_policy, "FIRST_SECONDS", 0.01)
    for number in range(2, 4):
        await until(lambda: house.state == "connected", "connected")
        phone.hang_up()
        await until(lambda wanted=number: phone.logins == wanted, f"login {number}")

    await house.until_state("connected")
    phone.write(wa.heard("once", message_id="3A1"))
    await until(lambda: _has(house, 1), "the message")
    assert await house.texts() == ["once"]
    assert phone.logins == 3


async def test_a_login_that_is_refused_waits_longer_each_time_and_harms_nothing(phone, build, monkeypatch):
    monkeypatch.setattr(reconnect_policy, "FIRST_SECONDS", 0.001)
    phone.pair()
    phone.refusal = "no such host"
    async with living(build()) as house:
        await until(lambda: house.channel._failures >= 2, "two failures")
        await house.until_state("disconnected")  # between two tries it is that again and again
        await until(lambda: "no such host" in house.channel.status()["last_error"], "the reason")
        phone.refusal = None
        await house.until_state("connected")
        assert house.channel._failures == 0


@pytest.mark.parametrize(
    ("event", "state", "advice"),
    [
        (events.LoggedOutEv(OnConnect=True, Reason=1), "logged_out", "pair it with the phone again"),
        (events.TemporaryBanEv(Code=1, Expire=3600), "banned", "nothing is sent"),
        (events.StreamReplacedEv(), "replaced", "stop the other one"),
    ],
)
async def test_an_end_that_only_the_owner_can_mend_is_a_state_that_is_told(
    house, phone, event, state, advice
):
    phone.write(event)

    await house.until_state(state)
    await until(lambda: advice in house.channel.status().get("advice", ""), "advice")
    await until(lambda: not phone.is_connected, "left alone")
    with pytest.raises(ChannelDown, match=advice):
        await house.channel.send(FAMILY, "x", MessageId("3EB0AA"))
    assert phone.logins == 1
    kept = status.read(house.home / "data/whatsapp/condition.json")
    assert (kept.state, kept.last_disconnect_ms is not None) == (state, True)


async def test_a_line_that_stays_silent_is_given_up_for_a_new_login(house, phone, monkeypatch):
    monkeypatch.setattr(reconnect_policy, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(reconnect_policy, "GRACE_SECONDS", 0.01)
    phone.write(events.KeepAliveTimeoutEv(ErrorCount=1, LastSuccess=1))

    await until(lambda: phone.logins == 2, "a second login")
    await house.until_state("connected")


async def test_who_was_logged_out_and_pairs_again_is_connected_again(house, phone, monkeypatch):
    monkeypatch.setattr(channel_module, "UNPAIRED_SECONDS", 0.05)
    whatsapp_store.log_out(phone.store)
    phone.write(events.LoggedOutEv(OnConnect=True, Reason=1))
    await house.until_state("logged_out")

    phone.store.unlink()
    phone.pair(device=10)

    await house.until_state("connected")


async def test_what_waited_for_whatsapp_goes_out_when_it_is_back(phone, build):
    house = build()
    async with house.database.transaction() as tx:
        await outbox.add(tx, chat_jid=FAMILY, text="x", dedupe_key="k", now_ms=1)
        (head,) = await outbox.heads(tx)
        await outbox.begin_attempt(tx, head.id)
        await outbox.try_later(tx, head.id, at_ms=2**50, error="down")
    phone.pair()

    async with living(house):
        await house.until_state("connected")

        async def is_due() -> bool:
            return (await house.rows("SELECT next_attempt_ms AS at FROM outbox"))[0]["at"] < 2**50

        await until(is_due, "due now")


async def test_a_process_that_dies_is_started_again_and_says_why_it_died(house, phone, monkeypatch):
    monkeypatch.setattr(reconnect_policy, "FIRST_SECONDS", 0.01)
    house.channel._bridge._process.kill()

    await until(lambda: phone.logins == 2, "a second login")
    await house.until_state("connected")
    assert "code -9" in house.channel.status()["last_disconnect"]


# Groups


async def test_groups_are_known_before_anyone_writes_in_them(phone, build):
    phone.pair()
    phone.groups = [
        GroupInfo(
            JID=wa.group("777"),
            GroupName=GroupName(Name="Cooking"),
            Participants=[GroupParticipant(PhoneNumber=wa.jid(wa.JANE), IsAdmin=True)],
        )
    ]
    async with living(build()) as house:
        with house.bus.listening() as told:
            await until(lambda: _knows(house, "777@g.us"), "the group")
            await until(lambda: any(one.kind == "chats.seen" for one in house.bus.ring), "told")
            del told
        async with house.database.reading() as tx:
            (chat,) = [one for one in await chats.known(tx) if one.jid == "777@g.us"]
            people = await chat_members.of(tx, ChatJid("777@g.us"))
    assert (chat.name, chat.is_group, chat.channel) == ("Cooking", True, "whatsapp")
    assert [(one.jid, one.is_admin) for one in people] == [(f"{wa.JANE}@s.whatsapp.net", True)]


async def test_all_groups_are_looked_at_again_each_day(phone, build, monkeypatch):
    monkeypatch.setattr(channel_module, "DAY_SECONDS", 0.05)
    phone.pair()
    async with living(build()) as house:
        await house.until_state("connected")
        phone.groups = [GroupInfo(JID=wa.group("777"), GroupName=GroupName(Name="Cooking"))]
        await until(lambda: _knows(house, "777@g.us"), "the group, though nothing told of it")


async def _knows(house: House, jid: str) -> bool:
    return bool(await house.rows("SELECT 1 FROM chats WHERE jid = ?", jid))


# The login


def test_the_login_of_the_channel_is_what_the_ledger_reads(phone):
    phone.pair()
    with closing(sqlite3.connect(phone.store)) as connection:
        assert connection.execute("SELECT count(*) FROM whatsmeow_device").fetchone() == (1,)
