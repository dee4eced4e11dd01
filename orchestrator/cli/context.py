"""`andy context`: the stored contexts of groups' conversations, whether Andy runs or not.

Beside a context, the plans of the group's agent are stored, each with an objective and tasks.
The files have a lock of their own, so a running Andy and a command do not write at the same time.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from orchestrator.base.clock import SystemClock
from orchestrator.base.redaction import Redactor
from orchestrator.cli import terminal
from orchestrator.cli.exit_codes import FAILED, UsageError
from orchestrator.cli.options import (
    GroupArgument,
    HomeOption,
    JsonOption,
    YesOption,
    is_confirmed,
    show,
)
from orchestrator.context import owner_changes, person_memory, person_removal, workflow
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.files import ContextRepair
from orchestrator.context.owner_changes import ChangeContext, CorrectedTask
from orchestrator.context.person_memory import KnownPerson, NoteView, PersonNoteView
from orchestrator.context.recorder import ContextCopies
from orchestrator.context.snapshots import ContextSnapshot, SnapshotContents
from orchestrator.context.tokens import EncodingCounter
from orchestrator.domain.values import Run
from orchestrator.home.directory import Home
from orchestrator.proxies.model.credentials import CredentialSource, KnownSecrets
from orchestrator.reports import context
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.runs import runs

context_app = App(name="context")

SnapshotArgument = Annotated[
    str, Parameter(help="The snapshot, by its name in 'andy context snapshots GROUP'.")
]


@context_app.command(name="show")
def show_context(group: GroupArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Show the stored context of a group's conversation. All context commands work with Andy down.

    Example: `andy context show family`
    """
    stored = context.read(_manager_of(home, group), now_ms=SystemClock().now_ms())
    lines = context.show_lines(group, stored, zone=terminal.zone_of(home))
    show(context.show(group, stored), lambda _: lines, as_json=as_json)


