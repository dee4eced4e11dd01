"""Memory: what a group remembers, in its file, summary, plans, decisions, snapshots and notices to itself.

Corrections, forgetting and restoring use the functions of the command `andy context`, in
`context/owner_changes.py`. The memory file is changed by `groups/changes.py`, as on the page of its group.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TypedDict

from starlette.responses import Response

from orchestrator.context import owner_changes, person_memory, person_removal, workflow
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.owner_changes import ChangeContext, CorrectedTask
from orchestrator.context.snapshots import SnapshotContents
from orchestrator.context.workflow import PlanRefused
from orchestrator.domain.values import Folder, Group
from orchestrator.groups import changes, people
from orchestrator.reports import context, notices
from orchestrator.store.database import Tx, announce
from orchestrator.store.groups import groups
from orchestrator.store.groups.changes import GroupPart
from orchestrator.store.people import memory_notes
from orchestrator.store.people import removals as person_removals
from orchestrator.store.people.removals import RemovalState
from orchestrator.web.bodies import whole_number
from orchestrator.web.console.form_tokens import SentForm
from orchestrator.web.console.page import Page, View
from orchestrator.web.console.pages.groups import change_group_text, undo_path

MAX_NOTICES = 100
MAX_PLAN_TASKS = 200
"""Tasks of a plan that are in its form at most."""
_HEADING = re.compile(r"\s*#{1,6}\s")
_BEGINS = re.compile(r"\s*(?:#{1,6}\s|[-*+]\s|\d+[.)]\s|[-*_]{3,}\s*$)")
"""The beginning of a line that does not go on with the one before it."""
_MARK = re.compile(r"^(?:#{1,6}\s+|[-*+]\s+(?:\[[ xX]\]\s+)?|\d+[.)]\s+)")
MEMORY_EVENTS = ("turn.answered", "conversation.restored", "group.configured")
NOTICE_EVENTS = (
    "notice.*",
    "command.notify_self",
    "command.acknowledge_notification",
    "command.cancel_notice",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A paragraph, an entry of a list or a heading of the memory file."""

    place: int
    """The place of its first line in the file, counted from 0."""
    lines: tuple[str, ...]
    """Its lines as they stand in the file."""

    @property
    def is_heading(self) -> bool:
        """Whether this is a heading of the memory file."""
        return _HEADING.match(self.lines[0]) is not None

    @property
    def text(self) -> str:
        """The fact as people read it: on one line, and without the mark of a list or a heading."""
        return _MARK.sub("", " ".join(line.strip() for line in self.lines))


async def show(view: View) -> Response:
    """Show what Andy remembers about the group that the query names."""
    return await _show(view, view.query("group"))


async def _show(
    view: View, folder: str, *, error: str = "", summary: str | None = None, file: str | None = None
) -> Response:
    """Show what Andy remembers about a group; about the first one if `folder` is empty.

    After a refused form, `error` says why, and `summary` or `file` is what was typed.
    """
    async with view.host.reader.reading() as tx:
        all_groups = await groups.every(tx)
        group = await groups.known(tx, folder or (all_groups[0].folder if all_groups else "main"))
        memory = await changes.current(tx, view.host.home.root, group.folder, GroupPart.MEMORY)
        open_notices = await notices.every(tx, group.folder, with_ended=False, limit=MAX_NOTICES)
        notes_on_people = await person_memory.notes_of(tx, group.folder)
        persons = await _persons(tx, group.folder)
    view.error = view.error or error or None
    manager = view.services.contexts.manager(group.folder)
    reading = await asyncio.to_thread(context.read, manager, now_ms=view.now_ms)
    snapshots = await asyncio.to_thread(manager.snapshots)
    stored_summary = reading.contents.context.conversation.running_summary
    return view.render(
        "mind.html",
        error=error,
        group=group.folder,
        choices=view.choices(all_groups, first=""),
        memory=memory,
        facts=facts_in(memory),
        shown=changes.memory_digest(memory),
        typed_memory=memory if file is None else file,
        zone=view.host.zone_of(group),
        stored=context.show(group.folder, reading),
        summary=stored_summary,
        typed=stored_summary if summary is None else summary,
        snapshots=context.snapshot_rows(snapshots),
        noted=list(reversed(notes_on_people)),
        persons=persons,
        notices=open_notices,
        says=view.console.catalogue.has,  # whether there is a text with a key
    )


