"""How WhatsApp is: kept in a file, so that it can be told with Andy down."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from agent_runner.wire.files import write_whole


class ChannelStatus(BaseModel):
    """What the owner may ask of the connection. Times are epoch milliseconds, UTC."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    state: str = "unpaired"
    account: str = ""
    connected_since_ms: int | None = None
    last_receipt_ms: int | None = None
    """When WhatsApp last proved that a message arrived or was read."""
    last_message_ms: int | None = None
    last_error: str = ""
    last_disconnect: str = ""
    last_disconnect_ms: int | None = None
    next_try_ms: int | None = None
    advice: str = ""
    last_pairing: str = ""
    """Why the last try to pair failed; empty once one has not."""
    last_pairing_ms: int | None = None

    def after_pairing(self, *, failure: str, now_ms: int) -> ChannelStatus:
        """What is kept once a try to pair has ended; `failure` is empty when it did not fail."""
        at_ms = now_ms if failure else None
        return self.model_copy(update={"last_pairing": failure, "last_pairing_ms": at_ms})


def read(path: Path) -> ChannelStatus:
    """The kept condition; an empty one when there is none or it is damaged. Blocks."""
    try:
        return ChannelStatus.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError, ValueError):
        return ChannelStatus()


def write(path: Path, condition: ChannelStatus) -> None:
    """Keep it. Blocks. Raises `OSError`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, condition.model_dump_json(indent=2) + "\n", mode=0o600)
