"""A container runtime and a pool for tests.

A test sets what its containers write, how they end, and when they or the engine fail.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_runner.wire.frames import Frame, encode_frame
from agent_runner.wire.order import RunOrder, TurnOrder
from orchestrator.containers import timeouts
from orchestrator.containers.logs.run_log import RunLogs
from orchestrator.containers.pool import RunPool, RunPorts
from orchestrator.containers.ports import ChosenAgent
from orchestrator.domain.errors import ContainerError, EngineGone
from orchestrator.domain.protocols import ContainerSpec, Exit, Mount
from orchestrator.domain.values import Folder, Group, Role, Run, RunId, Turn
from orchestrator.inbound import prompt
from orchestrator.queue.retries import requeue_or_fail
from tests.support.store_harness import SEOUL, StoreHarness

MINUTE_MS = 60_000


class ScriptedRuntime:
    """An engine: `is_gone`, it answers nothing; `refusal`, it starts nothing and says why."""

    name, is_isolated = "told", True

    def __init__(self) -> None:
        self.started: list[ScriptedContainer] = []
        self.present: list[ScriptedContainer] = []
        self.orders: list[RunOrder] = []
        self.specs: list[ContainerSpec] = []
        self.is_gone = False
        self.refusal: str | None = None

    async def start(self, spec: ContainerSpec, order: str) -> ScriptedContainer:
        self.check_it_answers()
        if self.refusal is not None:
            raise ContainerError(self.refusal)
        self.orders.append(RunOrder.parse(order))
        self.specs.append(spec)
        self.started.append(ScriptedContainer(spec.run_id, spec.folder, self))
        self.present.append(self.started[-1])
        return self.started[-1]

    async def adopt(self) -> list[ScriptedContainer]:
        self.check_it_answers()
        return list(self.present)

    async def close(self) -> None:
        pass

    def check_it_answers(self) -> None:
        if self.is_gone:
            raise EngineGone

    def break_off(self) -> None:
        """Answer nothing any more; streams end, containers go on."""
        self.is_gone = True
        for container in self.present:
            container.said.put_nowait(EngineGone())

    @property
    def working(self) -> list[ScriptedContainer]:
        return [container for container in self.present if not container.has_ended.is_set()]


class ScriptedContainer:
    def __init__(self, run_id: RunId, folder: Folder, runtime: ScriptedRuntime) -> None:
        self.run_id, self.folder, self.ref = run_id, folder, f"ref-{run_id}"
        self.said: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.has_ended, self.may_stop, self.is_stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.may_stop.set()
        self.can_be_ended = True
        self.is_outdated = False
        self._runtime = runtime

    def say(self, frame: Frame) -> None:
        self.said.put_nowait(encode_frame(frame))

    def end(self) -> None:
        self.has_ended.set()
        self.said.put_nowait(None)

    async def output(self) -> AsyncIterator[bytes]:
        while (piece := await self.said.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def wait(self) -> Exit:
        await self.has_ended.wait()
        return Exit(code=0)

    async def stop(self, *, grace_seconds: float = 2.0) -> None:
        self.is_stopping.set()
        self._runtime.check_it_answers()
        self._check_it_can_be_ended()
        await self.may_stop.wait()
        self.end()

    async def remove(self) -> None:
        self._runtime.check_it_answers()
        self._check_it_can_be_ended()
        self.end()
        if self in self._runtime.present:
            self._runtime.present.remove(self)

    def _check_it_can_be_ended(self) -> None:
        if not self.can_be_ended:
            raise ContainerError("Docker refuses: device or resource busy")


async def _nothing(*_: Any) -> None:
    pass


def _ignored(*_: Any) -> None:
    pass


async def _no_mounts(_: Group, __: object) -> tuple[Mount, ...]:
    return ()


def _order(run: Run, group: Group, turn: TurnOrder, session_id: str | None) -> RunOrder:
    return RunOrder(run=run.id, group=group.folder, chat_jid=group.jid, turn=turn, session_id=session_id)


@dataclass(frozen=True, kw_only=True)
class ScriptedOrders:
    """Orders without a configuration; a test replaces what it is about."""

    chosen_agent: Callable[[Group, Turn], ChosenAgent] = lambda *_: ChosenAgent(
        agent="claude", model=None, service="anthropic"
    )
    order: Callable[[Run, Group, TurnOrder, str | None], RunOrder] = _order
    environment: Callable[[Group, str, str], Mapping[str, str]] = lambda *_: {}
    prepare: Callable[[Group, Role | None], Awaitable[Sequence[Mount]]] = _no_mounts


class NoMailboxes:
    """No container writes anything for the host."""

    watch = unwatch = staticmethod(_nothing)


class NoFiles:
    """Whatever is handed to a live container is lost."""

    write_turn = write_close = remove_turn = remove_run_files = remove_files_of_others = staticmethod(
        _ignored
    )


def scripted_ports() -> RunPorts:
    """Real prompts and settling; no files."""
    numbers = itertools.count(1)

    async def compose(tx, turn, group, run_id):  # type: ignore[no-untyped-def]
        return await prompt.compose(tx, turn, group, run_id=run_id, name="Andy", zone=SEOUL, now_ms=0)

    return RunPorts(
        orders=ScriptedOrders(),
        mailboxes=NoMailboxes(),
        files=NoFiles(),
        compose=compose,
        token=lambda: ("token", f"hash-{next(numbers)}"),
        requeue=requeue_or_fail,
        new_run_id=lambda: RunId(f"run-{next(numbers)}"),
    )


def scripted_pool(
    store_harness: StoreHarness,
    runtime: ScriptedRuntime,
    tasks: asyncio.TaskGroup,
    home: Path,
    *,
    ports: RunPorts | None = None,
    image: str = "",
) -> RunPool:
    return RunPool(
        store_harness.database,
        runtime,
        ports or scripted_ports(),
        limits=timeouts.RunTimeouts(idle_ms=30 * MINUTE_MS, age_ms=30 * MINUTE_MS, turn_ms=30 * MINUTE_MS),
        logs=RunLogs(home, clock=store_harness.clock),
        clock=store_harness.clock,
        tasks=tasks,
        wakeups=store_harness.wakeups,
        bus=store_harness.bus,
        image=image,
    )
