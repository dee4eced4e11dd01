"""Telegram with the real library against a Bot API of this machine that fails as the real one does."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import sqlite3
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

pytest.importorskip("telegram")

from telegram.error import BadRequest as BadRequestThere
from telegram.error import NetworkError, RetryAfter
from telegram.request import HTTPXRequest

from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.telegram import channel as channel_module
from orchestrator.channels.telegram import login, updates
from orchestrator.channels.telegram.channel import TelegramChannel, _with_mention
from orchestrator.channels.telegram.description import CHANNEL
from orchestrator.channels.telegram.login import TelegramLogin
from orchestrator.channels.telegram.markup import parse_markdown
from orchestrator.channels.telegram.message_ids import MessageIds
from orchestrator.cli.channels import switch_on
from orchestrator.domain.errors import BadRequest, ChannelDown, ChannelRefused, OutcomeUnknown
from orchestrator.domain.polls import Poll
from orchestrator.domain.values import Attachment, ChatJid, ChatMember, Folder, Message, MessageId, Seq
from orchestrator.groups import registration
from orchestrator.home.directory import Home
from orchestrator.inbound.intake import Intake
from orchestrator.outbound import speech
from orchestrator.outbound.delivery import Delivery
from orchestrator.store.conversation import chats, messages, outbox, polls
from orchestrator.store.database import Database
from orchestrator.store.groups import groups
from orchestrator.store.runs import turns
from tests.doubles.telegram_api import BOT, JANE, TOKEN, ScriptedBotApi
from tests.support.delivering import delivering
from tests.support.store_harness import a_group
from tests.support.until import until

CHAT, JID = -100200, ChatJid("tg:-100200")


def a_login(server: str, *, owner: int) -> TelegramLogin:
    return TelegramLogin(token=TOKEN, bot_id=123456, username="andy_test_bot", owner=owner, server=server)


def replace_bot(home: TelegramHome, bot_id: int) -> TelegramLogin:
    """Return the login of another bot."""
    return a_login(home.api.url, owner=77).model_copy(update={"bot_id": bot_id})


class TelegramHome:
    """A home with a bot, whose group is one chat."""

    def __init__(self, home: Path, database: Database, api: ScriptedBotApi) -> None:
        self.home, self.database, self.api = home, database, api
        self.clock = SystemClock()
        bus, wakeups = EventBus(self.clock), Wakeups()
        self.bus, self.wakeups = bus, wakeups
        (home / "groups").mkdir()
        self.intake = Intake(database, clock=self.clock, name="Andy", wakeups=wakeups, bus=bus)
        self.context = ChannelContext(
            home=home, database=database, clock=self.clock, bus=bus, assistant="Andy", has_own_number=True,
            attachment_bytes=1_000, wake_outbox=wakeups.outbox.set,
        )  # fmt: skip
        login.write(home, a_login(api.url, owner=77))
        self.channel = TelegramChannel(self.context, chance=lambda: 0.0, poll_seconds=1)

    @property
    def state(self) -> str:
        return str(self.channel.status()["state"])

    @asynccontextmanager
    async def living(self, receive: Callable[..., Any] | None = None) -> AsyncIterator[TelegramChannel]:
        connection = asyncio.create_task(self.channel.run(receive or self.intake.receive), name="telegram")
        try:
            yield self.channel
        finally:
            connection.cancel()
            await asyncio.wait([connection])

    async def rows(self, sql: str) -> list[dict[str, Any]]:
        async with self.database.reading() as tx:
            return [dict(row) for row in await tx.execute_fetchall(sql)]

    async def until_row(self, sql: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        async def holds() -> bool:
            found[:] = await self.rows(sql)
            await asyncio.sleep(0.01)
            return bool(found)

        await until(holds, sql)
        return found[0]

    async def cursor(self) -> str | None:
        async with self.database.reading() as tx:
            return await chats.cursor(tx, "telegram")


@pytest.fixture
async def home(tmp_path: Path, database: Database) -> AsyncIterator[TelegramHome]:
    with ScriptedBotApi() as api:
        made = TelegramHome(tmp_path, database, api)
        async with database.transaction() as tx:
            await registration.register(tx, a_group(jid=JID))
        yield made


async def connected(home: TelegramHome) -> None:
    await until(lambda: home.state == "connected", "connected")


def mention(text: str, name: str, kind: str = "mention") -> dict[str, Any]:
    return {"entities": [{"type": kind, "offset": text.index(name), "length": len(name)}]}


PLACE = {"latitude": 48.858844, "longitude": 2.294351}
PLUM = {"text": "Plum", "voter_count": 0, "persistent_id": "a"}
POLL = {"id": "1", "question": "Which cake?", "options": [PLUM], "total_voter_count": 0, "is_closed": False,
        "is_anonymous": True, "type": "regular", "allows_multiple_answers": False, "allows_revoting": False,
        "members_only": False}  # fmt: skip
TASKS = [{"id": 1, "text": "tent"}, {"id": 2, "text": "rope", "completion_date": 1_780_000_000}]
STICKER = {"file_id": "s", "file_unique_id": "s", "width": 1, "height": 1, "is_animated": False,
           "is_video": False, "type": "regular", "emoji": "🎂"}  # fmt: skip
KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "place": ({"location": PLACE}, "[place] 48.858844, 2.294351"),
    "live place": ({"location": {**PLACE, "live_period": 60}}, "[live place] 48.858844, 2.294351"),
    "venue": ({"location": PLACE, "venue": {"location": PLACE, "title": "Eiffel Tower", "address": "Paris"}},
              "[place] 48.858844, 2.294351 Eiffel Tower, Paris"),
    "contact": ({"contact": {"phone_number": "+4915", "first_name": "Bo", "last_name": "Ek"}},
                "[contact] Bo Ek: +4915"),
    "poll": ({"poll": POLL}, "[poll] Which cake?\n- Plum"),
    "dice": ({"dice": {"emoji": "🎲", "value": 4}}, "[dice 🎲] 4"),
    "story": ({"story": {"id": 1, "chat": {"id": 5, "type": "private", "first_name": "Bo"}}},
              "[story of Bo: bots cannot see it]"),
    "checklist": ({"checklist": {"title": "Pack", "tasks": TASKS}},
                  "[checklist] Pack\n- [ ] tent\n- [x] rope"),
    "tasks done": ({"checklist_tasks_done": {"marked_as_done_task_ids": [2]}},
                   "[marked in the checklist]\n- [x] task 2"),
    "tasks added": ({"checklist_tasks_added": {"tasks": TASKS[:1]}}, "[added to the checklist]\n- tent"),
    "paid media": ({"paid_media": {"star_count": 5, "paid_media": []}, "caption": "look"},
                   "look\n[paid media for 5 stars: bots cannot see it]"),
    "gift": ({"gift": {"gift": {"id": "g", "sticker": STICKER, "star_count": 1}, "text": "for you"}},
             "[gift] 🎂 for you"),
    "game": ({"game": {"title": "Go", "description": "stones", "photo": []}}, "[game] Go: stones"),
    "invoice": ({"invoice": {"title": "Bill", "description": "tea", "start_parameter": "", "currency": "EUR",
                             "total_amount": 1}}, "[invoice] Bill: tea"),
}  # fmt: skip


async def test_what_is_neither_text_nor_file_comes_in_as_words(home):
    for content, _ in KINDS.values():
        home.api.send(CHAT, **content)
    home.api.send(CHAT, hologram={"x": 1}, quantum_state=5)
    home.api.send(CHAT, new_chat_title="Friends")
    home.api.add_raw(
        {"edited_message": {"message_id": 1, "date": 1, "edit_date": 2, "from": JANE, "location": PLACE,
                            "chat": {"id": CHAT, "type": "supergroup", "title": "Family"}}}
    )  # fmt: skip
    home.api.write(CHAT, "the last one")
    async with home.living():
        await home.until_row("SELECT 1 FROM messages WHERE content = 'the last one'")
    rows = await home.rows("SELECT content, ignored_reason FROM messages ORDER BY seq")
    unknown = "[something that cannot be read here: hologram, quantum state]"
    assert [row["content"] for row in rows] == [
        *(words for _, words in KINDS.values()), unknown, "the last one"
    ]  # fmt: skip
    assert rows[-2]["ignored_reason"] == "of a kind that cannot be read"


@pytest.mark.parametrize(
    ("text", "entity", "kind", "stored"),
    [
        ("@andy_test_bot add figs", "@andy_test_bot", "mention", "@Andy add figs"),
        ("😀 well @Andy_Test_Bot, add figs", "@Andy_Test_Bot", "mention", "😀 well @Andy, add figs"),
        ("/help@andy_test_bot me", "/help@andy_test_bot", "bot_command", "/help me"),
        ("@andy_test_bot2 add figs", "@andy_test_bot2", "mention", "@andy_test_bot2 add figs"),
    ],
)
async def test_a_mention_of_the_bot_is_the_call_that_people_write(home, text, entity, kind, stored):
    begin = len(text[: text.index(entity)].encode("utf-16-le")) // 2
    home.api.write(CHAT, text, entities=[{"type": kind, "offset": begin, "length": len(entity)}])
    async with home.living():
        row = await home.until_row("SELECT * FROM messages")
    assert (row["content"], row["turn_id"] is not None) == (stored, text != stored)


@pytest.mark.parametrize("text", ["/clear@andy_test_bot", "@andy_test_bot /clear"])
async def test_a_session_command_reaches_the_session_as_telegrams_clients_write_it(home, text):
    name, kind = (text, "bot_command") if text.startswith("/") else ("@andy_test_bot", "mention")
    home.api.write(CHAT, text, **mention(text, name, kind))
    async with home.living():
        row = await home.until_row("SELECT command FROM turns")
    assert row["command"] == "clear"


async def test_a_message_is_stored_with_its_place_and_a_mention_or_an_answer_is_a_call(home):
    async with home.living() as channel:
        home.api.write(CHAT, "good morning")
        row = await home.until_row("SELECT * FROM messages WHERE content = 'good morning'")
        assert (row["turn_id"], row["sender"], row["sender_name"]) == (None, "tg:77", "Jane Doe")
        assert row["is_from_me"] == 1

        text = "hey @andy_test_bot help"
        home.api.write(CHAT, text, **mention(text, "@andy_test_bot"))
        assert (await home.until_row("SELECT * FROM messages WHERE content LIKE 'hey%'"))["turn_id"]

        number = await channel.send(JID, "hello", MessageId("3EB0A"))
        answered = {"message_id": int(number), "date": 1, "chat": {"id": CHAT, "type": "group"}, "from": BOT,
                    "text": "hello"}  # fmt: skip
        home.api.write(CHAT, "and now?", reply_to_message=answered)
        assert (await home.until_row("SELECT * FROM messages WHERE content = 'and now?'"))["turn_id"]

        async def is_stored() -> bool:
            await asyncio.sleep(0.01)
            return await home.cursor() == "123456 1003"

        await until(is_stored, "the place is stored")


async def test_topics_are_threads_and_answers_go_into_them(home):
    async with home.living() as channel:
        home.api.write(CHAT, "@Andy in a topic", is_topic_message=True, message_thread_id=9)
        row = await home.until_row("SELECT * FROM messages")
        assert row["thread"] == "9"
        await channel.send(JID, "there", MessageId("3EB0A"), thread="9")
    assert home.api.sent[0]["given_message_thread_id"] == "9"


async def test_edits_and_reactions_come_in_as_such(home):
    async with home.living():
        number = home.api.write(CHAT, "@Andy milk")
        await home.until_row("SELECT * FROM messages WHERE content = '@Andy milk'")
        home.api.edit(CHAT, number, "@Andy bread")
        await home.until_row("SELECT * FROM messages WHERE content = '@Andy bread'")
        home.api.react(CHAT, number, "👍")
        row = await home.until_row("SELECT * FROM messages WHERE content = '[reacted 👍]'")
        assert (row["quoted_id"], row["quoted_content"]) == (str(number), "@Andy bread")


async def test_what_another_bot_sees_is_not_taken_for_what_the_first_one_saw(home):
    async with home.living() as channel:
        home.api.write(CHAT, "@Andy milk")
        await home.until_row("SELECT * FROM messages WHERE content = '@Andy milk'")
        async with home.database.reading() as tx:
            old = await messages.find(tx, JID, MessageId("1"))
    home.api.restart_numbers()
    login.write(home.home, replace_bot(home, 654321))
    async with home.living() as channel:
        await connected(home)
        number = home.api.write(CHAT, "@Andy bread")
        new = await home.until_row("SELECT * FROM messages WHERE content = '@Andy bread'")
        home.api.edit(CHAT, number, "@Andy cake")
        await home.until_row("SELECT * FROM messages WHERE content = '@Andy cake'")
        with pytest.raises(ChannelRefused, match="does not know this message"):
            await channel.react(old, "👀")
        async with home.database.reading() as tx:
            changed = await messages.find(tx, JID, MessageId(new["id"]))
        await channel.react(changed, "👀")
    assert [row["content"] for row in await home.rows("SELECT content FROM messages ORDER BY seq")] == [
        "@Andy milk",
        "@Andy cake",
    ]
    (_, reaction), *_ = [call for call in home.api.calls if call[0] == "setMessageReaction"]
    assert reaction["message_id"] == str(number)


def test_the_numbers_of_a_supergroup_are_the_same_for_all_bots():
    ids = MessageIds(".b654321")
    supergroup, direct = ChatJid("tg:-1001234567890"), ChatJid("tg:77")
    assert (ids.id_of(supergroup, 7), ids.id_of(direct, 7)) == ("7", "7.b654321")
    assert [ids.number_of(supergroup, MessageId(known_as)) for known_as in ("7", "7.1780000100", "r7")] == [
        7,
        7,
        None,
    ]
    assert [ids.number_of(direct, MessageId(known_as)) for known_as in ("7.b654321", "7.1.b654321", "7")] == [
        7,
        7,
        None,
    ]


async def test_a_file_comes_into_the_groups_folder_and_a_large_one_is_named(home):
    async with home.living():
        home.api.send_file(CHAT, "document", b"content", file_name="notes.txt", mime_type="text/plain")
        row = await home.until_row("SELECT * FROM messages WHERE content LIKE '%notes.txt%'")
        path = row["content"].partition("attachments/")[2].rstrip("]")
        assert (home.home / "groups" / "family" / "attachments" / path).read_bytes() == b"content"
        home.api.send_file(CHAT, "video", b"x" * 2_000, width=1, height=1, duration=3)
        await home.until_row("SELECT * FROM messages WHERE content LIKE '%too large%'")


OTHER, OTHER_JID = -100300, ChatJid("tg:-100300")


async def test_a_slow_file_holds_up_no_other_chat_and_comes_after_a_kill(home):
    async with home.database.transaction() as tx:
        await registration.register(tx, a_group("work", jid=OTHER_JID))
    home.api.are_files_slow = True
    async with home.living():
        home.api.send_file(CHAT, "document", b"content", file_name="notes.txt", mime_type="text/plain")
        home.api.write(CHAT, "behind it")
        await home.until_row("SELECT 1 FROM messages WHERE content = 'behind it'")
        home.api.write(OTHER, "@Andy elsewhere")
        await home.until_row("SELECT 1 FROM messages WHERE content = '@Andy elsewhere'")
        await until(lambda: home.api.confirmed == 1_003, "all three are confirmed")
    home.api.are_files_slow = False
    async with home.living():
        row = await home.until_row("SELECT * FROM messages WHERE content LIKE '%notes.txt%'")
    path = row["content"].partition("attachments/")[2].rstrip("]")
    assert (home.home / "groups" / "family" / "attachments" / path).read_bytes() == b"content"
    contents = [one["content"] for one in await home.rows("SELECT content FROM messages ORDER BY seq")]
    assert contents == [row["content"], "behind it", "@Andy elsewhere"]
    assert await home.rows("SELECT 1 FROM router_state WHERE key LIKE '%file%'") == []


async def test_a_file_that_nothing_can_fetch_is_given_up_once(home, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("orchestrator.channels.attachments.store", broken)
    home.api.send_file(CHAT, "document", b"content", file_name="notes.txt", mime_type="text/plain")
    async with home.living():
        await home.until_row("SELECT 1 FROM messages WHERE content = '[document: it could not be fetched]'")
        home.api.write(CHAT, "the next one")
        await home.until_row("SELECT 1 FROM messages WHERE content = 'the next one'")
    assert await home.rows("SELECT 1 FROM router_state WHERE key LIKE '%file%'") == []


async def test_what_was_not_stored_comes_again_and_what_was_does_not(home):
    seen: list[str] = []

    async def die(message: Any, *, cursor: str | None = None) -> None:
        seen.append(message.text)
        await asyncio.Event().wait()

    home.api.write(CHAT, "@Andy one")
    async with home.living(die):
        await until(lambda: seen, "it is handed in")
    assert await home.cursor() is None
    async with home.living():
        await home.until_row("SELECT * FROM messages")
        home.api.write(CHAT, "@Andy two")
        await home.until_row("SELECT * FROM messages WHERE content = '@Andy two'")
    assert len(await home.rows("SELECT * FROM messages")) == 2


async def test_a_pause_that_telegram_asks_for_is_kept(home):
    async with home.living() as channel:
        await connected(home)
        home.api.fail("sendMessage", 429, retry=30)
        with pytest.raises(ChannelDown, match="30 s"):
            await channel.send(JID, "a", MessageId("3EB0A"))
        with pytest.raises(ChannelDown, match="pause"):
            await channel.send(JID, "b", MessageId("3EB0B"))
    assert [name for name, _ in home.api.calls].count("sendMessage") == 1


ABSURD = [(10**14, 3_600.0), (1e300, 3_600.0), (-5, 1.0), (0, 1.0), ("abc", 5.0), ([1], 5.0), (None, 5.0),
          (float("nan"), 5.0)]  # fmt: skip
"""Pauses that a server may name, each with the seconds that are waited."""


async def test_a_pause_in_one_chat_holds_up_no_other_and_a_shorter_one_ends_no_longer_one(home):
    async with home.living() as channel:
        await connected(home)
        home.api.fail("sendMessage", 429, retry=600)
        with pytest.raises(ChannelDown, match="600 s"):
            await channel.send(JID, "a", MessageId("3EB0A"))
        await channel.send(OTHER_JID, "b", MessageId("3EB0B"))
        home.api.fail("sendMessage", 429, retry=600)
        home.api.fail("sendMessage", 429, retry=1)
        # Both requests are under way when the first answer comes.
        await asyncio.gather(
            *[channel.send(OTHER_JID, "c", MessageId(f"3EB0C{number}")) for number in range(2)],
            return_exceptions=True,
        )
        for jid in (JID, OTHER_JID):
            with pytest.raises(ChannelDown) as down:
                await channel.send(jid, "d", MessageId("3EB0D"))
            assert down.value.pause_seconds > 300
    assert home.api.shown(OTHER) == ["b"]


@pytest.mark.parametrize(("asked", "waits"), ABSURD)
async def test_an_absurd_pause_is_bounded_and_the_message_is_kept(home, asked, waits):
    async with home.living() as channel:
        await connected(home)
        home.api.fail("sendMessage", 429, retry=asked)
        with pytest.raises(ChannelDown) as down:
            await channel.send(JID, "a", MessageId("3EB0A"))
    assert down.value.pause_seconds == waits


@pytest.mark.parametrize(
    ("status", "error"), [(429, RetryAfter), (400, BadRequestThere), (500, NetworkError)]
)
@pytest.mark.parametrize(
    "body",
    [
        b'{"parameters": {"retry_after": ' + b"[" * 100_000,
        b"[" * 100_000,
        b"\xff",
        b"[]",
        b"5",
        b'{"parameters": [1]}',
    ],
    ids=range(6),
)
async def test_an_error_is_what_its_status_says_if_its_content_cannot_be_read(
    monkeypatch, status, error, body
):
    async def answer(*_: Any, **__: Any) -> tuple[int, bytes]:
        return status, body

    monkeypatch.setattr(HTTPXRequest, "do_request", answer)
    async with login._http_client(connections=1) as client:
        with pytest.raises(error) as raised:
            await client.post("https://api.telegram.org/")
    assert type(raised.value) is error
    assert status != 429 or raised.value.retry_after == timedelta(seconds=5)


@pytest.mark.parametrize(
    ("status", "asked", "outcome"),
    [(403, 0, ChannelRefused), (502, 0, OutcomeUnknown), (403, 20, ChannelDown)],
)
async def test_a_pause_of_nothing_beside_another_error_does_not_hide_it(home, status, asked, outcome):
    async with home.living() as channel:
        await connected(home)
        home.api.fail("sendMessage", status, retry=asked)
        with pytest.raises(outcome):
            await channel.send(JID, "a", MessageId("3EB0A"))


@pytest.mark.parametrize(
    ("earlier_pages", "asked", "waits"), [(0, 20, 20.0), *[(1, *pair) for pair in [(20, 20.0), *ABSURD]]]
)
async def test_a_pause_before_the_next_updates_is_kept_and_is_no_outage(
    home, monkeypatch, earlier_pages, asked, waits
):
    pauses: list[float] = []

    async def note_pause(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(channel_module, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": note_pause}))
    if not earlier_pages:
        home.api.fail("getUpdates", 429, retry=asked)
    with structlog.testing.capture_logs() as logs:
        async with home.living():
            await connected(home)
            if earlier_pages:
                home.api.fail("getUpdates", 429, retry=asked)
            home.api.write(CHAT, "after it")
            await home.until_row("SELECT 1 FROM messages WHERE content = 'after it'")
            await until(lambda: pauses, "the pause")
    assert pauses == [waits]
    assert not [one for one in logs if one["event"] == "channel.down"]


async def test_pauses_of_a_moment_before_the_next_updates_grow(home, monkeypatch):
    pauses: list[float] = []

    async def note_pause(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(channel_module, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": note_pause}))
    for _ in range(13):
        home.api.fail("getUpdates", 429, retry=0)
    async with home.living():
        await connected(home)
    assert pauses == [max(1.0, min(0.2 * 2**number, 300.0)) for number in range(13)]


async def test_a_pause_before_the_connection_is_kept(home):
    home.api.fail("getMe", 429, retry=600)
    with structlog.testing.capture_logs() as logs:
        async with home.living():
            await until(lambda: [one for one in logs if one["event"] == "channel.down"], "it waits")
    assert [one["pause_seconds"] for one in logs if one["event"] == "channel.down"] == [600.0]


async def test_a_part_of_a_message_that_was_shown_is_not_shown_again_after_a_pause(home, tmp_path):
    (tmp_path / "f").write_bytes(b"body")
    file = Attachment(path=tmp_path / "f", name="a.pdf", mime="application/pdf")
    async with home.living() as channel:
        await connected(home)
        home.api.fail("sendMessage", 429, retry=30)
        with pytest.raises(ChannelDown, match="wait"):
            await channel.send(JID, "c" * 2_000, MessageId("3EB0A"), attachment=file)
        home.channel._silent_until.clear()
        number = await channel.send(JID, "c" * 2_000, MessageId("3EB0A"), attachment=file)
    assert [one["message_id"] for one in home.api.sent] == [int(number), int(number) + 1]


async def test_a_part_of_a_message_that_was_shown_is_not_shown_again_after_a_restart(home, tmp_path):
    (tmp_path / "f").write_bytes(b"body")
    file = Attachment(path=tmp_path / "f", name="a.pdf", mime="application/pdf")
    async with home.database.transaction() as tx:
        await outbox.add(tx, chat_jid=JID, text="c", dedupe_key="k1", attachment=file, now_ms=0)
        queued = await outbox.by_key(tx, "k1")
    assert queued is not None
    async with home.living() as channel:
        await connected(home)
        home.api.fail("sendMessage", 429, retry=30)
        with pytest.raises(ChannelDown, match="wait"):
            await channel.send(JID, "c" * 2_000, queued.message_id, attachment=file)
    home.channel = TelegramChannel(home.context, chance=lambda: 0.0, poll_seconds=1)
    async with home.living() as channel:
        await connected(home)
        number = await channel.send(JID, "c" * 2_000, queued.message_id, attachment=file)
    assert [one["message_id"] for one in home.api.sent] == [int(number), int(number) + 1]


@pytest.mark.parametrize("failing_call", [1, 2])
async def test_a_store_that_fails_for_a_moment_loses_and_repeats_no_part_of_a_message(
    home, tmp_path, monkeypatch, failing_call
):
    (tmp_path / "f").write_bytes(b"body")
    file = Attachment(path=tmp_path / "f", name="a.pdf", mime="application/pdf")
    works, calls = outbox.renew_try, itertools.count(1)

    async def fail_once(*arguments: Any, **options: Any) -> None:
        if next(calls) == failing_call:
            raise sqlite3.OperationalError("database or disk is full")
        await works(*arguments, **options)

    monkeypatch.setattr(outbox, "renew_try", fail_once)
    async with home.living() as channel:
        await connected(home)
        if failing_call == 1:  # before the first part
            with pytest.raises(ChannelDown):
                await channel.send(JID, "c" * 2_000, MessageId("3EB0A"), attachment=file)
            assert home.api.sent == []
        number = await channel.send(JID, "c" * 2_000, MessageId("3EB0A"), attachment=file)
    assert [one["message_id"] for one in home.api.sent] == [int(number), int(number) + 1]


async def test_a_part_that_was_shown_is_not_repeated_after_a_restart_where_the_owner_allows_resends(
    home, tmp_path
):
    (tmp_path / "f").write_bytes(b"body")
    file = Attachment(path=tmp_path / "f", name="a.pdf", mime="application/pdf")
    async with home.database.transaction() as tx:
        await chats.upsert(tx, JID, name=None, channel=None, is_group=False, at_ms=None)
        await outbox.add(
            tx, chat_jid=JID, text="c" * 2_000, dedupe_key="k1", attachment=file, now_ms=home.clock.now_ms()
        )

    def sending() -> AbstractAsyncContextManager[Delivery]:
        return delivering(
            home.database,
            home.channel,
            clock=home.clock,
            wakeup=home.wakeups.outbox,
            bus=home.bus,
            resends=["telegram"],
        )

    home.api.fail("sendMessage", 502)
    async with home.living():
        await connected(home)
        async with sending():
            await home.until_row("SELECT 1 FROM outbox WHERE state = 'pending' AND error IS NOT NULL")
    async with home.database.transaction() as tx:
        await tx.execute("UPDATE outbox SET next_attempt_ms = 0")
    home.channel = TelegramChannel(home.context, chance=lambda: 0.0, poll_seconds=1)
    async with home.living():
        await connected(home)
        async with sending():
            await home.until_row("SELECT 1 FROM outbox WHERE state = 'sent'")
    names = [name for name, _ in home.api.calls]
    assert (names.count("sendDocument"), names.count("sendMessage")) == (1, 2)


@pytest.mark.parametrize("failure", [{"is_cut": True, "is_done": True}, {"status": 502}])
async def test_the_outcome_of_a_send_whose_answer_was_lost_is_unknown(home, failure):
    async with home.living() as channel:
        await connected(home)
        home.api.fail("sendMessage", **failure)
        with pytest.raises(OutcomeUnknown):
            await channel.send(JID, "a", MessageId("3EB0A"))


NEW, NEW_JID = -1_000_000_000_200, ChatJid("tg:-1000000000200")


async def a_main_and_what_waits(home: TelegramHome) -> None:
    """Register main and let a question, a task and two answers of the family wait."""
    async with home.database.transaction() as tx:
        await registration.register(tx, a_group("main", is_main=True))
        await turns.join_chat(tx, Folder("family"), JID, now_ms=1)
        for number in range(2):
            await outbox.add(
                tx, chat_jid=JID, folder=Folder("family"), text=f"answer {number}", dedupe_key=f"k{number}",
                now_ms=home.clock.now_ms(),
            )  # fmt: skip


async def assert_moved(home: TelegramHome) -> None:
    async with home.database.reading() as tx:
        family = await groups.known(tx, "family")
    assert family.chats == (NEW_JID,)
    assert {row["chat_jid"] for row in await home.rows("SELECT chat_jid FROM turns")} == {NEW_JID}
    notices = await home.rows("SELECT text FROM outbox WHERE group_folder = 'main'")
    assert [NEW_JID in row["text"] for row in notices] == [True]
    assert f"A rule for {JID} in your sender-allowlist.json still counts" in notices[0]["text"]


@pytest.mark.parametrize("says_so", [(CHAT, NEW), (CHAT,), (NEW,)], ids=["both", "the old", "the new"])
async def test_a_group_that_becomes_a_supergroup_goes_on_at_its_new_address(home, says_so):
    await a_main_and_what_waits(home)
    for chat in says_so:
        home.api.send(
            chat, **({"migrate_to_chat_id": NEW} if chat == CHAT else {"migrate_from_chat_id": CHAT})
        )
    home.api.write(NEW, "@Andy still there?")
    async with home.living():
        row = await home.until_row("SELECT * FROM messages")
    assert (row["chat_jid"], row["turn_id"]) == (NEW_JID, 1)
    await assert_moved(home)
    waiting = await home.rows("SELECT chat_jid FROM outbox WHERE text LIKE 'answer%'")
    assert [one["chat_jid"] for one in waiting] == [NEW_JID, NEW_JID]


async def test_an_answer_to_a_group_that_has_moved_goes_to_its_new_address(home):
    await a_main_and_what_waits(home)
    text = "Bad Request: group chat was upgraded to a supergroup chat"
    home.api.fail("sendMessage", 400, text=text, moved_to=NEW)
    async with home.living() as channel, asyncio.TaskGroup() as tasks:
        await connected(home)
        delivery = Delivery(
            home.database, clock=home.clock, name="Andy", tasks=tasks, wakeup=home.wakeups.outbox,
            bus=home.bus, channel_for=lambda jid: channel if channel.owns(jid) else None,
        )  # fmt: skip
        sending = tasks.create_task(delivery.run())
        await until(lambda: len(home.api.shown(NEW)) == 2, "both are shown")
        sending.cancel()
    assert (home.api.shown(CHAT), home.api.shown(NEW)) == ([], ["answer 0", "answer 1"])
    await assert_moved(home)


async def test_a_new_address_that_another_group_has_is_told_to_the_owner(home):
    await a_main_and_what_waits(home)
    async with home.database.transaction() as tx:
        await registration.register(tx, a_group("work", jid=NEW_JID))
    home.api.send(CHAT, migrate_to_chat_id=NEW)
    home.api.send(NEW, migrate_from_chat_id=CHAT)
    async with home.living() as channel:
        await until(lambda: home.api.confirmed == 1_002, "both are confirmed")
        home.api.fail("sendMessage", 400, text="upgraded", moved_to=NEW)
        with pytest.raises(ChannelRefused, match="work"):
            await channel.send(JID, "a", MessageId("3EB0A"))
    (notice,) = await home.rows("SELECT text FROM outbox WHERE group_folder = 'main'")
    assert "registered as 'work'" in notice["text"]
    async with home.database.reading() as tx:
        assert await groups.former_addresses(tx, NEW_JID) == [JID], "a rule for the old address still counts"


async def test_a_message_of_a_group_that_has_moved_is_not_deleted(home):
    message = Message(
        seq=Seq(1), chat_jid=JID, id=MessageId("7"), sender="andy", sender_name="Andy", text="a", sent_ms=1,
        received_ms=1, is_from_me=True, is_bot_message=True, quote=None, turn_id=None, ignored_reason=None,
    )  # fmt: skip
    async with home.living() as channel:
        await connected(home)
        home.api.fail("deleteMessage", 400, text="upgraded", moved_to=NEW)
        with pytest.raises(ChannelRefused, match="another address"):
            await channel.withdraw(message)


@pytest.mark.parametrize("reason", ["message thread not found", "TOPIC_CLOSED"])
async def test_an_answer_to_a_topic_that_is_gone_goes_to_the_chat(home, reason):
    async with home.living() as channel:
        await connected(home)
        home.api.fail("sendMessage", 400, text=f"Bad Request: {reason}")
        await channel.send(JID, "there", MessageId("3EB0A"), thread="9")
    (sent,) = home.api.sent
    assert (sent["text"], "given_message_thread_id" in sent) == ("there", False)


async def test_what_is_too_large_for_the_way_is_refused_and_the_chat_is_told(home):
    async with home.living() as channel:
        await connected(home)
        home.api.fail("sendMessage", 413, text="Request Entity Too Large")
        with pytest.raises(ChannelRefused, match="so large") as refused:
            await channel.send(JID, "a", MessageId("3EB0A"))
    assert refused.value.is_chat_fine


async def test_a_long_text_keeps_its_marks_and_its_signs_in_each_part(home):
    family = "👨‍👩‍👧‍👦"
    async with home.living() as channel:
        await connected(home)
        await channel.send(JID, " ".join(f"**w{number}**" for number in range(367)), MessageId("3EB0A"))
        await channel.send(JID, f"**{family * 580}**", MessageId("3EB0B"))
    marks = [one["given_entities"] for one in home.api.sent]
    assert [len(one) for one in marks[:4]] == [100, 100, 100, 67]
    assert home.api.shown(CHAT)[4:] == [family * 372, family * 208]
    assert [one[0]["type"] for one in marks[4:]] == ["bold", "bold"]


async def test_what_telegram_refuses_for_good_says_why(home):
    async with home.living() as channel:
        await connected(home)
        home.api.fail("sendMessage", 403, text="Forbidden: bot was kicked from the group chat")
        with pytest.raises(ChannelRefused, match="kicked"):
            await channel.send(JID, "a", MessageId("3EB0A"))


async def test_another_program_with_the_bot_is_named_and_the_channel_comes_back(home):
    home.api.fail("getUpdates", 409, text="Conflict: terminated by other getUpdates request")
    async with home.living():
        await until(lambda: home.state == "disconnected", "down")
        assert "another program" in home.channel.status()["last_error"]
        await connected(home)


@pytest.fixture
def no_pauses(monkeypatch):
    from orchestrator.channels import connection

    for name in ("LOGIN_SECONDS", "FIRST_PAUSE_SECONDS", "LONGEST_PAUSE_SECONDS"):
        monkeypatch.setattr(connection, name, 0.01)


async def test_a_token_that_is_revoked_is_told_and_the_same_one_is_taken_when_it_is_added_again(
    home, no_pauses
):
    home.api.is_token_known = False
    async with home.living():
        await until(lambda: home.state == "logged_out", "logged out")
        home.api.is_token_known = True
        answers = {"token": TOKEN, "owner": "77", "server": home.api.url}
        await login.log_in(home.home, answers)
        await connected(home)


async def test_a_token_that_is_added_again_is_another_login_although_all_else_is_the_same(home):
    answers = {"token": TOKEN, "owner": "77", "server": home.api.url}
    await login.log_in(home.home, answers)
    before = login.read(home.home)
    await login.log_in(home.home, answers)
    assert login.read(home.home) != before


async def test_a_channel_whose_description_has_no_advice_says_why_it_is_down(home, monkeypatch):
    monkeypatch.setattr(home.channel._connection, "_channel", replace(CHANNEL, advice={}))
    home.api.fail("getUpdates", 409, text="Conflict: terminated by other getUpdates request")
    async with home.living():
        await until(lambda: home.state == "disconnected", "down")
        assert home.channel.status()["advice"].startswith("Telegram is disconnected: ")
        await connected(home)


async def test_an_answer_that_is_none_of_telegrams_is_an_outage_that_ends(home, no_pauses):
    # `{"ok": false}` with status 200: what a proxy or another service might say.
    home.api.fail("getMe", 200)
    home.api.fail("getUpdates", 200)
    async with home.living():
        await connected(home)
    home.api.fail("getMe", 200)
    with pytest.raises(ChannelDown, match="no Bot API"):
        await login.log_in(home.home, {"token": TOKEN, "owner": "42", "server": home.api.url})


@pytest.mark.parametrize(
    ("method", "name", "mime", "reason"),
    [
        ("sendPhoto", "long.png", "image/png", "PHOTO_INVALID_DIMENSIONS"),
        ("sendVoice", "voice.ogg", "audio/ogg", "VOICE_MESSAGES_FORBIDDEN"),
        ("sendVoice", "voice.ogg", speech.VOICE_NOTE, "VOICE_MESSAGES_FORBIDDEN"),
    ],
)
async def test_a_file_that_is_not_taken_in_its_form_is_sent_as_a_document(
    home, tmp_path, method, name, mime, reason
):
    path = tmp_path / name
    path.write_bytes(b"x")
    home.api.fail(method, 400, text=f"Bad Request: {reason}")
    async with home.living() as channel:
        await connected(home)
        file = Attachment(path=path, name=name, mime=mime)
        await channel.send(JID, "See", MessageId("3EB0A"), attachment=file)
        home.api.fail(method, 400, text="Bad Request: chat not found")
        with pytest.raises(ChannelRefused):
            await channel.send(JID, "See", MessageId("3EB0B"), attachment=file)
    assert [called for called, _ in home.api.calls if called.startswith("send")] == [
        method,
        "sendDocument",
        method,
    ]
    assert home.api.shown(CHAT) == ["See"]


@pytest.mark.parametrize("status", [401, 404])
async def test_one_answer_that_the_token_is_not_known_ends_nothing(home, no_pauses, status):
    for _ in range(4):
        home.api.fail("getMe", status, text="Not Found")
    async with home.living():
        await connected(home)
        for _ in range(4):
            home.api.fail("getUpdates", status, text="Not Found")
        home.api.write(CHAT, "after it")
        await home.until_row("SELECT 1 FROM messages WHERE content = 'after it'")


async def test_a_webhook_that_takes_the_messages_is_named(home):
    text = (
        "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete it first"
    )
    home.api.fail("getUpdates", 409, text=text)
    async with home.living():
        await until(lambda: home.state == "disconnected", "down")
        assert "deleteWebhook" in home.channel.status()["last_error"]


POISON = [
    {"poll": {"id": "1", "question": "?", "options": [{"text": "a"}], "is_closed": 7}},
    {"message": {"message_id": 9, "date": 2**80, "chat": {"id": -100, "type": "group"}, "text": "x"}},
    {"message": "no object"},
    {"message": {"message_id": "9"}},
    {"message": [[]]},
    {"chat_member": None, "tomorrow": {"x": [1, {"y": None}]}},
    {},
]


@pytest.mark.parametrize("content", POISON)
async def test_an_update_that_the_library_cannot_read_is_stepped_over(home, content):
    home.api.add_raw(content)
    home.api.write(CHAT, "the next one")
    async with home.living():
        await home.until_row("SELECT 1 FROM messages WHERE content = 'the next one'")
        assert home.state == "connected"


async def test_who_wrote_a_message_that_cannot_be_read_is_asked_to_send_it_again(home, monkeypatch):
    real = updates.read

    def read(update, **more):
        if "poison" in str(update):
            raise TypeError("members_only is a required argument")
        return real(update, **more)

    monkeypatch.setattr(updates, "read", read)
    home.api.write(CHAT, "poison")
    home.api.write(CHAT, "the next one")
    async with home.living():
        await home.until_row("SELECT 1 FROM messages WHERE content = 'the next one'")
    (notice,) = await home.rows("SELECT text FROM outbox")
    assert "I could not read what" in notice["text"]


async def test_an_unreadable_message_of_another_bot_is_no_duplicate_of_one_the_first_bot_saw(
    home, monkeypatch
):
    async with home.living():
        home.api.write(CHAT, "milk")
        await home.until_row("SELECT 1 FROM messages WHERE content = 'milk'")
    home.api.restart_numbers()
    login.write(home.home, replace_bot(home, 654321))

    def read(*_, **__):
        raise TypeError("members_only is a required argument")

    monkeypatch.setattr(updates, "read", read)
    home.api.write(CHAT, "poison")
    async with home.living():
        notice = await home.until_row("SELECT text FROM outbox")
    assert "I could not read what" in notice["text"]


async def test_marks_leave_as_places_and_a_person_is_mentioned(home):
    jane = ChatMember(jid=f"tg:{JANE['id']}", name="Jane")
    async with home.living() as channel:
        await connected(home)
        await channel.send(JID, "**now** 😀", MessageId("3EB0A"), mention=jane)
    (sent,) = home.api.sent
    assert sent["text"] == "Jane: now 😀"
    assert sent["given_entities"] == [
        {"type": "text_link", "offset": 0, "length": 4, "url": "tg://user?id=77"},
        {"type": "bold", "offset": 6, "length": 3},
    ]


@pytest.mark.parametrize(
    ("text", "sent", "offset"),
    [
        ("Also, Al: yes", "Also, Al: yes", 6),
        ("Alle 😀 Al", "Alle 😀 Al", 8),
        ("Royal", "Al: Royal", 0),
        ("`Al` and Al", "Al and Al", 7),
        ("```\nAl\n```", "Al: Al", 0),
        ("Al님", "Al님", 0),
    ],
)
def test_a_person_is_mentioned_at_their_name_and_not_within_another_word_or_code(text, sent, offset):
    plain, marks = _with_mention(*parse_markdown(text), ChatMember(jid="tg:1", name="Al"))
    (link,) = [mark for mark in marks if mark.kind == "text_link"]
    assert (plain, link.offset, link.length) == (sent, offset, 2)


async def test_a_person_is_mentioned_in_a_text_with_as_many_marks_as_telegram_shows(home):
    jane = ChatMember(jid=f"tg:{JANE['id']}", name="Jane")
    words = [f"w{number}" for number in range(100)]
    async with home.living() as channel:
        await connected(home)
        text = f"Jane: {' '.join(f'**{word}**' for word in words)}"
        await channel.send(JID, text, MessageId("3EB0A"), mention=jane)
    assert [sent["text"] for sent in home.api.sent] == [f"Jane: {' '.join(words[:99])}", "w99"]
    assert home.api.sent[0]["given_entities"][0]["url"] == "tg://user?id=77"


async def test_who_is_not_named_is_not_the_owner_where_the_owner_is_not_known_either(home):
    login.write(home.home, a_login(home.api.url, owner=0))
    nobody = {"id": 0, "is_bot": False, "first_name": "Nobody"}
    home.api.write(CHAT, "one", sender=nobody)
    chat = {"id": CHAT, "type": "supergroup", "title": "Family"}
    home.api.add_raw({"message": {"message_id": 9, "date": 1_780_000_000, "chat": chat, "text": "two"}})
    async with home.living():
        await home.until_row("SELECT 1 FROM messages WHERE content = 'two'")
    assert [row["is_from_me"] for row in await home.rows("SELECT is_from_me FROM messages")] == [0, 0]


async def test_logging_in_asks_who_the_bot_is_and_keeps_the_token_closed(home):
    answers = {"token": TOKEN, "owner": "42", "server": f"{home.api.url}/"}
    said = await login.log_in(home.home, answers)
    path = home.home / "data" / "channels" / "telegram" / "login.json"
    assert "@andy_test_bot" in said
    assert "setprivacy" in said
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (json.loads(path.read_text())["owner"], json.loads(path.read_text())["server"]) == (
        42,
        home.api.url,
    )
    for token in ("", "hello", "123:short"):
        with pytest.raises(BadRequest, match="BotFather"):
            await login.log_in(home.home, {**answers, "token": token})
    with pytest.raises(BadRequest, match="user id"):
        await login.log_in(home.home, {**answers, "owner": "@jane"})
    for server, why in (("ftp://x", "no address"), ("http://192.168.1.2:8081", "token would cross")):
        with pytest.raises(BadRequest, match=why):
            await login.log_in(home.home, {**answers, "server": server})
    home.api.is_token_known = False
    with pytest.raises(ChannelRefused, match="does not know"):
        await login.log_in(home.home, answers)
    assert "deleted" in await login.log_out(home.home)
    assert not path.exists()


@pytest.mark.parametrize("stored", [b"{", b"\xff", b"{}"])
async def test_a_stored_login_that_is_broken_is_replaced_and_deleted(home, stored):
    path = home.home / "data" / "channels" / "telegram" / "login.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(stored)
    with pytest.raises(ChannelDown, match="andy channels add telegram"):
        login.read(home.home)
    assert "/revoke" in await login.log_out(home.home)
    assert not path.exists()
    assert "No bot" in await login.log_out(home.home)

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(stored)
    await login.log_in(home.home, {"token": TOKEN, "owner": "42", "server": home.api.url})
    assert login.read(home.home).token == TOKEN


def test_a_login_from_before_is_one_at_telegrams_own_server(tmp_path):
    login.write(tmp_path, a_login("http://127.0.0.1:1", owner=1))
    path = tmp_path / "data/channels/telegram/login.json"
    path.write_text(
        json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "server"})
    )
    found = login.read(tmp_path)
    assert found is not None
    assert found.server == "https://api.telegram.org"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_whoever_adds_telegram_is_asked_for_the_token_and_not_for_the_server(home, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or "")
    monkeypatch.setattr("getpass.getpass", lambda text: asked.append(text) or TOKEN)
    said = await switch_on(Home(home.home), "telegram", {"owner": "7", "server": home.api.url})
    assert "@andy_test_bot" in said

    servers: list[str] = []
    monkeypatch.setattr(login, "make_bot", lambda _, server: servers.append(server) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await switch_on(Home(home.home), "telegram", {"owner": "7"})
    assert servers == ["https://api.telegram.org"]
    assert asked == ["The bot's token from @BotFather: "] * 2


async def test_pauses_grow_where_each_connection_breaks_at_once(home, monkeypatch):
    """A proxy that answers the first look and cuts each long one off was asked every second, for ever."""
    from orchestrator.channels import connection

    monkeypatch.setattr(connection, "FIRST_PAUSE_SECONDS", 0.001)
    keeper = home.channel._connection

    async def hold(_: object) -> None:
        await keeper.note_connected()
        raise ChannelDown("cut off")

    def pauses() -> list[float]:
        return [one["pause_seconds"] for one in logs if one["event"] == "channel.down"]

    with structlog.testing.capture_logs() as logs:
        task = asyncio.create_task(keeper.stay_connected(hold), name="keep")
        await until(lambda: len(pauses()) >= 6, "six pauses")
        task.cancel()
        await asyncio.wait([task])

    assert pauses()[5] > 8 * pauses()[0]


async def test_a_new_login_is_used_during_the_pause_of_the_one_before(home, monkeypatch):
    from orchestrator.channels import connection

    monkeypatch.setattr(connection, "LOGIN_SECONDS", 0.01)
    used: list[TelegramLogin] = []

    async def hold(stored: TelegramLogin) -> None:
        used.append(stored)
        raise ChannelDown("too fast", pause_seconds=3_600.0)

    old = login.read(home.home)
    assert old is not None
    new = old.model_copy(update={"nonce": "another"})
    with structlog.testing.capture_logs() as logs:
        task = asyncio.create_task(home.channel._connection.stay_connected(hold), name="keep")
        await until(lambda: [one for one in logs if one["event"] == "channel.down"], "the pause")
        login.write(home.home, new)
        await until(lambda: len(used) == 2, "the new login")
        task.cancel()
        await asyncio.wait([task])
    assert used == [old, new]


async def store_poll(home) -> Poll:
    """Store a poll of the chat whose id in Telegram is not known yet, and return it."""
    poll = Poll(
        question="Tea?",
        options=("Yes", "No"),
        folder=Folder("family"),
        chat_jid=JID,
        message_id=MessageId("P"),
    )
    async with home.database.transaction() as tx:
        await polls.add(tx, poll)
    return poll


async def test_a_vote_that_comes_before_its_poll_is_known_counts_after_it_and_after_a_restart(home):
    await store_poll(home)
    home.api.vote("77", 1)
    home.api.vote("nobody's", 0)
    async with home.living():
        await home.until_row("SELECT key FROM router_state WHERE value LIKE '%nobody%'")
    async with home.database.transaction() as tx:
        await polls.note_ref(tx, MessageId("P"), "telegram 77")
    async with home.living():
        vote = await home.until_row("SELECT * FROM poll_votes")
        assert (vote["voter"], vote["chosen_json"]) == ("tg:77", "[1]")
        stored = await home.until_row("SELECT * FROM messages WHERE quoted_id = 'P'")
        assert stored["content"] == "[voted for No]"
    left = await home.rows("SELECT key FROM router_state WHERE key LIKE '%telegram.vote%'")
    assert len(left) == 1, "the vote in a poll that nobody knows waits on"


async def test_a_poll_that_was_sent_while_the_store_failed_counts_as_sent_and_takes_votes(home, monkeypatch):
    poll = await store_poll(home)
    note_ref, failures = polls.note_ref, iter([sqlite3.OperationalError("database or disk is full")])

    async def note_ref_or_fail(*arguments, **options):
        if (error := next(failures, None)) is not None:
            raise error
        await note_ref(*arguments, **options)

    monkeypatch.setattr(polls, "note_ref", note_ref_or_fail)
    async with home.living() as channel:
        await connected(home)
        assert await channel.send(JID, "Tea?", MessageId("P"), poll=poll)
        home.api.write(CHAT, "milk")
        sent = await home.until_row("SELECT channel_ref FROM polls WHERE channel_ref IS NOT NULL")
        home.api.vote(sent["channel_ref"].removeprefix("telegram "), 1)
        vote = await home.until_row("SELECT * FROM poll_votes")
    assert vote["chosen_json"] == "[1]"


async def test_a_changed_vote_counts_also_after_the_clock_was_set_back(home):
    await store_poll(home)
    async with home.database.transaction() as tx:
        await polls.note_ref(tx, MessageId("P"), "telegram 77")
    home.api.vote("77", 0)
    async with home.living():
        await home.until_row("SELECT 1 FROM poll_votes WHERE chosen_json = '[0]'")
        async with home.database.transaction() as tx:
            # As if the clock had been an hour ahead when the first vote came.
            await tx.execute("UPDATE poll_votes SET voted_ms = voted_ms + 3600000")
        home.api.vote("77", 1)
        home.api.write(CHAT, "after it")
        await home.until_row("SELECT 1 FROM messages WHERE content = 'after it'")
    assert [row["chosen_json"] for row in await home.rows("SELECT chosen_json FROM poll_votes")] == ["[1]"]


async def test_a_vote_that_waited_for_its_poll_does_not_replace_a_later_one(home):
    await store_poll(home)
    async with home.living() as channel:
        home.api.vote("77", 0)
        await home.until_row("SELECT 1 FROM router_state WHERE key LIKE '%telegram.vote%'")
        async with home.database.transaction() as tx:
            await polls.note_ref(tx, MessageId("P"), "telegram 77")
        # The task that sent the poll delivers the waiting votes only after this one came.
        home.api.vote("77", 1)
        await home.until_row("SELECT 1 FROM poll_votes WHERE chosen_json = '[1]'")
        await channel._receiver.deliver_waiting_votes()
    assert [row["chosen_json"] for row in await home.rows("SELECT chosen_json FROM poll_votes")] == ["[1]"]
    assert not await home.rows("SELECT 1 FROM router_state WHERE key LIKE '%telegram.vote%'")


async def test_a_vote_whose_poll_becomes_known_just_before_it_is_stored_waits_for_no_other_poll(
    home, monkeypatch
):
    await store_poll(home)
    deliveries: list[asyncio.Task[None]] = []
    async with home.living() as channel:
        await connected(home)
        receiver = channel._receiver
        look_up = receiver._vote

        async def look_up_while_the_poll_becomes_known(answer: Any) -> Any:
            inbound = await look_up(answer)
            if not deliveries:
                # As the task does that has sent the poll.
                async with home.database.transaction() as tx:
                    await polls.note_ref(tx, MessageId("P"), "telegram 77")
                deliveries.append(asyncio.create_task(receiver.deliver_waiting_votes()))
                await until(
                    lambda: deliveries[0].done() or receiver._vote_lock._waiters, "it delivers, or waits to"
                )
            return inbound

        monkeypatch.setattr(receiver, "_vote", look_up_while_the_poll_becomes_known)
        home.api.vote("77", 1)
        home.api.write(CHAT, "after it")
        await home.until_row("SELECT 1 FROM messages WHERE content = 'after it'")
        await deliveries[0]
    assert [row["chosen_json"] for row in await home.rows("SELECT chosen_json FROM poll_votes")] == ["[1]"]
