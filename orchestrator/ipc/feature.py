"""Build the parts of the host that exchange files with containers and with commands.

They read the requests of containers and the announcements of commands (which events the host is to publish),
and write the files that the containers read.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Protocol

from agent_runner.wire.order import TurnOrder
from orchestrator.containers.feature import ContainersFeature
from orchestrator.containers.frame_effects import OnSuccess
from orchestrator.containers.ports import Restoration, RunPorts
from orchestrator.domain.protocols import Channel, Feature
from orchestrator.domain.values import ChatJid, Folder, Group, RunId, Turn
from orchestrator.groups.host_context import HostContext
from orchestrator.ipc.announcement_reader import AnnouncementReader
from orchestrator.ipc.command_context import (
    ContextCommands,
    DashboardCommands,
    LoopCommands,
    NoticeCommands,
)
from orchestrator.ipc.command_dispatcher import CommandDispatcher
from orchestrator.ipc.handlers.files import OutgoingFiles
from orchestrator.ipc.input_files import InputFiles
from orchestrator.ipc.mailbox_worker import MailboxWorker
from orchestrator.ipc.snapshots import SnapshotWriter
from orchestrator.ipc.watcher import MailboxWatcher
from orchestrator.proxies import run_tokens
from orchestrator.proxies.feature import ContainerProxies
from orchestrator.queue.retries import requeue_or_fail
from orchestrator.scheduler.timing import schedule_reader
from orchestrator.scheduler.when import point_ms
from orchestrator.store.database import Tx


class ConversationContexts(ContextCommands, Protocol):
    """The methods of a group's conversation that mailboxes need."""

    async def write_copies(self, folder: Folder) -> None:
        """Write the group's context where its container reads it."""


class IpcFeature:
    """The mailboxes of one host. Call `open` before the loops run."""

    def __init__(
        self,
        host: HostContext,
        *,
        containers: ContainersFeature,
        dashboards: DashboardCommands,
        loops: LoopCommands,
        contexts: ConversationContexts,
        notices: NoticeCommands,
        proxies: ContainerProxies,
        channel_for: Callable[[ChatJid], Channel | None] = lambda _: None,
    ) -> None:
        """`dashboards`, `loops`, `contexts`, `notices` and `proxies` carry out requests of agents.

        `channel_for` returns the messenger of a chat, or None for an unknown chat.
        """

        def features_of(jid: ChatJid) -> frozenset[Feature]:
            """Return the features of a chat's messenger; none if the messenger is unknown."""
            channel = channel_for(jid)
            return channel.features if channel is not None else frozenset()

        self._host = host
        self._containers = containers
        self._contexts = contexts
        self._watcher = MailboxWatcher(host.home.ipc)
        self._announcements = AnnouncementReader(host.home.announcements, announce=host.database.announce)
        self._files = OutgoingFiles(host.home.root, limit=host.attachment_bytes)
        self._snapshots = SnapshotWriter(
            host.home.data / "env",
            host.database,
            clock=host.clock,
            bus=host.bus,
            zone_of=host.zone_of,
            with_container=lambda: self._watcher.folders,
        )
        self._dispatcher = CommandDispatcher(
            host.database,
            clock=host.clock,
            read_time=point_ms,
            times=schedule_reader(host.zone_of),
            zone_of=host.zone_of,
            wakeups=host.wakeups,
            bus=host.bus,
            copy_file=self._files.copy,
            dashboards=dashboards,
            loops=loops,
            contexts=contexts,
            notices=notices,
            web=proxies.web_search,
            features_of=features_of,
            has_gateway=proxies.models.has_gateway,
        )

    async def open(self, stack: AsyncExitStack) -> None:
        """Begin to watch for files of containers and of commands; `stack` ends that when it is closed."""
        await stack.enter_async_context(self._watcher)
        await self._announcements.open(stack)

    def loops(self) -> dict[str, Callable[[], Any]]:
        """Return the coroutine functions that the host runs as long as it lives, by name."""
        worker = MailboxWorker(
            self._host.home.ipc,
            database=self._host.database,
            dispatcher=self._dispatcher,
            watcher=self._watcher,
            owner_uids=lambda: frozenset({self._containers.selected.uid}),
            outgoing_files=self._files,
        )
        return {
            "snapshots": self._snapshots.run,
            "post": worker.run,
            "announcements": self._announcements.run,
        }

    def run_ports(
        self,
        *,
        compose: Callable[[Tx, Turn, Group, RunId], Awaitable[TurnOrder]],
        on_success: OnSuccess,
        restore: Callable[[Turn, Group, str | None], Awaitable[Restoration]],
        before_turn: Callable[[Turn], Awaitable[None]],
    ) -> RunPorts:
        """Return the functions and services that the pool of containers calls: the arguments and the host's.

        Args:
            compose: returns the order of a turn, with its prompt.
            on_success: called in the transaction in which a turn ends well.
            restore: decides how a new container continues the conversation of a group.
            before_turn: takes a snapshot of the group's files before a turn.
        """
        return RunPorts(
            orders=self._containers.orders,
            mailboxes=self,
            files=InputFiles(self._host.home.ipc),
            compose=compose,
            token=run_tokens.new_token_and_hash,
            requeue=requeue_or_fail,
            new_run_id=lambda: RunId(secrets.token_hex(6)),
            on_success=on_success,
            restore=restore,
            before_turn=before_turn,
            redact=self._containers.redactor.redact,
        )

    async def watch(self, folder: Folder) -> None:
        """Begin to read the requests of a group whose container is about to start.

        The files that the container reads, such as the list of tasks, are written again before this returns.
        """
        await self._watcher.watch(folder)
        await asyncio.gather(self._snapshots.write(folder), self._contexts.write_copies(folder))

    async def unwatch(self, folder: Folder) -> None:
        """Stop watching the group's mailboxes. Requests that are there now are still read."""
        await self._watcher.unwatch(folder)
