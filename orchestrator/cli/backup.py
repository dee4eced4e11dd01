"""`andy backup` and `andy restore`: write all of a home to one file, and put it back."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from orchestrator.base.clock import SystemClock
from orchestrator.cli.exit_codes import UsageError
from orchestrator.cli.options import HomeOption
from orchestrator.cli.terminal import home_of, say_aside, zone_of
from orchestrator.domain.errors import SettingError


def _check_no_option(_: object, file: Path) -> None:
    if str(file).startswith("-") and str(file) != "-":
        raise ValueError(f"there is no option {file}.")


def backup(
    file: Annotated[
        Path,
        Parameter(
            help="The file to write: FILE.tar.gz, outside groups/ data/ store/; - for the standard output.",
            allow_leading_hyphen=True,  # or "-" would be an unknown option
            validator=_check_no_option,
        ),
    ],
    /,
    *,
    with_env: Annotated[
        bool, Parameter(negative="", help="Put .env in as well, with its keys. Keep the file as safe.")
    ] = False,
    force: Annotated[bool, Parameter(negative="", help="Replace a file that is there.")] = False,
    home: HomeOption = None,
) -> None:
    """Write a home to one file, also while Andy runs. The file is readable by its owner alone.

    In it: the database, groups/, the agents' sessions, andy.toml. Not in it: keys, tokens, logs.

    Example: `andy backup ~/andy-monday.tar.gz`
    """
    for line in _back_up(home, file, with_env=with_env, force=force):
        print(line)


def restore(
    file: Annotated[Path, Parameter(help="What 'andy backup FILE' wrote, or a copy of the database (.db).")],
    /,
    *,
    force: Annotated[
        bool, Parameter(negative="", help="Also over a home that is not empty; what was there is kept.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Put a backup in place while Andy is stopped. It is looked through first; a bad one changes nothing.

    What was there before goes to HOME.before-restore-TIME beside it.

    Example: `andy restore ~/andy-monday.tar.gz --force`
    """
    for line in _restore(home, file, force=force):
        print(line)


def _back_up(given: Path | None, target: Path, *, with_env: bool, force: bool) -> list[str]:
    """Back a home up, print on stderr how far it is, and return the lines to print. Blocks.

    `-` is the standard output, which has nothing else in it.
    """
    from orchestrator.backup import make as backup

    home, clock = home_of(given), SystemClock()
    if str(target) != "-":
        made = backup.back_up(home, target, with_env=with_env, replaces=force, clock=clock, say=say_aside)
        return backup.summary_lines(made)
    if sys.stdout.isatty():
        raise UsageError("A backup is no text for a terminal: put '> FILE' after 'andy backup -'.")
    # A file of its own: what a broken pipe did not take, Python would try to write again at its end.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    made = backup.stream(home, out, with_env=with_env, clock=clock, say=say_aside)
    for line in backup.summary_lines(made):
        say_aside(line)
    return []


def _restore(given: Path | None, source: Path, *, force: bool) -> list[str]:
    """Put a backup in a home's place and return the lines to print. Blocks."""
    from orchestrator.backup import restore as restoring

    home = home_of(given)
    done = restoring.restore(home, source, force=force, clock=SystemClock(), say=say_aside)
    try:
        zone = zone_of(given)
    except SettingError:  # in the settings that were restored: the next start names it
        zone = None
    return restoring.summary_lines(done, home, zone=zone)
