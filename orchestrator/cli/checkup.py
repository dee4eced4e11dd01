"""What `andy doctor` looks at, in the order in which trouble begins; each check stands by itself."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.cli import checks_beyond, checks_here
from orchestrator.cli.client import Client
from orchestrator.cli.finding import DoctorFinding, bad, ok
from orchestrator.cli.terminal import home_of
from orchestrator.domain import settings as config
from orchestrator.domain.errors import AndyError, NotRunning, SettingError
from orchestrator.domain.home import Home
from orchestrator.domain.settings import Settings

SIGNS = {"ok": "✓", "note": "•", "bad": "✗"}
Check = Callable[[], Awaitable[DoctorFinding]]


async def examine(given: Path | None, *, is_online: bool) -> list[DoctorFinding]:
    """Make every check; one that breaks is a finding, too."""
    home = home_of(given)
    settings, first = _settings(home)
    running = await _running(home)
    found = [first]
    for name, check in _checks(home, settings, running, is_online=is_online):
        found.append(await _made(name, check))
    return found


def _settings(home: Home) -> tuple[Settings, DoctorFinding]:
    """What is set or, where that cannot be read, what the environment says: with Compose, most of it."""
    try:
        return config.load(home.root), ok("settings", f"andy.toml, .env and the environment of {home.root}")
    except SettingError as error:
        return _of_environment(), bad("settings", str(error), mend="correct the line that is named")


def _of_environment() -> Settings:
    try:
        return config.load(Path(os.devnull))
    except SettingError:
        return Settings()


async def _running(home: Home) -> dict[str, Any] | None:
    """What the running Andy tells of itself; None when none does."""
    try:
        async with Client.of(home) as client:
            return await client.status()
    except NotRunning:
        return None


def _checks(
    home: Home, settings: Settings, running: dict[str, Any] | None, *, is_online: bool
) -> Sequence[tuple[str, Check]]:
    return (
        ("permissions", partial(checks_here.permissions, home)),
        ("store", partial(checks_here.store, home)),
        ("disk", partial(checks_here.disk, home)),
        ("clock", partial(checks_here.clock, home, settings)),
        ("lists", partial(checks_here.lists)),
        ("engine", partial(checks_beyond.engine, settings)),
        ("image", partial(checks_beyond.agent_image, settings)),
        ("compose", partial(checks_beyond.compose, home, settings)),
        ("firewall", partial(checks_beyond.firewall, home, settings)),
        ("port", partial(checks_beyond.port, settings, running)),
        ("credential", partial(checks_beyond.credential, home, settings, running, is_online=is_online)),
        ("whatsapp", partial(checks_beyond.whatsapp, home)),
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
    """For people. Pure."""
    shown = []
    for row in rows:
        shown.append(f"{SIGNS[row['state']]} {row['check']:<12} {row['text']}")
        if row["mend"]:
            shown.append(f"{'':15}→ {row['mend']}")
    wrong = sum(row["state"] == "bad" for row in rows)
    return [*shown, "", f"{wrong} of {len(rows)} need mending." if wrong else "Nothing is wrong."]
