"""Notices as people see them: `andy notices` with Andy down, the status, the metrics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent_runner.wire.notices import MAX_DELIVERED
from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.domain.values import Folder
from orchestrator.groups import registration
from orchestrator.notices.service import NoticeSweeper
from orchestrator.reports import notices as notice_reports
from orchestrator.reports import status_lines
from orchestrator.store.database import Database
from orchestrator.store.notices import notices
from orchestrator.store.notices.notices import NewNotice, NoticeMaker, NoticeScope
from orchestrator.web.api.metrics import Metrics, exposition
from tests.integration.test_status import gathered
from tests.processes.andy import AndyProcess
from tests.support.notice_harness import HOUR, NoticeHarness, told

NOTE = NewNotice(
    folder=Folder("main"),
    maker=NoticeMaker.SELF,
    event_type="agent.self.notify",
    source="agent",
    payload={"message": "look at\nthe oven"},
)


@pytest.fixture
async def home(store_harness) -> NoticeHarness:
    await store_harness.add_group()
    return NoticeHarness(store_harness)


@pytest.fixture
async def andy(tmp_path: Path) -> AndyProcess:
    """A home that nobody has started yet, with three notices."""
    root = tmp_path / "home"
    (root / "groups").mkdir(parents=True)
    database = await Database.open(root / "store" / "messages.db")
    now_ms = SystemClock().now_ms()
    async with database.transaction() as tx:
        await registration.ensure_main(tx, now_ms=1)
        await notices.add(tx, replace(NOTE, deliver_at="after_n_turns", turns_remaining=3), now_ms=now_ms)
        await notices.add(
            tx,
            replace(
                NOTE, priority="critical", deliver_at="after_tool", tool_name="", scope=NoticeScope.SESSION
            ),
            now_ms=now_ms,
        )
        over = await notices.add(tx, replace(NOTE, maker=NoticeMaker.HOST), now_ms=now_ms)
        await notices.acknowledge(tx, Folder("main"), over.id, now_ms=now_ms)
    await database.close()
    return AndyProcess(root, environment={"TZ": "Asia/Seoul"})


def said(andy: AndyProcess, *words: str) -> str:
    done = andy.cli(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_notices_are_listed_shown_and_cancelled_with_andy_down(andy: AndyProcess) -> None:
    assert said(andy, "notices", "list", "main").splitlines() == [
        "   2 pending critical agent: look at the oven (after the next call of any tool)",
        "   1 pending normal agent: look at the oven (3 turns of the chat from now)",
    ]
    assert [row["id"] for row in andy.listed("notices", "list", "main", "--all")] == [3, 2, 1]
    shown = said(andy, "notices", "show", "main", "2")
    assert "agent.self.notify, critical, by the agent" in shown
    assert "as long as its conversation" in shown
    assert said(andy, "notices", "cancel", "main", "2") == "Notice 2 of 'main' is cancelled.\n"
    row = andy.listed("notices", "show", "main", "2")
    assert (row["state"], row["reason"]) == ("cancelled", "it was cancelled by hand")
    assert [row["id"] for row in andy.listed("notices", "list", "main")] == [1]


async def test_one_turn_more_is_one_turn(home: NoticeHarness) -> None:
    async with home.harness.database.transaction() as tx:
        waiting = replace(NOTE, folder=Folder("family"), deliver_at="after_n_turns", turns_remaining=1)
        await notices.add(tx, waiting, now_ms=0)
        (row,) = await notice_reports.every(tx, "family", with_ended=False, limit=1)
    assert notice_reports.when(row) == "1 turn of the chat from now"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["list", "nowhere"], "There is no group 'nowhere'"),
        (["show", "main", "4711"], "'main' has no notice 4711: see 'andy notices list main --all'."),
        (["cancel", "main", "4711"], "'main' has no notice 4711"),
        (
            ["cancel", "main", "3"],
            "Notice 3 of 'main' is acknowledged already: see 'andy notices list main' for those",
        ),
        (["show", "main", "x"], "'x' is no number of a notice: they are in the first column of 'andy"),
        (["cancel", "main", "-1"], "'-1' is no number of a notice: they are in the first column of 'andy"),
        (
            ["show", "main", "9" * 30],
            "is no number of a notice: they are in the first column of 'andy notices",
        ),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(andy: AndyProcess, words: list[str], complaint: str) -> None:
    done = andy.cli("notices", *words)
    assert (done.returncode, complaint in done.stderr, done.stdout) == (1, True, "")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "next turn"),
        ({"deliver_at": "after_tool", "tool_name": "Bash"}, "after the next call of Bash"),
        (
            {"deliver_at": "on_condition", "condition": "tool_completed(Bash)"},
            "once tool_completed(Bash)",
        ),
    ],
)
async def test_what_a_notice_waits_for_is_told_in_words(home, given, words):
    number = await home.note(**given)
    row = notice_reports.row(await home.kept(number))
    assert notice_reports.when(row) == words
    turn, _, _ = await home.begin()
    row = notice_reports.row(await home.kept(number))
    assert notice_reports.when(row) == f"turn {turn.id} has it"


async def test_urgent_notices_of_turns_are_in_the_status_for_a_day(home):
    high = await home.note("the rent", priority="high")
    await home.note("the tea")
    turn, run, order = await home.begin()
    await home.end(
        turn,
        run,
        *(told(one, f"[NOTE] {one.payload['message']}") for one in order.notices),
        told(None, "x" * 2_000, priority="critical", event_type="agent.loop.detected"),
    )
    found = await gathered(home.harness)
    assert [(one["event_type"], one["id"], one["turn"]) for one in found["notices"]] == [
        ("agent.loop.detected", None, turn.id),
        ("agent.self.notify", high, turn.id),
    ]
    assert len(found["notices"][0]["text"]) == 200
    lines = status_lines.lines(found)
    assert "notices     urgent, told in the last 24 hours:" in lines
    assert lines[-1].endswith(f"family, turn {turn.id}: high {high} agent.self.notify: [NOTE] the rent")
    home.harness.clock.pass_ms(24 * HOUR + 1)
    assert (await gathered(home.harness))["notices"] == []


async def test_a_container_cannot_fill_the_status_or_the_store(home):
    for _ in range(3):
        turn, run, _ = await home.begin()
        shouts = [told(None, "!" * 2_000, priority="critical", event_type="x") for _ in range(MAX_DELIVERED)]
        await home.end(turn, run, *shouts)
    assert len((await gathered(home.harness))["notices"]) == 10
    home.harness.clock.pass_ms(30 * 24 * HOUR + 1)
    await home.noticing._sweeper.sweep()
    assert await home.harness.rows("SELECT * FROM told_notices") == []


async def test_notices_are_counted_by_their_state(home):
    await home.note("a")
    await home.turn()
    await home.note("b")
    metrics = Metrics(home.harness.database, live=list, refusals=dict)
    text = exposition(await metrics.gather()).decode()
    assert 'andy_notices{state="delivered"} 1.0' in text
    assert 'andy_notices{state="pending"} 1.0' in text


async def test_what_expires_is_told_to_those_who_watch(home):
    number = await home.note()
    home.harness.clock.pass_ms(24 * HOUR)
    bus = EventBus(home.harness.clock)
    await NoticeSweeper(home.harness.database, clock=home.harness.clock, bus=bus).sweep()
    assert [(one.kind, one.detail, one.group) for one in bus.ring] == [
        ("notice.expired", str(number), "family")
    ]
