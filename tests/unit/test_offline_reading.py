from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runner.agents.offline.dates import Trouble
from agent_runner.agents.offline.intents import (
    AddGroup,
    AddItems,
    AddTask,
    CancelReminder,
    DropGroup,
    Echo,
    Language,
    ListAct,
    NoteToSelf,
    OnList,
    Plain,
    Remind,
    RemindUnclear,
    SetProgress,
    Wake,
    Wish,
)
from agent_runner.agents.offline.reading import MAX_CHARS, read


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("remind me to call mum in 10 minutes", "call mum"),
        ("Remind us at 18:30 to start dinner", "start dinner"),
        ("remind me tomorrow at 9am to pay rent.", "pay rent"),
        ("remind me tomorrow to pay rent at 9am", "pay rent"),
        ("in 2 hours remind me to stretch", "stretch"),
        ("Please remind me on Friday at 3pm about the dentist, thanks!", "the dentist"),
        ("can you remind me in 5 minutes that tea is ready?", "tea is ready"),
        ("remind me to take the 18:30 train in 2 hours", "take the 18:30 train"),
        ("remind me at 8:00 to take the pills at 9am", "take the pills at 9am"),
        ("remind me to log in at 17:00", "log in"),
        ("set a reminder for 18:30 to leave", "leave"),
        ("reminder: tomorrow 9:00 dentist", "dentist"),
        ("내일 오전 9시에 약 먹으라고 알려줘", "약 먹기"),
        ("약 먹으라고 내일 오전 9시에 알려줘", "약 먹기"),
        ("내일 약 먹으라고 오전 9시에 알려주세요", "약 먹기"),
        ("10분 뒤에 회의라고 알려줘", "회의"),
        ("10분 뒤에 회의가 있다고 알려줘.", "회의가 있다"),
        ("10분 뒤에 불 끄라고 알려줘", "불 끄기"),
        ("내일 18시에 화분에 물 주라고 알려줘", "화분에 물 주기"),
        ("내일 18시에 편지 보내라고 알려줘", "편지 보내기"),
        ("오후 3시에 회의 준비하라고 알려줘", "회의 준비하기"),
        ("오후 3시에 4시 회의 준비하라고 알려줘", "4시 회의 준비하기"),
        ("30분 후 알림: 빨래", "빨래"),
        ("30분 후 알림：빨래", "빨래"),
        ("알림 10분 뒤 빨래", "빨래"),
        ("내일 오전 9시 약 먹기 알림 설정해줘", "약 먹기"),
        ("내일 오전 ９시에 약을 알려줘", "약"),
        ("내일 오전 9시에 가을 알려줘", "가을"),
    ],
)
def test_a_reminder_is_told_apart_into_what_and_when(text: str, what: str) -> None:
    wish = read(text).wish
    assert isinstance(wish, Remind), wish
    assert wish.what == what


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("remind me", Trouble.NO_TIME),
        ("remind me to call mum", Trouble.NO_TIME),
        ("remind me when I get home to call mum", Trouble.NO_TIME),
        ("remind me in 10 minutes", Trouble.NO_TEXT),
        ("remind me in 10 minutes to", Trouble.NO_TEXT),
        ("remind me tomorrow to pay rent", Trouble.NEEDS_CLOCK),
        ("remind me to submit the report by Friday 5pm", Trouble.TIME_FIRST),
        ("remind me to call before 18:30", Trouble.TIME_FIRST),
        ("remind me to pay on 12/5 at 9am", Trouble.TIME_FIRST),
        ("remind me at 9am on 12/5 to pay", Trouble.TIME_FIRST),
        ("remind me to review Friday's numbers at 9am", Trouble.TIME_FIRST),
        ("remind me 10 minutes before 18:30 to go", Trouble.TIME_FIRST),
        ("remind me at 9am or 10am to go", Trouble.TIME_FIRST),
        ("remind me next month at 9am to pay", Trouble.TIME_FIRST),
        ("remind me at 9am every day to take pills", Trouble.REPEATS),
        ("remind me to take pills daily", Trouble.REPEATS),
        ("매일 오전 9시에 약 먹으라고 알려줘", Trouble.REPEATS),
        ("월요일마다 오전 9시에 약 먹으라고 알려줘", Trouble.REPEATS),
        ("다음 달 3일 오전 9시에 약 먹으라고 알려줘", Trouble.TIME_FIRST),
        ("약 먹으라고 다음 달 3일 오전 9시에 알려줘", Trouble.TIME_FIRST),
        ("오후 6시 전에 알려줘", Trouble.TIME_FIRST),
        ("내일 약 먹으라고 알려줘", Trouble.NEEDS_CLOCK),
        ("나중에 약 먹으라고 알려줘", Trouble.NO_TIME),
    ],
)
def test_a_reminder_that_could_mean_something_else_is_not_guessed(text: str, trouble: Trouble) -> None:
    assert read(text).wish == RemindUnclear(trouble)


