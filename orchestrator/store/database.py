"""Open, migrate and lock the only database.

asyncio and aiosqlite are imported where a connection is opened: commands that only read import this module
too, and the two imports would take a third of their time.
"""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, TypeVar, cast

from orchestrator.base.announcements import LOOPS_OF, Announce, Announcement, announce_to_nobody
from orchestrator.domain.errors import StoreCorrupt, StoreError, StoreTooNew
from orchestrator.store.direct import (
    AfterCommit,
    DeferredCall,
    DirectConnection,
    Work,
    run_at_once,
    write_together,
)

if TYPE_CHECKING:
    from asyncio import Future

    from aiosqlite import Connection, Cursor

    from orchestrator.store.loop_connection import LoopConnection

    Tx: TypeAlias = Connection
    """An open transaction, or a connection that only reads."""
else:
    Tx = Any

BUSY_MS = 5_000
"""Milliseconds that a statement waits while another process writes, such as a command beside the host."""
WAL_BYTES = 64 * 1024**2
"""Bytes of the write-ahead log that are retained between two checkpoints; the rest is cut off.

Without this limit the file stays as large as it ever was. It still grows while a connection reads an old
state, which SQLite may not overwrite; the first write after that read starts the log from its beginning.
"""
CUT_WAIT_MS = 500
"""Milliseconds that a checkpoint which empties the write-ahead log waits for readers."""
ROWS_A_STEP = 64
"""Rows that aiosqlite fetches at a time when a query is iterated."""

T = TypeVar("T")


