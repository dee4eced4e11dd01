"""What the host keeps, and what a turn that fails was told."""

from __future__ import annotations

from agent_runner.wire.notices import MAX_DELIVERED
from tests.support.notices_in_prompts import fail, kept, lines, note


async def test_what_the_host_keeps_is_told_with_its_number_and_reported(notices):
    """N-64: told is what the host may count as delivered."""
    notices.begin_turn(
        [kept(7, priority="high"), kept(8, "of the host", event_type="host.reply.undelivered")]
    )

    told = lines(await notices.drain("turn_start"))
    ended = notices.end_turn()

    assert told == ["[NOTE] call Bo (notice 7)", "host: of the host (notice 8)"]
    assert [(each.id, each.event_type, each.priority) for each in ended.delivered] == [
        (7, "agent.self.notify", "high"),
        (8, "host.reply.undelivered", "normal"),
    ]
    assert ended.returned == ()


async def test_what_was_not_told_goes_back_and_is_told_when_it_is_given_again(notices):
    """N-64, and B.12-8: it was marked before anybody had been told."""
    notices.begin_turn([kept(7), kept(9, tool_name="Bash")])
    ended = notices.end_turn()
    assert ended.delivered == ()
    assert ended.returned == (7, 9)

    notices.begin_turn()
    assert await notices.drain("turn_start") == "", "the host has it back"
    notices.begin_turn([kept(7)])
    assert lines(await notices.drain("turn_start")) == ["[NOTE] call Bo (notice 7)"]


async def test_one_given_twice_is_told_once(notices):
    """B.12-8: a note was told in its session and once more as kept."""
    notices.begin_turn([kept(7)])
    notices.give([kept(7)], at="immediate")

    assert len(lines(await notices.drain("turn_start"))) == 1
    notices.give([kept(7)])
    assert await notices.drain("turn_start") == ""


async def test_several_that_the_host_keeps_are_never_mixed_into_one(notices):
    """N-26: each has its number."""
    notices.begin_turn([kept(number, f"n{number}") for number in (1, 2, 3)])

    assert lines(await notices.drain("turn_start")) == [
        "[NOTE] n1 (notice 1)",
        "[NOTE] n2 (notice 2)",
        "[NOTE] n3 (notice 3)",
    ]


async def test_how_often_the_host_noticed_it_is_said(notices):
    """N-21."""
    notices.begin_turn([kept(7, count=4)])

    assert lines(await notices.drain("turn_start")) == ["[NOTE] call Bo (4×) (notice 7)"]


async def test_what_nobody_is_about_is_told_plainly(notices):
    """N-32: never lost for want of a subscriber."""
    notices.begin_turn([kept(7, event_type="quite.new", payload={"a": "b"})])

    assert lines(await notices.drain("turn_start")) == [
        "system notification: quite.new from agent; a: b (notice 7)"
    ]


async def test_a_notice_of_no_sense_is_named_in_the_log_and_goes_back(notices, caplog):
    """N-72."""
    bad = [kept(7, event_type="Nonsense"), kept(8, condition="os.system('x')")]
    notices.begin_turn([*bad, kept(9)])

    assert lines(await notices.drain("turn_start")) == ["[NOTE] call Bo (notice 9)"]
    assert notices.returned == (7, 8)
    assert [message.split(":")[0] for message in caplog.messages] == [
        "notice 7 is not delivered",
        "notice 8 is not delivered",
    ]


async def test_withdrawn_it_is_not_told(notices):
    notices.begin_turn([kept(7), kept(8, tool_name="")])
    notices.withdraw(7)
    notices.withdraw(8)
    notices.withdraw(99)
    notices.tool_ended("Bash")

    assert await notices.drain("turn_start") == ""
    assert notices.end_turn().returned == ()


async def test_of_very_much_that_was_told_what_the_host_keeps_is_reported(notices):
    given = [kept(number, f"n{number}") for number in range(1, 21)]
    notices.begin_turn(given)
    for number in range(40):
        note(notices, f"own {number}", priority="high" if number % 2 else "low")
    while await notices.drain("turn_start"):
        pass

    told = notices.end_turn().delivered

    assert len(told) == MAX_DELIVERED
    assert {each.id for each in told} - {None} == set(range(1, 21))
    assert {each.priority for each in told if each.id is None} == {"high"}


async def test_what_a_failed_turn_was_told_is_told_again_but_for_what_went_on_in_it(notices):
    """N-64: what only the run knows of is claimed and confirmed as what the host keeps is."""
    note(notices, "now", inject_at="immediate")
    notices.emit("source.stale", "warning", {"path": "a.md", "message": "read it again"})
    fail(notices)
    notices.emit("budget.token.warning", "warning", {"budget_type": "token", "percent": 80, "message": "m"})
    assert len(lines(await notices.drain("after_tool"))) == 3
    assert len(lines(await notices.drain("turn_start"))) == 1
    notices.end_turn(is_well=False)

    notices.begin_turn()
    again = ["[NOTE] now", "source_stale: a.md changed since last read - read it again"]
    assert lines(await notices.drain("turn_start")) == again
    notices.end_turn()
    notices.begin_turn()
    assert await notices.drain("turn_start") == ""
    assert notices.pending == 0


async def test_what_was_told_twice_in_a_turn_that_failed_comes_once_with_its_whole_count(notices):
    """N-21, N-64."""
    for _ in range(3):
        notices.emit("source.stale", "warning", {"path": "a.md", "message": "read it"})
        await notices.drain("after_tool")
    notices.end_turn(is_well=False)
    notices.begin_turn()

    assert lines(await notices.drain("turn_start")) == [
        "source_stale: a.md changed since last read - read it (3×)"
    ]
    assert notices.pending == 0


async def test_what_the_host_keeps_comes_from_the_host_alone_after_a_failed_turn(notices):
    """N-64."""
    notices.begin_turn([kept(7)])
    assert await notices.drain("turn_start")
    notices.end_turn(is_well=False)
    notices.begin_turn()

    assert await notices.drain("turn_start") == ""


async def test_long_notes_are_told_in_few_turns(notices):
    """Each is over after a day, and a group may have a turn a day: sixteen took sixteen turns."""
    waiting, turns = {number: kept(number, f"{number} " + "x" * 1_900) for number in range(16)}, 0
    while waiting:
        notices.begin_turn(waiting.values())
        await notices.drain("turn_start")
        for told in notices.end_turn().delivered:
            del waiting[told.id]
        turns += 1

    assert turns == 4
