"""Normalising a text of somebody else costs no more than its length."""

from __future__ import annotations

import sys
import unicodedata
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runner.wire import unicode_forms
from agent_runner.wire.times import normalized as normalized_time
from agent_runner.wire.unicode_forms import MAX_MARKS, composed, is_mark, normalized
from orchestrator.groups.attachments import safe_name
from orchestrator.inbound.triggers import is_called, is_called_aloud, session_command, without_trigger
from orchestrator.store.board.questions import normal_form
from tests.support.store_harness import a_group

FORMS = ("NFC", "NFD", "NFKC", "NFKD")
HEAP = "a" + "\u0301" * 32_760 + "\u0316" * 32_760
"""The greatest message of one letter with marks, in the order that normalising would have to reverse."""
MARKS = ["\u0301", "\u0316", "\u0344", "\u0f73", "\u3099", "\uff9e", "\U0001d165", "\u0345"]


WITHOUT_CLASS = "\u0f73\u0f75\u0f81\uff9e\uff9f"
"""Marks that show what they are only when they are taken apart."""


def longest_run(text):
    marks = (len(list(run)) for is_one, run in groupby(text, is_one_mark) if is_one)
    return max(marks, default=0)


def is_one_mark(character):
    return unicodedata.combining(character) != 0 or character in WITHOUT_CLASS


@pytest.fixture
def runs(monkeypatch):
    """The longest run of marks in each text that is given to Python's own `normalize`."""
    found = []
    own = unicode_forms.normalize

    def normalize(form, text):
        found.append(longest_run(text))
        return own(form, text) if found[-1] < 1_000 else text

    monkeypatch.setattr(unicodedata, "normalize", normalize)
    monkeypatch.setattr(unicode_forms, "normalize", normalize)
    return found


@pytest.mark.parametrize(
    "use",
    [
        lambda text: is_called(text, a_group(requires_trigger=True), name="Andy"),
        lambda text: is_called_aloud(text, a_group(), name="Andy"),
        lambda text: without_trigger(text, a_group(), name="Andy"),
        lambda text: session_command(text, a_group(), name="Andy"),
        normalized_time,
        safe_name,
        normal_form,
    ],
    ids=["call", "call aloud", "without trigger", "session command", "time", "file name", "question"],
)
@pytest.mark.parametrize("text", [HEAP, f"@Andy {HEAP} and {HEAP}", "\uff9e\u0301" * 30_000])
def test_no_long_run_of_marks_of_a_message_is_normalised(runs, use, text):
    use(text)
    assert max(runs, default=0) <= MAX_MARKS
    assert len(runs) < 100 + len(text) * 4


def test_a_run_of_so_many_marks_as_a_language_has_is_normalised():
    text = "a" + "\u0301" * 15 + "\u0316" * 15
    assert composed(text) == unicodedata.normalize("NFC", text) != text


def test_a_longer_run_stays_and_what_is_around_it_is_normalised():
    run = "\u0301" * 16 + "\u0316" * 16
    assert composed(f"e\u0301a{run}e\u0301") == f"\u00e9a{run}\u00e9"
    assert composed(f"!{'-' * 40}{run}?e\u0301") == f"!{'-' * 40}{run}?\u00e9"


@given(st.text(st.sampled_from([*MARKS, "a", "e", "-", " ", "가", "ᄀ", "ᅡ"]), max_size=120))
def test_a_normalised_text_stays_as_it_is(text):
    for form in FORMS:
        once = normalized(form, text)
        assert normalized(form, once) == once


@given(st.text(), st.sampled_from(FORMS))
def test_a_text_of_people_is_normalised_as_ever(text, form):
    if longest_run(text) <= MAX_MARKS:
        assert normalized(form, text) == unicodedata.normalize(form, text)


def test_every_mark_of_unicode_is_found():
    marks = {one for one in map(chr, range(sys.maxunicode + 1)) if is_mark(one)}
    assert len(marks) > 900
    assert {one for one in marks if not unicode_forms._MAY_BE_MARKS.fullmatch(one * (MAX_MARKS + 1))} == set()
