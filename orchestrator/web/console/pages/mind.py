"""Memory: what a group remembers: its file, summary, plans, decisions, snapshots and notices to itself.

What is corrected, forgotten or restored here goes the way of `andy context`: `context/owner_changes.py`. The
memory file is changed as on the page of its group: `groups/changes.py`.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace
from typing import Any

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
from orchestrator.web.console.forms import SentForm
from orchestrator.web.console.page import Page, View
from orchestrator.web.console.pages.groups import change_part, undo_path

MAX_NOTICES = 100
MAX_DIGITS = 18
MAX_PLAN_TASKS = 200
"""So many tasks of a plan are in its form."""
_HEADING = re.compile(r"\s*#{1,6}\s")
_BEGINS = re.compile(r"\s*(?:#{1,6}\s|[-*+]\s|\d+[.)]\s|[-*_]{3,}\s*$)")
"""The beginning of a line that does not go on with the one before it."""
_MARK = re.compile(r"^(?:#{1,6}\s+|[-*+]\s+(?:\[[ xX]\]\s+)?|\d+[.)]\s+)")
TOLD = ("turn.answered", "conversation.restored", "group.configured")
NOTICED = ("notice.*", "command.notify_self", "command.acknowledge_notification", "command.cancel_notice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A paragraph, an entry of a list or a heading of the memory file."""

    place: int
    """The place of its first line in the file, counted from 0."""
    lines: tuple[str, ...]
    """Its lines as they stand in the file."""

    @property
    def is_heading(self) -> bool:
        return _HEADING.match(self.lines[0]) is not None

    @property
    def text(self) -> str:
        """Return it as people read it: without the mark of a list or a heading, and without line ends."""
        return _MARK.sub("", " ".join(one.strip() for one in self.lines))


async def show(view: View) -> Response:
    return await _show(view, view.query("group"))


async def _show(
    view: View, folder: str, *, error: str = "", summary: str | None = None, file: str | None = None
) -> Response:
    """Show what is stored about one group; about the first one if none is named.

    `summary` and `file` are what was typed and refused.
    """
    async with view.host.reader.reading() as tx:
        every = await groups.every(tx)
        group = await groups.known(tx, folder or (every[0].folder if every else "main"))
        memory = await changes.current(tx, view.host.home.root, group.folder, GroupPart.MEMORY)
        noticed = await notices.every(tx, group.folder, with_over=False, limit=MAX_NOTICES)
        noted = await person_memory.notes_of(tx, group.folder)
        persons = await _persons(tx, group.folder)
    view.error = view.error or error or None
    manager = view.services.contexts.manager(group.folder)
    contents, mended, snapshots = await asyncio.to_thread(_stored, manager, view.now_ms)
    now = contents.context.conversation.running_summary
    return view.render(
        "mind.html",
        error=error,
        group=group.folder,
        choices=view.choices(every, first=""),
        memory=memory,
        facts=facts(memory),
        shown=changes.memory_digest(memory),
        typed_memory=memory if file is None else file,
        zone=view.host.zone_of(group),
        stored=context.show(group.folder, contents, mended),
        summary=now,
        typed=now if summary is None else summary,
        snapshots=snapshots,
        noted=list(reversed(noted)),
        persons=persons,
        notices=noticed,
        says=view.console.catalogue.has,
    )


async def show_snapshot(view: View) -> Response:
    """Show what a snapshot holds, before it is restored."""
    group, manager = await _manager(view)
    name = view.given("name")
    contents = await asyncio.to_thread(manager.files.snapshots.read, name)
    return view.render(
        "mind_snapshot.html",
        group=group.folder,
        name=name,
        stored=context.show(group.folder, contents, []),
        says=view.console.catalogue.has,
    )


async def show_plan(view: View) -> Response:
    return await _show_plan(view)


async def _show_plan(view: View, *, error: str = "", form: SentForm | None = None) -> Response:
    """Show a plan to be corrected; `form` has what was typed and refused."""
    group, manager = await _manager(view)
    contents = await asyncio.to_thread(manager.load, now_ms=view.now_ms)
    plan = workflow.known_plan(contents.workflow, view.given("plan"))
    return view.render(
        "mind_plan.html",
        status=422 if error else 200,
        error=error,
        group=group.folder,
        plan=plan,
        tasks=plan.tasks[:MAX_PLAN_TASKS],
        seen=_seen(plan),
        typed={name: form.raw(name) for name in form.names} if form else _seen(plan),
        states=[(one.value, view.t(f".is_{one.value}")) for one in workflow.PlanStatus],
    )


