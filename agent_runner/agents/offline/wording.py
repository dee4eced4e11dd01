"""Split the words of a request into its text, its time and further requests. Pure.

The slots of a request are the words that it has under names such as `what` and `when`; the head of
`intents.toml` describes them. A wrong cut would set a wrong reminder, so a request whose time is not sure
gets the slot `trouble` (`unsure`), and the chat is asked about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise

from agent_runner.agents.offline.intents import ENDINGS, PATTERNS, SAME_TIMES, ParsedRequest
from agent_runner.checklists import TODO
from agent_runner.wire import times
from agent_runner.wire.times import Language
from agent_runner.wire.unicode_forms import composed, normalized

_BETWEEN = " \t\n,:："
"""Characters that may separate a time from the words beside it."""
_MAX_SPAN_WORDS = 6
"""Most words of a span of time, such as `an hour and thirty minutes`."""
_MAX_BEFORE_WORDS = 10
"""Most words `before` in a reminder of which one may be that of an event."""


def tidied(parsed: ParsedRequest) -> ParsedRequest | None:
    """Return a request that a row of `intents.toml` has matched, with cleaned slots; None if it does not fit.

    Words after "tell me" (slot `news`) become those of a reminder (`body`), but do not fit if they ask for
    news, as in `날씨 알려줘` ("tell me the weather"). Words such as "the" and Korean particles are taken off
    the name of a task or entry.
    """
    for name in ("task", "item"):
        if words := parsed.slot(name):
            is_korean = parsed.language is Language.KOREAN
            bare = without_ending("topic", words) if is_korean else PATTERNS["the"].sub("", words)
            parsed = parsed.having(**{name: bare})
    if news := parsed.slot("news"):
        # `… 알려줘` asks for a reminder where it quotes ("…라고") or names a moment; else it asks for news.
        lead = times.leading(news)
        names_moment = lead is not None and (lead.parts.has_clock or lead.parts.repeat)
        is_reminder = names_moment or PATTERNS["korean_quote"].search(news)
        # `whom` is a person named before the words in `news`. If those do not begin with a time, the person
        # belongs to the text, and another row fits: `엄마한테 밥 먹으라고` ("… mum to eat").
        does_not_fit = not is_reminder or (parsed.slot("whom") and lead is None)
        return None if does_not_fit else parsed.having(body=news, news="")
    return parsed


def expanded(parsed: ParsedRequest) -> list[ParsedRequest]:
    """Return one request for each thing that a request names: reminders, tasks, to-dos or entries.

    If words of it would be lost, return one request that only says why it is refused. The words of a reminder
    or task are in the slot `body`; `first` has those that stood apart before it, `tail` those after it.
    """
    if refusing_intent := _refusing_intent(parsed):
        return [parsed.of(refusing_intent)]
    match parsed.intent:
        case "remind":
            body = f"{parsed.slot('first')} {parsed.slot('body')}".strip()
            further_slots = {name: parsed.slot(name) for name in ("whom", "item", "ask") if parsed.slot(name)}
            return [reminder.having(**further_slots) for reminder in reminders(body, parsed.language)]
        case "add_task":
            body = f"{parsed.slot('body')} {parsed.slot('tail')}".strip()
            return tasks(parsed, body) if body else [parsed]
        case "add_todo":
            return _todos(parsed)
        case "add_items":
            items = entries(parsed.slot("items"), parsed.language, parsed.slot("list"))
            # A list that is named after the last item is that of all items without an own list.
            return [*_with_own_lists(parsed, items[:-1]), _of_this_list(parsed, items)]
        case _:
            return [parsed]


def _refusing_intent(parsed: ParsedRequest) -> str:
    """Return the intent whose answer says why a request is refused; empty for a request that is clear.

    It is refused if words of it would be lost, such as a condition or a limit, or if it may also mean
    something else (`two_meanings`), such as a second request or none.
    """
    # The uncut words of a reminder (`body`, and `first` if some stood apart), or of entries: `items`, or
    # `bare` if the message does not say whether they are to-dos.
    words = " ".join(filter(None, (parsed.slot(name) for name in ("first", "body", "items", "bare"))))
    is_reminder = parsed.intent == "remind"
    zone = PATTERNS["other_zone"].search(words)
    if is_reminder and zone and not times.names_town_time(zone[0]):
        return "other_zone"  # the times of some towns are understood, other zones are not
    if is_reminder and PATTERNS["past_day"].match(words):
        return "past_day"
    condition = PATTERNS["condition"].match(parsed.slot("body")) if is_reminder else None
    # `when I get home to call`, without any time: the agent cannot notice when that is.
    if condition and times.leading(parsed.slot("first")) is None and times.trailing(words) is None:
        return "no_condition"
    if is_reminder and PATTERNS["next_days"].search(words):
        return "repeat_limited"
    # A repeating reminder cannot have a limit, but for excluded months, which `wire/times` reads.
    to_check = PATTERNS["month_limit"].sub("", words)
    # In "every 2 hours until 7" the hour is a limit. In "every day at 9 to stay until 7" it is part of the
    # text, because a daily reminder has no end hour.
    to_check = to_check if PATTERNS["interval"].search(words) else PATTERNS["clock_limit"].sub("", to_check)
    is_limited = PATTERNS["repeats"].search(words) and PATTERNS["limits"].search(to_check)
    # For `from Monday to Wednesday`, the days are asked about instead.
    if is_reminder and is_limited and not _between_days(words, parsed.language):
        return "repeat_limited"
    if any(PATTERNS["further_wish"].search(parsed.slot(name)) for name in ("title", "reason")):
        return "two_meanings"  # "rename it to post and move it to Friday"
    is_added = parsed.intent in ("add_items", "add_todo")
    is_list = parsed.intent == "add_items" or parsed.slot("bare")
    if parsed.language is Language.KOREAN and _is_no_request_ko(parsed, words):
        return "two_meanings"
    if is_list and _is_no_addition(words, parsed.slot("list")):
        return "two_meanings"
    if is_list and PATTERNS["other_deed"].search(words):
        return "two_meanings"  # "buy bread and tell Mia": an entry, or another request
    is_taken_back = (is_reminder and PATTERNS["taken_back"].search(words)) or (
        is_added and PATTERNS["taken_back_items"].search(words)
    )
    return "two_meanings" if is_taken_back else ""


def _is_no_request_ko(parsed: ParsedRequest, words: str) -> bool:
    """Return whether Korean words for an entry or a title are a sentence, or name several lists.

    Such words are no request to add them. `words` are those of the request that name entries.
    """
    if PATTERNS["further_ko"].search(parsed.slot("title")):
        return True  # `이름을 포스트로 바꾸고 금요일`
    if parsed.intent not in ("add_items", "add_todo"):
        return False
    decomposed = normalized("NFD", words)
    # `두 목록에` ("to two lists"); `우유 장보기랑` ("milk to shopping and") before another list's name.
    if PATTERNS["several_lists_ko"].search(parsed.slot("list")) or PATTERNS["other_list_ko"].search(words):
        return True
    if PATTERNS["reported_ko"].search(decomposed):  # `우유 샀고 빵` ("bought milk, and bread")
        return True
    # A to-do may be a sentence, unless it is nothing but a time.
    if parsed.slot("list") == TODO or (parsed.intent == "add_todo" and not parsed.slot("bare")):
        return PATTERNS["only_time"].fullmatch(words) is not None
    # `우유 말고 빵` ("not milk but bread") and `샀어` ("bought") are no entries. U+11BB is the final
    # consonant ㅆ, which verbs have in the past tense.
    return PATTERNS["no_addition_ko"].search(words) is not None or "\u11bb" in decomposed


def bare_forms(entry: str) -> list[str]:
    """Return a Korean entry as written, and without its particle if it has one: `잼도` and `잼`."""
    return list(dict.fromkeys((entry, without_ending("entry", entry))))


def has_more_than_name(entry: str) -> bool:
    """Return whether a Korean entry of a list may have other words beside the name of a thing.

    Examples are `내일 우유` ("tomorrow milk") and `민수가 잼` ("Minsu … jam"), about which the person is
    asked. Known everyday goods, with or without an amount, are a name alone.
    """
    is_known_thing = PATTERNS["good_ko"].fullmatch(entry)
    patterns = ("in_sentence_ko", "words_of_time")
    return not is_known_thing and any(PATTERNS[name].search(entry) for name in patterns)


def _is_no_addition(items: str, name: str) -> bool:
    """Return whether nothing may be added, since words negate the entries or name several lists.

    `items` are the words for the entries, `name` those for the list.
    """
    # `milk to both lists`, or `shopping and pantry` as the name of the list.
    names_lists = PATTERNS["to_several_lists"].search(items) or PATTERNS["several_lists"].search(name)
    return bool(names_lists or PATTERNS["no_item"].search(items))


def entries(text: str, language: Language, list_name: str = "") -> list[str]:
    """Return the single entries in words such as `milk, eggs and bread`, each once.

    If `list_name` is that of the to-dos, `and` alone separates no entries. A text in quotes is one entry.
    """
    kind = "between_todos" if list_name == TODO else f"between_entries_{language.value}"
    quotes = PATTERNS["quoted_entry"].findall(text)
    # A quote may contain commas: while the text is split, its number between two NULs stands for it.
    for place, quote in enumerate(quotes):
        text = text.replace(quote, f"\0{place}\0", 1)
    # `milk, oh and eggs too` → `milk`, `eggs`: words such as `oh`, `also` and `too` are no part of an entry.
    parts = (PATTERNS["oh"].sub("", part) for part in PATTERNS[kind].split(text) if part)
    parts = (PATTERNS["also"].sub("", PATTERNS["after_entry"].sub("", part)) for part in parts)
    items = [without_ending("object", part) for part in parts if part.strip(" .")]
    # Words such as "please" are no entry, unless there is nothing else.
    items = [part for part in items if not PATTERNS["courtesy"].fullmatch(part.strip())] or items
    for place, quote in enumerate(quotes):
        placeholder = f"\0{place}\0"
        items = [quote[1:-1] if part == placeholder else part.replace(placeholder, quote) for part in items]
    return list(dict.fromkeys(items))


def _with_own_lists(parsed: ParsedRequest, items: list[str]) -> list[ParsedRequest]:
    """Return a request for each entry that names its own list: `milk to shopping and rice to pantry`.

    The words for the list stay in the entry; `Lists` separates them when it carries out the request. There
    is no such entry if the request is about the to-dos.
    """
    if parsed.slot("list") == TODO:  # a to-do may have such words in its text
        return []
    named = [item for item in items if PATTERNS["entry_of_list"].fullmatch(item)]
    return [parsed.of("add_items", items=item) for item in named]


def _of_this_list(parsed: ParsedRequest, items: list[str]) -> ParsedRequest:
    """Return the request without those of its `items` that name another list (`_with_own_lists`).

    In `add milk to pantry, eggs and rice to shopping`, the item `milk to pantry` names another list.
    """
    # The last item is not looked at: a list that is named after it is the one of the whole request. In the
    # others, `_with_own_lists` leaves the words for the list, so that whole items are compared here.
    for_other_lists = [other.slot("items") for other in _with_own_lists(parsed, items[:-1])]
    own_items = [item for item in items if item not in for_other_lists]
    return parsed.having(items="\n".join(own_items))


def _todos(parsed: ParsedRequest) -> list[ParsedRequest]:
    """Return the requests for the to-dos that a request names.

    A to-do with a time after `by` becomes a task. For words that may be one or two to-dos, such as `call Bob
    and buy stamps`, the request asks which. If a deadline in the words cannot be separated from the text, the
    only request has the intent `two_meanings`.

    Words with "add" but without "to-do" (slot `bare`) may be things to buy. They become entries of the list
    that they name; without one, `Lists` finds the list.
    """
    if parsed.slot("bare"):
        parts = entries(parsed.slot("bare"), parsed.language)
        match = PATTERNS["entries_of_list_ko"].fullmatch(parsed.slot("bare"))
        if match and parsed.language is Language.KOREAN:  # the list may be new: `doubt` asks about it
            if times.is_time(match["list"]) or times.is_time(f"{match['list']}에"):
                return [parsed.of("two_meanings")]  # `10분 뒤에 잼` ("jam in 10 minutes"): a time, no list
            items = "\n".join(entries(match["items"], parsed.language))
            return [parsed.of("add_items", items=items, list=match["list"], doubt="yes")]
        # `milk to shopping and rice to pantry`: each part names its own list.
        if len(parts) > 1 and all(map(PATTERNS["entry_of_list"].fullmatch, parts)):
            return [parsed.of("add_items", items=part) for part in parts]
        return [parsed.of("add_items", items="\n".join(parts))]
    requests = []
    for item in entries(parsed.slot("items"), parsed.language, TODO):
        title, deadline = title_and_deadline(item, parsed.language, is_task=False)
        if PATTERNS["deadline_left"].search(title if deadline else item):  # `by Friday` is still in the text
            return [parsed.of("two_meanings")]
        if deadline:
            requests.append(parsed.of("add_task", title=title, when=deadline))
        elif two_match := PATTERNS["two_things"].fullmatch(item):
            more = f"{two_match['left']}\n{two_match['right']}"
            requests.append(parsed.of("one_or_more", one=item, more=more, kind="todo"))
        else:
            requests.append(parsed.of("add_items", items=item, list=TODO))
    if all(request.intent == "add_items" for request in requests):
        return [
            parsed.of("add_items", items="\n".join(request.slot("items") for request in requests), list=TODO)
        ]
    return requests


def tasks(parsed: ParsedRequest, body: str) -> list[ParsedRequest]:
    """Return the requests for the tasks that the words in `body` name, with their deadlines.

    `pay rent by Friday and call mum by Monday` is two tasks. For words that may be one task or two, the
    request asks which. If a deadline or a second wish in the words was not understood, the only request has
    the intent `two_meanings`. `parsed` is the request that the words belong to.
    """
    body = body.strip()
    # "before Friday" may include Friday or not: the deadline is asked about.
    if match := PATTERNS["before_a_day"].fullmatch(body):  # `pay rent before Friday`, `before Friday to pay`
        day = match["day"] or match["first"]
        if times.is_time(day):
            title = match["title"] or match["after"]
            return [parsed.of("add_task", title=title, when=f"before {day}")]
    # `전까지` ("by before") after a time is as unclear.
    bare = body.removesuffix("전까지").rstrip()
    time_before = times.trailing(bare) if bare != body else None
    if time_before and bare[: time_before.start].strip():
        title, when = bare[: time_before.start].strip(" ,"), body[time_before.start :]
        return [parsed.of("add_task", title=title, when=when)]
    split = [PATTERNS["another_to"].sub("", part) for part in PATTERNS["between_things"].split(body) if part]
    pieces = [title_and_deadline(piece, parsed.language) for piece in split]
    if len(pieces) > 1 and all(title and deadline for title, deadline in pieces):
        return [parsed.of("add_task", title=title, when=deadline) for title, deadline in pieces]
    title, deadline = title_and_deadline(body, parsed.language)
    unread_words = (PATTERNS[name].search(title) for name in ("deadline_left", "unclear_title_ko"))
    trail = None if deadline else times.trailing(title)
    is_unread = trail is not None and _has_unread_time(title[: trail.start], title[trail.start :])
    if is_unread or any(unread_words):  # a deadline or second wish would be lost in the title
        return [parsed.of("two_meanings")]
    parts = PATTERNS["between_todos"].split(title)
    two_match = PATTERNS["two_things"].fullmatch(title)
    if two_match and len(parts) == 1:
        parts = [two_match["left"], two_match["right"]]
    if len(parts) > 1 and all(len(part.split()) > 1 for part in parts):
        return [parsed.of("one_or_more", one=title, more="\n".join(parts), kind="task", when=deadline)]
    return [parsed.of("add_task", title=title, when=deadline)]


def title_and_deadline(body: str, language: Language, *, is_task: bool = True) -> tuple[str, str]:
    """Return the title of a task or to-do, and the words of its deadline, which are empty if it has none.

    `by` and `까지` mark a deadline only if a time is beside them: `a book by somebody` has none. If `is_task`
    is true, the person has said that it is a task: then a time at either end is a deadline without a mark,
    and after `for` or `on`, too.
    """
    body, is_korean = body.strip(" ,"), language is Language.KOREAN
    # First a time after a mark, then one at the end, then one at the start. A sure mark, such as `by`, marks
    # nothing but deadlines; `for` and `on` are not sure.
    for title, time, is_sure_mark in _marked(body, is_korean=is_korean):
        words = same_time(time)
        is_time = (is_sure_mark or is_task) and times.is_time(words) and not _has_unread_time(title, words)
        if title and (is_time or (is_sure_mark and PATTERNS["vague_time"].fullmatch(words))):
            return without_ending("object", title.strip(" ,")), words
    # At the end, in a task or before the Korean mark: `pay rent tomorrow`, `금요일까지`.
    bare = body.removesuffix("까지")
    trail = times.trailing(bare) if is_task or bare != body else None
    title = bare[: trail.start].strip(" ,") if trail else ""
    is_read = trail and not _has_unread_time(title, bare[trail.start :])
    # Words that belong to the time but were not read are known only for English.
    if trail and title and (is_korean or (is_read and not PATTERNS["dangling"].search(title))):
        return without_ending("object", title), bare[trail.start :].strip()
    # At the start, in English only before a colon: `Friday: pay rent`.
    lead = times.leading(body) if is_task else None
    title = _without_leading_to(body[lead.end :]) if lead else ""
    if lead and title and (is_korean or body[lead.end :].lstrip().startswith(":")):
        return without_ending("object", title), body[: lead.end]
    return without_ending("object", body), ""


def _marked(body: str, *, is_korean: bool) -> Iterator[tuple[str, str, bool]]:
    """Yield (title, time, is_sure_mark) for each mark of a deadline, such as `by`: the words beside it.

    `pay rent by Friday` gives ("pay rent", "Friday", True). The title is before an English mark, and may be
    after a Korean one. A sure mark stands for deadlines only, so that even a vague time beside it is one;
    `for` and `on` are not sure. Korean words without the mark give an empty title, which the caller
    has to skip.
    """
    if not is_korean:
        for mark in PATTERNS["deadline_mark"].finditer(body):
            yield body[: mark.start()].strip(" ,"), body[mark.end() :].strip(), bool(mark["sure"])
        return
    time, _, title = body.partition("까지")  # `2월 10일까지 블로그 쓰기`: the time is before the mark
    yield title.strip(), time, True
    bare = body.removesuffix("까지")
    if bare != body and (match := PATTERNS["vague_end"].search(bare)):  # `블로그 쓰기 월말까지`
        yield bare[: match.start()].strip(" ,"), match["time"], True


def same_time(words: str) -> str:
    """Return other words for a time such as `the end of the month`, which `wire/times` can parse.

    Words that are not in the table `SAME_TIMES` are returned unchanged.
    """
    matches = ((pattern.fullmatch(words.strip()), time) for pattern, time in SAME_TIMES)
    return next((match.expand(time) for match, time in matches if match), words)


def reminders(body: str, language: Language) -> list[ParsedRequest]:
    """Return a request for a reminder for each thing in `body` that has its own time.

    A later thing with only a time of day is on the day of the one before it. If not all things have text and
    time, return one request for the whole body. If it has two times that cannot be separated, or it is not
    clear whether a second thing repeats like the first, the only request has the intent `two_meanings`.
    """
    body = body.strip()
    pieces = [_reminder(piece, language) for piece in _pieces(body)]
    is_clear = all(
        piece.slot("what") and piece.slot("when") and not piece.slot("trouble") for piece in pieces
    )
    # `on May 3 and 5 at 9am`: a number alone is a part of the time, and no thing of its own.
    is_clear = is_clear and not any(piece.slot("what").isdecimal() for piece in pieces)
    # In `내일 저녁 먹고 7시에 약 먹기` ("have dinner tomorrow, and …") the part before the Korean "and"
    # (`고`) is no reminder, as it has no time of day.
    if language is Language.KOREAN and is_clear:
        leads = [times.leading(piece.slot("when")) for piece in pieces]
        is_clear = all(lead is not None and lead.parts.has_clock for lead in leads[:-1])
    if is_clear and any(_may_repeat_too(*pair) for pair in pairwise(pieces)):
        return [pieces[0].of("two_meanings")]
    for place in range(1, len(pieces)):
        pieces[place] = _on_day_of(pieces[place - 1], pieces[place])
    if len(pieces) > 1 and is_clear:
        return pieces
    whole = _reminder(body, language)
    is_two = PATTERNS["second_time"].search(whole.slot("what"))
    return [whole.of("two_meanings") if is_two and not whole.slot("trouble") else whole]


def _may_repeat_too(before: ParsedRequest, after: ParsedRequest) -> bool:
    """Return whether `before` repeats and `after` has only a time of day, so that `after` may repeat, too.

    Read as a reminder of its own, `after` would come only once.
    """
    lead = times.leading(after.slot("when"))
    is_clock = lead is not None and not set(lead.parts.written()) - {"clock", "half"}
    return is_clock and PATTERNS["repeats"].search(before.slot("when")) is not None


def _on_day_of(before: ParsedRequest, after: ParsedRequest) -> ParsedRequest:
    """Return the request `after` with the day of the one before it, if it has only a time of day.

    In `on Sunday at 9 mum and dad at noon`, both are on Sunday. Other requests are returned unchanged.
    """
    when = after.slot("when")
    own_time = times.leading(when)
    if own_time is None or set(own_time.parts.written()) - {"clock", "half"}:
        return after
    words = before.slot("when").split()
    # The last words of the earlier time that are a day and nothing else, as many as possible. A day such as
    # `2/3`, which has two meanings, is the part `either`.
    for end in range(len(words), 0, -1):
        for start in range(end):
            day = " ".join(words[start:end]).removesuffix("에")
            lead = times.leading(day)
            is_day = lead is not None and lead.end == len(day) and not lead.parts.has_clock
            if lead is not None and is_day and lead.parts.written().keys() <= {"day", "weekday", "either"}:
                return after.having(when=f"{day} {when}")
    return after


def _pieces(body: str) -> Iterator[str]:
    """Yield the parts of a body, between words such as "and", that may be reminders of their own.

    A Korean part whose verb joins it to the next (`약 먹고`) gets the ending of a text: `약 먹기`.
    """
    start = 0
    for joiner in PATTERNS["between_things"].finditer(body):
        if joiner.start() > start:
            # The ending of a quoted sentence (`…라고 말하고`) stays.
            ending = joiner["quote"] or ("기" if joiner[0].startswith("고") else "")
            yield body[start : joiner.start()].strip() + ending
            start = joiner.end()
    yield body[start:].strip()


def _reminder(body: str, language: Language) -> ParsedRequest:
    """Return the request for the reminder in words such as `call mum in 10 minutes` or `at 9am to call mum`.

    The slot `what` has the text, `when` the words of the time, and `trouble` says that the time is not clear
    or that the text is missing. A reminder before an event has the slot `before`, too, and one for the days
    `from Monday to Wednesday` the slot `last`.
    """
    if before := _before_event(body, language):
        return before
    lead = _leading(body)
    cut = _cut_end(body) if lead is None else _cut_start(body, lead)
    # The days in `from Monday to Wednesday` belong to the time together: another cut of the text is dropped.
    if (cut is None or _misplaces_days(body, cut, language)) and (for_days := _between_days(body, language)):
        return for_days
    what, when = cut or (body, "")
    what_to_do = _without_leading_to(what)
    if not when:
        # `later to call mum`: words such as `later` or `soon` at the start are no part of the text.
        what_to_do = PATTERNS["vague_lead"].sub("", what_to_do)
    if language is Language.KOREAN:
        what_to_do = without_ending("note", what_to_do)
    slots = {"what": what_to_do, "when": when.strip(_BETWEEN)}
    # `if it rains`: nobody watches whether that comes true.
    is_condition = PATTERNS["text_is_condition"].match(what.strip(_BETWEEN))
    # Words of time after a Korean quote ("…라고") may belong to the quote or not.
    if cut is None or is_condition or PATTERNS["quote_then_time_ko"].search(what):
        slots["trouble"] = "unsure"
    elif not slots["what"] and PATTERNS["before_text"].match(what.strip(_BETWEEN)):
        slots["trouble"] = "no_text"
    return ParsedRequest(intent="remind", language=language, slots=slots)


def _misplaces_days(body: str, cut: tuple[str, str], language: Language) -> bool:
    """Return whether a cut of `body` into text and time is wrong for days such as `from Monday to Wednesday`.

    It is if neither part has all of these words, or if the text begins with them, since they then belong to
    the time. `cut` is (text, time).
    """
    days = PATTERNS[f"days_{language.value}"]
    match = days.search(body)
    if match is None:
        return False
    is_split = not any(match[0] in part for part in cut)
    return is_split or days.match(cut[0].strip()) is not None


def _between_days(body: str, language: Language) -> ParsedRequest | None:
    """Return the request for a reminder from one day to another: `from Monday to Wednesday at 9am`.

    Its time is that of the first day; the slot `last` names the last one, and the flag `each` is set for
    words such as `every day`. If the days may belong to the text instead, `trouble` is `unsure`. None if
    `body` names no such days; also if, with the first day alone in their place, it is not understood without
    trouble, or if its time lacks that day or names another one, too.
    """
    match = PATTERNS[f"days_{language.value}"].search(body)
    if match is None:
        return None
    lead = times.leading(body[: match.start()])
    if lead is not None and lead.parts.has_clock and body[lead.end : match.start()].strip():
        # "at 6pm to move the meeting from Monday to Friday": the days may belong to the text.
        return ParsedRequest(intent="remind", language=language, slots={"what": body, "trouble": "unsure"})
    first = _reminder(body[: match.start()] + match["first"] + body[match.end() :], language)
    when = times.leading(first.slot("when"))
    # The first day has to be part of the time, and the only part that names a day.
    days = when.parts.written().keys() & {"day", "weekday", "span", "repeat"} if when else ()
    if first.slot("trouble") or match["first"] not in first.slot("when") or len(days) > 1:
        return None
    # The pattern has two groups for `each`, which may be before the days or after them.
    return first.having(last=match["last"], each=match["each"] or match["each_too"] or "")


def after_time(text: str, language: Language) -> tuple[str, str]:
    """Return the words at the start of a text that are still about its time, and the rest of the text.

    `next week to call` gives `next week` and `call`: the `to` or `that` between them (`joint`) is in neither.
    The first are empty if there are none: then the rest is the whole text.
    """
    if language is Language.KOREAN:
        match = PATTERNS["head_of_time_ko"].match(text)
        return (match["head"], match["rest"]) if match else ("", text)
    # A character follows each match of `joint`. A digit there goes on with the time: `9 to 5`.
    joints = [joint for joint in PATTERNS["joint"].finditer(text) if not text[joint.end()].isdigit()]
    head = text[: joints[0].start()] if joints else ""
    is_time = head and PATTERNS["left_of_time"].search(head)
    return (head, text[joints[0].end() :]) if is_time else ("", text)


def without_time(text: str) -> tuple[str, str]:
    """Return a text without the time at its end, and the words for a day at the start of that time.

    Called when that time was not understood: the person is asked for it again, and the day is kept for an
    answer that is only a time of day. `call Ann tomorrow before noon` gives `call Ann` and `tomorrow`. The
    words for the day are empty if that time begins with none, or if there is no such time.
    """
    time_match = PATTERNS["words_of_time"].search(text)
    tail = text[time_match.start() :] if time_match else ""
    if not PATTERNS["only_time"].fullmatch(tail):
        return text, ""
    ends = (end.start() for end in PATTERNS["word_end"].finditer(tail))
    leads = (times.leading(tail[:end]) for end in ends)
    days = [tail[: lead.end] for lead in leads if lead is not None and not lead.parts.has_clock]
    bare_text = PATTERNS["before_time"].sub("", text[: len(text) - len(tail)].rstrip())
    return bare_text, days[-1] if days else ""


def _before_event(body: str, language: Language) -> ParsedRequest | None:
    """Return the request for a reminder before an event: `an hour before the meeting at 3pm`.

    Its time is that of the event; the slot `before` has the span, here `an hour`. Its text is the event, or
    its own words if it has some, as in `bring slides an hour before …`. If the time may be that of the
    reminder itself, `trouble` is `unsure`. None for other words, also if the reminder has a time of its own;
    but a day before the span, as in `tomorrow an hour before …`, is that of the event.
    """
    parts = _before_event_en(body) if language is Language.ENGLISH else _before_event_ko(body)
    if parts is None:
        return None
    own, span, event_words = parts
    # `own` are the reminder's own words: a time at their start is that of the reminder, not of the event.
    if lead := times.leading(own):
        is_day = lead.end == len(own) and not lead.parts.has_clock
        if language is Language.KOREAN or not is_day:
            return None
        own, event_words = "", f"{event_words} {own}"
    event = _reminder(event_words, language)
    if not (event.slot("what") and event.slot("when")) or event.slot("trouble"):
        return None
    # `에`: it may be the time of the reminder itself. `ten to fifteen minutes before …` has two spans.
    is_dangling = PATTERNS["dangling"].search(own) is not None
    if event.slot("when").endswith("에") or event.slot("before") or is_dangling:
        return ParsedRequest(intent="remind", language=language, slots={"what": body, "trouble": "unsure"})
    what = without_ending("note", own) if own else event.slot("what")
    return event.having(what=what, before=span)


def _before_event_en(body: str) -> tuple[str, str, str] | None:
    """Return the reminder's own words, the span and the event of `eat an hour before lunch`, or None."""
    lead = PATTERNS["before_event_lead"].match(body)
    body = body[lead.end() :] if lead else body
    for word in islice(PATTERNS["before_word"].finditer(body), _MAX_BEFORE_WORDS):
        own, span = _cut_span(body[: word.start()])
        event_words = body[word.end() :]
        # `10 minutes before noon` is a time itself, and names no event.
        if span and not times.leading(event_words):
            return own, span, event_words
    return None


