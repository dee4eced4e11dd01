"""`andy groups`."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

from cyclopts import App, Parameter

from orchestrator.cli.options import (
    GroupArgument,
    HomeOption,
    JsonOption,
    NewFolderArgument,
    UsageError,
    read,
    show,
)

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
    from orchestrator.cli import terminal
    from orchestrator.groups.registration import Registration

    wish = Registration(
        folder=folder,
        jid=jid,
        name=name,
        trigger=trigger,
        requires_trigger=requires_trigger,
        config=_object(settings or "{}"),
    )
    asyncio.run(terminal.register(home, wish))
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
            ' egress (none, open, or {"allowlist": ["host:port"]}).',
        ),
    ] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show or change what a group's containers may use. Counts from the group's next container on.

    Example: `andy groups config family --set '{"memory_mb": 1024, "mounts": [{"path": "~/photos"}]}'`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import groups

    if changes is not None:
        asyncio.run(terminal.configure(home, folder, _object(changes)))
    found = asyncio.run(terminal.read(home, lambda tx: groups.config_fields(tx, folder)))
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
    from orchestrator.cli import terminal

    print(asyncio.run(terminal.unregister(home, folder)))
