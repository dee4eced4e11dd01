"""How much one group may say, store and be asked: what goes beyond is left out or refused, and said so."""

from __future__ import annotations

import json

import pytest

from agent_runner.wire.document import MAX_REASON_CHARS, WireError
from agent_runner.wire.frames import Result, TurnEnd, parse_frame
from agent_runner.wire.mailbox import MAX_PARTS, MAX_TEXT_CHARS, parse_command
from orchestrator.base import rate_limits as pacing
from orchestrator.base.rate_limits import FRAMES_AT_ONCE, PATIENCE_MS, TokenBucket
from orchestrator.containers.frame_effects import MAX_RESULT_CHARS, MAX_RESULTS
from orchestrator.domain.values import Folder, OutboxState
from orchestrator.inbound.prompt import MAX_MESSAGES, MAX_PROMPT_CHARS
from orchestrator.ipc.command_context import CommandCaller
from orchestrator.ipc.handlers import messages
from orchestrator.queue import next_turns
from orchestrator.store.conversation import messages as stored
from orchestrator.store.conversation import outbox
from orchestrator.store.groups import groups
from orchestrator.store.runs import turns
from tests.support.store_harness import SEOUL, StoreHarness, a_message


@pytest.fixture
async def family(store_harness: StoreHarness) -> StoreHarness:
    await store_harness.add_group()
    return store_harness


async def test_a_turn_says_a_hundred_things_at_most(family):
    await family.hear("@Andy hi")
    turn, run, _ = await family.start_next()
    taken = [await family.take(run, Result(n=n, turn=turn.id, result="x")) for n in range(1, MAX_RESULTS + 3)]

    assert [one.is_left_out for one in taken] == [False] * MAX_RESULTS + [True, True]
    await family.take(run, TurnEnd(n=MAX_RESULTS + 9, turn=turn.id))
    assert len(await family.deliver_all()) == MAX_RESULTS


