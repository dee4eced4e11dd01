"""The context of one service call: a transaction, a group, a caller, and one revision for all its writes."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from orchestrator.dashboard.views import serializers
from orchestrator.domain.dashboard import BoardTask, Caller, Notification, Question, ToolRefused
from orchestrator.domain.values import ChatJid, Folder, TurnId
from orchestrator.store.board import dashboards
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.board import questions as board_questions
from orchestrator.store.board import tasks as board_tasks
from orchestrator.store.database import Tx
from orchestrator.store.runs import turns

Row = TypeVar("Row", BoardTask, Question, Notification)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardLimits:
    """The numbers of rows of each kind that a group may have."""

    pending_a_task: int = 3
    pending: int = 1_000
    tasks: int = 20_000
    questions: int = 500
    insights: int = 20_000


class ServiceContext:
    """The context of one call of a service, in one transaction."""

    def __init__(
        self,
        tx: Tx,
        folder: Folder,
        caller: Caller,
        *,
        zone: ZoneInfo,
        limits: BoardLimits | None = None,
        can_deliver: bool = True,
        chat_jid: ChatJid | None = None,
    ) -> None:
        """`caller` is who makes the call, and when. `zone` is the group's time zone.

        `limits` are the largest numbers of rows. `can_deliver` says that a channel takes messages for the
        group's chat, `chat_jid`.
        """
        self.tx = tx
        self.folder = folder
        self.caller = caller
        self.zone = zone
        self.limits = limits or BoardLimits()
        self.can_deliver = can_deliver
        self.chat_jid = chat_jid
        self._version: int | None = None
        """The version of all rows that this service call writes; None before it writes the first."""

    def for_caller(self, caller: Caller) -> ServiceContext:
        """Return the same context for another caller; rows that it writes get another version."""
        return ServiceContext(
            self.tx,
            self.folder,
            caller,
            zone=self.zone,
            limits=self.limits,
            can_deliver=self.can_deliver,
            chat_jid=self.chat_jid,
        )

    def for_chat(self, chat_jid: ChatJid | None) -> ServiceContext:
        """Return the same context for another chat of the group; rows that it writes get another version."""
        return ServiceContext(
            self.tx,
            self.folder,
            self.caller,
            zone=self.zone,
            limits=self.limits,
            can_deliver=self.can_deliver,
            chat_jid=chat_jid,
        )

    @property
    def now_ms(self) -> int:
        """The time of the call in epoch milliseconds."""
        return self.caller.now_ms

    async def requesting_chat(self) -> ChatJid | None:
        """Return the chat in which the caller's request was made: that of the turn that runs.

        Outside of a turn it is the group's chat for notifications, or None if there is none.
        """
        turn_id = self.caller.turn_id
        turn = await turns.get(self.tx, TurnId(turn_id)) if turn_id is not None else None
        return turn.chat_jid if turn is not None else self.chat_jid

    async def version(self) -> int:
        """Return the version of all rows that this service call writes: the dashboard's revision after it.

        The revision is raised when the version is read for the first time; a missing dashboard is created.
        """
        if self._version is None:
            await dashboards.ensure(self.tx, self.folder, now_ms=self.now_ms)
            self._version = await dashboards.advance(self.tx, self.folder)
        return self._version

    async def task(self, task_id: str) -> BoardTask:
        """Return the task of the dashboard with this id. Raises `ToolRefused` NOT_FOUND."""
        row = await board_tasks.get(self.tx, self.folder, task_id)
        if row is None:
            raise ToolRefused("NOT_FOUND", f"There is no task '{task_id[:80]}' on this dashboard.")
        return row

    async def check_open_task(self, task_id: str, *, why_not: str) -> None:
        """Check that a task is neither completed nor cancelled.

        `why_not` ends the sentence of the refusal, such as "nothing was scheduled".

        Raises:
            ToolRefused: UNKNOWN_TASK, or TASK_TERMINAL.
        """
        task = await board_tasks.get(self.tx, self.folder, task_id)
        if task is None:
            raise ToolRefused("UNKNOWN_TASK", f"There is no task '{task_id[:80]}' on this dashboard.")
        if task.status.is_terminal:
            raise ToolRefused(
                "TASK_TERMINAL",
                f"Task {task.id} is {task.status.value}: {why_not}.",
                row=serializers.task(task, self.zone),
            )

    async def question(self, question_id: str) -> Question:
        """Return the question of the dashboard with this id. Raises `ToolRefused` NOT_FOUND."""
        row = await board_questions.get(self.tx, self.folder, question_id)
        if row is None:
            raise ToolRefused("NOT_FOUND", f"There is no question '{question_id[:80]}' on this dashboard.")
        return row

    async def notification(self, notification_id: str) -> Notification:
        """Return the notification of the dashboard with this id. Raises `ToolRefused` NOT_FOUND."""
        row = await board_notifications.get(self.tx, self.folder, notification_id)
        if row is None:
            raise ToolRefused(
                "NOT_FOUND", f"There is no notification '{notification_id[:80]}' on this dashboard."
            )
        return row

    def check_version(self, row: BoardTask | Question | Notification, current: Mapping[str, Any]) -> None:
        """Raise `ToolRefused` STALE if a row has another version than the caller was shown.

        Callers that expect no version are not checked. `current` is the present row as data, which the
        refusal shows.
        """
        if self.caller.expect_version is not None and row.version != self.caller.expect_version:
            raise _stale(row.id, current)

    async def check_seen(self, row: BoardTask | Question | Notification, current: Mapping[str, Any]) -> None:
        """Check that a row has not changed since the caller, or the turn that calls, was shown it.

        `current` is the present row as data, which the refusal shows: from then on it counts as shown to the
        turn.

        Raises:
            ToolRefused: STALE.
        """
        turn_id = self.caller.turn_id
        self.check_version(row, current)
        # A row that this turn has changed itself is known to it.
        if turn_id is None or row.changed_turn == turn_id:
            return
        if not await dashboards.has_seen(self.tx, turn_id, row.id, row.version):
            # The refusal shows the row as it is now, so the next attempt may change it.
            await dashboards.note_seen(self.tx, turn_id, row.id, row.version)
            raise _stale(row.id, current)


def new_id(prefix: str) -> str:
    """Return a new random id with a prefix for its kind: `task_1a2b3c4d`."""
    return f"{prefix}_{secrets.token_hex(4)}"


def _stale(row_id: str, current: Mapping[str, Any]) -> ToolRefused:
    """Return the refusal to change a row that has changed meanwhile; `current` is the present row as data."""
    return ToolRefused(
        "STALE",
        f"{row_id} was changed meanwhile; nothing was done. Look at it as it is now, and decide again.",
        row=dict(current),
    )
