"""`andy groups`: give chats an agent of their own, and set what their containers may use."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from orchestrator.cli import terminal
from orchestrator.cli.options import (
    GroupArgument,
    HomeOption,
    JsonOption,
    NewFolderArgument,
    UsageError,
    read,
    show,
)
from orchestrator.domain.errors import AndyError, NotRunning
from orchestrator.domain.home import Home

if TYPE_CHECKING:
    from orchestrator.cli.client import Client
    from orchestrator.domain.values import Group
    from orchestrator.groups.registration import Registration
    from orchestrator.store.database import Tx

groups_app = App(name="groups")


@groups_app.command(name="list")
def list_groups(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the registered groups.

    Example: `andy groups list`
    """
    from orchestrator.reports import groups

    read(home, groups.group_rows, groups.group_lines, as_json=as_json)


@groups_app.command
def register(
    folder: NewFolderArgument,
    /,
    *,
    jid: Annotated[
        str | None, Parameter(help="The chat's address. [local:FOLDER, a chat of this machine]")
    ] = None,
    name: Annotated[str | None, Parameter(help="What people call it. [FOLDER]")] = None,
    trigger: Annotated[str | None, Parameter(help="A call besides @Andy.")] = None,
    requires_trigger: Annotated[
        bool, Parameter(negative="--no-trigger", help="Whether a message must call Andy to be answered.")
    ] = True,
    settings: Annotated[
        str | None,
        Parameter(name="--config", help="Its configuration, a JSON object: see 'andy groups config --help'."),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Give a chat an agent of its own.

    Example: `andy groups register family --name Family --config '{"memory_mb": 1024}'`
    """
    from orchestrator.groups.registration import Registration

    wish = Registration(
        folder=folder,
        jid=jid,
        name=name,
        trigger=trigger,
        requires_trigger=requires_trigger,
        config=_object(settings or "{}"),
    )
    terminal.run_async(register_chat(home, wish))
    print(f"'{folder}' is registered.")


@groups_app.command
def config(
    folder: GroupArgument,
    /,
    *,
    changes: Annotated[
        str | None,
        Parameter(
            name="--set",
            help="Keys to change, as a JSON object; null takes one away. Known: mounts (a list of"
            " {path, name, writable}), timeout_ms, memory_mb, cpus, agent, model, timezone,"
            ' egress (none, open, or {"allowlist": ["host:port"]}),'
            " web_search (true or false), skills (a list of names).",
        ),
    ] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show or change what a group's containers may use. Counts from the group's next container on.

    Example: `andy groups config family --set '{"memory_mb": 1024, "mounts": [{"path": "~/photos"}]}'`
    """
    from orchestrator.reports import groups

    if changes is not None:
        terminal.run_async(_configure(home, folder, _object(changes)))
    found = terminal.read(home, lambda tx: groups.config_fields(tx, folder))
    show(found, groups.config_lines, as_json=as_json)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"This is no JSON ({error}): {text}") from error
    if not isinstance(found, dict):
        raise UsageError(f"""This is no JSON object, such as '{{"memory_mb": 1024}}': {text}""")
    return found


@groups_app.command
def remove(folder: GroupArgument, /, *, home: HomeOption = None) -> None:
    """Take a chat's agent away. Its files and history stay.

    Example: `andy groups remove family`
    """
    print(terminal.run_async(_unregister(home, folder)))


async def register_chat(given: Path | None, wish: Registration) -> None:
    """Register a chat, through the running Andy where there is one."""
    from orchestrator.cli.client import Client

    home = terminal.home_of(given)
    try:
        async with Client.of(home) as client:
            await client.register(wish.model_dump())
    except NotRunning:
        await _register_here(home, wish)


async def _register_here(home: Home, wish: Registration) -> None:
    from orchestrator.groups import memory_templates, registration

    assistant = terminal.settings_of(home).assistant_name

    async def act(tx: Tx, now_ms: int) -> Group:
        await registration.ensure_main(tx, now_ms=now_ms)
        return await registration.register(tx, wish.to_group(now_ms))

    group = await terminal.change(home.root, act)
    memory_templates.ensure_memory(home.root, group, assistant=assistant)


async def _unregister(given: Path | None, folder: str) -> str:
    """Unregister a group; return a text about what became of its tasks and messages."""
    from orchestrator.groups import registration

    async def ask(client: Client) -> str:
        return str((await client.unregister(folder))["text"])

    async def act(tx: Tx, now_ms: int) -> str:
        return (await registration.unregister(tx, folder, now_ms=now_ms)).explain()

    return await terminal.ask_or_change(given, ask, act)


async def _configure(given: Path | None, folder: str, changes: dict[str, Any]) -> None:
    """Change a group's configuration; a running Andy ends its containers, and the next ones have it."""
    from orchestrator.cli.client import Client
    from orchestrator.groups import registration

    await terminal.change(
        given, lambda tx, now_ms: registration.configure(tx, folder, changes, now_ms=now_ms)
    )
    with suppress(AndyError):  # a hint: it is stored, and whoever runs looks by itself twice a minute
        async with Client.of(terminal.home_of(given)) as client:
            await client.tell_configured(folder)
