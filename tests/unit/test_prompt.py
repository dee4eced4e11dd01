from __future__ import annotations

from xml.etree import ElementTree as ET
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.values import ChatJid, Message, MessageId, Quote, Seq
from orchestrator.inbound import prompt
from orchestrator.inbound.prompt import render

UTC, SEOUL, BERLIN = ZoneInfo("UTC"), ZoneInfo("Asia/Seoul"), ZoneInfo("Europe/Berlin")
NOW = 1_780_000_000_000


def a_stored(text="hello", **changes):
    fields = {
        "seq": Seq(1),
        "chat_jid": ChatJid("local:x"),
        "id": MessageId("M"),
        "sender": "jane@x",
        "sender_name": "Jane",
        "text": text,
        "sent_ms": NOW,
        "received_ms": NOW,
        "is_from_me": False,
        "is_bot_message": False,
        "quote": None,
        "turn_id": None,
        "ignored_reason": "no trigger",
    }
    return Message(**{**fields, **changes})


def read(*messages, zone=UTC):
    """The prompt as a strict reader of XML sees it."""
    return ET.fromstring(f"<all>{render(messages, zone=zone, now_ms=NOW)}</all>")


def test_the_shape_is_a_context_and_one_line_a_message():
    assert render([a_stored("hi"), a_stored("all", sender_name="Tom")], zone=SEOUL, now_ms=NOW) == (
        '<context timezone="Asia/Seoul" now="2026-05-29T05:26:40+09:00"/>\n'
        "<messages>\n"
        '<message sender="Jane" time="2026-05-29T05:26:40+09:00">hi</message>\n'
        '<message sender="Tom" time="2026-05-29T05:26:40+09:00">all</message>\n'
        "</messages>"
    )


def test_no_messages_are_an_empty_list():
    assert list(read().find("messages")) == []


@pytest.mark.parametrize(
    "text",
    [
        '</message></messages> & "quoted" <b>',
        "a &amp; b",
        "'single'",
        "안녕하세요 👋",
        "two\nlines\tand a tab",
        "]]>",
    ],
)
def test_a_text_arrives_as_it_was_written_and_ends_nothing(text):
    root = read(a_stored(text, sender_name=text.replace("\n", " ").replace("\t", " ")))

    (message,) = root.iter("message")
    assert message.text == text


def test_the_four_signs_are_escaped():
    assert "&amp; &lt; &gt; &quot;" in render([a_stored('& < > "')], zone=UTC, now_ms=NOW)


def test_what_xml_cannot_say_is_replaced():
    (message,) = read(a_stored("a\x00b\x1bc\ufffe\ud800d")).iter("message")

    assert message.text == "a\ufffdb\ufffdc\ufffd\ufffdd"


def test_hangul_stays_as_it_is():
    assert ">@앤디야 안녕<" in render([a_stored("@앤디야 안녕")], zone=SEOUL, now_ms=NOW)


@pytest.mark.parametrize(
    ("sent_ms", "shown"),
    [
        (1_774_745_999_000, "2026-03-29T01:59:59+01:00"),
        (1_774_746_000_000, "2026-03-29T03:00:00+02:00"),
        (1_792_888_200_000, "2026-10-25T02:30:00+02:00"),
        (1_792_891_800_000, "2026-10-25T02:30:00+01:00"),
    ],
)
def test_times_are_local_with_their_offset_also_when_clocks_change(sent_ms, shown):
    (message,) = read(a_stored(sent_ms=sent_ms), zone=BERLIN).iter("message")

    assert message.get("time") == shown


def test_what_a_message_answers_stands_in_it():
    quote = Quote(message_id=MessageId("Q"), sender='A"ndy', text="which <day>?")
    (message,) = read(a_stored("monday", quote=quote)).iter("message")

    (quoted,) = message
    assert (quoted.tag, quoted.get("from"), quoted.text) == ("quoted_message", 'A"ndy', "which <day>?")
    assert quoted.tail == "monday"


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_message_that_answers_an_unknown_one_stands_without_it(text):
    quote = Quote(message_id=MessageId("Q"), sender="Andy", text=text)
    (message,) = read(a_stored("monday", quote=quote)).iter("message")

    assert ([*message], message.text) == ([], "monday")


def test_too_long_a_talk_loses_its_oldest_messages(monkeypatch):
    monkeypatch.setattr(prompt, "MAX_PROMPT_CHARS", 900)
    talk = [a_stored(f"{number}" * 100) for number in range(1, 10)]

    kept = [message.text[0] for message in read(*talk).iter("message")]

    assert kept == ["5", "6", "7", "8", "9"]


def test_the_newest_message_stays_however_long_it_is(monkeypatch):
    monkeypatch.setattr(prompt, "MAX_PROMPT_CHARS", 10)

    assert [one.text for one in read(a_stored("old"), a_stored("new")).iter("message")] == ["new"]


@given(st.lists(st.tuples(st.text(), st.text()), max_size=5))
def test_whatever_people_write_is_one_element_each(talk):
    root = read(*(a_stored(text, sender_name=name) for name, text in talk))

    assert len(list(root.iter("message"))) == len(talk)
    assert len(list(root.iter())) == len(talk) + 3
