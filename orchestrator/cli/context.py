"""`andy context`: what is kept of groups' conversations, whether Andy runs or not.

Its files have a lock of their own, so a running Andy and a command do not write at once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from orchestrator.base.clock import SystemClock
from orchestrator.base.redaction import Redactor
from orchestrator.cli import terminal
from orchestrator.cli.client import Client
from orchestrator.cli.options import (
    FAILED,
    GroupArgument,
    HomeOption,
    JsonOption,
    YesOption,
    is_meant,
    show,
)
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.files import ContextRepair
from orchestrator.context.recorder import ContextCopies
from orchestrator.context.snapshots import ContextSnapshot
from orchestrator.context.tokens import EncodingCounter
from orchestrator.domain.errors import AndyError, BadRequest
from orchestrator.domain.home import Home
from orchestrator.domain.values import Folder, Run, Turn, TurnKind
from orchestrator.proxies.model.credentials import CredentialSource, KnownSecrets
from orchestrator.reports import context
from orchestrator.store import groups, runs, sessions, turns
from orchestrator.store.database import Tx

context_app = App(name="context")

SnapshotArgument = Annotated[str, Parameter(help="Its name in 'andy context snapshots GROUP'.")]


class GroupBusy(BadRequest):
    """The group's agent is answering."""

    code = "busy"
    http_status = 409


@context_app.command(name="show")
def show_context(group: GroupArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Show what is kept of a group's conversation. Works with Andy down, as the others do.

    Example: `andy context show family`
    """
    manager = _manager_of(home, group)
    bad_files = context.bad_files(manager.files.path)
    found = context.show(group, manager.load(now_ms=SystemClock().now_ms()), bad_files)
    show(found, partial(context.show_lines, zone=terminal.zone_of(home)), as_json=as_json)


@context_app.command
def plan(group: GroupArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Show a group's plans with their tasks; an arrow is at the one that is worked on.

    Example: `andy context plan family`
    """
    found = context.plans(group, _manager_of(home, group).load(now_ms=SystemClock().now_ms()))
    show(found, context.plan_lines, as_json=as_json)


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
    """Put a snapshot in place of what is kept: context and plans. A new session begins with it.

    What was there before is a snapshot then.

    Example: `andy context restore family context-20261123T121000Z-r14.json`
    """

    _manager_of(home, group).files.snapshots.read(snapshot)  # or an error says what is wrong with it
    if not is_meant(f"Put {snapshot} in place of what is kept of '{group}'?", yes=yes):
        return FAILED
    taken = _change(home, group, lambda manager, now_ms: manager.restore(snapshot, now_ms=now_ms))
    print(f"Restored.{f' What was there before is {taken.name}.' if taken else ''}")
    return 0


@context_app.command
def pin(
    group: GroupArgument,
    snapshot: SnapshotArgument,
    /,
    *,
    off: Annotated[bool, Parameter(negative="", help="Let it go with the others again.")] = False,
    home: HomeOption = None,
) -> None:
    """Keep a snapshot for good.

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
    """Forget what is kept of a group's conversation; a new session begins with nothing.

    What was there before is a snapshot then. Its messages stay where they are, and so do its files.

    Example: `andy context reset family --with-plans`
    """

    if not is_meant(f"Forget what is kept of '{group}'?", yes=yes):
        return FAILED

    def forget(manager: ContextManager, now_ms: int) -> ContextSnapshot | None:
        return manager.reset(now_ms=now_ms, with_plans=with_plans)

    taken = _change(home, group, forget)
    print(f"Forgotten.{f' What was there before is {taken.name}.' if taken else ''}")
    return 0


@context_app.command
def why(group: GroupArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Tell how a group's conversation went on when its last container began, and why so.

    Example: `andy context why family`
    """
    found = context.why(group, terminal.read(home, lambda tx: _last_start(tx, group)))
    show(found, partial(context.why_lines, zone=terminal.zone_of(home)), as_json=as_json)


async def _last_start(tx: Tx, folder: str) -> Run | None:
    """Return the newest run that went on with a group's conversation. Raises `UnknownGroup`."""
    group = await groups.known(tx, folder)
    return next((run for run in await runs.last_restores(tx) if run.folder == group.folder), None)


def _change(
    home: Path | None, folder: str, act: Callable[[ContextManager, int], ContextSnapshot | None]
) -> ContextSnapshot | None:
    """Change what is kept, and begin a new session with it; return the snapshot taken before."""
    manager = _manager_of(home, folder)
    _check_idle(terminal.read(home, lambda tx: _running(tx, folder)), folder)
    now_ms = SystemClock().now_ms()
    taken = act(manager, now_ms)
    asyncio.run(_begin_anew(home, folder))
    copies = ContextCopies(terminal.home_of(home).data / "env", manager.files.redactor)
    copies.write(manager.files.folder, manager.load(now_ms=now_ms))
    return taken


async def _begin_anew(home: Path | None, folder: str) -> None:
    """Leave the agent's session; containers that live in it end, and the next one is told what is kept."""

    async def leave(tx: Tx, now_ms: int) -> None:
        if (group := await groups.by_folder(tx, Folder(folder))) is not None:
            await sessions.forget(tx, group.folder, now_ms=now_ms)
            await groups.set_config(tx, group.folder, group.container_config, now_ms=now_ms)

    await terminal.change(home, leave)
    with suppress(AndyError):  # a hint: it is stored, and whoever runs looks by itself twice a minute
        async with Client.of(terminal.home_of(home)) as client:
            await client.tell_configured(folder)


async def _running(tx: Tx, folder: str) -> Turn | None:
    return await turns.running_of(tx, Folder(folder))


def _check_idle(turn: Turn | None, folder: str) -> None:
    if turn is not None and turn.kind is not TurnKind.WORKER and not turn.is_isolated:
        raise GroupBusy(f"'{folder}' is answering just now: wait until it has, and try again.")


def _manager_of(home: Path | None, folder: str) -> ContextManager:
    """Return the context of a group, also of one that is registered no more. Raises `UnknownGroup`."""
    root = terminal.home_of(home)
    name = terminal.read(home, lambda tx: _known(tx, root, folder))
    return ContextManager.of(
        root.contexts,
        name,
        counter=EncodingCounter(),
        project_name=name,
        report=_tell_aside,
        redactor=_redactor(root),
    )


def _redactor(home: Home) -> Redactor:
    """Return a redactor that knows the secrets that the host knows."""
    own = [home.token()] if home.token_file.exists() else []
    return Redactor(KnownSecrets(CredentialSource(home.root, os.environ), own=own))


async def _known(tx: Tx, home: Home, folder: str) -> str:
    if (home.contexts / folder).is_dir() and folder not in ("", ".", ".."):
        return folder
    return (await groups.known(tx, folder)).folder


def _tell_aside(trouble: ContextRepair) -> None:
    terminal.say_aside(trouble.text)
