"""The owner of a simulated world, who uses the real HTTP API and the real console of the host."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tests.simulation.loop import PROCESS, Process

if TYPE_CHECKING:
    from tests.simulation.world import World

WAITS_SECONDS = 120.0
"""Seconds that the owner waits for an answer of the host."""
PAGES = ("now", "chats", "coming", "groups", "board", "mind", "costs", "care", "safety", "models", "log")
"""Pages of the console that the owner looks at."""
BROWSER = "a browser of a simulated world"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerAct:
    """Something that the owner asks of the host at a time. `token` is a word that stands nowhere else."""

    at_s: float
    kind: str
    """`rename` a group, have a task run `once` or `daily`, set a `reminder`, set one and `move` or `cancel`
    it, or look at the `console`."""
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
            case "reminder" | "move" | "cancel":
                return "POST", "/reminders", {"group": self.folder, "text": self.token, "at": f"in {after}"}
            case "once":
                return "POST", "/tasks", {**task, "schedule_type": "once", "schedule_value": after}
            case _:
                return "POST", "/tasks", {**task, "schedule_type": "cron", "schedule_value": "30 2 * * *"}

    @property
    def second_thought(self) -> dict[str, str]:
        """The body of the request that changes the reminder after it was set."""
        return {"at": f"in {2 * self.minutes}m"} if self.kind == "move" else {}

    def __str__(self) -> str:
        return f"the owner asks for {self.kind} in {self.folder}: {self.token} ({self.minutes} min)"


@dataclass(slots=True)
class Door:
    """The web server of one life of the host: its app, which is asked in the host's process."""

    process: Process
    app: Callable[..., Any]
    token: str


@dataclass(slots=True)
class Answer:
    """An answer of the host; the status is 0 where it gives none."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class Owner:
    """Carries out what the plan has the owner do."""

    def __init__(self, world: World, acts: tuple[OwnerAct, ...]) -> None:
        self._world = world
        self._acts = acts
        self.accepted: list[tuple[OwnerAct, float, float]] = []
        """Requests that the host answered as done, with the virtual seconds of request and answer."""
        self.unsure: list[OwnerAct] = []
        """Requests without a good answer: each may have been done."""
        self.changed: list[tuple[OwnerAct, float]] = []
        """Reminders whose move or end was answered as done, with the virtual seconds of the answer."""
        self.shown_pages = 0
        """Number of pages of the console that were shown."""
        self.broken_pages: list[str] = []
        """Pages of the console that were not shown, and why."""
        self._cookie = ""

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
        if act.kind == "console":
            await self._look_at_console(door)
            return
        method, path, body = act.request
        answer = await ask(world, door, method, path, body)
        world.note("said", f"the owner reads {answer.status or 'no answer'}, of {act.token}")
        if not 200 <= answer.status < 300:
            self.unsure.append(act)
            return
        self.accepted.append((act, asked_s, world.loop.time()))
        if act.kind in ("move", "cancel"):
            await self._think_again(act, str(json.loads(answer.body)["id"]))

    async def _think_again(self, act: OwnerAct, reminder: str) -> None:
        """Have a reminder that was just set come later, or not at all."""
        world = self._world
        await asyncio.sleep(world.loop.time() % 7)
        if (door := world.door) is None or door.process.is_dead:
            return
        world.note("said", f"the owner asks to {act.kind} the reminder of {act.token}")
        answer = await ask(world, door, "POST", f"/reminders/{reminder}/{act.kind}", act.second_thought)
        world.note("said", f"the owner reads {answer.status or 'no answer'}, of {act.token}")
        if answer.status == 200:
            self.changed.append((act, world.loop.time()))

    async def _look_at_console(self, door: Door) -> None:
        """Sign in to the console where no earlier session is left, and look at its pages."""
        world = self._world
        if not self._cookie:
            answer = await ask(world, door, "POST", "/console/sign-in", {"secret": door.token}, is_page=True)
            if answer.status == 0:
                return
            self._cookie = answer.headers.get("set-cookie", "").split(";")[0]
        for name in PAGES:
            answer = await ask(world, door, "GET", f"/console/{name}", {}, cookie=self._cookie)
            if answer.status == 0:
                return
            if answer.status == 200:
                self.shown_pages += 1
            elif not door.process.is_dead:
                self.broken_pages.append(f"{name}: {answer.status} {answer.headers.get('location', '')}")
        world.note("said", f"the owner has seen {self.shown_pages} pages of the console")

    def is_content(self) -> bool:
        """Return whether all that was asked for once is past its time."""
        now_s = self._world.loop.time()
        return all(
            read_s + (2 * act.minutes + 3) * 60 < now_s
            for act, _, read_s in self.accepted
            if act.kind in ("once", "reminder", "move", "cancel")
        )


async def ask(
    world: World,
    door: Door,
    method: str,
    path: str,
    body: dict[str, str],
    *,
    is_page: bool = False,
    cookie: str = "",
) -> Answer:
    """Return what a host answers to a request: with the token, or where it is for a page as a browser."""
    data = b"" if method == "GET" else urlencode(body).encode() if is_page else json.dumps(body).encode()
    answered: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    given = [{"type": "http.request", "body": data, "more_body": False}]
    headers = {"host": "127.0.0.1:8700", "content-length": str(len(data))}
    if is_page or cookie:
        headers |= {"user-agent": BROWSER, "content-type": "application/x-www-form-urlencoded"}
        headers |= {"cookie": cookie} if cookie else {}
    else:
        headers |= {"authorization": f"Bearer {door.token}", "content-type": "application/json"}
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
    answer = Answer()
    try:
        async with asyncio.timeout(WAITS_SECONDS):
            message = await answered.get()
            while message["type"] != "http.response.body" or message.get("more_body"):
                if message["type"] == "http.response.start":
                    answer.status = int(message["status"])
                    answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
                answer.body += message.get("body", b"")
                message = await answered.get()
            answer.body += message.get("body", b"")
            return answer
    except TimeoutError:
        return Answer()
