from __future__ import annotations

import pytest

from orchestrator.dashboard.words import reply_parser
from orchestrator.dashboard.words.reply_parser import DoneReply, LaterReply

HOUR, MINUTE = 3_600_000, 60_000


@pytest.mark.parametrize(
    "text",
    [
        "done",
        "Done!",
        " DONE ✅",
        "finished.",
        "did it",
        "완료",
        "끝!",
        "끝났어요",
        "다 했어",
        "했어요~",
        "Done 👍🏽",
        "i'm done!",
        "done, thanks",
        "완료됨",
        "다 끝냈어요",
    ],
)
def test_what_is_done_is_said_in_few_words(text):
    assert reply_parser.read(text) == DoneReply()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("later 2h", LaterReply(pause_ms=2 * HOUR)),
        ("Later, 30m", LaterReply(pause_ms=30 * MINUTE)),
        ("later", LaterReply(pause_ms=HOUR)),
        ("snooze 1h30m", LaterReply(pause_ms=90 * MINUTE)),
        ("snooze for 1d", LaterReply(pause_ms=24 * HOUR)),
        ("later in 2h", LaterReply(pause_ms=2 * HOUR)),
        ("2h", LaterReply(pause_ms=2 * HOUR)),
        ("later tomorrow 9am", LaterReply(time_text="tomorrow 9am")),
        ("in 2 hours", LaterReply(time_text="in 2 hours")),
        ("나중에", LaterReply(pause_ms=HOUR)),
        ("나중에 2시간 후", LaterReply(time_text="2시간 후")),
        ("2시간 뒤에", LaterReply(time_text="2시간 뒤")),
        ("이따 내일 오전 9시에", LaterReply(time_text="내일 오전 9시")),
        ("later 2 hours", LaterReply(time_text="in 2 hours")),
        ("snooze 10 minutes please", LaterReply(time_text="in 10 minutes")),
        ("30분", LaterReply(time_text="30분 후")),
        ("나중에 한 시간", LaterReply(time_text="한 시간 후")),
        ("2시간 후에 다시 알려줘", LaterReply(time_text="2시간 후")),
        ("2시간 미뤄 주세요", LaterReply(time_text="2시간 후")),
        ("내일로 미뤄줘", LaterReply(time_text="내일")),
        ("내일 아침 9시에 다시 알려줘", LaterReply(time_text="내일 아침 9시")),
    ],
)
def test_what_is_put_off_is_said_in_few_words(text, wanted):
    assert reply_parser.read(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "",
        "what?",
        "done with what?",
        "I am done for today, see you",
        "0m",
        "why later",
        "done?",
        "tomorrow",
        "내일",
        "다시 알려줘 뭐를",
    ],
)
def test_what_takes_more_to_understand_is_left_to_an_agent(text):
    assert reply_parser.read(text) is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1. the big hall\n2. at six", ((1, "the big hall"), (2, "at six"))),
        ("1) yes\n3: no", ((1, "yes"), (3, "no"))),
        ("2 the small one", ((2, "the small one"),)),
        (
            "1. the big hall\nthe one upstairs\n2. at six",
            ((1, "the big hall\nthe one upstairs"), (2, "at six")),
        ),
        ("1. the big hall 2. at six", ((1, "the big hall"), (2, "at six"))),
        ("1. 큰 방\n2. 여섯 시", ((1, "큰 방"), (2, "여섯 시"))),
        ("1. at 6.30 in 2 groups", ((1, "at 6.30 in 2 groups"),)),
        ("1.큰 홀 2.여섯 시", ((1, "큰 홀"), (2, "여섯 시"))),
        ("1)yes 2)no, at 2.30", ((1, "yes"), (2, "no, at 2.30"))),
        ("1. the hall, 2. at six", ((1, "the hall"), (2, "at six"))),
        ("1. as in figure 2.a", ((1, "as in figure 2.a"),)),
        ("1. the hall\n2:30 pm", ((1, "the hall\n2:30 pm"),)),
        ("1)5", ((1, "5"),)),
        ("1. 2 hours\n2 hours", ((1, "2 hours\n2 hours"),)),
        ("1) 일요일\n2 people like it\n3) 3 pm", ((1, "일요일\n2 people like it"), (3, "3 pm"))),
        ("2 daylight", ((2, "daylight"),)),
    ],
)
def test_answers_are_read_by_their_numbers(text, wanted):
    assert reply_parser.answers(text, count=3) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1 네\n2 일 때문에 못 가요", ((1, "네"), (2, "일 때문에 못 가요"))),
        ("1 Sunday\n2 Min-jun", ((1, "Sunday"), (2, "Min-jun"))),
        ("1 yes\n5 days are enough", ((1, "yes\n5 days are enough"),)),
        ("1. yes\n2 days are enough", ((1, "yes\n2 days are enough"),)),
    ],
)
def test_a_bare_number_that_follows_a_bare_one_begins_an_answer_whatever_word_comes_after_it(text, wanted):
    assert reply_parser.answers(text, count=3) == wanted


@pytest.mark.parametrize(
    ("text", "count", "wanted"),
    [
        ("1 yes\n2 no\n3 days off", 2, ((1, "yes"), (2, "no\n3 days off"))),
        ("1 it takes about\n2 hours", 1, ((1, "it takes about\n2 hours"),)),
    ],
)
def test_a_bare_number_beyond_the_last_question_continues_an_answer(text, count, wanted):
    assert reply_parser.answers(text, count=count) == wanted


@pytest.mark.parametrize(
    ("unit", "count"), [("1일 ", 40), ("later ", 100_000), ("a!", 500_000), ("!", 1_000_000)]
)
def test_a_long_reply_is_left_to_an_agent(unit, count):
    assert reply_parser.read(f"a{unit * count}x") is None
    assert reply_parser.read(f"{unit * count}x") is None


def test_a_yes_may_have_any_number_of_marks_around_it_but_not_in_it():
    marks = "!" * 1_000_000
    assert reply_parser.means_done(f"{marks}yes{marks}")
    assert not reply_parser.means_done(f"yes{marks}yes")
    assert not reply_parser.means_done("yes?!")
    assert not reply_parser.means_done("!/yes")


def test_a_number_alone_in_its_line_continues_an_answer():
    assert reply_parser.answers("1 yes\n2" + " " * 1_000_000 + "\nx", count=3) == ((1, "yes\n2\nx"),)


@pytest.mark.parametrize(
    "text",
    [
        *("hello", "hello\n1. yes", "4. yes", "1. yes\n1. no", "0. yes", "1.", "1.5 hours", "1:30 pm", ""),
        *("2 hours", "3 PM", "2 시간", "3 명이요", "1 day is enough"),
    ],
)
def test_what_does_not_answer_all_through_is_no_answer(text):
    assert reply_parser.answers(text, count=3) is None
