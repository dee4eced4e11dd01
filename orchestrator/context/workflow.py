"""Define plans and their tasks, the contents of `workflow.json` version 2.0, and their changes. Pure.

There is one vocabulary of states: the aliases of older files are mapped as they are read. A file of
version 1 becomes one plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, TypedDict, Unpack

from pydantic import BeforeValidator

from orchestrator.base.redaction import redact
from orchestrator.context.models import StoredModel, Strings, iso
from orchestrator.domain.errors import BadRequest

VERSION = "2.0"
LEGACY = "plan_legacy"
MAX_TITLE_CHARS, MAX_TEXT_CHARS = 200, 2_000
MAX_PLANS, MAX_TASKS = 100, 500
"""The largest number of open plans, and of tasks in one plan."""
MAX_REQUESTS = 100
MAX_LISTED = 50


class PlanStatus(StrEnum):
    """The state of a plan or of a task."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    BLOCKED = "blocked"

    @property
    def is_over(self) -> bool:
        """Whether it is an end: completed or cancelled."""
        return self in (PlanStatus.COMPLETED, PlanStatus.CANCELLED)


_ALIASES = {
    "": "pending",
    "todo": "pending",
    "to_do": "pending",
    "open": "pending",
    "new": "pending",
    "planned": "pending",
    "not_started": "pending",
    "active": "in_progress",
    "doing": "in_progress",
    "started": "in_progress",
    "inprogress": "in_progress",
    "wip": "in_progress",
    "done": "completed",
    "complete": "completed",
    "finished": "completed",
    "closed": "completed",
    "canceled": "cancelled",
    "dropped": "cancelled",
    "abandoned": "cancelled",
    "on_hold": "blocked",
    "waiting": "blocked",
    "paused": "blocked",
}


def status_of(word: object) -> PlanStatus:
    """Return the state that a word such as "done" or "on hold" means; pending for any unknown word."""
    key = _status_key(str(word or ""))
    key = _ALIASES.get(key, key)
    # An unknown word means pending, because a file with one wrong status must still be readable.
    return PlanStatus(key) if key in set(PlanStatus) else PlanStatus.PENDING


def _status_key(word: str) -> str:
    """Return a word for a state in the form of `_ALIASES`: lower case, with `_` for blanks and hyphens."""
    return word.strip().lower().replace("-", "_").replace(" ", "_")


AnyStatus = Annotated[PlanStatus, BeforeValidator(status_of)]


class PlanTask(StoredModel):
    id: str
    title: str = ""
    description: str = ""
    status: AnyStatus = PlanStatus.PENDING
    plan_id: str = ""
    dependencies: Strings = ()
    """Ids of tasks of the same plan that must end before it."""
    outputs: Strings = ()
    created_at: str = ""
    completed_at: str | None = None


class TaskFields(TypedDict, total=False):
    """The fields of a task that may change; a missing field, or None, leaves the value unchanged."""

    title: str | None
    status: str | None
    description: str | None
    dependencies: Sequence[str] | None
    outputs: Sequence[str] | None
    """These are added to the existing outputs."""


class PlanContext(StoredModel):
    """The background for all tasks of a plan."""

    background: str = ""
    constraints: Strings = ()
    references: Strings = ()


class Plan(StoredModel):
    id: str
    title: str = ""
    objective: str = ""
    status: AnyStatus = PlanStatus.IN_PROGRESS
    context: PlanContext = PlanContext()
    created_at: str = ""
    updated_at: str = ""
    tasks: tuple[PlanTask, ...] = ()

    def task(self, task_id: str) -> PlanTask | None:
        """Return the task with this id, or None."""
        return next((task for task in self.tasks if task.id == task_id), None)


class AiSession(StoredModel):
    """A copy of parts of `context.json`, for programs that read `workflow.json` alone."""

    last_context: str = ""
    """Titles of the active plan and task."""
    active_files: Strings = ()
    key_decisions: Strings = ()


