"""The parts of the WhatsApp library's store that the host reads.

A test compares them with a store that the library makes.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.support.whatsapp_names import ANDY, ANDY_LID

TABLES = """
CREATE TABLE whatsmeow_device (jid TEXT PRIMARY KEY, lid TEXT, push_name TEXT NOT NULL DEFAULT '');
CREATE TABLE whatsmeow_message_secrets (
    our_jid TEXT, chat_jid TEXT, sender_jid TEXT, message_id TEXT, key bytea NOT NULL,
    PRIMARY KEY (our_jid, chat_jid, sender_jid, message_id),
    FOREIGN KEY (our_jid) REFERENCES whatsmeow_device (jid) ON DELETE CASCADE ON UPDATE CASCADE);
"""


def lay_store(path: Path, *, user: str = ANDY, lid: str = ANDY_LID, device: int = 9) -> None:
    """Make the store of a paired device."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(TABLES)
        connection.execute(
            "INSERT INTO whatsmeow_device VALUES (?, ?, 'Andy')",
            (f"{user}:{device}@s.whatsapp.net", f"{lid}:{device}@lid"),
        )


def is_paired(path: Path) -> bool:
    """Whether a device is in it."""
    if not path.exists():
        return False
    with closing(sqlite3.connect(path)) as connection:
        tables = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'whatsmeow_device'").fetchall()
        return bool(tables and connection.execute("SELECT 1 FROM whatsmeow_device").fetchall())


def log_out(path: Path) -> None:
    """What the library does when WhatsApp ends a login."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("DELETE FROM whatsmeow_device")


def put_secret(path: Path, *, chat: str, message_id: str, key: bytes, sender: str | None = None) -> None:
    """What the library does before a message leaves, and with secrets that others' messages bring."""
    with closing(sqlite3.connect(path, timeout=5)) as connection, connection:
        row = connection.execute("SELECT jid, lid FROM whatsmeow_device").fetchone()
        own, own_lid = row
        connection.execute(
            "INSERT OR REPLACE INTO whatsmeow_message_secrets VALUES (?, ?, ?, ?, ?)",
            (own, chat, sender or own_lid.split(":")[0] + "@lid", message_id, key),
        )
