"""Find in the words of a request what is to be done and when, and where the next thing begins. Pure.

A wrong cut would set a wrong reminder, so a request whose time is not sure gets the slot `trouble`, and the
chat is asked about it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from agent_runner.agents.offline.intents import ENDINGS, PATTERNS, ParsedRequest
from agent_runner.checklists import TODO
from agent_runner.wire import times
from agent_runner.wire.times import Language

_BETWEEN = " \t\n,:："


def tidied(parsed: ParsedRequest) -> ParsedRequest | None:
    """Make the slots of a matched row ready; None where the words are no such request after all."""
    if parsed.language is Language.KOREAN:
        for name in ("task", "item"):
            if words := parsed.slot(name):
                parsed = parsed.having(**{name: _without_ending("topic", words)})
    if news := parsed.slot("news"):
        # `… 알려줘` asks for a reminder where it quotes ("…라고") or names a moment; else it asks for news.
        lead = times.leading(news)
        names_moment = lead is not None and (lead.parts.has_clock or lead.parts.repeat)
        is_reminder = names_moment or PATTERNS["korean_quote"].search(news)
        return parsed.having(body=news, news="") if is_reminder else None
    return parsed


def expanded(parsed: ParsedRequest) -> list[ParsedRequest]:
    """Return the single requests in one that names several things."""
    match parsed.intent:
        case "remind":
            body = f"{parsed.slot('first')} {parsed.slot('body')}".strip()
            return [found.having(whom=parsed.slot("whom")) for found in reminders(body, parsed.language)]
        case "add_task":
            body = f"{parsed.slot('body')} {parsed.slot('tail')}".strip()
            return tasks(parsed, body) if body else [parsed]
        case "add_todo":
            return _todos(parsed)
        case "add_items":
            items = entries(parsed.slot("items"), parsed.language, parsed.slot("list"))
            return [parsed.having(items="\n".join(items))]
        case _:
            return [parsed]


def entries(text: str, language: Language, list_name: str = "") -> list[str]:
    """Return the single entries of `milk, eggs and bread`; to-dos are cut at commas alone."""
    kind = "between_todos" if list_name == TODO else f"between_entries_{language.value}"
    found = [_without_object(entry) for entry in PATTERNS[kind].split(text) if entry and entry.strip(" .")]
    return list(dict.fromkeys(found))


def _todos(parsed: ParsedRequest) -> list[ParsedRequest]:
    """Read to-dos. One with a time after `by` is a task; `call Bob and buy stamps` may be one or two."""
    if parsed.slot("bare"):
        return [parsed.of("add_items", items="\n".join(entries(parsed.slot("bare"), parsed.language)))]
    found = []
    for item in entries(parsed.slot("items"), parsed.language, TODO):
        title, deadline = until(item, parsed.language, is_task=False)
        if deadline:
            found.append(parsed.of("add_task", title=title, when=deadline))
        elif two := PATTERNS["two_things"].fullmatch(item):
            more = f"{two['left']}\n{two['right']}"
            found.append(parsed.of("one_or_more", one=item, more=more, kind="todo"))
        else:
            found.append(parsed.of("add_items", items=item, list=TODO))
    if all(one.intent == "add_items" for one in found):
        return [parsed.of("add_items", items="\n".join(one.slot("items") for one in found), list=TODO)]
    return found


def tasks(parsed: ParsedRequest, body: str) -> list[ParsedRequest]:
    """Read tasks with their deadlines: `pay rent by Friday and call mum by Monday` is two."""
    body = body.strip()
    pieces = [until(piece, parsed.language) for piece in PATTERNS["between_things"].split(body)]
    if len(pieces) > 1 and all(title and deadline for title, deadline in pieces):
        return [parsed.of("add_task", title=title, when=deadline) for title, deadline in pieces]
    title, deadline = until(body, parsed.language)
    parts = PATTERNS["between_todos"].split(title)
    two = PATTERNS["two_things"].fullmatch(title)
    if two and len(parts) == 1:
        parts = [two["left"], two["right"]]
    if len(parts) > 1 and all(len(part.split()) > 1 for part in parts):
        return [parsed.of("one_or_more", one=title, more="\n".join(parts), kind="task", when=deadline)]
    return [parsed.of("add_task", title=title, when=deadline)]


def until(body: str, language: Language, *, is_task: bool = True) -> tuple[str, str]:
    """Cut a deadline off: return the title and the words of its time, or the whole and nothing.

    `by` begins a deadline only where a time follows it: a book by somebody is no deadline. After `add a
    task` a time at either end is one also without it.
    """
    body = body.strip(" ,")
    if language is Language.KOREAN:
        return _until_ko(body, is_task=is_task)
    for mark in PATTERNS["deadline_mark"].finditer(body):
        rest, title = body[mark.end() :].strip(), body[: mark.start()].strip(" ,")
        is_sure = mark[0].strip(" ,").lower().split()[0] in ("by", "until", "till", "due")
        if title and times.is_time(rest) and (is_sure or is_task):
            return title, rest
    trail = times.trailing(body) if is_task else None
    title = body[: trail.start].strip(" ,") if trail else ""
    if trail and title and not PATTERNS["dangling"].search(title):
        return title, body[trail.start :]
    lead = times.leading(body) if is_task else None
    has_colon = lead is not None and body[lead.end :].lstrip().startswith(":")
    if lead and has_colon and (title := _without_joint(body[lead.end :])):
        return title, body[: lead.end]
    return body, ""


def _until_ko(body: str, *, is_task: bool) -> tuple[str, str]:
    """`2월 10일까지 블로그 쓰기`, `블로그 쓰기 2월 10일까지`."""
    first, mark, after = body.partition("까지")
    if mark and after.strip() and times.is_time(first):
        return _without_object(after.strip(" ,")), first
    bare = body.removesuffix("까지")
    trail = times.trailing(bare) if is_task or bare != body else None
    if trail and (title := bare[: trail.start].strip(" ,")):
        return _without_object(title), bare[trail.start :].strip()
    lead = times.leading(body) if is_task else None
    if lead and (title := body[lead.end :].strip(" ,")):
        return _without_object(title), body[: lead.end]
    return _without_object(body), ""


def reminders(body: str, language: Language) -> list[ParsedRequest]:
    """Return a reminder for each thing that has a time of its own, else one for the whole."""
    body = body.strip()
    pieces = [_reminder(piece, language) for piece in _pieces(body)]
    is_clear = all(one.slot("what") and one.slot("when") and not one.slot("trouble") for one in pieces)
    return pieces if len(pieces) > 1 and is_clear else [_reminder(body, language)]


def _pieces(body: str) -> Iterator[str]:
    start = 0
    for joiner in PATTERNS["between_things"].finditer(body):
        if joiner.start() > start:
            ending = "기" if joiner[0].startswith("고") else ""
            yield body[start : joiner.start()].strip() + ending
            start = joiner.end()
    yield body[start:].strip()


def _reminder(body: str, language: Language) -> ParsedRequest:
    """Read `call mum in 10 minutes`, `at 9am to call mum`, `내일 오전 9시에 약 먹기`."""
    lead = times.leading(body)
    cut = _cut_end(body) if lead is None else _cut_start(body, lead)
    what, when = cut or (body, "")
    what_to_do = _without_joint(what)
    if language is Language.KOREAN:
        what_to_do = _without_ending("note", what_to_do)
    slots = {"what": what_to_do, "when": when.strip(_BETWEEN)}
    if cut is None:
        slots["trouble"] = "unsure"
    elif not slots["what"] and PATTERNS["before_text"].match(what.strip(_BETWEEN)):
        slots["trouble"] = "no_text"
    return ParsedRequest(intent="remind", language=language, slots=slots)


def _cut_end(body: str) -> tuple[str, str] | None:
    """Return what is to be done and the time that ends a text, if one does; None where that is not sure."""
    trail = times.trailing(body)
    what = body[: trail.start] if trail else body
    names_time = PATTERNS["words_of_time"].search(what)
    if trail is None:
        return None if names_time else (_without_joint(body), "")
    is_unsure = (names_time and trail.parts.span is None) or PATTERNS["dangling"].search(_without_joint(what))
    return None if is_unsure else (what, body[trail.start :])


def _cut_start(body: str, lead: times.Found) -> tuple[str, str] | None:
    """Return what is to be done and the time that begins a text; None where that is not sure."""
    rest, when = body[lead.end :].lstrip(_BETWEEN), body[: lead.end]
    trail = None if lead.parts.clock or lead.parts.span else times.trailing(rest)
    if trail and lead.parts.joined(trail.parts) and rest[: trail.start].strip():
        what = rest[: trail.start]  # it stands between the parts of its time: tomorrow to pay rent at 9am
        is_unsure = PATTERNS["dangling"].search(_without_joint(what)) or PATTERNS["words_of_time"].search(
            what
        )
        return None if is_unsure else (what, f"{when} {rest[trail.start :]}")
    rest = body[lead.end :].lstrip(" \t\n,")
    is_marked = PATTERNS["before_text"].match(rest) or when.endswith("에")
    goes_on = PATTERNS["hedge"].match(rest) or PATTERNS["words_of_time"].match(rest) or times.leading(rest)
    return None if goes_on and not is_marked else (rest, when)


def _without_joint(what: str) -> str:
    what = what.strip(_BETWEEN)
    joint = PATTERNS["before_text"].match(what)
    return what[joint.end() :].strip(_BETWEEN) if joint else what


def _without_object(item: str) -> str:
    return _without_ending("object", item.strip())


def _without_ending(kind: str, text: str) -> str:
    """Apply the first rule of its kind in the table that fits."""
    decomposed = unicodedata.normalize("NFD", text)
    for pattern, ending in ENDINGS[kind]:
        changed, count = pattern.subn(ending, decomposed)
        if count:
            return unicodedata.normalize("NFC", changed)
    return text
