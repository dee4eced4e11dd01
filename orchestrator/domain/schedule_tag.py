"""Finds `[SCHEDULE next="30m" reason="…"]` in an agent's text, and removes it from what people read. Pure.

It is a scanner, because a regular expression cannot tell a tag from code, a quotation or a longer word.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

MAX_REASON_CHARS = 200
MAX_VALUE_CHARS = 1_000
"""Most characters of a quoted value; a longer one lacks its closing quotation mark."""
ROUNDS = 5
"""Times that tags are removed from a text."""

_NAME = re.compile(r"\[\s*(schedule)(?![\w-])", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"([A-Za-z_][\w-]*)\s*=\s*")
_BLANK_TO_LINE_END = re.compile(r"[ \t]*(?P<end>\n|\Z)")
_BARE = re.compile(r"[^\s\],]+")
_TO_BRACKET = re.compile(r"[^\n\]]*+\]")
_FENCE = re.compile(
    r"^ {0,3}(?P<mark>`{3,}+|~{3,}+)[^\n]*+\n.*?(?:^ {0,3}(?P=mark)[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_TICKS = re.compile(r"`+")
_QUOTED_LINE = re.compile(r"^[ \t]*>[^\n]*", re.MULTILINE)
_CLOSING = {
    '"': '"”“',
    "“": '”"',
    "”": '”"',
    "„": '“”"',
    "'": "'’",
    "‘": "’'",
    "’": "’'",
    "«": "»",
    "「": "」",
}
"""Maps an opening quotation mark to its closing one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTag:
    """One tag, well formed or not. `next` and `at` are as written."""

    start: int
    end: int
    raw: str
    next: str | None = None
    at: str | None = None
    reason: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def one_line(self) -> str:
        """Return the tag as written, on one short line, for logs."""
        return _folded(self.raw)[:MAX_REASON_CHARS]


@dataclass(slots=True)
class _Reader:
    """Reads the attributes of one tag."""

    text: str
    at: int
    values: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    is_cut: bool = False
    """Whether a value was cut at the end of its line, because its quotation mark is not closed."""
    bracket_end: int = 0
    """The position after the furthest `]` that was looked for, so that each is looked for only once."""

    def read(self) -> int:
        """Read the attributes up to the closing bracket, and return the position after the tag.

        A tag without a closing bracket ends with the line of its last attribute.
        """
        while True:
            self._skip_blanks()
            if self.at >= len(self.text):
                return self._unclosed()
            if self.text[self.at] == "]":
                return self.at + 1
            attribute = _ATTRIBUTE.match(self.text, self.at)
            if attribute is not None:
                self._take_attribute(attribute)
            elif not self._skip_word():
                return self._unclosed()

    def _skip_blanks(self) -> None:
        """Move past blanks and commas."""
        while self.at < len(self.text) and (self.text[self.at].isspace() or self.text[self.at] == ","):
            self.at += 1

    def _take_attribute(self, attribute: re.Match[str]) -> None:
        """Read the value of an attribute; of several with one name the first counts.

        Unknown attributes are left out, with a warning. A time whose value was cut is left out, too.
        """
        name = attribute[1].lower()
        self.at = attribute.end()
        self.is_cut = False
        value = self._value()  # this moves `at` past the value, and sets `is_cut` if it cuts it
        if name not in ("next", "at", "reason"):
            self.warnings.append(f"unknown attribute {name[:40]}")
        # A truncated time may mean another time, so it is dropped; a truncated reason is still useful.
        elif not self.is_cut or name == "reason":
            self.values.setdefault(name, value)

    def _value(self) -> str:
        """Return the value at the present position, in quotation marks or bare, and move past it."""
        opening = self.text[self.at : self.at + 1]  # empty at the end of the text
        if opening in _CLOSING:
            return self._quoted(_CLOSING[opening])
        bare = _BARE.match(self.text, self.at)
        if bare is None:
            return ""
        self.at = bare.end()
        return bare[0]

    def _quoted(self, closing: str) -> str:
        """Return the value in quotation marks at the present position, and move past it.

        `closing` has all characters that can close it. A value that is not closed ends at the next `]` of its
        line, or else with the line.
        """
        start = self.at + 1
        end = _end_of_quoted(self.text, start, closing)
        if end is not None:
            self.at = end + 1
            return re.sub(r"\\(.)", r"\1", self.text[start:end])
        # A missing quotation mark must not swallow the rest of the answer.
        line_end = _line_end(self.text, start)
        bracket = self.text.find("]", start, line_end)
        self.at = line_end if bracket < 0 else bracket
        self.is_cut = bracket < 0
        self.warnings.append("a quotation mark is not closed")
        return self.text[start : self.at]

    def _skip_word(self) -> bool:
        """Skip a word that is no attribute, with a warning; return False if no `]` follows on the line."""
        if self.bracket_end <= self.at:
            to_bracket = _TO_BRACKET.match(self.text, self.at)
            if to_bracket is None:
                return False
            self.bracket_end = to_bracket.end()
        word = _BARE.match(self.text, self.at)
        self.warnings.append("a word that is no attribute")
        self.at = word.end() if word else self.at + 1
        return True

    def _unclosed(self) -> int:
        """Warn that the tag has no closing bracket, and return the end of the line of its last attribute."""
        self.warnings.append("not closed")
        # Back over blanks, line breaks and commas, to the line on which the last attribute ends.
        while self.text[self.at - 1] in " \t\r\n,":
            self.at -= 1
        return _line_end(self.text, self.at)


