"""Write a dashboard as files that other programs read: `tasks.json`, …, `knowledge/people.json`.

The files are output: what is written into them changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from pydantic_core import to_json

from agent_runner.wire.files import write_whole
from orchestrator.dashboard import export_rows as rows
from orchestrator.models import Folder
from orchestrator.store import (
    dashboard_knowledge,
    dashboard_notifications,
    dashboard_questions,
    dashboard_tasks,
    dashboards,
)
from orchestrator.store.database import Tx

FILES = (
    "tasks.json",
    "questions.json",
    "notifications.json",
    "knowledge/history.json",
    "knowledge/insights.json",
    "knowledge/people.json",
)


async def files_of(tx: Tx, folder: Folder, zone: ZoneInfo) -> dict[str, str] | None:
    """Return the content of each file by its name; None of a group that has no dashboard."""
    documents = await documents_of(tx, folder, zone)
    return None if documents is None else contents(documents)


async def documents_of(tx: Tx, folder: Folder, zone: ZoneInfo) -> dict[str, Any] | None:
    """Return what stands in each file."""
    if await dashboards.get(tx, folder) is None:
        return None
    tasks = sorted(
        await dashboard_tasks.on_board(tx, folder), key=lambda one: (one.created_ms // 1000, one.id)
    )
    past = sorted(
        await dashboard_tasks.history(tx, folder), key=lambda one: ((one.archived_ms or 0) // 1000, one.id)
    )
    questions = [one for one in await dashboard_questions.every(tx, folder) if rows.is_listed(one)]
    questions.sort(key=lambda one: (one.created_ms // 1000, one.id))
    told = await dashboard_notifications.listed(tx, folder)
    told.sort(key=lambda one: (one.due_ms // 1000, one.id))
    insights = sorted(
        await dashboard_knowledge.insights(tx, folder), key=lambda one: (one.created_ms // 1000, one.id)
    )
    history = rows.listed("completed_tasks", (rows.completed(one, zone) for one in past))
    history["projects"] = [dict(one.body) for one in await dashboard_knowledge.projects(tx, folder)]
    return {
        "tasks.json": rows.listed("tasks", (rows.task(one, zone) for one in tasks)),
        "questions.json": rows.listed("questions", (rows.question(one, zone) for one in questions)),
        "notifications.json": rows.listed("notifications", (rows.notification(one, zone) for one in told)),
        "knowledge/history.json": history,
        "knowledge/insights.json": rows.listed("insights", (rows.insight(one, zone) for one in insights)),
        "knowledge/people.json": rows.listed(
            "people", (dict(one.body) for one in await dashboard_knowledge.people(tx, folder))
        ),
    }


def contents(documents: Mapping[str, Any]) -> dict[str, str]:
    """Write each document out. Takes a while for a large dashboard: no work for an event loop."""
    # The standard library's encoder is several times slower as soon as it indents.
    return {name: to_json(document, indent=2).decode() + "\n" for name, document in documents.items()}


def write(directory: Path, contents: Mapping[str, str]) -> None:
    """Write the files, each whole or not at all; what is written already stays untouched. Blocks.

    Raises:
        OSError: a file cannot be written.
    """
    for name, text in contents.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
