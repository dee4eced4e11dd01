"""Who keeps dashboards up, by the settings. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMode:
    """What an upkeep of a dashboard consists of."""

    applies_rules: bool
    """The rules do what they plan, and stand in for a model that fails."""
    asks_model: bool

    @property
    def does_anything(self) -> bool:
        return self.applies_rules or self.asks_model


def mode_of(*, enabled: bool, use_llm: bool, fallback_to_rules: bool) -> WorkerMode:
    """Off beats all. Without the fallback rules only say whether there is something to judge."""
    return WorkerMode(applies_rules=enabled and fallback_to_rules, asks_model=enabled and use_llm)
