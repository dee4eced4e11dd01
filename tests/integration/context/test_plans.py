"""Plans and tasks through the context's one door."""

from __future__ import annotations

import json

import pytest

from orchestrator.context import tools
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.workflow import PlanRefused, PlanStatus, UnknownPlan, UnknownPlanTask
from tests.support.dialogues import NOW
from tests.support.filled_contexts import converse


def test_a_plan_that_is_made_is_in_hand_and_made_once(manager: ContextManager):
    for _ in range(2):
        plan = manager.create_plan("Trip", objective="Sea", tasks=["Book"], request_id="r1", now_ms=NOW)

    kept = manager.load(now_ms=NOW)
    assert plan.id == "plan_001"
    assert len(kept.workflow.plans) == 1
    assert kept.context.memory.active_plan_id == kept.workflow.current_plan_id == "plan_001"


def test_a_task_is_changed_once_a_request_and_added_once(manager: ContextManager):
    manager.create_plan("Trip", tasks=["Book"], now_ms=NOW)

    added = [manager.update_plan_task(title="Pack", request_id="r2", now_ms=NOW).id for _ in range(2)]
    manager.update_plan_task("task_001", status="blocked", request_id="r3", now_ms=NOW)
    manager.update_plan_task("task_001", status="pending", request_id="r4", now_ms=NOW)
    late = manager.update_plan_task("task_001", status="blocked", request_id="r3", now_ms=NOW)

    assert added == ["task_002", "task_002"]
    assert len(manager.load(now_ms=NOW).workflow.plans[0].tasks) == 2
    assert late.status is PlanStatus.PENDING


def test_a_request_that_comes_again_finds_its_task_whatever_plan_is_in_hand(manager: ContextManager):
    manager.create_plan("One", tasks=["Begin"], now_ms=NOW)
    manager.update_plan_task(title="Pack", request_id="r1", now_ms=NOW)
    manager.update_plan_task("task_001", status="in_progress", request_id="r2", now_ms=NOW)
    manager.set_active_task(None, now_ms=NOW)
    again = [manager.update_plan_task("task_001", status="in_progress", request_id="r2", now_ms=NOW)]
    assert manager.load(now_ms=NOW).context.memory.active_task_id is None, "a repetition changes nothing"

    manager.create_plan("Two", tasks=["Other", "More"], now_ms=NOW)
    again.append(manager.update_plan_task(title="Pack", request_id="r1", now_ms=NOW))
    manager.set_active_plan(None, now_ms=NOW)
    again.append(manager.update_plan_task(title="Pack", request_id="r1", now_ms=NOW))

    assert {task.plan_id for task in again} == {"plan_001"}
    assert [task.title for task in again] == ["Begin", "Pack", "Pack"]
    reply = tools.use(manager, "update_plan_task", {"title": "Pack"}, request_id="r1", now_ms=NOW)
    assert (reply.ok, reply.data) == (True, {"plan_id": "plan_001", "task_id": "task_002"})


def test_a_request_of_an_earlier_version_finds_its_task_in_the_plan_in_hand(manager: ContextManager):
    manager.create_plan("One", tasks=["Begin"], now_ms=NOW)
    with manager.files.changing(NOW) as draft:
        draft.workflow = draft.workflow.model_copy(update={"requests": (("r1", "task_001"),)})

    assert manager.update_plan_task(title="Begin", request_id="r1", now_ms=NOW).id == "task_001"


def test_c_18_a_switch_of_plans_is_in_both_files(manager: ContextManager):
    manager.create_plan("One", tasks=["Begin"], now_ms=NOW)
    manager.set_active_task("task_001", now_ms=NOW)
    manager.create_plan("Two", tasks=["Other"], now_ms=NOW)
    assert manager.load(now_ms=NOW).context.memory.active_task_id is None

    manager.set_active_plan("plan_001", now_ms=NOW)

    kept = manager.load(now_ms=NOW)
    assert kept.workflow.current_plan_id == kept.context.memory.active_plan_id == "plan_001"
    assert kept.context.memory.active_task_id == "task_001"
    assert manager.set_active_plan(None, now_ms=NOW) is None
    assert manager.load(now_ms=NOW).context.memory.active_task_id is None


def test_c_18_after_a_task_that_is_done_comes_the_next(manager: ContextManager):
    manager.create_plan("Trip", tasks=["Book", "Pack"], now_ms=NOW)
    assert manager.set_active_task("task_001", now_ms=NOW).status is PlanStatus.IN_PROGRESS  # type: ignore[union-attr]

    manager.update_plan_task("task_001", status="completed", now_ms=NOW)
    assert manager.load(now_ms=NOW).context.memory.active_task_id == "task_002"
    manager.update_plan_task("task_002", status="completed", now_ms=NOW)

    kept = manager.load(now_ms=NOW)
    assert kept.context.memory.active_task_id is None
    assert kept.workflow.plans[0].status is PlanStatus.COMPLETED


