"""The console page Coming: what happens by itself is made, changed and ended in words, where it stands."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from agent_runner.wire.order import ECHO
from orchestrator.domain.values import ChatJid, Folder
from orchestrator.groups import registration
from orchestrator.home.directory import Home
from orchestrator.reports import upcoming
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.database import Database, Tx
from orchestrator.store.reader import read_once
from orchestrator.store.schedule import tasks
from orchestrator.web.console.pages import coming
from tests.support.console_browser import console_browser, send_form

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("coming") / "home"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def of_module(root: Path) -> AsyncIterator[httpx.AsyncClient]:
    """One host for all tests: each makes what it looks at."""
    async with console_browser(root) as made:
        yield made


@pytest.fixture
def browser(of_module: httpx.AsyncClient) -> httpx.AsyncClient:
    of_module.cookies.delete("andy_language") if "andy_language" in of_module.cookies else None
    return of_module


def scheduled(root: Path) -> dict[str, Any]:
    """Return the scheduled tasks by their prompt, and the texts of reminders to come."""

    async def read(tx: Tx) -> dict[str, Any]:
        found = await tasks.every(tx, None)
        reminders = await board_notifications.reminders(tx)
        return {"tasks": {one.prompt: one for one in found}, "reminders": [one.message for one in reminders]}

    return read_once(Home(root).database, read)


async def add(browser: httpx.AsyncClient, text: str, at: str, kind: str = "reminder") -> httpx.Response:
    return await send_form(browser, "/coming/new", of="/coming", kind=kind, whose="family", text=text, at=at)


async def page_text(browser: httpx.AsyncClient, path: str = "/coming") -> str:
    page = await browser.get(f"/console{path}")
    assert page.status_code == 200
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", page.text)))


async def test_what_repeats_is_taken_in_one_field_and_is_one_line_a_day_in_words(browser, root):
    added = await add(browser, "Water the plants", "every Monday at 9")
    assert added.status_code == 200
    task = scheduled(root)["tasks"][f"{ECHO}Water the plants"]
    assert (task.schedule.kind.value, task.schedule.value) == ("cron", "0 9 * * 1")

    await add(browser, "Look at the oven", "every 2 hours", kind="request")
    assert "Look at the oven" in scheduled(root)["tasks"]
    text = await page_text(browser)
    assert "every Monday at 09:00" in text
    assert re.search(r"every 2 hours, 12 times: 0\d:\d\d, 0\d:\d\d, 0\d:\d\d, 0\d:\d\d …", text)
    assert ECHO.strip() not in text, "words for a machine are not shown"
    days = re.findall(r'class="date[^"]*" id="day-([\d-]+)"', (await browser.get("/console/coming")).text)
    assert len(days) >= coming.DAYS + 1


async def test_a_reminder_that_comes_once_is_no_task(browser, root):
    before = scheduled(root)["tasks"].keys()
    await add(browser, "Take the bins out", "tomorrow at 8pm")
    after = scheduled(root)
    assert "Take the bins out" in after["reminders"]
    assert after["tasks"].keys() == before


async def test_a_time_that_can_mean_two_is_asked_about_with_a_button_for_each(browser, root):
    page = await add(browser, "Call the plumber", "tomorrow at 5")
    assert page.status_code == 422
    buttons = re.findall(r'<button name="at" value="([^"]+)">', page.text)
    assert [one[-5:] for one in buttons] == ["05:00", "17:00"]
    assert "Call the plumber" in page.text, "what was typed stays"
    assert "Call the plumber" not in scheduled(root)["reminders"]

    await add(browser, "Call the plumber", buttons[1])
    assert "Call the plumber" in scheduled(root)["reminders"]


@pytest.mark.parametrize("at", ["some day", "every Monday", "yesterday at 8", "1 2 3 4 99", "x" * 5_000, ""])
async def test_a_time_that_is_none_is_said_so_and_nothing_is_made(browser, root, at):
    before = scheduled(root)["tasks"].keys()
    page = await add(browser, "Stretch", at)
    assert page.status_code == 422
    assert 'role="alert"' in page.text
    assert scheduled(root)["tasks"].keys() == before
    assert "Stretch" not in scheduled(root)["reminders"]


async def change(browser: httpx.AsyncClient, kind: str, row_id: str, **fields: str) -> httpx.Response:
    return await send_form(browser, f"/coming/{kind}/{row_id}/change", of=f"/coming?edit={row_id}", **fields)


async def test_a_task_is_changed_where_it_stands_and_its_schedule_goes_on_where_only_words_change(
    browser, root
):
    await add(browser, "do it", "every 12 hours", kind="request")
    task = scheduled(root)["tasks"]["do it"]
    page = await browser.get(f"/console/coming?edit={task.id}")
    assert 'value="every 12 hours"' in page.text, "the schedule is shown in words"

    await change(browser, "tasks", task.id, text="do it well", at="every 12 hours")
    changed = scheduled(root)["tasks"]["do it well"]
    assert (changed.id, changed.next_ms, changed.schedule) == (task.id, task.next_ms, task.schedule)

    await change(browser, "tasks", task.id, text="do it well", at="every day at 7am")
    assert scheduled(root)["tasks"]["do it well"].schedule.value == "0 7 * * *"
    refused = await change(browser, "tasks", task.id, text="do it well", at="never")
    assert refused.status_code == 422
    assert 'id="change"' in refused.text


async def test_of_two_who_change_a_task_the_second_is_shown_both_states(browser, root):
    await add(browser, "zeroth", "every 12 hours", kind="request")
    task = scheduled(root)["tasks"]["zeroth"]
    page = await browser.get(f"/console/coming?edit={task.id}")
    seen = unescape(re.findall(r'name="_seen" value="([^"]+)"', page.text)[-1])
    await change(browser, "tasks", task.id, text="first", at="every 12 hours")
    refused = await change(browser, "tasks", task.id, text="second", at="every 12 hours", _seen=seen)
    assert refused.status_code == 409
    assert "first" in scheduled(root)["tasks"]


async def test_a_reminder_says_another_text_moves_and_can_be_made_to_repeat(browser, root):
    await add(browser, "pill", "tomorrow at 8pm")

    async def read(tx: Tx) -> str:
        found = await board_notifications.reminders(tx)
        return str(next(one.number for one in found if one.message == "pill"))

    number = read_once(Home(root).database, read)
    page = await browser.get(f"/console/coming?edit={number}")
    at = re.findall(r'name="at" type="text" value="([^"]+)"', page.text)[-1]
    await change(browser, "reminders", number, text="pill, with water", at=at)
    assert "pill, with water" in scheduled(root)["reminders"]

    await change(browser, "reminders", number, text="pill, with water", at="every day at 8am")
    after = scheduled(root)
    assert "pill, with water" not in after["reminders"]
    assert f"{ECHO}pill, with water" in after["tasks"]


async def test_a_reminder_of_another_chat_that_is_made_to_repeat_stays_in_that_chat(browser, root):
    await add(browser, "tablet", "tomorrow at 8pm")
    cousins = ChatJid("local:cousins")
    database = await Database.open(Home(root).database)
    async with database.transaction() as tx:
        await registration.add_chat(tx, Folder("family"), cousins, now_ms=0)
        await tx.execute("UPDATE notifications SET chat_jid = ? WHERE message = 'tablet'", (cousins,))
        found = await board_notifications.reminders(tx)
        number = str(next(one.number for one in found if one.message == "tablet"))
    await database.close()

    await change(browser, "reminders", number, text="tablet", at="every day at 8am")

    assert scheduled(root)["tasks"][f"{ECHO}tablet"].chat_jid == cousins


async def test_a_group_may_be_named_in_any_case_and_a_reminder_of_later_is_listed(browser, root):
    day = (datetime.now(UTC) + timedelta(days=20)).date().isoformat()
    await add(browser, "Feed the later cat", f"{day} 09:00")
    assert "Feed the later cat" in await page_text(browser, "/coming?group=family")
    assert "Feed the later cat" in await page_text(browser, "/coming?group=Family")


async def test_a_full_day_says_how_many_lines_are_left_out_and_leads_to_them(browser, root, monkeypatch):
    monkeypatch.setattr(coming, "MAX_ROWS_A_DAY", 1)
    monkeypatch.setattr(coming, "MAX_SCHEDULED", 1)
    page = await browser.get("/console/coming")
    text = await page_text(browser)
    assert re.search(r"\b[1-9] more\b", text)
    rest = unescape(re.findall(r'href="(/console/coming\?day=[^"#]+)', page.text)[-1])
    # Counted by rows: which of them are left out depends on the time of the day.
    shown = page.text.count('<li class="kind-')
    scheduled_shown = page.text.partition('id="part-tasks"')[2].count("<li>")
    assert (await browser.get(rest)).text.count('<li class="kind-') > shown
    whole = (await browser.get("/console/coming?all=yes")).text
    assert whole.partition('id="part-tasks"')[2].count("<li>") > scheduled_shown


async def test_in_korean_the_schedule_and_the_question_are_korean(browser):
    browser.cookies.set("andy_language", "ko")
    await add(browser, "화분에 물 주기", "매주 월요일 9시")
    assert "매주 월요일 09:00" in await page_text(browser)
    page = await add(browser, "배관공에게 전화", "내일 5시")
    assert "어느 쪽인가요?" in page.text


async def test_a_deadline_of_the_board_stands_on_its_day_and_leads_to_its_task(browser, root):
    today = datetime.now(UTC).astimezone()
    for title, deadline in (
        ("Write the blog", (today + timedelta(days=2)).date().isoformat()),
        ("Call the bank", (today + timedelta(days=3)).strftime("%Y-%m-%d 11:30")),
        ("Long over", (today - timedelta(days=3)).date().isoformat()),
        ("Far away", (today + timedelta(days=30)).date().isoformat()),
    ):
        added = await send_form(
            browser, "/board/tasks", of="/board", whose="family", title=title, deadline=deadline
        )
        assert added.status_code == 200
    page = (await browser.get("/console/coming")).text
    day = page.partition(f'id="day-{(today + timedelta(days=2)).date()}"')[2].partition("</section>")[0]
    assert "Write the blog" in day
    assert "Deadline of a task" in day
    assert re.search(r'href="/console/board\?group=family#edit-family-task_\w+"', day)
    assert ">11:30</span>" in page
    assert "Call the bank" in page
    deadlines = re.findall(
        r'<li class="kind-deadline">.*?</li>', page, re.DOTALL
    )  # beside them it may be asked about
    assert not any("Long over" in one or "Far away" in one for one in deadlines)


async def test_what_is_scheduled_is_deleted_from_its_row(browser, root):
    await add(browser, "Feed the cat", "every day at 7:15")
    page = (await browser.get("/console/coming")).text
    task = scheduled(root)["tasks"][f"{ECHO}Feed the cat"]
    row = page.partition("Feed the cat")[2].partition("</li>")[0]
    assert f'action="/console/coming/tasks/{task.id}/cancel"' in row
    assert "All its days are deleted, not this one alone" in row
    page = await send_form(browser, f"/coming/tasks/{task.id}/cancel", of="/coming")
    assert "Deleted: 'Feed the cat' does not come any more." in unescape(page.text)
    assert "Feed the cat" not in (await browser.get("/console/coming")).text


async def undo(browser: httpx.AsyncClient, page: httpx.Response) -> httpx.Response:
    """Press the button beside the text about what was just done."""
    (path,) = re.findall(r'action="/console(/coming/[^"]+/restore)"', page.text)
    (number,) = re.findall(rf'action="/console{path}".*?name="_form" value="([^"]+)"', page.text, re.DOTALL)
    return await browser.post(f"/console{path}", data={"_form": number}, follow_redirects=True)


async def test_what_was_deleted_is_put_back_as_it_was(browser, root):
    await add(browser, "Feed the dog", "every day at 7:20")
    task = scheduled(root)["tasks"][f"{ECHO}Feed the dog"]
    page = await undo(browser, await send_form(browser, f"/coming/tasks/{task.id}/cancel", of="/coming"))
    assert "Put back: 'Feed the dog' comes again." in unescape(page.text)
    back = scheduled(root)["tasks"][task.prompt]
    assert (back.id, back.schedule, back.next_ms, back.status) == (
        task.id,
        task.schedule,
        task.next_ms,
        task.status,
    )

    await add(browser, "Buy stamps", "in 3 days")
    page = (await browser.get("/console/coming")).text.partition("Buy stamps")[2].partition("</li>")[0]
    (number,) = re.findall(r"/coming/reminders/(\d+)/cancel", page)
    gone = await send_form(browser, f"/coming/reminders/{number}/cancel", of="/coming")
    assert "Buy stamps" not in scheduled(root)["reminders"]
    await undo(browser, gone)
    assert scheduled(root)["reminders"].count("Buy stamps") == 1
    again = await browser.get("/console/coming")
    (form,) = set(re.findall(r'name="_form" value="([^"]+)"', again.text)[:1])
    second = await browser.post(
        "/console/coming/reminders/999999/restore", data={"_form": form}, follow_redirects=True
    )
    assert second.status_code == 404


async def test_what_is_planned_is_said_back_with_its_time(browser):
    today = datetime.now(UTC).astimezone()
    day = today + timedelta(days=2)
    page = await add(browser, "Stretch", day.strftime("%Y-%m-%d 08:00"))
    date = f"{day.day} {day:%b}" if day.year == today.year else f"{day.day} {day:%b %Y}"
    assert re.search(rf"Planned in Family: \w+ {date} 08:00\.", page.text), "the day as people say it"
    page = await add(browser, "Blink", "every 2 minutes")
    assert "(720 times a day)" in page.text


@pytest.mark.parametrize(
    ("at", "why"),
    [
        ("gestern", "'gestern' is no time that Andy can read. Write it as tomorrow at 9"),
        ("every Monday", "'every Monday' needs a time of day: write 'every Monday at 9'."),
        ("2020-01-01 9:00", "'2020-01-01 9:00' is over already."),
    ],
)
async def test_a_time_is_refused_in_words_for_people(browser, at, why):
    assert why in unescape((await add(browser, "Stretch", at)).text)


async def test_a_deadline_of_this_day_that_is_over_stands_there_as_late(browser, monkeypatch):
    await send_form(
        browser,
        "/board/tasks",
        of="/board",
        whose="family",
        title="Ring the school",
        deadline=datetime.now(UTC).astimezone().strftime("%Y-%m-%d 00:00"),  # in the zone of the host
    )
    row = (await browser.get("/console/coming")).text.partition("Ring the school")[2].partition("</li>")[0]
    assert "overdue" in row


@pytest.mark.parametrize("page", ["/now", "/coming"])
async def test_the_days_ahead_are_counted_beside_the_host_and_for_one_page_at_a_time(
    browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    """An agent may schedule 200 tasks of every minute, whose times of a week take minutes to count."""
    week, under_way, most, threads = upcoming.week, 0, 0, set()

    async def watched(*arguments: Any, **more: Any) -> list[upcoming.UpcomingView]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        threads.add(threading.get_ident())
        try:
            return await week(*arguments, **more)
        finally:
            under_way -= 1

    monkeypatch.setattr(upcoming, "week", watched)
    answers = await asyncio.gather(*(browser.get(f"/console{page}") for _ in range(4)))
    assert {answer.status_code for answer in answers} == {200}
    assert threads
    assert threading.get_ident() not in threads
    assert most == 1


async def test_the_next_days_stand_in_their_order_though_a_day_begins_earlier_where_a_group_lives(
    browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    due_ms = int(now.timestamp() * 1000) + 60_000
    row: dict[str, Any] = {
        "due": now.isoformat(),
        "due_ms": due_ms,
        "kind": "event",
        "id": "e",
        "group": "family",
        "status": "",
        "what": "",
        "is_overdue": False,
        "times": 1,
        "last_due": None,
    }

    async def week(*_: Any, **__: Any) -> list[Any]:
        tomorrow = {"date": f"{now + timedelta(days=1):%Y-%m-%d}", "text": "Feast of the day", "at": [""]}
        today = {"date": f"{now:%Y-%m-%d}", "text": "Call of the hour", "at": ["23:00"]}
        return [{**row, **tomorrow}, {**row, **today, "due_ms": due_ms + 1}]

    monkeypatch.setattr(upcoming, "week", week)
    text = await page_text(browser, "/now")
    assert text.index("Call of the hour") < text.index("Feast of the day")
