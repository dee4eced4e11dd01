"""Back up and restore files that wait to be sent, consistently with their outbox rows."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from orchestrator.home.directory import Home

FOLDER = "data/outgoing"
NOT_THERE = "Its file is not in the backup."
"""The error of a message that cannot be sent any more."""
_FILE_NAME = re.compile(r"out-[0-9a-f]+")
# An SQL condition: the states of a message that is still to be sent.
_IS_TO_BE_SENT = "state IN ('held', 'pending', 'sending')"


def link_waiting_files(home: Home, held_folder: Path) -> None:
    """Link or copy the files that wait to be sent now to `held_folder`, made if it is missing. Blocks.

    Call it before the database is copied and again after. Each file that the copied database names exists at
    one of the two times: it may be sent and removed before the second, or be added after the first.
    """
    held_folder.mkdir(exist_ok=True)
    for source in (home.root / FOLDER).glob("out-*"):
        with suppress(FileNotFoundError, FileExistsError):  # sent meanwhile, or copied by the first call
            _link_or_copy(source, held_folder / source.name)


def _link_or_copy(source: Path, target: Path) -> None:
    """Make `target` a second name of the file `source`; copy it where that is impossible. Blocks.

    Raises:
        FileNotFoundError: `source` is missing.
        FileExistsError: `target` exists, and hard links are possible here; where they are not, an existing
            `target` stays as it is.
        OSError: it cannot be copied.
    """
    try:
        target.hardlink_to(source)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError:  # no hard link is possible, for example to another disk
        # A target that exists is the copy that an earlier call made here, and is not copied again.
        if not target.exists():
            shutil.copyfile(source, target)


def delete_unneeded_files(held_folder: Path, database: Path) -> None:
    """Delete the files in `held_folder` that no message in the copied `database` may still need. Blocks.

    Files and rows are compared by the name of the file, since the rows have paths in the home.
    """
    needed_names = {Path(path).name for _, path in _message_files(database)}
    for path in held_folder.iterdir():
        if path.name not in needed_names:
            path.unlink()


def set_file_paths(database: Path, home: Home, files: Path) -> None:
    """Set the paths of files in the outbox of a restored database to paths in `home`.

    These are the files of messages that wait to be sent, and of those that the owner may send again (in the
    state `unknown` or `dead`). A waiting message whose file is missing, or has another name than Andy gives
    such files, gets the state `dead`, so it is not sent. `files` is the folder that has the files now: the
    home's own, or one from which they are moved into the home later. Its mode is set so that only its owner
    can read it. Of a stored path only the file's name is used, since the path in a backup could be that of
    any file of the machine.
    """
    home_folder = home.root.absolute() / FOLDER
    with closing(sqlite3.connect(database)) as connection, connection:
        for row_id, path in _message_files(database):
            name = Path(path).name
            connection.execute(
                "UPDATE outbox SET file_path = ? WHERE id = ?", (str(home_folder / name), row_id)
            )
            if not _FILE_NAME.fullmatch(name) or not (files / name).is_file():
                connection.execute(
                    f"UPDATE outbox SET state = 'dead', error = ? WHERE id = ? AND {_IS_TO_BE_SENT}",  # noqa: S608
                    (NOT_THERE, row_id),
                )
    if files.is_dir():
        files.chmod(0o700)


def _message_files(database: Path) -> list[tuple[int, str]]:
    """Return the id and the file path of each message in the outbox that may still need its file."""
    with closing(sqlite3.connect(database)) as connection:
        columns = {row[1] for row in connection.execute("PRAGMA table_info(outbox)")}
        if "file_path" not in columns:  # from a version that could not send files
            return []
        return connection.execute(
            "SELECT id, file_path FROM outbox"  # noqa: S608
            f" WHERE file_path IS NOT NULL AND ({_IS_TO_BE_SENT} OR state IN ('unknown', 'dead'))"
        ).fetchall()
