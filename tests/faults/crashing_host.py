"""Makes `andy up` die as by `kill -9` at the n-th point of its work, which `forked_hosts.py` sets.

A point is before and after each transaction, each send on a channel, each file for a container, each start
of one and each decision how it goes on with its conversation. Each adds a byte to `POINTS`, so that a test
can choose among as many as there are. What is sent on the local channel is noted in
`data/seen`, as another party would see it: one line a message id and text. `REJOIN_SECONDS` is how long it
looks for an engine that broke off, `OUTAGE_NOTICE_AFTER_MS` after how long an outage is reported in chats.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from orchestrator.channels.local.channel import LocalChannel
from orchestrator.containers import output
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.process.runtime import ProcessRuntime
from orchestrator.containers.swarm.group_files import OpenStage, Stages
from orchestrator.containers.swarm.runtime import SwarmRuntime
from orchestrator.context.session_restorer import SessionRestorer
from orchestrator.domain import failures
from orchestrator.ipc import input_files
from orchestrator.store.database import Database

DIE_AT = 0
HOME = Path(os.environ["ANDY_HOME"])
SEEN = HOME / "data" / "seen"
POINTS = HOME.with_name(f"{HOME.name}.points")
_points = itertools.count(1)


def point() -> None:
    """Die here if it is the one."""
    with POINTS.open("ab") as points:
        points.write(b".")
    if next(_points) == DIE_AT:
        os.kill(os.getpid(), signal.SIGKILL)


def with_points(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        point()
        result = function(*args, **kwargs)
        point()
        return result

    return call


def with_points_around(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        point()
        result = await function(*args, **kwargs)
        point()
        return result

    return call


_transaction = Database.transaction


@asynccontextmanager
async def transaction(self: Database) -> AsyncIterator[Any]:
    point()
    async with _transaction(self) as tx:
        yield tx
    point()


async def send(self: LocalChannel, jid: str, text: str, message_id: str, **_: Any) -> None:
    with SEEN.open("a", encoding="utf-8") as seen:
        seen.write(json.dumps({"id": message_id, "text": text}) + "\n")


Database.transaction = transaction  # type: ignore[method-assign, assignment]
Database.write = with_points_around(Database.write)  # type: ignore[method-assign]
LocalChannel.send = with_points_around(send)  # type: ignore[method-assign]
ProcessRuntime.start = with_points_around(ProcessRuntime.start)  # type: ignore[method-assign]
DockerRuntime.start = with_points_around(DockerRuntime.start)  # type: ignore[method-assign]
DockerRuntime.adopt = with_points_around(DockerRuntime.adopt)  # type: ignore[method-assign]
SwarmRuntime.start = with_points_around(SwarmRuntime.start)  # type: ignore[method-assign]
SwarmRuntime.adopt = with_points_around(SwarmRuntime.adopt)  # type: ignore[method-assign]
OpenStage.seal = with_points(OpenStage.seal)  # type: ignore[method-assign]
Stages.apply = with_points(Stages.apply)  # type: ignore[method-assign]
output.REJOIN_SECONDS = float(os.environ.pop("REJOIN_SECONDS", output.REJOIN_SECONDS))
failures.OUTAGE_NOTICE_AFTER_MS = int(
    os.environ.pop("OUTAGE_NOTICE_AFTER_MS", failures.OUTAGE_NOTICE_AFTER_MS)
)
SessionRestorer.restore = with_points_around(SessionRestorer.restore)  # type: ignore[method-assign]
input_files.write_turn = with_points(input_files.write_turn)
input_files.write_close = with_points(input_files.write_close)
input_files.write_reply = with_points(input_files.write_reply)
