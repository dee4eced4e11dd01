"""Parse the requests in a message: one splitter, then the table of intents. Pure.

Nothing is dropped: a part that no row of the table (`intents.toml`) matches becomes a request of its own,
`unknown`. The slots of a request are the words that it has under names such as `what` and `when`, and flags
such as `offered`; the head of the table describes them, and the properties of a row such as `is_news`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice, pairwise

from agent_runner.agents.offline import spelling, wording
from agent_runner.agents.offline.intents import PATTERNS, ROWS, ParsedRequest, in_language, patterns_of
from agent_runner.checklists import TODO
from agent_runner.wire import times
from agent_runner.wire.times import Language
from agent_runner.wire.unicode_forms import composed

MAX_CHARS = 2000
"""Longer requests are for a model; the patterns are for short ones."""
MAX_REQUESTS = 20
"""Most requests of one message; a message with more is not understood."""
MAX_CUTS = 100
"""Most places where a line is cut; a line with more is one request, or not understood."""
_MAX_REMEMBERED = 1024
"""Number of texts whose requests are remembered: more than one line has parts that may be requests."""
_LONG_GAP = re.compile(r"\s{5,}")
"""White space that is shortened before a text is parsed."""
_TIME_SLOTS = ("day", "last", "clock", "when", "span", "first", "later", "earlier")
"""Slots whose words must be a time; otherwise the row does not match."""
_ROW_FLAGS = (("whole", "is_whole"), ("stated", "is_stated"), ("asked", "is_asked"))
"""Slots that a request gets from the properties of its row: pairs of slot and key in `intents.toml`."""
_OWN_WORDS = ("echo", "note", "forget", "know", "recall", "unknown", "help")
"""Intents that change nothing by their text, or whose text is the person's own."""
_SPANS = ("span", "later", "earlier")
"""Slots for a span of time, in which `-` separates words: `20-minute`."""


def read(text: str) -> list[ParsedRequest]:
    """Return the requests in a message, in order; a single one of intent `unknown` if none is understood.

    Among several, those that are not understood have the intent `unknown_part`. A text without words is a
    request of intent `called`. Never raises.
    """
    text = with_short_gaps(times.normalized(plain(text)).strip())
    if not text:
        return [ParsedRequest(intent="called", language=Language.ENGLISH)]
    requests = _split(text) if len(text) <= MAX_CHARS else []
    if requests and spelling.may_have_errors(requests):
        requests = spelling.corrected(text, requests, _split) or requests
    # Part of the message takes back or limits the rest in a way that no request can express.
    must_not_be_done = _must_not_be_done(text, requests) or _must_not_be_done_ko(text, requests)
    if not 0 < len(requests) <= MAX_REQUESTS or must_not_be_done:
        return [_unknown(text)]
    requests = _with_text_from_before(requests)
    parts = [
        request.of("unknown_part", **request.slots) if request.intent == "unknown" else request
        for request in requests
    ]
    return requests if len(requests) == 1 else parts


def _must_not_be_done_ko(text: str, requests: Sequence[ParsedRequest]) -> bool:
    """Return whether part of a Korean message is a condition, an exception or a withdrawal of the rest.

    Nothing of such a message is done. But the text of a reminder may contain a condition, and so may requests
    that only show something; those with a person's own words, such as a note, may contain anything
    (`_OWN_WORDS`). `requests` are those that were read in the message.
    """
    intents = {request.intent for request in requests} - set(_OWN_WORDS)
    # A correction of a time in the slot `fix` was understood: it withdraws nothing.
    if not (intents and PATTERNS["hangul"].search(text)) or any(request.slot("fix") for request in requests):
        return False
    unread = (request.slot("text") for request in requests if request.intent == "unknown")
    is_reminder = intents == {"remind"}
    if len(requests) > 1 and intents & {"never_mind", "no"}:
        return True  # one request of the message gives up the others
    if intents != {"cancel_reminder"} and PATTERNS["denied_ko"].search(text):
        return True  # "do not …"; but "do not remind me" only asks to cancel a reminder
    # "… 추가해줘, 아니야" ("no, don't"), or such words in a part that is not understood.
    if PATTERNS["retracted_ko"].search(text) or any(map(PATTERNS["retracts_ko"].match, unread)):
        return True
    if (is_reminder or len(requests) > 1) and PATTERNS["left_out_ko"].search(text):
        return True  # `알림 다 취소해줘, 쓰레기는 빼고` ("… except the rubbish")
    if is_reminder and PATTERNS["called_off_ko"].search(text):
        return True  # `알림 R1번 오늘만 취소해줘` asks to cancel a reminder, and must not set one
    conditions = ("conditional_ko", "all_but_ko", "limited_ko")
    # Requests that only show something are carried out in any case.
    only_shows = all(
        intent.startswith(("show", "need", "agenda", "week", "due", "count")) for intent in intents
    )
    return not is_reminder and not only_shows and any(PATTERNS[name].search(text) for name in conditions)


