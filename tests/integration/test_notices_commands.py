"""What an agent does with its notices, through the dispatcher: kept, refused with reasons, listed, ended."""

from __future__ import annotations

import pytest

from agent_runner.wire.notices import MAX_NOTICE_CHARS, MAX_UNDELIVERED
from orchestrator.domain.values import TurnKind
from tests.support.notice_harness import HOUR, NoticeHarness, told

NOTE = {"message": "look at the oven"}


@pytest.fixture
async def home(store_harness) -> NoticeHarness:
    await store_harness.add_group()
    return NoticeHarness(store_harness)


async def test_a_notice_is_kept_with_all_that_was_said_of_it(home):
    """N-40, N-41, N-42, N-43."""
    reply = await home.ask(
        "notify_self",
        message="  pay the rent ",
        priority="high",
        category="reminder",
        deliver_at="after_n_turns",
        turns=100,
        expires_in_hours=720,
        persist_cross_session=True,
        dedupe_key="rent",
    )
    assert (reply.ok, reply.code) == (True, "ok")
    data = reply.data
    assert reply.text == (
        f"Notice {data['id']} is kept: you are told as a turn of the chat begins, this many turns on: 100."
    )
    assert data["persistence_id"] == data["id"]
    expected = {
        "status": "ok",
        "event_type": "agent.self.remind",
        "message": "pay the rent",
        "priority": "high",
        "severity": "warning",
        "category": "reminder",
        "deliver_at": "after_n_turns",
        "inject_at": "turn_start",
        "turns_remaining": 100,
        "persist_cross_session": True,
        "dedupe_key": "rent",
        "count": 1,
        "state": "pending",
        "expires_ms": home.harness.clock.now_ms() + 720 * HOUR,
    }
    assert {name: data.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("given", "inject_at"),
    [
        ({"deliver_at": "immediate"}, "immediate"),
        ({}, "turn_start"),
        ({"deliver_at": "after_tool"}, "after_tool"),
        ({"deliver_at": "on_condition", "condition": "message_count_above(3)"}, "immediate"),
    ],
)
async def test_when_it_is_to_be_told_says_where_in_a_turn(home, given, inject_at):
    """N-41."""
    assert (await home.ask("notify_self", **NOTE, **given)).data["inject_at"] == inject_at


@pytest.mark.parametrize(
    ("priority", "severity"),
    [("low", "debug"), ("normal", "info"), ("high", "warning"), ("critical", "error")],
)
async def test_its_priority_says_how_grave_it_is(home, priority, severity):
    """N-41."""
    assert (await home.ask("notify_self", **NOTE, priority=priority)).data["severity"] == severity


@pytest.mark.parametrize(
    ("given", "code", "named"),
    [
        ({"message": ""}, "missing_message", "message"),
        ({"message": " \n"}, "missing_message", "message"),
        ({"message": "x" * (MAX_NOTICE_CHARS + 1)}, "message_too_long", "2,000"),
        ({"priority": "urgent"}, "bad_enum", "low, normal, high, critical"),
        ({"category": "todo"}, "bad_enum", "discovery, warning, checkpoint, reminder, context"),
        (
            {"deliver_at": "tomorrow"},
            "bad_enum",
            "immediate, next_turn, after_n_turns, after_tool, on_condition",
        ),
        ({"deliver_at": "on_condition"}, "bad_condition", "context_above_threshold"),
        (
            {"deliver_at": "on_condition", "condition": "context_above_threshold(0.8); import os"},
            "bad_condition",
            "context_above_threshold",
        ),
        ({"deliver_at": "on_condition", "condition": "message_count_above(0)"}, "bad_condition", "10000"),
        ({"deliver_at": "after_n_turns"}, "bad_value", "turns"),
        ({"deliver_at": "after_n_turns", "turns": 0}, "bad_value", "1 to 100"),
        ({"deliver_at": "after_n_turns", "turns": -5}, "bad_value", "1 to 100"),
        ({"deliver_at": "after_n_turns", "turns": 101}, "bad_value", "1 to 100"),
        ({"turns": 3}, "bad_value", "after_n_turns"),
        ({"deliver_at": "after_tool", "tool_name": "rm -rf"}, "bad_value", "tool_name"),
        ({"expires_in_hours": -1}, "bad_value", "720"),
        ({"expires_in_hours": 721}, "bad_value", "720"),
        ({"dedupe_key": "k" * 201}, "bad_value", "200"),
    ],
)
async def test_what_does_not_fit_is_refused_with_what_would_and_leaves_nothing(home, given, code, named):
    """N-42, N-43, N-72."""
    reply = await home.ask("notify_self", **{**NOTE, **given})
    assert (reply.ok, reply.code) == (False, code)
    assert named in reply.text
    assert await home.harness.rows("SELECT * FROM cross_session_notifications") == []


