"""Show a group what is remembered about it, and forget items on request.

Remembered items are in the group's notes, its context with its snapshots, and rows of the store. A forgotten
item is removed from all of them; the agent's session, which may contain it too, is ended.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple, assert_never

from pydantic import ValidationError

from agent_runner.wire import context_tools as wire
from agent_runner.wire.mailbox import Reply
from orchestrator.base.clock import Clock
from orchestrator.base.dirfd import remove_tree
from orchestrator.base.event_bus import EventBus
from orchestrator.base.redaction import redact
from orchestrator.base.tables import counted, short
from orchestrator.context import person_memory
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.models import Context
from orchestrator.context.person_memory import KnownPerson, Mention
from orchestrator.context.recorder import ContextRecorder
from orchestrator.context.workflow import AiSession, Plan, Workflow
from orchestrator.domain.errors import BadRequest, ContextBusy
from orchestrator.domain.values import Folder, Group, Message, Turn
from orchestrator.groups import memory_templates, person_names
from orchestrator.home.directory import UNDO
from orchestrator.store import audit
from orchestrator.store.board import knowledge as board_knowledge
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.board import tasks as board_tasks
from orchestrator.store.conversation import message_search, messages, outbox
from orchestrator.store.database import Database, Tx
from orchestrator.store.groups import changes as group_changes
from orchestrator.store.notices import notices
from orchestrator.store.notices.notices import NoticeMaker
from orchestrator.store.people import memory_notes
from orchestrator.store.people import records as person_records
from orchestrator.store.runs import commands, sessions, turns
from orchestrator.store.undo import turn_effects

OWNER = "USER.md"
ARCHIVE = "conversations"
"""The folder of earlier conversations in a group's folder."""
MAX_AT_ONCE = 50
"""The largest number of items forgotten at once: terms that match more are too common to be meant so."""
SHOWN_CHARS = 300
MAX_NAMED_FILES = 10
"""Files that are named as not searched; of more, only the number is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedItem:
    """One remembered item."""

    id: str
    """The id by which it can be forgotten; empty for items that only the owner changes."""
    kind: str
    """note, person_note, owner, summary, decision, plan, file, insight, person or reminder.

    A reminder is here a notice of the agent to itself.
    """
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemSelection:
    """The items to forget: those whose text has all of the terms, or the one with an id."""

    terms: tuple[str, ...] = ()
    items: frozenset[tuple[str, str]] = frozenset()
    """Kinds and texts of the items with the id."""

    def includes(self, kind: str, text: str) -> bool:
        """Return whether an item of this kind and text is chosen, by its terms or by its id."""
        return self.has_terms(text) if self.terms else (kind, text) in self.items

    def has_terms(self, text: str) -> bool:
        """Return whether a text has all of the terms; False if there are none, as an id was chosen."""
        folded = text.casefold()
        return bool(self.terms) and all(term in folded for term in self.terms)


class _MemoryAnswer(NamedTuple):
    """The answer of the memory tool: a text for a model, and the same as data for programs."""

    text: str
    data: dict[str, Any]


class _FoundNotes(NamedTuple):
    """The notes of a group that have lines to forget."""

    files: list[tuple[str, str]]
    """(folder, file name) of each."""
    unsearched: list[str]
    """The paths of notes that were not searched."""
    line_count: int
    """The number of different lines to forget; a larger one than `MAX_AT_ONCE` is not counted to its end."""


class GroupMemory:
    """Carries out the context tools of agents: `memory` here, and the others through the recorder."""

    def __init__(
        self, database: Database, recorder: ContextRecorder, *, home: Path, clock: Clock, bus: EventBus
    ) -> None:
        """`recorder` updates the groups' stored conversations; `home` is Andy's home directory."""
        self._database = database
        self._recorder = recorder
        self._home = home
        self._clock = clock
        self._bus = bus

    async def write_copies(self, folder: Folder) -> None:
        """Write the copies of a group's stored conversation that its new container reads."""
        await self._recorder.write_copies(folder)

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
        """Carry out a call of a tool by which an agent reads and changes what is stored of its conversation.

        `tool` and `arguments` are those of `agent_runner.wire.context_tools`. If the call fails, the reply
        has an error code. `turn` is the agent's running turn, None outside of a turn. `reads_history` says
        whether the person who asked may read other people's messages.
        """
        if tool != wire.MEMORY:
            return await self._recorder.use(group, tool, arguments, request_id)
        try:
            request = wire.UseMemory.model_validate(arguments)
            match request.action:
                case "show":
                    text, data = await self._list_items(group, request.about.strip())
                case "forget":
                    text, data = await self._forget_items(group, request.about.strip())
                case "note":
                    text, data = await self._store_note(group, turn, request, request_id)
                case "person":
                    text, data = await self._list_known_people(
                        group, turn, request.people, reads_history=reads_history
                    )
                case _:
                    assert_never(request.action)
        except ValidationError as error:
            reason = error.errors(include_input=False, include_url=False)[0]["msg"]
            return Reply(request_id=request_id, ok=False, code="bad_arguments", text=reason)
        except (BadRequest, ContextBusy) as error:
            return Reply(request_id=request_id, ok=False, code=error.code, text=str(error))
        except OSError as error:
            text = f"The host could not do it: {error.strerror or error}."
            return Reply(request_id=request_id, ok=False, code="disk", text=text)
        return Reply(request_id=request_id, ok=True, code="ok", text=text, data=data)

    async def _store_note(
        self, group: Group, turn: Turn | None, request: wire.UseMemory, request_id: str
    ) -> _MemoryAnswer:
        """Store a note about people and publish that; return the reply's text and the note as data.

        A repetition of the request `request_id` stores no second note, and returns the first. Raises what
        `person_memory.note` raises.
        """
        async with self._database.transaction() as tx:
            noted = await person_memory.note(
                tx, group, turn, request, request_id=request_id, now_ms=self._clock.now_ms()
            )
        self._bus.publish("memory.noted", group=group.folder)
        return _MemoryAnswer(f"Kept as {noted.id}: {noted.line()}", {**noted.to_row()})

    async def _list_known_people(
        self, group: Group, turn: Turn | None, names: Sequence[str] | None, *, reads_history: bool
    ) -> _MemoryAnswer:
        """Return what is stored about the people with these names, as the reply's text and its data.

        Without names, the people who ask in `turn` are meant. `reads_history` says whether they may read
        other people's messages; only then other remembered items with a person's name are in it. Raises what
        `person_memory.known_for` raises.
        """
        async with self._database.reading() as tx:
            known_people = await person_memory.known_for(tx, group, turn, names, reads_history=reads_history)
            if reads_history:
                items = [
                    each
                    for each in await self._remembered_items(tx, group)
                    if each.kind != person_memory.NOTE
                ]
                known_people = [_with_mentions(each, items) for each in known_people]
        lines = [line for each in known_people for line in each.lines()]
        return _MemoryAnswer("\n".join(lines), {"people": [each.to_row() for each in known_people]})

    async def _list_items(self, group: Group, about: str) -> _MemoryAnswer:
        """Return the remembered items as the reply's text and its data.

        `about` is the id of one item, or terms that an item must have. If it is empty, all are listed, and
        the text says how much else is stored; the data say that always. Raises `BadSearch` for terms that
        cannot be searched for.
        """
        async with self._database.reading() as tx:
            items = await self._remembered_items(tx, group)
            if about:
                selection = _items_meant_by(items, about)
                items = [item for item in items if selection.includes(item.kind, item.text)]
                # Only the number of messages is reported: another tool finds their texts.
                matching_messages = await self._matching_messages(tx, group, selection)
            else:
                matching_messages = []
            board = await _board_counts(tx, group.folder)
            message_count = await messages.count(tx, group.folder)
        lines = [f"- {item.kind} {item.id}: {redact(short(item.text, SHOWN_CHARS))}" for item in items]
        have = "has" if len(matching_messages) == 1 else "have"
        lines += (
            [f"{counted(len(matching_messages), 'message')} of the asker or yours {have} these words."]
            if matching_messages
            else []
        )
        if not about:
            of_chat = f"{counted(message_count, 'message')} of this chat (search_history)"
            on_board = f"{counted(board['tasks'], 'task')}, {counted(board['reminders'], 'reminder')}"
            files = "the other files of your working directory"
            lines += [f"Kept besides: {of_chat}; on the board {on_board}; {files}."]
        rows = [{"id": item.id, "kind": item.kind, "text": redact(item.text)} for item in items]
        text = "\n".join(lines) or "Nothing that is remembered has these words."
        # A model reads the lines; programs, such as the agent without a model, read the rows.
        data = {
            "items": rows,
            "said": len(matching_messages),
            "messages": message_count,
            "board": board,
        }
        return _MemoryAnswer(text, data)

    async def _forget_items(self, group: Group, about: str) -> _MemoryAnswer:
        """Forget the item with the id `about`, or all items and messages that have its terms.

        Of the messages, only those by the agent or the asking person are forgotten. All is removed from files
        and rows for good, except lines that the owner wrote about themselves. What was stored to undo earlier
        turns is deleted whole, since it may contain the same texts. The agent's session, which may contain
        them too, is ended after the turn. Return the reply's text, and as its data the number of what was
        forgotten by kind.

        Raises:
            BadSearch: `about` is no id, and its terms cannot be searched for.
            NothingRemembered: nothing matches.
            TooMuchToForget: more than `MAX_AT_ONCE` items, messages and lines of notes and archives match.
            ContextBusy, OSError: a file cannot be written or deleted now.
        """
        now_ms, folder = self._clock.now_ms(), group.folder
        await self._recorder.catch_up(folder)
        async with self._database.reading() as tx:
            items = await self._remembered_items(tx, group)
            selection = _items_meant_by(items, about)
            # The lines that the owner wrote about themselves have no id.
            removed_items = [item for item in items if item.id and selection.includes(item.kind, item.text)]
            matching_messages = await self._matching_messages(tx, group, selection)
            notices_to_itself = await _notices_to_itself(tx, folder, with_ended=True)
            matching_notices = [
                item for item in notices_to_itself if selection.includes(item.kind, item.text)
            ]
        notes = await asyncio.to_thread(self._find_notes, folder, selection)
        if not (removed_items or matching_messages or notes.files or matching_notices):
            raise NothingRemembered(notes.unsearched)
        # The lines of note files are counted in the files, since the items have only the lines of `MEMORY`.
        match_count = (
            sum(item.kind != "note" for item in removed_items) + len(matching_messages) + notes.line_count
        )
        if match_count > MAX_AT_ONCE:
            raise TooMuchToForget(match_count)
        # Notices that are over are forgotten, too, but were not counted above: `show` does not list them,
        # so nobody could know why it was too much.
        removed_items += [item for item in matching_notices if item not in removed_items]
        # The undo copies of the files contain the texts too. They are first: if they cannot be deleted, the
        # same request still finds everything.
        await asyncio.to_thread(delete_undo_copies, self._home, folder)
        # The agent's session is ended after the turn, also if this fails or the host is killed below: then
        # the same request may find nothing more, as the id of a note that is gone is not found again.
        await self._database.write(lambda tx: sessions.request_new_session(tx, folder))
        # Files before rows: after a crash in between, the same request still finds the rows. Of the files,
        # first those that another process may hold: nothing is gone yet when that is refused.
        await asyncio.to_thread(_forget_context, self._recorder.manager(folder), selection, now_ms=now_ms)
        counts = Counter(item.kind for item in removed_items if item.kind != "note")
        counts["message"] += len(matching_messages)
        # For the reply, a line that is in several note files counts each time that it is removed.
        counts["note"] += await asyncio.to_thread(self._forget_notes, notes, selection)
        async with self._database.transaction() as tx:
            await _forget_rows(tx, group, selection, removed_items, matching_messages, now_ms=now_ms)
            await turn_effects.forget(tx, folder)
            # Once more: a session that began meanwhile may have read what was only removed now.
            await sessions.request_new_session(tx, folder)
            detail = {"forgotten": {kind: count for kind, count in counts.items() if count}}
            await audit.append(
                tx, audit.AuditEvent(at_ms=now_ms, kind="memory.forgotten", folder=folder, detail=detail)
            )
        await self._recorder.catch_up(folder)
        self._bus.publish("message.amended", group=folder)
        self._bus.publish("dashboard.changed", group=folder)
        counts_text = ", ".join(f"{count} × {kind}" for kind, count in detail["forgotten"].items())
        text = (
            f"Forgotten for good: {counts_text}. Do not say the words again; your next session begins without"
            f" them. What lies in backups stays there.{_unsearched_text(notes.unsearched)}"
        )
        return _MemoryAnswer(text, detail)

    async def _remembered_items(self, tx: Tx, group: Group) -> list[RememberedItem]:
        """Return all that is remembered about a group, in the order in which it is listed.

        These are items in files, notes about people, what was learned, imported people, and notices of the
        agent to itself that are not over. Blank items are left out.
        """
        folder = group.folder
        items = await asyncio.to_thread(self._items_in_files, folder)
        for note in await person_memory.notes_of(tx, folder):
            items.append(RememberedItem(id=note.id, kind=person_memory.NOTE, text=note.line()))
        for insight in await board_knowledge.insights(tx, folder):
            items.append(RememberedItem(id=insight.id, kind="insight", text=insight.content))
        for person in await board_knowledge.people(tx, folder):
            body = ", ".join(f"{name}: {value}" for name, value in person.body.items() if value)
            items.append(RememberedItem(id=person.id, kind="person", text=body))
        items += await _notices_to_itself(tx, folder, with_ended=False)
        return [item for item in items if item.text.strip()]

    def _items_in_files(self, folder: Folder) -> list[RememberedItem]:
        """Return the items in a group's notes and stored context, and in what the owner wrote of themselves.

        Blocks for reading the files.
        """
        stored = self._recorder.manager(folder).load(now_ms=self._clock.now_ms())
        memory, summary = stored.context.memory, stored.context.conversation.running_summary
        notes = memory_templates.own_text(self._home, folder, memory_templates.MEMORY) or ""
        owner = memory_templates.own_text(self._home, memory_templates.SHARED, OWNER) or ""
        return [
            *_numbered("note", notes.splitlines()),
            *(RememberedItem(id="", kind="owner", text=line) for line in _owner_lines(owner)),
            *_numbered("summary", summary.splitlines()),
            *_numbered("decision", memory.last_decisions),
            *(
                RememberedItem(id=plan.id, kind="plan", text=_plan_text(plan))
                for plan in stored.workflow.plans
            ),
            *_numbered("file", memory.open_files),
        ]

    async def _matching_messages(self, tx: Tx, group: Group, selection: ItemSelection) -> list[Message]:
        """Return the group's messages with all chosen terms, only those by the agent or the asking person.

        The asking person is the one who asked in the running turn; without such a turn, only the agent's
        messages are returned. If there are more than `MAX_AT_ONCE`, some of the older ones are missing. The
        list is empty if an item was chosen by its id.
        """
        if not selection.terms:
            return []
        turn = await turns.running_of(tx, group.folder)
        asker = await messages.asker_of(tx, turn.id) if turn is not None else None
        return await message_search.find(
            tx,
            selection.terms,
            folder=group.folder,
            limit=MAX_AT_ONCE + 1,
            # Besides these, `find` always includes the agent.
            senders=() if asker is None else (asker,),
        )

    def _find_notes(self, folder: Folder, selection: ItemSelection) -> _FoundNotes:
        """Return the note files of a group that have lines to forget, and those not searched. Blocks.

        Also return the number of different lines to forget, which is not counted on above `MAX_AT_ONCE`.
        """
        files: list[tuple[str, str]] = []
        unsearched: list[str] = []
        found_lines: set[str] = set()
        for notes_folder, shown_prefix in ((folder, ""), (f"{folder}/{ARCHIVE}", f"{ARCHIVE}/")):
            names = memory_templates.own_texts(self._home, notes_folder)
            unsearched_names = list(names.others)
            for name in names.searchable:
                text = memory_templates.whole_text(self._home, notes_folder, name)
                if text is None:  # deleted, or grown too large, since the folder was listed
                    unsearched_names.append(memory_templates.shown_name(name))
                    continue
                lines = [
                    line
                    for line in text.splitlines()
                    if self._is_line_selected(notes_folder, line, selection)
                ]
                if lines:
                    files.append((notes_folder, name))
                # The caller refuses more than `MAX_AT_ONCE`: there is no need to collect them all.
                if len(found_lines) <= MAX_AT_ONCE:
                    found_lines |= set(lines)
            unsearched += [f"{shown_prefix}{name}" for name in unsearched_names]
        return _FoundNotes(files, unsearched, len(found_lines))

    def _is_line_selected(self, notes_folder: str, line: str, selection: ItemSelection) -> bool:
        """Return whether a line of a note in `notes_folder`, with or without its end, is to be forgotten.

        Bytes of it that are no text are ignored. The headings of an archive's entries, `**User**:` and the
        assistant's name, are not searched: each of its entries has one.
        """
        line = "".join(memory_templates.legible(line).splitlines())
        if notes_folder.endswith(f"/{ARCHIVE}"):
            line = line.removeprefix("**User**: ").removeprefix(f"**{self._recorder.name}**: ")
        return _is_note_line_selected(line, selection)

    def _forget_notes(self, found: _FoundNotes, selection: ItemSelection) -> int:
        """Remove the chosen lines from the `found` notes, and return the number of those lines. Blocks.

        The other lines stay byte by byte. A note that cannot be read any more is added to those that were not
        searched.
        """
        count = 0
        for notes_folder, name in found.files:
            # Read again: only one file at a time is in memory, and an agent may have added something.
            text = memory_templates.whole_text(self._home, notes_folder, name)
            if text is None:
                is_archive = notes_folder.endswith(f"/{ARCHIVE}")
                shown_name = memory_templates.shown_name(name)
                found.unsearched.append(f"{ARCHIVE}/{shown_name}" if is_archive else shown_name)
                continue
            lines = text.splitlines(keepends=True)
            remaining = [line for line in lines if not self._is_line_selected(notes_folder, line, selection)]
            count += len(lines) - len(remaining)
            memory_templates.write_memory(self._home, notes_folder, "".join(remaining), name=name)
        return count


