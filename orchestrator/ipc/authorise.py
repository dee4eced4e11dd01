"""Decide who may send which command. Pure; the caller is the request's directory, never a field."""

from __future__ import annotations

from collections.abc import Mapping

from agent_runner.wire.context_tools import MEMORY
from agent_runner.wire.mailbox import (
    AcknowledgeNotice,
    ActOnTask,
    CancelNotice,
    CancelReminder,
    ChangeGroup,
    ChooseModel,
    Command,
    ControlLoop,
    ListNotices,
    ListReminders,
    ListTasks,
    ModelMissing,
    NotifySelf,
    ReactToMessage,
    RefreshGroups,
    RegisterGroup,
    Remember,
    ScheduleTask,
    SearchHistory,
    SearchWeb,
    SendFile,
    SendMessage,
    SendPoll,
    SetNextWake,
    SetReminder,
    ShowDashboard,
    UnregisterGroup,
    UpdateTask,
    UseDashboard,
)
from orchestrator.domain.values import ChatJid, Group, Role, Turn, TurnKind
from orchestrator.groups import roles
from orchestrator.groups.roles import Permission, Rights

ONLY_DASHBOARD = "a worker only keeps its dashboard; what people are told are notifications and questions"
ONLY_MAIN = "only the main group may do this"


def refusal(caller: Group, command: Command) -> str | None:
    """Return why a group may not send a command; None when it may.

    The owner's group, main, may send every command. Other groups may only send commands that concern
    themselves.
    """
    if caller.is_main:
        return None
    match command:
        # None stands for the chat of the turn, and below for the caller's own group.
        case SendMessage(chat_jid=jid) | SendFile(chat_jid=jid) if jid not in (None, *caller.chats):
            return "a group may only write in its own chats"
        case (
            RegisterGroup()
            | ChangeGroup()
            | UnregisterGroup()
            | RefreshGroups()
            | ControlLoop()
            | ChooseModel()
        ):
            return ONLY_MAIN
        case ScheduleTask(target_folder=folder) if folder not in (None, caller.folder):
            return "a group may only schedule for itself"
        # Commands of these kinds that were not refused above concern the caller's own chats.
        case (
            SendMessage()
            | SendFile()
            | ReactToMessage()
            | SendPoll()
            | SetReminder()
            | CancelReminder()
            | ListReminders()
            | SetNextWake()
        ):
            return None
        case (
            ScheduleTask()
            | UpdateTask()
            | ActOnTask()
            | ListTasks()
            | UseDashboard()
            | ShowDashboard()
            | Remember()
            | NotifySelf()
            | AcknowledgeNotice()
            | ListNotices()
            | CancelNotice()
            | SearchHistory()
            | SearchWeb()
            | ModelMissing()
        ):
            # Tasks, dashboards, conversations and notices are looked up among the caller's own.
            return None


NEEDED: Mapping[type, Permission] = {
    SearchWeb: Permission.NETWORK,
    **dict.fromkeys((Remember, NotifySelf, CancelNotice, UseDashboard), Permission.MEMORY),
    **dict.fromkeys(
        (
            ScheduleTask,
            UpdateTask,
            ActOnTask,
            SetReminder,
            CancelReminder,
            SetNextWake,
        ),
        Permission.SCHEDULE,
    ),
    # A file is sent from the group's folder, which people without the history permission may not see.
    **dict.fromkeys(
        (SearchHistory, ListTasks, ListReminders, ShowDashboard, ListNotices, SendFile), Permission.HISTORY
    ),
    **dict.fromkeys(
        (RegisterGroup, ChangeGroup, UnregisterGroup, RefreshGroups, ControlLoop, ChooseModel),
        Permission.COMMAND,
    ),
}
"""Maps a kind of command to the permission that the asker's role needs."""
_NEEDED_OF_MEMORY: Mapping[str, Permission] = {
    "show": Permission.HISTORY,
    # Everybody may ask for what is known of themselves; the service refuses others by the same rule.
    "person": Permission.CALL,
}
FOR_ALL = (SendMessage, SendPoll, ReactToMessage, AcknowledgeNotice, ModelMissing)
"""Commands that everybody may use, because no turn could be answered without them."""
ONLY_ITS_CHAT = "a {role} has messages written only in the chat in which they asked"


def role_refusal(
    role: Role, rights: Rights, command: Command, *, chat: ChatJid | None, is_restricted: bool
) -> str | None:
    """Return why a command may not be carried out for somebody with this role and `rights`; None when it may.

    `chat` is the chat in which they asked, or None. `is_restricted` says that their turns share no container
    and no conversation with others: then messages may be written only in that chat.
    """
    if isinstance(command, SendMessage) and is_restricted and command.chat_jid not in (None, chat):
        return ONLY_ITS_CHAT.format(role=role)
    needed = NEEDED.get(type(command))  # None for a command that everybody may use
    if isinstance(command, ReactToMessage) and command.message:
        # The message is named by a part of its text, which could be guessed by trying.
        needed = Permission.HISTORY
    if isinstance(command, Remember) and command.tool == MEMORY:
        needed = _NEEDED_OF_MEMORY.get(str(command.arguments.get("action")), needed)
    return None if needed is None or needed in rights.may else roles.refusal(role, needed)


def worker_refusal(turn: Turn | None, command: Command) -> str | None:
    """Return why a turn may not send a command; None when it may.

    Only a worker turn, in which a model keeps a dashboard up to date, is limited: to commands of the
    dashboard. `turn` is None outside of a turn.
    """
    if turn is None or turn.kind is not TurnKind.WORKER or isinstance(command, UseDashboard | ShowDashboard):
        return None
    return ONLY_DASHBOARD
