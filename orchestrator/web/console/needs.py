"""The matters that wait for the owner: the page Now lists them, and every page's navigation counts them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.channels.description import ChannelDescription
from orchestrator.domain.values import Outgoing
from orchestrator.reports.needs import OwnerNeeds, owner_needs
from orchestrator.reports.status import channel_state
from orchestrator.store.conversation import outbox
from orchestrator.store.groups import groups

if TYPE_CHECKING:
    from orchestrator.web.console.page import View

ENDED = ("logged_out", "banned", "replaced", "outdated", "unusable")
"""States of a messenger that only its owner can end."""
MAX_UNSENT = 20
OLD_BACKUP_MS = 7 * 24 * 3_600_000
"""Milliseconds after which a backup is too old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedLogin:
    """A messenger that stays disconnected until its owner acts."""

    messenger: ChannelDescription
    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The things that wait for the owner, and whether the backup is old."""

    needs: OwnerNeeds
    logins: tuple[EndedLogin, ...]
    unsent: list[Outgoing]
    """The oldest `MAX_UNSENT` messages that could not be sent, or may not have arrived."""
    names: Mapping[str, str]
    """The name of each group, by its folder."""
    backup_ms: int | None
    """The time of the newest backup, in epoch ms; None if there is none."""
    is_backup_old: bool

    def __len__(self) -> int:
        """Return how many things wait for the owner; an old backup is one.

        Of messages that were not sent, at most `MAX_UNSENT` are counted.
        """
        return len(self.needs) + len(self.logins) + len(self.unsent) + self.is_backup_old


async def read_waiting(view: View) -> Waiting:
    """Return everything that waits for the owner, from the store and the folder of backups."""
    host = view.host
    async with host.reader.reading() as tx:
        owner_matters = await owner_needs(
            tx, now_ms=view.now_ms, zone=view.console.zone, zone_of=host.zone_of
        )
        all_groups = await groups.every(tx)
        unsent = await outbox.given_up(tx, limit=MAX_UNSENT)
    backup_ms = await asyncio.to_thread(_newest_backup_ms, host.home.root / "backups")
    registered_ms = min((group.added_ms for group in all_groups), default=view.now_ms)
    # Without a backup, its age counts from the first group on: a new home has nothing yet to lose.
    since_ms = registered_ms if backup_ms is None else backup_ms
    return Waiting(
        needs=owner_matters,
        logins=tuple(_ended_logins(view)),
        unsent=unsent,
        names={group.folder: group.name for group in all_groups},
        backup_ms=backup_ms,
        is_backup_old=view.now_ms - since_ms > OLD_BACKUP_MS,
    )


def _ended_logins(view: View) -> Iterator[EndedLogin]:
    """Yield each messenger that is on but stays disconnected until the owner acts, with its state."""
    channels = {channel.name: channel for channel in view.services.channels.all}
    for messenger in view.services.channels.messengers:
        # None: here, only the state that the channel itself reports matters, not whether its loop fails.
        status = channel_state(channels[messenger.name], None)
        if status.get("state") in ENDED:
            yield EndedLogin(messenger=messenger, status=status)


def _newest_backup_ms(folder: Path) -> int | None:
    """Return when the newest backup in `folder` was made (epoch ms), or None if there is none. Blocks."""
    times_ms = []
    for path in folder.glob("*.tar.gz"):
        # One that was removed meanwhile, or cannot be read, such as a link to itself, must break no page.
        with suppress(OSError):
            times_ms.append(path.stat().st_mtime_ns // 1_000_000)
    return max(times_ms, default=None)
