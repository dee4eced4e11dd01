"""Tell a group what is remembered of it, and forget what it takes back.

What is remembered lies in the group's notes, its context with its snapshots, and rows of the store. What is
forgotten leaves all of them; the agent's session, which may hold the words too, is not gone on with.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, assert_never

from pydantic import ValidationError

from agent_runner.wire import context_tools as wire
from agent_runner.wire.mailbox import Reply
from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.redaction import redact
from orchestrator.base.tables import short
from orchestrator.context import person_memory
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.models import Context
from orchestrator.context.person_memory import KnownPerson, Mention
from orchestrator.context.recorder import ContextRecorder
from orchestrator.context.workflow import AiSession, Plan, Workflow
from orchestrator.domain.errors import BadRequest, ContextBusy
from orchestrator.domain.home import UNDO
from orchestrator.domain.values import Folder, Group, Message, Turn
from orchestrator.groups import memory_templates, person_names
from orchestrator.store import (
    audit,
    commands,
    dashboard_knowledge,
    dashboard_notifications,
    dashboard_tasks,
    group_changes,
    memory_notes,
    message_search,
    messages,
    notices,
    outbox,
    sessions,
    turn_effects,
    turns,
)
from orchestrator.store.database import Database, Tx

OWNER = "USER.md"
ARCHIVE = "conversations"
"""The folder of earlier conversations in a group's folder."""
MAX_AT_ONCE = 50
"""So many things are forgotten at once: more, and the words are too common to mean them all."""
MAX_MESSAGES = 200
MAX_NOTICES = 200
SHOWN_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedItem:
    """One thing that is remembered."""

    id: str
    """The id by which it can be forgotten; empty for items that only the owner changes."""
    kind: str
    """note, person_note, owner, summary, decision, plan, file, insight, person or reminder (to itself)."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The choice of things to forget: those that have all of the words, or that have one id."""

    terms: tuple[str, ...] = ()
    items: frozenset[tuple[str, str]] = frozenset()
    """Kinds and texts."""

    def has(self, kind: str, text: str) -> bool:
        """Return whether a thing of this kind and text is meant."""
        return self.names(text) if self.terms else (kind, text) in self.items

    def names(self, text: str) -> bool:
        """Return whether a text has all of the words."""
        folded = text.casefold()
        return bool(self.terms) and all(term in folded for term in self.terms)


