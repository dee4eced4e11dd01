"""Parse replies that need no model: “done” and “later 2h” under a notification, numbered answers. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent_runner.wire.unicode_forms import composed

MAX_CHARS = 500
"""Most characters of a reply that is read here; a longer one is left to an agent."""
HOUR_MS = 3_600_000
USUAL_PAUSE_MS = HOUR_MS
CHECK, THUMB = "✅", "👍"
_EMOJI_VARIANTS = re.compile("[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff]")
"""Variation selectors and skin tones, which change how an emoji looks and not what it means."""
LIST_QUESTIONS = frozenset({"/questions", "/질문"})

_DONE = frozenset(
    {
        "done",
        "finished",
        "completed",
        "did it",
        "i did it",
        "it's done",
        "its done",
        "i'm done",
        "all done",
        "already done",
        "done, thanks",
        "done thanks",
        "done, thank you",
        "완료",
        "완료했어",
        "완료했어요",
        "완료했습니다",
        "완료했음",
        "완료요",
        "완료됨",
        "끝",
        "끝났어",
        "끝났어요",
        "끝났습니다",
        "끝냈어",
        "끝냈어요",
        "끝냈습니다",
        "끝냄",
        "다 끝났어",
        "다 끝났어요",
        "다 끝냈어",
        "다 끝냈어요",
        "다 했어",
        "다 했어요",
        "다했어",
        "다했어요",
        "다 했음",
        "다 했습니다",
        "했어",
        "했어요",
        "했습니다",
    }
)
_YES = frozenset(
    {
        *("yes", "yep", "yeah", "yup", "y", "sure", "ok", "okay", "of course", "right", "it is"),
        *("네", "넵", "예", "응", "웅", "그래", "어", "맞아", "맞아요", "좋아", "좋아요", "ㅇㅇ", "ㅇㅋ"),
    }
)
# "later", "snooze 2h", "나중에 5시에": the group `when` has the rest.
_LATER = re.compile(
    r"(?:later|snooze|postpone|not now|나중에|이따가|이따|미뤄 ?줘|미뤄|다음에)[\s,:]*(?P<when>.*)", re.DOTALL
)
# The "until" of "until 5pm".
_BEFORE_TIME = re.compile(r"(?:for|until|till|to)\s+")
# The end of "5시에 다시 알려 줘" (tell me again at 5) or of "5pm please". The group `again` has the Korean
# words for "tell me again".
_AFTER_TIME = re.compile(
    r"(?:\s*(?:으로|로|에))?(?P<again>\s*(?:다시\s*)?(?:좀\s*)?(?:알려|말해|미뤄)\s*(?:줘요?|주세요)|\s*다시)?"
    r"(?:\s*(?:later|please))*$"
)
# "an hour", "30 mins".
_SPAN = re.compile(r"(?:an?|\d{1,4}) ?(?:minutes?|mins?|hours?|hrs?|days?|weeks?)", re.ASCII)
# "두 시간 반" (two and a half hours), "30분". Each blank can match in one place only: with two,
# the time to refuse a text would double with each of its units.
_KOREAN_SPAN = re.compile(r"(?:(?:\d{1,4}|[한두세네]) ?(?:분|시간|일|주일?) ?(?:반 ?)?)+", re.ASCII)
# "1d 2h", "30m": days, hours and minutes.
_SHORT_SPAN = re.compile(r"(?:(\d{1,3})\s*d)?\s*(?:(\d{1,3})\s*h)?\s*(?:(\d{1,4})\s*m(?:in)?)?", re.ASCII)
_BETWEEN_MARKS = re.compile(r"[^\w/?]*+((?:.*[\w?])?)", re.DOTALL)
"""Matches from the start of any text; its group is the text without punctuation and emoji around it.

