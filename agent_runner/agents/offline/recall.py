"""What the conversation was about, by what the host keeps of it in `context.json` and `workflow.json`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_runner.agents.offline import reading
from agent_runner.agents.offline.conversation import RequestContext
from agent_runner.wire.order import TurnOrder

MAX_DECISIONS, MAX_MESSAGES = 5, 6
MAX_CHARS = 200
"""Of one message or decision: it is to remind, not to repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecapLine:
    is_user: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRecap:
    """What is told of a conversation."""

    plan: str = ""
    task: str = ""
    decisions: tuple[str, ...] = ()
    summary: str = ""
    dialogue: tuple[RecapLine, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self == ConversationRecap()


class Recall:
    """Reads the host's files anew each time: they change between turns."""

    def __init__(self, snapshots: Path, *, name: str) -> None:
        """`name` is the assistant's."""
        self._snapshots = snapshots
        self._name = name

    async def told(self, context: RequestContext, turn: TurnOrder) -> str:
        """Say what was talked about before this turn, or plainly that nothing is kept."""
        document = await asyncio.to_thread(_document, self._snapshots / "context.json")
        workflow = await asyncio.to_thread(_document, self._snapshots / "workflow.json")
        kept = recap_of(document, workflow, turn=turn.turn)
        if kept.is_empty:
            return context.say("recall_nothing")
        return "\n\n".join([context.say("recall"), *self._parts(kept, context)])

    def _parts(self, kept: ConversationRecap, context: RequestContext) -> Iterator[str]:
        if kept.plan:
            task = context.say("recall_task", task=kept.task) if kept.task else ""
            yield context.say("recall_plan", plan=kept.plan) + task
        if kept.decisions:
            yield "\n".join([context.say("recall_decided"), *(f"• {one}" for one in kept.decisions)])
        if kept.summary:
            yield context.say("recall_before", summary=kept.summary)
        if kept.dialogue:
            lines = (one.text if one.is_user else f"{self._name}: {one.text}" for one in kept.dialogue)
            yield "\n".join([context.say("recall_last"), *(f"• {line}" for line in lines)])


def recap_of(context: dict[str, Any], workflow: dict[str, Any], *, turn: int) -> ConversationRecap:
    """Pick what is told. What was said in `turn` is left out, and so is what only recalled. Pure."""
    memory, conversation = _part(context, "memory"), _part(context, "conversation")
    plan = _named(workflow.get("plans"), memory.get("active_plan_id"))
    task = _named(plan.get("tasks"), memory.get("active_task_id"))
    decisions = memory.get("last_decisions")
    return ConversationRecap(
        plan=_short(plan.get("title")),
        task=_short(task.get("title")),
        decisions=tuple(_short(one) for one in _listed(decisions)[-MAX_DECISIONS:]),
        summary=str(conversation.get("running_summary") or "").strip(),
        dialogue=_dialogue(_listed(conversation.get("recent_window")), turn),
    )


def _dialogue(window: list[Any], turn: int) -> tuple[RecapLine, ...]:
    rows = [row for row in window if isinstance(row, dict)]
    left_out = {f"t{turn}", *(_turn_of(row) for row in rows if _asks_to_recall(row))}
    said = [
        RecapLine(is_user=row.get("role") == "user", text=text)
        for row in rows
        if _turn_of(row) not in left_out and (text := _short(row.get("content")))
    ]
    return tuple(said[-MAX_MESSAGES:])


def _turn_of(row: dict[str, Any]) -> str:
    """`t12` of `t12.u` and `t12.a`."""
    return str(row.get("id")).partition(".")[0]


def _asks_to_recall(row: dict[str, Any]) -> bool:
    content = str(row.get("content") or "")
    return row.get("role") == "user" and any(
        any(parsed.intent == "recall" for parsed in reading.read(text))
        for text in (content, content.partition(": ")[2])
    )


def _named(rows: Any, wanted: Any) -> dict[str, Any]:
    found = (row for row in _listed(rows) if isinstance(row, dict) and row.get("id") == wanted)
    return next(found, {}) if wanted else {}


def _part(document: dict[str, Any], name: str) -> dict[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def _short(text: Any) -> str:
    line = " ".join(str(text or "").split())
    return line if len(line) <= MAX_CHARS else f"{line[: MAX_CHARS - 1]}…"


def _document(path: Path) -> dict[str, Any]:
    """What a file says; nothing where there is none, or none that can be read."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
