"""The dashboard in plain words, without a model, through the real reception."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from agent_runner.wire.mailbox import Reply
from agent_runner.workspace import Workspace
from orchestrator.dashboard.words import rule_texts
from orchestrator.loop.service import LoopOff
from tests.support.offline_chat import Chat, talking
from tests.support.store_harness import StoreHarness


@pytest.fixture
async def chat(store_harness: StoreHarness, tmp_path: Path) -> AsyncIterator[Chat]:
    async with talking(store_harness, Workspace(tmp_path)) as one:
        yield one


@pytest.mark.parametrize(
    ("asked", "told"), [("45분 뒤에 일어나", "루프가 꺼져"), ("wake up in 45m", "is off here")]
)
async def test_a_loop_that_is_off_is_told_in_the_words_of_the_chat(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, asked: str, told: str
) -> None:
    async def refuse(body: dict[str, object]) -> Reply:
        refusal = LoopOff("family")
        return Reply(request_id=str(body["requestId"]), ok=False, code=refusal.code, text=str(refusal))

    monkeypatch.setattr(chat.home, "ask_raw", refuse)
    said = await chat.say(asked)
    assert told in said
    assert "andy loop on" not in said


async def test_a_day_with_the_dashboard_in_english(chat: Chat) -> None:
    assert await chat.say("what's open?") == "Nothing is open."
    assert await chat.say("add a task write the blog by Feb 10") == (
        "On the dashboard: write the blog, due Tue 2026-02-10."
    )
    assert await chat.say("Add task: read a book by Tolkien") == (
        "On the dashboard: read a book by Tolkien (no deadline)."
    )
    assert await chat.say("blog 80%") == "write the blog: 80%."
    assert await chat.say("What's open?") == (
        "Open tasks:\n1. write the blog (80%, due Tue 2026-02-10)\n2. read a book by Tolkien (0%)"
    )
    assert await chat.say("done 2") == "Done: read a book by Tolkien."
    assert await chat.say("the essay is now at 100 percent") == (
        "No open task fits 'essay'. Say 'what's open?' to see them by number."
    )
    assert await chat.say("blog is at 100%") == "Done: write the blog."
    assert await chat.say("what is left?") == "Nothing is open."


async def test_a_day_with_the_dashboard_in_korean(chat: Chat) -> None:
    assert await chat.say("작업 추가 블로그 쓰기 2월 10일까지") == (
        "대시보드에 올렸어요: 블로그 쓰기, 기한 2026-02-10 (화)."
    )
    assert await chat.say("내일까지 보고서 쓰기 작업 추가해줘") == (
        "대시보드에 올렸어요: 보고서 쓰기, 기한 2026-02-10 (화)."
    )
    assert await chat.say("블로그는 80% 했어") == "블로그 쓰기: 80%."
    shown = await chat.say("남은 작업 보여줘")
    assert shown.startswith("남은 작업:\n1. ")
    assert "블로그 쓰기 (80%, 기한 2026-02-10 (화))" in shown
    assert await chat.say("보고서 쓰기 완료") == "완료했어요: 보고서 쓰기."
    assert await chat.say("뭐 남았어?") == "남은 작업:\n1. 블로그 쓰기 (80%, 기한 2026-02-10 (화))"
    assert await chat.say("1번 완료") == "완료했어요: 블로그 쓰기."


async def test_what_is_meant_is_not_guessed(chat: Chat) -> None:
    await chat.say("todo buy stamps")
    asked = "Do you mean this one? Say yes or no.\n1. the to-do 'buy stamps'"
    assert await chat.say("done 1") == asked  # no list with that number was shown
    assert await chat.say("yes") == "Done on the to-do list: buy stamps."
    await chat.say("todo call Bob")
    await chat.say("add a task write the blog")
    await chat.say("add a task read a blog")
    assert "Which one do you mean?" in await chat.say("blog 50%")
    assert await chat.say("read a") == "read a blog: 50%."
    both = await chat.say("done 2")
    assert both.startswith("Which one is done?\n1. the task ")
    assert "2. the to-do 'call Bob'" in both
    assert await chat.say("2") == "Done on the to-do list: call Bob."
    assert "I can't do that" in await chat.say("battery 200%")


async def test_a_number_that_no_task_has_is_not_looked_for_on_a_list_that_is_not_there(chat: Chat) -> None:
    await chat.say("add a task write the blog")
    assert (await chat.say("done 7")).startswith("I know of nothing open like '7'.")
    assert (await chat.say("7번 완료")).startswith("'7'에 맞는 것이 없어요.")


async def test_a_task_that_was_a_mistake_is_taken_off(chat: Chat) -> None:
    for title in ("write the blog", "read a book", "buy stamps", "call Bob"):
        await chat.say(f"add a task {title}")
    assert await chat.say("cancel task blog") == "Off the dashboard: write the blog."
    assert (await chat.say("delete the task 1")).startswith("Do you mean this one?")
    assert (await chat.say("yes")).startswith("Off the dashboard: ")
    await chat.say("what's open?")
    assert (await chat.say("작업 1번 취소")).startswith("대시보드에서 뺐어요: ")
    await chat.say("what's open?")
    assert (await chat.say("1번 작업 삭제해 줘")).startswith("대시보드에서 뺐어요: ")
    await chat.say("what's open?")
    assert await chat.say("cancel task 1") == (
        "No open task fits '1'. Say 'what's open?' to see them by number."
    )


async def test_a_task_without_words_is_asked_for(chat: Chat) -> None:
    assert (await chat.say("add a task")).startswith("Which task?")
    assert (await chat.say("작업 추가해줘")).startswith("어떤 작업인가요?")
    assert await chat.say("what's open?") == "Nothing is open."


async def test_a_share_of_nothing_is_for_a_model(chat: Chat) -> None:
    assert "I can't do that" in await chat.say("battery 80%")


async def test_a_reminder_stays_a_reminder(chat: Chat) -> None:
    said = await chat.say("remind me tomorrow 18:00 to post the blog")
    assert "2026-02-10 18:00" in said
    rows = await chat.home.harness.rows("SELECT message AS text FROM notifications")
    assert [row["text"] for row in rows] == ["⏰ Reminder for Jane: post the blog"]


PAGE = Path(__file__).resolve().parents[3] / "docs" / "dashboard.md"
SAID = re.compile(r"^(?P<who>You|나|Andy) +│ (?P<text>.*(?:\n +│ .*)*)", re.MULTILINE)


@pytest.mark.parametrize("who", ["You", "나"])
async def test_the_day_in_the_documentation_is_what_is_said(chat: Chat, who: str) -> None:
    """Each line of a person is said here, and what follows it there is what must come."""
    told = [
        (found["who"], re.sub(r"\n +│ ", "\n", found["text"])) for found in SAID.finditer(PAGE.read_text())
    ]
    pairs = [(text, then) for (one, text), (_, then) in pairwise(told) if one == who]
    assert len(pairs) == 5
    for text, then in pairs:
        assert await chat.say(text) == then


async def test_the_alert_in_the_documentation_is_what_the_rules_say() -> None:
    page = PAGE.read_text()
    for words, title, when in (
        (rule_texts.ENGLISH, "write the blog", "Tue 2026-02-10"),
        (rule_texts.KOREAN, "블로그 쓰기", "2026-02-10 (화)"),
    ):
        assert f"Andy │ {words.deadline.format(title=title, when=when, pct=0)}\n" in page
