"""What the tests of notices share: a clock of their own, and subscribers by a few words."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_runner.ans.event import EventLevel, NoticeEvent
from agent_runner.ans.notices import RunNotices
from agent_runner.ans.subscriber import Subscriber, parse_subscriber

BEGIN = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)


class SetClock:
    """A clock that goes only when it is told to."""

    def __init__(self) -> None:
        self._passed_ms = 0

    def __call__(self) -> datetime:
        return BEGIN + timedelta(milliseconds=self._passed_ms)

    def advance(self, ms: int) -> None:
        self._passed_ms += ms

    @property
    def ms(self) -> int:
        return int(self().timestamp() * 1000)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


Happen = Callable[..., NoticeEvent]


@pytest.fixture
def happen(clock: SetClock) -> Happen:
    """Make an event of now."""

    def make(event_type: str = "tool.call.failure", severity: str = "error", **payload: Any) -> NoticeEvent:
        return NoticeEvent(
            type=event_type,
            source="test",
            severity=EventLevel.of(severity),
            payload=payload,
            timestamp=clock(),
        )

    return make


def toml(**changes: Any) -> str:
    """The TOML of a subscriber that takes everything of `tool.*`; `table__key` changes a value."""
    tables: dict[str, dict[str, Any]] = {
        "subscriber": {"id": "probe", "name": "A probe"},
        "events": {"types": ["tool.*"], "severity_filter": "debug"},
        "batching": {"window_ms": 2_000, "max_size": 10, "dedupe_window_ms": 0},
        "output": {"template": "probe.j2"},
    }
    for name, value in changes.items():
        table, key = name.split("__")
        if value is None:
            tables[table].pop(key, None)
        else:
            tables[table][key] = value
    return "\n".join(
        f"[{table}]\n" + "\n".join(f"{key} = {_literal(value)}" for key, value in keys.items())
        for table, keys in tables.items()
    )


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


MakeSubscriber = Callable[..., Subscriber]


@pytest.fixture
def subscriber() -> MakeSubscriber:
    def make(**changes: Any) -> Subscriber:
        return parse_subscriber(toml(**changes))

    return make


@pytest.fixture
def as_toml() -> Callable[..., str]:
    return toml


@pytest.fixture
def notices(tmp_path: Path, clock) -> RunNotices:
    made = RunNotices(tmp_path, now=clock)
    made.begin_turn()
    return made
