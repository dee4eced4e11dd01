"""`andy doctor`: makes every check, the basic ones first, and names the fix of each fault."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from orchestrator.base.installation import COMPOSE_HOME
from orchestrator.channels import discovery
from orchestrator.channels.description import ChannelDescription
from orchestrator.cli import doctor_checks
from orchestrator.cli.client import Client
from orchestrator.cli.doctor_checks import DoctorFinding, bad, ok
from orchestrator.cli.exit_codes import FAILED
from orchestrator.cli.options import HomeOption, JsonOption, show
from orchestrator.cli.terminal import home_of, settings_of_environment
from orchestrator.domain.errors import AndyError, AndyFileDamaged, HomeError, NotRunning, SettingError
from orchestrator.home import lock as home_lock
from orchestrator.home import settings as config
from orchestrator.home.directory import Home
from orchestrator.home.settings import Settings

SIGNS = {"ok": "✓", "note": "•", "bad": "✗"}
Check = Callable[[], Awaitable[DoctorFinding]]
_COMMAND = re.compile(r"(?<![\w./-])andy ([a-z]+)")
"""A command of Andy in the text of a fix."""


def doctor(
    *,
    online: Annotated[
        bool,
        Parameter(negative="", help="Test the model services in use with a small call to each."),
    ] = False,
    as_json: JsonOption = False,
    each: Annotated[
        bool,
        Parameter(negative="", help="Print each finding as a line of JSON, as soon as its check was made."),
    ] = False,
    home: HomeOption = None,
) -> int:
    """Look for faults, and name the fix of each. Works with Andy up or down; exits with 1 if it finds one.

    Example: `andy doctor --online`
    """
    findings = asyncio.run(examine(home, is_online=online, on_finding=_print_finding if each else _ignore))
    if not each:
        show(as_rows(findings), lines, as_json=as_json)
    return FAILED if any(finding.is_bad for finding in findings) else 0


def _print_finding(finding: DoctorFinding) -> None:
    """Print a finding as one line of JSON."""
    print(json.dumps(as_rows([finding])[0], ensure_ascii=False), flush=True)


def _ignore(_: DoctorFinding) -> None:
    """Do nothing: all findings are printed together at the end."""


async def examine(
    home_option: Path | None, *, is_online: bool, on_finding: Callable[[DoctorFinding], None] = _ignore
) -> list[DoctorFinding]:
    """Make every check and return the findings in order; a check that fails itself is a finding too.

    `on_finding` is called with each finding as soon as its check is done.
    """
    home = home_of(home_option)
    settings, settings_finding = _settings(home)
    running, error_finding = await _running_status(home)
    findings: list[DoctorFinding] = []

    def add(finding: DoctorFinding) -> None:
        """Store a finding and report it; with Compose, its fix is the one for the host."""
        findings.append(on_the_host(finding) if str(home.root) == COMPOSE_HOME else finding)
        on_finding(findings[-1])

    add(settings_finding)
    if error_finding is not None:
        add(error_finding)
    messengers = []
    for name in settings.channels:
        try:
            messengers.append(discovery.find(name))
        except SettingError as error:
            add(bad(name, str(error), fix="correct ANDY_CHANNELS: see 'andy channels list'"))
    for name, check in _checks(home, settings, running, messengers, is_online=is_online):
        # With an `error_finding` Andy may run, and the check would report his own port as taken by another
        # program.
        if name != "port" or error_finding is None:
            add(await _run_check(name, check))
    return findings


def _settings(home: Home) -> tuple[Settings, DoctorFinding]:
    """Return the settings of a home, and the finding about them.

    If a file of settings is invalid, those of the environment alone are returned, which Compose sets.
    """
    try:
        return config.load(home.root), ok("settings", f"andy.toml, .env and the environment of {home.root}")
    except SettingError as error:
        return settings_of_environment(), bad("settings", str(error), fix="do what the text above says")


async def _running_status(home: Home) -> tuple[dict[str, Any] | None, DoctorFinding | None]:
    """Return the status of the Andy that runs on a home, and a finding if the request for it failed.

    The status is None if no Andy answers, or only with an error. The finding is about this error, or about a
    damaged file that the request needs; else it is None.
    """
    try:
        async with Client.of(home) as client:
            # An older Andy that still runs may leave fields of its status out, so the checks get a plain
            # dict.
            return dict(await client.status()), None
    except AndyFileDamaged as error:
        return None, bad("andy", str(error), fix="do what the text above says")
    except NotRunning:
        return None, None
    except AndyError as error:
        # After Andy was killed, another program, or another home's Andy, may have got the port that his file
        # still names.
        if not await asyncio.to_thread(_is_locked, home):
            return None, None
        text = f"Andy runs, but answers the question for his state with an error: {error}"
        return None, bad("andy", text, fix="see 'andy logs', and start Andy again")


def _is_locked(home: Home) -> bool:
    """Return whether a process has locked a home, so that an Andy runs on it. Blocks."""
    try:
        home_lock.acquire(home).release()
    except HomeError:
        return True
    return False


def _checks(
    home: Home,
    settings: Settings,
    running: dict[str, Any] | None,
    messengers: Sequence[ChannelDescription],
    *,
    is_online: bool,
) -> Sequence[tuple[str, Check]]:
    """Return all checks of a home in their order, each with its name.

    `running` is the status of the running Andy, None if none answers. The checks of the image, Compose and
    the firewall get the settings with the runtime that the running Andy uses; the others get those of the
    files.
    """
    settings_in_force = _settings_in_force(settings, running)
    return (
        ("permissions", partial(doctor_checks.permissions, home, messengers)),
        ("store", partial(doctor_checks.store, home)),
        ("disk", partial(doctor_checks.disk, home)),
        ("watches", partial(doctor_checks.watches)),
        ("clock", partial(doctor_checks.clock, home, settings, running)),
        ("lists", partial(doctor_checks.lists)),
        ("engine", partial(doctor_checks.engine, settings)),
        ("image", partial(doctor_checks.agent_image, settings_in_force)),
        ("compose", partial(doctor_checks.compose, home, settings_in_force)),
        ("firewall", partial(doctor_checks.firewall, home, settings_in_force)),
        ("port", partial(doctor_checks.port, settings, running)),
        ("parts", partial(doctor_checks.parts, running)),
        ("credential", partial(doctor_checks.credential, home, settings, running, is_online=is_online)),
        ("models", partial(doctor_checks.models, home, settings, running, is_online=is_online)),
        ("search", partial(doctor_checks.search, home, settings)),
        ("mcp", partial(doctor_checks.mcp_servers, home)),
        *((channel.name, partial(doctor_checks.channel, home, channel)) for channel in messengers),
    )


def _settings_in_force(settings: Settings, running: dict[str, Any] | None) -> Settings:
    """Return the settings with the running Andy's runtime, which an option of 'andy up' may have set."""
    runtime = (running or {}).get("runtime", settings.andy_runtime)
    return settings.model_copy(update={"andy_runtime": runtime})


