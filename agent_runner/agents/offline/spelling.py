"""Correct typing errors in the words of requests, never in what a person names. Pure.

If a typing error in a name prevents finding an entry, `fits_despite_slips` finds candidates, and the chat is
asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice, product

from agent_runner.agents.offline.intents import CONTENT, MISSPELT, PATTERNS, ROWS, ParsedRequest, patterns_of
from agent_runner.wire.times import Language

MAX_WORDS = 30
"""A longer text is left as it is."""
MAX_TRIES = 40
"""Most corrections of one text that are tried."""
SHORTEST, SHORTEST_OTHER = 3, 5
"""Letters of the shortest word that is corrected, and of the shortest in which a letter is replaced."""
_WORD = re.compile(r"[A-Za-z]+")

Parse = Callable[[str], "list[ParsedRequest]"]
"""Returns the requests in a text."""


@cache
def known_words() -> frozenset[str]:
    """Return the English words that requests and times consist of, in lower case."""
    # The words are taken from the patterns, after escapes, names of groups and flags are removed.
    written = [pattern.pattern for name in ROWS for pattern in patterns_of(name, Language.ENGLISH)]
    plain = (re.sub(r"\\.|\(\?P<\w+>|\(\?[-a-z]*:", " ", pattern) for pattern in written)
    words = {word.lower() for pattern in plain for word in _WORD.findall(pattern)}
    return frozenset(words | set(PATTERNS["time_words"].pattern.split("|")))


def corrected(text: str, requests: Sequence[ParsedRequest], parse: Parse) -> list[ParsedRequest]:
    """Return the requests in a text with its typing errors corrected; none if no correction is clear.

    Only English texts of at most `MAX_WORDS` words are corrected. `requests` are those in the text as it is;
    `parse` reads the requests of a text. Of all corrections that are understood, those that change the fewest
    words count; they must all request the same.

    A correction may lead to a reminder that nobody asked for and that is only offered (slot `offered`). It
    counts only if a request in the text as it is may contain words of a time, misspelt or not, and if no
    other correction is understood.
    """
    may_offer = any(map(_has_time_in_text, requests))
    spans = [(match.span(), _possible_words(match[0])) for match in _WORD.finditer(text)]
    unknown = [(span, words) for span, words in spans if words]
    if not unknown or len(spans) > MAX_WORDS or PATTERNS["hangul"].search(text):
        return []
    understood = []
    choices = product(*(("", *words) for _, words in unknown))  # the empty text leaves the word as it is
    for words in islice(choices, 1, MAX_TRIES):  # without the first choice, which changes no word
        corrected_text = _replaced(text, [span for span, _ in unknown], words)
        parsed = parse(corrected_text)
        corrections = {word for word in words if word}
        is_offer = any(request.slot("offered") for request in parsed)
        is_understood = bool(parsed) and not any(map(_has_errors, parsed)) and (may_offer or not is_offer)
        # A person's own words, such as a title, are never corrected.
        if is_understood and not any(_is_content(request, corrections) for request in parsed):
            # The lowest rank is the best: no offer, then the fewest changed words.
            rank = (is_offer, sum(map(bool, words)))
            understood.append((rank, parsed))
    best_rank = min((rank for rank, _ in understood), default=None)
    best = [parsed for rank, parsed in understood if rank == best_rank]
    is_clear = bool(best) and all(parsed == best[0] for parsed in best)
    return best[0] if is_clear else []


def may_have_errors(parsed: Sequence[ParsedRequest]) -> bool:
    """Return whether the requests of a text are not fully understood, perhaps because of typing errors."""
    return not parsed or any(request.slot("offered") or _has_errors(request) for request in parsed)


def _has_errors(request: ParsedRequest) -> bool:
    """Return whether a request is not fully understood, perhaps because of typing errors."""
    return (
        request.intent in ("unknown", "unknown_part")
        or request.slot("trouble") == "unsure"
        # "add a taks wash the car" is read as an entry; an article before it makes it doubtful.
        or (request.intent == "add_items" and bool(PATTERNS["article"].match(request.slot("items"))))
        or _has_time_in_text(request)
    )


def _has_time_in_text(parsed: ParsedRequest) -> bool:
    """Return whether the text of a request may contain words of a time, misspelt or not: `pay rent tommorow`.

    If so, a time may have been missed. A word with a capital letter is taken for a name (`call Munday`),
    except a usual misspelling, or the last word after one such as `on`. Words without an error count only in
    the slot `what`.
    """
    what = parsed.slot("what") or parsed.slot("title") or parsed.slot("item")
    before, _, last = what.rpartition(" ")
    words = [word for word in what.split() if word.islower() or word.lower() in MISSPELT]
    if PATTERNS["before_time"].search(before):
        words.append(last)
    # A usual misspelling may stand for any word of a time (`time_words`), any other word only for one of
    # `day_word`: the remaining words of times are too near to ordinary ones, as `each` is to `beach`.
    word_patterns = [(word, "time_words" if word.lower() in MISSPELT else "day_word") for word in words]
    is_misspelt = any(
        PATTERNS[name].fullmatch(known) for word, name in word_patterns for known in _possible_words(word)
    )
    return is_misspelt or PATTERNS["words_of_time"].search(parsed.slot("what")) is not None


def fits_despite_slips(words: str, text: str) -> bool:
    """Return whether a text has each of the words, apart from a typing error in it: `cal mum` in `call mum`.

    Numbers and short or known words have to be exact.
    """
    typed_words, known = words.casefold().split(), set(text.casefold().split())
    return bool(typed_words) and all(
        word in known or not known.isdisjoint(_slips_of(word)) for word in typed_words
    )


def _slips_of(word: str) -> Iterator[str]:
    """Yield all spellings that are one typing error away; none for a number, a short or a known word."""
    may_be_misspelt = word.isalpha() and len(word) >= SHORTEST and word not in known_words()
    return _one_error_away(word) if may_be_misspelt else iter(())


def _is_content(parsed: ParsedRequest, words: set[str]) -> bool:
    """Return whether one of the words is in a slot with a person's own words."""
    own_words = " ".join(parsed.slot(name) for name in CONTENT).lower()
    return any(word in words for word in _WORD.findall(own_words))


