"""Questions with options, answered by votes and by numbers: real intake, store and prompt."""

from __future__ import annotations

import re
import sqlite3
from typing import Any

import pytest

from agent_runner.wire.frames import Ack, TurnEnd
from orchestrator.domain.errors import ChannelDown, ChannelRefused
from orchestrator.domain.polls import Poll
from orchestrator.domain.protocols import Feature
from orchestrator.domain.values import ChatJid, Folder, MessageId, Quote, Role
from orchestrator.groups import people, registration
from orchestrator.inbound.intake import Accepted
from orchestrator.inbound.votes import COLLECT_MS, MAX_STARTED_TURNS
from orchestrator.ipc.handlers.messages import MAX_POLLS_AN_HOUR
from orchestrator.outbound import delivery as delivery_module
from orchestrator.outbound.delivery import GIVE_UP_MS
from orchestrator.outbound.polls import PollEnds
from orchestrator.queue.availability import Availability
from orchestrator.store.conversation import polls
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from tests.doubles.channel import ScriptedChannel
from tests.support.store_harness import StoreHarness
from tests.support.undo_harness import UndoHarness
from tests.support.until import until

DAY_MS = 24 * 3_600_000
CHAT = "local:family"
ASK = {"type": "send_poll", "question": "Which cake?", "options": ["Plum", "Apple <b>", "None"]}
TEXT = "Which cake?\n1. Plum\n2. Apple <b>\n3. None"


class Polls(UndoHarness):
    """A family whose agent asks, and people who vote."""

    async def ask(self, *, text: str = "@Andy ask them", **changes: Any) -> str:
        """A whole turn in which a poll is asked and sent; return the id of its message."""
        await self.turn({**ASK, **changes}, text=text)
        await self.deliver()
        return str((await self.store.rows("SELECT message_id FROM polls ORDER BY id DESC"))[0]["message_id"])

    async def deliver(self) -> None:
        assert isinstance(self.channel, ScriptedChannel)
        async with self.store.delivering(self.channel):
            self.store.wakeups.outbox.set()

            async def is_sent() -> bool:
                waiting = await self.store.outgoing()
                if waiting and waiting[0].next_attempt_ms > self.store.clock.wall_ms:
                    self.store.clock.wall_ms = waiting[0].next_attempt_ms
                    self.store.wakeups.outbox.set()
                return not [one for one in waiting if one.state not in ("dead", "unknown")]

            await until(is_sent, "all is sent")

    async def vote(self, poll: str, *chosen: int, by: str = "jane", **changes: Any) -> Accepted:
        self.store.clock.wall_ms += 1
        return await self.store.hear(
            "[voted in a poll]",
            vote=chosen,
            ignored="poll vote",
            sender=f"local:{by}",
            sent_ms=self.store.clock.wall_ms,
            quote=Quote(message_id=MessageId(poll), sender="Andy", text=""),
            **{"sender_name": by.title(), **changes},
        )

    async def prompt(self) -> str:
        """Give the queued turn to a run and end it well; return what its agent reads."""
        turn, run, order = await self.store.start_next()
        await self.finish(turn, run)
        return order.prompt

    async def finish(self, turn: Any, run: Any) -> None:

        await self.store.take(run, Ack(n=1, turn=turn.id))
        await self.store.take(run, TurnEnd(n=2, turn=turn.id))

    def ends(self) -> PollEnds:
        return PollEnds(
            self.store.database,
            clock=self.store.clock,
            channel_for=lambda _: self.channel,
            bus=self.store.bus,
            wakeups=self.store.wakeups,
        )

    async def settings(self, config: str) -> None:
        async with self.store.database.transaction() as tx:
            await tx.execute(
                "UPDATE registered_groups SET container_config = ? WHERE folder = 'family'", (config,)
            )


class OtherMessenger(ScriptedChannel):
    """A messenger that the family's chat does not belong to."""

    def owns(self, jid: ChatJid) -> bool:
        del jid
        return False