@pytest.mark.parametrize(
    "given",
    [
        {"message": "x" * MAX_NOTICE_CHARS},
        {"deliver_at": "after_n_turns", "turns": 1},
        {"deliver_at": "after_n_turns", "turns": 100},
        {"expires_in_hours": 0},
        {"expires_in_hours": 720},
        {"dedupe_key": "k" * 200},
    ],
)
async def test_what_is_just_within_bounds_is_kept(home, given):
    """N-43."""
    assert await home.note(**{**NOTE, **given})


async def test_twenty_wait_at_most_and_one_that_takes_anothers_place_is_still_taken(home):
    """N-42, N-64."""
    numbers = [
        await home.note(f"note {number}", dedupe_key=f"k{number}") for number in range(MAX_UNDELIVERED)
    ]
    reply = await home.ask("notify_self", **NOTE)
    assert (reply.ok, reply.code) == (False, "limit_reached")
    assert "cancel_notice" in reply.text
    assert await home.note("another", dedupe_key="k3") == numbers[3]
    assert (await home.ask("cancel_notice", noticeId=numbers[0])).ok
    assert await home.note() not in numbers


async def test_the_same_key_is_one_notice_while_it_waits_and_a_new_one_once_that_was_told(home):
    """N-64."""
    first = await home.note("pay 10", dedupe_key="rent")
    assert await home.note("pay 20", dedupe_key="rent", priority="high") == first
    kept = await home.kept(first)
    assert (kept.message, kept.priority, kept.count) == ("pay 20", "high", 2)
    await home.turn()
    assert await home.note("pay 30", dedupe_key="rent") != first


async def test_what_replaces_a_notice_while_that_is_being_told_is_told_in_the_next_turn(home):
    number = await home.note("pay 10", dedupe_key="rent")
    turn, run, _ = await home.begin()
    assert await home.note("pay 20", dedupe_key="rent") == number
    await home.end(turn, run, told(number, "pay 10"))
    assert [one.payload["message"] for one in await home.turn()] == ["pay 20"]


async def test_what_replaces_a_notice_that_its_own_turn_may_tell_is_told_in_the_next(home):
    turn, run, _ = await home.begin()
    number = await home.note("pay 10", dedupe_key="rent", deliver_at="after_tool")
    assert (await home.kept(number)).claim_turn == turn.id
    assert await home.note("pay 20", dedupe_key="rent", deliver_at="after_tool") == number
    await home.end(turn, run, told(number, "pay 10"))
    assert [one.payload["message"] for one in await home.turn()] == ["pay 20"]


async def test_what_replaces_a_notice_for_later_may_be_told_in_its_own_turn(home):
    turn, run, _ = await home.begin()
    number = await home.note("pay 10", dedupe_key="rent")
    assert await home.note("pay 20", dedupe_key="rent", deliver_at="immediate") == number
    await home.end(turn, run, told(number, "pay 20"))
    assert await home.turn() == ()


async def test_a_letter_that_is_read_twice_keeps_one_notice(home):
    first = await home.ask("notify_self", request="r1", **NOTE)
    again = await home.ask("notify_self", request="r1", **NOTE)
    assert first == again
    assert (await home.kept(first.data["id"])).count == 1