class Metadata(StoredModel):
    created_at: str = ""
    updated_at: str = ""
    ai_session: AiSession = AiSession()


class Workflow(StoredModel):
    """The contents of `workflow.json`."""

    version: str = VERSION
    project_name: str = ""
    current_plan_id: str | None = None
    last_activity: str = ""
    metadata: Metadata = Metadata()
    plans: tuple[Plan, ...] = ()
    last_plan_id: str = ""
    """The newest id; it is never used again, even if its plan was moved out of the file."""
    requests: tuple[tuple[str, str], ...] = ()
    """The newest requests that were carried out, each with the id of the plan, or the ids of plan and task
    (`plan_001/task_002`), that it changed. Older versions stored the id of the task alone.
    """

    def plan(self, plan_id: str | None) -> Plan | None:
        """Return the plan with this id, or None."""
        return next((plan for plan in self.plans if plan.id == plan_id), None)

    def id_changed_by(self, request_id: str | None) -> str | None:
        """Return the id of the plan or task that the request with this id changed or made, as in `requests`.

        None if no such request was carried out, or `request_id` is None.
        """
        return dict(self.requests).get(request_id) if request_id else None


class UnknownPlan(BadRequest):
    """No plan has this id."""

    code = "unknown_plan"
    http_status = 404

    def __init__(self, plan_id: str, known: Iterable[str] = ()) -> None:
        """`known` are the ids of the plans that exist, which the text lists.

        An empty `plan_id` is that of the active plan, when no plan is active.
        """
        reason = f"There is no plan '{plan_id}'." if plan_id else "No plan is active."
        listed = "There are" if plan_id else "Make one of these the active one"
        super().__init__(
            f"{reason} {_list_of_ids(known, listed, if_none='There is none yet: create a plan first.')}"
        )


class UnknownPlanTask(BadRequest):
    """The plan has no task with this id."""

    code = "unknown_plan_task"
    http_status = 404

    def __init__(self, task_id: str, known: Iterable[str] = ()) -> None:
        """`known` are the ids of the plan's tasks, which the text lists."""
        listed = _list_of_ids(known, "There are", if_none="It has no tasks yet: add one first.")
        super().__init__(f"There is no task '{task_id}' in that plan. {listed}")


class PlanRefused(BadRequest):
    """The plan cannot be stored in this form."""

    code = "plan_refused"


def bootstrap(project_name: str, now_ms: int) -> Workflow:
    """Return a new workflow without plans."""
    at = iso(now_ms)
    return Workflow(
        project_name=project_name, last_activity=at, metadata=Metadata(created_at=at, updated_at=at)
    )


def migrated(old: Mapping[str, Any], project_name: str, now_ms: int) -> Workflow:
    """Return a document of version 1, a flat list of tasks, as a workflow with one plan of these tasks.

    Ids of tasks stay; a task without one gets its number as an id. Entries that are no objects are left out,
    and there is no plan if none remains. `project_name` is used if the document has none.

    Raises:
        ValueError: the tasks cannot be read.
    """
    fresh = bootstrap(str(old.get("project_name") or project_name), now_ms)
    tasks_read = old.get("tasks")
    if not isinstance(tasks_read, list):
        raise ValueError("it has no list of tasks")  # noqa: TRY004  # of a document, not of an argument
    # Later keys of the dict win: a task's own id replaces the numbered one, and its `plan_id` is replaced.
    tasks = tuple(
        PlanTask.model_validate({"id": f"task_{number:03d}", **task, "plan_id": LEGACY})
        for number, task in enumerate(tasks_read, 1)
        if isinstance(task, dict)
    )
    if not tasks:
        return fresh
    plan = Plan(
        id=LEGACY, title="Tasks from before", created_at=iso(now_ms), updated_at=iso(now_ms), tasks=tasks
    )
    return fresh.model_copy(update={"plans": (plan,), "current_plan_id": LEGACY})


