"""What is understood: the table of intents and the one splitter, in both languages."""

from __future__ import annotations

import ast
import re
import unicodedata
from pathlib import Path
from string import Formatter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runner.agents.offline import intents, reading
from agent_runner.agents.offline.about import About
from agent_runner.agents.offline.board import Board
from agent_runner.agents.offline.intents import ParsedRequest
from agent_runner.agents.offline.lists import Lists
from agent_runner.agents.offline.reading import MAX_CHARS, read
from agent_runner.agents.offline.reminders import Reminders
from agent_runner.agents.offline.spelling import fits_despite_slips
from agent_runner.checklists import ListProblem
from agent_runner.wire.times import Language, Reason, Shift


def described(parsed: ParsedRequest) -> str:
    """`remind what=call mum when=at 9`, slots by name."""
    slots = [f"{name}={words!r}" for name, words in sorted(parsed.slots.items()) if words and name != "whom"]
    return " ".join([parsed.intent, *slots]).replace("'", "").replace("\\n", "|")


def one(text: str) -> str:
    (parsed,) = read(text)
    return described(parsed)


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        ("add milk, eggs and bread", ["add_items items=milk|eggs|bread"]),
        ("add milk, eggs, and bread to our trip list", ["add_items items=milk|eggs|bread list=trip"]),
        ("todo a, b", ["add_items items=a|b list=todo"]),
        ("todo buy milk and eggs", ["add_items items=buy milk and eggs list=todo"]),
        ("우유, 계란이랑 빵 추가해줘", ["add_items items=우유|계란|빵"]),
        ("할 일 추가 우표 사기, 빨래", ["add_items items=우표 사기|빨래 list=todo"]),
        ("장보기 목록에 우유, 계란을 추가해줘", ["add_items items=우유|계란 list=장보기"]),
        ("shopping list:\n- milk\n- eggs", ["add_items items=milk|eggs list=shopping"]),
        ("add to the shopping list:\nmilk\neggs", ["add_items items=milk|eggs list=shopping"]),
        ("add these to the shopping list:\nmilk\neggs", ["add_items items=milk|eggs list=shopping"]),
        ("put these on the shopping list:\nmilk\neggs", ["add_items items=milk|eggs list=shopping"]),
        ("add both items to the shopping list:\nmilk\neggs", ["add_items items=milk|eggs list=shopping"]),
        (
            "add milk to the shopping list:\n- eggs\n- bread",
            ["add_items items=milk list=shopping", "add_items items=eggs|bread list=shopping"],
        ),
        (
            "todo buy stamps\nremind me at 5pm to cook",
            ["add_items items=buy stamps list=todo", "remind what=cook when=at 5pm"],
        ),
        (
            "add milk to the shopping list and remind me at 5pm to cook",
            ["add_items items=milk list=shopping", "remind what=cook when=at 5pm"],
        ),
        (
            "remind me to pay rent tomorrow and call mum on Friday",
            ["remind what=pay rent when=tomorrow", "remind what=call mum when=on Friday"],
        ),
        (
            "pay rent tomorrow and call mum on Friday",
            [
                "remind offered=yes what=pay rent when=tomorrow",
                "remind offered=yes what=call mum when=on Friday",
            ],
        ),
        (
            "add a task pay rent by Friday and call mum by Monday",
            ["add_task title=pay rent when=Friday", "add_task title=call mum when=Monday"],
        ),
        (
            "todo buy stamps and call mum",
            ["one_or_more kind=todo more=buy stamps|call mum one=buy stamps and call mum"],
        ),
        (
            "add milk to the shopping list and what's the weather like?",
            ["add_items items=milk list=shopping", 'unknown_part text="whats the weather like?"'],
        ),
        ("show todo. what time is it?", ["show_list list=todo", "time"]),
        (
            "우유 추가해주고 내일 오전 9시에 약 먹으라고 알려줘",
            ["add_items items=우유", "remind what=약 먹기 when=내일 오전 9시에"],
        ),
        (
            "내일 9시에 약 먹고 금요일 15시에 병원 가라고 알려줘",
            ["remind what=약 먹기 when=내일 9시에", "remind what=병원 가기 when=금요일 15시에"],
        ),
        ("할 일 보여줘\n오늘 며칠?", ["show_list list=todo", "day"]),
        ("write me a poem\nand sing", ["unknown_part text=write me a poem", "unknown_part text=and sing"]),
    ],
)
def test_nothing_is_merged_or_dropped(text: str, requests: list[str]) -> None:
    assert [described(parsed) for parsed in read(text)] == requests


