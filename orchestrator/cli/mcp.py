"""`andy mcp`."""

from __future__ import annotations

import asyncio
from typing import Annotated

from cyclopts import App, Parameter

from orchestrator.cli.options import HomeOption, JsonOption, read

mcp_app = App(name="mcp")
MAIN = "main"


@mcp_app.command
def add(
    name: Annotated[str, Parameter(help="What agents call it, such as notes.")],
    url: Annotated[str, Parameter(help="Where it listens for streamable HTTP.")],
    /,
    *,
    group: Annotated[
        tuple[str, ...], Parameter(help="A group that may use it; may be given again.", negative="")
    ] = (MAIN,),
    secret_env: Annotated[
        str | None, Parameter(help="The name under which .env has its secret, such as NOTES_TOKEN.")
    ] = None,
    header: Annotated[
        str, Parameter(help="The header for the secret; in Authorization it is a bearer's.")
    ] = "Authorization",
    home: HomeOption = None,
) -> None:
    """Let agents call an MCP server through the proxy, which adds the secret: no container has it.

    A server of the same name is replaced. It holds from a group's next container on.

    Example: `andy mcp add notes https://notes.example/mcp --group family --secret-env NOTES_TOKEN`
    """
    from orchestrator.cli import terminal
    from orchestrator.domain.values import Folder
    from orchestrator.reports import mcp
    from orchestrator.store.mcp_servers import McpServer

    folders = tuple(Folder(folder) for folder in dict.fromkeys(group))
    server = McpServer(name=name, url=url, header=header, secret_env=secret_env, groups=folders)
    asyncio.run(terminal.change(home, lambda tx, now_ms: mcp.add(tx, server, now_ms=now_ms)))
    print(f"Agents of {', '.join(folders)} may call '{name}': see 'andy mcp list'.")


@mcp_app.command(name="list")
def list_servers(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the MCP servers, who may use them, and whether their secrets are set. Works with Andy down.

    Example: `andy mcp list`
    """
    import os

    from orchestrator.cli import terminal
    from orchestrator.proxies.model.credentials import CredentialSource
    from orchestrator.reports import mcp

    source = CredentialSource(terminal.home_of(home).root, os.environ)
    read(
        home,
        lambda tx: mcp.rows(tx, lambda name: source.value(name) is not None),
        mcp.lines,
        as_json=as_json,
    )


@mcp_app.command
def remove(
    name: Annotated[str, Parameter(help="Its name in 'andy mcp list'.")], /, *, home: HomeOption = None
) -> None:
    """Take an MCP server away from all agents. It holds from the next call on.

    Example: `andy mcp remove notes`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import mcp

    asyncio.run(terminal.change(home, lambda tx, now_ms: mcp.remove(tx, name, now_ms=now_ms)))
    print(f"'{name}' is removed.")