def known_plan(workflow: Workflow, plan_id: str) -> Plan:
    """Return the plan with this id. Raises `UnknownPlan`, which lists the plans there are."""
    if (plan := workflow.plan(plan_id)) is None:
        raise UnknownPlan(plan_id, (each.id for each in workflow.plans))
    return plan


def known_task(plan: Plan, task_id: str) -> PlanTask:
    """Return the task of a plan with this id. Raises `UnknownPlanTask`, which lists the plan's tasks."""
    if (task := plan.task(task_id)) is None:
        raise UnknownPlanTask(task_id, (each.id for each in plan.tasks))
    return task


def with_new_plan(
    workflow: Workflow,
    *,
    title: str,
    objective: str = "",
    tasks: Sequence[str] = (),
    context: PlanContext | None = None,
    request_id: str | None = None,
    now_ms: int,
) -> Workflow:
    """Return the workflow with a new plan at the end, which becomes the current one.

    `tasks` are the titles of its tasks, all of them pending. `request_id` is stored, so that a repetition can
    be recognised; None for a request that is never repeated.

    Raises:
        PlanRefused: it has no title or is too long, or too many plans are open.
    """
    if sum(not plan.status.is_over for plan in workflow.plans) >= MAX_PLANS:
        raise PlanRefused(f"{MAX_PLANS} plans are open already: complete or cancel the tasks of one first.")
    if len(tasks) > MAX_TASKS:
        raise PlanRefused(f"A plan has at most {MAX_TASKS} tasks: make several plans of it.")
    # `last_plan_id` covers plans moved out of the file: an id in an old message must not mean a new plan.
    plan_id = _next_id("plan", [workflow.last_plan_id, *(plan.id for plan in workflow.plans)])
    new_tasks = tuple(
        _new_task(f"task_{number:03d}", plan_id, task, now_ms) for number, task in enumerate(tasks, 1)
    )
    at = iso(now_ms)
    plan = Plan(
        id=plan_id,
        title=_checked_text("title", title, MAX_TITLE_CHARS),
        objective=_checked_text("objective", objective, MAX_TEXT_CHARS, may_be_empty=True),
        context=_checked_context(context or PlanContext()),
        created_at=at,
        updated_at=at,
        tasks=new_tasks,
    )
    changed = workflow.model_copy(
        update={
            "plans": (*workflow.plans, plan),
            "current_plan_id": plan_id,
            "last_plan_id": plan_id,
        }
    )
    return _marked_as_changed(changed, now_ms, request_id, plan_id)


def with_task(
    workflow: Workflow,
    plan_id: str,
    task_id: str | None,
    *,
    request_id: str | None = None,
    now_ms: int,
    **fields: Unpack[TaskFields],
) -> Workflow:
    """Return the workflow with a changed task of a plan; without `task_id`, with a new task at its end.

    A field that is missing or None is unchanged. Outputs are added to those that the task has; of all these,
    only the newest `MAX_LISTED` stay. The plan's state follows from its tasks. `request_id` is stored, so
    that a repetition can be recognised.

    Raises:
        UnknownPlan, UnknownPlanTask: no such plan or task exists.
        PlanRefused: a field cannot be stored.
    """
    plan = known_plan(workflow, plan_id)
    task = known_task(plan, task_id) if task_id else _task_to_add(plan, fields.get("title"), now_ms)
    changes = _task_changes(
        task,
        title=fields.get("title"),
        status=fields.get("status"),
        description=fields.get("description"),
        now_ms=now_ms,
    )
    if outputs := fields.get("outputs"):
        new_outputs = _checked_list("output", outputs)
        changes["outputs"] = tuple(dict.fromkeys((*task.outputs, *new_outputs)))[-MAX_LISTED:]
    if (dependencies := fields.get("dependencies")) is not None:
        changes["dependencies"] = _checked_dependencies(plan, task, dependencies)
    task = task.model_copy(update=changes)
    # A changed task stays at its place, because the tasks are in the order of work.
    other_tasks = [each for each in plan.tasks if each.id != task.id]
    # A new task is not among the plan's yet: it goes to the end.
    position = next((index for index, each in enumerate(plan.tasks) if each.id == task.id), len(other_tasks))
    plan = plan.model_copy(update={"tasks": (*other_tasks[:position], task, *other_tasks[position:])})
    plan = plan.model_copy(update={"status": _status_by_tasks(plan)})
    # With the plan's id, because ids of tasks are unique only within a plan.
    changed_id = _id_with_plan(plan, task)
    return _marked_as_changed(_with_plan(workflow, plan, now_ms), now_ms, request_id, changed_id)