@pytest.mark.parametrize(
    ("text", "what", "when"),
    [
        ("remind me to call mum in 10 minutes", "call mum", "in 10 minutes"),
        ("remind me tomorrow to pay rent at 9am", "pay rent", "tomorrow at 9am"),
        ("in 2 hours remind me to stretch", "stretch", "in 2 hours"),
        ("every Monday at 9 remind me to water the plants", "water the plants", "every Monday at 9"),
        ("Please remind me on Friday at 3pm about the dentist, thanks!", "the dentist", "on Friday at 3pm"),
        ("remind me to take the 18:30 train in 2 hours", "take the 18:30 train", "in 2 hours"),
        ("remind me at 8:00 to take the pills at 9am", "take the pills at 9am", "at 8:00"),
        ("reminder: tomorrow 9:00 dentist", "dentist", "tomorrow 9:00"),
        ("remind me to call mum", "call mum", ""),
        ("remind me in 10 minutes", "", "in 10 minutes"),
        ("내일 오전 9시에 약 먹으라고 알려줘", "약 먹기", "내일 오전 9시에"),
        ("내일 약 먹으라고 오전 9시에 알려주세요", "약 먹기", "내일 오전 9시에"),
        ("10분 뒤에 회의라고 알려줘", "회의", "10분 뒤에"),
        ("10분 뒤에 회의가 있다고 알려줘.", "회의가 있다", "10분 뒤에"),
        ("10분 뒤에 불 끄라고 알려줘", "불 끄기", "10분 뒤에"),
        ("10분 뒤에 국 끓이라고 알려줘", "국 끓이기", "10분 뒤에"),
        ("10분 뒤에 소리 줄이라고 알려줘", "소리 줄이기", "10분 뒤에"),
        ("10분 뒤에 공원에서 달리라고 알려줘", "공원에서 달리기", "10분 뒤에"),
        ("10분 뒤에 우유 넣어두라고 알려줘", "우유 넣어두기", "10분 뒤에"),
        ("10분 뒤에 가격 알아보라고 알려줘", "가격 알아보기", "10분 뒤에"),
        ("10분 뒤에 이불에서 나오라고 알려줘", "이불에서 나오기", "10분 뒤에"),
        ("10분 뒤에 생일 선물이라고 알려줘", "생일 선물", "10분 뒤에"),
        ("10분 뒤에 지도라고 알려줘", "지도", "10분 뒤에"),
        ("10분 뒤에 빨래 널라고 알려줘", "빨래 널기", "10분 뒤에"),
        ("10분 뒤에 고기 구우라고 알려줘", "고기 굽기", "10분 뒤에"),
        ("10분 뒤에 옷 다리라고 알려줘", "옷 다리기", "10분 뒤에"),
        ("10분 뒤에 빨래를 다리라고 알려줘", "빨래를 다리기", "10분 뒤에"),
        ("10분 뒤에 약속 지키라고 알려줘", "약속 지키기", "10분 뒤에"),
        ("10분 뒤에 아이 재우라고 알려줘", "아이 재우기", "10분 뒤에"),
        ("10분 뒤에 빼두라고 알려줘", "빼두기", "10분 뒤에"),
        ("10분 뒤에 음악 들으라고 알려줘", "음악 듣기", "10분 뒤에"),
        ("10분 뒤에 전화 걸으라고 알려줘", "전화 걸기", "10분 뒤에"),
        ("10분 뒤에 엄마한테 전화를 걸으라고 알려줘", "엄마한테 전화를 걸기", "10분 뒤에"),
        ("10분 뒤에 짐 들으라고 알려줘", "짐 들기", "10분 뒤에"),
        ("10분 뒤에 짐을 들으라고 알려줘", "짐을 들기", "10분 뒤에"),
        ("10분 뒤에 공원 걸으라고 알려줘", "공원 걷기", "10분 뒤에"),
        ("10분 뒤에 책을 친구라고 알려줘", "책을 친구", "10분 뒤에"),
        ("10분 뒤에 회의를 3시라고 알려줘", "회의를 3시", "10분 뒤에"),
        ("10분 뒤에 바지를 꿰매라고 알려줘", "바지를 꿰매기", "10분 뒤에"),
        ("10분 뒤에 할머니를 모시라고 알려줘", "할머니를 모시기", "10분 뒤에"),
        ("10분 뒤에 집 지으라고 알려줘", "집 짓기", "10분 뒤에"),
        ("10분 뒤에 떡 만들으라고 알려줘", "떡 만들기", "10분 뒤에"),
        ("10분 뒤에 배추 절이라고 알려줘", "배추 절이기", "10분 뒤에"),
        ("10분 뒤에 명절이라고 알려줘", "명절", "10분 뒤에"),
        ("10분 뒤에 가을 요리라고 알려줘", "가을 요리", "10분 뒤에"),
        ("10분 뒤에 다리라고 알려줘", "다리", "10분 뒤에"),
        ("10분 뒤에 새우라고 알려줘", "새우", "10분 뒤에"),
        ("빨래 널라고 내일 9시에 알려줘", "빨래 널기", "내일 9시에"),
        ("내일 18시에 화분에 물 주라고 알려줘", "화분에 물 주기", "내일 18시에"),
        ("오후 3시에 4시 회의 준비하라고 알려줘", "4시 회의 준비하기", "오후 3시에"),
        ("내일 18시에 화분에 물주라고 알려줘", "화분에 물주기", "내일 18시에"),
        ("10분 뒤에 고양이 사료주라고 알려줘", "고양이 사료주기", "10분 뒤에"),
        ("10분 뒤에 맥주라고 알려줘", "맥주", "10분 뒤에"),
        ("10분 뒤에 이불 바꿔주라고 알려줘", "이불 바꿔주기", "10분 뒤에"),
        ("10분 뒤에 수박 잘라주라고 알려줘", "수박 잘라주기", "10분 뒤에"),
        ("10분 뒤에 형 데려다주라고 알려줘", "형 데려다주기", "10분 뒤에"),
        ("10분 뒤에 문 열어 달라고 알려줘", "문 열어 달라고 하기", "10분 뒤에"),
        ("10분 뒤에 사진 보내달라고 알려줘", "사진 보내달라고 하기", "10분 뒤에"),
        ("10분 뒤에 엄마한테 용돈 달라고 알려줘", "엄마한테 용돈 달라고 하기", "10분 뒤에"),
        ("10분 뒤에 코트에 단추 달라고 알려줘", "코트에 단추 달기", "10분 뒤에"),
        ("30분 후 알림: 빨래", "빨래", "30분 후"),
        ("알림 10분 뒤 빨래", "빨래", "10분 뒤"),
        ("내일 오전 9시 약 먹기 알림 설정해줘", "약 먹기", "내일 오전 9시"),
        ("내일 오전 ９시에 약을 알려줘", "약", "내일 오전 9시에"),
        ("내일 오전 9시에 가을 알려줘", "가을", "내일 오전 9시에"),
        ("내일 9시에 알림 보내줘", "", "내일 9시"),
        ("2시간 후에 리마인더 보내줘", "", "2시간 후"),
        ("2시간 후에 운동 알림 보내줘", "운동", "2시간 후에"),
        ("매주 월요일 오전 9시에 분리수거 알려줘", "분리수거", "매주 월요일 오전 9시에"),
        ("remind me at 5 past 9 tomorrow to call", "call", "at 5 past 9 tomorrow"),
        ("remind me at half past 7 to eat", "eat", "at half past 7"),
        ("remind me every other Tuesday at 8am to rest", "rest", "every other Tuesday at 8am"),
        ("remind me to buy 3 tomorrow", "buy 3", "tomorrow"),
    ],
)
def test_a_reminder_is_split_into_what_and_when(text: str, what: str, when: str) -> None:
    (parsed,) = read(text)
    assert (parsed.intent, parsed.slot("what"), parsed.slot("when")) == ("remind", what, when)
    assert not parsed.slot("trouble")