async def change_memory(view: View, form: SentForm) -> Response:
    """Change what the group's agent reads before everything else."""
    folder = view.given("folder")

    async def refuse(error: str) -> Response:
        view.error = error
        return await _show(view, folder, file=form.raw("text"))

    path = f"/mind?group={folder}"
    return await change_part(view, form, GroupPart.MEMORY, path=path, refuse=refuse)


async def forget_fact(view: View, form: SentForm) -> Response:
    """Take one fact out of the memory file."""
    folder, place, now_ms = view.given("folder"), form.text("place"), view.now_ms
    home, by = view.host.home.root, view.signed_in.session.browser
    try:
        async with view.host.database.transaction() as tx:
            at = int(place[:6]) if place.isascii() and place.isdigit() else -1
            shown = form.text("shown")
            await changes.forget_lines(
                tx, home, folder, form.raw("lines"), at, shown=shown, by=by, now_ms=now_ms
            )
            undo = await undo_path(tx, folder, now_ms)
    except changes.GroupChangeRefused:
        return await _show(view, folder, error=view.t(".fact_gone"))
    return view.done(f"/mind?group={folder}", view.t(".forgot_fact"), undo=undo)


async def forget_note(view: View, form: SentForm) -> Response:
    """Forget one note of people."""
    number = form.text("id").rpartition(".")[2]
    async with view.host.database.transaction() as tx:
        group = await groups.known(tx, view.given("folder"))
        if number.isascii() and number.isdigit() and len(number) < MAX_DIGITS:
            await memory_notes.forget(tx, group.folder, int(number))
            announce(tx, "memory.noted", group=group.folder)
    return _done(view, ".forgot_note")


async def forget_person(view: View, form: SentForm) -> Response:
    """Request that a person be forgotten, by their address, as if they had asked for it themselves."""
    folder = view.given("folder")
    try:
        async with view.host.database.transaction() as tx:
            await person_removal.request_by_owner(
                tx, folder, form.text("address"), by="console", now_ms=view.now_ms
            )
    except people.UnknownPerson as error:
        return await _show(view, folder, error=str(error))
    return _done(view, ".forgets_person")


async def _persons(tx: Tx, folder: Folder) -> list[dict[str, Any]]:
    """Return the people of a group, and whether they are to be forgotten."""
    leaving = {
        address
        for one in await person_removals.of_group(tx, folder)
        if one.state is RemovalState.DUE
        for address in one.addresses
    }
    return [
        {"address": one.address, "name": one.name, "is_leaving": one.address in leaving}
        for one in await people.known_people(tx, folder)
    ]


async def correct_summary(view: View, form: SentForm) -> Response:
    def change(contents: SnapshotContents) -> SnapshotContents:
        # Checked with what is stored when the change is made: the host writes to it after every turn.
        form.check_unchanged({"summary": contents.context.conversation.running_summary})
        return owner_changes.with_summary(contents, form.raw("summary"))

    try:
        await _change(view, lambda manager, now_ms: manager.correct(change, now_ms=now_ms))
    except owner_changes.SummaryTooLong as error:
        return await _show(view, view.given("folder"), error=str(error), summary=form.raw("summary"))
    return _done(view, ".corrected")


