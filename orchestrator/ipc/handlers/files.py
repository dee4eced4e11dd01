"""Send a file of a group's folder: copy it out of the container's reach, and queue the copy."""

from __future__ import annotations

import mimetypes
import secrets
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NoReturn

from agent_runner.wire.mailbox import SendFile
from orchestrator.domain.values import Attachment, ChatJid, Group
from orchestrator.groups import attachments
from orchestrator.groups.attachments import FileRefused
from orchestrator.ipc.command_context import CommandCaller, CommandResult, refused
from orchestrator.store.conversation import chats, outbox
from orchestrator.store.database import Tx

CopyFile = Callable[[str, str], Attachment]
"""`(folder, path)`: copy a group's file. Blocks. Raises `FileRefused`."""
MAX_WAITING = 10
"""Waiting files of a group: copies take space on the host's disk until they are sent."""
RETENTION_MS = 7 * 24 * 3_600_000
"""Milliseconds for which the copy of an undelivered file is stored."""
_PREFIX = "out-"


class TooManyFiles(FileRefused):
    """A group has as many waiting files as it may."""

    code = "too_many"


async def send_file(tx: Tx, caller: CommandCaller, command: SendFile) -> CommandResult:
    """Queue a message with a file, of which `caller.file` is a copy, or return why there is no copy.

    The message goes to the chat in the command, else to the caller's; a chat that is not known yet is stored.
    A repeated request is not sent twice.
    """
    assert caller.file is not None  # set for each such command, before the transaction
    if isinstance(caller.file, FileRefused):
        return refused(caller.file.code, str(caller.file))
    jid = ChatJid(command.chat_jid) if command.chat_jid else caller.chat
    turn = caller.turn
    # The outbox needs a stored chat. One that is known already stays as it is, also a group chat.
    await chats.upsert(tx, jid, name=None, channel=None, is_group=False, at_ms=None)
    is_new = await outbox.add(
        tx,
        chat_jid=jid,
        folder=caller.group.folder,
        text=command.caption,
        dedupe_key=f"file:{caller.group.folder}:{caller.request_id}",
        # A file to another chat than the turn's does not count as one of the turn's messages.
        turn_id=turn.id if turn is not None and jid == turn.chat_jid else None,
        now_ms=caller.now_ms,
        attachment=caller.file,
    )
    if not is_new:
        return CommandResult(
            code="said_before", text="This file is on its way already; it is not sent twice."
        )
    return CommandResult(text=f"{caller.file.name} is on its way.")


async def check_room(tx: Tx, group: Group, *, now_ms: int) -> None:
    """Check that a group may send another file now.

    Files that were given up count for `RETENTION_MS`, as the owner may have them sent again.

    Raises:
        TooManyFiles: too many files of the group have not been sent yet.
    """
    waiting = await outbox.unsent_files(tx, group.folder, since_ms=now_ms - RETENTION_MS)
    if waiting >= MAX_WAITING:
        raise TooManyFiles(f"{waiting} files have not been sent yet: wait until they are.")


def no_files(folder: str, path: str) -> NoReturn:
    """Refuse every file: for a host that sends none. Raises `FileRefused`."""
    del folder
    raise FileRefused(f"'{path}' cannot be sent: files are switched off here.")


class OutgoingFiles:
    """The copies of waiting files, in `data/outgoing/`, which no container sees."""

    def __init__(self, home: Path, *, limit: int) -> None:
        """`limit` is the most bytes of a file; with 0 no files are sent."""
        self._home = home
        self._limit = limit
        self._directory = home / "data" / "outgoing"

    def copy(self, folder: str, path: str) -> Attachment:
        """Copy the file at `path` in the group's folder, as its agent names it, and return the copy. Blocks.

        Raises:
            FileRefused: files are switched off, or this one may not be sent, such as for its size.
        """
        if not self._limit:
            no_files(folder, path)
        target = self._directory / f"{_PREFIX}{secrets.token_hex(12)}"
        staged = attachments.take(self._home, folder, path, target, limit=self._limit)
        mime, compression = mimetypes.guess_type(staged.name)
        if compression:
            # Then `mime` is that of the contents: a compressed picture would be sent as a picture.
            mime = "application/gzip" if compression == "gzip" else None
        return Attachment(path=staged.path, name=staged.name, mime=mime or "application/octet-stream")

    def stored(self) -> list[Path]:
        """Return the paths of all copies, and of the files of spoken replies, which are stored there, too.

        Blocks.
        """
        return list(self._directory.glob(f"{_PREFIX}*"))


def remove_files(paths: Collection[Path]) -> None:
    """Remove files; missing ones are no error. Blocks. Raises `OSError`."""
    for path in paths:
        path.unlink(missing_ok=True)
