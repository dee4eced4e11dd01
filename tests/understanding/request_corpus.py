"""Measure what the agent without a model does with everyday requests, by language and by family.

Each request is said in a chat of its own, through the real reception of the host, and judged by what it
changed and what was answered. `requests.toml` says what must come of it.
"""

from __future__ import annotations

import itertools
import re
import shutil
import tempfile
import tomllib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from agent_runner.agents.offline.intents import ANSWERS
from agent_runner.checklists import TODO, Checklists
from agent_runner.wire.order import ECHO
from agent_runner.workspace import Workspace
from orchestrator.dashboard.views import board
from orchestrator.domain.dashboard import Notification
from orchestrator.domain.values import ScheduledTask
from orchestrator.scheduler.scheduled_task_service import to_row
from orchestrator.store import database as store_database
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.database import Database, Tx
from orchestrator.store.schedule import tasks
from tests.doubles.clock import FakeClock
from tests.support.dashboard_harness import FOLDER, DashboardHarness
from tests.support.offline_chat import Chat, chat_in, talking
from tests.support.store_harness import SEOUL, StoreHarness
from tests.support.trial_database import TrialDatabase, trial_database

_REQUESTS = Path(__file__).with_name("requests.toml")
_PAGE = Path(__file__).parents[2] / "docs" / "times.md"
SCENES = {
    "en": (
        "todo buy stamps, call Bob",
        "add milk, eggs, bread to the shopping list",
        "done bread on the shopping list",
        "add a task write the blog by 12 Feb",
        "blog 40%",
        "add a task pay rent by 10 Feb",
        "add a task fix the door",
        "remind me every Monday at 9am to take out the bins",
        "remind me tomorrow at 6pm to call mum",
    ),
    "ko": (
        "할 일 추가 우표 사기, 보고서 출력",
        "우유, 계란, 빵 장보기 목록에 추가",
        "장보기 목록에서 빵 완료",
        "작업 추가 블로그 쓰기 2월 12일까지",
        "블로그 40%",
        "작업 추가 월세 내기 2월 10일까지",
        "작업 추가 문 고치기",
        "매주 월요일 오전 9시에 쓰레기 버리라고 알려줘",
        "내일 오후 6시에 엄마한테 전화하라고 알려줘",
    ),
}
"""What was said before each request, by language."""
_NOTES = re.compile(
    r"⏰ (?:Reminder for (?P<en>[^:]+): |(?P<ko>\S+)님 알림: |(?P<all>Reminder: |알림: )"
    r"|(?P<bare>.*it is time\.|.*시간이에요\.))"
)


class Outcome(StrEnum):
    """The result of one request."""

    RIGHT = "right"
    ASKED = "asked"
    """It asks, where more could have been understood; nothing was done."""
    REFUSED = "refused"
    """It does nothing and says so."""
    WRONG = "wrong"
    """It does something else, or says something that is not true."""


HEAD = ("requests", "all", *Outcome, "good")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request with what must come of it and what came."""

    family: str
    text: str
    expected: str
    changed: str
    answer: str
    outcome: Outcome


@cache
def requests() -> dict[str, dict[str, dict[str, str]]]:
    """Return what must come of each request, by language and family."""
    return tomllib.loads(_REQUESTS.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Scene:
    """A home as it is before each request, whose database is undone after each."""

    home: Path
    trials: TrialDatabase

    @contextmanager
    def chat(self, home: Path) -> Iterator[Chat]:
        """Open the scene as a chat, with a copy of its files."""
        shutil.copytree(self.home, home, ignore=shutil.ignore_patterns("store"))
        with self.trials.connection.trial():
            harness = _harness(self.trials.database, first_number=1000)
            yield chat_in(Workspace(home), DashboardHarness(harness))


def _harness(database: Database, *, first_number: int = 1) -> StoreHarness:
    return StoreHarness(database, FakeClock(), numbers=itertools.count(first_number))


@asynccontextmanager
async def scene(language: str, home: Path) -> AsyncIterator[Scene]:
    """Make the scene of a language by saying what was said before."""
    path = home / "store" / "messages.db"
    store_database._prepare(path)
    async with trial_database(path) as trials:
        async with talking(_harness(trials.database), Workspace(home)) as chat:
            for text in SCENES[language]:
                await chat.say(text)
        yield Scene(home, trials)


async def cases(language: str) -> list[Case]:
    """Say each request of a language, and judge what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        found = []
        async with scene(language, Path(folder, "scene")) as before:
            for family, texts in requests()[language].items():
                for number, (text, expected) in enumerate(texts.items()):
                    with before.chat(Path(folder, f"{family}-{number}")) as chat:
                        found.append(await _case(chat, family, text, expected))
        return found


