"""Forget a person in a group: their messages, notes about them and their name, in rows and in files.

A removal is a row until its end is reported. The files are changed first, and the rows last, in one
transaction that also deletes the removal: a host that dies in between can do it all again. Messages and notes
are found by the person's messenger addresses. Other texts are found by their name, but only if the person's
role may have memory forgotten, since people choose their own names, and only if nobody else in the group has
the name.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path

import structlog

from orchestrator.base.clock import Clock
from orchestrator.base.dirfd import inner, opened
from orchestrator.base.event_bus import EventBus
from orchestrator.base.redaction import GONE, redact
from orchestrator.context import removal_texts
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.group_memory import delete_undo_copies, texts_in, with_json_texts
from orchestrator.context.models import Context
from orchestrator.context.recorder import ContextRecorder
from orchestrator.context.workflow import AiSession, Plan, PlanTask, Workflow
from orchestrator.domain.errors import ContextBusy, StoreError
from orchestrator.domain.values import ChatJid, Folder, Group, Message, TurnId, TurnState
from orchestrator.groups import attachments, memory_templates, owner, people, person_names, roles, settings
from orchestrator.groups.roles import Permission
from orchestrator.store import audit
from orchestrator.store.board import knowledge as board_knowledge
from orchestrator.store.board import questions as board_questions
from orchestrator.store.conversation import messages, outbox, polls
from orchestrator.store.database import Database, Tx, announce
from orchestrator.store.groups import groups
from orchestrator.store.notices import notices
from orchestrator.store.notices.notices import NoticeMaker
from orchestrator.store.people import memory_notes
from orchestrator.store.people import records as person_records
from orchestrator.store.people import removals as person_removals
from orchestrator.store.people.memory_notes import MemoryNote
from orchestrator.store.people.removals import PersonRemoval, RemovalState
from orchestrator.store.runs import commands, sessions, turns
from orchestrator.store.undo import turn_effects

log = structlog.get_logger(__name__)

DUE = "person.removal_due"
"""The event that a removal was confirmed and can be carried out."""
ARCHIVE = "conversations"
NAME_REPLACEMENT = "[someone]"
ANSWER_REPLACEMENT = "[forgotten]"
MAX_BY_NAME = 50
"""The largest number of lines removed by name: a name in more lines is probably an ordinary word."""
MAX_ARCHIVED_CHARS = 2_000
"""Characters to which `agent_runner.agents.claude.compaction` cuts a message in an archive."""
MIN_IDENTIFYING_CHARS = 14
"""Characters of the shortest message that identifies its author; anybody may write a shorter one."""
MAX_COMPARED_CHARS = 200
"""Characters of a text that are searched for: replies to agents have only the first 300 of a longer one."""
# One message of a prompt, as an archive has it:
#   <message sender="Mina" time="…"><quoted_message from="Jo">Come?</quoted_message>Yes</message>
# The archive cuts a long prompt: then "…" stands at its end, before the next entry, or the text ends there.
# Names and quotes are escaped, so the next "<" ends the search for the end of their element.
_ARCHIVED = re.compile(
    r'<message sender="(?P<sender>[^"]*)"[^<>]*>'
    r'(?P<quote><quoted_message from="[^"]*">(?P<quoted>[^<]*)</quoted_message>)?'
    r"(?P<body>.*?)(?P<end></message>|…?(?=\n\n\*\*)|\Z)\n?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalFacts:
    """All facts that a removal needs, read from the store."""

    group: Group
    removal: PersonRemoval
    names: tuple[str, ...]
    """All names that the person had in the group."""
    searched_names: tuple[str, ...]
    """The names by which texts of others are removed, too; see `_searched_names`."""
    messages: tuple[Message, ...]
    answers: tuple[Message, ...]
    """Answers to this person alone."""
    turn_ids: tuple[TurnId, ...]
    """Turns in which nobody else asked."""
    notes: tuple[MemoryNote, ...]
    """Notes about the person, or that the person may have said."""
    files_of_others: frozenset[str]
    """Files that came with messages of others too."""

    @property
    def texts(self) -> frozenset[str]:
        """The texts of the person's messages, without surrounding blanks."""
        return frozenset(message.text.strip() for message in self.messages if message.text.strip())

    @property
    def files(self) -> frozenset[str]:
        """The names of the files that came with their messages alone."""
        return _files_of(self.messages) - self.files_of_others

    def has_name(self, text: str) -> bool:
        """Return whether a text has one of the searched names."""
        return any(person_names.is_named(text, name) for name in self.searched_names)


