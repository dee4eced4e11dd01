"""`turn_outages` and `turn_stops`: turns that wait for a service, and turns that the host stopped.

A turn waits for an overloaded model, or for Docker. It is stopped when waiting does not help: the model
service refuses it, a budget is used up, or the outage lasts too long.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from orchestrator.domain.failures import Outage
from orchestrator.domain.values import ChatJid, Folder, TurnId
from orchestrator.store.database import Tx, returned


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutage:
    """An outage that keeps a turn waiting, and since when."""

    cause: Outage
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTurn:
    """A chat turn that waits for the end of an outage, and whose chat was not notified yet."""

    turn_id: TurnId
    folder: Folder
    chat_jid: ChatJid
    cause: Outage
    since_ms: int


async def begin(tx: Tx, turn_id: TurnId, cause: Outage, *, since_ms: int, earliest_ms: int = 0) -> int:
    """Record that a turn waits since `since_ms` for the end of an outage, and return since when it waits
    (epoch ms).

    For a turn that waits already, that is the `since_ms` of the first call, but not before `earliest_ms` nor
    after `since_ms`, as if the clock was ahead at the first call; the cause is updated.
    """
    cursor = await tx.execute(
        """
        INSERT INTO turn_outages (turn_id, cause, since_ms) VALUES (?, ?, ?)
        ON CONFLICT (turn_id) DO UPDATE
        SET cause = excluded.cause, since_ms = min(max(since_ms, ?), excluded.since_ms)
        RETURNING since_ms
        """,
        (turn_id, cause, since_ms, earliest_ms),
    )
    return int((await returned(cursor))["since_ms"])


async def end(tx: Tx, turn_id: TurnId, cause: Outage) -> None:
    """Record that a turn no longer waits for the end of an outage with this cause."""
    await tx.execute("DELETE FROM turn_outages WHERE turn_id = ? AND cause = ?", (turn_id, cause))


async def of_turn(tx: Tx, turn_id: TurnId) -> TurnOutage | None:
    """Return the outage for whose end a turn waits, or None if it waits for none."""
    cursor = await tx.execute("SELECT cause, since_ms FROM turn_outages WHERE turn_id = ?", (turn_id,))
    row = await cursor.fetchone()
    return TurnOutage(cause=Outage(row["cause"]), since_ms=row["since_ms"]) if row else None


async def of_model(tx: Tx) -> set[TurnId]:
    """Return the unfinished turns that wait until the model service answers again."""
    rows = await tx.execute_fetchall(
        """
        SELECT turn_id FROM turn_outages JOIN turns ON turns.id = turn_id
        WHERE cause = 'model' AND state IN ('queued', 'running')
        """
    )
    return {TurnId(row["turn_id"]) for row in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentOutage:
    """The number of turns that wait for something now down, and since when the first one does."""

    turns: int
    since_ms: int


async def current(tx: Tx) -> dict[Outage, CurrentOutage]:
    """Return how many turns wait, and since when, for each cause of an outage that holds up turns now."""
    rows = await tx.execute_fetchall(
        """
        SELECT cause, count(*) AS n, min(since_ms) AS since_ms
        FROM turn_outages JOIN turns ON turns.id = turn_id
        WHERE state IN ('queued', 'running') GROUP BY cause
        """
    )
    return {Outage(row["cause"]): CurrentOutage(turns=row["n"], since_ms=row["since_ms"]) for row in rows}


async def unannounced(tx: Tx) -> list[WaitingTurn]:
    """Return the chat turns that wait for an outage to end and whose chats have no text about it yet.

    The one that waits longest is first.
    """
    rows = await tx.execute_fetchall(
        """
        SELECT turn_outages.*, group_folder, chat_jid FROM turn_outages JOIN turns ON turns.id = turn_id
        WHERE told_ms IS NULL AND kind = 'chat' AND state IN ('queued', 'running') ORDER BY since_ms
        """
    )
    return [_from_row(row) for row in rows]


async def try_at_once(tx: Tx, cause: Outage, *, now_ms: int) -> int:
    """Make the queued turns that wait for the end of an outage of this cause due now; return how many."""
    cursor = await tx.execute(
        """
        UPDATE turns SET not_before_ms = min(not_before_ms, ?)
        WHERE state = 'queued' AND id IN (SELECT turn_id FROM turn_outages WHERE cause = ?)
        """,
        (now_ms, cause),
    )
    return cursor.rowcount


async def note_announced(tx: Tx, turn_id: TurnId, *, now_ms: int) -> None:
    """Record that the chat of a turn was notified that the turn waits for the end of an outage."""
    await tx.execute("UPDATE turn_outages SET told_ms = ? WHERE turn_id = ?", (now_ms, turn_id))


def _from_row(row: sqlite3.Row) -> WaitingTurn:
    """Return the waiting turn from a row of `turn_outages` that is joined with its turn."""
    return WaitingTurn(
        turn_id=TurnId(row["turn_id"]),
        folder=Folder(row["group_folder"]),
        chat_jid=ChatJid(row["chat_jid"]),
        cause=Outage(row["cause"]),
        since_ms=row["since_ms"],
    )


REFUSED = "model_refused"
"""The model service answers no question: `model_refusals` has the reason."""
OUTAGE = "outage"
"""The model service was out of reach for too long."""
IN_CHAT = "stopped_in_chat"
"""A person stopped it in its chat. Its questions are in no later prompt; its commands are refused."""
STOP_REQUEST = "stop_request"
"""The turn is the message that stopped or undid another one; it is in no later prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStop:
    """The host's reason for stopping a turn; `reason` finishes a sentence."""

    code: str
    reason: str


async def note_stop(tx: Tx, turn_id: TurnId, *, code: str, reason: str, now_ms: int) -> bool:
    """Record that the host stops a turn; return False when a stop of this turn was recorded before.

    `code` is a constant of this module, such as `REFUSED`; `reason` is a text for people.
    """
    cursor = await tx.execute(
        """
        INSERT INTO turn_stops (turn_id, code, reason, at_ms) VALUES (?, ?, ?, ?)
        ON CONFLICT (turn_id) DO NOTHING
        """,
        (turn_id, code, reason, now_ms),
    )
    return cursor.rowcount == 1


async def lift_stop(tx: Tx, turn_id: TurnId, code: str) -> None:
    """Delete the record that the host stops a turn for this `code`, so that the turn can go on."""
    await tx.execute("DELETE FROM turn_stops WHERE turn_id = ? AND code = ?", (turn_id, code))


async def stop_of(tx: Tx, turn_id: TurnId) -> HostStop | None:
    """Return why the host stopped a turn; None if the host did not stop it."""
    cursor = await tx.execute("SELECT code, reason FROM turn_stops WHERE turn_id = ?", (turn_id,))
    row = await cursor.fetchone()
    return HostStop(code=row["code"], reason=row["reason"]) if row else None
