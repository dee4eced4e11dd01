"""Register and unregister groups, for the CLI, HTTP and the main group's agent alike."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import ChatJid, Folder, Group, Turn, TurnKind, TurnState
from orchestrator.groups import name_and_trigger, settings
from orchestrator.store import audit
from orchestrator.store.access import approvals, secret_addresses
from orchestrator.store.access import requests as access_requests
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.conversation import chats, outbox, polls
from orchestrator.store.database import Tx, announce
from orchestrator.store.groups import changes as group_changes
from orchestrator.store.groups import groups
from orchestrator.store.runs import turns
from orchestrator.store.schedule import followed_calendars, task_stops, tasks

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
RESERVED = frozenset({"global", "errors"})
"""Names that Andy itself uses: `groups/global/`, and `data/ipc/errors/` for refused requests."""
MAIN = Folder("main")
MAIN_JID = ChatJid("local:main")


GONE = "this chat was taken off my list."
MAX_CHATS = 20
ROLE_SETTINGS = ("people", "roles")
"""The settings of a folder that stay when a group is registered there again."""
_ADDRESS = re.compile(r"[^\s\x00-\x1f\x7f]{1,200}")


class Registration(BaseModel):
    """The request to register a chat. It cannot make the chat main."""

    model_config = ConfigDict(extra="forbid")

    folder: str
    jid: str | None = None
    """Default: a chat of this machine."""
    name: str | None = None
    trigger: str | None = None
    requires_trigger: bool = True
    config: dict[str, Any] = Field(default_factory=dict)

    def to_group(self, now_ms: int) -> Group:
        """Return the group that is requested; without a chat, it gets a chat of this machine.

        Raises `ProfileRefused` if nobody can type its trigger.
        """
        return Group(
            jid=ChatJid(self.jid) if self.jid else local_address(self.folder),
            name=self.name or self.folder,
            folder=Folder(self.folder),
            trigger=name_and_trigger.typeable(self.trigger),
            requires_trigger=self.requires_trigger,
            container_config=self.config,
            added_ms=now_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """The result of unregistering a group: failed turns, remaining reminders and paused tasks."""

    group: Group
    failed_turns: int
    reminders: int
    """The number of reminders that are still set."""
    paused_tasks: int = 0

    def explain(self) -> str:
        """Return what became of the group, its turns, reminders and tasks, in sentences for people."""
        folder = self.group.folder
        lines = [f"'{folder}' is no longer registered; groups/{folder}/ and its history stay."]
        if self.failed_turns:
            lines.append(f"What waited for an answer has failed, and the chat is told ({self.failed_turns}).")
        if self.reminders:
            lines.append(f"Its reminders stay set and will be sent ({self.reminders}).")
        if self.paused_tasks:
            lines.append(f"Its tasks are paused ({self.paused_tasks}).")
        return " ".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDeparture:
    """The result of removing a chat from a group; `group` is the group's new state."""

    group: Group
    jid: ChatJid
    failed_turns: int

    def explain(self) -> str:
        """Return what became of the chat and the questions that waited there, in sentences for people."""
        folder = self.group.folder
        lines = [f"{self.jid} is no chat of '{folder}' any more; what was said there stays in its history."]
        if self.failed_turns:
            lines.append(f"What waited for an answer has failed, and the chat is told ({self.failed_turns}).")
        lines.append(f"What comes by itself goes to {self.group.jid}.")
        return " ".join(lines)


class FolderRefused(BadRequest):
    """The folder name cannot be used."""

    code = "bad_folder"


class AlreadyRegistered(BadRequest):
    """The chat or the folder is registered already."""

    code = "already_registered"
    http_status = 409


def local_address(folder: str) -> ChatJid:
    """Return the address of a group's chat of this machine: `local:` and the group's folder."""
    return ChatJid(f"local:{folder}")


