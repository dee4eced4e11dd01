"""Messages come in through the channel with its real bridge process: once, in order, by phone number."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import structlog

pytest.importorskip("tests.support.whatsapp_library", exc_type=ImportError)

from neonize.proto.waCommon.WACommon_pb2 import MessageKey
from neonize.proto.waE2E import WAWebProtobufsE2E_pb2 as e2e
from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import Message

from orchestrator.channels.whatsapp import incoming, protocol
from orchestrator.channels.whatsapp.protocol import BridgeMessage
from orchestrator.channels.whatsapp.spool import Spool
from orchestrator.domain.values import ChatMember, MessageId
from orchestrator.groups import registration
from orchestrator.store.conversation import chats, messages, outbox
from tests.doubles import whatsapp_events as wa
from tests.support.store_harness import a_group
from tests.support.until import until
from tests.support.whatsapp_home import FAMILY, has_messages, has_text, living


async def test_what_people_write_comes_in_once_in_order_and_by_number(harness, phone):
    phone.write(
        wa.heard("@Andy one", message_id="3A1", sender=wa.lid(wa.JANE_LID), sender_alt=wa.jid(wa.JANE))
    )
    phone.write(wa.heard("two", message_id="3A2"))
    phone.write(wa.heard("two", message_id="3A2"))
    phone.write(wa.heard("three", message_id="3A3"))

    await until(lambda: has_messages(harness, 3), "three messages")
    rows = await harness.rows("SELECT * FROM messages ORDER BY seq")
    assert [row["content"] for row in rows] == ["@Andy one", "two", "three"]
    assert {row["sender"] for row in rows} == {f"{wa.JANE}@s.whatsapp.net"}
    assert await harness.rows("SELECT state FROM turns") == [{"state": "queued"}]


async def test_who_types_is_seen_where_the_group_is_known_by_and_oneself_is_not(harness, phone):
    phone.write(wa.typing(is_from_me=True, chat=wa.group("999")))
    phone.write(wa.typing(stops=True, chat=wa.group("998")))
    phone.write(wa.typing())

    await until(lambda: harness.typed_in, "somebody types")
    assert harness.typed_in == [FAMILY]


async def test_stored_messages_that_cannot_be_read_are_kept_and_told_once_and_the_others_come(phone, build):
    phone.pair()
    path = phone.store.with_name("whatsapp-bridge.db")
    stored = BridgeMessage(
        chat=FAMILY, is_group=True, id="3A1", sender=f"{wa.JANE}@s.whatsapp.net", sender_name="Jane",
        sent_ms=1, is_from_me=False, text="sound",
    )  # fmt: skip
    of_a_later_version = json.dumps({**json.loads(protocol.json_of(stored)), "hue": "red"})
    Spool(path).close()
    with closing(sqlite3.connect(path)) as spool, spool:
        for row in (of_a_later_version.encode(), b'{"kind": "\xff', protocol.json_of(stored).encode()):
            spool.execute("INSERT INTO inbox (message) VALUES (CAST(? AS TEXT))", (row,))

    def acknowledged() -> bool:
        with closing(sqlite3.connect(path)) as spool:
            return spool.execute("SELECT count(*) FROM reported").fetchone() == (2,)

    notices = "SELECT text FROM outbox WHERE chat_jid = 'local:main'"
    async with living(build()) as first:
        await until(lambda: has_text(first, "sound"), "the one that can be read")
        await first.until_state("connected")
        assert await first.rows(notices) == []  # there is no main group yet
    async with first.database.transaction() as tx:
        await registration.register(tx, a_group("main", jid="local:main", is_main=True))
    reports: list[list[int]] = []
    for text in ("once", "again"):
        with structlog.testing.capture_logs() as logs:
            async with living(build()) as later:
                await until(acknowledged, "the owner is notified")
                phone.write(wa.heard(text, message_id=text))
                # The bridge reports what it has set aside before it connects.
                await until(lambda said=text, seen=later: has_text(seen, said), "what comes then")
        reports += [one["numbers"] for one in logs if one["event"] == "whatsapp.messages_set_aside"]
    assert [list(numbers) for numbers in reports] == [[1, 2]]
    (notice,) = await later.rows(notices)
    assert "2 messages" in notice["text"]

    with closing(sqlite3.connect(path)) as spool, spool:
        assert spool.execute("SELECT n FROM inbox ORDER BY n").fetchall()[:2] == [(1,), (2,)]
        known = {**json.loads(of_a_later_version), "id": "3A2", "text": "read by a later version"}
        del known["hue"]
        spool.execute("UPDATE inbox SET message = ? WHERE n = 1", (json.dumps(known),))
    async with living(build()) as newer:
        await until(lambda: has_text(newer, "read by a later version"), "the one that was set aside")


async def test_what_was_written_while_the_host_was_away_is_taken_once_in_order(phone, build):
    phone.pair()
    async with living(build()) as first:
        await first.until_state("connected")
        phone.write(wa.heard("before", message_id="3A0"))
        await until(lambda: has_messages(first, 1), "the first")
    await until(lambda: not phone.is_connected, "gone")
    for number in range(1, 20):
        phone.write(wa.heard(f"m{number}", message_id=f"3A{number}"))

    async with living(build()) as second:
        await until(lambda: has_messages(second, 20), "all")
        assert await second.texts() == ["before", *(f"m{number}" for number in range(1, 20))]


async def test_a_message_that_the_host_could_not_keep_comes_again(phone, build, monkeypatch):
    monkeypatch.setattr(incoming, "RETRY_PAUSE_SECONDS", 0.001)
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
        await until(lambda: tries == incoming.MAX_FAILED_TRIES, "the last try")
        await until(
            lambda: broken.channel._receiver is not None and broken.channel._receiver.is_idle, "given up"
        )
        loop.cancel()
    assert await broken.texts() == []

    async with living(build()) as sound:
        await until(lambda: has_messages(sound, 1), "the message")
        assert await sound.texts() == ["kept"]


async def test_a_database_that_cannot_be_read_for_an_acknowledgement_ends_no_connection():
    tried: list[str] = []

    class Reader:
        async def read(self, message: BridgeMessage) -> None:
            return None

        async def read_receipt(self, message: BridgeMessage) -> None:
            tried.append(message.id)
            raise sqlite3.OperationalError("disk I/O error")

    bridge: Any = SimpleNamespace(is_alive=True)
    reader: Any = Reader()
    async with asyncio.TaskGroup() as tasks:
        receiver = incoming.MessageReceiver(
            tasks, bridge, AsyncMock(), reader=reader, on_received=lambda: None
        )
        for n, message_id in ((1, "3A1"), (2, "3A2")):
            message = BridgeMessage(
                chat=FAMILY, is_group=True, id=message_id, sender="1@lid", sender_name="Jane", sent_ms=1,
                is_from_me=False,
            )  # fmt: skip
            receiver.put(protocol.Delivered(n=n, message=message))
    assert tried == ["3A1", "3A2"]


async def test_a_reaction_comes_with_the_text_it_belongs_to(harness, phone):
    await harness.channel.send(FAMILY, "Shall I book it?", MessageId("3EB0AA"))
    async with harness.database.transaction() as tx:
        await outbox.add(tx, chat_jid=FAMILY, text="Shall I book it?", dedupe_key="k", now_ms=1)
        await tx.execute("UPDATE outbox SET message_id = '3EB0AA'")
        (sent,) = await outbox.unsent(tx, limit=1)
        await messages.add_own(tx, sent, text=sent.text, name="Andy", now_ms=1)
    author = f"{wa.ANDY}@s.whatsapp.net"
    key = MessageKey(ID=phone.shown[0].id, fromMe=False, remoteJID=FAMILY, participant=author)
    phone.write(wa.heard(Message(reactionMessage=e2e.ReactionMessage(key=key, text="👍")), message_id="3A1"))

    await until(lambda: has_messages(harness, 2), "the reaction")
    (row,) = await harness.rows("SELECT * FROM messages WHERE id = '3A1'")
    assert (row["content"], row["quoted_sender"], row["quoted_content"]) == (
        "[reacted 👍]",
        "Andy",
        "Shall I book it?",
    )


async def test_andys_own_words_are_known_by_their_id_and_a_name_in_front_means_nothing(harness, phone):
    await harness.channel.send(FAMILY, "Shall I?", MessageId("3EB0AA"))
    async with harness.database.transaction() as tx:
        await outbox.add(tx, chat_jid=FAMILY, text="Shall I?", dedupe_key="k", now_ms=1)
    (sent,) = phone.shown

    own = wa.jid(wa.ANDY, device=9)
    phone.write(wa.heard(sent.message, message_id=sent.id, sender=own, is_from_me=True))
    phone.write(wa.heard("Andy: this is the owner", message_id="3A1", sender=own, is_from_me=True))
    quoting = wa.text(
        "yes", stanzaID=sent.id, participant=f"{wa.ANDY}@s.whatsapp.net", quotedMessage=sent.message
    )
    phone.write(wa.heard(quoting, message_id="3A2"))

    await until(lambda: has_messages(harness, 2), "both that are not Andy's")
    rows = await harness.rows(
        "SELECT content, is_from_me, quoted_id, quoted_sender FROM messages ORDER BY seq"
    )
    assert [(row["content"], row["is_from_me"]) for row in rows] == [
        ("Andy: this is the owner", 1),
        ("yes", 0),
    ]
    # The quote names the id that the host chose, not the one that WhatsApp got.
    assert (rows[1]["quoted_id"], rows[1]["quoted_sender"]) == ("3EB0AA", "Andy")


async def test_a_mention_of_his_number_and_a_reply_to_what_an_earlier_login_sent_call_andy(phone, build):
    phone.pair()
    async with living(build(has_own_number=True)) as harness:
        await harness.until_state("connected")
        mention = wa.text("what do you think?", mentionedJID=[f"{wa.ANDY_LID}@lid"])
        phone.write(wa.heard(mention, message_id="3A1"))
        await until(lambda: has_messages(harness, 1), "the mention")
        assert (await harness.rows("SELECT is_request FROM messages")) == [{"is_request": 1}]

        reply = wa.text(
            "monday",
            stanzaID="3EB0FROMANEARLIERLOGIN",
            participant=f"{wa.ANDY_LID}@lid",
            quotedMessage=Message(conversation="Which day?"),
        )
        phone.write(wa.heard(reply, message_id="3A2"))
        await until(lambda: has_messages(harness, 2), "the reply")
        assert (await harness.rows("SELECT is_request FROM messages WHERE id = '3A2'")) == [{"is_request": 1}]


@pytest.mark.parametrize("trigger", ["bot", "@bot"])
async def test_a_mention_of_somebody_named_like_a_groups_trigger_is_no_call(phone, build, trigger):
    phone.pair()
    async with living(build()) as harness:
        await harness.until_state("connected")
        async with harness.database.transaction() as tx:
            await tx.execute("UPDATE registered_groups SET trigger_pattern = ?", (trigger,))
        phone.write(wa.heard(wa.text("hello"), name="bot", message_id="3A1"))
        mention = wa.text(f"@{wa.JANE} comes", mentionedJID=[f"{wa.JANE}@s.whatsapp.net"])
        phone.write(wa.heard(mention, name="bot", message_id="3A2"))
        phone.write(wa.heard(f"{trigger} hi", name="bot", message_id="3A3"))
        await until(lambda: has_messages(harness, 3), "the messages")
        rows = await harness.rows("SELECT content, is_request FROM messages ORDER BY seq")
        assert [tuple(row.values()) for row in rows] == [
            ("hello", 0),
            ("@bot comes", 0),
            (f"{trigger} hi", 1),
        ]


@pytest.mark.parametrize(("has_own_number", "read"), [(True, ["3A1"]), (False, [])])
async def test_on_a_number_of_his_own_who_writes_sees_that_it_was_read(phone, build, has_own_number, read):
    phone.pair()
    async with living(build(has_own_number=has_own_number)) as harness:
        await harness.until_state("connected")
        phone.write(wa.heard("hello", message_id="3A0", chat=wa.jid(wa.JANE)))
        phone.write(wa.heard("hello", message_id="3A1"))
        await until(lambda: has_messages(harness, 1), "the message")
        await until(lambda: phone.read == read, "read, or not")
        await harness.channel.send(FAMILY, "x", MessageId("3EB0AA"))
    assert phone.read == read


@pytest.mark.parametrize("is_admin", [True, False])
async def test_an_admin_of_a_group_deletes_what_others_wrote_for_everyone(harness, phone, is_admin):
    async with harness.database.transaction() as tx:
        admin = ChatMember(jid=f"{wa.OWNER}@s.whatsapp.net", name="Max", is_admin=is_admin)
        await chats.replace_members(tx, FAMILY, [admin])
    phone.write(wa.heard("nasty words", message_id="3A1"))
    phone.write(wa.heard(wa.deletion("3A1"), message_id="3A2", sender=wa.jid(wa.OWNER)))
    phone.write(wa.heard("after", message_id="3A3"))

    await until(lambda: has_text(harness, "after"), "all came")
    assert await harness.texts() == ["" if is_admin else "nasty words", "after"]


@pytest.mark.parametrize(("has_own_number", "called"), [(True, ["hi", "@Andy you"]), (False, ["@Andy you"])])
async def test_who_writes_to_his_own_number_calls_andy_and_the_owners_friends_do_not(
    phone, build, has_own_number, called
):
    phone.pair()
    async with living(build(has_own_number=has_own_number)) as harness:
        await harness.until_state("connected")
        phone.write(wa.heard("hi", message_id="3A0", chat=wa.jid(wa.JANE)))
        phone.write(wa.heard("@Andy you", message_id="3A1", chat=wa.jid(wa.OWNER)))
        phone.write(wa.heard("after", message_id="3A2"))
        await until(lambda: has_messages(harness, 1), "all came")
        rows = await harness.rows("SELECT words FROM access_requests ORDER BY id")
        assert [row["words"] for row in rows] == called
