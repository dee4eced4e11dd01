"""What people at a terminal, or in a question, are shown hides nothing."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from orchestrator.base.terminal_escaping import MAX_SHOWN_MARKS, all_visible, visible
from orchestrator.web.console.marks import rich
from tests.support.json_schemas import load


@pytest.mark.parametrize(
    "text",
    [
        "caf\u00e9",
        "cafe\u0301",
        "Vie\u0323\u0302t",
        "हिन्दी",
        "น้ำ",
        "한국어",
        "a b",
        "Andy야",
        "Łódź",
        "Straße",
        "Привет, Andy",
        "Ωραία",
        "m²",
        "5кг",
        "“quoted” – it’s",
    ],
)
def test_words_of_people_stay_as_they_are(text: str) -> None:
    assert all_visible(text) == text


SCHEMA = load("confusables")
ALIKE = [(letter, one) for letter, others in SCHEMA.items() if letter.isalnum() for one in others]
"""Each character that Unicode lists as looking like a letter or a digit of ASCII, with that one."""


def test_whatever_unicode_says_looks_like_a_letter_is_written_out_in_a_word_of_ascii() -> None:
    passed = [one for _, one in ALIKE if one in all_visible(f"pay{one}pal")]
    assert len(ALIKE) > 1_300
    assert [f"U+{ord(one):04X} {unicodedata.name(one, '')}" for one in passed] == []


def test_no_sign_makes_one_address_of_another() -> None:
    seen = [one for sign in "/:." for one in SCHEMA[sign] if one in all_visible(f"example.com{one}evil")]
    assert "\u2044" not in seen
    assert "\u2215" not in seen
    assert {unicodedata.category(one) for one in seen} <= {"Lo", "Lm", "Nd", "Mc", "Po", "So", "Sk", "Lu"}


def test_a_word_of_another_script_alone_stays() -> None:
    assert all_visible("раура") == "раура"
    assert all_visible("p\u0430ypal") == "p\\u0430ypal"


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_long_word_of_another_script_is_read_in_one_pass() -> None:
    word = "\u0430_1\uac00" * 100_000
    assert all_visible(word) == word
    assert all_visible(f"{word}a {word}").endswith(f"a {word}")


def test_marks_that_pile_up_are_written_out() -> None:
    shown = all_visible("a" + "\u0301" * 6 + "b\u0301")
    assert shown == "a" + "\u0301" * MAX_SHOWN_MARKS + "\\u0301" * (6 - MAX_SHOWN_MARKS) + "b\u0301"


@pytest.mark.parametrize("hidden", ["\ufe0f", "\ufe00", "\u180b", "\u180f", "\U000e0100", "\u034f", "\u3164"])
def test_what_is_not_seen_is_written_out(hidden: str) -> None:
    shown = all_visible(f"a{hidden}b")
    assert hidden not in shown
    assert f"{ord(hidden):x}" in shown


EXPLICIT = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})
"""The classes of Unicode's bidirectional algorithm for characters that do nothing but turn the direction."""
TURNING = [
    *(one for one in map(chr, range(sys.maxunicode + 1)) if unicodedata.bidirectional(one) in EXPLICIT),
    "\u061c", "\u200e", "\u200f",
]  # fmt: skip


@pytest.mark.parametrize("turning", TURNING, ids=ascii)
def test_whatever_unicode_says_turns_the_direction_is_written_out_on_terminals_questions_and_pages(
    turning: str,
) -> None:
    text = f"pay {turning}100 to bob"
    for shown in (visible(text), all_visible(text)):
        assert turning not in shown
        assert f"\\u{ord(turning):04x}" in shown
    page = rich(text)
    assert turning not in page
    assert f'title="U+{ord(turning):04X}"' in page
