"""Keep the files that are on their way to a chat together with the rows that send them."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from orchestrator.domain.home import Home

FOLDER = "data/outgoing"
NOT_THERE = "Its file is not in the backup."
_NAME = re.compile(r"out-[0-9a-f]+")
_OPEN = "state IN ('held', 'pending', 'sending')"


def hold(home: Home, held_files: Path) -> None:
    """Copy the present files to `held_files`, even those that are sent and removed meanwhile. Blocks.

    Call before the database is copied and again after it: what a row names was there at one of them.
    """
    held_files.mkdir(exist_ok=True)
    for source in (home.root / FOLDER).glob("out-*"):
        with suppress(FileNotFoundError, FileExistsError):  # sent since, or held already
            _link_or_copy(source, held_files / source.name)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError:  # another disk
        if not target.exists():
            shutil.copyfile(source, target)


def drop_strays(held_files: Path, database: Path) -> None:
    """Delete the files that no row of a copied database sends any more."""
    needed = {Path(path).name for _, path in _rows(database)}
    for path in held_files.iterdir():
        if path.name not in needed:
            path.unlink()


def settle(database: Path, home: Home, files: Path) -> None:
    """Make the rows of a restored database name the files of `home`; a row without its file becomes dead and
    says so.

    `files` is where those are now that will lie in the home. Whatever a row says, no other file is named.
    """
    place = home.root.absolute() / FOLDER
    with closing(sqlite3.connect(database)) as connection, connection:
        for row_id, path in _rows(database):
            name = Path(path).name
            connection.execute("UPDATE outbox SET file_path = ? WHERE id = ?", (str(place / name), row_id))
            if not _NAME.fullmatch(name) or not (files / name).is_file():
                connection.execute(
                    f"UPDATE outbox SET state = 'dead', error = ? WHERE id = ? AND {_OPEN}",  # noqa: S608
                    (NOT_THERE, row_id),
                )
    if files.is_dir():
        files.chmod(0o700)


def _rows(database: Path) -> list[tuple[int, str]]:
    with closing(sqlite3.connect(database)) as connection:
        known = {row[1] for row in connection.execute("PRAGMA table_info(outbox)")}
        if "file_path" not in known:  # made before files were sent
            return []
        return connection.execute(
            "SELECT id, file_path FROM outbox"  # noqa: S608
            f" WHERE file_path IS NOT NULL AND ({_OPEN} OR state IN ('unknown', 'dead'))"
        ).fetchall()
