"""Runs the store's functions to their end in the calling thread, on a standard sqlite3 connection.

The functions await nothing but the database. Here each statement is done when it returns, so a whole query or
transaction is one call: for commands without an event loop, and in the host's database thread, where a round
trip per statement would be slow.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from orchestrator.base.announcements import Announcement

if TYPE_CHECKING:
    from orchestrator.store.database import Tx

T = TypeVar("T")
_Parameters = Sequence[Any] | Mapping[str, Any]

DeferredCall = Callable[[], object]
AfterCommit = DeferredCall | Announcement
"""A function to call, or a change to announce, once the transaction has committed."""


def run_at_once(
    connection: sqlite3.Connection,
    work: Callable[[Tx], Awaitable[T]],
    deferred: list[AfterCommit] | None = None,
) -> T:
    """Run `work` with a transaction on `connection` in this thread, and return its result. Blocks.

    The functions and announcements that `work` wants after the commit are appended to `deferred`; None
    drops them. The caller commits.

    Raises:
        RuntimeError: `work` awaited something other than the database.
    """
    # The database answers at once here, so a coroutine that awaits nothing else ends at its first step.
    steps = work(cast("Tx", DirectConnection(connection, [] if deferred is None else deferred))).__await__()
    try:
        next(steps)
    except StopIteration as done:
        return cast("T", done.value)
    steps.close()  # it has not ended, so it waits for something that nobody here can wait for
    raise RuntimeError("Work on the database waited for something else than the database.")


@dataclass(slots=True, kw_only=True, eq=False)
class Work:
    """Work to do in a transaction, and its result once it was tried."""

    do: Callable[[Tx], Awaitable[Any]]
    value: Any = None
    error: BaseException | None = None
    deferred: list[AfterCommit] = field(default_factory=list)
    is_done: bool = False
    """Whether it was tried, so that it has its value or its error."""


def write_together(connection: sqlite3.Connection, works: Sequence[Work]) -> None:
    """Run all `works` in one transaction, and set the value or the error of each. Blocks.

    They share the transaction's flush to the disk. If one raises, only its changes are undone. If the
    transaction itself fails, each of them gets an error. So afterwards, the changes of a work are committed
    if and only if the work has no error.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        for work in works:
            _run_in_savepoint(connection, work)
        connection.execute("COMMIT")
    except BaseException as error:  # noqa: BLE001 - the waiting callers raise it
        # First the errors: the rollback may fail, too, and no work may then look like a committed one.
        for work in works:
            work.error = work.error or error
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    for work in works:
        work.is_done = True


def _run_in_savepoint(connection: sqlite3.Connection, work: Work) -> None:
    """Run `work` inside the open transaction, and set its value or its error.

    If it raises, only its own changes are undone, and the transaction goes on.

    Raises:
        BaseException: the error of `work`, if SQLite has rolled back the whole transaction because of it.
    """
    connection.execute("SAVEPOINT work")
    try:
        work.value = run_at_once(connection, work.do, work.deferred)
    except BaseException as error:
        work.error = error
        if not connection.in_transaction:
            raise  # SQLite has rolled back the whole transaction, as it may on a full disk
        connection.execute("ROLLBACK TO work")
    connection.execute("RELEASE work")


class DirectConnection:
    """The methods of `aiosqlite.Connection` that the store uses; each is done when it returns."""

    __slots__ = ("_connection", "deferred")

    def __init__(self, connection: sqlite3.Connection, deferred: list[AfterCommit]) -> None:
        self._connection = connection
        self.deferred = deferred

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open: SQLite may have rolled it back by itself."""
        return self._connection.in_transaction

    def execute(self, sql: str, parameters: _Parameters = ()) -> _DirectCursor:
        """Run a statement, and return its cursor, which may be awaited."""
        return _DirectCursor(self._connection.execute(sql, parameters))

    async def execute_fetchall(self, sql: str, parameters: _Parameters = ()) -> list[sqlite3.Row]:
        """Run a query and return all of its rows."""
        return self._connection.execute(sql, parameters).fetchall()

    async def executemany(self, sql: str, parameters: Iterable[_Parameters]) -> _DirectCursor:
        """Run a statement once for each of the `parameters`, and return its cursor."""
        return _DirectCursor(self._connection.executemany(sql, parameters))


class _DirectCursor:
    """The result of `execute`: awaiting it, or entering it with `async with`, gives a cursor."""

    __slots__ = ("_cursor",)

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor

    def __await__(self) -> Generator[Any, None, _DirectCursor]:
        """Return this cursor at once, for callers that await `execute`."""
        # Nothing is awaited; the empty `yield from` only makes this a generator, as the protocol demands.
        yield from ()
        return self

    async def __aenter__(self) -> Self:
        """Return this cursor; leaving the block closes it."""
        return self

    async def __aexit__(self, *_: object) -> None:
        self._cursor.close()

    async def __aiter__(self) -> AsyncIterator[sqlite3.Row]:
        """Yield the rows of the query."""
        for row in self._cursor:
            yield row

    @property
    def rowcount(self) -> int:
        """Return how many rows the statement changed."""
        return self._cursor.rowcount

    @property
    def lastrowid(self) -> int | None:
        """Return the id of the row that was inserted last; None if there is none."""
        return self._cursor.lastrowid

    async def fetchone(self) -> sqlite3.Row | None:
        """Return the next row, or None at the end."""
        return cast("sqlite3.Row | None", self._cursor.fetchone())

    async def fetchall(self) -> list[sqlite3.Row]:
        """Return all remaining rows."""
        return self._cursor.fetchall()
