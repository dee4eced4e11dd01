"""`mcp_servers`: the owner's servers that agents of some groups may call, by name."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass

from orchestrator.domain.values import Folder
from orchestrator.store.database import Tx


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """A server, where its secret is found, and whose agents may call it."""

    name: str
    url: str
    header: str
    secret_env: str | None
    groups: tuple[Folder, ...]


async def put(tx: Tx, server: McpServer, *, now_ms: int) -> None:
    """Store a server in place of the one with this name, if there is one."""
    await tx.execute(
        """
        INSERT INTO mcp_servers (name, url, header, secret_env, groups, set_ms) VALUES (?, ?, ?, ?, ?, ?)
        ON CONFLICT (name) DO UPDATE SET url = excluded.url, header = excluded.header,
            secret_env = excluded.secret_env, groups = excluded.groups, set_ms = excluded.set_ms
        """,
        (server.name, server.url, server.header, server.secret_env, json.dumps(server.groups), now_ms),
    )


async def remove(tx: Tx, name: str) -> None:
    """Delete a server."""
    await tx.execute("DELETE FROM mcp_servers WHERE name = ?", (name,))


async def every(tx: Tx) -> list[McpServer]:
    return [_from_row(row) for row in await tx.execute_fetchall("SELECT * FROM mcp_servers ORDER BY name")]


async def by_name(tx: Tx, name: str) -> McpServer | None:
    rows = await tx.execute_fetchall("SELECT * FROM mcp_servers WHERE name = ?", (name,))
    return next((_from_row(row) for row in rows), None)


async def names_for(tx: Tx, folder: Folder) -> tuple[str, ...]:
    """Return the names of the servers that a group's agent may call."""
    return tuple(server.name for server in await every(tx) if folder in server.groups)


def _from_row(row: sqlite3.Row) -> McpServer:
    return McpServer(
        name=row["name"],
        url=row["url"],
        header=row["header"],
        secret_env=row["secret_env"],
        groups=tuple(Folder(folder) for folder in json.loads(row["groups"])),
    )