class NothingRemembered(BadRequest):
    """No remembered item matches."""

    code = "nothing"

    def __init__(self, unsearched: Sequence[str]) -> None:
        """`unsearched` has the paths of the notes that were not searched."""
        super().__init__(
            "Nothing that is remembered has these words: look with the action show."
            f"{_unsearched_text(unsearched)}"
        )


class TooMuchToForget(BadRequest):
    """More items match than may be forgotten at once."""

    code = "too_much"

    def __init__(self, count: int) -> None:
        """`count` is the number of items found; once there were too many, others were not counted."""
        super().__init__(
            f"At least {count} things have these words, more than {MAX_AT_ONCE}: give more words,"
            " or one id at a time."
        )


def _items_meant_by(items: Sequence[RememberedItem], about: str) -> ItemSelection:
    """Return what `about` selects: the one of `items` with this id, else whatever has all of its terms.

    The item with the id is selected by its kind and text, by which it is found in the note files, too.

    Raises:
        BadSearch: there are no terms, or far too many.
    """
    with_id = frozenset((item.kind, item.text) for item in items if item.id and item.id == about)
    if with_id:
        return ItemSelection(items=with_id)
    return ItemSelection(terms=tuple(term.casefold() for term in message_search.parse_terms(about)))


def _with_mentions(known_person: KnownPerson, items: Iterable[RememberedItem]) -> KnownPerson:
    """Return a person's record with those of `items` as mentions that have the person's name. Pure."""
    mentioned = (item for item in items if person_names.is_named(item.text, known_person.person.name))
    return replace(
        known_person,
        mentions=tuple(Mention(id=item.id, kind=item.kind, text=item.text) for item in mentioned),
    )


