"""Read the questions to a group's agent and its answers, turn by turn: the material of a conversation."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.domain.values import Folder, SessionCommand, TurnId, TurnKind, TurnState, is_hook
from orchestrator.store.database import Tx

MAX_REQUESTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class AskingMessage:
    """One message of a turn's question; `sender` is empty if no person wrote it."""

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
    """When it was queued."""
    said: tuple[str, ...]
    """The texts that the turn sent to its own chat, as the agent wrote them, oldest first."""
    ended_ms: int | None
    """When the turn ended; None until then."""

    @property
    def is_settled(self) -> bool:
        return self.state in (TurnState.ANSWERED, TurnState.FAILED)


_OF_CONVERSATION = """is_isolated = 0 AND kind <> 'worker'
    AND ((run_id IS NOT NULL AND command IS NULL) OR (command = 'clear' AND state = 'answered'))"""
"""SQL: whether a turn is part of its group's own session, and has gone to an agent or cleared it."""


async def folders_after(tx: Tx, last_turns: Mapping[Folder, int]) -> list[Folder]:
    """Return the groups that have a turn after the one that `last_turns` names for them, as `after` finds it.

    `last_turns` has the id of a turn for each group in question; 0 stands for no turn.
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
    """Return the newest `limit` turns after `last_turn` in the group's own session, oldest first.

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
    """Return the turns of a group that have one of these ids, oldest first."""
    rows = await tx.execute_fetchall(
        "SELECT * FROM turns WHERE group_folder = ? AND id IN (SELECT value FROM json_each(?)) ORDER BY id",
        (folder, json.dumps(sorted(turns))),
    )
    return [await _exchange(tx, row) for row in rows]


async def oldest_open(tx: Tx, folder: Folder) -> TurnId | None:
    """Return the oldest turn that may still become part of the conversation, or None."""
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
    """Return a row of `turns` with its question and its replies."""
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
    """Return the messages that ask in a turn, oldest first; a turn with a `prompt` has that alone."""
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
    """Return the text of a message. A hook's text is one line: a second could pass for another sender's."""
    return " ".join(row["content"].split()) if is_hook(row["sender"]) else row["content"]


async def _answers_of(tx: Tx, turn: TurnId) -> tuple[str, ...]:
    """Return the agent's own messages in a turn; the host's about the turn (place, failure) are left out."""
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
