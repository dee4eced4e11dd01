"""Kept notices on their way to a turn: claimed as it begins, told at its good end, free again otherwise."""

from __future__ import annotations

import json

import pytest

from agent_runner.wire.document import WireError
from agent_runner.wire.frames import TurnEnd, parse_frame
from agent_runner.wire.notices import MAX_DELIVERED
from orchestrator.domain.values import Folder, TurnKind
from orchestrator.groups import registration
from orchestrator.store.notices import claims as notice_claims
from orchestrator.store.notices import notices
from orchestrator.store.notices.notices import NewNotice, NoticeMaker
from orchestrator.store.runs import turns
from tests.support.notice_harness import HOUR, NoticeHarness, told

FAMILY = Folder("family")


@pytest.fixture
async def home(store_harness) -> NoticeHarness:
    await store_harness.add_group()
    return NoticeHarness(store_harness)


async def ids(order):
    return [one.id for one in order.notices]


# Two-phase


async def test_a_notice_for_the_next_turn_is_given_to_it_and_told_once(home):
    """N-60, N-63, N-70."""
    turn, run, order = await home.begin()
    assert order.notices == ()
    number = await home.note()
    await home.end(turn, run)

    turn, run, order = await home.begin()
    assert await ids(order) == [number]
    assert order.notices[0].payload["message"] == "look at the oven"
    assert await home.state(number) == "pending"
    taken = await home.end(turn, run, told(number, "[NOTE] look at the oven"))

    assert taken.delivered_notices == (number,)
    kept = await home.kept(number)
    assert (kept.state.value, kept.deliveries, kept.content) == ("delivered", 1, "[NOTE] look at the oven")
    assert kept.delivered_ms == home.harness.clock.now_ms()
    assert await home.turn() == ()


async def test_a_failed_turn_leaves_it_pending_for_the_next_attempt(home):
    """N-64."""
    number = await home.note()
    turn, run, order = await home.begin()
    assert await ids(order) == [number]
    await home.end(turn, run, told(number), status="error", error="overloaded")
    assert (await home.kept(number)).claim_turn is None
    assert await home.state(number) == "pending"

    again, run, order = await home.start()
    assert again.id == turn.id
    assert await ids(order) == [number]
    await home.end(again, run, told(number))
    assert await home.state(number) == "delivered"


async def test_a_container_that_dies_between_claim_and_end_leaves_it_pending(home):
    """N-64."""
    number = await home.note()
    _, run, order = await home.begin()
    assert await ids(order) == [number]
    await home.harness.lose(run)
    assert ((await home.kept(number)).claim_turn, await home.state(number)) == (None, "pending")
    _, _, order = await home.start()
    assert await ids(order) == [number]


async def test_a_host_that_is_killed_between_claim_and_end_gives_the_same_again_to_the_same_attempt(home):
    """N-64: the next host adopts the container, and writes its turn anew."""
    first, second = await home.note("one"), await home.note("two")
    turn, run, order = await home.begin()
    another = NoticeHarness(home.harness)
    later = await another.note("three", deliver_at="after_tool", persist_cross_session=True)
    async with home.harness.database.reading() as tx:
        again = await another.compose(tx, turn, run)
    assert await ids(order) == [first, second]
    assert (await ids(again))[:2] == [first, second]
    await another.end(turn, run, told(first))
    assert [await home.state(one) for one in (first, second, later)] == ["delivered", "pending", "pending"]


async def test_what_a_turn_was_given_and_did_not_tell_comes_again(home):
    first, second = await home.note("one"), await home.note("two")
    assert [one.id for one in await home.turn(tells=[second])] == [first, second]
    assert [await home.state(one) for one in (first, second)] == ["pending", "delivered"]
    assert [one.id for one in await home.turn()] == [first]


async def test_an_end_that_is_read_twice_tells_nothing_twice(home):
    """N-64."""
    number = await home.note()
    turn, run, _ = await home.begin()
    end = TurnEnd(n=9, turn=turn.id, told=(told(number), told(number)))
    assert (await home.harness.take(run, end)).delivered_notices == (number,)
    assert await home.harness.take(run, end) is None
    assert (await home.kept(number)).deliveries == 1


