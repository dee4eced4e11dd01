"""Create the folders of registered groups, and end containers whose group is gone or was changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence

import structlog

from orchestrator.base.event_bus import EventBus, HostEvent
from orchestrator.domain.values import Folder, Group, LiveRun, RunState
from orchestrator.store.database import Database
from orchestrator.store.groups import groups

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 30.0
REST_FACTOR = 10
"""The pause after a scan of files, as a multiple of the time that the scan took."""
EVENTS = frozenset(
    {
        "group.registered",
        "group.unregistered",
        "group.configured",
        "command.register_group",
        "command.unregister_group",
    }
)


class GroupReconciler:
    """Reconciles at each event of a group, and every 30 s: the command line changes rows without an event."""

    def __init__(
        self,
        database: Database,
        *,
        ensure_folder: Callable[[Group], object],
        clear: Callable[[Group], object],
        live: Callable[[], Sequence[LiveRun]],
        retire: Callable[[Folder], Awaitable[None]],
        bus: EventBus,
        clear_seconds: float = SWEEP_SECONDS,
    ) -> None:
        """Set up the reconciler; `loops` returns the loops that do its work.

        Args:
            database: the database.
            ensure_folder: creates a group's folder if it is missing, and blocks.
            clear: removes dangerous mode bits (such as set-user-id) from files that a group's containers
                wrote, and blocks.
            live: returns the containers that run.
            retire: lets a group's containers end after their turn.
            bus: the event bus.
            clear_seconds: the seconds between two passes over the files.
        """
        self._database = database
        self._ensure_folder = ensure_folder
        self._live = live
        self._retire = retire
        self._bus = bus
        self._clear = clear
        self._clear_seconds = clear_seconds
        self._made_folders: set[Folder] = set()
        """The groups whose folder was made since the host started."""
        self._groups: Sequence[Group] | None = None
        """The groups at the last look."""
        self._registered: frozenset[Folder] = frozenset()
        """The folders of the groups at the last look."""
        self._configured: Mapping[Folder, int] = {}
        """When each group's settings were last changed, in epoch milliseconds."""

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Return the loops to run, by the names that the status shows."""
        return {"upkeep": self.run, "set-id": self.clear_files}

    async def run(self) -> None:
        """Make missing folders and end outdated containers whenever groups change, until cancelled."""
        with self._bus.listening() as events:
            while True:
                await self._look()
                await _until_groups_change(events)

    async def clear_files(self) -> None:
        """Remove dangerous mode bits (set-user-id and the like) from groups' files again and again.

        The first pass is over the folders of all groups. Later ones are over those of groups that have a
        container, or had one at the pass before.
        """
        live_before: set[Folder] | None = None
        while True:
            live_now = {run.folder for run in self._live()}
            registered = await groups.registered(self._database)
            began_seconds = time.monotonic()
            # None means all groups. A group whose container has ended meanwhile is looked at once more: the
            # container may have written since the last pass.
            may_be_written = None if live_before is None else live_now | live_before
            for group in registered:
                if may_be_written is None or group.folder in may_be_written:
                    await asyncio.to_thread(self._clear, group)
            live_before = live_now
            took_seconds = time.monotonic() - began_seconds
            # A container that writes millions of files must not keep the host busy all the time.
            await asyncio.sleep(max(self._clear_seconds, took_seconds * REST_FACTOR))

    async def _look(self) -> None:
        """Make the folders of new groups, and end the containers of groups that are gone or changed."""
        all_groups = await groups.registered(self._database)
        # As long as no group has changed, `registered` returns the same object.
        if all_groups is not self._groups:
            self._registered = frozenset(group.folder for group in all_groups)
            self._configured = await self._database.read(groups.configured_ms)
            self._made_folders &= self._registered
            for group in sorted(all_groups, key=lambda group: group.folder):
                if group.folder not in self._made_folders:
                    await self._make_folder(group)
            self._groups = all_groups
        outdated = (run for run in self._live() if _is_outdated(run, self._registered, self._configured))
        for folder in sorted({run.folder for run in outdated}):
            await self._retire(folder)

    async def _make_folder(self, group: Group) -> None:
        """Create a group's folder; a failure is logged, and not retried while the group stays registered."""
        try:
            await asyncio.to_thread(self._ensure_folder, group)
        except OSError as error:
            log.warning("group.folder_not_made", group=group.folder, reason=str(error))
        self._made_folders.add(group.folder)


def _is_outdated(run: LiveRun, registered: Container[Folder], configured: Mapping[Folder, int]) -> bool:
    """Return whether a container's group is no longer registered, or has settings newer than the container.

    `configured` has the time of each group's last change of settings, in epoch milliseconds.
    """
    if run.state is RunState.LEFT:
        # The host has given it up already, and retiring its group would also end the run that replaced it.
        return False
    # A change in the very millisecond of the start may have come after it, so it counts as newer.
    return run.folder not in registered or configured.get(run.folder, -1) >= run.started_wall_ms


async def _until_groups_change(events: asyncio.Queue[HostEvent]) -> None:
    """Wait until an event says that a group has changed, at most `SWEEP_SECONDS`."""
    try:
        async with asyncio.timeout(SWEEP_SECONDS):
            while (await events.get()).kind not in EVENTS:
                pass
    except TimeoutError:
        return
