"""Files of a group that somebody other than its agent changes: real folders, real signals."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from orchestrator.loop import workspace
from orchestrator.loop.workspace import Workspaces, compare, files_of
from orchestrator.models import Folder
from tests.fakes.loop_house import LoopHouse
from tests.fakes.until import until


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "groups" / "family").mkdir(parents=True)
    return tmp_path / "groups"


@pytest.fixture
async def house(household) -> LoopHouse:
    house = LoopHouse(household)
    house.house.clock.wall_ms = time.time_ns() // 1_000_000
    await house.on(next_wake_ms=house.house.clock.now_ms() + 3_600_000)
    return house


@pytest.fixture
def spaces(house, root) -> Workspaces:
    return Workspaces(
        root, house.house.database, clock=house.house.clock, bus=house.house.bus, touched=house.loops.touched
    )


def write(root: Path, name: str, text: str = "x") -> Path:
    path = root / "family" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


async def test_a_file_that_somebody_changes_is_a_trigger_by_its_name(house, spaces, root):
    await spaces.look()
    write(root, "plan.md")
    write(root, "notes/old.txt")
    await spaces.look()

    (row,) = await house.house.rows("SELECT * FROM wakes")
    assert (row["kind"], row["reason"], row["is_direct"]) == ("workspace", "notes/old.txt, plan.md", 0)
    write(root, "more.md")
    await spaces.look()
    assert len(await house.pending()) == 1, "one is enough"


async def test_what_was_there_when_the_loop_began_is_no_change(house, spaces, root):
    write(root, "plan.md")
    await spaces.look()
    await spaces.look()
    assert await house.pending() == []


async def test_a_deleted_file_is_a_change(house, spaces, root):
    path = write(root, "plan.md")
    await spaces.look()
    path.unlink()
    await spaces.look()
    assert await house.pending() == ["workspace"]


async def test_bt_13_what_the_agent_writes_in_its_turn_is_no_trigger_but_an_action(house, spaces, root):
    await spaces.look()
    await house.house.hear("write it down")
    turn = await house.start()
    write(root, "plan.md")
    await spaces.look()
    assert house.loops.touched == {Folder("family")}
    await house.end(turn)
    (cycle,) = await house.cycles()
    assert cycle.outcome == "action"
    assert await house.pending() == []
    assert house.loops.touched == set()


async def test_bt_13_an_echo_within_three_seconds_is_no_trigger(house, spaces, root):
    await spaces.look()
    await house.house.hear("write it down")
    await house.end(await house.start())
    path = write(root, "plan.md")
    now = house.house.clock.now_ms() / 1000
    os.utime(path, (now + 2.9, now + 2.9))
    house.house.clock.pass_ms(60_000)
    await spaces.look()
    assert await house.pending() == [], "seen late, it is still its agent's"
    os.utime(path, (now + 3.5, now + 3.5))
    await spaces.look()
    assert await house.pending() == ["workspace"]


async def test_a_group_whose_loop_is_off_is_not_looked_at(house, spaces, root):
    await spaces.look()
    await house.act("off")
    write(root, "plan.md")
    await spaces.look()
    await house.act("on")
    await spaces.look()
    assert await house.pending() == []


async def test_a_change_is_signalled_at_once(house, spaces, root):
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(spaces.run(), name="workspaces")
        await until(lambda: spaces._watches, "it watches")
        write(root, "plan.md")

        async def is_seen() -> bool:
            return await house.pending() == ["workspace"]

        await until(is_seen, "the change is a trigger")
        running.cancel()


def test_nothing_that_a_container_made_is_followed(root):
    secret = root.parent / "secret"
    secret.mkdir()
    (secret / "key").write_text("x")
    (root / "family" / "link").symlink_to(secret)
    (root / "family" / "file").symlink_to(secret / "key")
    os.mkfifo(root / "family" / "pipe")
    write(root, "a/b/c/d/e/deep.md")
    write(root, "a/b/c/seen.md")
    write(root, ".hidden")
    write(root, "attachments/photo.jpg")

    assert list(files_of(root / "family")) == ["a/b/c/seen.md"]
    assert files_of(root / "nowhere") == {}


def test_a_tree_without_end_is_looked_at_in_part(root, monkeypatch):
    monkeypatch.setattr(workspace, "MAX_FILES", 5)
    for number in range(10):
        write(root, f"file-{number}")
    assert len(files_of(root / "family")) == 5


def test_a_change_without_any_turn_is_anothers():
    changes = compare({}, {"plan.md": (1_000, 1)}, [], now_ms=2_000)
    assert changes.by_others == ("plan.md",)