@pytest.mark.parametrize(
    ("english", "korean", "wish"),
    [
        ("help", "도움말", Plain.HELP),
        ("Hello Andy!", "안녕하세요!", Plain.GREET),
        ("thanks!", "고마워", Plain.THANK),
        ("what time is it?", "지금 몇 시야?", Plain.TELL_TIME),
        ("what day is today", "오늘 며칠", Plain.TELL_DAY),
        ("what’s on today?", "오늘 뭐 있어?", Plain.TELL_TODAY),
        ("list reminders", "알림 목록", Plain.SHOW_REMINDERS),
        ("cancel reminder 3", "알림 3 취소", CancelReminder(3)),
        ("cancel reminder #3", "3번 알림 취소해줘", CancelReminder(3)),
        ("todo buy stamps", "할 일 추가 buy stamps", AddItems(("buy stamps",))),
        (
            "add call Bob, then pay to my todo list",
            "call Bob, then pay 할 일 목록에 추가",
            AddItems(("call Bob, then pay",)),
        ),
        ("what's open?", "뭐 남았어?", Plain.SHOW_OPEN),
        ("show me the dashboard", "대시보드 보여줘", Plain.SHOW_OPEN),
        ("add a task buy stamps", "작업 추가 buy stamps", AddTask("buy stamps")),
        ("create a new task: buy stamps", "buy stamps 작업으로 등록해줘", AddTask("buy stamps")),
        (
            "add task buy stamps by 2026-12-12",
            "2026-12-12까지 buy stamps 작업 추가",
            AddTask("buy stamps", "2026-12-12"),
        ),
        ("blog 80%", "blog 80퍼센트", SetProgress("blog", 80)),
        ("blog is at 80 percent", "blog은 80퍼센트 했어", SetProgress("blog", 80)),
        ("show todo", "할 일 보여줘", OnList(ListAct.SHOW)),
        ("done 2", "2번 완료", OnList(ListAct.FINISH, item="2")),
        ("clear done", "완료 항목 정리해줘", OnList(ListAct.CLEAR_DONE)),
        ("lists", "목록 보여줘", Plain.SHOW_LISTS),
        ("wake up in 45m", "45분 뒤에 일어나", Wake("45m")),
        ("wake yourself again in 2h please", "2시간 후에 다시 깨어나줘", Wake("2h")),
        ("groups", "그룹 목록", Plain.SHOW_GROUPS),
        ("unregister group fam", "그룹 해제 fam", DropGroup("fam")),
        (
            "register group 12@g.us as fam named Our Fam",
            "그룹 등록 12@g.us fam Our Fam",
            AddGroup(jid="12@g.us", folder="fam", name="Our Fam"),
        ),
        ("echo Hi, *there*!", "에코 Hi, *there*!", Echo("Hi, *there*!")),
        ("write me a poem", "시 한 편 써줘", Plain.NEEDS_MODEL),
        ("what's the weather tomorrow?", "내일 날씨 알려줘", Plain.NEEDS_MODEL),
    ],
)
def test_both_languages_wish_the_same(english: str, korean: str, wish: Wish) -> None:
    assert read(english).wish == wish
    assert read(english).language is Language.ENGLISH
    assert read(korean).wish == wish
    assert read(korean).language is Language.KOREAN


