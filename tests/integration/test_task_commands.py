"""What agents may ask about tasks, through the real reception, and what they are shown."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from orchestrator.domain.errors import TaskRefused
from orchestrator.domain.values import Folder, Group, TaskStatus
from orchestrator.ipc import snapshots
from orchestrator.ipc.snapshots import SnapshotWriter
from orchestrator.scheduler import scheduled_task_service
from orchestrator.scheduler.scheduled_task_service import MAX_OPEN
from orchestrator.store.database import Tx
from orchestrator.store.runs import commands
from orchestrator.store.schedule import followed_calendars
from orchestrator.store.schedule.followed_calendars import CalendarEvent, FollowedCalendar
from tests.support.store_harness import StoreHarness
from tests.support.task_harness import HOUR_MS, MINUTE_MS, TaskHarness
from tests.support.until import until

NEEDS_ID = ("update_task", "pause_task", "resume_task", "cancel_task", "run_task")


@pytest.fixture
async def home(store_harness: StoreHarness) -> TaskHarness:
    await store_harness.add_group("main", is_main=True)
    await store_harness.add_group("family")
    await store_harness.add_group("bees")
    return TaskHarness(store_harness)


async def test_the_agent_is_given_the_id_and_the_time(home: TaskHarness) -> None:
    reply = await home.ask(
        "schedule_task", prompt="news", schedule_type="cron", schedule_value="0  9 * * mon-fri"
    )
    assert reply.ok
    assert reply.data["id"] in reply.text
    assert "09:00 (Asia/Seoul)" in reply.text
    assert reply.data["schedule_value"] == "0 9 * * mon-fri"
    assert reply.data["next_run"].endswith("T09:00:00+09:00")
    assert reply.data["groupFolder"] == "family"
    behaviour = {name: reply.data[name] for name in ("dst", "overlap", "catch_up", "context_mode")}
    assert behaviour == {"dst": "once", "overlap": "skip", "catch_up": "latest", "context_mode": "isolated"}


async def test_a_request_that_comes_again_makes_no_second_task(home: TaskHarness) -> None:
    asked = {"prompt": "news", "schedule_type": "interval", "schedule_value": "1h", "requestId": "same"}
    first = await home.ask("schedule_task", **asked)
    home.harness.clock.pass_ms(HOUR_MS)
    assert await home.ask("schedule_task", **asked) == first
    listed = await home.ask("list_tasks")
    assert [task["id"] for task in listed.data["tasks"]] == [first.data["id"]]


@pytest.mark.parametrize(
    ("changes", "code", "told"),
    [
        ({"schedule_type": "once", "schedule_value": "2020-01-01T09:00"}, "bad_time", "past"),
        ({"schedule_type": "daily"}, "bad_schedule", "cron, interval or once"),
        ({"schedule_type": "interval", "schedule_value": "59s"}, "bad_schedule", "60 s"),
        ({"schedule_type": "interval", "schedule_value": "5m x"}, "bad_schedule", "is none"),
        ({"schedule_type": "cron", "schedule_value": "* * * * * *"}, "bad_schedule", "five"),
        ({"context_mode": "shared"}, "bad_schedule", "group, isolated"),
        ({"overlap": "both"}, "bad_schedule", "skip, queue"),
        ({"catch_up": "some"}, "bad_schedule", "skip, latest, all"),
        ({"dst": "twice"}, "bad_schedule", "once or both"),
    ],
)
async def test_what_cannot_be_meant_is_refused_when_it_is_made(
    home: TaskHarness, changes: dict[str, Any], code: str, told: str
) -> None:
    asked = {"prompt": "news", "schedule_type": "cron", "schedule_value": "0 9 * * *", **changes}
    reply = await home.ask("schedule_task", **asked)
    assert (reply.ok, reply.code) == (False, code)
    assert told in reply.text
    assert (await home.ask("list_tasks")).data["tasks"] == []


@pytest.mark.parametrize(
    "field",
    ["prompt", "schedule_type", "schedule_value", "context_mode", "overlap", "catch_up", "dst"],
)
@pytest.mark.parametrize("empty", ["", " "])
async def test_an_empty_field_of_a_change_leaves_the_task_as_it_is(
    home: TaskHarness, field: str, empty: str
) -> None:
    task_id = await home.schedule("cron", "*/5 * * * *", dst="once", check="true")
    before = await home.task(task_id)
    home.harness.clock.pass_ms(MINUTE_MS)
    reply = await home.ask("update_task", taskId=task_id, **{field: empty})
    assert reply.ok, reply.text
    assert await home.task(task_id) == before
    filled = await home.ask("update_task", taskId=task_id, **{"prompt": "new", field: empty})
    assert filled.ok, filled.text


async def test_a_change_with_an_empty_schedule_changes_the_rest(home: TaskHarness) -> None:
    task_id = await home.schedule()
    due_ms = (await home.task(task_id)).next_ms
    home.harness.clock.pass_ms(MINUTE_MS)
    empty = {"schedule_type": "", "schedule_value": "", "dst": ""}
    assert (await home.ask("update_task", taskId=task_id, prompt="echo more", **empty)).ok
    task = await home.task(task_id)
    assert (task.prompt, task.next_ms) == ("echo more", due_ms)
    refused = await home.ask("update_task", taskId=task_id, schedule_type="cron", schedule_value="")
    assert (refused.ok, refused.code) == (False, "bad_schedule")


async def test_a_group_has_no_more_than_so_many_tasks(home: TaskHarness) -> None:
    for _ in range(MAX_OPEN):
        last = await home.schedule()
    refused = await home.ask("schedule_task", prompt="x", schedule_type="interval", schedule_value="1h")
    assert (refused.ok, refused.code) == (False, "task_refused")
    await home.ask("cancel_task", taskId=last)
    await home.schedule()


async def test_what_is_over_counts_again_when_it_is_opened_again(
    home: TaskHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduled_task_service, "MAX_OPEN", 1)
    done = await home.schedule("once", "1m")
    await home.after(MINUTE_MS)
    await home.run_through()
    cancelled = await home.schedule()
    await home.ask("cancel_task", taskId=cancelled)
    await home.schedule()
    refused = await home.ask("update_task", taskId=done, schedule_type="interval", schedule_value="1h")
    assert (refused.ok, refused.code) == (False, "task_refused")
    assert (await home.ask("update_task", taskId=done, prompt="x")).code == "task_refused", "it is completed"
    async with home.harness.database.transaction() as tx:
        with pytest.raises(TaskRefused, match="1 tasks already"):
            await scheduled_task_service.apply_action(
                tx, cancelled, "restore", home.dispatcher._times, now_ms=home.harness.clock.now_ms()
            )


# Who may


async def test_main_makes_tasks_for_other_groups_and_others_do_not(home: TaskHarness) -> None:
    task_id = await home.schedule(by="main", targetFolder="bees")
    assert (await home.task(task_id)).chat_jid == "local:bees"
    refused = await home.ask(
        "schedule_task",
        by="family",
        prompt="x",
        schedule_type="interval",
        schedule_value="1h",
        targetFolder="bees",
    )
    assert (refused.ok, refused.code) == (False, "not_allowed")
    unknown = await home.ask(
        "schedule_task",
        by="main",
        prompt="x",
        schedule_type="interval",
        schedule_value="1h",
        targetFolder="wasps",
    )
    assert (unknown.ok, unknown.code) == (False, "unknown_group")


@pytest.mark.parametrize("command", NEEDS_ID)
async def test_another_groups_task_is_told_of_no_more_than_one_that_is_not_there(
    home: TaskHarness, command: str
) -> None:
    task_id = await home.schedule(by="family")
    before = await home.task(task_id)
    fields = {"prompt": "mine now"} if command == "update_task" else {}
    others = await home.ask(command, by="bees", taskId=task_id, **fields)
    missing = await home.ask(command, by="bees", taskId="task-0", **fields)
    assert others.text.replace(task_id, "task-0") == missing.text
    assert (others.ok, others.code, others.data) == (missing.ok, missing.code, missing.data)
    assert others.code == "unknown_task"
    assert await home.task(task_id) == before


@pytest.mark.parametrize("command", NEEDS_ID)
async def test_main_rules_every_groups_tasks(home: TaskHarness, command: str) -> None:
    task_id = await home.schedule(by="family")
    if command == "resume_task":
        await home.ask("pause_task", taskId=task_id)
    fields = {"prompt": "better"} if command == "update_task" else {}
    assert (await home.ask(command, by="main", taskId=task_id, **fields)).ok


async def test_each_lists_its_own_and_main_all(home: TaskHarness) -> None:
    family, bees = await home.schedule(by="family"), await home.schedule(by="bees")
    for group, expected in (("family", {family}), ("bees", {bees}), ("main", {family, bees})):
        listed = await home.ask("list_tasks", by=group)
        assert {task["id"] for task in listed.data["tasks"]} == expected
        assert all(task_id in listed.text for task_id in expected)


# Changing


async def test_a_change_leaves_alone_what_it_does_not_name(home: TaskHarness) -> None:
    task_id = await home.schedule("interval", "1h", check="exit 0", catch_up="all", context_mode="group")
    before = await home.task(task_id)
    home.harness.clock.pass_ms(MINUTE_MS)
    assert (await home.ask("update_task", taskId=task_id, prompt="weather")).ok
    after = await home.task(task_id)
    assert (after.prompt, after.next_ms, after.schedule) == ("weather", before.next_ms, before.schedule)
    assert (after.check, after.catch_up, after.context_mode) == ("exit 0", "all", "group")
    await home.ask("update_task", taskId=task_id, check="")
    assert (await home.task(task_id)).check is None


async def test_a_new_value_counts_from_now_and_a_new_type_needs_one(home: TaskHarness) -> None:
    task_id = await home.schedule("interval", "1h")
    home.harness.clock.pass_ms(MINUTE_MS)
    assert (await home.ask("update_task", taskId=task_id, schedule_value="2h")).ok
    assert (await home.task(task_id)).next_ms == home.harness.clock.now_ms() + 2 * HOUR_MS
    refused = await home.ask("update_task", taskId=task_id, schedule_type="cron")
    assert (refused.ok, refused.code) == (False, "bad_schedule")
    assert (await home.ask("update_task", taskId=task_id, schedule_value="soon")).ok is False
    assert (await home.task(task_id)).schedule.value == str(2 * HOUR_MS)
    done = await home.ask("update_task", taskId=task_id, schedule_type="once", schedule_value="10m")
    assert done.ok
    assert (await home.task(task_id)).next_ms == home.harness.clock.now_ms() + 10 * MINUTE_MS


async def test_a_completed_task_comes_again_with_a_new_time_only(home: TaskHarness) -> None:
    task_id = await home.schedule("once", "10m")
    await home.after(10 * MINUTE_MS)
    await home.run_through()
    for command in ("pause_task", "resume_task"):
        assert (await home.ask(command, taskId=task_id)).code == "task_refused"
    assert (await home.ask("update_task", taskId=task_id, prompt="again")).code == "task_refused"
    assert (await home.ask("update_task", taskId=task_id, schedule_value="5m")).ok
    assert (await home.task(task_id)).status is TaskStatus.ACTIVE
    assert len(await home.after(5 * MINUTE_MS)) == 1


async def test_a_paused_task_goes_on_at_its_next_time_and_catches_nothing_up(home: TaskHarness) -> None:
    task_id = await home.schedule("interval", "1h", catch_up="all")
    made_ms = home.harness.clock.now_ms()
    await home.ask("pause_task", taskId=task_id)
    assert await home.after(5 * HOUR_MS + MINUTE_MS) == []
    assert (await home.ask("resume_task", taskId=task_id)).ok
    assert await home.after(0) == []
    assert (await home.task(task_id)).next_ms == made_ms + 6 * HOUR_MS


async def test_a_time_that_passed_while_paused_cannot_be_resumed(home: TaskHarness) -> None:
    task_id = await home.schedule("once", "10m")
    await home.ask("pause_task", taskId=task_id)
    await home.after(HOUR_MS)
    refused = await home.ask("resume_task", taskId=task_id)
    assert (refused.ok, refused.code) == (False, "task_refused")
    assert "has passed" in refused.text


async def test_pausing_and_cancelling_twice_is_as_good_as_once(home: TaskHarness) -> None:
    task_id = await home.schedule()
    for command in ("pause_task", "pause_task", "resume_task", "resume_task", "cancel_task", "cancel_task"):
        assert (await home.ask(command, taskId=task_id)).ok, command
    for command in ("pause_task", "resume_task", "update_task", "run_task"):
        assert (await home.ask(command, taskId=task_id, prompt="x")).code == "task_refused"


async def test_a_run_by_hand_is_besides_the_schedule_and_never_a_second_one(home: TaskHarness) -> None:
    task_id = await home.schedule()
    next_ms = (await home.task(task_id)).next_ms
    await home.ask("pause_task", taskId=task_id)
    home.harness.clock.pass_ms(1)
    assert (await home.ask("run_task", taskId=task_id)).ok
    assert (await home.ask("run_task", taskId=task_id)).code == "task_refused"
    await home.begin()
    assert (await home.ask("run_task", taskId=task_id)).code == "task_refused"
    task = await home.task(task_id)
    assert (task.next_ms, task.status) == (next_ms, "paused")


async def test_a_run_by_hand_of_a_paused_task_is_tried_again_when_its_container_dies(
    home: TaskHarness,
) -> None:
    task_id = await home.schedule()
    await home.ask("pause_task", taskId=task_id)
    home.harness.clock.pass_ms(1)
    await home.ask("run_task", taskId=task_id)
    _, run = await home.begin()
    await home.harness.lose(run)
    assert len(await home.harness.queued()) == 1


# What they are shown


class Shelf:
    """The directories that containers see, and the loop that keeps them true."""

    def __init__(self, home: TaskHarness, root: Path) -> None:
        self.root = root
        self.with_container = ["main", "family"]
        for folder in self.with_container:
            (root / folder).mkdir()
        harness = home.harness
        self.snapshots = SnapshotWriter(
            root,
            harness.database,
            clock=harness.clock,
            bus=harness.bus,
            zone_of=self.zone_of,
            with_container=lambda: self.with_container,
        )
        self.during_write: Callable[[], object] = lambda: None
        """It is called in the middle of each write, after the store was read."""

    def zone_of(self, _group: Group) -> ZoneInfo:
        self.during_write()
        return ZoneInfo("Asia/Seoul")

    def read(self, folder: str, name: str) -> Any:
        return json.loads((self.root / folder / name).read_text())

    async def until(self, folder: str, expected: list[str]) -> None:
        """Wait until a group is shown these tasks."""

        def is_shown() -> bool:
            return [task["id"] for task in self.read(folder, "tasks.json")] == expected

        await until(is_shown, f"{folder} is shown {expected}")


@pytest.fixture
def shelf(home: TaskHarness, tmp_path: Path) -> Shelf:
    (tmp_path / "env").mkdir()
    return Shelf(home, tmp_path / "env")


async def test_main_is_shown_all_and_others_their_own(home: TaskHarness, shelf: Shelf) -> None:
    family, bees = await home.schedule(by="family"), await home.schedule(by="bees")
    await shelf.snapshots.write_all()
    assert {task["id"] for task in shelf.read("main", "tasks.json")} == {family, bees}
    assert {task["id"] for task in shelf.read("family", "tasks.json")} == {family}
    chats = shelf.read("main", "groups.json")["groups"]
    assert {chat["jid"]: chat["isRegistered"] for chat in chats} == {
        "local:main": True,
        "local:family": True,
        "local:bees": True,
    }
    assert shelf.read("family", "groups.json")["groups"] == []
    assert not (shelf.root / "bees").exists(), "no container has been there"


async def test_a_group_without_a_container_is_shown_what_an_event_says_and_is_left_out_of_the_sweep(
    home: TaskHarness, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SWEEP_SECONDS", 0.01)
    shelf.with_container.remove("family")
    await home.schedule(by="family")

    def prompts(folder: str) -> list[str]:
        return [task["prompt"] for task in shelf.read(folder, "tasks.json")]

    running = asyncio.create_task(shelf.snapshots.run(), name="snapshots")
    try:
        await until((shelf.root / "family" / "calendar.json").exists, "the first round is over")
        async with home.harness.database.transaction() as tx:
            await tx.execute("UPDATE scheduled_tasks SET prompt = 'changed without an event'")
        await until(lambda: prompts("main") == ["changed without an event"], "the sweep shows it to main")
        assert prompts("family") == ["echo news"]
        home.harness.bus.publish("task.changed", group="family")
        await until(lambda: prompts("family") == ["changed without an event"], "the event shows it")
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_a_change_during_a_write_is_shown_although_no_container_asks_again(
    home: TaskHarness, shelf: Shelf
) -> None:
    shelf.with_container.clear()
    await home.schedule(by="family")
    store = await home.harness.database.path()

    def prompts() -> list[str]:
        return [task["prompt"] for task in shelf.read("family", "tasks.json")]

    def change() -> None:
        shelf.during_write = lambda: None
        with closing(sqlite3.connect(store)) as beside, beside:
            beside.execute("UPDATE scheduled_tasks SET prompt = 'changed during a write'")
        home.harness.bus.publish("task.changed", group="family")

    running = asyncio.create_task(shelf.snapshots.run(), name="snapshots")
    try:
        await until((shelf.root / "family" / "calendar.json").exists, "the first round is over")
        shelf.during_write = change
        home.harness.bus.publish("task.changed", group="family")
        await until(lambda: prompts() == ["changed during a write"], "the second event shows it")
    finally:
        running.cancel()
        await asyncio.wait([running])


async def follow(tx: Tx, title: str, *, at_ms: int) -> None:
    """Have 'family' follow a calendar with one event."""
    calendar = FollowedCalendar(
        folder=Folder("family"),
        name="work",
        address="https://x/y",
        user=None,
        password_env=None,
        notice_minutes=None,
    )
    event = CalendarEvent(
        id="1", start_ms=at_ms, end_ms=at_ms + HOUR_MS, is_all_day=False, title=title, place=""
    )
    made = await followed_calendars.add(tx, calendar, now_ms=at_ms)
    await followed_calendars.note_read(tx, made.id, [event], now_ms=at_ms)


async def test_what_is_shown_follows_every_change(
    home: TaskHarness, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SWEEP_SECONDS", 3600)
    running = asyncio.create_task(shelf.snapshots.run(), name="snapshots")
    try:
        await until((shelf.root / "family" / "groups.json").exists, "the first round is over")
        first = await home.schedule("once", "10m")
        await shelf.until("family", [first])
        second = await home.schedule("cron", "0 9 * * *")
        await shelf.until("family", [first, second])
        await home.ask("cancel_task", taskId=second)
        await shelf.until("family", [first])
        await home.after(10 * MINUTE_MS)
        turn, run = await home.begin()
        await home.answer(turn, run)
        home.harness.bus.publish("turn.answered", group="family", turn=turn.id)  # as the pool says it
        await shelf.until("family", [])
        async with home.harness.database.transaction() as tx:
            await follow(tx, "dentist", at_ms=home.harness.clock.now_ms())
        home.harness.bus.publish("group.configured", group="family")  # as 'andy calendar follow' has it said
        shown = partial(shelf.read, "family", "calendar.json")
        await until(lambda: [one["title"] for one in shown()] == ["dentist"], "the event is shown")
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_what_has_not_changed_is_not_written_again_but_at_a_start(
    home: TaskHarness, shelf: Shelf
) -> None:
    await shelf.snapshots.write_all()
    path = shelf.root / "main" / "groups.json"
    path.unlink()
    await shelf.snapshots.write_all()
    assert not path.exists()
    await shelf.snapshots.write("main")  # type: ignore[arg-type]
    assert path.exists()


async def test_every_answer_is_kept_with_its_request(home: TaskHarness) -> None:
    reply = await home.ask("schedule_task", prompt="x", schedule_type="daily", schedule_value="9")
    async with home.harness.database.reading() as tx:
        assert await commands.answered(tx, "family", reply.request_id) == reply  # type: ignore[arg-type]
