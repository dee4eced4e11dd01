"""The compatibility files: out and in again, hand-edited ones, older ones and broken ones."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.dashboard.delivery.outcomes import DeliveryOutcomes
from orchestrator.dashboard.files import export
from orchestrator.dashboard.files.export import DashboardExporter
from orchestrator.domain.dashboard import (
    Actor,
    BoardTaskStatus,
    Category,
    Deadline,
    Insight,
    NotificationStatus,
    Person,
    Project,
)
from orchestrator.domain.errors import ImportRefused
from orchestrator.domain.values import Folder, TurnKind
from orchestrator.store.board import dashboards
from orchestrator.store.board import knowledge as board_knowledge
from orchestrator.store.conversation import outbox
from orchestrator.store.groups import groups
from orchestrator.web.api.reminders import NewReminder, ReminderHandler
from tests.support.dashboard_harness import (
    DAY_MS,
    FEB_9_0830,
    FEB_9_1800,
    FOLDER,
    MINUTE_MS,
    DashboardHarness,
    a_question,
    alert,
    at,
    blog,
)
from tests.support.notification_harness import NotificationHarness
from tests.support.reminders import notifier, put_reminder
from tests.support.store_harness import SEOUL, StoreHarness
from tests.support.until import until

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
async def home(store_harness: StoreHarness) -> DashboardHarness:
    await store_harness.add_group("family")
    await store_harness.add_group("bees")
    return DashboardHarness(store_harness)


async def furnish(home: DashboardHarness) -> None:
    await home.put(
        blog(
            tags=("blog", "글"), context="two\nlines 👩‍👩‍👧", recurring={"enabled": True, "days_of_week": [0]}
        ),
        blog(id="task_002", deadline=Deadline(at_ms=at("2026-02-12T18:00"), text="thursday evening")),
        blog(id="task_003", deadline=None, blocked_ms=FEB_9_0830 - DAY_MS, blocker_note="waits"),
        blog(id="task_004", status=BoardTaskStatus.COMPLETED, pct=100, completed_ms=FEB_9_0830),
        blog(id="task_005", status=BoardTaskStatus.CANCELLED, archived_ms=FEB_9_0830),
        a_question(),
        a_question(
            id="q_002",
            answer="80 %",
            answered_ms=FEB_9_0830,
            created_by=Actor.MAIN_AGENT,
            options=("80 %", "all"),
        ),
        a_question(id="q_003", closed_ms=FEB_9_0830, closed_reason="gone"),
        alert(cause="deadline:24h", due_text="tomorrow 9am"),
        alert(id="n_002", status=NotificationStatus.SENDING, due_ms=FEB_9_1800),
        alert(id="n_003", status=NotificationStatus.FAILED, error="no line", context="why"),
        alert(id="n_004", status=NotificationStatus.EXPIRED),
        alert(id="n_005", status=NotificationStatus.DELIVERED, delivered_ms=FEB_9_0830),
        alert(id="n_006", status=NotificationStatus.CANCELLED, cancelled_ms=FEB_9_0830, cancel_reason="no"),
    )
    await home.call_tool("update_task", task_id="task_004", progress=100)
    await home.call_tool("move_to_history", task_id="task_004", reflection="plan more")
    await home.call_tool("save_insight", content="Blogs take a week", category="work", tags=["blog"])


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*.json")}


async def test_at_45_what_is_exported_comes_in_and_out_again_to_the_byte(
    home: DashboardHarness, tmp_path: Path
) -> None:
    await furnish(home)
    first, second = tmp_path / "first", tmp_path / "second"
    assert len(await home.service.export("family", first)) == 6
    (first / "knowledge/people.json").write_text(
        json.dumps(
            {"version": "1.0", "people": [{"id": "p_1", "name": "Jane", "role": "friend"}]},
            ensure_ascii=False,
            indent=2,
        )
        + "\n"
    )
    taken = await home.service.import_from("bees", first)
    assert (taken.notes, taken.change_lines()) == ([], []), "what was written here comes in as it is"
    await home.service.export("bees", second)
    assert contents(second) == contents(first)


async def know(home: DashboardHarness) -> None:
    """What only files bring, and an insight whose id is not chance's."""
    async with home.harness.database.transaction() as tx:
        links = {"people": ["p_1"], "mine": {"n": 1.5, "none": []}}
        insight = {"category": Category.TECH, "title": "T", "content": '\u2028 \\ \x01 "q" 🐝'}
        await board_knowledge.add_insight(
            tx,
            Insight(
                folder=FOLDER, id="i_1", content_hash="1", links=links, created_ms=FEB_9_0830 - 1, **insight
            ),
        )
        await board_knowledge.put_person(tx, Person(folder=FOLDER, id="p_1", body={"id": "p_1", "x": {}}))
        await board_knowledge.put_project(tx, Project(folder=FOLDER, id="o_1", body={"id": "o_1", "y": []}))