async def show_snapshot(view: View) -> Response:
    """Show the contents of the snapshot that the address names, before it is restored."""
    group, manager = await _manager(view)
    name = view.path_param("name")
    contents = await asyncio.to_thread(manager.files.snapshots.read, name)
    return view.render(
        "mind_snapshot.html",
        group=group.folder,
        name=name,
        stored=context.show(group.folder, context.ContextReading(contents=contents)),
        says=view.console.catalogue.has,
    )


async def show_plan(view: View) -> Response:
    """Show the plan of a group's agent that the address names, in a form to correct it."""
    return await _show_plan(view)


async def _show_plan(view: View, *, error: str = "", form: SentForm | None = None) -> Response:
    """Show a plan of a group's agent in a form to correct it.

    `form` is one that was refused, and `error` the reason.
    """
    group, manager = await _manager(view)
    contents = await asyncio.to_thread(manager.load, now_ms=view.now_ms)
    plan = workflow.known_plan(contents.workflow, view.path_param("plan"))
    return view.render(
        "mind_plan.html",
        status=422 if error else 200,
        error=error,
        group=group.folder,
        plan=plan,
        tasks=plan.tasks[:MAX_PLAN_TASKS],
        seen=_plan_state(plan),
        typed={name: form.raw(name) for name in form.names} if form else _plan_state(plan),
        states=[(status.value, view.t(f".is_{status.value}")) for status in workflow.PlanStatus],
    )


async def change_memory(view: View, form: SentForm) -> Response:
    """Replace the memory file of a group, which its agent reads before everything else.

    The differences are shown first, to be confirmed; a refused text is shown again.
    """
    folder = view.path_param("folder")

    async def refuse(error: str) -> Response:
        """Show the page again with an error, and with the text that was typed."""
        view.error = error
        return await _show(view, folder, file=form.raw("text"))

    path = f"/mind?group={folder}"
    return await change_group_text(view, form, GroupPart.MEMORY, path=path, refuse=refuse)


async def forget_fact(view: View, form: SentForm) -> Response:
    """Remove one fact from the memory file.

    The form has the text of the fact (`lines`), the place of its first line (`place`), and the digest of the
    file that the page showed (`shown`). If the file has changed since, the fact is found by its text. If the
    text is gone, or occurs several times, nothing is removed, and the page says so.
    """
    folder, now_ms = view.path_param("folder"), view.now_ms
    home, by = view.host.home.root, view.signed_in.session.browser
    try:
        async with view.host.database.transaction() as tx:
            # With -1, the place of no line, the fact is searched by its text.
            place = whole_number(form.text("place"))
            line_index = -1 if place is None else place
            shown = form.text("shown")
            await changes.forget_lines(
                tx, home, folder, form.raw("lines"), line_index, shown=shown, by=by, now_ms=now_ms
            )
            undo = await undo_path(tx, folder, now_ms)
    except changes.GroupChangeRefused:
        return await _show(view, folder, error=view.t(".fact_gone"))
    return view.done(f"/mind?group={folder}", view.t(".forgot_fact"), undo=undo)


async def forget_note(view: View, form: SentForm) -> Response:
    """Delete the note about people whose id is in the form; a text that is no such id changes nothing."""
    number = whole_number(form.text("id").rpartition(".")[2])  # of `person_note.12`
    async with view.host.database.transaction() as tx:
        group = await groups.known(tx, view.path_param("folder"))
        if number is not None:
            await memory_notes.forget(tx, group.folder, number)
            announce(tx, "memory.noted", group=group.folder)
    return _back_to_page(view, ".forgot_note")


async def forget_person(view: View, form: SentForm) -> Response:
    """Request that the person with the address in the form is forgotten.

    The effect is the same as if the person had asked for it. An unknown address is refused on the page.
    """
    folder = view.path_param("folder")
    try:
        async with view.host.database.transaction() as tx:
            await person_removal.request_by_owner(
                tx, folder, form.text("address"), by="console", now_ms=view.now_ms
            )
    except people.UnknownPerson as error:
        return await _show(view, folder, error=str(error))
    return _back_to_page(view, ".forgets_person")


class PersonRow(TypedDict):
    """A person of a group, as the page lists them."""

    address: str
    name: str
    is_leaving: bool
    """Whether the person is about to be forgotten."""