@dataclass(slots=True, kw_only=True)
class RemovalReport:
    """The numbers of removed items, and the places that still have the name."""

    counts: Counter[str] = field(default_factory=Counter)
    lines_by_file: dict[str, int] = field(default_factory=dict)
    """A file's path → the number of its lines that still have the name."""
    named_in_context: int = 0
    """The number of decisions and lines of the summary with the name, if too many to delete by it; else 0."""
    unsearched: list[str] = field(default_factory=list)
    """The paths of notes and archives that were not searched: links, and those too large or too many."""


async def request(
    tx: Tx,
    group: Group,
    addresses: Collection[str],
    *,
    by: str,
    chat_jid: ChatJid | None = None,
    is_sure: bool,
    now_ms: int,
) -> None:
    """Store that the person with these addresses is to be forgotten in a group; a later sweep does it.

    Unless `is_sure`, the person must confirm it first. An earlier request for them is replaced. `by` says who
    requests it: the person's own address, "console" or "command line". `chat_jid` is the chat that is
    notified once it is done; None for no chat.
    """
    removal = PersonRemoval(
        folder=group.folder,
        addresses=frozenset(addresses),
        chat_jid=chat_jid,
        by=by,
        state=RemovalState.DUE if is_sure else RemovalState.ASKED,
        at_ms=now_ms,
    )
    await person_removals.put(tx, removal)


async def request_by_owner(tx: Tx, folder: str, who: str, *, by: str, now_ms: int) -> people.GroupPerson:
    """Store that a person is to be forgotten in a group, as the owner requests; return the person.

    It needs no confirmation. `who` is the person's address or name; `by` is "console" or "command line".

    Raises:
        UnknownGroup: there is no such group.
        UnknownPerson, AmbiguousPerson: it is not clear who is meant.
    """
    group = await groups.known(tx, folder)
    person = people.named(await people.known_people(tx, folder), who)
    await request(tx, group, person.addresses, by=by, is_sure=True, now_ms=now_ms)
    announce(tx, DUE, group=group.folder)
    return person


