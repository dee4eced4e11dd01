"""What notices add to a turn of a Claude that lives: the same runner with its hooks, and without them."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from agent_runner.wire.files import unique_name, write_whole
from agent_runner.wire.notices import Notice
from agent_runner.wire.order import TurnOrder
from benchmarks.figures import Figure, Series, excess_of
from benchmarks.places import Effort, progress
from tests.doubles.messages_api import Say as Answer
from tests.doubles.messages_api import ScriptedMessagesApi, UseTool
from tests.processes.runner import RUN, RunnerProcess, make_workspace, order_of

TURNS = 50
ADDED_MS = 5.0
WITHOUT = """
import sys
from agent_runner import __main__
from agent_runner.agents.claude.sdk_import import import_sdk
import_sdk()
from agent_runner.ans import sdk_hooks
sdk_hooks.NoticeHooks.matchers = lambda self: {}
sys.exit(__main__.main())
"""


STUCK = """
import asyncio, sys
from agent_runner import __main__
from agent_runner.ans import rules

async def sleep(self, point, **more):
    await asyncio.sleep(10)

rules.NoticeRules.drain = sleep
sys.exit(__main__.main())
"""
STUCK_TURNS = 5
MOST_DELAY_MS = 3_000.0


async def measure(effort: Effort) -> list[Figure]:
    """In turns, so that both meet the same machine. A fifth of the turns use a tool, and all are given a
    notice, as no real conversation is."""
    measured = await asyncio.to_thread(_measured, effort.times(TURNS))
    return [measured, await asyncio.to_thread(_stuck, effort.times(STUCK_TURNS), measured.floor)]


def _stuck(times: int, floor: Series | None) -> Figure:
    assert floor is not None
    with _talk(("-c", STUCK)) as talk:
        turns = [talk.turn(number + 2) for number in range(times)]
    measured = Series(
        name="turn given → turn ended, every hook asleep for 10 s", unit="ms", values=tuple(turns)
    )
    return Figure(
        name="A turn whose hooks sleep, Claude agent",
        measured=measured,
        floor=floor,
        checks=(excess_of(measured, floor, MOST_DELAY_MS),),
    )


def _measured(times: int) -> Figure:
    with ExitStack() as stack:
        told = stack.enter_context(_talk(("-m", "agent_runner")))
        bare = stack.enter_context(_talk(("-c", WITHOUT)))
        with_notices: list[float] = []
        without: list[float] = []
        for number in range(times + 1):
            with_notices.append(told.turn(number + 2))
            without.append(bare.turn(number + 2))
            if (number + 1) % 20 == 0:
                progress(f"{number + 1} of {times} turns")
    return _figure(with_notices[1:], without[1:])


class Talk:
    """A runner that lives, and the model that it asks."""

    def __init__(self, runner: RunnerProcess, api: ScriptedMessagesApi) -> None:
        self._runner = runner
        self._api = api

    def turn(self, number: int) -> float:
        """Milliseconds from the turn's file to its end."""
        if number % 5 == 0:
            self._api.then(UseTool("Read", {"file_path": "/etc/hostname"}))
        self._api.then(Answer("Done."))
        payload = {"message": f"note {number}", "category": "context", "priority": "normal"}
        notice = Notice(id=number, event_type="agent.self.notify", source="agent", payload=payload)
        order = TurnOrder(run=RUN, turn=number, kind="chat", prompt="go on", notices=(notice,))
        began = time.perf_counter()
        write_whole(self._runner.workspace.input / unique_name(), order.to_json())
        self._runner.wait_for("turn_end", turn=number)
        return 1000 * (time.perf_counter() - began)


@contextmanager
def _talk(program: tuple[str, ...]) -> Iterator[Talk]:
    with tempfile.TemporaryDirectory() as root, ScriptedMessagesApi() as api:
        environment = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "placeholder", **_inherited()}
        command = (sys.executable, *program)
        workspace = make_workspace(Path(root) / "workspace")
        with RunnerProcess(workspace, order_of("hi"), environment=environment, command=command) as runner:
            runner.wait_for("turn_end", turn=1)
            yield Talk(runner, api)


def _inherited() -> dict[str, str]:
    return {name: os.environ[name] for name in ("TZ", "LANG") if name in os.environ}


def _figure(told: list[float], bare: list[float]) -> Figure:
    measured = Series(name="turn given → turn ended, with notices", unit="ms", values=tuple(told))
    floor = Series(name="floor: the same without their hooks", unit="ms", values=tuple(bare))
    return Figure(
        name="What notices add to a turn, Claude agent",
        measured=measured,
        floor=floor,
        checks=(excess_of(measured, floor, ADDED_MS),),
    )
