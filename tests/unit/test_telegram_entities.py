"""Markdown becomes a plain text and the places of its marks, in units that Telegram counts in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.channels.telegram.entities import Mark, marked, units

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
    "**open": ("**open", []),
}


@pytest.mark.parametrize("markdown", list(TABLE))
def test_marks_are_at_their_places(markdown):
    text, marks = marked(markdown)
    assert (text, list(marks)) == TABLE[markdown]


@given(st.text(alphabet="ab *_`~[]()#>-\n1.😀한<&|!\\", max_size=60))
def test_no_text_raises_and_every_mark_lies_within_it(markdown):
    text, marks = marked(markdown)
    for mark in marks:
        assert mark.offset >= 0
        assert mark.length > 0
        assert mark.offset + mark.length <= units(text)