Question marks stay: they turn an answer into a question.
"""
# The word after a number in "2 hours", "3 pm", "2 시간": the number is part of the answer.
_UNIT = (
    r"(?:(?:seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|weeks?|months?|years?|times|people|persons?|percent"
    r"|euros?|dollars?|kg|km|o.?clock|[ap]\.?m)\b|[%€$]"
    r"|(?:분|시간?|일|주일?|개월|달|년|명|개|원)(?:에|이?면|이?요|정도|쯤)?(?![가-힣]))"
)
# "1. yes", "1) yes", "1 yes"; but "1.5 hours", "1:30 pm" and "2 hours" begin with an amount or a time.
_NUMBERED_LINE = re.compile(
    rf"\s*(\d{{1,3}})(?:\s*+(?:\)|[.:](?!\d))\s*+|\s++(?!{_UNIT}))(\S.*)", re.ASCII | re.IGNORECASE
)
_BARE_LINE = re.compile(r"\s*(\d{1,3})\s++(\S.*)", re.ASCII)
"""The line of an answer without a mark after its number, whatever comes behind: "2 days off"."""
_INLINE_NUMBERS = (
    re.compile(r"(?:^|\s)(\d{1,3})[.):]\s+(?=\S)", re.ASCII),
    re.compile(r"(?:^|\s)(\d{1,3})[.):](?=[^\s\d])", re.ASCII),
)
"""The two styles `1. … 2. …` and `1.… 2.…`; one message uses only one of them."""


@dataclass(frozen=True, slots=True)
class DoneReply:
    """The person says that the task of the notification is done."""

    emoji: str = ""
    """The emoji that was the whole reply or reaction; empty where the person wrote it in words."""


@dataclass(frozen=True, slots=True)
class LaterReply:
    """The person wants the notification again: after `pause_ms`, or at the time that `time_text` names."""

    pause_ms: int | None = None
    time_text: str = ""


def read(text: str) -> DoneReply | LaterReply | None:
    """Return the meaning of a reply to a notification: its task is done, or it shall come again later.

    None where only an agent can understand the reply.
    """
    # The patterns below take quadratic time for some texts.
    if len(text) > MAX_CHARS:
        return None
    # A thumb comes in five skin colours and two styles, and means the same in all.
    emoji = _EMOJI_VARIANTS.sub("", text.strip())
    if emoji in (CHECK, THUMB):
        return DoneReply(emoji=emoji)
    plain = _normalized(text)
    if plain in _DONE:
        return DoneReply()
    # The text around a time is taken off: "later", "until" and the like before it, "다시 알려 줘" after it.
    # So "later until 5pm please" and "5시에 다시 알려 줘" become "5pm" and "5시".
    later = _LATER.fullmatch(plain)
    time_text = _BEFORE_TIME.sub("", later["when"].strip() if later else plain, count=1)
    tail = _AFTER_TIME.search(time_text)
    is_put_off = later is not None or (tail is not None and tail["again"] is not None)
    time_text = _AFTER_TIME.sub("", time_text, count=1).strip()
    pause_ms = _pause_ms(time_text)
    if pause_ms is not None:  # 2h
        return LaterReply(pause_ms=pause_ms)
    if _SPAN.fullmatch(time_text):  # an hour
        return LaterReply(time_text=f"in {time_text}")
    if _KOREAN_SPAN.fullmatch(time_text):  # 두 시간 반
        return LaterReply(time_text=f"{time_text} 후")
    # Without a word such as "later" only a clear span counts, such as "in two hours" or "두 시간 후":
    # "tomorrow" alone may be an answer to something else.
    if not is_put_off:
        return (
            LaterReply(time_text=time_text)
            if time_text.startswith("in ") or time_text.endswith(("후", "뒤"))
            else None
        )
    return LaterReply(time_text=time_text) if time_text else LaterReply(pause_ms=USUAL_PAUSE_MS)


def means_done(answer: str) -> bool:
    """Return whether an answer to "is it done?" says that it is: a bare yes, `done`, or both."""
    plain = _normalized(answer)
    if plain in _YES or plain in _DONE:
        return True
    first, _, remainder = plain.replace(",", " ").partition(" ")
    return first in _YES and remainder.strip() in _YES | _DONE


def _pause_ms(text: str) -> int | None:
    """Return the milliseconds of a text such as `2h`, `30m` or `1d 2h`; None for any other text or zero."""
    match = _SHORT_SPAN.fullmatch(text.removeprefix("in ").strip())
    if match is None or not any(match.groups()):
        return None
    days, hours, minutes = (int(part or 0) for part in match.groups())
    # `or None`: no pause at all, as in `0h`, is no time to send something again.
    return ((days * 24 + hours) * 60 + minutes) * 60_000 or None


def answers(text: str, *, count: int) -> tuple[tuple[int, str], ...] | None:
    """Return (number, answer) for each answer in a text such as `1. the big hall 2. at six`.

    None unless the whole text consists of numbered answers. Numbers must be from 1 to `count`, each at most
    once. A line without a number continues the answer before it.
    """
    # Lines first: inside a line that is an answer, numbers may be part of it.
    numbered = _answers_by_line(text, count) or _inline_answers(text)
    numbers = [number for number, _ in numbered]
    if not numbered or len(set(numbers)) != len(numbers) or not 1 <= min(numbers) <= max(numbers) <= count:
        return None
    return tuple(numbered) if all(answer for _, answer in numbered) else None


def _answers_by_line(text: str, count: int) -> list[tuple[int, str]]:
    """Return (number, answer) for each line of a text that begins with a number.

    A line without a number continues the answer before it. Empty where the first line has no number, or the
    text is one line with several numbers. `count` is the number of questions.
    """
    lines = [line for line in text.strip().splitlines() if line.strip()]
    if len(lines) == 1 and any(len(style.findall(lines[0])) > 1 for style in _INLINE_NUMBERS):
        return []
    parsed: list[tuple[int, str]] = []
    is_bare = False  # whether the last number had no mark after it
    for line in lines:
        numbered = _NUMBERED_LINE.fullmatch(line)
        if numbered is None and is_bare and (next_line := _BARE_LINE.fullmatch(line)):
            # After "1 yes", "2 days off" answers question 2, if there is one.
            numbered = next_line if int(next_line[1]) == parsed[-1][0] + 1 <= count else None
        if numbered is not None:
            is_bare = _BARE_LINE.fullmatch(line) is not None
            parsed.append((int(numbered[1]), numbered[2].strip()))
        elif parsed:
            number, answer = parsed[-1]
            parsed[-1] = (number, f"{answer}\n{line.strip()}")
        else:
            return []
    return parsed


def _inline_answers(text: str) -> list[tuple[int, str]]:
    """Return (number, answer) for each `1. …` in one line; empty where the text does not start with one."""
    line = text.strip()
    numbers_by_style = (list(style.finditer(line)) for style in _INLINE_NUMBERS)
    numbers = next((matches for matches in numbers_by_style if matches and matches[0].start() == 0), [])
    # An answer ends where the next number starts; a comma between two answers belongs to none.
    ends = [*(number.start() for number in numbers[1:]), len(line)]
    return [
        (int(number[1]), line[number.end() : end].strip().rstrip(",;" if end < len(line) else ""))
        for number, end in zip(numbers, ends, strict=False)
    ]


def _normalized(text: str) -> str:
    """Return a text in lower case, with single spaces and without punctuation and emoji around it."""
    inner = _BETWEEN_MARKS.match(composed(text))
    return " ".join(inner[1].casefold().split()) if inner else ""