class PersonRemovals:
    """Carries out the confirmed removals. Each host has one instance."""

    def __init__(
        self,
        database: Database,
        recorder: ContextRecorder,
        *,
        home: Path,
        clock: Clock,
        bus: EventBus,
        on_notified: Callable[[], None],
    ) -> None:
        """`recorder` updates the groups' stored conversations; `home` is Andy's home directory.

        `on_notified` is called after a message was put into the outbox.
        """
        self._database = database
        self._recorder = recorder
        self._home = home
        self._clock = clock
        self._bus = bus
        self._on_notified = on_notified

    async def sweep(self) -> None:
        """Carry out the confirmed removals of people.

        A removal in a group that is busy is left for the next call. So is one that fails, for example because
        files cannot be written; then the chat that waits for it and the owner are notified once.

        Raises:
            ExceptionGroup: removals failed for an unexpected reason; the others were tried.
            StoreError: the database failed; the remaining removals were not tried.
        """
        failures: list[Exception] = []
        for removal in await self._database.read(person_removals.due):
            try:
                await self._carry_out(removal)
            except ContextBusy as error:
                log.warning("person.not_forgotten_yet", group=removal.folder, reason=str(error))
            except OSError as error:
                log.warning("person.not_forgotten_yet", group=removal.folder, reason=str(error))
                await self._report_delay(removal, reason=error.strerror or type(error).__name__)
            except StoreError:  # then no other removal can be recorded, either
                raise
            except Exception as error:
                log.exception("person.not_forgotten", group=removal.folder)
                failures.append(error)
                await self._report_delay(removal, reason=type(error).__name__)
        if failures:
            raise ExceptionGroup("People could not be forgotten.", failures)

    async def _carry_out(self, removal: PersonRemoval) -> None:
        """Forget a person in all files and rows of a group. A removal in a group that is gone is dropped.

        While a turn runs in the group, or one with a question of the person waits, nothing changes, and a
        later sweep tries again.

        Raises:
            ContextBusy, OSError: a file cannot be written now; a later call starts from the beginning.
        """
        if await self._database.read(lambda tx: _must_wait(tx, removal)):
            return
        await self._recorder.catch_up(removal.folder)
        async with self._database.reading() as tx:
            group = await groups.by_folder(tx, removal.folder)
            facts = await _read_facts(tx, group, removal) if group is not None else None
        if facts is None:
            await self._database.write(lambda tx: person_removals.finish(tx, removal))
            return
        manager = self._recorder.manager(removal.folder)
        report = await asyncio.to_thread(
            _forget_files, self._home, manager, facts, now_ms=self._clock.now_ms()
        )
        # `_forget_rows` returns False if a turn has started meanwhile.
        if not await self._database.write(lambda tx: self._forget_rows(tx, facts, report)):
            return
        self._on_notified()
        # The person is forgotten by now. The context lacks only the latest messages, and gets them later.
        try:
            await self._recorder.catch_up(removal.folder)
        except StoreError:
            raise
        except Exception:
            log.exception("person.context_not_updated", group=removal.folder)
        log.info("person.forgotten", group=removal.folder, messages=report.counts["message"])
        self._bus.publish("person.forgotten", group=removal.folder)
        self._bus.publish("message.amended", group=removal.folder)
        self._bus.publish("dashboard.changed", group=removal.folder)

    async def _report_delay(self, removal: PersonRemoval, *, reason: str) -> None:
        """Notify the chat that waits for a removal, and the owner, that it has failed and is tried again.

        The chat gets one message a removal, however often it fails, and the owner one for each different
        `reason`.
        """
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as tx:
            if removal.chat_jid is not None:
                await outbox.add(
                    tx,
                    chat_jid=removal.chat_jid,
                    folder=removal.folder,
                    text=removal_texts.delayed(),
                    dedupe_key=f"person-not-forgotten:{removal.id}",
                    now_ms=now_ms,
                )
            # Sent again only if the text, which has the reason in it, is another.
            await owner.notify(
                tx,
                removal_texts.delayed_for_owner(removal.folder, reason),
                about=f"person-not-forgotten:{removal.id}",
                now_ms=now_ms,
            )
        self._on_notified()

    async def _forget_rows(self, tx: Tx, facts: RemovalFacts, report: RemovalReport) -> bool:
        """Remove a person from all rows of a group, and report the end of the removal to its chat.

        Return False, without a change, if a turn of the group runs, or waits with a question of the person.
        The agent's session, which contains the person's words, is dropped, and so are the records by which
        the group's turns could be undone. Removed rows are added to the counts of `report`, and the counts
        are audited.
        """
        removal, folder, now_ms = facts.removal, facts.group.folder, self._clock.now_ms()
        if await _must_wait(tx, removal):
            # The turn's prompt may have the texts, and its agent may write them to files: those are searched
            # again later.
            return False
        await _forget_messages(tx, facts)
        await _forget_notes(tx, facts, report.counts)
        await _forget_board(tx, facts, report.counts, now_ms=now_ms)
        is_about_person = _search_for_person(facts)
        await commands.forget(tx, folder, is_about_person)
        await person_records.forget_recorded(tx, folder, is_about_person)
        await turn_effects.forget(tx, folder)
        await sessions.lose(tx, folder)
        await sessions.request_new_session(tx, folder)
        report.counts["message"] += sum(bool(message.text) for message in facts.messages)
        report.counts["answer"] += len(facts.answers)
        detail = {"forgotten": {kind: count for kind, count in report.counts.items() if count}}
        event = audit.AuditEvent(at_ms=now_ms, kind="person.forgotten", folder=folder, detail=detail)
        await audit.append(tx, event)
        if removal.chat_jid is not None:
            await outbox.add(
                tx,
                chat_jid=removal.chat_jid,
                folder=folder,
                text=removal_texts.done(
                    report.counts,
                    report.lines_by_file,
                    report.unsearched,
                    named_in_context=report.named_in_context,
                ),
                dedupe_key=f"person-forgotten:{removal.id}",
                now_ms=now_ms,
            )
        await person_removals.finish(tx, removal)
        return True


