"""Markdown in WhatsApp's marks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.channels.whatsapp.markup import MAX_GROWTH, to_whatsapp


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("# Title\n\ntext", "*Title*\n\ntext"),
        ("### A **bold** title ###", "*A bold title*"),
        ("# Notes on C#", "*Notes on C#*"),
        ("# ##", ""),
        ("a **bold** word", "a *bold* word"),
        ("a __bold__ word", "a *bold* word"),
        ("**bold** and *italic*", "*bold* and _italic_"),
        ("***both***", "*_both_*"),
        ("a ~~struck~~ word", "a ~struck~ word"),
        ("* one\n+ two\n- three\n  * four", "- one\n- two\n- three\n  - four"),
        ("- [ ] milk\n- [x] bread", "- ☐ milk\n- ☑ bread"),
        ("1. one\n2. two", "1. one\n2. two"),
        ("> quoted", "> quoted"),
        ("see [the docs](https://example.org/a_b_c)", "see the docs (https://example.org/a_b_c)"),
        ("[https://example.org](https://example.org)", "https://example.org"),
        ("**b** [https://e.org/a__b__c](https://e.org/a__b__c)", "*b* https://e.org/a__b__c"),
        ("![a cat](https://example.org/cat.png)", "a cat (https://example.org/cat.png)"),
        ("[mail](mailto:a@example.org)", "mail (a@example.org)"),
        ("**see [x](https://e.org/y)**", "*see x (https://e.org/y)*"),
        ("[wiki](https://e.org/a_(b))", "wiki (https://e.org/a_(b))"),
        ("a `**code**` span", "a `**code**` span"),
        ("```python\nx = a ** b\n# no title\n```", "```\nx = a ** b\n# no title\n```"),
        ("before\n```\n* x\n```\nafter **b**", "before\n```\n* x\n```\nafter *b*"),
        ("```\nnever closed", "```\nnever closed\n```"),
        ("```ls -la\npwd\n```", "```ls -la\npwd\n```"),
        ("---", "———"),
        ("| a | b |\n|---|---|\n| 1 | **2** |", "a | b\n1 | *2*"),
        (r"not \*bold\*", "not *bold*"),
        ("https://example.org/a__b__c and **x**", "https://example.org/a__b__c and *x*"),
    ],
)
def test_markdown_is_shown_in_whatsapps_marks(markdown, shown):
    assert to_whatsapp(markdown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "plain text",
        "*bold* and _italic_ in WhatsApp's own marks",
        "2 * 3 * 4 = 24 and 2*3*4",
        "snake_case_name and __init__py",
        "a - b - c",
        "5 > 3",
        "안녕하세요, 내일 *오전 9시*에 만나요.",
        "`code`",
        "#hashtag",
        "[1] and (2)",
    ],
)
def test_what_is_no_markdown_stays_as_it_is(text):
    assert to_whatsapp(text) == text


@given(st.text(alphabet="ab *_~`#[]()|\\\n-+>!.:/1http", max_size=120))
def test_no_text_breaks_it_and_no_stand_in_is_left(text):
    shown = to_whatsapp(text)

    assert not any(mark in shown for mark in "\ue000\ue001\ue002")


@given(st.text(alphabet="ab *_~#\n-", max_size=60))
def test_code_is_never_touched(code):
    assert f"```\n{code.rstrip()}\n```" in to_whatsapp(f"x\n```\n{code}\n```\ny **z**")


def test_a_stand_in_that_someone_writes_points_at_nothing():
    assert to_whatsapp("\ue0007\ue001 **b** `c`") == "7 *b* `c`"


BLANKS = " " * 30_000

PIECES = st.sampled_from(
    [
        *"ab *_~`#|->[]()!.1\n ",
        *("```", "\n```py\n", "**", "__", "~~", "***", "\n- [ ] ", "\n* ", "# h\n", "---\n"),
        *("[a", "](http://x.y)", "https://a.b/c ", "|a|b|c|\n", "| a | b |\n", "|--|--|\n"),
    ]
)


@given(st.lists(PIECES, max_size=30).map("".join))
def test_no_text_gets_longer_than_what_closes_its_last_code_block(text):
    assert len(to_whatsapp(text)) <= len(text) + MAX_GROWTH


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (f"# a{BLANKS}b", f"*a{BLANKS}b*"),
        (f"# a{BLANKS}#", "*a*"),
        (f"#{BLANKS}#{BLANKS}b", f"*#{BLANKS}b*"),
        (f"a\n{BLANKS}b", f"a\n{BLANKS}b"),
        (f"a\n|{BLANKS}--{BLANKS}|{BLANKS}b", f"a\n|{BLANKS}--{BLANKS}|{BLANKS}b"),
    ],
    ids=["in a heading", "before its end", "around a sign", "before a text", "in a table"],
)
def test_many_blanks_in_a_line_do_not_hold_up_the_host(line, shown):
    # With a pattern that tries each way to divide the blanks, this would take hours.
    assert to_whatsapp(line) == shown
