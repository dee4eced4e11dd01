"""`andy mcp`."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from orchestrator.base.clock import SystemClock
from orchestrator.cli.exit_codes import UsageError
from orchestrator.cli.options import GroupOption, GroupOrMainOption, HomeOption, JsonOption, read

mcp_app = App(name="mcp")
MAIN = "main"


@mcp_app.command
def add(
    name: Annotated[str, Parameter(help="The server's name for agents, such as notes.")],
    url: Annotated[str | None, Parameter(help="The server's address for streamable HTTP.")] = None,
    /,
    *,
    group: GroupOrMainOption = None,
    command: Annotated[
        str | None,
        Parameter(
            help="In place of a URL: the command that starts the program in the folder mcp/NAME of the home."
        ),
    ] = None,
    secret_env: Annotated[
        str | None, Parameter(help="The name under which .env has its secret, such as NOTES_TOKEN.")
    ] = None,
    header: Annotated[
        str, Parameter(help="The header that carries the secret; in Authorization it is a bearer token.")
    ] = "Authorization",
    home: HomeOption = None,
) -> None:
    """Let a group's agent (main's if none is named) call an MCP server; no container has its secret.

    The proxy adds the secret to each call. With --command, the server is a program in the container, in a
    read-only folder and without a secret. Adding a server again for another group lets both groups call it,
    and replaces its other values. Changes apply from the group's next container on.

    Example: `andy mcp add notes https://notes.example/mcp --group family --secret-env NOTES_TOKEN`

    Example: `andy mcp add dice --command 'python3 server.py' --group family`
    """
    from orchestrator.cli import terminal
    from orchestrator.domain.values import Folder
    from orchestrator.proxies import mcp_logins
    from orchestrator.reports import mcp
    from orchestrator.store.settings.mcp_servers import McpServer

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
    # A server that was added again with another address must not get the token of the earlier one.
    mcp_logins.delete_outdated(terminal.home_of(home).data, server)
    print(f"The agent of {folder} may call '{name}': see 'andy mcp list'.")
    if url is not None and secret_env is None:
        print(f"If it wants a login: andy mcp login {name}")


@mcp_app.command(name="list")
def list_servers(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the MCP servers, the groups that may use them, and how Andy logs in. Works with Andy down.

    Example: `andy mcp list`
    """
    import os

    from orchestrator.cli import terminal
    from orchestrator.proxies.model.credentials import CredentialSource
    from orchestrator.reports import mcp

    root, now_ms = terminal.home_of(home).root, SystemClock().now_ms()
    source = CredentialSource(root, os.environ)
    read(
        home,
        lambda tx: mcp.rows(tx, source.is_usable, home=root, now_ms=now_ms),
        mcp.lines,
        as_json=as_json,
    )


@mcp_app.command
def remove(
    name: Annotated[str, Parameter(help="The MCP server, by its name in 'andy mcp list'.")],
    /,
    group: GroupOption = None,
    *,
    home: HomeOption = None,
) -> None:
    """Remove an MCP server from one group, or from all, from the next call on.

    Example: `andy mcp remove notes --group family`
    """
    from orchestrator.cli import terminal
    from orchestrator.proxies import mcp_logins
    from orchestrator.reports import mcp

    remaining = asyncio.run(
        terminal.change(home, lambda tx, now_ms: mcp.remove(tx, name, group, now_ms=now_ms))
    )
    # With its last group the server is gone, and so its login is deleted.
    if not remaining:
        mcp_logins.write(terminal.home_of(home).data, name, None)
    print(f"'{name}' is removed from {group or 'all groups'}.")


@mcp_app.command
def login(
    name: Annotated[str, Parameter(help="The MCP server, by its name in 'andy mcp list'.")],
    /,
    *,
    client_id: Annotated[
        str | None,
        Parameter(help="The client id that the service issued for Andy, if he cannot register himself."),
    ] = None,
    client_secret_env: Annotated[
        str | None, Parameter(help="The name under which .env has the secret of that id, if it has one.")
    ] = None,
    port: Annotated[
        int | None,
        Parameter(
            help="The port of http://127.0.0.1:PORT/callback, if you registered that address.",
            validator=Number(gte=1, lte=65535),
        ),
    ] = None,
    paste: Annotated[
        bool, Parameter(negative="", help="Prompt for the address at which the browser ends, on any machine.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Log in to an MCP server that wants OAuth: prints an address to open, and waits for the browser.

    The token stays on the host, which renews it and adds it to the calls of agents. Works with Andy down.

    Example: `andy mcp login notes`

    Example: `andy mcp login notes --client-id 1234 --port 8765 --paste`
    """
    from orchestrator.cli import mcp_login

    if client_secret_env is not None and client_id is None:
        raise UsageError("--client-secret-env goes with --client-id.")
    options = mcp_login.LoginOptions(
        client_id=client_id,
        client_secret=_secret(home, client_secret_env),
        port=port,
        is_pasted=paste,
    )
    asyncio.run(mcp_login.log_in(home, name, options, say=partial(print, flush=True)))
    print(f"Logged in to '{name}'. Agents that may call it can do so at once: see 'andy mcp list'.")


@mcp_app.command
def logout(
    name: Annotated[str, Parameter(help="The MCP server, by its name in 'andy mcp list'.")],
    /,
    *,
    home: HomeOption = None,
) -> None:
    """Log out of an MCP server: the token is deleted here, and revoked where its service can do that.

    Example: `andy mcp logout notes`
    """
    from orchestrator.cli import mcp_login

    is_revoked = asyncio.run(mcp_login.log_out(home, name))
    if is_revoked is None:
        print(f"Nobody was logged in to '{name}'.")
    elif is_revoked:
        print(f"Logged out of '{name}': the token is deleted here, and revoked there.")
    else:
        print(
            f"Logged out of '{name}': the token is deleted here. Take Andy's access away in its service, too."
        )


def _secret(home: Path | None, name: str | None) -> str | None:
    """Return the secret with this name in `.env` or the environment; None without a name.

    Raises `UsageError` if it is missing.
    """
    import os

    from orchestrator.cli import terminal
    from orchestrator.proxies.model.credentials import CredentialSource

    if name is None:
        return None
    secret = CredentialSource(terminal.home_of(home).root, os.environ).value(name)
    if secret is None:
        raise UsageError(f"{name} is not set: put it in .env as {name}=… first.")
    return secret
