"""The things that wait for the owner: the page Now lists them, and every page's navigation counts them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.reports.needs import OwnerNeeds, owner_needs
from orchestrator.store import groups

if TYPE_CHECKING:
    from orchestrator.web.console.page import View

OLD_BACKUP_MS = 7 * 24 * 3_600_000
"""Milliseconds after which a backup is too old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The things that wait for the owner, and whether the backup is old."""

    needs: OwnerNeeds
    backup_ms: int | None
    """The time when the newest backup was made; None where there is none."""
    is_backup_old: bool

    def __len__(self) -> int:
        return len(self.needs) + self.is_backup_old


async def look(view: View) -> Waiting:
    """Look in the store and in the folder of backups."""
    host = view.web.host
    async with host.reader.reading() as tx:
        found = await owner_needs(tx, now_ms=view.now_ms, zone=view.console.zone, zone_of=host.zone_of)
        registered_ms = min((group.added_ms for group in await groups.every(tx)), default=view.now_ms)
    backup_ms = await asyncio.to_thread(_newest_backup_ms, host.home.root / "backups")
    # A home of today has nothing yet that a backup should have.
    since_ms = registered_ms if backup_ms is None else backup_ms
    return Waiting(needs=found, backup_ms=backup_ms, is_backup_old=view.now_ms - since_ms > OLD_BACKUP_MS)


def _newest_backup_ms(folder: Path) -> int | None:
    """Return when the newest backup in the home's own folder was made. Blocks."""
    made = [path.stat().st_mtime_ns // 1_000_000 for path in folder.glob("*.tar.gz")]
    return max(made, default=None)
