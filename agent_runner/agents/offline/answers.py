"""Take what is said as the answer to what was asked. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, tzinfo

from agent_runner.agents.offline.conversation import OpenQuestion
from agent_runner.agents.offline.intents import PATTERNS, TODO, Wish
from agent_runner.agents.offline.reading import one
from agent_runner.agents.offline.wording import reminders
from agent_runner.wire import times
from agent_runner.wire.times import Reason, TimeRefusal

_ORDER = (
    re.compile(r"(?:the\s+)?(?:first|one|former|1st)(?:\s+one)?|첫\s*번?\s*째|하나|한\s*개", re.IGNORECASE),
    re.compile(
        r"(?:the\s+)?(?:second|two|latter|2nd|several|split)(?:\s+one)?|두\s*번\s*째|둘|두\s*개|따로|나눠(?:줘)?",
        re.IGNORECASE,
    ),
    re.compile(r"(?:the\s+)?(?:third|three|3rd)(?:\s+one)?|세\s*번\s*째|셋|세\s*개", re.IGNORECASE),
)
MAX_NAME_CHARS = 40


@dataclass(frozen=True, slots=True)
class Answer:
    """What an answer makes of a question: the wishes to go on with, or nothing where it was a no."""

    wishes: tuple[Wish, ...] = ()
    is_no: bool = False


def take(question: OpenQuestion, text: str, *, now: datetime, zone: tzinfo) -> Answer | None:
    """Return what `text` answers, None where it is no answer to this question."""
    said = one(text)
    if said is not None and said.intent == "never_mind":
        return Answer(is_no=True)
    match question.slot:
        case "when":
            is_no = said is not None and said.intent == "no"
            return Answer(is_no=True) if is_no else _when(question, text, now=now, zone=zone)
        case "what":
            return None if said is not None and said.intent not in ("yes", "no") else _what(question, text)
        case "list":
            return _list(question, text, said)
        case "which":
            return _which(question, text)
        case _:
            return _sure(question, said)


def _what(question: OpenQuestion, text: str) -> Answer:
    """Take the words as what is to be done, and a time among them too where none was said."""
    wish = question.wish.having(trouble="")
    (read, *others) = reminders(text.strip(), wish.language)
    is_timed = wish.intent == "remind" and not wish.slot("when") and not others and read.slot("when")
    if is_timed:
        return Answer((wish.having(what=read.slot("what"), when=read.slot("when")),))
    return Answer((wish.having(what=text.strip()),))


def _sure(question: OpenQuestion, said: Wish | None) -> Answer | None:
    if said is None or said.intent not in ("yes", "no"):
        return None
    return Answer(is_no=True) if said.intent == "no" else Answer((question.wish.having(sure="yes"),))


def _when(question: OpenQuestion, text: str, *, now: datetime, zone: tzinfo) -> Answer | None:
    """Join the answer to what was known of the time, or take it in its place."""
    wish, said = (
        question.wish,
        PATTERNS["around_answer"].sub("", PATTERNS["around_answer"].sub("", text.strip())).strip(),
    )
    before = wish.slot("when")
    said = f"at {said}" if re.fullmatch(r"\d{1,2}", said) else said
    joined = [_with_half(before, said), *_joined(before, said), said] if before else [said]
    tried = [(form, times.read(form, now=now, zone=zone)) for form in dict.fromkeys(filter(None, joined))]
    if all(isinstance(result, TimeRefusal) and result.reason is Reason.NO_TIME for _, result in tried):
        return None
    moments = [form for form, result in tried if not isinstance(result, TimeRefusal | times.DateOnly)]
    halves = [
        form
        for form, result in tried
        if isinstance(result, TimeRefusal) and result.reason is Reason.WHICH_HALF
    ]
    days = [form for form, result in tried if isinstance(result, times.DateOnly)]
    best = (moments or halves or days or [said])[0]
    return Answer((wish.having(when=best, trouble="", sure="yes"),))


def _joined(before: str, said: str) -> list[str]:
    """Keep as much of what was said before as fits: `today at 8:00` and `tomorrow` are `tomorrow at 8:00`."""
    words = before.split()
    kept = [" ".join(words[:end]) for end in range(len(words), 0, -1)]
    kept += [" ".join(words[start:]) for start in range(1, len(words))]
    return [form for part in kept for form in (f"{part} {said}", f"{said} {part}")]


def _with_half(before: str, said: str) -> str:
    """`tomorrow at 3` and `in the evening`: any word for a half of the day tells which."""
    is_korean = re.search(r"[가-힣]", before) is not None
    if PATTERNS["morning"].fullmatch(said):
        return f"{before} 오전" if is_korean else f"{before} am"
    if PATTERNS["evening"].fullmatch(said):
        return f"{before} 오후" if is_korean else f"{before} pm"
    return ""


def _list(question: OpenQuestion, text: str, said: Wish | None) -> Answer | None:
    if said is not None and said.intent == "show_list":
        return Answer((question.wish.having(list=said.slot("list") or TODO),))
    name = PATTERNS["around_answer"].sub("", re.sub(r"^(?:to|on|the)\s+|에$", "", text.strip())).strip()
    is_name = 0 < len(name) <= MAX_NAME_CHARS and len(name.split()) <= 3 and said is None
    return Answer((question.wish.having(list=name),)) if is_name else None


def _which(question: OpenQuestion, text: str) -> Answer | None:
    """By number, by place, by a part of its words, or all of them."""
    said = PATTERNS["around_answer"].sub("", text.strip()).strip(" .").casefold()
    options = question.options
    if PATTERNS["all_options"].fullmatch(said):
        return Answer(tuple(option.wish for option in options))
    number = re.fullmatch(r"(?:number|no\.?|#)?\s*(\d{1,3})\s*번?(?:이?요)?\.?", said)
    if number:
        place = int(number[1]) - 1
        return Answer((options[place].wish,)) if 0 <= place < len(options) else None
    for place, order in enumerate(_ORDER[: len(options)]):
        if order.fullmatch(said):
            return Answer((options[place].wish,))
    fitting = [option for option in options if len(said) > 1 and said in option.label.casefold()]
    return Answer((fitting[0].wish,)) if len(fitting) == 1 else None
