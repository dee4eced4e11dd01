"""Announce committed changes: publish an event of each, and wake the loops that act on it.

A change announces itself in its transaction (`store.database.announce`), so it is announced the same way
whoever makes it: an agent, the HTTP API, the console or the command line. A command is another process than
the host, so it leaves what it announces as a file in the home (`ipc.announcement_reader` reads it). Hence the
closed vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent_runner.wire.files import unique_name, write_whole

if TYPE_CHECKING:
    # Only for the types: commands that read import this module, and are not to load asyncio.
    from orchestrator.base.event_bus import EventBus
    from orchestrator.base.wakeups import Wakeups

LOOPS_OF: Mapping[str, tuple[str, ...]] = {
    "access.decided": (),
    "approval.decided": (),
    "calendar.changed": ("calendars",),
    "dashboard.changed": ("notifications",),
    "group.chats_changed": ("outbox", "lanes"),
    "group.configured": ("outbox",),
    "group.registered": (),
    "group.unregistered": ("outbox", "lanes"),
    "loop.changed": (),
    "memory.noted": (),
    "outbox.changed": ("outbox",),
    "person.removal_due": (),
    "reminder.changed": ("notifications",),
    "task.changed": ("scheduler", "lanes"),
    "turn.undone": ("outbox", "scheduler", "notifications", "lanes"),
}
"""Map each kind of event that a change may announce to the wake-ups of the loops that act on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """The event of one committed change: ids, never a text. It is a hint; the store has the change."""

    kind: str
    """One of `LOOPS_OF`."""
    group: str | None = None
    turn: int | None = None
    detail: str | None = None


MAX_IN_FILE = 100
"""Announcements of one file. A command that changed more leaves several files."""

Announce = Callable[[Announcement], None]
"""Takes the announcements of a database's committed changes, in order, on the event loop."""


def announce_to_nobody(announcement: Announcement) -> None:
    """Drop the announcement of a change, for a database whose changes no loop and no process waits for."""
    del announcement


def announce_in_host(bus: EventBus, wakeups: Wakeups, announcement: Announcement) -> None:
    """Publish the event of a committed change on the host's event bus, and wake the loops that act on it."""
    bus.publish(
        announcement.kind,
        group=announcement.group,
        turn=announcement.turn,
        detail=announcement.detail,
    )
    for name in LOOPS_OF[announcement.kind]:
        getattr(wakeups, name).set()


def leave_for_host(directory: Path, announcements: Iterable[Announcement]) -> None:
    """Write announcements as files that the running host reads. Blocks.

    `directory` exists only while a host runs, so nothing is written without one. The changes themselves are
    committed: the host finds them at its next sweep, so an error of the disk is ignored here.
    """
    unique = dict.fromkeys(announcements)  # in their order, equal ones once
    listed = [
        {name: value for name, value in asdict(announcement).items() if value is not None}
        for announcement in unique
    ]
    with suppress(OSError):
        for begin in range(0, len(listed), MAX_IN_FILE):
            # Only the host's user can write into the directory, and root: the host can read root's files,
            # too.
            write_whole(directory / unique_name(), json.dumps(listed[begin : begin + MAX_IN_FILE]))