async def test_a_claim_whose_turn_runs_no_more_is_free_after_ten_minutes(home):
    """N-64."""
    number = await home.note()
    turn, _, _ = await home.begin()
    async with home.harness.database.transaction() as tx:
        await turns.put_back(tx, turn, reason="lost", not_before_ms=0)
    home.harness.clock.pass_ms(599_000)
    await home.noticing._sweeper.sweep()
    assert (await home.kept(number)).claim_turn == turn.id
    home.harness.clock.pass_ms(1_000)
    await home.noticing._sweeper.sweep()
    assert (await home.kept(number)).claim_turn is None


async def test_a_turn_that_runs_for_half_an_hour_still_has_its_claim(home):
    """N-64: by the host's own book, not by the clock alone."""
    number = await home.note()
    turn, run, _ = await home.begin()
    home.harness.clock.pass_ms(HOUR // 2)
    await home.noticing._sweeper.sweep()
    await home.end(turn, run, told(number))
    assert await home.state(number) == "delivered"


# Which turns


async def test_a_notice_made_in_a_turn_waits_for_that_turns_end_however_often_it_is_tried(home):
    """N-70."""
    turn, run, _ = await home.begin()
    number = await home.note()
    await home.harness.lose(run)
    again, run, order = await home.start()
    assert (again.id, order.notices) == (turn.id, ())
    assert await home.note() == number  # the attempt asks the same again: one notice, not two
    await home.end(again, run)
    assert [(one.id, one.count) for one in await home.turn()] == [(number, 2)]


async def test_what_can_still_be_told_in_its_own_turn_is_that_turns_at_once(home):
    """N-41, N-70: the run tells it; what it does not tell comes armed in the next turn."""
    turn, run, _ = await home.begin()
    now = await home.note("now", deliver_at="immediate")
    after = await home.note("after", deliver_at="after_tool", tool_name="Bash")
    once = await home.note("once", deliver_at="on_condition", condition="context_above_threshold(0.7)")
    assert (await home.kept(now)).claim_turn == turn.id
    await home.end(turn, run, told(now))
    assert [await home.state(one) for one in (now, after, once)] == ["delivered", "pending", "pending"]

    given = {one.id: one for one in await home.turn(tells=[])}
    assert (given[after].tool_name, given[after].condition) == ("Bash", None)
    assert given[once].condition == "context_above_threshold(0.7)"
    assert {one.id for one in await home.turn(tells=[after])} == {after, once}
    assert {one.id for one in await home.turn()} == {once}


async def test_turns_of_the_loop_tell_notices_and_what_runs_apart_does_not(home):
    number = await home.note(persist_cross_session=True)
    turn, run, order = await home.begin_apart()
    assert order.notices == ()
    await home.end(turn, run, told(number))
    turn, run, order = await home.begin_apart(kind=TurnKind.WORKER)
    assert order.notices == ()
    await home.end(turn, run, told(number))
    assert await home.state(number) == "pending"

    turn, run, order = await home.begin_free()
    assert await ids(order) == [number]
    await home.end(turn, run, told(number))
    assert await home.state(number) == "delivered"


async def test_after_n_turns_counts_the_chats_turns_over_restarts_and_each_attempt_once(home):
    """N-70, N-73, N-74, N-75."""
    turn, run, _ = await home.begin()
    number = await home.note(deliver_at="after_n_turns", turns=3)
    await home.end(turn, run)
    assert await home.turn() == ()
    free, run, order = await home.begin_free()  # not the chat's
    assert order.notices == ()
    await home.end(free, run)

    home = NoticeHarness(home.harness)  # another host
    turn, run, order = await home.begin()
    assert (order.notices, (await home.kept(number)).turns_remaining) == ((), 1)
    await home.harness.lose(run)
    turn, run, order = await home.start()
    assert (order.notices, (await home.kept(number)).turns_remaining) == ((), 1)
    await home.end(turn, run)
    assert [one.id for one in await home.turn()] == [number]


async def test_the_most_urgent_come_first_and_no_turn_is_given_more_than_it_may_tell(home):
    """N-22, N-62, N-74."""
    async with home.harness.database.transaction() as tx:
        for number in range(MAX_DELIVERED + 10):
            priority = "critical" if number == MAX_DELIVERED + 9 else "low" if number < 5 else "normal"
            await notices.add(
                tx,
                NewNotice(
                    folder=FAMILY,
                    maker=NoticeMaker.HOST,
                    event_type="host.note",
                    source="host",
                    payload={"message": str(number)},
                    priority=priority,
                ),
                now_ms=number,
            )
    turn, run, order = await home.begin()
    said = [one.payload["message"] for one in order.notices]
    assert (len(said), said[0], said[1]) == (MAX_DELIVERED, str(MAX_DELIVERED + 9), "5")
    await home.end(turn, run, *(told(one) for one in order.notices))
    assert {one.payload["message"] for one in await home.turn()} >= {"0", "1", "2", "3", "4"}


# Conversations


async def test_a_notice_ends_with_its_conversation_unless_it_is_to_outlive_it(home):
    """N-62, N-64."""
    await home.turn(session="s1")
    mine = await home.note("of this conversation")
    lasting = await home.note("of all", persist_cross_session=True)
    await home.clear()
    kept = await home.kept(mine)
    assert (kept.state.value, kept.reason) == ("expired", "its conversation has ended")
    assert [one.id for one in await home.turn(session="s2")] == [lasting]


async def test_a_conversation_that_goes_on_in_another_session_keeps_its_notices(home):
    """N-62, N-64: a lost transcript, and one that is too old, are worse cases of a compaction."""
    await home.turn(session="s1")
    mine = await home.note("of this conversation")
    turn, run, order = await home.begin()
    assert await ids(order) == [mine]
    await home.end(turn, run, session="s2")  # it was not told yet, and the session is another one now
    kept = await home.kept(mine)
    assert (kept.state.value, kept.session_id) == ("pending", "s2")
    assert [one.id for one in await home.turn(session="s3")] == [mine]
    assert await home.state(mine) == "delivered"


async def test_a_session_that_is_gone_takes_no_notice_with_it(home):
    """N-64: the next attempt begins another one, whose id nobody knows yet."""
    await home.turn(session="s1")
    mine = await home.note("of this conversation")
    turn, run, order = await home.begin()
    assert await ids(order) == [mine]
    await home.end(turn, run, session=None, status="error", error="no such session", code="session_gone")
    again, run, order = await home.start()
    assert await ids(order) == [mine]
    await home.end(again, run, told(mine), session="s2")
    assert await home.state(mine) == "delivered"


async def test_what_is_noted_before_the_conversations_id_is_known_belongs_to_it(home):
    turn, run, _ = await home.begin()
    number = await home.note()
    await home.end(turn, run, session="s1")
    assert (await home.kept(number)).session_id == "s1"
    turn, run, order = await home.begin()
    assert await ids(order) == [number]
    fresh = await home.note("the old one could not be resumed", deliver_at="after_tool")
    await home.end(turn, run, session="s2")
    assert [(await home.kept(one)).session_id for one in (number, fresh)] == ["s2", "s2"]


async def test_what_is_urgent_and_not_acknowledged_comes_once_in_each_new_conversation_three_times_at_most(
    home,
):
    """N-64."""
    urgent = await home.note("the rent", priority="high", persist_cross_session=True, expires_in_hours=0)
    plain = await home.note("the tea", persist_cross_session=True, expires_in_hours=0)
    assert [one.id for one in await home.turn(session="s1")] == [urgent, plain]
    assert await home.turn(session="s1") == ()
    seen = []
    for session in ("s2", "s3", "s4", "s5"):
        await home.clear()
        seen.append([one.id for one in await home.turn(session=session)])
        assert await home.turn(session=session) == ()
    assert seen == [[urgent], [urgent], [], []]
    assert (await home.kept(urgent)).deliveries == notice_claims.MAX_DELIVERIES


async def test_what_was_acknowledged_comes_no_more(home):
    """N-63, N-64."""
    number = await home.note(priority="critical", persist_cross_session=True)
    turn, run, _ = await home.begin()
    assert (await home.ask("acknowledge_notification", noticeId=number)).ok
    await home.end(turn, run, told(number), session="s1")
    kept = await home.kept(number)
    assert (kept.state.value, kept.deliveries) == ("acknowledged", 1)
    await home.clear()
    assert await home.turn(session="s2") == ()


# Time


async def test_a_notice_waits_for_a_day_unless_it_says_otherwise(home):
    """N-61."""
    day = await home.note("a", persist_cross_session=True)
    hour = await home.note("b", persist_cross_session=True, expires_in_hours=1)
    never = await home.note("c", persist_cross_session=True, expires_in_hours=0)
    home.harness.clock.pass_ms(HOUR)
    await home.noticing._sweeper.sweep()
    assert [await home.state(one) for one in (day, hour, never)] == ["pending", "expired", "pending"]
    home.harness.clock.pass_ms(23 * HOUR - 1)
    await home.noticing._sweeper.sweep()
    assert await home.state(day) == "pending"
    home.harness.clock.pass_ms(1)
    assert [one.id for one in await home.turn()] == [never]  # also when nobody has swept yet
    await home.noticing._sweeper.sweep()
    assert await home.state(day) == "expired"


async def test_what_was_told_and_not_acknowledged_expires_too_and_what_ended_is_kept_for_thirty_days(home):
    """N-60, N-63, N-64."""
    number = await home.note()
    await home.turn()
    home.harness.clock.pass_ms(24 * HOUR)
    await home.noticing._sweeper.sweep()
    kept = await home.kept(number)
    assert (kept.state.value, kept.reason) == ("expired", "it was told, and not acknowledged in its time")
    home.harness.clock.pass_ms(30 * 24 * HOUR)
    await home.noticing._sweeper.sweep()
    assert await home.state(number) == "expired"
    home.harness.clock.pass_ms(1)
    await home.noticing._sweeper.sweep()
    assert await home.harness.rows("SELECT * FROM cross_session_notifications") == []


# Who may say what


async def test_two_groups_never_see_each_others(home):
    await home.harness.add_group("work")
    theirs = await home.note("of work", by="work", persist_cross_session=True)
    mine = await home.note("of family", persist_cross_session=True)
    turn, run, order = await home.begin()
    assert [one.payload["message"] for one in order.notices] == ["of family"]
    assert (await home.kept(theirs, "work")).claim_turn is None
    await home.end(turn, run, told(mine), told(theirs, "stolen"))
    assert await home.state(theirs, "work") == "pending"
    listed = await home.ask("list_notices")
    assert [one["id"] for one in listed.data["notices"]] == [mine]
    for type_ in ("acknowledge_notification", "cancel_notice"):
        reply = await home.ask(type_, noticeId=theirs)
        assert (reply.ok, reply.code) == (False, "unknown_notice")
    assert await home.state(theirs, "work") == "pending"


async def test_what_waits_of_a_group_that_is_removed_stays_as_its_history_does(home):
    lasting = await home.note("of all", persist_cross_session=True)
    async with home.harness.database.transaction() as tx:
        await registration.unregister(tx, "family", now_ms=home.harness.clock.now_ms())
    assert await home.state(lasting) == "pending"
    await home.harness.add_group()
    assert [one.id for one in await home.turn()] == [lasting]


async def test_what_a_turn_was_not_given_it_cannot_have_told(home):
    turn, run, _ = await home.begin()
    later = await home.note()
    taken = await home.end(turn, run, told(later), told(2**70), told(-1), told(0))
    assert taken.delivered_notices == ()
    assert await home.state(later) == "pending"


@pytest.mark.parametrize(
    "said",
    [
        [{"event_type": "x", "text": "y"}] * (MAX_DELIVERED + 1),
        [{"event_type": "x", "text": "y" * 2_000_000}],
        [{"event_type": "x" * 101, "text": "y"}],
        [{"event_type": "x", "text": "y", "priority": "urgent"}],
        [{"event_type": "x", "text": "y", "id": "one"}],
        {"id": 1},
    ],
)
def test_an_end_that_says_too_much_is_no_frame(said):
    with pytest.raises(WireError):
        parse_frame(json.dumps({"kind": "turn_end", "n": 1, "turn": 1, "told": said}))


async def test_urgent_notices_of_a_turn_are_kept_for_people_by_the_hosts_own_word(home):
    """N-60: what a container says of a kept notice does not change what it is."""
    low = await home.note("quiet", priority="low")
    high = await home.note("the rent", priority="high")
    turn, run, _ = await home.begin()
    await home.end(
        turn,
        run,
        told(low, "shouted", priority="critical", event_type="made.up"),
        told(high, "!the rent", priority="low"),
        told(4711, "not mine", priority="critical"),
        told(None, "over budget\x1b[2J", priority="critical", event_type="budget.token.exceeded"),
        told(None, "all is well", event_type="task.checkpoint"),
    )
    async with home.harness.database.reading() as tx:
        shown = await notice_claims.recently_delivered(tx, since_ms=0, limit=10)
    assert [(one.event_type, one.priority, one.text, one.notice_id) for one in shown] == [
        ("budget.token.exceeded", "critical", "over budget [2J", None),
        ("agent.self.notify", "high", "!the rent", high),
    ]