@pytest.mark.parametrize(
    ("text", "what", "span"),
    [
        ("eat before I leave an hour before the meeting at 3pm", "eat before I leave", "an hour"),
        (
            "wash hands before cooking 20 minutes before dinner at 7pm",
            "wash hands before cooking",
            "20 minutes",
        ),
        (
            "check in before the deadline two days before the flight on December 20 at 9am",
            "check in before the deadline",
            "two days",
        ),
        ("drink an hour before noon an hour before the show at 3pm", "drink an hour before noon", "an hour"),
    ],
)
def test_of_several_words_before_the_one_after_a_span_is_that_of_the_event(
    text: str, what: str, span: str
) -> None:
    (parsed,) = read(f"remind me to {text}")
    assert (parsed.slot("what"), parsed.slot("before"), parsed.slot("trouble")) == (what, span, "")


@pytest.mark.parametrize(
    "text",
    [
        "remind me to submit the report by Friday 5pm",
        "remind me to call before 18:30",
        "remind me to review Friday's numbers at 9am",
        "remind me 10 minutes before 18:30 to go",
        "remind me at 9am or 10am to go",
        "remind me next month at 9am to pay",
        "다음 달 3일 오전 9시에 약 먹으라고 알려줘",
        "오후 6시 전에 약 먹으라고 알려줘",
        "remind me to pay on the second last Friday of every month at 9am",
        "remind me to pay on the third last day of each month at 9am",
        "remind me to call mum the following Monday at 9am",
        "remind me to call mum on alternate Mondays at 9am",
        "remind me to call mum two Mondays at 9am",
        "remind me to call mum not on the first Monday of each month at 9am",
        "remind me to call mum on Good Friday at 9am",
        "remind me to call mum on New Year's Eve at 9am",
        "remind me to call mum on my birthday at 9am",
        "remind me to call mum in fortnight at 9am",
        "remind me to call mum mid-February at 9am",
        "remind me to call mum late morning tomorrow",
        "remind me to call mum starting tomorrow at 9am",
        "remind me to call mum tomoz at 9am",
        "remind me the day before the meeting on Friday at 9am",
        "remind me to pack the night before the flight on Friday at 9pm",
        "remind me to tell Tom that the meeting is at 5pm",
        "remind me to call mum in 3 working days at 9am",
        "remind me to call mum half nine tomorrow morning",
        "remind me to call mum on 3 May '27 at 9am",
        "remind me to call mum on 3 May 27 at 9am",
        "remind me to call mum May 3 and 5 at 9am",
        "remind me to call mum in 2027 at 9am",
        "remind me at 20 past to call mum",
        "내일 오전 9시에 아니다 모레 오전 9시에 약 먹으라고 알려줘",
        "내일 오후 3시 회의 30분 뒤에 알려줘",
        "내일 오후 3시 회의 전날에 알려줘",
        "내일 오후 3시 회의 30분 뒤에 가라고 알려줘",
        "정오 10분 전에 밥 하라고 알려줘",
        "내일 오후 3시 회의 하루 전 저녁 7시에 알려줘",
        "내일 오후 3시 수업 끝나고 알려줘",
        "내일 오후 3시에 비 오면 알려줘",
    ],
)
def test_a_time_that_could_mean_something_else_is_asked_about(text: str) -> None:
    (parsed,) = read(text)
    assert (parsed.intent, parsed.slot("trouble"), parsed.slot("when")) == ("remind", "unsure", "")
    assert parsed.slot("what")