class GroupMemory:
    """Carries out the context tools of agents; `memory` itself, and the others by the recorder."""

    def __init__(
        self, database: Database, recorder: ContextRecorder, *, home: Path, clock: Clock, bus: EventBus
    ) -> None:
        self._database = database
        self._recorder = recorder
        self._home = home
        self._clock = clock
        self._bus = bus

    async def show(self, folder: Folder) -> None:
        """Bring the container's copy of a group's context up to date."""
        await self._recorder.show(folder)

    async def use(
        self,
        group: Group,
        tool: str,
        arguments: Mapping[str, Any],
        request_id: str,
        *,
        turn: Turn | None = None,
        reads_history: bool = True,
    ) -> Reply:
        """Use a tool of `agent_runner.wire.context_tools`; the reply has a code where that cannot be done.

        `turn` is the one in which the agent asks; `reads_history`: whether who asked may read what others
        said.
        """
        if tool != wire.MEMORY:
            return await self._recorder.use(group, tool, arguments, request_id)
        try:
            given = wire.UseMemory.model_validate(arguments)
            match given.action:
                case "show":
                    text, data = await self._shown(group, given.about.strip())
                case "forget":
                    text, data = await self._forgotten(group, given.about.strip())
                case "note":
                    text, data = await self._noted(group, turn, given, request_id)
                case "person":
                    text, data = await self._known(group, turn, given.people, reads_history=reads_history)
                case _:
                    assert_never(given.action)
        except ValidationError as error:
            reason = error.errors(include_input=False, include_url=False)[0]["msg"]
            return Reply(request_id=request_id, ok=False, code="bad_arguments", text=reason)
        except (BadRequest, ContextBusy) as error:
            return Reply(request_id=request_id, ok=False, code=error.code, text=str(error))
        except OSError as error:
            text = f"The host could not do it: {error.strerror or error}."
            return Reply(request_id=request_id, ok=False, code="disk", text=text)
        return Reply(request_id=request_id, ok=True, code="ok", text=text, data=data)

    async def _noted(
        self, group: Group, turn: Turn | None, given: wire.UseMemory, request_id: str
    ) -> tuple[str, dict[str, Any]]:
        async with self._database.transaction() as tx:
            noted = await person_memory.note(
                tx, group, turn, given, request_id=request_id, now_ms=self._clock.now_ms()
            )
        self._bus.publish("memory.noted", group=group.folder)
        return f"Kept as {noted.id}: {noted.line()}", {**noted.to_row()}

    async def _known(
        self, group: Group, turn: Turn | None, given: Sequence[str] | None, *, reads_history: bool
    ) -> tuple[str, dict[str, Any]]:
        async with self._database.reading() as tx:
            found = await person_memory.known_for(tx, group, turn, given, reads_history=reads_history)
            if reads_history:
                items = [one for one in await self._items(tx, group) if one.kind != person_memory.NOTE]
                found = [_with_mentions(one, items) for one in found]
        lines = [line for one in found for line in one.lines()]
        return "\n".join(lines), {"people": [one.to_row() for one in found]}

    async def _shown(self, group: Group, about: str) -> tuple[str, dict[str, Any]]:
        async with self._database.reading() as tx:
            items = await self._items(tx, group)
            if about:
                chosen = _chosen(items, about)
                items = [one for one in items if chosen.has(one.kind, one.text)]
                said = await self._messages(tx, group, chosen)
            else:
                said = []
            board = await _on_board(tx, group.folder)
            message_count = await messages.count(tx, group.folder)
        lines = [f"- {one.kind} {one.id}: {redact(short(one.text, SHOWN_CHARS))}" for one in items]
        lines += [f"{len(said)} messages of the asker or yours have these words."] if said else []
        if not about:
            lines += [
                f"Kept besides: {message_count} messages of this chat (search_history); on the board "
                + ", ".join(f"{count} {name}" for name, count in board.items())
                + "; the other files of your working directory."
            ]
        rows = [{"id": one.id, "kind": one.kind, "text": redact(one.text)} for one in items]
        text = "\n".join(lines) or "Nothing that is remembered has these words."
        # The lines say all that a model needs; a program reads the rows.
        return text, {"items": rows, "said": len(said), "messages": message_count, "board": board}

    async def _forgotten(self, group: Group, about: str) -> tuple[str, dict[str, Any]]:
        now_ms, folder = self._clock.now_ms(), group.folder
        await self._recorder.catch_up(folder)
        async with self._database.reading() as tx:
            items = await self._items(tx, group)
            chosen = _chosen(items, about)
            taken = [one for one in items if one.id and chosen.has(one.kind, one.text)]
            said = await self._messages(tx, group, chosen)
        notes = await asyncio.to_thread(self._notes_with, folder, chosen)
        if not (taken or said or notes):
            raise NothingRemembered
        if len(taken) + len(said) > MAX_AT_ONCE:
            raise TooMuchToForget(len(taken) + len(said))
        counts = Counter(one.kind for one in taken if one.kind != "note")
        counts["message"] += len(said)
        counts["note"] += await asyncio.to_thread(self._forget_notes, notes)
        await asyncio.to_thread(_forget_context, self._recorder.manager(folder), chosen, now_ms=now_ms)
        # The words are in what the files were, too.
        await asyncio.to_thread(shutil.rmtree, self._home / UNDO / folder, ignore_errors=True)
        async with self._database.transaction() as tx:
            await _forget_rows(tx, group, chosen, taken, said, now_ms=now_ms)
            await turn_effects.forget(tx, folder)
            await sessions.note_new_session(tx, folder)
            detail = {"forgotten": {kind: count for kind, count in counts.items() if count}}
            await audit.append(
                tx, audit.AuditEvent(at_ms=now_ms, kind="memory.forgotten", folder=folder, detail=detail)
            )
        await self._recorder.catch_up(folder)
        self._bus.publish("message.amended", group=folder)
        self._bus.publish("dashboard.changed", group=folder)
        listed = ", ".join(f"{count} × {kind}" for kind, count in detail["forgotten"].items())
        text = (
            f"Forgotten for good: {listed}. Do not say the words again; your next session begins without"
            " them. What lies in backups stays there."
        )
        return text, detail

    async def _items(self, tx: Tx, group: Group) -> list[RememberedItem]:
        """Return all that is remembered of a group, in the order in which it is told."""
        folder = group.folder
        found = await asyncio.to_thread(self._in_files, folder)
        for noted in await person_memory.notes_of(tx, folder):
            found.append(RememberedItem(id=noted.id, kind=person_memory.NOTE, text=noted.line()))
        for insight in await dashboard_knowledge.insights(tx, folder):
            found.append(RememberedItem(id=insight.id, kind="insight", text=insight.content))
        for person in await dashboard_knowledge.people(tx, folder):
            body = ", ".join(f"{name}: {value}" for name, value in person.body.items() if value)
            found.append(RememberedItem(id=person.id, kind="person", text=body))
        for notice in await notices.of_group(tx, folder, with_over=False, limit=MAX_NOTICES):
            if notice.maker.value == "self":
                text = str(notice.payload.get("message") or "")
                found.append(RememberedItem(id=f"notice.{notice.id}", kind="reminder", text=text))
        return [one for one in found if one.text.strip()]

    def _in_files(self, folder: Folder) -> list[RememberedItem]:
        """Return what the group's notes, the owner's text and the context hold. Blocks."""
        stored = self._recorder.manager(folder).load(now_ms=self._clock.now_ms())
        memory, summary = stored.context.memory, stored.context.conversation.running_summary
        notes = memory_templates.own_text(self._home, folder, memory_templates.MEMORY) or ""
        owner = memory_templates.own_text(self._home, memory_templates.SHARED, OWNER) or ""
        return [
            *_numbered("note", notes.splitlines()),
            *(RememberedItem(id="", kind="owner", text=line) for line in _said_by_owner(owner)),
            *_numbered("summary", summary.splitlines()),
            *_numbered("decision", memory.last_decisions),
            *(
                RememberedItem(id=plan.id, kind="plan", text=_plan_text(plan))
                for plan in stored.workflow.plans
            ),
            *_numbered("file", memory.open_files),
        ]

    async def _messages(self, tx: Tx, group: Group, chosen: Chosen) -> list[Message]:
        """Return the messages of whoever asks, and the agent's own, that have the words."""
        if not chosen.terms:
            return []
        turn = await turns.running_of(tx, group.folder)
        asker = await messages.asker_of(tx, turn.id) if turn is not None else None
        found = await message_search.find(tx, chosen.terms, folder=group.folder, limit=MAX_MESSAGES)
        return [one for one in found if one.is_bot_message or one.sender == asker]

    def _notes_with(self, folder: Folder, chosen: Chosen) -> dict[tuple[str, str], tuple[str, int]]:
        """Return the group's notes without the lines that are meant, and how many those are. Blocks."""
        found = {}
        for place in (folder, f"{folder}/{ARCHIVE}"):
            for name in memory_templates.own_texts(self._home, place):
                lines = (memory_templates.own_text(self._home, place, name) or "").splitlines()
                remaining = [line for line in lines if not chosen.has("note", line)]
                if len(remaining) < len(lines):
                    found[place, name] = (
                        "".join(f"{line}\n" for line in remaining),
                        len(lines) - len(remaining),
                    )
        return found

    def _forget_notes(self, notes: Mapping[tuple[str, str], tuple[str, int]]) -> int:
        """Write the notes as they are without what is forgotten, and return how many lines went. Blocks."""
        for (place, name), (text, _) in notes.items():
            memory_templates.write_memory(self._home, place, text, name=name)
        return sum(gone for _, gone in notes.values())


