"""Send a chat the answer to a request that was read only after its agent had given up waiting."""

from __future__ import annotations

from agent_runner.wire.dashboard import TOOLS
from agent_runner.wire.mailbox import (
    REPLY_SECONDS,
    ActOnTask,
    CancelReminder,
    Command,
    RegisterGroup,
    Reply,
    ScheduleTask,
    SetReminder,
    UnregisterGroup,
    UpdateTask,
    UseDashboard,
)
from orchestrator.domain.values import Group, Turn, TurnId, TurnKind, TurnState
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Tx
from orchestrator.store.runs import turns

SENT_LATE = "sent_late"
"""The code of a reminder that is sent at once: the reminder itself is the reply."""
MAX_AN_HOUR = 30
"""Most messages with late answers that a group gets in an hour.

A container writes the time of its request itself, so it could have any number of answers sent as late ones.
"""
HOUR_MS = 3_600_000
MORE = "More was asked while I was away. It is done or refused by now, and not listed here."
_LISTING = frozenset(tool.name for tool in TOOLS if tool.name.startswith("list_"))


async def send_late_answer(tx: Tx, group: Group, command: Command, reply: Reply, *, now_ms: int) -> None:
    """Queue a message with the reply to `command` for the chat that asked, if the reply comes too late.

    The agent waited `REPLY_SECONDS` for the reply, and then could only say that the host does not answer.

    Nothing is queued for commands that people do not know of, for turns of scheduled tasks and of the
    dashboard worker, and for a reminder whose time has passed (`SENT_LATE`), since the reminder itself is
    sent now. Nothing is queued either if the turn is tried again: the agent then repeats the request and gets
    the reply. After `MAX_AN_HOUR` messages, one more says that other requests are not listed (`MORE`).
    """
    waited_ms = now_ms - (command.asked_ms or now_ms)  # 0 if the command does not say when it was asked
    if waited_ms <= REPLY_SECONDS * 1000 or not _concerns_people(command) or reply.code == SENT_LATE:
        return
    turn = await turns.get(tx, TurnId(command.turn)) if command.turn is not None else None
    # Nobody in the chat waits for what a scheduled task or the dashboard worker requested.
    if turn is not None and (turn.kind is not TurnKind.CHAT or _asks_again(turn, command)):
        return
    # These messages count as no texts of the agent, so they have a limit of their own.
    count = await outbox.count_late_answers(tx, group.folder, since_ms=now_ms - HOUR_MS, now_ms=now_ms)
    if count > MAX_AN_HOUR:
        return
    outcome = "✅ Done after all" if reply.ok else "⚠️ Not done"
    text = f"{outcome}, for I was away when it was asked: {reply.text}"
    await outbox.add(
        tx,
        chat_jid=group.chat_for(turn.chat_jid if turn is not None else None),
        folder=group.folder,
        text=text if count < MAX_AN_HOUR else MORE,
        dedupe_key=f"{outbox.LATE_ANSWER}{group.folder}:{reply.request_id}",
        now_ms=now_ms,
    )


def _concerns_people(command: Command) -> bool:
    """Return whether a command changes something that people know of, and not only reads or takes notes."""
    match command:
        case SetReminder() | CancelReminder() | RegisterGroup() | UnregisterGroup():
            return True
        case ScheduleTask() | UpdateTask() | ActOnTask():
            return True
        case UseDashboard(tool=tool):
            return tool not in _LISTING
        case _:
            return False


def _asks_again(turn: Turn, command: Command) -> bool:
    """Return whether the turn of a request was started again since the request, or waits for that.

    The new attempt repeats the request, and gets its reply.
    """
    has_begun_since = turn.started_ms is not None and turn.started_ms > (command.asked_ms or 0)
    return turn.state is TurnState.QUEUED or has_begun_since