def task_changed_by(workflow: Workflow, request_id: str | None, plan_id: str) -> PlanTask:
    """Return the task that the request with this id, which was carried out before, changed or made.

    `plan_id` is the plan to look into if an older version, which did not store the plan, carried it out.

    Raises:
        UnknownPlan, UnknownPlanTask: the task is gone.
    """
    changed_id = workflow.id_changed_by(request_id)
    for plan in workflow.plans:
        for task in plan.tasks:
            if _id_with_plan(plan, task) == changed_id:
                return task
    # An older version stored the task's id alone.
    return known_task(known_plan(workflow, plan_id), changed_id or "")


def _id_with_plan(plan: Plan, task: PlanTask) -> str:
    """Return a task's id together with its plan's, as `Workflow.requests` has it."""
    return f"{plan.id}/{task.id}"


def with_plan_text(workflow: Workflow, plan_id: str, *, title: str, objective: str, now_ms: int) -> Workflow:
    """Return the workflow with another title and objective of a plan.

    Raises:
        UnknownPlan: no plan has this id.
        PlanRefused: a text is empty or too long.
    """
    changes = {
        "title": _checked_text("title", title, MAX_TITLE_CHARS),
        "objective": _checked_text("objective", objective, MAX_TEXT_CHARS, may_be_empty=True),
    }
    plan = known_plan(workflow, plan_id).model_copy(update=changes)
    return _marked_as_changed(_with_plan(workflow, plan, now_ms), now_ms, None, "")


def without_plan(workflow: Workflow, plan_id: str, *, now_ms: int) -> Workflow:
    """Return the workflow without the plan with this id; if it was the current one, none is now.

    Raises:
        UnknownPlan: no plan has this id.
    """
    removed = known_plan(workflow, plan_id)
    changes = {
        "plans": tuple(plan for plan in workflow.plans if plan.id != removed.id),
        "current_plan_id": None if workflow.current_plan_id == removed.id else workflow.current_plan_id,
    }
    return _marked_as_changed(workflow.model_copy(update=changes), now_ms, None, "")


def with_current(workflow: Workflow, plan_id: str | None, *, now_ms: int) -> Workflow:
    """Return the workflow with another current plan, or without one if `plan_id` is None.

    Raises:
        UnknownPlan: no plan has this id.
    """
    if plan_id is not None:
        known_plan(workflow, plan_id)
    workflow = workflow.model_copy(update={"current_plan_id": plan_id})
    return _marked_as_changed(workflow, now_ms, request_id=None, changed_id="")


def next_task(plan: Plan) -> PlanTask | None:
    """Return the task of a plan to work on next; None if there is none.

    It is the first in progress, else the first pending one whose dependencies have all ended.
    """
    ended = {task.id for task in plan.tasks if task.status.is_over}
    in_progress = [task for task in plan.tasks if task.status is PlanStatus.IN_PROGRESS]
    # A cancelled task counts as ended: a task that depends on it would otherwise never be next.
    ready = [
        task
        for task in plan.tasks
        if task.status is PlanStatus.PENDING and ended.issuperset(task.dependencies)
    ]
    return next(iter((*in_progress, *ready)), None)


