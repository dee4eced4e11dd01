"""`andy up` and `andy image`: run the host, and build the image that its agents run in."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from orchestrator.base.clock import SystemClock
from orchestrator.base.import_blocker import without
from orchestrator.cli.options import HomeOption, Runtime
from orchestrator.cli.terminal import home_of, say_aside, settings_of
from orchestrator.domain.home import Home

if TYPE_CHECKING:
    from orchestrator.domain.settings import Settings

Agent = Literal["auto", "claude", "offline"]

USUAL_COLLECTIONS = 700, 10, 10
"""Python's own thresholds for the collection of garbage; `__main__` raises them while modules are loaded."""

M_ARENA_MAX = -8
"""Of malloc.h: how many arenas there may be."""

image_app = App(name="image")


def up(
    *,
    home: HomeOption = None,
    runtime: Runtime | None = None,
    agent: Agent | None = None,
    port: int | None = None,
) -> None:
    """Run Andy until Ctrl-C or SIGTERM. Containers live on, and the next start goes on with them.

    Example: `andy up --runtime docker --port 8700`

    Parameters
    ----------
    runtime
        Where agents run. [ANDY_RUNTIME, else auto]
    agent
        Who answers: `claude` needs a credential in .env, `offline` needs nothing. [ANDY_AGENT, else auto]
    port
        The port of the console and the HTTP API on 127.0.0.1. [ANDY_PORT, else 8700]
    """
    # What it needs takes a moment to load, and on a busy machine many.
    print("Andy starts …", file=sys.stderr, flush=True)
    share_one_arena()
    given = {"andy_runtime": runtime, "andy_agent": agent, "andy_port": port}
    if asyncio.run(_serve(home, given)):
        say_aside("Andy starts anew …")
        # In the place of this process, so that a terminal, systemd and Docker alike go on with it.
        os.execv(sys.executable, [sys.executable, "-m", "orchestrator", *sys.argv[1:]])  # noqa: S606


@image_app.command
def build(
    *,
    base: Annotated[
        Literal["auto", "pull", "debian"],
        Parameter(help="Where the base comes from: a registry, or made here of Debian packages."),
    ] = "auto",
    layers: Annotated[
        tuple[Literal["browser", "node", "none"], ...],
        Parameter(
            name="--with",
            negative="",
            help="What agents get besides: Chromium, 600 MB; Node.js with npm. [what the image has]",
        ),
    ] = (),
    tag: Annotated[str | None, Parameter(help="The image's name. [ANDY_IMAGE]")] = None,
    home: HomeOption = None,
) -> None:
    """Build the agents' image: minutes the first time, seconds after a change of the runner.

    Later builds keep what was chosen with `--with`; `--with none` leaves it out again.

    Example: `andy image build --with browser`
    """
    chosen = [layer for layer in layers if layer != "none"] if layers else None
    _build_image(home, base=base, tag=tag, layers=chosen)


def share_one_arena() -> None:
    """Let all threads of this process allocate from one arena, where the C library is glibc.

    It gives each thread an arena of its own, which keeps the most that any job in it ever used: measured over
    40,000 turns, that added 1.7 MiB a thread, 10 MiB in all. Nobody waits long for the one lock: the threads
    compute in turns anyway.
    """
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


async def _serve(given: Path | None, overrides: dict[str, Any]) -> bool:
    """Run the host until SIGINT, SIGTERM or its owner's word; a second signal ends it at once.

    Returns whether it is to start anew.
    """
    home = home_of(given)
    settings = settings_of(home, **overrides)
    await asyncio.to_thread(home.make)
    with home.starting(now_ms=time.time_ns() // 1_000_000) as started:
        if await asyncio.to_thread(_restore_what_was_asked_for, home):
            settings = settings_of(home, **overrides)  # they may be the backup's now
        return await _run(home, settings, started)


def _restore_what_was_asked_for(home: Home) -> bool:
    """Do what the console left for this start; return whether there was something."""
    if not home.restore_file.exists():
        return False
    from orchestrator.backup import restore_request

    restore_request.carry_out(home, clock=SystemClock(), say=say_aside)
    return True


async def _run(home: Home, settings: Settings, started: Callable[[], None]) -> bool:
    with without("rich"):  # 5 MiB, which it would load, and which the host never uses
        import structlog  # noqa: F401

    from orchestrator.app import Orchestrator
    from orchestrator.base import logging as log_setup
    from orchestrator.base.asgi_server import allow_open_files
    from orchestrator.base.logging import LogFile
    from orchestrator.proxies.model.credentials import CredentialSource

    allow_open_files()
    stop, starts_anew = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, _stop_or_die, stop)

    def tell(address: str) -> None:
        started()
        # What stands now stays until the end: a collection that looked through it would take 50 ms, in which
        # nobody is answered.
        gc.freeze()
        gc.set_threshold(*USUAL_COLLECTIONS)
        say_aside(f"Andy listens on {address}")
        say_aside("To see and steer him in a browser: andy open")

    def restart() -> None:
        starts_anew.set()
        stop.set()

    credentials = CredentialSource(home.root, os.environ)
    orchestrator = Orchestrator(home, settings, credentials=credentials, say=say_aside, restart=restart)
    with LogFile(home.host_log) as kept:
        log_setup.configure(settings.andy_log_level, kept=kept)
        await orchestrator.run(stop=stop, on_ready=tell)
    return starts_anew.is_set()


def _stop_or_die(stop: asyncio.Event) -> None:
    if stop.is_set():
        os._exit(130)
    say_aside("Letting what runs come to its end (at most 30 s); once more to stop at once.")
    stop.set()


def _build_image(given: Path | None, *, base: str, tag: str | None, layers: Collection[str] | None) -> None:
    """Build the agent image and print each step."""
    from orchestrator.containers import runtime_selection

    settings = settings_of(home_of(given))
    runtime_selection.build_image(tag or settings.andy_image, base=base, say=say_aside, layers=layers)