async def _case(chat: Chat, family: str, text: str, expected: str) -> Case:
    before = await _state(chat)
    answer = await chat.say(text)
    changed = "; ".join(sorted(_changes(before, await _state(chat))))
    asks = bool(chat.agent._conversation.before(0).questions)
    outcome = _outcome(expected, changed, answer, asks=asks)
    return Case(family=family, text=text, expected=expected, changed=changed, answer=answer, outcome=outcome)


# What there is, and what changed


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The lists, tasks and reminders of the chat, each by what stays when it changes."""

    items: dict[str, bool]
    tasks: dict[str, dict[str, Any]]
    once: dict[str, tuple[str, str]]
    again: dict[str, tuple[str, str]]


async def _state(chat: Chat) -> State:
    """Read the state from files and store: commands of the agent take as long as the request does."""
    files = Checklists(chat.workspace.group)
    lists = {name: files.items(name, is_needed=False) for name in (TODO, *files.names())}

    async def read(tx: Tx) -> tuple[dict[str, Any], list[ScheduledTask], list[Notification]]:
        shown = await board.content(tx, FOLDER, SEOUL)
        return shown, await tasks.every(tx, FOLDER), await board_notifications.listed(tx, FOLDER)

    shown, repeating, notifications = await chat.home.harness.database.read(read)
    return State(
        items={f"{item.text}@{name}": item.is_done for name, items in lists.items() for item in items},
        tasks={task["id"]: task for task in shown["tasks"]},
        once={
            one.id: (datetime.fromtimestamp(one.due_ms / 1000, SEOUL).isoformat()[:16], _note(one.message))
            for one in notifications
            if one.status.is_open
        },
        again={
            one.id: (to_row(one)["schedule_value"], _note(one.prompt.removeprefix(ECHO))) for one in repeating
        },
    )


def _note(text: str) -> str:
    """Return the words of a reminder, with whom it is for where that is not Jane."""
    found = _NOTES.match(text)
    if found is None or found["bare"]:
        return ""
    whom = "all" if found["all"] else found["en"] or found["ko"]
    rest = text[found.end() :]
    return rest if whom == "Jane" else f"@{whom} {rest}"


def _changes(before: State, after: State) -> list[str]:
    changes = []
    for item in before.items.keys() | after.items.keys():
        was, now = before.items.get(item), after.items.get(item)
        if was is None or now is None:
            changes.append(f"{'+' if was is None else '-'}{item}")
        elif was is not now:
            changes.append(f"{'x' if now else 'o'}{item}")
    changes += [
        f"remind {at} {text}".strip() for key, (at, text) in after.once.items() if key not in before.once
    ]
    changes += [f"unremind {text}" for key, (_, text) in before.once.items() if key not in after.once]
    changes += [
        f"move {text} {at}"
        for key, (at, text) in after.once.items()
        if before.once.get(key, (at, ""))[0] != at
    ]
    changes += [
        f"repeat {cron} {text}" for key, (cron, text) in after.again.items() if key not in before.again
    ]
    changes += [f"unrepeat {text}" for key, (_, text) in before.again.items() if key not in after.again]
    changes += [
        f"rerepeat {text} {cron}"
        for key, (cron, text) in after.again.items()
        if before.again.get(key, (cron, ""))[0] != cron
    ]
    return changes + _task_changes(before.tasks, after.tasks)


def _task_changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    changes = []
    for key in before.keys() | after.keys():
        was, now = before.get(key), after.get(key)
        if was is None:
            changes.append(" ".join(filter(None, ("task+", now["title"], (now["deadline"] or "")[:10]))))
        elif now is None:
            changes.append(f"task. {was['title']}")
        else:
            changes += [f"task {now['title']} {now['progress']}%"] * (now["progress"] != was["progress"])
            changes += [f"task {now['title']} blocked"] * (now["blocked"] and not was["blocked"])
            if now["deadline"] != was["deadline"]:
                changes.append(f"task {now['title']} due {(now['deadline'] or '')[:10]}")
    return changes


# The judgement


def _outcome(expected: str, changed: str, answer: str, *, asks: bool) -> Outcome:
    for one in expected.split(" | "):
        if _is_met(one, changed, answer, asks=asks):
            return Outcome.RIGHT
    if changed:
        parts = set(changed.split("; "))
        is_part = any(parts < _normal(one) for one in expected.split(" | "))
        says_rest = any(_says(answer, form) for form in REFUSALS)
        return Outcome.ASKED if is_part and (asks or says_rest) else Outcome.WRONG
    if asks:
        return Outcome.ASKED
    is_refusal = any(_says(answer, form) for form in REFUSALS)
    return Outcome.REFUSED if is_refusal else Outcome.WRONG


REFUSALS = (
    *("unknown", "unknown_part", "no_reminder", "no_reminders", "nothing_to_finish", "task_unknown"),
    *("list_error.no_item", "list_error.many_items", "list_error.no_list", "list_error.bad_name"),
    *("nothing_to_move", "undo", "which_number", "never_mind", "forget_nothing", "not_on_list"),
    *(
        "other_zone",
        "repeat_limited",
        "no_condition",
        "past_day",
        "two_meanings",
        "move_repeat",
        "nothing_to_reopen",
    ),
)
"""Answers that nothing was done, which say why."""


def _normal(expected: str) -> set[str]:
    """Return the changes that are expected; a task that is completed or cancelled leaves the board."""
    return {re.sub(r"^task[-x] ", "task. ", one.strip()) for one in expected.split("; ")}


def _is_met(expected: str, changed: str, answer: str, *, asks: bool) -> bool:
    if expected == "ask":
        return asks and not changed
    if expected == "cannot":
        return not changed and (_says(answer, "unknown") or _says(answer, "unknown_part"))
    if expected.startswith("say "):
        return not changed and expected.removeprefix("say ").lower() in answer.lower()
    return _normal(expected) == set(filter(None, changed.split("; ")))


@cache
def _pattern(form: str) -> re.Pattern[str]:
    english, korean = ANSWERS[form]
    parts = (re.sub(r"\\\{\w+\\\}", ".*", re.escape(text.strip())) for text in (english, korean))
    return re.compile("|".join(parts), re.DOTALL | re.IGNORECASE)


def _says(answer: str, form: str) -> bool:
    return _pattern(form).search(answer) is not None


# The table


def rows(language: str, found: Sequence[Case]) -> list[tuple[str, ...]]:
    """Return of each family its requests, those of each outcome, and the share that is right."""
    families = {case.family: [one for one in found if one.family == case.family] for case in found}
    named = {f"{language}, {family}": some for family, some in families.items()}
    return [_row(name, some) for name, some in (named | {f"{language}, all": list(found)}).items()]


def _row(name: str, found: Sequence[Case]) -> tuple[str, ...]:
    counts = Counter(case.outcome for case in found)
    figures = (str(counts[one]) for one in Outcome)
    return name, str(len(found)), *figures, f"{counts[Outcome.RIGHT] / len(found):.0%}"


def documented(language: str) -> str:
    """Return the lines of the table on docs/times.md that are about a language."""
    lines = _PAGE.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if line.startswith(f"| {language}, "))


def for_page(language: str, found: Sequence[Case]) -> str:
    """Return the figures of each family as they must stand on docs/times.md."""
    return "\n".join(f"| {' | '.join(row)} |" for row in rows(language, found))


def table(language: str, found: Sequence[Case]) -> str:
    """Return the figures of each family as lines of text, with what came of requests that are not right."""
    lines = [HEAD, *rows(language, found)]
    others = [
        f"{case.outcome.value:<8} {case.text!r}\n         must: {case.expected}\n"
        f"         came: {case.changed or '-'} · {' / '.join(case.answer.splitlines())[:150]}"
        for case in found
        if case.outcome is not Outcome.RIGHT
    ]
    figures = [f"{name:<24}" + "".join(f"{one:>9}" for one in more) for name, *more in lines]
    return "\n".join([*figures, "", *others])