def _numbered(kind: str, texts: Iterable[str]) -> Iterator[RememberedItem]:
    """Yield a remembered item for each text, with the id `{kind}.{number}`; numbers start at 1."""
    for number, text in enumerate(texts, 1):
        yield RememberedItem(id=f"{kind}.{number}", kind=kind, text=text)


def _owner_lines(text: str) -> list[str]:
    """Return the lines of `text` that the owner wrote about themselves, without those of the template.

    The template's lines are headings (`# …`) and remarks in brackets (`(…)`). Blank lines are left out.
    """
    return [line for line in text.splitlines() if line.strip() and not line.startswith(("#", "("))]


async def _notices_to_itself(tx: Tx, folder: Folder, *, with_ended: bool) -> list[RememberedItem]:
    """Return the notices of a group's agent to itself; with `with_ended`, also those that are over.

    Among the remembered items they are of the kind "reminder".
    """
    # Not the notices that the host made: they only say in the next prompt what happened.
    own = await notices.of_group(tx, folder, maker=NoticeMaker.SELF, with_ended=with_ended, limit=None)
    return [
        RememberedItem(id=f"notice.{notice.id}", kind="reminder", text=notice.message)
        for notice in own
        if notice.message
    ]


def _plan_text(plan: Plan) -> str:
    """Return the texts of a plan and its tasks on one line; a plan is found by the terms in it."""
    tasks = "; ".join(task.title for task in plan.tasks)
    return " — ".join(filter(None, (plan.title, plan.objective, tasks)))


