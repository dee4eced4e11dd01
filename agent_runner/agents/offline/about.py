"""Requests about the agent itself, its chats, and what is remembered of this conversation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_runner.agents.offline import reading
from agent_runner.agents.offline.handler import RequestHandler, carry_out_undo
from agent_runner.wire.context_tools import MEMORY
from agent_runner.wire.mailbox import ModelMissing, RefreshGroups, Remember

MAX_DECISIONS, MAX_MESSAGES = 5, 6
"""Most decisions, and most messages, of the earlier conversation that one answer shows."""
MAX_CHARS = 200
"""Most characters of a quoted message or decision."""


class About(RequestHandler):
    """Handles requests about help, the known chats, earlier talk and memory."""

    async def do_help(self) -> str:
        """Return the help text; in main, with the requests that only main may make."""
        return await self.answer_of_intent() + (self.say("help_main") if self.context.order.is_main else "")

    async def do_unknown(self) -> str:
        """Return the answer that the request was not understood. Once a day, also explain how to add a model.

        In main, the owner's own group, the answer itself explains it. From another group, the host is asked
        to send the explanation to main.
        """
        text = await self.answer_of_intent()
        today = self.context.now.date().isoformat()
        if self.context.state.explained_day != today:
            self.remember(explained_day=today)
            if self.context.order.is_main:
                return text + self.say("add_model")
            await self.context.ask(ModelMissing)
        return text

    do_unknown_part = do_unknown

    async def do_undo(self) -> str:
        """Undo the last change, and return the answer, which says so if there is nothing to undo.

        Only the person who made the change and the owner may undo it, or anybody if that person is unknown.
        """
        undo, context = self.context.state.undo, self.context
        author = undo[0].slot("by") if undo else ""
        if author not in ("", context.request.person) and not context.request.is_owner:
            return self.say("undo_not_yours", name=undo[0].slot("by_name"))
        return await carry_out_undo(undo, context) if undo else await self.answer_of_intent()

    async def do_show_groups(self) -> str:
        """Return a list of the chats that the host knows, each with its address and its group's folder."""
        reply = await self.request(RefreshGroups)
        no_folder = self.say("not_registered")
        chats = reply.data.get("chats", [])
        texts = [f"{chat['name']} ({chat['jid']}): {chat['folder'] or no_folder}" for chat in chats]
        return self._bullets("show_groups", texts) or self.say("no_groups")

    async def do_know(self) -> str:
        """Return what the host remembers of this chat and its people: notes and other remembered texts.

        Of messages, tasks and reminders only the numbers are shown.
        """
        memory = await self._remembered("show")
        texts = [_short(item["text"]) for item in memory["items"]]
        head = self._bullets("know", texts) or self.say("know_nothing")
        board = memory["board"]
        counts = {"messages": memory["messages"], "tasks": board["tasks"], "reminders": board["reminders"]}
        return "\n".join([head, self.say("know_more", **counts)])

    async def do_know_me(self) -> str:
        """Return what the host remembers of the sender: their role, notes, mentions, reminders and tasks.

        Of their messages only the number is shown. The host finds the person by the messenger's address,
        which the agent does not have.
        """
        # Several people may ask in one turn; `request.person` is the one who sent this request.
        person = (await self._memory("person", people=[self.context.request.person]))["people"][0]
        blanks = {"name": person["name"], "role": person["role"], "messages": person["messages"]}
        texts = [
            *(_short(item["text"]) for item in (*person["notes"], *person["mentions"])),
            *(self.say("know_reminder", text=_short(item["text"])) for item in person["reminders"]),
            *(self.say("know_task", text=_short(item["text"])) for item in person["tasks"]),
        ]
        head = self.say("know_me", **blanks)
        return "\n".join([self.listed(head, [f"• {text}" for text in texts]), self.say("know_forget_me")])

    async def do_keep_note(self) -> str:
        """Store a sentence as a note at the host, which adds who said it and whom it is about."""
        await self._memory("note", about=self.slot("note"))
        return self.say("keep_note", note=self.slot("note"))

    async def do_forget(self) -> str:
        """Delete for good, after a confirmation, remembered items and messages that contain the words.

        Raises `AnswerNow` with the question, which lists what would be deleted.
        """
        about = " ".join(reading.meaning_words(self.slot("about")))
        if not about:
            return self.say("forget_nothing")
        if not self.slot("sure"):
            memory = await self._remembered("show", about)
            # An item without an id is a line of the owner's own file, which is not deleted.
            lines = [f"• {_short(item['text'])}" for item in memory["items"] if item["id"]]
            if not lines and not memory["said"]:
                return self.say("forget_nothing")
            lines.append(self.say("forget_said", count=memory["said"]))
            raise self.question("sure", self.listed(self.say("sure_forget"), lines))
        await self._remembered("forget", about)
        return self.say("forget")

    async def _remembered(self, action: str, about: str = "") -> Any:
        """Use the memory tool's action `show` or `forget` on the items that contain the words `about`.

        Without words it is about all items. Returns the reply's data; raises `AnswerNow` if the host refuses.
        """
        return await self._memory(action, about=about)

    async def _memory(self, action: str, **arguments: Any) -> Any:
        """Call the host's memory tool with an action and its arguments, and return the reply's data.

        Raises `AnswerNow` if the host refuses.
        """
        return (await self.request(Remember, tool=MEMORY, arguments={"action": action, **arguments})).data

    async def do_recall(self) -> str:
        """Return a summary of the earlier conversation from the host's files; if none is stored, say so."""
        # Read each time: the host rewrites the files between turns.
        snapshots = self.context.workspace.snapshots
        context = await asyncio.to_thread(_document, snapshots / "context.json")
        workflow = await asyncio.to_thread(_document, snapshots / "workflow.json")
        plan = _with_id(_rows(workflow, "plans"), _value_at(context, "memory", "active_plan_id"))
        task = _with_id(_rows(plan, "tasks"), _value_at(context, "memory", "active_task_id"))
        title, task_title = _short(_value_at(plan, "title")), _short(_value_at(task, "title"))
        summary = str(_value_at(context, "conversation", "running_summary") or "").strip()
        decisions = _rows(context, "memory", "last_decisions")[-MAX_DECISIONS:]
        at_task = self.say("recall_task", task=task_title) if task_title else ""
        parts = (
            (self.say("recall_plan", plan=title) + at_task) if title else "",
            self._bullets("recall_decided", [_short(decision) for decision in decisions]),
            self.say("recall_before", summary=summary) if summary else "",
            self._bullets("recall_last", self._dialogue(_rows(context, "conversation", "recent_window"))),
        )
        return self.joined(self.say("recall"), *parts) or self.say("recall_nothing")

    def _dialogue(self, window: Sequence[Any]) -> list[str]:
        """Return the last messages of a conversation as lines, at most `MAX_MESSAGES`.

        `window` has the stored messages, the oldest first. Those of this turn, and of turns in which somebody
        asked about earlier talk, are left out.
        """
        # The id of a message begins with that of its turn: `t12.…`.
        rows = [(str(_value_at(row, "id")).partition(".")[0], row) for row in window]
        left_out = {f"t{self.context.turn}", *(turn_id for turn_id, row in rows if _asks_to_recall(row))}
        name = self.context.order.assistant_name
        lines = [
            text if row.get("role") == "user" else f"{name}: {text}"
            for turn_id, row in rows
            if turn_id not in left_out and (text := _short(_value_at(row, "content")))
        ]
        return lines[-MAX_MESSAGES:]

    def _bullets(self, head: str, texts: Sequence[str]) -> str:
        """Return the sentence named `head` with texts under it as a list; empty if there are no texts."""
        return self.listed(self.say(head), [f"• {text}" for text in texts]) if texts else ""


