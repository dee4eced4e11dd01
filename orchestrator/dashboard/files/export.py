"""Write a dashboard as files that other programs read: `tasks.json`, …, `knowledge/people.json`.

The files are output: what is written into them changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from pydantic_core import to_json

from agent_runner.wire.files import write_whole
from orchestrator.dashboard.files import export_rows as as_told
from orchestrator.models import Folder
from orchestrator.store import dashboard_files

VERSION = "1.0"
FILES = (
    "tasks.json",
    "questions.json",
    "notifications.json",
    "knowledge/history.json",
    "knowledge/insights.json",
    "knowledge/people.json",
)
BATCH = 1_000
_OPENED, _CLOSED = '{\n  "": [\n', "\n  ]\n}"
"""What is around the rows of a list that stands in an object."""

Told = Iterable[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The content of each file by its name, as of one revision of the dashboard."""

    revision: int
    contents: dict[str, str]


def read(database: Path, folder: Folder, zone: ZoneInfo) -> Exported | None:
    """Read a dashboard; None of a group that has none. No work for an event loop: some 0.1 s for 10,000 rows.

    Raises:
        StoreError: there is no database, or a newer Andy's.
        sqlite3.Error: it cannot be read.
    """
    rows = dashboard_files.read(database, folder)
    if rows is None:
        return None
    return Exported(revision=rows.revision, contents=_contents(rows, zone))


def write(directory: Path, contents: Mapping[str, str]) -> None:
    """Write the files, each whole or not at all; what is written already stays untouched. Blocks.

    Not flushed to the disk: they are made again from the database, which is.

    Raises:
        OSError: a file cannot be written.
    """
    for name, text in contents.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)


def _contents(rows: dashboard_files.Rows, zone: ZoneInfo) -> dict[str, str]:
    show = as_told.Times(zone).show
    return {
        "tasks.json": _document(tasks=(as_told.task(one, show) for one in rows.tasks)),
        "questions.json": _document(questions=(as_told.question(one, show) for one in rows.questions)),
        "notifications.json": _document(
            notifications=(as_told.notification(one, show) for one in rows.notifications)
        ),
        "knowledge/history.json": _document(
            completed_tasks=(as_told.completed(one, show) for one in rows.history),
            projects=map(json.loads, rows.projects),
        ),
        "knowledge/insights.json": _document(insights=(as_told.insight(one, show) for one in rows.insights)),
        "knowledge/people.json": _document(people=map(json.loads, rows.people)),
    }


def _document(**lists: Told) -> str:
    listed = "".join(f',\n  "{name}": {_list(rows)}' for name, rows in lists.items())
    return f'{{\n  "version": "{VERSION}"{listed}\n}}\n'


def _list(rows: Told) -> str:
    """A list of an indented document, written in batches: the encoder lets no other thread work meanwhile."""
    # The standard library's encoder is several times slower as soon as it indents.
    left = iter(rows)
    batches = []
    while batch := list(islice(left, BATCH)):
        batches.append(to_json({"": batch}, indent=2).decode()[len(_OPENED) : -len(_CLOSED)])
    return "[\n" + ",\n".join(batches) + "\n  ]" if batches else "[]"
