"""`andy mcp`."""

from __future__ import annotations

import asyncio
from typing import Annotated

from cyclopts import App, Parameter

from orchestrator.cli.exit_codes import UsageError
from orchestrator.cli.options import GroupOption, HomeOption, JsonOption, read

mcp_app = App(name="mcp")
MAIN = "main"


@mcp_app.command
def add(
    name: Annotated[str, Parameter(help="What agents call it, such as notes.")],
    url: Annotated[str | None, Parameter(help="Where it listens for streamable HTTP.")] = None,
    /,
    *,
    group: GroupOption = None,
    command: Annotated[
        str | None,
        Parameter(
            help="In place of a URL: how the program in mcp/NAME of the home is started, in that folder."
        ),
    ] = None,
    secret_env: Annotated[
        str | None, Parameter(help="The name under which .env has its secret, such as NOTES_TOKEN.")
    ] = None,
    header: Annotated[
        str, Parameter(help="The header for the secret; in Authorization it is a bearer's.")
    ] = "Authorization",
    home: HomeOption = None,
) -> None:
    """Let a group's agent (main's if none is named) call an MCP server; no container has its secret.

    The proxy adds it. A program runs in the container instead, from a folder that is read-only there, and
    has no secret. Given again with another group, both may; the rest is replaced. It holds from the group's
    next container on.

    Example: `andy mcp add notes https://notes.example/mcp --group family --secret-env NOTES_TOKEN`

    Example: `andy mcp add dice --command 'python3 server.py' --group family`
    """
    from orchestrator.cli import terminal
    from orchestrator.domain.values import Folder
    from orchestrator.reports import mcp
    from orchestrator.store.mcp_servers import McpServer

    if (url is None) == (command is None):
        raise UsageError("Give a server's URL, or how a program is started with --command: one of the two.")
    folder, root = Folder(group or MAIN), terminal.home_of(home).root
    server = McpServer(
        name=name,
        url=url,
        command=mcp.command_of(command) if command is not None else (),
        header=header,
        secret_env=secret_env,
        groups=(folder,),
    )
    asyncio.run(terminal.change(home, lambda tx, now_ms: mcp.add(tx, server, home=root, now_ms=now_ms)))
    print(f"The agent of {folder} may call '{name}': see 'andy mcp list'.")


@mcp_app.command(name="list")
def list_servers(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the MCP servers, who may use them, and whether their secrets are set. Works with Andy down.

    Example: `andy mcp list`
    """
    import os

    from orchestrator.cli import terminal
    from orchestrator.proxies.model.credentials import CredentialSource
    from orchestrator.reports import mcp

    root = terminal.home_of(home).root
    source = CredentialSource(root, os.environ)
    read(
        home,
        lambda tx: mcp.rows(tx, lambda name: source.value(name) is not None, home=root),
        mcp.lines,
        as_json=as_json,
    )


@mcp_app.command
def remove(
    name: Annotated[str, Parameter(help="Its name in 'andy mcp list'.")],
    /,
    group: GroupOption = None,
    *,
    home: HomeOption = None,
) -> None:
    """Take an MCP server away from one group, or from all. It holds from the next call on.

    Example: `andy mcp remove notes --group family`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import mcp

    asyncio.run(terminal.change(home, lambda tx, now_ms: mcp.remove(tx, name, group, now_ms=now_ms)))
    print(f"'{name}' is taken away from {group or 'all groups'}.")