def find(text: str) -> tuple[ScheduleTag, ...]:
    """Return every schedule tag of a text, in order. Code, quoted lines and quotations contain no tags."""
    return tuple(_tags(text)) if _NAME.search(text) else ()


def strip(text: str) -> str:
    """Return a text without schedule tags, including malformed ones.

    Tags that appear only when others are removed are removed as well.
    """
    # Removing a tag may join two halves to another; bounded, since a text may be made to repeat that.
    for _ in range(ROUNDS):
        tags = find(text)
        if not tags:
            break
        text = _without(text, tags)
    return text


def _without(text: str, tags: tuple[ScheduleTag, ...]) -> str:
    """Return a text without these tags, without the blanks and empty lines that they would leave.

    Blanks and line breaks at both ends of the text are removed, too.
    """
    parts, at = [], 0
    for start, end in _joined_spans(text, tags):
        before, rest_of_line = text[at:start], _BLANK_TO_LINE_END.match(text, end)
        if rest_of_line is None:  # text follows in the line: the blank after the tag goes if one is before it
            is_spaced = not before or before[-1].isspace()
            parts.append(before)
            at = end + (1 if is_spaced and text[end : end + 1] == " " else 0)
            continue
        # Nothing follows in the line. If nothing is before the tag either, its line goes as a whole, with the
        # line break; else the line break (the group `end`) stays.
        parts.append(before.rstrip(" \t"))
        is_alone_in_line = parts[-1][-1:] in ("", "\n")
        at = rest_of_line.end() if is_alone_in_line else rest_of_line.start("end")
    return "".join([*parts, text[at:]]).strip()


def _joined_spans(text: str, tags: tuple[ScheduleTag, ...]) -> list[tuple[int, int]]:
    """Return where the tags start and end in the text; tags with only blanks between them are one span."""
    spans: list[tuple[int, int]] = []
    for tag in tags:
        if spans and not text[spans[-1][1] : tag.start].strip(" \t"):
            spans[-1] = (spans[-1][0], tag.end)
        else:
            spans.append((tag.start, tag.end))
    return spans


def neutralise(text: str) -> str:
    """Return a person's text with its schedule tags escaped, so that a model does not repeat them as its own.

    `[SCHEDULE` becomes `&#91;SCHEDULE`. The text is for a prompt that is read as XML, where the escaped
    bracket means the same.
    """
    return _NAME.sub(lambda match: f"&#91;{match[0][1:]}", text)


def bare(text: str) -> str:
    """Return a text without blanks and brackets, in lower case: all spellings of one tag are then equal."""
    return re.sub(r"[\s\[\]]+", "", text).lower()


def is_echo(tag: ScheduleTag, people_text: str) -> bool:
    """Return whether a tag only repeats what people wrote; `people_text` is their text, as from `bare`."""
    return bare(tag.raw) in people_text


def _tags(text: str) -> Iterator[ScheduleTag]:
    """Yield the schedule tags of a text in order, but for those in code, quoted lines and quotation marks."""
    protected, at = _Protected(text), 0
    while (name := _NAME.search(text, at)) is not None:
        at = name.end()
        if protected.covers(name.start()):
            continue
        tag = _tag_at(text, name)
        if tag is None:
            continue
        # The search goes on after the tag even if it is quoted: what is inside of it is quoted, too.
        at = tag.end
        if not _is_quoted(text, tag):
            yield tag


