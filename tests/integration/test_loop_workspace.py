"""Files of a group that somebody other than its agent changes: real folders, real signals."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from watchdog.observers import Observer

from agent_runner.wire.frames import TurnEnd
from orchestrator.domain.values import Folder
from orchestrator.loop import workspace
from orchestrator.loop.workspace import Workspaces, compare, files_of
from tests.support.loop_harness import LoopHarness
from tests.support.until import until


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "groups" / "family").mkdir(parents=True)
    return tmp_path / "groups"


@pytest.fixture
async def harness(store_harness) -> LoopHarness:
    harness = LoopHarness(store_harness)
    harness.harness.clock.wall_ms = time.time_ns() // 1_000_000
    await harness.on(next_wake_ms=harness.harness.clock.now_ms() + 3_600_000)
    return harness


@pytest.fixture
async def spaces(harness, root) -> AsyncIterator[Workspaces]:
    async with looking(harness, root) as made:
        yield made


@asynccontextmanager
async def looking(harness: LoopHarness, root: Path) -> AsyncIterator[Workspaces]:
    """What a host looks with, until it ends."""
    made = Workspaces(
        root,
        harness.harness.database,
        clock=harness.harness.clock,
        bus=harness.harness.bus,
        changed_by_agent=harness.recorder.changed_by_agent,
    )
    yield made
    await asyncio.to_thread(made.stop)


def write(root: Path, name: str, text: str = "x") -> Path:
    path = root / "family" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


async def test_a_file_that_somebody_changes_is_a_trigger_by_its_name(harness, spaces, root):
    await spaces.look()
    write(root, "plan.md")
    write(root, "notes/old.txt")
    await spaces.look()

    (row,) = await harness.harness.rows("SELECT * FROM wakes")
    assert (row["kind"], row["reason"], row["is_direct"]) == ("workspace", "notes/old.txt, plan.md", 0)
    write(root, "more.md")
    await spaces.look()
    assert len(await harness.pending()) == 1, "one is enough"


async def test_a_name_that_is_no_utf_8_or_turns_the_writing_is_a_trigger_with_escapes(harness, spaces, root):
    await spaces.look()
    write(root, os.fsdecode(b"caf\xe9.txt"))
    write(root, "\u202egnp.txt")
    await spaces.look()
    assert await reasons(harness) == ["caf\\udce9.txt, \\u202egnp.txt"]


async def test_a_group_whose_files_cannot_be_compared_stops_no_other(harness, spaces, root, monkeypatch):
    await harness.on("work", next_wake_ms=harness.harness.clock.now_ms() + 3_600_000)
    (root / "work").mkdir()
    await spaces.look()
    for folder in ("family", "work"):
        (root / folder / "plan.md").write_text("x")

    def broken(folder: Path) -> workspace.Files:
        if folder.name == "family":
            raise ValueError("an odd file")
        return files_of(folder)

    monkeypatch.setattr(workspace, "files_of", broken)
    await spaces.look()
    rows = await harness.harness.rows("SELECT group_folder FROM wakes")
    assert [row["group_folder"] for row in rows] == ["work"]


async def test_what_was_there_when_the_loop_began_is_no_change(harness, spaces, root):
    write(root, "plan.md")
    await spaces.look()
    await spaces.look()
    assert await harness.pending() == []


async def test_a_deleted_file_is_a_change(harness, spaces, root):
    path = write(root, "plan.md")
    await spaces.look()
    path.unlink()
    await spaces.look()
    assert await harness.pending() == ["workspace"]


async def test_bt_13_what_the_agent_writes_in_its_turn_is_no_trigger_but_an_action(harness, spaces, root):
    await spaces.look()
    await harness.harness.hear("write it down")
    turn = await harness.start()
    write(root, "plan.md")
    await spaces.look()
    assert harness.recorder.changed_by_agent == {Folder("family")}
    await harness.end(turn)
    (cycle,) = await harness.cycles()
    assert cycle.outcome == "action"
    assert await harness.pending() == []
    assert harness.recorder.changed_by_agent == set()


async def test_a_cycle_that_only_changed_files_did_something_also_when_the_next_turn_begins_at_once(
    harness, spaces, root
):
    await spaces.look()
    await harness.harness.hear("write it down")
    turn = await harness.start()
    write(root, "plan.md")
    await spaces.look()
    await harness.take(turn, TurnEnd(n=2, turn=turn.id))
    async with harness.harness.database.transaction() as tx:
        await tx.execute("UPDATE runs SET ended_ms = 1")
    await harness.harness.hear("and now?")
    await harness.end(await harness.start())
    assert [cycle.outcome for cycle in await harness.cycles()] == ["action", "noop"]


async def test_bt_13_an_echo_within_three_seconds_is_no_trigger(harness, spaces, root):
    await spaces.look()
    await harness.harness.hear("write it down")
    await harness.end(await harness.start())
    path = write(root, "plan.md")
    now = harness.harness.clock.now_ms() / 1000
    os.utime(path, (now + 2.9, now + 2.9))
    harness.harness.clock.pass_ms(60_000)
    await spaces.look()
    assert await harness.pending() == [], "seen late, it is still its agent's"
    os.utime(path, (now + 3.5, now + 3.5))
    await spaces.look()
    assert await harness.pending() == ["workspace"]


async def test_a_group_whose_loop_is_off_is_not_looked_at(harness, spaces, root):
    await spaces.look()
    await harness.act("off")
    write(root, "plan.md")
    await spaces.look()
    await harness.act("on")
    await spaces.look()
    assert await harness.pending() == []


async def test_a_change_is_signalled_at_once(harness, spaces, root):
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(spaces.run(), name="workspaces")
        await until(lambda: spaces._watches and spaces._last_listings, "it watches, and has looked")
        write(root, "plan.md")

        async def is_seen() -> bool:
            return await harness.pending() == ["workspace"]

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


# What nobody saw as it happened


@pytest.fixture
async def next_host(harness, root) -> AsyncIterator[Workspaces]:
    """A host that begins later on the same home."""
    async with looking(harness, root) as made:
        yield made


async def reasons(harness) -> list[str]:
    return [
        row["reason"]
        for row in await harness.harness.rows("SELECT reason FROM wakes WHERE kind = 'workspace'")
    ]


def changed_at(harness, path: Path, *, after_ms: int) -> None:
    seconds = (harness.harness.clock.now_ms() + after_ms) / 1000
    os.utime(path, (seconds, seconds))


async def test_what_changed_while_no_host_ran_is_noticed_as_one_begins(harness, spaces, next_host, root):
    changed_at(harness, write(root, "old.md"), after_ms=-60_000)
    await spaces.look()
    changed_at(harness, write(root, "plan.md"), after_ms=60_000)
    harness.harness.clock.pass_ms(120_000)
    await next_host.look()
    assert await reasons(harness) == ["plan.md"]
    await next_host.look()
    assert await reasons(harness) == ["plan.md"]


async def test_what_did_not_change_while_no_host_ran_is_no_trigger(harness, spaces, next_host, root):
    write(root, "plan.md")
    await spaces.look()
    harness.harness.clock.pass_ms(120_000)
    await next_host.look()
    assert await harness.pending() == []


async def test_what_was_removed_while_no_host_ran_is_noticed_without_its_name(
    harness, spaces, next_host, root
):
    path = write(root, "plan.md")
    await spaces.look()
    path.unlink()
    harness.harness.clock.pass_ms(120_000)
    await next_host.look()
    assert await reasons(harness) == [workspace.UNNAMED]


@pytest.mark.parametrize("removes", [True, False])
async def test_what_its_agent_did_while_no_host_ran_is_its_own(harness, spaces, next_host, root, removes):
    path = write(root, "plan.md")
    await spaces.look()
    await harness.harness.hear("write it down")
    await harness.start()  # its container lives on without a host
    harness.harness.clock.pass_ms(60_000)
    if removes:
        path.unlink()
    else:
        changed_at(harness, path, after_ms=-1_000)
    await next_host.look()
    assert await harness.pending() == []
    assert harness.recorder.changed_by_agent == {Folder("family")}


async def test_a_change_right_after_its_agents_turn_is_noticed_by_a_host_that_begins(
    harness, spaces, next_host, root
):
    await spaces.look()
    await harness.harness.hear("write it down")
    turn = await harness.start()
    path = write(root, "plan.md")
    await spaces.look()
    await harness.end(turn)
    changed_at(harness, path, after_ms=10_000)
    harness.harness.clock.pass_ms(20_000)
    await next_host.look()
    assert await reasons(harness) == ["plan.md"]


async def test_a_turn_that_waits_for_its_next_attempt_changes_nothing(harness, spaces, root):
    await spaces.look()
    await harness.harness.hear("write it down")
    _, run, _ = await harness.harness.start_next()
    await harness.harness.lose(run)
    changed_at(harness, write(root, "plan.md"), after_ms=60_000)
    harness.harness.clock.pass_ms(90_000)
    await spaces.look()
    assert await reasons(harness) == ["plan.md"]


async def test_a_loop_that_was_off_begins_with_what_is_there(harness, spaces, next_host, root):
    await spaces.look()
    await harness.act("off")
    await spaces.look()
    changed_at(harness, write(root, "plan.md"), after_ms=60_000)
    await harness.act("on")
    harness.harness.clock.pass_ms(90_000)
    await next_host.look()
    assert await harness.pending() == []


async def test_a_loop_that_was_off_while_no_host_ran_begins_with_what_is_there(
    harness, spaces, next_host, root
):
    await spaces.look()
    changed_at(harness, write(root, "plan.md"), after_ms=60_000)
    await harness.act("off")
    await harness.act("on")
    harness.harness.clock.pass_ms(90_000)
    await next_host.look()
    assert await harness.pending() == []
    changed_at(harness, write(root, "later.md"), after_ms=60_000)
    harness.harness.clock.pass_ms(90_000)
    await next_host.look()
    assert await reasons(harness) == ["later.md"]


@pytest.mark.parametrize("changes", [True, False])
async def test_a_loop_that_was_off_between_two_looks_begins_with_what_is_there(
    harness, spaces, root, changes
):
    await spaces.look()
    if changes:
        write(root, "plan.md")
    await harness.act("off")
    await harness.act("on")
    await spaces.look()
    assert await harness.pending() == []
    write(root, "later.md")
    await spaces.look()
    assert await reasons(harness) == ["later.md"]


async def test_a_loop_that_is_switched_on_again_or_was_paused_forgets_no_change(
    harness, spaces, next_host, root
):
    await spaces.look()
    changed_at(harness, write(root, "plan.md"), after_ms=60_000)
    for action in ("on", "pause", "on", "pause", "resume"):
        await harness.act(action)
    harness.harness.clock.pass_ms(90_000)
    await next_host.look()
    assert await reasons(harness) == ["plan.md"]


async def test_where_the_system_signals_nothing_the_folder_is_looked_at_all_the_same(
    harness, spaces, root, monkeypatch
):
    """As when other programs have taken all that Linux has of inotify."""

    def none_left() -> None:
        raise OSError(24, "inotify instance limit reached")

    monkeypatch.setattr(workspace, "Observer", none_left)
    monkeypatch.setattr(workspace, "BLIND_SWEEP_SECONDS", 0.05)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(spaces.run(), name="workspaces")
        await until(lambda: spaces._last_listings, "it has looked")
        write(root, "plan.md")

        async def is_seen() -> bool:
            return await harness.pending() == ["workspace"]

        await until(is_seen, "the change is a trigger")
        monkeypatch.setattr(workspace, "Observer", Observer)
        await until(lambda: spaces._watches, "it watches as soon as it can")
        running.cancel()
