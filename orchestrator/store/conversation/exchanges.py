"""Read the questions to a group's agent and its answers, turn by turn: the material of a conversation."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.domain.values import Folder, SessionCommand, TurnId, TurnKind, TurnState, is_hook
from orchestrator.store.database import Tx

MAX_REQUESTS = 200
"""Newest messages of a turn's question that are read; older ones are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskingMessage:
    """One message of a turn's question; `sender` is a name, and empty for a prompt that is no message."""

    text: str
    sender: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnExchange:
    """One turn of a conversation, with its replies so far."""

    turn: TurnId
    kind: TurnKind
    state: TurnState
    command: SessionCommand | None
    """The command that the turn carried out; None for a question."""
    asked: tuple[AskingMessage, ...]
    asked_ms: int
    """When the turn was queued."""
    said: tuple[str, ...]
    """The texts that the turn sent to its own chat, as the agent wrote them, oldest first."""
    ended_ms: int | None
    """When the turn ended; None until then."""

    @property
    def is_settled(self) -> bool:
        """Whether the turn has ended, answered or failed, so that no more replies are added."""
        return self.state in (TurnState.ANSWERED, TurnState.FAILED)


_OF_CONVERSATION = """is_isolated = 0 AND kind <> 'worker'
    AND ((run_id IS NOT NULL AND command IS NULL) OR (command = 'clear' AND state = 'answered'))"""
"""SQL: whether a turn is part of its group's own session, and has gone to an agent or cleared it."""


async def folders_after(tx: Tx, last_turns: Mapping[Folder, int]) -> list[Folder]:
    """Return the groups whose conversation has a turn after the last one that a caller knows.

    `last_turns` maps each group in question to the id of its last known turn, 0 for none.
    """
    rows = await tx.execute_fetchall(
        f"""
        SELECT m.key AS folder FROM json_each(?) AS m WHERE EXISTS (
            SELECT 1 FROM turns WHERE group_folder = m.key AND id > m.value AND {_OF_CONVERSATION})
        """,  # noqa: S608 - a constant
        (json.dumps(last_turns),),
    )
    return [Folder(row["folder"]) for row in rows]


async def after(tx: Tx, folder: Folder, last_turn: int, *, limit: int) -> list[TurnExchange]:
    """Return the newest `limit` turns after the turn `last_turn` in a group's conversation, oldest first.

    Commands that clear the conversation are included; turns that were answered without an agent are not.
    """
    rows = await tx.execute_fetchall(
        f"""
        SELECT * FROM (
            SELECT * FROM turns WHERE group_folder = ? AND id > ? AND {_OF_CONVERSATION}
            ORDER BY id DESC LIMIT ?)
        ORDER BY id
        """,  # noqa: S608 - a constant
        (folder, last_turn, limit),
    )
    return [await _exchange(tx, row) for row in rows]


async def of_turns(tx: Tx, folder: Folder, turns: Iterable[int]) -> list[TurnExchange]:
    """Return those turns of a group whose ids are in `turns`, with questions and replies, oldest first."""
    rows = await tx.execute_fetchall(
        "SELECT * FROM turns WHERE group_folder = ? AND id IN (SELECT value FROM json_each(?)) ORDER BY id",
        (folder, json.dumps(sorted(turns))),
    )
    return [await _exchange(tx, row) for row in rows]


async def oldest_open(tx: Tx, folder: Folder) -> TurnId | None:
    """Return the oldest unfinished turn that may become part of a group's conversation, or None."""
    cursor = await tx.execute(
        """
        SELECT min(id) AS id FROM turns
        WHERE group_folder = ? AND is_isolated = 0 AND kind <> 'worker' AND state IN ('queued', 'running')
        """,
        (folder,),
    )
    row = await cursor.fetchone()
    return row["id"] if row else None


async def _exchange(tx: Tx, row: sqlite3.Row) -> TurnExchange:
    """Return the turn that a row of the table `turns` stores, with its question and its replies."""
    turn = TurnId(row["id"])
    return TurnExchange(
        turn=turn,
        kind=TurnKind(row["kind"]),
        state=TurnState(row["state"]),
        command=SessionCommand(row["command"]) if row["command"] else None,
        asked=await _questions_of(tx, turn, row["prompt"]),
        asked_ms=row["queued_ms"],
        said=await _answers_of(tx, turn),
        ended_ms=row["ended_ms"],
    )


async def _questions_of(tx: Tx, turn: TurnId, prompt: str | None) -> tuple[AskingMessage, ...]:
    """Return the newest `MAX_REQUESTS` messages with text that a turn has to answer, oldest first.

    A turn with a `prompt`, such as that of a scheduled task, answers only the prompt.
    """
    if prompt is not None:
        return (AskingMessage(text=prompt),)
    rows = await tx.execute_fetchall(
        """
        SELECT * FROM (
            SELECT seq, sender, sender_name, content FROM messages
            WHERE turn_id = ? AND is_request = 1 AND trim(content) <> '' ORDER BY seq DESC LIMIT ?)
        ORDER BY seq
        """,
        (turn, MAX_REQUESTS),
    )
    return tuple(AskingMessage(text=_text_of(row), sender=row["sender_name"]) for row in rows)


def _text_of(row: sqlite3.Row) -> str:
    """Return the text of a message, on one line if a program sent it through a hook.

    A second line of a program's text could pass for another sender's message.
    """
    return " ".join(row["content"].split()) if is_hook(row["sender"]) else row["content"]


async def _answers_of(tx: Tx, turn: TurnId) -> tuple[str, ...]:
    """Return the texts that the agent sent to its chat in a turn, oldest first; a file's name is in brackets.

    Left out are messages in which the host speaks about the turn, such as its failure, and those that are
    held back until its end.
    """
    # The key says who wrote a message: replies, messages and files of the agent have these prefixes.
    rows = await tx.execute_fetchall(
        """
        SELECT text, file_name FROM outbox
        WHERE turn_id = ? AND state <> 'held'
              AND (dedupe_key LIKE 'frame:%' OR dedupe_key LIKE 'say:%' OR dedupe_key LIKE 'file:%')
        ORDER BY coalesce(part_of, id), part
        """,
        (turn,),
    )
    return tuple(f"{row['text']} [{row['file_name']}]" if row["file_name"] else row["text"] for row in rows)
