"""Write the parts of the host's state that a container may read to `data/env/{folder}/`, as `.json` files.

They are tasks, groups and calendar. The directory is read-only in the container. The files are copies of what
is in the store, which the host never reads back.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import structlog

from agent_runner.wire.files import write_whole
from orchestrator.base.clock import Clock, local_iso
from orchestrator.base.event_bus import EventBus, HostEvent
from orchestrator.calendars.service import rows
from orchestrator.domain.values import Chat, Folder, Group, ScheduledTask, TurnId, TurnKind
from orchestrator.scheduler.scheduled_task_service import to_row
from orchestrator.store.conversation import chats
from orchestrator.store.database import Database, Tx
from orchestrator.store.groups import groups
from orchestrator.store.runs import turns
from orchestrator.store.schedule import followed_calendars, tasks
from orchestrator.store.schedule.followed_calendars import FollowedEvent

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 60.0
DAY_MS = 24 * 3_600_000
EVENT_DAYS = 60
"""Days ahead whose events are written into `calendar.json`."""
MAX_EVENTS = 1_000
ALTERING = frozenset(
    f"command.{name}"
    for name in (
        "schedule_task",
        "update_task",
        "pause_task",
        "resume_task",
        "cancel_task",
        "run_task",
        "register_group",
        "change_group",
        "unregister_group",
        "refresh_groups",
    )
) | {
    "group.chats_changed",
    "group.configured",
    "chats.seen",
    "group.registered",
    "group.unregistered",
    "task.changed",
    "task.due",
    "task.skipped",
    "task.paused",
    "calendar.changed",
    "calendar.read",
}
"""Events after which a snapshot may be outdated."""
FILES = ("tasks.json", "groups.json", "calendar.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleToGroup:
    """The tasks, chats and events that one group may see."""

    group: Group
    tasks: Sequence[ScheduledTask]
    chats: Sequence[Chat]
    registered: frozenset[str]
    """The addresses of the chats that belong to groups, as far as the group may see these."""
    events: Sequence[FollowedEvent]


class SnapshotWriter:
    """Rewrites the files whose contents have changed: after an event at once, else within a minute."""

    def __init__(
        self,
        root: Path,
        database: Database,
        *,
        clock: Clock,
        bus: EventBus,
        zone_of: Callable[[Group], ZoneInfo],
        with_container: Callable[[], Collection[str]],
    ) -> None:
        """`with_container` returns the folders of the groups that have a container now.

        `zone_of` returns the time zone of a group.
        """
        self._root = root
        self._database = database
        self._clock = clock
        self._bus = bus
        self._zone_of = zone_of
        self._with_container = with_container
        self._lock = asyncio.Lock()
        """Held from a read of the store to the writes: no older state is written after a newer one."""
        self._written: dict[Path, str] = {}
        """The content that was written last, without the fields that do not count as a change."""

    async def run(self) -> None:
        """Keep the files of all groups up to date until cancelled.

        After an event that may have changed them, all are compared with the store. Every minute only those of
        groups with a container are.
        """
        with self._bus.listening() as events:
            await self.write_all()
            while True:
                if await self._until_altered(events):
                    await self.write_all()
                else:
                    # This is for changes without an event. The files of other groups are written when they
                    # get a container: to compare all groups every minute would cost more with each group.
                    await self._write_groups(self._with_container())

    async def write_all(self) -> None:
        """Write the changed files of every group that has ever had a container."""
        await self._write_groups(await asyncio.to_thread(self._folders_with_directory))

    def _folders_with_directory(self) -> frozenset[str]:
        """Return the groups' folders for which there is a directory for the files. Blocks."""
        try:
            with os.scandir(self._root) as entries:
                return frozenset(entry.name for entry in entries if entry.is_dir())
        except FileNotFoundError:
            return frozenset()

    async def _write_groups(self, folders: Collection[str]) -> None:
        """Write the files of the groups with these folders, as far as their contents have changed.

        Folders that belong to no registered group are left out.
        """
        async with self._lock:
            registered = await groups.registered(self._database) if folders else ()
            shown_to = [group for group in registered if group.folder in folders]
            if not shown_to:
                return
            # All groups are read in one call to the database's thread, as one for each would cost more: most
            # minutes nothing has changed, and `_write` writes nothing.
            for view in await self._database.read(partial(self._views, shown_to=shown_to)):
                await self._write(view)

    async def _views(self, tx: Tx, *, shown_to: Sequence[Group]) -> list[VisibleToGroup]:
        """Return the tasks, chats and events that each of these groups may see, changed or not."""
        now_ms = self._clock.now_ms()
        return [await _view_of(tx, group, now_ms=now_ms) for group in shown_to]

    async def write(self, folder: Folder) -> None:
        """Write the files of one group, changed or not, before its container reads them."""
        async with self._lock:
            async with self._database.reading() as tx:
                group = await groups.by_folder(tx, folder)
                now_ms = self._clock.now_ms()
                view = None if group is None else await _view_of(tx, group, now_ms=now_ms)
            # What was written last is forgotten, so that the files are written although they have not
            # changed.
            for name in FILES:
                self._written.pop(self._root / folder / name, None)
            if view is not None:
                await self._write(view)

    async def _until_altered(self, events: asyncio.Queue[HostEvent]) -> bool:
        """Wait for an event after which a group's files may be outdated, and return True.

        Return False if none comes within `SWEEP_SECONDS`. With True, the queue was emptied: the write that
        follows covers all events in it. An event during that write stays in the queue for the next write.
        """
        deadline = asyncio.get_running_loop().time() + SWEEP_SECONDS
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    event = await events.get()
            except TimeoutError:
                return False
            # Without the time limit: an event that was taken out of the queue must not be dropped.
            if await self._alters(event):
                break
        while not events.empty():
            events.get_nowait()
        return True

    async def _alters(self, event: HostEvent) -> bool:
        """Return whether the files of a group may be outdated after an event.

        The end of a scheduled task's turn changes the task's last result.
        """
        if event.kind in ("turn.answered", "turn.failed") and event.turn is not None:
            # This runs after each answer of each group, so it is one call to the database's thread, not one
            # for each statement.
            turn = await self._database.read(partial(turns.get, turn_id=TurnId(event.turn)))
            return turn is not None and turn.kind is TurnKind.TASK
        return event.kind in ALTERING

    async def _write(self, view: VisibleToGroup) -> None:
        """Write the changed files of one group: its tasks, chats and calendar events, with local times.

        Only the first `MAX_EVENTS` events, by their start, are written.
        """
        zone = self._zone_of(view.group)
        chat_rows = known_chats(view, zone)
        now = local_iso(self._clock.now_ms(), zone)
        tasks_file, groups_file, calendar_file = (self._root / view.group.folder / name for name in FILES)
        await self._put(tasks_file, [to_row(task) for task in view.tasks])
        await self._put(groups_file, {"groups": chat_rows}, uncompared={"lastSync": now})
        await self._put(calendar_file, rows(view.events[:MAX_EVENTS], zone))

    async def _put(self, path: Path, content: Any, *, uncompared: dict[str, str] | None = None) -> None:
        """Write a JSON file if its `content` has changed since it was written last.

        Fields in `uncompared` are added to it, but do not count as a change. A failure is only logged; a
        missing directory is none.
        """
        text = json.dumps(content, ensure_ascii=False)
        if self._written.get(path) == text:
            return
        full_text = json.dumps(
            {**content, **uncompared} if uncompared else content, ensure_ascii=False, indent=2
        )
        try:
            await asyncio.to_thread(write_whole, path, full_text + "\n")
        except FileNotFoundError:
            return  # no container of this group has been prepared yet
        except OSError as error:
            log.warning("snapshot.not_written", path=str(path), reason=error.strerror)
            return
        self._written[path] = text


