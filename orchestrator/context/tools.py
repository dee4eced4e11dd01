"""Carry out the context tools that an agent uses on its group's context, one call each. Blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from pydantic import ValidationError

from agent_runner.wire import context_tools as wire
from agent_runner.wire.mailbox import Reply
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.memory import WORKSPACE
from orchestrator.context.workflow import Plan, PlanContext, PlanTask
from orchestrator.domain.errors import BadRequest, ContextBusy

ToolRequest = (
    wire.SetActivePlan
    | wire.SetActiveTask
    | wire.RecordDecision
    | wire.NoteOpenFile
    | wire.CreatePlan
    | wire.UpdatePlanTask
    | wire.Compacting
    | wire.Compacted
)


class ContextToolRefused(BadRequest):
    """The arguments of a tool cannot be stored; the text says why."""

    def __init__(self, code: str, text: str) -> None:
        """`code` is the code of the reply, `text` its text."""
        self.code = code
        super().__init__(text)


def use(
    manager: ContextManager, tool: str, arguments: Mapping[str, Any], *, request_id: str, now_ms: int
) -> Reply:
    """Carry out a call of a tool on a group's stored context and return the reply. Blocks.

    A call that fails gets a reply with an error code. A request that arrives again with the same `request_id`
    makes no second plan or task, and changes no task again; what the other tools store is stored once more.
    """
    try:
        request = _validated_request(tool, arguments)
        return _ToolRunner(manager, request_id, now_ms).do(request)
    except (BadRequest, ContextBusy) as error:
        return _refusal(request_id, error.code, str(error))
    except OSError as error:
        return _refusal(request_id, "disk", f"The host could not keep it: {error.strerror or error}.")


def busy(folder: str, request_id: str) -> Reply:
    """Return the reply to a tool call that could not be done because the group's files were locked."""
    error = ContextBusy(folder)
    return _refusal(request_id, error.code, str(error))


def _validated_request(tool: str, arguments: Mapping[str, Any]) -> Any:
    """Return the validated arguments of a tool, as the model of its request.

    Raises:
        ContextToolRefused: there is no such tool, or the arguments do not fit.
    """
    if (kind := wire.ARGUMENTS.get(tool)) is None:
        raise ContextToolRefused(
            "unknown_tool", f"There is no tool '{tool}'. There are: {', '.join(wire.ARGUMENTS)}."
        )
    try:
        return kind.model_validate(arguments)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        # The path of the wrong field; empty if the arguments as a whole are wrong.
        place = ".".join(str(part) for part in first["loc"]) or "arguments"
        raise ContextToolRefused("bad_arguments", f"{place}: {first['msg']}.") from error


def _refusal(request_id: str, code: str, text: str) -> Reply:
    """Return the reply to a request that was not carried out."""
    return Reply(request_id=request_id, ok=False, code=code, text=text)