def without_oldest_finished(workflow: Workflow) -> tuple[Workflow, Plan | None]:
    """Return the workflow without its oldest finished plan, and that plan.

    The current plan is never removed. If no other is finished, return the workflow unchanged, and None.
    """
    ended = [plan for plan in workflow.plans if plan.status.is_over and plan.id != workflow.current_plan_id]
    if not ended:
        return workflow, None
    oldest = min(ended, key=lambda plan: (plan.updated_at, plan.id))
    remaining = tuple(plan for plan in workflow.plans if plan.id != oldest.id)
    return workflow.model_copy(update={"plans": remaining}), oldest


def _status_by_tasks(plan: Plan) -> PlanStatus:
    """Return the state of a plan that follows from its tasks; it has at least one.

    A plan is over once all its tasks are: completed if one of them was, else cancelled. A plan that was over
    and has an open task is in progress again. Otherwise its state is unchanged.
    """
    if all(task.status.is_over for task in plan.tasks):
        is_done = any(task.status is PlanStatus.COMPLETED for task in plan.tasks)
        return PlanStatus.COMPLETED if is_done else PlanStatus.CANCELLED
    return PlanStatus.IN_PROGRESS if plan.status.is_over else plan.status


def _task_changes(
    task: PlanTask, *, title: str | None, status: str | None, description: str | None, now_ms: int
) -> dict[str, Any]:
    """Return the new values of a task's fields by name; None leaves a field unchanged.

    Raises:
        PlanRefused: a text is empty or too long, or the status is unknown.
    """
    changes: dict[str, Any] = {}
    if title is not None:
        changes["title"] = _checked_text("title", title, MAX_TITLE_CHARS)
    if description is not None:
        changes["description"] = _checked_text("description", description, MAX_TEXT_CHARS, may_be_empty=True)
    if status is not None:
        changes["status"] = _checked_status(status)
        is_completed = changes["status"] is PlanStatus.COMPLETED
        # A completed task that is set to completed once more keeps its time; a reopened one loses it.
        changes["completed_at"] = (task.completed_at or iso(now_ms)) if is_completed else None
    return changes


def _task_to_add(plan: Plan, title: str | None, now_ms: int) -> PlanTask:
    """Return a new pending task with the next free id, to be added to a plan.

    Raises:
        PlanRefused: the plan has too many tasks, or the title is missing or too long.
    """
    if len(plan.tasks) >= MAX_TASKS:
        raise PlanRefused(f"A plan has at most {MAX_TASKS} tasks: make another plan.")
    return _new_task(_next_id("task", [task.id for task in plan.tasks]), plan.id, title or "", now_ms)


def _new_task(task_id: str, plan_id: str, title: str, now_ms: int) -> PlanTask:
    """Return a pending task. Raises `PlanRefused` if the title is empty or too long."""
    return PlanTask(
        id=task_id,
        title=_checked_text("title", title, MAX_TITLE_CHARS),
        plan_id=plan_id,
        created_at=iso(now_ms),
    )


def _with_plan(workflow: Workflow, plan: Plan, now_ms: int) -> Workflow:
    """Return the workflow with `plan`, marked as updated now, in place of its plan with the same id."""
    plan = plan.model_copy(update={"updated_at": iso(now_ms)})
    return workflow.model_copy(
        update={"plans": tuple(plan if each.id == plan.id else each for each in workflow.plans)}
    )


def _marked_as_changed(workflow: Workflow, now_ms: int, request_id: str | None, changed_id: str) -> Workflow:
    """Return the workflow marked as changed now.

    If there is a `request_id`, it is recorded with `changed_id`, which says what it changed.
    """
    at = iso(now_ms)
    requests = (*workflow.requests, (request_id, changed_id)) if request_id else workflow.requests
    return workflow.model_copy(
        update={
            "last_activity": at,
            "metadata": workflow.metadata.model_copy(update={"updated_at": at}),
            "requests": requests[-MAX_REQUESTS:],
        }
    )


