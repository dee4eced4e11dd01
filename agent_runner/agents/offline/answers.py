"""What a message means as the answer to the question that is open."""

from __future__ import annotations

import re

from agent_runner.agents.offline.conversation import OpenQuestion, Option
from agent_runner.agents.offline.handler import RequestContext
from agent_runner.agents.offline.intents import PATTERNS, ParsedRequest
from agent_runner.agents.offline.reading import parse_one
from agent_runner.agents.offline.wording import reminders
from agent_runner.checklists import TODO
from agent_runner.wire.times import DateOnly, Reason, TimeRefusal

MAX_NAME_CHARS = 40
MAX_NAME_WORDS = 3


def take_answer(question: OpenQuestion, text: str, context: RequestContext) -> list[ParsedRequest] | None:
    """Return the requests that an answer completes, none where it is a no; None where it is no answer."""
    parsed = parse_one(text)
    intent = parsed.intent if parsed else ""
    if intent == "never_mind" or (intent == "no" and question.slot in ("when", "sure")):
        return []
    match question.slot:
        case "when":
            found = _when(question.request, text, context)
        case "what":
            found = _what(question.request, text) if intent in ("", "yes", "no") else None
        case "list":
            found = _list(question.request, text, parsed)
        case "which":
            return _which(question.options, text)
        case _:
            found = question.request.having(sure="yes") if intent == "yes" else None
    return [found] if found else None


def _what(request: ParsedRequest, text: str) -> ParsedRequest:
    """Take the words as what is to be done, and a time among them too where none was named before."""
    request = request.having(trouble="")
    (read, *others) = reminders(text.strip(), request.language)
    if request.intent == "remind" and not request.slot("when") and not others and read.slot("when"):
        return request.having(what=read.slot("what"), when=read.slot("when"))
    return request.having(what=text.strip())


def _when(request: ParsedRequest, text: str, context: RequestContext) -> ParsedRequest | None:
    """Join the answer to what was known of the time, or take it in its place."""
    said = _without_frame(_without_frame(text))
    said = f"at {said}" if re.fullmatch(r"\d{1,2}", said) else said
    forms = _joined(request.slot("when"), said)
    tried = [(form, context.read_time(form)) for form in dict.fromkeys(forms)]
    if all(isinstance(read, TimeRefusal) and read.reason is Reason.NO_TIME for _, read in tried):
        return None
    moments = [form for form, read in tried if not isinstance(read, TimeRefusal | DateOnly)]
    halves = [
        form for form, read in tried if isinstance(read, TimeRefusal) and read.reason is Reason.WHICH_HALF
    ]
    days = [form for form, read in tried if isinstance(read, DateOnly)]
    best = (moments or halves or days or [said])[0]
    return request.having(when=best, trouble="", sure="yes")


def _joined(before: str, said: str) -> list[str]:
    """Keep as much of the time before as fits: `today at 8:00` and `tomorrow` are `tomorrow at 8:00`.

    `tomorrow at 3` and `in the evening`: any word for a half of the day names the half.
    """
    am, pm = ("오전", "오후") if re.search(r"[가-힣]", before) else ("am", "pm")
    halves = [half for name, half in (("morning", am), ("evening", pm)) if PATTERNS[name].fullmatch(said)]
    words = before.split()
    kept = [" ".join(words[:end]) for end in range(len(words), 0, -1)]
    kept += [" ".join(words[start:]) for start in range(1, len(words))]
    joined = [form for part in kept for form in (f"{part} {said}", f"{said} {part}")]
    return [*(f"{before} {half}" for half in halves if before), *joined, said]


def _list(request: ParsedRequest, text: str, parsed: ParsedRequest | None) -> ParsedRequest | None:
    """Take a list that is named in full (`the shopping list`), or a few words as the name of one."""
    if parsed is not None:
        return request.having(list=parsed.slot("list") or TODO) if parsed.intent == "show_list" else None
    name = _without_frame(PATTERNS["before_list"].sub("", text.strip()))
    is_name = 0 < len(name) <= MAX_NAME_CHARS and len(name.split()) <= MAX_NAME_WORDS
    return request.having(list=name) if is_name else None


def _which(options: tuple[Option, ...], text: str) -> list[ParsedRequest] | None:
    """Choose by number, by place (`the second`), by a part of the words, or all of them."""
    said = _without_frame(text).strip(" .").casefold()
    requests = [option.request for option in options]
    if PATTERNS["all_options"].fullmatch(said):
        return requests
    if number := PATTERNS["option_number"].fullmatch(said):
        place = int(number["number"]) - 1
        return [requests[place]] if 0 <= place < len(requests) else None
    for place, request in enumerate(requests[:3], 1):
        if PATTERNS[f"option_{place}"].fullmatch(said):
            return [request]
    fitting = [option.request for option in options if len(said) > 1 and said in option.label.casefold()]
    return fitting if len(fitting) == 1 else None


def _without_frame(text: str) -> str:
    """Take off what is said around an answer: `in the …`, `… please`, `…이요`."""
    return PATTERNS["around_answer"].sub("", text.strip()).strip()
