from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.outbound.format import for_people


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("hello", "hello"),
        ("  hello\n", "hello"),
        ("<internal>plan</internal>hello", "hello"),
        ("a <internal>x</internal>b<internal>y</internal> c", "a b c"),
        ("<internal>two\nlines</internal>\nhello", "hello"),
        ("<internal>x", ""),
        ("hello <internal>never closed\nand more", "hello"),
        ("hello <internal", "hello"),
        ("hello <internal note='x", "hello"),
        ("<internal>a<internal>b</internal>c</internal>d", "d"),
        ("<internal>a<internal>b</internal>c", ""),
        ("hello</internal>", "hello"),
        ("<INTERNAL>x</Internal>hello", "hello"),
        ('<internal reason="x" level=2>y</internal>hello', "hello"),
        ("<internal >x</internal >hello", "hello"),
        ("<internal\n>x</internal\n>hello", "hello"),
        ("<internal/>hello", "hello"),
        ("<internal />hello", "hello"),
        ("<inter<internal>x</internal>nal>secret</internal>hello", ""),
        ("<internals>kept</internals>", "<internals>kept</internals>"),
        ("<internal-use>kept", "<internal-use>kept"),
        ("1 < 2 > internal", "1 < 2 > internal"),
        ("", ""),
        ("<internal></internal>", ""),
    ],
)
def test_people_see_what_is_outside_of_internal_tags(text, shown):
    assert for_people(text) == shown


def hidden(depth):
    """Secrets in internal tags, one in another."""
    opening = st.sampled_from(["<internal>", "<INTERNAL>", '<internal why="x">', "<internal\n>"])
    closing = st.sampled_from(["</internal>", "</Internal >"])
    inner = st.just("SECRET") if depth == 0 else st.one_of(st.just("SECRET"), hidden(depth - 1))
    return st.builds(
        lambda o, parts, c: o + "SECRET".join(parts) + c,
        opening,
        st.lists(inner, min_size=1, max_size=3),
        closing,
    )


plain = st.text(alphabet="ab <>/\n안", max_size=8)


@given(st.lists(st.tuples(plain, hidden(2)), max_size=4), plain, st.sampled_from(["", "<internal>SECRET"]))
def test_nothing_inside_an_internal_tag_is_ever_shown(pieces, tail, end):
    text = "".join(before + secret for before, secret in pieces) + tail + end

    assert "SECRET" not in for_people(text)


@given(st.text())
def test_it_never_fails_and_has_nothing_to_add_to_its_own_work(text):
    assert for_people(for_people(text)) == for_people(text)


@given(
    st.lists(
        st.sampled_from(["<internal>", "</internal>", "<inter", "nal>", "x", "<", ">", "/"]), max_size=12
    )
)
def test_no_internal_tag_survives(pieces):
    shown = for_people("".join(pieces))

    assert "<internal>" not in shown
    assert "</internal>" not in shown


@pytest.mark.parametrize(
    "piece", ["<internal", "<internal>", "</internal>", "<internal><", "<inter<internal/>"]
)
def test_a_hostile_text_is_read_in_one_go(piece):
    assert "internal" not in for_people(piece * 50_000)
