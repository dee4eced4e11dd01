"""`andy backup`, `restore` and `export`: a home to one file and back, and a group to a folder for people."""

from __future__ import annotations

import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from orchestrator.base import installation
from orchestrator.base.clock import SystemClock
from orchestrator.cli.exit_codes import UsageError
from orchestrator.cli.options import GroupArgument, HomeOption, JsonOption, show
from orchestrator.cli.terminal import (
    LocalNow,
    change,
    home_of,
    moment,
    read,
    run_async,
    say_aside,
    task_times,
    without_service_logs,
    zone_of,
)
from orchestrator.domain.errors import BackupError, SettingError
from orchestrator.home import lock as home_lock
from orchestrator.home.directory import Home, expanded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orchestrator.backup.group_export import GroupExport
    from orchestrator.backup.move_in import MoveResult
    from orchestrator.store.database import Tx


def _check_no_option(_: object, file: Path) -> None:
    """Raise `ValueError` for a file name that looks like an unknown option; `-` is the standard output.

    Cyclopts calls it with the parameter's type and value, and shows the error.
    """
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
        bool, Parameter(negative="", help="Include .env with its keys. Protect the file like .env.")
    ] = False,
    force: Annotated[bool, Parameter(negative="", help="Replace an existing file.")] = False,
    home: HomeOption = None,
) -> None:
    """Write a home to one file, also while Andy runs. The file is readable by its owner alone.

    In it: the database, groups/, the agents' sessions, andy.toml. Not in it: keys, tokens, logs.

    Example: `andy backup ~/andy-monday.tar.gz`
    """
    for line in _back_up(home, file, with_env=with_env, force=force):
        print(line)