def checked_folder(name: str) -> Folder:
    """Return `name` as a group's folder, if it may be one. Raises `FolderRefused`, which names the rule."""
    if not _FOLDER.fullmatch(name):
        raise FolderRefused(
            f"'{name}' is no folder name: use 1 to 64 letters, digits, '-' and '_',"
            " the first a letter or digit."
        )
    if name.lower() in RESERVED:
        raise FolderRefused(f"'{name}' is reserved: choose another folder name.")
    return Folder(name)


async def register(tx: Tx, group: Group) -> Group:
    """Register the chat of a new group, and return the group as it is stored.

    A folder that had a group before keeps its files, history, session and roles, so that nobody gains rights
    by a new registration. A request about the chat that waits for the owner's decision is settled by this.
    The registration is audited and published.

    Raises:
        BadRequest: the address, the name or the configuration cannot be used.
        FolderRefused: the folder's name breaks the rule.
        AlreadyRegistered: the chat, or the folder in upper or lower case, belongs to a group; or a second
            main group is to be registered.
    """
    group = _checked(group)
    await _check_free(tx, group)
    taken = await groups.by_folder(tx, group.folder)
    if taken is not None:
        add_chat_command = f"andy groups add-chat {taken.folder} {group.jid}"
        fix = f": choose another name, or give it one more chat: '{add_chat_command}'"
        raise AlreadyRegistered(
            f"'{taken.folder}' is registered for {', '.join(taken.chats)} already"
            f"{'' if group.jid in taken.chats else fix}."
        )
    before = await group_changes.last_settings(tx, group.folder)
    stored = {key: before[key] for key in ROLE_SETTINGS if key in before}
    group = replace(group, container_config=stored | group.container_config)
    # Only the messenger knows whether it is a group chat: it stays one, or becomes one with a message.
    await chats.upsert(tx, group.jid, name=group.name, channel=None, is_group=False, at_ms=None)
    try:
        await groups.add(tx, group)
    except sqlite3.IntegrityError as error:
        raise AlreadyRegistered("There is a main group already.") from error
    await access_requests.settle_registered(tx, group.jid, now_ms=group.added_ms)
    detail = {"jid": group.jid, "is_main": group.is_main, "config": group.container_config}
    await _audit(tx, "group.registered", group, detail, now_ms=group.added_ms)
    announce(tx, "group.registered", group=group.folder)
    return group


def _checked(group: Group) -> Group:
    """Check a group's folder, address, name, trigger and settings, and return it in the form to store.

    Raises `BadRequest` if one of them cannot be used.
    """
    checked_folder(group.folder)
    _checked_address(group.jid)
    config = settings.checked(group.container_config).to_fields()
    return replace(
        group,
        name=name_and_trigger.checked_name(group.name),
        trigger=name_and_trigger.checked_trigger(group.trigger),
        container_config=config,
    )


def _checked_address(jid: str) -> ChatJid:
    """Return a chat's address unchanged. Raises `BadRequest` if it cannot be one."""
    if not _ADDRESS.fullmatch(jid) or not jid.isprintable():
        raise BadRequest(
            f"{jid!r} is no address of a chat: it has no spaces, nothing that cannot be seen, and at most 200"
            " characters."
        )
    return ChatJid(jid)


async def register_by_hand(tx: Tx, request: Registration, *, now_ms: int) -> Group:
    """Register the group that a person requests, and return it.

    Raises what `register` raises, and `NameTaken` if they chose the name of another group.
    """
    group = request.to_group(now_ms)
    if request.name is not None:
        await name_and_trigger.check_name_is_free(tx, group)
    return await register(tx, group)


