"""The window: what stays, what leaves, and what is cut, by tokens."""

from __future__ import annotations

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.context.models import ContextMessage, iso
from orchestrator.context.tokens import EncodingCounter, EstimatingCounter
from orchestrator.context.window import OVERHEAD_TOKENS, WINDOW_TOKENS, cost, cut_middle, in_order, trimmed
from tests.support.dialogues import NOW, answer, question

COUNTER = EncodingCounter()
FIFTY = (
    "We could take the early ferry to the island, walk along the northern beach until the old lighthouse,"
    " have lunch at the small harbour there, and be back home before it gets dark, if the weather holds;"
    " what do you think about that, number {}?"
)


def exchange(turns: int) -> list[ContextMessage]:
    """`turns` questions and answers of about 50 tokens each."""
    return [
        message
        for turn in range(1, turns + 1)
        for message in (question(turn, FIFTY.format(turn)), answer(turn, FIFTY.format(-turn)))
    ]


def total(messages: tuple[ContextMessage, ...]) -> int:
    return sum(cost(message, COUNTER) for message in messages)


def test_c_15_sixty_messages_of_fifty_tokens_leave_a_window_that_fits_and_starts_with_a_users():
    messages = exchange(30)
    assert all(45 <= COUNTER.count(message.content) <= 57 for message in messages)

    cut = trimmed(messages, COUNTER)

    assert total(cut.remaining) <= WINDOW_TOKENS
    assert cut.remaining[0].role == "user"
    assert (*cut.evicted, *cut.remaining) == tuple(messages)
    # Not less than needed: one exchange more would not have fitted.
    assert total((*cut.evicted[-2:], *cut.remaining)) > WINDOW_TOKENS


def test_c_24_the_budget_is_of_tokens_not_of_characters():
    korean = [question(turn, "오늘은 날씨가 좋아서 바다에 가기로 했습니다. " * 4) for turn in range(1, 30)]

    kept = trimmed(korean, COUNTER).remaining

    assert WINDOW_TOKENS - cost(korean[0], COUNTER) < total(kept) <= WINDOW_TOKENS


def test_a_window_that_fits_is_left_as_it_is():
    messages = exchange(5)

    assert trimmed(messages, COUNTER).remaining == tuple(messages)
    assert trimmed([], COUNTER).remaining == ()


def test_an_answer_goes_with_its_question():
    messages = [question(1, "word " * 700), answer(1, "short"), question(2, "word " * 200), answer(2, "yes")]

    cut = trimmed(messages, COUNTER)

    assert [message.id for message in cut.evicted] == ["t1.u", "t1.a"]


def test_an_answer_that_is_alone_stays():
    cut = trimmed([question(1, "word " * 790), answer(1, "word " * 300)], COUNTER)

    assert [message.id for message in cut.remaining] == ["t1.a"]


@pytest.mark.parametrize(
    "content",
    ["word " * 5_000, "오늘은 날씨가 좋다. " * 1_000, "x" * 100_000, " " * 100_000, "👩‍👩‍👧‍👦" * 3_000],
)
def test_the_newest_message_loses_its_middle_but_is_never_dropped(content: str):
    cut = trimmed([question(1, "before " * 100), question(2, content)], COUNTER)

    (kept,) = cut.remaining
    assert kept.id == "t2.u"
    assert cost(kept, COUNTER) <= WINDOW_TOKENS
    assert len(kept.content) <= 24_000
    assert "tokens cut...]" in kept.content
    assert [message.id for message in cut.evicted] == ["t1.u"]


def test_of_a_long_message_60_percent_are_head_and_40_are_tail():
    text = "".join(f"head{number} " for number in range(3_000)) + "the very end"

    made = cut_middle(text, 796, COUNTER)
    head, _, tail = made.partition(" [...")

    assert text.startswith(head)
    assert tail.endswith("the very end")
    assert 0.55 < COUNTER.count(head) / 796 < 0.62
    missing = int(tail.split(" ")[0])
    assert COUNTER.count(text) - 796 <= missing <= COUNTER.count(text)


@pytest.mark.slow
@given(st.text(max_size=400), st.integers(0, 60))
def test_a_cut_text_always_fits(text: str, most: int):
    assert COUNTER.count(cut_middle(text, most, COUNTER)) <= most


@given(
    st.lists(
        st.sampled_from(["👩‍👩‍👧‍👦", "가", "가", "e\u0301", "🇰🇷", " ", "ab", "\r\n"]),
        min_size=60,
        max_size=120,
    )
)
def test_no_grapheme_is_cut(graphemes: list[str]):
    text = "".join(graphemes)
    whole = set(regex.findall(r"\X", text))

    head, _, tail = cut_middle(text, 40, EstimatingCounter(), unit="bytes").partition(" [...")
    tail = tail.partition("cut...] ")[2]

    assert text.startswith(head)
    assert text.endswith(tail)
    assert set(regex.findall(r"\X", head)) | set(regex.findall(r"\X", tail)) <= whole


messages_of_turns = st.lists(st.tuples(st.booleans(), st.integers(1, 400)), max_size=60).map(
    lambda drawn: [
        (answer if is_answer else question)(turn, "word " * size)
        for turn, (is_answer, size) in enumerate(drawn, 1)
    ]
)


@given(messages_of_turns)
def test_whatever_was_said_the_window_fits_and_nothing_is_lost_between(messages: list[ContextMessage]):
    cut = trimmed(messages, COUNTER)

    assert total(cut.remaining) <= WINDOW_TOKENS
    assert [message.id for message in (*cut.evicted, *cut.remaining)] == [message.id for message in messages]
    assert not messages or cut.remaining
    assert len(cut.remaining) <= 1 or cut.remaining[0].role == "user"
    assert trimmed(cut.remaining, COUNTER) == cut.__class__(remaining=cut.remaining, evicted=())


def test_a_question_stands_before_the_answer_of_its_turn_whatever_clocks_said():
    asked = ContextMessage(id="t2.u", role="user", content="?", ts=iso(NOW + 90_000))
    answered = ContextMessage(id="t2.a", role="assistant", content="!", ts=iso(NOW))
    before = ContextMessage(id="t1.u", role="user", content="?", ts=iso(NOW + 1_000))

    assert [one.id for one in in_order([answered, asked, before, asked])] == ["t1.u", "t2.u", "t2.a"]


def test_messages_that_name_no_turn_stay_in_the_order_of_their_times():
    dialogue = [
        ContextMessage(id=name, role=role, content="x", ts=iso(NOW + number * 1_000))
        for number, (name, role) in enumerate(
            (("q1", "user"), ("a1", "assistant"), ("q2", "user"), ("a2", "assistant"))
        )
    ]

    assert [one.id for one in in_order(dialogue)] == ["q1", "a1", "q2", "a2"]


def test_a_message_costs_its_text_and_a_little():
    assert cost(question(1, "hello"), COUNTER) == COUNTER.count("hello") + OVERHEAD_TOKENS
