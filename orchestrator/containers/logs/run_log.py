"""Write one log per run, with its settings, its events and its container's stderr."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import assert_never

import structlog

from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import HostEvent
from orchestrator.base.wakeups import Wakeup
from orchestrator.containers.logs import files
from orchestrator.containers.logs.flow import LogFlow, LogGap, LoggedPiece
from orchestrator.domain.values import Run, RunId

log = structlog.get_logger(__name__)

FILE_BYTES = 5 * 1024 * 1024
"""Bytes of a log after which only the end of its run and gaps are added."""
PENDING_BYTES = 512 * 1024
"""Bytes of stderr that may wait to be written; what exceeds them is left out."""
LINE_BYTES = 8 * 1024
"""Bytes of stderr on one line; longer lines are broken."""
GAP_SECONDS = 2.0
"""Seconds after which a gap, stderr that was left out, is logged even if no further output comes."""


@dataclass(frozen=True, slots=True)
class _LoggedEvent:
    """An event to log."""

    kind: str
    facts: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class _Item:
    """An entry that waits to be written to the file."""

    at_ms: int
    content: _LoggedEvent | LoggedPiece | LogGap


@dataclass(slots=True, kw_only=True)
class _Log:
    """The log of a live run."""

    run: RunId
    path: Path
    flow: LogFlow
    pending: list[_Item] = field(default_factory=list)
    pending_bytes: int = 0
    """Bytes of stderr in `pending`."""
    gap_since_ms: int | None = None
    """Since when stderr is left out, by the steady clock; None if it is not."""
    is_full_noted: bool = False
    """Whether it was logged that the log takes no more stderr."""
    is_failure_logged: bool = False
    """Whether the last write failed; the host's own log has one warning for all writes that fail in a row."""
    has_ended: bool = False
    """Whether its run has ended."""
    # The fields below are used by the writing thread only.
    partial_line: bytes = b""
    """The incomplete last line of stderr."""
    partial_line_end: int = 0
    """The position in the stream at which `partial_line` ends, in bytes."""
    size: int = 0
    """The size of the file in bytes."""
    has_file: bool = False
    """Whether the file exists."""