class NothingRemembered(BadRequest):
    """Nothing that is remembered is meant."""

    code = "nothing"

    def __init__(self) -> None:
        super().__init__("Nothing that is remembered has these words: look with the action show.")


class TooMuchToForget(BadRequest):
    """So much is meant that it cannot be what somebody wants."""

    code = "too_much"

    def __init__(self, count: int) -> None:
        super().__init__(
            f"{count} things have these words, more than {MAX_AT_ONCE}: give more words, or one id at a time."
        )


def _chosen(items: Sequence[RememberedItem], about: str) -> Chosen:
    """Return what an id or words mean. Raises `BadSearch` without any, and of far too many."""
    named = frozenset((one.kind, one.text) for one in items if one.id and one.id == about)
    if named:
        return Chosen(items=named)
    return Chosen(terms=tuple(term.casefold() for term in message_search.parse_terms(about)))


def _with_mentions(known: KnownPerson, items: Iterable[RememberedItem]) -> KnownPerson:
    """Return what is known of a person with what else is remembered and has their name. Pure."""
    found = (one for one in items if person_names.is_named(one.text, known.person.name))
    return replace(known, mentions=tuple(Mention(id=one.id, kind=one.kind, text=one.text) for one in found))


def _numbered(kind: str, texts: Iterable[str]) -> Iterator[RememberedItem]:
    for number, text in enumerate(texts, 1):
        yield RememberedItem(id=f"{kind}.{number}", kind=kind, text=text)


