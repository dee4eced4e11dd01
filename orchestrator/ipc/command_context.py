"""Defines the arguments and results of command handlers, and the ports that packages above this one fill."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from agent_runner.wire.mailbox import AcknowledgeNotice, CancelNotice, ListNotices, NotifySelf, Reply
from orchestrator.domain.dashboard import Notification
from orchestrator.domain.protocols import Feature
from orchestrator.domain.values import Attachment, ChatJid, Folder, Group, Role, Turn
from orchestrator.groups.attachments import FileRefused
from orchestrator.proxies.web_search import SearchingTurn
from orchestrator.scheduler.scheduled_task_service import ScheduleReader
from orchestrator.store.database import Tx


class ReadIsoTime(Protocol):
    """Reads an ISO time or a duration and returns epoch milliseconds. Raises `BadTime`."""

    def __call__(self, text: str, *, now_ms: int, zone: ZoneInfo) -> int: ...


class ReminderCommands(Protocol):
    """The service of the reminders. Both methods run in the caller's transaction, and raise `BadRequest`."""

    async def set(
        self,
        tx: Tx,
        group: Group,
        text: str,
        due_ms: int,
        *,
        now_ms: int,
        turn_id: int | None = None,
        task_id: str | None = None,
    ) -> Notification:
        """Store a reminder, a text that is sent to the group's chat at `due_ms`, and return it.

        Times are epoch milliseconds; a past time means now. `task_id` names the dashboard task whose deadline
        the reminder is about. `turn_id` is the turn that requests the reminder; None outside of a turn.
        """
        ...

    async def end(
        self, tx: Tx, reminder: Notification, *, now_ms: int, turn_id: int | None = None
    ) -> Notification:
        """Cancel a reminder, and return it in its new state.

        `turn_id` is the turn that requests the cancellation; None outside of a turn.
        """
        ...


class DashboardCommands(Protocol):
    """The service of the groups' dashboards. Both methods run in the caller's transaction."""

    @property
    def reminders(self) -> ReminderCommands:
        """The reminders of people, for an agent that carries out their requests."""
        ...

    async def answer(
        self,
        tx: Tx,
        group: Group,
        turn: Turn | None,
        tool: str,
        arguments: Mapping[str, Any],
        request_id: str,
    ) -> Reply:
        """Call a dashboard tool for the agent whose turn runs, and return the reply for it.

        `tool` and `arguments` are as the agent passed them. A repeated `request_id` is the same request.
        """
        ...

    async def show(self, tx: Tx, group: Group, request_id: str) -> Reply:
        """Return what is on the group's dashboard, as text for a person."""
        ...


class WakeSet(Protocol):
    """The next wake as set, which may differ from the requested one."""

    @property
    def applied_ms(self) -> int: ...

    @property
    def is_bounded(self) -> bool: ...

    @property
    def text(self) -> str: ...


class LoopCommands(Protocol):
    """The service that wakes agents. Both methods run in the caller's transaction, and raise `BadRequest`."""

    async def set_next_wake(self, tx: Tx, group: Group, text: str, reason: str) -> WakeSet:
        """Store the wake that the group's agent requests; it applies from the end of its turn."""
        ...

    async def act(self, tx: Tx, folder: str, action: str, reason: str, *, source: str = ...) -> Folder:
        """Switch a group's loop on or off, pause, resume or wake it, and return the folder of the group.

        A loop is an agent's waking by itself. `action` is "on", "off", "pause", "resume" or "wake". `reason`
        says why the agent is woken, and `source` who wakes it; both count for "wake" alone.
        """
        ...


class ContextCommands(Protocol):
    """The service that stores the context of conversations."""

    async def use(
        self,
        group: Group,
        tool: str,
        arguments: Mapping[str, Any],
        request_id: str,
        *,
        turn: Turn | None = None,
        reads_history: bool = True,
    ) -> Reply:
        """Call one of the tools of `agent_runner.wire.context_tools`, outside of any transaction.

        A repeated `request_id` creates nothing again. `turn` is the agent's turn; None outside of a turn.
        `reads_history` says whether the people who asked in that turn may read other people's messages.
        """
        ...


class SearchCommands(Protocol):
    """The service that searches the web."""

    async def search(self, group: Group, turn: SearchingTurn, query: str) -> str:
        """Search the web, and return the results as the text that an agent reads. Raises `BadRequest`."""
        ...


class NoticeCommands(Protocol):
    """The service that stores notices for agents."""

    async def answer(
        self,
        tx: Tx,
        group: Group,
        turn: Turn | None,
        command: NotifySelf | AcknowledgeNotice | ListNotices | CancelNotice,
        request_id: str,
    ) -> Reply:
        """Carry out a command about notices for the agent whose turn runs, in the caller's transaction.

        A notice is a line for the agent, not for people. A repeated `request_id` is the same request.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The result of a command: `text` is for the agent to read, `data` for its program."""

    text: str
    ok: bool = True
    code: str = "ok"
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandCaller:
    """The sender of a command, and all that its handler needs."""

    group: Group
    """The group, limited to the role of the people who asked."""
    request_id: str
    now_ms: int
    asked_ms: int
    """When the request was made: before `now_ms`, if it waited while the host was down."""
    turn: Turn | None
    """The turn in which the agent makes the request; None outside of turns."""
    zone: ZoneInfo
    read_time: ReadIsoTime
    times: ScheduleReader
    dashboards: DashboardCommands | None = None
    """The services that carry out commands of other packages; None for one that this host lacks."""
    loops: LoopCommands | None = None
    notices: NoticeCommands | None = None
    features_of: Callable[[ChatJid], frozenset[Feature]] = lambda _: frozenset()
    """Returns the features of a chat's messenger."""
    has_gateway: Callable[[], bool] = lambda: False
    """Returns whether a gateway is the model service of `.env`."""
    role: Role = Role.OWNER
    """The lowest role of the people for whom the agent makes the request."""
    file: Attachment | FileRefused | None = None
    """For `send_file`: the copy of the file, or why there is none."""
    early_result: CommandResult | None = None
    """The result of `remember`, `search_history` and `web_search`, which run before the transaction; None if
    nothing was done.
    """

    @property
    def chat(self) -> ChatJid:
        """The chat that the turn answers; outside of a turn, the group's chat that receives notifications."""
        return self.group.chat_for(self.turn.chat_jid if self.turn is not None else None)


def refused(code: str, text: str) -> CommandResult:
    """Return the result of a command that was not carried out: a code for programs, and a text to read."""
    return CommandResult(ok=False, code=code, text=text)
