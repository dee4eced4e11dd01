"""Snapshots of a context: taken, restored, refused, pinned, put away."""

from __future__ import annotations

import pytest

from orchestrator.context.context_manager import ContextManager
from orchestrator.context.snapshots import SnapshotDamaged, UnknownSnapshot
from tests.support.dialogues import MINUTE, NOW
from tests.support.filled_contexts import converse


def test_c_22_a_snapshot_is_taken_only_of_what_changed(desk: ContextManager):
    converse(desk, 1)

    first = desk.snapshot(now_ms=NOW)
    assert first is not None
    assert first.name == "context-20261122T093000Z-r2.json"
    assert desk.snapshot(now_ms=NOW + 30 * MINUTE) is None
    converse(desk, 1, since=2)
    assert desk.snapshot(now_ms=NOW + 60 * MINUTE) is not None
    assert [one.revision for one in desk.snapshots()] == [4, 2]


def test_c_22_a_clock_that_was_put_back_makes_no_old_snapshot_the_newest(desk: ContextManager):
    converse(desk, 1)
    before = desk.snapshot(now_ms=NOW + 400 * 24 * 60 * MINUTE)
    desk.record_decision("Later", now_ms=NOW)
    later = desk.snapshot(now_ms=NOW)

    assert desk.snapshot(now_ms=NOW + MINUTE) is None
    assert desk.snapshots() == [later, before]
    (desk.files.path / "context.json").write_text("{")
    assert desk.load(now_ms=NOW).context.memory.last_decisions == ("Later",)


def test_c_22_context_and_workflow_are_restored_together_after_a_snapshot_of_the_present(
    desk: ContextManager,
):
    converse(desk, 2)
    desk.create_plan("Old plan", now_ms=NOW)
    taken = desk.snapshot(now_ms=NOW)
    assert taken is not None
    converse(desk, 3, "Something else.", since=3)
    desk.create_plan("New plan", now_ms=NOW)
    desk.note_session(session_id="one", now_ms=NOW)
    present = desk.load(now_ms=NOW)

    before = desk.restore(taken.name, now_ms=NOW + MINUTE)

    assert before is not None
    kept = desk.load(now_ms=NOW)
    assert [plan.title for plan in kept.workflow.plans] == ["Old plan"]
    assert [one.id for one in kept.context.conversation.recent_window] == ["t1.u", "t1.a", "t2.u", "t2.a"]
    assert kept.context.memory.active_plan_id == "plan_001"
    assert kept.context.sdk.session_id is None
    assert kept.context.revision == present.context.revision + 1
    converse(desk, 3, "Something else.", since=3)
    assert len(desk.load(now_ms=NOW).context.conversation.recent_window) == 4, "what was undone came back"
    desk.restore(before.name, now_ms=NOW + 2 * MINUTE)
    assert [plan.title for plan in desk.load(now_ms=NOW).workflow.plans] == ["Old plan", "New plan"]


def test_c_22_a_snapshot_that_cannot_be_read_is_refused_and_changes_nothing(desk: ContextManager):
    converse(desk, 1)
    taken = desk.snapshot(now_ms=NOW)
    assert taken is not None
    before = desk.load(now_ms=NOW)
    for content in ("", "{", '{"version": "1.0", "context": {"revision": "x"}}', '{"version": "7.0"}', "[]"):
        (desk.files.path / "snapshots" / taken.name).write_text(content)
        with pytest.raises(SnapshotDamaged, match="nothing was changed"):
            desk.restore(taken.name, now_ms=NOW)
    with pytest.raises(UnknownSnapshot):
        desk.restore("context-20200101T000000Z-r1.json", now_ms=NOW)
    with pytest.raises(UnknownSnapshot):
        desk.restore("../context.json", now_ms=NOW)

    assert desk.load(now_ms=NOW) == before


def test_c_22_a_pinned_snapshot_outlives_retention(desk: ContextManager):
    names = []
    for number in range(52):
        desk.record_decision(f"Decision {number}", now_ms=NOW)
        taken = desk.snapshot(now_ms=NOW + number * MINUTE)
        assert taken is not None
        names.append(taken.name)
        if number == 0:
            desk.pin(taken.name)

    left = {one.name: one.is_pinned for one in desk.snapshots()}
    assert left[names[0]]
    assert names[1] not in left
    assert len(left) == 49

    desk.unpin(names[0])
    desk.record_decision("Last", now_ms=NOW)
    desk.snapshot(now_ms=NOW + 60 * MINUTE)
    assert names[0] not in {one.name for one in desk.snapshots()}
    for call in (desk.pin, desk.unpin):
        with pytest.raises(UnknownSnapshot):
            call(names[0])