def _before_event_ko(body: str) -> tuple[str, str, str] | None:
    """Return the reminder's own words, the span and the event of `회의 1시간 전에 밥 먹기`, or None."""
    match = PATTERNS["before_event_ko"].fullmatch(body)
    return (match["own"] or "", match["span"], match["event"]) if match else None


def _cut_span(text: str) -> tuple[str, str]:
    """Return a text without the span of time at its end, and that span, as long as possible; empty for none.

    `bring slides an hour and a half` gives `bring slides` and `an hour and a half`. A span with months is
    none, as they differ in length.
    """
    words = text.split()
    for start in range(max(0, len(words) - _MAX_SPAN_WORDS), len(words)):
        span = " ".join(words[start:])
        lead = times.leading(f"in {span}")
        parts = lead.parts if lead is not None and lead.end == len(f"in {span}") else None
        if parts is not None and parts.span is not None and not parts.span.months:
            return " ".join(words[:start]), span
    return text, ""


def _leading(body: str) -> times.TimeInText | None:
    """Return the time at the start of a text; None if there is none.

    A word for a meal that is eaten is no part of it: in `정오에 점심 먹기`, `점심` is lunch, though it may
    mean midday.
    """
    lead = times.leading(body)
    meal = PATTERNS["meal"].search(body[: lead.end]) if lead else None
    if lead is None or meal is None or not PATTERNS["eats"].match(body[lead.end :]):
        return lead
    text_before_meal = body[: meal.start()].rstrip()
    shorter_lead = times.leading(text_before_meal)
    is_whole = shorter_lead is not None and shorter_lead.end == len(text_before_meal)
    return shorter_lead if is_whole else None