async def unregister(tx: Tx, folder: str, *, now_ms: int) -> Departure:
    """Remove a group's registration, and return the effects; the group's files and history stay.

    Waiting turns (questions to its agent) fail, and their chats are notified. The group's scheduled tasks are
    paused; its hooks, calendars and requests for approval are deleted, its reminders stay. A running turn is
    not stopped here: `GroupReconciler` lets the group's containers end after their turns. The removal is
    audited and published.

    Raises:
        UnknownGroup: there is no such group.
        BadRequest: it is the main group, which cannot be removed.
    """
    group = await groups.known(tx, folder)
    if group.is_main:
        raise BadRequest("The main group cannot be removed: it administers the others.")
    await groups.remove(tx, group.folder)
    failed, paused = await end_waiting(tx, group.folder, group.chats, now_ms=now_ms)
    await _audit(tx, "group.unregistered", group, {"chats": group.chats}, now_ms=now_ms)
    announce(tx, "group.unregistered", group=group.folder)
    coming = await board_notifications.reminders(tx, group.folder)
    return Departure(group=group, failed_turns=failed, reminders=len(coming), paused_tasks=paused)


async def end_waiting(
    tx: Tx, folder: Folder, chat_jids: Sequence[ChatJid], *, now_ms: int
) -> tuple[int, int]:
    """End what a folder still has after its group was removed, or its registration was undone.

    Its hooks, calendars and requests for approval are deleted, its waiting turns fail, and its tasks are
    paused. The chats of the failed turns are notified. For some time the owner is not asked about the chats
    `chat_jids` again.

    Return (the number of turns that failed, the number of tasks that were paused).
    """
    await approvals.remove_of(tx, folder)
    await secret_addresses.remove_of(tx, folder)
    await followed_calendars.remove_of(tx, folder)
    await access_requests.ignore_unregistered(tx, chat_jids, now_ms=now_ms)
    paused = await task_stops.stop_of_group(tx, folder, reason=GONE, now_ms=now_ms)
    waiting = [turn for turn in await turns.unsettled_of(tx, folder) if turn.state is TurnState.QUEUED]
    for turn in waiting:
        await fail_gone(tx, turn, now_ms=now_ms)
    return len(waiting), paused


async def add_chat(tx: Tx, folder: str, jid: str, *, now_ms: int, is_notify_chat: bool = False) -> Group:
    """Add the chat with the address `jid` to a group, and return the group.

    All chats of a group share its agent, memory, settings and triggers; a chat of the main group can
    administer as well. With `is_notify_chat` it receives the group's notifications from now on, also if the
    group has the chat already.

    Raises:
        UnknownGroup: there is no such group.
        BadRequest: `jid` is no address, or the group has too many chats.
        AlreadyRegistered: the chat belongs to another group.
    """
    group = await groups.known(tx, folder)
    # Only the address is checked, so that a group whose settings cannot be read can still get a chat.
    wanted = replace(group, jid=_checked_address(jid))
    await _check_free(tx, wanted)
    if wanted.jid not in group.chats:
        if len(group.chats) >= MAX_CHATS:
            raise BadRequest(f"'{group.folder}' has {MAX_CHATS} chats already: take one off first.")
        await _give_chat(tx, wanted, now_ms=now_ms)
        await _audit(tx, "group.chat_added", group, {"jid": wanted.jid}, now_ms=now_ms)
    if is_notify_chat and wanted.jid != group.jid:
        await groups.set_jid(tx, group.folder, wanted.jid)
        await _audit(tx, "group.notify_chat", group, {"jid": wanted.jid, "from": group.jid}, now_ms=now_ms)
    announce(tx, "group.chats_changed", group=group.folder)
    return await groups.known(tx, group.folder)


def chosen_chat(group: Group, jid: str | None, *, default: ChatJid) -> ChatJid:
    """Return the address `jid` that somebody chose, if it is a chat of the group; `default` if it is None.

    Raises `BadRequest` if it is no chat of the group.
    """
    if jid is None:
        return default
    if jid not in group.chats:
        raise BadRequest(f"{jid!r} is no chat of '{group.folder}'. Its chats: {', '.join(group.chats)}.")
    return ChatJid(jid)


