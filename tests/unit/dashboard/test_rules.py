"""What the rules want of a dashboard, to the second."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.dashboard.rules import follow_up_questions, slots
from orchestrator.dashboard.rules.slots import Hours
from orchestrator.dashboard.rules.steps import (
    AlertHistory,
    ArchiveTask,
    Ask,
    ChangeStatus,
    CloseQuestion,
    Notify,
    RulePlan,
    WithdrawNotification,
)
from orchestrator.domain.dashboard import (
    Actor,
    BoardTaskStatus,
    NotificationRequest,
    NotificationStatus,
    NotificationType,
    Priority,
    QuestionType,
)
from tests.support.dashboards import (
    DAY,
    HOUR,
    MINUTE,
    SEOUL,
    a_notification,
    a_question,
    a_task,
    at,
    delivered,
    planned,
)

HOURS = Hours(zone=SEOUL)


def notified(plan: RulePlan) -> list[NotificationRequest]:
    return [step.request for step in plan.steps if isinstance(step, Notify)]


def asked(plan: RulePlan) -> list[Ask]:
    return [step for step in plan.steps if isinstance(step, Ask)]


def told(intents: list[NotificationRequest]) -> list[tuple[str, str, int]]:
    return [(one.type.value, one.priority.value, one.due_ms) for one in intents]


# Deadlines


def test_at_01_a_day_before_its_deadline_a_task_is_alerted_in_the_morning():
    task = a_task(deadline="2026-02-10", pct=70)
    (request,) = notified(planned("2026-02-09 08:30", tasks=[task]))
    assert told([request]) == [("deadline_alert", "high", 1_770_595_200_000)]
    assert (request.cause, request.task_id) == ("deadline:24h", "task_001")
    assert "blog" in request.message
    assert "2026-02-10" in request.message


def test_at_03_an_alert_that_is_to_come_is_not_made_again():
    task = a_task(deadline="2026-02-10", pct=70)
    row = a_notification(cause="deadline:24h")
    plan = planned("2026-02-09 08:30", tasks=[task], notifications=[row])
    assert notified(plan) == []
    assert ("duplicate of n_001") in [skip.why for skip in plan.skipped]


def test_at_03_an_alert_that_a_model_made_counts_too():
    task = a_task(deadline="2026-02-10", pct=70)
    assert notified(planned("2026-02-09 08:30", tasks=[task], notifications=[a_notification()])) == []


@pytest.mark.parametrize(
    ("now", "count"),
    [
        ("2026-02-08 23:59:59", 0),  # a day that begins on the 10th is 24 h 00:00:01 away
        ("2026-02-09 00:00:00", 1),
        ("2026-02-09 23:59:59", 1),
        ("2026-02-10 00:00:00", 0),
    ],
)
def test_a_day_is_near_from_24_hours_before_it_begins_until_it_does(now, count):
    intents = notified(planned(now, tasks=[a_task(deadline="2026-02-10")]))
    assert [one.cause for one in intents if one.cause == "deadline:24h"] == ["deadline:24h"] * count


@pytest.mark.parametrize(
    ("now", "due"),
    [
        ("2026-02-10 00:00:00", "2026-02-10 09:00:00"),
        ("2026-02-10 08:59:59", "2026-02-10 09:00:00"),
        ("2026-02-10 10:05:00", "2026-02-10 10:05:00"),
        ("2026-02-10 23:59:59", "2026-02-10 23:59:59"),
    ],
)
def test_a_task_due_today_is_told_at_nine_or_at_once(now, due):
    plan = planned(now, tasks=[a_task(deadline="2026-02-10", pct=70)])
    assert [(one.cause, one.due_ms) for one in notified(plan)] == [("deadline:today", at(due))]
    assert notified(plan)[0].message == "⏰ “blog” is due today (70% done)."


def test_an_alert_of_the_day_before_that_comes_today_is_the_one_of_today():
    task = a_task(deadline="2026-02-10")
    waiting = a_notification(cause="deadline:24h")
    assert notified(planned("2026-02-10 10:00", tasks=[task], notifications=[waiting])) == []
    late = AlertHistory(alerts={"task_001": (delivered("2026-02-10 10:00", cause="deadline:24h"),)})
    assert notified(planned("2026-02-10 10:30", tasks=[task], past=late)) == []
    in_time = AlertHistory(alerts={"task_001": (delivered("2026-02-09 09:00", cause="deadline:24h"),)})
    assert len(notified(planned("2026-02-10 08:00", tasks=[task], past=in_time))) == 1


@pytest.mark.parametrize(
    ("deadline", "now", "due"),
    [
        ("2026-02-09 10:25", "2026-02-09 10:25", "2026-02-09 10:25"),
        ("2026-02-09 10:25", "2026-02-09 12:00", "2026-02-09 12:00"),
        ("2026-02-09 02:00", "2026-02-09 02:00", "2026-02-09 08:00"),  # nobody is woken up for it
        ("2026-02-09", "2026-02-10 00:00", "2026-02-10 09:00"),
        ("2026-02-09", "2026-02-10 11:00", "2026-02-10 11:00"),
    ],
)
def test_what_is_overdue_is_told_and_stays_a_question(deadline, now, due):
    task = a_task(deadline=deadline, pct=60)
    plan = planned(now, tasks=[task])
    assert [(one.cause, one.due_ms) for one in notified(plan)] == [("deadline:over", at(due))]
    assert [one.type for one in asked(plan)] == [QuestionType.DEADLINE_CHECK]
    told_before = AlertHistory(alerts={"task_001": (delivered(due, cause="deadline:over"),)})
    assert notified(planned(due, tasks=[task], past=told_before)) == []


def test_the_last_day_of_the_calendar_is_a_deadline_that_never_passes():
    task = a_task(deadline="9999-12-31")
    assert slots.end_ms(task.deadline, HOURS) > at("9999-12-31 23:59")


def test_what_has_been_overdue_for_long_is_no_news():
    task = a_task(deadline="2026-01-10")
    assert notified(planned("2026-02-09 09:00", tasks=[task])) == []


def test_who_was_asked_about_an_overdue_task_is_not_told_of_it():
    task = a_task(deadline="2026-02-09 10:25")
    past = AlertHistory(asked={("task_001", QuestionType.DEADLINE_CHECK): at("2026-02-09 10:26")})
    assert notified(planned("2026-02-09 10:30", tasks=[task], past=past)) == []


def test_at_13_the_second_alert_is_due_two_hours_before_a_moment_whatever_the_first_did():
    task = a_task(deadline="2026-02-09 20:00", pct=70)
    past = AlertHistory(alerts={"task_001": (delivered("2026-02-09 09:00", cause="deadline:24h"),)})
    assert notified(planned("2026-02-09 17:50", tasks=[task], past=past)) == []
    (request,) = notified(planned("2026-02-09 18:00", tasks=[task], past=past))
    assert (request.cause, request.due_ms) == ("deadline:2h", at("2026-02-09 18:00"))


def test_at_13_before_that_only_the_first_alert_is_thought_of():
    task = a_task(deadline="2026-02-09 20:00", pct=70)
    (request,) = notified(planned("2026-02-09 17:50", tasks=[task]))
    assert (request.cause, request.due_ms) == ("deadline:24h", at("2026-02-09 18:00"))


def test_a_day_has_no_second_alert():
    task = a_task(deadline="2026-02-10", pct=70)
    causes = [one.cause for one in notified(planned("2026-02-09 23:00", tasks=[task]))]
    assert causes == ["deadline:24h"]


def test_an_alert_without_a_slot_before_the_deadline_is_told_now():
    task = a_task(deadline="2026-02-09 20:00", pct=70)
    (request,) = notified(planned("2026-02-09 18:20", tasks=[task]))
    assert request.due_ms == at("2026-02-09 18:20")


def test_who_looks_a_moment_late_is_not_late():
    task = a_task(deadline="2026-02-10 12:10", pct=70)
    (request,) = notified(planned("2026-02-09 12:10:00.250", tasks=[task]))
    assert request.due_ms == at("2026-02-09 12:10")


def test_an_alert_is_told_once_a_deadline():
    task = a_task(deadline="2026-02-10 15:00", pct=70)
    past = AlertHistory(alerts={"task_001": (delivered("2026-02-09 15:00", cause="deadline:24h"),)})
    assert notified(planned("2026-02-10 09:00", tasks=[task], past=past)) == []


def test_an_alert_that_a_person_cancelled_is_not_made_again():
    row = a_notification(
        cause="deadline:24h", status=NotificationStatus.CANCELLED, cancelled_ms=at("2026-02-09 08:40")
    )
    past = AlertHistory(alerts={"task_001": (row,)})
    assert notified(planned("2026-02-09 08:45", tasks=[a_task(deadline="2026-02-10")], past=past)) == []


def test_at_21_a_moved_deadline_has_an_alert_of_its_own():
    past = AlertHistory(alerts={"task_001": (delivered("2026-02-09 09:00", cause="deadline:24h"),)})
    task = a_task(deadline="2026-02-20", last_update_ms=at("2026-02-19 00:00"))
    assert notified(planned("2026-02-18 23:59:59", tasks=[task], past=past)) == []
    (request,) = notified(planned("2026-02-19 00:00", tasks=[task], past=past))
    assert request.due_ms == at("2026-02-19 09:00")


def test_a_parked_task_is_alerted_of_its_deadline_and_nothing_else():
    task = a_task(
        deadline="2026-02-10",
        status=BoardTaskStatus.SOMEDAY,
        user_set={"status": 1},
        last_update_ms=at("2026-01-01 09:00"),
    )
    plan = planned("2026-02-09 08:30", tasks=[task])
    assert [one.type for one in notified(plan)] == [NotificationType.DEADLINE_ALERT]
    assert asked(plan) == []


# Silence and blocks


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ("2026-02-06 08:30:01", []),
        ("2026-02-06 08:30:00", [("progress_check", "medium", at("2026-02-09 09:00"))]),
        ("2026-02-04 08:30:01", [("progress_check", "medium", at("2026-02-09 09:00"))]),
        ("2026-02-04 08:30:00", [("progress_check", "high", at("2026-02-09 09:00"))]),
    ],
)
def test_at_11_silence_is_noticed_after_three_days_and_after_five(last, expected):
    plan = planned("2026-02-09 08:30:00", tasks=[a_task(last_update_ms=at(last))])
    assert told(notified(plan)) == expected


def test_at_06_a_block_is_followed_up_after_two_days_two_hours_later():
    task = a_task(
        "task_002",
        pct=50,
        blocked_ms=at("2026-02-07 09:00"),
        blocker_note="no key",
        last_update_ms=at("2026-02-04 09:00"),
    )
    early = planned("2026-02-09 08:59:59", tasks=[task])
    assert early.actions == ()
    plan = planned("2026-02-09 09:00:00", tasks=[task])
    assert told(notified(plan)) == [("blocker_followup", "medium", at("2026-02-09 11:00"))]
    assert asked(plan) == []


def test_what_is_not_urgent_waits_for_the_end_of_the_quiet_hours():
    task = a_task(pct=50, blocked_ms=at("2026-02-01 09:00"))
    (request,) = notified(planned("2026-02-09 22:30", tasks=[task]))
    assert request.due_ms == at("2026-02-10 08:00")


def test_at_14_a_nudge_has_a_day_between_itself_and_the_next():
    task = a_task(last_update_ms=at("2026-02-05 09:00"))
    kind = NotificationType.PROGRESS_CHECK
    past = AlertHistory(
        alerts={"task_001": (delivered("2026-02-09 09:00", type=kind, cause="progress:72h"),)}
    )
    assert notified(planned("2026-02-10 08:59", tasks=[task], past=past)) == []
    assert len(notified(planned("2026-02-10 09:00", tasks=[task], past=past))) == 1


def test_one_nudge_is_enough_also_when_it_grows_urgent():
    task = a_task(last_update_ms=at("2026-02-04 08:30"))
    row = a_notification(type=NotificationType.PROGRESS_CHECK, cause="progress:72h")
    assert notified(planned("2026-02-09 08:30", tasks=[task], notifications=[row])) == []


def test_who_was_just_asked_about_silence_is_not_nudged_about_it():
    task = a_task(last_update_ms=at("2026-02-06 08:30"))
    past = AlertHistory(asked={("task_001", QuestionType.STATUS_CHECK): at("2026-02-08 08:30")})
    assert planned("2026-02-09 08:30", tasks=[task], past=past).actions == ()


def test_a_question_that_nobody_has_seen_gives_way_to_the_nudge():
    task = a_task(last_update_ms=at("2026-02-06 08:30"))
    question = a_question(task_id="task_001", type=QuestionType.STATUS_CHECK, priority=Priority.LOW)
    plan = planned("2026-02-09 08:30", tasks=[task], questions=[question])
    assert len(notified(plan)) == 1
    closed = [step.question_id for step in plan.steps if isinstance(step, CloseQuestion)]
    assert closed == ["q_001"]
    assert asked(plan) == []


# Questions that wait


@pytest.mark.parametrize(
    ("priority", "created", "expected"),
    [
        (Priority.HIGH, "2026-02-07 08:30:01", []),
        (Priority.HIGH, "2026-02-07 08:30:00", [("question_reminder", "high", at("2026-02-09 09:00"))]),
        (Priority.MEDIUM, "2026-02-07 08:30:00", []),
        (Priority.MEDIUM, "2026-02-06 08:30:00", [("question_reminder", "medium", at("2026-02-09 09:00"))]),
        (Priority.LOW, "2026-02-01 08:30:00", []),
    ],
)
def test_at_12_an_important_question_that_waits_is_reminded_of(priority, created, expected):
    question = a_question(priority=priority, created_ms=at(created))
    assert told(notified(planned("2026-02-09 08:30", questions=[question]))) == expected


def test_at_12_a_medium_question_waits_a_day_longer():
    question = a_question(priority=Priority.MEDIUM, created_ms=at("2026-02-07 08:30"))
    assert notified(planned("2026-02-10 08:29:59", questions=[question])) == []
    assert len(notified(planned("2026-02-10 08:30", questions=[question]))) == 1


# What is asked


@pytest.mark.parametrize("now", ["2026-02-09 00:00", "2026-02-09 12:00"])
def test_at_16_an_overdue_task_is_asked_after_once(now):
    task = a_task(deadline="2026-02-07", pct=60)
    (question,) = asked(planned(now, tasks=[task]))
    assert (question.type, question.priority) == (QuestionType.DEADLINE_CHECK, Priority.HIGH)
    assert "-2" not in question.question.replace("2026-02", "")
    standing = a_question(task_id="task_001", type=QuestionType.DEADLINE_CHECK, question=question.question)
    assert asked(planned(now, tasks=[task], questions=[standing])) == []


def test_at_16_a_day_is_overdue_when_it_has_ended():
    task = a_task(deadline="2026-02-09", pct=95)
    assert "was due" not in str(asked(planned("2026-02-09 23:59:59", tasks=[task])))
    assert "was due" in str(asked(planned("2026-02-10 00:00:00", tasks=[task])))


T0 = at("2026-02-01 00:00")


def the_question(*, pct: int, elapsed: int, total: int, silent: int = 0) -> tuple[str, str] | None:
    """What is asked of a task made at T0 whose deadline is `total` later, when `elapsed` have passed."""
    moment = f"{(T0 + total) // 1000}"
    task = a_task(pct=pct, created_ms=T0, last_update_ms=T0 + elapsed - silent)
    from orchestrator.domain.dashboard import Deadline

    task = _with(task, deadline=Deadline(at_ms=T0 + total, text=moment) if total else None)
    wanted = follow_up_questions.choose(task, HOURS, now_ms=T0 + elapsed)
    return (wanted.type.value, wanted.priority.value) if wanted else None


def _with(task: Any, **changes: Any) -> Any:
    from dataclasses import replace

    return replace(task, **changes)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        # stale and very stale, with and without a deadline
        ({"pct": 10, "elapsed": 9 * DAY, "total": 0, "silent": 48 * HOUR - 1}, None),
        ({"pct": 10, "elapsed": 9 * DAY, "total": 0, "silent": 48 * HOUR}, ("status_check", "low")),
        ({"pct": 10, "elapsed": 9 * DAY, "total": 0, "silent": 96 * HOUR - 1}, ("status_check", "low")),
        ({"pct": 10, "elapsed": 9 * DAY, "total": 0, "silent": 96 * HOUR}, ("routine_check", "low")),
        ({"pct": 10, "elapsed": 9 * DAY, "total": 10 * DAY, "silent": 96 * HOUR}, ("routine_check", "low")),
        # not started: only above a fifth of the time
        ({"pct": 0, "elapsed": 2 * DAY, "total": 10 * DAY}, None),
        ({"pct": 0, "elapsed": 2 * DAY + 1000, "total": 10 * DAY}, ("start_check", "low")),
        ({"pct": 0, "elapsed": 4 * DAY, "total": 10 * DAY}, ("start_check", "medium")),
        ({"pct": 0, "elapsed": 7 * DAY, "total": 10 * DAY}, ("start_check", "high")),
        ({"pct": 0, "elapsed": 9 * DAY, "total": 10 * DAY}, ("start_check", "high")),
        # far behind: 3 d 00:00:00 left, and 3 d 00:00:01
        ({"pct": 40, "elapsed": 7 * DAY, "total": 10 * DAY}, ("blocker_check", "high")),
        ({"pct": 40, "elapsed": 7 * DAY - 1000, "total": 10 * DAY}, ("progress_check", "medium")),
        # slightly behind
        ({"pct": 55, "elapsed": 7 * DAY, "total": 10 * DAY}, ("progress_check", "medium")),
        ({"pct": 55, "elapsed": 7 * DAY - 1000, "total": 10 * DAY}, None),
        # in time, the deadline near
        ({"pct": 60, "elapsed": 7 * DAY, "total": 10 * DAY}, ("deadline_check", "high")),
        ({"pct": 60, "elapsed": 7 * DAY - 1000, "total": 10 * DAY}, None),
        ({"pct": 89, "elapsed": 9 * DAY, "total": 10 * DAY}, ("deadline_check", "high")),
        # nearly done: 24 h left, and 24 h 00:00:01
        ({"pct": 90, "elapsed": 9 * DAY, "total": 10 * DAY}, ("completion_check", "medium")),
        ({"pct": 99, "elapsed": 9 * DAY, "total": 10 * DAY}, ("completion_check", "medium")),
        ({"pct": 90, "elapsed": 9 * DAY - 1000, "total": 10 * DAY}, None),
        ({"pct": 100, "elapsed": 9 * DAY, "total": 10 * DAY}, None),
    ],
)
def test_at_17_each_row_of_the_table_asks_its_question_at_its_bound(case, expected):
    assert the_question(**case) == expected


def test_at_17_a_deadline_not_after_the_beginning_asks_nothing():
    task = a_task(
        deadline="2026-02-10", created_ms=at("2026-02-10 00:00"), last_update_ms=at("2026-02-10 08:00")
    )
    assert follow_up_questions.choose(task, HOURS, now_ms=at("2026-02-10 09:00")) is None


def test_at_18_very_stale_goes_before_stale_from_96_hours_on():
    now = at("2026-02-09 08:30")
    stale = a_task(last_update_ms=now - 96 * HOUR + 1)
    very = a_task(last_update_ms=now - 96 * HOUR)
    chosen = [follow_up_questions.choose(task, HOURS, now_ms=now) for task in (stale, very)]
    assert [one.type for one in chosen if one] == [QuestionType.STATUS_CHECK, QuestionType.ROUTINE_CHECK]


def test_at_19_an_answered_question_is_not_asked_again_until_its_cooldown_is_over():
    task = a_task(last_update_ms=at("2026-02-06 20:00"))
    past = AlertHistory(asked={("task_001", QuestionType.STATUS_CHECK): at("2026-02-09 08:40")})
    for now in ("2026-02-09 09:00", "2026-02-09 09:30", "2026-02-12 08:39:59"):
        plan = planned(now, tasks=[task], past=past)
        assert (asked(plan), notified(plan)) == ([], []), now
    again = planned("2026-02-12 08:40", tasks=[task], past=past)
    assert asked(again) or notified(again)


def test_what_was_asked_and_sent_by_a_clock_that_was_a_year_ahead_keeps_nothing_back():
    stale = a_task(last_update_ms=at("2026-02-06 20:00"))
    asked_ahead = AlertHistory(asked={("task_001", QuestionType.STATUS_CHECK): at("2027-02-09 08:40")})
    plan = planned("2026-02-09 09:00", tasks=[stale], past=asked_ahead)
    assert asked(plan) or notified(plan)

    due = a_task(deadline="2026-02-10", pct=70)
    told_ahead = AlertHistory(alerts={"task_001": (delivered("2027-02-09 09:00", cause="deadline:48h"),)})
    assert notified(planned("2026-02-09 08:30", tasks=[due], past=told_ahead))


def test_a_question_and_an_alert_about_the_same_deadline_are_one_too_many():
    plan = planned("2026-02-09 08:30", tasks=[a_task(deadline="2026-02-10", pct=85)])
    assert len(notified(plan)) == 1
    assert asked(plan) == []


def test_a_korean_task_is_spoken_of_in_korean():
    plan = planned("2026-02-09 08:30", tasks=[a_task(title="블로그 쓰기", deadline="2026-02-10")])
    assert "마감" in notified(plan)[0].message


def test_one_look_asks_a_few_questions_the_most_important_first():
    stale = [a_task(f"task_{number:02}", last_update_ms=at("2026-02-07 08:00")) for number in range(30)]
    late = a_task("task_late", deadline="2026-02-07", pct=60)
    plan = planned("2026-02-09 08:30", tasks=[*stale, late])
    assert len(asked(plan)) == 5
    assert "task_late" in {one.task_id for one in asked(plan)}


# Order


def test_at_20_a_task_that_a_person_parked_stays_parked():
    task = a_task(pct=40, status=BoardTaskStatus.SOMEDAY, user_set={"status": at("2026-02-09 10:00")})
    assert planned("2026-02-09 10:30", tasks=[task]).actions == ()


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"last_update_ms": at("2026-02-02 08:30")}, BoardTaskStatus.ACTIVE),
        ({"last_update_ms": at("2026-02-02 08:29:59")}, BoardTaskStatus.SOMEDAY),
        ({"last_update_ms": 0, "pct": 1}, BoardTaskStatus.ACTIVE),
        ({"last_update_ms": 0, "priority": Priority.HIGH}, BoardTaskStatus.ACTIVE),
        ({"last_update_ms": 0, "deadline": "2026-02-16 08:30"}, BoardTaskStatus.ACTIVE),
        ({"last_update_ms": 0, "deadline": "2026-02-16 08:31"}, BoardTaskStatus.SOMEDAY),
        ({"last_update_ms": 0, "deadline": "2026-01-16"}, BoardTaskStatus.ACTIVE),
    ],
)
def test_a_task_is_on_or_parked_by_what_is_known_of_it(changes, status):
    other = BoardTaskStatus.SOMEDAY if status is BoardTaskStatus.ACTIVE else BoardTaskStatus.ACTIVE
    plan = planned("2026-02-09 08:30", tasks=[a_task(**changes, status=other)])
    assert ChangeStatus(task_id="task_001", status=status) in plan.steps
    same = planned("2026-02-09 08:30", tasks=[a_task(**changes, status=status)])
    assert not any(isinstance(step, ChangeStatus) for step in same.steps)


def test_completed_tasks_go_to_the_history_and_cancelled_ones_stay():
    done = a_task("task_1", status=BoardTaskStatus.COMPLETED, pct=100, completed_ms=1)
    off = a_task("task_2", status=BoardTaskStatus.CANCELLED)
    assert planned("2026-02-09 08:30", tasks=[done, off]).actions == (ArchiveTask(task_id="task_1"),)


def test_one_task_that_cannot_be_read_spoils_no_other():
    broken = a_task("task_0", deadline="2026-02-10")
    broken = _with(broken, deadline=_with(broken.deadline, date="no date"))
    plan = planned("2026-02-09 08:30", tasks=[broken, a_task(deadline="2026-02-10")])
    assert [trouble.row_id for trouble in plan.troubles] == ["task_0"]
    assert [one.task_id for one in notified(plan)] == ["task_001"]


def test_one_question_a_task_is_left_and_old_ones_go():
    task = a_task()
    rows = [
        a_question("q_1", task_id="task_001", priority=Priority.LOW),
        a_question("q_2", task_id="task_001", priority=Priority.HIGH, asked_count=2),
        a_question("q_3", task_id="task_001", priority=Priority.HIGH, asked_count=1),
        a_question("q_4", task_id="task_001", created_by=Actor.MAIN_AGENT),
        a_question("q_5", task_id="task_gone"),
        a_question("q_6", created_ms=at("2026-01-26 08:30"), priority=Priority.LOW),
        a_question("q_7", created_ms=at("2026-01-26 08:30:01"), priority=Priority.LOW),
    ]
    plan = planned("2026-02-09 08:30", tasks=[task], questions=rows)
    closed = sorted(step.question_id for step in plan.steps if isinstance(step, CloseQuestion))
    assert closed == ["q_1", "q_2", "q_5", "q_6"]


def test_what_is_to_be_told_of_a_task_that_is_over_is_withdrawn():
    off = a_task(status=BoardTaskStatus.CANCELLED)
    rows = [
        a_notification("n_1"),
        a_notification("n_2", task_id="task_gone"),
        a_notification("n_3", task_id=None),
        a_notification("n_4", task_id=None, question_id="q_gone"),
    ]
    plan = planned("2026-02-09 08:30", tasks=[off], notifications=rows)
    assert [step.notification_id for step in plan.steps if isinstance(step, WithdrawNotification)] == [
        "n_1",
        "n_2",
        "n_4",
    ]


# What is left to others


def test_what_rules_cannot_judge_is_named():
    tasks = [
        a_task("task_1", last_update_ms=at("2026-02-04 08:30")),
        a_task("task_2", blocked_ms=at("2026-02-07 08:30")),
        a_task("task_3"),
    ]
    answered = a_question(answered_ms=1, answer="the big one")
    plan = planned("2026-02-09 08:30", tasks=tasks, answered=[answered])
    assert plan.to_judge == ("answered:q_001", "blocked:task_2", "stagnant:task_1")


def test_quiet_hours_may_lie_within_a_day_or_be_none():
    siesta = Hours(zone=SEOUL, quiet_start=13, quiet_end=15)
    assert siesta.after_quiet(at("2026-02-09 13:00")) == at("2026-02-09 15:00")
    assert siesta.after_quiet(at("2026-02-09 15:00")) == at("2026-02-09 15:00")
    never = Hours(zone=SEOUL, quiet_start=8, quiet_end=8)
    assert not any(never.is_quiet(at("2026-02-09 00:00") + hour * HOUR) for hour in range(24))
    assert HOURS.after_quiet(at("2026-02-09 07:59:59")) == at("2026-02-09 08:00")
    assert HOURS.after_quiet(at("2026-02-09 23:00")) == at("2026-02-10 08:00")
    assert HOURS.next_slot(at("2026-02-09 18:00") + MINUTE) == at("2026-02-10 09:00")
