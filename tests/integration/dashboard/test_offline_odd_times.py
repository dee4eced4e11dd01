"""Every request that names a time, with times that are ambiguous, impossible or odd: each gets an answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent_runner.agents.offline.intents import ROWS, patterns_of
from agent_runner.wire.times import Language
from agent_runner.workspace import Workspace
from tests.support.offline_chat import Chat, talking
from tests.support.store_harness import StoreHarness

TIME_SLOTS = {"when", "day", "last", "clock", "later", "earlier", "span", "before", "after", "tail", "body"}
"""The slots of `intents.toml` that hold words for a time, or words from which a time is cut."""
REQUESTS = {
    Language.ENGLISH: [
        "what's on {}?",
        "what is due {}",
        "what's on from {} to sunday",
        "what's on from today to {}",
        "move the reminder to rest to {}",
        "move the deadline of blog to {}",
        "snooze {}",
        "make it {} earlier",
        "the party is on {} and remind me every year at 9",
        "set a timer for {}",
        "timer at {}",
        "wake me {}",
        "remind me the day before the blog is due at {}",
        "remind me to call mum {}",
        "add write to my tasks by {}",
        "wake up in 5 {}",
    ],
    Language.KOREAN: [
        "{} 뭐 있어?",
        "{} 마감 뭐 있어?",
        "오늘부터 {}까지 뭐 있어",
        "블로그 마감을 {}으로 바꿔줘",
        "{} 미뤄줘",
        "{} 깨워줘",
        "블로그 마감 전날 {} 알려줘",
        "{}에 회의라고 알려줘",
    ],
}
TIMES = {
    Language.ENGLISH: [
        "next friday",
        "2/3",
        "tomorrow at 5",
        "monday 12 feb",
        "30 feb",
        "25:00",
        "yesterday",
        "1 jan 2099",
        "every 31st",
        "1h30",
        "99999999999 hours",
        "at 12 at night",
        "the last day of the month",
        "blue",
    ],
    Language.KOREAN: [
        "다음 금요일",
        "2/3",
        "내일 5시",
        "2월 12일 월요일",
        "2월 30일",
        "25시",
        "어제",
        "31일",
        "99999999999시간",
        "내일 밤 12시",
    ],
}


@pytest.fixture
async def chat(store_harness: StoreHarness, tmp_path: Path) -> AsyncIterator[Chat]:
    async with talking(store_harness, Workspace(tmp_path)) as chat:
        yield chat


@pytest.mark.parametrize("language", Language)
async def test_each_odd_time_gets_an_answer(chat: Chat, language: Language) -> None:
    await chat.say("add a task write the blog by friday at 9am")
    await chat.say("remind me tomorrow at 9am to rest")
    async with chat.turn() as turn:
        for text in [request.format(time) for request in REQUESTS[language] for time in TIMES[language]]:
            answer = await chat.anew().take(turn, text)  # a repeated turn begins with the state before it
            assert answer, text
            assert "—" not in answer, f"{text}: {answer}"


def test_the_requests_fill_each_slot_for_a_time() -> None:
    slots, filled = set(), set()
    texts = [request.format("tomorrow") for request in REQUESTS[Language.ENGLISH]]
    for intent in ROWS:
        for pattern in patterns_of(intent, Language.ENGLISH):
            slots |= {(intent, slot) for slot in TIME_SLOTS & pattern.groupindex.keys()}
            matches = [match for text in texts if (match := pattern.fullmatch(text))]
            filled |= {
                (intent, slot) for match in matches for slot, words in match.groupdict().items() if words
            }
    assert slots <= filled