async def test_the_files_are_to_the_byte_what_they_always_were(
    home: DashboardHarness, tmp_path: Path
) -> None:
    await home.put(
        blog(tags=("글",), context="two\nlines 👩‍👩‍👧", recurring={"enabled": True, "days_of_week": [0]}),
        blog(id="task_002", deadline=Deadline(at_ms=at("2026-02-12T18:00"), text="thursday evening")),
        blog(id="task_003", deadline=None, blocked_ms=FEB_9_0830 - DAY_MS, blocker_note="waits"),
        blog(id="task_006", user_set={"title": FEB_9_0830}, extra={"size": {"w": 1}}, created_ms=-1),
        blog(
            id="task_004",
            status=BoardTaskStatus.COMPLETED,
            pct=100,
            completed_ms=FEB_9_0830,
            archived_ms=FEB_9_1800,
        ),
        blog(
            id="task_005", status=BoardTaskStatus.CANCELLED, archived_ms=FEB_9_0830, estimation={"hours": 2}
        ),
        a_question(),
        a_question(id="q_002", answer="80 %", answered_ms=FEB_9_0830, processed_ms=FEB_9_1800),
        a_question(id="q_003", closed_ms=FEB_9_0830, closed_reason="gone"),
        alert(cause="deadline:24h", due_text="tomorrow 9am"),
        alert(id="n_002", status=NotificationStatus.SENDING, due_ms=FEB_9_1800),
        alert(id="n_003", status=NotificationStatus.FAILED, error="no line", context="why"),
        alert(id="n_004", status=NotificationStatus.EXPIRED),
        alert(id="n_005", status=NotificationStatus.DELIVERED, delivered_ms=FEB_9_0830),
        alert(id="n_006", status=NotificationStatus.CANCELLED, cancelled_ms=FEB_9_0830, cancel_reason="no"),
    )
    await know(home)
    await home.service.export("family", tmp_path)
    assert contents(tmp_path) == contents(GOLDEN)