async def _must_wait(tx: Tx, removal: PersonRemoval) -> bool:
    """Return whether a removal must wait for a turn of its group.

    It must while a turn runs, and while a queued turn has a question of the person.
    """
    for turn in await turns.unsettled_of(tx, removal.folder):
        if turn.state is TurnState.RUNNING:
            return True
        if removal.addresses & set(await person_records.askers_of(tx, turn.id)):
            return True
    return False


async def _read_facts(tx: Tx, group: Group, removal: PersonRemoval) -> RemovalFacts:
    """Read from the database what the removal of a person needs to know; nothing is changed.

    Messages after `removal.last_seq`, which came later than the request, are not included and stay.
    """
    folder, last_seq = group.folder, removal.last_seq
    addresses: set[str] = set(removal.addresses)
    for address in removal.addresses:
        addresses |= await people.addresses_of(tx, address)
    names = tuple(await person_records.names_of(tx, folder, addresses))
    messages_of_person = await person_records.messages_of(tx, folder, addresses, last_seq=last_seq)
    return RemovalFacts(
        group=group,
        removal=removal,
        names=names,
        searched_names=await _searched_names(tx, group, removal, addresses, names),
        messages=tuple(messages_of_person),
        answers=tuple(await person_records.answers_to(tx, folder, addresses, last_seq=last_seq)),
        turn_ids=tuple(await person_records.turns_of(tx, folder, addresses, last_seq=last_seq)),
        notes=tuple(each for each in await memory_notes.of_group(tx, folder) if each.belongs_to(addresses)),
        files_of_others=frozenset(await person_records.files_of_others(tx, folder, addresses)),
    )


async def _searched_names(
    tx: Tx, group: Group, removal: PersonRemoval, addresses: Collection[str], names: Iterable[str]
) -> tuple[str, ...]:
    """Return those of the person's names by which texts of others may be removed.

    Empty if the person requests the removal without the right to change memory: they could choose any name.
    Names that others in the group have, also as a first name, or that are too short to be searched, are left
    out.
    """
    if removal.by in addresses:
        role = await people.role_in(tx, group, removal.by, is_from_me=False)
        if Permission.MEMORY not in roles.rights_of(role, settings.of(group)).may:
            return ()
    others = {
        person_names.folded(name)
        for person in await people.known_people(tx, group.folder)
        if not person.addresses & set(addresses)
        for name in (person.name, person.name.split(" ")[0])
    }
    return tuple(
        name for name in names if person_names.is_searchable(name) and person_names.folded(name) not in others
    )


