"""Read which number is paired, and check library and login for `andy doctor`, without connecting."""

from __future__ import annotations

import subprocess
from pathlib import Path

from orchestrator.channels import status
from orchestrator.channels.description import ChannelFinding
from orchestrator.channels.whatsapp import bridge_process, protocol
from orchestrator.channels.whatsapp.description import CHANNEL, LOGIN
from orchestrator.channels.whatsapp.neonize_database import NeonizeDatabase
from orchestrator.channels.whatsapp.protocol import StateReport
from orchestrator.domain.errors import ChannelDown

LOAD_SECONDS = 120.0
"""Seconds that the library may take to load; on a small machine it takes 20 s."""
HARMLESS_STATES = ("connected", "connecting", "starting", "disconnected", "logged_out")
"""States that are no problem while somebody is paired.

"logged_out" is one of them: a login exists, so the account was paired again after that state was recorded.
"""


def account(home: Path) -> str:
    """Return the phone number that is paired, with `+`; empty if none is. Blocks.

    Raises:
        ChannelDown: the login's database cannot be read.
    """
    paired = NeonizeDatabase(home / LOGIN).account()
    return paired.number if paired else ""


def check_library(home: Path) -> ChannelFinding:
    """Check in a separate process whether the library loads. Blocks for up to `LOAD_SECONDS`.

    `home` is not used.
    """
    del home
    try:
        check_run = subprocess.run(
            bridge_process.check_command(),
            env=bridge_process.environment(),
            capture_output=True,
            timeout=LOAD_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return ChannelFinding(is_problem=True, text=f"The WhatsApp library could not be tried: {error}.")
    if check_run.returncode == 0:
        return ChannelFinding(is_problem=False, text="The WhatsApp library loads.")
    return ChannelFinding(
        is_problem=True, text=_reported_reason(check_run.stdout) or _last_line(check_run.stderr)
    )


def _reported_reason(stdout: bytes) -> str:
    """Return the reason in the state that the bridge process printed; empty if it printed none."""
    try:
        report = protocol.from_bridge(stdout.splitlines()[0])
    except (IndexError, protocol.BadBridgeLine):
        return ""
    return report.reason if isinstance(report, StateReport) else ""


def _last_line(stderr: bytes) -> str:
    """Return a sentence that the library does not load, with the last line of the process's stderr."""
    lines = stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
    return f"The WhatsApp library does not load on this machine ({lines[-1][:200]}): reinstall neonize."


def check_login(home: Path) -> ChannelFinding:
    """Check whether a phone is paired, whether only this user can read the login, and the last state. Blocks.

    It is a problem if WhatsApp has logged the device out, if others can read the login, or if the last
    connection ended with a state for which there is advice.
    """
    store = home / LOGIN
    try:
        paired = NeonizeDatabase(store).account()
    except ChannelDown as error:
        return ChannelFinding(is_problem=True, text=str(error))
    stored = status.read(home / CHANNEL.status_file)
    if paired is None:
        if stored.state == "logged_out":
            text = stored.advice or "WhatsApp has logged this device out"
            return ChannelFinding(is_problem=True, text=f"{text.rstrip('.')}: 'andy whatsapp pair'.")
        return ChannelFinding(
            is_problem=False, text="Nobody has paired WhatsApp: 'andy whatsapp pair' if you want it."
        )
    if store.stat().st_mode & 0o077:
        return ChannelFinding(
            is_problem=True, text=f"Others on this machine can read the WhatsApp login: chmod 600 {store}"
        )
    if stored.state not in HARMLESS_STATES and stored.advice:
        return ChannelFinding(is_problem=True, text=stored.advice)
    return ChannelFinding(is_problem=False, text=f"WhatsApp is paired with {paired.number}.")
