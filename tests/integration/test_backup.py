"""What a backup holds, what it leaves out, and what becomes of a home that it is put into."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.backup import archive, restore
from orchestrator.backup import make as backup
from orchestrator.backup.make import Made
from orchestrator.backup.restore import Restored
from orchestrator.errors import BackupError, HomeError, StoreCorrupt, StoreTooNew
from orchestrator.home import Home
from orchestrator.store import database
from orchestrator.store.database import Database
from tests.fakes.clock import FakeClock

KEY = "sk-ant-api03-never-in-a-backup"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
async def home(tmp_path: Path) -> Home:
    """A home in use: a store, two groups, a session, settings, a key, and what no backup needs."""
    home = Home(tmp_path / "home")
    home.make()
    home.token()
    home.install_id()
    opened = await Database.open(home.database)
    async with opened.transaction() as tx:
        await tx.execute("INSERT INTO chats (jid, name) VALUES ('local:main', 'first')")
    await opened.close()
    for name, text in {
        "groups/main/CLAUDE.md": "remember 우유",
        "groups/main/conversations/2026-01-01.md": "hello",
        "groups/global/CLAUDE.md": "for all",
        "data/sessions/main/.claude/projects/x/1.jsonl": "{}\n",
        "data/context/main/.ai-brain/context.json": "{}",
        "data/logs/main/20260101T000000Z-abc.log": "log",
        "data/ipc/main/tasks/1.json": "{}",
        "andy.toml": "assistant_name = 'Andy'\n",
        ".env": f"ANTHROPIC_API_KEY={KEY}\n",
        "store/whatsapp.db": "a login, which must not go back in time",
    }.items():
        path = home.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (home.root / ".env").chmod(0o600)
    (home.groups / "main" / "run.sh").write_text("#!/bin/sh\n")
    (home.groups / "main" / "run.sh").chmod(0o755)
    (home.groups / "main" / "empty").mkdir()
    return home


def make(home: Home, target: Path, *, with_env: bool = False, replaces: bool = False) -> Made:
    return backup.back_up(
        home, target, with_env=with_env, replaces=replaces, clock=FakeClock(), say=lambda _: None
    )


def put_back(home: Home, source: Path, *, force: bool = False) -> Restored:
    return restore.restore(home, source, force=force, clock=FakeClock(), say=lambda _: None)


def tree(root: Path) -> dict[str, object]:
    """Every path below `root` with what it is; not the marks of a lock."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file() and path.name != "orchestrator.lock" and not name.endswith(("-wal", "-shm")):
            found[name] = path.read_bytes()
    return found


def members(path: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(path) as tar:
        return {member.name: member for member in tar}


# Making one


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
        "andy.toml",
        "contents.json",
    }
    with tarfile.open(made.path) as tar:
        held = b"".join(file.read() for member in tar if (file := tar.extractfile(member)))
    assert KEY.encode() not in held
    assert home.token().encode() not in held
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    assert list(tmp_path.glob(".andy-backup-*")) == []


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


def names_in(home: Home) -> list[str]:
    with closing(sqlite3.connect(f"file:{home.database}?mode=ro", uri=True)) as connection:
        return sorted(row[0] for row in connection.execute("SELECT name FROM chats"))


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
    with pytest.raises(BackupError, match="is there already"):
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


def test_nothing_and_nowhere_are_said(home, tmp_path):
    with pytest.raises(BackupError, match="nothing to back up"):
        make(Home(tmp_path / "empty"), tmp_path / "b.tar.gz")
    for target in (tmp_path, tmp_path / "no" / "b.tar.gz"):
        with pytest.raises(BackupError, match="name a file in a directory that is there"):
            make(home, target)


def test_a_damaged_store_makes_no_backup(home, tmp_path):
    damage(home.database)
    with pytest.raises(StoreCorrupt):
        make(home, tmp_path / "b.tar.gz")
    assert not (tmp_path / "b.tar.gz").exists()