async def made(store_harness: StoreHarness, *features: Feature) -> Polls:
    channel = ScriptedChannel(features=frozenset({*features, Feature.IDEMPOTENT}))
    harness = Polls(store_harness, channel=channel)
    await harness.add_groups()
    return harness


@pytest.fixture
async def family(store_harness: StoreHarness) -> Polls:
    return await made(store_harness, Feature.POLLS)


@pytest.fixture
async def numbers(store_harness: StoreHarness) -> Polls:
    return await made(store_harness)


async def anything_answers(*_: object) -> None:
    return None


def shown(harness: Polls) -> list[tuple[str, bool]]:
    assert isinstance(harness.channel, ScriptedChannel)
    return [(one.text, one.poll is not None) for one in harness.channel.shown]


async def test_it_is_a_poll_where_the_messenger_has_them(family: Polls) -> None:
    await family.ask()
    assert shown(family)[0] == (TEXT, True)
    assert isinstance(family.channel, ScriptedChannel)
    poll = family.channel.shown[0].poll
    assert poll is not None
    assert (poll.question, poll.options, poll.is_multiple) == ("Which cake?", tuple(ASK["options"]), False)


async def test_it_is_a_text_with_numbers_elsewhere_and_where_it_is_refused(family: Polls) -> None:
    assert isinstance(family.channel, ScriptedChannel)
    family.channel.will(CHAT, ChannelRefused("no polls in a channel"))
    await family.ask()
    assert shown(family)[0] == (f"{TEXT}\nReply with the number of one.", False)
    assert next(one.text for one in await family.store.messages() if one.is_bot_message) == TEXT


async def test_a_refused_one_is_a_text_with_numbers_though_the_store_failed_meanwhile(
    family: Polls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_module, "RECORD_PAUSE_SECONDS", 0.0)
    note_text, failures = polls.note_text, iter([sqlite3.OperationalError("database or disk is full")] * 3)

    async def note_text_or_fail(*arguments: Any, **options: Any) -> None:
        if (error := next(failures, None)) is not None:
            raise error
        await note_text(*arguments, **options)

    monkeypatch.setattr(polls, "note_text", note_text_or_fail)
    assert isinstance(family.channel, ScriptedChannel)
    family.channel.will(CHAT, ChannelRefused("no polls in a channel"))
    await family.ask()
    assert shown(family)[0] == (f"{TEXT}\nReply with the number of one.", False)


async def test_a_text_with_numbers_that_is_too_long_leaves_in_parts_each_once(numbers: Polls) -> None:
    assert isinstance(numbers.channel, ScriptedChannel)
    numbers.channel.max_text_chars = 200
    options = [f"{number} {'ripe ' * 15}plums" for number in range(4)]
    await numbers.ask(options=options)
    texts = [text for text, _ in shown(numbers) if text != "Done."]
    assert all(len(text) <= 200 for text in texts)
    lines = ["Which cake?", *(f"{place}. {option}" for place, option in enumerate(options, start=1))]
    assert "\n".join(texts).split() == " ".join([*lines, "Reply with the number of one."]).split()
    assert [one.text for one in await numbers.store.messages() if one.is_bot_message][: len(texts)] == texts


async def test_a_poll_of_the_messenger_is_never_cut(family: Polls) -> None:
    assert isinstance(family.channel, ScriptedChannel)
    family.channel.max_text_chars = 20
    await family.ask()
    assert shown(family)[0] == (TEXT, True)
    assert len(shown(family)) == 2, "the poll, and the reply of the turn"


async def test_none_of_a_long_one_is_sent_after_its_end(numbers: Polls) -> None:
    assert isinstance(numbers.channel, ScriptedChannel)
    numbers.channel.max_text_chars = 20
    await numbers.turn({**ASK, "until": "2h"}, text="@Andy ask them")
    numbers.store.clock.wall_ms += 2 * 3_600_000
    await numbers.ends().end_due()
    await numbers.deliver()
    assert shown(numbers) == [("Done.", False)], "the reply of the turn alone"
    rows = await numbers.store.rows("SELECT state, attempts FROM outbox WHERE text LIKE 'Which cake?%'")
    assert [(row["state"], row["attempts"]) for row in rows] == [("skipped", 0)]


