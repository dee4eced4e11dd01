"""What commands list: rows for machines, lines for people."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator.base.tables import Rows, short, table
from orchestrator.domain.values import Group, TurnId
from orchestrator.groups import settings
from orchestrator.store import groups as group_store
from orchestrator.store import messages as message_store
from orchestrator.store import outbox as outbox_store
from orchestrator.store import turns as turn_store
from orchestrator.store.database import Tx


async def groups(tx: Tx) -> Rows:
    return [group_row(group) for group in await group_store.every(tx)]


async def config(tx: Tx, folder: str) -> dict[str, Any]:
    """What is set for a group. Raises `UnknownGroup`."""
    return settings.of(await group_store.known(tx, folder)).to_fields()


def config_lines(found: dict[str, Any]) -> list[str]:
    if not found:
        return ["Nothing is set: the settings of the host count."]
    return [f"{key:<11} {json.dumps(value, ensure_ascii=False)}" for key, value in found.items()]


def group_row(group: Group) -> dict[str, Any]:
    return {
        "folder": group.folder,
        "name": group.name,
        "jid": group.jid,
        "trigger": group.trigger,
        "requires_trigger": group.requires_trigger,
        "is_main": group.is_main,
        "config": group.container_config,
    }


def group_lines(rows: Rows) -> list[str]:
    return table(
        ("folder", "name", "chat", "answers"),
        [(row["folder"], row["name"], row["jid"], _answers(row)) for row in rows],
    )


def _answers(row: dict[str, Any]) -> str:
    if row["is_main"] or not row["requires_trigger"]:
        return "every message" + (" (main)" if row["is_main"] else "")
    return f"@Andy or {row['trigger']}" if row["trigger"] else "@Andy"


async def messages(tx: Tx, folder: str, *, limit: int) -> Rows:
    """A group's newest messages, oldest first. Raises `UnknownGroup`."""
    group = await group_store.known(tx, folder)
    rows: Rows = []
    for message in await message_store.newest(tx, group.jid, limit=limit):
        rows.append(
            {
                "seq": message.seq,
                "id": message.id,
                "at_ms": message.sent_ms,
                "sender": message.sender_name,
                "text": message.text,
                "turn": message.turn_id,
                "outcome": await _outcome(tx, message.turn_id, message.ignored_reason),
            }
        )
    return rows


async def _outcome(tx: Tx, turn_id: TurnId | None, ignored_reason: str | None) -> str:
    turn = await turn_store.get(tx, turn_id) if turn_id is not None else None
    if turn is None:
        return "said" if ignored_reason == message_store.OWN_MESSAGE else f"ignored: {ignored_reason}"
    # The reason of a turn that is not over is why it is tried again.
    again = f", try {turn.attempt}" if turn.ended_ms is None and turn.attempt > 1 else ""
    return f"{turn.state.value}{again}: {turn.reason}" if turn.reason else turn.state.value


def message_lines(rows: Rows, *, zone: ZoneInfo) -> list[str]:
    if not rows:
        return ["No messages yet."]
    return [
        f"{row['seq']:>5}  {moment(row['at_ms'], zone)}  "
        f"{row['sender']}: {short(row['text'], 70)}  [{row['outcome']}]"
        for row in rows
    ]


async def turns(tx: Tx, folder: str | None, *, limit: int) -> Rows:
    """The newest turns. Raises `UnknownGroup`."""
    if folder is not None:
        folder = (await group_store.known(tx, folder)).folder
    return [
        {
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
        for turn in await turn_store.recent(tx, limit=limit, folder=folder)
    ]


def turn_lines(rows: Rows, *, zone: ZoneInfo) -> list[str]:
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
                moment(row["queued_ms"], zone),
                _took(row),
                row["reason"] or "",
            )
            for row in rows
        ],
    )


async def outbox(tx: Tx, *, limit: int) -> Rows:
    return [
        {
            "id": one.id,
            "chat": one.chat_jid,
            "state": one.state.value,
            "attempts": one.attempts,
            "next_attempt_ms": one.next_attempt_ms,
            "text": one.text,
            "error": one.error,
        }
        for one in await outbox_store.unsent(tx, limit=limit)
    ]


def outbox_lines(rows: Rows) -> list[str]:
    if not rows:
        return ["Everything is sent."]
    return table(
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


def _took(row: dict[str, Any]) -> str:
    if row["started_ms"] is None or row["ended_ms"] is None:
        return ""
    return f"{(row['ended_ms'] - row['started_ms']) / 1000:.1f} s"


def moment(at_ms: int, zone: ZoneInfo) -> str:
    """`11-22 09:30:01`."""
    return datetime.fromtimestamp(at_ms / 1000, zone).strftime("%m-%d %H:%M:%S")
