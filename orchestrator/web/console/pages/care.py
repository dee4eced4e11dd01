"""Care: backups to make, fetch, send in and restore; what the doctor finds; settings with their sources."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import platform
import re
import secrets
import shlex
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO

import structlog
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response

from orchestrator import __version__
from orchestrator.backup import inspection, make, restore_request
from orchestrator.backup.archive import LEFTOVER_MS
from orchestrator.backup.swap import read_record
from orchestrator.base.clock import SystemClock
from orchestrator.base.redaction import Redactor
from orchestrator.base.tables import size_text
from orchestrator.domain.errors import AndyError, BackupError, BadRequest
from orchestrator.home import settings as config
from orchestrator.store import audit
from orchestrator.web.console.form_tokens import SentForm
from orchestrator.web.console.page import Page, View

if TYPE_CHECKING:
    from orchestrator.containers.swarm.nodes import NodeView

log = structlog.get_logger(__name__)

BACKUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.tar\.gz")
UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
GZIP = b"\x1f\x8b"
PARTIAL_UPLOAD = ".upload-"
"""The beginning of the name of an uploaded backup that is not yet whole; eight hexadecimal digits follow."""
_LOGIN = re.compile(r"//[^/@\s]+@")
"""The name and the password in an address."""
RESTART_SECONDS = 5.0
MAX_UPLOAD_BYTES = 512 * 1024 * 1024
"""The largest backup, in bytes, that a browser may send: it waits in `/tmp`, which with Docker is memory.

