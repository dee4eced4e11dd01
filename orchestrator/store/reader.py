"""Read a database once, without an event loop or a thread: for commands that read and end.

Such a command takes a tenth of a second. Importing asyncio and aiosqlite, with which the host reads, would
take a third of that.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from orchestrator.store.database import BUSY_MS, readonly_uri, unusable
from orchestrator.store.direct import run_at_once

if TYPE_CHECKING:
    from orchestrator.store.database import Tx

T = TypeVar("T")


def read_once(path: Path, query: Callable[[Tx], Awaitable[T]]) -> T:
    """Open a database for reading, and return the result of a query, which sees it as of one moment. Blocks.

    `path` is the database. `query` is a read function of the store, and awaits nothing but its transaction.

    Raises:
        StoreError: there is no database, a newer Andy wrote it, or it cannot be read.
    """
    uri = readonly_uri(path)  # it checks that there is a database, and that no newer Andy wrote it
    try:
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            connection.row_factory = sqlite3.Row
            connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            connection.execute("BEGIN")
            return run_at_once(connection, query)
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise  # a fault of the query, which is not the owner's to fix
    except sqlite3.Error as error:
        raise unusable(path, error) from error