async def _persons(tx: Tx, folder: Folder) -> list[PersonRow]:
    """Return the people of a group as rows of the page, which say who is about to be forgotten."""
    to_be_forgotten = {
        address
        for removal in await person_removals.of_group(tx, folder)
        if removal.state is RemovalState.DUE
        for address in removal.addresses
    }
    return [
        {"address": person.address, "name": person.name, "is_leaving": person.address in to_be_forgotten}
        for person in await people.known_people(tx, folder)
    ]


async def correct_summary(view: View, form: SentForm) -> Response:
    """Replace the summary of a group's conversation by the text in the form.

    A summary that is too long is refused on the page. Raises `ChangedSince` if it has changed meanwhile.
    """

    def change(contents: SnapshotContents) -> SnapshotContents:
        """Return the stored context with the summary of the form.

        Raises `ChangedSince` if it has changed since the form was shown.
        """
        # Checked with what is stored when the change is made: the host writes to it after every turn.
        form.check_unchanged({"summary": contents.context.conversation.running_summary})
        return owner_changes.with_summary(contents, form.raw("summary"))

    try:
        await _change_context(view, lambda manager, now_ms: manager.correct(change, now_ms=now_ms))
    except owner_changes.SummaryTooLong as error:
        return await _show(view, view.path_param("folder"), error=str(error), summary=form.raw("summary"))
    return _back_to_page(view, ".corrected")


async def correct_plan(view: View, form: SentForm) -> Response:
    """Change the title, the objective and the tasks of a plan, and add a task to it, as the form says.

    A refused form is shown again. Raises `ChangedSince` if the plan has changed since the form was shown.
    """
    plan_id = view.path_param("plan")

    def change(contents: SnapshotContents) -> SnapshotContents:
        """Return the stored context with the plan of the form.

        Raises `ChangedSince` if it has changed since the form was shown.
        """
        plan = workflow.known_plan(contents.workflow, plan_id)
        form.check_unchanged(_plan_state(plan))
        # Only tasks that the form has: those beyond `MAX_PLAN_TASKS` stay as they are.
        tasks = {
            task.id: CorrectedTask(title=form.text(f"title-{task.id}"), status=form.text(f"status-{task.id}"))
            for task in plan.tasks
            if form.is_set(f"title-{task.id}")
        }
        return owner_changes.with_plan(
            contents,
            plan_id,
            title=form.text("title"),
            objective=form.text("objective"),
            tasks=tasks,
            new_task=form.text("new_task"),
            now_ms=view.now_ms,
        )

    try:
        await _change_context(view, lambda manager, now_ms: manager.correct(change, now_ms=now_ms))
    except PlanRefused as error:
        return await _show_plan(view, error=str(error), form=form)
    return _back_to_page(view, ".corrected")


async def forget_plan(view: View, form: SentForm) -> Response:
    """Remove a plan of a group's agent. Raises `ChangedSince` if it has changed since the page was shown."""

    def change(contents: SnapshotContents) -> SnapshotContents:
        """Return the stored context without the plan.

        Raises `ChangedSince` if it has changed since the form was shown.
        """
        form.check_unchanged(_plan_state(workflow.known_plan(contents.workflow, view.path_param("plan"))))
        return owner_changes.without_plan(contents, view.path_param("plan"), now_ms=view.now_ms)

    await _change_context(view, lambda manager, now_ms: manager.correct(change, now_ms=now_ms))
    return _back_to_page(view, ".forgot_plan")


async def forget_decision(view: View, form: SentForm) -> Response:
    """Remove the decision in the form from what a group's agent remembers."""

    def change(contents: SnapshotContents) -> SnapshotContents:
        """Return the stored context without the decision of the form."""
        return owner_changes.without_decision(contents, form.raw("decision"))

    await _change_context(view, lambda manager, now_ms: manager.correct(change, now_ms=now_ms))
    return _back_to_page(view, ".forgot_decision")


async def forget(view: View, form: SentForm) -> Response:
    """Delete what is stored of a group's conversation, so that its agent no longer knows of it.

    With `with_plans` in the form, its plans are deleted, too.
    """
    with_plans = form.is_set("with_plans")
    await _change_context(view, lambda manager, now_ms: manager.reset(now_ms=now_ms, with_plans=with_plans))
    return _back_to_page(view, ".forgotten")


