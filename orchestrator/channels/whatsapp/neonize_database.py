"""Read the library's own database: who is logged in, and which message was sent under which id.

The host's id of a message is called its mark here; it is hidden in a field that WhatsApp calls its secret.

This runs in the host's process and only reads. The library, in the bridge's process, has the file open with
an SQLite of its own; two copies of SQLite in one process would break each other's locks. Every call opens the
file, reads and closes it, and blocks meanwhile.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.channels.whatsapp import addresses
from orchestrator.channels.whatsapp.addresses import Address
from orchestrator.domain.errors import ChannelDown

BUSY_SECONDS = 5.0
"""Seconds to wait for a lock on the database."""
SECRET_BYTES = 32
"""Bytes of a message's secret."""
SECRET_PREFIX = b"andy:"
"""The beginning of every secret that contains a mark of this host."""
MAX_MARK_BYTES = SECRET_BYTES - len(SECRET_PREFIX) - 1
"""Bytes of the longest mark. A NUL follows it in the secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The account that the database is logged in as."""

    address: Address
    device: str
    """The address of the login's device, which differs after each pairing."""
    name: str = ""

    @property
    def number(self) -> str:
        """The phone number with `+`."""
        return f"+{self.address.user}"


class NeonizeDatabase:
    """Reads the account and the sent messages' ids from the library's database."""

    def __init__(self, path: Path) -> None:
        """`path` is the file of the library's database, which need not exist."""
        self._path = path

    def account(self) -> Account | None:
        """Return the account that is logged in, or None if none is. Blocks.

        Raises `ChannelDown` when the database cannot be read.
        """
        rows = self._rows("SELECT jid, push_name FROM whatsmeow_device LIMIT 1")
        for jid, name in rows:
            address = addresses.parse(jid)
            if address is not None:
                return Account(address=address, device=jid, name=name or "")
        return None

    def ids_of(self, mark: str) -> tuple[str, ...]:
        """Return WhatsApp's ids under which the message with this mark (the host's id) may have been sent.

        There may be several, one for each attempt. The library stores an id before it sends, so every id that
        was used is among them. Blocks.

        Raises:
            ChannelDown: the database cannot be read.
            ValueError: `mark` is too long or not ASCII.
        """
        secret_prefix = secret_prefix_of(mark)
        rows = self._rows(
            "SELECT message_id FROM whatsmeow_message_secrets WHERE substr(key, 1, ?) = ? ORDER BY rowid",
            len(secret_prefix),
            secret_prefix,
        )
        return tuple(str(row[0]) for row in rows)

    def mark_of(self, message_id: str) -> str | None:
        """Return the mark (the host's id) of a message that this host sent; None for any other message.

        `message_id` is WhatsApp's id of the message. Blocks.

        Raises:
            ChannelDown: the database cannot be read.
        """
        rows = self._rows(
            """
            SELECT s.key, s.sender_jid, d.jid, coalesce(d.lid, '')
            FROM whatsmeow_message_secrets s JOIN whatsmeow_device d ON d.jid = s.our_jid
            WHERE s.message_id = ?
            """,
            message_id,
        )
        for key, sender, own, own_lid in rows:
            mark = mark_in(bytes(key))
            # Anyone can send a message with such a secret, so the mark is accepted only if the account itself
            # sent the message.
            if mark is not None and _user(sender) in (_user(own), _user(own_lid)):
                return mark
        return None

    def _rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of the query `sql` with its `values`; none if there is no database or table yet.

        Raises `ChannelDown` when the database cannot be read.
        """
        if not self._path.exists():
            return []
        try:
            with self._opened() as connection:
                return connection.execute(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []  # the library has not created its tables yet
            raise ChannelDown(f"The WhatsApp login cannot be read ({error}).") from error
        except sqlite3.DatabaseError as error:
            raise ChannelDown(
                f"The WhatsApp login {self._path} is damaged ({error}): put a backup in its place, or remove"
                " it and pair this host with the phone again."
            ) from error

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection to the database for reading only, which is closed when the block ends."""
        uri = f"{self._path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)) as connection:
            yield connection


def _user(jid: str) -> str:
    """Return the user part of an address, which is a number; `?` for an address that cannot be parsed."""
    address = addresses.parse(jid)
    return address.user if address is not None else "?"


# The host's mark in a message's secret. The library stores the secret together with the id that it chose for
# the message, so the host can find its message by the mark without knowing that id. Pure.


def secret_of(mark: str) -> bytes:
    """Return the 32 bytes that WhatsApp calls a message's secret, with the host's id hidden in them.

    They begin with a fixed prefix and `mark`, the host's id of the message; the rest is random.

    Raises:
        ValueError: the mark is too long, contains a NUL or is not ASCII.
    """
    prefix = secret_prefix_of(mark)
    return prefix + secrets.token_bytes(SECRET_BYTES - len(prefix))


def secret_prefix_of(mark: str) -> bytes:
    """Return the bytes with which the secret of a message begins: a fixed prefix, the mark and a NUL.

    `mark` is the host's id of the message.

    Raises:
        ValueError: the mark is too long, contains a NUL or is not ASCII.
    """
    prefix = SECRET_PREFIX + mark.encode("ascii") + b"\0"
    # The prefix is too long exactly if the mark has more than `MAX_MARK_BYTES`.
    if len(prefix) > SECRET_BYTES or "\0" in mark:
        raise ValueError(f"a mark has at most {MAX_MARK_BYTES} ASCII characters")
    return prefix


def mark_in(secret: bytes) -> str | None:
    """Return the mark (the host's id) in a message's secret, or None when the secret does not contain one."""
    if not secret.startswith(SECRET_PREFIX) or b"\0" not in secret:
        return None
    return secret[len(SECRET_PREFIX) :].split(b"\0")[0].decode("ascii", "replace")