async def _board_counts(tx: Tx, folder: Folder) -> dict[str, int]:
    """Return how many tasks and how many reminders are on the group's dashboard."""
    return {
        "tasks": len(await board_tasks.on_board(tx, folder)),
        "reminders": len(await board_notifications.reminders(tx, folder)),
    }


def delete_undo_copies(home: Path, folder: Folder) -> None:
    """Delete all copies of a group's files for undoing turns. Blocks.

    Raises:
        OSError: a copy cannot be deleted.
    """
    copies = home / UNDO / folder
    if copies.exists():
        remove_tree(copies)


def _forget_context(manager: ContextManager, selection: ItemSelection, *, now_ms: int) -> None:
    """Remove the chosen items from a group's stored context and plans, and from all snapshots. Blocks.

    Raises:
        ContextBusy, OSError: the files cannot be written now.
    """

    def without_items(context: Context) -> Context:
        """Return a context without the chosen items; the same object if it has none."""
        memory, conversation = context.memory, context.conversation
        lines = conversation.running_summary.splitlines()
        remaining_lines = _not_selected("summary", lines, selection)
        changed = memory.model_copy(
            update={
                "last_decisions": tuple(_not_selected("decision", memory.last_decisions, selection)),
                "open_files": tuple(_not_selected("file", memory.open_files, selection)),
            }
        )
        if changed == memory and len(remaining_lines) == len(lines):
            return context
        summary = conversation.model_copy(update={"running_summary": "\n".join(remaining_lines)})
        return context.model_copy(update={"memory": changed, "conversation": summary})

    def plans_without_items(workflow: Workflow) -> Workflow:
        """Return plans without the chosen items; the same object if they have none."""
        plans = tuple(plan for plan in workflow.plans if not selection.includes("plan", _plan_text(plan)))
        session = workflow.metadata.ai_session
        decisions = _not_selected("decision", session.key_decisions, selection)
        files = _not_selected("file", session.active_files, selection)
        if (len(plans), len(decisions), len(files)) == (
            len(workflow.plans),
            len(session.key_decisions),
            len(session.active_files),
        ):
            return workflow
        has_current_plan = any(plan.id == workflow.current_plan_id for plan in plans)
        current = workflow.current_plan_id if has_current_plan else None
        # `ai_session` only copies other fields, and may name a removed plan: the next write fills it again.
        metadata = workflow.metadata.model_copy(update={"ai_session": AiSession()})
        return workflow.model_copy(update={"plans": plans, "current_plan_id": current, "metadata": metadata})

    with manager.files.changing(now_ms) as draft:
        draft.workflow = plans_without_items(draft.workflow)
        draft.context = without_items(draft.context)
        manager.files.snapshots.rewrite(without_items, plans_without_items)


