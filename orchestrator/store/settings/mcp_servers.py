"""`mcp_servers`: the owner's MCP servers by name, and the groups whose agents may call them."""

from __future__ import annotations

import json
import shlex
import sqlite3
from dataclasses import dataclass

from orchestrator.domain.values import Folder
from orchestrator.store.database import Tx


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """A server, the name of its secret, and the groups whose agents may call it.

    It has a `url`, or else the `command` of a program in the owner's folder `mcp/NAME/`, which has no secret.
    """

    name: str
    url: str | None = None
    command: tuple[str, ...] = ()
    header: str = "Authorization"
    secret_env: str | None = None
    groups: tuple[Folder, ...]

    @property
    def place(self) -> str:
        """The server's location in one line: its URL, or its command."""
        return self.url or shlex.join(self.command)


async def put(tx: Tx, server: McpServer, *, now_ms: int) -> None:
    """Store a server in place of the one with this name, if there is one."""
    await tx.execute(
        """
        INSERT INTO mcp_servers (name, url, command, header, secret_env, groups, set_ms)
        VALUES (?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (name) DO UPDATE SET url = excluded.url, command = excluded.command,
            header = excluded.header, secret_env = excluded.secret_env, groups = excluded.groups,
            set_ms = excluded.set_ms
        """,
        (
            server.name,
            server.url,
            json.dumps(server.command) if server.command else None,
            server.header,
            server.secret_env,
            json.dumps(server.groups),
            now_ms,
        ),
    )


async def remove(tx: Tx, name: str) -> None:
    """Delete a server."""
    await tx.execute("DELETE FROM mcp_servers WHERE name = ?", (name,))


async def every(tx: Tx) -> list[McpServer]:
    return [_from_row(row) for row in await tx.execute_fetchall("SELECT * FROM mcp_servers ORDER BY name")]


async def by_name(tx: Tx, name: str) -> McpServer | None:
    rows = await tx.execute_fetchall("SELECT * FROM mcp_servers WHERE name = ?", (name,))
    return next((_from_row(row) for row in rows), None)


async def of_group(tx: Tx, folder: Folder) -> list[McpServer]:
    """Return the servers that a group's agent may call."""
    return [server for server in await every(tx) if folder in server.groups]


def _from_row(row: sqlite3.Row) -> McpServer:
    return McpServer(
        name=row["name"],
        url=row["url"],
        command=tuple(json.loads(row["command"] or "[]")),
        header=row["header"],
        secret_env=row["secret_env"],
        groups=tuple(Folder(folder) for folder in json.loads(row["groups"])),
    )
