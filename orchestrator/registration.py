"""Register and unregister groups: one way for the CLI, HTTP and the main group's agent."""

from __future__ import annotations

import re
import sqlite3

from orchestrator.errors import BadRequest
from orchestrator.models import ChatJid, Folder, Group
from orchestrator.store import chats, groups
from orchestrator.store.database import Tx

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
RESERVED = frozenset({"global", "errors"})
MAIN = Folder("main")
MAIN_JID = ChatJid("local:main")


class FolderRefused(BadRequest):
    """The folder name cannot be used."""

    code = "bad_folder"


class AlreadyRegistered(BadRequest):
    """The chat or the folder is registered already."""

    code = "already_registered"
    http_status = 409


def checked_folder(name: str) -> Folder:
    """Return `name` as a folder. Raises `FolderRefused`, which names the rule."""
    if not _FOLDER.fullmatch(name):
        raise FolderRefused(
            f"'{name}' is no folder name: use 1 to 64 letters, digits, '-' and '_',"
            " the first a letter or digit."
        )
    if name.lower() in RESERVED:
        raise FolderRefused(f"'{name}' is reserved: choose another folder name.")
    return Folder(name)


async def register(tx: Tx, group: Group) -> None:
    """Register a chat, known or not.

    Raises:
        FolderRefused: the name breaks the rule.
        AlreadyRegistered: the chat, or the folder in any case, belongs to a group.
    """
    checked_folder(group.folder)
    taken = await groups.by_jid(tx, group.jid) or await groups.by_folder(tx, group.folder)
    if taken is not None:
        raise AlreadyRegistered(
            f"'{taken.folder}' is registered for {taken.jid} already: choose another name."
        )
    await chats.see(tx, group.jid, name=group.name, channel=None, is_group=True, at_ms=None)
    try:
        await groups.add(tx, group)
    except sqlite3.IntegrityError as error:
        raise AlreadyRegistered("There is a main group already.") from error


async def unregister(tx: Tx, folder: str) -> Group:
    """Forget a registration; files and history stay. Raises `UnknownGroup` or `BadRequest` for main."""
    group = await groups.known(tx, folder)
    if group.is_main:
        raise BadRequest("The main group cannot be removed: it administers the others.")
    await groups.remove(tx, group.folder)
    return group


async def ensure_main(tx: Tx, *, now_ms: int) -> None:
    """A fresh home has one group, `main`, reached from this machine."""
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
