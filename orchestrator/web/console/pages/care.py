"""Care: backups to make, check and download, what the doctor finds, the settings and where each came from."""

from __future__ import annotations

import asyncio
import json
import platform
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog
from starlette.responses import FileResponse, Response

from orchestrator import __version__
from orchestrator.backup import make, restore
from orchestrator.base.clock import SystemClock
from orchestrator.domain import setting_sources
from orchestrator.domain import settings as config
from orchestrator.domain.errors import BackupError, BadRequest
from orchestrator.domain.home import Home
from orchestrator.web.console.forms import SentForm
from orchestrator.web.console.page import Page, View

log = structlog.get_logger(__name__)

BACKUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.tar\.gz")
DOCTOR_SECONDS = 60


class NoSuchBackup(BadRequest):
    """There is no backup of this name."""

    code = "no_such_backup"
    http_status = 404


class BackupUnderWay(BadRequest):
    """A backup is being made or checked: look again in a moment."""

    code = "backup_under_way"
    http_status = 409


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupFile:
    """A backup in the folder `backups/` of the home."""

    name: str
    made_ms: int
    megabytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """A setting as it counts now, and the file or place that says so; empty for the default."""

    name: str
    value: str
    source: str
    about: str


async def show(view: View) -> Response:
    home = view.web.host.home
    return view.render(
        "care.html",
        backups=await asyncio.to_thread(_listed, home.root / "backups"),
        settings=await asyncio.to_thread(lambda: list(_settings(home))),
        versions={"Andy": __version__, "Python": platform.python_version()},
        home=str(home.root),
    )


async def show_doctor(view: View) -> Response:
    """Make every check of `andy doctor`, in a process of its own, and show what it finds."""
    command = (
        sys.executable,
        "-m",
        "orchestrator",
        "doctor",
        "--json",
        "--home",
        str(view.web.host.home.root),
    )
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(DOCTOR_SECONDS):
            output, _ = await process.communicate()
        found: list[dict[str, Any]] | None = json.loads(output)
    except (TimeoutError, ValueError) as error:
        log.warning("console.doctor_failed", reason=str(error))
        found = None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return view.render("care_doctor.html", found=found)


async def make_backup(view: View, _: SentForm) -> Response:
    """Write a backup into `backups/`, named after the local time."""
    home = view.web.host.home
    at = datetime.fromtimestamp(view.now_ms / 1000, view.console.zone)
    target = home.root / "backups" / f"andy-{at:%Y%m%d-%H%M%S}.tar.gz"
    if view.console.backups.locked():
        raise BackupUnderWay

    def write() -> make.BackupResult:
        target.parent.mkdir(mode=0o700, exist_ok=True)
        return make.back_up(home, target, with_env=False, replaces=False, clock=SystemClock(), say=_nobody)

    async with view.console.backups:
        await asyncio.to_thread(write)
    return view.done("/care", view.t(".made", name=target.name))


async def check_backup(view: View, _: SentForm) -> Response:
    """Restore a backup into an empty folder, which is then thrown away: so it is known that it can be."""
    path = await _found(view)
    if view.console.backups.locked():
        raise BackupUnderWay

    def check() -> restore.RestoreResult:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".check-") as made_in:
            target = Home(Path(made_in, "home"))
            return restore.restore(target, path, force=False, clock=SystemClock(), say=_nobody)

    async with view.console.backups:
        try:
            await asyncio.to_thread(check)
        except BackupError as error:
            return view.done("/care", view.t(".broken", name=path.name, reason=str(error)))
    return view.done("/care", view.t(".whole", name=path.name))


async def download(view: View) -> Response:
    path = await _found(view)
    return FileResponse(path, media_type="application/gzip", filename=path.name)


async def _found(view: View) -> Path:
    """Return the path of the backup that the address names. Raises `NoSuchBackup`."""
    name = view.given("name")
    path = view.web.host.home.root / "backups" / name
    is_file = await asyncio.to_thread(lambda: path.is_file() and not path.is_symlink())
    if not BACKUP.fullmatch(name) or not is_file:
        raise NoSuchBackup(view.t(".no_such", name=name[:100]))
    return path


def _listed(folder: Path) -> list[BackupFile]:
    found = [
        path for path in folder.glob("*.tar.gz") if BACKUP.fullmatch(path.name) and not path.is_symlink()
    ]
    rows = [
        BackupFile(
            name=path.name,
            made_ms=path.stat().st_mtime_ns // 1_000_000,
            megabytes=path.stat().st_size / 1_000_000,
        )
        for path in found
    ]
    return sorted(rows, key=lambda one: -one.made_ms)


def _settings(home: Home) -> Iterator[SettingRow]:
    sources = setting_sources.read_sources(home.root)
    said = {key.lower(): source.name for source in sources for key in source.values}
    for name, value in config.load(home.root).model_dump(mode="json").items():
        about = config.Settings.model_fields[name].description or ""
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        source = said.get(name, "")
        place = Path(source).name if source.startswith("/") else source
        yield SettingRow(name=name.upper(), value=shown, source=place, about=about)


def _nobody(_: str) -> None:
    """Take no line of progress: the page waits for the end."""


PAGE = Page(
    name="care",
    order=110,
    shows={"/care": show, "/care/doctor": show_doctor, "/care/backups/{name}": download},
    changes={"/care/backups": make_backup, "/care/backups/{name}/check": check_backup},
)