class _ToolRunner:
    """Carries out one request on one context."""

    def __init__(self, manager: ContextManager, request_id: str, now_ms: int) -> None:
        """`request_id` identifies the request, so that a repeated one makes no second plan or task."""
        self._manager = manager
        self._request_id = request_id
        self._now_ms = now_ms

    def do(self, request: ToolRequest) -> Reply:
        """Carry out a request and return the reply. Raises `BadRequest`, `ContextBusy` and `OSError`."""
        match request:
            case wire.SetActivePlan():
                return self._set_active_plan(request)
            case wire.SetActiveTask(task_id=task_id):
                return self._set_active_task(task_id)
            case wire.RecordDecision(decision=decision):
                return self._record_decision(decision)
            case wire.NoteOpenFile(path=path):
                return self._note_open_file(path)
            case wire.CreatePlan():
                return self._create_plan(request)
            case wire.UpdatePlanTask():
                return self._update_task(request)
            case wire.Compacting() | wire.Compacted():
                return self._handle_compaction(request)
            case _:
                assert_never(request)

    def _set_active_plan(self, request: wire.SetActivePlan) -> Reply:
        """Make the plan of the request the active one, or no plan if it names none.

        If the request says so (`resets_summary`), the plan's text replaces the conversation's summary.
        """
        plan = self._manager.set_active_plan(
            request.plan_id, resets_summary=request.resets_summary, now_ms=self._now_ms
        )
        return self._success(
            f"The active plan is {_plan_label(plan)}." if plan else "No plan is active.",
            plan_id=plan.id if plan else None,
        )

    def _set_active_task(self, task_id: str | None) -> Reply:
        """Make a task of the active plan the active one, or none if `task_id` is None."""
        task = self._manager.set_active_task(task_id, now_ms=self._now_ms)
        return self._success(
            f"The active task is {_task_label(task)}." if task else "No task is active.",
            task_id=task.id if task else None,
        )

    def _record_decision(self, decision: str) -> Reply:
        """Store a decision; the reply has the number of stored decisions. Raises `ContextToolRefused`."""
        _check_length("decision", decision, wire.MAX_DECISION_CHARS)
        decisions = self._manager.record_decision(decision, now_ms=self._now_ms)
        return self._success("Kept.", decisions=len(decisions))

    def _note_open_file(self, path: str) -> Reply:
        """Store the path of a file that the agent works on, relative to the group's folder.

        The reply has all stored paths. Raises `ContextToolRefused`.
        """
        # `/workspace/group/a.md` and `a.md` are the same file, which must not be listed twice.
        path = path.strip().removeprefix(f"{WORKSPACE}/")
        _check_length("path", path, wire.MAX_PATH_CHARS)
        open_files = self._manager.note_open_file(path, now_ms=self._now_ms)
        return self._success("Noted.", open_files=list(open_files))

    def _create_plan(self, request: wire.CreatePlan) -> Reply:
        """Create a plan, which becomes the active one. Raises `ContextToolRefused`."""
        _check_length("title", request.title, wire.MAX_TITLE_CHARS)
        _check_length("objective", request.objective, wire.MAX_OBJECTIVE_CHARS, may_be_empty=True)
        if len(request.tasks) > wire.MAX_TASKS:
            raise ContextToolRefused(
                "too_many", f"A plan begins with at most {wire.MAX_TASKS} tasks; add more later."
            )
        for title in request.tasks:
            _check_length("title of a task", title, wire.MAX_TITLE_CHARS)
        plan = self._manager.create_plan(
            request.title,
            objective=request.objective,
            tasks=request.tasks,
            context=PlanContext(
                background=request.background, constraints=request.constraints, references=request.references
            ),
            request_id=self._request_id,
            now_ms=self._now_ms,
        )
        tasks = {task.id: task.title for task in plan.tasks}
        return self._success(f"Made and active: {_plan_label(plan)}.", plan_id=plan.id, tasks=tasks)

    def _update_task(self, request: wire.UpdatePlanTask) -> Reply:
        """Change a task of a plan, or add one if the request names no task. Raises `ContextToolRefused`.

        Without a plan in the request, the active plan is meant.
        """
        if request.title is not None or not request.task_id:
            _check_length("title", request.title or "", wire.MAX_TITLE_CHARS)
        _check_length("description", request.description or "", wire.MAX_OBJECTIVE_CHARS, may_be_empty=True)
        if not request.plan_id and not self._has_plan_to_update():
            raise ContextToolRefused(
                "no_plan", "No plan is active: name one, or create one with create_plan."
            )
        task = self._manager.update_plan_task(
            request.task_id or None,
            plan_id=request.plan_id or None,
            title=request.title,
            status=request.status,
            description=request.description,
            dependencies=request.dependencies,
            outputs=request.outputs,
            request_id=self._request_id,
            now_ms=self._now_ms,
        )
        return self._success(
            f"The task is {_task_label(task)}, {task.status.value}.", plan_id=task.plan_id, task_id=task.id
        )

    def _handle_compaction(self, request: wire.Compacting | wire.Compacted) -> Reply:
        """Handle a compaction: the agent's program replaces the older part of its session by a summary.

        Before it, a snapshot is taken, and the reply has the text on plans and decisions to repeat to the
        session. After it, the session's summary is merged into the stored one.
        """
        if isinstance(request, wire.Compacting):
            self._manager.snapshot(now_ms=self._now_ms, reason="compact")
            return self._success("Kept.", meta=self._manager.meta(now_ms=self._now_ms))
        if request.summary.strip():
            self._manager.join_summary(request.summary, now_ms=self._now_ms)
        return self._success("Kept.")

    def _has_plan_to_update(self) -> bool:
        """Return whether a plan is active, or this request changed one when it was carried out before."""
        stored = self._manager.load(now_ms=self._now_ms)
        is_repeated = stored.workflow.id_changed_by(self._request_id) is not None
        return is_repeated or bool(stored.context.memory.active_plan_id)

    def _success(self, text: str, **data: Any) -> Reply:
        """Return the reply to a request that was carried out; `data` are its fields for programs."""
        return Reply(request_id=self._request_id, ok=True, code="ok", text=text, data=data)


def _check_length(name: str, text: str, limit: int, *, may_be_empty: bool = False) -> None:
    """Raise `ContextToolRefused` if a text has more than `limit` characters or, unless allowed, is empty.

    `name` is what the message calls the text.
    """
    if not text.strip() and not may_be_empty:
        raise ContextToolRefused("empty", f"The {name} is empty: say in a few words what it is.")
    if len(text.strip()) > limit:
        raise ContextToolRefused(
            "too_long", f"The {name} has {len(text.strip()):,} characters; at most {limit:,}."
        )


def _plan_label(plan: Plan) -> str:
    """Return a plan's id and title, as replies name it."""
    return f"{plan.id}, '{plan.title}'"


def _task_label(task: PlanTask) -> str:
    """Return a task's id and title, as replies name it."""
    return f"{task.id}, '{task.title}'"