async def test_none_of_a_long_one_that_was_tried_is_sent_after_its_end(numbers: Polls) -> None:
    channel = numbers.channel
    assert isinstance(channel, ScriptedChannel)
    channel.max_text_chars = 20
    channel.will(CHAT, ChannelDown("no line"))
    await numbers.turn({**ASK, "until": "2h"}, text="@Andy ask them")
    async with numbers.store.delivering(channel):
        numbers.store.wakeups.outbox.set()
        await until(lambda: bool(channel.attempts), "the first part was tried")
    numbers.store.clock.wall_ms += 2 * 3_600_000
    await numbers.ends().end_due()
    await numbers.deliver()
    assert shown(numbers) == [("Done.", False)], "the reply of the turn alone"


async def test_a_messenger_that_is_away_gets_it_once(family: Polls) -> None:
    assert isinstance(family.channel, ScriptedChannel)
    family.channel.will(CHAT, ChannelDown("away"), ChannelDown("away"))
    await family.ask()
    assert [is_poll for _, is_poll in shown(family)] == [True, False]


async def test_a_poll_whose_messenger_is_off_for_a_while_is_a_poll_when_it_is_back(family: Polls) -> None:
    await family.turn({**ASK}, text="@Andy ask them")
    async with family.store.delivering(OtherMessenger()):
        family.store.wakeups.outbox.set()

        async def is_tried() -> bool:
            return (await family.store.outgoing())[0].attempts == 1

        await until(is_tried, "it was tried without its messenger")
    await family.deliver()
    assert shown(family)[0] == (TEXT, True)


async def test_the_first_answer_begins_a_turn_that_waits_for_others_and_names_all_with_addresses(
    family: Polls,
) -> None:
    poll = await family.ask()
    begun = await family.vote(poll, 0, by="jane")
    assert begun.outcome == "queued"
    (turn,) = await family.store.queued()
    assert turn.not_before_ms == family.store.clock.wall_ms + COLLECT_MS
    await family.vote(poll, 1, by="tom", sender_name='Tom" address="x')
    assert [one.id for one in await family.store.queued()] == [turn.id]
    prompt = await family.prompt()
    assert 'sender="Jane"' in prompt
    assert "[voted for Plum]" in prompt
    assert f'<quoted_message from="Andy">{TEXT.replace("<b>", "&lt;b&gt;")}</quoted_message>' in prompt
    assert '<poll question="Which cake?" state="open" answered_by="2">' in prompt
    assert re.search('<answer from="Jane" address="local:jane" time="[^"]+">Plum</answer>', prompt)
    assert '<answer from="Tom&quot; address=&quot;x" address="local:tom"' in prompt
    assert '<option chosen="1">Apple &lt;b&gt;</option>' in prompt


async def test_a_vote_that_changes_counts_once_and_one_taken_back_begins_nothing(family: Polls) -> None:
    poll = await family.ask()
    await family.vote(poll, 0)
    assert (await family.vote(poll, 1)).outcome == "amended"
    prompt = await family.prompt()
    assert "[voted for Apple &lt;b&gt;]" in prompt
    assert "Plum]" not in prompt
    assert 'answered_by="1"' in prompt
    await family.vote(poll, 0, by="tom")
    assert await family.store.queued() == [], "only the first answer begins one by itself"
    await family.vote(poll, by="tom")
    assert await family.store.queued() == []
    await family.vote(poll, 2)
    assert "[voted for None]" in await family.prompt(), "a changed answer is told: the first was worked with"


