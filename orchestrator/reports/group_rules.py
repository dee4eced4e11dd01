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
    """One act, and for each role whether it is done for its people. `what` is a key of `ACTS`."""

    part: str
    what: str
    subject: str = ""
    limit: Budget | None = None
    """The budget that a row of money is about."""
    owner: str
    member: str
    guest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _RoleSide:
    """A role's column of the table."""

    role: Role
    rights: Rights
    is_restricted: bool

    def may(self, *needed: Permission) -> str:
        # Whoever may not call Andy can ask for nothing else either.
        return YES if {Permission.CALL, *needed} <= self.rights.may else NO

    def if_may(self, answer: str, *needed: Permission) -> str:
        """Return an answer other than yes where the role has what is needed."""
        return answer if self.may(*needed) == YES else NO


async def rule_rows(tx: Tx, folder: str, *, host_search: SearchService) -> list[RuleRow]:
    """Return the rules of a group, row by row. Raises `UnknownGroup`.

    `host_search` is what searches the web for groups that have said nothing else.
    """
    group = await groups.known(tx, folder)
    servers = await mcp_servers.of_group(tx, group.folder)
    limits = [one for one in await budgets.every(tx) if one.folder in (None, group.folder)]
    return rules_of(group, servers, limits, host_search=host_search)


def rules_of(
    group: Group, servers: Sequence[McpServer], limits: Sequence[Budget], *, host_search: SearchService
) -> list[RuleRow]:
    """Return the rules of a group, row by row. Pure."""
    config = settings.of(group)
    sides = []
    for role in Role:
        rights = roles.rights_of(role, config)
        sides.append(_RoleSide(role=role, rights=rights, is_restricted=roles.is_restricted(rights, group)))
    search = config.web_search or host_search
    return [
        *_files(config, sides),
        *_sends(group, sides),
        *_spends(limits, sides),
        *_reaches(config, search, sides),
        *_servers(config, servers, sides),
        *_commands(group, sides),
    ]


def _row(
    part: str, what: str, answers: Iterable[str], subject: str = "", limit: Budget | None = None
) -> RuleRow:
    owner, member, guest = answers
    return RuleRow(
        part=part, what=what, subject=subject, limit=limit, owner=owner, member=member, guest=guest
    )


def _files(config: GroupConfig, sides: Sequence[_RoleSide]) -> Iterator[RuleRow]:
    history, memory = Permission.HISTORY, Permission.MEMORY
    yield _row("asks", "call", [one.may() for one in sides])
    talk = [YES if one.may(history) == YES else one.if_may(JOINED) for one in sides]
    yield _row("reads", "talk", talk)
    yield _row("reads", "files", [one.may(history) for one in sides])
    for mount in config.mounts:
        yield _row("reads", "folder_read", [one.may(history) for one in sides], mount.path)
    yield _row("writes", "memory", [one.may(memory) for one in sides])
    yield _row("writes", "schedule", [one.may(Permission.SCHEDULE) for one in sides])
    for mount in config.mounts:
        if mount.writable:
            yield _row("writes", "folder_written", [one.may(history, memory) for one in sides], mount.path)


def _sends(group: Group, sides: Sequence[_RoleSide]) -> Iterator[RuleRow]:
    yield _row("sends", "messages", [one.if_may(THEIR_CHAT if one.is_restricted else YES) for one in sides])
    yield _row("sends", "sent_files", [one.may(Permission.HISTORY) for one in sides])
    if group.is_main:
        yield _row("sends", "every_chat", [one.may(Permission.COMMAND) for one in sides])


def _spends(limits: Sequence[Budget], sides: Sequence[_RoleSide]) -> Iterator[RuleRow]:
    def part(side: _RoleSide) -> str:
        return side.if_may(ALL if side.rights.spend == 100 else f"{side.rights.spend} %")

    for budget in limits:
        amount = budget_sums.amount_in_words(budget.unit, budget.amount)
        yield _row("spends", "budget", map(part, sides), f"{amount}: {budget_sums.name_of(budget)}", budget)
    if not limits:
        yield _row("spends", "no_budget", [one.may() if one.rights.spend else NO for one in sides])


def _reaches(config: GroupConfig, search: SearchService, sides: Sequence[_RoleSide]) -> Iterator[RuleRow]:
    network = Permission.NETWORK
    yield _row("reaches", "model", [one.may() for one in sides])
    if config.egress == "open":
        yield _row("reaches", "internet", [one.may(network) for one in sides])
    for target in sorted(map(str, config.targets)):
        yield _row("reaches", "place", [one.may(network) for one in sides], target)
    if config.asks_egress:
        yield _row("reaches", "other_places", [one.if_may(ASKS, network) for one in sides])
    elif config.egress == "none":
        yield _row("reaches", "nowhere", [NO for _ in sides])
    if search is not SearchService.OFF:
        yield _row("reaches", "search", [one.may(network) for one in sides], search.value)


def _servers(
    config: GroupConfig, servers: Sequence[McpServer], sides: Sequence[_RoleSide]
) -> Iterator[RuleRow]:
    mcp = Permission.MCP
    for server in servers:
        if server.command and config.asks_mcp(server.name):
            # Such a program would run in the container, where no proxy can ask before a call. So it is not
            # started while a rule asks for it.
            yield _row("reaches", "server", [NO for _ in sides], server.name)
            continue
        is_asked = config.asks_mcp(server.name, "")
        answers = [one.if_may(ASKS if is_asked else YES, mcp) for one in sides]
        yield _row("reaches", "server", answers, server.name)
        for rule in config.ask:
            place, slash, _ = rule.removeprefix(settings.MCP_RULE).partition("/")
            if slash and place == server.name and not is_asked:
                asked = [one.if_may(ASKS, mcp) for one in sides]
                yield _row("reaches", "tool", asked, rule.removeprefix(settings.MCP_RULE))


def _commands(group: Group, sides: Sequence[_RoleSide]) -> Iterator[RuleRow]:
    def stops(side: _RoleSide) -> str:
        if Permission.COMMAND in side.rights.may:
            return YES
        return side.if_may(
            OWN_AND_GUESTS if roles.speaks_for(side.role, (Role.GUEST,), is_only_asker=False) else OWN
        )

    yield _row("commands", "session", [one.may(Permission.COMMAND) for one in sides])
    yield _row("commands", "stop", map(stops, sides))
    if group.is_main:
        yield _row("commands", "administer", [one.may(Permission.COMMAND) for one in sides])


# For machines and for people


class GroupRuleView(TypedDict):
    """One act, and for each role whether it is done for its people."""

    part: str
    what: str
    subject: str
    owner: str
    member: str
    guest: str


def as_rows(found: Sequence[RuleRow]) -> list[GroupRuleView]:
    """Return the rules as rows for machines."""
    return [
        {
            "part": one.part,
            "what": one.what,
            "subject": one.subject,
            "owner": one.owner,
            "member": one.member,
            "guest": one.guest,
        }
        for one in found
    ]


def rule_lines(rows: list[GroupRuleView]) -> list[str]:
    """Return the rules as lines for people: each part is named once."""
    lines, before = [], ""
    for row in rows:
        part = "" if row["part"] == before else PARTS[row["part"]]
        before = row["part"]
        lines.append((part, _act(row), _answer(row["owner"]), _answer(row["member"]), _answer(row["guest"])))
    return table(("Andy", "for", *(role.value for role in Role)), lines)


def _act(row: GroupRuleView) -> str:
    return ACTS[row["what"]].format(subject=row["subject"])


def _answer(code: str) -> str:
    return ANSWERS.get(code, code)
