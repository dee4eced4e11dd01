"""Summarize the conversation for the chat, from the host's snapshots `context.json` and `workflow.json`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_runner.agents.offline import reading
from agent_runner.agents.offline.handler import RequestHandler
from agent_runner.wire import mailbox
from agent_runner.wire.context_tools import MEMORY

MAX_DECISIONS, MAX_MESSAGES = 5, 6
MAX_CHARS = 200
"""The longest part of a message or decision that is quoted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRecap:
    """The parts of a conversation that its summary names."""

    plan: str = ""
    task: str = ""
    decisions: tuple[str, ...] = ()
    summary: str = ""
    dialogue: tuple[str, ...] = ()
    """The last messages; the assistant's begin with its name."""


class Recall(RequestHandler):
    """Handles the questions what was talked about and what is known, and takes back what is known."""

    async def do_know(self) -> str:
        """Say what is remembered, in all places, of this chat and its people."""
        found = await self._remembered("show")
        texts = [_short(one["text"]) for one in found["items"]]
        head = self._bullets("know", texts) or self.say("know_nothing")
        board = found["board"]
        more = {"messages": found["messages"], "tasks": board["tasks"], "reminders": board["reminders"]}
        return "\n".join([head, self.say("know_more", **more)])

    async def do_forget(self) -> str:
        """Forget for good what has the words, after a question."""
        about = " ".join(reading.meaning_words(self.slot("about")))
        if not about:
            return self.say("forget_nothing")
        if not self.slot("sure"):
            found = await self._remembered("show", about)
            lines = [f"• {_short(one['text'])}" for one in found["items"] if one["id"]]
            if not lines and not found["said"]:
                return self.say("forget_nothing")
            lines.append(self.say("forget_said", count=found["said"]))
            raise self.question("sure", self.listed(self.say("sure_forget"), lines))
        await self._remembered("forget", about, request_id=self.context.next_id())
        return self.say("forget")

    async def _remembered(self, action: str, about: str = "", *, request_id: str | None = None) -> Any:
        given = {"action": action, "about": about}
        asked = mailbox.Remember(request_id=request_id, tool=MEMORY, arguments=given)
        return (await self.request(asked)).data

    async def do_recall(self) -> str:
        """Say what was talked about before this turn, or plainly that nothing is kept."""
        # Read each time: the host writes them anew between turns.
        snapshots, name = self.context.workspace.snapshots, self.context.order.assistant_name
        context = await asyncio.to_thread(_document, snapshots / "context.json")
        workflow = await asyncio.to_thread(_document, snapshots / "workflow.json")
        recap = recap_of(context, workflow, turn=self.context.turn, name=name)
        task = self.say("recall_task", task=recap.task) if recap.task else ""
        parts = (
            self.say("recall_plan", plan=recap.plan) + task if recap.plan else "",
            self._bullets("recall_decided", recap.decisions),
            self.say("recall_before", summary=recap.summary) if recap.summary else "",
            self._bullets("recall_last", recap.dialogue),
        )
        return self.joined(self.say("recall"), *parts) or self.say("recall_nothing")

    def _bullets(self, head: str, texts: Sequence[str]) -> str:
        """Return a heading with texts under it, nothing where there are none."""
        return self.listed(self.say(head), [f"• {text}" for text in texts]) if texts else ""


def recap_of(context: dict[str, Any], workflow: dict[str, Any], *, turn: int, name: str) -> ConversationRecap:
    """Pick the parts to name, without the messages of `turn` and of turns that only asked for this. Pure."""
    memory, conversation = _part(context, "memory"), _part(context, "conversation")
    plan = _with_id(workflow.get("plans"), memory.get("active_plan_id"))
    return ConversationRecap(
        plan=_short(plan.get("title")),
        task=_short(_with_id(plan.get("tasks"), memory.get("active_task_id")).get("title")),
        decisions=tuple(_short(one) for one in _list(memory.get("last_decisions"))[-MAX_DECISIONS:]),
        summary=str(conversation.get("running_summary") or "").strip(),
        dialogue=_dialogue(_list(conversation.get("recent_window")), turn, name),
    )


def _dialogue(window: list[Any], turn: int, name: str) -> tuple[str, ...]:
    rows = [(str(row.get("id")).partition(".")[0], row) for row in window if isinstance(row, dict)]
    left_out = {f"t{turn}", *(turn_id for turn_id, row in rows if _asks_to_recall(row))}
    lines = [
        text if row.get("role") == "user" else f"{name}: {text}"
        for turn_id, row in rows
        if turn_id not in left_out and (text := _short(row.get("content")))
    ]
    return tuple(lines[-MAX_MESSAGES:])


def _asks_to_recall(row: dict[str, Any]) -> bool:
    """Return whether a message, with or without its sender's name before it, asks what was talked about."""
    content = str(row.get("content") or "")
    texts = (content, content.partition(": ")[2]) if row.get("role") == "user" else ()
    return any(parsed.intent == "recall" for text in texts for parsed in reading.read(text))


# The files may lack anything: they are another version's, or the conversation has only begun.


def _with_id(rows: Any, wanted: Any) -> dict[str, Any]:
    found = (row for row in _list(rows) if isinstance(row, dict) and row.get("id") == wanted)
    return next(found, {}) if wanted else {}


def _part(document: dict[str, Any], name: str) -> dict[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def _list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def _short(text: Any) -> str:
    line = " ".join(str(text or "").split())
    return line if len(line) <= MAX_CHARS else f"{line[: MAX_CHARS - 1]}…"


def _document(path: Path) -> dict[str, Any]:
    """Read a JSON object; an empty one where there is no file, or none that can be read. Blocks."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
