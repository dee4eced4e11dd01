"""The texts in which rules notify and ask, in the language of the task's title. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent_runner.wire.times import Language

_HANGUL = re.compile(r"[\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3]")
MAX_SHOWN_CHARS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleTexts:
    """The texts of one language: `{title}` is the task, `{when}` a day or moment, `{days}` at least 1."""

    deadline: str
    deadline_today: str
    progress: str
    stagnant: str
    blocker: str
    question: str
    overdue: str
    start: str
    status: str
    routine: str
    behind: str
    slightly_behind: str
    near: str
    nearly_done: str


ENGLISH = RuleTexts(
    deadline="⏰ “{title}” is due {when} ({pct}% done).",
    deadline_today="⏰ “{title}” is due today ({pct}% done).",
    progress="How is “{title}” going? No news for {days} days ({pct}%).",
    stagnant="“{title}” has not moved for {days} days ({pct}%). Is it still on?",
    blocker="Is “{title}” still blocked{note}?",
    question="I still need an answer: {question}",
    overdue="“{title}” was due {when} and is at {pct}%. Is it done, or when will it be?",
    start="Have you begun with “{title}”?",
    status="Is there any news of “{title}”? It is at {pct}%.",
    routine="“{title}” has been quiet for a while. Is it still on?",
    behind="“{title}” is due soon and at {pct}%. Is something in the way?",
    slightly_behind="How far is “{title}”? It is at {pct}% and a little behind.",
    near="“{title}” is due {when} and at {pct}%. Will it be done in time?",
    nearly_done="“{title}” is at {pct}%. Is it done?",
)
KOREAN = RuleTexts(
    deadline="⏰ “{title}” 마감이 {when}입니다 (진행률 {pct}%).",
    deadline_today="⏰ “{title}” 마감이 오늘입니다 (진행률 {pct}%).",
    progress="“{title}” 어떻게 되어 가나요? {days}일째 소식이 없습니다 ({pct}%).",
    stagnant="“{title}” 작업이 {days}일째 멈춰 있습니다 ({pct}%). 계속하나요?",
    blocker="“{title}” 아직 막혀 있나요{note}?",
    question="아직 답을 기다리고 있습니다: {question}",
    overdue="“{title}” 마감({when})이 지났고 진행률은 {pct}%입니다. 끝났나요, 아니면 언제 끝나나요?",
    start="“{title}” 시작했나요?",
    status="“{title}” 새 소식이 있나요? 진행률은 {pct}%입니다.",
    routine="“{title}” 한동안 소식이 없습니다. 계속하나요?",
    behind="“{title}” 마감이 가까운데 진행률이 {pct}%입니다. 막힌 것이 있나요?",
    slightly_behind="“{title}” 어디까지 됐나요? 진행률은 {pct}%로 조금 늦습니다.",
    near="“{title}” 마감이 {when}이고 진행률은 {pct}%입니다. 제때 끝날까요?",
    nearly_done="“{title}” 진행률이 {pct}%입니다. 다 됐나요?",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTexts:
    """The texts of instant replies in one language. `{count}` is a number of at least one."""

    none_open: str
    how_to_answer: str
    noted: str
    none_noted: str
    """The reply if no answer was recorded: `{number}` is that of the first refused one, `{reason}` why."""
    cancelled: str
    done_or_not: tuple[str, str]
    """The answers to whether a task is done; the first means that it is."""


ENGLISH_ANSWERS = AnswerTexts(
    none_open="There are no open questions.",
    how_to_answer="Answer by number, in one message: “1. … 2. …”",
    noted="✅ Answers noted: {count}.",
    none_noted="⚠️ No answer noted. {number}: {reason}",
    cancelled=" (reminders cancelled: {count})",
    done_or_not=("Yes", "Not yet"),
)
KOREAN_ANSWERS = AnswerTexts(
    none_open="열린 질문이 없습니다.",
    how_to_answer="번호를 붙여 한 메시지로 답해 주세요: “1. … 2. …”",
    noted="✅ 답변 {count}개를 적어 두었습니다.",
    none_noted="⚠️ 답변을 적어 두지 못했습니다. {number}: {reason}",
    cancelled=" (알림 {count}개 취소)",
    done_or_not=("네", "아직이요"),
)


def language_of(text: str) -> Language:
    """Return the language of a text: Korean if it has Hangul, else English."""
    return Language.KOREAN if _HANGUL.search(text) else Language.ENGLISH


def texts_for(text: str) -> RuleTexts:
    """Return the texts of notifications and questions in the language of `text`."""
    return KOREAN if language_of(text) is Language.KOREAN else ENGLISH


def answers_for(text: str) -> AnswerTexts:
    """Return the texts of replies in the language of `text`."""
    return KOREAN_ANSWERS if language_of(text) is Language.KOREAN else ENGLISH_ANSWERS


def shorten(text: str) -> str:
    """Return a text on one line, at most `MAX_SHOWN_CHARS` long."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_SHOWN_CHARS else f"{line[: MAX_SHOWN_CHARS - 1]}…"
