"""The one database: opened, migrated, locked, rolled back."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.backup import write_ahead_log
from orchestrator.cli import host_process
from orchestrator.domain.errors import OutcomeUnknown, StoreCorrupt, StoreError, StoreTooNew
from orchestrator.domain.values import ChatJid, Folder
from orchestrator.groups import secret_addresses
from orchestrator.store import database as databases
from orchestrator.store.access import secret_addresses as addresses
from orchestrator.store.access.secret_addresses import AddressKind
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Database, after_commit, all_or_nothing, migrations
from orchestrator.store.direct import Work, write_together
from orchestrator.store.groups import changes as group_changes
from orchestrator.store.reader import read_once
from orchestrator.store.schedule import tasks
from tests.support.store_harness import StoreHarness
from tests.support.until import until


def written(path, *statements):
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def read(path, sql):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


async def made(path):
    database = await Database.open(path)
    await database.close()


async def names_in(database):
    async with database.reading() as tx:
        return [row["jid"] for row in await tx.execute_fetchall("SELECT jid FROM chats ORDER BY jid")]


async def add_chat(tx, jid):
    await tx.execute("INSERT INTO chats (jid, name) VALUES (?, ?)", (jid, jid))


async def write(database, jid):
    async with database.transaction() as tx:
        await add_chat(tx, jid)


async def test_a_new_database_is_of_the_newest_version_and_the_owners_alone(database, database_path):
    assert read(database_path, "PRAGMA user_version") == [(len(migrations()),)]
    assert read(database_path, "PRAGMA journal_mode") == [("wal",)]
    assert stat.S_IMODE(database_path.stat().st_mode) == 0o600


async def test_opening_again_keeps_what_is_there(database_path):
    database = await Database.open(database_path)
    async with database.transaction() as tx:
        await add_chat(tx, "a")
    await database.close()

    again = await Database.open(database_path)
    try:
        assert await names_in(again) == ["a"]
    finally:
        await again.close()
    assert list(database_path.parent.glob("*before*")) == []


async def test_a_newer_store_is_refused_and_left_alone(database_path):
    await made(database_path)
    newer = len(migrations()) + 1
    written(database_path, f"PRAGMA user_version = {newer}")

    for opening in (Database.open, Database.open_readonly):
        with pytest.raises(StoreTooNew, match=f"version {newer}.*upgrade"):
            await opening(database_path)

    assert read(database_path, "PRAGMA user_version") == [(newer,)]


async def test_a_start_that_migrates_says_so_and_names_the_copy(database_path, monkeypatch, capsys):
    host_process.announce_migration(database_path)
    await made(database_path)
    host_process.announce_migration(database_path)
    assert capsys.readouterr().err == ""
    known = len(migrations())
    monkeypatch.setattr(databases, "_migration_files", lambda: [Path("x")] * (known + 1))
    host_process.announce_migration(database_path)
    copy = database_path.with_name(f"messages.before-v{known + 1}.db")
    words = f"The database goes from version {known} to {known + 1}; a copy of the old one is {copy}.\n"
    assert capsys.readouterr().err == words


async def test_a_migration_backs_the_store_up_first(database_path, monkeypatch):
    await made(database_path)
    written(database_path, "INSERT INTO chats (jid, name) VALUES ('a', 'A')")
    known = migrations()
    monkeypatch.setattr(databases, "migrations", lambda: [*known, "CREATE TABLE more (x INTEGER) STRICT;"])

    await made(database_path)

    assert read(database_path, "SELECT count(*) FROM more") == [(0,)]
    (backup,) = database_path.parent.glob("*before*.db")
    assert backup.name == f"messages.before-v{len(known) + 1}.db"
    assert read(backup, "PRAGMA user_version") == [(len(known),)]
    assert read(backup, "SELECT jid FROM chats") == [("a",)]
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600


async def test_what_was_dead_because_it_may_have_arrived_is_unknown_from_now_on(database_path):
    before = next(at for at, script in enumerate(migrations()) if "outbox_before" in script)
    database_path.parent.mkdir()
    with closing(sqlite3.connect(database_path)) as old:
        for script in migrations()[:before]:
            old.executescript(script)
        old.execute("INSERT INTO chats (jid, name) VALUES ('a', 'A')")
        old.executemany(
            "INSERT INTO outbox (id, chat_jid, text, dedupe_key, message_id, state, error, part_of, part,"
            " next_attempt_ms, created_ms) VALUES (?, 'a', ?, ?, ?, ?, ?, ?, ?, 1, 1)",
            [
                (3, "lost", "k3", "m3", "dead", str(OutcomeUnknown()), None, 0),
                (4, "refused", "k4", "m4", "dead", "no such chat", 3, 1),
                (9, "gone by now", "k9", "m9", "sent", None, None, None),
            ],
        )
        old.execute("DELETE FROM outbox WHERE id = 9")
        old.execute(f"PRAGMA user_version = {before}")
        old.commit()
    database = await Database.open(database_path)
    async with database.transaction() as tx:
        await outbox.add(tx, chat_jid=ChatJid("a"), text="new", dedupe_key="k", now_ms=1)
        found = await tx.execute_fetchall("SELECT id, state, part_of FROM outbox ORDER BY id")
    await database.close()
    assert [tuple(row) for row in found] == [(3, "unknown", None), (4, "dead", 3), (10, "pending", None)]
    assert read(database_path, "PRAGMA foreign_key_check") == []


async def test_a_task_that_was_cancelled_before_its_due_time_was_stored_has_none(database_path):
    before = next(at for at, script in enumerate(migrations()) if "cancelled_due" in script)
    database_path.parent.mkdir()
    with closing(sqlite3.connect(database_path)) as old:
        for script in migrations()[:before]:
            old.executescript(script)
        old.execute("INSERT INTO chats (jid, name) VALUES ('a', 'A')")
        old.execute(
            "INSERT INTO scheduled_tasks (id, group_folder, chat_jid, prompt, schedule_type, schedule_value,"
            " timezone, dst, context_mode, overlap, catch_up, status, status_at, created_at)"
            " VALUES ('t', 'family', 'a', 'news', 'interval', '3600000', 'UTC', 'once', 'group', 'skip',"
            " 'latest', 'cancelled', 1, 1)"
        )
        old.execute(f"PRAGMA user_version = {before}")
        old.commit()
    database = await Database.open(database_path)
    async with database.transaction() as tx:
        assert await tasks.cancelled_due_ms(tx, "t") is None
        await tasks.note_cancelled_due(tx, "t", 5)
        assert await tasks.cancelled_due_ms(tx, "t") == 5
    await database.close()


async def test_changes_of_an_earlier_version_that_were_made_at_once_stay_one_step(database_path):
    before = next(at for at, script in enumerate(migrations()) if "made_with" in script)
    database_path.parent.mkdir()
    with closing(sqlite3.connect(database_path)) as old:
        for script in migrations()[:before]:
            old.executescript(script)
        old.executemany(
            "INSERT INTO group_changes (group_folder, part, at_ms, by_whom, before, after, added, removed)"
            " VALUES ('family', ?, ?, 'a browser', '', '', 0, 0)",
            [("profile", 5), ("settings", 5), ("settings", 6)],
        )
        old.execute(f"PRAGMA user_version = {before}")
        old.commit()
    database = await Database.open(database_path)
    async with database.transaction() as tx:
        for number, made_with in ((1, [2, 1]), (2, [2, 1]), (3, [3])):
            change = await group_changes.get(tx, Folder("family"), number)
            assert [one.number for one in await group_changes.made_with(tx, change)] == made_with
    await database.close()


async def test_addresses_of_calendars_stay_valid_beside_hooks_and_no_number_is_given_twice(database_path):
    before = next(at for at, script in enumerate(migrations()) if "secret_addresses" in script)
    database_path.parent.mkdir()
    with closing(sqlite3.connect(database_path)) as old:
        for script in migrations()[:before]:
            old.executescript(script)
        old.executemany(
            "INSERT INTO calendar_feeds (id, group_folder, name, secret_hash, created_ms, fetched_ms)"
            " VALUES (?, 'family', 'phone', ?, 5, ?)",
            [(3, secret_addresses.hashed("secret"), 7), (9, "h", None)],
        )
        old.execute("DELETE FROM calendar_feeds WHERE id = 9")
        old.execute(f"PRAGMA user_version = {before}")
        old.commit()
    database = await Database.open(database_path)
    async with database.transaction() as tx:
        found = await addresses.by_secret(tx, AddressKind.CALENDAR, secret_addresses.hashed("secret"))
        assert found is not None
        assert (found.id, found.folder, found.name) == (3, "family", "phone")
        assert (found.created_ms, found.used_ms) == (5, 7)
        hook = await addresses.add(
            tx, AddressKind.HOOK, Folder("family"), name="x", is_request=False, secret_hash="i", now_ms=1
        )
        assert hook.id == 10
    await database.close()


@pytest.mark.parametrize("given", [0, 1])
async def test_what_was_given_out_before_decides_the_next_number(database_path, given):
    before = next(at for at, script in enumerate(migrations()) if "secret_addresses" in script)
    database_path.parent.mkdir()
    with closing(sqlite3.connect(database_path)) as old:
        for script in migrations()[:before]:
            old.executescript(script)
        for _ in range(given):
            old.execute(
                "INSERT INTO calendar_feeds (group_folder, name, secret_hash, created_ms)"
                " VALUES ('f', '', 'h', 5)"
            )
            old.execute("DELETE FROM calendar_feeds")
        old.execute(f"PRAGMA user_version = {before}")
        old.commit()
    database = await Database.open(database_path)
    async with database.transaction() as tx:
        hook = await addresses.add(
            tx, AddressKind.HOOK, Folder("family"), name="x", is_request=False, secret_hash="i", now_ms=1
        )
    await database.close()
    assert hook.id == given + 1


async def test_two_openings_at_once_migrate_once_and_copy_what_was_there_before(database_path, monkeypatch):
    await made(database_path)
    known = migrations()
    more = [*known, "CREATE TABLE more (x INTEGER) STRICT;", "CREATE TABLE most (x INTEGER) STRICT;"]
    monkeypatch.setattr(databases, "migrations", lambda: more)
    monkeypatch.setattr(databases, "refuse_newer", lambda path: None)
    version, versions = databases._version, []

    def version_before_another_opening(connection):
        versions.append(version(connection))
        if len(versions) == 1:
            databases._prepare(database_path)  # the other opening does all between the reading and the work
            return versions[0]
        return versions[-1]

    monkeypatch.setattr(databases, "_version", version_before_another_opening)
    databases._prepare(database_path)

    assert versions[0] == len(known)
    assert read(database_path, "PRAGMA user_version") == [(len(more),)]
    (backup,) = database_path.parent.glob("*before*.db")
    assert read(backup, "PRAGMA user_version") == [(len(known),)]


async def test_a_failed_migration_leaves_the_old_version_and_the_good_ones_before_it(
    database_path, monkeypatch
):
    await made(database_path)
    known = migrations()
    bad = "CREATE TABLE half (x INTEGER) STRICT; INSERT INTO nowhere VALUES (1);"
    monkeypatch.setattr(
        databases, "migrations", lambda: [*known, "CREATE TABLE good (x INTEGER) STRICT;", bad]
    )

    with pytest.raises(StoreError, match="nowhere"):
        await Database.open(database_path)

    assert read(database_path, "PRAGMA user_version") == [(len(known) + 1,)]
    assert read(database_path, "SELECT name FROM sqlite_master WHERE name IN ('good', 'half')") == [("good",)]


def test_the_copy_from_before_an_upgrade_stays_if_a_migration_fails_and_is_tried_again(
    database_path, monkeypatch
):
    known = migrations()
    before, done = len(known) - 5, len(known) - 1
    with monkeypatch.context() as older:
        older.setattr(databases, "migrations", lambda: known[:before])
        databases._prepare(database_path)
    with monkeypatch.context() as failing:
        failing.setattr(databases, "migrations", lambda: (*known[:done], "SELECT no_such();"))
        with pytest.raises(StoreError, match="no_such"):
            databases._prepare(database_path)
    assert read(database_path, "PRAGMA user_version") == [(done,)]
    first = database_path.with_name(f"messages.before-v{len(known)}.db")
    second = databases.copy_before(database_path, done, len(known))
    assert second.name == f"messages.v{done}-before-v{len(known)}.db"
    for _ in range(2):
        assert read(first, "PRAGMA user_version") == [(before,)]
        databases._prepare(database_path)
    assert read(second, "PRAGMA user_version") == [(done,)], (
        "also for a copy of an upgrade that was rolled back"
    )
    assert read(database_path, "PRAGMA user_version") == [(len(known),)]


async def test_a_damaged_database_names_also_the_newest_copy_of_an_upgrade_that_was_tried_again(
    database_path,
):
    database_path.parent.mkdir()
    database_path.write_bytes(b"no database" * 1000)
    for age_seconds, name in enumerate(("messages.v8-before-v9.db", "messages.before-v9.db")):
        copy = database_path.with_name(name)
        copy.touch()
        os.utime(copy, (1_000 - age_seconds,) * 2)
    with pytest.raises(StoreCorrupt, match=r"messages\.v8-before-v9\.db, made before the last upgrade"):
        await Database.open(database_path)


def test_what_is_no_copy_of_an_older_version_is_replaced_by_one(database_path, monkeypatch):
    known = migrations()
    copy = databases.copy_before(database_path, len(known) - 1, len(known))
    with monkeypatch.context() as older:
        older.setattr(databases, "migrations", lambda: known[:-1])
        databases._prepare(database_path)
    copy.write_bytes(b"half a copy")
    databases._prepare(database_path)
    assert read(copy, "PRAGMA user_version") == [(len(known) - 1,)]


def test_a_store_that_a_newer_andy_migrates_during_the_opening_is_refused(database_path, monkeypatch):
    newer, refuse_newer = len(migrations()) + 1, databases.refuse_newer

    def refuse_newer_before_it_migrates(path: Path) -> None:
        refuse_newer(path)
        written(path, f"PRAGMA user_version = {newer}")

    database_path.parent.mkdir()
    databases._prepare(database_path)
    monkeypatch.setattr(databases, "refuse_newer", refuse_newer_before_it_migrates)
    with pytest.raises(StoreTooNew, match=f"version {newer}.*upgrade"):
        databases._prepare(database_path)


def test_the_migrations_are_numbered_from_one_without_a_gap():
    folder = Path(databases.__file__).with_name("migrations")
    numbers = sorted(int(entry.name[:4]) for entry in folder.iterdir() if entry.name.endswith(".sql"))

    assert numbers == list(range(1, len(migrations()) + 1))


@pytest.mark.parametrize(
    "content",
    [b"this is no database, but long enough to look at" * 50, b"SQLite format 3\x00" + b"\xff" * 4096],
)
async def test_a_corrupt_file_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "messages.db"
    path.write_bytes(content)

    for opening in (Database.open, Database.open_readonly):
        with pytest.raises(StoreError, match=r"messages\.db"):
            await opening(path)

    assert path.read_bytes() == content


async def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError):
        await Database.open(tmp_path / "file" / "messages.db")


async def test_a_directory_in_its_place_is_refused(tmp_path):
    with pytest.raises(StoreError):
        await Database.open(tmp_path)


async def test_looking_where_there_is_nothing_makes_nothing(tmp_path):
    with pytest.raises(StoreError, match="andy up"):
        await Database.open_readonly(tmp_path / "messages.db")

    assert list(tmp_path.iterdir()) == []


async def test_who_only_looks_cannot_write_and_sees_what_is_committed(database, database_path):
    async with database.transaction() as tx:
        await add_chat(tx, "a")
    looking = await Database.open_readonly(database_path)
    try:
        assert await names_in(looking) == ["a"]
        with pytest.raises(StoreError):
            await write(looking, "b")
        async with database.transaction() as tx:
            await add_chat(tx, "c")
        assert await names_in(looking) == ["a", "c"]
    finally:
        await looking.close()


async def jids(tx):
    return [row["jid"] for row in await tx.execute_fetchall("SELECT jid FROM chats ORDER BY jid")]


async def test_a_command_reads_what_is_committed_without_an_event_loop(database, database_path):
    async with database.transaction() as tx:
        await add_chat(tx, "a")
        assert read_once(database_path, jids) == []

    assert read_once(database_path, jids) == ["a"]


async def test_a_command_reads_with_every_way_in_which_the_store_asks(database, database_path):
    async with database.transaction() as tx:
        await add_chat(tx, "a")

    async def ask(tx):
        cursor = await tx.execute("SELECT jid FROM chats WHERE jid = :jid", {"jid": "a"})
        first = await cursor.fetchone()
        async with tx.execute("SELECT jid FROM chats WHERE jid > ?", ("",)) as rows:
            each = [row["jid"] async for row in rows]
        return first["jid"], await cursor.fetchone(), each, await (await tx.execute("SELECT 1")).fetchall()

    first, after, each, ones = read_once(database_path, ask)
    assert (first, after, each, [tuple(row) for row in ones]) == ("a", None, ["a"], [(1,)])


async def test_a_command_that_reads_cannot_write_and_waits_for_nothing_else(database_path):
    await made(database_path)

    with pytest.raises(StoreError, match=r"messages\.db"):
        read_once(database_path, lambda tx: add_chat(tx, "a"))
    with pytest.raises(RuntimeError, match="waited for something else"):
        read_once(database_path, lambda tx: asyncio.sleep(0))


@pytest.mark.parametrize("content", [b"this is no database, but long enough to look at" * 50, None])
def test_what_cannot_be_read_is_refused_to_a_command(tmp_path, content):
    path = tmp_path / "messages.db"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(StoreError, match=r"messages\.db"):
        read_once(path, jids)

    assert path.exists() == (content is not None)


async def test_what_fails_inside_a_transaction_takes_all_of_it_back(database):
    async def work():
        async with database.transaction() as tx:
            await add_chat(tx, "a")
            raise LookupError

    with pytest.raises(LookupError):
        await work()

    assert await names_in(database) == []
    async with database.transaction() as tx:
        await add_chat(tx, "b")
    assert await names_in(database) == ["b"]


async def cancelled_in_mid_transaction(database, *, times):
    """Cancel a task that stands in a transaction; the last times while it rolls back."""
    inside = asyncio.Event()

    async def work():
        async with database.transaction() as tx:
            await add_chat(tx, "a")
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    for _ in range(times):
        task.cancel()
        await asyncio.wait([task], timeout=0)
    return task


async def test_a_cancelled_transaction_leaves_nothing(database):
    task = await cancelled_in_mid_transaction(database, times=1)
    await asyncio.wait([task])

    assert task.cancelled()
    assert await names_in(database) == []


@pytest.mark.parametrize("times", [2, 3, 5])
async def test_cancelled_again_while_it_rolls_back_it_lets_nobody_in_before(database, times):
    task = await cancelled_in_mid_transaction(database, times=times)

    async with database.transaction() as tx:
        await add_chat(tx, "b")
    await asyncio.wait([task])

    assert task.cancelled()
    assert await names_in(database) == ["b"]


async def test_cancelled_during_a_commit_that_fails_it_is_cancelled(database, monkeypatch):
    committing, goes_on = asyncio.Event(), asyncio.Event()

    async def commit():
        committing.set()
        await goes_on.wait()
        raise sqlite3.OperationalError("database or disk is full")

    async def work():
        async with database.transaction() as tx:
            await add_chat(tx, "a")

    with monkeypatch.context() as patched:
        patched.setattr(database, "_commit", commit)
        task = asyncio.create_task(work())
        await committing.wait()
        task.cancel()
        await asyncio.wait([task], timeout=0)
        goes_on.set()
        await asyncio.wait([task])

    assert task.cancelled()
    assert await names_in(database) == []


async def test_cancelled_while_a_statement_runs_nothing_stays_open(database):
    for steps in range(12):

        async def work(number=steps):
            async with database.transaction() as tx:
                await add_chat(tx, f"half-{number}")
                raise LookupError

        task = asyncio.create_task(work())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        async with database.transaction() as tx:
            await add_chat(tx, f"whole-{steps:02}")

    assert await names_in(database) == [f"whole-{n:02}" for n in range(12)]


async def test_two_coroutines_never_stand_in_one_transaction(database):
    inside = 0

    async def work(number):
        nonlocal inside
        async with database.transaction() as tx:
            inside += 1
            assert inside == 1
            await add_chat(tx, f"a{number}")
            await asyncio.sleep(0)
            await add_chat(tx, f"b{number}")
            inside -= 1
            if number % 3 == 0:
                raise LookupError

    await asyncio.gather(*(work(number) for number in range(12)), return_exceptions=True)

    kept = [number for number in range(12) if number % 3]
    assert await names_in(database) == sorted([f"a{n}" for n in kept] + [f"b{n}" for n in kept])


async def test_a_reader_waits_for_the_transaction_that_is_open(database):
    entered, leave = asyncio.Event(), asyncio.Event()

    async def write():
        async with database.transaction() as tx:
            await add_chat(tx, "a")
            entered.set()
            await leave.wait()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        await entered.wait()
        reading = tasks.create_task(names_in(database))
        await asyncio.wait([reading], timeout=0)
        assert not reading.done()
        leave.set()

    assert reading.result() == ["a"]


def held(connection_path):
    """Hold the write lock of a database, as another process may."""
    other = sqlite3.connect(connection_path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other


async def test_those_who_wait_to_write_share_one_transaction_in_their_order(database, database_path):
    flushes = []
    database._direct.set_trace_callback(lambda sql: flushes.append(sql) if sql == "COMMIT" else None)

    with closing(held(database_path)) as other:
        writers = [asyncio.create_task(database.write(partial(add_chat, jid=f"a{n}"))) for n in range(9)]
        while len(database._waiting) < 8:  # noqa: ASYNC110 - the first of them has begun by itself
            await asyncio.sleep(0)
        other.execute("ROLLBACK")
    await asyncio.gather(*writers)

    assert flushes == ["COMMIT", "COMMIT"]
    async with database.reading() as tx:
        found = await tx.execute_fetchall("SELECT jid FROM chats ORDER BY rowid")
    assert [row["jid"] for row in found] == [f"a{n}" for n in range(9)]


async def test_what_fails_in_a_shared_transaction_is_undone_alone(database):
    async def work(tx, *, number):
        await add_chat(tx, f"a{number}")
        if number == 3:
            raise LookupError(number)
        if number == 4:
            await add_chat(tx, "a0")  # breaks a constraint
        return number

    outcomes = await asyncio.gather(
        *(database.write(partial(work, number=n)) for n in range(6)), return_exceptions=True
    )

    assert [outcomes[n] for n in (0, 1, 2, 5)] == [0, 1, 2, 5]
    assert isinstance(outcomes[3], LookupError)
    assert isinstance(outcomes[4], sqlite3.IntegrityError)
    assert await names_in(database) == ["a0", "a1", "a2", "a5"]


async def test_a_shared_transaction_that_cannot_be_committed_fails_all_who_are_in_it(database):
    async with database.transaction() as tx:
        await tx.execute("PRAGMA max_page_count = 1")

    async def work(tx, *, number):
        await add_chat(tx, f"a{number}" + "x" * 1_000_000)

    outcomes = await asyncio.gather(
        *(database.write(partial(work, number=n)) for n in range(4)), return_exceptions=True
    )

    assert [type(each) for each in outcomes] == [StoreError] * 4
    assert await names_in(database) == []


async def test_work_whose_transaction_cannot_even_be_rolled_back_has_failed():
    class Failing(sqlite3.Connection):
        def execute(self, sql, *parameters):
            if sql in ("COMMIT", "ROLLBACK"):
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(sql, *parameters)

    async def work(tx):
        await tx.execute("CREATE TABLE t (x)")

    works = [Work(do=work), Work(do=work)]
    with (
        closing(sqlite3.connect(":memory:", isolation_level=None, factory=Failing)) as connection,
        pytest.raises(sqlite3.OperationalError),
    ):
        write_together(connection, works)

    assert [type(each.error) for each in works] == [sqlite3.OperationalError] * 2


@pytest.mark.parametrize("steps", range(8))
async def test_cancelled_work_is_whole_or_not_begun_and_the_others_are_done(database, steps):
    async def work(tx, *, jid):
        await add_chat(tx, f"{jid}-1")
        await add_chat(tx, f"{jid}-2")

    tasks = [asyncio.create_task(database.write(partial(work, jid=jid))) for jid in ("a", "b", "c")]
    for _ in range(steps):
        await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[1].cancel()
    await asyncio.wait(tasks)
    await database.write(partial(work, jid="d"))

    names = await names_in(database)
    assert [name for name in names if name[0] in "cd"] == ["c-1", "c-2", "d-1", "d-2"]
    assert len([name for name in names if name[0] == "a"]) in (0, 2)
    assert len([name for name in names if name[0] == "b"]) in (0, 2)
    assert database._waiting == []


async def test_a_transaction_and_shared_work_never_stand_in_one_another(database):
    async def one_by_one(number):
        async with database.transaction() as tx:
            await add_chat(tx, f"t{number}")
            await asyncio.sleep(0)
            raise LookupError

    works = [database.write(partial(add_chat, jid=f"w{n}")) for n in range(6)]
    await asyncio.gather(*works, *(one_by_one(n) for n in range(6)), return_exceptions=True)

    assert await names_in(database) == [f"w{n}" for n in range(6)]


async def test_work_that_waits_for_something_else_is_refused_and_undone(database):
    async def work(tx):
        await add_chat(tx, "a")
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="waited for something else"):
        await database.write(work)

    assert await database.read(jids) == []


async def test_what_follows_a_commit_is_called_in_the_event_loop_and_only_then(database, database_path):
    called = []

    async def work(tx, *, jid):
        await add_chat(tx, jid)
        after_commit(
            tx, lambda: called.append((jid, asyncio.get_running_loop(), read_once(database_path, jids)))
        )
        if jid == "b":
            raise LookupError

    await database.write(partial(work, jid="a"))
    with pytest.raises(LookupError):
        await database.write(partial(work, jid="b"))

    assert called == [("a", asyncio.get_running_loop(), ["a"])]


async def test_a_query_reads_what_is_committed_in_one_call(database, database_path):
    await database.write(partial(add_chat, jid="a"))
    looking = await Database.open_readonly(database_path)
    try:
        assert await database.read(jids) == await looking.read(jids) == ["a"]
        with pytest.raises(StoreError):
            await looking.write(partial(add_chat, jid="b"))
    finally:
        await looking.close()


async def test_foreign_keys_are_enforced(database):
    with pytest.raises(sqlite3.IntegrityError):
        async with database.transaction() as tx:
            await tx.execute(
                "INSERT INTO registered_groups (jid, name, folder, added_ms) VALUES ('nobody', 'x', 'x', 1)"
            )


TURN = "INSERT INTO turns (group_folder, chat_jid, kind, state, queued_ms, not_before_ms) VALUES"
MESSAGE = "INSERT INTO messages (chat_jid, id, sender, sender_name, content, sent_ms, received_ms) VALUES"


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO chats (jid, name, last_message_ms) VALUES ('x', 'x', 'yesterday')",
        f"{TURN} ('x', 'a', 'chat', 'running', 1, 1)",
        f"{TURN} ('x', 'a', 'chat', 'answered', 1, 1)",
        f"{MESSAGE} ('a', 'M', 's', 'S', 'no outcome', 1, 1)",
    ],
)
async def test_the_database_itself_keeps_the_promises(database, statement):
    async with database.transaction() as tx:
        await add_chat(tx, "a")

    with pytest.raises(sqlite3.IntegrityError):
        async with database.transaction() as tx:
            await tx.execute(statement)


async def test_a_step_that_ends_the_transaction_itself_gives_its_own_error(database):
    async def work(tx):
        async with all_or_nothing(tx):
            await add_chat(tx, "a")
            await tx.execute("ROLLBACK")  # as SQLite does by itself on a full disk
            raise sqlite3.OperationalError("database or disk is full")

    with pytest.raises(StoreError, match="disk is full"):
        async with database.transaction() as tx:
            await work(tx)
    with pytest.raises(StoreError, match="disk is full"):
        await database.write(work)
    assert await names_in(database) == []


async def test_a_full_disk_is_an_error_that_names_the_mend(database, database_path):
    async with database.reading() as tx:
        await tx.execute("PRAGMA max_page_count = 1")

    with pytest.raises(StoreError, match="disk space"):
        async with database.transaction() as tx:
            await tx.execute("INSERT INTO chats (jid, name) VALUES ('a', ?)", ("x" * 1_000_000,))


async def test_a_log_that_a_long_reader_holds_is_reported_once_and_cut_off_when_it_has_ended(
    store_harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "WAL_BYTES", 256 * 1024)
    monkeypatch.setattr(write_ahead_log, "ALARM_BYTES", 10_000_000)
    await store_harness.add_group("main", is_main=True)
    path = await store_harness.database.path()
    host = SimpleNamespace(
        home=SimpleNamespace(database=path),
        database=store_harness.database,
        clock=store_harness.clock,
        wakeups=store_harness.wakeups,
    )
    keeper = write_ahead_log.WriteAheadLog(host)  # type: ignore[arg-type]

    async def write(count: int) -> None:
        for _ in range(count):
            async with store_harness.database.transaction() as tx:
                await tx.execute("UPDATE filler SET body = randomblob(1000000)")

    async def notified() -> list[str]:
        rows = await store_harness.rows("SELECT text FROM outbox")
        return [row["text"] for row in rows]

    async with store_harness.database.transaction() as tx:
        await tx.execute("CREATE TABLE filler (body BLOB)")
        await tx.execute("INSERT INTO filler VALUES (randomblob(10))")
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM filler").fetchone()
        await write(5)
        await keeper.check()
        assert databases.wal_bytes(path) > 4_000_000
        assert await notified() == [], "what is small yet may pass by itself"
        await write(10)
        await keeper.check()
        await keeper.check()
        (text,) = await notified()
        assert "another program reads the database" in text
        assert f"sudo fuser {path}" in text
        monkeypatch.setattr(write_ahead_log, "blocked_text", lambda path, size: f"{size} bytes")
        await keeper.check()
        assert len(await notified()) == 1, "another size is no news on the same day"
    await keeper.check()
    assert databases.wal_bytes(path) == 0


async def test_the_log_is_cut_off_though_readers_overlap_without_end(
    store_harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "WAL_BYTES", 256 * 1024)
    path = await store_harness.database.path()
    is_over = threading.Event()

    def read_now_and_then() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as one:
            while not is_over.is_set():
                one.execute("BEGIN")
                one.execute("SELECT count(*) FROM messages").fetchone()
                is_over.wait(0.02)
                one.execute("COMMIT")

    async with store_harness.database.transaction() as tx:
        await tx.execute("CREATE TABLE filler (body BLOB)")
        await tx.execute("INSERT INTO filler VALUES (randomblob(10))")
    readers = [threading.Thread(target=read_now_and_then, name=f"reader-{number}") for number in range(4)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(5):
            async with store_harness.database.transaction() as tx:
                await tx.execute("UPDATE filler SET body = randomblob(1000000)")

        async def is_cut() -> bool:
            return await asyncio.to_thread(databases.cut_log, path)

        await until(is_cut, "the log is cut off")
        assert databases.wal_bytes(path) == 0
    finally:
        is_over.set()
        for reader in readers:
            reader.join()


async def test_the_log_of_a_damaged_database_is_reported_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "WAL_BYTES", 10)
    path = tmp_path / "messages.db"
    path.write_bytes(b"this is no database, but long enough to look at" * 50)
    (tmp_path / "messages.db-wal").write_bytes(b"x" * 11)
    host = SimpleNamespace(home=SimpleNamespace(database=path))

    with pytest.raises(StoreCorrupt, match="andy restore"):
        await write_ahead_log.WriteAheadLog(host).check()  # type: ignore[arg-type]


async def test_the_log_that_grew_beside_a_long_reader_is_cut_off_when_that_has_ended(
    database_path, monkeypatch
):
    limit = 256 * 1024
    monkeypatch.setattr(databases, "WAL_BYTES", limit)
    database = await Database.open(database_path)
    try:

        async def write(count: int) -> None:
            for _ in range(count):
                async with database.transaction() as tx:
                    await tx.execute("UPDATE filler SET body = randomblob(1000000)")

        async with database.transaction() as tx:
            await tx.execute("CREATE TABLE filler (body BLOB)")
            await tx.execute("INSERT INTO filler VALUES (randomblob(10))")
        with closing(sqlite3.connect(database_path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            before = reader.execute("SELECT body FROM filler").fetchone()
            await write(20)
            assert databases.wal_bytes(database_path) > 15 * 1_000_000
            assert reader.execute("SELECT body FROM filler").fetchone() == before, (
                "it reads what it began with"
            )
        await write(2)

        assert databases.wal_bytes(database_path) <= 2 * 1_100_000
        async with database.transaction() as tx:
            await tx.execute("UPDATE filler SET body = x'00'")
    finally:
        await database.close()
