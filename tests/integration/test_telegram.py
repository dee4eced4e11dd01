"""Telegram with the real library against a Bot API of this machine that fails as the real one does."""

from __future__ import annotations

import asyncio
import io
import json
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("telegram")

from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.telegram import login, updates
from orchestrator.channels.telegram.channel import TRIES_OF_TOKEN, TelegramChannel
from orchestrator.channels.telegram.login import TelegramLogin
from orchestrator.cli.channels import switch_on
from orchestrator.domain.errors import BadRequest, ChannelDown, ChannelRefused, OutcomeUnknown
from orchestrator.domain.home import Home
from orchestrator.domain.values import Attachment, ChatJid, ChatMember, MessageId
from orchestrator.groups import registration
from orchestrator.inbound.intake import Intake
from orchestrator.store import chats
from orchestrator.store.database import Database
from tests.doubles.telegram_api import BOT, JANE, TOKEN, ScriptedBotApi
from tests.support.store_harness import a_group
from tests.support.until import until

CHAT, JID = -100200, ChatJid("tg:-100200")


def a_login(server: str, *, owner: int) -> TelegramLogin:
    return TelegramLogin(token=TOKEN, bot_id=123456, username="andy_test_bot", owner=owner, server=server)


class TelegramHome:
    """A home with a bot, whose group is one chat."""

    def __init__(self, home: Path, database: Database, api: ScriptedBotApi) -> None:
        self.home, self.database, self.api = home, database, api
        self.clock = SystemClock()
        bus, wakeups = EventBus(self.clock), Wakeups()
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


def mention(text: str, name: str) -> dict[str, Any]:
    return {"entities": [{"type": "mention", "offset": text.index(name), "length": len(name)}]}


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


async def test_a_file_comes_into_the_groups_folder_and_a_large_one_is_named(home):
    async with home.living():
        home.api.send_file(CHAT, "document", b"content", file_name="notes.txt", mime_type="text/plain")
        row = await home.until_row("SELECT * FROM messages WHERE content LIKE '%notes.txt%'")
        path = row["content"].partition("attachments/")[2].rstrip("]")
        assert (home.home / "groups" / "family" / "attachments" / path).read_bytes() == b"content"
        home.api.send_file(CHAT, "video", b"x" * 2_000, width=1, height=1, duration=3)
        await home.until_row("SELECT * FROM messages WHERE content LIKE '%too large%'")


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


async def test_a_part_of_a_message_that_was_shown_is_not_shown_again_after_a_pause(home, tmp_path):
    (tmp_path / "f").write_bytes(b"body")
    file = Attachment(path=tmp_path / "f", name="a.pdf", mime="application/pdf")
    async with home.living() as channel:
        await connected(home)
        home.api.fail("sendMessage", 429, retry=30)
        with pytest.raises(ChannelDown, match="wait"):
            await channel.send(JID, "c" * 2_000, MessageId("3EB0A"), attachment=file)
        home.channel._silent_until = 0.0
        number = await channel.send(JID, "c" * 2_000, MessageId("3EB0A"), attachment=file)
    assert [one["message_id"] for one in home.api.sent] == [int(number), int(number) + 1]


@pytest.mark.parametrize("failure", [{"is_cut": True, "is_done": True}, {"status": 502}])
async def test_the_outcome_of_a_send_whose_answer_was_lost_is_unknown(home, failure):
    async with home.living() as channel:
        await connected(home)
        home.api.fail("sendMessage", **failure)
        with pytest.raises(OutcomeUnknown):
            await channel.send(JID, "a", MessageId("3EB0A"))


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
        again = login.read(home.home).model_copy(update={"nonce": "another"})
        login.write(home.home, again)
        await connected(home)


@pytest.mark.parametrize("status", [401, 404])
async def test_one_answer_that_the_token_is_not_known_ends_nothing(home, no_pauses, status):
    for _ in range(TRIES_OF_TOKEN - 1):
        home.api.fail("getMe", status, text="Not Found")
    async with home.living():
        await connected(home)
        for _ in range(TRIES_OF_TOKEN - 1):
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