class Database:
    """One connection to the database. Every transaction is `BEGIN IMMEDIATE` under one lock.

    `write` and `read` take one round trip to the database's thread; `transaction` and `reading` take one for
    each statement. Use the latter only where something else is awaited in between, or for rare work.
    """

    def __init__(
        self,
        connection: LoopConnection,
        direct: sqlite3.Connection,
        *,
        read_path: Path | None = None,
        announce: Announce = announce_to_nobody,
    ) -> None:
        """`direct` is the connection that `connection` wraps; `read_path` is set for a read-only database.

        `announce` is called with each change that a committed transaction has announced.
        """
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        self._connection = connection
        self._direct = direct
        self._read_path = read_path
        self.announce = announce
        self._lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="database")
        self._waiting: list[Work] = []
        """Work that is written in one transaction as soon as the lock is free."""
        self._results: dict[Callable[[Tx], Awaitable[Any]], tuple[str, Any]] = {}
        """For each query of `read_unless_same`: the version of its last result, and that result."""

    @classmethod
    async def open(cls, path: Path, *, announce: Announce = announce_to_nobody) -> Self:
        """Open `path` for writing; create and migrate it if needed.

        `announce` is called with each change that a committed transaction has announced.

        Raises:
            StoreTooNew: a newer Andy wrote it.
            StoreError: it cannot be opened, is corrupt, or a migration failed. A migration that fails changes
                nothing; the migrations before it stay.
        """
        import asyncio

        await asyncio.to_thread(_prepare, path)
        return await cls._wrap(
            await asyncio.to_thread(
                _connect,
                path,
                "foreign_keys = ON",
                # Under WAL, the usual NORMAL may lose the newest commits in a power failure, though their
                # senders were told that their messages are safe.
                "synchronous = FULL",
                f"journal_size_limit = {WAL_BYTES}",
            ),
            announce=announce,
        )

    @classmethod
    async def open_readonly(cls, path: Path) -> Self:
        """Open `path` for commands that only read.

        Raises:
            StoreError: there is no database, or a newer Andy wrote it.
        """
        import asyncio

        uri = await asyncio.to_thread(readonly_uri, path)
        return await cls._wrap(await asyncio.to_thread(_connect, uri), read_path=path)

    @classmethod
    async def _wrap(
        cls,
        direct: sqlite3.Connection,
        *,
        read_path: Path | None = None,
        announce: Announce = announce_to_nobody,
    ) -> Self:
        """Return a database that uses an open sqlite3 connection; the arguments are those of `__init__`."""
        from orchestrator.store.loop_connection import LoopConnection

        connection = LoopConnection(lambda: direct, ROWS_A_STEP)
        await connection  # starts its thread, which takes `direct` over
        return cls(connection, direct, read_path=read_path, announce=announce)

    async def write(self, work: Callable[[Tx], Awaitable[T]]) -> T:
        """Run `work` in a transaction and return its result: all of its changes are committed, or none.

        `work` runs in a thread: it may await nothing but its transaction, and use objects of the event loop
        only through `after_commit`. Writers that wait at the same time share one transaction, and so one
        flush to the disk. If the caller is cancelled before `work` has started, `work` is never run; after
        that, it still runs to its end, and its changes are committed.

        Raises:
            StoreError: the database cannot be written or is damaged.
            Exception: any that `work` raises.
        """
        item = Work(do=work)
        self._waiting.append(item)
        try:
            async with self._lock:
                # The caller that gets the lock first does the work of all waiting callers, with one flush to
                # the disk. `is_done`: another caller has done this work already.
                if not item.is_done:
                    batch, self._waiting = self._waiting, []
                    try:
                        await self._in_thread(write_together, self._direct, batch)
                    finally:
                        # Also if this caller was cancelled while it waited: the transaction still ran to
                        # its end, and what the whole batch has committed must be announced. A work without
                        # an error is committed, see `write_together`.
                        for finished in batch:
                            if finished.error is None:
                                self._run_deferred(finished.deferred)
        finally:
            # Still in the list if the caller was cancelled before its work started: nobody else must do it.
            if not item.is_done and item in self._waiting:
                self._waiting.remove(item)
        if item.error is None:
            return item.value  # type: ignore[no-any-return]
        if isinstance(item.error, sqlite3.Error):
            raise _translated(item.error) from item.error
        raise item.error

    async def read(self, query: Callable[[Tx], Awaitable[T]]) -> T:
        """Return the result of `query`, which sees committed rows only.

        `query` runs in a thread, so it may await only the database. It starts when no transaction of this
        connection is open.

        Raises:
            StoreError: for a read-only connection, when the database cannot be read or is damaged. A
                connection that also writes raises the `sqlite3.Error` itself.
        """
        async with self.reading():
            return await self._in_thread(run_at_once, self._direct, query)

    async def read_unless_same(
        self, query: Callable[[Tx], Awaitable[T]], *, version: Callable[[Tx], Awaitable[str]]
    ) -> T:
        """Return the result of `query`, run again only if the data may have changed since the last call.

        That is so when `version`, a cheap query, returns another text than last time. Otherwise the result is
        the same object as before, which callers must not change. The results are stored by `query`: pass the
        same function each time, not a new lambda.
        """

        async def version_and_result(tx: Tx) -> tuple[str, T]:
            """Return the present version and its result: the last one if the version is the same, else a new
            one.
            """
            present_version = await version(tx)
            last_version, result = self._results.get(query, (None, None))
            if last_version != present_version:
                result = await query(tx)
            return present_version, result  # type: ignore[return-value]

        self._results[query] = await self.read(version_and_result)
        return self._results[query][1]  # type: ignore[no-any-return]

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call `function` with these arguments in the database's thread, and return its result.

        If the caller is cancelled, the cancellation is raised only after the end of the call: until then the
        caller must not release the lock of the database.
        """
        import asyncio

        job = asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
        await _wait_until_done(job)
        return job.result()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Tx]:
        """Give the block a transaction: all of its changes are committed, or none after an exception or
        cancellation.

        A cancellation that comes during the commit is raised after it: the changes are stored then, unless
        the commit fails.

        Raises:
            StoreError: the database cannot be written or is damaged.
        """
        async with self._lock:
            try:
                await self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                await _run_to_end(self._commit(), name="commit")
            except BaseException as error:
                # The calls and announcements for after the commit are dropped. If the caller was cancelled
                # during the commit, they are made already, no transaction is open, and nothing is rolled
                # back.
                self._connection.deferred.clear()
                await _run_to_end(self._roll_back(), name="roll-back")
                if isinstance(error, sqlite3.Error):
                    raise _translated(error) from error
                raise

    def _run_deferred(self, deferred: Sequence[AfterCommit]) -> None:
        """Call the functions and publish the announcements that follow a committed transaction, in order."""
        for action in deferred:
            if isinstance(action, Announcement):
                self.announce(action)
            else:
                action()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Tx]:
        """Give the block the connection for reading; it sees committed rows only.

        It waits while a transaction of this connection is open.

        Raises:
            StoreError: for a read-only connection, when the database cannot be read or is damaged. A
                connection that also writes raises the `sqlite3.Error` itself.
        """
        if self._read_path is not None:  # a read-only connection has no transactions to wait for
            try:
                yield self._connection
            except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
                raise  # these are programming errors
            except sqlite3.Error as error:
                raise unusable(self._read_path, error) from error
            return
        async with self._lock:
            yield self._connection

    async def path(self) -> Path:
        """Return the path of the database file, for readers that open a connection of their own."""
        rows = await self._connection.execute_fetchall("PRAGMA database_list")
        return Path(next(iter(rows))["file"])

    async def close(self) -> None:
        """Close the connection as soon as no transaction uses it."""
        async with self._lock:
            await self._connection.close()
            self._thread.shutdown(wait=False)

    async def _commit(self) -> None:
        """Commit the open transaction, and make the calls and announcements that follow it."""
        await self._connection.execute("COMMIT")
        deferred, self._connection.deferred = self._connection.deferred, []
        self._run_deferred(deferred)

    async def _roll_back(self) -> None:
        """End the open transaction, if there is one, without its changes."""
        # A statement whose await was cancelled is still run by the connection's thread. This one runs after
        # it, so the check below sees its effect.
        await self._connection.execute("SELECT 1")
        if self._connection.in_transaction:
            await self._connection.execute("ROLLBACK")


async def _run_to_end(work: Coroutine[Any, Any, None], *, name: str) -> None:
    """Run `work` as a task called `name` and wait for its end, even when cancelled meanwhile.

    Only then may the caller release the lock of the database. A cancellation is raised afterwards, also if
    `work` failed; without one, the error of `work` is raised.
    """
    import asyncio

    task = asyncio.create_task(work, name=name)
    try:
        await _wait_until_done(task)
    except asyncio.CancelledError as cancellation:
        # An error in its place would let a caller go on that tries again after errors.
        raise cancellation from task.exception()
    task.result()  # raises the error of `work`, if it has one


async def _wait_until_done(job: Future[Any]) -> None:
    """Wait for a job to end. If cancelled meanwhile, raise the cancellation after its end."""
    import asyncio

    cancelled = False
    while not job.done():
        try:
            await asyncio.wait((job,))
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


def after_commit(tx: Tx, call: DeferredCall) -> None:
    """Call a function of the event loop, such as a wake-up, after the transaction has committed."""
    _deferred_of(tx).append(call)


def announce(
    tx: Tx, kind: str, *, group: str | None = None, turn: int | None = None, detail: str | None = None
) -> None:
    """Announce a change of the store after its transaction has committed; nothing if it is rolled back.

    `kind` is one of `base.announcements.LOOPS_OF`. `group` and `turn` say what the change is about, `detail`
    what happened, for people; each may be None.
    """
    assert kind in LOOPS_OF, f"{kind} has no row in LOOPS_OF"
    _deferred_of(tx).append(Announcement(kind=kind, group=group, turn=turn, detail=detail))


@asynccontextmanager
async def all_or_nothing(tx: Tx) -> AsyncIterator[None]:
    """If the block raises, undo its changes, and drop the calls and announcements that it has requested.

    The transaction goes on: what it changed before the block stays. Only if SQLite has rolled back the whole
    transaction by itself, as it may on a full disk, nothing of it stays.
    """
    deferred = _deferred_of(tx)
    count = len(deferred)
    await tx.execute("SAVEPOINT block")
    try:
        yield
    except Exception:
        del deferred[count:]
        if tx.in_transaction:
            await tx.execute("ROLLBACK TO block")
            await tx.execute("RELEASE block")
        raise
    await tx.execute("RELEASE block")


def _deferred_of(tx: Tx) -> list[AfterCommit]:
    """Return the list of functions and announcements that follow the commit of `tx`, for adding to it."""
    # A `Tx` is declared as a connection of aiosqlite; work in a thread gets a `DirectConnection` instead.
    connection: object = tx
    if isinstance(connection, DirectConnection):
        return connection.deferred
    return cast("LoopConnection", connection).deferred


async def returned(cursor: Cursor) -> sqlite3.Row:
    """Return the row of a statement that always has one, such as a count, or an INSERT with `RETURNING`."""
    row = await cursor.fetchone()
    assert row is not None
    return row


def _translated(error: sqlite3.Error) -> Exception:
    """Return the exception to raise for an error of SQLite.

    A broken constraint is a programming error and returned unchanged. Others become `StoreCorrupt` or
    `StoreError`, whose text names the fix.
    """
    if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
        return error
    if _is_damage(error):
        return StoreCorrupt(f"The database is damaged ({error}): stop Andy, then see 'andy restore --help'.")
    return StoreError(f"The database cannot be written ({error}): check free disk space and permissions.")


def wal_bytes(path: Path) -> int:
    """Return the size in bytes of the write-ahead log of the database at `path`; 0 where there is none.

    Blocks.
    """
    log_file = path.with_name(f"{path.name}-wal")
    return log_file.stat().st_size if log_file.exists() else 0


def cut_log(path: Path) -> bool:
    """Write the contents of the write-ahead log into the database and empty it. Blocks.

    Return False if a reader prevents it. It waits up to `CUT_WAIT_MS` for readers; writers wait with it.

    Raises:
        StoreCorrupt: the database is damaged.
        StoreError: it cannot be written.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            connection.execute(f"PRAGMA busy_timeout = {CUT_WAIT_MS}")
            is_busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    except sqlite3.Error as error:
        raise _translated(error) from error
    return not is_busy