async def correct_plan(view: View, form: SentForm) -> Response:
    plan_id = view.given("plan")

    def change(contents: SnapshotContents) -> SnapshotContents:
        plan = workflow.known_plan(contents.workflow, plan_id)
        form.check_unchanged(_seen(plan))
        # Only tasks that the form has: those beyond `MAX_PLAN_TASKS` stay as they are.
        tasks = {
            one.id: CorrectedTask(title=form.text(f"title-{one.id}"), status=form.text(f"status-{one.id}"))
            for one in plan.tasks
            if form.is_set(f"title-{one.id}")
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
        await _change(view, lambda manager, now_ms: manager.correct(change, now_ms=now_ms))
    except PlanRefused as error:
        return await _show_plan(view, error=str(error), form=form)
    return _done(view, ".corrected")


async def forget_plan(view: View, form: SentForm) -> Response:
    def change(contents: SnapshotContents) -> SnapshotContents:
        form.check_unchanged(_seen(workflow.known_plan(contents.workflow, view.given("plan"))))
        return owner_changes.without_plan(contents, view.given("plan"), now_ms=view.now_ms)

    await _change(view, lambda manager, now_ms: manager.correct(change, now_ms=now_ms))
    return _done(view, ".forgot_plan")


async def forget_decision(view: View, form: SentForm) -> Response:
    def change(contents: SnapshotContents) -> SnapshotContents:
        return owner_changes.without_decision(contents, form.raw("decision"))

    await _change(view, lambda manager, now_ms: manager.correct(change, now_ms=now_ms))
    return _done(view, ".forgot_decision")


async def forget(view: View, form: SentForm) -> Response:
    """Forget what is stored of a group's conversation; its agent begins anew with nothing."""
    with_plans = form.is_set("with_plans")
    await _change(view, lambda manager, now_ms: manager.reset(now_ms=now_ms, with_plans=with_plans))
    return _done(view, ".forgotten")


async def restore(view: View, _: SentForm) -> Response:
    """Replace the stored context with a snapshot."""
    name = view.given("name")
    await _change(view, lambda manager, now_ms: manager.restore(name, now_ms=now_ms))
    return _done(view, ".restored")


async def pin(view: View, form: SentForm) -> Response:
    """Keep a snapshot for good, or no longer than others where it was kept so."""
    _, manager = await _manager(view)
    name = view.given("name")
    await asyncio.to_thread(manager.unpin if form.is_set("off") else manager.pin, name)
    return _done(view, ".did_unpin" if form.is_set("off") else ".did_pin")


async def cancel_notice(view: View, _: SentForm) -> Response:
    async with view.host.database.transaction() as tx:
        await notices.cancel(tx, view.given("folder"), view.given("id"), now_ms=view.now_ms)
    return _done(view, ".did_cancel")


async def _manager(view: View) -> tuple[Group, ContextManager]:
    """Return the group that the address names, and its context. Raises `UnknownGroup`."""
    group = await view.host.reader.read(lambda tx: groups.known(tx, view.given("folder")))
    return group, view.services.contexts.manager(group.folder)


async def _change(view: View, act: ChangeContext) -> None:
    group, _ = await _manager(view)
    await view.services.contexts.change(group.folder, act)


def _done(view: View, key: str) -> Response:
    return view.done(f"/mind?group={view.given('folder')}", view.t(key))


def facts(memory: str) -> list[Fact]:
    """Return the facts of a memory file, in the order of the file. Pure."""
    found: list[Fact] = []
    is_open = False
    for place, line in enumerate(memory.split("\n")):
        begins = _BEGINS.match(line) is not None
        if is_open and line.strip() and not begins:
            found[-1] = replace(found[-1], lines=(*found[-1].lines, line))
        elif line.strip():
            found.append(Fact(place=place, lines=(line,)))
        is_open = bool(line.strip()) and not _HEADING.match(line)
    # A line such as `---` separates facts and is none itself.
    return [one for one in found if any(sign.isalnum() for sign in one.text)]


def _seen(plan: workflow.Plan) -> dict[str, object]:
    """Return the fields of the form about a plan, as it stands. Pure."""
    found: dict[str, object] = {"title": plan.title, "objective": plan.objective}
    for one in plan.tasks[:MAX_PLAN_TASKS]:
        found |= {f"title-{one.id}": one.title, f"status-{one.id}": one.status.value}
    return found


def _stored(
    manager: ContextManager, now_ms: int
) -> tuple[SnapshotContents, list[str], list[context.SnapshotPart]]:
    """Return what is kept, the names of bad files, and the snapshots, newest first. Blocks."""
    mended = context.bad_files(manager.files.path)
    return manager.load(now_ms=now_ms), mended, context.snapshot_rows(manager.snapshots())


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
    live={"memory": TOLD, "people": ("memory.noted", "person.*", *TOLD), "notices": (*NOTICED, *TOLD)},
)
