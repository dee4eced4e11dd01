"""Subscribers and templates of a group, and runs apart from each other: N-70 to N-75."""

from __future__ import annotations

import pytest

from agent_runner.ans.event import EventDraft
from agent_runner.ans.notices import RunNotices
from tests.support.notices_in_prompts import fail, kept, lines, note


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
    found = EventDraft(type="source.stale", severity="warning", payload={"path": "a"})
    notices.happened(None, found, source="files")

    emitted = notices.events.drain_pending()
    assert [(each.type, each.source) for each in emitted] == [("source.stale", "files")]


async def test_a_type_that_is_none_is_refused_where_it_is_emitted(notices):
    """N-1."""
    with pytest.raises(ValueError, match="no event type"):
        notices.emit("Nonsense", "info", {})


async def test_two_runs_never_see_each_others_text(tmp_path, clock):
    """N-10, and B.12-7: one queue for all users."""
    runs = {name: RunNotices(tmp_path / name, now=clock) for name in ("red", "blue")}
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
    first = RunNotices(tmp_path, now=clock)
    note(first, "left over")
    second = RunNotices(tmp_path, now=clock)

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
    assert caplog.messages[0].startswith("notice 7 is not delivered")
