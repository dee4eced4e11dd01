"""Runs the host's loops: a failed one is run again after growing pauses, while the others go on.

A few loops are essential: without them the host's state becomes wrong. Such a loop ends the host when it
fails ten times in a row. Any other is reported and retried without end, and the host goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TypedDict

import structlog

from orchestrator.base.backoff import doubled_pause
from orchestrator.base.clock import Clock
from orchestrator.base.redaction import redact

log = structlog.get_logger(__name__)

Loop = Callable[[], Awaitable[None]]
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
"""The longest pause of an essential loop, in seconds."""
LONGEST_OTHER_PAUSE_SECONDS = 300.0
"""The longest pause of any other loop, in seconds."""
HEALTHY_MS = 60_000
"""Milliseconds that a loop has to run without an error before its earlier failures no longer count."""
MAX_FAILURES = 10
"""Failures in a row of an essential loop that end the host."""
REPORTED_FAILURES = 3
"""Failures in a row after which the owner is notified: fewer may be a hiccup."""
MAX_REASON_CHARS = 300
"""Most characters of the reason of a failure."""


class LoopEnded(Exception):
    """The loop returned, which it never should."""


class LoopFailureView(TypedDict):
    """A loop that fails at the moment, as the status shows it."""

    name: str
    reason: str
    failures: int
    since_ms: int
    next_try_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopFailure:
    """A loop that is failing. Times are epoch milliseconds, UTC."""

    name: str
    reason: str
    failures: int
    """Failures in a row."""
    since_ms: int
    """When the first of them happened."""
    next_try_ms: int

    def to_json_dict(self) -> LoopFailureView:
        """Return the fields by name, as the status shows them."""
        return {
            "name": self.name,
            "reason": self.reason,
            "failures": self.failures,
            "since_ms": self.since_ms,
            "next_try_ms": self.next_try_ms,
        }


@dataclass(slots=True)
class _LoopState:
    failures: int = 0
    lasting_failures: int = 0
    """The number of `failures` without those that may end by themselves, such as a full disk."""
    since_ms: int = 0
    started_ms: int = 0
    """When it last started to run, by the steady clock."""
    waits_until_ms: int = 0
    """The end of the pause after its latest failure, by the steady clock."""
    failure: LoopFailure | None = None
    is_reported: bool = False
    is_temporary: bool = False
    """Whether its latest failure may end by itself, such as a full disk."""


class Supervisor:
    """Runs the loops of one host, and knows which of them fail."""

    def __init__(
        self,
        *,
        clock: Clock,
        essential: Collection[str],
        endless: Callable[[str], bool] = lambda _: False,
        report: Callable[[LoopFailure], Awaitable[None]] | None = None,
    ) -> None:
        """`essential` names the loops that may end the host.

        `endless` returns whether the loop of a name should never return: if it does, that is a failure. Any
        other loop is done when it returns. `report` notifies the owner of a loop that keeps failing; if it
        raises, it is called again later.
        """
        self._clock = clock
        self._essential = essential
        self._endless = endless
        self._report = report
        self._states: dict[str, _LoopState] = {}

    def failing(self) -> dict[str, LoopFailure]:
        """Return the loops that fail now, by name.

        A loop that has run for longer than `HEALTHY_MS` since its last failure is left out.
        """
        return {
            name: state.failure
            for name, state in self._states.items()
            if state.failure is not None and not self._is_healthy(state)
        }

    async def run(self, name: str, loop: Loop) -> None:
        """Run `loop` until it returns; after an exception run it again, after growing pauses.

        A loop that should never end is also run again after it returned. The tenth failure in a row of an
        essential loop is raised. An error that may end without any change of the program, such as a full
        disk, is never raised, however often it comes, and is not one of the ten.
        """
        state = self._states[name] = _LoopState()
        while True:
            state.started_ms = self._clock.steady_ms()
            try:
                await loop()
                if not self._endless(name):
                    return
                pause = self._count_failure(name, state, LoopEnded("it ended by itself"))
            except BaseException as error:
                if not _is_failure(error):
                    raise
                if _is_cancelled():
                    # An error while the loop ended must not prevent the host from ending.
                    log.warning("loop.broke_at_the_end", loop=name, exc_info=error)
                    raise asyncio.CancelledError from error
                pause = self._count_failure(name, state, error)
            await self._report_failure(state)
            await asyncio.sleep(pause)

    def _is_healthy(self, state: _LoopState) -> bool:
        """Return whether a loop has run for longer than `HEALTHY_MS` without a failure."""
        # A loop that waits for its next attempt does not run, however long it waits.
        is_waiting = self._clock.steady_ms() < state.waits_until_ms
        return not is_waiting and self._clock.steady_ms() - state.started_ms > HEALTHY_MS

    def _count_failure(self, name: str, state: _LoopState, error: BaseException) -> float:
        """Count a failure of a loop, log it, and return the seconds until the next try.

        Raises `error` itself, which ends the host, if it is failure number `MAX_FAILURES` in a row of an
        essential loop. Failures that may end by themselves, such as a full disk, are never raised, and are
        not counted for that.
        """
        # By the steady clock: a jump of the wall clock must make no loop healthy.
        if state.failures == 0 or self._clock.steady_ms() - state.started_ms > HEALTHY_MS:
            state.failures, state.lasting_failures = 0, 0
            state.since_ms, state.is_reported = self._clock.now_ms(), False
        state.failures += 1
        is_essential = name in self._essential
        # An attribute of `StoreError`. All errors of a group have to be temporary.
        state.is_temporary = all(getattr(leaf, "is_temporary", False) for leaf in _leaves(error))
        state.lasting_failures += not state.is_temporary
        if is_essential and state.lasting_failures >= MAX_FAILURES and not state.is_temporary:
            log.critical("loop.gave_up", loop=name, failures=state.failures, exc_info=error)
            raise error
        longest = LONGEST_PAUSE_SECONDS if is_essential else LONGEST_OTHER_PAUSE_SECONDS
        pause = doubled_pause(FIRST_PAUSE_SECONDS, longest, failures=state.failures)
        state.waits_until_ms = self._clock.steady_ms() + int(pause * 1000)
        state.failure = LoopFailure(
            name=name,
            reason=reason_of(error),
            failures=state.failures,
            since_ms=state.since_ms,
            next_try_ms=self._clock.now_ms() + int(pause * 1000),
        )
        log.error("loop.restarts", loop=name, failures=state.failures, pause_seconds=pause, exc_info=error)
        return pause

    async def _report_failure(self, state: _LoopState) -> None:
        """Notify the owner once of a loop that failed `REPORTED_FAILURES` times in a row.

        If the notification fails, it is tried again at the next failure. Nothing is sent while the latest
        failure is one that may end by itself, such as a full disk.
        """
        if self._report is None or state.failure is None or state.is_reported:
            return
        # The owner cannot be notified through a database that cannot be written. `andy doctor` and the status
        # show this failure instead. A later failure of another kind is reported here.
        if state.is_temporary:
            return
        if state.failures < REPORTED_FAILURES:
            return
        try:
            await self._report(state.failure)
        except Exception:
            log.exception("loop.not_reported", loop=state.failure.name)
        else:
            state.is_reported = True


def reason_of(error: BaseException) -> str:
    """Return the class and text of an error as one short line without secrets.

    For an exception group, they are those of the first error in it.
    """
    first = next(_leaves(error))
    words = " ".join(redact(str(first)).split())[:MAX_REASON_CHARS]
    return f"{type(first).__name__}: {words}" if words else type(first).__name__


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors in an exception group, at any depth; any other error itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _is_failure(error: BaseException) -> bool:
    """Return whether an error is the loop's own failure, not a request to end the task or the program.

    A library's `sys.exit`, and an unrequested cancellation, are failures. A keyboard interrupt is none.
    """
    errors = list(_leaves(error))
    if any(isinstance(inner, KeyboardInterrupt | GeneratorExit) for inner in errors):
        return False
    return not (_is_cancelled() and all(isinstance(inner, asyncio.CancelledError) for inner in errors))


def _is_cancelled() -> bool:
    """Return whether somebody has requested the cancellation of this task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
