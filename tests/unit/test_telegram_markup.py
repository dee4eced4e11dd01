"""Markdown becomes a plain text and the places of its marks, in units that Telegram counts in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.channels.telegram.markup import MAX_MARKS, Mark, parse_markdown, split_text, utf16_units

TABLE = {
    "hello": ("hello", []),
    "**bold** _it_ 😀 `code`": (
        "bold it 😀 code",
        [Mark("bold", 0, 4), Mark("italic", 5, 2), Mark("code", 11, 4)],
    ),
    "# Title\n\ntext": ("Title\n\ntext", [Mark("bold", 0, 5)]),
    "- a\n- **b**\n  1. c\n  2. d": ("• a\n• b\n  1. c\n  2. d", [Mark("bold", 6, 1)]),
    "[Andy](https://x.y) [file](notes.md)": (
        "Andy file (notes.md)",
        [Mark("text_link", 0, 4, "https://x.y")],
    ),
    "[x](javascript:alert(1))": ("[x](javascript:alert(1))", []),
    "```python\nprint(1)\n```\nafter": ("print(1)\n\nafter", [Mark("pre", 0, 8, None, "python")]),
    "a\nb\n\n\n\nc": ("a\nb\n\nc", []),
    "<b>x</b> & y": ("<b>x</b> & y", []),
    "~~gone~~": ("gone", [Mark("strikethrough", 0, 4)]),
    "> quote": ("quote", [Mark("blockquote", 0, 5)]),
    "0. zero\n1. one": ("0. zero\n1. one", []),
    "**open": ("**open", []),
    "```ls -la\npwd\n```": ("ls -la\npwd", [Mark("pre", 0, 10)]),
    "[10:30]: Anna\n\n[1]: https://x.y": ("[10:30]: Anna\n\n[1]: https://x.y", []),
}


@pytest.mark.parametrize("markdown", list(TABLE))
def test_marks_are_at_their_places(markdown):
    text, marks = parse_markdown(markdown)
    assert (text, list(marks)) == TABLE[markdown]


@given(st.text(alphabet="ab *_`~[]()#>-\n1.😀한<&|!\\", max_size=60))
def test_no_text_raises_and_every_mark_lies_within_it(markdown):
    text, marks = parse_markdown(markdown)
    for mark in marks:
        assert mark.offset >= 0
        assert mark.length > 0
        assert mark.offset + mark.length <= utf16_units(text)


def shown(text, mark):
    """Return the words under a mark."""
    whole = text.encode("utf-16-le")
    return whole[2 * mark.offset : 2 * (mark.offset + mark.length)].decode("utf-16-le")


def test_a_text_with_more_marks_than_telegram_shows_is_cut_where_they_would_be_dropped():
    text, marks = parse_markdown(" ".join(f"**w{number}**" for number in range(367)))
    found = split_text(text, marks, max_units=4_096)
    assert [len(of) for _, of in found] == [100, 100, 100, 67]
    assert " ".join(piece for piece, _ in found) == text
    assert all(
        shown(piece, mark) == word
        for piece, of in found
        for word, mark in zip(piece.split(), of, strict=True)
    )


@pytest.mark.parametrize(("around", "inside", "most"), [("*" * 1_000, "word", 20), ("*" * 196, "~~s~~", 30)])
def test_marks_within_marks_make_no_message_of_each_character(around, inside, most):
    text, marks = parse_markdown(around + " ".join([inside] * 399) + around)
    assert len(marks) > MAX_MARKS
    found = split_text(text, marks, max_units=4_096)
    assert len(found) <= most
    assert " ".join(piece for piece, _ in found) == text
    assert all(len(of) <= MAX_MARKS for _, of in found)


def test_a_mark_over_a_cut_is_in_both_pieces():
    text, marks = parse_markdown(f"**{'word ' * 30}end** after")
    (first, [one]), (second, [two]) = split_text(text, marks, max_units=100)
    assert (shown(first, one), shown(second, two)) == (first, second.removesuffix(" after"))
    assert f"{first} {second}" == text


FAMILY = "👨‍👩‍👧‍👦"


def test_no_sign_is_cut_in_two():
    found = split_text(FAMILY * 900, (), max_units=4_096)
    assert "".join(piece for piece, _ in found) == FAMILY * 900
    assert all(piece == FAMILY * (len(piece) // len(FAMILY)) for piece, _ in found)


@given(st.text(alphabet="ab *_`~[]()#>-\n1.😀한\u200d👩\u0301", max_size=200), st.integers(2, 40))
def test_pieces_are_all_of_a_text_within_their_bounds(markdown, most):
    text, marks = parse_markdown(markdown)
    found = split_text(text, marks, max_units=most)
    assert "".join("".join(piece.split()) for piece, _ in found) == "".join(text.split())
    for piece, of in found:
        assert 0 < utf16_units(piece) <= max(most, 2 * 32)
        assert len(of) <= MAX_MARKS
        assert all(0 <= mark.offset < mark.offset + mark.length <= utf16_units(piece) for mark in of)
