"""Read what a message asks for: one splitter, then the table of intents. Pure.

Nothing that was said is dropped: a part that no row knows becomes a request of its own, `unknown`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import islice

from agent_runner.agents.offline import wording
from agent_runner.agents.offline.intents import FLAGS, PATTERNS, ROWS, TIMES, TODO, ParsedRequest, Row
from agent_runner.wire import times
from agent_runner.wire.times import Language

MAX_CHARS = 2000
"""Longer requests are for a model: patterns read short ones."""
MAX_WISHES = 20
_SAME = str.maketrans("’‘ʼ\u00a0\u3000０１２３４５６７８９：，", "'''  0123456789:,")
"""What keyboards send for the same sign."""
_COMMAND_KO = ("줘", "줘요", "주세요", "추가", "완료", "취소", "삭제", "보여", "뭐 있어", "뭐있어", "했어")
MAX_CUTS = 100
"""A line with more joiners is one request, or none that is understood."""
_TASK_INTENTS = ("add_todo", "add_task")


def read(text: str) -> list[ParsedRequest]:
    """Return what `text` asks for, in its order; one `unknown` where nothing is understood. Never raises."""
    text = plain(text).translate(_SAME).strip()
    if not text:
        return [ParsedRequest(intent="called", language=Language.ENGLISH)]
    if len(text) > MAX_CHARS:
        return [_unknown(text)]
    parsed_requests = _lines(text)
    return parsed_requests if len(parsed_requests) <= MAX_WISHES else [_unknown(text)]


def language_of(text: str) -> Language:
    return Language.KOREAN if PATTERNS["hangul"].search(text) else Language.ENGLISH


def plain(text: str) -> str:
    """Compose what some keyboards send in pieces; what UTF-8 cannot carry becomes `?`."""
    return unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode())


def one(text: str) -> ParsedRequest | None:
    """Return the wish that a whole text is, None where no row knows it."""
    frame = PATTERNS["polite_frame"].match(text)
    if frame is None:
        return None
    if (echo := _echo(text)) is not None:
        return echo
    whole, core = text.strip(" \t\n.!?~"), frame["core"]
    found = None
    if not PATTERNS["starts_korean"].match(text):
        found = _first(core, Language.ENGLISH) or (_first(whole, Language.ENGLISH) if whole != core else None)
    if found is None and PATTERNS["hangul"].search(text):
        found = _first(whole, Language.KOREAN)
    return found


def _unknown(text: str) -> ParsedRequest:
    return ParsedRequest(intent="unknown", language=language_of(text), slots={"text": text})


# Splitting


def _lines(text: str) -> list[ParsedRequest]:
    """Each line is a request of its own, but entries of a list under the line that names it."""
    whole = one(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) == 1 or (whole is not None and whole.intent == "echo"):
        return _line(text)
    head = one(lines[0].rstrip(" :"))
    listed = _under_heading(lines, head)
    if listed is not None:
        return listed
    return [parsed for line in lines for parsed in _line(PATTERNS["bullet"].sub("", line))]


def _under_heading(lines: list[str], head: ParsedRequest | None) -> list[ParsedRequest] | None:
    """`shopping list:` and its entries, one a line; `todo` and one to-do a line; None of anything else."""
    has_bullets = all(PATTERNS["bullet"].match(line) for line in lines[1:])
    if not (lines[0].endswith(":") or has_bullets) or any(_known(line) for line in lines[1:]):
        return None
    entries = [PATTERNS["bullet"].sub("", line).strip() for line in lines[1:]]
    if head is not None and head.intent == "show_list":
        name = head.slot("list") or TODO
        return [_adding(head.language, entries, name)]
    if re.fullmatch(r"(?:add|todos?|to-dos?|할\s*일(?:\s*추가)?|추가)\s*:?", lines[0], FLAGS):
        return [_adding(language_of(" ".join(lines)), entries, TODO)]
    added = re.fullmatch(r"add(?:\s+\S+)?\s+(?:to|on)\s+(?P<list>\S.*?)\s*:?", lines[0], FLAGS)
    named = one(f"show {added['list']}") if added else None
    if named is not None and named.intent == "show_list":
        return [_adding(named.language, entries, named.slot("list") or TODO)]
    if head is not None and head.intent == "add_task" and not head.slot("body"):
        return [parsed for entry in entries for parsed in wording.tasks(head, entry)]
    return None


def _adding(language: Language, entries: list[str], name: str) -> ParsedRequest:
    return ParsedRequest(
        intent="add_items", language=language, slots={"items": "\n".join(entries), "list": name}
    )


def _known(text: str) -> bool:
    return _is_command(text) and one(text) is not None


def _line(text: str) -> list[ParsedRequest]:
    """Cut a line wherever both sides are requests; else it is one, or all of it unknown."""
    whole = one(text)
    if whole is not None and whole.intent == "echo":
        return [whole]
    every = list(islice(_cuts(text), MAX_CUTS))
    cuts = [(left, right) for left, right in every if _is_command(right)]
    if len(cuts) > MAX_WISHES or (len(every) == MAX_CUTS and whole is None):
        return [_unknown(text)]
    for left, right in cuts:
        if _known(right) and (known := _line(left)) and all(parsed.intent != "unknown" for parsed in known):
            return [*known, *_line(right)]
    if whole is not None:
        return wording.expanded(whole)
    for left, right in reversed(every):
        first = one(left) if _is_command(left) and not _goes_on(right) else None
        if first is not None:
            return [*wording.expanded(first), *_line(right)]
    for left, right in cuts:
        if _known(right):
            return [*_offers(left), *_line(right)]
    return _offers(text)


def _is_command(text: str) -> bool:
    """Whether a text begins, or in Korean ends, as what asks for something does."""
    return PATTERNS["starts_request"].match(text) is not None or text.rstrip(" .!?~").endswith(_COMMAND_KO)


def _goes_on(right: str) -> bool:
    """Whether what follows a joiner is but a word or two of the same sentence."""
    return len(right.split()) < 2 and not right.endswith("?")


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
    language = language_of(text)
    is_question = (
        "?" in text
        or PATTERNS["starts_question"].match(text)
        or PATTERNS["ends_question_ko"].search(text.rstrip(" .!"))
    )
    offered = [] if is_question else wording.reminders(text, language)
    if offered and all(parsed.slot("what") and parsed.slot("when") for parsed in offered):
        return [parsed.having(offered="yes") for parsed in offered]
    return [_unknown(text)]


# The table


def _echo(text: str) -> ParsedRequest | None:
    """What is to be said again is said to the letter."""
    for language in Language:
        for pattern in ROWS[0].patterns[language]:
            if match := re.fullmatch(pattern, text, FLAGS):
                return ParsedRequest(intent="echo", language=language, slots={"text": match["text"]})
    return None


def _first(text: str, language: Language) -> ParsedRequest | None:
    for row in ROWS:
        for pattern in row.patterns[language]:
            match = re.fullmatch(pattern, text, FLAGS)
            parsed = _made(row, match, language) if match else None
            if parsed is not None:
                return parsed
    return None


def _made(row: Row, match: re.Match[str], language: Language) -> ParsedRequest | None:
    slots = {name: words.strip() for name, words in match.groupdict().items() if words and words.strip()}
    for name in TIMES:
        if name in slots and not times.is_time(slots[name]):
            return None
    if "span" in slots and not times.is_time(slots["span"].replace("-", " ")):
        return None
    if "todo" in slots:
        slots["list"] = TODO
        del slots["todo"]
    return wording.tidied(ParsedRequest(intent=row.name, language=language, slots=slots))
