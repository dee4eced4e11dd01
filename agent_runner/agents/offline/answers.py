"""Parse a message as the answer to an open question.

The request that waits for the answer has slots, which the head of `intents.toml` describes: words under names
such as `what` and `when`, and flags such as `sure`, which is set once the person has confirmed.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime

from agent_runner.agents.offline.conversation import OpenQuestion, Option
from agent_runner.agents.offline.handler import RequestContext
from agent_runner.agents.offline.intents import PATTERNS, ParsedRequest
from agent_runner.agents.offline.reading import MAX_CHARS, begins_request, parse_one, with_short_gaps
from agent_runner.agents.offline.wording import after_time, entries, reminders, without_time
from agent_runner.checklists import TODO
from agent_runner.wire import times
from agent_runner.wire.times import DateOnly, Instant, MonthDay, Reason, TimeRefusal

MAX_NAME_CHARS = 40
MAX_NAME_WORDS = 3
"""Most words of an answer that is taken as a list's name; `MAX_NAME_CHARS` bounds its characters."""
MAX_NAMED_PLACES = 5
"""Number of choices that can be named by a word for their place: up to `the fifth`."""
NOON = 12
"""The first hour of the afternoon."""


def person_asked_instead(text: str, context: RequestContext) -> str:
    """Return the name of another person whose open question a text would answer; empty if there is none.

    Questions that the sender of the text may answer do not count. The question stays open.
    """
    others = (question for question in context.state.questions if not context.may_answer(question))
    names = (question.sender for question in others if take_answer(question, text, context) is not None)
    return next(names, "")


def take_answer(question: OpenQuestion, text: str, context: RequestContext) -> list[ParsedRequest] | None:
    """Return the requests that a text completes as the answer to a question; None if it is no answer.

    The list is empty if the answer gives the request up: "no", "never mind" or "undo". Which texts are
    answers depends on the slot that the question asks for. A question for confirmation (slot `sure`) may also
    be answered with a new time: "tomorrow at 8", "an hour later". A text that is too long to be a request is
    no answer either.
    """
    text = with_short_gaps(text)
    if len(text) > MAX_CHARS:
        return None
    parsed = parse_one(text)
    intent = parsed.intent if parsed else ""
    if intent in ("never_mind", "no", "undo"):
        return []
    if question.slot == "which" and intent == "yes" and len(question.options) == 1:
        return [question.options[0].request]
    if question.slot == "which":
        return _named_options(question.options, text)
    request = question.request
    completed = None
    # "make it 9" changes the time of the request that waits, if it has one and names no other entry.
    move = parsed if parsed is not None and intent == "move" and _takes_time(request) else None
    new_time = move.slot("when") if move is not None and not move.slot("item") else ""
    match question.slot:
        case "when":
            completed = _with_time(request, new_time or text, context)
        case "what":
            completed = _with_text(request, text) if not intent else None
        case "list":
            completed = _with_list(request, text, parsed)
        # The slot is `sure` in all further cases.
        case _ if new_time:
            completed = _with_time(request, new_time, context)
        case _ if move is not None:  # "an hour later"
            completed = _shifted(request, move, context)
        case _:
            # "yes, done" says that the thing itself is done; it does not confirm the request about it.
            is_yes = intent == "yes" and not PATTERNS["says_done"].search(text)
            completed = request.having(sure="yes") if is_yes else None
    return [completed] if completed else None


def _takes_time(request: ParsedRequest) -> bool:
    """Return whether a request needs a time, so that an answer can change it."""
    return request.intent in ("remind", "add_task", "add_tasks", "move")


def _shifted(request: ParsedRequest, move: ParsedRequest, context: RequestContext) -> ParsedRequest | None:
    """Return the request with its time moved by the span in `move`, such as `an hour earlier`.

    The new time counts as confirmed (slot `sure`). None if the request has no exact time, or `move` names no
    span.
    """
    parsed_time = context.read_time(request.slot("when"))
    at = context.shifted(parsed_time.at, move) if isinstance(parsed_time, Instant) else None
    if not isinstance(at, datetime):
        return None
    return request.having(when=at.isoformat(timespec="seconds"), sure="yes")


def _with_text(request: ParsedRequest, text: str) -> ParsedRequest:
    """Return the request with an answer as its text, or as its entries if it adds to a list.

    A time in the answer is used too if the request is a reminder without one.
    """
    request = request.having(trouble="")  # the trouble was that it had no text
    if request.intent == "add_items":
        return request.having(items="\n".join(entries(text, request.language)))
    reminder, *others = reminders(text.strip(), request.language)
    if request.intent == "remind" and not request.slot("when") and not others and reminder.slot("when"):
        return request.having(**{name: reminder.slot(name) for name in ("what", "when", "trouble")})
    return request.having(what=text.strip())