class _Protected:
    """The spans in which no tag counts; queried in ascending order."""

    def __init__(self, text: str) -> None:
        """`text` is the whole text; its code and quoted lines are the spans."""
        self._spans = deque(sorted(_code_and_quoted_lines(text)))
        """The spans that begin after the last queried position."""
        self._reach = 0
        """The furthest end of the spans that begin before it."""

    def covers(self, place: int) -> bool:
        """Return whether a position is in one of the spans. Each call must be for a later position.

        So the spans of a long text are gone through only once.
        """
        while self._spans and self._spans[0][0] <= place:
            self._reach = max(self._reach, self._spans.popleft()[1])
        return place < self._reach


def _tag_at(text: str, name: re.Match[str]) -> ScheduleTag | None:
    """Return the schedule tag that begins with the match `name`: a bracket and the word SCHEDULE.

    None for prose in brackets that begins with the same word.
    """
    at = _first_after_blanks(text, name.end())
    # `[Schedule](link)` and `[schedule for Monday]` are prose that people have to see. With a capital letter
    # and no attribute it is a malformed tag.
    if not _ATTRIBUTE.match(text, at) and (name[1].islower() or text.startswith("](", at)):
        return None
    reader = _Reader(text, name.end())
    end = reader.read()
    return ScheduleTag(
        start=name.start(),
        end=end,
        raw=text[name.start() : end],
        next=reader.values.get("next"),
        at=reader.values.get("at"),
        reason=_folded(reader.values.get("reason", ""))[:MAX_REASON_CHARS],
        warnings=tuple(reader.warnings),
    )


def _code_and_quoted_lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield the span of each piece of code and each quoted line: its first position, and that after it.

    The spans are not in order. No tag counts in them.
    """
    yield from (match.span() for match in _FENCE.finditer(text))
    yield from (match.span() for match in _QUOTED_LINE.finditer(text))
    # As in Markdown, code between backticks ends at the next run of as many, within its paragraph. That run
    # is found from the end on: to search the text for each would take long where none is as long.
    code_spans: list[tuple[int, int]] = []
    next_of_length: dict[int, tuple[int, int]] = {}
    for start, end in reversed([run.span() for run in _TICKS.finditer(text)]):
        closing = next_of_length.get(end - start)
        if closing is not None and text.find("\n\n", end, closing[0]) < 0:
            code_spans.append((start, closing[1]))
        next_of_length[end - start] = start, end
    read_to = 0
    for start, end in reversed(code_spans):
        if start >= read_to:  # otherwise the backticks are inside of code themselves
            yield start, end
            read_to = end


def _is_quoted(text: str, tag: ScheduleTag) -> bool:
    """Return whether a tag is in quotation marks, and so is only mentioned."""
    before, after = text[max(0, tag.start - 1) : tag.start], text[tag.end : tag.end + 1]
    return bool(before and after) and before in _CLOSING and after in _CLOSING[before]


def _end_of_quoted(text: str, start: int, closing: str) -> int | None:
    """Return the position of the quotation mark that closes a value which begins at `start`.

    `closing` has all characters that can close it. A mark closes only before a blank, a line break, `]`, `,`,
    `/` or the end of the text: the one in `it's` does not. None if no mark closes before a blank line, or
    within `MAX_VALUE_CHARS`.
    """
    limit = start + MAX_VALUE_CHARS
    # One character more than the value may have, by which a mark just before the limit is judged.
    match = _up_to_mark(closing).match(text, start, limit + 1)
    return match.end() - 1 if match is not None and match.end() <= limit else None


@cache
def _up_to_mark(closing: str) -> re.Pattern[str]:
    """Return the pattern of a quoted value from its first character to the quotation mark that closes it.

    `closing` has all characters that can close it; each closes only before what `followed` matches.
    """
    marks = re.escape(closing)
    followed = r"(?=[ \t\r\n\],/]|\Z)"
    # Backslash and any character; a line break that ends no paragraph; a mark inside a word.
    inside = rf"[^\\\n{marks}]++|\\.|\n(?!\n)|(?![{marks}]{followed})[{marks}]"
    # The mark after all that is inside is the one that closes.
    return re.compile(rf"(?:{inside})*+[{marks}]", re.DOTALL)


def _first_after_blanks(text: str, at: int) -> int:
    """Return the position of the first character from `at` on that is no blank."""
    while text[at : at + 1].isspace():
        at += 1
    return at


def _line_end(text: str, at: int) -> int:
    """Return the position of the next line break from `at` on, or the end of the text."""
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _folded(text: str) -> str:
    """Return a text on one line, with single blanks."""
    return " ".join(text.split())
