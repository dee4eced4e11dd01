"""The MCP servers of the owner's: set one, remove one, and rows and lines of them."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import stat
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypedDict
from urllib.parse import urlsplit

from orchestrator.base.tables import table
from orchestrator.containers import mounts
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Folder
from orchestrator.proxies import mcp_logins
from orchestrator.store import audit
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.settings import mcp_servers
from orchestrator.store.settings.mcp_servers import McpServer

TAKEN = frozenset({"andy", "ans", "dashboard", "ide", "workspace"})
"""Names of servers that agents have anyway, or that their CLI keeps for itself."""
_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,99}")
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")
_OWN_HEADERS = frozenset({"connection", "content-length", "host", "transfer-encoding"})
"""Headers that HTTP sets itself, so that they can carry no secret."""


def command_of(line: str) -> tuple[str, ...]:
    """Split the command line of a program into its words, as a shell would, but without running a shell.

    Raises `BadRequest` if it cannot be split or names no program.
    """
    try:
        words = tuple(shlex.split(line))
    except ValueError as error:
        raise BadRequest(f"'{line}' is no command line: {error}.") from error
    if not words or not words[0]:
        raise BadRequest("A command line names a program: --command 'python3 server.py'.")
    return words


async def add(tx: Tx, server: McpServer, *, home: Path, now_ms: int) -> None:
    """Store an MCP server, and let its groups call it from their next containers on; record it in the audit.

    It replaces one with the same name; the groups that might call that one may call the new one, too. `home`
    is Andy's home directory, which has the programs.

    Raises:
        BadRequest: a name, the URL, the header or the program cannot be used.
        UnknownGroup: a group is not registered.
    """
    _check(server)
    if server.command:
        await asyncio.to_thread(_check_program, server, home)
    for folder in server.groups:
        await groups.known(tx, folder)
    stored = await mcp_servers.by_name(tx, server.name)
    # A server that is added again, for another group, also stays with the groups that have it already.
    server = replace(server, groups=tuple(sorted({*server.groups, *(stored.groups if stored else ())})))
    await mcp_servers.put(tx, server, now_ms=now_ms)
    await _renew_containers(tx, set(server.groups), now_ms=now_ms)
    await audit.append(tx, audit.AuditEvent(at_ms=now_ms, kind="mcp.added", detail=asdict(server)))


async def remove(tx: Tx, name: str, folder: str | None = None, *, now_ms: int) -> tuple[Folder, ...]:
    """Take an MCP server away from a group, or from all if `folder` is None, and record that in the audit.

    Containers that could call it are renewed. Return the groups that still have it. Raises `BadRequest` if
    there is no such server.
    """
    server = await mcp_servers.by_name(tx, name)
    if server is None or folder not in (None, *server.groups):
        raise BadRequest(f"There is no MCP server '{name}' of {folder or 'any group'}: see 'andy mcp list'.")
    remaining = tuple(group for group in server.groups if folder not in (None, group))
    if remaining:
        await mcp_servers.put(tx, replace(server, groups=remaining), now_ms=now_ms)
    else:
        await mcp_servers.remove(tx, name)
    await _renew_containers(tx, set(server.groups), now_ms=now_ms)
    await audit.append(
        tx, audit.AuditEvent(at_ms=now_ms, kind="mcp.removed", detail={"name": name, "group": folder})
    )
    return remaining


async def note_login(tx: Tx, server: McpServer, *, is_logged_in: bool, now_ms: int) -> None:
    """Follow a login of the owner to an MCP server, or a logout: record it in the audit.

    The idle containers of the groups that use the server are replaced by new ones, which know of it.
    """
    await _renew_containers(tx, set(server.groups), now_ms=now_ms)
    kind = "mcp.logged_in" if is_logged_in else "mcp.logged_out"
    await audit.append(tx, audit.AuditEvent(at_ms=now_ms, kind=kind, detail={"name": server.name}))


class McpServerView(TypedDict):
    """An MCP server of the owner's, without any secret.

    `has_secret` is None where none is wanted, `has_folder` for what is no program, and `is_logged_in` where
    the owner has not logged in.
    """

    name: str
    url: str | None
    command: tuple[str, ...]
    header: str
    secret_env: str | None
    groups: tuple[Folder, ...]
    place: str
    has_secret: bool | None
    has_folder: bool | None
    is_logged_in: bool | None


async def rows(tx: Tx, is_set: Callable[[str], bool], *, home: Path, now_ms: int) -> list[McpServerView]:
    """Return the MCP servers in the order of names, as the API and `--json` show them, without secrets.

    `is_set` returns whether `.env` has a value for a name. `home` is Andy's home directory, which has the
    programs and logins.
    """
    return [
        {
            "name": server.name,
            "url": server.url,
            "command": server.command,
            "header": server.header,
            "secret_env": server.secret_env,
            "groups": server.groups,
            "place": server.place,
            "has_secret": None if server.secret_env is None else is_set(server.secret_env),
            "has_folder": mounts.program_folder(home, server.name) is not None if server.command else None,
            "is_logged_in": _is_logged_in(server, home, now_ms=now_ms),
        }
        for server in await mcp_servers.every(tx)
    ]


def lines(rows: Sequence[McpServerView]) -> list[str]:
    """Return the MCP servers as a table for people."""
    if not rows:
        return ["There are no MCP servers: see 'andy mcp add --help'."]
    columns = ("name", "groups", "URL or program", "secret or login")
    return table(
        columns, [(row["name"], ", ".join(row["groups"]), _place(row), _secret(row)) for row in rows]
    )


def _place(row: McpServerView) -> str:
    """Return the URL or the program of an MCP server, with a warning where the program's folder is gone."""
    return f"{row['place']}  (mcp/{row['name']} IS MISSING)" if row["has_folder"] is False else row["place"]


