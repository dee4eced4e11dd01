"""Snapshots of a context: taken, restored, refused, pinned, put away."""

from __future__ import annotations

import pytest

from orchestrator.context.context_manager import ContextManager
from orchestrator.context.snapshots import SnapshotDamaged, UnknownSnapshot
from tests.support.dialogues import MINUTE, NOW
from tests.support.filled_contexts import converse


def test_c_22_a_snapshot_is_taken_only_of_what_changed(manager: ContextManager):
    converse(manager, 1)

    first = manager.snapshot(now_ms=NOW)
    assert first is not None
    assert first.name == "context-20261122T093000Z-r2.json"
    assert manager.snapshot(now_ms=NOW + 30 * MINUTE) is None
    converse(manager, 1, since=2)
    assert manager.snapshot(now_ms=NOW + 60 * MINUTE) is not None
    assert [one.revision for one in manager.snapshots()] == [4, 2]


def test_c_22_a_clock_that_was_put_back_makes_no_old_snapshot_the_newest(manager: ContextManager):
    converse(manager, 1)
    before = manager.snapshot(now_ms=NOW + 400 * 24 * 60 * MINUTE)
    manager.record_decision("Later", now_ms=NOW)
    later = manager.snapshot(now_ms=NOW)

    assert manager.snapshot(now_ms=NOW + MINUTE) is None
    assert manager.snapshots() == [later, before]
    (manager.files.path / "context.json").write_text("{")
    assert manager.load(now_ms=NOW).context.memory.last_decisions == ("Later",)


def test_a_context_whose_file_was_removed_gets_snapshots_again(manager: ContextManager):
    converse(manager, 3)
    before = manager.snapshot(now_ms=NOW)
    (manager.files.path / "context.json").unlink()
    manager.record_decision("Begin anew", now_ms=NOW)
    later = manager.snapshot(now_ms=NOW + 30 * MINUTE)

    assert later is not None
    assert manager.snapshots() == [later, before], "the newest is known as such, and stays longest"


def test_c_22_context_and_workflow_are_restored_together_after_a_snapshot_of_the_present(
    manager: ContextManager,
):
    converse(manager, 2)
    manager.create_plan("Old plan", now_ms=NOW)
    taken = manager.snapshot(now_ms=NOW)
    assert taken is not None
    converse(manager, 3, "Something else.", since=3)
    manager.create_plan("New plan", now_ms=NOW)
    manager.note_session(session_id="one", now_ms=NOW)
    present = manager.load(now_ms=NOW)

    before = manager.restore(taken.name, now_ms=NOW + MINUTE)

    assert before is not None
    kept = manager.load(now_ms=NOW)
    assert [plan.title for plan in kept.workflow.plans] == ["Old plan"]
    assert [one.id for one in kept.context.conversation.recent_window] == ["t1.u", "t1.a", "t2.u", "t2.a"]
    assert kept.context.memory.active_plan_id == "plan_001"
    assert kept.context.sdk.session_id is None
    assert kept.context.revision == present.context.revision + 1
    converse(manager, 3, "Something else.", since=3)
    assert len(manager.load(now_ms=NOW).context.conversation.recent_window) == 4, "what was undone came back"
    manager.restore(before.name, now_ms=NOW + 2 * MINUTE)
    assert [plan.title for plan in manager.load(now_ms=NOW).workflow.plans] == ["Old plan", "New plan"]


def test_c_22_a_snapshot_that_cannot_be_read_is_refused_and_changes_nothing(manager: ContextManager):
    converse(manager, 1)
    taken = manager.snapshot(now_ms=NOW)
    assert taken is not None
    before = manager.load(now_ms=NOW)
    for content in ("", "{", '{"version": "1.0", "context": {"revision": "x"}}', '{"version": "7.0"}', "[]"):
        (manager.files.path / "snapshots" / taken.name).write_text(content)
        with pytest.raises(SnapshotDamaged, match="nothing was changed"):
            manager.restore(taken.name, now_ms=NOW)
    with pytest.raises(UnknownSnapshot):
        manager.restore("context-20200101T000000Z-r1.json", now_ms=NOW)
    with pytest.raises(UnknownSnapshot):
        manager.restore("../context.json", now_ms=NOW)

    assert manager.load(now_ms=NOW) == before


def test_c_22_a_pinned_snapshot_outlives_retention(manager: ContextManager):
    names = []
    for number in range(52):
        manager.record_decision(f"Decision {number}", now_ms=NOW)
        taken = manager.snapshot(now_ms=NOW + number * MINUTE)
        assert taken is not None
        names.append(taken.name)
        if number == 0:
            manager.pin(taken.name)

    left = {one.name: one.is_pinned for one in manager.snapshots()}
    assert left[names[0]]
    assert names[1] not in left
    assert len(left) == 49

    manager.unpin(names[0])
    manager.record_decision("Last", now_ms=NOW)
    manager.snapshot(now_ms=NOW + 60 * MINUTE)
    assert names[0] not in {one.name for one in manager.snapshots()}
    for call in (manager.pin, manager.unpin):
        with pytest.raises(UnknownSnapshot):
            call(names[0])
