"""Tell whether there is a credential of the model service, and whether the service accepts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.domain import failures
from orchestrator.store.model_refusals import ModelRefusal


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialStatus:
    """Whether there is one, its name, what is wrong with it, and whether it is taken. Never its value."""

    setting: str | None = None
    problem: str | None = None
    refusals: Sequence[ModelRefusal] = ()
    """Why the model service answers nothing, or not for one model."""
    accepted_ms: int | None = None
    """When the model answered last."""

    def to_json_dict(self) -> dict[str, Any]:
        is_accepted = False if self.refusals else True if self.accepted_ms else None
        return {
            "present": self.setting is not None,
            "setting": self.setting,
            "problem": self.problem,
            "accepted": is_accepted,
            "accepted_ms": self.accepted_ms,
            "refusals": [_refusal(one) for one in self.refusals],
        }


def _refusal(one: ModelRefusal) -> dict[str, Any]:
    about = {"setting": one.setting, "model": one.model}
    return {
        "cause": one.cause.value,
        "model": one.model or None,
        "since_ms": one.since_ms,
        "text": failures.refusal_cause(one.cause, status=one.status, **about),
        "mend": failures.refusal_mend(one.cause, **about),
    }
