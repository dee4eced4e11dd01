"""Reports what people of each role have a group's agent read, write, send, spend and reach, in one table.

It is made of the declarations by which the host judges: the rules of the roles and the group's settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from orchestrator.base.tables import table
from orchestrator.domain.values import Group, Role
from orchestrator.domain.web_search import SearchService
from orchestrator.groups import roles, settings
from orchestrator.groups.roles import Permission, Rights
from orchestrator.groups.settings import GroupConfig
from orchestrator.proxies.model import budget_sums
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.money import budgets
from orchestrator.store.money.budgets import Budget
from orchestrator.store.settings import mcp_servers
from orchestrator.store.settings.mcp_servers import McpServer

YES, NO, ASKS = "yes", "no", "asks"
JOINED, THEIR_CHAT, OWN, OWN_AND_GUESTS, ALL = "joined", "their_chat", "own", "own_and_guests", "all"
ANSWERS: Mapping[str, str] = {
    YES: "yes",
    NO: "no",
    ASKS: "asks you first",
    JOINED: "since they joined",
    THEIR_CHAT: "where they asked",
    OWN: "of their own",
    OWN_AND_GUESTS: "of their own and of guests",
    ALL: "all of it",
}
"""The words for an answer. A part of a budget is a number of percent, and needs none."""
PARTS: Mapping[str, str] = {
    "asks": "asks",
    "reads": "reads",
    "writes": "writes",
    "sends": "sends",
    "spends": "spends",
    "reaches": "reaches",
    "commands": "commands",
}
ACTS: Mapping[str, str] = {
    "call": "Andy for anything at all",
    "talk": "what is said in the chat",
    "files": "the group's files, memory, board and schedule",
    "folder_read": "your folder {subject}",
    "memory": "files, memory, notes and the board",
    "schedule": "reminders and scheduled tasks",
    "folder_written": "your folder {subject}",
    "messages": "messages to the group's chats",
    "sent_files": "the group's files to its chats",
    "every_chat": "messages and files to every chat",
    "budget": "{subject}",
    "no_budget": "what answers cost: no budget is set",
    "model": "the model service",
    "nowhere": "any place outside",
    "internet": "all of the internet",
    "place": "{subject}",
    "other_places": "other places",
    "search": "a search of the web by {subject}",
    "server": "the MCP server {subject}",
    "tool": "the tool {subject}",
    "session": "/clear and /compact",
    "stop": "stop and undo",
    "administer": "the groups, and your answers to requests of agents",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow:
    """One act of an agent, and for each role whether its people may request it. `what` is a key of `ACTS`."""

    part: str
    what: str
    subject: str = ""
    limit: Budget | None = None
    """The budget that a row of money is about."""
    owner: str
    member: str
    guest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _RoleColumn:
    """A role's column of the table."""

    role: Role
    rights: Rights
    is_restricted: bool
    """Whether questions of its people get a container and a conversation of their own, not the group's."""

    def may(self, *permissions: Permission) -> str:
        """Return `YES` where people of the role may call Andy and have all these permissions, else `NO`."""
        # People who may not call Andy cannot ask for anything else.
        return YES if {Permission.CALL, *permissions} <= self.rights.may else NO

    def answer_if_may(self, answer: str, *permissions: Permission) -> str:
        """Return `answer` where people of the role may call Andy and have these permissions, else `NO`."""
        return answer if self.may(*permissions) == YES else NO


async def rule_rows(tx: Tx, folder: str, *, host_search: SearchService) -> list[RuleRow]:
    """Return one row for each act that people may request of a group's agent, with the answer for each role.

    `host_search` is the service that searches the web for groups that have not chosen one. Raises
    `UnknownGroup`.
    """
    group = await groups.known(tx, folder)
    servers = await mcp_servers.of_group(tx, group.folder)
    limits = [budget for budget in await budgets.every(tx) if budget.folder in (None, group.folder)]
    return rules_of(group, servers, limits, host_search=host_search)