def problem(row: McpServerView) -> tuple[str, str] | None:
    """Return what keeps an MCP server from being used, and the fix; None if no problem is known."""
    name = row["name"]
    if row["has_folder"] is False:
        return (
            f"the folder mcp/{name} is missing",
            f"put the program there, or: andy mcp remove {name}",
        )
    if row["has_secret"] is False:
        return (
            f"{row['secret_env']}, the secret of {name}, is not set or cannot be sent",
            f"put {row['secret_env']}=… into .env",
        )
    if row["is_logged_in"] is False:
        return f"the login at {name} counts no more", f"andy mcp login {name}"
    return None


def _is_logged_in(server: McpServer, home: Path, *, now_ms: int) -> bool | None:
    """Return whether the owner's login at an MCP server still counts.

    None where the owner has not logged in.
    """
    login = mcp_logins.read(home / "data", server) if server.url is not None else None
    return None if login is None else not login.is_over(now_ms)


def _secret(row: McpServerView) -> str:
    """Return in words the state of an MCP server's login, or of the secret in `.env` that it needs."""
    if row["is_logged_in"] is not None:
        return "logged in" if row["is_logged_in"] else f"LOGIN OVER: andy mcp login {row['name']}"
    if row["secret_env"] is None:
        return "none"
    return f"{row['secret_env']}" if row["has_secret"] else f"{row['secret_env']}, NOT SET OR UNUSABLE"


async def _renew_containers(tx: Tx, folders: set[Folder], *, now_ms: int) -> None:
    """Have the host replace the idle containers of groups by new ones, which know the changed MCP servers.

    For that, the groups' settings are stored again, unchanged: the host notices by the new time.
    """
    for group in await groups.every(tx):
        if group.folder in folders:
            await groups.set_config(tx, group.folder, group.container_config, now_ms=now_ms)