async def restore(view: View, _: SentForm) -> Response:
    """Replace the stored context of a group by the snapshot that the address names."""
    name = view.path_param("name")
    await _change_context(view, lambda manager, now_ms: manager.restore(name, now_ms=now_ms))
    return _back_to_page(view, ".restored")


async def pin(view: View, form: SentForm) -> Response:
    """Pin the snapshot that the address names, so that it is never deleted.

    With `off` in the form, unpin it.
    """
    _, manager = await _manager(view)
    name = view.path_param("name")
    await asyncio.to_thread(manager.unpin if form.is_set("off") else manager.pin, name)
    return _back_to_page(view, ".did_unpin" if form.is_set("off") else ".did_pin")


async def cancel_notice(view: View, _: SentForm) -> Response:
    """Cancel a notice that the group's agent has left for itself, so that it is not delivered."""
    async with view.host.database.transaction() as tx:
        await notices.cancel(tx, view.path_param("folder"), view.path_param("id"), now_ms=view.now_ms)
    return _back_to_page(view, ".did_cancel")


async def _manager(view: View) -> tuple[Group, ContextManager]:
    """Return the group that the address names, and the manager of its context. Raises `UnknownGroup`."""
    group = await view.host.reader.read(lambda tx: groups.known(tx, view.path_param("folder")))
    return group, view.services.contexts.manager(group.folder)


async def _change_context(view: View, act: ChangeContext) -> None:
    """Change the stored context of the group that the address names by calling `act(manager, now_ms)`."""
    group, _ = await _manager(view)
    await view.services.contexts.change(group.folder, act)


def _back_to_page(view: View, key: str) -> Response:
    """Redirect to the page of the group that the address names, which shows the text with this key."""
    return view.done(f"/mind?group={view.path_param('folder')}", view.t(key))


def facts_in(memory: str) -> list[Fact]:
    """Return the facts of a memory file, in the order of the file. Pure.

    A fact is a paragraph, a list item or a heading: it ends before the next empty line, heading or list item.
    """
    facts: list[tuple[int, list[str]]] = []
    is_open = False  # whether the next line may belong to the last fact
    for place, line in enumerate(memory.split("\n")):
        begins = _BEGINS.match(line) is not None
        if is_open and line.strip() and not begins:
            facts[-1][1].append(line)
        elif line.strip():
            facts.append((place, [line]))
        is_open = bool(line.strip()) and not _HEADING.match(line)
    # A line such as `---` separates facts and is none itself.
    found = [Fact(place=place, lines=tuple(lines)) for place, lines in facts]
    return [fact for fact in found if any(character.isalnum() for character in fact.text)]


def _plan_state(plan: workflow.Plan) -> dict[str, object]:
    """Return the fields of the form about a plan by name, with the plan's present values. Pure."""
    state: dict[str, object] = {"title": plan.title, "objective": plan.objective}
    for task in plan.tasks[:MAX_PLAN_TASKS]:
        state |= {f"title-{task.id}": task.title, f"status-{task.id}": task.status.value}
    return state


PAGE = Page(
    name="mind",
    order=60,
    shows={
        "/mind": show,
        "/mind/{folder}/plans/{plan}": show_plan,
        "/mind/{folder}/snapshots/{name}": show_snapshot,
    },
    changes={
        "/mind/{folder}/memory": change_memory,
        "/mind/{folder}/memory/forget": forget_fact,
        "/mind/{folder}/notes/forget": forget_note,
        "/mind/{folder}/people/forget": forget_person,
        "/mind/{folder}/summary": correct_summary,
        "/mind/{folder}/plans/{plan}": correct_plan,
        "/mind/{folder}/plans/{plan}/forget": forget_plan,
        "/mind/{folder}/decisions/forget": forget_decision,
        "/mind/{folder}/forget": forget,
        "/mind/{folder}/snapshots/{name}/restore": restore,
        "/mind/{folder}/snapshots/{name}/pin": pin,
        "/mind/{folder}/notices/{id}/cancel": cancel_notice,
    },
    live={
        "memory": MEMORY_EVENTS,
        "people": ("memory.noted", "person.*", *MEMORY_EVENTS),
        "notices": (*NOTICE_EVENTS, *MEMORY_EVENTS),
    },
)