def _not_selected(kind: str, texts: Iterable[str], selection: ItemSelection) -> list[str]:
    """Return those of the texts, which are items of `kind`, that are not chosen to be forgotten."""
    return [text for text in texts if not selection.includes(kind, text)]


async def _forget_rows(
    tx: Tx,
    group: Group,
    selection: ItemSelection,
    removed_items: Iterable[RememberedItem],
    matching_messages: Iterable[Message],
    *,
    now_ms: int,
) -> None:
    """Remove the chosen items and messages from the database of a group.

    Their own rows are removed or blanked, and the earlier texts of the group's memory lose the chosen lines.
    If the items were chosen by terms, stored replies to the agent and the records of the dashboard and the
    loop with these terms go, too. The turns of the messages are noted, so that the context loses these texts.
    """
    for item in removed_items:
        # The ids of notes and notices end with the number of the row. A notice has the kind "reminder".
        if item.kind == person_memory.NOTE:
            await memory_notes.forget(tx, group.folder, int(item.id.rpartition(".")[2]))
        elif item.kind in ("insight", "person"):
            await board_knowledge.forget(tx, group.folder, item.id)
        elif item.kind == "reminder":
            await notices.forget(tx, group.folder, int(item.id.rpartition(".")[2]), now_ms=now_ms)
    for message in matching_messages:
        await messages.blank(tx, message)
        # A person's message names the turn that it is part of. One by the agent names none: its text is
        # deleted from the outbox, too, which knows the turn that sent it.
        turn_id = message.turn_id or await outbox.blank(tx, message.id)
        if turn_id is not None:
            await sessions.note_deletion(tx, group.folder, turn_id, message.seq)
    await group_changes.rewrite(tx, group.folder, _line_filter("note", selection))
    if selection.terms:  # not for an item that was chosen by its id
        await commands.forget(tx, group.folder, lambda text: selection.has_terms(with_json_texts(text)))
        await person_records.forget_recorded(tx, group.folder, selection.has_terms)


