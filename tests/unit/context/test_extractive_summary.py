"""The summary: whole sentences that were said, within its limit, the newest and the decided among them."""

from __future__ import annotations

import re

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.context import script
from orchestrator.context.extractive_summary import ExtractiveSummarizer, merged, split
from orchestrator.context.models import ContextMessage
from tests.support.dialogues import answer, question

FOLD = ExtractiveSummarizer().fold
ENGLISH = (
    "Ferry {n} leaves at half past nine from the north pier. Grandmother {n} would like to see a tower."
    " It may rain on day {n}, so the beach comes first. The {n} children want ice cream. We decided to take"
    " ferry {n}. Somebody has to bring umbrella {n}. The restaurant has a table for {n} at one o'clock. "
)
KOREAN = (
    "{n}번 배는 북쪽 부두에서 아홉 시 반에 떠납니다. 할머니는 등대 {n}을 다시 보고 싶어 하십니다. "
    "{n}일에 비가 올 수 있으니 해변에 먼저 갑니다. 아이들 {n}명은 아이스크림을 먹고 싶어 해요. "
    "{n}번 배를 타기로 결정했습니다. 누군가 우산 {n}개를 가져와야 합니다. 식당에는 {n}명 자리가 있어요. "
)
NEWEST = {"en": "We decided to stay until Monday.", "ko": "월요일까지 머물기로 결정했습니다."}


def of_length(text: str, chars: int) -> str:
    """No sentence of it comes twice."""
    return "".join(text.replace("{n}", str(number)) for number in range(100))[:chars]


TEXTS = {
    "korean": of_length(KOREAN, 5_000),
    "latin": of_length(ENGLISH, 5_000),
    "mixed": of_length(ENGLISH + KOREAN, 5_000),
}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("decision", NEWEST.values())
def test_5000_characters_become_a_summary_within_the_limit_with_the_newest_decision(kind: str, decision: str):
    chatter = re.sub(r"[^.]*(?:decided|결정)[^.]*\.", "", TEXTS[kind])
    evicted = [question(1, TEXTS[kind]), answer(1, f"{TEXTS[kind]} {decision}"), question(2, chatter * 3)]

    summary = FOLD("", evicted)

    assert script.weight(summary) <= script.MAX_SUMMARY_WEIGHT
    assert decision in summary


def test_the_limit_is_400_korean_or_700_latin_characters_and_between_them_in_mixtures():
    assert script.weight("가" * 400) == script.MAX_SUMMARY_WEIGHT == script.weight("a" * 700)
    assert script.weight("漢字かなカナ" * 10) == script.weight("가" * 60)
    assert script.weight("가" * 200 + "a" * 350) == script.MAX_SUMMARY_WEIGHT
    assert len(script.cut_to_weight("가" * 5_000)) == 400
    assert len(script.cut_to_weight("a" * 5_000)) == 700


def test_what_was_said_last_is_never_the_one_that_is_cut():
    summary = FOLD(
        TEXTS["latin"][:690], [question(2, ENGLISH), answer(2, f"{ENGLISH} The key is under the mat.")]
    )

    assert summary.endswith("The key is under the mat.")


def test_old_and_new_are_compressed_together_and_old_decisions_outlive_old_talk():
    summary = "We must not forget the passports."
    for turn in range(1, 6):
        summary = FOLD(summary, [question(turn, ENGLISH), answer(turn, f"{KOREAN} Day {turn} is sunny.")])

    assert "We must not forget the passports." in summary
    assert summary.endswith("Day 5 is sunny.")


def test_what_fits_is_kept_whole_and_in_order():
    assert FOLD("One.", [question(1, "Two? Three!"), answer(1, "넷입니다.다섯이에요.")]).split("\n") == [
        "One.",
        "Two?",
        "Three!",
        "넷입니다.",
        "다섯이에요.",
    ]


def test_the_same_sentence_stands_once_where_it_was_said_last():
    assert FOLD("It rains.", [answer(1, "We go. It rains.")]) == "We go.\nIt rains."


