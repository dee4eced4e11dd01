"""Move rows that ended long ago from the database to one file a year, so that it does not grow without end.

A row is flushed to its file before it is deleted from the database. After a crash in between it is in both;
the next sweep finds it in the file and does not write it again.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import structlog

from orchestrator.base.clock import Clock
from orchestrator.groups.host_context import HostContext
from orchestrator.store import retention
from orchestrator.store.database import Database
from orchestrator.store.retention import OVER_MS, ROWID, RetentionPolicy, Rows

log = structlog.get_logger(__name__)

FIRST_SECONDS = 60.0
"""Seconds from the start of the host to the first sweep."""
SWEEP_SECONDS = 3_600.0
BATCH = 200
"""Rows removed in one transaction: a message that arrives meanwhile waits for some milliseconds only."""
DAY_MS = 86_400_000


class Retention:
    """Moves old rows into the yearly files, once an hour."""

    def __init__(self, database: Database, directory: Path, *, days: Mapping[str, int], clock: Clock) -> None:
        """`directory` gets the yearly files. `days` maps each table to the days that a row stays in it after
        the row has ended; rows of a table with 0 days are never moved.
        """
        self._database = database
        self._archive = YearArchive(directory)
        self._days = days
        self._clock = clock

    @classmethod
    def of(cls, host: HostContext) -> Retention:
        """Return the `Retention` of a host, with the days that the owner has set."""
        days = host.settings.andy_retention
        return cls(host.database, host.home.archive, days=days, clock=host.clock)

    async def run(self) -> None:
        """Move old rows into the yearly files soon after the start, then every hour, until cancelled."""
        pause = FIRST_SECONDS
        while True:
            await asyncio.sleep(pause)
            await self.sweep()
            pause = SWEEP_SECONDS

    async def sweep(self) -> dict[str, int]:
        """Move all rows that are past their retention, and return their number for each table that had some.

        If the archive cannot be written, the sweep stops there with a warning; the next one continues.
        """
        counts = {}
        now_ms = self._clock.now_ms()
        days_by_policy = ((policy, self._days.get(policy.table, 0)) for policy in retention.POLICIES)
        # Rows of a table with 0 days are never moved.
        before_ms_by_policy = {policy: now_ms - days * DAY_MS for policy, days in days_by_policy if days}
        path = await self._database.path()
        # One query of all tables: most sweeps have nothing to do.
        if not await asyncio.to_thread(retention.has_removable_rows, path, before_ms_by_policy):
            return {}
        # In the order of `POLICIES`: a row stays while a row of an earlier table refers to it.
        for policy, before_ms in before_ms_by_policy.items():
            try:
                count = await self._sweep(path, policy, before_ms)
            except OSError as error:
                log.warning("retention.not_archived", table=policy.table, reason=str(error))
                break
            if count:
                counts[policy.table] = count
        if counts:
            log.info("retention.archived", **counts)
        return counts

    async def _sweep(self, path: Path, policy: RetentionPolicy, before_ms: int) -> int:
        """Move the rows of a table that ended before `before_ms`, batch by batch; return their number."""
        removed = 0
        while True:
            rows = await asyncio.to_thread(
                retention.removable_rows, path, policy, before_ms=before_ms, limit=BATCH
            )
            count = await self._move(policy, rows) if rows else 0
            removed += count
            # If none could be deleted, the next query would return the same rows: they are left to the next
            # sweep.
            if len(rows) < BATCH or not count:
                return removed

    async def _move(self, policy: RetentionPolicy, rows: Rows) -> int:
        """Write rows to their files, then delete them from the database; return how many were deleted."""
        await asyncio.to_thread(self._archive.add, policy.table, rows)
        async with self._database.transaction() as tx:
            count = await retention.remove(tx, policy, rows)
        self._archive.mark_settled()  # saves the next `add` a search of these files for duplicates
        return count


class YearArchive:
    """The files `2026.jsonl` and so on, one JSON object a line, by the year (UTC) in which a row ended."""

    def __init__(self, directory: Path) -> None:
        """`directory` has the files; it is created with the first of them."""
        self._directory = directory
        self._settled_files: set[Path] = set()
        """Files that need no search for duplicates: their rows were deleted from the database.

        A row that changed meanwhile was not deleted, but its changed form is another line and no duplicate.
        """
        self._newly_written_files: set[Path] = set()
        """Files written since the last call of `mark_settled`."""

    def add(self, table: str, rows: Rows) -> None:
        """Append rows of a table to the files of the years in which they ended. Blocks.

        Rows that are in their file already are skipped.

        Raises:
            OSError: a file cannot be written; the next call cuts off an incomplete line, and skips whole
            ones.
        """
        lines_by_file: dict[Path, list[bytes]] = defaultdict(list)
        for row in rows:
            year = datetime.fromtimestamp(row[OVER_MS] / 1000, UTC).year
            lines_by_file[self._directory / f"{year}.jsonl"].append(_line(table, row))
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path, new_lines in lines_by_file.items():
            # The rows in a settled file were deleted from the database, so none of `rows` is in it: no search
            # is needed.
            present = set() if path in self._settled_files else _present_lines(path, frozenset(new_lines))
            # Until the next call of `mark_settled`, these rows are in the database as well.
            self._settled_files.discard(path)
            self._newly_written_files.add(path)
            _append(path, b"".join(line for line in new_lines if line not in present))

    def mark_settled(self) -> None:
        """Record that the rows added so far were deleted from the database.

        So the next `add` need not search the files of these rows for duplicates. A row that changed meanwhile
        was not deleted, but its changed form is no duplicate.
        """
        self._settled_files |= self._newly_written_files
        self._newly_written_files.clear()


def _line(table: str, row: Mapping[str, object]) -> bytes:
    """Return a row as a line of JSON with the name of its table, without the columns of the query itself."""
    fields = {"table": table} | {name: value for name, value in row.items() if name not in (ROWID, OVER_MS)}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _present_lines(path: Path, lines: frozenset[bytes]) -> set[bytes]:
    """Return those of `lines` that the file at `path` has already; none if it is missing."""
    try:
        with path.open("rb") as file:
            return {line for line in file if line in lines}
    except FileNotFoundError:
        return set()


def _append(path: Path, data: bytes) -> None:
    """Append lines to a file and flush it to the disk; an incomplete line at its end is cut off."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        file.seek(_whole_bytes(path))
        file.truncate()
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    # The name of a new file is in its directory: without this, a power cut could take the file away. A file
    # that is there already may be of a call that ended before this.
    _sync(path.parent)


def _whole_bytes(path: Path) -> int:
    """Return the number of bytes of a file up to and with its last line break; 0 if it has none.

    The bytes after it are an incomplete line, which a crash may have left.
    """
    with path.open("rb") as file:
        # Searched backwards in pieces: the file may be large, and the line break is near its end.
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 65_536)
            file.seek(start)
            line_end = file.read(end - start).rfind(b"\n")
            if line_end >= 0:
                return start + line_end + 1
            end = start
    return 0


def _sync(directory: Path) -> None:
    """Flush the names of a directory's files to the disk, so that a new one survives a power cut. Blocks."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
