"""Write a dashboard as files that other programs read: `tasks.json`, …, `knowledge/people.json`.

The files are output only: editing them changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import structlog
from pydantic_core import to_json

from agent_runner.wire.files import write_whole
from orchestrator.base.event_bus import EventBus, HostEvent
from orchestrator.dashboard.files import export_rows
from orchestrator.domain.errors import StoreError
from orchestrator.domain.values import Folder, Group
from orchestrator.store.board import dashboards
from orchestrator.store.board import files as board_files
from orchestrator.store.board.files import Row
from orchestrator.store.database import Database
from orchestrator.store.groups import groups

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 60.0
PAUSE_SECONDS = 1.0
PAUSE_FACTOR = 10
"""The factor by which a pause is longer than the export before it, to use a tenth of a core at most."""
DIRECTORY = "dashboard"
_CHANGE_EVENTS = ("command.dashboard*", "dashboard.*", "notification.*", "worker.*")
VERSION = "1.0"
FILES = (
    "tasks.json",
    "questions.json",
    "notifications.json",
    "knowledge/history.json",
    "knowledge/insights.json",
    "knowledge/people.json",
)
_OPENED, _CLOSED = '{\n  "": [\n', "\n  ]\n}"
"""The text before and after the rows of a list that is a value in an object."""

RowTexts = Mapping[tuple[Any, ...], str]
"""A row of the database → its JSON text in a file. All texts of a mapping have times of the same zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The content of each file by its name, at one revision of the dashboard."""

    revision: int
    contents: dict[str, str]
    texts: RowTexts
    """Encoded texts that the next export in the same time zone uses again."""


def read(
    database: Path, folder: Folder, zone: ZoneInfo, known_texts: RowTexts | None = None
) -> Exported | None:
    """Read a group's dashboard, and return the contents of its files; None for a group without one.

    Times in the files are local times of `zone`. `known_texts` are the encoded rows of an earlier export in
    the same zone, which are not encoded again. Blocks: about 0.2 s for 10,000 rows, a tenth of that for known
    ones.

    Raises:
        StoreError: there is no database, or a newer Andy's.
        sqlite3.Error: it cannot be read.
    """
    rows = board_files.read(database, folder)
    if rows is None:
        return None
    encoder = _Encoder(show=export_rows.LocalTimes(zone).show, known=known_texts or {})
    contents = encoder.contents(rows)
    return Exported(revision=rows.revision, contents=contents, texts=encoder.texts)


def write(directory: Path, contents: Mapping[str, str]) -> None:
    """Write the files of a dashboard under a directory: `contents` maps their paths in it to their texts.

    Each file is replaced whole or not at all, even if its text stays the same. Files are not synced to the
    disk: they can be written again from the database, which is. Blocks.

    Raises:
        OSError: a file cannot be written.
    """
    for name, text in contents.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encoder:
    """Encodes the rows of a dashboard; rows that did not change are taken from the export before.

    A change mostly touches one row, and a dashboard may have ten thousand.
    """

    show: export_rows.ShowTime
    known: RowTexts
    """The texts of the export before."""
    texts: dict[tuple[Any, ...], str] = field(default_factory=dict)
    """The texts of this export, for the next one."""

    def contents(self, rows: board_files.DashboardRows) -> dict[str, str]:
        """Return the text of each file by its path in the dashboard's directory."""
        return {
            "tasks.json": _document(tasks=self._encoded_rows(rows.tasks, export_rows.task)),
            "questions.json": _document(questions=self._encoded_rows(rows.questions, export_rows.question)),
            "notifications.json": _document(
                notifications=self._encoded_rows(rows.notifications, export_rows.notification)
            ),
            "knowledge/history.json": _document(
                completed_tasks=self._encoded_rows(rows.history, export_rows.completed),
                projects=map(_indented, map(json.loads, rows.projects)),
            ),
            "knowledge/insights.json": _document(
                insights=self._encoded_rows(rows.insights, export_rows.insight)
            ),
            "knowledge/people.json": _document(people=map(_indented, map(json.loads, rows.people))),
        }

    def _encoded_rows(
        self, rows: Iterable[Row], convert: Callable[[Row, export_rows.ShowTime], Mapping[str, Any]]
    ) -> Iterable[str]:
        """Yield the JSON text of each row, and remember it in `texts` for the next export.

        `convert` converts a row to an object. A row that the export before had is not converted again.
        """
        for row in rows:
            # The whole row is the key, not its version: some statements change a row without a new version.
            text = self.known.get(row)
            if text is None:
                text = _indented(convert(row, self.show))
            self.texts[row] = text
            yield text


def _document(**lists: Iterable[str]) -> str:
    """Return the JSON text of a file: an object with a version and lists of encoded rows by their names."""
    members = "".join(f',\n  "{name}": {_json_list(rows)}' for name, rows in lists.items())
    return f'{{\n  "version": "{VERSION}"{members}\n}}\n'