async def test_who_votes_under_another_address_has_one_vote(family: Polls) -> None:
    poll = await family.ask()
    await family.vote(poll, 0, by="1")
    await family.vote(poll, 1, by="2", sender_alias="local:1", id=MessageId("second"))
    rows = await family.store.rows("SELECT voter, chosen_json FROM poll_votes")
    assert rows == [{"voter": "local:1", "chosen_json": "[1]"}]
    await family.store.hear("", sender="local:2", deletes=MessageId("second"))
    assert await family.store.rows("SELECT chosen_json FROM poll_votes") == [{"chosen_json": "[]"}]


async def test_a_vote_that_changes_under_another_address_is_one_message(family: Polls) -> None:
    poll = await family.ask()
    await family.vote(poll, 0, by="1")
    await family.prompt()
    await family.vote(poll, 1, by="2", sender_alias="local:1")
    assert (await family.vote(poll, 2, by="2", sender_alias="local:1")).outcome == "amended"


async def test_taken_back_while_its_turn_waits_withdraws_the_turn(family: Polls) -> None:
    poll = await family.ask()
    await family.vote(poll, 0)
    await family.vote(poll)
    assert await family.store.queued() == []
    await family.vote(poll, 1)
    assert (await family.store.rows("SELECT chosen_json FROM poll_votes"))[0]["chosen_json"] == "[1]"


async def test_a_flood_of_votes_begins_few_turns_and_leaves_few_messages(family: Polls) -> None:
    poll = await family.ask()
    before = len(await family.store.messages())
    for number in range(60):
        await family.vote(poll, number % 3)
        if number % 4 == 0 and await family.store.queued():
            await family.prompt()
    begun = await family.store.rows("SELECT begun FROM polls")
    assert begun[0]["begun"] <= MAX_STARTED_TURNS
    assert await family.store.queued() == []
    assert len(await family.store.messages()) - before <= 2 * MAX_STARTED_TURNS + 1


async def test_votes_that_join_a_waiting_turn_use_up_none_of_those_that_votes_may_begin(
    family: Polls,
) -> None:
    poll = await family.ask()
    await family.vote(poll, 0, by="jane")
    await family.prompt()
    others = ("tom", "kim", "ann", "joe", "eva")
    for voter in others:
        await family.vote(poll, 0, by=voter)
    assert await family.store.queued() == []
    for voter in ("jane", *others):
        await family.vote(poll, 1, by=voter)
    assert '<option chosen="6">' in await family.prompt(), "all of these changes are one question"
    await family.vote(poll, 2, by="jane")
    assert "[voted for None]" in await family.prompt()


async def test_the_one_that_completes_the_chat_begins_a_turn(family: Polls) -> None:
    poll = await family.ask()
    await family.vote(poll, 0, by="jane", people=4)
    await family.prompt()
    await family.vote(poll, 0, by="tom", people=4)
    assert await family.store.queued() == []
    await family.vote(poll, 1, by="kim", people=4)
    assert 'answered_by="3"' in await family.prompt()


async def test_a_question_of_a_person_does_not_wait_for_votes(family: Polls) -> None:
    poll = await family.ask()
    await family.vote(poll, 0)
    await family.store.hear("@Andy quick, please")
    (turn,) = await family.store.queued()
    assert turn.not_before_ms <= family.store.clock.wall_ms


async def test_who_may_not_call_is_counted_and_begins_nothing(family: Polls) -> None:
    poll = await family.ask()
    await family.settings('{"people": {"local:gus": "guest"}, "roles": {"guest": {"call": false}}}')
    sent = len(await family.store.outgoing())
    accepted = await family.vote(poll, 0, by="gus")
    assert accepted.outcome == "ignored"
    assert await family.store.queued() == []
    assert len(await family.store.outgoing()) == sent, "nobody is told that a vote begins nothing"
    await family.vote(poll, 1)
    assert 'answered_by="2"' in await family.prompt()


