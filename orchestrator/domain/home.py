"""The home: the directory of one Andy, and where everything in it is."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent_runner.wire import files
from orchestrator.base import installation
from orchestrator.domain.errors import HomeError

if TYPE_CHECKING:
    from filelock import FileLock

HOME_KEY = "ANDY_HOME"
# What main sees of the home. A list of what may be seen, so that a secret put there tomorrow is not.
SHOWN_TO_MAIN = (
    "groups", "docs", "agent_runner", "orchestrator", "container",
    "README.md", "CHANGELOG.md", "LICENSE", "Makefile", "pyproject.toml",
)  # fmt: skip


def home_directory(given: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return where `groups/ data/ store/` are: the argument, `ANDY_HOME`, or what `default_home` says."""
    named = given or (Path(environment[HOME_KEY]) if environment.get(HOME_KEY) else None)
    return (named or default_home(environment)).expanduser().resolve()


def default_home(environment: Mapping[str, str]) -> Path:
    """Return the home where none is named: the current directory for an Andy that runs from a clone.

    An installed Andy uses the current directory where that is a home already, or a clone; else the place
    that the XDG rules give: `$XDG_DATA_HOME/andy`, which is `~/.local/share/andy` where that is not set.
    """
    here = Path.cwd()
    marks = ("store/messages.db", installation.DOCKERFILE)
    if installation.clone() is not None or any((here / mark).is_file() for mark in marks):
        return here
    data = environment.get("XDG_DATA_HOME") or ""
    return (Path(data) if data.startswith("/") else Path.home() / ".local" / "share") / "andy"


UNDO = Path("data/undo")
"""The place of the snapshots of groups' files in a home."""


@dataclass(frozen=True, slots=True)
class Home:
    """The paths of one home: `groups/ data/ store/` under one root."""

    root: Path

    @property
    def database(self) -> Path:
        return self.root / "store" / "messages.db"

    @property
    def groups(self) -> Path:
        return self.root / "groups"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def ipc(self) -> Path:
        return self.data / "ipc"

    @property
    def contexts(self) -> Path:
        """One directory a group: what its conversation was about. In no container."""
        return self.data / "context"

    @property
    def undo(self) -> Path:
        """One directory a group: what its files were before each turn. In no container and no backup."""
        return self.root / UNDO

    @property
    def archive(self) -> Path:
        """One file a year: rows that left the database."""
        return self.data / "archive"

    @property
    def logs(self) -> Path:
        """One directory a group, one file a run; for the owner alone, and in no container."""
        return self.data / "logs"

    @property
    def host_log(self) -> Path:
        """The host's own log: JSON lines."""
        return self.logs / "andy.log"

    @property
    def token_file(self) -> Path:
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
        """Names the process that is starting and since when; it exists until that process listens."""
        return self.data / "starting"

    @property
    def restore_file(self) -> Path:
        """The file with the state of the newest restore: requested, under way, or ended."""
        return self.data / "restore.json"

    @property
    def lock_file(self) -> Path:
        return self.data / "orchestrator.lock"

    def make(self) -> None:
        """Create what is missing. Raises `HomeError` when the home cannot be written."""
        try:
            for folder in (self.groups, self.data, self.ipc, self.database.parent):
                folder.mkdir(parents=True, exist_ok=True)
            # What lies in these is for the owner alone.
            for folder in (self.data, self.database.parent):
                folder.chmod(0o711)
            # Trying is the only sure answer: rights alone say nothing of a read-only or full disk.
            probe = self.data / f".probe-{secrets.token_hex(4)}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise HomeError(
                f"The home {self.root} cannot be written ({error.strerror}):"
                " choose another with ANDY_HOME, or fix its permissions."
            ) from error

    @contextmanager
    def starting(self, *, now_ms: int) -> Iterator[Callable[[], None]]:
        """Show others that this process is starting, until the callable that is yielded is called."""
        # The mark of another process that is starting is neither replaced nor removed.
        is_first = self.starting_since_ms() is None

        def end() -> None:
            if is_first:
                self.starting_file.unlink(missing_ok=True)

        if is_first:
            files.write_whole(self.starting_file, f"{os.getpid()} {now_ms}")
        try:
            yield end
        finally:
            end()

    def starting_since_ms(self) -> int | None:
        """Return since when a process has been starting, in epoch milliseconds; None when none is."""
        try:
            pid, since_ms = map(int, self.starting_file.read_text(encoding="utf-8").split())
        except (OSError, ValueError):
            return None
        try:
            # The file outlives a process that was killed, so the process itself is asked for.
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:  # it lives, as another user
            pass
        return since_ms

    def lock(self) -> FileLock:
        """Take the lock of the home for this process; the caller releases it.

        Raises:
            HomeError: an orchestrator runs on it.
        """
        from filelock import FileLock, Timeout

        # The system frees it when the process dies, however that happens; a file alone would stay.
        lock = FileLock(self.lock_file)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise HomeError(
                f"Andy is running on {self.root} already: stop it first, or use another ANDY_HOME."
            ) from error
        return lock

    def token(self) -> str:
        """Return the bearer token of the HTTP API, made at first use and readable by the owner alone."""
        return self._mark(self.token_file, secrets.token_urlsafe(32))

    def install_id(self) -> str:
        """Return the id by which this install's containers are told from another's, made at first use."""
        return self._mark(self.data / "install", secrets.token_hex(6))

    def _mark(self, path: Path, fresh: str) -> str:
        found = path.read_text(encoding="utf-8").strip() if path.exists() else ""
        if not found:
            path.parent.mkdir(parents=True, exist_ok=True)  # a command may come before the first start
            files.write_whole(path, fresh, mode=0o600)
        return found or fresh