def check(path: Path) -> None:
    """Check a whole database for damage; a missing one counts as sound.

    Blocks, some seconds for each gigabyte.

    Raises:
        StoreCorrupt: it is damaged; the text says what to restore.
        StoreError: it cannot be read.
    """
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            # `1`: the check ends at the first problem. Without one, its only row is "ok".
            result = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    if result != "ok":
        raise StoreCorrupt(_damaged_text(path, result))


def unusable(path: Path, error: sqlite3.Error | OSError) -> StoreError:
    """Return the error that tells the owner why a database cannot be used and what to do."""
    if isinstance(error, sqlite3.Error) and _is_damage(error):
        return StoreCorrupt(_damaged_text(path, error))
    return StoreError(f"The database {path} cannot be used ({error}): check the disk and permissions.")


def _is_damage(error: sqlite3.Error) -> bool:
    """Return whether SQLite reports that the file itself is damaged or is no database."""
    # The low byte of SQLite's extended error codes is the general code.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _damaged_text(path: Path, problem: object) -> str:
    """Return the text for the owner that a database is damaged, with the `problem` and the copies to restore.

    These are the owner's own backups, and the newest copy that Andy made before a migration, if there is one.
    """
    copies = sorted(path.parent.glob(f"{path.stem}.*before-v*.db"), key=lambda copy: copy.stat().st_mtime)
    newest_copy = f", or {copies[-1]}, made before the last upgrade" if copies else ""
    reason = " ".join(str(problem).split())
    return (
        f"The database {path} is damaged ({reason}). It was left as it is. Restore what 'andy backup FILE'"
        f" wrote{newest_copy}: andy restore FILE --force"
    )


