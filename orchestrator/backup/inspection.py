"""Describe the contents of a backup and of a home, so that the owner sees what a restore would change."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.backup import archive
from orchestrator.backup.archive import BackupContents, BackupProgress, Manifest
from orchestrator.backup.restore import Unpacked, as_backup_error
from orchestrator.backup.swap import Stage
from orchestrator.base.clock import Clock
from orchestrator.domain.errors import BackupError, SettingError
from orchestrator.home import settings
from orchestrator.home.directory import Home

SETTING_FILES = (archive.SETTINGS, archive.SECRETS)
SCRATCH = ".check-"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCensus:
    """Counts of the rows of a database."""

    groups: frozenset[str] = frozenset()
    """The folders of the registered groups."""
    messages: int = 0
    newest_ms: int | None = None
    """The time when the newest message arrived, in epoch ms."""
    waiting: int = 0
    """The number of turns that are not answered yet."""
    reminders: int = 0
    """The number of pending reminders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The contents of a backup that was unpacked completely."""

    manifest: Manifest
    contents: BackupContents
    store: StoreCensus
    settings: Mapping[str, tuple[str, str]]
    """The settings that would change, each with its present and its restored value."""
    keeps_settings: bool
    """Whether the backup has settings that cannot be restored, because the home's top folder is read-only."""


def inspect(home: Home, source: Path, *, clock: Clock) -> Inspection:
    """Unpack a backup into a temporary folder beside it, check it, and return what it contains.

    The result says which settings of `home` a restore would change; `home` itself stays as it is. Blocks as
    long as a restore does.

    Raises:
        BackupError: the file is damaged or not a backup, or Andy would not start with its settings.
        StoreTooNew: a newer Andy wrote it.
    """
    # Beside the backup, where there is a disk: in a container, `/tmp` is memory.
    with (
        as_backup_error(source),
        tempfile.TemporaryDirectory(
            dir=source.parent, prefix=SCRATCH, ignore_cleanup_errors=True
        ) as temporary_folder,
    ):
        archive.delete_leftovers(source.parent, SCRATCH, now_ms=clock.now_ms())
        scratch = Home(Path(temporary_folder, "home"))
        scratch.make()
        stage = Stage(scratch)
        stage.open()
        unpacked = Unpacked.of(source, stage, BackupProgress(lambda _: None, clock=clock))
        brings_settings = any(stage.path(name).exists() for name in SETTING_FILES)
        # With Docker Compose a restore cannot replace the settings, so none of them would change.
        can_place = Stage(home).can_place(archive.SETTINGS)
        return Inspection(
            manifest=unpacked.checked_manifest(),
            contents=unpacked.contents,
            store=census(stage.path(archive.DATABASE)),
            settings=changed_settings(home, stage) if can_place else {},
            keeps_settings=brings_settings and not can_place,
        )


def census(database: Path) -> StoreCensus:
    """Return the counts of a database of any version; zeros for a missing or damaged one. Blocks."""
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            execute = connection.execute
            messages, newest_ms = execute("SELECT count(*), max(received_ms) FROM messages").fetchone()
            (waiting,) = execute("SELECT count(*) FROM turns WHERE state IN ('queued', 'running')").fetchone()
            folders = frozenset(row[0] for row in execute("SELECT folder FROM registered_groups"))
            reminders = _reminders(connection)
    except sqlite3.Error:
        return StoreCensus()
    return StoreCensus(
        groups=folders, messages=messages, newest_ms=newest_ms, waiting=waiting, reminders=reminders
    )


def _reminders(connection: sqlite3.Connection) -> int:
    """Return the number of reminders in a database that are still to come.

    Up to version 22 of the database they have a table of their own; since then they are notifications with a
    number.
    """
    try:
        rows = connection.execute("SELECT count(*) FROM reminders WHERE state = 'pending'")
    except sqlite3.OperationalError:
        rows = connection.execute(
            "SELECT count(*) FROM notifications WHERE number IS NOT NULL AND status = 'pending'"
        )
    return int(rows.fetchone()[0])


def changed_settings(home: Home, stage: Stage) -> dict[str, tuple[str, str]]:
    """Return the settings that a backup, unpacked in `stage`, would change in a home.

    The keys are the names of the settings; each value is the present and the restored value, as text.

    Raises:
        BackupError: Andy would refuse to start with them.
        SettingError: the home's present settings are not valid.
    """
    with tempfile.TemporaryDirectory(
        dir=stage.base(archive.SETTINGS), prefix=".settings-"
    ) as temporary_folder:
        # As the next start would find them: the files of the home, and those of the backup over them.
        for name in SETTING_FILES:
            with suppress(FileNotFoundError):
                shutil.copyfile(home.root / name, Path(temporary_folder, name))
            with suppress(FileNotFoundError):
                shutil.copyfile(stage.path(name), Path(temporary_folder, name))
        try:
            restored = settings.load(Path(temporary_folder)).model_dump(mode="json")
        except SettingError as error:
            reason = str(error).replace(f"{temporary_folder}/", "")
            raise BackupError(
                f"Andy would not start with its settings ({reason})."
                " Restore it with 'andy restore FILE', then fix them."
            ) from error
    present = settings.load(home.root).model_dump(mode="json")
    return {
        name.upper(): (str(value), str(restored[name]))
        for name, value in present.items()
        if restored[name] != value
    }