@pytest.mark.parametrize(
    ("text", "wish"),
    [
        ("add milk to the shopping list", AddItems(("milk",), "shopping")),
        (
            "add milk, eggs, and bread to our weekend trip list",
            AddItems(("milk", "eggs", "bread"), "weekend trip"),
        ),
        ("add 우유 to the shopping list", AddItems(("우유",), "shopping")),
        ("what's on the shopping list?", OnList(ListAct.SHOW, "shopping")),
        ("shopping list", OnList(ListAct.SHOW, "shopping")),
        ("done milk on the shopping list", OnList(ListAct.FINISH, "shopping", "milk")),
        ("mark 2 as done", OnList(ListAct.FINISH, item="2")),
        ("remove milk from the shopping list", OnList(ListAct.REMOVE, "shopping", "milk")),
        ("우유 장보기 목록에 추가", AddItems(("우유",), "장보기")),
        ("장보기 목록에 우유, 계란을 추가해줘", AddItems(("우유", "계란"), "장보기")),
        ("장보기 목록 2번 완료", OnList(ListAct.FINISH, "장보기", "2")),
        ("우유를 장보기 목록에서 빼줘", OnList(ListAct.REMOVE, "장보기", "우유")),
        ("장보기 목록 보여줘", OnList(ListAct.SHOW, "장보기")),
    ],
)
def test_lists_go_by_their_name(text: str, wish: Wish) -> None:
    assert read(text).wish == wish


def test_a_reminder_for_us_names_nobody() -> None:
    for text in ("remind us in 5 minutes to leave", "우리에게 5분 뒤 출발이라고 알려줘"):
        wish = read(text).wish
        assert isinstance(wish, Remind)
        assert wish.is_for_all


def test_hangul_typed_in_pieces_is_read_like_any_other() -> None:
    assert read(unicodedata.normalize("NFD", "도움말")).wish is Plain.HELP


def test_what_is_too_long_for_patterns_is_left_to_a_model() -> None:
    assert read("remind me in 5 minutes to " + "x" * MAX_CHARS).wish is Plain.NEEDS_MODEL


@given(st.text(max_size=200))
def test_any_text_is_read_without_failing(text: str) -> None:
    read(text)


PIECES = st.sampled_from(
    """
    remind me us to in 5 minutes at 9 tomorrow add done list the on from todo show cancel reminder milk , : .
    please 알려줘 알림 목록 할 일 에 추가 완료 취소 내일 오전 9시에 10분 뒤 먹으라고 우유 에서 빼줘 라고 을 를
    으라고
    """.split()  # noqa: SIM905  # a heap of words reads as one
)


@given(
    st.lists(PIECES, max_size=10).flatmap(lambda words: st.sampled_from(["".join(words), " ".join(words)]))
)
def test_any_heap_of_known_words_is_read_without_failing(text: str) -> None:
    wish = read(text).wish
    if isinstance(wish, Remind):
        assert wish.what
        assert wish.when.is_complete
    if isinstance(wish, AddItems):
        assert all(item.strip() for item in wish.items)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("note to self: buy milk", "buy milk"),
        ("Note to self buy milk", "buy milk"),
        ("leave a note to yourself: ask Ann", "ask Ann"),
        ("please remember for next time: the code is 42", "the code is 42"),
        ("remember for next time that Ann is on leave", "Ann is on leave"),
        ("remember the code is 42 for next time", "the code is 42"),
        ("다음에 기억해 줘: 코드는 42", "코드는 42"),
        ("다음번에 기억해: 우유", "우유"),
        ("다음을 위해 메모: 우유 사기", "우유 사기"),
        ("스스로에게 메모: 우유 사기", "우유 사기"),
        ("코드는 42라고 다음에 기억해줘", "코드는 42"),
    ],
)
def test_a_note_to_oneself_is_understood(text: str, note: str) -> None:
    assert read(text).wish == NoteToSelf(note)
