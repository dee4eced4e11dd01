"""`andy doctor`: makes every check, in the order in which trouble begins, and names the fix of a fault."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from orchestrator.channels import discovery
from orchestrator.channels.description import ChannelDescription
from orchestrator.cli import doctor_checks
from orchestrator.cli.client import Client
from orchestrator.cli.doctor_checks import DoctorFinding, bad, ok
from orchestrator.cli.exit_codes import FAILED
from orchestrator.cli.options import HomeOption, JsonOption, show
from orchestrator.cli.terminal import home_of
from orchestrator.domain import settings as config
from orchestrator.domain.errors import AndyError, NotRunning, SettingError
from orchestrator.domain.home import Home
from orchestrator.domain.settings import Settings

SIGNS = {"ok": "✓", "note": "•", "bad": "✗"}
Check = Callable[[], Awaitable[DoctorFinding]]


def doctor(
    *,
    online: Annotated[
        bool,
        Parameter(negative="", help="Ask the model service whether it takes the credential: one small call."),
    ] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> int:
    """Look for what is wrong, and say how to mend it. Works with Andy up or down; 1 when something is.

    Example: `andy doctor --online`
    """
    found = asyncio.run(examine(home, is_online=online))
    show(as_rows(found), lines, as_json=as_json)
    return FAILED if any(one.is_bad for one in found) else 0


async def examine(given: Path | None, *, is_online: bool) -> list[DoctorFinding]:
    """Make every check and return its findings, in order; a check that breaks is a finding, too."""
    home = home_of(given)
    settings, first = _settings(home)
    running = await _running(home)
    found = [first]
    messengers = []
    for name in settings.channels:
        try:
            messengers.append(discovery.find(name))
        except SettingError as error:
            found.append(bad(name, str(error), mend="correct ANDY_CHANNELS: see 'andy channels list'"))
    for name, check in _checks(home, settings, running, messengers, is_online=is_online):
        found.append(await _made(name, check))
    return found


def _settings(home: Home) -> tuple[Settings, DoctorFinding]:
    """Return what is set or, where it cannot be read, what the environment says: with Compose, most."""
    try:
        return config.load(home.root), ok("settings", f"andy.toml, .env and the environment of {home.root}")
    except SettingError as error:
        return _of_environment(), bad("settings", str(error), mend="do what is named above")


def _of_environment() -> Settings:
    try:
        return config.load(Path(os.devnull))
    except SettingError:
        return Settings()


async def _running(home: Home) -> dict[str, Any] | None:
    """Return the status of the running Andy, None when none answers."""
    try:
        async with Client.of(home) as client:
            return await client.status()
    except NotRunning:
        return None


def _checks(
    home: Home,
    settings: Settings,
    running: dict[str, Any] | None,
    messengers: Sequence[ChannelDescription],
    *,
    is_online: bool,
) -> Sequence[tuple[str, Check]]:
    return (
        ("permissions", partial(doctor_checks.permissions, home, messengers)),
        ("store", partial(doctor_checks.store, home)),
        ("disk", partial(doctor_checks.disk, home)),
        ("watches", partial(doctor_checks.watches)),
        ("clock", partial(doctor_checks.clock, home, settings)),
        ("lists", partial(doctor_checks.lists)),
        ("engine", partial(doctor_checks.engine, settings)),
        ("image", partial(doctor_checks.agent_image, settings)),
        ("compose", partial(doctor_checks.compose, home, settings)),
        ("firewall", partial(doctor_checks.firewall, home, settings)),
        ("port", partial(doctor_checks.port, settings, running)),
        ("parts", partial(doctor_checks.parts, running)),
        ("credential", partial(doctor_checks.credential, home, settings, running, is_online=is_online)),
        *((one.name, partial(doctor_checks.channel, home, one)) for one in messengers),
    )


async def _made(name: str, check: Check) -> DoctorFinding:
    try:
        return await check()
    except AndyError as error:
        return bad(name, str(error), mend="see above")
    except Exception as error:  # noqa: BLE001 - whatever ails a check, the others are made
        return bad(name, f"the check itself broke: {error!r}", mend="tell those who make Andy")


def as_rows(found: Sequence[DoctorFinding]) -> list[dict[str, str]]:
    return [{"check": one.name, "state": one.state, "text": one.text, "mend": one.mend} for one in found]


def lines(rows: Sequence[dict[str, str]]) -> list[str]:
    """Show the findings to people: a line each, the fix below it. Pure."""
    shown = []
    for row in rows:
        shown.append(f"{SIGNS[row['state']]} {row['check']:<12} {row['text']}")
        if row["mend"]:
            shown.append(f"{'':15}→ {row['mend']}")
    wrong = sum(row["state"] == "bad" for row in rows)
    return [*shown, "", f"{wrong} of {len(rows)} need mending." if wrong else "Nothing is wrong."]
