"""A restore that the console asked for: carried out at the next start, and never half, wherever killed."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backup import inspection, restore, restore_request, swap
from orchestrator.cli import host_process, terminal
from orchestrator.domain.errors import BackupError
from orchestrator.groups import registration
from orchestrator.home.directory import Home
from orchestrator.store import audit
from orchestrator.store.database import Database
from tests.doubles.clock import FakeClock
from tests.support.backups import make, members, names_in, put_back, tree
from tests.support.skips import only_in_soak

KILLABLE = ((Path, "rename"), (Path, "replace"), (Path, "unlink"), (os, "sync"), (shutil, "rmtree"))
"""What changes a home while a backup takes its place."""


def wanted(home: Home, name: str = "monday.tar.gz") -> None:
    (home.root / "backups").mkdir(exist_ok=True)
    if not (home.root / "backups" / name).exists():
        make(home, home.root / "backups" / name)


def carry_out_now(home: Home) -> list[str]:
    said: list[str] = []
    restore_request.carry_out(home, clock=FakeClock(), say=said.append)
    return said


async def carry_out(home: Home) -> list[str]:
    """What `andy up` does before it opens the store."""
    return await asyncio.to_thread(carry_out_now, home)


def kept(home: Home) -> dict[str, object]:
    """What a restore replaces; not what tells of it."""
    own = ("backups/", "data/restore.json", "data/.probe")
    found = {name: value for name, value in tree(home.root).items() if not name.startswith(own)}
    return {**found, "store/messages.db": names_in(home)}


async def changed(home: Home) -> None:
    later = await Database.open(home.database)
    async with later.transaction() as tx:
        await tx.execute("INSERT INTO chats (jid, name) VALUES ('local:b', 'later')")
    await later.close()
    (home.groups / "main" / "CLAUDE.md").write_text("later")
    (home.groups / "family").mkdir()
    (home.groups / "family" / "notes").write_text("later")
    (home.root / "andy.toml").write_text("assistant_name = 'Later'\n")


async def test_what_was_asked_for_is_restored_at_the_start_and_can_be_undone(home):
    wanted(home)
    old = kept(home)
    await changed(home)
    new = kept(home)
    restore_request.request_restore(home, "monday.tar.gz", has_env=False, now_ms=1)

    assert any("Restoring" in line for line in await carry_out(home))
    assert kept(home) == {name: value for name, value in old.items() if "ipc" not in name}
    assert [names_in(home), (home.groups / "family").exists()] == [["first"], False]
    record = swap.read_record(home)
    assert record is not None
    assert (record.state, record.moves, record.error) == ("done", (), "")
    assert await carry_out(home) == [], "it is done once"

    assert record.safety is not None
    restore_request.request_restore(home, record.safety, has_env=False, now_ms=2)
    await carry_out(home)
    assert kept(home) == {name: value for name, value in new.items() if "ipc" not in name}
    assert list(home.root.glob("**/.restore")) == []


async def test_a_home_whose_parts_are_mounts_under_a_read_only_top_is_restored(home, monkeypatch):
    """As with Docker Compose: nothing can be renamed from one part to another, and `andy.toml` not at all."""
    wanted(home)
    await changed(home)
    rename, access = Path.rename, os.access

    def within_a_part(self: Path, target: Path) -> Path:
        parts = {Path(path).relative_to(home.root).parts[0] for path in (self, target)}
        if len(parts) > 1 or parts.isdisjoint({"groups", "data", "store", "backups"}):
            raise OSError(18, "Invalid cross-device link")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", within_a_part)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != home.root and access(path, mode))
    looked = inspection.inspect(home, home.root / "backups" / "monday.tar.gz", clock=FakeClock())
    assert (looked.keeps_settings, looked.settings) == (True, {})
    restore_request.request_restore(home, "monday.tar.gz", has_env=False, now_ms=1)
    await carry_out(home)

    assert names_in(home) == ["first"]
    assert (home.groups / "main" / "CLAUDE.md").read_text() == "remember 우유"
    assert (home.root / "andy.toml").read_text() == "assistant_name = 'Later'\n"


async def test_a_failed_restore_whose_earlier_record_fits_on_no_disk_is_not_undone_again(home, monkeypatch):
    wanted(home)
    await changed(home)
    before = kept(home)
    earlier = swap.RestoreRecord(id="1", state="done", by="command", source="x", at_ms=1)
    swap.write_record(home, earlier)
    write, writes = swap.write_record, []

    def full_after_the_first(home: Home, record: swap.RestoreRecord) -> None:
        writes.append(record.state)
        if len(writes) > 1:
            raise OSError(28, "No space left on device")
        write(home, record)

    with monkeypatch.context() as full:
        full.setattr(swap, "write_record", full_after_the_first)
        with pytest.raises(BackupError, match="No space left"):
            put_back(home, home.root / "backups" / "monday.tar.gz", force=True)
    assert writes == ["moving", "done", "done"]
    swap.recover(home)
    assert kept(home) == before


@pytest.mark.parametrize("way", ["console", "command"])
async def test_moves_that_cannot_be_undone_now_are_undone_by_the_next_start(home, monkeypatch, way):
    wanted(home)
    source = home.root / "backups" / "monday.tar.gz"
    await changed(home)
    before = kept(home)
    rename, renames = swap._rename, []

    def broken_after_the_first(before: Path, after: Path) -> None:
        renames.append(before)
        if len(renames) > 1:
            raise OSError(5, "Input/output error")
        rename(before, after)

    if way == "console":
        restore_request.request_restore(home, source.name, has_env=False, now_ms=1)
        act: Callable[[], object] = partial(carry_out_now, home)
    else:
        act = partial(put_back, home, source, force=True)
    with monkeypatch.context() as broken:
        broken.setattr(swap, "_rename", broken_after_the_first)
        with pytest.raises(BackupError, match=r"cannot be undone now .* the next start of Andy undoes it"):
            await asyncio.to_thread(act)
    record = swap.recover(home)
    assert kept(home) == before
    assert record is not None
    assert record.state == ("asked" if way == "console" else "failed")


async def test_what_cannot_be_restored_changes_nothing_and_says_why(home):
    wanted(home)
    path = home.root / "backups" / "monday.tar.gz"
    path.write_bytes(path.read_bytes()[:-200])
    before = kept(home)
    restore_request.request_restore(home, "monday.tar.gz", has_env=False, now_ms=1)

    await carry_out(home)
    record = swap.read_record(home)
    assert record is not None
    assert (record.state, "Nothing was changed" in record.error) == ("failed", True)
    assert kept(home) == before
    assert await carry_out(home) == []


async def test_a_start_that_is_killed_each_time_gives_up_in_the_end(home, monkeypatch):
    wanted(home)
    restore_request.request_restore(home, "monday.tar.gz", has_env=False, now_ms=1)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(restore_request, "place", killed)
        for _ in range(restore_request.MAX_TRIES):
            with pytest.raises(KeyboardInterrupt):
                await carry_out(home)
    await carry_out(home)
    record = swap.read_record(home)
    assert record is not None
    assert (record.state, record.error[:26]) == ("failed", "It was interrupted 3 times")


def killed_at(point: int, act: Callable[[], Any]) -> bool:
    """Do `act` in a process that is killed before its `point`-th change; return whether it was."""
    pid = os.fork()
    if pid == 0:
        left = point

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **named: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **named)

            return call

        for owner, name in KILLABLE:
            setattr(owner, name, counted(getattr(owner, name)))
        try:
            act()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.slow
@pytest.mark.parametrize("way", [pytest.param("console", marks=only_in_soak), "command"])
async def test_a_restore_that_is_killed_anywhere_leaves_all_of_the_old_or_all_of_the_new(home, tmp_path, way):
    wanted(home)
    source = home.root / "backups" / "monday.tar.gz"
    old = {name: value for name, value in kept(home).items() if "ipc" not in name}
    await changed(home)
    new, points, undone = kept(home), 0, 0
    shutil.copytree(home.root, tmp_path / "kept", symlinks=True)
    while True:
        shutil.rmtree(home.root)
        for aside in tmp_path.glob("home.before-restore-*"):
            shutil.rmtree(aside)
        shutil.copytree(tmp_path / "kept", home.root, symlinks=True)
        if way == "console":
            restore_request.request_restore(home, source.name, has_env=False, now_ms=1)
            was_killed = await asyncio.to_thread(killed_at, points, lambda: carry_out_now(home))
        else:
            was_killed = await asyncio.to_thread(
                killed_at, points, lambda: put_back(home, source, force=True)
            )
        if not was_killed:
            break
        points += 1
        # A start that is killed while it undoes the moves is followed by another one.
        await asyncio.to_thread(killed_at, points % 5, lambda: swap.recover(home))
        with restore.locked(home):
            found = kept(home)
        assert found in (old, new), f"killed at {points}"
        undone += found == new
        await carry_out(home)
        if way == "console":
            assert kept(home) == old, "what was asked for is done at the next start"
    assert (points > 20, 0 < undone < points) == (True, True), (points, undone)


def kill_after(home: Home, name: str) -> None:
    """Carry out the restore in a process that is killed right after it has moved `name` away."""
    pid = os.fork()
    if pid == 0:
        rename = Path.rename

        def killed(self: Path, target: Path) -> Path:
            moved = rename(self, target)
            if self == home.root / name:
                os._exit(9)
            return moved

        setattr(Path, "rename", killed)  # noqa: B010
        try:
            carry_out_now(home)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 9


async def begin_and_kill(home: Home, *, after: str) -> dict[str, object]:
    """Kill a restore of the console right after it has moved `after` away; return the home before it."""
    wanted(home)
    await changed(home)
    before = kept(home)
    restore_request.request_restore(home, "monday.tar.gz", has_env=False, now_ms=1)
    await asyncio.to_thread(kill_after, home, after)
    return before


async def test_an_undo_that_cannot_look_up_a_file_deletes_none_and_goes_on_later(home, monkeypatch):
    before = await begin_and_kill(home, after="data/context")
    moved, lstat = home.root / "groups/.restore/old/groups/main", os.lstat
    assert moved.exists()

    def broken(path: Any, **more: Any) -> os.stat_result:
        if not isinstance(path, int) and os.fspath(path) == str(moved):
            raise OSError(errno.EIO, "Input/output error", os.fspath(path))
        return lstat(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", broken)
        with pytest.raises(OSError, match="Input/output"):
            swap.recover(home)
    swap.recover(home)
    assert kept(home) == before


@pytest.mark.parametrize("damage", ["the disk fails", "it has another text"])
async def test_an_unreadable_record_of_a_killed_restore_deletes_no_file(home, monkeypatch, damage):
    before = await begin_and_kill(home, after="data/context")
    record, read_bytes = home.restore_file.read_bytes(), Path.read_bytes

    def broken(path: Path) -> bytes:
        if path == home.restore_file:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return read_bytes(path)

    with monkeypatch.context() as patch:
        if damage == "the disk fails":
            patch.setattr(Path, "read_bytes", broken)
        else:
            home.restore_file.write_bytes(b"\0" * len(record))
        with pytest.raises(BackupError, match=r"restore\.json cannot be read"):
            await carry_out(home)
    home.restore_file.write_bytes(record)
    swap.recover(home)
    assert kept(home) == before


def test_a_damaged_record_on_which_nothing_depends_counts_as_none(home):
    home.restore_file.write_bytes(b"\0" * 99)
    assert swap.read_record(home) is None
    assert carry_out_now(home) == []


async def test_no_command_changes_or_packs_the_mixture_that_a_killed_restore_leaves(home, tmp_path):
    before = await begin_and_kill(home, after="data/context")
    request = registration.Registration(folder="later")
    with pytest.raises(BackupError, match="next start of Andy"):
        await terminal.change(
            home.root,
            lambda tx, now_ms: registration.register_by_hand(tx, request, now_ms=now_ms),
            makes_home=True,
        )
    with pytest.raises(BackupError, match="next start of Andy"):
        make(home, tmp_path / "mixture.tar.gz")
    assert not (tmp_path / "mixture.tar.gz").exists()
    swap.recover(home)
    assert kept(home) == before
    make(home, tmp_path / "whole.tar.gz")


def test_a_start_deletes_what_a_restore_that_was_killed_had_unpacked(home):
    wanted(home)
    pid = os.fork()
    if pid == 0:
        setattr(restore, "_give_to_agents", lambda _: os._exit(9))  # noqa: B010
        try:
            put_back(home, home.root / "backups" / "monday.tar.gz", force=True)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 9
    assert (home.groups / ".restore" / "new" / "groups" / "main").exists()

    host_process._carry_out_restore(home)
    assert list(home.root.glob("**/.restore")) == []


async def test_a_command_that_finds_no_database_in_between_leaves_no_trace(home):
    """`andy` of another terminal makes a new store where a killed restore has taken the old one away."""
    wanted(home)
    new = kept(home)
    stage = swap.Stage(home)
    stage.open()
    moves = (
        swap.Move(before="store/messages.db", after="store/.restore/old/store/messages.db", brings_new=False),
    )
    swap._rename(home.database, home.root / moves[0].after)
    record = swap.RestoreRecord(id="1", state="moving", by="command", source="x", at_ms=1, moves=moves)
    swap.write_record(home, record)
    stray = await Database.open(home.database)
    async with stray.transaction() as tx:
        await tx.execute("INSERT INTO chats (jid, name) VALUES ('local:z', 'stray')")
    home.database.with_name("messages.db-wal").write_bytes(b"a log of another database")
    await stray.close()
    home.database.with_name("messages.db-wal").write_bytes(b"a log of another database")

    await carry_out(home)
    assert not home.database.with_name("messages.db-wal").exists()
    assert kept(home) == new
    assert names_in(home) == ["first"]
    told = swap.read_record(home)
    assert told is not None
    assert (told.state, "interrupted" in told.error) == ("failed", True)


async def sessions(home: Home, *names: str, only: bool = False) -> None:
    opened = await Database.open(home.database)
    async with opened.transaction() as tx:
        if only:
            await tx.execute("DELETE FROM web_sessions")
        for name in names:
            await tx.execute(
                "INSERT INTO web_sessions (id, secret_hash, browser, created_ms, seen_ms)"
                " VALUES (?, 'x', 'b', 1, 1)",
                (name,),
            )
    await opened.close()


async def test_who_is_signed_in_stays_so_and_who_was_signed_out_stays_out(home, tmp_path):
    await sessions(home, "revoked")
    wanted(home)
    await sessions(home, "now", only=True)
    restore_request.request_restore(home, "monday.tar.gz", has_env=False, now_ms=1)
    await carry_out(home)
    with closing(sqlite3.connect(home.database)) as connection:
        assert connection.execute("SELECT id FROM web_sessions").fetchall() == [("now",)]

    other = Home(tmp_path / "other")
    put_back(other, home.root / "backups" / "monday.tar.gz")
    with closing(sqlite3.connect(other.database)) as connection:
        assert connection.execute("SELECT id FROM web_sessions").fetchall() == []


async def audited(home: Home) -> list[dict[str, Any]]:
    opened = await Database.open_readonly(home.database)
    async with opened.reading() as tx:
        rows = await audit.newest(tx, limit=9)
    await opened.close()
    return rows


async def test_the_audit_says_once_how_it_ended(home):
    wanted(home)
    restore_request.request_restore(home, "monday.tar.gz", has_env=False, now_ms=1)
    for _ in range(2):
        await carry_out(home)
        record = swap.read_record(home)
        assert record is not None
        # As one finds it who was killed before he noted it.
        swap.write_record(home, record.to(is_audited=False))
    rows = await audited(home)
    assert [(row["kind"], row["detail"]["file"]) for row in rows] == [("restore.done", "monday.tar.gz")]
    assert rows[0]["detail"]["before"] == record.safety

    put_back(home, home.root / "backups" / "monday.tar.gz", force=True)
    await carry_out(home)
    assert [(row["kind"], row["detail"]["by"]) for row in await audited(home)] == [
        ("restore.done", "command")
    ]


async def test_a_backup_is_looked_into_before_it_is_restored(home):
    opened = await Database.open(home.database)
    async with opened.transaction() as tx:
        await tx.execute(
            """
            INSERT INTO messages
                (chat_jid, id, sender, sender_name, content, sent_ms, received_ms, ignored_reason)
            VALUES ('local:main', 'm', 'you', 'you', 'hello', 1, 2, 'no trigger')
            """
        )
    await opened.close()
    (home.root / "andy.toml").write_text("assistant_name = 'Then'\n")
    wanted(home)
    (home.root / "andy.toml").write_text("assistant_name = 'Now'\n")
    source = home.root / "backups" / "monday.tar.gz"
    before = tree(home.root)

    found = inspection.inspect(home, source, clock=FakeClock())
    assert found.settings == {"ASSISTANT_NAME": ("Now", "Then")}
    assert (found.store.messages, found.manifest.has_env) == (1, False)
    assert inspection.census(home.root / "missing.db") == inspection.StoreCensus()
    assert tree(home.root) == before

    (home.root / "andy.toml").write_text("assistant_nome = 'Then'\n")
    make(home, home.root / "backups" / "bad.tar.gz")
    (home.root / "andy.toml").write_text("assistant_name = 'Now'\n")
    with pytest.raises(BackupError, match=r"Andy would not start with its settings .*assistant_nome"):
        inspection.inspect(home, home.root / "backups" / "bad.tar.gz", clock=FakeClock())


def test_what_a_killed_inspection_unpacked_is_deleted_by_the_next_one_a_day_later(home):
    wanted(home)
    killed = home.root / "backups" / f"{inspection.SCRATCH}k1ll3d_x"
    (killed / "home").mkdir(parents=True)
    (killed / "home" / ".env").write_text("a key")
    for path in (killed / "home", killed):
        os.utime(path, (0, 0))
    inspection.inspect(home, home.root / "backups" / "monday.tar.gz", clock=FakeClock())
    assert not killed.exists()


async def test_the_keys_are_in_the_backup_before_where_those_of_another_take_their_place(home):
    (home.root / "backups").mkdir()
    make(home, home.root / "backups" / "keys.tar.gz", with_env=True)
    restore_request.request_restore(home, "keys.tar.gz", has_env=True, now_ms=1)
    await carry_out(home)
    record = swap.read_record(home)
    assert record is not None
    assert record.safety is not None
    assert ".env" in members(home.root / "backups" / record.safety)