def _is_note_line_selected(line: str, selection: ItemSelection) -> bool:
    """Return whether a line of a note is chosen to be forgotten.

    Archives write `&amp;` for `&` and the like: such a line is compared as a person would read it, too.
    """
    return selection.includes("note", line) or selection.has_terms(unescape(line))


def _unsearched_text(unsearched: Sequence[str]) -> str:
    """Return the sentence that names the notes that were not searched; empty if there are none."""
    if not unsearched:
        return ""
    names = ", ".join(unsearched[:MAX_NAMED_FILES])
    more_names = f" and {len(unsearched) - MAX_NAMED_FILES} more" if len(unsearched) > MAX_NAMED_FILES else ""
    reasons = "as they cannot be read now, are links, too large or too many"
    return f" Not searched: {names}{more_names}, {reasons}: read them yourself."


def _line_filter(kind: str, selection: ItemSelection) -> Callable[[str], str]:
    """Return a function that returns a text without its chosen lines; its lines are items of `kind`."""
    return lambda text: "\n".join(_not_selected(kind, text.split("\n"), selection))


def with_json_texts(text: str) -> str:
    """Return a text and, if it is a JSON document, all texts in it, so that a search finds them. Pure.

    JSON writes line breaks, quotes and many letters in another form. A text that is no JSON is returned
    unchanged.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):  # no JSON, or one that is nested too deeply
        return text
    return f"{text}\0{texts_in(document)}"


def texts_in(document: object) -> str:
    """Return all texts and numbers of a decoded JSON document, keys included, in one text. Pure.

    A NUL separates them: no search finds the end of one and the beginning of the next as one text.
    """
    texts: list[str] = []
    remaining = [document]
    while remaining:
        value = remaining.pop()
        if isinstance(value, Mapping):
            remaining += [part for entry in value.items() for part in entry]
        elif isinstance(value, list | tuple):
            remaining += value
        elif value is not None:
            texts.append(str(value))
    return "\0".join(texts)