async def test_an_export_encodes_only_what_changed_since_the_last(
    home: DashboardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await furnish(home)
    path = await home.harness.database.path()
    first = export.read(path, FOLDER, SEOUL)
    assert first is not None
    async with home.harness.database.transaction() as tx:
        await tx.execute("UPDATE questions SET asked_count = 7 WHERE id = 'q_001'")
    encoded: list[Any] = []
    encode = export._indented
    monkeypatch.setattr(export, "_indented", lambda row: encoded.append(row["id"]) or encode(row))
    second = export.read(path, FOLDER, SEOUL, first.texts)
    assert second is not None
    assert encoded == ["q_001"]
    assert '"asked_count": 7' in second.contents["questions.json"]
    fresh = export.read(path, FOLDER, SEOUL)
    assert fresh is not None
    assert fresh.contents == second.contents
    assert fresh.contents["questions.json"] != first.contents["questions.json"]


async def test_an_export_is_of_one_moment_and_waits_for_no_transaction(home: DashboardHarness) -> None:
    await home.put(blog())
    path = await home.harness.database.path()
    async with home.harness.database.transaction() as tx:
        await tx.execute("UPDATE dashboard_tasks SET title = 'half done'")
        found = await asyncio.to_thread(export.read, path, FOLDER, SEOUL)
    assert found is not None
    assert "Write blog post" in found.contents["tasks.json"]
    assert export.read(path, Folder("nobody"), SEOUL) is None


async def test_the_files_are_as_other_programs_know_them(home: DashboardHarness, tmp_path: Path) -> None:
    await furnish(home)
    await home.service.export("family", tmp_path)
    files = {name: json.loads(body) for name, body in contents(tmp_path).items()}
    tasks = {task["id"]: task for task in files["tasks.json"]["tasks"]}
    assert files["tasks.json"]["version"] == "1.0"
    assert set(tasks) == {"task_001", "task_002", "task_003"}
    assert tasks["task_001"]["deadline"] == "2026-02-10"
    assert tasks["task_002"]["deadline"] == "2026-02-12T18:00:00"
    assert tasks["task_001"]["progress"]["last_update"] == "2026-02-09T07:30:00"
    told = {one["id"]: one for one in files["notifications.json"]["notifications"]}
    assert {name: one["status"] for name, one in told.items()} == {
        "n_001": "pending",
        "n_002": "pending",
        "n_003": "cancelled",
        "n_004": "cancelled",
        "n_005": "delivered",
        "n_006": "cancelled",
    }
    assert told["n_003"]["context"] == "why\nFailed: no line"
    assert (told["n_001"]["cron_job_id"], told["n_005"]["cron_job_id"]) == ("001", None)
    past = {one["id"]: one for one in files["knowledge/history.json"]["completed_tasks"]}
    assert past["task_004"]["duration_days"] == 5
    assert past["task_004"]["moved_at"] == "2026-02-09T08:30:00"
    assert [one["id"] for one in files["questions.json"]["questions"]] == ["q_001", "q_002"]
    assert "글" in (tmp_path / "tasks.json").read_text(encoding="utf-8")


async def test_the_older_shapes_are_taken(home: DashboardHarness, tmp_path: Path) -> None:
    old = {
        "tasks.json": {
            "version": "1.0",
            "tasks": [
                {"id": "task_001", "title": "Blog", "deadline": "2026-02-10", "progress": {"percentage": 70}},
                {
                    "id": "task_9",
                    "title": "Old",
                    "status": "archived",
                    "updated_at": "2026-02-01T10:00:00.123",
                },
                {"id": "task_8", "title": "Zone", "created_at": "2026-02-01T10:00:00+01:00", "tags": None},
            ],
        },
        "notifications.json": [
            {"id": "n_1", "message": "x", "scheduled_at": "2026-02-09T18:00:00", "type": "completion_check"}
        ],
        "knowledge/insights.json": {
            "insights": [
                {"id": "i_1", "content": "same", "category": "general"},
                {"id": "i_2", "content": "Same", "category": "work"},
            ]
        },
    }
    for name, document in old.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("\ufeff" + json.dumps(document), encoding="utf-8")
    taken = await home.service.import_from("family", tmp_path)
    assert taken.counts()["insights"] == 1
    assert taken.notes == ["i_2: says the same as i_1"]
    assert taken.change_lines() == [
        "created_at was missing: the time of the import (task_001, task_9, n_1 and 1 more)",
        "status archived: completed, and in the history (task_9)",
        "completed_at was missing: the last change of the task (task_9)",
        "type completion_check: progress_check (n_1)",
        "category general: life (i_1)",
    ]
    assert (await home.task("task_9")).archived_ms == at("2026-02-01T10:00:00") + 123
    assert (await home.task("task_8")).created_ms == at("2026-02-01T18:00:00")
    assert (await home.notification("n_1")).type.value == "progress_check"


async def test_what_an_import_reads_otherwise_is_named(home: DashboardHarness, tmp_path: Path) -> None:
    made = {"created_at": "2026-02-01T09:00:00", "updated_at": "2026-02-02T09:00:00"}
    finished = {"status": "completed", "completed_at": "2026-02-02T09:00:00"}
    half = {"percentage": 80, "blocked": True, "blocker_note": "Bo"}
    documents = {
        "tasks.json": {
            "tasks": [
                *({"id": f"t_{n}", "title": "x", "progress": half, **finished, **made} for n in range(5)),
                {"id": "t_7", "title": " x ", "deadline_text": "soon", **made},
                {"id": "t_8", "title": "x", "completed_at": made["updated_at"], **made},
                {"id": "t_9", "title": "x", "progress": {"blocker_note": "Bo"}, **made},
            ]
        },
        "questions.json": [{"id": "q_1", "question": "?", "answer": "no", **made}],
        "notifications.json": [
            {"id": "n_1", "message": "x", "scheduled_at": "2026-02-09", "status": "sending", **made},
            {"id": "n_2", "message": "x", "scheduled_at": "2026-02-09", "status": "delivered", **made},
            {"id": "n_3", "message": "x", "scheduled_at": "2026-02-09", "cron_job_id": "5d5cd3f5", **made},
            {"id": "n_abc", "message": "y", "scheduled_at": "2026-02-09", "cron_job_id": "abc", **made},
        ],
    }
    for name, document in documents.items():
        (tmp_path / name).write_text(json.dumps(document))
    taken = await home.service.import_from("family", tmp_path)
    assert taken.change_lines() == [
        "percentage of a completed task: 100 (t_0, t_1, t_2 and 2 more)",
        "blocked: a completed task is not (t_0, t_1, t_2 and 2 more)",
        "deadline_text without a deadline: left out (t_7)",
        "title: space around it or its line ends (t_7)",
        "completed_at: left out of a task that is not completed (t_8)",
        "blocker_note: left out where nothing blocks (t_9)",
        "answer: left out of a question that is not answered (q_1)",
        "status sending: pending (n_1)",
        "delivered_at was missing: when it was due (n_2)",
        "cron_job_id: left out, for a notification needs no job (n_3)",
    ]
    again = await home.service.import_from("family", tmp_path)
    assert again.change_lines() == [], "nothing was taken"


TWO_TASKS: dict[str, Any] = {"tasks": [{"id": "task_1", "title": "x"}, {"id": "task_2", "title": "y"}]}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"title": ""}, "tasks[2]: title is empty"),
        ({"title": 7}, "tasks[2]: title: is no text"),
        ({"title": "x" * 201}, "201 characters"),
        ({"title": "a\x00b"}, "control character U+0000"),
        ({"id": "task_1"}, "id: task_1 is there twice"),
        ({"id": None}, "id: is missing"),
        ({"deadline": "2026-02-30"}, "deadline: "),
        ({"deadline": "soon-ish"}, "deadline: 'soon-ish' is no ISO time"),
        ({"status": "paused"}, "status: 'paused' is unknown"),
        ({"progress": {"percentage": 101}}, "percentage: '101' is no number from 0 to 100"),
        ({"progress": [1]}, "progress: is no object"),
        ({"created_at": "9999-99-99"}, "created_at"),
        ({"created_at": "0001-01-01T00:00"}, "created_at: is before the year 2"),
        ({"deadline": "0001-01-01"}, "deadline: is before the year 2"),
        ({"deadline": "9999-12-31"}, "deadline: is before the year 2 or after 9998"),
        ({"tags": [1]}, "tags: is no list of texts"),
        ({"status": ["active"]}, "status: is no text"),
        ({"links": {"a": "\ud83d"}}, "tasks[2]: has a value that cannot be stored: "),
        ({"recurring": {"a": float("nan")}}, "has a value that cannot be stored: "),
        ({"links": {"a": json.loads("[" * 500 + "]" * 500)}}, "has a value that cannot be stored: "),
    ],
)
async def test_at_34_a_row_that_does_not_fit_is_named_and_nothing_is_taken(
    home: DashboardHarness, tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    tasks = [TWO_TASKS["tasks"][0], TWO_TASKS["tasks"][1] | changes]
    (tmp_path / "tasks.json").write_text(json.dumps({"tasks": tasks}))
    with pytest.raises(ImportRefused) as refused:
        await home.service.import_from("family", tmp_path)
    assert problem in str(refused.value)
    assert await home.harness.rows("SELECT * FROM dashboards") == []


async def test_at_34_a_completed_task_cannot_last_longer_than_the_calendar(
    home: DashboardHarness, tmp_path: Path
) -> None:
    (tmp_path / "knowledge").mkdir()
    ended = {"id": "task_1", "title": "x", "completed_at": "0050-01-01T00:00", "duration_days": 36_500}
    (tmp_path / "knowledge/history.json").write_text(json.dumps({"completed_tasks": [ended]}))
    with pytest.raises(ImportRefused, match="duration_days: is before the year 2"):
        await home.service.import_from("family", tmp_path)


async def test_a_task_with_an_imported_time_of_day_that_is_none_can_be_changed(
    home: DashboardHarness,
) -> None:
    await home.put(blog(recurring={"enabled": True, "days_of_week": [0], "check_time": 1800}))
    unchanged = await home.service.call_tool("family", "set_recurring", {"task_id": "task_001"})
    assert unchanged.ok
    assert unchanged.text.endswith("at 1800.")
    changed = await home.service.call_tool(
        "family", "set_recurring", {"task_id": "task_001", "check_time": "18:00"}
    )
    assert changed.ok


async def test_a_dashboard_that_cannot_be_written_keeps_no_other_from_its_files(
    home: DashboardHarness, tmp_path: Path
) -> None:
    await home.put(blog(created_ms=-(10**15)), blog(folder=Folder("bees")))
    exporter = DashboardExporter(
        tmp_path, home.harness.database, bus=home.harness.bus, zone_of=lambda _: SEOUL
    )
    (tmp_path / "family").mkdir()
    (tmp_path / "bees").mkdir()
    await exporter.write_all()
    assert (tmp_path / "bees/dashboard/tasks.json").exists()
    assert not (tmp_path / "family/dashboard").exists()


@pytest.mark.parametrize(
    ("due", "queued", "notes"),
    [("2026-02-09T20:00", ["pay", "pay"], []), ("2026-02-09T08:31", ["pay"], ["was sent already"])],
)
async def test_a_sent_reminder_that_is_imported_as_pending_is_sent_again_only_at_a_later_time(
    home: DashboardHarness, tmp_path: Path, due: str, queued: list[str], notes: list[str]
) -> None:
    harness = home.harness
    async with harness.database.transaction() as tx:
        group = await groups.known(tx, FOLDER)
        now_ms = harness.clock.now_ms()
        await put_reminder(tx, group, text="pay", due_ms=now_ms + MINUTE_MS, now_ms=now_ms)
    await home.service.export("family", tmp_path)
    harness.clock.pass_ms(MINUTE_MS)
    await notifier(harness).send_due()
    async with harness.database.transaction() as tx:
        now_ms = harness.clock.now_ms()
        await tx.execute("UPDATE outbox SET state = 'sent', sent_ms = ?", (now_ms,))
    files = json.loads((tmp_path / "notifications.json").read_text())
    files["notifications"][0]["scheduled_at"] = due
    (tmp_path / "notifications.json").write_text(json.dumps(files))
    taken = await home.service.import_from("family", tmp_path, replaces=True)
    assert [note.split(": ")[1] for note in taken.notes] == notes
    harness.clock.pass_ms(DAY_MS // 2)
    await notifier(harness).send_due()
    sent = await harness.rows("SELECT text FROM outbox ORDER BY id")
    assert [row["text"].removesuffix(" (late)") for row in sent] == queued


@pytest.mark.parametrize("state", ["held", "pending", "sending"])
async def test_a_reminder_whose_message_still_waits_is_sent_once_when_it_is_imported(
    home: DashboardHarness, tmp_path: Path, state: str
) -> None:
    harness = home.harness
    async with harness.database.transaction() as tx:
        group = await groups.known(tx, FOLDER)
        now_ms = harness.clock.now_ms()
        await put_reminder(tx, group, text="pay", due_ms=now_ms + MINUTE_MS, now_ms=now_ms)
    harness.clock.pass_ms(MINUTE_MS)
    await notifier(harness).send_due()
    async with harness.database.transaction() as tx:
        await tx.execute("UPDATE outbox SET state = ?", (state,))
    await home.service.export("family", tmp_path)
    await home.service.import_from("family", tmp_path, replaces=True)
    # The messenger answers before the dispatcher looks again.
    if state == "sending":
        (waiting,) = await harness.outgoing()
        async with harness.database.transaction() as tx:
            await tx.execute("UPDATE outbox SET state = 'sent', sent_ms = ?", (harness.clock.now_ms(),))
            await DeliveryOutcomes(wakeup=harness.wakeups.notifications).note_sent(
                tx, waiting, now_ms=harness.clock.now_ms()
            )
    await notifier(harness).send_due()
    rows = await harness.rows("SELECT state FROM outbox")
    assert [row["state"] for row in rows] == ["sent" if state == "sending" else "pending"]


async def test_a_reminder_that_is_imported_is_sent_though_its_message_waits_in_front(
    home: DashboardHarness, tmp_path: Path
) -> None:
    harness = home.harness
    async with harness.database.transaction() as tx:
        group = await groups.known(tx, FOLDER)
        now_ms = harness.clock.now_ms()
        await put_reminder(tx, group, text="pay", due_ms=now_ms + MINUTE_MS, now_ms=now_ms)
    harness.clock.pass_ms(MINUTE_MS)
    await notifier(harness).send_due()
    await home.service.export("family", tmp_path)
    await home.service.import_from("family", tmp_path, replaces=True)
    sending = NotificationHarness(harness)
    async with sending.delivering():
        # The messenger comes to the message before the dispatcher claims its reminder.
        harness.wakeups.outbox.set()
        await sending.until_quiet()
        await notifier(harness).send_due()
        harness.wakeups.outbox.set()
        await sending.until_quiet()
    assert sending.channel.texts() == ["pay"]


async def test_a_reminder_that_is_imported_gets_its_message_and_no_further_part_of_it(
    home: DashboardHarness, tmp_path: Path
) -> None:
    harness = home.harness
    async with harness.database.transaction() as tx:
        group = await groups.known(tx, FOLDER)
        now_ms = harness.clock.now_ms()
        await put_reminder(tx, group, text="pay", due_ms=now_ms + MINUTE_MS, now_ms=now_ms)
    harness.clock.pass_ms(MINUTE_MS)
    await notifier(harness).send_due()
    async with harness.database.transaction() as tx:
        await tx.execute("UPDATE outbox SET dedupe_key = dedupe_key || ':token'")
    (first,) = await harness.outgoing()
    async with harness.database.transaction() as tx:
        await outbox.split(tx, first, ("pay", "the rent"))
    await home.service.export("family", tmp_path)
    await home.service.import_from("family", tmp_path, replaces=True)
    assert await harness.rows("SELECT outbox_id FROM notifications") == [{"outbox_id": first.id}]


async def test_at_34_a_broken_file_is_told_by_line_and_column(home: DashboardHarness, tmp_path: Path) -> None:
    await home.put(blog())
    before = await home.task("task_001")
    (tmp_path / "tasks.json").write_text('{"version": "1.0",\n "tasks": [{"id": "task_1", oops]}')
    with pytest.raises(ImportRefused, match=r"tasks\.json: line 2 column 29"):
        await home.service.import_from("family", tmp_path, replaces=True)
    with pytest.raises(ImportRefused, match="There is no directory"):
        await home.service.import_from("family", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ImportRefused, match="There is none of tasks"):
        await home.service.import_from("family", tmp_path / "empty")
    assert await home.task("task_001") == before


async def test_an_export_comes_back_beside_what_is_there_and_replaces_it_only_on_request(
    home: DashboardHarness, tmp_path: Path
) -> None:
    await furnish(home)
    await home.service.export("family", tmp_path)
    await home.call_tool("update_task", task_id="task_001", progress=99)
    async with home.harness.database.transaction() as tx:
        await tx.execute("DELETE FROM dashboard_tasks WHERE id = 'task_002'")
    taken = await home.service.import_from("family", tmp_path)
    assert {name: count for name, count in taken.counts().items() if count} == {"tasks": 1}
    (note,) = taken.notes
    assert note.startswith("13 rows are on the dashboard already and stay as they are there: give --replace")
    assert (await home.task("task_001")).pct == 99
    assert (await home.task("task_002")).deadline == Deadline(
        at_ms=at("2026-02-12T18:00"), text="thursday evening"
    )
    await home.service.import_from("family", tmp_path, replaces=True)
    assert (await home.task("task_001")).pct == 70


async def test_what_a_dashboard_has_under_another_id_is_left_out_and_told(
    home: DashboardHarness, tmp_path: Path
) -> None:
    await furnish(home)
    await home.service.export("family", tmp_path)
    async with home.harness.database.transaction() as tx:
        await tx.execute("UPDATE notifications SET id = 'n_live' WHERE id = 'n_001'")
        await tx.execute("UPDATE insights SET id = 'i_live'")
    before = await home.harness.rows("SELECT id FROM notifications ORDER BY id")
    taken = await home.service.import_from("family", tmp_path)
    assert taken.notes[0] == "n_001: n_live is to come for the same cause, deadline:24h"
    assert taken.notes[1].endswith(": says the same as i_live")
    assert await home.harness.rows("SELECT id FROM notifications ORDER BY id") == before


async def test_the_files_follow_the_dashboard_and_edits_to_them_change_nothing(
    home: DashboardHarness, tmp_path: Path
) -> None:
    (tmp_path / "family").mkdir()
    path = tmp_path / "family/dashboard/tasks.json"
    exporter = DashboardExporter(
        tmp_path, home.harness.database, bus=home.harness.bus, zone_of=lambda _: SEOUL, pause_seconds=0
    )
    running = asyncio.create_task(exporter.run(), name="exporter")
    try:
        made = await home.call_tool("create_task", title="Write the blog")
        await until(lambda: path.exists() and made.data["id"] in path.read_text(), "the task is in the file")
        path.write_text('{"tasks": []}')
        await home.call_tool("update_task", task_id=made.data["id"], progress=80)
        await until(lambda: '"percentage": 80' in path.read_text(), "its progress is in the file")
        assert path.stat().st_mode & 0o777 == 0o644
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    async with home.harness.database.reading() as tx:
        board = await dashboards.get(tx, FOLDER)
    assert board is not None
    assert (await home.task(made.data["id"])).pct == 80
    assert [name for name in contents(tmp_path) if "partial" in name] == []


@pytest.mark.parametrize("way", ["chat", "owner", "tool"])
async def test_the_file_of_notifications_follows_a_reminder_at_once(
    home: DashboardHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(export, "SWEEP_SECONDS", None)  # so that only a hint has it look again
    (tmp_path / "family").mkdir()
    path = tmp_path / "family/dashboard/notifications.json"
    harness = home.harness
    exporter = DashboardExporter(
        tmp_path, harness.database, bus=harness.bus, zone_of=lambda _: SEOUL, pause_seconds=0
    )
    owner = ReminderHandler(
        harness.database,
        service=home.service.reminders,
        clock=home.clock,
    )
    await home.put(blog())
    async with asyncio.TaskGroup() as tasks:
        loops = [
            tasks.create_task(exporter.run(), name="exporter"),
            tasks.create_task(notifier(harness).run(), name="notifications"),
        ]
        await until(path.exists, "the board is written")
        match way:
            case "chat":
                async with home.turn(TurnKind.CHAT):
                    body = {"type": "set_reminder", "text": "Water!", "at": "2h"}
                    assert (await home.ask_raw(body)).ok
            case "owner":
                await owner.add(NewReminder(group="family", text="Water!", at="in 2 hours"))
            case "tool":
                await home.chat("schedule_notification", message="Water!", scheduled_at="in 2 hours")
        await until(lambda: "Water!" in path.read_text(), "the reminder is in the file")
        (row,) = await home.harness.rows("SELECT number FROM notifications")
        await owner.move(str(row["number"]), "2026-02-10T10:00")
        await until(lambda: "2026-02-10T10:00:00" in path.read_text(), "its new time is in the file")
        for loop in loops:
            loop.cancel()


async def test_changes_that_come_while_files_are_written_are_written_together(
    home: DashboardHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = asyncio.Semaphore(0)
    written: list[Path] = []
    write = export.write
    monkeypatch.setattr(export, "write", lambda to, files: (written.append(to), write(to, files)))
    exporter = DashboardExporter(
        tmp_path, home.harness.database, bus=home.harness.bus, zone_of=lambda _: SEOUL
    )
    monkeypatch.setattr(exporter, "pause", lambda _: pauses.acquire())
    (tmp_path / "family").mkdir()
    await home.put(blog())
    running = asyncio.create_task(exporter.run(), name="exporter")
    try:
        await until(lambda: len(written) == 1, "it is written at once")
        for number in range(20):
            await home.call_tool("update_task", task_id="task_001", progress=71 + number)
        pauses.release()
        path = tmp_path / "family/dashboard/tasks.json"
        await until(path.exists, "the first is there")
        await until(lambda: '"percentage": 90' in path.read_text(), "the last change is written")
        pauses.release()
        await home.call_tool("update_task", task_id="task_001", progress=91)
        await until(lambda: '"percentage": 91' in path.read_text(), "the next change is written")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert len(written) == 3
