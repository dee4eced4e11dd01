"""Find the names of people in a text. Pure.

A name counts as a whole word: "Min" is not in "Mina". Korean appends particles ("민아는", "Mina에게"),
and English "'s". A name only identifies a person; rights depend on addresses (`groups.roles`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from agent_runner.wire.unicode_forms import normalized

MIN_CHARS = 2
"""The shortest name that is looked for in a text, but for one syllable of Hangul."""
MAX_CHARS = 100
_HANGUL = "\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3"
_PARTICLES = (
    "(?:이|씨|님|네|들)?"
    "(?:은|는|이|가|을|를|의|에|도|만|와|과|랑|이랑|하고|한테|한테서|에게|에게서|께|께서|에게는|한테는|에게도|한테도"
    "|보다|처럼|부터|까지|로|으로|라고|이라고|야|아|이야|예요|이에요|입니다|랑은|와는|과는|에는|에도|이나|나)?"
)
_UNIT = re.compile("[iI]\u0307|.", re.DOTALL)
"""One character, or an "i" with the dot that goes with it: they are folded together."""
_OF_SYLLABLE = "(?:씨|님)?(?:은|는|을|를|의|도|만|와|과|한테|에게|께서?)?"
"""Particles after a name of one syllable; 민아 and 민이 are names of their own."""


def folded(text: str) -> str:
    """Return a text in the form in which names are compared: composed, lower case, single spaces.

    A dotted "İ" of Turkish becomes an "i".
    """
    return " ".join(_without_case(normalized("NFKC", text)).split())


def _without_case(text: str) -> str:
    """Return a composed text in lower case, with "i" for Turkish "İ" and for an "i" with a dot of its own."""
    return text.casefold().replace("i\u0307", "i")


def is_searchable(name: str) -> bool:
    """Return whether a name can be searched for.

    It has at most `MAX_CHARS` characters, a letter or digit among them, and at least `MIN_CHARS`, or is one
    character of Hangul.
    """
    name = folded(name)
    if not 0 < len(name) <= MAX_CHARS or not any(character.isalnum() for character in name):
        return False
    return len(name) >= MIN_CHARS or re.fullmatch(f"[{_HANGUL}]", name) is not None


def is_named(text: str, name: str) -> bool:
    """Return whether a text has this name as a word of its own."""
    return is_searchable(name) and _pattern(folded(name)).search(folded(text)) is not None


def found_in(text: str, names: Iterable[str]) -> list[str]:
    """Return those of the `names` that a text contains, longest first, in their folded form.

    Text within a longer name does not count again: "Mina Kim is late" contains "Mina Kim" and not "Mina".
    """
    unmatched_text, contained_names = folded(text), []
    for name in _longest_first(names):
        # A NUL takes the name's place: shorter names match neither there nor across the gap.
        remaining = _pattern(name).sub(" \0 ", unmatched_text)
        if remaining != unmatched_text:
            contained_names.append(name)
            unmatched_text = remaining
    return contained_names


def _longest_first(names: Iterable[str]) -> list[str]:
    """Return the names that can be searched for, folded, each once, and longer ones first."""
    searchable = {folded(name) for name in names if is_searchable(name)}
    return sorted(searchable, key=lambda name: (-len(name), name))


def without(text: str, names: Iterable[str], *, word: str) -> str:
    """Return a text with `word` in place of each of the `names`; the same text if it contains none.

    The rest of a text that contains one is normalised (NFKC).
    """
    for name in _longest_first(names):
        if is_named(text, name):
            text = _replaced(normalized("NFKC", text), name, word)
    return text


def _replaced(text: str, name: str, word: str) -> str:
    """Return a text with `word` in place of a folded name, which is found in the folded text.

    Folding may make several characters of one: "ß" becomes "ss", so the positions in both texts differ.
    """
    folded_text = _without_case(text)
    # The place in `text` of each folded character, with the place after it; None where they are the same.
    spans = None
    if not text.isascii():
        spans = [unit.span() for unit in _UNIT.finditer(text) for _ in _without_case(unit[0])]
    parts, end = [], 0
    for match in _pattern(name).finditer(folded_text):
        first, after = match.span()
        if spans is not None:
            first, after = spans[first][0], spans[after - 1][1]
        parts += [text[end:first], word]
        end = after
    return "".join([*parts, text[end:]])


@lru_cache(maxsize=1_024)
def _pattern(name: str) -> re.Pattern[str]:
    """Return a pattern that finds a folded name as a word, with or without Korean particles after it."""
    words = r"\s+".join(re.escape(word) for word in name.split(" "))
    if re.fullmatch(f"[{_HANGUL}]", name):
        # Fewer particles than after other names: with 아 or 이, particles, too, it would be another name.
        after = f"(?={_OF_SYLLABLE}(?![^\\W_]))"
    else:
        after = f"(?=(?:{_PARTICLES})(?![^\\W_]))"
    # A combining mark after the name changes its last letter.
    return re.compile(rf"(?<![^\W_]){words}(?![\u0300-\u036f]){after}", re.IGNORECASE)
