"""Run the host in this process, without the library of the command line, which would take 4 MiB of memory and
a tenth of the time of a start.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.base import installation
from orchestrator.base.clock import SystemClock
from orchestrator.base.import_blocker import without
from orchestrator.base.memory import give_back_memory, hide_memory, share_one_arena
from orchestrator.cli.terminal import home_of, say_aside, settings_of
from orchestrator.home import lock as home_lock
from orchestrator.home.directory import Home

if TYPE_CHECKING:
    from orchestrator.home.settings import Settings

USUAL_COLLECTIONS = 700, 10, 10
"""Python's default thresholds of garbage collection; `__main__` raises them while modules are loaded."""

PLAIN_OPTIONS = {
    "--home": r"[^-].*",
    "--runtime": r"auto|docker|process|swarm",
    "--agent": r"auto|claude|offline",
    "--port": r"[0-9]{1,5}",
}
"""The options of `andy up`, and patterns of their usual values."""


def plain_options(arguments: Sequence[str]) -> dict[str, str] | None:
    """Return the options of `andy up` by name, such as `--port`, with their values as text.

    None for arguments that only the full parser of the command line can parse.
    """
    options: dict[str, str] = {}
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, value = argument.partition("=")
        # Without `=` the next argument is the value; taken here, it is not looked at as an option.
        value = value if equals else next(remaining, "")
        # An unknown option has the empty pattern, which only an empty value matches.
        is_plain = (
            re.fullmatch(PLAIN_OPTIONS.get(name, ""), value) and value.isascii() and name not in options
        )
        if not (value and is_plain):
            return None
        options[name] = value
    return options


def run_plain(options: Mapping[str, str]) -> int:
    """Run the host with options of `plain_options`, and return the exit code."""
    run(
        Path(options["--home"]) if "--home" in options else None,
        runtime=options.get("--runtime"),
        agent=options.get("--agent"),
        port=int(options["--port"]) if "--port" in options else None,
    )
    return 0


def run(
    home: Path | None, *, runtime: str | None, agent: str | None, port: int | None, is_verbose: bool = False
) -> None:
    """Run the host until a signal or the owner ends it; if it is to be restarted, replace this process.

    An option that is None comes from the settings. With `is_verbose` a terminal shows every line of the log,
    not only errors.
    """
    # Loading the modules takes a moment, on a busy machine several seconds.
    say_aside("Andy starts …")
    # With an arena for each thread, the host's memory would grow in steps for hours.
    share_one_arena()
    # Agents that run as processes of this user could read the host's secrets in its memory otherwise.
    hide_memory()
    overrides = {"andy_runtime": runtime, "andy_agent": agent, "andy_port": port}
    if asyncio.run(_serve(home, overrides, is_verbose=is_verbose)):
        say_aside("Andy restarts …")
        # The new program runs in this same process, which a terminal, systemd or Docker watches.
        os.execv(sys.executable, [sys.executable, "-m", "orchestrator", *sys.argv[1:]])  # noqa: S606


async def _serve(home_option: Path | None, overrides: Mapping[str, Any], *, is_verbose: bool) -> bool:
    """Run the host until SIGINT, SIGTERM or a request of its owner; a second signal ends it at once.

    Before that, the home is created if it is missing, and a restore that was requested is carried out.
    `overrides` are settings of the command line; None counts as not set. Return whether the host is to be
    restarted.
    """
    home = home_of(home_option)
    # Before the host is loaded: a wrong setting is then reported in half the time.
    settings = settings_of(home, **overrides)
    await asyncio.to_thread(home.make)
    await asyncio.to_thread(warn_of_open_secrets, home.root / ".env")
    # Until `started` is called, commands are told that Andy is starting.
    with home_lock.starting(home, now_ms=time.time_ns() // 1_000_000) as started:
        if await asyncio.to_thread(_carry_out_restore, home):
            settings = settings_of(home, **overrides)  # the backup may have replaced them
        await asyncio.to_thread(announce_migration, home.database)
        return await _run(home, settings, started, is_verbose=is_verbose)


def warn_of_open_secrets(path: Path) -> None:
    """Print how to protect the file of secrets at `path`, if other users may read it. Blocks."""
    if path.exists() and path.stat().st_mode & 0o077:
        say_aside(f"⚠️  Others may read {path}: chmod 600 {shlex.quote(str(path))}")


def announce_migration(path: Path) -> None:
    """Print, if this start will migrate the database, its versions and where the copy is. Blocks."""
    from orchestrator.store import database

    migration = database.migration_ahead(path)
    if migration is not None:
        old_version, new_version = migration.stored_version, migration.newest_version
        copy = database.copy_before(path, old_version, new_version)
        say_aside(
            f"The database goes from version {old_version} to {new_version}; a copy of the old one is {copy}."
        )


def _carry_out_restore(home: Home) -> bool:
    """Restore a backup if that was requested in the console, or undo a restore that was killed.

    Return whether the home had a record of a restore, or files that one had unpacked.
    """
    from orchestrator.backup.swap import Stage

    # A restore that was killed while it unpacked has left files, but no record.
    if not (home.restore_file.exists() or Stage(home).is_there()):
        return False
    from orchestrator.backup import restore_request

    restore_request.carry_out(home, clock=SystemClock(), say=say_aside)
    return True


async def _run(home: Home, settings: Settings, started: Callable[[], None], *, is_verbose: bool) -> bool:
    """Run the host until it is stopped, and return whether it is to be restarted.

    `started` is called once the host serves.
    """
    with without("rich"):  # structlog would load it: 5 MiB that the host never uses
        import structlog  # noqa: F401

    from orchestrator.app import Orchestrator
    from orchestrator.base import logging as log_setup
    from orchestrator.base.asgi_server import allow_open_files
    from orchestrator.base.logging import LogFile
    from orchestrator.proxies.model.credentials import CredentialSource

    allow_open_files()
    stop, restarts = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, _stop_or_exit, stop)

    def announce(address: str) -> None:
        """Print that the host is up, and tune the garbage collector and the memory for its long life."""
        started()  # until now, commands answered that Andy is starting
        # The present objects live until the end: each full collection of them would block the host for 50 ms.
        gc.freeze()
        gc.set_threshold(*USUAL_COLLECTIONS)
        give_back_memory()
        say_aside(f"Andy listens on {address}")
        console, log = installation.command("open"), installation.command("logs", "-f")
        say_aside(f"To see and control him in a browser: {console}. His log: {log}")

    def restart() -> None:
        """Stop the host, and record that it is to be started again."""
        restarts.set()
        stop.set()

    credentials = CredentialSource(home.root, os.environ)
    orchestrator = Orchestrator(home, settings, credentials=credentials, say=say_aside, restart=restart)
    with LogFile(home.host_log) as log_file:
        log_setup.configure(settings.andy_log_level, log_file=log_file, is_quiet=not is_verbose)
        await orchestrator.run(stop=stop, on_ready=announce)
    return restarts.is_set()


def _stop_or_exit(stop: asyncio.Event) -> None:
    """Stop the host at the first signal, and exit at once at the second."""
    if stop.is_set():
        os._exit(130)  # 128 and the number of SIGINT, as shells say it
    stop.set()
    say_aside("Waiting for running turns to end (at most 30 s); once more to stop at once.")
