"""Follow one message from its arrival to its reply: by the store, and by the logs of the runs that had it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_second
from orchestrator.base.tables import short
from orchestrator.containers.logs import files
from orchestrator.containers.logs.files import LoggedEvent
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Group, Message, MessageId, Outgoing, Turn, TurnState
from orchestrator.store import groups, messages, outbox, runs, turns
from orchestrator.store.database import Tx

STARTED = ("turn.started", "turn.handed_over")
ENDED = ("turn.answered", "turn.put_back", "turn.failed")
LATE_MS = 1_000
"""A log is written a moment after what it tells."""


class NoMessage(BadRequest):
    """There is no such message."""

    code = "unknown_message"
    http_status = 404


async def find(tx: Tx, folder: str, asked: str) -> dict[str, Any]:
    """What the store knows of a message, by its id or its number; also of one that Andy said.

    Raises:
        UnknownGroup, NoMessage
    """
    group = await groups.known(tx, folder)
    message = await _message(tx, group, asked)
    said = await outbox.by_message_id(tx, message.id if message else MessageId(asked))
    if message is None and (said is None or said.chat_jid != group.jid):
        raise NoMessage(
            f"There is no message '{asked}' in '{folder}': see 'andy messages {folder}'. What is said in a"
            " chat that is not registered is not stored."
        )
    turn_id = message.turn_id if message and message.turn_id else said.turn_id if said else None
    turn = await turns.get(tx, turn_id) if turn_id is not None else None
    return {
        "id": message.id if message else asked,
        "group": group.folder,
        "chat": group.jid,
        "message": _message_told(message),
        "turn": await _turn_told(tx, turn) if turn else None,
        "attempts": [],
        "replies": [_reply_told(one) for one in await _replies(tx, turn, said)],
    }


def with_attempts(found: dict[str, Any], logs: Path) -> dict[str, Any]:
    """Add what the logs tell of each attempt; of one whose log is gone, what the store does. Blocks."""
    turn = found["turn"]
    if turn is None:
        return found
    last = _last_attempt(turn)
    attempts = [one for one in _attempts(logs, found["group"], turn) if not _is_same(one, last)]
    return {**found, "attempts": [*attempts, *([last] if last else [])]}


async def _message(tx: Tx, group: Group, asked: str) -> Message | None:
    found = await messages.find(tx, group.jid, MessageId(asked))
    if found is None and asked.isascii() and asked.isdigit() and len(asked) < 19:
        found = await messages.at(tx, group.jid, int(asked))
    return found


def _message_told(message: Message | None) -> dict[str, Any] | None:
    if message is None:
        return None
    return {
        "seq": message.seq,
        "sender": message.sender_name,
        "text": message.text,
        "sent_ms": message.sent_ms,
        "received_ms": message.received_ms,
        "ignored_reason": message.ignored_reason,
    }


async def _turn_told(tx: Tx, turn: Turn) -> dict[str, Any]:
    run = await runs.get(tx, turn.run_id) if turn.run_id else None
    waiting = [one.id for one in await turns.unsettled(tx) if one.state is TurnState.QUEUED]
    return {
        "id": turn.id,
        "kind": turn.kind.value,
        "state": turn.state.value,
        "reason": turn.reason,
        "attempt": turn.attempt,
        "place": waiting.index(turn.id) + 1 if turn.id in waiting else None,
        "queued_ms": turn.queued_ms,
        "not_before_ms": turn.not_before_ms,
        "started_ms": turn.started_ms,
        "acked_ms": await turns.acked_ms(tx, turn.id),
        "ended_ms": turn.ended_ms,
        "run": turn.run_id,
        "run_ended_ms": run.ended_ms if run else None,
        "run_exit": run.exit_kind if run else None,
        "run_frames": run.last_frame if run else None,
    }


async def _replies(tx: Tx, turn: Turn | None, said: Outgoing | None) -> Sequence[Outgoing]:
    if turn is not None:
        return await outbox.of_turn(tx, turn.id)
    return [said] if said else []


def _reply_told(one: Outgoing) -> dict[str, Any]:
    return {
        "outbox": one.id,
        "id": one.message_id,
        "text": one.text,
        "state": one.state.value,
        "created_ms": one.created_ms,
        "tries": one.attempts,
        "next_try_ms": one.next_attempt_ms if one.sent_ms is None else None,
        "sent_ms": one.sent_ms,
        "error": one.error,
    }


# What the logs tell


def _attempts(logs: Path, folder: str, turn: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each attempt that a log speaks of, in their order."""
    for file in files.of_group(logs, folder):
        try:
            if file.path.stat().st_mtime_ns // 1_000_000 + LATE_MS < turn["queued_ms"]:
                continue
            with file.path.open(encoding="utf-8", errors="replace") as lines:
                told = [event for line in lines if (event := files.read_event(line))]
        except FileNotFoundError:
            continue  # too old by now
        yield from _attempts_of_run(file.run, told, str(turn["id"]))


