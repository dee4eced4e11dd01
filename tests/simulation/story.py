"""Tell a world in plain words, and find the few things in it that matter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from tests.simulation.people import Plan
from tests.simulation.world import Line, Outcome, World

HEARD = ("said", "andy", "fault", "host", "world", "container")
"""Kinds of lines that are always part of the story."""
TELLING_EVENTS = (
    "turn.started", "turn.answered", "turn.failed", "turn.put_back", "turn.retried", "run.started",
    "run.adopted", "run.rejoined", "message.dead", "message.unknown", "message.sent", "notification.created",
)  # fmt: skip


def story_of(outcome: Outcome, *, is_whole: bool = False) -> Iterator[str]:
    """Return a world's lines for a reader: what people and misfortune did, and what Andy made of it."""
    yield (
        f"The world of seed {outcome.seed}: {outcome.hours:.1f} virtual hours, {outcome.steps} steps,"
        f" {outcome.kills} kills of the host, {outcome.messages} messages, {outcome.answers} of Andy's."
    )
    yield from (str(line) for line in outcome.lines if is_whole or _is_telling(line))
    yield from (f"BROKEN PROMISE: {problem}" for problem in outcome.problems)
    if not outcome.problems:
        yield "Every promise was kept."


def _is_telling(line: Line) -> bool:
    if line.kind == "event":
        return line.text.split(" ", 1)[0] in TELLING_EVENTS
    if line.kind == "log":
        return line.text.startswith(("error", "critical", "exception"))
    return line.kind in HEARD


def shrink(seed: str, plan: Plan, *, seconds: float, say: Callable[[str], None]) -> Plan:
    """Return a plan with as little in it as still breaks a promise in the same way; try for so many seconds.

    The seed stays, but with one thing less in the plan the loop draws other orders: a world that breaks
    nothing any more only says that this thing mattered, or that its moment did.
    """
    kind = _kind_of(World(seed, plan).run())
    end = time.process_time() + seconds
    found = True
    while found:
        found = False
        for less in plan.parts():
            if time.process_time() > end:
                return plan
            if _kind_of(World(seed, less).run()) == kind:
                plan, found = less, True
                say(f"… {len(plan.said)} messages, {len(plan.faults)} faults are enough")
                break
    return plan


def _kind_of(outcome: Outcome) -> str:
    """Return the first words of the first problem: worlds that break the same promise have the same."""
    return " ".join(outcome.problems[0].split()[:2]) if outcome.problems else ""