def rules_of(
    group: Group, servers: Sequence[McpServer], limits: Sequence[Budget], *, host_search: SearchService
) -> list[RuleRow]:
    """Return one row for each act that people may request, with the answer for each role. Pure.

    `servers` are the MCP servers that the group may call, `limits` the budgets that apply to it.
    `host_search` is the service that searches the web for groups that have not chosen one.
    """
    config = settings.of(group)
    columns = []
    for role in Role:
        rights = roles.rights_of(role, config)
        columns.append(
            _RoleColumn(role=role, rights=rights, is_restricted=roles.is_restricted(rights, group))
        )
    search = config.web_search or host_search
    return [
        *_data_rules(config, columns),
        *_sending_rules(group, columns),
        *_spending_rules(limits, columns),
        *_reaching_rules(config, search, columns),
        *_server_rules(config, servers, columns),
        *_command_rules(group, columns),
    ]


def _row(
    part: str, what: str, answers: Iterable[str], subject: str = "", limit: Budget | None = None
) -> RuleRow:
    """Return the row of one act; `answers` are those for owner, member and guest, in this order.

    `part` is a key of `PARTS` and `what` one of `ACTS`; `subject` is the name that the act's text needs.
    `limit` is the budget that the row is about, if there is one.
    """
    owner, member, guest = answers
    return RuleRow(
        part=part, what=what, subject=subject, limit=limit, owner=owner, member=member, guest=guest
    )


def _data_rules(config: GroupConfig, columns: Sequence[_RoleColumn]) -> Iterator[RuleRow]:
    """Yield the rows about answering people, and about the data that the agent reads and writes for them."""
    # By `roles.narrowed`, people without `HISTORY` get no mounted folder, and without `MEMORY` none to write.
    history, memory = Permission.HISTORY, Permission.MEMORY
    yield _row("asks", "call", [column.may() for column in columns])
    # People who may call Andy, but not see the history, may still ask about the messages since they joined.
    talk = [YES if column.may(history) == YES else column.answer_if_may(JOINED) for column in columns]
    yield _row("reads", "talk", talk)
    yield _row("reads", "files", [column.may(history) for column in columns])
    for mount in config.mounts:
        yield _row("reads", "folder_read", [column.may(history) for column in columns], mount.path)
    yield _row("writes", "memory", [column.may(memory) for column in columns])
    yield _row("writes", "schedule", [column.may(Permission.SCHEDULE) for column in columns])
    for mount in config.mounts:
        if mount.writable:
            yield _row(
                "writes", "folder_written", [column.may(history, memory) for column in columns], mount.path
            )


def _sending_rules(group: Group, columns: Sequence[_RoleColumn]) -> Iterator[RuleRow]:
    """Yield the rows about the chats to which the agent sends messages and files for people of each role.

    People whose questions get a conversation of their own (`is_restricted`) may have messages sent only to
    the chat in which they asked.
    """
    # Without a named permission, `answer_if_may` tests only whether the role may call Andy.
    yield _row(
        "sends",
        "messages",
        [column.answer_if_may(THEIR_CHAT if column.is_restricted else YES) for column in columns],
    )
    # A sent file is one of the group's, so it takes the right to read them.
    yield _row("sends", "sent_files", [column.may(Permission.HISTORY) for column in columns])
    if group.is_main:  # only the main group's agent reaches the chats of other groups
        yield _row("sends", "every_chat", [column.may(Permission.COMMAND) for column in columns])


def _spending_rules(limits: Sequence[Budget], columns: Sequence[_RoleColumn]) -> Iterator[RuleRow]:
    """Yield the rows that say how much of each budget, in `limits`, people of each role may spend.

    Without a budget, one row says which of them may spend anything.
    """

    def part(column: _RoleColumn) -> str:
        """Return the part of a budget that people of the role may spend: `ALL`, `NO`, or such as `50 %`."""
        return column.answer_if_may(ALL if column.rights.spend == 100 else f"{column.rights.spend} %")

    for budget in limits:
        amount = budget_sums.amount_in_words(budget.unit, budget.amount)
        yield _row("spends", "budget", map(part, columns), f"{amount}: {budget_sums.name_of(budget)}", budget)
    if not limits:
        yield _row("spends", "no_budget", [column.may() if column.rights.spend else NO for column in columns])


