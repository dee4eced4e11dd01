"""What people write that needs no model: “done”, “later 2h” under a notification, numbered answers. Pure."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

HOUR_MS = 3_600_000
USUAL_PAUSE_MS = HOUR_MS
LIST_QUESTIONS = frozenset({"/questions", "/질문"})

_DONE = frozenset(
    {
        "done",
        "finished",
        "completed",
        "did it",
        "it's done",
        "its done",
        "all done",
        "완료",
        "완료했어",
        "완료했어요",
        "완료했습니다",
        "끝",
        "끝났어",
        "끝났어요",
        "끝났습니다",
        "끝냈어",
        "끝냈어요",
        "끝냈습니다",
        "다 했어",
        "다 했어요",
        "다했어",
        "다했어요",
        "했어",
        "했어요",
        "했습니다",
    }
)
_LATER = re.compile(
    r"(?:later|snooze|postpone|not now|나중에|이따가|이따|미뤄 ?줘|미뤄|다음에)[\s,:]*(?P<when>.*)", re.DOTALL
)
_LEAD = re.compile(r"(?:for|until|till|to)\s+")
_TAIL = re.compile(r"\s*(?:에|에 다시|다시|다시 알려 ?줘|알려 ?줘|later)$")
_SHORT = re.compile(r"(?:(\d{1,3})\s*d)?\s*(?:(\d{1,3})\s*h)?\s*(?:(\d{1,4})\s*m(?:in)?)?", re.ASCII)
_MARKS = " \t\r\n.!~…✅👍👌☑️✔️"
_LINE = re.compile(r"\s*(\d{1,3})\s*(?:[.):]\s*|\s+)(\S.*)", re.ASCII)
_INLINE = re.compile(r"(?:^|\s)(\d{1,3})[.):]\s+(?=\S)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Done:
    """What the notification spoke of is done."""


@dataclass(frozen=True, slots=True)
class Later:
    """It is to come again: after `pause_ms`, or at a time that `words` say."""

    pause_ms: int | None = None
    words: str = ""


def read(text: str) -> Done | Later | None:
    """What a reply under a notification asks for; None when it takes more to understand it."""
    said = _plain(text)
    if said in _DONE:
        return Done()
    found = _LATER.fullmatch(said)
    words = found["when"].strip() if found else said
    words = _TAIL.sub("", _LEAD.sub("", words, count=1)).strip()
    pause_ms = _pause_ms(words)
    if pause_ms is not None:
        return Later(pause_ms=pause_ms)
    if found is None:
        return Later(words=words) if words.startswith("in ") or words.endswith(("후", "뒤")) else None
    return Later(words=words) if words else Later(pause_ms=USUAL_PAUSE_MS)


def _pause_ms(words: str) -> int | None:
    """`2h`, `30m`, `1d 2h`; None of anything else."""
    found = _SHORT.fullmatch(words.removeprefix("in ").strip())
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60_000 or None


def answers(text: str, *, count: int) -> tuple[tuple[int, str], ...] | None:
    """Read `1. the big hall 2. at six`, in lines or in one; None unless all of it answers.

    Numbers are those of a list of `count`; each comes once. What follows a line belongs to its answer.
    """
    found = _by_lines(text) or _inline(text)
    numbers = [number for number, _ in found]
    if not found or len(set(numbers)) != len(numbers) or not all(1 <= one <= count for one in numbers):
        return None
    return tuple(found) if all(answer for _, answer in found) else None


def _by_lines(text: str) -> list[tuple[int, str]]:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    if len(lines) == 1 and len(_INLINE.findall(lines[0])) > 1:
        return []
    found: list[tuple[int, str]] = []
    for line in lines:
        numbered = _LINE.fullmatch(line)
        if numbered is not None:
            found.append((int(numbered[1]), numbered[2].strip()))
        elif found:
            number, answer = found[-1]
            found[-1] = (number, f"{answer}\n{line.strip()}")
        else:
            return []
    return found


def _inline(text: str) -> list[tuple[int, str]]:
    said = text.strip()
    marks = list(_INLINE.finditer(said))
    if not marks or marks[0].start() != 0:
        return []
    ends = [mark.start() for mark in marks[1:]] + [len(said)]
    return [(int(mark[1]), said[mark.end() : end].strip()) for mark, end in zip(marks, ends, strict=True)]


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).strip(_MARKS).casefold().split())