class RunLogs:
    """The logs of all runs.

    A log never blocks a run: stderr that exceeds the rate is left out and counted, and entries that cannot be
    written are dropped with a warning. The events contain no message texts.
    """

    def __init__(self, root: Path, *, clock: Clock) -> None:
        """`root` is `data/logs`."""
        self._root = root
        self._clock = clock
        self._logs: dict[RunId, _Log] = {}
        self._wake = Wakeup()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="run-log")
        self.about: Mapping[str, object] = {}
        """Facts about the host that are added to the first line of every log."""

    def begin(self, run: Run, facts: Mapping[str, object]) -> None:
        """Begin the log of a new run; `facts` are the fields of its first line. Does not block."""
        run_log = self._register_log(run, handled_bytes=0)
        self._write_event(run_log, "run.begun", {"run": run.id, "group": run.folder, **facts, **self.about})

    async def resume(self, run: Run) -> None:
        """Continue the log of a run that an earlier process of the host began.

        The engine will repeat all of the container's stderr, so the part that is in the log is skipped. If
        the log cannot be read, nothing is skipped.
        """
        path = self._path(run)
        try:
            handled_bytes = await asyncio.to_thread(files.handled_bytes, path)
        except OSError as error:
            log.warning("run_log.unreadable", run=run.id, reason=str(error))
            handled_bytes = 0
        # The log's flow of stderr expects it from its start, and skips its first `handled_bytes`.
        self._register_log(run, handled_bytes=handled_bytes).flow.expect_repeat()

    def note(self, run_id: RunId, kind: str, facts: Mapping[str, object]) -> None:
        """Log an event that is not published on the event bus, if the run's log is open. Does not block."""
        run_log = self._logs.get(run_id)
        if run_log is not None:
            self._write_event(run_log, kind, facts)

    def take_event(self, event: HostEvent) -> None:
        """Log an event from the event bus, if it is of a run with an open log. Does not block.

        The run's end closes its log. After `run.rejoined` the engine repeats the container's stderr from the
        start, so the part that was processed before is skipped.
        """
        run_log = self._logs.get(RunId(event.run)) if event.run else None
        if run_log is None:
            return
        if event.kind == "run.rejoined":
            run_log.flow.expect_repeat()
        if event.kind == "run.ended":
            self._end_gap(run_log)
            run_log.has_ended = True
        facts = {name: getattr(event, name) for name in ("turn", "attempt", "detail", "reason")}
        self._write_event(run_log, event.kind, facts)

    def take_stderr(self, run_id: RunId, data: bytes) -> None:
        """Log a piece of a container's stderr, as far as the rate allows; the rest is dropped.

        Does not block.
        """
        run_log = self._logs.get(run_id)
        if run_log is None or run_log.has_ended:
            return
        now_ms = self._clock.steady_ms()
        room = PENDING_BYTES - run_log.pending_bytes
        for piece in run_log.flow.take(data, now_ms=now_ms, room=room):
            self._put(run_log, piece)
        self._update_gap(run_log, now_ms)
        self._wake.set()

    async def run(self) -> None:
        """Write entries to the files as they come, until cancelled.

        Gaps, in which stderr was left out, are also logged, some seconds after they begin; those of a full
        log only at the end of its run.
        """
        while True:
            has_gap = any(_has_gap_to_log(run_log) for run_log in self._logs.values())
            await self._wake.wait(at_most_seconds=GAP_SECONDS if has_gap else None)
            self._end_old_gaps()
            await self._write_all()

    async def close(self) -> None:
        """Write the remaining entries, and a last one to the log of each run that goes on.

        Call it when no output is read any more.
        """
        for run_log in self._logs.values():
            self._end_gap(run_log)
            if not run_log.has_ended:
                self._put(
                    run_log, _LoggedEvent("run.left", {"reason": "Andy ends; the container may live on"})
                )
        await self._write_all()
        self._thread.shutdown(wait=False)

    def _path(self, run: Run) -> Path:
        """Return the path of a run's log."""
        return files.path_of(self._root, run.folder, run.id, run.started_ms)

    def _register_log(self, run: Run, *, handled_bytes: int) -> _Log:
        """Create the log of a run in memory and register it, so that entries are accepted; return it.

        `handled_bytes` is the number of bytes of stderr that its file has already, or that were left out.
        """
        flow = LogFlow(now_ms=self._clock.steady_ms(), handled_bytes=handled_bytes)
        run_log = self._logs[run.id] = _Log(run=run.id, path=self._path(run), flow=flow)
        return run_log

    def _write_event(self, run_log: _Log, kind: str, facts: Mapping[str, object]) -> None:
        """Add an event to the entries of a log, and wake the loop that writes them."""
        self._put(run_log, _LoggedEvent(kind, facts))
        self._wake.set()

    def _put(self, run_log: _Log, content: _LoggedEvent | LoggedPiece | LogGap) -> None:
        """Add an entry, with the present time, to those that wait to be written."""
        run_log.pending.append(_Item(self._clock.now_ms(), content))
        run_log.pending_bytes += len(content.data) if isinstance(content, LoggedPiece) else 0

    def _update_gap(self, run_log: _Log, now_ms: int) -> None:
        """Record since when stderr is left out, and log once that the log is full."""
        if not run_log.flow.has_gap:
            run_log.gap_since_ms = None
        elif run_log.gap_since_ms is None:
            run_log.gap_since_ms = now_ms
        if run_log.flow.is_full and not run_log.is_full_noted:
            run_log.is_full_noted = True
            self._put(
                run_log, _LoggedEvent("stderr.full", {"reason": "from here on only its last words are kept"})
            )

    def _end_old_gaps(self) -> None:
        """Log the gaps, in which stderr was left out, that began more than `GAP_SECONDS` ago."""
        before_ms = self._clock.steady_ms() - GAP_SECONDS * 1000
        for run_log in self._logs.values():
            if _has_gap_to_log(run_log) and (run_log.gap_since_ms or 0) <= before_ms:
                self._end_gap(run_log)

    def _end_gap(self, run_log: _Log) -> None:
        """Log how much stderr was left out since the last logged piece, if any was."""
        for gap in run_log.flow.end_gap():
            self._put(run_log, gap)
        run_log.gap_since_ms = None

    async def _write_all(self) -> None:
        """Write the waiting entries of all logs to their files, and forget the logs of ended runs."""
        for run_log in list(self._logs.values()):
            if run_log.pending or run_log.has_ended:
                await self._write(run_log)

    async def _write(self, run_log: _Log) -> None:
        """Write the waiting entries of one log, and forget the log if its run has ended.

        Entries whose write fails are lost. The host's own log then gets one warning until a write succeeds.
        """
        pending = run_log.pending
        run_log.pending = []
        run_log.pending_bytes = 0
        # The first write of a log removes old logs, but none of these.
        live = frozenset(log_of_run.path for log_of_run in self._logs.values())
        work = partial(self._append, run_log, pending, live, is_last=run_log.has_ended)
        # Shielded, because the lines would be lost if the call were cancelled before its thread starts.
        error = await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, work))
        if error is not None and not run_log.is_failure_logged:
            log.warning("run_log.not_written", run=run_log.run, reason=error)
        run_log.is_failure_logged = error is not None
        if run_log.has_ended and not run_log.pending:  # entries may have been added during the write
            self._logs.pop(run_log.run, None)

    # Called in the writing thread, one call at a time

    def _append(
        self, run_log: _Log, pending: list[_Item], live: frozenset[Path], *, is_last: bool
    ) -> str | None:
        """Write entries to the file of a log; return the reason if that failed, else None.

        The first entries create the file; then surplus and old logs are removed, but not those in `live`.
        `is_last` says that the run is over, so that an incomplete line of stderr is written, too.
        """
        text = "".join(line for item in pending if _fits(run_log, item) for line in _lines(run_log, item))
        if is_last:
            text += "".join(_flush_partial_line(run_log, self._clock.now_ms()))
        try:
            run_log.size = files.append(run_log.path, text, creates=not run_log.has_file)
            if not run_log.has_file:
                files.prune(self._root, now_ms=self._clock.now_ms(), keep=live)
        except OSError as error:
            return str(error)
        run_log.has_file = True
        return None