def _reaching_rules(
    config: GroupConfig, search: SearchService, columns: Sequence[_RoleColumn]
) -> Iterator[RuleRow]:
    """Yield the rows about the places outside that the agent reaches for people of each role.

    That is the model, places on the internet, and the search of the web by `search`. The group's setting
    `egress` is `open` for the whole internet, `none` for nothing, or a list of places, its `targets`. Other
    places are a row of their own if the agent may ask the owner for them.
    """
    network = Permission.NETWORK
    yield _row("reaches", "model", [column.may() for column in columns])
    if config.egress == "open":
        yield _row("reaches", "internet", [column.may(network) for column in columns])
    for target in sorted(map(str, config.targets)):
        yield _row("reaches", "place", [column.may(network) for column in columns], target)
    if config.asks_egress:
        yield _row("reaches", "other_places", [column.answer_if_may(ASKS, network) for column in columns])
    elif config.egress == "none":
        yield _row("reaches", "nowhere", [NO for _ in columns])
    if search is not SearchService.OFF:
        yield _row("reaches", "search", [column.may(network) for column in columns], search.value)


def _server_rules(
    config: GroupConfig, servers: Sequence[McpServer], columns: Sequence[_RoleColumn]
) -> Iterator[RuleRow]:
    """Yield the rows about the MCP servers and single tools that the agent calls for people of each role.

    `ASKS` stands where a rule of the group (`config.ask`) has the owner asked before a call.
    """
    mcp = Permission.MCP
    for server in servers:
        asks_for_any_tool = config.asks_mcp(server.name)
        if server.command and asks_for_any_tool:
            # Such a program would run in the container, where no proxy can ask before a call. So it is not
            # started while a rule asks for it.
            yield _row("reaches", "server", [NO for _ in columns], server.name)
            continue
        # No tool has an empty name, so only a rule for the whole server, or for every server, matches here.
        asks_for_whole_server = config.asks_mcp(server.name, "")
        answers = [column.answer_if_may(ASKS if asks_for_whole_server else YES, mcp) for column in columns]
        yield _row("reaches", "server", answers, server.name)
        for rule in config.ask:
            # A rule names a server, or one of its tools as `server/tool`.
            server_name, slash, _ = rule.removeprefix(settings.MCP_RULE).partition("/")
            if slash and server_name == server.name and not asks_for_whole_server:
                tool_answers = [column.answer_if_may(ASKS, mcp) for column in columns]
                yield _row("reaches", "tool", tool_answers, rule.removeprefix(settings.MCP_RULE))


def _command_rules(group: Group, columns: Sequence[_RoleColumn]) -> Iterator[RuleRow]:
    """Yield the rows that say which commands to Andy people of each role may give."""

    def stops(column: _RoleColumn) -> str:
        """Return which turns people of the role may stop: all, none, their own, or also those of guests."""
        if Permission.COMMAND in column.rights.may:
            return YES
        # Who may not even ask may stop nothing. A role that speaks for guests may also stop their turns.
        return column.answer_if_may(
            OWN_AND_GUESTS if roles.speaks_for(column.role, (Role.GUEST,), is_only_asker=False) else OWN
        )

    yield _row("commands", "session", [column.may(Permission.COMMAND) for column in columns])
    yield _row("commands", "stop", map(stops, columns))
    if group.is_main:  # only there may groups be changed and requests of agents be answered
        yield _row("commands", "administer", [column.may(Permission.COMMAND) for column in columns])


# For machines and for people


class GroupRuleView(TypedDict):
    """One act of an agent, and for each role whether its people may request it."""

    part: str
    what: str
    subject: str
    owner: str
    member: str
    guest: str


def as_rows(rules: Sequence[RuleRow]) -> list[GroupRuleView]:
    """Return the rows as the API and `--json` show them."""
    return [
        {
            "part": rule.part,
            "what": rule.what,
            "subject": rule.subject,
            "owner": rule.owner,
            "member": rule.member,
            "guest": rule.guest,
        }
        for rule in rules
    ]


def rule_lines(rows: list[GroupRuleView]) -> list[str]:
    """Return the rows as a table for people; each part is named once."""
    cells, previous_part = [], ""
    for row in rows:
        part = "" if row["part"] == previous_part else PARTS[row["part"]]
        previous_part = row["part"]
        cells.append((part, _act(row), _answer(row["owner"]), _answer(row["member"]), _answer(row["guest"])))
    return table(("Andy", "for", *(role.value for role in Role)), cells)


def _act(row: GroupRuleView) -> str:
    """Return in words the act that a row is about."""
    return ACTS[row["what"]].format(subject=row["subject"])


def _answer(code: str) -> str:
    """Return the words for a code of `ANSWERS`.

    The part of a budget, such as `20 %`, is returned unchanged.
    """
    return ANSWERS.get(code, code)
