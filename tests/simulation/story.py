"""Tell a world in plain words."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.world import Line, Outcome

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