def writing_chat(group: Group) -> ChatJid:
    """Return the chat of a group to which the console, the terminal and HTTP write.

    It is the group's chat of this machine, or its notify chat if it has none.
    """
    return next((jid for jid in group.chats if jid == local_address(group.folder)), group.jid)


async def _check_free(tx: Tx, wanted: Group) -> None:
    """Check that the address of the group `wanted` is no other group's chat. Raises `AlreadyRegistered`."""
    taken = await groups.by_jid(tx, wanted.jid)
    if taken is not None and taken.folder != wanted.folder:
        raise AlreadyRegistered(f"That chat is registered as '{taken.folder}': take it off first.")


async def _give_chat(tx: Tx, wanted: Group, *, now_ms: int) -> None:
    """Store one more chat of the group `wanted`; the address of that chat is `wanted.jid`.

    A request about the chat that waits for the owner's decision is settled by this.
    """
    await chats.upsert(tx, wanted.jid, name=None, channel=None, is_group=False, at_ms=None)
    await groups.add_chat(tx, wanted.folder, wanted.jid, now_ms=now_ms)
    await access_requests.settle_registered(tx, wanted.jid, now_ms=now_ms)


async def remove_chat(tx: Tx, folder: str, jid: str, *, now_ms: int) -> ChatDeparture:
    """Remove one of several chats from a group; its messages stay in the group's history.

    Waiting turns (questions to the agent) of the chat fail, and it is notified. Its scheduled tasks, and
    later messages to it such as reminders, go to the group's notify chat. If the notify chat itself is
    removed, the group's oldest other chat becomes the notify chat. For some time the owner is not asked about
    the removed chat. The removal is audited and published.

    Raises:
        UnknownGroup: there is no such group.
        BadRequest: the chat is not one of the group, or its only one.
    """
    group = await groups.known(tx, folder)
    chat = chosen_chat(group, jid, default=group.jid)
    if len(group.chats) == 1:
        raise BadRequest(
            f"It is the only chat of '{group.folder}':"
            f" 'andy groups remove {group.folder}' takes the group off."
        )
    notify_chat = group.other_chats[0] if chat == group.jid else group.jid
    # Before the chat is taken off, because a group always names one of its own chats.
    await groups.set_jid(tx, group.folder, notify_chat)
    await groups.remove_chat(tx, group.folder, chat)
    await access_requests.ignore_unregistered(tx, [chat], now_ms=now_ms)
    await tasks.move(tx, group.folder, chat, notify_chat)
    waiting = [
        turn
        for turn in await turns.unsettled_of(tx, group.folder)
        if turn.state is TurnState.QUEUED and turn.chat_jid == chat
    ]
    for turn in waiting:
        await fail_gone(tx, turn, now_ms=now_ms)
    await _audit(tx, "group.chat_removed", group, {"jid": chat}, now_ms=now_ms)
    announce(tx, "group.chats_changed", group=group.folder)
    remaining = await groups.known(tx, group.folder)
    return ChatDeparture(group=remaining, jid=chat, failed_turns=len(waiting))


async def fail_gone(tx: Tx, turn: Turn, *, now_ms: int) -> None:
    """Fail a turn whose chat no longer has an agent, and notify the chat if somebody waits there."""
    await turns.settle(tx, turn.id, TurnState.FAILED, reason=GONE, now_ms=now_ms)
    if turn.kind is TurnKind.CHAT:
        await outbox.add_failure(tx, turn, f"⚠️ I will not answer this: {GONE}", now_ms=now_ms)


async def _audit(tx: Tx, kind: str, group: Group, detail: dict[str, Any], *, now_ms: int) -> None:
    """Write an entry of this `kind` about a group to the audit log."""
    await audit.append(tx, audit.AuditEvent(at_ms=now_ms, kind=kind, folder=group.folder, detail=detail))


