"""A follow-up to a container that lives: from the message to its agent, without a model."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from benchmarks import engine
from benchmarks.figures import Figure, Series, median_of, p99_of
from benchmarks.host import RunningHost, of_kind, running_host
from benchmarks.places import Effort, progress

FOLLOW_UPS = 200
PAUSE_SECONDS = 0.15
"""Between follow-ups: the host lets a container speak twenty frames a second, and a turn has four.
Two hundred frames more are not held back."""
MEDIAN_MS = 20.0
P99_MS = 100.0
COMMITS = 3
"""On the way: the message, the hand-over, the acknowledgement."""
STEPS = ("turn.handed_over", "turn.acknowledged", "turn.answered", "message.sent")


async def measure(effort: Effort) -> list[Figure]:
    await asyncio.to_thread(engine.ensure_image)
    return [await _hot(runtime, effort.times(FOLLOW_UPS)) for runtime in ("docker", "process")]


async def _hot(runtime: str, times: int) -> Figure:
    """In turns with as many commits as the way has, on the same disk."""
    steps: dict[str, list[float]] = {step: [] for step in STEPS}
    commits: list[float] = []
    with tempfile.TemporaryDirectory(prefix="andy-bench-") as folder:
        async with running_host(runtime=runtime) as host:  # type: ignore[arg-type]
            await _follow_up(host, "add milk to the shopping list")
            for number in range(times):
                for step, ms in (await _follow_up(host, "show the shopping list")).items():
                    steps[step].append(ms)
                await asyncio.sleep(PAUSE_SECONDS)
                commits.append(await asyncio.to_thread(_commits, Path(folder) / "floor.db"))
                if (number + 1) % 50 == 0:
                    progress(f"{runtime}: {number + 1} of {times} follow-ups")
    return _figure(runtime, steps, commits)


async def _follow_up(host: RunningHost, text: str) -> dict[str, float]:
    """Milliseconds from the stored message to each step, by the host's own clock."""
    message = await host.say("main", text)
    queued = await host.event(of_kind("message.queued", message=message))
    passed = {}
    while "message.sent" not in passed:
        event = await host.event(lambda event: event.get("turn") == queued["turn"])
        passed[event["kind"]] = float(event["at_ms"] - queued["at_ms"])
    return {step: passed[step] for step in STEPS if step in passed}


def _commits(path: Path) -> float:
    """Milliseconds of the commits alone, as durable as the store's."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, text TEXT)")
        began = time.perf_counter()
        for _ in range(COMMITS):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO rows (text) VALUES ('a message of some length')")
            connection.execute("COMMIT")
        return 1000 * (time.perf_counter() - began)


def _figure(runtime: str, steps: dict[str, list[float]], commits: list[float]) -> Figure:
    def series(name: str, values: list[float]) -> Series:
        return Series(name=name, unit="ms", values=tuple(values))

    acknowledged = series("accepted → in the agent's hands", steps["turn.acknowledged"])
    return Figure(
        name=f"A follow-up, offline agent, {runtime}",
        measured=acknowledged,
        floor=series(f"floor: {COMMITS} durable commits", commits),
        checks=(median_of(acknowledged, MEDIAN_MS), p99_of(acknowledged, P99_MS)),
        details=(
            series("accepted → file written", steps["turn.handed_over"]),
            series("accepted → answered", steps["turn.answered"]),
            series("accepted → reply sent", steps["message.sent"]),
        ),
    )
