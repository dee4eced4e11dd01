"""Reports turns and messages that wait to be sent, as rows for machines and lines for people."""

from __future__ import annotations

from typing import TypedDict
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_second
from orchestrator.base.tables import short, table
from orchestrator.domain.values import RunId, Turn
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.runs import runs, turns


class TurnView(TypedDict):
    """A turn of an agent, as lists show it."""

    id: int
    group: str
    kind: str
    state: str
    attempt: int
    run: RunId | None
    queued_ms: int
    started_ms: int | None
    ended_ms: int | None
    reason: str | None


class RunView(TypedDict):
    """The run of one container; `number` counts runs in the order in which they started."""

    number: int
    id: str
    group: str
    runtime: str
    is_isolated: bool
    model: str | None
    started_ms: int
    ended_ms: int | None
    exit: str | None
    exit_detail: str | None
    frames: int
    conversation: str | None
    conversation_reason: str | None


class OutboxView(TypedDict):
    """A message of the outbox that was not sent, or that may not have arrived."""

    id: int
    group: str | None
    chat: str
    turn: int | None
    state: str
    created_ms: int
    attempts: int
    next_attempt_ms: int
    text: str
    error: str | None


async def turn_rows(
    tx: Tx, folder: str | None, *, limit: int, before_id: int | None = None
) -> list[TurnView]:
    """Return the newest turns, at most `limit`, newest first.

    `folder` is the group, None for all. With `before_id`, only turns with a smaller `id` count: the next
    page. Raises `UnknownGroup`.
    """
    if folder is not None:
        folder = (await groups.known(tx, folder)).folder
    return [
        turn_row(turn) for turn in await turns.recent(tx, limit=limit, folder=folder, before_id=before_id)
    ]


def turn_row(turn: Turn) -> TurnView:
    """Return a turn as the API and `--json` show it."""
    return {
        "id": turn.id,
        "group": turn.folder,
        "kind": turn.kind.value,
        "state": turn.state.value,
        "attempt": turn.attempt,
        "run": turn.run_id,
        "queued_ms": turn.queued_ms,
        "started_ms": turn.started_ms,
        "ended_ms": turn.ended_ms,
        "reason": turn.reason,
    }


def turn_lines(rows: list[TurnView], *, zone: ZoneInfo) -> list[str]:
    """Return the turns as a table for people."""
    if not rows:
        return ["No turns yet."]
    return table(
        ("turn", "group", "kind", "state", "try", "queued", "took", "reason"),
        [
            (
                row["id"],
                row["group"],
                row["kind"],
                row["state"],
                row["attempt"],
                local_second(row["queued_ms"], zone),
                _duration_text(row),
                row["reason"] or "",
            )
            for row in rows
        ],
    )


def _duration_text(row: TurnView) -> str:
    """Return how long a turn ran, in seconds; empty text while it runs or waits."""
    if row["started_ms"] is None or row["ended_ms"] is None:
        return ""
    return f"{(row['ended_ms'] - row['started_ms']) / 1000:.1f} s"


async def run_rows(
    tx: Tx, folder: str | None, *, limit: int, before_number: int | None = None
) -> list[RunView]:
    """Return the newest runs of containers, at most `limit`, newest first.

    `folder` is the group, None for all. With `before_number`, only runs with a smaller number count: the next
    page. Raises `UnknownGroup`.
    """
    if folder is not None:
        folder = (await groups.known(tx, folder)).folder
    return [
        {
            "number": number,
            "id": run.id,
            "group": run.folder,
            "runtime": run.runtime,
            "is_isolated": run.is_isolated,
            "model": run.model,
            "started_ms": run.started_ms,
            "ended_ms": run.ended_ms,
            "exit": run.exit_kind,
            "exit_detail": run.exit_detail,
            "frames": run.last_frame,
            "conversation": run.restore_mode,
            "conversation_reason": run.restore_reason,
        }
        for number, run in await runs.numbered(tx, limit=limit, folder=folder, before_number=before_number)
    ]


async def outbox_rows(tx: Tx, *, limit: int) -> list[OutboxView]:
    """Return messages of the outbox that are not known to be sent, at most `limit`, oldest first.

    They wait, may have arrived (state `unknown`), or were given up (`dead`).
    """
    return [
        {
            "id": message.id,
            "group": message.folder,
            "chat": message.chat_jid,
            "turn": message.turn_id,
            "state": message.state.value,
            "created_ms": message.created_ms,
            "attempts": message.attempts,
            "next_attempt_ms": message.next_attempt_ms,
            "text": message.text,
            "error": message.error,
        }
        for message in await outbox.unsent(tx, limit=limit)
    ]


def outbox_lines(rows: list[OutboxView]) -> list[str]:
    """Return unsent messages as a table for people, and what to do about those that may have arrived."""
    if not rows:
        return ["Everything is sent."]
    lines = table(
        ("id", "chat", "state", "tries", "error", "text"),
        [
            (
                row["id"],
                row["chat"],
                row["state"],
                row["attempts"],
                row["error"] or "",
                short(row["text"], 40),
            )
            for row in rows
        ],
    )
    unknown = [row["id"] for row in rows if row["state"] == "unknown"]
    if unknown:
        lines += ["", f"Look into the chat for what is unknown. Not there? 'andy outbox retry {unknown[0]}'."]
    return lines
