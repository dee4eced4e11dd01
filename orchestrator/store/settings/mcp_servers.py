"""`mcp_servers`: the owner's MCP servers by name, and the groups whose agents may call them."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from orchestrator.domain.values import Folder
from orchestrator.store.database import Tx
from orchestrator.store.row_mapper import Column, Json, RowMapper


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
    """The name under which `.env` has its secret; None if it needs none."""
    groups: tuple[Folder, ...]

    @property
    def place(self) -> str:
        """The address of the server in one line: its URL, or the command that starts it."""
        return self.url or shlex.join(self.command)


def _read_command(text: str | None) -> tuple[str, ...]:
    """Return the command of a server from its column: the program and its arguments.

    It is empty for a server with a URL, which has no command.
    """
    return tuple(json.loads(text)) if text else ()


def _write_command(command: tuple[str, ...]) -> str | None:
    """Return the command of a server as JSON text for its column; None for a server with a URL."""
    return json.dumps(command) if command else None


_MAPPER = RowMapper(
    McpServer,
    "mcp_servers",
    {"command": Column("command", _read_command, _write_command), "groups": Json("groups")},
    unread=("set_ms",),
)


async def put(tx: Tx, server: McpServer, *, now_ms: int) -> None:
    """Store an MCP server; it replaces the one with the same name, if there is one."""
    row = _MAPPER.values(server) | {"set_ms": now_ms}
    await tx.execute(_MAPPER.upsert_sql(row, key="name"), row)


async def remove(tx: Tx, name: str) -> None:
    """Delete the MCP server with this name, if there is one."""
    await tx.execute("DELETE FROM mcp_servers WHERE name = ?", (name,))


async def every(tx: Tx) -> list[McpServer]:
    """Return all MCP servers that the owner has set up, by name."""
    return await _MAPPER.fetch_all(tx, "SELECT * FROM mcp_servers ORDER BY name")


async def by_name(tx: Tx, name: str) -> McpServer | None:
    """Return the MCP server with this name, or None."""
    return await _MAPPER.fetch_one(tx, "SELECT * FROM mcp_servers WHERE name = ?", (name,))


async def of_group(tx: Tx, folder: Folder) -> list[McpServer]:
    """Return the MCP servers that a group's agent may call, by name."""
    return [server for server in await every(tx) if folder in server.groups]
