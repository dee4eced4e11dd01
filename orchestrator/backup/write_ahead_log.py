"""Limit the database's write-ahead log: truncate it, or notify the owner of a reader that prevents it.

SQLite restarts the log only at a moment without readers. Overlapping short ones may leave no such moment for
hours, and one long transaction of another program leaves none at all.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from orchestrator.groups import owner
from orchestrator.groups.host_context import HostContext
from orchestrator.store import database

log = structlog.get_logger(__name__)

CHECK_SECONDS = 60.0
ALARM_BYTES = 16 * database.WAL_BYTES
"""Bytes of a log above which the owner is notified if it cannot be truncated."""
DAY_MS = 24 * 3_600_000


class WriteAheadLog:
    """Watches the log of a home's database."""

    def __init__(self, host: HostContext) -> None:
        self._host = host
        self._path = host.home.database

    async def run(self) -> None:
        """Check the size of the database's write-ahead log once a minute, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self.check()

    async def check(self) -> None:
        """Truncate the database's write-ahead log if it is larger than `database.WAL_BYTES`.

        If a reader prevents that, log a warning. If the file is then also larger than `ALARM_BYTES`, notify
        the owner, once a day. Raises `StoreError` if the database cannot be written or is damaged.
        """
        size = await asyncio.to_thread(database.wal_bytes, self._path)
        # SQLite by itself never shrinks a log that a long reader has made grow.
        if size <= database.WAL_BYTES or await asyncio.to_thread(database.cut_log, self._path):
            return
        log.warning("write_ahead_log.held", bytes=size)
        if size <= ALARM_BYTES:
            return
        now_ms = self._host.clock.now_ms()
        async with self._host.database.transaction() as tx:
            text = f"⚠️ {blocked_text(self._path, size)}"
            # The notice is recognised by the day, not by its text, which has the changing size.
            await owner.notify_once(tx, text, about=f"write-ahead-log:{now_ms // DAY_MS}", now_ms=now_ms)
        self._host.wakeups.outbox.set()


def blocked_text(path: Path, size: int) -> str:
    """Return the sentence that explains why the write-ahead log of the database at `path` grows, and the fix.

    `size` is that of the log, in bytes.
    """
    return (
        f"The database's log is larger than {size // 2**30} GiB and grows, for another program reads the"
        f" database in one long transaction: end it; 'sudo fuser {path}' names it."
    )
