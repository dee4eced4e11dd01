"""Store what the bridge must remember across restarts, in a small database of its own.

These are the messages that the host has not acknowledged yet, the ids under which messages were sent,
receipts, the questions and options of polls, and the times after which chats delete their messages.

Its calls block, which is acceptable because the bridge's process has nothing else to do meanwhile.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.channels.whatsapp import protocol
from orchestrator.channels.whatsapp.protocol import BadBridgeLine, BridgeMessage, Delivered

log = logging.getLogger(__name__)

MAX_ROWS = 5_000
"""Rows that the tables of sent marks, receipts and polls each retain: the newest."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS inbox (n INTEGER PRIMARY KEY AUTOINCREMENT, message TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS reported (n INTEGER PRIMARY KEY) STRICT;
CREATE TABLE IF NOT EXISTS sent (n INTEGER PRIMARY KEY, mark TEXT NOT NULL UNIQUE, id TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS receipts (n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE IF NOT EXISTS timers (chat TEXT PRIMARY KEY, seconds INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS polls (n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, body TEXT NOT NULL) STRICT;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessages:
    """The messages that the host has not acknowledged."""

    readable: list[Delivered]
    """The messages that this version can read, oldest first."""
    set_aside: tuple[int, ...]
    """The numbers of the messages that it cannot read and of which the owner does not know yet.

    A row may be damaged, or of a later version that was tried before this one. It stays in the database, so
    that a version that can read it delivers it.
    """


class Spool:
    """The database. A process creates one object. When a method returns, its changes are on disk."""

    def __init__(self, path: Path) -> None:
        """Open the database at `path`, created if missing, which only its owner can read."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        path.chmod(0o600)
        # Without secure_delete, texts that were removed would stay readable in free pages of the file.
        self._connection.executescript(
            f"PRAGMA secure_delete = ON; PRAGMA synchronous = FULL; PRAGMA busy_timeout = 5000; {_SCHEMA}"
        )

    def add(self, message: BridgeMessage) -> Delivered:
        """Store a message until the host has acknowledged it, and return it with its number."""
        cursor = self._connection.execute(
            "INSERT INTO inbox (message) VALUES (?)", (protocol.json_of(message),)
        )
        return Delivered(n=int(cursor.lastrowid or 0), message=message)

    def remove(self, number: int) -> None:
        """Remove the message with this number, which the host has acknowledged."""
        self._connection.execute("DELETE FROM inbox WHERE n = ?", (number,))

    def unacknowledged(self) -> StoredMessages:
        """Return the messages that the host has not acknowledged.

        Those that cannot be read are retained. Of these only the numbers are returned, if the owner was not
        notified of them before.
        """
        # As bytes: one text that is not UTF-8 would otherwise end the reading of all of them.
        rows = self._connection.execute("SELECT n, CAST(message AS BLOB) FROM inbox ORDER BY n").fetchall()
        reported = {number for (number,) in self._connection.execute("SELECT n FROM reported")}
        readable: list[Delivered] = []
        set_aside: list[int] = []
        for number, raw in rows:
            try:
                readable.append(Delivered(n=number, message=protocol.message_of(raw.decode())))
            except (BadBridgeLine, UnicodeDecodeError) as error:
                log.warning("the stored message %d cannot be read and is set aside: %s", number, error)
                if number not in reported:
                    set_aside.append(number)
        return StoredMessages(readable=readable, set_aside=tuple(set_aside))

    def note_reported(self, numbers: Iterable[int]) -> None:
        """Store that the owner is notified of the messages with these numbers, which cannot be read."""
        self._connection.executemany(
            "INSERT INTO reported (n) VALUES (?) ON CONFLICT (n) DO NOTHING",
            [(number,) for number in numbers],
        )

    def note_sent(self, mark: str, message_id: str) -> None:
        """Store WhatsApp's id under which the message with this mark (the host's id) was sent.

        An id that is stored for the mark already is retained.
        """
        self._connection.execute(
            "INSERT INTO sent (mark, id) VALUES (?, ?) ON CONFLICT (mark) DO NOTHING", (mark, message_id)
        )
        self._prune("sent")

    def sent_as(self, mark: str) -> str | None:
        """Return WhatsApp's id of the message with this mark (the host's id).

        None if it is not known to have been sent.
        """
        row = self._connection.execute("SELECT id FROM sent WHERE mark = ?", (mark,)).fetchone()
        return str(row[0]) if row else None

    def note_receipts(self, message_ids: Iterable[str]) -> None:
        """Store that the messages with these ids of WhatsApp arrived."""
        self._connection.executemany(
            "INSERT INTO receipts (id) VALUES (?) ON CONFLICT (id) DO NOTHING",
            [(message_id,) for message_id in message_ids],
        )
        self._prune("receipts")

    def has_receipt(self, message_id: str) -> bool:
        """Return whether the message with this id of WhatsApp is known to have arrived."""
        row = self._connection.execute("SELECT 1 FROM receipts WHERE id = ?", (message_id,)).fetchone()
        return row is not None

    def note_poll(self, message_id: str, question: str, options: Iterable[str]) -> None:
        """Store the question and options of a poll, because a vote contains only the hashes of options.

        `message_id` is WhatsApp's id of the poll's message.
        """
        self._connection.execute(
            "INSERT INTO polls (id, body) VALUES (?, ?) ON CONFLICT (id) DO NOTHING",
            (message_id, json.dumps([question, *options])),
        )
        self._prune("polls")

    def question_and_options(self, message_id: str) -> list[str]:
        """Return the question of a poll, then its options; an empty list for an unknown poll.

        `message_id` is WhatsApp's id of the poll's message.
        """
        row = self._connection.execute("SELECT body FROM polls WHERE id = ?", (message_id,)).fetchone()
        return list(json.loads(row[0])) if row else []

    def note_timer(self, chat: str, seconds: int) -> None:
        """Store the seconds after which messages of a chat disappear; 0 means never.

        Nothing is written if the stored number is the same: many messages contain it.
        """
        self._connection.execute(
            "INSERT INTO timers VALUES (?, ?) ON CONFLICT (chat) DO UPDATE SET seconds = excluded.seconds"
            " WHERE seconds <> excluded.seconds",
            (chat, seconds),
        )

    def timer(self, chat: str) -> int:
        """Return the seconds after which messages of a chat disappear; 0 means never or unknown."""
        row = self._connection.execute("SELECT seconds FROM timers WHERE chat = ?", (chat,)).fetchone()
        return int(row[0]) if row else 0

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def _prune(self, table: str) -> None:
        """Delete all but the newest `MAX_ROWS` rows of a table."""
        self._connection.execute(
            f"DELETE FROM {table} WHERE n <= (SELECT max(n) FROM {table}) - ?",  # noqa: S608 - our own name
            (MAX_ROWS,),
        )