@pytest.mark.parametrize("chosen", [(3,), (-1,), (0, 1), (0, 0), (10**9,)])
async def test_options_that_there_are_not_are_no_vote(family: Polls, chosen: tuple[int, ...]) -> None:
    poll = await family.ask()
    assert (await family.vote(poll, *chosen)).outcome == "ignored"
    assert await family.store.rows("SELECT * FROM poll_votes") == []


async def test_votes_in_unknown_polls_and_polls_of_other_chats_are_talk(family: Polls) -> None:
    poll = await family.ask()
    assert (await family.vote("unknown", 0)).outcome == "ignored"
    assert (await family.vote(poll, 0, folder="work")).outcome == "ignored"
    async with family.store.database.transaction() as tx:
        await tx.execute("UPDATE polls SET chat_jid = 'local:another chat of the group'")
    assert (await family.vote(poll, 0)).outcome == "ignored"
    assert await family.store.rows("SELECT * FROM poll_votes") == []


async def test_a_vote_before_the_send_is_recorded_counts(family: Polls) -> None:
    await family.turn(ASK)
    poll = (await family.store.rows("SELECT message_id FROM polls"))[0]["message_id"]
    await family.vote(poll, 0)
    await family.deliver()
    assert "<answer" in await family.prompt()


async def test_a_vote_that_comes_again_and_one_that_is_older_change_nothing(family: Polls) -> None:
    poll = await family.ask()
    await family.vote(poll, 0, id=MessageId("V1"))
    assert (await family.vote(poll, 0, id=MessageId("V1"))).outcome == "duplicate"
    await family.vote(poll, 1, id=MessageId("V2"))
    assert (await family.vote(poll, 1, id=MessageId("V2"))).outcome == "dropped"
    family.store.clock.wall_ms -= 10_000
    await family.vote(poll, 0, id=MessageId("V0"))
    assert (await family.store.rows("SELECT chosen_json FROM poll_votes"))[0]["chosen_json"] == "[1]"


async def test_a_vote_that_is_deleted_in_the_messenger_is_taken_back(family: Polls) -> None:
    poll = await family.ask()
    await family.vote(poll, 0, id=MessageId("V1"))
    await family.store.hear("", deletes=MessageId("V1"), sender="local:tom")
    assert (await family.store.rows("SELECT chosen_json FROM poll_votes"))[0]["chosen_json"] == "[0]"
    await family.store.hear("", deletes=MessageId("V1"))
    assert (await family.store.rows("SELECT chosen_json FROM poll_votes"))[0]["chosen_json"] == "[]"
    await family.vote(poll, 1, id=MessageId("V2"))
    await family.store.hear("", deletes=MessageId("V2"), sender="local:tom", is_moderated=True)
    assert (await family.store.rows("SELECT chosen_json FROM poll_votes"))[0]["chosen_json"] == "[]"


@pytest.mark.parametrize(
    ("text", "chosen"),
    [("2", "[1]"), ("@Andy 2.", "[1]"), ("2번", "[1]"), ("#3", "[2]"), ("plum", "[0]"), ("4", None),
     ("2 1", None),     ("two", None), ("2" * 400, None), ("2 cakes please", None)],
)  # fmt: skip
async def test_numbers_answer_it_and_are_read_like_any_reply(
    numbers: Polls, text: str, chosen: str | None
) -> None:
    poll = await numbers.ask()
    quote = Quote(message_id=MessageId(poll), sender="Andy", text="")
    accepted = await numbers.store.hear(text, quote=quote)
    assert accepted.outcome == "queued"
    found = await numbers.store.rows("SELECT chosen_json FROM poll_votes")
    assert [one["chosen_json"] for one in found] == ([] if chosen is None else [chosen])
    assert ("<answer" in await numbers.prompt()) is (chosen is not None)


