"""`andy uninstall`: remove Andy's service, containers and networks, and list what stays, with the commands
that remove it.
"""

from __future__ import annotations

import asyncio
import glob
import shlex
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from orchestrator.base import installation
from orchestrator.cli import service
from orchestrator.cli.exit_codes import UsageError
from orchestrator.cli.options import HomeOption
from orchestrator.cli.terminal import home_of, settings_of
from orchestrator.domain.errors import BadRequest, ContainerError, SettingError
from orchestrator.groups import owner
from orchestrator.home import lock as home_lock
from orchestrator.home.directory import Home


def uninstall(
    *,
    yes: Annotated[bool, Parameter(negative="", help="Do not ask.")] = False,
    name: Annotated[str, Parameter(help="The name of the unit, if 'andy service install' had one.")] = "andy",
    home: HomeOption = None,
) -> None:
    """Remove Andy's service, containers and networks, and say what stays.

    The home with all messages stays, and so do the images, which other homes may use. The last lines show the
    commands that remove them and the program itself.

    Example: `andy uninstall`
    """
    from orchestrator.compose.self_inspect import own_id

    if own_id() is not None:
        raise BadRequest("Andy runs with Compose here: 'docker compose down --volumes' removes him.")
    own_home = home_of(home)
    _confirm(own_home, is_sure=yes)
    _remove_services(own_home, name)
    for line in [*_remove_containers(own_home), *_remaining_lines(own_home)]:
        print(line)


def _confirm(home: Home, *, is_sure: bool) -> None:
    """Ask the owner whether to go on, unless `is_sure`.

    Raises:
        BadRequest: the answer is not yes.
        UsageError: there is no terminal to ask at.
    """
    if is_sure:
        return
    if not sys.stdin.isatty():
        raise UsageError("Without a terminal, use 'andy uninstall --yes'.")
    print(f"This stops Andy and removes his service, containers and networks. {home.root} stays.")
    if input("Go on? [y/N] ").strip().lower() not in ("y", "yes"):
        raise BadRequest("Nothing was removed.")


def _remove_services(home: Home, name: str) -> None:
    """Remove the systemd units called `name` that were written for this home: the machine's and the user's.

    Raises `ServiceError` for one that this user may not change.
    """
    for is_system in (True, False):
        unit = service.ServiceUnit(name=name, home=home.root, is_system=is_system)
        if unit.is_of_home():
            service.uninstall(system=is_system, name=name, home=home.root)


def _remove_containers(home: Home) -> list[str]:
    """Remove the containers and networks of this home, and return lines about the result.

    If Docker refuses or does not answer, they may stay, which a line says. While Andy runs, this raises
    `HomeError`.
    """
    from orchestrator.containers import runtime_selection

    if not (home.data / "install").is_file():
        return [f"No Andy has run in {home.root}."]
    # With the lock: a running Andy would start new containers at once.
    lock = home_lock.acquire(home)
    try:
        asyncio.run(runtime_selection.remove_all(home.root, home.install_id()))
    except ContainerError as error:
        # Agents that are processes of this machine have ended. Whether Docker has any is not known here.
        return [f"If Andy's containers ran in Docker, they are still there: {error}"]
    finally:
        lock.release()
    return ["Andy's containers and networks are removed."]


def _image_name(home: Home) -> str:
    """Return the name of the agents' image; the default one if the settings cannot be read."""
    from orchestrator.home.settings import Settings

    try:
        return settings_of(home).andy_image
    except SettingError:
        return str(Settings.model_fields["andy_image"].default)


def _removal(folder: Path) -> str:
    """Return the shell command that removes a folder, whatever is in its name."""
    return f"rm -r {shlex.quote(str(folder))}"


def _remaining_lines(home: Home) -> list[str]:
    """Return the lines about what an uninstallation leaves, each with the command that removes it.

    The last line, about a paired phone, says where its owner removes Andy there.
    """
    lists_folder = owner.owner_directory()  # of the owner's allowlists, of folders and of senders
    earlier_homes = sorted(home.root.parent.glob(f"{glob.escape(home.root.name)}.before-restore-*"))
    candidates = [
        ("messages, memory and settings", _removal(home.root)) if home.data.is_dir() else None,
        *(("what was there before a restore", _removal(folder)) for folder in earlier_homes),
        ("your lists", _removal(lists_folder)) if lists_folder.is_dir() else None,
        ("the images", f"docker image rm {_image_name(home)}"),
        ("the program", installation.command_to_remove()),
    ]
    # A clone may be its own home: one command then removes both.
    names_by_command: dict[str, list[str]] = {}
    for name, command in filter(None, candidates):
        names_by_command.setdefault(command, []).append(name)
    existing_rows = [(", ".join(names), command) for command, names in names_by_command.items()]
    width = max(len(name) for name, _ in existing_rows)
    return [
        "What stays, and what removes it:",
        *(f"  {name:{width}}  {command}" for name, command in existing_rows),
        "A phone that was paired lists Andy until you remove him there: Settings › Linked devices.",
    ]
