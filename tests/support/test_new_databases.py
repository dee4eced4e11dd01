"""Databases of tests: one that is new is the migrated one, and what a trial writes is undone."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from orchestrator.store import database as store_database
from orchestrator.store.database import Database
from tests.support.new_databases import prepare_from_nothing
from tests.support.trial_database import TrialConnection, trial_database


def schema_of(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        version = connection.execute("PRAGMA user_version").fetchall()
        return version + connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()


async def test_a_new_database_is_as_the_migrations_make_it(tmp_path: Path) -> None:
    await (await Database.open(tmp_path / "copied.db")).close()
    prepare_from_nothing(tmp_path / "migrated.db")
    assert schema_of(tmp_path / "copied.db") == schema_of(tmp_path / "migrated.db")


async def test_where_a_test_has_other_migrations_a_new_database_gets_those(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_database, "migrations", lambda: ("CREATE TABLE only (x INTEGER) STRICT;",))
    await (await Database.open(tmp_path / "other.db")).close()
    assert [name for name, *_ in schema_of(tmp_path / "other.db")] == [1, "only"]


async def chats(database: Database) -> list[str]:
    async with database.reading() as tx:
        return [row["jid"] for row in await tx.execute_fetchall("SELECT jid FROM chats ORDER BY jid")]


async def add(database: Database, connection: TrialConnection, jid: str) -> None:
    async with database.transaction() as tx:
        await tx.execute("INSERT INTO chats (jid, name) VALUES (?, ?)", (jid, jid))
    assert connection.in_transaction == connection.is_in_trial


async def test_what_a_trial_commits_is_there_in_it_and_gone_after_it(copied_database: Path) -> None:
    async with trial_database(copied_database) as trials:
        await add(trials.database, trials.connection, "before")
        with trials.connection.trial():
            await add(trials.database, trials.connection, "a")
            with suppress(ZeroDivisionError):
                async with trials.database.transaction() as tx:
                    await tx.execute("INSERT INTO chats (jid, name) VALUES ('b', 'b')")
                    raise ZeroDivisionError
            assert await chats(trials.database) == ["a", "before"]
        assert await chats(trials.database) == ["before"]