def test_c_18_a_switch_may_begin_the_summary_anew_with_the_plans_opening(manager: ContextManager):
    converse(manager, 12)
    manager.create_plan("Trip", objective="A day at the sea", now_ms=NOW)

    manager.set_active_plan("plan_001", resets_summary=True, now_ms=NOW)

    assert manager.load(now_ms=NOW).context.conversation.running_summary == "Trip\nA day at the sea"
    (taken,) = manager.snapshots()
    assert "early ferry" in manager.files.snapshots.read(taken.name).context.conversation.running_summary

    manager.remove_messages(["t12.u"], {}, now_ms=NOW)
    summary = manager.load(now_ms=NOW).context.conversation.running_summary
    assert summary == "Trip\nA day at the sea", "no message is in it, so the deletion of one leaves it"


def test_what_cannot_be_done_changes_nothing(manager: ContextManager):
    manager.create_plan("Trip", tasks=["Book"], now_ms=NOW)
    before = manager.load(now_ms=NOW)

    with pytest.raises(UnknownPlan):
        manager.set_active_plan("plan_009", now_ms=NOW)
    with pytest.raises(UnknownPlanTask):
        manager.set_active_task("task_009", now_ms=NOW)
    with pytest.raises(PlanRefused):
        manager.create_plan(" ", now_ms=NOW)
    with pytest.raises(PlanRefused):
        manager.update_plan_task("task_001", status="maybe", now_ms=NOW)

    assert manager.load(now_ms=NOW) == before


def test_without_a_plan_no_task_can_be_in_hand(manager: ContextManager):
    with pytest.raises(UnknownPlan, match=r"^No plan is active. There is none yet: create a plan first.$"):
        manager.set_active_task("task_001", now_ms=NOW)
    with pytest.raises(UnknownPlan, match=r"^No plan is active. There is none yet"):
        manager.update_plan_task("task_001", status="completed", now_ms=NOW)
    assert manager.set_active_task(None, now_ms=NOW) is None


def test_where_no_plan_is_active_or_one_has_no_tasks_the_refusal_says_so(manager: ContextManager):
    plan = manager.create_plan("Trip", now_ms=NOW)
    with pytest.raises(
        UnknownPlanTask, match=r"no task 'task_009' in that plan. It has no tasks yet: add one"
    ):
        manager.set_active_task("task_009", now_ms=NOW)
    manager.set_active_plan(None, now_ms=NOW)
    with pytest.raises(
        UnknownPlan, match=f"^No plan is active. Make one of these the active one: {plan.id}.$"
    ):
        manager.set_active_task("task_001", now_ms=NOW)


def test_c_27_five_hundred_tasks_are_kept_and_told_within_the_bounds(manager: ContextManager):
    manager.create_plan("Big", tasks=[f"Task {number} of many" for number in range(500)], now_ms=NOW)
    manager.set_active_task("task_250", now_ms=NOW)
    manager.update_plan_task("task_250", status="completed", now_ms=NOW)

    told = manager.hydrate_prompt(now_ms=NOW)

    assert manager.load(now_ms=NOW).context.memory.active_task_id == "task_001"
    assert told.tokens <= 4_096
    assert "1 of 500 tasks completed" in told.text


def test_finished_plans_are_put_away_when_there_is_no_room(
    manager: ContextManager, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("orchestrator.context.files.WORKFLOW_BYTES", 4_000)
    manager.create_plan("Old", objective="o" * 1_500, tasks=["Only"], now_ms=NOW)
    manager.update_plan_task("task_001", status="completed", now_ms=NOW)

    manager.create_plan("New", objective="o" * 1_500, now_ms=NOW)

    assert [plan.title for plan in manager.load(now_ms=NOW).workflow.plans] == ["New"]
    away = json.loads((manager.files.path / "documents" / "plan_001" / "plan.json").read_text())
    assert away["title"] == "Old"
    with pytest.raises(PlanRefused, match="room"):
        manager.create_plan("Third", objective="o" * 1_900, now_ms=NOW)
    assert [plan.title for plan in manager.load(now_ms=NOW).workflow.plans] == ["New"]


def test_c_6_the_session_in_workflow_json_follows_what_is_in_hand(manager: ContextManager):
    def session() -> dict[str, object]:
        path = manager.files.path / "workflow.json"
        found: dict[str, object] = json.loads(path.read_text())["metadata"]["ai_session"]
        return found

    manager.record_decision("By train", now_ms=NOW)
    manager.note_open_file("trip/plan.md", now_ms=NOW)
    assert session() == {
        "last_context": "",
        "active_files": ["trip/plan.md"],
        "key_decisions": ["By train"],
    }
    manager.create_plan("Trip", tasks=["Book", "Pack"], now_ms=NOW)
    manager.set_active_task("task_002", now_ms=NOW)
    assert session()["last_context"] == "Trip: Pack"

    manager.reset(now_ms=NOW)
    assert session() == {"last_context": "", "active_files": [], "key_decisions": []}
