"""Read what a message asks for: one splitter, then the table of intents. Pure.

Nothing that is written is dropped: a part that no row knows becomes a request of its own, `unknown`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import islice

from agent_runner.agents.offline import wording
from agent_runner.agents.offline.intents import FLAGS, PATTERNS, ROWS, ParsedRequest, patterns_of
from agent_runner.checklists import TODO
from agent_runner.wire import times
from agent_runner.wire.times import Language

MAX_CHARS = 2000
"""Longer requests are for a model: patterns read short ones."""
MAX_REQUESTS = 20
MAX_CUTS = 100
"""A line with more joiners is one request, or none that is understood."""
_TIME_SLOTS = ("day", "clock", "when", "span")


def read(text: str) -> list[ParsedRequest]:
    """Return what `text` asks for, in its order; one `unknown` where nothing is understood.

    Of several, those that are not understood are `unknown_part`. Never raises.
    """
    text = times.normalized(plain(text)).strip()
    if not text:
        return [ParsedRequest(intent="called", language=Language.ENGLISH)]
    found = _split(text) if len(text) <= MAX_CHARS else []
    if not 0 < len(found) <= MAX_REQUESTS:
        return [_unknown(text)]
    parts = [one.of("unknown_part", **one.slots) if one.intent == "unknown" else one for one in found]
    return found if len(found) == 1 else parts


def language_of(text: str) -> Language:
    """Return Korean for a text with any Hangul, else English."""
    return Language.KOREAN if PATTERNS["hangul"].search(text) else Language.ENGLISH


def meaning_words(text: str) -> list[str]:
    """Return the words of a text by which it is found again, without small ones and Korean particles."""
    words = (word.strip(".,!?~\"'“”‘’") for word in text.split())
    found = (PATTERNS["particle"].sub("", word) for word in words if word)
    return [word for word in found if not PATTERNS["small_word"].fullmatch(word)]


def plain(text: str) -> str:
    """Compose what some keyboards send in pieces; what UTF-8 cannot carry becomes `?`."""
    return unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode())


def parse_one(text: str) -> ParsedRequest | None:
    """Return the one request that a whole text is, None where no row knows it."""
    frame = PATTERNS["polite_frame"].match(text)
    if frame is None:
        return None
    for language in Language:  # what is to be repeated is read before anything is taken off the text
        if (echo := _first(text, language, ("echo",))) is not None:
            return echo
    whole, core = text.strip(" \t\n.!?~"), frame["core"]
    if not PATTERNS["starts_korean"].match(text):
        found = _first(core, Language.ENGLISH) or _first(whole, Language.ENGLISH)
        if found is not None:
            return found
    return _first(whole, Language.KOREAN) if PATTERNS["hangul"].search(text) else None


def _unknown(text: str) -> ParsedRequest:
    return ParsedRequest(intent="unknown", language=language_of(text), slots={"text": text})


# The splitter


def _split(text: str) -> list[ParsedRequest]:
    """Read each line as a request of its own, but the entries of a list under the line that names it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    whole = parse_one(text)
    if len(lines) == 1 or (whole is not None and whole.intent == "echo"):
        return _line(text)
    separate = (parsed for line in lines for parsed in _line(PATTERNS["bullet"].sub("", line)))
    return _under_heading(lines) or list(separate)


def _under_heading(lines: list[str]) -> list[ParsedRequest] | None:
    """Read `shopping list:` and its entries, one a line; `todo` and one to-do a line; None of all else."""
    heading = lines[0]
    has_bullets = all(PATTERNS["bullet"].match(line) for line in lines[1:])
    if not (heading.endswith(":") or has_bullets) or any(_is_request(line) for line in lines[1:]):
        return None
    entries = [PATTERNS["bullet"].sub("", line).strip() for line in lines[1:]]
    head, named = parse_one(heading.rstrip(" :")), PATTERNS["heading_list"].fullmatch(heading)
    for asked in (head, parse_one(f"show {named['list']}") if named else None):
        if asked is not None and asked.intent == "show_list":
            return [asked.of("add_items", items="\n".join(entries), list=asked.slot("list") or TODO)]
    if PATTERNS["heading_todo"].fullmatch(heading):
        to_do = ParsedRequest(intent="add_items", language=language_of(" ".join(lines)))
        return [to_do.having(items="\n".join(entries), list=TODO)]
    if head is not None and head.intent == "add_task" and not head.slot("body"):
        return [parsed for entry in entries for parsed in wording.tasks(head, entry)]
    return None


