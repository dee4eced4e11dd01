"""`andy groups`: give chats an agent of their own, and set what their containers may use."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from orchestrator.cli import terminal
from orchestrator.cli.exit_codes import FAILED, UsageError
from orchestrator.cli.options import (
    GroupArgument,
    HomeOption,
    JsonOption,
    NewFolderArgument,
    YesOption,
    is_confirmed,
    read,
    show,
)
from orchestrator.domain.errors import BadRequest, SettingError
from orchestrator.domain.values import Role
from orchestrator.home import setting_sources

if TYPE_CHECKING:
    from orchestrator.domain.values import Group
    from orchestrator.groups.registration import Registration
    from orchestrator.store.database import Tx
    from orchestrator.store.groups.changes import GroupChange

COMMAND_LINE = "the command line"
ChangeArgument = Annotated[
    int | None, Parameter(help="The number of a change: see 'andy groups history GROUP'.")
]

groups_app = App(name="groups")


@groups_app.command(name="list")
def list_groups(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the registered groups.

    Example: `andy groups list`
    """
    from orchestrator.reports import groups

    # Only the assistant's name is read: to load all settings takes longer than the whole command.
    try:
        name = setting_sources.assistant_name(terminal.home_of(home).root)
    except SettingError as error:
        terminal.say_aside(f"andy: The settings are left out of this: {error}")
        name = setting_sources.DEFAULT_NAME
    read(home, groups.group_rows, partial(groups.group_lines, assistant=name), as_json=as_json)