async def _forget_messages(tx: Tx, facts: RemovalFacts) -> None:
    """Delete the person's names, and the texts of their messages and of answers to this person alone.

    Their votes in polls, their names in the answers to questions of the dashboard, and the summaries of tool
    calls in turns in which nobody else asked are deleted, too.
    """
    folder = facts.group.folder
    # The turns are noted, so that the stored context, made of the same messages, loses these texts later.
    for message in facts.messages:
        if message.turn_id is not None:
            await sessions.note_deletion(tx, folder, TurnId(message.turn_id), message.seq)
    for answer in facts.answers:
        await messages.blank(tx, answer)
        turn_id = await outbox.blank(tx, answer.id)
        if turn_id is not None:
            await sessions.note_deletion(tx, folder, turn_id, answer.seq)
    addresses = {message.sender for message in facts.messages} | facts.removal.addresses
    seqs = [message.seq for message in facts.messages]
    await person_records.forget_names_and_texts(tx, folder, addresses, seqs)
    await person_records.forget_calls(tx, facts.turn_ids)
    await polls.forget_person(tx, folder, addresses)
    await board_questions.forget_names(tx, folder, facts.names)


async def _forget_notes(tx: Tx, facts: RemovalFacts, counts: Counter[str]) -> None:
    """Delete the notes about the person, and notes about nobody that only this person said.

    Any other note that the person may have said stays, and only they are removed from those who may have said
    it. Deleted notes are added to `counts`.
    """
    addresses = {each.sender for each in facts.messages} | facts.removal.addresses
    for note in facts.notes:
        # About the person, or about nobody and said by this person alone.
        if note.is_forgotten_with(addresses):
            await memory_notes.forget(tx, note.folder, note.id)
            counts["note"] += 1
        else:
            remaining = [each for each in note.said_by if each not in addresses]
            await memory_notes.set_said_by(tx, note.id, remaining)


async def _forget_board(tx: Tx, facts: RemovalFacts, counts: Counter[str], *, now_ms: int) -> None:
    """Remove insights, imported people and the agent's notices to itself that have the person's name.

    Imported people are records from imported files. A notice that has the text of one of the person's
    messages goes, too. All that is removed is added to `counts` as insights.
    """
    folder = facts.group.folder
    insights = await board_knowledge.insights(tx, folder)
    imported = await board_knowledge.people(tx, folder)
    texts_by_row = [(row.id, f"{row.title} {row.content}") for row in insights]
    texts_by_row += [(row.id, texts_in(list(row.body.values()))) for row in imported]
    for row_id, text in texts_by_row:
        if facts.has_name(text):
            await board_knowledge.forget(tx, folder, row_id)
            counts["insight"] += 1
    known_texts = _identifying_texts(facts)
    own = await notices.of_group(tx, folder, maker=NoticeMaker.SELF, with_ended=True, limit=None)
    for notice in own:
        # The keys are the host's own words: nobody called "Message" is meant by them.
        text = texts_in(list(notice.payload.values()))
        if facts.has_name(text) or _contains_any(text, known_texts):
            await notices.forget(tx, folder, notice.id, now_ms=now_ms)
            counts["insight"] += 1


def _search_for_person(facts: RemovalFacts) -> Callable[[str], bool]:
    """Return a function that returns whether a text, which may be JSON, contains anything of the person.

    That is one of the searched names, one of their addresses, or the text of a note about them or of one of
    their messages.
    """
    addresses = facts.removal.addresses | {message.sender for message in facts.messages}
    # Prepared once: a group has many stored replies, and a person many messages.
    known_texts = _identifying_texts(facts) | {_comparable(note.text) for note in facts.notes}
    # Most recorded texts are shorter than all known ones, and so contain none: they need not be compared.
    shortest = min(map(len, known_texts), default=0)

    def is_about_person(text: str) -> bool:
        """Return whether a text contains a name, an address or one of the known texts of the person."""
        text = with_json_texts(text)
        return (
            facts.has_name(text)
            or any(address in text for address in addresses)
            or (len(text) >= shortest and _contains_any(text, known_texts))
        )

    return is_about_person


