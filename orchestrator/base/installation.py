"""The way in which this Andy was installed, and the commands to run, extend and remove it."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tomllib
from enum import StrEnum
from functools import cache
from importlib import metadata
from pathlib import Path

PACKAGE = "andy-assistant"
DOCKERFILE = "container/Dockerfile"
_QUOTED_COMMAND = re.compile(r"'andy ([a-z]+)")
_UV_ARCHIVE = re.compile(r"archive-v\d+")
UV_RECEIPT = "uv-receipt.toml"
"""The file in which `uv tool` records what it was asked to install, in the tool's Python environment."""
COMPOSE_HOME = "/andy"
"""The home in Andy's container of docker-compose.yml."""


class Installer(StrEnum):
    """The program that installed Andy's code."""

    CLONE = "clone"
    """No program did: the code runs from a clone of the repository."""
    PIPX = "pipx"
    UV = "uv"
    """`uv tool` or `uvx`."""
    UV_PIP = "uv pip"
    PIP = "pip"
    COMPOSE = "compose"
    """Nothing did: the code is in the image of Andy's container, which is built or pulled on the host."""


@cache
def clone() -> Path | None:
    """Return the clone of the repository that this code runs from; None where it is installed."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / DOCKERFILE).is_file() else None


@cache
def installer() -> Installer:
    """Return the program that installed Andy; `CLONE` and `COMPOSE` mean that no program did.

    Otherwise it is found by the path of the Python environment, and by what installers have written there.
    """
    if clone() is not None:
        return Installer.CLONE
    if is_in_compose():
        return Installer.COMPOSE
    parts = Path(sys.prefix).parts
    if "pipx" in parts:
        return Installer.PIPX
    # `uvx` has its environments in uv's cache, in a folder such as `archive-v0`.
    if (Path(sys.prefix) / UV_RECEIPT).is_file() or any(map(_UV_ARCHIVE.fullmatch, parts)):
        return Installer.UV
    try:
        installed_by = metadata.distribution(PACKAGE).read_text("INSTALLER") or ""
    except metadata.PackageNotFoundError:
        return Installer.PIP
    # An environment of uv has no pip in it.
    return Installer.UV_PIP if installed_by.strip() == "uv" else Installer.PIP


def is_in_compose() -> bool:
    """Return whether this process runs in Andy's container of docker-compose.yml."""
    return os.environ.get("ANDY_HOME") == COMPOSE_HOME


@cache
def container_folder() -> Path | None:
    """Return the folder with the Dockerfile of the agents' image; None if this installation has none.

    An installed Andy has it beside its environment, in `share/andy-assistant/`.
    """
    if (root := clone()) is not None:
        return root / "container"
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return None
    dockerfiles = [
        Path(str(file.locate())).resolve() for file in files if file.as_posix().endswith(DOCKERFILE)
    ]
    return next((path.parent for path in dockerfiles if path.is_file()), None)


def command(*words: str) -> str:
    """Return a command of Andy's as the owner types it: `command("up")` is `andy up`.

    In a clone the command begins with the path of the program, which is on no search path. With Compose, the
    command is the one to type on the host.
    """
    if is_in_compose():
        # `typed_on_host` looks for commands after a quotation mark, which is taken off again.
        return typed_on_host(" ".join(("'andy", *words)))[1:]
    program = ".venv/bin/andy" if clone() is not None else "andy"
    return " ".join((program, *words))


def typed_on_host(text: str) -> str:
    """Return a text whose quoted commands such as 'andy status' are those for the host of Compose. Pure.

    There, 'andy up' is 'docker compose up -d'. Any other command is as for 'andy status': 'docker compose
    exec andy andy status'.
    """
    return _QUOTED_COMMAND.sub(
        lambda match: (
            "'docker compose up -d" if match[1] == "up" else f"'docker compose exec andy andy {match[1]}"
        ),
        text,
    )


def as_typed_here(text: str) -> str:
    """Return a text whose quoted commands such as 'andy status' are as the owner of this installation types
    them.

    With Compose, they are those for the host; elsewhere the text is unchanged.
    """
    return typed_on_host(text) if is_in_compose() else text


def command_to_add(extra: str) -> str:
    """Return the shell command that installs the libraries of an optional feature.

    `extra` is the feature's name in `pyproject.toml`, such as `voice` or `telegram`.
    """
    match installer():
        case Installer.CLONE:
            return "make voice" if extra == "voice" else "make messengers"
        case Installer.PIPX:
            return f"pipx inject {PACKAGE} '{PACKAGE}[{extra}]'"
        case Installer.UV:
            # uv removes the libraries of features that the command does not name.
            extras = ",".join(sorted({extra, *_extras_of_tool()}))
            return f"uv tool install '{PACKAGE}[{extras}]'"
        case Installer.UV_PIP:
            return f"uv pip install -p {shlex.quote(sys.prefix)} '{PACKAGE}[{extra}]'"
        case Installer.PIP:
            return f"pip install '{PACKAGE}[{extra}]'"
        case Installer.COMPOSE:
            # For messengers only: `andy voice` has its own advice. Each image that this Compose file builds
            # has the libraries of all messengers, so one that lacks them is replaced by a new build.
            return "docker compose up -d --build"


def _extras_of_tool() -> list[str]:
    """Return the optional features that Andy was installed with by `uv tool`; none without its record."""
    try:
        tool = tomllib.loads((Path(sys.prefix) / UV_RECEIPT).read_text(encoding="utf-8"))["tool"]
        extras = [
            extra
            for requirement in tool["requirements"]
            if requirement["name"] == PACKAGE
            for extra in requirement.get("extras", ())
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []
    return [str(extra) for extra in extras]


def command_to_remove() -> str:
    """Return the shell command that removes the program; it leaves the owner's data."""
    match installer():
        case Installer.CLONE:
            return f"rm -r {shlex.quote(str(clone()))}"
        case Installer.PIPX:
            return f"pipx uninstall {PACKAGE}"
        case Installer.UV:
            return f"uv tool uninstall {PACKAGE}"
        case Installer.UV_PIP:
            return f"uv pip uninstall -p {shlex.quote(sys.prefix)} {PACKAGE}"
        case Installer.PIP:
            return f"pip uninstall {PACKAGE}"
        case Installer.COMPOSE:
            return "docker image rm andy-orchestrator andy-agent"
