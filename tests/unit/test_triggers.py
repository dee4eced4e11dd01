from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.inbound.triggers import (
    CONVERSATION_MS,
    EMPTY,
    NO_TRIGGER,
    Conversation,
    ignored_reason,
    is_called,
    without_trigger,
)
from tests.fakes.household import a_group

NOW = 1_000_000
SILENT = Conversation()
TALKING = Conversation(is_container_alive=True, last_answer_ms=NOW - 1_000, quotes_andy=True)


def reason(text, group=None, *, name="Andy", conversation=SILENT):
    return ignored_reason(text, group or a_group(), name=name, conversation=conversation, now_ms=NOW)


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
    ["@Andyx hi", "@Andy_ hi", "@Andy2", "Andy hi", "hi @Andy", "@ Andy hi", "@And", "@", "andy: there?"],
)
def test_a_message_that_does_not_is_none(text):
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


@pytest.mark.parametrize("text", ["!ask what", "!ASK", "@Andy what", "@Andy, !ask"])
def test_a_groups_own_trigger_works_beside_the_name(text):
    assert reason(text, a_group(trigger="!ask")) is None


@pytest.mark.parametrize("text", ["!asking", "ask", "@bobby"])
def test_a_groups_own_trigger_ends_like_a_word(text):
    assert reason(text, a_group(trigger="!ask")) == NO_TRIGGER


def test_main_needs_no_trigger_even_where_it_says_so():
    assert reason("hi", a_group("main", is_main=True, requires_trigger=True)) is None


def test_a_group_without_the_requirement_needs_none():
    assert reason("hi", a_group(requires_trigger=False)) is None


@pytest.mark.parametrize("group", [a_group(), a_group(requires_trigger=False), a_group(is_main=True)])
def test_an_empty_text_asks_for_nothing_anywhere(group):
    assert reason(" \n", group, conversation=TALKING) == EMPTY


def test_a_reply_in_a_running_conversation_needs_no_trigger():
    assert reason("monday", conversation=TALKING) is None


@pytest.mark.parametrize(
    "conversation",
    [
        Conversation(is_container_alive=False, last_answer_ms=NOW, quotes_andy=True),
        Conversation(is_container_alive=True, last_answer_ms=None, quotes_andy=True),
        Conversation(is_container_alive=True, last_answer_ms=NOW, quotes_andy=False),
        Conversation(is_container_alive=True, last_answer_ms=NOW - CONVERSATION_MS - 1, quotes_andy=True),
    ],
)
def test_a_conversation_is_a_live_container_a_quote_and_a_fresh_answer(conversation):
    assert reason("monday", conversation=conversation) == NO_TRIGGER


def test_a_conversation_lasts_sixty_seconds():
    last = Conversation(is_container_alive=True, last_answer_ms=NOW - 60_000, quotes_andy=True)

    assert reason("monday", conversation=last) is None


@pytest.mark.parametrize(
    ("text", "left"),
    [
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
        ("@Andyx hi", "@Andyx hi"),
    ],
)
def test_the_trigger_and_what_joins_it_are_taken_off(text, left):
    assert without_trigger(text, a_group(), name="Andy") == left


def test_the_longer_trigger_is_taken_off_whole():
    assert without_trigger("@Andy! now", a_group(trigger="@Andy!"), name="Andy") == "now"


@given(st.text(max_size=30), st.text(min_size=1, max_size=10))
def test_no_text_and_no_name_breaks_it(text, name):
    group = a_group(trigger=name)

    assert is_called(text, group, name=name) in (True, False)
    assert len(without_trigger(text, group, name=name)) <= 3 * len(text)