@pytest.mark.parametrize(
    "text",
    [
        "add butter and cancel call mum",
        "add butter, don't forget eggs",
        "add butter and tick off milk",
        "버터 아니 잼 추가해줘",
    ],
)
def test_another_request_becomes_no_entry_of_a_list(text: str) -> None:
    assert one(text) == "two_meanings"


@pytest.mark.parametrize(
    "text",
    [
        "add a task pay rent by Good Friday",
        "add a task pay rent on the following Friday",
        "add a task pay rent a week on Friday",
        "todo call Bob by Friday and Ann by Monday",
    ],
)
def test_a_deadline_that_is_read_in_part_is_asked_about(text: str) -> None:
    assert one(text) == "two_meanings"


@pytest.mark.parametrize(
    ("english", "korean", "parsed"),
    [
        ("help", "도움말", "help"),
        ("Hello Andy!", "안녕하세요!", "greet"),
        ("thanks!", "고마워", "thank"),
        ("what time is it?", "지금 몇 시야?", "time"),
        ("what day is today", "오늘 며칠", "day"),
        ("yes", "네", "yes"),
        ("yes, it's done", "네 다 했어요", "yes"),
        ("Done!", "끝났어", "yes"),
        ("not yet", "아직요", "no"),
        ("never mind", "됐어", "never_mind"),
        ("list reminders", "알림 목록", "show_reminders"),
        ("what reminders do I have?", "알림 뭐 있어?", "show_reminders"),
        ("cancel reminder #3", "3번 알림 취소해줘", "cancel_reminder item=3"),
        ("cancel the reminder", "알림 취소해줘", "cancel_reminder"),
        ("what's open?", "뭐 남았어?", "show_open"),
        ("what is due?", "마감 뭐 있어?", "due"),
        ("add a task buy stamps", "작업 추가 buy stamps", "add_task title=buy stamps"),
        ("new task: buy stamps", "새 작업 buy stamps", "add_task title=buy stamps"),
        ("add a task", "작업 추가해줘", "add_task"),
        ("blog 80%", "blog은 80퍼센트 했어", "progress pct=80 task=blog"),
        ("blog is blocked: no time", "blog 막혔어: no time", "block reason=no time task=blog"),
        ("blog is no longer blocked", "blog 막힌 거 풀렸어", "unblock task=blog"),
        ("cancel task blog", "작업 blog 취소", "drop_task task=blog"),
        ("done 2", "2번 완료", "finish item=2"),
        ("show todo", "할 일 보여줘", "show_list list=todo"),
        ("clear done", "완료 항목 정리해줘", "clear_done"),
        ("lists", "목록 보여줘", "show_lists"),
        ("groups", "그룹 목록", "show_groups"),
        ("unregister group fam", "그룹 해제 fam", "drop_group folder=fam"),
        (
            "register group 12@g.us as fam named Our Fam",
            "그룹 등록 12@g.us fam Our Fam",
            "add_group folder=fam jid=12@g.us name=Our Fam",
        ),
        ("echo Hi, *there*!", "에코 Hi, *there*!", "echo text=Hi, *there*!"),
        ("remember for next time: the code", "다음에 기억해 줘: the code", "note note=the code"),
        ("what were we talking about?", "무슨 얘기 하고 있었지?", "recall"),
        ("what do you know about me?", "나에 대해 뭘 알아?", "know_me"),
        ("What have you noted about me", "저에 대해 뭘 알고 있어요?", "know_me"),
        ("What do you remember about us", "우리에 대해 뭐 기억하고 있어?", "know"),
        ("forget that I like jazz", "I like jazz 잊어 줘", "forget about=I like jazz"),
        ("forget about the dentist", "the dentist에 대해 잊어줘", "forget about=the dentist"),
        ("forget it", "됐어", "never_mind"),
    ],
)
def test_both_languages_ask_for_the_same(english: str, korean: str, parsed: str) -> None:
    for text, language in ((english, Language.ENGLISH), (korean, Language.KOREAN)):
        (found,) = read(text)
        assert (described(found), found.language) == (parsed, language)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("what's on today?", "agenda day=today"),
        ("오늘 뭐 있어?", "agenda day=오늘"),
        ("what's on tomorrow?", "agenda day=tomorrow"),
        ("내일 일정 알려줘", "agenda day=내일"),
        ("what do we have on friday?", "agenda day=friday"),
        ("what's on the shopping list?", "show_list list=shopping"),
        ("what's on the list?", "show_list it=the list"),
        ("clear the list", "clear_list it=the list"),
        ("clear the shopping list", "clear_list list=shopping"),
        ("장보기 목록 비워줘", "clear_list list=장보기"),
        ("done milk on the shopping list", "finish item=milk list=shopping"),
        ("mark 2 as done", "finish item=2"),
        ("rent is done", "finish item=rent"),
        ("remove milk from the shopping list", "remove item=milk list=shopping"),
        ("우유를 장보기 목록에서 빼줘", "remove item=우유 list=장보기"),
        ("add a task: pay rent tomorrow", "add_task title=pay rent when=tomorrow"),
        ("add a task read a book by Tolkien", "add_task title=read a book by Tolkien"),
        ("todo pay rent by Friday", "add_task title=pay rent when=Friday"),
        ("할 일 추가 보고서 쓰기 금요일까지", "add_task title=보고서 쓰기 when=금요일"),
        ("set a timer for 3 minutes", "timer span=3 minutes"),
        ("3분 타이머 맞춰줘", "timer span=3분"),
        ("wake me at 6:30", "get_up when=at 6:30"),
        ("6시 30분에 깨워줘", "get_up when=6시 30분에"),
        ("wake up in 45m", "wake after=45m"),
        ("sleep for 240 minutes", "wake after=240 minutes"),
        ("45분 뒤에 일어나", "wake after=45분"),
        ("마감 전날 알려줘", "before_deadline before=전날"),
        ("블로그 마감 전날 저녁 6시에 알림 보내줘", "before_deadline before=전날 clock=저녁 6시 task=블로그"),
        ("remind me the day before the blog is due", "before_deadline before=the day before task=blog"),
        ("remind me a day before the deadline", "before_deadline before=a day before"),
        ("", "called"),
        ("what's the weather tomorrow?", 'unknown text="whats the weather tomorrow?"'),
        ("내일 날씨 알려줘", "unknown text=내일 날씨 알려줘"),
        ("what did we pay?", "unknown text=what did we pay?"),
        ("add milk to shopping", "add_items items=milk list=shopping"),
        ("장보기에 우유 추가", "add_items items=우유 list=장보기"),
        ("remove milk", "remove item=milk"),
        ("tasks", "show_open"),
        ("what do I have to do tomorrow?", "agenda day=tomorrow"),
        ("보고서 작업 추가해줘 내일까지", "add_task title=보고서 when=내일"),
        ("move reminder 1 to 6pm", "move alarm=reminder item=1 when=6pm"),
        ("well done", "praise"),
        ("battery 200%", "unknown text=battery 200%"),
    ],
)
def test_everyday_words(text: str, parsed: str) -> None:
    assert one(text) == parsed


