"""Makes printed text safe for a terminal: chats and agents choose the texts that commands print.

A terminal obeys control characters: they move the cursor, rewrite lines above, set the clipboard, or hide
what follows. They are shown as `\\u001b` instead, which means the same text in JSON.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast

_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, except tabs and line ends
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # marks that turn the direction of writing, or end a line
    "\ud800-\udfff"  # surrogates: halves of characters, which no encoding can write
    "]"
)


_SELECTORS = (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
"""Characters that choose how the one before them is drawn, and have no form of their own."""
_LOOKS_EMPTY = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | {*map(chr, _SELECTORS)}
MAX_SHOWN_MARKS = 4
"""Combining marks on one letter that `all_visible` leaves, as in Burmese and
Vietnamese. More would cover neighbouring lines.
"""

# A pattern that also looked for an ASCII letter would search a long word without one again from each letter.
_WORD = re.compile(r"\w+")
_ASCII_LETTER = re.compile("[A-Za-z]")
_BETWEEN_LETTERS = re.compile(r"(?<=[A-Za-z])[^\x00-\x7f](?=[A-Za-z])")
_LIKE_ADDRESS_SIGNS = frozenset(
    "\u2024\ufe52\u02d0\u02f8\u0589\u2236\ua789\u2044\u2215\u2571\u27cb\u29f8\u2216\u29f5\u29f9\ufe68"
)
"""Signs that look like `.`, `:`, `/` and `\\`, and so make one address of another."""
_OTHER_LATIN = frozenset("ÆÐÞØŁŒŊĦßæðþøłœŋħđ")
"""Letters of European languages that are no letter of ASCII with a mark, and look like none."""
_RAISED_FORMS = ("<super>", "<sub>")
_EAST_ASIAN_LETTERS = ("HANGUL SYLLABLE", "CJK UNIFIED", "HIRAGANA LETTER", "KATAKANA LETTER")
"""Beginnings of the Unicode names of letters that are written right beside Latin ones, as in `Andy야`.

They look like none of these.
"""


def visible(text: str) -> str:
    """Return `text` with control characters escaped; line ends and tabs stay."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def all_visible(text: str) -> str:
    """Return `text` in one line, with each character escaped that is invisible or could pass for another.

    Escaped are:

    - Control characters, zero-width and other format characters, and unassigned characters.
    - Fillers that look like blanks; the plain blank stays.
    - Signs that look like those of addresses (`_LIKE_ADDRESS_SIGNS`), and most other signs that are no ASCII
      and stand right between two ASCII letters (`_is_sign`).
    - ASCII letters and digits in another font or width.
    - Letters that look like ASCII ones in a word with ASCII letters, as in an address where one letter is
      Cyrillic. Words that are wholly in another script stay.
    - Accents and other combining marks on one letter after the first `MAX_SHOWN_MARKS`.
    """
    alike = {word.start() + at for word in _WORD.finditer(text) for at in _look_alikes(word[0])}
    alike |= {sign.start() for sign in _BETWEEN_LETTERS.finditer(text) if _is_sign(sign[0])}
    shown, marks = [], 0
    for number, character in enumerate(text):
        marks = marks + 1 if unicodedata.category(character)[0] == "M" else 0
        is_plain = _shows_itself(character) and marks <= MAX_SHOWN_MARKS and number not in alike
        shown.append(character if is_plain else _escaped(character))
    return "".join(shown)


def _look_alikes(word: str) -> Iterator[int]:
    """Yield the positions of letters that can be mistaken for ASCII in a word with ASCII letters."""
    if not word.isascii() and _ASCII_LETTER.search(word):
        yield from (
            at
            for at, character in enumerate(word)
            if not character.isascii() and _passes_for_ascii(character)
        )


def _passes_for_ascii(character: str) -> bool:
    """Return whether a character that is not ASCII can be mistaken for an ASCII one, as Cyrillic `а`.

    Only letters and digits can. All of them count as such, except ASCII letters with marks (`é`), those in
    `_OTHER_LATIN` (`ß`), raised and lowered ones (`m²`), and Chinese, Japanese and Korean ones.
    """
    if not character.isalnum() or character in _OTHER_LATIN:
        return False
    form, *parts = _form_and_parts(character)
    # `é` has the parts `e` and its accent, and no form.
    if form in _RAISED_FORMS or (not form and len(parts) > 1 and _letter_of(character).isascii()):
        return False  # `m²`, or a letter of ASCII with its marks
    return not unicodedata.name(character, "").startswith(_EAST_ASIAN_LETTERS)


