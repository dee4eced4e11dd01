"""The options that commands share, and the functions that print their results."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from cyclopts import Parameter
from cyclopts.validators import Number

from orchestrator.base.terminal_escaping import one_line

if TYPE_CHECKING:
    from orchestrator.store.database import Tx

T = TypeVar("T")
Runtime = Literal["auto", "docker", "process", "swarm"]


HomeOption = Annotated[
    Path | None,
    Parameter(name="--home", help="Andy's home. [ANDY_HOME, else here or ~/.local/share/andy]"),
]
JsonOption = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON, for machines.")]
# This validator replaces the general one of `main.py`, so it needs an upper bound too.
LimitOption = Annotated[
    int, Parameter(help="List at most this many.", validator=Number(gte=1, lte=1_000_000_000))
]
GroupArgument = Annotated[str, Parameter(help="A group, by its folder name: see 'andy groups list'.")]
# Declared after the `/` and before the `*` of a command, so that both GROUP and --group GROUP work.
GroupOption = Annotated[str | None, Parameter(help="Only this group, by its folder name.")]
GroupOrMainOption = Annotated[str | None, Parameter(help="The group, by its folder name. [main]")]
NewFolderArgument = Annotated[str, Parameter(help="A new folder name: up to 64 letters, digits and dashes.")]

YesOption = Annotated[bool, Parameter(name="--yes", negative="", help="Do not ask for confirmation.")]


def is_confirmed(question: str, *, yes: bool) -> bool:
    """Ask a person a question, and return whether they confirm.

    With `yes`, the option `--yes`, nobody is asked, and the result is True. Without a terminal it is False,
    and stderr says why.
    """
    if yes:
        return True
    # A script must not wait for an answer that nobody types, nor take it from its input.
    if not sys.stdin.isatty():
        print(f"andy: {question} Add --yes to confirm.", file=sys.stderr)
        return False
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def read(
    home: Path | None,
    query: Callable[[Tx], Awaitable[T]],
    lines: Callable[[T], list[str]],
    *,
    as_json: bool,
) -> None:
    """Print the result of a query of a home's database: as JSON, or as the lines that `lines` returns for it.

    Raises `StoreError`.
    """
    from orchestrator.cli import terminal

    show(terminal.read(home, query), lines, as_json=as_json)


def show(data: T, lines: Callable[[T], list[str]], *, as_json: bool) -> None:
    """Print `data` as JSON for machines, or as the lines that `lines` returns for people."""
    if as_json:
        print(json.dumps(data, ensure_ascii=False, indent=2))
    else:
        print("\n".join(one_line(line) for line in lines(data)))
