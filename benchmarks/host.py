"""`andy up` as its users start it: a process of its own on a home of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
import psutil

from benchmarks.places import CHECKOUT, IMAGE, PROJECT, PYTHON
from orchestrator.cli.client import Client
from orchestrator.cli.terminal import change
from orchestrator.domain.values import ChatJid, Folder, Group
from orchestrator.groups.registration import ensure_main, register
from orchestrator.home.directory import Home

START_SECONDS = 120.0
STOP_SECONDS = 45.0
EVENT_SECONDS = 120.0
LOG, LOG_CHARS = "host.log", 4_000
INHERITED = ("PATH", "HOME", "LANG", "DOCKER_HOST", "TMPDIR", "VIRTUAL_ENV")
Event = dict[str, Any]


class OwnerClient(Client):
    """Asks the host over HTTP for changes that commands make in the store themselves.

    A measurement begins with the host's own commit, and the host of another checkout has a store of its own.
    """

    async def register(self, registration: dict[str, Any]) -> None:
        (await self._http.post("/groups", json=registration)).raise_for_status()

    async def unregister(self, folder: str) -> None:
        (await self._http.delete(f"/groups/{folder}")).raise_for_status()

    async def act_on_task(self, task_id: str, action: str) -> None:
        (await self._http.post(f"/tasks/{task_id}/{action}")).raise_for_status()


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    process: subprocess.Popen[bytes]
    port: int


@dataclass(slots=True, kw_only=True)
class RunningHost:
    """A started host, and what it has told since."""

    home: Home
    process: subprocess.Popen[bytes]
    client: OwnerClient
    start_seconds: float
    """From the start of the process to the first answer of `/healthz`."""
    _events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)

    async def say(self, group: str, text: str) -> str:
        """Write to a group without waiting for the reply; return the message's id."""
        place = await self.client.say(group, text, sender="bench", wait_seconds=0)
        return str(place["id"])

    async def event(self, is_wanted: Callable[[Event], bool]) -> Event:
        """Take events until the wanted one. Raises `TimeoutError`, telling what came instead."""
        seen: list[Event] = []
        try:
            async with asyncio.timeout(EVENT_SECONDS):
                while True:
                    seen.append(await self._events.get())
                    if is_wanted(seen[-1]):
                        return seen[-1]
        except TimeoutError as error:
            raise TimeoutError(f"The event did not come; these did: {seen[-20:]}") from error

    async def listen(self, is_listening: asyncio.Event) -> None:
        async for event in self.client.events():
            is_listening.set()
            if event:
                self._events.put_nowait(event)


