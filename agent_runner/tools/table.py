"""Lists the tools by which agents ask the host: one table for every kind of agent."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from agent_runner.tools.loop import LOOP_TOOLS
from agent_runner.tools.tasks import TASK_TOOLS
from agent_runner.tools.tool import NoParameters, Parameters, Tool
from agent_runner.tools.wire import DASHBOARD_TOOLS, MEMORY_TOOLS, WORKER_TOOLS
from agent_runner.wire import mailbox
from agent_runner.wire.mailbox import Command, Reply

__all__ = ["TABLE", "Tool", "tools_for", "words_of"]


class MessageParameters(Parameters):
    text: str = Field(min_length=1, description="The message, as the chat is to see it.")
    chat_jid: str | None = Field(
        default=None,
        max_length=200,
        description="Another chat of this group; from main, any chat.",
    )


class FileParameters(Parameters):
    path: str = Field(
        min_length=1,
        max_length=mailbox.MAX_PATH_CHARS,
        description="The file, in your working directory, e.g. plan.pdf.",
    )
    caption: str = Field(
        default="", max_length=mailbox.MAX_CAPTION_CHARS, description="A few words under it; may be empty."
    )
    chat_jid: str | None = Field(
        default=None,
        max_length=200,
        description="Another chat of this group; from main, any chat.",
    )


class ReactParameters(Parameters):
    emoji: str = Field(max_length=64, description="One emoji; empty: take yours away.")
    message: str = Field(
        default="", max_length=200, description="Some words of the message; left out: the question."
    )


class PollParameters(Parameters):
    question: str = Field(
        min_length=1,
        max_length=mailbox.MAX_QUESTION_CHARS,
        description="As people will read it.",
    )
    options: tuple[Annotated[str, Field(min_length=1, max_length=mailbox.MAX_OPTION_CHARS)], ...] = Field(
        min_length=mailbox.MIN_OPTIONS, max_length=mailbox.MAX_OPTIONS, description="2 to 10 answers, short."
    )
    is_multiple: bool = Field(default=False, description="Whether one may choose several.")
    until: str | None = Field(
        default=None,
        max_length=64,
        description="When it ends: an ISO time or 2h30m; left out: it does not.",
    )


class SearchParameters(Parameters):
    query: str = Field(min_length=1, max_length=200, description='Words, or parts; "several words" as one.')
    before: int | None = Field(default=None, description="The number of a message: only older ones.")


class WebParameters(Parameters):
    query: str = Field(
        min_length=1, max_length=mailbox.MAX_QUERY_CHARS, description="What to look for, in a few words."
    )


class RegisterParameters(Parameters):
    jid: str = Field(min_length=1, description="The chat's address, from ../env/groups.json.")
    name: str = Field(min_length=1, description="What people call the group.")
    folder: str = Field(
        min_length=1, max_length=64, description="A new folder name: ASCII letters, digits, '-' and '_'."
    )
    trigger: str | None = Field(
        default=None,
        max_length=64,
        description="What wakes the assistant there, e.g. @Andy. Default: its name.",
    )
    requires_trigger: bool = Field(
        default=True, description="False: every message is answered, with or without the trigger."
    )
    is_added: bool = Field(
        default=False,
        description="True: the folder has a group already, and this becomes one more chat of it.",
    )


class ChangeGroupParameters(Parameters):
    folder: str = Field(min_length=1, max_length=64, description="The group's folder name.")
    name: str | None = Field(default=None, max_length=200, description="Its new name.")
    trigger: str | None = Field(
        default=None, max_length=64, description="A call besides the assistant's name; empty: none."
    )
    requires_trigger: bool | None = Field(
        default=None, description="False: every message is answered, called or not."
    )
    people: dict[str, Literal["owner", "member", "guest", "default"]] | None = Field(
        default=None,
        max_length=mailbox.MAX_ROLES,
        description='Roles by the address that the messenger has, such as {"4917@s.whatsapp.net": "guest"};'
        " * is everybody else. Of an unknown address you are told those that are known.",
    )


class UnregisterParameters(Parameters):
    folder: str = Field(min_length=1, max_length=64, description="The group's folder name.")
    jid: str | None = Field(
        default=None, max_length=200, description="Only this one of its several chats is taken off."
    )


class ModelParameters(Parameters):
    model: str | None = Field(
        default=None,
        max_length=200,
        description="SERVICE/MODEL, such as local/qwen3, or default; left out: list what there is.",
    )
    target_folder: str | None = Field(
        default=None, max_length=64, description="The group's folder name; left out: all groups."
    )
    work: Literal["all", "tasks", "worker", "summaries"] = Field(
        default="all", description="The kind of work that it is for."
    )


def _send(given: MessageParameters) -> Command:
    return mailbox.SendMessage(text=given.text, chat_jid=given.chat_jid)


def _send_file(given: FileParameters) -> Command:
    return mailbox.SendFile(path=given.path, caption=given.caption, chat_jid=given.chat_jid)


def _react(given: ReactParameters) -> Command:
    return mailbox.ReactToMessage(emoji=given.emoji, message=given.message)


def _send_poll(given: PollParameters) -> Command:
    return mailbox.SendPoll(**given.model_dump())


def _search(given: SearchParameters) -> Command:
    return mailbox.SearchHistory(query=given.query, before=given.before)


def _search_web(given: WebParameters) -> Command:
    return mailbox.SearchWeb(query=given.query)


def _register(given: RegisterParameters) -> Command:
    return mailbox.RegisterGroup(**given.model_dump())


def _change_group(given: ChangeGroupParameters) -> Command:
    return mailbox.ChangeGroup(**given.model_dump())


def _unregister(given: UnregisterParameters) -> Command:
    return mailbox.UnregisterGroup(**given.model_dump())


def _refresh(_: NoParameters) -> Command:
    return mailbox.RefreshGroups()


def _choose_model(given: ModelParameters) -> Command:
    return mailbox.ChooseModel(**given.model_dump())


def tools_for(*, is_main: bool, is_worker: bool = False, searches_web: bool = False) -> tuple[Tool[Any], ...]:
    """Return the tools of a group, in the order in which a model is told of them.

    Whoever keeps the dashboard up has the few that are for that. `searches_web` tells whether the host
    searches the web for the group.
    """
    if is_worker:
        return tuple(tool for tool in DASHBOARD_TOOLS if tool.name in WORKER_TOOLS)
    own = tuple(tool for tool in TABLE if is_main or not tool.is_only_main)
    return (*own, WEB_SEARCH) if searches_web else own


def words_of(reply: Reply) -> str:
    """Return a reply as a model reads it: its text, then its data as JSON if there is any."""
    if not reply.data:
        return reply.text
    return f"{reply.text}\n{json.dumps(reply.data, ensure_ascii=False)}"


WEB_SEARCH: Tool[Any] = Tool(
    name="web_search",
    description="Search the web: titles, addresses and a few lines of each page that is found.",
    parameters=WebParameters,
    command=_search_web,
    makes=True,  # a call that comes again is not paid twice
)
TABLE: tuple[Tool[Any], ...] = (
    Tool(
        name="send_message",
        description="Say something in the chat at once; your final answer is sent besides.",
        parameters=MessageParameters,
        command=_send,
    ),
    Tool(
        name="send_file",
        description="Send a file of your working directory to the chat.",
        parameters=FileParameters,
        command=_send_file,
        makes=True,
    ),
    Tool(
        name="react",
        description="Put one emoji under a message of the chat, in place of a short answer.",
        parameters=ReactParameters,
        command=_react,
        is_deferred=True,
    ),
    Tool(
        name="send_poll",
        description="Ask the chat a question with options to choose from. Answers come back to you by name.",
        parameters=PollParameters,
        command=_send_poll,
        makes=True,
        is_deferred=True,
    ),
    Tool(
        name="search_history",
        description="Find earlier messages of this group by their words, the newest first.",
        parameters=SearchParameters,
        command=_search,
    ),
    *TASK_TOOLS,
    *LOOP_TOOLS,
    *MEMORY_TOOLS,
    Tool(
        name="register_group",
        description="Let the assistant answer in a chat. Only on the owner's wish.",
        parameters=RegisterParameters,
        command=_register,
        is_only_main=True,
        is_deferred=True,
    ),
    Tool(
        name="change_group",
        description="Change a group's name, its trigger, whether it answers every message, or the roles of"
        " people. Only on the owner's wish.",
        parameters=ChangeGroupParameters,
        command=_change_group,
        is_only_main=True,
        is_deferred=True,
    ),
    Tool(
        name="unregister_group",
        description="Stop answering in a group. Its files and history stay.",
        parameters=UnregisterParameters,
        command=_unregister,
        is_only_main=True,
        is_deferred=True,
    ),
    Tool(
        name="refresh_groups",
        description="Look for new chats and rewrite ../env/groups.json.",
        parameters=NoParameters,
        command=_refresh,
        is_only_main=True,
        is_deferred=True,
    ),
    Tool(
        name="choose_model",
        description="Choose the language model of a group or of all, or list the services. Only on the"
        " owner's wish; it counts from the next turn.",
        parameters=ModelParameters,
        command=_choose_model,
        is_only_main=True,
        is_deferred=True,
    ),
)
