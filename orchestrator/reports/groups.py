"""Reports the registered groups, their settings and messages, as rows for machines and lines for people."""

from __future__ import annotations

import json
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_second
from orchestrator.base.tables import Rows, short, table
from orchestrator.domain.values import Group, TurnId
from orchestrator.store import groups, messages, turns
from orchestrator.store.database import Tx


async def group_rows(tx: Tx) -> Rows:
    return [group_row(group) for group in await groups.every(tx)]


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


async def config_fields(tx: Tx, folder: str) -> dict[str, Any]:
    """What is set for a group. Raises `UnknownGroup`."""
    from orchestrator.groups import settings  # slow to load, and for this alone

    return settings.of(await groups.known(tx, folder)).to_fields()


def config_lines(found: dict[str, Any]) -> list[str]:
    if not found:
        return ["Nothing is set: the settings of the host count."]
    return [f"{key:<11} {json.dumps(value, ensure_ascii=False)}" for key, value in found.items()]


async def message_rows(tx: Tx, folder: str, *, limit: int) -> Rows:
    """A group's newest messages, oldest first. Raises `UnknownGroup`."""
    group = await groups.known(tx, folder)
    rows: Rows = []
    for message in await messages.newest(tx, group.jid, limit=limit):
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
    turn = await turns.get(tx, turn_id) if turn_id is not None else None
    if turn is None:
        return "said" if ignored_reason == messages.OWN_MESSAGE else f"ignored: {ignored_reason}"
    # The reason of a turn that is not over is why it is tried again.
    again = f", try {turn.attempt}" if turn.ended_ms is None and turn.attempt > 1 else ""
    return f"{turn.state.value}{again}: {turn.reason}" if turn.reason else turn.state.value


def message_lines(rows: Rows, *, zone: ZoneInfo) -> list[str]:
    if not rows:
        return ["No messages yet."]
    return [
        f"{row['seq']:>5}  {local_second(row['at_ms'], zone)}  "
        f"{row['sender']}: {short(row['text'], 70)}  [{row['outcome']}]"
        for row in rows
    ]