def _has_gap_to_log(run_log: _Log) -> bool:
    """Return whether a gap, stderr that was left out, is to be logged even if no further output comes.

    A log that has reached its total size logs its gap only at the end of the run.
    """
    return run_log.gap_since_ms is not None and not run_log.flow.is_full


def _fits(run_log: _Log, item: _Item) -> bool:
    """Return whether an entry may be written: a full file only takes gaps and events named `run.…`."""
    is_of_run = isinstance(item.content, _LoggedEvent) and item.content.kind.startswith("run.")
    return is_of_run or isinstance(item.content, LogGap) or run_log.size < FILE_BYTES


def _lines(run_log: _Log, item: _Item) -> Iterator[str]:
    """Yield the lines of the log for one entry.

    A line of stderr also names the position in the stream, in bytes, at which it ends; the lines that are
    logged of a gap name the gap's end.
    """
    match item.content:
        case _LoggedEvent(kind, facts):
            yield files.event_line(item.at_ms, kind, facts)
        case LoggedPiece() as piece:
            yield from _stderr_lines(run_log, item.at_ms, piece)
        case LogGap() as gap:
            yield from _flush_partial_line(run_log, item.at_ms)  # the line that the gap has cut off
            yield files.event_line(item.at_ms, "stderr.left_out", {"bytes": gap.dropped})
            for line in gap.tail.splitlines():
                yield files.stderr_line(item.at_ms, gap.end, line)
        case _:
            assert_never(item.content)


def _stderr_lines(run_log: _Log, at_ms: int, piece: LoggedPiece) -> Iterator[str]:
    """Yield log lines for the complete lines of stderr in a piece.

    An incomplete line at the end is stored in `run_log.partial_line` until it is complete or has
    `LINE_BYTES`.
    """
    unwritten = run_log.partial_line + piece.data
    # A position in the stream, in bytes, as `piece.end`: each log line names the one at which it ends.
    line_end = piece.end - len(unwritten)
    *whole, run_log.partial_line = unwritten.split(b"\n")
    run_log.partial_line_end = piece.end
    for line in whole:
        line_end += len(line) + 1
        yield from _split_line(line, at_ms, line_end)
    if len(run_log.partial_line) >= LINE_BYTES:
        yield from _flush_partial_line(run_log, at_ms)


def _flush_partial_line(run_log: _Log, at_ms: int) -> Iterator[str]:
    """Yield log lines for the incomplete line in `run_log.partial_line`, and empty it."""
    partial_line, run_log.partial_line = run_log.partial_line, b""
    if partial_line:
        yield from _split_line(partial_line, at_ms, run_log.partial_line_end)


def _split_line(line: bytes, at_ms: int, end: int) -> Iterator[str]:
    """Yield log lines for one line of stderr, broken into parts of `LINE_BYTES`.

    Each of them names `end`, the position in the stream at which the whole line ends, in bytes.
    """
    for start in range(0, len(line), LINE_BYTES):
        text = line[start : start + LINE_BYTES].decode(errors="backslashreplace")
        yield files.stderr_line(at_ms, end, text.rstrip("\r"))
