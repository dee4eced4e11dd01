"""Lists the tools by which agents ask the host: one table for every kind of agent."""

from __future__ import annotations

import json

from agent_runner.tools.tool import Tool
from agent_runner.tools.wire import DASHBOARD_TOOLS, MEMORY_TOOLS, WORKER_TOOLS
from agent_runner.wire import mailbox
from agent_runner.wire.mailbox import Reply

__all__ = ["TABLE", "Tool", "tools_for", "words_of"]


def tools_for(*, is_main: bool, is_worker: bool = False, searches_web: bool = False) -> tuple[Tool, ...]:
    """Return the tools of a group, in the order in which a model is shown them.

    Only `is_main`, the owner's own group, gets those that manage other groups. A dashboard's worker
    (`is_worker`) gets only the few that it needs. `searches_web`: whether the host searches the web for the
    group.
    """
    if is_worker:
        return tuple(tool for tool in DASHBOARD_TOOLS if tool.name in WORKER_TOOLS)
    tools = tuple(tool for tool in TABLE if is_main or not tool.is_only_main)
    return (*tools, WEB_SEARCH) if searches_web else tools


def words_of(reply: Reply) -> str:
    """Return the host's reply to a tool's request as a model reads it: its text, then its data as JSON.

    Without data, it is the text alone.
    """
    if not reply.data:
        return reply.text
    return f"{reply.text}\n{json.dumps(reply.data, ensure_ascii=False)}"


WEB_SEARCH: Tool = Tool(
    name="web_search",
    description="Search the web: titles, addresses and a few lines of each page that is found.",
    command=mailbox.SearchWeb,
    makes=True,  # a call that comes again is not paid twice
)
TABLE: tuple[Tool, ...] = (
    Tool(
        name="send_message",
        description="Send a message to the chat at once; your final answer is sent, too.",
        command=mailbox.SendMessage,
    ),
    Tool(
        name="send_file",
        description="Send a file of your working directory to the chat.",
        command=mailbox.SendFile,
        makes=True,
    ),
    Tool(
        name="react",
        description="Put one emoji under a message of the chat, in place of a short answer.",
        command=mailbox.ReactToMessage,
        is_deferred=True,
    ),
    Tool(
        name="send_poll",
        description="Ask the chat a question with options to choose from. Answers come back to you by name.",
        command=mailbox.SendPoll,
        makes=True,
        is_deferred=True,
    ),
    Tool(
        name="search_history",
        description="Find earlier messages of this group by their words, the newest first.",
        command=mailbox.SearchHistory,
    ),
    Tool(
        name="schedule_task",
        description="Schedule a prompt for yourself, once or repeatedly. For a fixed text that is sent once, "
        "use schedule_notification.",
        command=mailbox.ScheduleTask,
        preset={"context_mode": "group"},
        makes=True,
    ),
    Tool(
        name="reschedule_task",
        description="Change a scheduled task; arguments that you leave out stay as they are.",
        command=mailbox.UpdateTask,
        is_deferred=True,
    ),
    Tool(
        name="pause_task",
        description="Pause a scheduled task until resume_task.",
        command=mailbox.ActOnTask,
        preset={"type": "pause_task"},
        is_deferred=True,
    ),
    Tool(
        name="resume_task",
        description="Resume a paused scheduled task at its next time; missed runs are not made up.",
        command=mailbox.ActOnTask,
        preset={"type": "resume_task"},
        is_deferred=True,
    ),
    Tool(
        name="cancel_task",
        description="End a scheduled task for good.",
        command=mailbox.ActOnTask,
        preset={"type": "cancel_task"},
        is_deferred=True,
    ),
    Tool(
        name="run_task",
        description="Run a scheduled task once now, besides its schedule, also a paused one.",
        command=mailbox.ActOnTask,
        preset={"type": "run_task"},
        is_deferred=True,
        makes=True,
    ),
    Tool(
        name="list_tasks",
        description="List this group's scheduled tasks with next times; from main, those of all groups.",
        command=mailbox.ListTasks,
        is_deferred=True,
    ),
    Tool(
        name="set_next_wake",
        description="Set when you wake next by yourself, if this group's loop is on; the last call counts.",
        command=mailbox.SetNextWake,
        is_deferred=True,
    ),
    Tool(
        name="control_loop",
        description="Switch a group's loop on or off, pause or resume it, or wake its agent now. Each wake "
        "costs a turn of the model. Only on the owner's wish.",
        command=mailbox.ControlLoop,
        is_only_main=True,
        is_deferred=True,
    ),
    *MEMORY_TOOLS,
    Tool(
        name="register_group",
        description="Let the assistant answer in a chat. Only on the owner's wish.",
        command=mailbox.RegisterGroup,
        is_only_main=True,
        is_deferred=True,
    ),
    Tool(
        name="change_group",
        description="Change a group's name, its trigger, whether it answers every message, or the roles of"
        " people. Only on the owner's wish.",
        command=mailbox.ChangeGroup,
        is_only_main=True,
        is_deferred=True,
    ),
    Tool(
        name="unregister_group",
        description="Stop answering in a group. Its files and history stay.",
        command=mailbox.UnregisterGroup,
        is_only_main=True,
        is_deferred=True,
    ),
    Tool(
        name="refresh_groups",
        description="Look for new chats and rewrite ../env/groups.json.",
        command=mailbox.RefreshGroups,
        is_only_main=True,
        is_deferred=True,
    ),
    Tool(
        name="choose_model",
        description="Choose the language model of a group or of all, or list the services. Only on the"
        " owner's wish; it counts from the next turn.",
        command=mailbox.ChooseModel,
        is_only_main=True,
        is_deferred=True,
    ),
)
