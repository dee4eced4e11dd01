"""`messages/`: an agent sends a file of its group's folder."""

from __future__ import annotations

from agent_runner.wire.mailbox import SendFile
from orchestrator.domain.values import ChatJid, Group
from orchestrator.groups.attachments import FileRefused
from orchestrator.ipc.handlers import CommandCaller, CommandResult, refused
from orchestrator.store import chats, outbox
from orchestrator.store.database import Tx

MAX_WAITING = 10
"""Copies take room on the host's disk; those that could not be sent count too, for a week."""
KEPT_MS = 7 * 24 * 3_600_000


class TooManyFiles(FileRefused):
    """Enough files are on their way."""

    code = "too_many"


async def send_file(tx: Tx, caller: CommandCaller, command: SendFile) -> CommandResult:
    """Queue the copy that was made of the file; `bad_file` when there is none."""
    assert caller.file is not None
    if isinstance(caller.file, FileRefused):
        return refused(caller.file.code, str(caller.file))
    jid = ChatJid(command.chat_jid) if command.chat_jid else caller.group.jid
    turn = caller.turn
    await chats.see(tx, jid, name=None, channel=None, is_group=False, at_ms=None)
    is_new = await outbox.add(
        tx,
        chat_jid=jid,
        folder=caller.group.folder,
        text=command.caption,
        dedupe_key=f"file:{caller.group.folder}:{caller.request_id}",
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
    """Raises `TooManyFiles` when a group may send no further file now."""
    waiting = await outbox.unsent_files(tx, group.folder, since_ms=now_ms - KEPT_MS)
    if waiting >= MAX_WAITING:
        raise TooManyFiles(f"{waiting} files have not been sent yet: wait until they are.")