def on_the_host(finding: DoctorFinding) -> DoctorFinding:
    """Return a finding from inside Compose's container, with its fix as it is typed on the host. Pure.

    So `andy logs` becomes `docker compose exec andy andy logs`, and `/andy/.env` the file `.env` beside
    `docker-compose.yml`.
    """
    fix = _COMMAND.sub(
        lambda match: (
            "docker compose up -d" if match[1] == "up" else f"docker compose exec andy andy {match[1]}"
        ),
        finding.fix,
    )
    if f"{COMPOSE_HOME}/" in fix:
        fix = f"on the host, beside docker-compose.yml: {fix.replace(f'{COMPOSE_HOME}/', '')}"
    return replace(finding, fix=fix)


async def _run_check(name: str, check: Check) -> DoctorFinding:
    """Make a check and return its finding; if the check raises an error, return a finding about that."""
    try:
        return await check()
    except AndyError as error:
        return bad(name, str(error), fix="")  # the text of an `AndyError` says itself what to do
    except PermissionError as error:
        fix = "call andy as the user who owns the home"
        return bad(name, f"this user may not read {error.filename or 'what is checked'}", fix=fix)
    except Exception as error:  # noqa: BLE001 - one failing check must not prevent the others
        return bad(name, f"the check itself failed: {error!r}", fix="report it to the makers of Andy")


def as_rows(findings: Sequence[DoctorFinding]) -> list[dict[str, str]]:
    """Return findings as rows for `--json`; the fix is in `mend`, a name that other programs read."""
    return [
        {"check": finding.name, "state": finding.state, "text": finding.text, "mend": finding.fix}
        for finding in findings
    ]


def lines(rows: Sequence[dict[str, str]]) -> list[str]:
    """Return findings as lines of text, each with its fix below, and the number of faults last. Pure.

    `rows` are those that `--json` prints.
    """
    text_lines = []
    for row in rows:
        text_lines.append(f"{SIGNS[row['state']]} {row['check']:<12} {row['text']}")
        if row["mend"]:
            text_lines.append(f"{'':15}→ {row['mend']}")
    bad_count = sum(row["state"] == "bad" for row in rows)
    verb = "needs" if bad_count == 1 else "need"
    return [
        *text_lines,
        "",
        f"{bad_count} of {len(rows)} {verb} fixing." if bad_count else "Nothing is wrong.",
    ]
