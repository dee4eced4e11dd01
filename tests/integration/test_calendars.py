"""Calendars of groups: what a calendar program fetches, who may, and what the command line gives out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import pytest_asyncio
from icalendar import Calendar

from agent_runner.wire.order import ECHO
from orchestrator.cli.main import app
from orchestrator.domain.errors import BadRequest, UnknownGroup
from orchestrator.groups import registration, secret_addresses
from orchestrator.reports import audit, calendar_feed, upcoming
from orchestrator.reports.upcoming import UpcomingView
from orchestrator.store.access import secret_addresses as addresses
from orchestrator.store.access.secret_addresses import AddressKind, UnknownAddress
from orchestrator.web.app import web_app
from orchestrator.web.calendars import CalendarService
from orchestrator.web.refusals import RefusedRequest
from tests.support.console_browser import console_browser, send_form
from tests.support.read_only import read_only
from tests.support.store_harness import SEOUL, StoreHarness, a_group

NOON = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
NOON_MS = round(NOON.timestamp() * 1000)


def a_row(**changes: Any) -> UpcomingView:
    fields = {
        "due": "2026-12-01T21:00:00+09:00",
        "due_ms": NOON_MS,
        "date": "2026-12-01",
        "is_overdue": False,
        "kind": "reminder",
        "id": "7",
        "group": "family",
        "status": "pending",
        "what": "call Bob",
        "text": "call Bob",
        "times": 1,
        "at": ["21:00"],
        "last_due": None,
    }
    return UpcomingView(**{**fields, **changes})


def events(body: bytes) -> list[Any]:
    """Return the events of a calendar, after a check of the rules that every line obeys."""
    assert all(len(line) <= 75 for line in body.split(b"\r\n"))
    assert b"\n" not in body.replace(b"\r\n", b"")
    calendar = Calendar.from_ical(body)
    assert calendar["version"] == "2.0"
    assert calendar["prodid"]
    found = calendar.walk("VEVENT")
    assert all(not one.errors and one["uid"] and one["dtstamp"] for one in found)
    assert len({one["uid"] for one in found}) == len(found)
    return list(found)


def written(*rows: UpcomingView, name: str = "Family") -> list[Any]:
    return events(calendar_feed.as_icalendar(a_group(name=name), rows, now_ms=NOON_MS))


def test_a_reminder_is_an_event_at_its_moment():
    (event,) = written(a_row())
    assert event["summary"] == "call Bob"
    assert event.decoded("dtstart") == NOON
    assert event.decoded("dtend") == NOON + timedelta(minutes=15)
    assert event["transp"] == "TRANSPARENT"


def test_a_moved_reminder_is_the_same_event_and_each_day_of_a_task_one_of_its_own():
    (before,), (after,) = written(a_row()), written(a_row(due_ms=NOON_MS + 86_400_000, date="2026-12-02"))
    assert before["uid"] == after["uid"]
    days = written(a_row(kind="task", id="t1"), a_row(kind="task", id="t1", date="2026-12-02"))
    assert len(days) == 2


def test_a_task_that_comes_more_often_is_one_event_of_the_whole_day():
    clocks = [f"{hour:02}:00" for hour in range(0, 24, 2)]
    (event,) = written(a_row(kind="task", text=f"{ECHO}drink water", times=12, at=clocks))
    assert event.decoded("dtstart") == date(2026, 12, 1)
    assert "dtend" not in event
    assert event["summary"] == "drink water (12 times: 00:00, 02:00, 04:00, 06:00, 08:00, 10:00 …)"
    clocks = [f"{minute // 60:02}:{minute % 60:02}" for minute in range(upcoming.MAX_TIMES_A_DAY)]
    (event,) = written(a_row(kind="task", text="look", times=len(clocks), at=clocks))
    assert "(100 times or more: 00:00, 00:01" in event["summary"], "more times of a day are not counted"


def test_a_deadline_says_so_and_andys_own_work_is_left_out():
    (event,) = written(
        a_row(kind="deadline", text="write the blog"), a_row(kind="wake"), a_row(kind="notification")
    )
    assert event["summary"] == "Due: write the blog"
    (event,) = written(a_row(kind="deadline", text="write the blog", at=[""]))
    assert event.decoded("dtstart") == date(2026, 12, 1), "a day's deadline is of the whole day"


@pytest.mark.parametrize(
    "text",
    [
        "a\r\nEND:VEVENT\r\nBEGIN:VEVENT\r\nSUMMARY:forged",
        'semi;colon, comma \\n backslash \\ and "quotes"',
        "bell \x07 and null \x00 and \x85 and \u2028 line",
        "우유 사기 🥛 " * 100,
        "\ud800 half a pair",
        " ",
    ],
)
def test_no_text_of_a_chat_changes_the_shape_of_a_calendar(text):
    (event,) = written(a_row(text=text), name=text)
    assert event.decoded("dtstart") == NOON
    assert len(event["summary"]) <= calendar_feed.MAX_TITLE_CHARS


def test_tabs_and_line_ends_of_a_text_separate_words():
    (event,) = written(a_row(text="call\tBob\rand\r\nAnn"))
    assert event["summary"] == "call Bob and Ann"
    assert event["description"] == "call\tBob\nand\nAnn"


@pytest.mark.slow
def test_the_events_are_bounded():
    rows = [a_row(id=str(number)) for number in range(calendar_feed.MAX_EVENTS + 1)]
    assert len(written(*rows)) == calendar_feed.MAX_EVENTS


# Who may


async def test_a_secret_opens_one_calendar_until_it_is_revoked(store_harness: StoreHarness) -> None:
    await store_harness.add_group("family")
    async with store_harness.database.transaction() as tx:
        made = await secret_addresses.add(tx, AddressKind.CALENDAR, "family", name="  my \n phone ", now_ms=1)
    secret = made.path.removeprefix("/calendar/").removesuffix(".ics")
    async with store_harness.database.reading() as tx:
        assert (
            await addresses.by_secret(tx, AddressKind.CALENDAR, secret_addresses.hashed(secret))
            == made.address
        )
        assert (
            await addresses.by_secret(tx, AddressKind.CALENDAR, secret_addresses.hashed(secret[:-1])) is None
        )
    assert made.address.name == "my phone"
    stored = [tuple(row) for row in await store_harness.rows("SELECT * FROM secret_addresses")]
    assert secret not in str(stored)
    async with store_harness.database.transaction() as tx:
        await secret_addresses.revoke(tx, AddressKind.CALENDAR, made.address.id, now_ms=2)
    async with store_harness.database.reading() as tx:
        assert await addresses.by_secret(tx, AddressKind.CALENDAR, secret_addresses.hashed(secret)) is None
        kinds = [row["kind"] for row in await audit.rows(tx, "family", since_ms=0, limit=2)]
    assert kinds == ["calendar.added", "calendar.revoked"]


async def test_a_calendar_is_read_while_its_use_cannot_be_recorded(store_harness: StoreHarness) -> None:
    await store_harness.add_group("family")
    async with store_harness.database.transaction() as tx:
        made = await secret_addresses.add(tx, AddressKind.CALENDAR, "family", name="phone", now_ms=1)
    source = SimpleNamespace(clock=store_harness.clock, read=store_harness.database.read)
    service = CalendarService(database=store_harness.database, source=source, zone_of=lambda _: SEOUL)  # type: ignore[arg-type]
    secret = made.path.removeprefix("/calendar/").removesuffix(".ics")
    async with read_only(store_harness.database):
        assert events(await service.read(secret)) == []


async def test_calendars_go_with_their_group_and_are_bounded(store_harness: StoreHarness) -> None:
    await store_harness.add_group("family")
    async with store_harness.database.transaction() as tx:
        for _ in range(secret_addresses.MAX_ADDRESSES):
            await secret_addresses.add(tx, AddressKind.CALENDAR, "family", name="", now_ms=1)
        with pytest.raises(BadRequest, match="revoke one"):
            await secret_addresses.add(tx, AddressKind.CALENDAR, "family", name="", now_ms=1)
        with pytest.raises(BadRequest, match="at most 60 characters"):
            await secret_addresses.add(tx, AddressKind.CALENDAR, "family", name="x" * 61, now_ms=1)
        with pytest.raises(UnknownGroup):
            await secret_addresses.add(tx, AddressKind.CALENDAR, "nobody", name="", now_ms=1)
        with pytest.raises(UnknownAddress):
            await secret_addresses.revoke(tx, AddressKind.CALENDAR, 99, now_ms=1)
        await registration.unregister(tx, "family", now_ms=2)
        assert await addresses.every(tx, AddressKind.CALENDAR) == []


# The whole host


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    async with console_browser(tmp_path_factory.mktemp("calendars") / "home") as made:
        yield made


@pytest.fixture(scope="module")
def root(browser: httpx.AsyncClient, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "calendars0" / "home"


async def andy(root: Path, *words: str) -> None:
    await asyncio.to_thread(app, [*words, "--home", str(root)], result_action="return_value")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_calendar_program_reads_what_was_set_in_the_console(
    browser: httpx.AsyncClient, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {"kind": "reminder", "whose": "family", "text": "water; the, plants", "at": "tomorrow at 18:30"}
    assert (await send_form(browser, "/coming/new", of="/coming", **fields)).status_code == 200
    capsys.readouterr()
    await andy(root, "calendar", "add", "family", "--name", "phone", "--json")
    made = json.loads(capsys.readouterr().out)
    async with httpx.AsyncClient(trust_env=False) as program:
        answer = await program.get(made["address"])
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/calendar; charset=utf-8"
        titles = [one["summary"] for one in events(answer.content)]
        assert "water; the, plants" in titles
        # The address opens nothing else, and a page of another origin does not get it.
        origin = made["address"].split("/calendar/")[0]
        assert (await program.get(f"{origin}/api/groups")).status_code == 401
        assert (await program.post(made["address"])).status_code == 405
        other = await program.get(made["address"], headers={"Origin": "https://evil.example"})
        assert other.status_code == 403
        await andy(root, "calendar", "list")
        listed = capsys.readouterr().out
        assert "phone" in listed
        assert "never" not in listed
        assert made["address"].rpartition("/")[2][:-4] not in listed
        await andy(root, "calendar", "revoke", str(made["id"]))
        gone = await program.get(made["address"])
    assert gone.status_code == 404
    assert gone.json()["error"]["code"] == "unknown_calendar"


async def test_no_record_of_a_refusal_has_the_secret() -> None:
    refused: list[RefusedRequest] = []
    served = httpx.ASGITransport(app=web_app([], token="secret", on_refusal=refused.append))
    async with httpx.AsyncClient(transport=served, base_url="http://evil.example") as program:
        assert (await program.get("/calendar/a-secret.ics")).status_code == 403
    assert [one.path for one in refused] == ["/calendar/…"]
