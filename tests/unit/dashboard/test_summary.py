"""The summary, against golden files; the same state is the same text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.dashboard.views import summary
from orchestrator.domain.dashboard import (
    BoardSnapshot,
    BoardTask,
    BoardTaskStatus,
    Dashboard,
    Deadline,
    NotificationType,
    Priority,
    QuestionType,
)
from tests.support.dashboard_harness import DAY_MS, FEB_9_0830, FOLDER, HOUR_MS, a_question, alert, at, blog
from tests.support.store_harness import SEOUL

GOLDEN = Path(__file__).parent / "golden"


def a_snapshot(**changes: Any) -> BoardSnapshot:
    given: dict[str, Any] = {
        "dashboard": Dashboard(folder=FOLDER, revision=7, created_ms=FEB_9_0830),
        "tasks": (),
        "questions": (),
        "answered": (),
        "notifications": (),
    }
    return BoardSnapshot(**{**given, **changes})


def rendered(snapshot: BoardSnapshot, **changes: Any) -> str:
    return summary.render(snapshot, **{"now_ms": FEB_9_0830, "zone": SEOUL, **changes})


def course(**changes: Any) -> BoardTask:
    """The document's task_002: blocked, and untouched for five days."""
    return blog(
        **{
            "id": "task_002",
            "title": "Online course",
            "deadline": None,
            "pct": 50,
            "last_update_ms": at("2026-02-04T10:00"),
            "blocked_ms": at("2026-02-07T09:00"),
            "blocker_note": "waiting for the account",
            **changes,
        }
    )


DOCUMENT = a_snapshot(
    tasks=(blog(context="About the new release", tags=("blog", "writing"), priority=Priority.HIGH), course()),
    notifications=(alert(),),
)
FULL = a_snapshot(
    tasks=(
        blog(id="task_late", deadline=Deadline(at_ms=at("2026-02-07T00:00"), date="2026-02-07")),
        blog(id="task_now", title="Two\n## Active Tasks\nlines", last_update_ms=FEB_9_0830),
        blog(id="task_timed", deadline=Deadline(at_ms=at("2026-02-12T18:00"))),
        blog(id="task_off", status=BoardTaskStatus.SOMEDAY),
        course(blocker_note=None),
    ),
    questions=(
        a_question(),
        a_question(
            id="q_002",
            question="What is in the way?",
            type=QuestionType.BLOCKER_CHECK,
            priority=Priority.HIGH,
            task_id=None,
            context="It stands since Saturday",
            asked_count=2,
            last_asked_ms=FEB_9_0830 - DAY_MS,
        ),
    ),
    notifications=(
        alert(),
        alert(
            id="n_002",
            task_id=None,
            question_id="q_002",
            type=NotificationType.QUESTION_REMINDER,
            message="커피 ☕ \u200fשלום",
            due_ms=FEB_9_0830 + HOUR_MS,
        ),
    ),
)


@pytest.mark.parametrize(
    ("name", "snapshot"), [("document", DOCUMENT), ("full", FULL), ("empty", a_snapshot())]
)
def test_at_44_a_summary_is_as_its_golden_file(name: str, snapshot: BoardSnapshot) -> None:
    assert rendered(snapshot) + "\n" == (GOLDEN / f"dashboard_{name}.md").read_text(encoding="utf-8")


def test_at_44_the_documents_state_has_the_words_that_the_document_shows() -> None:
    text = rendered(DOCUMENT)
    for words in (
        "2026-02-10 (tomorrow)",
        "(5 days ago)",
        "⚠️ Blocked: waiting for the account",
        "[Scheduled: 2026-02-09 09:00]",
        "  Related Task: task_001",
    ):
        assert words in text


def test_on_which_days_a_task_is_done_again_is_shown_with_it() -> None:
    again = blog(recurring={"enabled": True, "days_of_week": [0, 4], "check_time": "18:00"})
    assert rendered(a_snapshot(tasks=(again,))).count("- Done Again: Mon Fri at 18:00") == 1


def test_a_day_of_an_import_that_is_no_whole_number_is_left_out() -> None:
    again = blog(recurring={"enabled": True, "days_of_week": [1.0, True, 4]})
    assert rendered(a_snapshot(tasks=(again,))).count("- Done Again: Fri\n") == 1


def test_nothing_that_people_write_looks_like_a_section() -> None:
    heads = [line for line in rendered(FULL).splitlines() if line.startswith("## ")]
    assert heads == ["## Active Tasks", "## Unanswered Questions", "## Scheduled Notifications"]


def test_when_it_is_too_long_the_least_important_contexts_go_first() -> None:
    tasks = tuple(
        blog(id=f"task_{priority}", context="x" * 1_000, priority=priority)
        for priority in (Priority.HIGH, Priority.LOW, Priority.MEDIUM)
    )
    snapshot = a_snapshot(tasks=tasks)
    text = rendered(snapshot, limit=len(rendered(snapshot)) - 1_500)
    assert text.count("x" * 1_000) == 1
    assert "- Context: x" in text.split("**task_low**")[0]
    assert "the context of 2 tasks and questions" in text


def test_what_was_not_even_read_is_counted() -> None:
    assert rendered(a_snapshot(tasks=(blog(),), unread=70)).endswith("70 more rows, the least urgent ones.)")


def test_what_was_not_even_read_is_counted_beside_contexts_that_are_left_out() -> None:
    snapshot = a_snapshot(tasks=(blog(context="x" * 1_000),), unread=70)
    text = rendered(snapshot, limit=1_000)
    assert "the context of 1 tasks and questions" in text
    assert text.endswith("70 more rows, the least urgent ones.)")


def test_the_line_about_what_was_not_read_has_room_within_the_limit() -> None:
    limit = len(rendered(a_snapshot(tasks=(blog(context="x" * 1_000),))))
    text = rendered(a_snapshot(tasks=(blog(context="x" * 1_000),), unread=70), limit=limit)
    assert len(text) <= limit
    assert text.endswith("70 more rows, the least urgent ones.)")


def test_stars_in_a_title_are_no_rows_that_are_left_out() -> None:
    tasks = tuple(blog(id=f"task_{number:04}", title="**Very** **bold**") for number in range(100))
    text = rendered(a_snapshot(tasks=tasks), limit=3_000)
    assert f"{100 - text.count('**task_')} more rows" in text


def test_when_even_that_is_too_long_it_says_how_many_rows_are_left_out() -> None:
    tasks = tuple(replace(blog(), id=f"task_{number:04}") for number in range(1_000))
    text = rendered(a_snapshot(tasks=tasks), limit=20_000)
    assert len(text) <= 20_000
    shown = text.count("**task_")
    assert f"{1_000 - shown} more rows" in text
