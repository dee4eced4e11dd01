"""Plans and tasks: one vocabulary, ids that stay, requests carried out once, old files understood."""

from __future__ import annotations

import pytest

from orchestrator.context import workflow
from orchestrator.context.workflow import (
    MAX_PLANS,
    MAX_TASKS,
    Plan,
    PlanRefused,
    PlanStatus,
    PlanTask,
    UnknownPlan,
    UnknownPlanTask,
    Workflow,
    bootstrap,
)
from tests.support.dialogues import NOW

EMPTY = bootstrap("Home", NOW)
AT = "2026-11-22T09:30:00.000Z"


def with_trip(*tasks: str) -> Workflow:
    return workflow.with_new_plan(EMPTY, title="Trip", tasks=tasks or ("Book", "Pack"), now_ms=NOW)


def statuses(plans: Workflow) -> list[PlanStatus]:
    return [task.status for task in plans.plans[0].tasks]


def test_c_6_a_plan_has_what_the_schema_names():
    plans = with_trip()

    document = plans.model_dump(mode="json")

    assert {"version", "project_name", "current_plan_id", "last_activity", "metadata", "plans"} <= set(
        document
    )
    assert set(document["metadata"]) == {"created_at", "updated_at", "ai_session"}
    assert set(document["metadata"]["ai_session"]) == {"last_context", "active_files", "key_decisions"}
    (plan,) = document["plans"]
    assert set(plan) == {"id", "title", "objective", "status", "context", "created_at", "updated_at", "tasks"}
    assert set(plan["context"]) == {"background", "constraints", "references"}
    assert plan["tasks"][0] == {
        "id": "task_001",
        "title": "Book",
        "description": "",
        "status": "pending",
        "plan_id": "plan_001",
        "dependencies": [],
        "outputs": [],
        "created_at": AT,
        "completed_at": None,
    }
    assert (document["version"], document["current_plan_id"]) == ("2.0", "plan_001")


def test_c_5_plans_and_tasks_are_found_by_their_ids():
    plan = with_trip().plan("plan_001")

    assert plan is not None
    assert plan.title == "Trip"
    assert plan.task("task_002").title == "Pack"  # type: ignore[union-attr]
    assert plan.task("task_009") is None
    assert with_trip().plan(None) is None


@pytest.mark.parametrize(
    ("word", "status"),
    [
        *[(one.value, one) for one in PlanStatus],
        ("todo", PlanStatus.PENDING),
        ("Done", PlanStatus.COMPLETED),
        ("finished ", PlanStatus.COMPLETED),
        ("in-progress", PlanStatus.IN_PROGRESS),
        ("In Progress", PlanStatus.IN_PROGRESS),
        ("canceled", PlanStatus.CANCELLED),
        ("on hold", PlanStatus.BLOCKED),
        ("", PlanStatus.PENDING),
        (None, PlanStatus.PENDING),
        ("what", PlanStatus.PENDING),
    ],
)
def test_c_9_every_older_word_for_a_state_is_mapped_as_it_is_read(word: str | None, status: PlanStatus):
    assert PlanTask.model_validate({"id": "x", "status": word}).status is status
    assert Plan.model_validate({"id": "x", "status": word}).status is status


def test_c_9_only_one_vocabulary_is_written():
    plans = workflow.with_task(with_trip(), "plan_001", "task_001", status="done", now_ms=NOW)

    assert plans.model_dump(mode="json")["plans"][0]["tasks"][0]["status"] == "completed"
    with pytest.raises(PlanRefused, match=r"'maybe' is no state.*pending"):
        workflow.with_task(with_trip(), "plan_001", "task_001", status="maybe", now_ms=NOW)


@pytest.mark.parametrize("word", ["to-do", "to do", "Not started", "not-started"])
def test_a_word_for_pending_is_taken_with_blanks_and_hyphens_as_other_states_are(word: str):
    plans = workflow.with_task(with_trip(), "plan_001", "task_001", status=word, now_ms=NOW)

    assert plans.plans[0].tasks[0].status is PlanStatus.PENDING


def test_c_7_a_file_of_version_1_becomes_one_plan():
    old = {
        "version": "1.0",
        "project_name": "Old",
        "tasks": [
            {"id": "a", "title": "One", "status": "done"},
            {"title": "Two", "status": "todo"},
            "rubbish",
        ],
    }

    plans = workflow.migrated(old, "Home", NOW)

    (plan,) = plans.plans
    assert (plan.id, plans.current_plan_id, plans.project_name) == ("plan_legacy", "plan_legacy", "Old")
    assert [(task.id, task.title, task.status, task.plan_id) for task in plan.tasks] == [
        ("a", "One", "completed", "plan_legacy"),
        ("task_002", "Two", "pending", "plan_legacy"),
    ]
    assert workflow.migrated({"tasks": []}, "Home", NOW).plans == ()
    with pytest.raises(ValueError, match="no list of tasks"):
        workflow.migrated({}, "Home", NOW)


def test_a_request_is_carried_out_once():
    plans = workflow.with_new_plan(EMPTY, title="Trip", request_id="r1", now_ms=NOW)
    plans = workflow.with_task(plans, "plan_001", None, title="More", request_id="r2", now_ms=NOW)

    assert (plans.id_changed_by("r1"), plans.id_changed_by("r2"), plans.id_changed_by("r3")) == (
        "plan_001",
        "plan_001/task_001",
        None,
    )
    assert plans.id_changed_by(None) is None