async def test_an_answer_by_number_that_is_edited_is_the_new_answer(numbers: Polls) -> None:
    async def edit(text: str, **changes: Any) -> str:
        numbers.store.clock.wall_ms += 1
        await numbers.store.hear(text, edits=MessageId("V1"), sent_ms=numbers.store.clock.wall_ms, **changes)
        (vote,) = await numbers.store.rows("SELECT chosen_json FROM poll_votes")
        return str(vote["chosen_json"])

    poll = await numbers.ask()
    quote = Quote(message_id=MessageId(poll), sender="Andy", text="")
    await numbers.store.hear("1", quote=quote, id=MessageId("V1"))
    assert await edit("@Andy 2") == "[1]"
    assert await edit("1", sender="local:tom") == "[1]", "only of who wrote it"
    assert "<answer" in await numbers.prompt()
    assert await edit("plum") == "[0]", "also after an agent has read it"
    assert await edit("plum, thanks!") == "[0]", "what names no option changes nothing"
    assert await edit("@Andy") == "[]", "without a text it is taken back"
    assert await edit("3") == "[2]"
    await numbers.store.database.write(lambda tx: tx.execute("UPDATE polls SET ended_ms = 1"))
    assert await edit("1") == "[2]", "not after the end"


async def test_an_edit_in_another_chat_of_the_group_changes_no_vote(numbers: Polls) -> None:
    other, now_ms = ChatJid("local:other"), numbers.store.clock.now_ms()
    await numbers.store.database.write(
        lambda tx: registration.add_chat(tx, Folder("family"), other, now_ms=now_ms)
    )
    quote = Quote(message_id=MessageId(await numbers.ask()), sender="Andy", text="")
    await numbers.store.hear("1", quote=quote, id=MessageId("V1"))
    sent_ms = numbers.store.clock.wall_ms + 1
    await numbers.store.hear("2", edits=MessageId("V1"), chat_jid=other, sent_ms=sent_ms)
    assert await numbers.store.rows("SELECT chosen_json FROM poll_votes") == [{"chosen_json": "[0]"}]


async def test_several_numbers_answer_one_with_several_and_a_bare_number_to_nobody_is_talk(
    numbers: Polls,
) -> None:
    await numbers.ask(isMultiple=True)
    assert (await numbers.store.hear("1")).outcome == "ignored"
    assert await numbers.store.rows("SELECT * FROM poll_votes") == []
    await numbers.store.hear("@Andy 1, 3")
    assert (await numbers.store.rows("SELECT chosen_json FROM poll_votes"))[0]["chosen_json"] == "[0, 2]"


async def test_its_end_begins_a_turn_ends_the_poll_and_counts_no_more(family: Polls) -> None:
    assert isinstance(family.channel, ScriptedChannel)
    poll = await family.ask(until="2h")
    await family.vote(poll, 0)
    await family.prompt()
    ends = family.ends()
    await ends.end_due()
    assert family.channel.ended_polls == []
    family.store.clock.wall_ms += 2 * 3_600_000
    await ends.end_due()
    assert family.channel.ended_polls == [poll]
    prompt = await family.prompt()
    assert "The time of a question that you had asked here is over" in prompt
    assert 'state="ended" answered_by="1"' in prompt
    assert (await family.vote(poll, 1, by="tom")).outcome == "ignored"
    await ends.end_due()
    assert family.channel.ended_polls == [poll]
    assert await family.store.queued() == []


async def test_its_end_is_reported_also_when_the_outbox_has_let_go_of_it(family: Polls) -> None:
    await family.ask(until="2h")
    async with family.store.database.transaction() as tx:
        await tx.execute("DELETE FROM outbox")
    family.store.clock.wall_ms += 2 * 3_600_000
    await family.ends().end_due()
    assert 'state="ended" answered_by="0"' in await family.prompt()


async def test_a_poll_whose_messenger_is_not_configured_is_closed_when_it_is_again(family: Polls) -> None:
    assert isinstance(family.channel, ScriptedChannel)
    poll = await family.ask(until="2h")
    family.store.clock.wall_ms += 2 * 3_600_000
    channel, family.channel = family.channel, None
    await family.ends().end_due()
    family.channel = channel
    await family.ends().end_due()
    assert channel.ended_polls == [poll]
    await family.ends().end_due()
    assert channel.ended_polls == [poll]