def restore(
    file: Annotated[
        Path, Parameter(help="A file that 'andy backup FILE' wrote, or a copy of the database (.db).")
    ],
    /,
    *,
    force: Annotated[
        bool, Parameter(negative="", help="Replace a home that is not empty; its old content is moved aside.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Put a backup in place while Andy is stopped. It is checked first; a bad one changes nothing.

    The old content of the home is moved to HOME.before-restore-TIME beside it.

    Example: `andy restore ~/andy-monday.tar.gz --force`
    """
    for line in _restore(home, file, force=force):
        print(line)


def export(
    group: GroupArgument,
    /,
    *,
    to: Annotated[
        Path | None, Parameter(help="The folder to write, which is new or empty. [GROUP-export]")
    ] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Write a group's data to a folder in forms that people can read. Works with Andy down.

    In it: the conversation, the agent's notes, scheduled tasks, reminders and the board as Markdown, the last
    three also as JSON; a calendar, and the files of the chats. A folder that is not empty is refused.

    Example: `andy export family --to ~/family`
    """
    from orchestrator.backup import group_export

    own_home, at = home_of(home), moment(home)
    target = group_export.checked_target(own_home, to or Path(f"{group}-export"))
    show(
        read(home, partial(_export, own_home, group, target, at)).to_row(),
        group_export.summary_lines,
        as_json=as_json,
    )


def import_(
    program: Annotated[Literal["nanoclaw", "openclaw", "nanobot"], Parameter(help="The other assistant.")],
    folder: Annotated[Path, Parameter(help="The other assistant's home, which is not changed.")],
    /,
    *,
    dry_run: Annotated[
        bool, Parameter(negative="", help="Only list what would be taken over, and what would not.")
    ] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Take over groups, notes, scheduled tasks and messages from another assistant's home.

    Stop both programs first. A second import adds nothing twice. Parts that cannot be taken over are listed
    with the reason.

    Example: `andy import nanoclaw ~/nanoclaw --dry-run`
    """
    from orchestrator.backup import move_in

    result = _import(home, program, expanded(folder), is_dry_run=dry_run)
    show(result.to_row(), move_in.summary_lines, as_json=as_json)


def _import(home_option: Path | None, program: str, folder: Path, *, is_dry_run: bool) -> MoveResult:
    """Import the home of another program in the folder `folder`, in one transaction. Blocks.

    With `is_dry_run` nothing is changed, and the result is the one that an import would have. Raises
    `BackupError` for an unreadable home, `HomeError` while Andy runs.
    """
    from orchestrator.backup import move_in, nanobot, nanoclaw, openclaw
    from orchestrator.store.database import refuse_missing

    own_home = home_of(home_option)
    refuse_missing(own_home.database)
    readers = {
        "nanoclaw": nanoclaw.read,
        "openclaw": openclaw.read,
        "nanobot": nanobot.read,
    }
    with tempfile.TemporaryDirectory(prefix="andy-import-") as scratch:
        try:
            foreign = readers[program](folder.absolute(), Path(scratch))
        except BackupError as error:
            if folder.exists() or not installation.is_in_compose():
                raise
            raise BackupError(
                f"Andy's container does not see {folder}: on the host, copy that home into backups/ beside"
                f" docker-compose.yml, and name {own_home.root}/backups/{folder.name} here."
            ) from error
    import_work = move_in.Import(
        home=own_home, foreign=foreign, times=task_times(home_option), is_dry_run=is_dry_run
    )
    # Locked, since a long transaction would keep a running Andy from storing new messages.
    lock = home_lock.acquire(own_home)
    try:
        if is_dry_run:
            return run_async(_run_on_copy(own_home.database, import_work.run))
        return run_async(change(home_option, import_work.run, has_lock=True))
    finally:
        lock.release()


async def _run_on_copy(path: Path, act: Callable[[Tx, int], Awaitable[MoveResult]]) -> MoveResult:
    """Run `act` in a transaction of a copy of the database at `path`, and return its result.

    The database itself stays as it is; opening an older one would migrate it. Raises `StoreError`.
    """
    from orchestrator.store.database import Database, copy_to

    # Beside the database: in Andy's container the folder for temporary files is memory.
    with tempfile.TemporaryDirectory(
        dir=path.parent, prefix=".import-", ignore_cleanup_errors=True
    ) as scratch:
        copy = Path(scratch) / path.name
        copy_to(path, copy)
        database = await Database.open(copy)
        try:
            with without_service_logs():
                async with database.transaction() as tx:
                    return await act(tx, SystemClock().now_ms())
        finally:
            await database.close()


async def _export(home: Home, name: str, target: Path, at: LocalNow, tx: Tx) -> GroupExport:
    """Write the data of the group `name` into the folder `target`, read in the transaction `tx`."""
    from orchestrator.backup import archive, group_export
    from orchestrator.groups import settings
    from orchestrator.reports import calendar_feed
    from orchestrator.store.groups import groups

    group = await groups.known(tx, name)
    zone = settings.zone_of(group, default=at.zone)
    return await group_export.write(
        tx,
        home,
        group,
        target,
        calendar=await calendar_feed.read(tx, group, now_ms=at.now_ms, zone=zone),
        zone=zone,
        progress=archive.BackupProgress(say_aside, clock=SystemClock()),
    )


def _back_up(home_option: Path | None, target: Path, *, with_env: bool, force: bool) -> list[str]:
    """Back up a home to the file `target`, and return the lines about the result. Blocks.

    The progress is printed on stderr. With `-` as target the backup goes to the standard output: then the
    lines are printed on stderr, and an empty list is returned. With `force` an existing file is replaced.
    Raises `UsageError` if the standard output is a terminal.
    """
    from orchestrator.backup import make as backup

    home, clock = home_of(home_option), SystemClock()
    if str(target) != "-":
        result = backup.back_up(home, target, with_env=with_env, replaces=force, clock=clock, say=say_aside)
        return backup.summary_lines(result)
    if sys.stdout.isatty():
        raise UsageError("A backup is no text for a terminal: put '> FILE' after 'andy backup -'.")
    # A copy of the descriptor: after a broken pipe, Python would try to flush `sys.stdout` again at its exit.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    result = backup.stream(home, out, with_env=with_env, clock=clock, say=say_aside)
    for line in backup.summary_lines(result):
        say_aside(line)
    return []


def _restore(home_option: Path | None, source: Path, *, force: bool) -> list[str]:
    """Restore the backup `source` into a home, and return the lines about the result. Blocks.

    With `force` the home may have files: they are moved aside. Raises the errors of `restore.restore`.
    """
    from orchestrator.backup import restore as restoring

    home = home_of(home_option)
    result = restoring.restore(home, source, force=force, clock=SystemClock(), say=say_aside)
    try:
        zone = zone_of(home_option)
    except SettingError:  # in the restored settings: the next start reports it
        zone = None
    return restoring.summary_lines(result, home, zone=zone)