def test_what_is_done_has_a_time_and_what_is_taken_up_again_has_none():
    done = workflow.with_task(with_trip(), "plan_001", "task_001", status="completed", now_ms=NOW)
    assert done.plans[0].tasks[0].completed_at == AT
    again = workflow.with_task(done, "plan_001", "task_001", status="in_progress", now_ms=NOW)
    assert again.plans[0].tasks[0].completed_at is None


def test_a_plan_is_over_with_its_last_task_and_goes_on_with_a_new_one():
    plans = with_trip("Only")
    plans = workflow.with_task(plans, "plan_001", "task_001", status="completed", now_ms=NOW)
    assert plans.plans[0].status is PlanStatus.COMPLETED

    plans = workflow.with_task(plans, "plan_001", None, title="One more", now_ms=NOW)

    assert plans.plans[0].status is PlanStatus.IN_PROGRESS
    assert [task.id for task in plans.plans[0].tasks] == ["task_001", "task_002"]


def test_the_next_task_is_the_one_begun_or_the_first_that_waits_for_none():
    plan = Plan(
        id="p",
        tasks=(
            PlanTask(id="a", status=PlanStatus.BLOCKED),
            PlanTask(id="b", dependencies=("c",)),
            PlanTask(id="c"),
            PlanTask(id="d", dependencies=("e",)),
            PlanTask(id="e", status=PlanStatus.COMPLETED),
        ),
    )

    assert workflow.next_task(plan).id == "c"  # type: ignore[union-attr]
    begun = plan.model_copy(update={"tasks": (*plan.tasks, PlanTask(id="f", status=PlanStatus.IN_PROGRESS))})
    assert workflow.next_task(begun).id == "f"  # type: ignore[union-attr]
    assert workflow.next_task(Plan(id="q")) is None


def test_tasks_stay_in_their_order_and_outputs_add_up():
    plans = workflow.with_task(with_trip(), "plan_001", "task_001", outputs=["a.md"], now_ms=NOW)
    plans = workflow.with_task(
        plans, "plan_001", "task_001", outputs=["b.md", "a.md"], title="Booked", now_ms=NOW
    )

    first, second = plans.plans[0].tasks
    assert (first.title, first.outputs, second.id) == ("Booked", ("a.md", "b.md"), "task_002")


def test_an_id_is_not_given_twice_also_when_its_plan_was_put_away():
    plans = with_trip("Only")
    plans = workflow.with_task(plans, "plan_001", "task_001", status="completed", now_ms=NOW)
    plans = workflow.with_current(plans, None, now_ms=NOW)

    rest, put_away = workflow.without_oldest_finished(plans)

    assert put_away is not None
    assert put_away.id == "plan_001"
    assert workflow.with_new_plan(rest, title="New", now_ms=NOW).plans[0].id == "plan_002"
    assert workflow.without_oldest_finished(rest) == (rest, None)


def test_the_current_plan_is_not_put_away():
    plans = workflow.with_task(with_trip("Only"), "plan_001", "task_001", status="completed", now_ms=NOW)

    assert workflow.without_oldest_finished(plans) == (plans, None)


@pytest.mark.parametrize("title", ["", "   ", "x" * 201])
def test_a_title_that_cannot_be_kept_is_refused(title: str):
    with pytest.raises(PlanRefused, match="title"):
        workflow.with_new_plan(EMPTY, title=title, now_ms=NOW)
    with pytest.raises(PlanRefused, match="title"):
        workflow.with_task(with_trip(), "plan_001", None, title=title, now_ms=NOW)


def test_there_is_an_end_to_plans_and_tasks():
    plans = EMPTY
    for number in range(MAX_PLANS):
        plans = workflow.with_new_plan(plans, title=f"Plan {number}", now_ms=NOW)
    with pytest.raises(PlanRefused, match="open already"):
        workflow.with_new_plan(plans, title="One more", now_ms=NOW)
    with pytest.raises(PlanRefused, match="at most"):
        workflow.with_new_plan(EMPTY, title="Big", tasks=["t"] * (MAX_TASKS + 1), now_ms=NOW)
    full = with_trip(*["t"] * MAX_TASKS)
    with pytest.raises(PlanRefused, match="at most"):
        workflow.with_task(full, "plan_001", None, title="One more", now_ms=NOW)


def test_what_is_not_there_is_named_with_what_is():
    with pytest.raises(UnknownPlan, match=r"'plan_009'.*plan_001"):
        workflow.with_task(with_trip(), "plan_009", "task_001", now_ms=NOW)
    with pytest.raises(UnknownPlanTask, match=r"'task_009'.*task_001, task_002"):
        workflow.with_task(with_trip(), "plan_001", "task_009", now_ms=NOW)
    with pytest.raises(UnknownPlan, match="create a plan first"):
        workflow.with_current(EMPTY, "plan_001", now_ms=NOW)


def test_c_21_a_plan_holds_no_secret():
    plans = workflow.with_new_plan(
        EMPTY,
        title="Use sk-ant-api03-Q7xK2mVt9LpR",
        objective="password=hunter2",
        tasks=["ghp_" + "a1" * 12],
        now_ms=NOW,
    )

    kept = plans.model_dump_json()
    assert not any(secret in kept for secret in ("Q7xK2mVt9LpR", "hunter2", "a1a1a1"))
    assert "[redacted]" in plans.plans[0].title
