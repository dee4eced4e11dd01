"""Undo of files: what a turn changed in its group's folder is put back, whatever a container leaves there."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runner.wire import trees
from orchestrator.base.clock import SystemClock
from orchestrator.cli.main import app
from orchestrator.domain.values import Folder, Turn
from orchestrator.store.database import Database, Tx
from orchestrator.undo import file_effects, files
from orchestrator.undo.service import BuiltOn, NothingToUndo, NotYet
from tests.doubles.clock import FakeClock
from tests.support.store_harness import StoreHarness
from tests.support.undo_harness import UndoHarness, use

TASK = use("create_task", title="Shed list")
Snapshot = dict[str, tuple[str, bytes]]


@pytest.fixture
async def undo(store_harness: StoreHarness, tmp_path: Path) -> UndoHarness:
    harness = UndoHarness(store_harness, tmp_path)
    await harness.add_groups()
    harness.folder()
    return harness


def contents(folder: Path) -> Snapshot:
    """All that lies in a folder: kind and bytes, or where a link points."""
    found: Snapshot = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", os.fsencode(path.readlink()))
        elif path.is_dir():
            found[name] = ("dir", b"")
        elif path.is_file():
            found[name] = (f"file {path.stat().st_mode & 0o777:o}", path.read_bytes())
    return found


async def caught_up(undo: UndoHarness, folder: str = "family") -> None:
    await undo.feature.catch_up(Folder(folder))


def many_changes(folder: Path) -> None:
    (folder / "notes.md").write_text("changed")
    (folder / "old.txt").unlink()
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "new.txt").write_text("new")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "run.sh").chmod(0o755)


async def test_files_and_rows_are_put_back_and_undo_again_brings_them_back(undo: UndoHarness) -> None:
    folder = undo.folder()
    (folder / "notes.md").write_text("first")
    (folder / "old.txt").write_text("old")
    (folder / "run.sh").write_text("#!/bin/sh")
    (folder / "run.sh").chmod(0o644)
    before, rows = contents(folder), await undo.state()
    turn = await undo.turn(TASK, writes=many_changes)
    after, later_rows = contents(folder), await undo.state()
    # Nobody has compared the files yet: who says "undo" is faster.
    said = await undo.say("@Andy undo that")
    assert "the file “notes.md” is as it was" in said
    assert "the file “old.txt” is back" in said
    assert "the file “deep/er/new.txt” is gone" in said
    await caught_up(undo)
    assert contents(folder) == before
    assert await undo.state() == rows
    await undo.say("@Andy undo")
    await caught_up(undo)
    assert contents(folder) == after
    assert await undo.state() == later_rows
    assert not undo.feature.files.is_open("family", turn.id)


async def test_the_command_line_puts_back_files_that_nobody_has_compared_yet(
    undo: UndoHarness, tmp_path: Path
) -> None:
    undo.store.clock.wall_ms = SystemClock().now_ms()
    folder = undo.folder()
    for name in ("notes.md", "old.txt", "run.sh"):
        (folder / name).write_text("first")
    before = contents(folder)
    turn = await undo.turn(writes=many_changes)
    assert undo.feature.files.is_open("family", turn.id)
    words = ("undo", "family", "--home", str(tmp_path))
    await asyncio.to_thread(app, words, result_action="return_value")
    assert contents(folder) == before
    # The host that hears of it finds nothing left to do.
    await caught_up(undo)
    assert contents(folder) == before


async def test_a_file_that_was_changed_since_is_asked_about_and_comes_back_with_the_undo_of_the_undo(
    undo: UndoHarness,
) -> None:
    folder = undo.folder()
    (folder / "notes.md").write_text("first")
    turn = await undo.turn(writes=lambda at: (at / "notes.md").write_text("second"))
    await caught_up(undo)
    (folder / "notes.md").write_text("by the owner")
    with pytest.raises(BuiltOn, match=r"notes\.md"):
        await undo.undo(turn.id)
    assert (folder / "notes.md").read_text() == "by the owner"
    number = await undo.undo(turn.id, is_forced=True)
    await caught_up(undo)
    assert (folder / "notes.md").read_text() == "first"
    await undo.undo(number)
    await caught_up(undo)
    assert (folder / "notes.md").read_text() == "by the owner"


async def test_a_sweep_keeps_the_contents_of_changes_that_are_recorded_while_it_removes_others(
    undo: UndoHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    (undo.folder() / "notes.md").write_text("first")
    turn = await undo.turn(writes=lambda at: (at / "notes.md").write_text("second"))
    swept, loop, is_recorded_or_waits = undo.feature.files, asyncio.get_running_loop(), threading.Event()
    recordings = []

    class WatchedLock(asyncio.Lock):
        async def acquire(self) -> Literal[True]:
            if self.locked():
                is_recorded_or_waits.set()
            return await super().acquire()

    def collect_during_a_recording(folder: str, hashes: Collection[str]) -> None:
        recording = asyncio.run_coroutine_threadsafe(caught_up(undo, folder), loop)
        recording.add_done_callback(lambda _: is_recorded_or_waits.set())
        recordings.append(recording)
        assert is_recorded_or_waits.wait(60)
        collect(folder, hashes)

    collect = swept.collect
    monkeypatch.setitem(undo.feature._locks, "family", WatchedLock())
    # As if the turn had ended after the sweep looked for such turns.
    monkeypatch.setattr(swept, "with_open_turns", list)
    monkeypatch.setattr(swept, "collect", collect_during_a_recording)
    await undo.feature.sweep()
    await asyncio.wrap_future(recordings[0])
    await undo.undo(turn.id)
    await caught_up(undo)
    assert (undo.folder() / "notes.md").read_text() == "first"


async def test_a_sweep_that_cannot_read_what_is_needed_removes_nothing(
    undo: UndoHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    (undo.folder() / "notes.md").write_text("first")
    turn = await undo.turn(writes=lambda at: (at / "notes.md").write_text("second"))
    snapshots = undo.feature.files

    def too_many(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(snapshots, "_read_tree", too_many)
        snapshots.collect("family", ())
    await caught_up(undo)
    await undo.undo(turn.id)
    await caught_up(undo)
    assert (undo.folder() / "notes.md").read_text() == "first"


async def test_what_others_put_into_a_new_folder_stays(undo: UndoHarness) -> None:
    turn = await undo.turn(writes=lambda at: (at / "made").mkdir())
    await caught_up(undo)
    (undo.folder() / "made" / "mine.txt").write_text("mine")
    await undo.undo(turn.id)
    await caught_up(undo)
    assert contents(undo.folder()) == {"made": ("dir", b""), "made/mine.txt": ("file 644", b"mine")}


async def test_a_new_folder_alone_is_named_and_one_that_others_filled_is_no_later_change(
    undo: UndoHarness,
) -> None:
    await undo.turn(writes=lambda at: (at / "made").mkdir())
    await caught_up(undo)
    (undo.folder() / "made" / "mine.txt").write_text("mine")
    assert "the folder “made” is gone" in await undo.say("@Andy undo")
    await caught_up(undo)
    assert "the folder “made” is back" in await undo.say("@Andy undo")
    await caught_up(undo)
    assert contents(undo.folder()) == {"made": ("dir", b""), "made/mine.txt": ("file 644", b"mine")}


async def test_a_name_of_a_file_may_have_any_bytes_and_passes_for_no_other_text(undo: UndoHarness) -> None:
    names = (b"bad\xff\xfename", b"new\nline", "\u202egnp.exe".encode(), b"*@Andy*", b"n" * 250)

    def write(at: Path) -> None:
        for name in names:
            Path(os.fsdecode(os.fsencode(at) + b"/" + name)).write_text("x")

    before = contents(undo.folder())
    await undo.turn(writes=write)
    said = await undo.say("@Andy undo that")
    assert "the file “bad\\udcff\\udcfename” is gone" in said
    assert "the file “\\u202egnp.exe” is gone" in said
    await caught_up(undo)
    assert contents(undo.folder()) == before
    assert await undo.say("@Andy undo")
    await caught_up(undo)
    assert set(os.listdir(os.fsencode(undo.folder()))) == set(names)  # noqa: PTH208 - names in bytes


async def test_what_came_with_messages_and_what_an_agent_keeps_of_a_talk_is_no_effect(
    undo: UndoHarness,
) -> None:
    def write(at: Path) -> None:
        for name in ("attachments", "conversations"):
            (at / name).mkdir()
            (at / name / "x").write_text("x")
        (at / ".andy-talk.json").write_text("{}")

    turn = await undo.turn(writes=write)
    await caught_up(undo)
    assert await undo.store.rows("SELECT * FROM turn_effects WHERE turn_id = ?", turn.id) == []


async def test_the_contents_are_kept_once_and_go_with_what_can_be_undone(undo: UndoHarness) -> None:
    for number in range(4):
        await undo.turn(writes=lambda at, n=number: (at / "a").write_text(f"{n % 2}"))
        await caught_up(undo)
    content = undo.root / "data" / "undo" / "family" / "content"
    assert len(list(content.iterdir())) == 2
    assert {one.stat().st_mode & 0o777 for one in (content, content.parent, content.parent.parent)} == {0o700}
    async with undo.store.database.transaction() as tx:
        await tx.execute("UPDATE turn_effects SET at_ms = 0")
    await undo.feature.sweep()
    assert [one.read_text() for one in content.iterdir()] == ["1"], (
        "what is there now is needed by the next turn"
    )


async def test_a_list_of_files_that_was_cut_off_is_written_again(undo: UndoHarness, tmp_path: Path) -> None:
    snapshots = files.GroupFiles(tmp_path)
    (undo.folder() / "a").write_text("1")
    snapshots.begin("family", 1)
    trees_folder = tmp_path / "data" / "undo" / "family" / "trees"
    (tree,) = trees_folder.iterdir()
    body = tree.read_text()
    tree.write_text("")  # as a power cut leaves a new file whose bytes were not on the disk yet

    files.GroupFiles(tmp_path).begin("family", 2)

    assert tree.read_text() == body


async def test_a_content_that_was_cut_off_is_stored_again(undo: UndoHarness, tmp_path: Path) -> None:
    (undo.folder() / "a").write_text("1")
    files.GroupFiles(tmp_path).begin("family", 1)
    (content,) = (tmp_path / "data" / "undo" / "family" / "content").iterdir()
    content.write_text("")  # as a power cut leaves a new file whose bytes were not on the disk yet

    files.GroupFiles(tmp_path).begin("family", 2)

    assert content.read_text() == "1"


async def test_what_is_forgotten_is_in_no_snapshot(undo: UndoHarness) -> None:
    await undo.turn(writes=lambda at: (at / "a").write_text("secret"))
    await caught_up(undo)
    shutil.rmtree(undo.root / "data" / "undo" / "family")
    turn = await undo.turn(writes=lambda at: (at / "a").write_text("plain"))
    await undo.undo(turn.id)
    await caught_up(undo)
    assert (undo.folder() / "a").read_text() == "secret", "it was there when the turn began"


# A kill at each step


class Killed(BaseException):
    """The host is gone at this point."""


STEPS: list[tuple[object, str]] = [
    (files.GroupFiles, "put"),
    (files.GroupFiles, "_put"),
    (files.GroupFiles, "now"),
    (files.GroupFiles, "close"),
    (trees, "put_file"),
    (trees, "put_link"),
    (trees, "put_directory"),
    (trees, "remove_one"),
    (trees, "make_room"),
    (os, "rename"),
    (os, "unlink"),
    (os, "rmdir"),
    (os, "fchmod"),
    (file_effects.turn_effects, "put_back"),
    (file_effects.turn_effects, "add"),
    (file_effects.undos, "add"),
    (file_effects.undos, "note_files_done"),
]


async def test_the_chat_is_told_of_a_file_that_could_not_be_put_back(
    undo: UndoHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = undo.folder()
    (folder / "notes.md").write_text("first")
    await undo.turn(TASK, writes=lambda place: (place / "notes.md").write_text("second"))
    assert "the file “notes.md” is as it was" in await undo.say("@Andy undo that")

    def full(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(trees, "put_file", full)
        await caught_up(undo)
    await caught_up(undo)

    told = [row["text"] for row in await undo.store.rows("SELECT text FROM outbox ORDER BY id DESC LIMIT 2")]
    assert told[0].startswith("⚠️ I could not put back: the file “notes.md”.")
    assert not told[1].startswith("⚠️")


@pytest.mark.parametrize("after", [0, 1, 2, 5, 9])
@pytest.mark.parametrize(("place", "name"), STEPS)
async def test_a_kill_at_any_step_leaves_it_done_or_not_done(
    undo: UndoHarness, monkeypatch: pytest.MonkeyPatch, place: object, name: str, after: int
) -> None:
    folder = undo.folder()
    (folder / "notes.md").write_text("first")
    (folder / "old.txt").write_text("old")
    (folder / "run.sh").write_text("#!/bin/sh")
    before, rows = contents(folder), await undo.state()
    turn = await undo.turn(TASK, writes=many_changes)
    later, later_rows = contents(folder), await undo.state()
    left = after

    def killing(real: Callable[..., object]) -> Callable[..., object]:
        def step(*args: object, **kwargs: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return real(*args, **kwargs)

        return step

    with monkeypatch.context() as patch:
        patch.setattr(place, name, killing(getattr(place, name)))
        try:
            await undo.undo(turn.id)
            await caught_up(undo)
        except Killed:
            pass
    # The next host knows nothing but what is on the disk.
    undo = UndoHarness(undo.store, undo.root)
    await undo.feature.sweep()
    is_done = bool(await undo.store.rows("SELECT 1 FROM undos"))
    assert contents(folder) == (before if is_done else later)
    assert await undo.state() == (rows if is_done else later_rows)
    if not is_done:
        await undo.undo(turn.id)
        await caught_up(undo)
        assert contents(folder) == before


# A hostile container


def secret_of(undo: UndoHarness) -> Path:
    secret = undo.root / "secret.txt"
    secret.write_text("the key")
    return secret


async def test_links_are_kept_as_what_they_say_and_followed_nowhere(undo: UndoHarness) -> None:
    secret, folder = secret_of(undo), undo.folder()
    (folder / "notes").mkdir()
    (folder / "notes" / "a").write_text("mine")

    def swap(at: Path) -> None:
        shutil.rmtree(at / "notes")
        (at / "notes").symlink_to(undo.root)
        (at / "stolen").symlink_to(secret)

    turn = await undo.turn(writes=swap)
    await caught_up(undo)
    kept = [one.read_bytes() for one in (undo.root / "data" / "undo" / "family" / "content").iterdir()]
    assert kept == [b"mine"]
    await undo.undo(turn.id)
    await caught_up(undo)
    assert contents(folder) == {"notes": ("dir", b""), "notes/a": ("file 644", b"mine")}
    assert secret.read_text() == "the key"


async def test_a_link_whose_target_is_no_utf_8_ends_no_sweep_and_is_undone(undo: UndoHarness) -> None:
    (undo.folder() / "notes.md").write_text("first")

    def write(at: Path) -> None:
        (at / "notes.md").write_text("second")
        (at / "link").symlink_to(os.fsdecode(b"caf\xe9"))

    turn = await undo.turn(writes=write)
    await undo.feature.sweep()
    assert undo.feature.files.uncollected() == []
    await undo.undo(turn.id)
    await caught_up(undo)
    assert contents(undo.folder()) == {"notes.md": ("file 644", b"first")}


async def test_a_group_whose_files_cannot_be_recorded_stops_no_other(
    undo: UndoHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await undo.turn(writes=lambda at: (at / "notes.md").write_text("x"))
    work_turn = await undo.turn(folder="work", writes=lambda at: (at / "notes.md").write_text("x"))
    settle, hashes = file_effects.settle, file_effects.hashes

    async def broken_settle(
        database: Database, snapshots: files.GroupFiles, folder: Folder, *args: Any, **more: Any
    ) -> None:
        if folder == "family":
            raise ValueError("an odd file")
        await settle(database, snapshots, folder, *args, **more)

    async def broken_hashes(tx: Tx, folder: Folder) -> set[str]:
        if folder == "family":
            raise ValueError("an odd row")
        return await hashes(tx, folder)

    monkeypatch.setattr(file_effects, "settle", broken_settle)
    monkeypatch.setattr(file_effects, "hashes", broken_hashes)
    await undo.feature.sweep()
    assert undo.feature.files.open_turns("work") == []
    assert undo.feature.files.uncollected() == ["family"]
    assert await undo.store.rows("SELECT 1 FROM turn_effects WHERE turn_id = ?", work_turn.id)


async def test_a_folder_swapped_for_a_link_before_it_is_put_back_leads_nowhere(undo: UndoHarness) -> None:
    folder, outside = undo.folder(), undo.root / "outside"
    outside.mkdir()
    (outside / "a").write_text("not yours")
    (folder / "notes").mkdir()
    (folder / "notes" / "a").write_text("first")
    turn = await undo.turn(writes=lambda at: (at / "notes" / "a").write_text("second"))
    await caught_up(undo)
    await undo.undo(turn.id)
    # Between the commit and the files, while the container still runs.
    shutil.rmtree(folder / "notes")
    (folder / "notes").symlink_to(outside)
    await caught_up(undo)
    assert (outside / "a").read_text() == "not yours"
    assert await undo.store.rows("SELECT 1 FROM undos WHERE has_files_due = 1") == []


async def test_pipes_sockets_and_sparse_giants_cost_nothing(undo: UndoHarness) -> None:
    def write(at: Path) -> None:
        os.mkfifo(at / "pipe")
        (at / "plain").write_text("plain")
        with (at / "giant").open("wb") as file:
            file.truncate(2 * 1024**4)
        os.link(at / "plain", at / "twin")

    turn = await undo.turn(writes=write)
    async with asyncio.timeout(60):
        await caught_up(undo)
    assert undo.feature.files.stored_bytes("family") < 1024
    said = await undo.say("@Andy undo")
    assert "the file “giant” is gone" in said
    await caught_up(undo)
    assert sorted(one.name for one in undo.folder().iterdir()) == ["pipe"]
    said = await undo.say("@Andy undo")
    assert "1 file whose earlier content was not kept" in said
    await caught_up(undo)
    assert sorted(one.name for one in undo.folder().iterdir()) == ["pipe", "plain", "twin"]
    assert turn.id


async def test_more_than_can_be_kept_is_said_and_nothing_of_it_touched(
    undo: UndoHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deep(at: Path) -> None:
        here = at
        for _ in range(trees.MAX_DEPTH + 2):
            here = here / "d"
        here.mkdir(parents=True)

    turn = await undo.turn(TASK, writes=deep)
    await caught_up(undo)
    said = await undo.say("@Andy undo")
    assert "1 time its files could not be compared" in said
    assert (undo.folder() / "d" / "d").is_dir()
    monkeypatch.setattr(files, "MAX_CHANGED", 3)
    shutil.rmtree(undo.folder() / "d")

    def many(at: Path) -> None:
        for number in range(9):
            (at / f"f{number}").write_text("x")

    turn = await undo.turn(writes=many)
    async with undo.store.database.transaction() as tx:
        await tx.execute("UPDATE outbox SET state = 'sent', sent_ms = 1")
    with pytest.raises(NothingToUndo):
        await undo.undo(turn.id)
    assert len(list(undo.folder().iterdir())) == 9


async def test_a_full_store_keeps_no_more_and_says_what_it_cannot_put_back(
    undo: UndoHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    (undo.folder() / "a").write_bytes(b"x" * 100)
    monkeypatch.setattr(files, "STORE_BYTES", 50)
    await undo.turn(TASK, writes=lambda at: (at / "a").write_bytes(b"y" * 100))
    await caught_up(undo)
    assert undo.feature.files.stored_bytes("family") == 0
    assert "1 file whose earlier content was not kept" in await undo.say("@Andy undo")
    await caught_up(undo)
    assert (undo.folder() / "a").read_bytes() == b"y" * 100


async def test_who_asks_at_the_command_line_is_told_as_well_what_was_not_kept(undo: UndoHarness) -> None:
    (undo.folder() / "a").write_text("x")
    turn = await undo.turn(writes=lambda at: (at / "a").write_text("y"))
    await caught_up(undo)
    shutil.rmtree(undo.root / "data" / "undo")  # as after a backup was restored
    async with undo.store.database.transaction() as tx:
        await tx.execute("UPDATE outbox SET state = 'sent', sent_ms = 1")
    with pytest.raises(NothingToUndo, match="1 file whose earlier content was not kept"):
        await undo.undo(turn.id)


async def test_a_group_whose_folder_is_a_link_or_gone_costs_its_turn_nothing(undo: UndoHarness) -> None:
    folder = undo.folder()
    folder.rmdir()
    folder.symlink_to(undo.root)
    turn = await undo.turn(TASK)
    await caught_up(undo)
    assert not (undo.root / "data" / "undo" / "family" / "content").exists()
    await undo.undo(turn.id)


async def test_a_turn_that_is_tried_again_is_compared_with_what_was_before_its_first_try(
    undo: UndoHarness,
) -> None:
    folder = undo.folder()
    (folder / "a").write_text("first")
    await undo.store.hear("@Andy go")
    turn, run, _ = await undo.store.start_next()
    await undo.feature.before_turn(turn)
    (folder / "a").write_text("half")
    await undo.store.lose(run)
    await caught_up(undo)
    assert undo.feature.files.is_open("family", turn.id)
    again: Turn = await undo.store.answer("Done.")
    assert again.id == turn.id
    await undo.undo(turn.id)
    await caught_up(undo)
    assert (folder / "a").read_text() == "first"


# Random turns

_NAMES = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a"])
_ACTS = st.one_of(
    st.tuples(st.just("write"), _NAMES, st.binary(max_size=3)),
    st.tuples(st.just("remove"), st.sampled_from(["a", "b", "d", "d/a", "d/e"])),
    st.tuples(st.just("link"), _NAMES, st.sampled_from(["a", "/etc/passwd", ".."])),
    st.tuples(st.just("mkdir"), st.sampled_from(["a", "d", "d/e", "f"])),
    st.tuples(st.just("chmod"), _NAMES, st.sampled_from([0o600, 0o644, 0o755])),
)


def _act(folder: Path, act: tuple[str, ...]) -> None:
    path = folder / act[1]
    try:
        match act:
            case ("write", _, data):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                path.write_bytes(data)
            case ("remove", _):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            case ("link", _, target):
                path.symlink_to(target)
            case ("mkdir", _):
                path.mkdir(parents=True)
            case ("chmod", _, mode):
                if path.is_file() and not path.is_symlink():
                    path.chmod(mode)
    except OSError:
        pass  # a container, too, tries what cannot be done


@pytest.mark.slow
@settings(max_examples=40)
@given(first=st.lists(_ACTS, max_size=8), second=st.lists(_ACTS, max_size=12))
def test_random_changes_of_files_are_undone_exactly(
    migrated_database: Path, first: list[tuple[str, ...]], second: list[tuple[str, ...]]
) -> None:
    async def world(root: Path) -> None:
        database = await Database.open(root / "messages.db")
        try:
            undo = UndoHarness(StoreHarness(database, FakeClock()), root)
            await undo.add_groups()
            for act in first:
                _act(undo.folder(), act)
            before = contents(undo.folder())
            turn = await undo.turn(writes=lambda at: [_act(at, act) for act in second])
            after = contents(undo.folder())
            try:
                number = await undo.undo(turn.id)
            except NothingToUndo:
                assert after == before
                return
            await caught_up(undo)
            assert contents(undo.folder()) == before
            await undo.undo(number)
            await caught_up(undo)
            assert contents(undo.folder()) == after
        finally:
            await database.close()

    with tempfile.TemporaryDirectory() as directory:
        shutil.copyfile(migrated_database, Path(directory) / "messages.db")
        asyncio.run(world(Path(directory)))


async def test_a_file_that_is_written_while_it_is_put_back_is_left(undo: UndoHarness) -> None:
    folder = undo.folder()
    (folder / "a").write_text("first")
    turn = await undo.turn(writes=lambda at: (at / "a").write_text("second"))
    await caught_up(undo)
    await undo.undo(turn.id)
    (folder / "a").write_text("by whoever still runs")
    await caught_up(undo)
    assert (folder / "a").read_text() == "by whoever still runs"


async def test_a_folder_in_place_of_a_file_that_was_to_be_removed_is_named(undo: UndoHarness) -> None:
    turn = await undo.turn(writes=lambda at: (at / "a").write_text("made"))
    await caught_up(undo)
    await undo.undo(turn.id)
    (undo.folder() / "a").unlink()
    (undo.folder() / "a").mkdir()
    await caught_up(undo)
    (told,) = await undo.store.rows("SELECT text FROM outbox ORDER BY id DESC LIMIT 1")
    assert told["text"].startswith("⚠️ I could not put back: the file “a”.")
    assert contents(undo.folder()) == {"a": ("dir", b"")}


async def test_a_large_folder_that_is_still_compared_is_waited_for_elsewhere(
    undo: UndoHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "SMALL_ENTRIES", 0)
    monkeypatch.setattr(files, "HOLD_SECONDS", 0.01)
    turn = await undo.turn(writes=lambda at: (at / "a").write_text("x"))
    assert (await undo.say("@Andy undo")).startswith("I am still working on something here")
    await caught_up(undo)
    assert "the file “a” is gone" in await undo.say("@Andy undo")
    assert turn.id


async def test_who_reads_a_folder_for_long_keeps_no_writer_of_the_database_waiting(undo: UndoHarness) -> None:
    turn = await undo.turn(TASK)
    await caught_up(undo)
    is_held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with undo.feature.files.held("family"):
            is_held.set()
            may_end.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait(60)
    try:
        with pytest.raises(NotYet):
            await undo.undo(turn.id)
    finally:
        may_end.set()
        thread.join()
    await undo.undo(turn.id)
