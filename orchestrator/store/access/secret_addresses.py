"""`secret_addresses`: addresses for programs: calendars to read, and hooks that bring in a text.

An address contains a secret, of which only the hash is stored: a copy of the database gives no access.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Folder
from orchestrator.store.database import Tx, returned
from orchestrator.store.row_mapper import RowMapper

MINUTE_MS, DAY_MS = 60_000, 86_400_000


class AddressKind(StrEnum):
    """The only purpose that an address serves."""

    CALENDAR = "calendar"
    HOOK = "hook"


class UnknownAddress(BadRequest):
    """No secret address of this kind has the id or the secret that somebody named."""

    http_status = 404

    def __init__(self, kind: AddressKind, text: str) -> None:
        super().__init__(text)
        self.code = f"unknown_{kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretAddress:
    """One address that was created for somebody."""

    id: int
    kind: AddressKind
    folder: Folder
    name: str
    """The device, person or program that it was created for; may be empty for a calendar."""
    is_request: bool
    """Whether a hook's text asks the group's agent for something."""
    created_ms: int
    used_ms: int | None
    """When it was last used, in epoch milliseconds; None if never."""
    uses: int
    minute_uses: int
    """Uses in the minute of the last use."""
    day_uses: int
    """Uses in the day (UTC) of the last use."""


_MAPPER = RowMapper(SecretAddress, "secret_addresses", {"folder": "group_folder"}, unread=("secret_hash",))


async def add(
    tx: Tx, kind: AddressKind, folder: Folder, *, name: str, is_request: bool, secret_hash: str, now_ms: int
) -> SecretAddress:
    """Store a new address of a group, by the hash of its secret, and return it.

    `name` is the device, person or program that it is for. With `is_request`, a text that arrives at a hook
    asks the group's agent; else it is only stored as a message.
    """
    cursor = await tx.execute(
        """
        INSERT INTO secret_addresses (kind, group_folder, name, is_request, secret_hash, created_ms)
        VALUES (?, ?, ?, ?, ?, ?) RETURNING *
        """,
        (kind, folder, name, is_request, secret_hash, now_ms),
    )
    return _MAPPER.read(await returned(cursor))


async def every(tx: Tx, kind: AddressKind, folder: str | None = None) -> list[SecretAddress]:
    """Return the addresses of a kind, oldest first, of the group `folder` or of all groups if it is None."""
    return await _MAPPER.fetch_all(
        tx,
        "SELECT * FROM secret_addresses WHERE kind = ?1 AND (?2 IS NULL OR group_folder = ?2) ORDER BY id",
        (kind, folder),
    )


async def by_secret(tx: Tx, kind: AddressKind, secret_hash: str) -> SecretAddress | None:
    """Return the address of a kind whose secret has this hash, or None."""
    return await _MAPPER.fetch_one(
        tx, "SELECT * FROM secret_addresses WHERE secret_hash = ? AND kind = ?", (secret_hash, kind)
    )


async def note_use(tx: Tx, address_id: int, *, now_ms: int) -> None:
    """Count a use of an address, in total and in the current minute and day (UTC)."""
    # Whole minutes and days since 1970: the counter starts again when the last use was in an earlier one.
    await tx.execute(
        f"""
        UPDATE secret_addresses SET uses = uses + 1, used_ms = :now,
            minute_uses =
                CASE WHEN used_ms / {MINUTE_MS} = :now / {MINUTE_MS} THEN minute_uses ELSE 0 END + 1,
            day_uses = CASE WHEN used_ms / {DAY_MS} = :now / {DAY_MS} THEN day_uses ELSE 0 END + 1
        WHERE id = :id
        """,  # noqa: S608 - only numbers
        {"id": address_id, "now": now_ms},
    )


async def remove_of(tx: Tx, folder: Folder) -> None:
    """Delete the secret addresses of an unregistered group, since another group may get its folder."""
    await tx.execute("DELETE FROM secret_addresses WHERE group_folder = ?", (folder,))


async def remove(tx: Tx, kind: AddressKind, address_id: int) -> SecretAddress | None:
    """Delete the address with this id and return it; None if there is none of this kind."""
    return await _MAPPER.fetch_one(
        tx, "DELETE FROM secret_addresses WHERE id = ? AND kind = ? RETURNING *", (address_id, kind)
    )