def _check(server: McpServer) -> None:
    """Raise `BadRequest` if the name, the secret, the header or the URL of an MCP server cannot be used.

    A server that is a program has neither header nor URL: `_check_program` checks it instead.
    """
    if not _NAME.fullmatch(server.name) or server.name in TAKEN:
        raise BadRequest(
            f"'{server.name}' cannot name a server: up to 32 of a-z, 0-9 and '-', and none of"
            f" {', '.join(sorted(TAKEN))}."
        )
    if server.secret_env is not None and not _VARIABLE.fullmatch(server.secret_env):
        raise BadRequest(
            f"'{server.secret_env}' is no name of a variable: put the secret in .env as NOTES_TOKEN=…"
            " and give its name, NOTES_TOKEN."
        )
    if server.command:
        return
    if not _HEADER.fullmatch(server.header) or server.header.lower() in _OWN_HEADERS:
        raise BadRequest(f"'{server.header}' is no header that can carry a secret.")
    _check_url(server, server.url or "")


def _check_program(server: McpServer, home: Path) -> None:
    """Raise `BadRequest`, with the fix, if the program of an MCP server cannot be used. Blocks.

    It must be in the owner's folder `mcp/NAME` under `home`, where no agent can change it, be readable in
    containers, and need no secret. No word of its command may have a part `..` or a NUL character.
    """
    if server.secret_env is not None:
        raise BadRequest(
            "A program runs in the group's container, where no secret may be: serve what needs one over HTTP,"
            " and give its URL with --secret-env."
        )
    folder = mounts.program_folder(home, server.name)
    short_name = f"mcp/{server.name}"
    if folder is None:
        raise BadRequest(f"Put the program into the folder {home / short_name} first; a link does not count.")
    if any("\0" in word or ".." in Path(word).parts for word in server.command):
        raise BadRequest(f"A program of {short_name} has no '..' in its command.")
    named_files = [path for word in server.command for path in _files_named_by(folder, word)]
    if not named_files:
        raise BadRequest(
            f"No word of '{server.place}' is a file in {home / short_name}: a server that is a program"
            " must be stored there, where no agent can change it."
        )
    if not all(_is_readable(path) for path in (folder.parent, folder, *named_files)):
        command = f"chmod -R a+rX {shlex.quote(str(home / 'mcp'))}"
        raise BadRequest(f"The user of containers cannot read {short_name}: {command}")


def _files_named_by(folder: Path, word: str) -> list[Path]:
    """Return the files in a folder that a word of a command may name.

    It may be a path in the folder, or the name of a Python module, as after `-m`. Absolute paths name none.
    """
    module = word.replace(".", "/")
    return [path for path in (folder / word, folder / f"{module}.py", folder / module / "__main__.py")
            if not Path(word).is_absolute() and path.is_file()]  # fmt: skip


def _is_readable(path: Path) -> bool:
    """Return whether containers can read an existing file or enter and list an existing folder.

    They run as the host's own user, but never as root.
    """
    status = path.stat()
    needed = 0o5 if stat.S_ISDIR(status.st_mode) else 0o4  # 4: read; 1: enter, which only a folder needs
    is_own = status.st_uid == os.geteuid() != 0
    # The owner's bits are the upper three of nine; for all others, the lowest count.
    return (status.st_mode >> (6 if is_own else 0)) & needed == needed


def _check_url(server: McpServer, url: str) -> None:
    """Raise `BadRequest` if the URL of an MCP server is none, has a password, or exposes a secret.

    A secret is exposed by plain http to another machine.
    """
    try:
        parts = urlsplit(url)
        # `port` raises for a number that is no port.
        is_usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or not url.isascii() or not url.isprintable() or " " in url:
        raise BadRequest(f"'{url}' is no URL of a server: write https://host[:port]/path.")
    if "@" in parts.netloc:
        raise BadRequest("A URL with a password would be shown in lists: use --secret-env.")
    if (
        server.secret_env is not None
        and parts.scheme == "http"
        and not _is_on_this_machine(parts.hostname or "")
    ):
        raise BadRequest(
            "A secret goes over plain http to this machine alone: use https, or a server on 127.0.0.1."
        )


def _is_on_this_machine(host: str) -> bool:
    """Return whether a host name or address is this machine, or a service of the same Compose project.

    A name without a dot is `localhost` or the name of such a service. A host with a colon is an IPv6 address.
    """
    return host in {"127.0.0.1", "::1"} or (not {".", ":"} & set(host))