def _replaced(text: str, spans: Sequence[tuple[int, int]], words: Sequence[str]) -> str:
    """Return a text in which the words replace the spans, in the same order; an empty word replaces nothing.

    A span has the places in the text where it starts and ends.
    """
    # From the end, so that the places of the earlier spans stay right.
    for (start, end), word in reversed(list(zip(spans, words, strict=True))):
        text = text[:start] + word + text[end:] if word else text
    return text


def _possible_words(word: str) -> tuple[str, ...]:
    """Return the known words that a word may be a misspelling of.

    A usual misspelling (`MISSPELT`) has one. Any other word has none if it is known, has fewer letters than
    `SHORTEST`, or is short and may be a name (`Ann`).
    """
    lower = word.lower()
    if lower in MISSPELT:
        return (MISSPELT[lower],)
    if (
        len(word) < SHORTEST
        or lower in known_words()
        or (word[:1].isupper() and not word.isupper() and len(word) < 4)
    ):
        return ()
    return tuple(sorted(known for known in _one_error_away(lower) if known in known_words()))


def _one_error_away(word: str) -> Iterator[str]:
    """Yield every spelling that is one typing error away: letters swapped, one left out, added or replaced.

    In a short word no letter is replaced, because that would make it nearly any other.
    """
    letters = "abcdefghijklmnopqrstuvwxyz"
    for place in range(len(word) + 1):
        left, right = word[:place], word[place:]
        yield from (left + letter + right for letter in letters)
        if right:
            yield left + right[1:]
        if right and len(word) >= SHORTEST_OTHER:
            yield from (left + letter + right[1:] for letter in letters)
        if len(right) > 1:
            yield left + right[1] + right[0] + right[2:]