def _said_by_owner(text: str) -> list[str]:
    """Return the lines that the owner wrote about themselves; the template's have none."""
    return [line for line in text.splitlines() if line.strip() and not line.startswith(("#", "("))]


def _plan_text(plan: Plan) -> str:
    tasks = "; ".join(task.title for task in plan.tasks)
    return " — ".join(filter(None, (plan.title, plan.objective, tasks)))


async def _on_board(tx: Tx, folder: Folder) -> dict[str, int]:
    return {
        "tasks": len(await dashboard_tasks.on_board(tx, folder)),
        "reminders": len(await dashboard_notifications.reminders(tx, folder)),
    }


def _forget_context(manager: ContextManager, chosen: Chosen, *, now_ms: int) -> None:
    """Take what is meant out of a group's context, its plans and all snapshots of both. Blocks."""

    def context_left(context: Context) -> Context:
        memory, conversation = context.memory, context.conversation
        lines = conversation.running_summary.splitlines()
        remaining = _left("summary", lines, chosen)
        changed = memory.model_copy(
            update={
                "last_decisions": tuple(_left("decision", memory.last_decisions, chosen)),
                "open_files": tuple(_left("file", memory.open_files, chosen)),
            }
        )
        if changed == memory and len(remaining) == len(lines):
            return context
        summary = conversation.model_copy(update={"running_summary": "\n".join(remaining)})
        return context.model_copy(update={"memory": changed, "conversation": summary})

    def plans_left(workflow: Workflow) -> Workflow:
        plans = tuple(plan for plan in workflow.plans if not chosen.has("plan", _plan_text(plan)))
        session = workflow.metadata.ai_session
        decisions = _left("decision", session.key_decisions, chosen)
        files = _left("file", session.active_files, chosen)
        if (len(plans), len(decisions), len(files)) == (
            len(workflow.plans),
            len(session.key_decisions),
            len(session.active_files),
        ):
            return workflow
        current = workflow.current_plan_id if workflow.current_plan_id in {one.id for one in plans} else None
        # It only copies what is in hand, and may name a plan that goes: the next write makes it anew.
        metadata = workflow.metadata.model_copy(update={"ai_session": AiSession()})
        return workflow.model_copy(update={"plans": plans, "current_plan_id": current, "metadata": metadata})

    with manager.files.changed(now_ms) as draft:
        draft.workflow = plans_left(draft.workflow)
        draft.context = context_left(draft.context)
        manager.files.snapshots.rewrite(context_left, plans_left)


def _left(kind: str, texts: Iterable[str], chosen: Chosen) -> list[str]:
    return [text for text in texts if not chosen.has(kind, text)]


async def _forget_rows(
    tx: Tx,
    group: Group,
    chosen: Chosen,
    taken: Iterable[RememberedItem],
    said: Iterable[Message],
    *,
    now_ms: int,
) -> None:
    """Take what is meant out of the rows of a group, and of what was answered about them."""
    for one in taken:
        if one.kind == person_memory.NOTE:
            await memory_notes.forget(tx, group.folder, int(one.id.rpartition(".")[2]))
        elif one.kind in ("insight", "person"):
            await dashboard_knowledge.forget(tx, group.folder, one.id)
        elif one.kind == "reminder":
            await notices.forget(tx, group.folder, int(one.id.partition(".")[2]), now_ms=now_ms)
    for message in said:
        await messages.blank(tx, message)
        turn_id = message.turn_id or await outbox.blank(tx, message.id)
        if turn_id is not None:
            await sessions.note_deletion(tx, group.folder, turn_id, message.seq)
    await group_changes.rewrite(tx, group.folder, _without("note", chosen))
    if chosen.terms:
        await commands.forget(tx, group.folder, lambda text: chosen.names(_decoded(text)))


def _without(kind: str, chosen: Chosen) -> Callable[[str], str]:
    return lambda text: "\n".join(_left(kind, text.split("\n"), chosen))


def _decoded(text: str) -> str:
    """Return JSON as it reads: letters beside ASCII are escaped in it."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except ValueError:
        return text
