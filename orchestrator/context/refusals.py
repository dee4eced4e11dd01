"""What a person or an agent asked of a context and cannot have: each names the mend."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.domain.errors import BadRequest


def _listed(ids: Iterable[str]) -> str:
    known = list(ids)
    return f" There are: {', '.join(known[:20])}." if known else " There is none yet: create a plan first."


class UnknownPlan(BadRequest):
    """There is no such plan."""

    code = "unknown_plan"
    http_status = 404

    def __init__(self, plan_id: str, known: Iterable[str] = ()) -> None:
        super().__init__(f"There is no plan '{plan_id}'.{_listed(known)}")


class UnknownPlanTask(BadRequest):
    """The plan has no such task."""

    code = "unknown_plan_task"
    http_status = 404

    def __init__(self, task_id: str, known: Iterable[str] = ()) -> None:
        super().__init__(f"There is no task '{task_id}' in that plan.{_listed(known)}")


class PlanRefused(BadRequest):
    """The plan cannot be kept like this."""

    code = "plan_refused"


class UnknownSnapshot(BadRequest):
    """There is no such snapshot."""

    code = "unknown_snapshot"
    http_status = 404

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no snapshot '{name}': 'andy context snapshots GROUP' lists them.")


class SnapshotDamaged(BadRequest):
    """The snapshot cannot be read."""

    code = "snapshot_damaged"
    http_status = 409

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"The snapshot '{name}' cannot be restored ({why}); nothing was changed.")