def _cut_end(body: str) -> tuple[str, str] | None:
    """Return the text and the time of a reminder whose time is at the end of its words, the `body`.

    The time is empty if there is none. None if the place where the time begins is not sure.
    """
    trail = times.trailing(body)
    what = body[: trail.start] if trail else body
    names_time = PATTERNS["words_of_time"].search(what)
    if trail is None:
        return None if names_time else (_without_leading_to(body), "")
    # Beside other words of time, only a span is sure: `prepare tomorrow's talk in 10 minutes`. A text that
    # ends in a word such as `before` or `the` (`dangling`) lacks what was taken for the time. The time itself
    # may be read only in part: `pay starting at 9am`.
    is_unsure = (
        (names_time and trail.parts.span is None)
        or PATTERNS["dangling"].search(_without_leading_to(what))
        or _has_unread_time(what, body[trail.start :])
    )
    return None if is_unsure else (what, body[trail.start :])


def _cut_start(body: str, lead: times.TimeInText) -> tuple[str, str] | None:
    """Return the text and the time of a reminder whose time is at the start of its words, the `body`.

    `lead` is that time. A second part of the time may be at the end: `tomorrow to pay rent at 9am`. None if
    it is not sure where the text begins.
    """
    rest, when = body[lead.end :].lstrip(_BETWEEN), body[: lead.end]
    if _may_be_of_text(when, rest) or PATTERNS["takes_back_ko"].match(rest):  # `내일 아니 모레` ("no, …")
        return None
    # A span such as `in 10 minutes` is a whole time, to which no second part can be added.
    trail = None if lead.parts.span else times.trailing(rest)
    if (
        trail
        and (lead.parts.clock is None or not trail.parts.has_clock)
        and lead.parts.joined(trail.parts)
        and rest[: trail.start].strip()
    ):
        what, end = rest[: trail.start], rest[trail.start :]
        is_weekday = trail.parts.written().keys() == {"weekday"}
        is_unsure = (
            PATTERNS["dangling"].search(_without_leading_to(what))  # "tomorrow to call before 9am"
            or PATTERNS["words_of_time"].search(what)  # "tomorrow to read the morning news at 9am"
            or _has_unread_time(what, end)  # "tomorrow to pay starting at 9am"
            or PATTERNS["ends_in_time_ko"].search(what.strip())  # `내일 회의 끝나고 9시에` ("after …")
            or (is_weekday and PATTERNS["plain_weekday"].match(end))  # "at 6pm to plan Saturday"
        )
        return None if is_unsure else (what, f"{when} {end}")
    # A colon stays here: `before_text` looks for it.
    text = body[lead.end :].lstrip(" \t\n,")
    # `text` may still be about the time, as in `at 9 or 10` and `9am weekly`; but not if the text surely
    # begins with it: with `to`, after the Korean `에` ("at"), or with a meal: `아침 먹기` ("have breakfast").
    may_be_time = (
        PATTERNS["hedge"].match(text) or PATTERNS["words_of_time"].match(text) or times.leading(text)
    )
    begins_text = (
        PATTERNS["before_text"].match(text) or when.endswith("에") or PATTERNS["meal_first"].match(text)
    )
    # `내일 오후 3시 회의 30분 뒤에` ("30 minutes after the meeting at 3pm"): the time is that of the event.
    is_of_event = PATTERNS["ends_in_time_ko"].search(text.strip()) or (
        not when.endswith("에") and PATTERNS["span_beside_ko"].search(text)
    )
    if is_of_event or _has_more_of_time(text, when) or (may_be_time and not begins_text):
        return None
    return text, when