def _identifying_texts(facts: RemovalFacts) -> frozenset[str]:
    """Return the texts of the person's messages by which other texts are found.

    Each is cut to the form that `_comparable` returns. Each is there in several forms: with and without the
    name of its file, and with marks in place of secrets, as replies have it. Forms of less than
    `MIN_IDENTIFYING_CHARS`, such as "ok", are left out, not counting the marks.
    """
    texts_without_files = {each.text.replace(each.file or "", "").strip() for each in facts.messages}
    texts = texts_without_files | facts.texts
    forms = {form for text in texts for form in (text, redact(text))}
    return frozenset(
        _comparable(form) for form in forms if len(form.replace(GONE, "").strip()) >= MIN_IDENTIFYING_CHARS
    )


def _contains_any(text: str, known_texts: Collection[str]) -> bool:
    """Return whether a text contains one of `known_texts`, which are as `_comparable` returns them."""
    line = _on_one_line(text)
    return any(known_text in line for known_text in known_texts)


def _comparable(text: str) -> str:
    """Return the first `MAX_COMPARED_CHARS` of a text on one line."""
    return _on_one_line(text)[:MAX_COMPARED_CHARS]


def _on_one_line(text: str) -> str:
    """Return a text with one blank in place of each line break, tab or row of blanks."""
    # Lines of replies have a message in this form, and notices are stored without tabs.
    return " ".join(text.split())


# Files


def _forget_files(home: Path, manager: ContextManager, facts: RemovalFacts, *, now_ms: int) -> RemovalReport:
    """Remove a person from the files of a group, and return what was removed. Blocks.

    These are the stored context, archives of conversations, and files that came with messages. All copies of
    the group's files for undoing turns are deleted. Notes that the agent wrote are not changed: the report
    counts their lines with the person's name. A second call changes nothing.

    Raises:
        ContextBusy, OSError: a file cannot be written or deleted now.
    """
    report, folder = RemovalReport(), facts.group.folder
    _forget_in_context(manager, facts, report, now_ms=now_ms)
    archives = f"{folder}/{ARCHIVE}"
    for name, text in _searchable_notes(home, archives, f"{ARCHIVE}/", report.unsearched):
        remaining = without_person(text, facts)
        if remaining != text:
            memory_templates.write_memory(home, archives, remaining, name=name)
            report.counts["archive"] += 1
        report.lines_by_file |= _lines_with_name(
            f"{ARCHIVE}/{memory_templates.shown_name(name)}", remaining, facts
        )
    # Files that the agent wrote freely are only listed; the report says how their lines can be removed.
    for name, text in _searchable_notes(home, folder, "", report.unsearched):
        report.lines_by_file |= _lines_with_name(memory_templates.shown_name(name), text, facts)
    report.counts["file"] += _delete_attachments(home, folder, facts.files)
    # The undo copies of the files contain the texts too.
    delete_undo_copies(home, folder)
    return report


