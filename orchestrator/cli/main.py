"""The command line: finds the command, runs it, and tells by the exit code how it went.

No command is imported before it is called; `commands.py` says where each is.
"""

from __future__ import annotations

import difflib
import math
import sys
from functools import partial
from typing import Any

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from orchestrator import __version__
from orchestrator.cli import commands
from orchestrator.cli.exit_codes import UsageError, exit_after
from orchestrator.domain.errors import BadRequest

LARGEST = 2**63 - 1
"""SQLite keeps no whole number beyond this one."""


def _check_number(_type: Any, value: Any) -> None:
    """Refuse a number that no command can use. Raises `ValueError`, which Cyclopts tells."""
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError("The number is too large.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("Write a number.")


app = App(
    name="andy",
    help=commands.ABOUT,
    version=__version__,
    help_flags=commands.HELP_FLAGS,
    version_flags=commands.VERSION_FLAGS,
    default_parameter=Parameter(validator=_check_number),
    help_format="plaintext",  # to load and render Markdown is a quarter of the time of --help
)
for entry in commands.COMMANDS:
    # Of a function, the page of its own is its whole docstring; a family has no text but this line.
    is_family = entry.target.endswith("_app")
    app.command(
        f"orchestrator.cli.{entry.target}", name=entry.name, help=entry.summary if is_family else None
    )


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 usage, 3 not running."""
    exit_after(partial(_run, sys.argv[1:]))


def _run(words: list[str]) -> int:
    """Run the command that the words name and return the exit code."""
    _check_text(words)
    if commands.asks_for_help(words):
        sys.stdout.write(commands.help_page())
        return 0
    _check_command(words[0])
    try:
        result = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        raise UsageError(_refusal(error)) from error
    return result if isinstance(result, int) else 0


def _refusal(error: CycloptsError) -> str:
    """Return in one line what cannot be read, and where it is told how it is written."""
    command = " ".join(("andy", *(error.command_chain or ())))
    hint = "" if error.command_chain else " Options stand after the command."
    said = str(error)
    if isinstance(error, UnusedCliTokensError):
        said = f"There is no place for '{' '.join(error.unused_tokens or ())}' here."
    return f"{' '.join(said.split())} See '{command} --help'.{hint}"


def _check_text(words: list[str]) -> None:
    """Refuse bytes that are no UTF-8: Python passes them on as characters that can be written nowhere."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            shown = word.encode(errors="replace").decode()
            raise BadRequest(f"'{shown[:40]}' is no UTF-8: check the terminal's encoding.") from error


def _check_command(name: str) -> None:
    """Refuse an unknown command by its name. Cyclopts would load all others to say the same."""
    known = [entry.name for entry in commands.COMMANDS]
    if name.startswith("-") or name in known:
        return
    near = difflib.get_close_matches(name, known, n=1)
    meant = f" Did you mean 'andy {near[0]}'?" if near else ""
    raise UsageError(f"There is no command '{name}'.{meant} See 'andy --help'.")