def _line(text: str) -> list[ParsedRequest]:
    """Cut a line wherever both sides are requests; else it is one, or all of it unknown."""
    whole = parse_one(text)
    if whole is not None and whole.intent == "echo":
        return [whole]
    every = list(islice(_cuts(text), MAX_CUTS))  # each cut is two walks through the whole table
    cuts = [(left, right) for left, right in every if _begins_request(right)]
    if len(cuts) > MAX_REQUESTS or (len(every) == MAX_CUTS and whole is None):
        return [_unknown(text)]
    for left, right in cuts:
        if _is_request(right) and (known := _line(left)) and all(one.intent != "unknown" for one in known):
            return [*known, *_line(right)]
    if whole is not None:
        return wording.expanded(whole)
    for left, right in reversed(every):
        goes_on = len(right.split()) < 2 and not right.endswith("?")  # a word more of the same sentence
        first = parse_one(left) if _begins_request(left) and not goes_on else None
        if first is not None:
            return [*wording.expanded(first), *_line(right)]
    for left, right in cuts:
        if _is_request(right):
            return [*_offers(left), *_line(right)]
    return _offers(text)


def _is_request(text: str) -> bool:
    return _begins_request(text) and parse_one(text) is not None


def _begins_request(text: str) -> bool:
    """Return whether a text begins as a request does, or in Korean ends as one."""
    return bool(PATTERNS["starts_request"].match(text) or PATTERNS["ends_request_ko"].search(text))


def _cuts(text: str) -> Iterator[tuple[str, str]]:
    for joiner in PATTERNS["between_requests"].finditer(text):
        left, right = text[: joiner.start()].strip(), text[joiner.end() :].strip()
        if left and right:
            yield left, right
    for joined in PATTERNS["korean_and"].finditer(text):
        verb = joined["verb"]
        ending = "줘" if verb in ("알려", "보내", "깨워") else "해줘"
        yield text[: joined.start()] + verb.removesuffix("해") + ending, text[joined.end() :].strip()


def _offers(text: str) -> list[ParsedRequest]:
    """`pay rent tomorrow and call mum on Friday` asks for nothing in words: a reminder of each is offered."""
    is_question = (
        "?" in text
        or PATTERNS["starts_question"].match(text)
        or PATTERNS["ends_question_ko"].search(text.rstrip(" .!"))
    )
    offered = [] if is_question else wording.reminders(text, language_of(text))
    if offered and all(parsed.slot("what") and parsed.slot("when") for parsed in offered):
        return [parsed.having(offered="yes") for parsed in offered]
    return [_unknown(text)]


# The table


def _first(text: str, language: Language, intents: Iterable[str] = ROWS) -> ParsedRequest | None:
    """Return what the first row makes of a whole text."""
    for intent in intents:
        for pattern in patterns_of(intent, language):
            match = re.fullmatch(pattern, text, FLAGS)
            parsed = _filled(intent, match, language) if match else None
            if parsed is not None:
                return parsed
    return None


def _filled(intent: str, match: re.Match[str], language: Language) -> ParsedRequest | None:
    """Return the request that a match is; None where the slot of a time holds none."""
    slots = {name: words.strip() for name, words in match.groupdict().items() if words and words.strip()}
    if "span" in slots:
        slots["span"] = slots["span"].replace("-", " ")
    if any(not times.is_time(slots[name]) for name in _TIME_SLOTS if name in slots):
        return None
    if slots.pop("todo", ""):
        slots["list"] = TODO
    return wording.tidied(ParsedRequest(intent=intent, language=language, slots=slots))