async def _view_of(tx: Tx, group: Group, *, now_ms: int) -> VisibleToGroup:
    """Return the tasks, chats and calendar events that a group may see.

    Main sees all tasks and chats. Other groups see their own tasks, and their own chats if they have several.
    Each group sees only the events of its own calendars, from a day ago until `EVENT_DAYS` from now.
    """
    visible_groups = await groups.every(tx) if group.is_main else [group]
    return VisibleToGroup(
        group=group,
        tasks=await tasks.every(tx, None if group.is_main else group.folder),
        chats=await _chats_of(tx, group),
        registered=frozenset(jid for visible_group in visible_groups for jid in visible_group.chats),
        events=await followed_calendars.between(
            tx, group.folder, now_ms - DAY_MS, now_ms + EVENT_DAYS * DAY_MS
        ),
    )


async def _chats_of(tx: Tx, group: Group) -> Sequence[Chat]:
    """Return the chats that a group may see: main all, others their own if they have several."""
    if group.is_main:
        return await chats.every(tx)
    return await chats.of_group(tx, group) if len(group.chats) > 1 else ()


def known_chats(view: VisibleToGroup, zone: ZoneInfo) -> list[dict[str, Any]]:
    """Return the chats as `groups.json` lists them, the one with the newest message first."""
    return [
        {
            "jid": chat.jid,
            "name": chat.name,
            "channel": chat.channel,
            "lastActivity": None if chat.last_message_ms is None else local_iso(chat.last_message_ms, zone),
            "isRegistered": chat.jid in view.registered,
        }
        for chat in view.chats
    ]