async def test_a_poll_that_cannot_be_ended_keeps_no_other_from_its_end(
    family: Polls, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = await family.ask(until="2h")
    sound = await family.ask(until="2h", text="@Andy ask them again")
    family.store.clock.wall_ms += 2 * 3_600_000
    end = polls.end

    async def end_all_but_one(tx: Tx, poll: Poll, *rest: Any, **more: Any) -> None:
        if poll.message_id == broken:
            raise LookupError("a poll nobody thought of")
        await end(tx, poll, *rest, **more)

    monkeypatch.setattr(polls, "end", end_all_but_one)
    with pytest.raises(ExceptionGroup):
        await family.ends().end_due()
    assert isinstance(family.channel, ScriptedChannel)
    assert family.channel.ended_polls == [sound]
    assert len(await family.store.queued()) == 1


async def test_a_poll_whose_messenger_stays_away_is_not_retried_after_a_day(family: Polls) -> None:
    await family.ask(until="2h")
    family.store.clock.wall_ms += 2 * 3_600_000
    family.channel = None
    for _ in range(2):
        await family.ends().end_due()
        family.store.clock.wall_ms += GIVE_UP_MS
    (row,) = await family.store.rows("SELECT closed_ms FROM polls")
    assert row["closed_ms"] is not None


async def test_a_message_that_joins_the_turn_of_the_end_is_answered_with_it(family: Polls) -> None:
    await family.ask(until="2h")
    family.store.clock.wall_ms += 2 * 3_600_000
    await family.ends().end_due()
    await family.store.hear("@Andy well?")
    prompt = await family.prompt()
    assert "@Andy well?" in prompt
    assert 'state="ended" answered_by="0"' in prompt


async def test_an_end_beside_a_turn_that_is_put_back_is_reported_with_it(family: Polls) -> None:
    await family.ask(until="2h")
    await family.store.hear("@Andy one")
    _, run, _ = await family.store.start_next()
    family.store.clock.wall_ms += 2 * 3_600_000
    await family.ends().end_due()
    await family.store.lose(run)
    prompt = await family.prompt()
    assert "@Andy one" in prompt
    assert 'state="ended" answered_by="0"' in prompt


async def test_an_end_is_reported_when_the_question_that_joined_it_is_taken_back(family: Polls) -> None:
    await family.ask(until="2h")
    family.store.clock.wall_ms += 2 * 3_600_000
    await family.ends().end_due()
    await family.store.hear("@Andy well?", id=MessageId("asked"))
    await family.store.hear("", deletes=MessageId("asked"))
    assert 'state="ended" answered_by="0"' in await family.prompt()


async def test_an_end_is_reported_when_who_joined_it_may_not_ask_any_more(family: Polls) -> None:
    await family.ask(until="2h")
    family.store.clock.wall_ms += 2 * 3_600_000
    await family.ends().end_due()
    await family.store.hear("@Andy well?", sender="local:bob", sender_name="Bob")
    await family.settings('{"roles": {"guest": {"call": false}}}')
    async with family.store.database.transaction() as tx:
        await people.set_role(tx, Folder("family"), "local:bob", Role.GUEST, by="test", now_ms=1)
    check = Availability(
        family.store.database,
        clock=family.store.clock,
        wakeups=family.store.wakeups,
        bus=family.store.bus,
        refusal=anything_answers,
    )
    assert await check.turn_away((await family.store.queued())[0]), "it is read again without the question"
    (turn,) = await family.store.queued()
    assert not await check.turn_away(turn)
    prompt = await family.prompt()
    assert 'state="ended" answered_by="0"' in prompt


async def test_the_end_in_a_chat_that_is_gone_or_was_never_asked_is_quiet(family: Polls) -> None:
    assert isinstance(family.channel, ScriptedChannel)
    await family.turn({**ASK, "until": "2h"})
    family.store.clock.wall_ms += 2 * 3_600_000
    await family.ends().end_due()
    await family.deliver()
    assert [text for text, _ in shown(family)] == ["Done."], "what is over is not asked any more"
    poll = await family.ask(until="2h")
    async with family.store.database.transaction() as tx:
        await groups.known(tx, "family")
        await registration.unregister(tx, "family", now_ms=family.store.clock.now_ms())
    assert (await family.vote(poll, 0)).outcome == "unregistered"
    family.store.clock.wall_ms += 2 * 3_600_000
    await family.ends().end_due()
    assert await family.store.queued() == []


async def test_an_undo_deletes_it_and_later_votes_are_nothing(store_harness: StoreHarness) -> None:
    family = await made(store_harness, Feature.POLLS, Feature.WITHDRAWALS)
    poll = await family.ask()
    said = await family.say("@Andy undo")
    assert "the question “Which cake?” is gone" in said
    assert "1 sent message is deleted" in said
    assert (await family.vote(poll, 0)).outcome == "ignored"
    await family.say("@Andy undo")
    assert len(await family.store.rows("SELECT * FROM polls")) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"question": "  "},
        {"question": "x" * 301},
        {"options": ["one"]},
        {"options": [str(one) for one in range(11)]},
        {"options": ["a", ""]},
        {"options": ["a", "A"]},
        {"options": ["a", "b" * 101]},
        {"until": "yesterday"},
        {"until": "10s"},
        {"until": "2199-01-01T00:00"},
    ],
)
async def test_what_no_chat_can_be_asked_is_refused(family: Polls, change: dict[str, Any]) -> None:
    await family.store.hear("@Andy hi")
    turn, _, _ = await family.store.start_next()
    reply = await family.command(turn, {**ASK, **change})
    assert (reply.ok, reply.code) == (False, "bad_arguments")
    assert await family.store.rows("SELECT * FROM polls") == []