def _must_not_be_done(text: str, requests: Sequence[ParsedRequest]) -> bool:
    """Return whether part of a message is a condition for the rest or withdraws it.

    Nothing of such a message is done. `requests` are those that were read in the message.
    """
    unread = [request.slot("text") for request in requests if request.intent == "unknown"]
    is_called_off = any(map(PATTERNS["calls_off"].fullmatch, unread))
    return len(requests) > 1 and (is_called_off or PATTERNS["conditional"].search(text) is not None)


def _with_text_from_before(requests: list[ParsedRequest]) -> list[ParsedRequest]:
    """Return the requests; a reminder that has a time but no text gets that of the task or to-do before it.

    An example is `add a task pay taxes, remind me on Thursday at 9`.
    """
    completed = requests[:1]
    for before, request in pairwise(requests):
        about = ""
        if before.intent == "add_task":
            about = before.slot("title")
        elif before.intent == "add_items" and before.slot("list") == TODO:
            about = before.slot("items")
        is_bare = request.intent == "remind" and request.slot("when") and not request.slot("what")
        # Several to-dos, one a line, are no text for one reminder.
        completed.append(request.having(what=about) if is_bare and "\n" not in about else request)
    return completed


def with_short_gaps(text: str) -> str:
    """Return a text with its long white space shortened, as patterns need it.

    A pattern with several gaps would take time that grows with the cube of their length.
    """
    return _LONG_GAP.sub(_short_gap, text)


def _short_gap(gap: re.Match[str]) -> str:
    """Return the text that replaces long white space: an empty line if it has a line break, else blanks."""
    return "\n\n" if "\n" in gap[0] else "    "


def language_of(text: str) -> Language:
    """Return Korean for a text with any Hangul, else English."""
    return Language.KOREAN if PATTERNS["hangul"].search(text) else Language.ENGLISH


def meaning_words(text: str) -> list[str]:
    """Return the significant words of a text, without words such as "the" and Korean particles."""
    words = (word.strip(".,!?~\"'“”‘’") for word in text.split())
    bare_words = (PATTERNS["particle"].sub("", word) for word in words if word)
    return [word for word in bare_words if not PATTERNS["small_word"].fullmatch(word)]


def plain(text: str) -> str:
    """Return a text in composed characters, which some keyboards send decomposed.

    Characters that UTF-8 cannot encode become `?`.
    """
    return composed(text.encode("utf-8", "replace").decode())


def parse_one(text: str) -> ParsedRequest | None:
    """Return the request that a text is as a whole; None if no row of `intents.toml` matches it.

    A question, unless it asks to do something, matches no row for statements: none with `is_news`, and no
    Korean one with `is_stated`.
    """
    parsed = _parsed(text)
    is_question = text.rstrip().endswith("?") and not PATTERNS["asks_to_do"].search(text)
    is_statement = parsed is not None and (ROWS[parsed.intent].get("is_news") or _is_stated_ko(parsed))
    return None if is_question and is_statement else parsed


def _is_stated_ko(parsed: ParsedRequest) -> bool:
    """Return whether a request was read by a Korean row with `is_stated`: `우유 떨어졌어` ("milk is out")."""
    return parsed.language is Language.KOREAN and bool(parsed.slot("stated"))


def _parsed(text: str) -> ParsedRequest | None:
    """Return the request that a text is, without its polite words; None if no row matches.

    English rows are tried before Korean ones.
    """
    frame = PATTERNS["polite_frame"].match(text)
    if frame is None:
        return None
    for language in Language:  # a text to echo is read first, before polite words are taken off
        if (echo := _first_match(text, language, ("echo",))) is not None:
            return echo
    # Polite words may be part of the request, so the text with them is tried, too.
    whole, core = text.strip(" \t\n.!?~"), frame["core"]
    if not PATTERNS["starts_korean"].match(text):
        english = _first_match(core, Language.ENGLISH) or _first_match(whole, Language.ENGLISH)
        if english is not None:
            return english
    if not PATTERNS["hangul"].search(text):
        return None
    core, whole = (PATTERNS["filler"].sub("", words) for words in (core, whole))
    return _first_match(core, Language.KOREAN) or _first_match(whole, Language.KOREAN)