def _json_list(rows: Iterable[str]) -> str:
    """Return rows, each encoded as JSON already, as the text of a JSON list."""
    joined = ",\n".join(rows)
    return f"[\n{joined}\n  ]" if joined else "[]"


def _indented(row: Mapping[str, Any]) -> str:
    """Return a row as JSON, indented as an entry of a list in a document."""
    # Encoded inside an object and a list, for the indentation; the text around the row is cut off. The
    # standard library's encoder is several times slower as soon as it indents.
    return to_json({"": [row]}, indent=2).decode()[len(_OPENED) : -len(_CLOSED)]


class DashboardExporter:
    """Write the files of each dashboard soon after it changed, at most once a second.

    It compares revisions: a dashboard that has not changed is not written.
    """

    def __init__(
        self,
        root: Path,
        database: Database,
        *,
        bus: EventBus,
        zone_of: Callable[[Group], ZoneInfo],
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        """`root` has a directory for each group, which exists once a container of the group was prepared.

        `pause_seconds` is the shortest pause between two exports.
        """
        self._root = root
        self._database = database
        self._bus = bus
        self._zone_of = zone_of
        self._pause_seconds = pause_seconds
        self._groups: Sequence[Group] = ()
        self._by_folder: dict[Folder, Group] = {}
        """The groups of `_groups`, by folder."""
        self._written: dict[Folder, tuple[int, str]] = {}
        """The revision of each group's dashboard that was written last, and the time zone of its times."""
        self._texts: dict[Folder, tuple[str, RowTexts]] = {}
        """The encoded rows of each group, with the time zone of their times."""

    async def run(self) -> None:
        """Write the files of dashboards whenever they change, until the task is cancelled."""
        with self._bus.listening(*_CHANGE_EVENTS) as events:
            while True:
                # Emptied before the look at the store, so that a later event starts another pass.
                while not events.empty():
                    events.get_nowait()
                began_seconds = time.monotonic()
                await self.write_all()
                await self.pause(time.monotonic() - began_seconds)
                await _until_event_or_sweep(events)

    async def pause(self, took_seconds: float) -> None:
        """Wait after a write that took `took_seconds`, so that the next one covers several changes.

        Each export writes a whole dashboard.
        """
        await asyncio.sleep(max(self._pause_seconds, PAUSE_FACTOR * took_seconds))

    async def write_all(self) -> None:
        """Write the files of each dashboard whose revision or time zone changed since it was written last."""
        all_groups = await groups.registered(self._database)
        # As long as no group has changed, it is the same object.
        if all_groups is not self._groups:
            self._groups, self._by_folder = all_groups, {group.folder: group for group in all_groups}
        for folder, revision in (await self._database.read(dashboards.revisions)).items():
            group = self._by_folder.get(folder)
            if group is not None:  # a dashboard may outlive its group
                await self._write(group, revision)

    async def _write(self, group: Group, revision: int) -> None:
        """Write the files of a group's dashboard, unless they show this revision already.

        Nothing is written for a group whose directory no container has needed yet. A failure is only logged:
        the next change, or the next sweep, tries again.
        """
        zone, directory = self._zone_of(group), self._root / group.folder
        if self._written.get(group.folder) == (revision, zone.key) or not directory.is_dir():
            return
        # Encoded rows have local times, so they are used again only in the same zone.
        zone_key, known_texts = self._texts.pop(group.folder, (zone.key, {}))
        try:
            exported = await asyncio.to_thread(
                _read_and_write,
                await self._database.path(),
                group.folder,
                zone,
                directory / DIRECTORY,
                known_texts if zone_key == zone.key else {},
            )
        # A value that cannot be written, of an older store, must not keep other groups from their files.
        except (OSError, StoreError, sqlite3.Error, ValueError, ArithmeticError) as error:
            log.warning("dashboard.not_exported", group=group.folder, reason=str(error))
            return
        if exported is not None:
            self._texts[group.folder] = (zone.key, exported.texts)
            self._written[group.folder] = (exported.revision, zone.key)


async def _until_event_or_sweep(events: asyncio.Queue[HostEvent]) -> None:
    """Wait for the next event, or for `SWEEP_SECONDS` if none comes."""
    try:
        async with asyncio.timeout(SWEEP_SECONDS):
            await events.get()
    except TimeoutError:
        return


def _read_and_write(
    database: Path, folder: Folder, zone: ZoneInfo, directory: Path, known_texts: RowTexts
) -> Exported | None:
    """Read a dashboard and write its files; return their contents, None for a group without a dashboard.

    `known_texts` are encoded rows of an earlier export. Blocks, so it is called in a thread, and uses a
    connection of its own, so that no transaction waits for it. Raises what `read` and `write` raise.
    """
    exported = read(database, folder, zone, known_texts)
    if exported is not None:
        write(directory, exported.contents)
    return exported
