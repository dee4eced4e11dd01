"""Reads a database once, without an event loop or a thread: for commands that look and end.

The functions of this package that only read take what `reading` gives as their transaction. Such a command is
done in a tenth of a second, of which asyncio and aiosqlite would be a third.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from orchestrator.store.database import BUSY_MS, readonly_uri, unusable

if TYPE_CHECKING:
    from orchestrator.store.database import Tx

T = TypeVar("T")
_Parameters = Sequence[Any] | Mapping[str, Any]


def read_once(path: Path, query: Callable[[Tx], Awaitable[T]]) -> T:
    """Return what `query` finds in the database at `path`, all of it as it was at one moment. Blocks.

    Raises:
        StoreError: there is no database, a newer Andy wrote it, or it cannot be read.
    """
    uri = readonly_uri(path)
    try:
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            connection.row_factory = sqlite3.Row
            connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            connection.execute("BEGIN")
            return _result_of(query(cast("Tx", _ReadConnection(connection))))
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise  # these are bugs of ours
    except sqlite3.Error as error:
        raise unusable(path, error) from error


def _result_of(work: Awaitable[T]) -> T:
    """Run to its end what waits for nothing: all that it awaits is done at once."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as done:
        return cast("T", done.value)
    steps.close()
    raise RuntimeError("A query of a command waited for something else than the database.")


class _ReadConnection:
    """Has the methods of `aiosqlite.Connection` that reading takes; each is done when it returns."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, parameters: _Parameters = ()) -> _ReadResult:
        return _ReadResult(self._connection.execute(sql, parameters))

    async def execute_fetchall(self, sql: str, parameters: _Parameters = ()) -> list[sqlite3.Row]:
        return self._connection.execute(sql, parameters).fetchall()


class _ReadResult:
    """What `execute` gives: awaited, or entered with `async with`, it is a cursor."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor

    def __await__(self) -> Generator[Any, None, _ReadResult]:
        yield from ()
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._cursor.close()

    async def __aiter__(self) -> AsyncIterator[sqlite3.Row]:
        for row in self._cursor:
            yield row

    async def fetchone(self) -> sqlite3.Row | None:
        return cast("sqlite3.Row | None", self._cursor.fetchone())

    async def fetchall(self) -> list[sqlite3.Row]:
        return self._cursor.fetchall()
