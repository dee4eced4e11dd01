"""What a backup holds, what it leaves out, and what may happen while it is made."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import subprocess
import sys
import tarfile
from typing import Any

import pytest

from orchestrator.backup import make as backup
from orchestrator.backup import sparse
from orchestrator.domain.errors import BackupError, StoreCorrupt
from orchestrator.home.directory import Home
from orchestrator.store.database import Database
from tests.doubles.clock import FakeClock
from tests.support.backups import KEY, damage, make, members, names_in, put_back


def test_a_backup_holds_what_cannot_be_made_anew_and_no_secret(home, tmp_path):
    made = make(home, tmp_path / "b.tar.gz")
    assert set(members(made.path)) == {
        "manifest.json",
        "store/messages.db",
        "groups/main",
        "groups/main/CLAUDE.md",
        "groups/main/conversations",
        "groups/main/conversations/2026-01-01.md",
        "groups/main/run.sh",
        "groups/main/empty",
        "groups/global",
        "groups/global/CLAUDE.md",
        "data/sessions/main",
        "data/sessions/main/.claude",
        "data/sessions/main/.claude/projects",
        "data/sessions/main/.claude/projects/x",
        "data/sessions/main/.claude/projects/x/1.jsonl",
        "data/context/main",
        "data/context/main/.ai-brain",
        "data/context/main/.ai-brain/context.json",
        "data/archive/2025.jsonl",
        "andy.toml",
        "contents.json",
    }
    with tarfile.open(made.path) as tar:
        held = b"".join(file.read() for member in tar if (file := tar.extractfile(member)))
    assert KEY.encode() not in held
    assert home.token().encode() not in held
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    assert list(tmp_path.glob(".andy-backup-*")) == []


def andy(home, *arguments, **streams):
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *arguments, "--home", str(home.root)], check=False, **streams
    )


def test_a_backup_into_a_pipe_is_the_same_and_tells_of_itself_aside(home, tmp_path):
    with (tmp_path / "b.tar.gz").open("wb") as file:
        done = andy(home, "backup", "-", stdout=file, stderr=subprocess.PIPE, text=True)

    assert (done.returncode, "The backup: " in done.stderr) == (0, True), done.stderr
    new = Home(tmp_path / "new")
    put_back(new, tmp_path / "b.tar.gz")
    assert names_in(new) == ["first"]
    assert set(members(tmp_path / "b.tar.gz")) == set(members(make(home, tmp_path / "file.tar.gz").path))
    assert list(home.data.glob(".andy-backup-*")) == []


def test_a_backup_whose_reader_goes_away_is_told_as_broken(home):
    (home.groups / "main" / "large").write_bytes(os.urandom(2**20))
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        done = andy(home, "backup", "-", stdout=gone, stderr=subprocess.PIPE, text=True)

    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "The backup failed" in done.stderr


def test_no_terminal_is_filled_with_a_backup(home):
    leader, follower = os.openpty()
    with os.fdopen(leader, "rb", 0), os.fdopen(follower, "wb", 0) as terminal:
        done = andy(home, "backup", "-", stdout=terminal, stderr=subprocess.PIPE, text=True)

    assert (done.returncode, "put '> FILE' after 'andy backup -'" in done.stderr) == (2, True), done.stderr


def test_an_option_that_is_none_is_no_file(home):
    done = andy(
        home, "backup", "--with-everything", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )

    assert (done.returncode, "--with-everything" in done.stderr) == (2, True)


def test_the_key_is_in_it_only_when_asked_for(home, tmp_path):
    made = make(home, tmp_path / "b.tar.gz", with_env=True)
    assert members(made.path)[".env"].mode == 0o600


async def test_a_backup_of_a_running_home_is_of_one_moment(home, tmp_path):
    running = await Database.open(home.database)
    async with running.transaction() as tx:
        await tx.execute(
            "INSERT INTO chats (jid, name) VALUES ('local:a', 'committed, in the log of the store')"
        )
    async with running.transaction() as tx:
        await tx.execute("INSERT INTO chats (jid, name) VALUES ('local:b', 'not committed yet')")
        made = make(home, tmp_path / "b.tar.gz")
    await running.close()
    new = Home(tmp_path / "new")
    put_back(new, made.path)
    assert names_in(new) == ["committed, in the log of the store", "first"]
    assert not new.database.with_name("messages.db-wal").exists()


def test_links_that_lead_out_together_leave_a_backup_that_can_be_restored(home, tmp_path):
    deep = home.groups / "main" / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "to-the-top").symlink_to("../../..")
    (deep / "out").symlink_to("to-the-top/../../../../etc")
    (deep / "one").symlink_to("other")
    (deep / "other").symlink_to("one")
    (deep / "round").symlink_to("one")
    made = make(home, tmp_path / "b.tar.gz")

    put_back(Home(tmp_path / "new"), made.path)

    assert made.left_out == ("groups/main/a/b/c/out",)
    restored = tmp_path / "new" / "groups" / "main" / "a" / "b" / "c"
    assert sorted(path.name for path in restored.iterdir()) == ["one", "other", "round", "to-the-top"]


def test_what_agents_plant_is_not_followed_and_breaks_no_backup(home, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(KEY)
    group = home.groups / "main"
    (group / "out").symlink_to(secret)
    (group / "up").symlink_to("../global")
    (group / "folder").symlink_to("/etc")
    (group / "inside").symlink_to("conversations/2026-01-01.md")
    (group / "conversations" / "back").symlink_to("../CLAUDE.md")
    os.mkfifo(group / "pipe")
    with (group / "hole").open("wb") as file:
        file.truncate(2**40)
    place = group
    for _ in range(150):
        place = place / "d"
        place.mkdir()
    (group / "odd\nname \udcff").write_text("x")
    made = make(home, tmp_path / "b.tar.gz")
    held = members(made.path)
    assert {name.removeprefix("groups/main/") for name in made.left_out if "/d/d/d" not in name} == {
        "out",
        "up",
        "folder",
        "pipe",
        "hole",
    }
    assert (held["groups/main/inside"].linkname, held["groups/main/conversations/back"].linkname) == (
        "conversations/2026-01-01.md",
        "../CLAUDE.md",
    )
    new = Home(tmp_path / "new")
    put_back(new, made.path)
    assert (new.groups / "main" / "inside").read_text() == "hello"
    assert (new.groups / "main" / "odd\nname \udcff").read_text() == "x"
    assert all("\n" not in line for line in backup.summary_lines(made))


def test_what_an_agent_closed_to_the_owner_leaves_out_itself_alone(home, tmp_path, monkeypatch):
    """A folder that can be listed but not entered."""
    (home.groups / "main" / "closed").write_text("x")
    look = os.stat

    def refuses(path: Any, **options: Any) -> os.stat_result:
        if path == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return look(path, **options)

    monkeypatch.setattr(os, "stat", refuses)
    made = make(home, tmp_path / "b.tar.gz")
    assert made.left_out == ("groups/main/closed",)
    assert "groups/main/CLAUDE.md" in members(made.path)


def test_a_folder_that_cannot_be_listed_is_named_by_its_path(home, tmp_path, monkeypatch):
    (home.groups / "main" / "notes" / "closed").mkdir(parents=True)
    (home.groups / "main" / "notes" / "closed" / "inside").write_text("x")
    (home.groups / "main" / "notes" / "gone").mkdir()
    opens = os.open

    def refuses(path: Any, *arguments: Any, **options: Any) -> int:
        if path == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        if path == "gone":
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return opens(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuses)
    made = make(home, tmp_path / "b.tar.gz")
    assert made.left_out == ("groups/main/notes/closed",)
    assert "groups/main/CLAUDE.md" in members(made.path)


@pytest.mark.parametrize("becomes", ["link", "pipe", "folder", "nothing"])
def test_a_file_that_turns_into_something_else_is_not_followed(home, tmp_path, monkeypatch, becomes):
    secret, flips = tmp_path / "secret", home.groups / "main" / "CLAUDE.md"
    secret.write_text(KEY)

    def flip(seen: os.stat_result) -> bool:
        """Called between the look at a file and its opening, as an agent may be."""
        if seen.st_ino == inode:
            flips.unlink()
            {
                "link": lambda: flips.symlink_to(secret),
                "pipe": lambda: os.mkfifo(flips),
                "folder": flips.mkdir,
                "nothing": lambda: None,
            }[becomes]()
        return False

    inode = flips.lstat().st_ino
    monkeypatch.setattr(backup, "_is_hollow", flip)
    made = make(home, tmp_path / "b.tar.gz")
    assert "groups/main/CLAUDE.md" not in members(made.path)
    assert made.left_out == (() if becomes == "nothing" else ("groups/main/CLAUDE.md",))
    put_back(Home(tmp_path / "new"), made.path)


def test_a_file_that_shrinks_or_grows_while_it_is_read_spoils_nothing(home, tmp_path, monkeypatch):
    for name in ("shrinks", "grows"):
        (home.groups / "main" / name).write_bytes(b"x" * 1000)
    add = backup._Writer._add_file

    def change(self: backup._Writer, name: str, file: object, seen: os.stat_result) -> None:
        if name.endswith("shrinks"):
            (home.groups / "main" / "shrinks").write_bytes(b"y" * 10)
        if name.endswith("grows"):
            (home.groups / "main" / "grows").write_bytes(b"x" * 9000)
        add(self, name, file, seen)  # type: ignore[arg-type]

    monkeypatch.setattr(backup._Writer, "_add_file", change)
    made = make(home, tmp_path / "b.tar.gz")
    new = Home(tmp_path / "new")
    put_back(new, made.path)
    assert (new.groups / "main" / "shrinks").read_bytes() == b"y" * 10 + b"\0" * 990
    assert (new.groups / "main" / "grows").read_bytes() == b"x" * 1000


def test_a_backup_goes_where_no_container_can_read_it(home, tmp_path):
    for place in ("groups/main/b.tar.gz", "data/b.tar.gz", "store/b.tar.gz"):
        with pytest.raises(BackupError, match="choose a place outside"):
            make(home, home.root / place)
    (tmp_path / "door").symlink_to(home.groups / "main")
    with pytest.raises(BackupError, match="choose a place outside"):
        make(home, tmp_path / "door" / "b.tar.gz")


def test_a_file_that_is_there_is_replaced_only_when_asked_for(home, tmp_path):
    target = tmp_path / "b.tar.gz"
    target.write_text("precious")
    with pytest.raises(BackupError, match="exists already"):
        make(home, target)
    assert target.read_text() == "precious"
    make(home, target, replaces=True)
    assert "contents.json" in members(target)


def test_a_backup_that_cannot_be_finished_leaves_nothing(home, tmp_path, monkeypatch):
    target = tmp_path / "b.tar.gz"
    make(home, target)
    before = target.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    with pytest.raises(BackupError, match="No space left"):
        make(home, target, replaces=True)
    assert target.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "home"]


def test_what_a_killed_backup_left_is_deleted_by_the_next_one_a_day_later(home, tmp_path):
    day_s, now_s = 86_400, FakeClock().now_ms() / 1000
    for folder in (tmp_path, home.data):
        for name, age_s in (("k1ll3d_x", day_s + 60), ("running_", day_s - 60)):
            left = folder / f"{backup.SCRATCH}{name}"
            left.mkdir()
            (left / "messages.db").write_text("a copy")
            for path in (left / "messages.db", left):
                os.utime(path, (now_s - age_s, now_s - age_s))
        # It was begun long ago, and is still written.
        (folder / f"{backup.SCRATCH}slow_old").mkdir()
        (folder / f"{backup.SCRATCH}slow_old" / "whole").write_text("half a backup")
        os.utime(folder / f"{backup.SCRATCH}slow_old", (now_s - 2 * day_s, now_s - 2 * day_s))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    os.utime(elsewhere, (0, 0))
    (tmp_path / f"{backup.SCRATCH}link_to_").symlink_to(elsewhere)

    make(home, tmp_path / "b.tar.gz")
    with (tmp_path / "pipe").open("wb") as out:
        backup.stream(home, out, with_env=False, clock=FakeClock(), say=lambda _: None)
    left_names = [f"{backup.SCRATCH}running_", f"{backup.SCRATCH}slow_old"]
    assert sorted(path.name for path in home.data.glob(f"{backup.SCRATCH}*")) == left_names
    assert sorted(path.name for path in tmp_path.glob(f"{backup.SCRATCH}[rsk]*")) == left_names
    assert elsewhere.is_dir()


def test_a_folder_of_the_owners_with_the_beginning_of_such_a_name_stays(home, tmp_path):
    for name in ("settings", "of-monday", "old"):
        own = tmp_path / f"{backup.SCRATCH}{name}"
        own.mkdir()
        (own / ("mine.txt" if name == "settings" else "whole")).write_text("mine")
        for path in (*own.iterdir(), own):
            os.utime(path, (0, 0))
    make(home, tmp_path / "b.tar.gz")
    assert len(list(tmp_path.glob(f"{backup.SCRATCH}*/*"))) == 3


@pytest.mark.parametrize("way", ["file", "pipe"])
def test_a_full_disk_under_the_copy_of_the_database_is_said_of_the_backup(home, tmp_path, monkeypatch, way):
    connect, target = sqlite3.connect, tmp_path / "b.tar.gz"

    def small(path: Any, *rest: Any, **more: Any) -> sqlite3.Connection:
        connection = connect(path, *rest, **more)
        if backup.SCRATCH in str(path) and "mode=ro" not in str(path):
            connection.execute("PRAGMA max_page_count = 2")  # SQLite says the same of a full disk
        return connection

    monkeypatch.setattr(sqlite3, "connect", small)
    if way == "file":
        with pytest.raises(BackupError, match=rf"{target} cannot be written \(.*full\)"):
            make(home, target)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]
    else:
        with pytest.raises(BackupError, match=r"failed \(.*full\)"), (tmp_path / "pipe").open("wb") as out:
            backup.stream(home, out, with_env=False, clock=FakeClock(), say=lambda _: None)


def test_nothing_and_nowhere_are_said(home, tmp_path):
    with pytest.raises(BackupError, match="nothing to back up"):
        make(Home(tmp_path / "empty"), tmp_path / "b.tar.gz")
    with pytest.raises(BackupError, match="File name too long"):
        make(home, tmp_path / ("x" * 300))
    for target in (tmp_path, tmp_path / "no" / "b.tar.gz"):
        with pytest.raises(BackupError, match="name a file in an existing directory"):
            make(home, target)


def test_a_damaged_store_makes_no_backup(home, tmp_path):
    damage(home.database)
    with pytest.raises(StoreCorrupt):
        make(home, tmp_path / "b.tar.gz")
    assert not (tmp_path / "b.tar.gz").exists()


def test_long_work_tells_how_far_it_is(home, tmp_path):
    class Late(FakeClock):
        def steady_ms(self) -> int:
            return self.pass_ms(900)

    said: list[str] = []
    backup.back_up(home, tmp_path / "b.tar.gz", with_env=False, replaces=False, clock=Late(), say=said.append)
    assert 1 <= len(said) <= 4
    assert "files" in said[0]


def test_holes_are_not_read_and_come_back_as_holes(home, tmp_path, monkeypatch):
    group, read = home.groups / "main", []
    for number in range(8):
        with (group / f"sparse {number} \udcff {'x' * 100}").open("wb") as file:
            file.write(b"begin")
            file.seek(600 * 2**20)
            file.write(b"middle")
            file.truncate(2**30)
    (group / "plain").write_bytes(b"plain" * 1000)
    taken = sparse.Pieces.read
    monkeypatch.setattr(
        sparse.Pieces, "read", lambda self, size=-1: (data := taken(self, size), read.append(len(data)))[0]
    )

    made = make(home, tmp_path / "b.tar.gz")

    assert sum(read) < 2**20
    assert made.left_out == ()
    new = Home(tmp_path / "new")
    put_back(new, made.path)
    for number in range(8):
        name = f"sparse {number} \udcff {'x' * 100}"
        with (new.groups / "main" / name).open("rb") as file:
            assert (file.read(6), file.seek(600 * 2**20), file.read(7)) == (
                b"begin\0",
                600 * 2**20,
                b"middle\0",
            )
        seen = (new.groups / "main" / name).stat()
        assert (seen.st_size, seen.st_blocks * 512 < 2**20) == (2**30, True)
    assert (new.groups / "main" / "plain").read_bytes() == b"plain" * 1000
    unpacked = tmp_path / "tar"
    unpacked.mkdir()
    subprocess.run(["tar", "-xzf", str(made.path), "-C", str(unpacked)], check=True)
    sizes = {path.stat().st_size for path in (unpacked / "groups/main").glob("sparse *")}
    assert sizes == {2**30}


def test_what_fills_no_disk_is_bounded_over_all_files(home, tmp_path, monkeypatch):
    """Further names of one file, and holes of a disk that cannot tell of them."""
    monkeypatch.setattr(backup, "MAX_SPACELESS_BYTES", 3 * 2**20)
    group = home.groups / "main"
    (group / "name 0").write_bytes(os.urandom(2**20))
    for number in range(1, 10):
        (group / f"name {number}").hardlink_to(group / "name 0")

    made = make(home, tmp_path / "links.tar.gz")
    assert len(made.left_out) == 6
    assert len([name for name in members(made.path) if "/name " in name]) == 4

    monkeypatch.setattr(sparse, "_data_parts", lambda *_: iter([(0, 2**21)]))
    for number in range(1, 10):
        (group / f"name {number}").unlink()
        with (group / f"hole {number}").open("wb") as file:
            file.truncate(2**21)
    made = make(home, tmp_path / "holes.tar.gz")
    assert len(made.left_out) == 8


def test_a_file_of_countless_pieces_is_left_out(home, tmp_path, monkeypatch):
    monkeypatch.setattr(sparse, "MOST_PIECES", 3)
    with (home.groups / "main" / "comb").open("wb") as file:
        for number in range(8):
            file.seek(number * 2**20)
            file.write(b"x")
    assert make(home, tmp_path / "b.tar.gz").left_out == ("groups/main/comb",)


def test_a_read_only_folder_of_a_container_is_refused_with_the_one_for_backups(home, tmp_path, monkeypatch):
    def refuse(**_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(backup.archive, "COMPOSE_HOME", str(home.root))
    monkeypatch.setattr(backup.tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(BackupError, match=rf"Name a file in {home.root}/backups, such as .*/b\.tar\.gz\."):
        make(home, tmp_path / "b.tar.gz")