@groups_app.command
def register(
    folder: NewFolderArgument,
    /,
    *,
    jid: Annotated[
        str | None, Parameter(help="The chat's address. [local:FOLDER, a chat of this machine]")
    ] = None,
    name: Annotated[str | None, Parameter(help="The group's name for people. [FOLDER]")] = None,
    trigger: Annotated[str | None, Parameter(help="A further word that calls Andy, besides @Andy.")] = None,
    requires_trigger: Annotated[
        bool, Parameter(negative="--no-trigger", help="Whether a message must call Andy to be answered.")
    ] = True,
    settings: Annotated[
        str | None,
        Parameter(name="--config", help="Its configuration, a JSON object: see 'andy groups config --help'."),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Give a chat an agent of its own.

    Example: `andy groups register family --name Family --config '{"memory_mb": 1024}'`
    """
    from orchestrator.groups.registration import Registration

    requested = Registration(
        folder=folder,
        jid=jid,
        name=name,
        trigger=trigger,
        requires_trigger=requires_trigger,
        config=_parse_object(settings or "{}"),
    )
    terminal.run_async(register_chat(home, requested))
    print(f"'{folder}' is registered.")


@groups_app.command(name="add-chat")
def add_chat(
    folder: GroupArgument,
    jid: Annotated[str, Parameter(help="The chat's address: 'andy groups chats' lists the known ones.")],
    /,
    *,
    is_notify_chat: Annotated[
        bool,
        Parameter(name="--notify", negative=(), help="Make it the chat that receives notifications."),
    ] = False,
    home: HomeOption = None,
) -> None:
    """Add a chat of any messenger to a group: same agent, files and memory; each chat gets its own replies.

    With --notify, the chat, which may already belong to the group, becomes the one for notifications.

    Example: `andy groups add-chat family tg:-100123 --notify`
    """
    from orchestrator.groups import registration

    async def act(tx: Tx, now_ms: int) -> list[str]:
        """Add the chat to the group, and return the addresses of all of the group's chats."""
        group = await registration.add_chat(tx, folder, jid, now_ms=now_ms, is_notify_chat=is_notify_chat)
        return list(group.chats)

    chats = terminal.run_async(terminal.change(home, act))
    print(f"'{folder}' has these chats, and the first receives notifications: {', '.join(chats)}.")


@groups_app.command(name="remove-chat")
def remove_chat(
    folder: GroupArgument,
    jid: Annotated[str, Parameter(help="The address of one of its chats: see 'andy groups list'.")],
    /,
    *,
    home: HomeOption = None,
) -> None:
    """Remove one of several chats from a group. Its messages stay in the history.

    Example: `andy groups remove-chat family tg:-100123`
    """
    from orchestrator.groups import registration

    async def act(tx: Tx, now_ms: int) -> str:
        """Remove the chat from the group, and return a text about the result."""
        return (await registration.remove_chat(tx, folder, jid, now_ms=now_ms)).explain()

    print(terminal.run_async(terminal.change(home, act)))


@groups_app.command
def change(
    folder: GroupArgument,
    /,
    *,
    name: Annotated[str | None, Parameter(help="The group's name for people.")] = None,
    trigger: Annotated[
        str | None,
        Parameter(help="A further word that calls Andy, besides @Andy; an empty one ('') removes it."),
    ] = None,
    requires_trigger: Annotated[
        bool | None,
        Parameter(negative="--no-trigger", help="Whether a message must call Andy to be answered."),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Change a group's name, its trigger, or whether it answers every message, from the next message on.

    Example: `andy groups change family --name "The family" --trigger @house`
    """
    from orchestrator.groups.changes import set_profile
    from orchestrator.groups.name_and_trigger import GroupProfile, profile_line

    profile = GroupProfile(name=name, trigger=trigger, requires_trigger=requires_trigger)
    if not profile.model_dump(exclude_none=True):
        raise UsageError("Name a change: --name, --trigger, --no-trigger or --requires-trigger")

    changed = terminal.run_async(
        terminal.change(
            home, lambda tx, now_ms: set_profile(tx, folder, profile, by=COMMAND_LINE, now_ms=now_ms)
        )
    )
    print(profile_line(changed))


@groups_app.command(name="chats")
def list_chats(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the known chats of all messengers, each with its group if it has one.

    Chats that called Andy and have no group are listed below, with the number of their request.

    Example: `andy groups chats`
    """
    from orchestrator.reports import groups

    lines = partial(groups.chat_lines, zone=terminal.zone_of(home))
    read(home, groups.chat_rows, lines, as_json=as_json)


@groups_app.command
def decide(
    number: Annotated[str, Parameter(help="The number of the request: see 'andy groups chats'.")],
    decision: Annotated[
        Literal["register", "ignore", "block"],
        Parameter(help="Give the chat a group; ask again in 30 days at the earliest; or never ask again."),
    ],
    /,
    *,
    name: Annotated[str | None, Parameter(help="The group's name for people. [the chat's name]")] = None,
    home: HomeOption = None,
) -> None:
    """Decide about a chat that called Andy and has no group, also one that was ignored or blocked.

    Example: `andy groups decide 3 register --name Choir`
    """
    from orchestrator.groups import access

    request = access.number_of(number)

    async def act(tx: Tx, now_ms: int) -> str:
        """Store the decision about the chat, and return a text about the result."""
        decided = await access.decide(tx, request, decision, by=COMMAND_LINE, now_ms=now_ms, name=name)
        return decided.explain()

    print(terminal.run_async(terminal.change(home, act)))


@groups_app.command
def config(
    folder: GroupArgument,
    /,
    *,
    changes: Annotated[
        str | None,
        Parameter(
            name="--set",
            help="Keys to change, as a JSON object; null removes one. Known: mounts (a list of"
            " {path, name, writable}), timeout_ms, memory_mb, cpus, agent, model, timezone,"
            ' egress (none, open, or {"allowlist": ["host:port"]}),'
            " web_search (anthropic, searxng, brave, off), speech (true or false), skills (a list of names),"
            " node_label (NAME=VALUE, on a swarm),"
            " model_features (features of the model service that cost more: a list of"
            ' "compaction", "fast_mode", "inference_geo"),'
            ' ask (requests that need your approval: a list of "egress", "mcp:*", "mcp:SERVER",'
            ' "mcp:SERVER/TOOL"),'
            " people (roles by address) and roles (the rights of members and guests):"
            " see 'andy groups people --help' and 'andy groups rules --help'.",
        ),
    ] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show or change the settings of a group's containers, from the group's next container on.

    Example: `andy groups config family --set '{"memory_mb": 1024, "mounts": [{"path": "~/photos"}]}'`
    """
    from orchestrator.reports import groups

    if changes is not None:
        terminal.run_async(_configure(home, folder, _parse_object(changes)))
    report = terminal.read(home, lambda tx: groups.config_fields(tx, folder))
    show(report, groups.config_lines, as_json=as_json)


def _parse_object(text: str) -> dict[str, Any]:
    """Return the JSON object in the text of an option. Raises `UsageError` if it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"This is no JSON ({error}): {text}") from error
    if not isinstance(value, dict):
        raise UsageError(f"""This is no JSON object, such as '{{"memory_mb": 1024}}': {text}""")
    return value


@groups_app.command(name="people")
def show_people(
    folder: GroupArgument,
    address: Annotated[
        str | None,
        Parameter(
            help="Somebody's address in their messenger, as this command lists it; '*' is everybody else."
        ),
    ] = None,
    role: Annotated[
        Literal["owner", "member", "guest", "default"] | None,
        Parameter(help="Their role from now on; default removes a role."),
    ] = None,
    /,
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List the people of a group with their roles, or give somebody a role: owner, member or guest.

    'andy groups rules GROUP' shows the rights of each role. A new role counts from the person's next message
    on. Works with Andy down.

    Example: `andy groups people family 491701234567@s.whatsapp.net guest`

    Example: `andy groups people family '*' guest`
    """
    from orchestrator.groups import people
    from orchestrator.reports import groups

    if address is not None and role is None:
        raise UsageError(f"Say which role: andy groups people {folder} '{address}' guest")
    if address is not None and role is not None:
        new_role = None if role == people.DEFAULT else Role(role)

        async def act(tx: Tx, now_ms: int) -> Group:
            """Give the person the role, or the default one for None; return the changed group."""
            return await people.set_role(tx, folder, address, new_role, by=COMMAND_LINE, now_ms=now_ms)

        terminal.run_async(terminal.change(home, act))
    lines = partial(groups.people_lines, zone=terminal.zone_of(home))
    read(home, lambda tx: groups.people_rows(tx, folder), lines, as_json=as_json)


@groups_app.command(name="rules")
def show_rules(
    folder: GroupArgument,
    role: Annotated[
        Literal["member", "guest"] | None, Parameter(help="The role whose rule to change.")
    ] = None,
    what: Annotated[
        Literal["call", "network", "mcp", "memory", "schedule", "history", "spend"] | None,
        Parameter(
            help="The right to change: call (ask Andy at all), network (reach addresses and search the "
            "web), mcp (call MCP servers), memory (write files, memory, notes and the board), schedule (set "
            "and change reminders and tasks), history (read messages from before they joined); or spend, "
            "their part of each budget."
        ),
    ] = None,
    value: Annotated[
        str | None,
        Parameter(
            help="yes or no; for spend a percentage of each budget; or default, which removes the change."
        ),
    ] = None,
    /,
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show the rules of a group for people of each role, or change one.

    The table lists for each role what Andy reads, writes, sends, spends and reaches, and what needs your
    approval. Guests may never do more than members. Works with Andy down.

    Example: `andy groups rules family`

    Example: `andy groups rules family guest network yes`
    """
    from orchestrator.groups import people
    from orchestrator.reports import group_rules

    if role is not None and (what is None or value is None):
        raise UsageError(f"Say which rule, and yes or no: andy groups rules {folder} {role} network yes")
    if role is not None and what is not None and value is not None:
        new_value, rule_name, changed_role = _rule_value(what, value), what, Role(role)

        async def act(tx: Tx, now_ms: int) -> Group:
            """Set what the role may do in the group, and return the changed group."""
            return await people.set_rule(
                tx, folder, changed_role, rule_name, value=new_value, by=COMMAND_LINE, now_ms=now_ms
            )

        terminal.run_async(terminal.change(home, act))
    search = terminal.settings_to_show(terminal.home_of(home)).andy_web_search

    async def rows(tx: Tx) -> list[group_rules.GroupRuleView]:
        """Return the rules of the group, each with what it allows to every role."""
        return group_rules.as_rows(await group_rules.rule_rows(tx, folder, host_search=search))

    read(home, rows, group_rules.rule_lines, as_json=as_json)


def _rule_value(rule: str, value: str) -> bool | int | None:
    """Return the value that was typed for a rule about what a role may do; None for `default`.

    The rule `spend` has a percentage, every other rule `yes` (true) or `no` (false). Raises `UsageError` for
    any other text.
    """
    if value == "default":
        return None
    number = value.removesuffix("%").strip()
    # A percentage above 100 is refused later, with its own text. One of 5 digits or more is refused here:
    # for thousands of digits `int` would raise an error.
    if rule == "spend" and number.isascii() and number.isdigit() and len(number) < 5:
        return int(number)
    if rule == "spend" or value not in ("yes", "no"):
        raise UsageError(f"'{value}' is no value of {rule}: {'0 to 100' if rule == 'spend' else 'yes or no'}")
    return value == "yes"


@groups_app.command
def history(
    folder: GroupArgument,
    number: ChangeArgument = None,
    /,
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List the changes of a group's name, settings and memory, by whom and when; or show one change.

    Example: `andy groups history family`
    """
    from orchestrator.reports import groups

    if number is None:
        lines = partial(groups.change_lines, zone=terminal.zone_of(home))
        read(home, lambda tx: groups.change_rows(tx, folder), lines, as_json=as_json)
    else:
        change = terminal.read(home, lambda tx: _change_of(tx, folder, number))
        show(asdict(change), lambda _: groups.diff_lines(change.before, change.after), as_json=as_json)


@groups_app.command
def undo(
    folder: GroupArgument,
    number: ChangeArgument = None,
    /,
    *,
    yes: YesOption = False,
    home: HomeOption = None,
) -> int:
    """Restore a group's name, settings or memory to before a change; without a number, the newest one.

    The differences are shown first. An undo is a change like others, and can be undone.

    Example: `andy groups undo family 12`
    """
    from orchestrator.groups import changes
    from orchestrator.reports import groups

    root = terminal.home_of(home).root

    async def change_and_current(tx: Tx) -> tuple[GroupChange, str]:
        """Return the change to undo and the text that its part has now."""
        change = await _change_of(tx, folder, number)
        return change, await changes.current(tx, root, folder, change.part)

    change, current_text = terminal.read(home, change_and_current)
    part_name = groups.part_text(change.part)
    if current_text == change.before:
        print(f"The {part_name} of '{folder}' is as it was before change {change.number}.")
        return 0
    show({}, lambda _: groups.diff_lines(current_text, change.before), as_json=False)
    if not is_confirmed(
        f"Put the {part_name} of '{folder}' back as it was before change {change.number}?", yes=yes
    ):
        return FAILED
    terminal.run_async(_restore_part(home, change, shown=current_text))
    print("Put back.")
    return 0


@groups_app.command
def remove(folder: GroupArgument, /, *, home: HomeOption = None) -> None:
    """Unregister a group. Its files and history stay.

    Example: `andy groups remove family`
    """
    print(terminal.run_async(_unregister(home, folder)))


async def register_chat(home_option: Path | None, requested: Registration) -> None:
    """Register a group for a chat, as it is `requested`, and create the home if it is missing.

    The main group is registered, too, if the home has none. Files with the group's memory are created.
    """
    from orchestrator.groups import memory_templates, model_choices, registration

    home = terminal.home_of(home_option)
    has_gateway = terminal.has_gateway(home_option)
    assistant = terminal.settings_of(home).assistant_name

    async def act(tx: Tx, now_ms: int) -> Group:
        """Register the chat, and before it the main group if that does not exist.

        The models in the requested settings are checked first; a gateway's may have any names.
        """
        await model_choices.check_settings(tx, requested.config, has_gateway=has_gateway)
        await registration.ensure_main(tx, now_ms=now_ms)
        return await registration.register_by_hand(tx, requested, now_ms=now_ms)

    group = await terminal.change(home.root, act, makes_home=True)
    memory_templates.ensure_memory(home.root, group, assistant=assistant)


async def _unregister(home_option: Path | None, folder: str) -> str:
    """Unregister a group; return a text about what became of its tasks and messages."""
    from orchestrator.groups import registration

    async def act(tx: Tx, now_ms: int) -> str:
        """Unregister the group, and return a text about the result."""
        return (await registration.unregister(tx, folder, now_ms=now_ms)).explain()

    return await terminal.change(home_option, act)


async def _change_of(tx: Tx, folder: str, number: int | None) -> GroupChange:
    """Return a recorded change of a group's settings or memory by its number; for None, the newest.

    Raises `UnknownGroup`, `UnknownGroupChange`, or `BadRequest` if nothing was changed yet.
    """
    from orchestrator.store.groups import changes as group_changes
    from orchestrator.store.groups import groups

    group = await groups.known(tx, folder)
    if number is None:
        if not (changes := await group_changes.views(tx, group.folder)):
            raise BadRequest(f"Nothing was changed of '{group.folder}' yet: there is nothing to undo.")
        number = changes[0]["number"]
    return await group_changes.get(tx, group.folder, number)


async def _restore_part(home_option: Path | None, change: GroupChange, *, shown: str) -> None:
    """Restore the part of a group that a change was about, such as its memory, to before the change.

    `shown` is the text of the part that the person has confirmed to replace.

    Raises:
        GroupChangeRefused: the part has another text by now, or a model that is to be restored cannot be used
            any more.
    """
    from orchestrator.groups import changes, model_choices

    def check(current_text: str) -> None:
        """Raise `GroupChangeRefused` if the part's present text is not the one that was shown."""
        if current_text != shown:
            raise changes.GroupChangeRefused("It has just been changed by somebody else: look again.")

    async def act(tx: Tx, now_ms: int) -> None:
        """Set the changed part of the group (`GroupPart`) to its text from before the change.

        This is itself recorded as a change.
        """
        await changes.apply(
            tx,
            terminal.home_of(home_option).root,
            change.folder,
            change.part,
            change.before,
            check=check,
            check_settings=partial(
                model_choices.check_settings, has_gateway=terminal.has_gateway(home_option)
            ),
            by=COMMAND_LINE,
            now_ms=now_ms,
            undoes=change.number,
        )

    await terminal.change(home_option, act)


async def _configure(home_option: Path | None, folder: str, changes: dict[str, Any]) -> None:
    """Change keys of a group's configuration; null removes one.

    A running Andy ends the group's containers, and the next ones have the new configuration. Raises
    `BadRequest` for a key or a value that cannot be used.
    """
    import asyncio

    from orchestrator.groups import model_choices, skills
    from orchestrator.groups.changes import configure

    await asyncio.to_thread(skills.check_known, terminal.home_of(home_option).root, changes.get("skills"))
    has_gateway = terminal.has_gateway(home_option)

    async def act(tx: Tx, now_ms: int) -> None:
        """Change the group's settings."""
        await model_choices.check_settings(tx, changes, has_gateway=has_gateway)
        await configure(tx, folder, changes, by=COMMAND_LINE, now_ms=now_ms)

    await terminal.change(home_option, act)
