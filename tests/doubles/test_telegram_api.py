"""Test with the real library that the scripted Bot API behaves as Telegram documents its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

pytest.importorskip("telegram")

from telegram import Bot, MessageEntity
from telegram.error import BadRequest, Conflict, InvalidToken, NetworkError, RetryAfter

from orchestrator.channels.telegram import login
from tests.doubles.telegram_api import TOKEN, ScriptedBotApi
from tests.support.until import until


@pytest.fixture
def api():
    with ScriptedBotApi() as made:
        yield made


@pytest.fixture
async def bot(api: ScriptedBotApi) -> AsyncIterator[Bot]:
    async with login.make_bot(TOKEN, api.url) as made:
        yield made


async def test_updates_come_until_a_later_one_is_asked_for(api, bot):
    api.write(-100, "one")
    api.write(-100, "two")
    first, second = await bot.get_updates(timeout=0)
    assert [first.message.text, second.message.text] == ["one", "two"]
    assert len(await bot.get_updates(timeout=0)) == 2
    assert await bot.get_updates(offset=second.update_id + 1, timeout=0) == ()
    assert await bot.get_updates(timeout=0) == ()


async def test_what_is_sent_is_shown_with_its_marks(api, bot):
    sent = await bot.send_message(-100, "hello", entities=[MessageEntity("bold", 0, 5)])
    assert api.shown(-100) == ["hello"]
    assert api.sent[0]["message_id"] == sent.message_id
    assert api.sent[0]["given_entities"] == [{"type": "bold", "offset": 0, "length": 5}]


async def test_files_go_both_ways(api, bot):
    await bot.send_document(-100, document=b"body", filename="a.pdf", caption="words")
    assert api.shown(-100) == ["words"]
    api.send_file(-100, "document", b"content", file_name="b.txt")
    (update,) = await bot.get_updates(timeout=0)
    file = await bot.get_file(update.message.document.file_id)
    assert bytes(await file.download_as_bytearray()) == b"content"


async def test_it_fails_as_it_is_told(api, bot):
    api.fail("sendMessage", 429, retry=3)
    api.fail("sendMessage", 502, text="Bad Gateway")
    api.fail("sendMessage", is_cut=True, is_done=True)
    with pytest.raises(RetryAfter):
        await bot.send_message(-100, "a")
    with pytest.raises(NetworkError):
        await bot.send_message(-100, "b")
    with pytest.raises(NetworkError):
        await bot.send_message(-100, "c")
    await bot.send_message(-100, "d")
    assert api.shown(-100) == ["c", "d"]
    with pytest.raises(BadRequest, match="too long"):
        await bot.send_message(-100, "x" * 4_097)


async def test_two_who_ask_for_updates_are_in_conflict(api, bot):
    waiting = asyncio.create_task(bot.get_updates(timeout=5), name="waiting")
    await until(lambda: api.is_polled, "it waits")
    async with login.make_bot(TOKEN, api.url) as other:
        with pytest.raises(Conflict):
            await other.get_updates(timeout=0)
    api.write(-100, "end")
    assert len(await waiting) == 1


async def test_an_unknown_token_is_refused(api):
    with pytest.raises(InvalidToken):
        async with login.make_bot("1:unknown", api.url):
            pass
