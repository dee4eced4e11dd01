"""The board in the console: of all groups, changed in place, and no code reaches a person."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.home.directory import Home
from orchestrator.store.database import Tx
from orchestrator.store.reader import read_once
from orchestrator.web.console.catalogue import LANGUAGES, Catalogue
from tests.support.console_browser import console_browser, hidden_fields, send_form

SOON = (datetime.now(UTC).date() + timedelta(days=30)).isoformat()
CODE = re.compile(r"\b(VALIDATION|BAD_DATE|NOTHING_TO_CHANGE|UNKNOWN_\w+|STALE|CAP)\b")


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with console_browser(tmp_path / "home") as made:
        yield made


async def tool(browser: httpx.AsyncClient, home: Path, folder: str, name: str, **arguments: Any) -> str:
    token = {"Authorization": f"Bearer {Home(home).token()}"}
    async with httpx.AsyncClient(base_url=browser.base_url, headers=token, trust_env=False) as program:
        answer = await program.post(f"/dashboards/{folder}/tools/{name}", json=arguments)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["data"]["id"])


def task(home: Path, task_id: str) -> dict[str, Any]:
    async def read(tx: Tx) -> dict[str, Any]:
        cursor = await tx.execute("SELECT * FROM dashboard_tasks WHERE id = ?", (task_id,))
        row = await cursor.fetchone()
        assert row is not None
        return dict(row)

    return read_once(Home(home).database, read)


async def test_the_tasks_and_questions_of_all_groups_stand_on_one_page(browser, tmp_path):
    home = tmp_path / "home"
    for folder in ("family", "work"):
        await tool(browser, home, folder, "create_task", title=f"Task of {folder}", deadline="tomorrow")
        await tool(browser, home, folder, "create_question", question=f"Question of {folder}?")
    page = (await browser.get("/console/board")).text
    questions, tasks = page.partition('id="part-questions"')[2].split('id="part-tasks"')
    for folder in ("family", "work"):
        assert f"Question of {folder}?" in questions
        assert f"Task of {folder}" in tasks
        assert f">{folder.title()}</bdi>" in tasks, "each with the name of its group"
    assert "Tomorrow, " in tasks
    one = (await browser.get("/console/board?group=family")).text
    assert "Task of family" in one
    assert "Task of work" not in one


async def test_what_a_change_is_compared_with_has_the_dates_of_the_page(browser, tmp_path):
    home = tmp_path / "home"
    await tool(browser, home, "family", "create_task", title="Paint", deadline="2031-02-10")
    await tool(browser, home, "family", "create_task", title="Call", deadline="2031-02-10T18:30")
    seen = re.findall('name="_seen" value="([^"]+)"', (await browser.get("/console/board")).text)
    assert "Mon 10 Feb 2031&#34;" in (shown := " ".join(seen))
    assert "Mon 10 Feb 2031 18:30&#34;" in shown
    assert "2031-02-10" not in shown


async def test_a_task_is_added_and_changed_in_place_without_a_group_chosen(browser, tmp_path):
    home = tmp_path / "home"
    page = await send_form(browser, "/board/tasks", of="/board", title="Paint", whose="work", important="yes")
    assert "The task is on the board." in page.text
    found = re.search(r"/console/board/work/tasks/(task_\w+)/edit", page.text)
    assert found
    made = task(home, found[1])
    assert (made["title"], made["priority"], made["deadline_date"]) == ("Paint", "high", None)

    edit = f"/board/work/tasks/{found[1]}/edit"
    day = datetime.now(UTC).date() - timedelta(days=10)
    changed = {"title": "Paint the fence", "deadline": day.isoformat(), "priority": "low", "progress": "40"}
    page = await send_form(browser, edit, of="/board", **changed)
    assert "The task is changed." in page.text
    made = task(home, found[1])
    assert (made["title"], made["priority"], made["pct"]) == ("Paint the fence", "low", 40)
    assert re.search(rf'class="late">\d+ days late, \w+ {day.day} ', page.text)
    page = await send_form(browser, edit, of="/board", **changed)
    assert "Nothing is different" in page.text, "what is shown is what is sent"
    await send_form(browser, edit, of="/board", **{**changed, "deadline": ""})
    assert task(home, found[1])["deadline_date"] is None


async def test_what_cannot_be_is_said_in_words_and_what_was_typed_stays(browser, tmp_path):
    home = tmp_path / "home"
    task_id = await tool(browser, home, "work", "create_task", title="Paint")
    edit = f"/board/work/tasks/{task_id}/edit"
    texts = Catalogue.load()
    for language in LANGUAGES:
        browser.cookies.set("andy_language", language)
        for sent, code in (
            ({"title": "Paint", "deadline": "the day of never"}, "BAD_DATE"),
            ({"title": "x" * 201, "deadline": ""}, "VALIDATION"),
            ({"title": "Paint", "progress": "a lot", "deadline": ""}, "VALIDATION"),
        ):
            whole = {"priority": "medium", "progress": "0", **sent}
            page = await send_form(browser, edit, of="/board", **whole)
            assert page.status_code == 422
            assert texts.text(language, f"board.refused_{code}") in page.text
            assert not CODE.search(page.text)
            assert f'value="{sent["title"]}"' in page.text
            new = await send_form(browser, "/board/tasks", of="/board", whose="work", title="", deadline="")
            assert (new.status_code, CODE.search(new.text)) == (422, None)
    assert task(home, task_id)["title"] == "Paint"


async def test_a_refused_change_opens_its_own_form_and_no_other(browser, tmp_path):
    home = tmp_path / "home"
    task_id = await tool(browser, home, "work", "create_task", title="Paint")
    sent = {"title": "Paint it", "deadline": "the day of never", "priority": "medium", "progress": "0"}
    page = await send_form(browser, f"/board/work/tasks/{task_id}/edit", of="/board", **sent)
    assert page.status_code == 422
    assert re.search(rf'<details class="edit" id="d-work-{task_id}" open>', page.text)
    assert re.search(r'<details class="new" id="new-task">', page.text)
    page = await send_form(
        browser, "/board/tasks", of="/board", whose="work", title="Old", deadline="never ever"
    )
    assert re.search(r'<details class="new" id="new-task" open>', page.text)
    assert 'value="never ever"' in page.text


async def test_a_deadline_that_is_over_is_taken_and_said_to_be(browser, tmp_path):
    day = (datetime.now(UTC).date() - timedelta(days=10)).isoformat()
    page = await send_form(browser, "/board/tasks", of="/board", whose="work", title="Old", deadline=day)
    assert "Its deadline is over already" in page.text
    assert 'id="outcome" tabindex="-1" autofocus' in page.text, "the keyboard goes on from there"
    page = await send_form(
        browser, "/board/tasks", of="/board", whose="work", title="New", deadline="tomorrow"
    )
    assert "over already" not in page.text


@pytest.mark.parametrize(
    ("question", "said", "outcome", "changed"),
    [
        ("Is it done?", "yes", "the task is done", {"status": "completed"}),
        ("When is it due?", SOON, "its new deadline", {"deadline_date": SOON}),
        ("How far is it?", "60 %", "its new progress", {"pct": 60}),
        ("When is it due?", "when Bob is back", "Without a model nobody reads", {"deadline_date": None}),
        ("When is it due?", "2001-12-24", "Without a model nobody reads", {"deadline_date": None}),
        ("Which colour?", "100 %", "Without a model nobody reads", {"status": "active"}),
    ],
)
async def test_an_answer_changes_what_it_says_without_doubt(
    browser, tmp_path, question, said, outcome, changed
):
    home = tmp_path / "home"
    task_id = await tool(browser, home, "work", "create_task", title="Paint")
    asked = await tool(browser, home, "work", "create_question", question=question, related_task_id=task_id)
    page = await send_form(browser, f"/board/work/questions/{asked}/answer", of="/board", answer=said)
    assert outcome in page.text
    assert f"/questions/{asked}/answer" not in page.text, "the question is settled"
    found = task(home, task_id)
    assert {name: found[name] for name in changed} == changed


@pytest.mark.parametrize("action", ["complete", "drop"])
async def test_a_task_that_was_ended_by_a_tap_is_taken_up_again_where_that_is_said(browser, tmp_path, action):
    home = tmp_path / "home"
    task_id = await tool(browser, home, "family", "create_task", title="Wash the car")
    await tool(browser, home, "family", "update_task", task_id=task_id, progress=40)
    before = task(home, task_id)
    page = await send_form(browser, f"/board/family/tasks/{task_id}/{action}", of="/board")
    undo = f"/board/family/tasks/{task_id}/undo"
    ((path, number),) = re.findall(
        rf'action="(/console{undo}[^"]*)".*?name="_form" value="([^"]+)"', page.text, re.DOTALL
    )
    assert task(home, task_id)["status"] != "active"
    await browser.post(path, data={"_form": number}, follow_redirects=True)
    found = task(home, task_id)
    assert (found["status"], found["pct"]) == ("active", 40)
    # A task that was dropped has still been silent for as long as before.
    assert (found["last_update_ms"] == before["last_update_ms"]) is (action == "drop")


def test_every_refusal_of_the_dashboard_has_words():
    texts = Catalogue.load().texts
    sources = Path(__file__).parents[2] / "orchestrator" / "dashboard" / "services"
    code = re.compile(r'ToolRefused\(\s*"([A-Z_]+)"')
    codes = {one for path in sources.glob("*.py") for one in code.findall(path.read_text())}
    assert "VALIDATION" in codes
    of_people = codes - {"NO_TARGET", "TOO_FAR", "COOLDOWN", "PAST_TIME"}  # of notifications that agents make
    assert [one for one in of_people for table in texts.values() if f"board.refused_{one}" not in table] == []


async def test_a_change_on_the_board_of_all_groups_leads_back_to_it(browser, tmp_path):
    number = await tool(browser, tmp_path / "home", "family", "create_task", title="Paint")
    board = "/console/board?group="  # as the list of groups sends it for all groups
    page = (await browser.get(board)).text
    hidden = hidden_fields(page, f"/board/family/tasks/{number}/complete")
    answer = await browser.post(
        f"/console/board/family/tasks/{number}/complete", data=hidden, headers={"referer": board}
    )
    assert answer.headers["location"] == "/console/board"
