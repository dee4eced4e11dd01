"""Twenty groups at once through five slots: idle containers have to go for the others."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agent_runner.wire.files import write_whole
from agent_runner.wire.order import CLOSE_FILE, CloseOrder, Request, RunOrder, TurnOrder
from benchmarks import engine
from benchmarks.figures import Figure, Series, ratio_of
from benchmarks.host import RunningHost, running_host
from benchmarks.places import Effort, progress

GROUPS = 20
SLOTS = 5
ROUNDS = 3
TIMES_THE_FLOOR = 1.1
TEXT = "show the shopping list"


async def measure(effort: Effort) -> list[Figure]:
    """In turns with as many bare containers, each of which answers once and ends."""
    await asyncio.to_thread(engine.ensure_image)
    slots = effort.size(SLOTS, smallest=2)
    folders = [f"group{number:02d}" for number in range(effort.size(GROUPS, smallest=slots + 1))]
    andy: list[float] = []
    one_by_one: list[float] = []
    floor: list[float] = []
    for number in range(effort.times(ROUNDS)):
        andy.append(await _round(folders, slots))
        one_by_one.append(await _round(folders, slots, ANDY_FORESIGHT="0"))
        floor.append(await asyncio.to_thread(_floor, len(folders), slots))
        told = f"{andy[-1]:.2f} s, without overlap {one_by_one[-1]:.2f} s, floor {floor[-1]:.2f} s"
        progress(f"round {number + 1}: {told}")
    return [_figure(andy, one_by_one, floor)]


async def _round(folders: list[str], slots: int, **settings: str) -> float:
    settings["MAX_CONCURRENT_CONTAINERS"] = str(slots)
    async with running_host(runtime="docker", groups=folders, settings=settings) as host:
        return await all_answered(host, folders)


async def all_answered(host: RunningHost, folders: list[str]) -> float:
    """Seconds until every group has its reply."""
    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for folder in folders:
            tasks.create_task(host.say(folder, TEXT), name=f"say:{folder}")
    waiting = set(folders)
    while waiting:
        event = await host.event(lambda event: event["kind"] in ("message.sent", "turn.failed"))
        if event["kind"] == "turn.failed":
            raise RuntimeError(f"A turn failed: {event}")
        if event.get("turn") is not None:
            waiting.discard(event["group"])
    return time.monotonic() - began


def _floor(groups: int, slots: int) -> float:
    with engine.bare_engine() as bare, tempfile.TemporaryDirectory(prefix="andy-bench-") as root:
        inputs = [_input(Path(root), number) for number in range(groups)]
        with ThreadPoolExecutor(slots) as starters:
            list(starters.map(lambda _: engine.connect().close(), range(slots)))
            began = time.monotonic()
            list(starters.map(lambda each: _answer_once(bare, each), inputs))
            return time.monotonic() - began


def _input(root: Path, number: int) -> Path:
    """An `input/` that tells its run beforehand to end after the first turn."""
    folder = root / str(number)
    folder.mkdir()
    folder.chmod(0o755)
    write_whole(folder / CLOSE_FILE, CloseOrder(runs=(folder.name,)).to_json())
    return folder


def _answer_once(bare: engine.Bare, folder: Path) -> None:
    """What `docker run -i --rm` does: create, attach, start, feed, read to the end, wait, remove."""
    client = engine.connect()
    turn = TurnOrder(
        run=folder.name, turn=1, kind="chat", prompt=TEXT, requests=(Request(sender="bench", text=TEXT),)
    )
    order = RunOrder(run=folder.name, group="floor", chat_jid="local:floor", agent="offline", turn=turn)
    container = engine.BareContainer(client, bare, mounts=[(str(folder), "/workspace/ipc/input")])
    try:
        container.write(order.to_json())
        _check_answer(container.lines_to_end())
        container.wait()
    finally:
        container.remove()
        client.close()


def _check_answer(lines: list[str]) -> None:
    frames = [json.loads(line) for line in lines if line.startswith("{")]
    if not any(frame["kind"] == "turn_end" and frame["status"] == "success" for frame in frames):
        raise RuntimeError(f"The bare container did not answer: {lines}")


def _figure(andy: list[float], one_by_one: list[float], floor: list[float]) -> Figure:
    measured = Series(name=f"{GROUPS} groups, {SLOTS} slots", unit="s", values=tuple(andy))
    bare = Series(name=f"floor: {GROUPS} docker run, {SLOTS} at a time", unit="s", values=tuple(floor))
    return Figure(
        name="A fan-out, offline agent, docker",
        measured=measured,
        floor=bare,
        checks=(ratio_of(measured, bare, TIMES_THE_FLOOR),),
        details=(
            Series(name="each start after an end (ANDY_FORESIGHT=0)", unit="s", values=tuple(one_by_one)),
        ),
    )
