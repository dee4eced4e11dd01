"""A database of which everything that a trial writes is undone at its end.

To try hundreds of things on the same state, it is opened once: to copy, open and close a database each time
takes longer than most trials.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.store.database import Database


class TrialConnection(sqlite3.Connection):
    """A connection whose transactions are savepoints within the transaction of a trial."""

    is_in_trial = False

    def execute(self, sql: str, *given: Any) -> sqlite3.Cursor:
        if self.is_in_trial:
            match sql:
                case "BEGIN IMMEDIATE":
                    sql = "SAVEPOINT of_trial"
                case "COMMIT":
                    sql = "RELEASE of_trial"
                case "ROLLBACK":
                    super().execute("ROLLBACK TO of_trial")
                    sql = "RELEASE of_trial"
        return super().execute(sql, *given)

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo at the end of the block what was written in it."""
        self.execute("BEGIN IMMEDIATE")
        self.is_in_trial = True
        try:
            yield
        finally:
            self.is_in_trial = False
            self.execute("ROLLBACK")


@dataclass(frozen=True, slots=True)
class TrialDatabase:
    """An open database, and the connection that begins and ends its trials."""

    database: Database
    connection: TrialConnection


@asynccontextmanager
async def trial_database(path: Path) -> AsyncIterator[TrialDatabase]:
    """Open a migrated database for trials."""
    connection = sqlite3.connect(
        path, factory=TrialConnection, isolation_level=None, cached_statements=256, check_same_thread=False
    )
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = ON")
    database = await Database._wrap(connection)
    try:
        yield TrialDatabase(database, connection)
    finally:
        await database.close()
