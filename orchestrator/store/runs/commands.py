"""`commands`: the requests of containers, each stored once with its reply."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypedDict

from agent_runner.wire.mailbox import Reply
from orchestrator.domain.values import Folder
from orchestrator.store.database import Tx


async def answered(tx: Tx, folder: Folder, request_id: str) -> Reply | None:
    """Return the reply that a container's request got earlier, or None if it was not carried out yet."""
    cursor = await tx.execute(
        "SELECT * FROM commands WHERE group_folder = ? AND request_id = ?", (folder, request_id)
    )
    row = await cursor.fetchone()
    if row is None:
        return None
    return Reply(
        request_id=request_id,
        ok=bool(row["ok"]),
        code=row["code"],
        text=row["text"],
        data=json.loads(row["data"]),
    )


async def record(tx: Tx, folder: Folder, command_type: str, reply: Reply, *, now_ms: int) -> None:
    """Store the reply to a container's request, so that the same request is not carried out twice."""
    await tx.execute(
        """
        INSERT INTO commands (group_folder, request_id, type, ok, code, text, data, at_ms)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?)
        """,
        (
            folder,
            reply.request_id,
            command_type,
            reply.ok,
            reply.code,
            reply.text,
            json.dumps(reply.data),
            now_ms,
        ),
    )


async def forget(tx: Tx, folder: Folder, is_forgotten: Callable[[str], bool]) -> None:
    """Delete the contents of each stored reply to a group's containers that has something to forget.

    `is_forgotten` is called with the text and with the JSON data of a reply. If it returns True for either,
    both are deleted; the row stays.
    """
    rows = await tx.execute_fetchall(
        "SELECT request_id, text, data FROM commands WHERE group_folder = ?", (folder,)
    )
    for row in rows:
        if is_forgotten(row["text"]) or is_forgotten(row["data"]):
            await tx.execute(
                "UPDATE commands SET text = '', data = '{}' WHERE group_folder = ? AND request_id = ?",
                (folder, row["request_id"]),
            )


class CommandView(TypedDict):
    """A command of a container with its answer, as lists show it; `number` grows with each command."""

    number: int
    at_ms: int
    group: str
    request: str
    type: str
    ok: bool
    code: str
    text: str


async def newest(
    tx: Tx, folder: Folder | None, *, limit: int, before_number: int | None = None
) -> list[CommandView]:
    """Return at most `limit` commands of containers with their replies, newest first.

    They are of the group `folder` (None: of all groups) and, with `before_number`, have a lower number.
    """
    # `1 << 62` is above every number: without `before_number`, no row is left out.
    rows = await tx.execute_fetchall(
        """
        SELECT rowid AS number, at_ms, group_folder AS "group", request_id AS request, type, ok, code, text
        FROM commands
        WHERE (:folder IS NULL OR group_folder = :folder) AND rowid < coalesce(:before, 1 << 62)
        ORDER BY rowid DESC LIMIT :limit
        """,
        {"folder": folder, "before": before_number, "limit": limit},
    )
    return [
        {
            "number": row["number"],
            "at_ms": row["at_ms"],
            "group": row["group"],
            "request": row["request"],
            "type": row["type"],
            "ok": bool(row["ok"]),
            "code": row["code"],
            "text": row["text"],
        }
        for row in rows
    ]