def _connect(database: Path | str, *pragmas: str) -> sqlite3.Connection:
    """Connect to a path or, if it is a string, a URI, and set `pragmas` such as `foreign_keys = ON`.

    Several threads may use the connection, but not at the same time.
    """
    is_uri = isinstance(database, str)
    # With `isolation_level=None`, the library begins no transaction of its own before a write.
    connection = sqlite3.connect(
        database, uri=is_uri, isolation_level=None, cached_statements=256, check_same_thread=False
    )
    connection.row_factory = sqlite3.Row
    for pragma in (*pragmas, f"busy_timeout = {BUSY_MS}"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def _prepare(path: Path) -> None:
    """Create the database and its folder if they are missing, and migrate it to the newest version. Blocks.

    Afterwards only the owner of the file can read it.

    Raises:
        StoreTooNew: a newer Andy wrote it.
        StoreError: it cannot be opened, is corrupt, or a migration failed.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        refuse_newer(path)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            connection.execute("PRAGMA journal_mode = WAL")
            path.chmod(0o600)
            _migrate(connection, path)
    except (sqlite3.Error, OSError) as error:
        raise unusable(path, error) from error


def readonly_uri(path: Path) -> str:
    """Return the URI that opens a database for reading only. Blocks.

    Raises:
        StoreError: there is no database, or a newer Andy wrote it.
    """
    refuse_missing(path)
    refuse_newer(path)
    return f"{path.absolute().as_uri()}?mode=ro"


def refuse_missing(path: Path) -> None:
    """Raise `StoreError`, with the fix, if there is no database. Blocks."""
    if not path.is_file():
        raise StoreError(
            f"There is no database at {path} yet: start Andy once with 'andy up', or say where with --home."
        )


def refuse_newer(path: Path) -> None:
    """Raise an error if a database exists that this Andy cannot read. Blocks.

    Raises:
        StoreTooNew: a newer Andy wrote it.
        StoreError: it cannot be read.
    """
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            version = _version(connection)
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    _refuse_version(path, version, newest_version=len(_migration_files()))


def _refuse_version(path: Path, version: int, *, newest_version: int) -> None:
    """Raise `StoreTooNew` if the version of the database at `path` is after the newest one known."""
    if version > newest_version:
        raise StoreTooNew(
            f"The database {path} has version {version}, this Andy knows {newest_version}:"
            " upgrade Andy, or restore a backup made by this version."
        )


class PendingMigration(NamedTuple):
    """The versions of a database before and after its next opening."""

    stored_version: int
    newest_version: int


def migration_ahead(path: Path) -> PendingMigration | None:
    """Return the migration that the next opening of a database makes. Blocks.

    None for a database that is new (version 0), has the newest version or a later one, is missing, or cannot
    be read.
    """
    newest_version = len(_migration_files())
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            version = _version(connection)
    except sqlite3.Error:
        return None  # there is none, or it cannot be read; opening it reports that
    return PendingMigration(version, newest_version) if 0 < version < newest_version else None


def copy_before(path: Path, version: int, newest_version: int) -> Path:
    """Return the path of the copy that is made before a database is migrated from a version to the newest.

    A copy of an earlier version keeps its name: if an upgrade fails halfway and is tried again, only that one
    can the earlier Andy still open. Then the new one has another name.
    """
    copy = path.with_name(f"{path.stem}.before-v{newest_version}.db")
    return (
        copy.with_name(f"{path.stem}.v{version}-before-v{newest_version}.db")
        if _is_older(copy, version)
        else copy
    )


def _version(connection: sqlite3.Connection) -> int:
    """Return the version of a database: how many migrations it has had."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Run the migration scripts that the database has not had yet, and copy it first if it is not new.

    If another process does that now, this waits for its end. Raises `StoreTooNew` if that was a newer Andy.
    """
    if _version(connection) == len(migrations()):
        return
    # A command and the host may both be the first after an upgrade. SQLite's own lock would be free between
    # the copy and the scripts, so the folder is locked instead.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        _migrate_locked(connection, path)
    finally:
        os.close(folder)  # releases the lock


def _migrate_locked(connection: sqlite3.Connection, path: Path) -> None:
    """Run the pending migration scripts, one transaction each, after copying a database that is not new.

    The caller has locked the folder of the database. Raises `StoreTooNew` if a newer Andy has migrated
    it, and `sqlite3.Error` if a script fails: that one is rolled back, those before it stay.
    """
    version, newest_version = _version(connection), len(migrations())
    _refuse_version(path, version, newest_version=newest_version)
    pending_scripts = migrations()[version:]
    if pending_scripts and version:
        _back_up(connection, copy_before(path, version, newest_version))
    for number, script in enumerate(pending_scripts, start=version + 1):
        try:
            # The version changes in the transaction of its script: a crash leaves both as they were.
            connection.executescript(f"BEGIN IMMEDIATE;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.rollback()
            raise


def _is_older(path: Path, version: int) -> bool:
    """Return whether there is a whole database at `path` of a version before `version`."""
    try:
        # Not read-only: SQLite has to roll back a copy whose making was killed, which then is empty.
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            return 0 < _version(connection) < version
    except sqlite3.Error:
        return False


def copy_to(path: Path, target: Path) -> None:
    """Copy a database, which stays as it is, to the file `target`. Blocks. Raises `StoreError`."""
    uri = readonly_uri(path)
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            _back_up(connection, target)
    except (sqlite3.Error, OSError) as error:
        if isinstance(error, sqlite3.Error) and _is_damage(error):
            raise unusable(path, error) from error
        raise StoreError(f"{path} could not be copied to {target}: {error}") from error


def _back_up(connection: sqlite3.Connection, target: Path) -> None:
    """Copy the open database to the file `target`, in place of an earlier copy."""
    target.unlink(missing_ok=True)
    with closing(sqlite3.connect(target)) as copy:
        # Not a copy of the file, which would lack what is still in the write-ahead log.
        connection.backup(copy)
    target.chmod(0o600)


@cache
def migrations() -> tuple[str, ...]:
    """Return the texts of the migration scripts in order; the n-th leads to version n. They are read once."""
    return tuple(path.read_text(encoding="utf-8") for path in _migration_files())


@cache
def _migration_files() -> tuple[Path, ...]:
    """Return the paths of the migration scripts, such as `0001_first.sql`, in order.

    Cached, since each opening of a database has to know how many there are.
    """
    folder = Path(__file__).with_name("migrations")
    return tuple(sorted(path for path in folder.iterdir() if re.fullmatch(r"\d{4}_\w+\.sql", path.name)))