async def test_it_is_asked_once_a_turn_and_not_without_end(family: Polls) -> None:
    await family.store.hear("@Andy hi")
    turn, _, _ = await family.store.start_next()
    assert (await family.command(turn, ASK)).code == "ok"
    assert (await family.command(turn, ASK)).code == "said_before"
    codes = {(await family.command(turn, {**ASK, "question": f"{n}?"})).code for n in range(30)}
    assert codes == {"ok", "too_many"}


async def test_questions_of_a_clock_that_was_ahead_are_none_of_this_hour(family: Polls) -> None:
    family.store.clock.wall_ms += 365 * DAY_MS
    for number in range(MAX_POLLS_AN_HOUR):
        await family.ask(question=f"{number}?")
    family.store.clock.wall_ms -= 365 * DAY_MS
    await family.store.hear("@Andy hi")
    turn, _, _ = await family.store.start_next()
    assert (await family.command(turn, ASK)).code == "ok"


async def test_its_chat_may_move(family: Polls) -> None:
    poll = await family.ask()
    async with family.store.database.transaction() as tx:
        await registration.move_chat(
            tx, ChatJid(CHAT), ChatJid("local:new"), now_ms=family.store.clock.now_ms()
        )
        found = await polls.of_message(tx, MessageId(poll))
    assert found is not None
    assert found.chat_jid == "local:new"
    assert (await family.vote(poll, 0, chat_jid=ChatJid("local:new"))).outcome == "queued"


async def test_its_end_is_reported_in_a_chat_that_has_moved(family: Polls) -> None:
    await family.ask(until="2h")
    async with family.store.database.transaction() as tx:
        await registration.move_chat(
            tx, ChatJid(CHAT), ChatJid("local:new"), now_ms=family.store.clock.now_ms()
        )
    family.store.clock.wall_ms += 2 * 3_600_000
    await family.ends().end_due()
    assert 'state="ended" answered_by="0"' in await family.prompt()
