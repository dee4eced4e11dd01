"""Checks of what is on this machine: the home, its store, the disk, the clock, the owner's lists."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path

from orchestrator.cli.finding import DoctorFinding, bad, note, ok
from orchestrator.containers import allowlist
from orchestrator.domain.home import Home
from orchestrator.domain.settings import Settings
from orchestrator.groups import owner
from orchestrator.inbound import senders
from orchestrator.store import database

TIGHT_BYTES, LOW_BYTES = 200 * 1024**2, 2 * 1024**3
AHEAD_MS = 5 * 60_000
FIRST_YEAR = 2026
FOR_OTHERS = 0o077


async def permissions(home: Home) -> DoctorFinding:
    return await asyncio.to_thread(_permissions, home)


def _permissions(home: Home) -> DoctorFinding:
    """Folders that can be written, secrets that nobody else can read."""
    for folder in (home.groups, home.data, home.database.parent):
        if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
            return bad(
                "permissions",
                f"{folder} cannot be written by this user",
                mend=f"sudo chown -R {os.getuid()} {folder}",
            )
    session = home.root / "store" / "whatsapp.db"
    secrets = (home.token_file, home.root / ".env", home.database, session)
    open_ones = [path for path in secrets if path.exists() and path.stat().st_mode & FOR_OTHERS]
    if open_ones:
        named = " ".join(str(path) for path in open_ones)
        is_own = all(path.stat().st_uid == os.geteuid() for path in open_ones)
        give = "" if is_own else f"sudo chown {os.geteuid()} {named} && sudo "
        return bad("permissions", f"others may read {named}", mend=f"{give}chmod 600 {named}")
    return ok("permissions", "folders can be written, secrets are yours alone")


async def store(home: Home) -> DoctorFinding:
    return await asyncio.to_thread(_store, home.database)


def _store(path: Path) -> DoctorFinding:
    known = len(database.migrations())
    if not path.exists():
        return note("store", f"there is none yet; the first start makes it, version {known}")
    database.check(path)
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if found > known:
        return bad(
            "store",
            f"version {found}, written by a newer Andy; this one knows {known}",
            mend="upgrade Andy, or restore a backup of this version",
        )
    if found < known:
        return note("store", f"sound, version {found}; the next start copies it and leads it to {known}")
    return ok("store", f"sound, version {found}, {path.stat().st_size / 1e6:.1f} MB")


async def disk(home: Home) -> DoctorFinding:
    free = (await asyncio.to_thread(shutil.disk_usage, _existing(home.root))).free
    text = f"{free / 1e9:.1f} GB free at {home.root}"
    if free < TIGHT_BYTES:
        return bad("disk", text, mend="make room: messages are refused when it is full")
    return note("disk", text, mend="make room soon") if free < LOW_BYTES else ok("disk", text)


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


async def clock(home: Home, settings: Settings) -> DoctorFinding:
    """Whether it can be right, by what is in the store; and what the owner's clock would show."""
    now = datetime.now(settings.zone)
    newest_ms = await asyncio.to_thread(_newest_ms, home.database)
    ahead_ms = newest_ms - int(time.time() * 1000)
    if now.year < FIRST_YEAR or ahead_ms > AHEAD_MS:
        behind = f", {ahead_ms // 60_000} minutes before the newest message" if ahead_ms > AHEAD_MS else ""
        return bad(
            "clock", f"it is {now:%Y-%m-%d %H:%M}{behind}", mend="set this machine's clock: timedatectl"
        )
    text = f"{now:%Y-%m-%d %H:%M} in {settings.tz}"
    if settings.tz in ("UTC", "Etc/UTC"):
        return note("clock", text, mend="reminders are in UTC: put TZ=Europe/Berlin or the like into .env")
    return ok("clock", text)


def _newest_ms(path: Path) -> int:
    if not path.exists():
        return 0
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            newest = connection.execute("SELECT coalesce(max(received_ms), 0) FROM messages").fetchone()
    except sqlite3.Error:  # what ails the store, its own check tells
        return 0
    return int(newest[0])


async def lists() -> DoctorFinding:
    return await asyncio.to_thread(_lists)


def _lists() -> DoctorFinding:
    """The owner's files: a broken one shuts out, which is safe and unexpected."""
    folder = owner.owner_directory()
    mounts = owner.OwnerFile(folder / allowlist.FILE, allowlist.MountRules).read()
    people = owner.OwnerFile(folder / senders.FILE, senders.SenderRules).read()
    for found in (mounts, people):
        if found.trouble:
            return bad("lists", found.trouble, mend="correct the file, or remove it")
    roots = mounts.rules.allowed_roots if mounts.rules else ()
    missing = [root.path for root in roots if not _is_there(Path(root.path).expanduser())]
    if missing:
        return note("lists", f"{', '.join(missing)} of {allowlist.FILE} is not there", mend="remove the line")
    told = [name for name, found in ((allowlist.FILE, mounts), (senders.FILE, people)) if found.rules]
    return ok("lists", f"{' and '.join(told) or 'none'} in {folder}")


def _is_there(path: Path) -> bool:
    try:
        return stat.S_IFMT(path.stat().st_mode) != 0
    except OSError:
        return False