def _next_id(kind: str, taken: Sequence[str]) -> str:
    """Return a new id of a plan or task (`kind`), such as `plan_007`.

    Its number is one more than the largest in the ids `taken`.
    """
    numbers = (used_id.removeprefix(f"{kind}_") for used_id in taken)
    # Imported ids may be anything; a very long number would make all later ids as long.
    newest = max((int(number) for number in numbers if number.isdecimal() and len(number) < 16), default=0)
    return f"{kind}_{newest + 1:03d}"


def _checked_text(name: str, text: str, limit: int, *, may_be_empty: bool = False) -> str:
    """Return a text on one line, with its secrets replaced. `name` is what an error calls it.

    Raises:
        PlanRefused: it has more than `limit` characters or, unless allowed, is empty.
    """
    clean = redact(" ".join(text.split()))
    if not clean and not may_be_empty:
        raise PlanRefused(f"The {name} is empty: say in a few words what it is.")
    if len(clean) > limit:
        raise PlanRefused(f"The {name} has {len(clean):,} characters; at most {limit:,} are kept.")
    return clean


def _checked_list(name: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return texts, each on one line and with its secrets replaced. `name` is what an error calls one.

    Raises:
        PlanRefused: there are more than `MAX_LISTED`, or one is empty or too long.
    """
    if len(texts) > MAX_LISTED:
        raise PlanRefused(f"At most {MAX_LISTED} are kept of each {name}: leave some out.")
    return tuple(_checked_text(name, text, MAX_TEXT_CHARS) for text in texts)


def _checked_context(context: PlanContext) -> PlanContext:
    """Return the background of a plan, each text on one line and with its secrets replaced.

    Raises:
        PlanRefused: a text is too long, or there are too many.
    """
    return PlanContext(
        background=_checked_text("background", context.background, MAX_TEXT_CHARS, may_be_empty=True),
        constraints=_checked_list("constraint", context.constraints),
        references=_checked_list("reference", context.references),
    )


def _checked_dependencies(plan: Plan, task: PlanTask, ids: Sequence[str]) -> tuple[str, ...]:
    """Return the ids `ids`, each once, of the tasks of a plan that must end before `task`.

    Raises:
        UnknownPlanTask: the plan has no task with one of them.
        PlanRefused: the task would wait for itself, directly or through others.
    """
    dependencies = tuple(dict.fromkeys(known_task(plan, task_id).id for task_id in ids))
    waits_for = {other.id: other.dependencies for other in plan.tasks}
    # Follow the dependencies of dependencies. A list and not recursion: a chain of 500 tasks must not reach
    # Python's recursion limit.
    to_visit, visited = list(dependencies), set[str]()
    while to_visit:
        if (task_id := to_visit.pop()) == task.id:
            raise PlanRefused(f"Task {task.id} would wait for itself: leave a task out.")
        if task_id not in visited:
            visited.add(task_id)
            to_visit += waits_for.get(task_id, ())
    return dependencies


def _checked_status(word: str) -> PlanStatus:
    """Return the state that a word of an agent means. Raises `PlanRefused` for an unknown word."""
    status = status_of(word)
    # A misspelt state is refused here, where an agent can correct it; in a file it counts as pending.
    if status is PlanStatus.PENDING and _status_key(word) not in {"pending", *_ALIASES}:
        raise PlanRefused(f"'{word}' is no state. There are: {', '.join(PlanStatus)}.")
    return status


def _list_of_ids(ids: Iterable[str], opening: str, *, if_none: str) -> str:
    """Return a sentence to add to an error, which lists the first 20 ids; `if_none` if there are none."""
    listed = ", ".join(list(ids)[:20])
    return f"{opening}: {listed}." if listed else if_none