def _with_time(request: ParsedRequest, text: str, context: RequestContext) -> ParsedRequest | None:
    """Return the request with its time completed or replaced by an answer; None if the answer names none.

    The slot `sure` is set, as the new time needs no confirmation. It is not set for a move to a bare hour
    such as `9`, so that the half of the day can be asked about.
    """
    answer = _without_frame(_without_frame(text))  # twice for `make it in the evening`
    # The pattern is that of words for which no reminder is offered. They begin with "no", "move" or "I", so
    # they are no time either.
    if PATTERNS["no_offer"].match(answer):
        return None
    if request.slot("unsure"):  # the time that the message had was not understood at all
        return _with_sure_time(request, answer, context)
    answer = _with_hour(answer, request.slot("when"))
    if when := _picked_reading(request, answer, context):
        return request.having(when=when, trouble="", sure="yes")
    if request.intent == "move" and bare_clock(answer):
        return request.having(when=answer)
    earlier = context.read_time(request.slot("when"))
    if isinstance(earlier, TimeRefusal) and earlier.choices and PATTERNS["a_place"].fullmatch(answer):
        return None  # "the second" picks one of several times here, never the second of a month
    if when := joined_time(request.slot("when"), answer, context):
        return request.having(when=when, trouble="", sure="yes")
    return None


def _with_sure_time(request: ParsedRequest, answer: str, context: RequestContext) -> ParsedRequest | None:
    """Return the request with the time that an answer names, after the message's own was not understood.

    The message's words for its own time are still in the text of the request (`what`), and are cut off. A day
    among them is kept for an answer that is only a time of day: `call Ann tomorrow before noon` with `9am`
    becomes the text `call Ann` and the time `tomorrow 9am`. Any other answer, such as `sunday 7pm`, is the
    whole time. None if no clear time results, or if a repetition would be lost.
    """
    what, day_in_text = without_time(request.slot("what"))
    lead = times.leading(answer)
    # The parts of the answer's time besides the time of day, such as a day of the week.
    date_parts = lead.parts.written().keys() - {"clock", "half"} if lead is not None else set()
    old_time = request.slot("what")[len(what) :]  # `without_time` cuts words off the end only
    # Beside a day, `midnight` is only a time of day.
    if day_in_text and _is_clock(answer):
        date_parts = set()
    # The answer names a day itself, or the words of the old time have a span such as "60 minutes", which may
    # be part of the text: cut off only the words that the answer repeats.
    if date_parts or PATTERNS["a_span"].search(old_time):
        what = _text_beside(request.slot("what"), answer)
    # The text may still begin with words about the time: `next week` in `next week to call`.
    head, what = after_time(what, request.language)
    when = ""
    if date_parts:
        when = answer
    elif day_in_text:
        when = joined_time(day_in_text, answer, context)
    # After "next week to call", the answer "Saturday at 9" means the Saturday of next week. If it cannot be
    # read so, it is no clear time: that Saturday must not become the one of this week.
    if week_match := PATTERNS["week_or_month"].search(head):
        in_week = next((form for form in _placed_in(answer, week_match[0]) if times.is_time(form)), "")
        when = in_week or ("" if "weekday" in date_parts else when)
    if not times.is_time(when):
        return None
    if PATTERNS["repeats"].search(request.slot("what")) and not PATTERNS["repeats"].search(when):
        return None  # the message asked for a repetition, which a single time would lose
    if any(PATTERNS[name].search(what) for name in ("left_of_time", "depends", "dangling")):
        # The rest of the message may still be about the time: ask for the text instead of using that rest.
        return request.having(what="", when=when, trouble="no_text", unsure="", sure="yes")
    # `unsure` ends, as the time is understood now; `sure` says that nobody has to confirm it.
    return request.having(what=what, when=when, unsure="", sure="yes")


