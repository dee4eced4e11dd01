from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.inbound.triggers import EMPTY, NO_TRIGGER, ignored_reason, is_called, without_trigger
from tests.support.store_harness import a_group


def reason(text, group=None, *, name="Andy", is_addressed=False):
    return ignored_reason(text, group or a_group(), name=name, is_addressed=is_addressed)


@pytest.mark.parametrize(
    "text",
    [
        "@Andy what's on today?",
        "@andy hi",
        "@ANDY",
        "  \n@Andy hi",
        "@Andy, hi",
        "@Andy: hi",
        "@Andy야 오늘 뭐 있어?",
        "@Andy 안녕",
        "@Andy님 안녕하세요",
        "@Andy안녕",
        "@Andy's list",
        "@Andy\thi",
    ],
)
def test_a_message_that_starts_with_the_name_is_a_request(text):
    assert reason(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "what's on today @Andy?",
        "hi @andy",
        "오늘 뭐 있어 @Andy야",
        "so (@Andy) what now",
        "milk, eggs\n@Andy add these",
        "*@Andy* hi",
        "Jane,@Andy hi",
        "so...@Andy, when?",
        "hi.@Andy",
        "it is Monday.@Andy what is due?",
        "at 10.@Andy: who comes?",
        "请@Andy看看",
        "안녕@Andy야",
        "＠Andy 안녕",
        "ありがとう＠Andyさん",
        "ขอบคุณ@Andyครับ",
        "- @Andy buy milk",
        "-@Andy buy milk",
        "thanks @Andy. What now?",
        "ok@Andy's turn @Andy",
        "see https://example.org, @Andy",
        "run `make` please @Andy",
        "@Andy - hi",
        "@Andy: 10:30?",
        "@Andy@ hi",
    ],
)
def test_a_message_with_the_name_anywhere_in_it_is_a_request(text):
    assert reason(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "@Andyx hi", "@Andy_ hi", "@Andy2", "Andy hi", "@ Andy hi", "@And", "@", "andy: there?",
        "ask@Andy", "write to jane@andy.example", "7@Andy", "see @Andyx",
        "https://medium.com/@andy/a-text", "https://youtube.com/@Andy", "youtube.com/@andy",
        "https://a.example/?by=@andy hi", "joe_@andy.com", "j-@andy.de", "j+@andy.de", "@andy.smith",
        "me.@andy.com", "me.x@andy.com",
        "@andy-murray", "@andy.example.org is down", "npm i @andy/core", "@andy:matrix.example",
        "https://a.example/(@Andy)", "@andy@social.example", "@Andyé", "@Andye\u0301", "@Andyй", "@Andyα",
        "```\n@Andy\nimport x\n```", "write `@Andy` before it", "my mail is x@@Andy",
    ],
)  # fmt: skip
def test_a_message_without_the_name_as_a_call_is_none(text):
    assert reason(text) == NO_TRIGGER


@pytest.mark.parametrize("text", ["@앤디 안녕", "@앤디야 안녕", "@앤디", "@앤디님!", "@앤디아 안녕"])
def test_a_name_in_hangul_is_called_with_and_without_particles(text):
    assert reason(text, name="앤디") is None


def test_a_name_sent_in_single_letters_is_the_same_name():
    assert reason(unicodedata.normalize("NFD", "@앤디 안녕"), name="앤디") is None
    assert reason("@앤디 안녕", name=unicodedata.normalize("NFD", "앤디")) is None


def test_a_name_is_text_not_a_pattern():
    assert reason("@A.B hi", name="A.B") is None
    assert reason("@AxB hi", name="A.B") == NO_TRIGGER


@pytest.mark.parametrize("text", ["!ask what", "!ASK", "what is it !ask", "@Andy what", "@Andy, !ask"])
def test_a_groups_own_trigger_works_beside_the_name(text):
    assert reason(text, a_group(trigger="!ask")) is None


@pytest.mark.parametrize("text", ["!asking", "ask", "@bobby"])
def test_a_groups_own_trigger_ends_like_a_word(text):
    assert reason(text, a_group(trigger="!ask")) == NO_TRIGGER


@pytest.mark.parametrize(
    ("text", "is_call"), [("bot, hi", True), ("what now, bot?", True), ("robot", False), ("bots", False)]
)
def test_a_groups_own_trigger_calls_as_a_word_of_its_own(text, is_call):
    assert (reason(text, a_group(trigger="bot")) is None) is is_call


def test_main_needs_no_trigger_even_where_it_says_so():
    assert reason("hi", a_group("main", is_main=True, requires_trigger=True)) is None


def test_a_group_without_the_requirement_needs_none():
    assert reason("hi", a_group(requires_trigger=False)) is None


@pytest.mark.parametrize("group", [a_group(), a_group(requires_trigger=False), a_group(is_main=True)])
def test_an_empty_text_asks_for_nothing_anywhere(group):
    assert reason(" \n", group, is_addressed=True) == EMPTY


def test_what_the_messenger_says_is_for_andy_needs_no_trigger():
    assert reason("monday", is_addressed=True) is None


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("@Andy XX large, please", "XX large, please"),
        ("@Andy what's on?", "what's on?"),
        ("  @andy:  hi", "hi"),
        ("@Andy, hi", "hi"),
        ("@Andy야 안녕", "안녕"),
        ("@Andy님아, 안녕", "안녕"),
        ("@Andy 야구 보자", "야구 보자"),
        ("@Andy야구 보자", "야구 보자"),
        ("@Andy", ""),
        ("@Andy @Andy hi", "@Andy hi"),
        ("no call", "no call"),
        ("tell @Andy", "tell @Andy"),
        ("@Andy tell @Andy", "tell @Andy"),
        ("@Andyx hi", "@Andyx hi"),
        ("＠Andy 안녕", "안녕"),
        ("@andy.smith hi", "@andy.smith hi"),
    ],
)
def test_the_trigger_and_what_joins_it_are_taken_off(text, left):
    assert without_trigger(text, a_group(), name="Andy") == left


def test_the_longer_trigger_is_taken_off_whole():
    assert without_trigger("@Andy! now", a_group(trigger="@Andy!"), name="Andy") == "now"


@pytest.mark.slow
@given(st.text(max_size=30), st.text(min_size=1, max_size=10))
def test_no_text_and_no_name_breaks_it(text, name):
    group = a_group(trigger=name)

    assert is_called(text, group, name=name) in (True, False)
    assert len(without_trigger(text, group, name=name)) <= 3 * len(text)
