"""`insights`, `people` and `projects`: a group's knowledge."""

from __future__ import annotations

import json
import sqlite3

from orchestrator.domain.dashboard import Category, Insight, Person, Project
from orchestrator.domain.values import Folder
from orchestrator.store.database import Tx


async def add_insight(tx: Tx, insight: Insight) -> None:
    """Insert an insight. Raises `sqlite3.IntegrityError` when its content exists already."""
    await tx.execute(
        """
        INSERT INTO insights
            (group_folder, id, category, title, content, source, tags_json, links_json, created_ms,
             content_hash)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        """,
        (
            insight.folder,
            insight.id,
            insight.category,
            insight.title,
            insight.content,
            insight.source,
            json.dumps(insight.tags, ensure_ascii=False),
            json.dumps(insight.links, ensure_ascii=False),
            insight.created_ms,
            insight.content_hash,
        ),
    )


async def insight_of(tx: Tx, folder: Folder, content_hash: str) -> Insight | None:
    """Return the insight with this content hash, or None."""
    cursor = await tx.execute(
        "SELECT * FROM insights WHERE group_folder = ? AND content_hash = ?", (folder, content_hash)
    )
    row = await cursor.fetchone()
    return _insight(row) if row else None


async def insights(tx: Tx, folder: Folder) -> list[Insight]:
    """Return all insights of a group, oldest first."""
    rows = await tx.execute_fetchall(
        "SELECT * FROM insights WHERE group_folder = ? ORDER BY created_ms, id", (folder,)
    )
    return [_insight(row) for row in rows]


async def forget(tx: Tx, folder: Folder, row_id: str) -> None:
    """Delete an insight, or the record of a person."""
    await tx.execute("DELETE FROM insights WHERE group_folder = ? AND id = ?", (folder, row_id))
    await tx.execute("DELETE FROM people WHERE group_folder = ? AND id = ?", (folder, row_id))


async def put_person(tx: Tx, person: Person) -> None:
    await tx.execute(
        "INSERT INTO people (group_folder, id, body_json) VALUES (?, ?, ?)",
        (person.folder, person.id, json.dumps(dict(person.body), ensure_ascii=False)),
    )


async def people(tx: Tx, folder: Folder) -> list[Person]:
    rows = await tx.execute_fetchall("SELECT * FROM people WHERE group_folder = ? ORDER BY id", (folder,))
    return [Person(folder=folder, id=row["id"], body=json.loads(row["body_json"])) for row in rows]


async def put_project(tx: Tx, project: Project) -> None:
    await tx.execute(
        "INSERT INTO projects (group_folder, id, body_json) VALUES (?, ?, ?)",
        (project.folder, project.id, json.dumps(dict(project.body), ensure_ascii=False)),
    )


async def projects(tx: Tx, folder: Folder) -> list[Project]:
    rows = await tx.execute_fetchall("SELECT * FROM projects WHERE group_folder = ? ORDER BY id", (folder,))
    return [Project(folder=folder, id=row["id"], body=json.loads(row["body_json"])) for row in rows]


def _insight(row: sqlite3.Row) -> Insight:
    return Insight(
        folder=Folder(row["group_folder"]),
        id=row["id"],
        category=Category(row["category"]),
        title=row["title"],
        content=row["content"],
        source=row["source"],
        tags=tuple(json.loads(row["tags_json"])),
        links=json.loads(row["links_json"]),
        created_ms=row["created_ms"],
        content_hash=row["content_hash"],
    )