@pytest.mark.parametrize("gap", [" ", "\t", "\u3000", " \n"])
def test_a_long_gap_holds_up_nobody(gap: str) -> None:
    """Patterns with several gaps tried each way to share a long one: it took minutes."""
    assert read(f"add{gap * 900}milk")


def test_hangul_typed_in_pieces_is_read_like_any_other() -> None:
    assert one(unicodedata.normalize("NFD", "도움말")) == "help"


def test_what_is_too_long_for_patterns_is_left_to_a_model() -> None:
    assert [parsed.intent for parsed in read("remind me in 5 minutes to " + "x" * MAX_CHARS)] == ["unknown"]


@pytest.mark.parametrize(
    "piece", ["show todo and ", "추가하고 ", "add milk and remind me at 5pm to x, ", "a, ", "and "]
)
def test_a_heap_of_joiners_is_not_cut_everywhere(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def counted(text: str) -> ParsedRequest | None:
        nonlocal looks
        looks += 1
        return one_of(text)

    one_of = reading.parse_one
    monkeypatch.setattr(reading, "parse_one", counted)
    assert read((piece * MAX_CHARS)[:MAX_CHARS])
    assert looks < 500, "each look is a walk through the whole table"


def test_each_part_of_a_message_whose_first_is_not_understood_is_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each further part doubled the work: a line of 20 of them took minutes."""
    looks = 0

    def counted(text: str) -> ParsedRequest | None:
        nonlocal looks
        looks += 1
        assert looks < 1000, "each look is a walk through the whole table"
        return one_of(text)

    one_of = reading.parse_one
    monkeypatch.setattr(reading, "parse_one", counted)
    first, *rest = read(" and ".join(["we are late", *["show my list"] * 18]))
    assert (first.intent, {parsed.intent for parsed in rest}, len(rest)) == (
        "unknown_part",
        {"show_list"},
        18,
    )


PIECES = st.sampled_from(
    """
    remind me us to in 5 minutes at 9 tomorrow add done list the on from todo show cancel reminder milk , : .
    and every clear what's please 알려줘 알림 목록 할 일 에 추가 완료 취소
    내일 오전 9시에 10분 뒤 먹으라고
    우유 에서 빼줘 라고 을 를 으라고 고 까지 마감 전날 매일
    """.split()  # noqa: SIM905  # a heap of words reads as one
)


@given(
    st.one_of(
        st.text(max_size=200), *(st.lists(PIECES, max_size=10).map(gap.join) for gap in ("", " ", "\n"))
    )
)
def test_any_text_is_read_and_comes_to_something(text: str) -> None:
    requests = read(text)
    assert requests
    for parsed in requests:
        if parsed.intent == "add_items":
            assert all(item.strip() for item in parsed.slot("items").splitlines())


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("cn u add butter", "add_items items=butter"),
        ("cn u remind me at 5pm to cook", "remind what=cook when=at 5pm"),
        ("remind me to pay rent tommorow at 9am", "remind what=pay rent when=tomorrow at 9am"),
        ("remind me to pay rent Tommorow at 9am", "remind what=pay rent when=tomorrow at 9am"),
        ("remind me tomorow to pay rent at 9am", "remind what=pay rent when=tomorrow at 9am"),
        ("remind me to pay rent on firday at 9am", "remind what=pay rent when=on friday at 9am"),
        ("add a task pay rent by tommorow", "add_task title=pay rent when=tomorrow"),
        ("remind me to pay rent on Firday at 9am", "remind what=pay rent when=on friday at 9am"),
        ("remind me to call Munday at 5pm", "remind what=call Munday when=at 5pm"),
        ("remind me on Sunday morinng to bake", "remind what=bake when=on Sunday morning"),
        ("remind me at 5 pats 9 tomorrow to call", "remind what=call when=at 5 past 9 tomorrow"),
        ("remind me at 5 check the weekly list", "remind what=check the weekly list when=at 5"),
        ("add a task plan the party by nxt Friday", "add_task title=plan the party when=next Friday"),
        ("remind me to call bob nxt friday at 5pm", "remind what=call bob when=next friday at 5pm"),
        (
            "remind me evry Tuesday and Thursday at 6pm to train",
            "remind what=train when=every Tuesday and Thursday at 6pm",
        ),
        ("remind me to be very quiet at 5pm", "remind what=be very quiet when=at 5pm"),
        ("remind me to switch on light at 5pm", "remind what=switch on light when=at 5pm"),
        ("remind me to visit beach monday at 9am", "remind what=visit beach when=monday at 9am"),
        ("remind me to mend net friday at 5pm", "remind what=mend net when=friday at 5pm"),
        ("remind me to call Marc at 5pm", "remind what=call Marc when=at 5pm"),
        ("remind me to meet dany at 5pm", "remind what=meet dany when=at 5pm"),
        ("remind me to cal mum at 5pm", "remind what=cal mum when=at 5pm"),
        ("call mum tommorow at 9am", "remind offered=yes what=call mum when=tomorrow at 9am"),
        ("dentist firday at 9am", "remind offered=yes what=dentist when=friday at 9am"),
        ("call Munday at 5pm", "remind offered=yes what=call Munday when=at 5pm"),
        ("meet dany at 5pm", "remind offered=yes what=meet dany when=at 5pm"),
    ],
)
def test_a_slip_in_a_day_moves_no_reminder_to_today_and_other_words_stay(text: str, request_: str) -> None:
    assert one(text) == request_


@pytest.mark.parametrize(
    ("words", "text", "is_near"),
    [
        ("cal mum", "call mum", True),
        ("mum", "call mum", True),
        ("mlik", "milk", True),
        ("ham", "jam", False),
        ("12", "13", False),
        ("all", "call Bob", False),
        ("call mum and dad", "call mum", False),
        ("", "call mum", False),
    ],
)
def test_words_are_near_a_text_that_has_each_of_them_but_for_slips(
    words: str, text: str, *, is_near: bool
) -> None:
    assert fits_despite_slips(words, text) is is_near


def blanks(text: str) -> set[str]:
    """The blanks of a sentence; `List` is the blank `list` where it begins one."""
    return {name.lower() for _, name, _, _ in Formatter().parse(text) if name}


def test_both_languages_have_every_sentence_with_the_same_blanks() -> None:
    for name, (english, korean) in intents.ANSWERS.items():
        assert blanks(english) == blanks(korean), name


def test_every_refusal_has_a_sentence() -> None:
    known = set(intents.ANSWERS)
    assert {f"time.{reason}" for reason in Reason} <= known
    assert {f"list_error.{problem}" for problem in ListProblem} <= known
    assert {f"clocks.{shift}" for shift in Shift} <= known
    assert {"greet", "thank", "time", "day", "called"} <= known


def forms_of(node: ast.expr) -> set[str]:
    """The sentences that an argument can name: a text, either text of a choice, or all with a beginning."""
    match node:
        case ast.Constant(value=str() as name):
            return {name}
        case ast.IfExp(body=body, orelse=orelse):
            return forms_of(body) | forms_of(orelse)
        case ast.JoinedStr(values=[ast.Constant(value=str() as head), *_]):
            return {name for name in intents.ANSWERS if name.startswith(head)}
    return set()


def test_every_sentence_that_the_code_names_is_in_the_table_and_gets_its_blanks() -> None:
    """A sentence without a row, or a call without one of its blanks, fails only in the chat that needs it."""
    named = set()
    for file in Path(intents.__file__).parent.glob("*.py"):
        calls = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Call)]
        for call in [
            call for call in calls if ast.unparse(call.func).rpartition(".")[2] == "say" and call.args
        ]:
            forms = forms_of(call.args[0])
            named |= forms
            given = {keyword.arg for keyword in call.keywords}
            if file.stem == "lists" or ast.unparse(call.func) == "lists.say":
                given.add("list")  # `Lists.say` names the list in every sentence
            for form in forms & set(intents.ANSWERS) if None not in given else ():
                assert blanks(intents.ANSWERS[form][0]) <= given, f"{file.name}:{call.lineno} {form}"
    assert len(named) > 50
    assert named <= set(intents.ANSWERS)


MADE_WHILE_READING = {"add_tasks", "one_or_more", "unknown", "unknown_part"}
TAKE_BACK = {"put_back", "reopen", "remove_items", "remind_again", "restore_deadline"}
"""Requests that only take a change back."""
READ_AS_OTHERS = {"add_todo"}


def test_every_intent_is_carried_out_and_every_handler_has_an_intent() -> None:
    """A method that has no intent's name is never called, and nothing else would say so."""
    kinds = (Reminders, Lists, Board, About)
    handled = {name.removeprefix("do_") for kind in kinds for name in dir(kind) if name.startswith("do_")}
    answered = {name for name, row in intents.ROWS.items() if "answer" in row}
    named = {name for name, row in intents.ROWS.items() if "means" not in row} | MADE_WHILE_READING
    assert handled <= named | TAKE_BACK
    assert named - handled - answered == READ_AS_OTHERS


def test_every_slot_that_code_reads_is_described() -> None:
    directory = Path(intents.__file__).parent
    code = "".join(path.read_text("utf-8") for path in directory.glob("*.py"))
    head = (directory / "intents.toml").read_text("utf-8").partition("A request has slots")[2]
    names = re.findall(r"^#   ((?:\w+, )*\w+) ", head.partition("same_times =")[0], re.MULTILINE)
    assert set(re.findall(r'slot\("(\w+)"\)', code)) <= set(", ".join(names).split(", "))


@pytest.mark.parametrize("language", list(Language))
def test_every_example_in_the_help_is_understood(language: Language) -> None:
    help_text = intents.say("help", language, name="Andy") + intents.say("help_main", language)
    bullets = [line[2:] for line in help_text.splitlines() if line.startswith("• ")]
    for example in (part for bullet in bullets for part in bullet.split(" · ")):
        (parsed,) = read(example)
        assert parsed.intent != "unknown", example
        assert not parsed.slot("trouble"), example
        assert parsed.language is language, example
