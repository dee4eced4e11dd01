"""What is over for long leaves the database for a file a year; what is still needed never does."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent_runner.wire.mailbox import Reply
from orchestrator.backup import retention_job
from orchestrator.backup.retention_job import BATCH, Retention, YearArchive
from orchestrator.domain.dashboard import BoardTaskStatus, Deadline, NotificationStatus
from orchestrator.domain.values import ChatJid, Folder
from orchestrator.home.settings import RETENTION_DAYS
from orchestrator.store import audit, retention
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Database
from orchestrator.store.groups import groups
from orchestrator.store.runs import commands
from tests.support.dashboard_harness import DAY_MS, FEB_9_0830, DashboardHarness, a_question, alert, at, blog
from tests.support.reminders import put_reminder
from tests.support.store_harness import StoreHarness
from tests.support.task_harness import TaskHarness

YEAR = 366
DOCS = Path(__file__).parents[2] / "docs/operations.md"


@pytest.fixture
async def home(store_harness: StoreHarness) -> DashboardHarness:
    await store_harness.add_group("family")
    return DashboardHarness(store_harness)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def keeping(harness: StoreHarness, directory: Path, **days: int) -> Retention:
    return Retention(harness.database, directory, days=RETENTION_DAYS | days, clock=harness.clock)


def archived(directory: Path) -> list[dict[str, Any]]:
    lines = [line for path in sorted(directory.glob("*.jsonl")) for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def modes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}


async def ids(harness: StoreHarness, table: str) -> list[Any]:
    return [row["id"] for row in await harness.rows(f"SELECT id FROM {table} ORDER BY id")]


async def furnish(home: DashboardHarness) -> None:
    """A dashboard on which some is over and some is not."""
    over = {
        "status": BoardTaskStatus.COMPLETED,
        "pct": 100,
        "completed_ms": FEB_9_0830,
        "archived_ms": FEB_9_0830,
    }
    told = {"status": NotificationStatus.DELIVERED}
    await home.put(
        blog(deadline=Deadline(at_ms=at("2030-01-01T09:00"))),
        blog(id="task_over", title="글", **over),
        blog(id="task_asked", **over),
        blog(id="task_told", **over),
        blog(id="task_done", **(over | {"archived_ms": None})),
        a_question(id="q_over", task_id=None, answer="80 %", answered_ms=FEB_9_0830),
        a_question(id="q_of_open", answer="80 %", answered_ms=FEB_9_0830),
        a_question(id="q_open", task_id="task_asked"),
        alert(id="n_1_told", cause="deadline:24h", delivered_ms=FEB_9_0830, **told),
        alert(
            id="n_2_told",
            cause="deadline:24h",
            due_ms=at("2026-02-10T09:00"),
            delivered_ms=FEB_9_0830,
            **told,
        ),
        alert(id="n_over", task_id="task_over", delivered_ms=FEB_9_0830, **told),
        alert(id="n_to_come", task_id="task_told", due_ms=at("2030-01-01T09:00")),
    )


async def test_what_is_over_is_archived_and_what_is_needed_stays(
    home: DashboardHarness, directory: Path
) -> None:
    await furnish(home)
    before = {row["id"]: row for row in await home.harness.rows("SELECT * FROM dashboard_tasks")}
    made = await home.call_tool("schedule_notification", message="Call", scheduled_at="2026-02-09T18:00:00")
    await home.call_tool("cancel_notification", notification_id=made.data["id"], reason="done")
    sweeper = keeping(home.harness, directory)
    assert await sweeper.sweep() == {}
    home.clock.pass_ms(YEAR * DAY_MS)
    assert await sweeper.sweep() == {"notifications": 3, "questions": 1, "dashboard_tasks": 1}
    assert await ids(home.harness, "dashboard_tasks") == ["task_001", "task_asked", "task_done", "task_told"]
    assert await ids(home.harness, "questions") == ["q_of_open", "q_open"]
    assert await ids(home.harness, "notifications") == ["n_2_told", "n_to_come"]
    rows = archived(directory)
    assert {row["id"] for row in rows} == {"n_1_told", "n_over", "q_over", "task_over", made.data["id"]}
    (called,) = (row for row in rows if row["id"] == made.data["id"])
    assert [one["what"] for one in json.loads(called["history_json"])] == ["created", "cancelled"]
    assert {"table": "dashboard_tasks", **before["task_over"]} in rows
    assert modes(directory) == {"2026.jsonl": 0o600}


async def test_a_crash_between_the_file_and_the_database_loses_and_doubles_nothing(
    home: DashboardHarness, directory: Path
) -> None:
    await furnish(home)
    home.clock.pass_ms(YEAR * DAY_MS)
    refuse = "CREATE TRIGGER dying BEFORE DELETE ON notifications BEGIN SELECT RAISE(ABORT, 'killed'); END"
    async with home.harness.database.transaction() as tx:
        await tx.execute(refuse)
    sweeper = keeping(home.harness, directory)
    with pytest.raises(sqlite3.IntegrityError, match="killed"):
        await sweeper.sweep()
    assert len(archived(directory)) == 2
    with (directory / "2026.jsonl").open("a") as file:
        file.write('{"table": "notifications", "id": "n_ha')
    async with home.harness.database.transaction() as tx:
        await tx.execute("DROP TRIGGER dying")
    for again in (sweeper, keeping(home.harness, directory)):
        await again.sweep()
    found = sorted(row["id"] for row in archived(directory))
    assert found == ["n_1_told", "n_over", "q_over", "task_over"]


async def test_a_row_that_was_taken_up_again_meanwhile_stays(
    home: DashboardHarness, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await furnish(home)
    home.clock.pass_ms(YEAR * DAY_MS)
    add, path = YearArchive.add, await home.harness.database.path()

    def add_slowly(archive: YearArchive, table: str, rows: retention.Rows) -> None:
        add(archive, table, rows)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            if table == "dashboard_tasks":
                other.execute("UPDATE dashboard_tasks SET reflection = 'why' WHERE id = 'task_over'")

    monkeypatch.setattr(YearArchive, "add", add_slowly)
    await keeping(home.harness, directory).sweep()
    assert "task_over" in await ids(home.harness, "dashboard_tasks")


async def test_nothing_leaves_while_the_archive_cannot_be_written(
    home: DashboardHarness, directory: Path
) -> None:
    await furnish(home)
    home.clock.pass_ms(YEAR * DAY_MS)
    in_the_way = await home.harness.database.path()
    assert await keeping(home.harness, in_the_way).sweep() == {}
    assert len(await ids(home.harness, "notifications")) == 4


async def test_the_name_of_a_new_file_is_stored_before_rows_leave_also_after_a_failure(
    home: DashboardHarness, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await furnish(home)
    home.clock.pass_ms(YEAR * DAY_MS)
    sync = retention_job._sync
    synced: list[Path] = []

    def fail(directory: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(directory))

    def note(directory: Path) -> None:
        sync(directory)
        synced.append(directory)

    monkeypatch.setattr(retention_job, "_sync", fail)
    assert await keeping(home.harness, directory).sweep() == {}
    monkeypatch.setattr(retention_job, "_sync", note)
    assert await keeping(home.harness, directory).sweep()
    assert synced[0] == directory


async def test_many_rows_leave_in_batches(home: DashboardHarness, directory: Path) -> None:
    many = 2 * BATCH + 1
    told = {"status": NotificationStatus.DELIVERED, "delivered_ms": FEB_9_0830, "task_id": None}
    await home.put(*(alert(id=f"n_{number:04}", **told) for number in range(many)))
    home.clock.pass_ms(YEAR * DAY_MS)
    assert await keeping(home.harness, directory).sweep() == {"notifications": many}
    assert [row["id"] for row in archived(directory)] == [f"n_{number:04}" for number in range(many)]


async def lived(store_harness: StoreHarness) -> TaskHarness:
    """A group that was asked, asked itself, was reminded, and has a text that never arrived."""
    await store_harness.add_group("family")
    home = TaskHarness(store_harness)
    for number in range(3):
        await store_harness.hear(f"@Andy question {number}")
        await store_harness.answer(f"answer {number}")
        await store_harness.deliver_all()
    task_id = await home.schedule("once", "10m")
    await home.after(600_000)
    await home.run_through()
    await store_harness.deliver_all()
    assert (await home.task(task_id)).status == "completed"
    now_ms = store_harness.clock.now_ms()
    async with store_harness.database.transaction() as tx:
        jid, folder = ChatJid("local:family"), Folder("family")
        family = await groups.known(tx, folder)
        for status in (NotificationStatus.DELIVERED, NotificationStatus.PENDING):
            await put_reminder(tx, family, text="x", due_ms=now_ms, now_ms=1, status=status)
        await tx.execute("UPDATE runs SET ended_ms = started_ms, exit_kind = 'closed'")
        await tx.execute(
            "INSERT INTO outbox (group_folder, chat_jid, text, dedupe_key, message_id, state,"
            " next_attempt_ms, created_ms) VALUES ('family', ?, 'lost', 'lost', 'lost', 'dead', 1, 1)",
            (jid,),
        )
        reply = Reply(request_id="request-1", ok=True, code="OK", text="done", data={})
        await commands.record(tx, folder, "remind", reply, now_ms=now_ms)
        await audit.append(tx, audit.AuditEvent(at_ms=now_ms, kind="test"))
    return home


async def count(database: Database, *tables: str) -> dict[str, int]:
    async with database.reading() as tx:
        found = {}
        for table in tables:
            rows = await tx.execute_fetchall(f"SELECT count(*) AS n FROM {table}")
            found[table] = next(iter(rows))["n"]
    return found


async def test_messages_stay_for_ever_and_with_them_the_turns_they_name(
    store_harness: StoreHarness, directory: Path
) -> None:
    home = await lived(store_harness)
    store_harness.clock.pass_ms(3 * YEAR * DAY_MS)
    left = await keeping(store_harness, directory).sweep()
    assert left["outbox"] == 4
    assert (left["notifications"], left["commands"], left["task_run_logs"], left["turns"]) == (1, 2, 1, 1)
    kept = await count(store_harness.database, "messages", "turns", "outbox", "notifications")
    assert kept == {"messages": 7, "turns": 3, "outbox": 1, "notifications": 1}
    async with store_harness.database.reading() as tx:
        assert list(await tx.execute_fetchall("PRAGMA foreign_key_check")) == []
        assert (await audit.verify(tx)).fault is None
        assert await board_notifications.next_due_ms(tx, now_ms=0) is not None
        assert [one.text for one in await outbox.unsent(tx, limit=9)] == ["lost"]
    # The same chat goes on.
    await store_harness.hear("@Andy and now?")
    await store_harness.answer("now this")
    assert await store_harness.deliver_all() == ["now this"]
    await home.schedule("interval", "1h")


async def test_messages_leave_when_their_owner_says_so_and_turns_and_runs_after_them(
    store_harness: StoreHarness, directory: Path
) -> None:
    await lived(store_harness)
    for number in range(501):
        await store_harness.hear(f"talk {number}")
    store_harness.clock.pass_ms(3 * YEAR * DAY_MS)
    left = await keeping(store_harness, directory, messages=30).sweep()
    assert (left["messages"], left["turns"]) == (7, 4)
    assert left["runs"] >= 1
    assert {row["table"] for row in archived(directory)} >= {"messages", "turns", "runs", "outbox"}
    async with store_harness.database.reading() as tx:
        assert list(await tx.execute_fetchall("PRAGMA foreign_key_check")) == []
    await store_harness.hear("@Andy and now?")
    await store_harness.answer("now this")
    assert await store_harness.deliver_all() == ["now this"]


async def test_the_rest_of_a_text_stays_as_long_as_the_part_that_could_not_be_sent(
    store_harness: StoreHarness, directory: Path
) -> None:
    await store_harness.add_group("family")
    async with store_harness.database.transaction() as tx:
        await outbox.add(
            tx, chat_jid=ChatJid("local:family"), text="a long text", dedupe_key="long", now_ms=1
        )
        (whole,) = await outbox.unsent(tx, limit=9)
        await outbox.split(tx, whole, ["a", "long", "text"])
        await tx.execute(
            "UPDATE outbox SET state = CASE part WHEN 0 THEN 'dead' ELSE 'skipped' END,"
            " error = CASE part WHEN 0 THEN 'blocked' ELSE ? END",
            (outbox.REST_OF_UNSENT,),
        )
    store_harness.clock.pass_ms(YEAR * DAY_MS)
    assert await keeping(store_harness, directory).sweep() == {}
    async with store_harness.database.transaction() as tx:
        assert await outbox.revive(tx, whole.id, now_ms=store_harness.clock.now_ms())
    assert await store_harness.deliver_all() == ["a", "long", "text"]
    store_harness.clock.pass_ms(YEAR * DAY_MS)
    assert (await keeping(store_harness, directory).sweep())["outbox"] == 2


async def test_zero_days_is_for_ever(home: DashboardHarness, directory: Path) -> None:
    await furnish(home)
    home.clock.pass_ms(9 * YEAR * DAY_MS)
    assert await keeping(home.harness, directory, **dict.fromkeys(RETENTION_DAYS, 0)).sweep() == {}
    assert archived(directory) == []


def test_each_table_has_its_days_and_the_docs_tell_them() -> None:
    assert {policy.table for policy in retention.POLICIES} == set(RETENTION_DAYS)
    text = DOCS.read_text()
    for table, days in RETENTION_DAYS.items():
        assert f"| `{table}` | {days or 'for ever'} |" in text
