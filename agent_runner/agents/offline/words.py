"""The sentences that a language must have, and how it tells a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from agent_runner.agents.offline.checklists import Fault
from agent_runner.agents.offline.dates import Shift, Trouble
from agent_runner.agents.offline.intents import Language

_DAYS_EN = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_DAYS_KO = "월화수목금토일"
_MONTHS_EN = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September"),
    *("October", "November", "December"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """One language. Blanks are named as in `str.format`."""

    language: Language
    greeting: str
    welcome: str
    no_model: str
    help: str
    help_main: str
    time: str
    day: str
    note: str
    note_for_all: str
    reminder_set: str
    reminder_late: str
    reminder_cancelled: str
    reminders: str
    no_reminders: str
    today: str
    nothing_today: str
    added: str
    there_already: str
    done: str
    removed: str
    cleared: str
    items: str
    no_open_items: str
    done_items: str
    lists: str
    no_lists: str
    list_line: str
    todo_name: str
    list_name: str
    groups: str
    no_groups: str
    not_registered: str
    registered: str
    unregistered: str
    only_main: str
    not_possible: str
    file_sent: str
    wake_set: str
    note_kept: str
    note_to_self: str
    host_fact: str
    task_added: str
    task_added_until: str
    task_progress: str
    task_done: str
    task_dropped: str
    task_what: str
    task_unknown: str
    task_many: str
    task_or_todo: str
    task_until: str
    task_blocked: str
    open_tasks: str
    open_questions: str
    nothing_open: str
    recall: str
    recall_plan: str
    recall_task: str
    recall_decided: str
    recall_before: str
    recall_last: str
    recall_nothing: str
    disk: str
    shifts: Mapping[Shift, str]
    troubles: Mapping[Trouble, str]
    faults: Mapping[Fault, str]

    def moment(self, at: datetime, *, has_seconds: bool = False) -> str:
        """`Mon 2026-11-23 09:00`, `2026-11-23 (월) 09:00`: what `shapes` can read again."""
        clock = f"{at:%H:%M:%S}" if has_seconds else f"{at:%H:%M}"
        if self.language is Language.KOREAN:
            return f"{_date(at)} ({_DAYS_KO[at.weekday()]}) {clock}"
        return f"{_DAYS_EN[at.weekday()][:3]} {_date(at)} {clock}"

    def long_day(self, at: datetime) -> str:
        """`Sunday, 22 November 2026`, `2026년 11월 22일 일요일`."""
        if self.language is Language.KOREAN:
            return f"{at.year}년 {at.month}월 {at.day}일 {_DAYS_KO[at.weekday()]}요일"
        return f"{_DAYS_EN[at.weekday()]}, {at.day} {_MONTHS_EN[at.month - 1]} {at.year}"


def _date(at: datetime) -> str:
    return f"{at.year:04d}-{at.month:02d}-{at.day:02d}"
