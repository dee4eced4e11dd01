"""An emoji that the agent puts under a message, with a real store and a scripted messenger."""

from __future__ import annotations

import pytest

from agent_runner.wire.unicode_forms import is_emoji
from orchestrator.domain.errors import ChannelDown, ChannelRefused
from orchestrator.domain.protocols import Feature
from orchestrator.domain.values import MessageId
from orchestrator.outbound.withdrawals import Withdrawals
from tests.doubles.channel import ScriptedChannel
from tests.support.store_harness import StoreHarness
from tests.support.undo_harness import UndoHarness
from tests.support.until import until

CHAT = "local:family"


@pytest.fixture
async def harness(store_harness: StoreHarness) -> UndoHarness:
    channel = ScriptedChannel(features=frozenset({Feature.REACTIONS}))  # one without idempotent sends
    made = UndoHarness(store_harness, channel=channel)
    await made.add_groups()
    return made


def react(emoji: str, message: str = "") -> dict[str, str]:
    return {"type": "react", "emoji": emoji, "message": message}


def put(harness: UndoHarness) -> list[tuple[str, str]]:
    assert isinstance(harness.channel, ScriptedChannel)
    return harness.channel.reactions


async def deliver(harness: UndoHarness) -> None:
    """Send all that is due, and what is due again later."""
    assert harness.channel is not None
    async with harness.store.delivering(harness.channel):
        harness.store.wakeups.outbox.set()

        async def is_empty() -> bool:
            waiting = await harness.store.outgoing()
            if waiting and waiting[0].next_attempt_ms > harness.store.clock.wall_ms:
                harness.store.clock.wall_ms = waiting[0].next_attempt_ms
                harness.store.wakeups.outbox.set()
            return not [one for one in waiting if one.state not in ("dead", "unknown")]

        await until(is_empty, "all is sent")


async def test_it_is_put_under_the_question_or_a_message_with_the_words(harness: UndoHarness) -> None:
    await harness.store.hear("We won the Cup!", id=MessageId("CUP"), sender="local:tom")
    await harness.turn(
        react("👍"), react("🎉", "won the cup"), text="@Andy note it", id=MessageId("Q"), says="SILENT"
    )
    await deliver(harness)
    assert put(harness) == [("Q", "👍"), ("CUP", "🎉")]
    said = [one.text for one in await harness.store.messages() if one.is_bot_message]
    assert said == [], "an emoji is no message of the chat"


async def test_it_waits_for_a_messenger_that_is_away_and_is_put_once_more_after_a_kill(
    harness: UndoHarness,
) -> None:
    assert isinstance(harness.channel, ScriptedChannel)
    await harness.turn(react("👍"), id=MessageId("Q"))
    harness.channel.will(CHAT, ChannelDown("away"))
    # A host that is killed in a send leaves the row as it is while it is tried.
    async with harness.store.database.transaction() as tx:
        await tx.execute("UPDATE outbox SET state = 'sending', attempts = 1 WHERE reacts_to IS NOT NULL")
    await deliver(harness)
    assert put(harness) == [("Q", "👍")]
    assert harness.channel.texts() == ["Done."], "the answer waits behind it, and is sent once"


async def test_one_that_the_messenger_refuses_holds_nothing_up_and_tells_the_agent(
    harness: UndoHarness,
) -> None:
    assert isinstance(harness.channel, ScriptedChannel)
    await harness.turn(react("🦖"), id=MessageId("Q"))
    harness.channel.will(CHAT, ChannelRefused("no such emoji here"))
    await deliver(harness)
    assert (put(harness), harness.channel.texts()) == ([], ["Done."])
    found = await harness.store.rows("SELECT payload_json FROM cross_session_notifications")
    assert "🦖" in found[0]["payload_json"]


@pytest.mark.parametrize(
    "emoji", ["👍👍", "ok", "👍!", "👩 ", "1", "<b>", "é", "\u200d", "\ufe0f", "👍" * 30]
)
async def test_what_is_no_single_emoji_is_refused(harness: UndoHarness, emoji: str) -> None:
    await harness.store.hear("@Andy hi")
    turn, _, _ = await harness.store.start_next()
    reply = await harness.command(turn, react(emoji))
    assert (reply.ok, reply.code) == (emoji == "👩 ", "ok" if emoji == "👩 " else "bad_arguments")


@pytest.mark.parametrize(
    "emoji", ["👍🏽", "👨‍👩‍👧‍👦", "🇰🇷", "1️⃣", "❤️", "❤", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "‼️", "🧑🏿‍🚀", "☕", "ℹ️", "◻️", "〽️"]
)
def test_an_emoji_may_be_made_of_several(emoji: str) -> None:
    assert is_emoji(emoji)


async def test_unknown_words_other_chats_and_no_turn_are_refused(harness: UndoHarness) -> None:
    await harness.store.hear("a secret of work", "work")
    await harness.store.hear("@Andy hi")
    assert (await harness.command(None, react("👍"))).code == "not_here"
    turn, _, _ = await harness.store.start_next()
    for command in (react("👍", "secret of work"), react("👍", "no such words")):
        assert (await harness.command(turn, command)).code == "unknown_message"
    harness.channel = ScriptedChannel(features=frozenset())
    assert "say it in words" in (await harness.command(turn, react("👍"))).text
    assert await harness.store.outgoing() == []


async def test_an_undo_takes_it_away_and_one_not_sent_yet_is_not_put(harness: UndoHarness) -> None:
    assert harness.channel is not None
    await harness.turn(react("🎉"), id=MessageId("R"))
    await harness.say("@Andy undo")
    await harness.turn(react("👍"), id=MessageId("Q"))
    await deliver(harness)
    assert put(harness) == [("Q", "👍")]
    said = await harness.say("@Andy undo that")
    assert "the emoji 👍 taken away" in said
    taking = Withdrawals(
        harness.store.database,
        clock=harness.store.clock,
        channel_for=lambda _: harness.channel,
        bus=harness.store.bus,
        wakeup=harness.store.wakeups.outbox,
    )
    await taking.withdraw_due()
    assert put(harness) == [("Q", "👍"), ("Q", "")]
    assert {one.text for one in await harness.store.messages() if one.id == "Q"} == {"@Andy do it"}, (
        "the message itself stays as it is"
    )


async def test_one_that_is_taken_back_leaves_nothing_to_undo(harness: UndoHarness) -> None:
    await harness.turn(react("👍"), react(""), id=MessageId("Q"))
    await deliver(harness)
    assert put(harness) == [("Q", "👍"), ("Q", "")]


async def test_who_may_not_read_history_tries_no_words_out(harness: UndoHarness) -> None:
    async with harness.store.database.transaction() as tx:
        await tx.execute(
            "UPDATE registered_groups SET container_config = ? WHERE folder = 'family'",
            ('{"people": {"local:gus": "guest"}}',),
        )
    await harness.store.hear("the code is 4711", sender="local:tom")
    await harness.store.hear("@Andy hi", id=MessageId("G"), sender="local:gus", sender_name="Gus")
    turn, _, _ = await harness.store.start_next()
    assert (await harness.command(turn, react("👍", "4711"))).code == "not_allowed"
    assert (await harness.command(turn, react("👍"))).ok
    await deliver(harness)
    assert put(harness) == [("G", "👍")]