async def move_main(tx: Tx, jid: str, *, now_ms: int) -> Group:
    """Move the main group from its notify chat to the chat with the address `jid`, and return the group.

    Scheduled tasks move, too, and reminders are sent to the new chat; messages of the old chat stay in the
    history. The move is audited and published. If main is in that chat already, nothing changes.

    Raises:
        BadRequest: `jid` is no address, or a question to main's agent is not answered yet.
        AlreadyRegistered: the chat belongs to another group.
    """
    main = next(group for group in await groups.every(tx) if group.is_main)
    moved = replace(main, jid=_checked_address(jid))
    if moved.jid == main.jid:
        return main
    await _check_free(tx, moved)
    if await turns.unsettled_of(tx, main.folder):
        raise BadRequest("The main group has an unanswered message: wait for the answer, and try again.")
    if moved.jid not in main.chats:
        await _give_chat(tx, moved, now_ms=now_ms)
    await groups.set_jid(tx, main.folder, moved.jid)
    await groups.remove_chat(tx, main.folder, main.jid)
    await tasks.move(tx, main.folder, main.jid, moved.jid)
    await _audit(tx, "group.moved", moved, {"jid": moved.jid, "from": main.jid}, now_ms=now_ms)
    announce(tx, "group.chats_changed", group=main.folder)
    return await groups.known(tx, main.folder)


async def move_chat(tx: Tx, old: ChatJid, new: ChatJid, *, now_ms: int) -> Group | None:
    """Change the address of a chat, because its messenger reports a new one.

    Return the chat's group as it was before, or None if it is not registered. Its scheduled tasks, waiting
    turns, unsent messages and polls are redirected, and so is the request of a chat that has no group.
    Messages at the old address stay in the group's history. The owner's rules for the old
    address count for the new one from now on.

    Raises:
        BadRequest: `new` is no address.
        AlreadyRegistered: the new address belongs to another group. Nothing but the owner's rules has moved.
    """
    await groups.record_move(tx, old, _checked_address(new))
    group = await groups.by_jid(tx, old)
    if group is not None:
        moved = replace(group, jid=new)
        await _check_free(tx, moved)
        if new not in group.chats:
            await _give_chat(tx, moved, now_ms=now_ms)
        if group.jid == old:
            await groups.set_jid(tx, group.folder, new)
        await groups.remove_chat(tx, group.folder, old)
        await tasks.move(tx, group.folder, old, new)
        await turns.move(tx, group.folder, old, new)
        await _audit(tx, "group.chat_moved", group, {"jid": new, "from": old}, now_ms=now_ms)
    elif (chat := await chats.get(tx, old)) is not None:
        # Rows that wait for a chat refer to its row, so the new address gets one first. It has the time of
        # the last message: a chat without one would never be forgotten.
        await chats.upsert(
            tx, new, name=chat.name, channel=chat.channel, is_group=True, at_ms=chat.last_message_ms
        )
        await access_requests.move(tx, old, new)
    await outbox.move(tx, old, new)
    await polls.move(tx, old, new)
    return group


async def greet_main(tx: Tx, text: str, *, now_ms: int) -> str:
    """Queue a text to the main group and announce it; return the key by which it is found in the outbox."""
    main = next(group for group in await groups.every(tx) if group.is_main)
    key = f"greeting:{now_ms}"
    await outbox.add(tx, chat_jid=main.jid, folder=main.folder, text=text, dedupe_key=key, now_ms=now_ms)
    announce(tx, "outbox.changed", group=main.folder)
    return key


async def ensure_main(tx: Tx, *, now_ms: int) -> None:
    """Register the group `main`, with a chat of this machine, if there are no groups yet."""
    if not await groups.every(tx):
        await register(
            tx,
            Group(
                jid=MAIN_JID,
                name="Main",
                folder=MAIN,
                requires_trigger=False,
                is_main=True,
                added_ms=now_ms,
            ),
        )
