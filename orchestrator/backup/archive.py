"""Define the form of a backup: a `.tar.gz` with a manifest first and a table of contents last."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import BaseModel, ConfigDict

from orchestrator.base.clock import Clock
from orchestrator.base.installation import COMPOSE_HOME
from orchestrator.base.tables import counted, size_text
from orchestrator.groups.memory_templates import SHIPPED
from orchestrator.home.directory import Home

FORMAT: Literal[1] = 1
MANIFEST, CONTENTS = "manifest.json", "contents.json"
DATABASE = "store/messages.db"
OF_AGENTS = ("groups", "data/sessions")
FOLDERS = (*OF_AGENTS, "data/archive", "data/context", "data/outgoing")
SETTINGS, SECRETS = "andy.toml", ".env"
FILES = (SETTINGS, SHIPPED.as_posix())
"""The second records which prompt files the owner has not changed: those are updated at a start."""
LEFT_OUT = frozenset(
    {
        "address",
        "announcements",
        "channels",
        "egress-port",
        "env",
        "install",
        "ipc",
        "logs",
        "mcp-logins",
        "mcp-session-key",
        "orchestrator.lock",
        "zone",  # written at each start
        "process",
        "project",
        "starting",
        "proxy-port",
        "restore.json",
        "skills",
        "token",
        "undo",
        "whatsapp",
    }
)
"""Parts of `data/` that no backup has: they belong to one run or one machine, or are made again."""
LEFTOVER_MS = 86_400_000
"""Milliseconds without a write after which a temporary folder or file is one of a killed process."""
SCRATCH_NAME = r"[a-z0-9_]{8}"
"""A pattern of the ends of names that `tempfile` makes."""
SCRATCH_ENTRIES = frozenset({"home", "messages.db", "messages.db-journal", "outgoing", "whole"})
"""The entries of the temporary folders of `make.py` and `inspection.py`."""
PROGRESS_SECONDS = 2.0
"""Seconds between two lines of progress, and before the first."""
MOST_FOLDERS, MOST_BYTES = 100, 2000
"""The largest depth and length of a path in a backup."""


class Manifest(BaseModel):
    """The first member of a backup: it describes the backup, so that an unsuitable one is refused early."""

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    andy: str
    store_version: int
    created_ms: int
    has_env: bool


class BackupContents(BaseModel):
    """The last member of a backup: the number of its files and links, and the bytes of its files.

    An archive without this member, or with other numbers, is incomplete.
    """

    model_config = ConfigDict(frozen=True)

    files: int = 0
    links: int = 0
    bytes: int = 0

    def with_file(self, size: int) -> BackupContents:
        """Return the sums with one more file of `size` bytes."""
        return self.model_copy(update={"files": self.files + 1, "bytes": self.bytes + size})

    def with_link(self) -> BackupContents:
        """Return the sums with one more symbolic link."""
        return self.model_copy(update={"links": self.links + 1})


def may_hold(name: str) -> bool:
    """Return whether an archive member of this name may be in a backup. Pure.

    The name must be a relative path without `..`, of a known file or of anything in a known folder.
    """
    parts = name.split("/")
    if any(part in {"", ".", ".."} for part in parts) or "\0" in name or is_too_deep(name):
        return False
    is_known = name in {MANIFEST, CONTENTS, DATABASE, SECRETS, *FILES, *FOLDERS}
    return is_known or any(name.startswith(f"{folder}/") for folder in FOLDERS)


def is_too_deep(name: str) -> bool:
    """Return whether a path is so deep or long that unpacking it may fail; only programs make such paths."""
    return name.count("/") > MOST_FOLDERS or len(os.fsencode(name)) > MOST_BYTES


def turns_back(target: str) -> bool:
    """Return whether a link's target has `..` after a name, as in `a/../b`.

    Such a target may lead anywhere, as `a` may be a link itself, for which `..` is another folder.
    """
    steps = [part for part in target.split("/") if part not in {"", "."}]
    return ".." in dropwhile("..".__eq__, steps)


def stays_inside(name: str, target: str) -> bool:
    """Return whether a symbolic link leads to a place inside the folder of its group. Pure.

    `name` is the link's own path in the backup, such as `groups/family/notes/today`. `target` is the path
    that the link contains. An absolute target leads outside, and so does one that leaves the folder on its
    way and comes back. The names in it count as folders: see `turns_back` for a target where one is a link.
    """
    top = next((folder for folder in FOLDERS if name.startswith(f"{folder}/")), None)
    if top is None or target.startswith("/") or "\0" in target:
        return False
    # How deep the link is below its group's folder: the parts without the group's and the link's own name.
    # For `family/notes/today` that is 1.
    depth = len(PurePosixPath(name).relative_to(top).parts) - 2
    # The empty part checks the depth of the link itself: one outside of any group's folder is refused.
    for part in ("", *target.split("/")):
        depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
        if depth < 0:
            return False
    return True


def writable_place(home: Home, target: Path, error: Exception) -> Path | None:
    """Return where Compose's container can write instead of `target`; writing `target` has raised `error`.

    None unless Andy runs in that container, and the error says that the place is read-only or not permitted.
    """
    if str(home.root) != COMPOSE_HOME or not isinstance(error, OSError):
        return None
    is_out_of_reach = error.errno in (errno.EROFS, errno.EACCES)
    return Path(COMPOSE_HOME, "backups", target.name) if is_out_of_reach else None


class BackupProgress:
    """Reports progress of long work every `PROGRESS_SECONDS`."""

    def __init__(self, say: Callable[[str], None], *, clock: Clock) -> None:
        """`say` shows one line of text to a person."""
        self._say = say
        self._clock = clock
        self._next_ms = clock.steady_ms() + PROGRESS_SECONDS * 1000

    def report_if_due(self, contents: BackupContents) -> None:
        """Show the files and bytes done so far, unless the last report was under `PROGRESS_SECONDS` ago."""
        now_ms = self._clock.steady_ms()
        if now_ms >= self._next_ms:
            self._next_ms = now_ms + PROGRESS_SECONDS * 1000
            self._say(f"… {counted(contents.files, 'file')}, {size_text(contents.bytes)}")


def delete_leftovers(folder: Path, prefix: str, *, now_ms: int) -> None:
    """Delete the temporary folders in `folder` that a killed process left, with all that is in them. Blocks.

    Their names begin with `prefix`, end as `tempfile` ends names, and they have no other entries than
    `SCRATCH_ENTRIES`: the owner may have folders with similar names. A folder counts as left if it belongs to
    this user, and neither it nor an entry of it was written for `LEFTOVER_MS`. What cannot be read or deleted
    stays.
    """
    for leftover in folder.glob(f"{prefix}*"):
        if not re.fullmatch(SCRATCH_NAME, leftover.name.removeprefix(prefix)):
            continue
        with suppress(OSError):
            status = leftover.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            entries = list(leftover.iterdir())
            written_s = max([status.st_mtime, *(entry.lstat().st_mtime for entry in entries)])
            is_ours = SCRATCH_ENTRIES.issuperset(entry.name for entry in entries)
            if is_ours and now_ms - written_s * 1000 > LEFTOVER_MS:
                shutil.rmtree(leftover)