def _may_be_of_text(when: str, rest: str) -> bool:
    """Return whether a day after a Korean time of day may belong to the reminder's text.

    In `오후 6시에 내일 준비하라고`, `내일` ("tomorrow") may be the day to remind on, or the subject. The day
    is the first word of `rest`, or was already read as part of the time `when`.
    """
    lead = times.leading(when)
    is_clock = lead is not None and not set(lead.parts.written()) - {"clock", "half"}
    is_day_next = is_clock and when.endswith("에") and PATTERNS["begins_day_ko"].match(rest)
    return bool(is_day_next or PATTERNS["day_after_clock_ko"].search(when))


def _has_unread_time(text: str, time: str) -> bool:
    """Return whether the end of a text belongs to the `time` after it, which was read without that end.

    In `pay on the second last Friday of every month` only `last Friday of every month` was read as the time.
    """
    return PATTERNS["unread_time"].search(f"{text.rstrip()} | {time}") is not None


def _has_more_of_time(rest: str, when: str) -> bool:
    """Return whether words of `rest`, which follows the time `when`, may belong to that time.

    In `at 9am IST tomorrow to call` only `at 9am` was read as the time. The words are at the start of `rest`;
    a Korean time zone may be at its end.
    """
    if any(PATTERNS[name].match(rest) for name in ("zone_left", "minutes_to")):
        return True
    if PATTERNS["zone_at_end_ko"].search(rest):  # `런던 시간으로` ("in London time")
        return True
    joint = PATTERNS["joint"].search(rest)  # the `to` or `that` at which the text begins
    if joint is not None:
        return PATTERNS["left_of_time"].search(rest[: joint.start()]) is not None
    # Without such a word, only Korean is looked at. There a time ends with `에` ("at"), and the word for a
    # meal belongs to the text.
    beginning = " ".join(rest.split()[:2])
    is_meal = PATTERNS["meal_first"].match(rest)
    is_korean = PATTERNS["starts_korean"].match(beginning) and not (when.endswith("에") or is_meal)
    return bool(is_korean and PATTERNS["words_of_time"].search(beginning))


def _without_leading_to(text: str) -> str:
    """Return a text without words at its start that are no part of it, such as `to`, `that` or `please`."""
    text = text.strip(_BETWEEN)
    match = PATTERNS["before_text"].match(text)
    return text[match.end() :].strip(_BETWEEN) if match else text


def without_ending(kind: str, text: str) -> str:
    """Return a Korean text with its ending removed or replaced by the first rule in `ENDINGS` that fits.

    `kind` names the rules that are tried. The text is unchanged if none fits.
    """
    decomposed = normalized("NFD", text.strip())
    for pattern, ending in ENDINGS[kind]:
        changed, count = pattern.subn(ending, decomposed)
        if count:
            return composed(changed)
    return text