def _with_hour(answer: str, before: str) -> str:
    """Return an answer that names only minutes with the hour of the earlier time `before`.

    After `on Friday at 5`, `half past` becomes `half past 5`, and `evening, half past` becomes `half past 5
    pm`. Any other answer is returned unchanged, as is each if the earlier time has no hour that leaves the
    half of the day open.
    """
    minutes = PATTERNS["from_hour"].fullmatch(answer)
    clocks = (bare_clock(words) for _, words, _ in _longest_first(before) if _is_clock(words))
    clock = next(filter(None, clocks), "") if minutes else ""
    if minutes is None or not clock:
        return answer
    hour = clock.partition(":")[0]
    half = minutes["before"] or minutes["after"] or ""
    is_morning = PATTERNS["morning"].fullmatch(half) is not None
    if minutes["en"]:
        return f"{minutes['en']} {hour} {('am' if is_morning else 'pm') if half else ''}".strip()
    return f"{('오전' if is_morning else '오후') if half else ''} {hour}시 반".strip()


def _longest_first(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield each run of words of a text, between the words before and after it; the longest run first."""
    words = text.split()
    for length in range(len(words), 0, -1):
        for start in range(len(words) - length + 1):
            end = start + length
            yield " ".join(words[:start]), " ".join(words[start:end]), " ".join(words[end:])


def _text_beside(text: str, answer: str) -> str:
    """Return a text without the words at its end that an answer repeats, and words such as `on` among them.

    `watch 60 minutes on sunday at 7pm` with the answer `sunday 7pm` becomes `watch 60 minutes`. The first
    word always stays.
    """
    known = set(answer.casefold().replace(",", " ").split())
    words = text.split()
    end = len(words)
    while end > 1 and (
        words[end - 1].casefold().strip(",.") in known or PATTERNS["joins_time"].fullmatch(words[end - 1])
    ):
        end -= 1
    return " ".join(words[:end])


def _placed_in(answer: str, words: str) -> list[str]:
    """Return `answer` with `words` inserted: once at its start, and once after each of its words.

    The caller looks for the form that is a time, such as `next week saturday at 9`.
    """
    parts = answer.split()
    return [" ".join([*parts[:place], words, *parts[place:]]) for place in range(len(parts) + 1)]


def _picked_reading(request: ParsedRequest, answer: str, context: RequestContext) -> str:
    """Return the words for the one of several possible times of a request that an answer picks.

    The answer may name the place of the time in the question (`the second`), the half of the day (`evening`)
    or a time. "yes" picks the only one. Empty if it picks none of them, or fits several.
    """
    earlier = context.read_time(request.slot("when"))
    is_move = request.intent == "move"
    choices = earlier.choices if isinstance(earlier, TimeRefusal) else ()
    # A move to `2026-02-10 at 7` was asked about because the hour may be in either half of the day.
    if is_move and not choices and PATTERNS["day_and_hour"].fullmatch(request.slot("when")):
        choices = context.halves(request.slot("when"))
    choice_words = [times.say(choice, request.language) for choice in choices]
    if len(choices) == 1 and (parsed := parse_one(answer)) is not None and parsed.intent == "yes":
        return choice_words[0]
    numbers = [str(number) for number in range(1, len(choices) + 1)]
    picked = _named_places(answer, numbers)  # counted from 0
    if not picked:
        picked = [place for place, choice in enumerate(choices) if _means(answer, choice, context)]
    return choice_words[picked[0]] if len(picked) == 1 else ""


def _means(words: str, choice: times.Reading, context: RequestContext) -> bool:
    """Return whether words such as `evening`, `7pm` or `3 February` mean the time `choice`."""
    assert not isinstance(choice, TimeRefusal)  # the choices that a refusal offers are times
    at = choice.at
    halves = {"morning": at.hour < NOON, "evening": at.hour >= NOON}
    for name, is_in_half in halves.items():
        if PATTERNS[name].fullmatch(words):
            return is_in_half and not isinstance(choice, DateOnly)
    parsed_time = context.read_time(words)
    if isinstance(parsed_time, DateOnly):
        return parsed_time.day == at.date()
    if not isinstance(parsed_time, Instant):
        return False
    # A time of day alone is read as the next one, which may be on another day than the choice: so only the
    # times of day are compared.
    is_clock = _is_clock(words)
    return parsed_time.at == at or (is_clock and parsed_time.at.time() == at.time())


def joined_time(before: str, words: str, context: RequestContext) -> str:
    """Return one time in words, made of an earlier time (`before`) and of new `words`.

    So `next Friday` and `9am` give `next Friday 9am`; `Friday at 9` and `10am` give `Friday 10am`. Several
    texts are tried (`_combinations`), and the first of the best kind is returned. The kinds, best first:

    - a text that can mean any of several days, which are then asked about
    - a complete time
    - a time that leaves open only the half of the day
    - a day without a time of day
    - a text with `of every month`

    If there is none of these, the new words alone are returned; if they are a time of day, a text with a day
    that is refused when it is read, so that the person is asked. Empty if none of the texts is a time at all.

    A new time of day never replaces a day: it is put beside words that may name one (`_may_lose_day`). A new
    weekday replaces the wrong weekday of a date, not the date (`_with_new_weekday`).
    """
    words = f"at {words}" if re.fullmatch(r"\d{1,2}", words) else words
    words = _in_month_asked_about(before, words, context)
    if _may_lose_day(before, words):
        return f"{before} {words}"  # this is not read as a time, so the time is asked about again
    if with_new_weekday := _with_new_weekday(before, words, context):
        return with_new_weekday
    combinations = dict.fromkeys(_combinations(before, words))
    tried = [(form, context.read_time(form)) for form in combinations]
    if all(_is_no_time(parsed_time) for _, parsed_time in tried):
        return ""
    complete = [form for form, parsed_time in tried if not isinstance(parsed_time, TimeRefusal | DateOnly)]
    without_half = [
        form
        for form, parsed_time in tried
        if isinstance(parsed_time, TimeRefusal) and parsed_time.reason is Reason.WHICH_HALF
    ]
    without_clock = [form for form, parsed_time in tried if isinstance(parsed_time, DateOnly)]
    # "next Friday" with "9am" can still mean two days: returned as one text, so that the day is asked about.
    # A bare "10am" replaces the time of day in "next Friday at 9", and leaves the day open, too.
    whole_texts = combinations if _is_clock(words) else (f"{before} {words}", f"{words} {before}")
    several = [form for form, parsed_time in tried if form in whole_texts and _may_mean_several(parsed_time)]
    monthly = [form for form, _ in tried if PATTERNS["of_every_month"].search(form)]
    if found := several or complete or without_half or without_clock or monthly:
        return found[0]
    # A time of day alone would be the next one, which may be on another day than the earlier time: better a
    # form that is refused with a reason, such as a day that does not exist, so that the time is asked about.
    refused = [form for form, reading in tried if not _is_no_time(reading)]
    return refused[-1] if _is_clock(words) else words


def bare_clock(answer: str) -> str:
    """Return the digits of a time of day that leaves am or pm open: `10`, or `8:30` for `half past 8`.

    Empty for any other words.
    """
    # A number alone is read as a time of day only after "at".
    words = f"at {answer}" if answer.isdecimal() else answer
    lead = times.leading(words)
    is_whole_answer = lead is not None and lead.end == len(words)
    if lead is None or not is_whole_answer or lead.parts.written().keys() != {"clock"}:
        return ""
    clock = lead.parts.clock
    # Not open: a time with "am" or "pm" (`half`), with a time zone (`offset`), or of the afternoon.
    is_open = clock is not None and not (clock.half or clock.offset) and 0 < clock.hour <= NOON
    if clock is None or not is_open or PATTERNS["of_24_hours"].match(words):
        return ""
    hour, minute = divmod(clock.hour * 60 + clock.minute - clock.minutes_before, 60)
    return f"{hour or NOON}:{minute:02}" if minute else str(hour or NOON)


def _may_lose_day(before: str, words: str) -> bool:
    """Return whether the day in `before` may be lost if the time of day in `words` is read alone.

    That is so for `around Friday` and `9am`: `before` begins with no known time, but may name a day, and
    `words` are only a time of day, which would be the next 9am.
    """
    return _is_clock(words) and bool(before.strip()) and times.leading(before) is None


def _in_month_asked_about(before: str, words: str, context: RequestContext) -> str:
    """Return `words` with a day of the month as the whole date, if the earlier time has a wrong weekday.

    The month is that of the earlier time `before`: after `Monday 12 March`, `the 12th` becomes `2026-03-12`.
    """
    earlier = context.read_time(before)
    if not (isinstance(earlier, TimeRefusal) and earlier.reason is Reason.WRONG_WEEKDAY and earlier.at):
        return words
    if not _part_names(words):
        return words
    days_of_month = monthrange(earlier.at.year, earlier.at.month)[1]
    for head, cut, tail in _longest_first(words):
        lead = times.leading(cut)
        # `12일` may also mean a span of 12 days.
        meanings = lead.parts.meanings() if lead is not None and lead.end == len(cut) else ()
        days = [parts.day for parts in meanings if parts.written().keys() == {"day"}]
        match days:
            case [MonthDay(day=day, months_ahead=None), *_] if day <= days_of_month:
                return f"{head} {earlier.at.date().replace(day=day)} {tail}".strip()
            case [_, *_]:  # another day, such as `the 12th of April`
                return words
    return words


def _with_new_weekday(before: str, words: str, context: RequestContext) -> str:
    """Return the earlier time `before` with `words` in place of its weekday, which does not fit its date.

    So `Monday 12 March` with `Thursday` becomes `Thursday 12 March`. A time of day in `words` replaces the
    one of the earlier time. Empty if the earlier time has no such weekday, or if `words` name none, or more
    than a weekday and a time of day.

    If the new weekday does not fit the date either, the result is a text that is refused when it is read. But
    it is empty if `words` also have a time of day, or repeat the wrong weekday: then they name another day
    than the date.
    """
    earlier = context.read_time(before)
    if not (isinstance(earlier, TimeRefusal) and earlier.reason is Reason.WRONG_WEEKDAY):
        return ""
    if not {"weekday"} <= _part_names(words) <= {"weekday", "clock", "half"} or _names_week(words):
        return ""
    rests = [before] if _part_names(words) == {"weekday"} else [*_without_clock(before), before]
    forms = [
        " ".join([*parts[:start], words, *parts[start + length :]])
        for parts in (rest.split() for rest in rests)
        for length in (1, 2)  # `Monday`, or `on Monday`
        for start in range(len(parts))
        if _part_names(" ".join(parts[start : start + length])) == {"weekday"}
    ]
    # If no form is a time, both texts together are none either, so the time is asked about.
    form = next((form for form in forms if not _is_no_time(context.read_time(form))), f"{before} {words}")
    is_own_day = _part_names(words) != {"weekday"} or _weekday(words) in map(_weekday, before.split())
    return "" if is_own_day and isinstance(context.read_time(form), TimeRefusal) else form


def _is_clock(words: str) -> bool:
    """Return whether words are a time of day or a part of the day, and name no day."""
    return bool(names := _part_names(words)) and names <= {"clock", "half"}


def _names_week(words: str) -> bool:
    """Return whether a time has a weekday of a certain week, such as `Thursday next week`."""
    lead = times.leading(words)
    weekday = lead.parts.weekday if lead is not None else None
    return weekday is not None and (weekday.is_next or weekday.weeks_ahead is not None)


def _weekday(words: str) -> int | None:
    """Return the day of the week that a time names, Monday is 0; None if it names none."""
    lead = times.leading(words)
    return lead.parts.weekday.index if lead is not None and lead.parts.weekday is not None else None


def _part_names(words: str) -> AbstractSet[str]:
    """Return the names of the parts of a time, such as `weekday` and `clock`; empty if words are no time.

    The day of the next midnight is left out, as it gives way to any day beside it.
    """
    lead = times.leading(words)
    if lead is None or lead.end < len(words):
        return frozenset()
    clock = lead.parts.clock
    return lead.parts.written().keys() - ({"day"} if clock is not None and clock.is_to_come else set())


def _is_no_time(parsed_time: times.Reading) -> bool:
    """Return whether words were refused because they are no time."""
    return isinstance(parsed_time, TimeRefusal) and parsed_time.reason is Reason.NO_TIME


def _may_mean_several(parsed_time: times.Reading) -> bool:
    """Return whether a time was refused because it may be any of several: `next Friday`, `2/3`."""
    reasons = (Reason.WHICH_MEANING, Reason.WHICH_WEEK)
    return (
        isinstance(parsed_time, TimeRefusal)
        and parsed_time.reason in reasons
        and len(parsed_time.choices) > 1
    )


def _combinations(before: str, answer: str) -> list[str]:
    """Return the possible combinations of the earlier time `before` with an answer, the preferred ones first.

    First come those in which the answer replaces words or becomes am or pm, as `evening` after `tomorrow at
    3`. Then the answer is put beside the earlier time and beside parts of it, since `today at 8:00` with
    `tomorrow` is `at 8:00 tomorrow`. The last one is the answer alone, unless the answer is a time of day and
    the earlier time names a day: a time of day replaces only another one, so that the day stays.
    """
    am, pm = ("오전", "오후") if re.search(r"[가-힣]", before) else ("am", "pm")
    halves = [half for name, half in (("morning", am), ("evening", pm)) if PATTERNS[name].fullmatch(answer)]
    words = before.split()
    # The parts of the earlier time that are kept beside the answer: first all of it, then its starts, the
    # longest first, then its ends. Beside an empty part, the answer stands alone.
    if _is_clock(answer):
        parts = [before, *_without_clock(before)]
    else:
        # From a text that is a time, only words that are a time themselves are dropped: "the first Monday of
        # the month" never becomes "the first".
        may_drop_any = not times.is_time(before)
        splits = [(" ".join(words[:place]), " ".join(words[place:])) for place in range(1, len(words))]
        parts = [before, *(start for start, end in reversed(splits) if may_drop_any or times.is_time(end))]
        parts += [end for start, end in splits if may_drop_any or times.is_time(start)]
        # A word such as "on" alone adds nothing.
        parts = [*(part for part in parts if not PATTERNS["joins_time"].fullmatch(part)), ""]
    joined = [form.strip() for part in parts for form in (f"{part} {answer}", f"{answer} {part}")]
    # `the last day of the month` with `every month` is `the last day of every month`.
    monthly = (
        PATTERNS["of_the_month"].sub(answer, before) if PATTERNS["every_month"].fullmatch(answer) else before
    )
    repeated = [monthly] if monthly != before else []
    return [*repeated, *(f"{before} {half}" for half in halves if before), *joined]


def _without_clock(text: str) -> list[str]:
    """Return what remains of a time when words for a time of day are cut out of it, in each possible way.

    `friday at 9 next week` gives `friday next week`; words that are nothing but a time of day give an empty
    text.
    """
    words = text.split()
    return [
        " ".join([*words[:start], *words[end:]])
        for start in range(len(words))
        for end in range(start + 1, len(words) + 1)
        if _is_clock(" ".join(words[start:end]))
    ]


def _with_list(request: ParsedRequest, text: str, parsed: ParsedRequest | None) -> ParsedRequest | None:
    """Return the request with the list that an answer names; None if it names none.

    `parsed` is the answer read as a request; None if it is no request. `the shopping list` alone is read as a
    request to show that list, which here only names it. A few words that are no request also name a list; the
    slot `doubt` makes the agent ask before it creates a list of that name.
    """
    if parsed is not None:
        # With the flag `it`, as in `that list`, the words name no list.
        is_name = parsed.intent == "show_list" and not parsed.slot("it")
        # `show the shopping list`, with the verb, is a new request and no answer.
        is_name = is_name and not begins_request(text)
        return request.having(list=parsed.slot("list") or TODO) if is_name else None
    name = _without_frame(PATTERNS["before_list"].sub("", text.strip()))
    is_name = 0 < len(name) <= MAX_NAME_CHARS and len(name.split()) <= MAX_NAME_WORDS
    return request.having(list=name, doubt="yes") if is_name and not begins_request(text) else None


def _named_options(options: Sequence[Option], text: str) -> list[ParsedRequest] | None:
    """Return the requests of the options that an answer chooses; None if it chooses none.

    The answer may be a number, a place (`the second`), a word for all options, or whole words of one option's
    label, unless these are a request of their own.
    """
    answer = _without_frame(text).strip(" .").casefold()
    numbers = [option.number.casefold() or str(place) for place, option in enumerate(options, 1)]
    places = _named_places(answer, numbers)
    if places is not None:
        return [options[place].request for place in places] or None
    # A Korean particle may follow the words, but no letter, digit or `_` of ASCII.
    whole_words = re.compile(rf"(?<![\w]){re.escape(answer)}(?![A-Za-z0-9_])", re.IGNORECASE)
    fitting = [option.request for option in options if len(answer) > 1 and whole_words.search(option.label)]
    return fitting if len(fitting) == 1 and parse_one(text) is None else None


def _named_places(words: str, numbers: Sequence[str]) -> list[int] | None:
    """Return the places, from 0, of the choices that words name: by number, by place, or all of them.

    `numbers` has the number of each choice. Empty for a number that no choice has. None for any other words,
    such as `the fifth` of three choices.
    """
    if PATTERNS["all_options"].fullmatch(words):
        return list(range(len(numbers)))
    if match := PATTERNS["option_number"].fullmatch(words):
        number = match["number"]
        return [numbers.index(number)] if number in numbers else []
    for place in range(min(len(numbers), MAX_NAMED_PLACES)):
        if PATTERNS[f"option_{place + 1}"].fullmatch(words):
            return [place]
    return [len(numbers) - 1] if numbers and PATTERNS["option_last"].fullmatch(words) else None


def _without_frame(text: str) -> str:
    """Return an answer without the small words around it: `in the …`, `… please`, `…이요`."""
    return PATTERNS["around_answer"].sub("", text.strip()).strip()
