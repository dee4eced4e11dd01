"""The command line: finds the command, runs it, and reports its result by the exit code.

No command is imported before it is called; `commands.py` lists their modules.
"""

from __future__ import annotations

import math
import re
import sys
from functools import partial
from typing import Any

from cyclopts import (
    App,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from orchestrator import __version__
from orchestrator.cli import commands
from orchestrator.cli.exit_codes import UsageError, exit_after
from orchestrator.domain.errors import BadRequest

MAX_NUMBER = 2**63 - 1
"""The largest whole number that SQLite can store."""
NEGATIVE = re.compile(r"-\$?\.?\d")
"""The beginning of an amount below zero, which looks like an option."""

FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def _check_number(_type: Any, value: Any) -> None:
    """Raise `ValueError`, which Cyclopts reports, for a number that is too large or not finite.

    Cyclopts calls it with the type and the value of each parameter of a command; most are no numbers.
    """
    if isinstance(value, int) and abs(value) > MAX_NUMBER:
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
    help_format="plaintext",  # loading and rendering Markdown would take a quarter of the time of --help
)
for entry in commands.COMMANDS:
    # The help of a function is its docstring; a family has no other text than this line.
    is_family = entry.target.endswith("_app")
    app.command(
        f"orchestrator.cli.{entry.target}", name=entry.name, help=entry.summary if is_family else None
    )


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 usage, 3 not running."""
    exit_after(partial(_run, sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    """Run the command that the arguments name, or print the help, and return the exit code.

    Raises `UsageError` or `BadRequest` for wrong arguments, and what the command raises.
    """
    _check_text(arguments)
    arguments = commands.expand_help(arguments)
    if commands.asks_for_help(arguments):
        sys.stdout.write(commands.help_page())
        return 0
    _check_command(*arguments)
    try:
        result = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        raise UsageError(_refusal(error)) from error
    # A command that returns no code has succeeded.
    return result if isinstance(result, int) else 0


def _refusal(error: CycloptsError) -> str:
    """Return one line that names the invalid arguments and the help page that explains them."""
    command = " ".join(("andy", *(error.command_chain or ())))
    # Without a command in the error, an option stood before it.
    hint = "" if error.command_chain else " Options stand after the command."
    text = str(error)
    if isinstance(error, UnknownCommandError) and error.command_chain and error.unused_tokens:
        text = _unknown_within(error, error.unused_tokens[0])
    elif isinstance(error, UnknownOptionError) and NEGATIVE.match(error.token.value):
        text = f"'{error.token.value}' is negative: write it without the '-'."
    elif isinstance(error, MissingArgumentError) and (needed := _needed(error)):
        text = f"'{command}' needs {needed}"
    elif isinstance(error, UnusedCliTokensError):
        text = f"There are too many arguments: '{' '.join(error.unused_tokens or ())}'."
    return f"{' '.join(text.split())} See '{command} --help'.{hint}"


def _needed(error: MissingArgumentError) -> str:
    """Return the name of the parameter that is missing, with its help.

    Empty if a value of an option is missing, or only a part of the parameter.
    """
    argument = error.argument
    if argument is None or error.keyword is not None or error.tokens_so_far or argument.tokens:
        return ""
    about = argument.parameter.help or ""
    return f"{argument.name}: {about}" if about else f"{argument.name}."


def _unknown_within(error: UnknownCommandError, word: str) -> str:
    """Return a sentence about a word that is no command of its family, such as `andy groups lst`."""
    family = " ".join(error.command_chain or ())
    names = [name for name in app[family] if not name.startswith("-")]
    return f"There is no command '{family} {word}'. {commands.hint_within(family, word, names)}"


def _check_text(arguments: list[str]) -> None:
    """Raise `BadRequest` if an argument has bytes that are not UTF-8.

    Python passes them on as surrogates, which cannot be printed or stored.
    """
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            shown = argument.encode(errors="replace").decode()
            raise BadRequest(f"'{shown[:40]}' is no UTF-8: check the terminal's encoding.") from error


def _check_command(name: str, *later_words: str) -> None:
    """Raise `UsageError` if `name` is neither a command nor an option, with the command that may be meant.

    `later_words` are the arguments after it. Cyclopts would load all commands to check the name.
    """
    if name.startswith("-") or any(entry.name == name for entry in commands.COMMANDS):
        return
    hint = commands.hint_for(name, later_words, is_group=_is_group)
    raise UsageError(
        " ".join((f"There is no command '{name}'.", *([hint] if hint else []), "See 'andy --help'."))
    )


def _is_group(word: str) -> bool:
    """Return whether a word is the folder name of a group in the home that commands use here."""
    from orchestrator.home.directory import Home, home_directory

    return FOLDER_NAME.fullmatch(word) is not None and (Home(home_directory(None)).groups / word).is_dir()