A larger one has to be put into `backups/` by hand.
"""


class NoSuchBackup(BadRequest):
    """There is no backup of this name."""

    code = "no_such_backup"
    http_status = 404


class BackupUnderWay(BadRequest):
    """A backup is being made or checked: look again in a moment."""

    code = "backup_under_way"
    http_status = 409


class NoBackup(BadRequest):
    """That is no backup: choose a file that 'andy backup FILE' or this page has made."""

    code = "no_backup"


class NothingStartsAnew(BadRequest):
    """Nothing would start this Andy again: stop him, then use 'andy restore FILE'."""

    code = "nothing_starts_anew"
    http_status = 409


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupFile:
    """A backup in the folder `backups/` of the home."""

    name: str
    made_ms: int
    size: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """A setting as Andy started with it."""

    name: str
    value: str
    source: str
    """The place that names it: a file, `environment` or `command line`; empty for the default."""
    about: str
    changed: str | None
    """The value that the next start would read, where it is another; else None."""

    @property
    def is_own(self) -> bool:
        """Whether the owner has set this setting, now or for the next start."""
        return bool(self.source) or self.changed is not None


async def show(view: View) -> Response:
    """Show the backups, the last restore, the settings, and the machines of the Docker Swarm."""
    home = view.host.home
    return view.render(
        "care.html",
        backups=await asyncio.to_thread(_backups_in, home.root / "backups"),
        last=await asyncio.to_thread(read_record, home),
        settings=await asyncio.to_thread(_settings, view),
        nodes=await _nodes(view),
        versions={"Andy": __version__, "Python": platform.python_version()},
        home=str(home.root),
    )


async def _nodes(view: View) -> list[NodeView] | None:
    """Return the machines of the Docker Swarm; an empty list without a swarm, None if they cannot be read."""
    try:
        return await view.services.containers.nodes()
    except AndyError as error:
        log.warning("console.no_nodes", reason=str(error))
        return None


async def show_doctor(view: View) -> Response:
    """Show the findings of the last run of the doctor, or of the present run so far."""
    doctor = view.console.doctor
    # Read before the findings: a run that ends in between still counts as running, so the page looks again.
    is_running = doctor.is_running
    return view.render(
        "care_doctor.html", doctor=doctor, is_running=is_running, found=await doctor.findings()
    )


async def start_doctor(view: View, _: SentForm) -> Response:
    """Start every check of `andy doctor` in a process of its own, unless a run is under way."""
    is_new = await view.console.doctor.start()
    return view.done("/care/doctor", None if is_new else view.t(".doctor_runs"))


async def make_backup(view: View, _: SentForm) -> Response:
    """Write a backup into `backups/`, named after the local time, and go back to the page.

    Raises `BackupUnderWay` while another backup is made or checked.
    """
    home = view.host.home
    local_now = datetime.fromtimestamp(view.now_ms / 1000, view.console.zone)
    target = home.root / "backups" / f"andy-{local_now:%Y%m%d-%H%M%S}.tar.gz"
    if view.console.backups.locked():
        raise BackupUnderWay

    def write() -> make.BackupResult:
        """Write the backup, without `.env`, and create its folder if there is none. Blocks."""
        target.parent.mkdir(mode=0o700, exist_ok=True)
        _delete_leftover_uploads(target.parent, now_ms=view.now_ms)
        return make.back_up(
            home, target, with_env=False, replaces=False, clock=SystemClock(), say=_ignore_progress
        )

    async with view.console.backups:
        await asyncio.to_thread(write)
    return view.done("/care", view.t(".made", name=target.name))


async def take_upload(view: View, form: SentForm) -> Response:
    """Store an uploaded backup in `backups/`, and redirect to the page that shows what it contains.

    A file that is no backup is refused on the page.
    """
    file = form.file("file")
    # Two bytes tell a wrong file at once. The archive itself is checked on the page that comes next.
    if file is None or file.body.read(2) != GZIP:
        view.error = view.why(NoBackup())
        return await show(view)
    file.body.seek(0)
    folder = view.host.home.root / "backups"
    await asyncio.to_thread(_delete_leftover_uploads, folder, now_ms=view.now_ms)
    name = await asyncio.to_thread(_store_backup, file.body, folder, file.name)
    return view.done(f"/care/backups/{name}/restore", view.t(".uploaded", name=name))


def _store_backup(body: BinaryIO, folder: Path, sent_name: str) -> str:
    """Write an uploaded backup into `folder` under a free name like `sent_name`, and return that name.

    Blocks. Raises `BackupError` if it cannot be written; nothing is left then.
    """
    stem = UNSAFE.sub("-", PurePath(sent_name).name.removesuffix(".tar.gz")).strip("-._")[:80] or "backup"
    # Written under a name that no list shows, and renamed once it is on the disk: what is listed is whole.
    partial = folder / f"{PARTIAL_UPLOAD}{secrets.token_hex(4)}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        # Readable by its owner alone from the first byte on: a backup has every chat.
        with open(partial, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            shutil.copyfileobj(body, file)
            os.fsync(file.fileno())
        # Such as `mine.tar.gz`, then `mine-1.tar.gz`, then `mine-2.tar.gz`.
        endings = itertools.chain([""], (f"-{number}" for number in itertools.count(1)))
        names = (f"{stem}{ending}.tar.gz" for ending in endings)
        name = next(name for name in names if _gives_name(partial, folder / name))
    except OSError as error:
        raise BackupError(f"It cannot be kept ({error.strerror}): make room, then send it again.") from error
    finally:
        with suppress(OSError):  # a read-only disk refuses also to remove what does not exist
            partial.unlink()
    return name


def _delete_leftover_uploads(folder: Path, *, now_ms: int) -> None:
    """Delete the files that uploads of a killed host left in `folder`, not written for `LEFTOVER_MS`. Blocks.

    Each would hold the space of its backup even after that is deleted. What cannot be deleted stays.
    """
    for leftover in folder.glob(f"{PARTIAL_UPLOAD}*"):
        with suppress(OSError):
            is_ours = re.fullmatch(r"[0-9a-f]{8}", leftover.name.removeprefix(PARTIAL_UPLOAD))
            if is_ours and now_ms - leftover.lstat().st_mtime * 1000 > LEFTOVER_MS:
                leftover.unlink()


def _gives_name(partial: Path, target: Path) -> bool:
    """Give a written file its name `target`; return False if that exists. Blocks. Raises `OSError`."""
    try:
        # A link, unlike a rename, never replaces a file that another page has stored meanwhile.
        os.link(partial, target)
    except FileExistsError:
        return False
    except OSError:  # the file system has no hard links
        if os.path.lexists(target):
            return False
        partial.rename(target)
    return True


async def show_restore(view: View) -> Response:
    """Read the whole backup that the address names, and show what a restore of it would do.

    If it cannot be inspected, the page shows the reason instead.

    Raises `NoSuchBackup`, also if it is removed meanwhile; `BackupUnderWay` while another backup is made or
    checked.
    """
    path = await requested_backup(view)
    if view.console.backups.locked():
        raise BackupUnderWay
    home = view.host.home
    reason, inspected = "", None
    async with view.console.backups:
        try:
            inspected = await asyncio.to_thread(inspection.inspect, home, path, clock=SystemClock())
        except AndyError as error:
            reason = str(error)
    size = (await _file_status(view, path)).st_size
    return view.render(
        "care_restore.html",
        name=path.name,
        size=size_text(size),
        reason=reason,
        found=inspected,
        # The counts of groups, messages and so on in the present database, to be compared with the backup's.
        now=await asyncio.to_thread(inspection.census, home.database),
        home=str(home.root),
        state=await _confirmed_state(view, path),
        can_restart=view.services.restart is not None,
    )


async def restore(view: View, form: SentForm) -> Response:
    """Request that the backup which the address names is restored, and restart Andy, who then restores it.

    The request is recorded for the next start, and in the audit.

    Raises:
        NothingStartsAnew: nothing would start Andy again.
        ChangedSince: the file has changed, or a backup was restored, since the page was shown.
    """
    path, host = await requested_backup(view), view.host
    if view.services.restart is None:
        raise NothingStartsAnew
    form.check_unchanged(await _confirmed_state(view, path))
    # Whether the backup has `.env`. If so, the backup of the present state, which is made before the restore,
    # has it, too.
    has_env = form.text("has_env") == "yes"
    record = await asyncio.to_thread(
        restore_request.request_restore, host.home, path.name, has_env=has_env, now_ms=view.now_ms
    )
    await host.database.write(
        lambda tx: audit.append(tx, restore_request.request_event(record, session=view.signed_in.session.id))
    )
    # The restored store knows none of the present containers, so the next start must find none of them.
    view.services.containers.end_all_at_shutdown()
    # Normally the next page restarts the host once it was sent; this is for browsers that do not request it.
    asyncio.get_running_loop().call_later(RESTART_SECONDS, view.services.restart)
    return view.done("/care/restoring")


async def show_restoring(view: View) -> Response:
    """Show that Andy restarts for a restore and, after that, how the restore ended.

    While a restore is requested, this restarts the host once the page was sent.
    """
    record = await asyncio.to_thread(read_record, view.host.home)
    answer = view.render("care_restoring.html", record=record)
    if record is not None and record.state == "asked" and view.services.restart is not None:
        # In the background, which runs after the answer: a restart before would cut it off.
        answer.background = BackgroundTask(_restart_host, view.services.restart)
    return answer


async def _restart_host(restart: Callable[[], None]) -> None:
    """Restart the host. A coroutine, so that Starlette calls it in the event loop and not in a thread."""
    restart()


async def _confirmed_state(view: View, path: Path) -> dict[str, object]:
    """Return the state to which a person agrees when they confirm the restore of the backup at `path`.

    It changes if the file is replaced or another backup is restored: then the confirmation is not valid.
    Raises `NoSuchBackup` if the file was removed meanwhile.
    """
    record = await asyncio.to_thread(read_record, view.host.home)
    file_status = await _file_status(view, path)
    return {
        "file": path.name,
        "bytes": file_status.st_size,
        "changed": file_status.st_mtime_ns,
        "last": record and record.id,
    }


async def _file_status(view: View, path: Path) -> os.stat_result:
    """Return the size and the times of a backup. Raises `NoSuchBackup` if it was removed meanwhile."""
    try:
        return await asyncio.to_thread(path.stat)
    except FileNotFoundError:
        raise NoSuchBackup(view.t(".no_such", name=path.name)) from None


async def download(view: View) -> Response:
    """Send the backup that the address names as a download. Raises `NoSuchBackup`."""
    path = await requested_backup(view)
    return FileResponse(path, media_type="application/gzip", filename=path.name)


async def requested_backup(view: View) -> Path:
    """Return the path of the backup in `backups/` that the address names. Raises `NoSuchBackup`."""
    name = view.path_param("name")
    path = view.host.home.root / "backups" / name
    # The form of the name is checked first, because the system raises an error for one that is too long.
    # A link is refused: it could lead to any file that Andy can read.
    is_known = BACKUP.fullmatch(name) is not None and await asyncio.to_thread(
        lambda: path.is_file() and not path.is_symlink()
    )
    if not is_known:
        raise NoSuchBackup(view.t(".no_such", name=name[:100]))
    return path


def _backups_in(folder: Path) -> list[BackupFile]:
    """Return the backups in `folder`, newest first. Blocks."""
    rows = []
    for path in folder.glob("*.tar.gz"):
        if BACKUP.fullmatch(path.name) is None or path.is_symlink():
            continue
        with suppress(OSError):  # it was removed meanwhile, or cannot be read
            info = path.stat()
            made_ms = info.st_mtime_ns // 1_000_000
            rows.append(BackupFile(name=path.name, made_ms=made_ms, size=size_text(info.st_size)))
    return sorted(rows, key=lambda backup: -backup.made_ms)


def _settings(view: View) -> list[SettingRow]:
    """Return the settings in force, without secrets, with the values of the next start. Blocks."""
    running = view.host.settings
    later = config.as_next_start(running, view.host.home.root)
    present, next_values = running.model_dump(mode="json"), later.model_dump(mode="json")
    return [
        SettingRow(
            name=name.upper(),
            value=shown_setting(name, value, view.services.containers.redactor),
            source=running.origins.get(name, ""),
            about=view.translated(f"settings.{name}", config.Settings.model_fields[name].description or ""),
            changed=None
            if next_values[name] == value
            else shown_setting(name, next_values[name], view.services.containers.redactor),
        )
        for name, value in present.items()
    ]


def shown_setting(name: str, value: Any, redactor: Redactor) -> str:
    """Return the value of a setting as text that a page may show, with secrets masked by `redactor`.

    If it is a command, only the program is shown, because an argument may be a key of any form.
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if name == "andy_speech_command" and (words := shlex.split(text)):
        text = f"{words[0]} …" if len(words) > 1 else words[0]
    return redactor.redact(_LOGIN.sub("//…@", text))


def _ignore_progress(_: str) -> None:
    """Ignore a line of progress: the page is shown only when the backup is made."""


PAGE = Page(
    name="care",
    order=110,
    shows={
        "/care": show,
        "/care/doctor": show_doctor,
        "/care/restoring": show_restoring,
        "/care/backups/{name}": download,
        "/care/backups/{name}/restore": show_restore,
    },
    changes={
        "/care/backups": make_backup,
        "/care/doctor": start_doctor,
        "/care/uploads": take_upload,
        "/care/backups/{name}/restore": restore,
    },
    # The doctor runs in another process, which publishes no events: its part is loaded again each second.
    live={"restoring": ("host.*",), "doctor": ()},
    upload_bytes=MAX_UPLOAD_BYTES,
)