def _asks_to_recall(row: Any) -> bool:
    """Return whether a person's message asks about earlier talk; a name (`Mia: `) may precede its text."""
    content = str(_value_at(row, "content") or "")
    texts = (content, content.partition(": ")[2]) if _value_at(row, "role") == "user" else ()
    return any(parsed.intent == "recall" for text in texts for parsed in reading.read(text))


# Any field may be missing: another version may have written the files, or the conversation has only started.


def _value_at(document: Any, *path: str) -> Any:
    """Return the value at a path of names in a JSON document; None if there is none."""
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _rows(document: Any, *path: str) -> list[Any]:
    """Return the list at a path of names in a JSON document; an empty one if there is none."""
    value = _value_at(document, *path)
    return value if isinstance(value, list) else []


def _with_id(rows: Sequence[Any], row_id: Any) -> Any:
    """Return the first row with this id; None if there is none, or the id is empty."""
    return next((row for row in rows if row_id and _value_at(row, "id") == row_id), None)


def _short(text: Any) -> str:
    """Return a text on one line of at most `MAX_CHARS` characters."""
    line = " ".join(str(text or "").split())
    return line if len(line) <= MAX_CHARS else f"{line[: MAX_CHARS - 1]}…"


def _document(path: Path) -> Any:
    """Return the content of a JSON file; None if it cannot be read, or is not valid JSON. Blocks."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