@context_app.command
def plan(group: GroupArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Show a group's plans with their tasks; an arrow marks the active plan and its active task.

    Example: `andy context plan family`
    """
    contents = _manager_of(home, group).load(now_ms=SystemClock().now_ms())
    lines = context.plan_lines(group, contents)
    show(context.plans(group, contents), lambda _: lines, as_json=as_json)


@context_app.command
def snapshots(group: GroupArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the snapshots of a group's context, newest first.

    Example: `andy context snapshots family`
    """
    rows = context.snapshot_rows(_manager_of(home, group).snapshots())
    show(rows, partial(context.snapshot_lines, zone=terminal.zone_of(home)), as_json=as_json)


@context_app.command
def restore(
    group: GroupArgument, snapshot: SnapshotArgument, /, *, yes: YesOption = False, home: HomeOption = None
) -> int:
    """Replace a group's context and plans by a snapshot. A new session starts with it.

    The replaced ones are saved as a snapshot first.

    Example: `andy context restore family context-20261123T121000Z-r14.json`
    """

    # Read before the question, for its error: nobody should confirm a snapshot that cannot be used.
    _manager_of(home, group).files.snapshots.read(snapshot)
    if not is_confirmed(f"Replace the stored context of '{group}' by {snapshot}?", yes=yes):
        return FAILED
    saved = _change(home, group, lambda manager, now_ms: manager.restore(snapshot, now_ms=now_ms))
    print(f"Restored.{f' The replaced context is {saved.name}.' if saved else ''}")
    return 0


@context_app.command
def correct(
    group: GroupArgument,
    /,
    *,
    summary: Annotated[str | None, Parameter(help="The new summary of the conversation so far.")] = None,
    plan_id: Annotated[str | None, Parameter(name="--plan", help="A plan to change, by its id.")] = None,
    task: Annotated[str | None, Parameter(help="A task of that plan, by its id.")] = None,
    title: Annotated[str | None, Parameter(help="The new title of the plan, or of its task.")] = None,
    objective: Annotated[str | None, Parameter(help="The new objective of the plan.")] = None,
    status: Annotated[
        str | None,
        Parameter(help="The task's new status: pending, in_progress, completed, cancelled or blocked."),
    ] = None,
    forget: Annotated[bool, Parameter(negative="", help="Forget the plan.")] = False,
    home: HomeOption = None,
) -> None:
    """Correct the stored context of a group: its summary, or a plan. A new session starts with it.

    The earlier context is saved as a snapshot first.

    Example: `andy context correct family --plan plan_001 --task task_002 --status completed`
    """

    def change(contents: SnapshotContents, now_ms: int) -> SnapshotContents:
        """Return the contents with the summary and the change of one plan that the options give."""
        if summary is not None:
            contents = owner_changes.with_summary(contents, summary)
        if plan_id is None:
            return contents
        if forget:
            return owner_changes.without_plan(contents, plan_id, now_ms=now_ms)
        plan = workflow.known_plan(contents.workflow, plan_id)
        tasks: dict[str, CorrectedTask] = {}
        plan_title = plan.title if title is None else title
        if task is not None:
            # With a task, `title` is the task's title.
            plan_title = plan.title
            known_task = workflow.known_task(plan, task)
            tasks[task] = CorrectedTask(
                title=known_task.title if title is None else title, status=status or known_task.status
            )
        return owner_changes.with_plan(
            contents,
            plan_id,
            title=plan_title,
            objective=plan.objective if objective is None else objective,
            tasks=tasks,
            now_ms=now_ms,
        )

    options = {"--task": task, "--title": title, "--objective": objective, "--status": status}
    plan_options = [name for name, value in options.items() if value is not None]
    _check_correction(group, plan_options, plan_id=plan_id, has_summary=summary is not None, forget=forget)
    saved = _change(
        home,
        group,
        lambda manager, now_ms: manager.correct(lambda contents: change(contents, now_ms), now_ms=now_ms),
    )
    print(f"Corrected.{f' The earlier context is {saved.name}.' if saved else ''}")


def _check_correction(
    group: str, plan_options: list[str], *, plan_id: str | None, has_summary: bool, forget: bool
) -> None:
    """Check that each given option of `correct` belongs to a change, and that there is a change.

    `plan_options` are the given ones of --task, --title, --objective and --status. Raises `UsageError`.
    """
    if forget and plan_options:
        raise UsageError(
            f"--forget forgets the whole plan: leave out {', '.join(plan_options)}, or --forget."
        )
    if plan_id is None and (plan_options or forget):
        useless = ", ".join(plan_options or ["--forget"])
        raise UsageError(
            f"Without its plan, {useless} changes nothing: add --plan ID, see 'andy context plan {group}'."
        )
    if "--status" in plan_options and "--task" not in plan_options:
        raise UsageError("A status is a task's: add --task ID, or leave out --status.")
    if not has_summary and plan_id is None:
        raise UsageError("Say what is to be corrected: --summary TEXT, or --plan ID.")
    if plan_id is not None and not has_summary and not forget and plan_options in ([], ["--task"]):
        raise UsageError(
            "Say what is to be changed of the plan: --title, --objective or --forget; of its --task, --title"
            " or --status."
        )


@context_app.command
def pin(
    group: GroupArgument,
    snapshot: SnapshotArgument,
    /,
    *,
    off: Annotated[
        bool, Parameter(negative="", help="Unpin it, so that it is deleted with older ones again.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Pin a snapshot, so that it is not deleted with older ones.

    Example: `andy context pin family context-20261123T121000Z-r14.json`
    """

    manager = _manager_of(home, group)
    if off:
        manager.unpin(snapshot)
    else:
        manager.pin(snapshot)
    print(f"{snapshot} is {'kept no longer than others' if off else 'kept for good'}.")


@context_app.command
def reset(
    group: GroupArgument,
    /,
    *,
    with_plans: Annotated[bool, Parameter(negative="", help="Forget its plans too.")] = False,
    yes: YesOption = False,
    home: HomeOption = None,
) -> int:
    """Forget the stored context of a group's conversation; a new session starts with nothing.

    The context is saved as a snapshot first. Messages and files of the group stay.

    Example: `andy context reset family --with-plans`
    """

    if not is_confirmed(f"Forget the stored context of '{group}'?", yes=yes):
        return FAILED

    def forget(manager: ContextManager, now_ms: int) -> ContextSnapshot | None:
        """Empty the group's context, and forget its plans if `--with-plans` is given.

        Return the snapshot that was taken before; None if there was nothing to save.
        """
        return manager.reset(now_ms=now_ms, with_plans=with_plans)

    saved = _change(home, group, forget)
    print(f"Forgotten.{f' The earlier context is {saved.name}.' if saved else ''}")
    return 0


@context_app.command
def people(
    group: GroupArgument,
    who: Annotated[str | None, Parameter(help="Somebody of the group, by address or name.")] = None,
    /,
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show the notes about people and who said them, or everything stored about one person.

    Example: `andy context people family`, `andy context people family local:mina`
    """
    if who is None:
        notes = [note.to_row() for note in terminal.read(home, lambda tx: _notes(tx, group))]
        show(notes, lambda rows: _note_lines(rows, group), as_json=as_json)
        return
    known_person = terminal.read(home, lambda tx: _known_person(tx, group, who))
    show(known_person.to_row(), lambda _: known_person.lines(), as_json=as_json)


@context_app.command
def forget(
    group: GroupArgument,
    who: Annotated[str, Parameter(help="Somebody of the group, by address or name.")],
    /,
    *,
    yes: YesOption = False,
    home: HomeOption = None,
) -> int:
    """Forget a person in a group, as if they had requested it: their messages, notes about them, their name.

    Their role and address, reminders and tasks, other people's messages, the messenger's history and backups
    stay. A running Andy does it as soon as no turn runs in the group, otherwise the next start does.

    Example: `andy context forget family local:mina`
    """
    person = terminal.read(home, lambda tx: _known_person(tx, group, who)).person
    if not is_confirmed(
        f"Forget {person.name} ({person.address}) in '{group}'? It cannot be taken back.", yes=yes
    ):
        return FAILED

    async def request() -> None:
        """Store the request to forget the person; a running host carries it out."""
        async with terminal.open_store(home) as database, database.transaction() as tx:
            await person_removal.request_by_owner(
                tx, group, person.address, by="command line", now_ms=SystemClock().now_ms()
            )

    asyncio.run(request())
    print(f"{person.name} is forgotten as soon as Andy runs and no turn runs in '{group}'.")
    return 0


async def _notes(tx: Tx, folder: str) -> list[NoteView]:
    """Return the notes about people of a group. Raises `UnknownGroup`."""
    return await person_memory.notes_of(tx, (await groups.known(tx, folder)).folder)


async def _known_person(tx: Tx, folder: str, who: str) -> KnownPerson:
    """Return what a group knows about the person `who`, named by address or name.

    Raises `UnknownGroup`, or `BadRequest` if the group does not know the person.
    """
    return await person_memory.known_of(tx, await groups.known(tx, folder), who)


def _note_lines(rows: list[PersonNoteView], group: str) -> list[str]:
    """Return a group's notes about people as lines of text; without notes, a line that says so."""
    return [_note_line(row) for row in rows] or [
        f"There are no notes about people in '{group}'; 'andy groups people {group}' lists its people."
    ]


def _note_line(row: PersonNoteView) -> str:
    """Return a note about people as one line, with whom it is about and who said it."""
    about, said_by = ", ".join(row["about"]) or "nobody", ", ".join(row["said_by"]) or "nobody"
    return f"{row['id']}: {row['text']} (about {about}; said by {said_by})"


@context_app.command
def why(group: GroupArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Show how the last container continued a group's conversation, and why.

    Example: `andy context why family`
    """
    report = context.why(group, terminal.read(home, lambda tx: _last_restored_run(tx, group)))
    show(report, partial(context.why_lines, zone=terminal.zone_of(home)), as_json=as_json)


async def _last_restored_run(tx: Tx, folder: str) -> Run | None:
    """Return the group's newest run (container) whose way to continue the conversation is recorded, or None.

    Raises:
        UnknownGroup: no group has this folder.
    """
    group = await groups.known(tx, folder)
    # `last_restores` has at most one run of each group.
    return next((run for run in await runs.last_restores(tx) if run.folder == group.folder), None)


def _change(home: Path | None, folder: str, act: ChangeContext) -> ContextSnapshot | None:
    """Change the stored context of a group's conversation, and end its agent's session.

    `act` gets the manager of the context and the time in epoch milliseconds, changes the context, and returns
    the snapshot that was taken before. Return that snapshot; None if there was nothing to save. The copies of
    the context that containers read are written again.

    Raises:
        ConversationBusy: the group's agent is answering.
    """
    manager = _manager_of(home, folder)
    copies = ContextCopies(terminal.home_of(home).data / "env", manager.files.redactor)

    async def change() -> ContextSnapshot | None:
        """Change the context, and return the snapshot that was taken before; None if there was none."""
        async with terminal.open_store(home) as database:
            now_ms = SystemClock().now_ms()
            return await owner_changes.change(database, manager, copies, act, now_ms=now_ms)

    return asyncio.run(change())


def _manager_of(home: Path | None, folder: str) -> ContextManager:
    """Return the manager of a group's stored context. The group may also be unregistered.

    Raises:
        UnknownGroup: it is neither registered, nor has a stored context.
    """
    own_home = terminal.home_of(home)
    name = terminal.read(home, lambda tx: _folder_with_context(tx, own_home, folder))
    return ContextManager.of(
        own_home.contexts,
        name,
        counter=EncodingCounter(),
        project_name=name,
        report=_report_repair,
        redactor=_redactor(own_home),
    )


def _redactor(home: Home) -> Redactor:
    """Return a redactor, which removes from texts the same secrets as the host's own redactor does."""
    own_secrets = [home.token()] if home.token_file.exists() else []
    return Redactor(KnownSecrets(CredentialSource(home.root, os.environ), own=own_secrets))


async def _folder_with_context(tx: Tx, home: Home, folder: str) -> str:
    """Return the folder name of a group with a stored context, or a registered one. Raises `UnknownGroup`."""
    # A name with a slash would be a folder inside another group's context, or outside of all.
    is_name = "/" not in folder and "\0" not in folder and folder not in ("", ".", "..")
    if is_name and (home.contexts / folder).is_dir():
        return folder
    return (await groups.known(tx, folder)).folder


def _report_repair(repair: ContextRepair) -> None:
    """Print on stderr that a damaged file of the context was repaired."""
    terminal.say_aside(repair.text)