def damage(path: Path) -> None:
    """Spoil the pages after the first, which says what the file is."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * 20_000)


def test_long_work_tells_how_far_it_is(home, tmp_path):
    class Late(FakeClock):
        def steady_ms(self) -> int:
            return self.pass_ms(900)

    said: list[str] = []
    backup.back_up(home, tmp_path / "b.tar.gz", with_env=False, replaces=False, clock=Late(), say=said.append)
    assert 1 <= len(said) <= 4
    assert "files" in said[0]


# Putting it back


def test_a_backup_restores_into_a_new_home(home, tmp_path):
    made = make(home, tmp_path / "b.tar.gz", with_env=True)
    new = Home(tmp_path / "deep" / "new")
    done = put_back(new, made.path)
    kept = {
        name: value
        for name, value in tree(home.root).items()
        if name.startswith(("groups/", "data/sessions/", "data/context/", "andy.toml", ".env"))
    }
    found = tree(new.root)
    assert names_in(new) == ["first"]
    assert {name: value for name, value in found.items() if name != "store/messages.db"} == kept
    assert done.aside is None
    assert done.manifest is not None
    assert stat.S_IMODE((new.root / ".env").stat().st_mode) == 0o600
    assert stat.S_IMODE((new.groups / "main" / "run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE(new.database.stat().st_mode) == 0o600
    assert (new.groups / "main" / "empty").is_dir()


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
    lock = home.lock()
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


# What is no backup, or a bad one


def rewritten(source: Path, target: Path, change: Callable[[str, bytes, tarfile.TarFile], object]) -> Path:
    """A copy of a backup; `change` gets each member and adds what it likes, or gives True to keep it."""
    with tarfile.open(source) as old, tarfile.open(target, "w:gz") as new:
        for member in old:
            file = old.extractfile(member)
            text = file.read() if file else b""
            if change(member.name, text, new) is True:
                member.size = len(text)
                new.addfile(member, _bytes(text))
    return target


def _bytes(text: bytes) -> object:
    import io

    return io.BytesIO(text)


def planted(tar: tarfile.TarFile, name: str, *, kind: bytes = tarfile.REGTYPE, link: str = "") -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, 0 if kind != tarfile.REGTYPE else 4
    tar.addfile(info, _bytes(b"evil") if kind == tarfile.REGTYPE else None)  # type: ignore[arg-type]


def added(tar: tarfile.TarFile, text: bytes, *evils: dict[str, object]) -> None:
    """The table of contents with what was planted in it, as one who knows the form would write it."""
    contents = archive.Contents.model_validate_json(text)
    for evil in evils:
        is_link = evil.get("kind") == tarfile.SYMTYPE
        contents = contents.with_link() if is_link else contents.with_file(4)
    told = contents.model_dump_json().encode()
    info = tarfile.TarInfo(archive.CONTENTS)
    info.size = len(told)
    tar.addfile(info, _bytes(told))  # type: ignore[arg-type]


def test_what_is_planted_would_be_taken_were_it_harmless(home, tmp_path):
    made, harmless = make(home, tmp_path / "b.tar.gz"), {"name": "groups/main/new"}

    def plant(name: str, text: bytes, tar: tarfile.TarFile) -> bool:
        if name == archive.CONTENTS:
            planted(tar, **harmless)
            added(tar, text, harmless)
        return name != archive.CONTENTS

    put_back(home, rewritten(made.path, tmp_path / "good.tar.gz", plant), force=True)
    assert (home.groups / "main" / "new").read_bytes() == b"evil"


EVIL = {
    "traversal": {"name": "groups/../../evil"},
    "above": {"name": "../evil"},
    "absolute": {"name": "/tmp/evil-absolute"},
    "elsewhere": {"name": "data/token"},
    "lock": {"name": "data/orchestrator.lock"},
    "code": {"name": "orchestrator/cli.py"},
    "twice": {"name": "groups/main/CLAUDE.md"},
    "link out": {"name": "groups/main/l", "kind": tarfile.SYMTYPE, "link": "../../../evil"},
    "link to another group": {"name": "groups/main/l", "kind": tarfile.SYMTYPE, "link": "../global"},
    "absolute link": {"name": "groups/main/l", "kind": tarfile.SYMTYPE, "link": "/etc/passwd"},
    "folder is a link": {"name": "groups/other", "kind": tarfile.SYMTYPE, "link": "main"},
    "store is a link": {"name": "store", "kind": tarfile.SYMTYPE, "link": "groups/main"},
    "link over what is in it": {
        "name": "groups/main/conversations",
        "kind": tarfile.SYMTYPE,
        "link": "CLAUDE.md",
    },
    "hard link": {"name": "groups/main/h", "kind": tarfile.LNKTYPE, "link": "store/messages.db"},
    "device": {"name": "groups/main/dev", "kind": tarfile.CHRTYPE},
    "pipe": {"name": "groups/main/pipe", "kind": tarfile.FIFOTYPE},
    "too deep": {"name": "groups/main/" + "d/" * 200 + "x"},
}


@pytest.mark.parametrize("evil", EVIL.values(), ids=EVIL)
def test_an_archive_that_reaches_out_is_refused_and_changes_nothing(home, tmp_path, evil):
    made = make(home, tmp_path / "b.tar.gz")

    def plant(name: str, text: bytes, tar: tarfile.TarFile) -> bool:
        if name == archive.CONTENTS:
            planted(tar, **evil)
            added(tar, text, evil)
        return name != archive.CONTENTS

    source = rewritten(made.path, tmp_path / "evil.tar.gz", plant)
    refused(home, tmp_path, source, match="it holds|is no plain file|something in it")


def test_a_link_that_something_lies_under_is_refused(home, tmp_path):
    made = make(home, tmp_path / "b.tar.gz")

    def plant(name: str, text: bytes, tar: tarfile.TarFile) -> bool:
        if name == archive.CONTENTS:
            planted(tar, "groups/main/l", kind=tarfile.SYMTYPE, link="conversations")
            planted(tar, "groups/main/l/through")
            added(tar, text, {"name": "l", "kind": tarfile.SYMTYPE}, {"name": "through"})
        return name != archive.CONTENTS

    source = rewritten(made.path, tmp_path / "evil.tar.gz", plant)
    refused(home, tmp_path, source, match="something in it")


BROKEN = {
    "cut": lambda text: text[: len(text) // 2],
    "cut at the end": lambda text: text[:-9],
    "a bit is wrong": lambda text: text[:500] + bytes([text[500] ^ 0x10]) + text[501:],
    "empty": lambda text: b"",
    "something else": lambda text: b"not a backup at all, but some text" * 100,
    "half a database": lambda text: b"SQLite format 3\0" + b"\xff" * 5000,
}


@pytest.mark.parametrize("breaking", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused_and_changes_nothing(home, tmp_path, breaking):
    made = make(home, tmp_path / "b.tar.gz")
    made.path.write_bytes(breaking(made.path.read_bytes()))
    refused(home, tmp_path, made.path)


def test_an_archive_without_its_last_files_is_not_whole(home, tmp_path):
    made = make(home, tmp_path / "b.tar.gz")
    lost = rewritten(made.path, tmp_path / "lost.tar.gz", lambda name, *_: name != "groups/main/CLAUDE.md")
    refused(home, tmp_path, lost, match="not whole")
    lost = rewritten(made.path, tmp_path / "lost.tar.gz", lambda name, *_: name != archive.CONTENTS)
    refused(home, tmp_path, lost, match="not whole")
    lost = rewritten(made.path, tmp_path / "lost.tar.gz", lambda name, *_: name != archive.MANIFEST)
    refused(home, tmp_path, lost, match="does not begin with")


def test_a_damaged_database_in_it_is_seen_before_anything_is_moved(home, tmp_path):
    made = make(home, tmp_path / "b.tar.gz")

    def spoil(name: str, text: bytes, tar: tarfile.TarFile) -> bool | None:
        if name != archive.DATABASE:
            return True
        info = tarfile.TarInfo(name)
        info.size = len(text)
        tar.addfile(info, _bytes(text[:4096] + b"\xa5" * (len(text) - 4096)))  # type: ignore[arg-type]
        return None

    refused(home, tmp_path, rewritten(made.path, tmp_path / "spoilt.tar.gz", spoil), match="damaged")


def test_a_newer_store_is_refused(home, tmp_path):
    made = make(home, tmp_path / "b.tar.gz")

    def newer(name: str, text: bytes, tar: tarfile.TarFile) -> bool | None:
        if name != archive.MANIFEST:
            return True
        told = json.dumps({**json.loads(text), "store_version": 999}).encode()
        info = tarfile.TarInfo(name)
        info.size = len(told)
        tar.addfile(info, _bytes(told))  # type: ignore[arg-type]
        return None

    source = rewritten(made.path, tmp_path / "newer.tar.gz", newer)
    before = tree(home.root)
    with pytest.raises(StoreTooNew, match="version 999"):
        put_back(home, source, force=True)
    with closing(sqlite3.connect(tmp_path / "newer.db")) as bare:
        bare.execute("PRAGMA user_version = 999")
    with pytest.raises(StoreTooNew, match="version 999"):
        put_back(home, tmp_path / "newer.db", force=True)
    assert tree(home.root) == before


def refused(home: Home, tmp_path: Path, source: Path, *, match: str = "Everything is as it was") -> None:
    before, beside = tree(home.root), sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(BackupError, match=match) as told:
        put_back(home, source, force=True)
    assert "\n" not in str(told.value)
    assert tree(home.root) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == beside
    assert not Path("/tmp/evil-absolute").exists()


@pytest.mark.parametrize(
    ("name", "target", "inside"),
    [
        ("groups/a/l", "x/y", True),
        ("groups/a/b/l", "../x", True),
        ("groups/a/b/l", "..", True),
        ("groups/a/l", "..", False),
        ("groups/a/l", "../b/x", False),
        ("groups/a/l", "b/../../c", False),
        ("groups/a/l", "x/../..", False),
        ("groups/a/l", "/x", False),
        ("groups/l", "a", False),
        ("data/sessions/a/.claude/l", "../x", True),
        ("data/sessions/a/.claude/l", "../../b", False),
        ("store/l", "x", False),
    ],
)
def test_a_link_may_lead_about_its_own_group(name, target, inside):
    assert archive.stays_inside(name, target) is inside