def _unknown(text: str) -> ParsedRequest:
    """Return the request for a text that is not understood."""
    return ParsedRequest(intent="unknown", language=language_of(text), slots={"text": text})


# The splitter


def _split(text: str) -> list[ParsedRequest]:
    """Return the requests of all lines of a text; lines under a heading that names a list are its entries.

    A text to echo is one request, whatever its lines are.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    whole = parse_one(text)
    if len(lines) == 1 or (whole is not None and whole.intent == "echo"):
        return list(_requests_in_line(text))
    separate = (parsed for line in lines for parsed in _requests_in_line(PATTERNS["bullet"].sub("", line)))
    return _under_heading(lines) or list(separate)


def _under_heading(lines: list[str]) -> list[ParsedRequest] | None:
    """Return the requests of a heading, such as `shopping list:` or `todo`, with an entry on each line below.

    `lines` are two at least. None if they are no heading with entries, as when one of them is a request
    itself.
    """
    heading = lines[0]
    has_bullets = all(PATTERNS["bullet"].match(line) for line in lines[1:])
    if not (heading.endswith(":") or has_bullets) or any(_is_request(line) for line in lines[1:]):
        return None
    entries = [PATTERNS["bullet"].sub("", line).strip() for line in lines[1:]]
    head = parse_one(heading.rstrip(" :"))
    # The name of a list alone, as in `shopping list:`, is read as a request to show that list.
    named_list = head
    if list_match := PATTERNS["heading_list"].fullmatch(heading):  # `add these to the shopping list:`
        named_list = parse_one(f"show {list_match['list']}")
    if named_list is not None and named_list.intent == "show_list":
        # Above entries, the heading asks to add them to the list instead.
        name = named_list.slot("list") or TODO
        return [named_list.of("add_items", items="\n".join(entries), list=name)]
    if head is not None and head.intent == "add_items" and head.slot("list"):
        # `add milk to the shopping list:` names an entry itself, which is added besides those below.
        return [*wording.expanded(head), head.having(items="\n".join(entries))]
    if PATTERNS["heading_todo"].fullmatch(heading):  # `todo`, without the word "list"
        to_do = ParsedRequest(intent="add_items", language=language_of(" ".join(lines)))
        return [to_do.having(items="\n".join(entries), list=TODO)]
    if head is not None and head.intent == "add_task" and not head.slot("body"):  # `add task:`
        return [parsed for entry in entries for parsed in wording.tasks(head, entry)]
    return None


# Each place where a line is cut needs the requests of all that stands before it, which is cut at the same
# places again: without remembering them, every further request in a line would double the work.
@lru_cache(_MAX_REMEMBERED)
def _requests_in_line(text: str) -> Sequence[ParsedRequest]:
    """Return the requests of a line, which is cut where both sides are requests, and each side again.

    Without such a place, the line is one request; if no row matches the line, `_read_partly` reads the parts
    that it can. A text to echo is not cut, nor is one that a row with `is_whole` matches (slot `whole`). A
    correction of a time at the end belongs to the request before it.

    The intent is `unknown` if more than `MAX_REQUESTS` requests may begin in the line, or if it has
    `MAX_CUTS` places and is no request as a whole.
    """
    whole = parse_one(text)
    if whole is not None and (whole.intent == "echo" or whole.slot("whole")):
        return wording.expanded(whole)
    if changed := _changed_mind(text):
        return changed
    all_cuts = list(islice(_cuts(text), MAX_CUTS))  # each cut is tried with two passes over the whole table
    other_wish = PATTERNS["other_wish"].match
    cuts = [
        (before_cut, after_cut)
        for before_cut, after_cut in all_cuts
        if begins_request(after_cut) or other_wish(after_cut)
    ]
    if len(cuts) > MAX_REQUESTS or (len(all_cuts) == MAX_CUTS and whole is None):
        return [_unknown(text)]
    for before_cut, after_cut in cuts:
        # "…라고 알려주고 날씨 알려줘": two verbs are two requests, even if no row matches the second.
        has_two_verbs = before_cut.endswith("알려줘") and PATTERNS["ends_request_ko"].search(after_cut)
        are_requests = _is_request(after_cut) or other_wish(after_cut) or has_two_verbs
        # In "tomorrow, cancel …" the day is no request for that day's agenda.
        are_requests = are_requests and not PATTERNS["bare_day"].fullmatch(before_cut)
        if (
            are_requests
            and (left_requests := _requests_in_line(before_cut))
            and _is_understood(left_requests, whole)
        ):
            return [*left_requests, *_requests_in_line(after_cut)]
    if whole is not None:
        return wording.expanded(whole)
    return _read_partly(text, all_cuts, cuts)


def _is_understood(requests: Sequence[ParsedRequest], whole: ParsedRequest | None) -> bool:
    """Return whether the part before a cut is understood as requests of its own.

    `requests` are those of that part; `whole` is the request that the uncut text would be, None if it is
    none. A Korean reminder has its verb at the end: in `내일 9시에 운동, 3시에 병원 알려줘` both parts share
    the day and the verb. So the first part is not cut off: alone, without a verb that asks for a reminder,
    it would only make the agent offer one (slot `offered`).
    """
    is_korean_reminder = whole is not None and (whole.intent, whole.language) == ("remind", Language.KOREAN)
    return not any(
        request.intent == "unknown" or (is_korean_reminder and request.slot("offered"))
        for request in requests
    )


def _read_partly(
    text: str, all_cuts: Sequence[tuple[str, str]], cuts: Sequence[tuple[str, str]]
) -> list[ParsedRequest]:
    """Return the requests in a line that is no request as a whole.

    `all_cuts` has the texts before and after each place where the line can be cut; `cuts` those pairs in
    which a request may begin. A part that requests nothing becomes a reminder that the agent offers to set,
    if it has a text and a time (`_offers`); else it is `unknown`.
    """
    # From the last place, so that the first request gets as many of the words as possible.
    for before_cut, after_cut in reversed(all_cuts):
        # A single word after the cut is the end of the same sentence, unless it is a question.
        is_end_of_sentence = len(after_cut.split()) < 2 and not after_cut.endswith("?")
        first = parse_one(before_cut) if begins_request(before_cut) and not is_end_of_sentence else None
        if first is not None:
            return [*wording.expanded(first), *_requests_in_line(after_cut)]
    # From the first place: the line begins with no request, so as few words as possible are only offered.
    for before_cut, after_cut in cuts:
        if _is_request(after_cut):
            return [*_offers(before_cut), *_requests_in_line(after_cut)]
    return _offers(text)


def _changed_mind(text: str) -> list[ParsedRequest]:
    """Return the requests of a text that ends with the correction of a time; empty for any other text.

    In `remind us at 8pm to call, no wait, 9pm`, the slot `fix` of the last request gets the time `9pm`.
    """
    match = PATTERNS["changed_mind"].fullmatch(text)
    fix = match["fix"].rstrip(" .!?") if match else ""
    earlier = _requests_in_line(match["before"]) if match and times.is_time(fix) else []
    is_timed = bool(earlier) and earlier[-1].intent in ("remind", "add_task", "move")
    return [*earlier[:-1], earlier[-1].having(fix=fix)] if is_timed else []


def _is_request(text: str) -> bool:
    """Return whether a text begins as a request and is one."""
    return begins_request(text) and parse_one(text) is not None


def begins_request(text: str) -> bool:
    """Return whether a text begins as a request does, or in Korean ends as one; the rest may be anything."""
    return bool(PATTERNS["starts_request"].match(text) or PATTERNS["ends_request_ko"].search(text))


def _cuts(text: str) -> Iterator[tuple[str, str]]:
    """Yield the texts before and after each place where a line may be cut into requests.

    A Korean verb before the cut gets an ending, so that it is a request by itself.
    """
    for joiner in PATTERNS["between_requests"].finditer(text):
        before_cut, after_cut = text[: joiner.start()].strip(), text[joiner.end() :].strip()
        if before_cut and after_cut:
            yield before_cut, after_cut
    for joined in PATTERNS["korean_and"].finditer(text):
        if times.leading(text[: joined.start()]) is not None and PATTERNS["of_lists"].match(joined["verb"]):
            # `내일 9시에 우유 빼고 장 보라고 알려줘` ("remind me at 9 to shop without milk"): no change of a
            # list has a time, so a verb of lists after a time is part of a reminder's text.
            continue
        # `우유 추가하고 …` becomes `우유 추가해줘`: a noun that `하다` makes a verb (`noun_verb`) gets
        # `해줘`, in place of a `해` that it ends with; any other verb gets `줘`.
        verb = wording.without_ending("stem", joined["verb"])
        ending = "해줘" if PATTERNS["noun_verb"].fullmatch(verb) else "줘"
        yield text[: joined.start()] + verb.removesuffix("해") + ending, text[joined.end() :].strip()


def _offers(text: str) -> list[ParsedRequest]:
    """Return the reminders to offer for a text that requests nothing: `pay rent tomorrow and call mum at 9`.

    Return one request of the intent `unknown` if nothing may be offered: the text is a question, says not to
    do something or begins like another request, such as `move`; or one of its parts lacks a text or a time.
    """
    asks_otherwise = (
        "?" in text
        or PATTERNS["negated"].search(text)
        or PATTERNS["no_offer"].match(text)
        or PATTERNS["asks_in_text"].search(text)
        or PATTERNS["starts_question"].match(text)
        or PATTERNS["ends_question_ko"].search(text.rstrip(" .!"))
    )
    offered = [] if asks_otherwise else wording.reminders(text, language_of(text))
    whats = [parsed.slot("what") for parsed in offered if parsed.slot("when")]
    is_complete = len(whats) == len(offered) and all(whats)
    # A time zone, `half past` or a polite word beside a time is nothing to be reminded of.
    is_complete = is_complete and not any(map(PATTERNS["a_zone"].fullmatch, whats))
    is_complete = is_complete and not any(map(PATTERNS["from_hour"].fullmatch, whats))
    if is_complete and offered and not any(map(PATTERNS["only_polite"].fullmatch, whats)):
        return [parsed.having(offered="yes") for parsed in offered]
    return [_unknown(text)]


# The table


def _first_match(text: str, language: Language, intents: Iterable[str] = ROWS) -> ParsedRequest | None:
    """Return the request of the first row of `intents.toml` that matches a whole text; None if none does.

    `intents` are the names of the rows that are tried, in this order.
    """
    for intent in intents:
        for pattern in patterns_of(intent, language):
            match = pattern.fullmatch(text)
            parsed = _request_of_match(intent, match, language) if match else None
            if parsed is not None:
                return parsed
    return None


def _is_time(slot: str, words: str) -> bool:
    """Return whether the words in a slot are a time; in `later` and `earlier`, a span such as `an hour`.

    In `when`, a number of one or two digits is an hour, and so a time.
    """
    if slot in ("later", "earlier"):
        return times.is_time(f"in {words}") or times.is_time(f"{words} 뒤")
    return times.is_time(words) or (slot == "when" and words.isdecimal() and len(words) < 3)


def _request_of_match(intent: str, match: re.Match[str], language: Language) -> ParsedRequest | None:
    """Return the request of a row whose pattern matched; None if the words do not fit the row after all.

    They do not fit if the words in a slot for a time are no time, or if a text ends in a time although its
    row is for texts without one (`is_timeless`): `get the kids at 3pm`. A row with `means` stands for another
    sentence: the request is that of the sentence, with the slots' words in it, without Korean particles. It
    also gets the flags that the row sets (`_ROW_FLAGS`).
    """
    slots = {name: words.strip() for name, words in match.groupdict().items() if words and words.strip()}
    for name in slots.keys() & _SPANS:
        slots[name] = slots[name].replace("-", " ")
    if any(not _is_time(name, slots[name]) for name in _TIME_SLOTS if name in slots):
        return None
    if ROWS[intent].get("is_timeless") and times.trailing(slots.get("items", slots.get("note", ""))):
        return None
    if means := ROWS[intent].get("means"):
        # In a statement such as `우유도 떨어졌어` ("milk is out, too"), `도` may be a particle or part of the
        # entry's name: `Lists`, which knows the entries of the list, decides.
        if not ROWS[intent].get("is_stated"):
            slots = {name: wording.without_ending("subject", words) for name, words in slots.items()}
        sentence = in_language(means, language).format_map(defaultdict(str, slots))
        request = parse_one(sentence) if sentence else None
        flags = {slot: "yes" for slot, key in _ROW_FLAGS if ROWS[intent].get(key)}
        return request.having(**flags) if request else None
    if slots.pop("todo", ""):  # the words name the to-dos, whatever they call them
        slots["list"] = TODO
    return wording.tidied(ParsedRequest(intent=intent, language=language, slots=slots))