def _attempts_of_run(run: str, told: Sequence[LoggedEvent], turn_id: str) -> Iterator[dict[str, Any]]:
    """What one run did with a turn: once, as a rule."""
    current: dict[str, Any] | None = None
    for event in told:
        if event.facts.get("turn") != turn_id:
            continue
        if event.kind in STARTED:
            if current:
                yield current
            current = _attempt(run, int(event.facts.get("attempt", "1")), event.at_ms)
        elif current and event.kind == "turn.acknowledged":
            current["acked_ms"] = event.at_ms
        elif current and event.kind in ENDED:
            current |= {
                "ended_ms": event.at_ms,
                "outcome": event.kind.removeprefix("turn."),
                "reason": event.facts.get("reason"),
            }
    if current:
        yield current


def _attempt(run: str, attempt: int, started_ms: int) -> dict[str, Any]:
    return {
        "attempt": attempt,
        "run": run,
        "started_ms": started_ms,
        "acked_ms": None,
        "ended_ms": None,
        "outcome": None,
        "reason": None,
    }


def _is_same(one: dict[str, Any], last: dict[str, Any] | None) -> bool:
    return last is not None and (one["run"], one["attempt"]) == (last["run"], last["attempt"])


def _last_attempt(turn: dict[str, Any]) -> dict[str, Any] | None:
    """The attempt that the store itself speaks of: the present one, or the one that settled the turn."""
    if turn["run"] is None or turn["state"] == TurnState.QUEUED:
        return None
    told = _attempt(turn["run"], turn["attempt"], turn["started_ms"])
    if turn["ended_ms"] is not None:
        told |= {"ended_ms": turn["ended_ms"], "outcome": turn["state"], "reason": turn["reason"]}
    return {**told, "acked_ms": turn["acked_ms"]}


# For people


def lines(found: dict[str, Any], *, zone: ZoneInfo) -> list[str]:
    """What befell a message, line by line, and what it waits for."""
    told = [*_arrival_lines(found), *_turn_lines(found), *_reply_lines(found)]
    return [f"{local_second(at_ms, zone)}  {text}" if at_ms else f"{'':14}  {text}" for at_ms, text in told]


def _arrival_lines(found: dict[str, Any]) -> Iterator[tuple[int | None, str]]:
    message = found["message"]
    if message is None:
        return
    said = f"{message['sender']}: {short(message['text'], 60)}"
    yield message["received_ms"], f"message {message['seq']} ({found['id']}), {said}"
    if message["ignored_reason"]:
        yield None, f"no turn: {message['ignored_reason']}"


def _turn_lines(found: dict[str, Any]) -> Iterator[tuple[int | None, str]]:
    turn = found["turn"]
    if turn is None:
        return
    yield turn["queued_ms"], f"turn {turn['id']} ({turn['kind']}) is queued"
    for one in found["attempts"]:
        yield one["started_ms"], f"try {one['attempt']}: given to run {one['run']}"
        if one["acked_ms"]:
            yield one["acked_ms"], "its agent has it"
        if one["ended_ms"]:
            reason = f": {one['reason']}" if one["reason"] else ""
            yield one["ended_ms"], f"{one['outcome'].replace('_', ' ')}{reason}"
    if turn["state"] == TurnState.QUEUED:
        again = f", try {turn['attempt']} after {turn['reason']}" if turn["attempt"] > 1 else ""
        yield turn["not_before_ms"], f"is to go on from here; place {turn['place']}{again}"
    elif turn["state"] == TurnState.RUNNING:
        yield None, f"the agent works on it; run {turn['run']} has sent {turn['run_frames']} frames"


def _reply_lines(found: dict[str, Any]) -> Iterator[tuple[int | None, str]]:
    for one in found["replies"]:
        yield one["created_ms"], f"said ({one['outbox']}): {short(one['text'], 60)}"
        match one["state"]:
            case "sent":
                yield one["sent_ms"], f"sent as {one['id']}, try {one['tries']}"
            case "pending" | "sending":
                error = f": {one['error']}" if one["error"] else ""
                yield one["next_try_ms"], f"on its way, {one['tries']} tries so far{error}"
            case state:
                yield None, f"{state}{': ' + one['error'] if one['error'] else ''}"
