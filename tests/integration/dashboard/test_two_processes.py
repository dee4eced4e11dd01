"""Two processes on one database: whoever decided upon an old state is told, and no change is lost."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from orchestrator.dashboard.service import DashboardService
from orchestrator.domain.values import TurnKind
from orchestrator.store.board import tasks as board_tasks
from orchestrator.store.database import Database
from tests.doubles.clock import FakeClock
from tests.support.dashboard_harness import FOLDER, DashboardHarness, blog
from tests.support.store_harness import StoreHarness

ROOT = Path(__file__).resolve().parents[3]
ROUNDS = 20
OTHER = """
import asyncio, json, sys
from pathlib import Path
from zoneinfo import ZoneInfo
from orchestrator.base.clock import SystemClock
from orchestrator.dashboard.service import DashboardService
from orchestrator.store.database import Database

async def main():
    clock = SystemClock()
    database = await Database.open(Path(sys.argv[1]))
    service = DashboardService(database, clock=clock,
                zone_of=lambda _: ZoneInfo("Asia/Seoul"), can_deliver=lambda _: True)
    for line in sys.stdin:
        request = json.loads(line)
        tool, given, version = request["tool"], request["arguments"], request.get("version")
        result = await service.call_tool("family", tool, given, expect_version=version)
        print(json.dumps({"code": result.code, "data": result.data}), flush=True)
    await database.close()

asyncio.run(main())
"""


class Other:
    """A process of its own that uses the same dashboard."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, database: Path) -> Other:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            OTHER,
            str(database),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        return cls(process)

    async def call_tool(self, tool: str, version: int | None = None, /, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        wish = {"tool": tool, "arguments": arguments, "version": version}
        self._process.stdin.write(json.dumps(wish).encode() + b"\n")
        answer: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return answer

    async def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        assert await self._process.wait() == 0


async def open_harness(path: Path) -> tuple[Database, DashboardHarness]:
    database = await Database.open(path)
    store_harness = StoreHarness(database, FakeClock())
    await store_harness.add_group("family")
    home = DashboardHarness(store_harness)
    await home.put(blog(deadline=None, pct=0))
    return database, home


async def test_at_30_two_processes_lose_no_update(tmp_path: Path) -> None:
    path = tmp_path / "messages.db"
    database, home = await open_harness(path)
    other = await Other.start(path)
    try:
        await asyncio.gather(
            *(counted_here(home.service, database) for _ in range(2)),
            counted_there(other),
        )
        task = await home.task("task_001")
        assert task.pct == 3 * ROUNDS
    finally:
        await other.end()
        await database.close()


async def counted_here(service: DashboardService, database: Database) -> None:
    """Count up by one so often, each upon what was read, again when it was stale."""
    done = 0
    while done < ROUNDS:
        async with database.reading() as tx:
            task = await board_tasks.get(tx, FOLDER, "task_001")
        assert task is not None
        arguments = {"task_id": task.id, "progress": task.pct + 1}
        result = await service.call_tool(FOLDER, "update_task", arguments, expect_version=task.version)
        assert result.code in ("ok", "STALE")
        done += result.ok


async def counted_there(other: Other) -> None:
    done = 0
    seen = (await other.call_tool("update_task", -1, task_id="task_001", progress=0))["data"]["row"]
    while done < ROUNDS:
        answer = await other.call_tool(
            "update_task", seen["version"], task_id="task_001", progress=seen["progress"] + 1
        )
        assert answer["code"] in ("ok", "STALE")
        seen = answer["data"] if answer["code"] == "ok" else answer["data"]["row"]
        done += answer["code"] == "ok"


async def test_at_30_a_change_of_another_process_makes_a_turn_look_again(tmp_path: Path) -> None:
    path = tmp_path / "messages.db"
    database, home = await open_harness(path)
    other = await Other.start(path)
    try:
        async with home.turn(TurnKind.WORKER):
            assert (await other.call_tool("update_task", task_id="task_001", progress=90))["code"] == "ok"
            stale = await home.ask("update_task", task_id="task_001", progress=10)
        assert (stale.code, stale.data["row"]["progress"]) == ("STALE", 90)
        assert (await home.task("task_001")).pct == 90
    finally:
        await other.end()
        await database.close()