async def test_a_turn_that_is_tried_again_keeps_the_same_notice_once(home):
    turn, _, _ = await home.begin()
    number = await home.note(turn=turn.id, askedMs=1)
    assert await home.note(turn=turn.id, askedMs=2) == number
    assert await home.note("look at the door", turn=turn.id, askedMs=3) != number


async def test_a_store_that_refuses_is_told_and_not_hidden(home):
    """N-42."""
    async with home.harness.database.transaction() as tx:
        await tx.execute(
            """
            CREATE TRIGGER full BEFORE INSERT ON cross_session_notifications
            BEGIN SELECT RAISE(ABORT, 'no room'); END
            """
        )
    reply = await home.ask("notify_self", **NOTE)
    assert (reply.ok, reply.code) == (False, "persist_failed")
    assert "no room" in reply.text


async def test_notices_are_listed_the_most_urgent_first(home):
    """N-62."""
    low = await home.note("low", priority="low")
    high = await home.note("high", priority="critical")
    reply = await home.ask("list_notices")
    assert [one["id"] for one in reply.data["notices"]] == [high, low]
    assert reply.text.splitlines() == [f"{high} [critical, pending] high", f"{low} [low, pending] low"]
    for number in (low, high):
        assert (await home.ask("cancel_notice", noticeId=number)).ok
    assert (await home.ask("list_notices")).text == "No notices wait."


async def test_a_notice_that_waits_is_cancelled_by_its_key_in_its_own_group_only(home):
    """N-63."""
    await home.harness.add_group("work")
    number = await home.note("pay 10", dedupe_key="rent")
    theirs = await home.note("of work", by="work", dedupe_key="rent")
    reply = await home.ask("cancel_notice", dedupeKey="rent")
    assert (reply.ok, reply.data["id"]) == (True, number)
    assert (await home.state(number), await home.state(theirs, "work")) == ("cancelled", "pending")
    again = await home.ask("cancel_notice", dedupeKey="rent")
    assert (again.code, "list_notices" in again.text) == ("unknown_notice", True)
    for given in ({}, {"noticeId": number, "dedupeKey": "rent"}):
        assert (await home.ask("cancel_notice", **given)).code == "bad_value"


@pytest.mark.parametrize("way", ["acknowledge_notification", "cancel_notice"])
async def test_what_is_over_or_unknown_is_refused_with_the_reason(home, way):
    """N-63."""
    assert (await home.ask(way, noticeId=4711)).code == "unknown_notice"
    number = await home.note()
    assert (await home.ask(way, noticeId=number)).ok
    reply = await home.ask(way, noticeId=number)
    assert (reply.ok, reply.code) == (False, "notice_over")
    assert "already" in reply.text
    assert await home.turn() == ()


async def test_what_was_told_can_still_be_cancelled_or_acknowledged(home):
    """N-60, N-63."""
    first, second = await home.note("a"), await home.note("b")
    await home.turn()
    assert (await home.ask("cancel_notice", noticeId=first)).ok
    assert (await home.ask("acknowledge_notification", noticeId=second)).ok
    assert [await home.state(one) for one in (first, second)] == ["cancelled", "acknowledged"]


async def test_a_task_that_runs_apart_keeps_notices_for_the_groups_conversation_only(home):
    turn, run, _ = await home.begin_apart()
    reply = await home.ask("notify_self", **NOTE)
    assert (reply.code, "persist_cross_session" in reply.text) == ("bad_value", True)
    lasting = await home.note("for the chat", persist_cross_session=True)
    own = await home.note("for this turn", deliver_at="after_tool")
    await home.end(turn, run)
    assert [await home.state(one) for one in (lasting, own)] == ["pending", "expired"]
    assert [one.id for one in await home.turn()] == [lasting]


async def test_who_keeps_up_a_dashboard_keeps_no_notices(home):
    turn, run, _ = await home.begin_apart(kind=TurnKind.WORKER)
    assert (await home.ask("notify_self", **NOTE)).code == "not_allowed"
    await home.end(turn, run)
