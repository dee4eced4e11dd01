"""`insights`, `people` and `projects`: a group's knowledge."""

from __future__ import annotations

from orchestrator.domain.dashboard import Insight, Person, Project
from orchestrator.domain.values import Folder
from orchestrator.store.database import Tx
from orchestrator.store.row_mapper import Json, RowMapper

_INSIGHTS = RowMapper(
    Insight,
    "insights",
    {"folder": "group_folder", "tags": Json("tags_json"), "links": Json("links_json")},
)
_PEOPLE = RowMapper(Person, "people", {"folder": "group_folder", "body": Json("body_json")})
_PROJECTS = RowMapper(Project, "projects", {"folder": "group_folder", "body": Json("body_json")})


async def add_insight(tx: Tx, insight: Insight) -> None:
    """Insert an insight. Raises `sqlite3.IntegrityError` when its content exists already."""
    await _INSIGHTS.insert(tx, insight)


async def insight_of(tx: Tx, folder: Folder, content_hash: str) -> Insight | None:
    """Return the insight of a group whose content has this hash, or None."""
    return await _INSIGHTS.fetch_one(
        tx, "SELECT * FROM insights WHERE group_folder = ? AND content_hash = ?", (folder, content_hash)
    )


async def insights(tx: Tx, folder: Folder) -> list[Insight]:
    """Return all insights of a group, oldest first."""
    return await _INSIGHTS.fetch_all(
        tx, "SELECT * FROM insights WHERE group_folder = ? ORDER BY created_ms, id", (folder,)
    )


async def forget(tx: Tx, folder: Folder, row_id: str) -> None:
    """Delete the insight and the record of a person that have the id `row_id`; mostly there is only one."""
    await tx.execute("DELETE FROM insights WHERE group_folder = ? AND id = ?", (folder, row_id))
    await tx.execute("DELETE FROM people WHERE group_folder = ? AND id = ?", (folder, row_id))


async def put_person(tx: Tx, person: Person) -> None:
    """Insert the record of a person that a group knows. Raises `sqlite3.IntegrityError` if its id exists
    already.
    """
    await _PEOPLE.insert(tx, person)


async def people(tx: Tx, folder: Folder) -> list[Person]:
    """Return the records of all people that a group knows, by id."""
    return await _PEOPLE.fetch_all(tx, "SELECT * FROM people WHERE group_folder = ? ORDER BY id", (folder,))


async def put_project(tx: Tx, project: Project) -> None:
    """Insert the record of a project of a group. Raises `sqlite3.IntegrityError` if its id exists already."""
    await _PROJECTS.insert(tx, project)


async def projects(tx: Tx, folder: Folder) -> list[Project]:
    """Return the records of all projects of a group, by id."""
    return await _PROJECTS.fetch_all(
        tx, "SELECT * FROM projects WHERE group_folder = ? ORDER BY id", (folder,)
    )
