"""What becomes of a home that a backup is put into."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backup import restore, swap
from orchestrator.backup.archive import BackupContents
from orchestrator.domain.errors import BackupError, HomeError, StoreCorrupt
from orchestrator.home import lock as home_lock
from orchestrator.home.directory import Home
from orchestrator.store import database
from orchestrator.store.database import Database
from tests.support.backups import KEY, damage, make, names_in, put_back, tree


def test_a_backup_restores_into_a_new_home(home, tmp_path):
    made = make(home, tmp_path / "b.tar.gz", with_env=True)
    new = Home(tmp_path / "deep" / "new")
    (new.undo / "main" / "turns").mkdir(parents=True)  # of turns that the restored database does not know
    done = put_back(new, made.path)
    kept = {
        name: value
        for name, value in tree(home.root).items()
        if name.startswith(
            ("groups/", "data/sessions/", "data/context/", "data/archive/", "andy.toml", ".env")
        )
    }
    found = tree(new.root)
    assert names_in(new) == ["first"]
    assert not new.undo.exists()
    own = ("store/messages.db", "data/restore.json")
    assert {name: value for name, value in found.items() if name not in own} == kept
    assert done.aside is None
    assert done.manifest is not None
    assert stat.S_IMODE((new.root / ".env").stat().st_mode) == 0o600
    assert stat.S_IMODE((new.groups / "main" / "run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE(new.database.stat().st_mode) == 0o600
    assert (new.groups / "main" / "empty").is_dir()


def test_the_python_of_debian_12_restores_the_same(home, tmp_path, monkeypatch):
    """It has none of the filters of `tarfile`; no owner and no special bit of a mode comes from a backup."""
    made = make(home, tmp_path / "b.tar.gz")
    for name, is_new in (("new", True), ("old", False)):
        if not is_new:
            monkeypatch.delattr(tarfile, "data_filter")
        put_back(Home(tmp_path / name), made.path)
    new, old = ({**tree(tmp_path / name), "data/restore.json": ""} for name in ("new", "old"))
    assert old == new
    modes = [
        {path.relative_to(tmp_path / name): path.lstat().st_mode for path in (tmp_path / name).rglob("*")}
        for name in ("new", "old")
    ]
    assert modes[0] == modes[1]


@pytest.mark.parametrize(
    ("root", "is_checkout", "hint"),
    [
        ("/andy", False, "Start Andy with 'docker compose up -d' on the host."),
        (None, True, "Start Andy as before: with Compose 'docker compose up -d', else 'andy up'."),
        (None, False, "Start Andy with 'andy up'."),
    ],
    ids=["in Compose's container", "in a checkout", "elsewhere"],
)
def test_a_restore_says_how_that_home_is_started(tmp_path, root, is_checkout, hint):
    if is_checkout:
        (tmp_path / "docker-compose.yml").touch()
    done = restore.RestoreResult(manifest=None, contents=BackupContents(), aside=None)

    assert restore.summary_lines(done, Home(Path(root or tmp_path)), zone=None)[-1] == hint


def test_no_owner_and_no_special_bit_comes_from_a_backup(tmp_path, monkeypatch):
    member = tarfile.TarInfo("groups/main/tool")
    member.mode, member.uid, member.gid, member.uname = 0o6777, 12345, 12345, "daemon"
    with tarfile.open(tmp_path / "b.tar", "w") as tar:
        tar.addfile(member)
    for name, is_new in (("new", True), ("old", False)):
        if not is_new:
            monkeypatch.delattr(tarfile, "data_filter")
        with tarfile.open(tmp_path / "b.tar") as tar:
            restore._extract(tar, tar.getmember("groups/main/tool"), tmp_path / name)
        found = (tmp_path / name / "groups" / "main" / "tool").stat()
        assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (
            0o755,
            os.geteuid(),
            os.getegid(),
        )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_agents_own_what_is_theirs_again(home, tmp_path):
    new = Home(tmp_path / "new")
    put_back(new, make(home, tmp_path / "b.tar.gz").path)
    owners = {
        name: (new.root / name).stat().st_uid
        for name in (
            "groups/main/conversations/2026-01-01.md",
            "data/sessions/main/.claude",
            "groups/global/CLAUDE.md",
            "data/context/main/.ai-brain/context.json",
            "store/messages.db",
        )
    }
    assert list(owners.values()) == [1000, 1000, 0, 0, 0]


async def test_a_home_in_use_is_replaced_only_by_force_and_kept_aside(home, tmp_path):
    made = make(home, tmp_path / "b.tar.gz")
    later = await Database.open(home.database)
    async with later.transaction() as tx:
        await tx.execute("INSERT INTO chats (jid, name) VALUES ('local:b', 'later')")
    await later.close()
    (home.groups / "main" / "CLAUDE.md").write_text("later")
    (home.groups / "family").mkdir()
    (home.groups / ".gitkeep").touch()
    token, install = home.token(), home.install_id()
    before = tree(home.root)

    with pytest.raises(BackupError, match="--force"):
        put_back(home, made.path)
    assert tree(home.root) == before

    done = put_back(home, made.path, force=True)
    assert names_in(home) == ["first"]
    assert (home.groups / "main" / "CLAUDE.md").read_text() == "remember 우유"
    assert not (home.groups / "family").exists()
    assert not (home.ipc / "main" / "tasks" / "1.json").exists(), "letters of a later time are not read"
    assert (home.token(), home.install_id()) == (token, install), "containers that live on are still ours"
    assert (home.root / ".env").read_text() == f"ANTHROPIC_API_KEY={KEY}\n"
    assert (home.groups / ".gitkeep").exists()
    assert (home.logs / "main").exists()
    assert (home.root / "store" / "whatsapp.db").exists(), "a login stays with its machine"
    assert done.aside is not None
    assert done.aside.name.startswith("home.before-restore-2026")
    assert names_in(Home(done.aside)) == ["first", "later"]
    assert (done.aside / "groups" / "main" / "CLAUDE.md").read_text() == "later"
    assert stat.S_IMODE(done.aside.stat().st_mode) == 0o700


def test_nothing_is_restored_where_andy_runs(home, tmp_path):
    made = make(home, tmp_path / "b.tar.gz")
    before = tree(home.root)
    lock = home_lock.acquire(home)
    with pytest.raises(HomeError, match="running"):
        put_back(home, made.path, force=True)
    lock.release()
    assert tree(home.root) == before


async def test_a_copy_of_the_database_alone_is_put_back_too(home, tmp_path):
    copy = home.database.with_name("messages.before-v9.db")
    copy.write_bytes(home.database.read_bytes())
    damage(home.database)
    with pytest.raises(StoreCorrupt, match=f"or {copy}, made before the last upgrade"):
        database.check(home.database)
    done = put_back(home, copy, force=True)
    database.check(home.database)
    assert names_in(home) == ["first"]
    assert copy.exists()
    assert done.aside is not None
    assert (done.aside / "store" / "messages.db").exists()
    assert (home.groups / "main" / "CLAUDE.md").exists()


def test_a_move_that_fails_is_undone(home, tmp_path, monkeypatch):
    made = make(home, tmp_path / "b.tar.gz")
    before = tree(home.root)
    rename, calls = Path.rename, []

    def sometimes(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == 4:
            raise OSError(16, "Device or resource busy")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", sometimes)
    with pytest.raises(BackupError, match="busy"):
        put_back(home, made.path, force=True)
    assert tree(home.root) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "home"]


def test_a_database_that_takes_no_sign_ins_is_refused_and_changes_nothing(home, tmp_path):
    before = tree(home.root)
    copy = tmp_path / "copy.db"
    copy.write_bytes(home.database.read_bytes())
    with closing(sqlite3.connect(copy)) as connection, connection:
        connection.execute(
            "INSERT INTO web_sessions (id, secret_hash, browser, created_ms, seen_ms)"
            " VALUES ('a', 'b', '', 1, 1)"
        )
        connection.execute(
            "CREATE TRIGGER full BEFORE DELETE ON web_sessions BEGIN SELECT raise(ABORT, 'disk is full'); END"
        )
    with pytest.raises(BackupError, match=r"\(disk is full\)\. Nothing was changed"):
        put_back(home, copy, force=True)
    assert tree(home.root) == before


def test_no_copies_for_undoing_earlier_turns_outlive_a_restore_that_is_killed(home, tmp_path, monkeypatch):
    made = make(home, tmp_path / "b.tar.gz")
    (home.undo / "main" / "turns").mkdir(parents=True)
    (home.undo / "main" / "turns" / "7").write_text("a tree of the database that is replaced")
    swap = restore.swap

    def killed_after(*args: object, **named: object) -> None:
        swap(*args, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(restore, "swap", killed_after)
    with pytest.raises(KeyboardInterrupt):
        put_back(home, made.path, force=True)
    assert not (home.undo / "main" / "turns" / "7").exists(), "its number is that of another turn now"


@pytest.mark.parametrize("name", ["store/.restore/new/store/messages.db", "groups/.restore/new/groups/main"])
def test_a_part_that_the_disk_does_not_show_is_not_left_out_of_a_restore(home, tmp_path, monkeypatch, name):
    made = make(home, tmp_path / "b.tar.gz")
    before, lstat = tree(home.root), os.lstat

    def broken(path: Any, **more: Any) -> os.stat_result:
        if not isinstance(path, int) and os.fspath(path) == str(home.root / name):
            raise OSError(errno.EIO, "Input/output error", os.fspath(path))
        return lstat(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", broken)
        with pytest.raises(BackupError, match="Input/output error"):
            put_back(home, made.path, force=True)
    swap.recover(home)
    assert tree(home.root) == before


def test_an_undo_that_fails_where_the_record_cannot_be_read_either_loses_no_file(home, tmp_path, monkeypatch):
    made = make(home, tmp_path / "b.tar.gz")
    before, rename, read_bytes = tree(home.root), Path.rename, Path.read_bytes
    broken: list[Path] = []

    def rename_until(path: Path, target: Path) -> Path:
        if broken or path == home.root / "data" / "context":
            broken.append(path)
            raise OSError(errno.EIO, "Input/output error", str(path))
        return rename(path, target)

    def read_until(path: Path) -> bytes:
        if broken and path == home.restore_file:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return read_bytes(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename_until)
        patch.setattr(Path, "read_bytes", read_until)
        with pytest.raises(BackupError, match="cannot be undone now"):
            put_back(home, made.path, force=True)
    swap.recover(home)
    home.restore_file.unlink()
    assert tree(home.root) == before


def test_an_interruption_does_not_undo_a_restore_whose_record_says_that_it_is_done(
    home, tmp_path, monkeypatch
):
    made = make(home, tmp_path / "b.tar.gz")
    (home.groups / "main" / "CLAUDE.md").write_text("later")

    def interrupted() -> None:
        record = swap.read_record(home)
        if record is not None and record.state == "done":
            monkeypatch.setattr(os, "sync", lambda: None)
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "sync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        put_back(home, made.path, force=True)
    record = swap.recover(home)
    assert record is not None
    assert record.state == "done"
    assert (home.groups / "main" / "CLAUDE.md").read_text() == "remember 우유"


def test_the_earlier_files_are_not_deleted_because_their_folder_cannot_be_listed(home, tmp_path, monkeypatch):
    made = make(home, tmp_path / "b.tar.gz")
    scandir, failed = os.scandir, []

    def broken_once(path: Any = ".") -> Any:
        if not isinstance(path, int) and ".before-restore-" in os.fspath(path) and not failed:
            failed.append(path)
            raise OSError(errno.EIO, "Input/output error", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", broken_once)
    done = put_back(home, made.path, force=True)
    assert failed
    assert done.aside is not None
    assert (done.aside / "store" / "messages.db").exists()


def test_a_folder_that_cannot_be_listed_does_not_count_as_an_empty_home(home, tmp_path, monkeypatch):
    made = make(home, tmp_path / "b.tar.gz")
    scandir, parts = os.scandir, {str(home.root / name) for name in ("groups", "store", "data/sessions")}

    def broken(path: Any = ".") -> Any:
        if not isinstance(path, int) and os.fspath(path) in parts:
            raise OSError(errno.EIO, "Input/output error", os.fspath(path))
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", broken)
        with pytest.raises(BackupError, match="is not empty"):
            put_back(home, made.path)


def test_a_name_that_is_no_utf8_is_refused_in_words_before_anything_is_moved(home, tmp_path):
    made = make(home, tmp_path / "b.tar.gz")
    Path(os.fsdecode(os.fsencode(home.groups) + b"/old\xff.txt")).write_text("x")
    before = tree(home.root)
    with pytest.raises(BackupError, match=r"old\\udcff\.txt.*UTF-8") as refused:
        put_back(home, made.path, force=True)
    assert str(refused.value).isascii()
    assert tree(home.root) == before