async def test_a_turn_says_a_million_characters_at_most(family):
    await family.hear("@Andy hi")
    turn, run, _ = await family.start_next()
    texts = ["x" * MAX_TEXT_CHARS] * (MAX_RESULT_CHARS // MAX_TEXT_CHARS) + ["one more"]
    taken = [await family.take(run, Result(n=n, turn=turn.id, result=t)) for n, t in enumerate(texts, 1)]

    assert [one.is_left_out for one in taken].count(True) == 1
    assert sum(len(one.text) for one in await family.outgoing()) == MAX_RESULT_CHARS


async def test_a_new_attempt_may_say_as_much_again(family):
    await family.hear("@Andy hi")
    turn, run, _ = await family.start_next()
    for n in range(1, MAX_RESULTS + 2):
        await family.take(run, Result(n=n, turn=turn.id, result="x"))
    await family.lose(run)
    await family.answer("second try")

    assert await family.deliver_all() == ["second try"]


async def send(family, text, number, *, folder="family", **fields):
    async with family.database.transaction() as tx:
        caller = CommandCaller(
            group=await groups.known(tx, folder),
            request_id=f"r{number}",
            now_ms=family.clock.now_ms(),
            asked_ms=family.clock.now_ms(),
            turn=await turns.running_of(tx, Folder(folder)),
            zone=SEOUL,
            read_time=lambda *_, **__: 0,
            times=None,  # a message has no time
        )
        command = parse_command(json.dumps({"type": "message", "text": text, **fields}))
        return await messages.send_message(tx, caller, command)


async def test_a_group_has_a_hundred_messages_on_their_way_at_most(family):
    await family.hear("@Andy hi")
    await family.start_next()
    answers = [await send(family, f"text {n}", n) for n in range(messages.MAX_WAITING + 1)]

    assert [one.code for one in answers] == ["ok"] * messages.MAX_WAITING + ["too_many"]
    assert not answers[-1].ok
    assert "on their way already" in answers[-1].text, "and not the bound of the turn, which is as large"
    assert len(await family.outgoing()) == messages.MAX_WAITING


async def test_what_nobody_asked_for_is_sent_a_few_times_an_hour_and_the_owner_is_notified_once(family):
    await family.add_group("main", is_main=True)
    for n in range(messages.MAX_OUTSIDE_AN_HOUR):
        assert (await send(family, f"text {n}", n)).ok
        await family.deliver_all()
    refused = [await send(family, f"more {n}", 900 + n) for n in range(3)]

    assert [one.code for one in refused] == ["too_many"] * 3
    (notice,) = await family.outgoing()
    assert "'family' sends messages that nobody asked for" in notice.text
    family.clock.pass_ms(messages.HOUR_MS + 1)
    assert (await send(family, "later", 999)).ok


async def test_a_turn_sends_a_hundred_messages_at_most_however_fast_they_leave(family):
    await family.hear("@Andy hi")
    turn, _, _ = await family.start_next()
    for n in range(messages.MAX_A_TURN):
        assert (await send(family, f"text {n}", n)).ok
        await family.deliver_all()

    assert (await send(family, "one more", 999)).code == "too_many"
    async with family.database.reading() as tx:
        assert await outbox.count_released(tx, turn.id) == messages.MAX_A_TURN


async def test_messages_from_before_the_clock_went_back_hold_up_no_later_ones(family):
    for n in range(messages.MAX_OUTSIDE_AN_HOUR):
        assert (await send(family, f"text {n}", n)).ok
        await family.deliver_all()
    assert (await send(family, "one more", 998)).code == "too_many"

    family.clock.wall_ms -= 24 * 3_600_000
    assert (await send(family, "one more", 999)).ok


async def test_messages_to_other_chats_count_in_the_turn_that_sends_them_and_nowhere_else(family):
    await family.add_group("main", is_main=True)
    await family.hear("@Andy hi", folder="main")
    await family.start_next("main")
    for n in range(messages.MAX_A_TURN):
        assert (await send(family, f"text {n}", n, folder="main", chatJid="local:family")).ok
        await family.deliver_all()

    assert (await send(family, "one more", 999, folder="main", chatJid="local:family")).code == "too_many"
    async with family.database.reading() as tx:
        assert (
            await outbox.count_outside_turns(tx, Folder("main"), since_ms=0, now_ms=family.clock.now_ms())
            == 0
        )


@pytest.mark.parametrize(
    "field",
    [{"newSessionId": "s" * 201}, {"model": "m" * 201}, {"input_tokens": 2**53}, {"output_tokens": -1}],
)
def test_a_frame_with_a_field_too_big_is_refused(field):
    usage = {"v": 1, "n": 1, "kind": "usage", "turn": 1}
    assert parse_frame(json.dumps(usage)).n == 1
    with pytest.raises(WireError):
        parse_frame(json.dumps(usage | field))


def test_a_chat_address_too_long_is_refused():
    with pytest.raises(WireError, match="chatJid"):
        parse_command(json.dumps({"type": "message", "text": "x", "chatJid": "j" * 201}))


@pytest.mark.parametrize("turn", [-1, 2**53, 10**30, -(2**63) - 1])
def test_a_turn_that_no_store_can_hold_is_refused(turn):
    with pytest.raises(WireError, match="turn"):
        parse_command(json.dumps({"type": "message", "text": "x", "turn": turn}))


MANY = 1_000
STRANGERS = {str(number): 1 for number in range(MANY)}


@pytest.mark.parametrize(
    ("parse", "document"),
    [
        (parse_frame, {"n": 1, "kind": "turn_end", "turn": 1, "told": [1] * MANY}),
        (parse_command, {"type": "send_poll", "question": "?", "options": [1] * MANY}),
        (parse_command, {"type": "change_group", "folder": "f", "people": STRANGERS}),
    ],
    ids=["told", "options", "people"],
)
def test_a_list_full_of_faults_is_refused_for_one_of_them(parse, document):
    with pytest.raises(WireError) as caught:
        parse(json.dumps(document))
    assert caught.value.__cause__.error_count() == 1


def test_a_request_of_more_parts_than_any_has_is_not_parsed():
    many = {"type": "remember", "tool": "t", "arguments": {"a": [[]] * (MAX_PARTS + 1)}}
    with pytest.raises(WireError, match="parts"):
        parse_command(json.dumps(many))


def test_the_commas_of_a_text_are_no_parts():
    text = '"\\", ' * (MAX_PARTS + 1)
    assert parse_command(json.dumps({"type": "message", "text": text})).text == text


@pytest.mark.parametrize(
    "document",
    [{"type": "x" * 100_000}, {"type": "change_group", "folder": "f", "people": {"x" * 100_000: 1}}],
)
def test_the_reason_of_a_refusal_is_short_however_long_the_request(document):
    with pytest.raises(WireError) as caught:
        parse_command(json.dumps(document))
    assert len(str(caught.value)) <= MAX_REASON_CHARS


async def test_who_keeps_talking_too_fast_overruns_the_patience(clock, monkeypatch):
    async def let_pass(seconds):
        clock.pass_ms(round(seconds * 1000))

    monkeypatch.setattr(pacing.asyncio, "sleep", let_pass)
    begun = clock.steady_ms()
    pace = TokenBucket(clock)
    for _ in range(FRAMES_AT_ONCE):
        await pace.wait()
    assert clock.steady_ms() == begun

    while not pace.is_overrun:
        await pace.wait()
    assert PATIENCE_MS <= clock.steady_ms() - begun < PATIENCE_MS + 1_000

    pace.forgive()
    assert not pace.is_overrun


async def test_a_question_is_not_crowded_out_by_the_talk_that_follows_it(family):
    await family.hear("@Andy what is for dinner?")
    for number in range(MAX_MESSAGES + 50):
        await family.hear(f"talk {number}.")
    _, _, order = await family.start_next()

    assert "what is for dinner?" in order.prompt
    assert order.prompt.count("<message ") == MAX_MESSAGES
    assert '<messages older_left_out="51">' in order.prompt
    assert f"talk {MAX_MESSAGES + 49}." in order.prompt


async def test_messages_of_andys_own_that_are_left_out_are_counted_too(family):
    async with family.database.transaction() as tx:
        for number in range(MAX_MESSAGES):
            await outbox.add(
                tx,
                chat_jid="local:family",
                folder=Folder("family"),
                text=f"reminder {number} " + "x" * 10_000,
                dedupe_key=f"reminder:{number}",
                now_ms=family.clock.now_ms(),
            )
    await family.deliver_all()
    await family.hear("@Andy what was that?")
    _, _, order = await family.start_next()

    left_out = MAX_MESSAGES + 1 - order.prompt.count("<message ")
    assert left_out > 1
    assert f'<messages older_left_out="{left_out}">' in order.prompt


async def test_an_order_stays_small_and_the_rest_is_asked_in_the_next(family):
    for number in range(12):
        await family.hear(f"@Andy {number} " + "x" * 60_000)
    asked = [order async for order in all_answered(family)]

    assert len(asked) > 1
    for order in asked:
        assert len(order.prompt) < MAX_PROMPT_CHARS + 1_000
        assert "older_left_out" not in order.prompt
    assert [one.text.split()[0] for order in asked for one in order.requests] == [str(n) for n in range(12)]


async def test_a_question_is_not_crowded_out_by_long_talk_after_it(family):
    await family.hear("@Andy what is for dinner? " + "x" * 60_000)
    for number in range(12):
        await family.hear(f"talk {number} " + "x" * 60_000)
    _, _, order = await family.start_next()

    assert "what is for dinner?" in order.prompt
    assert len(order.prompt) < MAX_PROMPT_CHARS + 1_000
    assert "talk 11 " in order.prompt
    assert f'<messages older_left_out="{13 - order.prompt.count("<message ")}">' in order.prompt


async def test_a_backlog_of_questions_is_asked_in_several_turns_each_once(family):
    await family.hear("@Andy begin")
    turn, run, _ = await family.start_next()
    first = await family.hear("@Andy q00000.")
    await more_questions(family, first.turn_id, 2 * MAX_MESSAGES + 28)
    last = await family.hear("@Andy q00429.")
    await family.take(run, TurnEnd(n=1, turn=turn.id))

    asked = [order async for order in all_answered(family)]
    assert [len(order.requests) for order in asked] == [MAX_MESSAGES, MAX_MESSAGES, 30]
    told = [one.text for order in asked for one in order.requests]
    assert told == [f"q{number:05}." for number in range(430)]
    for order in asked:
        assert all(f"{one.text}</message>" in order.prompt for one in order.requests)
        assert "older_left_out" not in order.prompt
    rows = await family.rows(
        "SELECT count(*) AS n FROM messages m JOIN turns t ON t.id = m.turn_id"
        " WHERE t.state = 'answered' AND m.seq BETWEEN t.first_seq AND t.last_seq AND m.seq BETWEEN ? AND ?",
        first.seq,
        last.seq,
    )
    assert rows[0]["n"] == 430


async def test_a_part_of_a_backlog_that_fails_takes_the_rest_in_again(family):
    first = await family.hear("@Andy q00000.")
    await more_questions(family, first.turn_id, MAX_MESSAGES + 29)
    turn, run, order = await family.start_next()
    assert len(order.requests) == MAX_MESSAGES
    joined = await family.hear("@Andy q00230.")
    assert joined.turn_id != turn.id
    await family.lose(run)

    (back,) = await family.queued()
    assert (back.id, back.attempt) == (turn.id, 2)
    asked = [order async for order in all_answered(family)]
    assert [one.text for order in asked for one in order.requests] == [f"q{n:05}." for n in range(231)]


async def test_a_command_waits_for_the_whole_backlog_before_it(family):
    first = await family.hear("@Andy q00000.")
    await more_questions(family, first.turn_id, MAX_MESSAGES + 29)
    cleared = await family.hear("/clear", is_from_me=True)
    turn, run, _ = await family.start_next()
    await family.take(run, TurnEnd(n=1, turn=turn.id))

    waiting = await family.queued()
    assert cleared.turn_id in [one.id for one in waiting]
    decided = next_turns.plan(waiting, [], cap=5, now_ms=family.clock.now_ms())
    (rest,) = [one.id for one in waiting if one.id != cleared.turn_id]
    assert decided.actions == (next_turns.StartContainer(rest),)


async def all_answered(family):
    """Answer turn after turn until none waits; gives their orders."""
    while await family.queued():
        turn, run, order = await family.start_next()
        await family.take(run, TurnEnd(n=1, turn=turn.id))
        yield order


async def more_questions(family, turn_id, count):
    """Store them as the intake would, in one go."""
    async with family.database.transaction() as tx:
        for number in range(1, count + 1):
            seq = await stored.add(
                tx,
                a_message(f"@Andy q{number:05}."),
                received_ms=family.clock.now_ms(),
                is_request=True,
                turn_id=turn_id,
                ignored_reason=None,
            )
        await turns.extend(tx, turn_id, seq)


async def test_what_is_left_out_by_a_bound_is_not_half_there(family):
    await family.hear("@Andy hi")
    turn, run, _ = await family.start_next()
    await family.take(run, Result(n=1, turn=turn.id, result="y" * (MAX_TEXT_CHARS + 5)))

    (held,) = await family.outgoing()
    assert (held.state, len(held.text)) == (OutboxState.HELD, MAX_TEXT_CHARS)
