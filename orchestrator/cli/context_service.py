"""A home's contexts for the command line, whether Andy runs or not: the files have a lock of their own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from orchestrator.base.clock import SystemClock
from orchestrator.base.redaction import Redactor
from orchestrator.cli import terminal
from orchestrator.cli.client import Client
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.files import ContextRepair
from orchestrator.context.recorder import ContextCopies
from orchestrator.context.snapshots import ContextSnapshot, SnapshotContents
from orchestrator.context.tokens import EncodingCounter
from orchestrator.domain.errors import AndyError, BadRequest
from orchestrator.domain.home import Home
from orchestrator.domain.values import Folder, Run, Turn, TurnKind
from orchestrator.proxies.model.credentials import CredentialSource, KnownSecrets
from orchestrator.store import groups, runs, sessions, turns
from orchestrator.store.database import Tx

T = TypeVar("T")
SPOILT = ("*.corrupt-*.json", "*.other-version-*.json")


class Busy(BadRequest):
    """The group's agent is answering."""

    code = "busy"
    http_status = 409


def look(home: Path | None, folder: str) -> SnapshotContents:
    """What is kept of a group. Raises `UnknownGroup`, `ContextBusy`."""
    return _opened(home, folder).load(now_ms=SystemClock().now_ms())


def mended(home: Path | None, folder: str) -> list[str]:
    """The names of bad files that were put aside, newest last."""
    path = _opened(home, folder).brain.path
    return sorted(found.name for pattern in SPOILT for found in path.glob(pattern))


def snapshots(home: Path | None, folder: str) -> Sequence[ContextSnapshot]:
    return _opened(home, folder).snapshots()


def pin(home: Path | None, folder: str, name: str, *, off: bool) -> None:
    """Keep a snapshot for good, or no more. Raises `UnknownSnapshot`."""
    manager = _opened(home, folder)
    if off:
        manager.unpin(name)
    else:
        manager.pin(name)


def check_snapshot(home: Path | None, folder: str, name: str) -> None:
    """See whether a snapshot can be restored. Raises `UnknownSnapshot`, `SnapshotDamaged`."""
    _opened(home, folder).brain.snapshots.read(name)


def restore(home: Path | None, folder: str, name: str) -> ContextSnapshot | None:
    """Put a snapshot in place; give the one that was taken of what was there.

    Raises:
        UnknownSnapshot, SnapshotDamaged, Busy: nothing was changed.
    """
    return _change(home, folder, lambda manager, now_ms: manager.restore(name, now_ms=now_ms))


def reset(home: Path | None, folder: str, *, with_plans: bool) -> ContextSnapshot | None:
    """Forget what is kept, the plans only if asked; give the snapshot that was taken. Raises `Busy`."""
    return _change(home, folder, lambda manager, now_ms: manager.reset(now_ms=now_ms, with_plans=with_plans))


def last_start(home: Path | None, folder: str) -> Run | None:
    """The newest run that went on with a group's conversation. Raises `UnknownGroup`."""

    async def find(tx: Tx) -> Run | None:
        group = await groups.known(tx, folder)
        return next((run for run in await runs.last_restores(tx) if run.folder == group.folder), None)

    return asyncio.run(terminal.read(home, find))


def _change(
    home: Path | None, folder: str, act: Callable[[ContextManager, int], ContextSnapshot | None]
) -> ContextSnapshot | None:
    """Change what is kept, and have the group begin a new session with it."""
    manager = _opened(home, folder)
    _check_idle(asyncio.run(terminal.read(home, lambda tx: _running(tx, folder))), folder)
    now_ms = SystemClock().now_ms()
    taken = act(manager, now_ms)
    asyncio.run(_begin_anew(home, folder))
    copies = ContextCopies(terminal.home_of(home).data / "env", manager.brain.redactor)
    copies.write(manager.brain.folder, manager.load(now_ms=now_ms))
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
        raise Busy(f"'{folder}' is answering just now: wait until it has, and try again.")


def _opened(home: Path | None, folder: str) -> ContextManager:
    """The context of a group, also of one that is registered no more. Raises `UnknownGroup`."""
    root = terminal.home_of(home)
    name = asyncio.run(terminal.read(home, lambda tx: _known(tx, root, folder)))
    return ContextManager.of(
        root.contexts,
        name,
        counter=EncodingCounter(),
        project_name=name,
        report=_tell_aside,
        redactor=_redactor(root),
    )


def _redactor(home: Home) -> Redactor:
    """One that knows what the host knows."""
    own = [home.token()] if home.token_file.exists() else []
    return Redactor(KnownSecrets(CredentialSource(home.root, os.environ), own=own))


async def _known(tx: Tx, home: Home, folder: str) -> str:
    if (home.contexts / folder).is_dir() and folder not in ("", ".", ".."):
        return folder
    return (await groups.known(tx, folder)).folder


def _tell_aside(trouble: ContextRepair) -> None:
    terminal.say_aside(trouble.text)
