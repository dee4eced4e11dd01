"""`andy backup` and `andy restore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.options import HomeOption


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
    """Write all that a home cannot do without to one file, also while Andy runs. For the owner's eyes alone.

    In it: the database, groups/, the agents' sessions, andy.toml. Not in it: keys, tokens, logs.

    Example: `andy backup ~/andy-monday.tar.gz`
    """
    from orchestrator.cli import terminal

    for line in terminal.back_up(home, file, with_env=with_env, force=force):
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
    from orchestrator.cli import terminal

    for line in terminal.restore(home, file, force=force):
        print(line)
