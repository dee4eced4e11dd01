"""The home: the directory of one Andy, and the paths of everything in it."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.base import installation
from orchestrator.domain.errors import BadRequest, HomeError

HOME_KEY = "ANDY_HOME"
# The paths that the main group's agent can see. It is an allow-list, so that a secret added later is hidden.
SHOWN_TO_MAIN = (
    "groups", "docs", "agent_runner", "orchestrator", "container",
    "README.md", "CHANGELOG.md", "LICENSE", "Makefile", "pyproject.toml",
)  # fmt: skip


def home_directory(argument: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the absolute path of Andy's home, which has the folders `groups`, `data` and `store`.

    It is `argument`, the option of a command; else `ANDY_HOME` of the environment; else the default home.

    Raises:
        BadRequest: it begins with `~` and the name of no user, its links lead in a circle, or the current
            directory was removed.
    """
    named = argument or (Path(environment[HOME_KEY]) if environment.get(HOME_KEY) else None)
    try:
        # `Path.resolve` differs between versions of Python where links lead in a circle.
        home = Path(os.path.realpath(expanded(named or default_home(environment))))
    except FileNotFoundError as error:
        raise BadRequest(
            "The directory that this terminal is in has been removed: change to another one with 'cd'."
        ) from error
    try:
        home.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BadRequest(
                f"{home} is behind links that lead in a circle: remove one of them, or name another home."
            ) from error
    return home


def expanded(path: Path) -> Path:
    """Return a path that a person typed, with the home directory of a user for a `~` at its beginning.

    A shell does the same, but leaves a `~` that it does not know or that follows a `=`.

    Raises:
        BadRequest: there is no such user.
    """
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise BadRequest(
            f"{path} begins with the home directory of a user who is not known: write the whole path."
        ) from error


def default_home(environment: Mapping[str, str]) -> Path:
    """Return the home when none is named: the current directory for an Andy that runs from a clone.

    An installed Andy uses the current directory if that is a home or a clone already. Otherwise it uses
    `$XDG_DATA_HOME/andy`, by default `~/.local/share/andy`.
    """
    here = Path.cwd()
    marker_files = ("store/messages.db", installation.DOCKERFILE)
    if installation.clone() is not None or any((here / marker).is_file() for marker in marker_files):
        return here
    data = environment.get("XDG_DATA_HOME") or ""
    # The XDG specification demands that a relative path is ignored.
    return (Path(data) if data.startswith("/") else Path.home() / ".local" / "share") / "andy"


UNDO = Path("data/undo")
"""Directory of the snapshots of groups' files, below the home."""


@dataclass(frozen=True, slots=True)
class Home:
    """The paths of one home: `groups/ data/ store/` under one root."""

    root: Path

    @property
    def database(self) -> Path:
        """The SQLite database."""
        return self.root / "store" / "messages.db"

    @property
    def groups(self) -> Path:
        """One directory per group, with the files that its agent sees."""
        return self.root / "groups"

    @property
    def data(self) -> Path:
        """The directory of everything that is neither a group's file nor in the database."""
        return self.root / "data"

    @property
    def ipc(self) -> Path:
        """One directory per group, in which its agent leaves requests to the host."""
        return self.data / "ipc"

    @property
    def contexts(self) -> Path:
        """One directory per group, with the context of its conversation. No container sees it."""
        return self.data / "context"

    @property
    def undo(self) -> Path:
        """One directory per group, with its files as they were before each turn. No container sees it."""
        return self.root / UNDO

    @property
    def archive(self) -> Path:
        """One file per year, with rows that were removed from the database."""
        return self.data / "archive"

    @property
    def logs(self) -> Path:
        """One directory per group, one file per run; readable by the owner alone, and in no container."""
        return self.data / "logs"

    @property
    def host_log(self) -> Path:
        """The host's own log: JSON lines."""
        return self.logs / "andy.log"

    @property
    def token_file(self) -> Path:
        """The file with the bearer token of the HTTP API."""
        return self.data / "token"

    @property
    def address_file(self) -> Path:
        """The file with the address of the running orchestrator: `http://127.0.0.1:8700`."""
        return self.data / "address"

    @property
    def zone_file(self) -> Path:
        """The file with the time zone of the running orchestrator: `Europe/Berlin`."""
        return self.data / "zone"

    @property
    def starting_file(self) -> Path:
        """The file that names the starting process and its start; it exists until that process listens."""
        return self.data / "starting"

    @property
    def announcements(self) -> Path:
        """The directory in which commands announce their changes to the running host."""
        return self.data / "announcements"

    @property
    def restore_file(self) -> Path:
        """The file with the state of the newest restore: requested, under way, or ended."""
        return self.data / "restore.json"

    @property
    def lock_file(self) -> Path:
        """The file that the running orchestrator has locked."""
        return self.data / "orchestrator.lock"

    def make(self) -> None:
        """Create the folders that are missing. Raises `HomeError` if the home cannot be written.

        Only this user can list `data` and the folder of the database.
        """
        try:
            for folder in (self.groups, self.data, self.ipc, self.database.parent):
                folder.mkdir(parents=True, exist_ok=True)
            # Others may pass through to a path that they know, as containers' users must, but list nothing.
            for folder in (self.data, self.database.parent):
                folder.chmod(0o711)
            # Only a trial write is sure: permissions alone do not reveal a read-only or full disk.
            probe = self.data / f".probe-{secrets.token_hex(4)}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise HomeError(
                f"The home {self.root} cannot be written ({error.strerror}):"
                " choose another with ANDY_HOME, or fix its permissions."
            ) from error

    def token(self) -> str:
        """Return the bearer token of the HTTP API, created at first use and readable by the owner alone."""
        return self._read_or_create(self.token_file, secrets.token_urlsafe(32))

    def install_id(self) -> str:
        """Return the id of this installation, which marks its containers; it is created at first use."""
        # An id and not a name, so that the containers of another installation are never taken for these.
        return self._read_or_create(self.data / "install", secrets.token_hex(6))

    def _read_or_create(self, path: Path, fresh: str) -> str:
        """Return the text of a file without blanks around it.

        A file that is missing or empty is written with the text `fresh`, readable by its owner only.

        Raises:
            HomeError: it is a folder, or has a blank or anything else than printable ASCII, as after a loss
                of power.
        """
        if path.is_dir():
            raise HomeError(f"{path} is a folder: remove it, and 'andy up' makes a file there.")
        stored = path.read_bytes().strip() if path.exists() else b""
        if stored:
            return _checked_text(path, stored)
        path.parent.mkdir(parents=True, exist_ok=True)  # a command may come before the first start
        # Two processes may create it at the same time, and both need the text that is stored. So the file
        # itself is locked, and written in place: a renamed file would have another lock.
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed
            if stored := file.read().strip():
                return _checked_text(path, stored)
            os.fchmod(file.fileno(), 0o600)
            file.seek(0)
            file.write(fresh.encode())
        return fresh


def _checked_text(path: Path, content: bytes) -> str:
    """Return the content of the file at `path`, an id or a token, as text.

    Raises `HomeError` if it has a blank, or anything else than printable ASCII.
    """
    if not all(0x21 <= byte <= 0x7E for byte in content):
        raise HomeError(f"{path} is damaged: remove it, and 'andy up' makes a new one.")
    return content.decode("ascii")