def _forget_in_context(
    manager: ContextManager, facts: RemovalFacts, report: RemovalReport, *, now_ms: int
) -> None:
    """Remove a person's name from a group's stored context and its snapshots. Blocks.

    Decisions and lines of the summary with the name are removed, and both counted as "decision", as the
    report has one number for the two. In plans, the name is replaced; `ai_session`, the workflow's copy of
    other fields, is emptied if the workflow has the name. If more than `MAX_BY_NAME` decisions and lines of
    the context have the name, nothing changes, and `report.named_in_context` has their number.
    """
    if not facts.searched_names:
        return
    stored = manager.load(now_ms=now_ms)
    lines = [*stored.context.memory.last_decisions, *stored.context.conversation.running_summary.splitlines()]
    named_count = sum(facts.has_name(line) for line in lines)
    # A name in so many lines is an ordinary word: somebody called "the" could empty a memory.
    if named_count > MAX_BY_NAME:
        report.named_in_context = named_count
        return
    # The context and its snapshots have many lines in common: each counts once.
    removed_decisions: set[str] = set()
    removed_lines: set[str] = set()

    def without_name(context: Context) -> Context:
        """Return a context without decisions and summary lines that have the name; note what is removed."""
        memory, conversation = context.memory, context.conversation
        lines = conversation.running_summary.splitlines()
        removed_decisions.update(filter(facts.has_name, memory.last_decisions))
        removed_lines.update(filter(facts.has_name, lines))
        decisions = tuple(each for each in memory.last_decisions if each not in removed_decisions)
        summary = "\n".join(each for each in lines if each not in removed_lines)
        if decisions == memory.last_decisions and summary == conversation.running_summary:
            return context
        return context.model_copy(
            update={
                "memory": memory.model_copy(update={"last_decisions": decisions}),
                "conversation": conversation.model_copy(update={"running_summary": summary}),
            }
        )

    def workflow_without_name(workflow: Workflow) -> Workflow:
        """Return the workflow with "[someone]" in place of the name in its plans, and an empty `ai_session`.

        The same object is returned if neither has the name.
        """
        plans = tuple(_plan_without_name(plan, facts) for plan in workflow.plans)
        session = workflow.metadata.ai_session
        is_in_session = any(map(facts.has_name, (*session.key_decisions, session.last_context)))
        if plans == workflow.plans and not is_in_session:
            return workflow
        # `ai_session` has copies of other fields: the next write fills it again.
        metadata = workflow.metadata.model_copy(update={"ai_session": AiSession()})
        return workflow.model_copy(update={"plans": plans, "metadata": metadata})

    with manager.files.changing(now_ms) as draft:
        draft.workflow = workflow_without_name(draft.workflow)
        draft.context = without_name(draft.context)
        manager.files.snapshots.rewrite(without_name, workflow_without_name)
    report.counts["decision"] += len(removed_decisions) + len(removed_lines)


def _plan_without_name(plan: Plan, facts: RemovalFacts) -> Plan:
    """Return a plan with "[someone]" in place of the name; the plan stays, as it may serve several people."""
    background = plan.context
    return plan.model_copy(
        update={
            **_texts_without_name(facts, {"title": plan.title, "objective": plan.objective}),
            "context": background.model_copy(
                update={
                    **_texts_without_name(facts, {"background": background.background}),
                    "constraints": _each_without_name(facts, background.constraints),
                    "references": _each_without_name(facts, background.references),
                }
            ),
            "tasks": tuple(_task_without_name(task, facts) for task in plan.tasks),
        }
    )


def _task_without_name(task: PlanTask, facts: RemovalFacts) -> PlanTask:
    """Return a task with "[someone]" in place of the name."""
    texts = _texts_without_name(facts, {"title": task.title, "description": task.description})
    return task.model_copy(update={**texts, "outputs": _each_without_name(facts, task.outputs)})


def _texts_without_name(facts: RemovalFacts, texts: Mapping[str, str]) -> dict[str, str]:
    """Return {field: text} with "[someone]" in place of the person's name in each text."""
    return {
        field: person_names.without(text, facts.searched_names, word=NAME_REPLACEMENT)
        for field, text in texts.items()
    }


def _each_without_name(facts: RemovalFacts, texts: Iterable[str]) -> tuple[str, ...]:
    """Return texts with "[someone]" in place of the person's name."""
    return tuple(person_names.without(text, facts.searched_names, word=NAME_REPLACEMENT) for text in texts)


def _searchable_notes(
    home: Path, place: str, prefix: str, unsearched: list[str]
) -> Iterator[tuple[str, str]]:
    """Yield the file name and the text of each note or archive in the folder `place`.

    `place` is a group's folder, or its folder of archives. Only one text at a time is in memory. The paths of
    those that cannot be searched, `prefix` and the name, are added to `unsearched`.
    """
    names = memory_templates.own_texts(home, place)
    unsearched += [f"{prefix}{name}" for name in names.others]
    for name in names.searchable:
        text = memory_templates.whole_text(home, place, name)
        if text is None:
            unsearched.append(f"{prefix}{memory_templates.shown_name(name)}")
        else:
            yield name, text


