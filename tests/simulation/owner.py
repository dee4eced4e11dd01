"""The owner of a simulated world, who changes settings and schedules over the real HTTP API of the host."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.simulation.loop import PROCESS, Process

if TYPE_CHECKING:
    from tests.simulation.world import World

WAITS_SECONDS = 120.0
"""Seconds that the owner waits for an answer of the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerAct:
    """Something that the owner asks of the host at a time. `token` is a word that stands nowhere else."""

    at_s: float
    kind: str
    """`rename` a group, have a `task` run `once`, set a `reminder`, or have a task run `daily`."""
    folder: str
    token: str
    minutes: int = 0

    @property
    def request(self) -> tuple[str, str, dict[str, str]]:
        """The method, the path and the body."""
        task = {"group": self.folder, "prompt": f"echo {self.token}"}
        after = f"{self.minutes}m"
        match self.kind:
            case "rename":
                return "PATCH", f"/groups/{self.folder}", {"name": self.token}
            case "reminder":
                return "POST", "/reminders", {"group": self.folder, "text": self.token, "at": f"in {after}"}
            case "once":
                return "POST", "/tasks", {**task, "schedule_type": "once", "schedule_value": after}
            case _:
                return "POST", "/tasks", {**task, "schedule_type": "cron", "schedule_value": "30 2 * * *"}

    def __str__(self) -> str:
        return f"the owner asks for {self.kind} in {self.folder}: {self.token} ({self.minutes} min)"


@dataclass(slots=True)
class Door:
    """The web server of one life of the host: its app, which is asked in the host's process."""

    process: Process
    app: Callable[..., Any]
    token: str


class Owner:
    """Carries out what the plan has the owner do."""

    def __init__(self, world: World, acts: tuple[OwnerAct, ...]) -> None:
        self._world = world
        self._acts = acts
        self.accepted: list[tuple[OwnerAct, float, float]] = []
        """Requests that the host answered as done, with the virtual seconds of request and answer."""
        self.unsure: list[OwnerAct] = []
        """Requests without a good answer: each may have been done."""

    async def live(self) -> None:
        for act in self._acts:
            await asyncio.sleep(max(0.0, act.at_s - self._world.loop.time()))
            await self._do(act)

    async def _do(self, act: OwnerAct) -> None:
        world, asked_s = self._world, self._world.loop.time()
        door = world.door
        if door is None or door.process.is_dead:
            return
        world.note("said", str(act))
        method, path, body = act.request
        status = await ask(world, door, method, path, body)
        world.note("said", f"the owner reads {status or 'no answer'}, of {act.token}")
        if 200 <= status < 300:
            self.accepted.append((act, asked_s, world.loop.time()))
        else:
            self.unsure.append(act)

    def is_content(self) -> bool:
        """Return whether all that was asked for once is past its time."""
        now_s = self._world.loop.time()
        return all(
            read_s + (act.minutes + 3) * 60 < now_s
            for act, _, read_s in self.accepted
            if act.kind in ("once", "reminder")
        )


async def ask(world: World, door: Door, method: str, path: str, body: dict[str, str]) -> int:
    """Return the status with which a host answers a request; 0 where it does not answer."""
    data = json.dumps(body).encode()
    answered: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    given = [{"type": "http.request", "body": data, "more_body": False}]
    headers = {
        "host": "127.0.0.1:8700",
        "authorization": f"Bearer {door.token}",
        "content-type": "application/json",
        "content-length": str(len(data)),
    }
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 40_001),
        "server": ("127.0.0.1", 8700),
    }

    async def receive() -> dict[str, Any]:
        if given:
            return given.pop()
        return await asyncio.Event().wait() and {}  # the owner does not hang up

    async def send(message: dict[str, Any]) -> None:
        answered.put_nowait(message)

    async def run() -> None:
        await door.app(scope, receive, send)

    context = contextvars.Context()
    context.run(PROCESS.set, door.process)
    world.loop.create_task(run(), name="web-request", context=context)
    try:
        async with asyncio.timeout(WAITS_SECONDS):
            while (message := await answered.get())["type"] != "http.response.start":
                pass
            return int(message["status"])
    except TimeoutError:
        return 0