def test_c_16_an_answer_weighs_more_than_a_question():
    things = ["oak", "elm", "ash", "fir", "yew", "fig", "bay", "box", "ivy", "rue"] * 2
    earlier = " ".join(
        f"The {thing} {n} grows beside the wall in the garden." for n, thing in enumerate(things)
    )
    later = earlier.replace("grows", "stands")

    answered = FOLD("", [answer(1, earlier), question(2, later)])
    asked = FOLD("", [question(1, earlier), question(2, later)])

    assert "grows" in answered
    assert "grows" not in asked


def test_the_same_input_is_the_same_summary():
    evicted = [question(1, TEXTS["mixed"]), answer(1, TEXTS["korean"])]

    assert len({FOLD(TEXTS["latin"][:600], evicted) for _ in range(3)}) == 1


def test_c_25_a_summary_consists_of_sentences_that_were_said():
    said = TEXTS["mixed"]

    for sentence in FOLD("", [answer(1, said)]).split("\n"):
        assert sentence in " ".join(split(said)), sentence


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four…", ["One.", "Two!", "Three?", "Four…"]),
        ("갔습니다.그래서 왔어요.끝", ["갔습니다.", "그래서 왔어요.", "끝"]),
        ("Pi is 3.14 and e.g. 2.7", ["Pi is 3.14 and e.g.", "2.7"]),
        ("a\n\n  b \r\n c", ["a", "b", "c"]),
        ("終わりました。次です。", ["終わりました。", "次です。"]),
        ("", []),
    ],
)
def test_sentences_are_found_in_english_and_korean(text: str, sentences: list[str]):
    assert split(text) == sentences


def test_a_text_without_an_end_is_taken_in_parts():
    parts = split("word " * 1_000)

    assert all(len(part) <= 180 for part in parts)
    assert " ".join(parts) == ("word " * 1_000).strip()


def test_c_17_two_summaries_become_one_within_the_limit():
    assert merged("Old.", "New.") == "Old.\nNew."
    assert merged("Old.", "  ") == "Old."
    assert script.weight(merged(TEXTS["korean"], TEXTS["latin"])) <= script.MAX_SUMMARY_WEIGHT


words = st.sampled_from(
    ["오늘", "결정했다.", "we", "decided", "가", "!", ".", "\n", "👩‍👩‍👧‍👦", "e\u0301", "漢字", "done"]
)
texts = st.lists(words, max_size=400).map(" ".join) | st.text(max_size=300)


@given(texts, st.lists(texts, max_size=4))
def test_whatever_was_said_the_summary_keeps_its_limit(old: str, contents: list[str]):
    evicted = [
        ContextMessage(id=f"t{n}.a", role="assistant", content=one, ts="") for n, one in enumerate(contents)
    ]

    summary = FOLD(old, evicted)

    assert script.weight(summary) <= script.MAX_SUMMARY_WEIGHT
    sentences = [sentence for text in (old, *contents) for sentence in split(text)]
    assert not sentences or sentences[-1] in summary


@given(st.text(alphabet=st.sampled_from("가a👩‍👧e\u0301🇰🇷 .\n"), max_size=900), st.integers(0, 3_000))
def test_a_cut_is_within_its_limit_and_between_graphemes(text: str, limit: int):
    cut = script.cut_to_weight(text, limit)

    assert script.weight(cut) <= limit
    if cut != text.strip() and cut:
        assert cut.endswith("…")
        bare = cut.removesuffix("…")
        assert text.strip().startswith(bare)
        boundaries = {0, *(found.end() for found in regex.finditer(r"\X", text.strip()))}
        stripped = len(text.strip()[: len(bare)])
        rest = text.strip()[stripped:]
        assert stripped in boundaries or rest[:1].isspace()


@pytest.mark.parametrize(
    "text", ["a" * 1_000_000, "\u0301" * 100_000, "a. " * 100_000, "가" * 100_000, "👩‍" * 50_000]
)
def test_hostile_texts_are_summarised_too(text: str):
    assert script.weight(FOLD(text, [answer(1, text)])) <= script.MAX_SUMMARY_WEIGHT