def without_person(text: str, facts: RemovalFacts) -> str:
    """Return an archive of a conversation without a person's messages, and without answers to this person.

    A message is the person's if it has both one of their names and one of their texts. Quotes of their
    messages by others are removed, too. Answers to nobody but the person are replaced by
    `ANSWER_REPLACEMENT`; a short one only where it is a whole entry. Pure.
    """
    names = {person_names.folded(each) for each in facts.names}
    texts = facts.texts

    def is_theirs(body: str, *, is_cut: bool) -> bool:
        """Return whether a text is one of the person's messages.

        Of a text that the archive cut (`is_cut`), the start of a message suffices.
        """
        # An archive writes `&amp;` for `&`, and ends a text that it cut with "…".
        body = unescape(body).strip().removesuffix("…")
        return body in texts or (is_cut and body != "" and any(each.startswith(body) for each in texts))

    def without_theirs(match: re.Match[str]) -> str:
        """Return the text in place of an archived message: none if the message is the person's.

        Any other message stays, without a quote of a message of the person.
        """
        # The name alone proves nothing: others may have the same one. So the text has to be theirs, too.
        is_by_them = person_names.folded(unescape(match["sender"])) in names
        is_cut = match["end"] != "</message>"  # the archive ends a long prompt within a message
        if is_by_them and is_theirs(match["body"], is_cut=is_cut):
            return ""
        # A quote goes by its text alone: rather too many quotes are removed than too few.
        if match["quote"] and is_theirs(match["quoted"], is_cut=False):
            return match[0].replace(match["quote"], "")
        return match[0]

    text = _ARCHIVED.sub(without_theirs, text)
    for answer in facts.answers:
        # An answer follows the assistant's name, as in `**Andy**: Yes.`; the archive cuts a long one.
        if archived_answer := answer.text.strip()[:MAX_ARCHIVED_CHARS]:
            entry, new_entry = f"**: {archived_answer}", f"**: {ANSWER_REPLACEMENT}"
            if len(archived_answer) >= MIN_IDENTIFYING_CHARS:
                # It may have been sent in parts, of which the first is only the beginning of the entry.
                text = text.replace(entry, new_entry)
            elif entry in text:
                # An answer to somebody else may begin with so few words, so they have to be the whole entry.
                text = re.sub(rf"{re.escape(entry)}(?=\n\n\*\*|\s*\Z)", new_entry, text)
    return text


def _lines_with_name(path: str, text: str, facts: RemovalFacts) -> dict[str, int]:
    """Return {path: number of lines of `text` that have one of the person's names}; empty if none has."""
    named_lines = [
        line
        for line in memory_templates.legible(text).splitlines()
        if any(person_names.is_named(line, name) for name in facts.names)
    ]
    return {path: len(named_lines)} if named_lines else {}


def _delete_attachments(home: Path, folder: Folder, names: Iterable[str]) -> int:
    """Delete the files of these names that came with messages of a group; return how many were there.

    No link is followed. Nothing is deleted if there is no such directory.

    Raises:
        OSError: the directory cannot be entered now, or a file cannot be deleted.
    """
    deleted = 0
    with ExitStack() as stack:
        try:
            # Each directory is opened within the one before it, so that no link is followed.
            folder_descriptor = stack.enter_context(opened(home / "groups"))
            for part in (folder, attachments.FOLDER):
                folder_descriptor = stack.enter_context(inner(folder_descriptor, part))
        except OSError as error:
            # Missing, or a link in its place: then no file that came with a message is there.
            if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                return 0
            raise
        for name in names:
            with suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(name, dir_fd=folder_descriptor)
                deleted += 1
    return deleted


def _files_of(messages_of_person: Iterable[Message]) -> frozenset[str]:
    """Return the names of the files that came with messages."""
    return frozenset(
        name for message in messages_of_person for name in person_records.files_in(message.file or "")
    )