def _shows_itself(character: str) -> bool:
    """Return whether a character can be seen, and cannot be mistaken for another one."""
    if character in _LIKE_ADDRESS_SIGNS or _is_ascii_in_disguise(character):
        return False
    return character == " " or _is_drawn(character)


def _is_sign(character: str) -> bool:
    """Return whether a non-ASCII character is a sign, which has to be escaped between two ASCII letters.

    There it could pass for a letter of the word. Signs are all characters of these categories of Unicode:
    symbols of mathematics, other symbols, modifier symbols, spacing marks, and other punctuation.
    """
    return unicodedata.category(character) in ("Sm", "So", "Sk", "Mc", "Po")


def _is_ascii_in_disguise(character: str) -> bool:
    """Return whether a character is an ASCII letter or digit in another font or width, such as a wide `a`.

    Many programs read it as the ASCII one. Raised and lowered ones, as in `m²`, do not count.
    """
    if character.isascii():
        return False
    form, *parts = _form_and_parts(character)
    return form not in _RAISED_FORMS and len(parts) == 1 and parts[0].isascii() and parts[0].isalnum()


def _form_and_parts(character: str) -> tuple[str, ...]:
    """Return Unicode's decomposition of a character: first its form, then the characters it is made of.

    The form is such as `<font>` or `<wide>`, and empty if the character equals its parts, as `é` does. A
    character without a decomposition has an empty form and no parts.
    """
    # Such as `<wide> 0061`, a form and then numbers of characters; for `é`, `0065 0301` without a form.
    # Without a decomposition the text is empty, and `split` returns an empty list.
    form, *codes = unicodedata.decomposition(character).split() or [""]
    if form and not form.startswith("<"):
        form, codes = "", [form, *codes]
    return form, *(chr(int(code, 16)) for code in codes)


def _letter_of(character: str) -> str:
    """Return a letter without its combining marks: `e` for `é`, and `a` for `ấ`, which has two.

    A character that Unicode decomposes with a form, such as `<wide>`, is returned as it is.
    """
    while len(form_and_parts := _form_and_parts(character)) > 1 and not form_and_parts[0]:
        character = form_and_parts[1]  # the letter; its mark follows
    return character


def _escaped(character: str) -> str:
    """Return a character as an escape such as `\\u202e`."""
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def ticked(text: str) -> str:
    """Return `text` in one line with nothing invisible in it, and with backticks escaped as well.

    So it can stand between backticks.
    """
    return all_visible(text).replace("`", "\\u0060")


def quoted(text: str, limit: int) -> str:
    """Return other people's text between backticks, with nothing hidden, cut to `limit` characters.

    So it can neither be mistaken for Andy's text beside it, nor push Andy's text out of sight.
    """
    shown = ticked(text)
    cut_characters = len(shown) - limit
    if cut_characters <= 0:
        return f"`{shown}`"
    return f"`{shown[:limit]}… ({cut_characters:,} more characters)`"


def drawn(text: str) -> str:
    """Return `text` in one line without invisible characters: for a name that others chose."""
    blanked = (" " if character.isspace() else character for character in text)
    shown = "".join(character for character in blanked if character == " " or _is_drawn(character))
    return " ".join(shown.split())


def _is_drawn(character: str) -> bool:
    """Return whether a character has a form of its own: it is no blank, control or format character.

    Those are the categories of Unicode that begin with Z and C.
    """
    return character not in _LOOKS_EMPTY and unicodedata.category(character)[0] not in "CZ"


def one_line(text: str) -> str:
    """Return `text` in one line: line ends and control characters are escaped."""
    return visible(text).replace("\n", "\\n")


class EscapedStream:
    """A text stream that escapes control characters as `\\u001b`.

    Code that draws with control characters writes to the stream `raw` instead.
    """

    def __init__(self, raw: TextIO) -> None:
        """`raw` is the stream to which the escaped text is written."""
        self.raw = raw
        self.rich_proxied_file = raw
        """The stream that rich writes to, for the help of the commands, which contains no foreign text."""

    def write(self, text: str) -> int:
        """Write a text with its control characters escaped; return the length of the text itself."""
        self.raw.write(visible(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts with their control characters escaped."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute from the stream behind this one."""
        return getattr(self.raw, name)


def raw_stream(stream: TextIO) -> TextIO:
    """Return the stream behind an `EscapedStream`, for output that draws and escapes its texts itself."""
    return stream.raw if isinstance(stream, EscapedStream) else stream


@contextmanager
def escaped_output() -> Iterator[None]:
    """Escape all that is printed inside the block, to stdout and stderr."""
    out, err = (cast("TextIO", EscapedStream(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        yield
