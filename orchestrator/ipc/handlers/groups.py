"""Register, change and unregister groups, and list the known chats; only main may."""

from __future__ import annotations

from agent_runner.wire.mailbox import ChangeGroup, RefreshGroups, RegisterGroup, UnregisterGroup
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import ChatJid, Folder, Group, Role
from orchestrator.groups import changes, people, registration
from orchestrator.groups.name_and_trigger import GroupProfile, profile_line
from orchestrator.ipc.command_context import CommandCaller, CommandResult, refused
from orchestrator.store.conversation import chats
from orchestrator.store.database import Tx
from orchestrator.store.groups import changes as group_changes
from orchestrator.store.groups import groups

FROM_MAIN = "main"
ONLY_OWNER = "Only the owner gives main a chat, on the machine itself: 'andy groups add-chat main {jid}'."


async def register_group(tx: Tx, caller: CommandCaller, command: RegisterGroup) -> CommandResult:
    """Register a chat as a new group or, if the command says so, add it to an existing one except main."""
    if command.is_added:
        return await _add_chat(tx, caller, command)
    group = Group(
        jid=ChatJid(command.jid),
        name=command.name,
        folder=Folder(command.folder),
        trigger=command.trigger,
        requires_trigger=command.requires_trigger,
        added_ms=caller.now_ms,
    )
    try:
        group = await registration.register(tx, group)
    except BadRequest as error:
        return refused(error.code, str(error))
    return CommandResult(
        text=f"{group.name} is registered as '{group.folder}'.",
        data={"folder": group.folder, "jid": group.jid},
    )


async def _add_chat(tx: Tx, caller: CommandCaller, command: RegisterGroup) -> CommandResult:
    """Add a chat to an existing group. This is refused for main, the owner's group."""
    try:
        # Whoever writes in a chat of main is obeyed as the owner, so only the owner may add one.
        if (await groups.known(tx, command.folder)).is_main:
            return refused("not_allowed", ONLY_OWNER.format(jid=command.jid))
        group = await registration.add_chat(tx, command.folder, command.jid, now_ms=caller.now_ms)
    except BadRequest as error:
        return refused(error.code, str(error))
    return CommandResult(
        text=f"{command.jid} is a chat of '{group.folder}' now.",
        data={"folder": group.folder, "jid": group.jid, "chats": list(group.chats)},
    )


async def change_group(tx: Tx, caller: CommandCaller, command: ChangeGroup) -> CommandResult:
    """Change a group's name, its trigger, whether it answers every message, or the roles of people.

    Only what the command sets is changed. If one of the changes is refused, none is made.
    """
    profile = GroupProfile(
        name=command.name, trigger=command.trigger, requires_trigger=command.requires_trigger
    )
    try:
        # All people first: if one is unknown, nothing is changed.
        for address in command.people or {}:
            await people.check_person(tx, command.folder, address)
        group = await groups.known(tx, command.folder)
        async with group_changes.in_one_step(tx, group.folder):
            group = await changes.set_profile(tx, command.folder, profile, by=FROM_MAIN, now_ms=caller.now_ms)
            for address, word in (command.people or {}).items():
                role = None if word == people.DEFAULT else Role(word)  # None removes the setting
                group = await people.set_role(
                    tx, command.folder, address, role, by=FROM_MAIN, now_ms=caller.now_ms
                )
    except BadRequest as error:
        return refused(error.code, str(error))
    role_changes = "".join(f" {address}: {word}." for address, word in (command.people or {}).items())
    return CommandResult(
        text=profile_line(group) + role_changes,
        data={"folder": group.folder, "name": group.name, "trigger": group.trigger},
    )


async def unregister_group(tx: Tx, caller: CommandCaller, command: UnregisterGroup) -> CommandResult:
    """Unregister a group or, if the command names a chat, remove that chat from the group.

    The group's files and messages stay.
    """
    try:
        if command.jid is not None:
            chat_departure = await registration.remove_chat(
                tx, command.folder, command.jid, now_ms=caller.now_ms
            )
            return CommandResult(text=chat_departure.explain())
        departure = await registration.unregister(tx, command.folder, now_ms=caller.now_ms)
    except BadRequest as error:
        return refused(error.code, str(error))
    return CommandResult(text=departure.explain())


async def refresh_groups(tx: Tx, caller: CommandCaller, command: RefreshGroups) -> CommandResult:
    """List all stored chats, and which of them are registered. Nothing is requested from the messengers."""
    del caller, command
    registered = await groups.folders_of_chats(tx)
    known_chats = [
        {"jid": chat.jid, "name": chat.name, "folder": registered.get(chat.jid), "channel": chat.channel}
        for chat in await chats.every(tx)
    ]
    lines = [f"{chat['name']} ({chat['jid']}): {chat['folder'] or 'not registered'}" for chat in known_chats]
    return CommandResult(text="\n".join(lines) or "No chat is known yet.", data={"chats": known_chats})
