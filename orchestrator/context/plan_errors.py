"""Say why a plan, or a task of one, cannot be found or kept."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.domain.errors import BadRequest


def _known_ids(ids: Iterable[str]) -> str:
    known = list(ids)
    return f" There are: {', '.join(known[:20])}." if known else " There is none yet: create a plan first."


class UnknownPlan(BadRequest):
    """No plan has this id."""

    code = "unknown_plan"
    http_status = 404

    def __init__(self, plan_id: str, known: Iterable[str] = ()) -> None:
        super().__init__(f"There is no plan '{plan_id}'.{_known_ids(known)}")


class UnknownPlanTask(BadRequest):
    """The plan has no task with this id."""

    code = "unknown_plan_task"
    http_status = 404

    def __init__(self, task_id: str, known: Iterable[str] = ()) -> None:
        super().__init__(f"There is no task '{task_id}' in that plan.{_known_ids(known)}")


class PlanRefused(BadRequest):
    """The plan cannot be kept in this form."""

    code = "plan_refused"
