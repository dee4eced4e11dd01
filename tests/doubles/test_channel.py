"""Test that the scripted messenger shows each message once, and fails or waits as its script says."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.domain.errors import ChannelDown
from orchestrator.domain.values import ChatJid, MessageId
from tests.doubles.channel import ScriptedChannel
from tests.support.until import until

HOME, WORK = ChatJid("x:home"), ChatJid("x:work")


async def test_without_a_script_everything_is_shown_in_order():
    channel = ScriptedChannel()
    await channel.send(HOME, "a", MessageId("1"))
    await channel.send(HOME, "b", MessageId("2"))

    assert channel.texts(HOME) == ["a", "b"]


async def test_one_message_id_is_shown_once():
    channel = ScriptedChannel()
    await channel.send(HOME, "a", MessageId("1"))
    await channel.send(HOME, "a", MessageId("1"))

    assert channel.texts() == ["a"]
    assert len(channel.attempts) == 2


async def test_a_scripted_error_is_raised_once_and_for_its_chat_alone():
    channel = ScriptedChannel()
    channel.will(HOME, ChannelDown())
    await channel.send(WORK, "w", MessageId("1"))
    with pytest.raises(ChannelDown):
        await channel.send(HOME, "a", MessageId("2"))
    await channel.send(HOME, "a", MessageId("2"))

    assert channel.texts() == ["w", "a"]


async def test_a_scripted_event_holds_a_send_until_it_is_set():
    channel, gate = ScriptedChannel(), asyncio.Event()
    channel.will(HOME, gate)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(channel.send(HOME, "a", MessageId("1")))
        await until(lambda: channel.attempts, "the held send")
        await channel.send(HOME, "b", MessageId("2"))
        assert channel.texts() == ["b"]
        gate.set()

    assert channel.texts() == ["b", "a"]


def test_it_owns_all_but_foreign_chats():
    assert ScriptedChannel().owns(HOME)
    assert not ScriptedChannel().owns(ChatJid("foreign:x"))
