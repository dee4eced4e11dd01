"""Store the state of a channel's connection in a file, so that `andy` can show it while the host is down."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from agent_runner.wire.files import write_whole

log = structlog.get_logger(__name__)


class ChannelStatus(BaseModel):
    """The status of a channel's connection, as the owner sees it. Times are epoch milliseconds, UTC."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    state: str = "unpaired"
    account: str = ""
    connected_since_ms: int | None = None
    """Since when it is connected; None if it is not."""
    last_receipt_ms: int | None = None
    """The time when the messenger last proved that a message arrived or was read."""
    last_message_ms: int | None = None
    """When the last message came; None before the first."""
    last_error: str = ""
    last_disconnect: str = ""
    last_disconnect_ms: int | None = None
    """When the connection broke last; None if it never did."""
    next_try_ms: int | None = None
    """When it connects again; None while it is connected, or if it does not try."""
    advice: str = ""
    last_pairing: str = ""
    """The reason why the last attempt to pair failed; empty after a successful one."""
    last_pairing_ms: int | None = None
    """When the last attempt to pair failed; None after a successful one, and before the first."""

    def after_pairing(self, *, failure: str, now_ms: int) -> ChannelStatus:
        """Return the status after an attempt to pair; `failure` is why it failed, or empty."""
        at_ms = now_ms if failure else None
        return self.model_copy(update={"last_pairing": failure, "last_pairing_ms": at_ms})


class StatusFile:
    """Holds the current status, and writes it to its file with each change that outlives the host."""

    def __init__(self, path: Path) -> None:
        """`path` is the file of the status, which need not exist; `load` reads it."""
        self._path = path
        self.current = ChannelStatus()

    async def load(self) -> None:
        """Load the parts of an earlier host's status that still apply: a logout, and past events."""
        stored = await asyncio.to_thread(read, self._path)
        # Any other state belonged to a process that is gone.
        state = "logged_out" if stored.state == "logged_out" else "starting"
        self.current = stored.model_copy(update={"state": state, "connected_since_ms": None})

    async def record(self, **changes: Any) -> None:
        """Set fields of the status and write it to the file. A failed write is only logged."""
        self.change(**changes)
        try:
            await asyncio.to_thread(write, self._path, self.current)
        except OSError as error:
            log.warning("channel.status_not_written", path=str(self._path), reason=error.strerror)

    def change(self, **changes: Any) -> None:
        """Set fields of the status in memory only; the file is not written for each message."""
        self.current = self.current.model_copy(update=changes)

    def as_data(self) -> dict[str, Any]:
        """Return the state and those fields that differ from their defaults, for `/status`."""
        set_fields = self.current.model_dump(exclude_defaults=True, exclude={"state"})
        return set_fields | {"state": self.current.state}


def read(path: Path) -> ChannelStatus:
    """Return the status in the file, or an empty one when there is none or it is damaged. Blocks."""
    try:
        return ChannelStatus.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError, ValueError):
        return ChannelStatus()


def write(path: Path, status: ChannelStatus) -> None:
    """Write the status atomically. Blocks. Raises `OSError`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, status.model_dump_json(indent=2) + "\n", mode=0o600)
