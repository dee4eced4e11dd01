"""All of it together, as an agent uses it: N-10, N-20 to N-26, N-70 to N-75."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx

from agent_runner.ans.event import Happening
from agent_runner.ans.injection import CLOSE, OPEN
from agent_runner.ans.notices import INJECTION_CHARS, Notices
from agent_runner.wire.notices import MAX_TOLD, Notice


@pytest.fixture
def notices(tmp_path: Path, clock) -> Notices:
    made = Notices(tmp_path, now=clock)
    made.begin_turn()
    return made


def kept(number: int, message: str = "call Bo", **more: Any) -> Notice:
    fields = {"event_type": "agent.self.notify", "source": "agent", "payload": {"message": message}}
    return Notice(id=number, **{**fields, **more})


def fail(notices: Notices, tool: str = "Read", message: str = "no such file") -> None:
    payload = {"tool_name": tool, "error_type": "execution_error", "error_message": message}
    notices.emit("tool.call.failure", "error", payload)


def note(notices: Notices, message: str, **payload: Any) -> None:
    notices.emit("agent.self.notify", "info", {"message": message, "category": "context", **payload})


def lines(text: str) -> list[str]:
    if not text:
        return []
    first, *told, last = text.splitlines()
    assert (first, last) == (OPEN, CLOSE)
    return told


async def test_what_happens_is_told_once_at_its_point(notices):
    """N-24."""
    fail(notices)

    assert await notices.drain("turn_start") == ""
    assert lines(await notices.drain("after_tool")) == ["tool_fail: Read execution_error - no such file"]
    assert await notices.drain("after_tool") == ""
    assert notices.pending == 0


async def test_nothing_of_it_blocks_the_loop(notices, tmp_path, as_toml):
    own = tmp_path / "subscribers"
    own.mkdir()
    (own / "probe.toml").write_text(as_toml())
    fail(notices)

    with blockbuster_ctx("agent_runner"):
        assert await notices.drain("after_tool")


async def test_drains_at_once_tell_each_thing_once(notices):
    """C.3: hooks of one batch run at once."""
    fail(notices)
    note(notices, "now", inject_at="immediate")

    told = await asyncio.gather(*(notices.drain("after_tool") for _ in range(8)))

    assert sorted(filter(None, told)) == [max(told)]
    assert len(lines(max(told))) == 2


@pytest.mark.parametrize("point", ["immediate", "turn_start", "after_tool", "turn_end"])
async def test_what_is_immediate_takes_whichever_point_comes_first(notices, point):
    """N-24, and B.12-5: it was drained after the last call of the model."""
    note(notices, "now", inject_at="immediate", priority="critical")

    assert lines(await notices.drain(point)) == ["[NOTE] now"]


async def test_the_end_of_a_turn_is_a_point_too(notices):
    """N-24, and B.12-6: turn_end was never drained."""
    note(notices, "at the end", inject_at="turn_end")

    assert await notices.drain("after_tool") == ""
    assert lines(await notices.drain("turn_end")) == ["[NOTE] at the end"]


async def test_at_the_end_only_what_matters_is_told_and_the_rest_with_the_next_turn(notices):
    """N-24."""
    note(notices, "grave", inject_at="turn_end", priority="high")
    note(notices, "later", inject_at="turn_end")
    note(notices, "never mind", inject_at="immediate", priority="low")

    assert lines(await notices.drain("turn_end", at_least="high")) == ["[NOTE] grave"]
    notices.begin_turn()
    assert lines(await notices.drain("turn_start")) == ["[NOTE] later", "[NOTE] never mind"]


async def test_what_matters_most_comes_first_and_of_the_same_the_earlier(notices):
    """N-22."""
    for priority in ("low", "normal", "critical", "high", "normal", "critical"):
        note(notices, f"{priority} {notices.bus.pending_count}", priority=priority)

    assert lines(await notices.drain("turn_start")) == [
        "[NOTE] critical 2",
        "[NOTE] critical 5",
        "[NOTE] high 3",
        "[NOTE] normal 1",
        "[NOTE] normal 4",
        "[NOTE] low 0",
    ]


async def test_what_was_not_told_in_a_turn_is_told_at_the_next_ones_first_opportunity(notices):
    """N-20, and B.12-1."""
    fail(notices)
    notices.begin_turn()
    note(notices, "of this turn")

    told = lines(await notices.drain("turn_start"))

    assert told == ["tool_fail: Read execution_error - no such file", "[NOTE] of this turn"]


async def test_what_does_not_fit_is_told_at_the_next_point_whichever_that_is(notices):
    """N-26."""
    for number in range(14):
        note(notices, f"number {number}")

    first = lines(await notices.drain("turn_start"))
    second = lines(await notices.drain("after_tool"))

    assert first[-1] == "more: 4 to be told next"
    assert first[:-1] + second == [f"[NOTE] number {number}" for number in range(14)]


async def test_thirty_thousand_characters_stay_under_the_cap_and_are_all_told(notices):
    """N-26."""
    messages = [f"{number}-" + "x" * 1_490 for number in range(20)]
    for message in messages:
        note(notices, message)

    told, texts = [], []
    while text := await notices.drain("after_tool" if texts else "turn_start"):
        texts.append(text)
        told += [line for line in lines(text) if line.startswith("[NOTE]")]

    assert max(map(len, texts)) < INJECTION_CHARS
    assert told == [f"[NOTE] {message}" for message in messages]


async def test_a_note_of_the_greatest_length_is_told_whole(notices):
    """N-26."""
    note(notices, "x" * 2_000)

    assert lines(await notices.drain("turn_start")) == ["[NOTE] " + "x" * 2_000]
    assert len(notices.told[0].text) == 2_000


async def test_where_little_is_left_it_waits_for_a_point_with_more(notices):
    fail(notices)

    assert await notices.drain("after_tool", limit=100) == ""
    assert len(await notices.drain("after_tool", limit=400)) <= 400
    assert notices.pending == 0


async def test_who_is_cancelled_has_told_nothing(notices):
    """A hook that took too long tells what it would have told the next time."""
    fail(notices)
    entered, leave = asyncio.Event(), threading.Event()
    loop, write = asyncio.get_running_loop(), notices._formatter.text

    def slow(notification):
        loop.call_soon_threadsafe(entered.set)
        leave.wait(10)
        return write(notification)

    notices._formatter.text = slow
    drain = asyncio.create_task(notices.drain("after_tool"), name="drain")
    await entered.wait()
    drain.cancel()
    leave.set()
    with pytest.raises(asyncio.CancelledError):
        await drain

    assert notices.told == ()
    assert len(lines(await notices.drain("after_tool"))) == 1
    assert len(notices.told) == 1


async def test_a_drain_that_outlives_its_turn_tells_nothing(notices):
    notices.begin_turn([kept(7)])
    entered, leave = asyncio.Event(), threading.Event()
    loop, write = asyncio.get_running_loop(), notices._formatter.text

    def slow(notification):
        loop.call_soon_threadsafe(entered.set)
        leave.wait(10)
        return write(notification)

    notices._formatter.text = slow
    drain = asyncio.create_task(notices.drain("turn_start"), name="drain")
    await entered.wait()
    assert notices.end_turn().returned == (7,)
    leave.set()

    assert await drain == ""
    assert notices.told == ()


# What the host keeps


async def test_what_the_host_keeps_is_told_with_its_number_and_reported(notices):
    """N-64: told is what the host may count as delivered."""
    notices.begin_turn(
        [kept(7, priority="high"), kept(8, "of the host", event_type="host.reply.undelivered")]
    )

    told = lines(await notices.drain("turn_start"))
    ended = notices.end_turn()

    assert told == ["[NOTE] call Bo (notice 7)", "host: of the host (notice 8)"]
    assert [(each.id, each.event_type, each.priority) for each in ended.told] == [
        (7, "agent.self.notify", "high"),
        (8, "host.reply.undelivered", "normal"),
    ]
    assert ended.returned == ()


async def test_what_was_not_told_goes_back_and_is_told_when_it_is_given_again(notices):
    """N-64, and B.12-8: it was marked before anybody had been told."""
    notices.begin_turn([kept(7), kept(9, tool_name="Bash")])
    ended = notices.end_turn()
    assert ended.told == ()
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
        "notice 7 is not told",
        "notice 8 is not told",
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

    told = notices.end_turn().told

    assert len(told) == MAX_TOLD
    assert {each.id for each in told} - {None} == set(range(1, 21))
    assert {each.priority for each in told if each.id is None} == {"high"}


# A turn that fails


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


# What waits for something


async def test_what_awaits_a_tool_is_told_after_it(notices):
    """N-70."""
    notices.begin_turn([kept(7, "after any", tool_name=""), kept(8, "after Bash", tool_name="Bash")])

    assert await notices.drain("turn_start") == ""
    notices.tool_ended("Read")
    assert lines(await notices.drain("after_tool")) == ["[NOTE] after any (notice 7)"]
    notices.tool_ended("Bash")
    assert lines(await notices.drain("after_tool")) == ["[NOTE] after Bash (notice 8)"]


async def test_the_end_of_a_tool_counts_for_one_look(notices):
    """N-75, and B.12-11: a tool of long ago stayed the last one."""
    notices.tool_ended("Bash")
    await notices.drain("after_tool")
    notices.give([kept(7, tool_name="Bash"), kept(8, condition="tool_completed(Bash)")])

    assert await notices.drain("after_tool") == ""
    notices.tool_ended("Bash")
    assert len(lines(await notices.drain("after_tool"))) == 2


async def test_the_tools_of_a_parallel_batch_all_count(notices):
    """N-75."""
    notices.give([kept(7, tool_name="Read"), kept(8, tool_name="Bash")])
    for name in ("Read", "Bash", "Grep"):
        notices.tool_ended(name)

    assert len(lines(await notices.drain("after_tool"))) == 2


@pytest.mark.parametrize("point", ["turn_start", "after_tool", "turn_end"])
async def test_a_condition_is_looked_at_at_every_point(notices, point):
    """N-75, and B.12-6: conditions were never looked at."""
    notices.give([kept(7, condition="context_above_threshold(0.5)")])
    assert await notices.drain(point) == ""
    notices.learn(context_tokens=60, max_context_tokens=100)

    assert lines(await notices.drain(point)) == ["[NOTE] call Bo (notice 7)"]
    assert await notices.drain(point) == ""


async def test_a_threshold_counts_again_after_it_was_left(notices):
    """N-75."""
    notices.learn(context_tokens=60, max_context_tokens=100, total_tokens=5, max_tokens=10, message_count=3)
    notices.give([kept(7, condition="context_above_threshold(0.5)")])
    assert len(lines(await notices.drain("after_tool"))) == 1
    notices.give([kept(8, condition="context_above_threshold(0.5)")])
    assert await notices.drain("after_tool") == ""
    notices.learn(context_tokens=10)
    notices.learn(context_tokens=70)

    assert len(lines(await notices.drain("after_tool"))) == 1
    assert (notices.facts.message_count, notices.facts.total_tokens) == (3, 5)


# Subscribers of the group


async def test_a_group_adds_one_with_its_own_template_while_it_runs(notices, tmp_path, as_toml):
    """N-25, SC-007: adding one needs no code."""
    notices.emit("tool.call.success", "info", {"tool_name": "Read"})
    assert await notices.drain("after_tool") == ""
    own = tmp_path / "subscribers"
    own.mkdir()
    (own / "probe.toml").write_text(as_toml(events__types=["tool.call.success"]))
    (own / "probe.j2").write_text("well done: {{ event.payload.tool_name }}\n")

    notices.emit("tool.call.success", "info", {"tool_name": "Read"})

    assert lines(await notices.drain("after_tool")) == ["well done: Read"]


async def test_a_disabled_one_tells_nothing_from_then_on_and_a_core_one_goes_on(notices, tmp_path):
    """N-25, and B.12-9: the list of disabled ones reached nobody."""
    own = tmp_path / "subscribers"
    own.mkdir()
    fail(notices)
    note(notices, "before")
    (own / "disabled.txt").write_text("self_notify\ntool_failure\n")
    note(notices, "after")
    notices.give([kept(7)])

    notices.begin_turn([kept(7)])
    told = lines(await notices.drain("turn_start"))

    assert told == ["tool_fail: Read execution_error - no such file"]
    assert notices.returned == (7,)

    (own / "disabled.txt").unlink()
    note(notices, "again")
    assert lines(await notices.drain("turn_start")) == ["[NOTE] again"]


async def test_a_template_that_fails_loses_nothing(notices, tmp_path, as_toml):
    """N-32."""
    own = tmp_path / "subscribers"
    own.mkdir()
    (own / "probe.toml").write_text(as_toml(events__types=["tool.call.success"]))
    (own / "probe.j2").write_text("{{ event.payload.nothing_of_the_kind }}")

    notices.emit("tool.call.success", "info", {"tool_name": "Read"}, source="agent")

    assert lines(await notices.drain("after_tool")) == [
        "system notification: tool.call.success from agent; tool_name: Read"
    ]


async def test_a_flood_is_bounded_and_what_was_dropped_is_told(notices):
    """N-12, N-26."""
    for number in range(1_500):
        notices.emit("tool.call.success", "info", {"tool_name": f"t{number}"})
    fail(notices)

    notices.begin_turn()
    told = lines(await notices.drain("turn_start"))

    assert told == [
        "tool_fail: Read execution_error - no such file",
        "!dropped: 1000 events were dropped: 1000 tool.call.success",
    ]


async def test_what_a_rule_found_is_emitted_and_what_it_did_not_find_is_not(notices):
    heard = []
    notices.bus.subscribe_all(heard.append)

    found = Happening(type="source.stale", severity="warning", payload={"path": "a"})
    notices.happened(None, found, source="files")

    assert [(each.type, each.source) for each in heard] == [("source.stale", "files")]


async def test_a_type_that_is_none_is_refused_where_it_is_emitted(notices):
    """N-1."""
    with pytest.raises(ValueError, match="no event type"):
        notices.emit("Nonsense", "info", {})


# Groups


async def test_two_runs_never_see_each_others_text(tmp_path, clock):
    """N-10, and B.12-7: one bus and one queue for all users."""
    runs = {name: Notices(tmp_path / name, now=clock) for name in ("red", "blue")}
    for number in range(100):
        for name, each in runs.items():
            note(each, f"{name} {number}")
            fail(each, f"{name}_{number}", name)

    told: dict[str, str] = {}
    for name, each in runs.items():
        texts = []
        while text := await each.drain("turn_start") or await each.drain("after_tool"):
            texts.append(text)
        told[name] = "\n".join(texts)

    assert "blue" not in told["red"]
    assert "red" not in told["blue"]
    assert all(f"[NOTE] {name} {number}\n" in told[name] for name in runs for number in range(100))
    assert all(f"{name}_{number}," in told[name] for name in runs for number in range(100))


async def test_the_end_of_a_run_leaves_nothing_to_the_next(tmp_path, clock):
    """B.12-7: what was left at the end was told to whoever came next."""
    first = Notices(tmp_path, now=clock)
    note(first, "left over")
    second = Notices(tmp_path, now=clock)

    assert await second.drain("turn_start") == ""
    assert second.pending == 0


async def test_a_template_that_was_mended_is_used_at_once(notices, tmp_path, as_toml, caplog):
    """N-30: the compiled ones are kept as long as the files are the same."""
    own = tmp_path / "subscribers"
    own.mkdir()
    (own / "probe.toml").write_text(as_toml(events__types=["tool.call.success"]))
    for text, told in (("{{ missing }}", "system notification"), ("well done", "well done")):
        (own / "probe.j2").write_text(text)
        notices.emit("tool.call.success", "info", {})
        assert lines(await notices.drain("after_tool"))[0].startswith(told)
    assert len(caplog.messages) == 1


async def test_a_time_that_no_calendar_has_is_no_notice(notices, caplog):
    notices.begin_turn([kept(7, created_ms=10**18)])

    assert await notices.drain("turn_start") == ""
    assert caplog.messages[0].startswith("notice 7 is not told")