def cpu_seconds(pid: int) -> float:
    """What all threads have used: to the nanosecond where the kernel tells, else in ticks of 10 ms."""
    told = [path.read_text(encoding="utf-8") for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    if told:
        return sum(int(each.split()[0]) for each in told) / 1e9
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def of_kind(kind: str, **ids: Any) -> Callable[[Event], bool]:
    """Whether an event is of `kind` and has these ids."""
    return lambda event: event["kind"] == kind and all(event.get(name) == ids[name] for name in ids)


@asynccontextmanager
async def running_host(
    *,
    runtime: Literal["docker", "process", "swarm"],
    groups: Iterable[str] = (),
    agent: Literal["claude", "offline"] = "offline",
    settings: Mapping[str, str] | None = None,
    listens: bool = True,
) -> AsyncIterator[RunningHost]:
    """Start a host; at the end it is gone with its containers, its network and its home.

    Without `listens` no client is connected and no event can be awaited.
    """
    async with (
        own_home(groups, runtime=runtime) as home,
        host_on(home, runtime=runtime, agent=agent, settings=settings, listens=listens) as host,
    ):
        yield host


@asynccontextmanager
async def host_on(
    home: Home,
    *,
    runtime: Literal["docker", "process", "swarm"],
    agent: Literal["claude", "offline"] = "offline",
    settings: Mapping[str, str] | None = None,
    listens: bool = True,
) -> AsyncIterator[RunningHost]:
    """Start a host on a home that is there; at the end its process is gone."""
    async with _process(home, runtime=runtime, agent=agent, settings=settings or {}) as started:
        start_seconds = await _until_healthy(home, started)
        async with OwnerClient.of(home) as client:
            host = RunningHost(home=home, process=started.process, client=client, start_seconds=start_seconds)
            async with _listening(host) if listens else nullcontext():
                yield host


@asynccontextmanager
async def own_home(
    groups: Iterable[str] = (), *, runtime: Literal["docker", "process", "swarm"]
) -> AsyncIterator[Home]:
    """Make a home with these groups; at the end it is gone with its containers and its network."""
    home = Home(Path(tempfile.mkdtemp(prefix="andy-bench-")))
    try:
        if CHECKOUT == PROJECT:
            await register_all(home, groups)
        else:
            await _register_at_its_host(home, groups)
        yield home
    except Exception as error:
        error.add_note(_last_words(home))
        raise
    finally:
        await asyncio.to_thread(_clear, home, runtime)


async def register_all(home: Home, folders: Iterable[str]) -> None:
    async def act(tx: Any, now_ms: int) -> None:
        await ensure_main(tx, now_ms=now_ms)
        for folder in folders:
            group = Group(
                jid=ChatJid(f"local:{folder}"),
                name=folder,
                folder=Folder(folder),
                requires_trigger=False,
                added_ms=now_ms,
            )
            await register(tx, group)

    await change(home.root, act, makes_home=True)


async def _register_at_its_host(home: Home, folders: Iterable[str]) -> None:
    """Have a host of the other checkout register groups and end: only it knows how its store is written."""
    asked = [{"folder": folder, "requires_trigger": False} for folder in folders]
    if asked:
        async with host_on(home, runtime="process", listens=False) as host:
            for one in asked:
                await host.client.register(one)


@asynccontextmanager
async def _process(
    home: Home, *, runtime: str, agent: str, settings: Mapping[str, str]
) -> AsyncIterator[Started]:
    port = _free_port()
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    command = [PYTHON, "-m", "orchestrator", "up", "--home", str(home.root)]
    command += ["--runtime", runtime, "--agent", agent, "--port", str(port)]
    environment = {**inherited, "ANDY_IMAGE": IMAGE, "ANDY_LOG_LEVEL": "warning", **settings}
    process = _started(command, environment, log=home.root / LOG)
    try:
        yield Started(process=process, port=port)
    finally:
        await asyncio.to_thread(_stop, process)


def _started(command: list[str], environment: Mapping[str, str], *, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(
            command, cwd=CHECKOUT, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )


async def _until_healthy(home: Home, started: Started) -> float:
    """Seconds until `/healthz` answers. Raises `RuntimeError` with the log when it never does."""
    began = time.monotonic()
    address = f"http://127.0.0.1:{started.port}"
    async with httpx.AsyncClient(base_url=address, timeout=START_SECONDS, trust_env=False) as http:
        while started.process.poll() is None and time.monotonic() - began < START_SECONDS:
            with contextlib.suppress(httpx.ConnectError):
                (await http.get("/healthz")).raise_for_status()
                seconds = time.monotonic() - began
                await _until_addressed(home, address)
                return seconds
            await asyncio.sleep(0.005)
    raise RuntimeError("The host did not start.")


def _last_words(home: Home) -> str:
    log = home.root / LOG
    return log.read_text(encoding="utf-8", errors="replace")[-LOG_CHARS:] if log.is_file() else ""


async def _until_addressed(home: Home, address: str) -> None:
    """Wait until the address file names this host, which answers a moment before it writes it.

    One that was killed has left its own address there.
    """
    async with asyncio.timeout(START_SECONDS):
        while not _is_addressed(home, address):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)


def _is_addressed(home: Home, address: str) -> bool:
    return home.address_file.is_file() and home.address_file.read_text(encoding="utf-8").strip() == address


@asynccontextmanager
async def _listening(host: RunningHost) -> AsyncIterator[None]:
    is_listening = asyncio.Event()
    listener = asyncio.create_task(host.listen(is_listening), name="listen")
    try:
        await is_listening.wait()
        yield
    finally:
        listener.cancel()
        await asyncio.wait({listener})


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _clear(home: Home, runtime: str) -> None:
    install_file = home.data / "install"
    if runtime == "docker" and install_file.is_file():
        from benchmarks.engine import clear_install

        clear_install(install_file.read_text(encoding="utf-8").strip())
    shutil.rmtree(home.root, ignore_errors=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
