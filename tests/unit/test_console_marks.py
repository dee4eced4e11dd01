"""Texts of chats become HTML in which nothing can run, be fetched or lead elsewhere than it says."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from orchestrator.web.console.marks import is_cut, labelled, plain, rich

TAGS = {"p", "br", "ul", "li", "pre", "code", "strong", "em", "a", "span"}
ATTRIBUTES = {"a": {"href", "rel", "target"}, "span": {"class", "title"}}


class Outline(HTMLParser):
    """What tags a text has, and the words outside of them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(str(html))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("hello", "<p>hello</p>"),
        ("one\ntwo", "<p>one<br>two</p>"),
        ("one\n\ntwo", "<p>one</p><p>two</p>"),
        (
            "*bold* **too** _it_ `code*d*`",
            "<p><strong>bold</strong> <strong>too</strong> <em>it</em> <code>code*d*</code></p>",
        ),
        ("2*3*4 and snake_case_name", "<p>2*3*4 and snake_case_name</p>"),
        ("- a\n- b\nend", "<ul><li>a</li><li>b</li></ul><p>end</p>"),
        ("```py\na < b\n```", "<pre><code>a &lt; b</code></pre>"),
        ("<script>alert(1)</script>", "<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>"),
        ("![x](http://evil.example/x.png)", None),
        ("[click](javascript:alert(1))", "<p>[click](javascript:alert(1))</p>"),
        ("", ""),
    ],
)
def test_a_few_marks_are_shown_and_everything_else_is_text(text, html):
    made = str(rich(text))
    assert html is None or made == html
    assert "<img" not in made


def test_a_link_shows_its_whole_target_and_ends_before_the_full_stop():
    made = Outline(rich("see https://example.org/a?b=1&c=2."))
    assert [tag for tag in made.tags if tag[0] == "a"] == [
        (
            "a",
            {
                "href": "https://example.org/a?b=1&c=2",
                "rel": "noreferrer noopener nofollow",
                "target": "_blank",
            },
        )
    ]
    assert made.words == "see https://example.org/a?b=1&c=2."


@pytest.mark.parametrize("text", ["https://bank.example@evil.example/", "https://a.example/\u202egro.live"])
def test_an_address_that_hides_where_it_leads_is_no_link(text):
    assert "<a" not in rich(text)


def test_characters_that_turn_the_direction_are_shown():
    assert 'title="U+202E"' in rich("abc\u202edef")
    assert "\u202e" not in rich("abc\u202edef")
    assert "\x00" not in plain("a\x00b")


def test_a_long_text_is_cut_and_says_so():
    text = "x" * 2**20
    assert len(rich(text)) < 5_000
    assert is_cut(text)
    assert not is_cut("short")


@given(st.text(alphabet=st.sampled_from("ab<>&\"'`*_-\n /:@.htps\u202e=()[]!"), max_size=200))
def test_no_text_makes_a_tag_or_an_attribute_beyond_the_list(text):
    made = Outline(rich(text))
    for tag, attributes in made.tags:
        assert tag in TAGS
        assert set(attributes) <= ATTRIBUTES.get(tag, set())
        if tag == "a":
            assert re.match(r"https?://", attributes["href"] or "")


def test_each_cell_of_a_table_has_its_heading_and_a_row_begins_anew():
    rows = Markup(
        '<tr><th scope="row">a</th><td>b</td></tr>\n<tr class="x"><td colspan="2">&lt;td&gt;</td></tr>'
    )
    assert labelled(rows, ["Name", 'Wh"en']) == (
        '<tr><th scope="row">a</th><td data-label="Wh&#34;en">b</td></tr>\n'
        '<tr class="x"><td colspan="2">&lt;td&gt;</td></tr>'
    )
