"""Carry out what containers ask, one module for each family of commands. Start with `messages.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from agent_runner.wire.mailbox import AcknowledgeNotice, CancelNotice, ListNotices, NotifySelf, Reply
from orchestrator.domain.values import Attachment, Folder, Group, Turn
from orchestrator.groups.attachments import FileRefused
from orchestrator.scheduler.scheduled_task_service import ScheduleReader
from orchestrator.store.database import Tx


class ReadIsoTime(Protocol):
    """Turn an ISO time or a duration into epoch ms. Raises `BadTime`."""

    def __call__(self, text: str, *, now_ms: int, zone: ZoneInfo) -> int: ...


class DashboardCommands(Protocol):
    """Whoever keeps the groups' dashboards. Both act in the transaction they are given."""

    async def answer(
        self,
        tx: Tx,
        group: Group,
        turn: Turn | None,
        tool: str,
        arguments: Mapping[str, Any],
        request_id: str,
    ) -> Reply:
        """Use a dashboard's tool for the agent whose turn runs."""
        ...

    async def show(self, tx: Tx, group: Group, request_id: str) -> Reply:
        """Tell what is on the group's dashboard."""
        ...


class WakeSet(Protocol):
    """What came of setting the next wake."""

    @property
    def applied_ms(self) -> int: ...

    @property
    def is_bounded(self) -> bool: ...

    @property
    def text(self) -> str: ...


class LoopCommands(Protocol):
    """Whoever lets agents wake by themselves. Both act in the transaction given; raise `BadRequest`."""

    async def set_next_wake(self, tx: Tx, group: Group, text: str, reason: str) -> WakeSet:
        """Keep what the group's agent asks for until its turn ends."""
        ...

    async def act(self, tx: Tx, folder: str, action: str, reason: str) -> Folder:
        """Switch a loop, let it rest, or wake it."""
        ...


class ContextCommands(Protocol):
    """Whoever keeps what conversations are about."""

    async def use(self, group: Group, tool: str, arguments: Mapping[str, Any], request_id: str) -> Reply:
        """Use one of the tools of `agent_runner.wire.context_tools`, outside of any transaction.

        Under a request id that was used before, what was made then is not made again.
        """
        ...


class NoticeCommands(Protocol):
    """Whoever keeps what agents want to be told later."""

    async def answer(
        self,
        tx: Tx,
        group: Group,
        turn: Turn | None,
        asked: NotifySelf | AcknowledgeNotice | ListNotices | CancelNotice,
        request_id: str,
    ) -> Reply:
        """Do what the agent whose turn runs asks, in the transaction given."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What came of a command: `text` is for the agent to read, `data` for it to use."""

    text: str
    ok: bool = True
    code: str = "ok"
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandCaller:
    """Who asks, and what the answer depends on."""

    group: Group
    request_id: str
    now_ms: int
    asked_ms: int
    """When it was asked: before `now_ms`, if the request waited for a host that runs."""
    turn: Turn | None
    """The turn in which its agent asks."""
    zone: ZoneInfo
    read_time: ReadIsoTime
    times: ScheduleReader
    dashboards: DashboardCommands | None = None
    loops: LoopCommands | None = None
    notices: NoticeCommands | None = None
    file: Attachment | FileRefused | None = None
    """The copy that was made of the file that is to be sent, or why there is none."""
    remembered: CommandResult | None = None
    """What came of a tool for what the conversation is about; None where nothing is kept."""


def refused(code: str, text: str) -> CommandResult:
    return CommandResult(ok=False, code=code, text=text)
