"""The notices of a run beside the simplest model of them: each is told once, or goes back, or waits."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runner.ans.notices import RunNotices
from agent_runner.wire.notices import Notice

BEGIN = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
POINTS = ("immediate", "turn_start", "after_tool", "turn_end")
PRIORITIES = ("low", "normal", "high", "critical")
NOTE = re.compile(r"^\[NOTE\] (own \d+)\.*$", re.MULTILINE)
KEPT = re.compile(r"^\[NOTE\] kept (\d+)\.* \(notice \1\)$", re.MULTILINE)

steps = st.lists(
    st.one_of(
        st.tuples(st.just("notes"), st.sampled_from(PRIORITIES), st.sampled_from(POINTS)),
        st.tuples(st.just("is given"), st.sampled_from(PRIORITIES), st.sampled_from([None, "", "Bash"])),
        st.tuples(st.just("ends a tool"), st.sampled_from(["Read", "Bash"]), st.none()),
        st.tuples(st.just("is told"), st.sampled_from(POINTS), st.sampled_from(["low", "high"])),
        st.tuples(st.just("is told in little room"), st.sampled_from(POINTS), st.integers(0, 900)),
        st.tuples(st.just("is cut off"), st.sampled_from(POINTS), st.integers(0, 3)),
        st.tuples(st.just("begins a turn"), st.none(), st.none()),
        st.tuples(st.just("fails a turn"), st.none(), st.none()),
    ),
    max_size=40,
)


class Run:
    """A run, all that it was asked to tell, and all that it told."""

    def __init__(self) -> None:
        self.passed = timedelta()
        self.notices = RunNotices(None, now=lambda: BEGIN + self.passed)
        self.noted: list[str] = []
        self.given: list[int] = []
        self.told: Counter[str] = Counter()
        self.told_now: Counter[str] = Counter()
        """In this turn."""
        self.told_kept: Counter[int] = Counter()
        self.returned: list[int] = []
        self.failed: list[int] = []
        """Told by the host's own, in a turn that failed: the host gives them again."""
        self.notices.begin_turn()

    def read(self, text: str, limit: int = 9_500) -> None:
        assert len(text) <= limit
        assert text.count("<") == (2 if text else 0), "one wrapper"
        self.told.update(NOTE.findall(text))
        self.told_now.update(NOTE.findall(text))
        self.told_kept.update(map(int, KEPT.findall(text)))

    def begin_turn(self, *, is_well: bool = True) -> None:
        ended = self.notices.end_turn(is_well=is_well)
        self.returned += ended.returned
        reported = {each.id for each in ended.delivered if each.id is not None}
        assert reported <= set(self.told_kept)
        assert not reported & set(ended.returned)
        if not is_well:
            self.told.subtract(self.told_now)
            self.told_kept.subtract(reported)
            self.failed += reported
        self.told_now.clear()
        self.notices.begin_turn()

    async def take(self, what: str, first: object, second: object) -> None:
        self.passed += timedelta(milliseconds=700)
        match what:
            case "notes":
                self.noted.append(f"own {len(self.noted)}")
                payload = {"message": self.noted[-1] + "." * 300, "priority": first, "inject_at": second}
                self.notices.emit("agent.self.notify", "info", payload)
            case "is given":
                number = len(self.given) + 1
                self.given.append(number)
                payload = {"message": f"kept {number}" + "." * 300}
                self.notices.give(
                    [
                        Notice(
                            id=number,
                            event_type="agent.self.notify",
                            source="agent",
                            priority=first,  # type: ignore[arg-type]
                            payload=payload,
                            tool_name=second,  # type: ignore[arg-type]
                        )
                    ]
                )
            case "ends a tool":
                self.notices.tool_ended(str(first))
            case "is told":
                self.read(await self.notices.drain(first, at_least=second))  # type: ignore[arg-type]
            case "is told in little room":
                self.read(await self.notices.drain(first, limit=second), second)  # type: ignore[arg-type]
            case "is cut off":
                await self.cut_off(first, second)
            case "begins a turn":
                self.begin_turn()
            case "fails a turn":
                self.begin_turn(is_well=False)

    async def cut_off(self, point: object, switches: object) -> None:
        """Cancel a drain after a few looks at it: it told all that it says it did, or nothing."""
        drain = asyncio.create_task(self.notices.drain(point), name="drain")  # type: ignore[arg-type]
        for _ in range(int(switches)):  # type: ignore[call-overload]
            await asyncio.sleep(0)
        drain.cancel()
        with suppress(asyncio.CancelledError):
            self.read(await drain)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_whatever_happens_each_is_told_once_or_goes_back_or_waits(taken):
    """N-20 to N-26, N-64, N-74: over all that may come together, cut off at any moment."""

    async def live() -> None:
        run = Run()
        for step in taken:
            await run.take(*step)
        run.begin_turn()
        while text := await run.notices.drain("turn_start"):
            run.read(text)

        assert set(run.told.values()) <= {1}, "nothing twice"
        assert set(run.told) == set(run.noted), "nothing lost"
        assert set(run.told_kept.values()) <= {0, 1}
        assert sorted([*run.told_kept.elements(), *run.returned, *run.failed]) == run.given
        assert run.notices.pending == 0

    asyncio.run(live())
