"""The audit grows and nothing else: whoever changes it behind our back is found out."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from dataclasses import asdict
from pathlib import Path

import pytest

from orchestrator.domain.values import Folder, RunId, TurnId
from orchestrator.groups import changes, registration
from orchestrator.ipc.mailbox_worker import MailboxWorker
from orchestrator.ipc.watcher import MailboxWatcher
from orchestrator.reports import audit as reports
from orchestrator.store import audit
from orchestrator.store.database import Database
from tests.support.command_dispatchers import dispatcher_of
from tests.support.store_harness import StoreHarness
from tests.support.until import DEADLINE_SECONDS


async def fill(database: Database, rows: int = 5) -> None:
    for number in range(rows):
        async with database.transaction() as tx:
            event = audit.AuditEvent(
                at_ms=1000 + number,
                kind="api.request",
                folder=Folder("family" if number % 2 else "main"),
                run_id=RunId("r"),
                turn_id=TurnId(number),
                detail={"b": number, "a": "안녕"},
            )
            await audit.append(tx, event)


async def fail_after_a_row(database: Database) -> None:
    async with database.transaction() as tx:
        await audit.append(tx, audit.AuditEvent(at_ms=1, kind="lost"))
        raise RuntimeError


async def verdict(database: Database) -> audit.ChainVerdict:
    async with database.reading() as tx:
        return await audit.verify(tx)


def tamper(path: Path, *statements: str) -> None:
    """What somebody with the file in hands could do."""
    connection = sqlite3.connect(path)
    for name in audit.TRIGGERS:
        connection.execute(
            f"CREATE TEMP TABLE kept_{name} AS SELECT sql FROM sqlite_master WHERE name = '{name}'"
        )
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.execute(statement)
    for name in audit.TRIGGERS:
        (sql,) = connection.execute(f"SELECT sql FROM kept_{name}").fetchone()
        connection.execute(sql)
    connection.commit()
    connection.close()


async def test_an_untouched_chain_is_whole(database: Database) -> None:
    assert await verdict(database) == audit.ChainVerdict(rows=0, head=audit.FIRST_HASH)
    await fill(database)
    found = await verdict(database)
    assert (found.rows, found.fault) == (5, None)
    async with database.reading() as tx:
        rows = await audit.newest(tx, limit=2)
    assert [row["turn"] for row in rows] == [3, 4]
    assert rows[-1]["hash"] == found.head


async def test_a_row_that_was_rolled_back_leaves_no_gap(database: Database) -> None:
    await fill(database, 2)
    with pytest.raises(RuntimeError):
        await fail_after_a_row(database)
    await fill(database, 2)
    assert (await verdict(database)).rows == 4


async def test_who_looks_often_has_what_is_new_read_and_all_of_it_once_in_a_while(
    database: Database, database_path: Path
) -> None:
    await fill(database)
    check = reports.AuditCheck()

    async def look(now_ms: int, *, reads_all: bool = False) -> dict[str, object]:
        async with database.reading() as tx:
            return await check.verify(tx, now_ms=now_ms, reads_all=reads_all)

    assert await look(1) == {**asdict(await verdict(database)), "ok": True, "whole_ms": 1}
    await fill(database, 2)
    found = await look(2)
    assert (found["rows"], found["ok"], found["whole_ms"]) == (7, True, 1)

    tamper(database_path, "UPDATE audit SET detail = '{}' WHERE id = 3")
    assert (await look(3))["ok"], "only what is new was read"
    assert (await look(4, reads_all=True))["fault"] == "row 3 was changed"
    assert (await look(5))["fault"] == "row 3 was changed", "what is broken is not forgotten"


async def test_what_is_wrong_since_the_last_look_is_found_without_reading_all(
    database: Database, database_path: Path
) -> None:
    for sql, fault in {
        "UPDATE audit SET detail = '{}' WHERE id = 7": "row 7 was changed",
        "DELETE FROM audit WHERE id = 5": "row 5 is missing",
        "UPDATE audit SET hash = 'x' WHERE id = 5": "row 5 was changed",
    }.items():
        await fill(database, 5)
        known = await verdict(database)
        await fill(database, 3)
        tamper(database_path, sql)
        async with database.reading() as tx:
            assert (await audit.verify(tx, after=known)).fault == fault
        tamper(database_path, "DELETE FROM audit", "DELETE FROM sqlite_sequence WHERE name = 'audit'")


async def test_all_is_read_again_after_some_minutes(database: Database, database_path: Path) -> None:
    await fill(database)
    check = reports.AuditCheck()
    async with database.reading() as tx:
        await check.verify(tx, now_ms=0)
        tamper(database_path, "UPDATE audit SET detail = '{}' WHERE id = 1")
        assert (await check.verify(tx, now_ms=reports.CHECK_MS))["ok"]
        assert not (await check.verify(tx, now_ms=reports.CHECK_MS + 1))["ok"]


async def test_all_rows_are_read_again_after_the_clock_was_set_back(
    database: Database, database_path: Path
) -> None:
    await fill(database)
    check = reports.AuditCheck()
    async with database.reading() as tx:
        await check.verify(tx, now_ms=10 * reports.CHECK_MS)
        tamper(database_path, "UPDATE audit SET detail = '{}' WHERE id = 1")
        assert not (await check.verify(tx, now_ms=reports.CHECK_MS))["ok"]


@pytest.mark.parametrize("sql", ["UPDATE audit SET detail = '{}'", "DELETE FROM audit WHERE id = 5"])
async def test_rows_can_only_be_added(database: Database, sql: str) -> None:
    await fill(database)
    with pytest.raises(sqlite3.IntegrityError, match="audit rows are never"):
        async with database.transaction() as tx:
            await tx.execute(sql)


@pytest.mark.parametrize(
    ("sql", "fault"),
    [
        ("UPDATE audit SET detail = '{}' WHERE id = 3", "row 3 was changed"),
        ("UPDATE audit SET at_ms = 0 WHERE id = 1", "row 1 was changed"),
        ("UPDATE audit SET group_folder = NULL WHERE id = 5", "row 5 was changed"),
        ("UPDATE audit SET hash = previous_hash WHERE id = 2", "row 2 was changed"),
        ("DELETE FROM audit WHERE id = 1", "row 1 is missing"),
        ("DELETE FROM audit WHERE id = 3", "row 3 is missing"),
        ("DELETE FROM audit WHERE id >= 4", "row 4 is missing"),
        ("DELETE FROM audit", "row 1 is missing"),
    ],
)
async def test_a_changed_or_missing_row_is_found(
    database: Database, database_path: Path, sql: str, fault: str
) -> None:
    await fill(database)
    tamper(database_path, sql)
    assert (await verdict(database)).fault == fault


async def test_rows_that_are_numbered_anew_do_not_fit(database: Database, database_path: Path) -> None:
    await fill(database)
    tamper(
        database_path,
        "DELETE FROM audit WHERE id = 3",
        "UPDATE audit SET id = id - 1 WHERE id > 3",
        "UPDATE sqlite_sequence SET seq = 4 WHERE name = 'audit'",
    )
    assert (await verdict(database)).fault == "row 3 does not follow the row before it"


async def test_a_removed_guard_is_found(database: Database, database_path: Path) -> None:
    await fill(database)
    connection = sqlite3.connect(database_path)
    connection.execute("DROP TRIGGER audit_is_not_deleted")
    connection.close()
    assert (await verdict(database)).fault == "the guard 'audit_is_not_deleted' was removed"


async def test_rows_are_found_by_group_and_time(database: Database) -> None:
    await fill(database)
    async with database.reading() as tx:
        rows = await audit.newest(tx, limit=10, folder=Folder("family"), since_ms=1002)
    assert [row["turn"] for row in rows] == [3]


async def test_a_command_is_written_down_once_with_its_outcome(store_harness: StoreHarness) -> None:
    family = await store_harness.add_group()
    dispatcher = dispatcher_of(store_harness)
    secret = {"type": "message", "text": "a text of the chat", "requestId": "r1"}
    refused = {"type": "refresh_groups", "requestId": "r2"}
    for body in (secret, secret, refused):
        await dispatcher.handle(family, "file", json.dumps(body).encode())
    rows = await store_harness.rows("SELECT * FROM audit WHERE kind <> 'group.registered' ORDER BY id")
    assert [(row["kind"], row["group_folder"]) for row in rows] == [("command", "family")] * 2
    assert [json.loads(row["detail"]) for row in rows] == [
        {"type": "message", "request": "r1", "ok": True, "code": "ok"},
        {"type": "refresh_groups", "request": "r2", "ok": False, "code": "not_allowed"},
    ]
    assert (await verdict(store_harness.database)).fault is None


async def test_who_may_do_what_is_written_down_as_it_changes(store_harness: StoreHarness) -> None:
    await store_harness.add_group(container_config={"egress": "open"})
    async with store_harness.database.transaction() as tx:
        await changes.configure(tx, "family", {"egress": None, "cpus": 1}, by="a test", now_ms=5)
        await registration.unregister(tx, "family", now_ms=6)
    rows = await store_harness.rows("SELECT kind, group_folder, detail FROM audit ORDER BY id")
    assert [(row["kind"], json.loads(row["detail"])) for row in rows] == [
        ("group.registered", {"jid": "local:family", "is_main": False, "config": {"egress": "open"}}),
        (
            "group.configured",
            {"changed": {"egress": None, "cpus": 1.0}, "change": 1, "by": "a test", "undoes": None},
        ),
        ("group.unregistered", {"chats": ["local:family"]}),
    ]
    assert {row["group_folder"] for row in rows} == {"family"}
    assert (await verdict(store_harness.database)).fault is None


async def test_a_registration_that_is_refused_leaves_no_row(store_harness: StoreHarness) -> None:
    await store_harness.add_group()
    with pytest.raises(registration.AlreadyRegistered):
        await store_harness.add_group()
    assert len(await store_harness.rows("SELECT 1 FROM audit")) == 1


async def test_a_letter_that_is_not_understood_is_written_down_without_what_it_held(
    store_harness: StoreHarness, tmp_path: Path
) -> None:
    await store_harness.add_group()
    letters = tmp_path / "family" / "tasks"
    letters.mkdir(parents=True)
    (letters / "1000000000000-aaaa.json").write_text('{"type": "become_main", "note": "a text of the chat"}')
    (letters / "2000000000000-bbbb.json").symlink_to("/etc/passwd")
    watcher = MailboxWatcher(tmp_path)
    post = MailboxWorker(
        tmp_path,
        database=store_harness.database,
        dispatcher=dispatcher_of(store_harness),
        watcher=watcher,
        owner_uids=lambda: frozenset({os.getuid()}),
    )
    async with watcher:
        task = asyncio.create_task(post.run(), name="post")
        try:
            rows = await until_rows(store_harness, 2)
        finally:
            task.cancel()
            await asyncio.wait([task])
    told = {row["kind"]: json.loads(row["detail"]) for row in rows}
    assert told["mailbox.not_understood"]["file"] == "1000000000000-aaaa.json"
    assert told["mailbox.refused"]["file"] == "2000000000000-bbbb.json"
    assert {(each["mailbox"], each["count"]) for each in told.values()} == {("tasks", 1)}
    assert "a text of the chat" not in str(told)
    assert (await verdict(store_harness.database)).fault is None


async def until_rows(store_harness: StoreHarness, count: int) -> list[sqlite3.Row]:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            found = await store_harness.rows("SELECT kind, detail FROM audit WHERE kind LIKE 'mailbox.%'")
            if len(found) >= count:
                return found
            await asyncio.sleep(0.02)
