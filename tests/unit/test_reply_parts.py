"""Long replies are cut where a reader would, and nothing of them is lost."""

from __future__ import annotations

import re

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.outbound.format import FENCED_FROM, split

WORDS = st.sampled_from(
    [
        "one",
        "two.",
        "three!",
        "안녕하세요",
        "물론이죠.",
        "。",
        "👨‍👩‍👧",
        "🇰🇷",
        "é",
        "\n",
        "\n\n",
        "  ",
        "\t",
        "- item",
        "x" * 90,
    ]
)
PROSE = st.lists(WORDS, max_size=200).map(" ".join)
CODE = st.lists(st.one_of(WORDS, st.sampled_from(["```", "\n```\n", "````"])), max_size=200).map(" ".join)


def ink(text: str) -> str:
    return re.sub(r"[\s`*_~]", "", text)


@given(PROSE, st.integers(1, 300))
def test_no_part_is_too_long_and_only_white_space_is_lost(text: str, limit: int) -> None:
    parts = split(text, limit)
    assert all(0 < len(part) <= limit for part in parts)
    assert "".join(map(ink, parts)) == ink(text)


@given(CODE, st.integers(FENCED_FROM, 300))
def test_every_part_closes_its_fences_and_nothing_is_lost(text: str, limit: int) -> None:
    parts = split(text, limit)
    assert all(0 < len(part) <= limit for part in parts)
    assert "".join(map(ink, parts)) == ink(text)
    assert all(len(re.findall(r"`{3,}", part)) % 2 == 0 for part in parts[:-1])


@given(st.text(max_size=400), st.integers(1, 80))
def test_any_text_at_all_comes_through(text: str, limit: int) -> None:
    parts = split(text, limit)
    assert all(part and len(part) <= limit for part in parts)
    assert "".join(map(ink, parts)) == ink(text)


@given(
    st.lists(st.sampled_from(["👨‍👩‍👧", "🇰🇷", "e\u0301", "각", "a"]), min_size=1, max_size=80),
    st.integers(8, 20),
)
def test_no_character_as_people_see_it_is_cut(characters: list[str], limit: int) -> None:
    text = "".join(characters)
    whole = regex.findall(r"\X", text)
    assert [one for part in split(text, limit) for one in regex.findall(r"\X", part)] == whole


@pytest.mark.parametrize(
    ("text", "limit", "parts"),
    [
        ("short", 10, ("short",)),
        ("short", None, ("short",)),
        ("   \n", 2, ()),
        ("One two.\n\nThree four.", 12, ("One two.", "Three four.")),
        ("One two.\nThree four.", 12, ("One two.", "Three four.")),
        ("One two. Three four.", 12, ("One two.", "Three four.")),
        ("one two three four", 10, ("one two", "three four")),
        ("abcdefghij", 4, ("abcd", "efgh", "ij")),
        ("A. B.\n\nC d e f g h", 12, ("A. B.", "C d e f g h")),
        ('He said "no." She left.', 15, ('He said "no."', "She left.")),
        ("좋아요。그럼요", 5, ("좋아요。", "그럼요")),
    ],
)
def test_the_coarsest_place_is_taken(text: str, limit: int | None, parts: tuple[str, ...]) -> None:
    assert split(text, limit) == parts


@pytest.mark.parametrize("mark", ["**", "*", "_", "~~", "`", "***", "__"])
def test_a_mark_that_a_cut_goes_through_is_closed_and_opened_again(mark: str) -> None:
    words = " ".join(f"word{number}" for number in range(40))
    parts = split(f"Look: {mark}{words}{mark}", 100)
    assert all(len(part) <= 100 for part in parts)
    assert parts[0].startswith(f"Look: {mark}word0 ")
    assert parts[0].endswith(mark)
    assert all(part.startswith(f"{mark}word") and part.endswith(mark) for part in parts[1:])
    assert " ".join(part.replace(mark, "") for part in parts) == f"Look: {words}"


@pytest.mark.parametrize(
    "text", ["5 * 3 and 4 * ", "**not closed ", "snake_case and _", "a ** b ", "\\*", "* item "]
)
def test_what_is_no_mark_is_cut_as_it_stands(text: str) -> None:
    long = text + "word " * 40
    assert " ".join(split(long, 100)).split() == long.split()


def test_marks_in_marks_are_closed_from_the_inside() -> None:
    first, second = split(f"**all _of {'it ' * 40}is_ bold**", 100)
    assert first.endswith("it_**")
    assert second.startswith("**_it")


@given(
    st.lists(st.sampled_from(["**", "_", "~~", "`", "* ", "word ", "two. ", "\n\n", "x" * 30]), max_size=120)
)
def test_marks_cost_no_words_and_no_room(pieces: list[str]) -> None:
    text = "".join(pieces)
    parts = split(text, 80)
    assert all(0 < len(part) <= 80 for part in parts)
    assert "".join(map(ink, parts)) == ink(text)


def test_a_paragraph_far_back_does_not_leave_a_part_nearly_empty() -> None:
    first, second = split("Hi.\n\n" + "word " * 30, 100)
    assert first.startswith("Hi.\n\nword")
    assert len(first) > 90
    assert second.startswith("word")


def test_a_fence_goes_on_in_the_next_part_with_its_language_and_its_indent() -> None:
    lines = [f"    line_{number} = {number}" for number in range(12)]
    text = "Look:\n```python\n" + "\n".join(lines) + "\n```\nThat is all."
    parts = split(text, 120)
    assert parts[0].endswith("\n```")
    assert all(part.startswith("```python\n    line_") for part in parts[1:])
    assert parts[-1].endswith("That is all.")
    assert [line for part in parts for line in part.splitlines() if line in lines] == lines


def test_many_marks_that_nothing_closes_do_not_hold_up_the_host():
    # To search the open marks for each mark that closes none would take a quarter of an hour.
    first, second = "*a " * 140_000, "b~~ " * 140_000

    parts = split(first + second, len(first))

    assert "".join(parts).replace(" ", "") == (first + second).replace(" ", "")


def test_a_long_text_of_marks_without_end_is_cut_in_one_go():
    # To read the rest of the text for each part would take a minute.
    text = "*a " * 333_333

    parts = split(text, 4_000)

    assert "".join(parts).replace(" ", "") == text.replace(" ", "")


def test_marks_are_closed_where_they_end_some_parts_later() -> None:
    parts = split(f"**{'word ' * 60}word** and more words", 100)
    assert len(parts) == 4
    assert all(part.startswith("**word") and part.endswith("word**") for part in parts[:3])
    assert parts[3].startswith("**word")
    assert parts[3].endswith("word** and more words")
