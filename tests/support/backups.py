"""Make backups of a home and restore them without output, and read the content of both."""

from __future__ import annotations

import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

from orchestrator.backup import make as backup
from orchestrator.backup import restore
from orchestrator.backup.make import BackupResult
from orchestrator.backup.restore import RestoreResult
from orchestrator.home.directory import Home
from tests.doubles.clock import FakeClock

KEY = "sk-ant-api03-never-in-a-backup"


def make(home: Home, target: Path, *, with_env: bool = False, replaces: bool = False) -> BackupResult:
    return backup.back_up(
        home, target, with_env=with_env, replaces=replaces, clock=FakeClock(), say=lambda _: None
    )


def put_back(home: Home, source: Path, *, force: bool = False) -> RestoreResult:
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


def names_in(home: Home) -> list[str]:
    with closing(sqlite3.connect(f"file:{home.database}?mode=ro", uri=True)) as connection:
        return sorted(row[0] for row in connection.execute("SELECT name FROM chats"))


def damage(path: Path) -> None:
    """Spoil the pages after the first, which says what the file is."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * 20_000)
