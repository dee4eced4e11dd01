"""The tag by which an agent sets its next wake: the table of what is read, and of what people then see."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.domain import schedule_tag

NOTHING = None


@pytest.mark.parametrize(
    ("said", "read", "shown"),
    [
        pytest.param('[SCHEDULE next="30m" reason="x"]', ("30m", "x"), "", id="as told"),
        pytest.param('[SCHEDULE next="30m"]', ("30m", ""), "", id="no reason"),
        pytest.param('Done. [SCHEDULE next="30m"]', ("30m", ""), "Done.", id="after a text"),
        pytest.param('A\n[SCHEDULE next="30m"]\nB', ("30m", ""), "A\nB", id="on a line of its own"),
        pytest.param('A [SCHEDULE next="30m"] B', ("30m", ""), "A B", id="in a line"),
        pytest.param('[SCHEDULE reason="x" next="30m"]', ("30m", "x"), "", id="reversed"),
        pytest.param("[SCHEDULE next='30m' reason='x']", ("30m", "x"), "", id="single quotes"),
        pytest.param("[SCHEDULE next=30m reason=x]", ("30m", "x"), "", id="no quotes"),
        pytest.param(
            '[SCHEDULE reason="x\n\nnext="30m"]', ("30m", "x"), "", id="a whole time after a cut reason"
        ),
        pytest.param("[SCHEDULE next=“30m” reason=“x y”]", ("30m", "x y"), "", id="typographic quotes"),
        pytest.param(
            "[SCHEDULE next=‘30m’ reason=‘don’t’]", ("30m", "don’t"), "", id="typographic apostrophe"
        ),
        pytest.param('[SCHEDULE next="30m" ]', ("30m", ""), "", id="trailing space"),
        pytest.param('[SCHEDULE next="30m" foo="1" reason="x"]', ("30m", "x"), "", id="extra attribute"),
        pytest.param(
            r'[SCHEDULE next="30m" reason="he said \"go\""]', ("30m", 'he said "go"'), "", id="escaped quote"
        ),
        pytest.param(
            'A [SCHEDULE next="30m" reason="wait [x] b"] B',
            ("30m", "wait [x] b"),
            "A B",
            id="bracket in reason",
        ),
        pytest.param('Hi [schedule next="30m"]', ("30m", ""), "Hi", id="lower case"),
        pytest.param('[Schedule Next="30m"]', ("30m", ""), "", id="mixed case"),
        pytest.param('[SCHEDULE\n next="30m"\n reason="a\n  b"]', ("30m", "a b"), "", id="newlines"),
        pytest.param('Hi [SCHEDULE next="30m"', ("30m", ""), "Hi", id="unclosed"),
        pytest.param(
            'Hi\n[SCHEDULE next="30m" reason="later\nMore.',
            ("30m", "later"),
            "Hi\nMore.",
            id="unclosed reason",
        ),
        pytest.param('Hi [SCHEDULE next="30', NOTHING, "Hi", id="unclosed next"),
        pytest.param("[SCHEDULE]", NOTHING, "", id="bare"),
        pytest.param("A [SCHEDULE] B", NOTHING, "A B", id="bare in a line"),
        pytest.param('[SCHEDULE next=""]', ("", ""), "", id="empty"),
        pytest.param("[SCHEDULE 30m]", NOTHING, "", id="no attribute"),
        pytest.param('[SCHEDULE reason="x"]', NOTHING, "", id="only a reason"),
    ],
)
def test_bt_07_a_tag_is_read_and_leaves_nothing_behind(said, read, shown):
    (tag,) = schedule_tag.find(said)

    assert (None if tag.next is None else (tag.next, tag.reason)) == read
    assert schedule_tag.strip(said) == shown


@pytest.mark.parametrize(
    "said",
    [
        pytest.param('Write `[SCHEDULE next="30m"]` at the end.', id="code in a line"),
        pytest.param('Write ``[SCHEDULE next="30m"] ` `` at the end.', id="code with a backtick"),
        pytest.param('So:\n```\n[SCHEDULE next="30m"]\n```\nYes.', id="fence"),
        pytest.param('So:\n~~~ text\n[SCHEDULE next="30m"]\n~~~', id="fence of tildes"),
        pytest.param('```[SCHEDULE next="30m"]```', id="fence in a line"),
        pytest.param('He wrote:\n> [SCHEDULE next="4h"]\nI see.', id="quoted line"),
        pytest.param('Say "[SCHEDULE next=30m]" then.', id="in quotation marks"),
        pytest.param("Say “[SCHEDULE next=30m]” then.", id="in typographic marks"),
        pytest.param('Say "[SCHEDULE the [SCHEDULE next=30m]" then.', id="twice in the same quotation marks"),
        pytest.param("[SCHEDULED maintenance] at nine", id="a longer word"),
        pytest.param("[SCHEDULE-A] is a form", id="a name with a dash"),
        pytest.param("[schedule for Monday] nine o'clock", id="prose"),
        pytest.param("[Schedule](https://example.com) is there", id="a link"),
        pytest.param("SCHEDULE next=30m", id="no bracket"),
        pytest.param("See &#91;SCHEDULE next=30m]", id="neutralised"),
    ],
)
def test_bt_17_what_is_code_or_a_quotation_is_no_tag_and_stays_as_it_is(said):
    assert schedule_tag.find(said) == ()
    assert schedule_tag.strip(said) == said


def test_of_two_tags_both_are_found_and_both_go():
    said = 'A [SCHEDULE next="30m"]\nB [SCHEDULE next="1h"]'

    assert [tag.next for tag in schedule_tag.find(said)] == ["30m", "1h"]
    assert schedule_tag.strip(said) == "A\nB"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Hello T T\nb", "Hello\nb"),
        ("Hello TT\nb", "Hello\nb"),
        ("Hello T T", "Hello"),
        ("a T   \nb", "a\nb"),
        ("a\n  T\nb", "a\nb"),
        ("a\n  T \t T\n  b", "a\n  b"),
        ("a\n\nT\n\nb", "a\n\n\nb"),
        ("T\nT hi", "hi"),
        ("a T T b", "a b"),
        ("a\nT b", "a\nb"),
        ("aTb", "ab"),
        ("- one T\n- T two\nT", "- one\n- two"),
    ],
)
def test_tags_leave_no_blanks_at_the_end_of_a_line_and_no_indent(said, shown):
    assert schedule_tag.strip(said.replace("T", '[SCHEDULE next="30m"]')) == shown


def test_a_reason_is_folded_and_cut():
    (tag,) = schedule_tag.find(f'[SCHEDULE next="30m" reason="{"very " * 60}long"]')

    assert len(tag.reason) == schedule_tag.MAX_REASON_CHARS


def test_what_is_no_attribute_is_warned_of():
    (tag,) = schedule_tag.find('[SCHEDULE please next="30m" foo=1]')

    assert tag.next == "30m"
    assert tag.warnings == ("a word that is no attribute", "unknown attribute foo")


@pytest.mark.parametrize("heard", ['[SCHEDULE next="4h"]', '[schedule next="4h"]', '[ Schedule\tnext="4h"]'])
def test_bt_18_what_people_write_is_no_tag_in_a_prompt(heard):
    shown = schedule_tag.neutralise(f"please say {heard}")

    assert schedule_tag.find(shown) == ()
    assert shown.startswith("please say &#91;")


def test_bt_18_a_tag_that_repeats_what_people_wrote_is_an_echo():
    (tag,) = schedule_tag.find('Sure: [SCHEDULE next="4h"  reason="x"]')

    assert schedule_tag.is_echo(tag, schedule_tag.bare('say [SCHEDULE next="4h" reason="x"]!'))
    assert not schedule_tag.is_echo(tag, schedule_tag.bare('say [SCHEDULE next="2h" reason="x"]!'))
    assert not schedule_tag.is_echo(tag, schedule_tag.bare("wake up in 4h"))


PIECES = st.lists(
    st.sampled_from(
        ["[SCHEDULE", "[schedule", " next=", '"', "'", "“", "”", "30m", "]", "`", "```", "\n", "\\", " ", ">"]
    ),
    max_size=40,
).map("".join)  # fmt: skip


@given(PIECES | st.text(max_size=200))
@example("`[SCHEDULE next=")
def test_whatever_is_said_the_scanner_ends_and_what_is_left_has_no_tag(said):
    tags = schedule_tag.find(said)

    assert all(0 <= tag.start < tag.end <= len(said) for tag in tags)
    assert all(one.end <= other.start for one, other in itertools.pairwise(tags))
    if not tags:
        assert schedule_tag.strip(said) == said


def test_a_long_hostile_text_is_read_in_one_go():
    for piece in ("[SCHEDULE ", "[SCHEDULE next=“", "`[SCHEDULE]", "``` [SCHEDULE\n", "[SCHEDULE x ] "):
        schedule_tag.strip(piece * (100_000 // len(piece)))
    assert schedule_tag.find('"[SCHEDULE ' * 100_000 + ']"') == ()
    assert len(schedule_tag.find("[SCHEDULE " + "x " * 1_000_000 + "]")) == 1
    assert schedule_tag.strip("[SCHEDULE]" + "\n" + "`" * 1_000_000) == "`" * 1_000_000
    # Runs of backticks of ever other lengths: none of them closes another.
    runs = " ".join("`" * length for length in range(3, 1_500))
    assert len(schedule_tag.find(f'[SCHEDULE next="30m"] {runs} {"a`" * 500_000}')) == 1
