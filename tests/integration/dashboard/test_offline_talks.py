"""Whole talks with the agent without a model, through the real reception: what is asked, answered, done."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent_runner.workspace import Workspace
from orchestrator.domain.dashboard import QuestionType
from tests.support.dashboard_harness import DAY_MS, FEB_9_0830, HOUR_MS, a_question, blog
from tests.support.offline_chat import Chat, talking
from tests.support.store_harness import StoreHarness

TALKS = {
    "milk, eggs and bread are three things": """
        > add milk, eggs and bread
        On which list shall I put milk, eggs, bread?
        > shopping
        Added to the shopping list: milk, eggs, bread.
        > add tea to the list
        Added to the shopping list: tea.
        > show the list
        1. milk
        2. eggs
        > done 2
        Done on the shopping list: eggs.
    """,
    "two to-dos": """
        > todo a, b
        Added to the to-do list: a, b.
        > show todo
        1. a
        2. b
    """,
    "what is done is counted": """
        > todo a, b
        Added to the to-do list: a, b.
        > done a
        Done on the to-do list: a.
        > show todo
        2. b
        (Done: 1. 'clear done' takes them off the to-do list.)
        > 완료 항목 정리해줘
        할 일 목록에서 완료한 항목을 정리했어요: 1개.
    """,
    "two wishes in two lines": r"""
        > todo buy stamps\nremind me at 5pm to cook
        Added to the to-do list: buy stamps.
        I'll remind you on Mon 2026-02-09 17:00: cook (reminder 1).
    """,
    "two things with a time each are asked about one by one": """
        > pay rent tomorrow and call mum on Friday
        Shall I remind you of 'pay rent'? At what time on Tue 2026-02-10?
        I'll ask about 'call mum' after that.
        > 9am
        I'll remind you on Tue 2026-02-10 09:00: pay rent (reminder 1).
        Next: Shall I remind you of 'call mum'? At what time on Fri 2026-02-13?
        > what time is it?
        It's 08:30
        > 10:30
        I'll remind you on Fri 2026-02-13 10:30: call mum (reminder 2).
    """,
    "one to-do or two is asked": """
        > todo buy stamps and call mum
        Is that one or 2?
        2. Several: buy stamps · call mum
        > two
        Added to the to-do list: buy stamps, call mum.
    """,
    "morning or evening": """
        > remind me at 9 to call mum
        Morning or evening?
        > evening
        I'll remind you on Mon 2026-02-09 21:00: call mum (reminder 1).
        > remind me tomorrow at 3 to call mum
        Morning or evening?
        > in the afternoon please
        I'll remind you on Tue 2026-02-10 15:00: call mum (reminder 2).
    """,
    "오전인가요, 오후인가요": """
        > 오늘 9시에 약 먹으라고 알려줘
        오전인가요, 오후인가요?
        > 저녁이요
        2026-02-09 (월) 21:00에 알려드릴게요: 약 먹기 (알림 1번).
        > 내일 약 먹으라고 알려줘
        몇 시에요, 2026-02-10 (화)?
        > 아침 7시
        2026-02-10 (화) 07:00에 알려드릴게요: 약 먹기 (알림 2번).
        > 10분 뒤에 빨래 널라고 알려줘
        2026-02-09 (월) 08:40에 알려드릴게요: 빨래 널기 (알림 3번).
    """,
    "what is not said is asked": """
        > remind me
        What should I remind you of?
        > call mum
        When?
        > in 10 minutes
        I'll remind you on Mon 2026-02-09 08:40: call mum (reminder 1).
        > remind me today at 7:00 to jog
        That time is past (Mon 2026-02-09 07:00). When, then?
        > tomorrow
        I'll remind you on Tue 2026-02-10 07:00: jog (reminder 2).
        > remind me tomorrow at 25:00 to jog
        There is no such time.
        > never mind
        All right, I leave it.
    """,
    "what repeats": """
        > remind us every Monday at 9 to take out the bins
        I'll remind you every Monday at 09:00: take out the bins. The first time is Mon 2026-02-09 09:00.
        > 매일 아침 7시에 약 먹으라고 알려줘
        매일 07:00에 알려드릴게요: 약 먹기. 첫 번째는 2026-02-10 (화) 07:00이에요.
        > what reminders do I have?
        1. every Monday at 09:00, next Mon 2026-02-09 09:00 · Reminder: take out the bins
        2. every day at 07:00, next Tue 2026-02-10 07:00 · Jane님 알림: 약 먹기
        > what's on tomorrow?
        • 07:00 Jane님 알림: 약 먹기
        > what's on wednesday?
        • 07:00 Jane님 알림: 약 먹기
        > cancel reminder 1
        Cancelled: Reminder: take out the bins.
        > list reminders
        1. every day at 07:00
        > remind me every 5 minutes to blink
        That is too often
        > every hour
        I'll remind you every hour: blink.
    """,
    "timers and getting up": """
        > set a timer for 3 minutes
        I'll remind you on Mon 2026-02-09 08:33: the timer is over (reminder 1).
        > 3분 타이머
        2026-02-09 (월) 08:33에 알려드릴게요: 타이머가 끝났어요 (알림 2번).
        > wake me at 6:30
        I'll remind you on Tue 2026-02-10 06:30: time to get up (reminder 3).
        > wake me up at 7
        I'll remind you on Tue 2026-02-10 07:00: time to get up (reminder 4).
    """,
    "clear the list": """
        > add tea, rice to the shopping list
        Added to the shopping list: tea, rice.
        > clear the list
        Take everything off the shopping list, 2 in all? Say yes or no.
        > no
        All right, I leave it.
        > clear the list
        Take everything off the shopping list, 2 in all? Say yes or no.
        > yes
        Took everything off the shopping list: 2.
    """,
    "리마인더": """
        > 내일 9시에 알림 보내줘
        2026-02-10 (화) 09:00에 알려드릴게요 (알림 1번).
        > 2시간 후에 리마인더 보내줘
        2026-02-09 (월) 10:30에 알려드릴게요 (알림 2번).
        > 2시간 후에 운동 알림 보내줘
        2026-02-09 (월) 10:30에 알려드릴게요: 운동 (알림 3번).
        > 마감 전날 알려줘
        마감이 있는 작업이 없어요.
        > 작업 추가 블로그 쓰기 2월 20일까지
        대시보드에 올렸어요: 블로그 쓰기, 기한 2026-02-20.
        > 마감 전날 알려줘
        2026-02-19 (목) 09:00에 알려드릴게요: '블로그 쓰기' 마감이 2026-02-20 (알림 4번).
        > 블로그 마감 전날 저녁 6시에 알림 보내줘
        2026-02-19 (목) 18:00에 알려드릴게요
        > 알림 취소해줘
        어느 알림을 취소할까요?
        2. 2026-02-09 (월) 10:30 · Jane님 알림: 운동
        > 2
        취소했어요: Jane님 알림: 운동.
    """,
    "알림 하나": """
        > 10분 뒤에 회의라고 알려줘
        2026-02-09 (월) 08:40에 알려드릴게요: 회의 (알림 1번).
        > 알림 취소해줘
        취소했어요: Jane님 알림: 회의.
        > 알림 목록
        알림이 없어요.
    """,
    "deadlines": """
        > add a task: pay rent tomorrow
        On the dashboard: pay rent, due 2026-02-10.
        > 할 일 추가 보고서 쓰기 금요일까지
        대시보드에 올렸어요: 보고서 쓰기, 기한 2026-02-13.
        > new task fix the door by Feb 30
        I haven't put 'fix the door' on the dashboard: There is no such day.
        > 1 March at 6pm
        On the dashboard: fix the door, due 2026-03-01 18:00.
        > add a task fix the sink by yesterday
        I haven't put 'fix the sink' on the dashboard: That time is past
        > 됐어
        All right, I leave it.
        > what is due?
        1. pay rent (0%, due 2026-02-10)
        3. fix the door (0%, due 2026-03-01 18:00)
        > 오늘 뭐 있어?
        1. pay rent (0%, 기한 2026-02-10)
        > what's on tomorrow?
        1. pay rent (0%, due 2026-02-10)
        > rent is blocked: no money
        pay rent is noted as blocked (no money).
        > what's open?
        1. pay rent (0%, due 2026-02-10, blocked)
        > rent is not blocked any more
        pay rent is no longer blocked.
        > blog is blocked
        No open task fits 'blog'.
    """,
    "numbers mean the list that was shown last": """
        > todo buy stamps, call Bob
        Added to the to-do list: buy stamps, call Bob.
        > add a task write the essay by Friday
        On the dashboard: write the essay, due 2026-02-13.
        > add a task write the essay
        On the dashboard: write the essay (no deadline).
        > done 1
        Which one is done?
        1. the task 'write the essay'
        2. the to-do 'buy stamps'
        > 2
        Done on the to-do list: buy stamps.
        > what's open?
        1. write the essay
        2. write the essay
        3. call Bob
        > done 3
        Done on the to-do list: call Bob.
        > done 9
        There is no 9 on the list I showed last.
        > done essay
        Which one is done?
        1. the task 'write the essay' (0%,
        > the first
        Done: write the essay.
    """,
    "an unknown wish": """
        > write me a poem
        I can't do that: I only understand simple requests. Say 'help' to see which.
        > add milk to the shopping list and what's the weather like?
        Added to the shopping list: milk.
        I didn't understand this part: 'what's the weather like?'.
        > yes
        I asked nothing just now.
        >
        Yes? Say 'help' to see what I can do.
    """,
}


@pytest.fixture
async def chat(store_harness: StoreHarness, tmp_path: Path) -> AsyncIterator[Chat]:
    async with talking(store_harness, Workspace(tmp_path)) as one:
        yield one


@pytest.mark.parametrize("name", TALKS)
async def test_a_talk_goes_as_written(chat: Chat, name: str) -> None:
    """What follows a line of a person stands, line by line and in this order, in what is answered."""
    said = ""
    for line in TALKS[name].strip().splitlines():
        line = line.strip()
        if line.startswith(">"):
            said = await chat.say(line[1:].strip().replace("\\n", "\n"))
            continue
        _, found, said = said.partition(line)
        assert found, f"{line!r} is not in: {said or _!r}"


async def test_yes_completes_the_task_that_was_asked_about(chat: Chat) -> None:
    asked = {"asked_count": 1, "last_asked_ms": FEB_9_0830 - HOUR_MS, "type": QuestionType.COMPLETION_CHECK}
    text = "“Write blog post” is at 90%. Is it done?"
    await chat.home.put(blog(pct=90), a_question(question=text, **asked))
    assert await chat.say("yes") == "Done: Write blog post."
    assert (await chat.home.task("task_001")).status.value == "completed"
    assert not (await chat.home.question("q_001")).is_open


async def test_no_leaves_it_open_and_notes_the_answer(chat: Chat) -> None:
    asked = {"asked_count": 1, "last_asked_ms": FEB_9_0830 - HOUR_MS, "type": QuestionType.COMPLETION_CHECK}
    await chat.home.put(
        blog(), a_question(question="“Write blog post” 진행률이 90%입니다. 다 됐나요?", **asked)
    )
    assert await chat.say("아직요") == "알겠어요. Write blog post은(는) 남겨 둘게요."
    assert (await chat.home.task("task_001")).status.value == "active"
    assert (await chat.home.question("q_001")).answer == "no"


async def test_a_yes_to_two_questions_asked_at_once_is_asked_back(chat: Chat) -> None:
    asked = {"asked_count": 1, "last_asked_ms": FEB_9_0830 - HOUR_MS}
    await chat.home.put(
        blog(),
        blog(id="task_002", title="Pay rent"),
        a_question(question="“Write blog post” Is it done?", **asked),
        a_question(id="q_002", question="“Pay rent” Is it done?", task_id="task_002", **asked),
    )
    both = await chat.say("yes")
    assert both.startswith("Which one do you mean?\n1. ")
    assert await chat.say("rent") == "Done: Pay rent."
    assert (await chat.home.task("task_001")).status.value == "active"


@pytest.mark.parametrize(
    ("lines", "ask", "head", "take_back", "sure", "yes", "nothing"),
    [
        (
            "- Jane likes jazz\n- The dog is Bello\n",
            "what do you know about me?",
            "This is what I know",
            "forget that I like jazz",
            "Forget this for good?",
            "yes",
            "Nothing that I know has these words.",
        ),
        (
            "- 제인은 재즈를 좋아함\n- 개 이름은 벨로\n",
            "나에 대해 뭘 알아?",
            "이 대화방과 여러분에 대해",
            "내가 재즈를 좋아한다는 것 잊어 줘",
            "완전히 잊을까요?",
            "네",
            "그런 말이 들어 있는 것은 없어요.",
        ),
    ],
)
async def test_what_is_known_is_told_and_taken_back(
    chat: Chat, lines: str, ask: str, head: str, take_back: str, sure: str, yes: str, nothing: str
) -> None:
    notes = chat.workspace.root / "groups" / "family" / "CLAUDE.md"
    notes.parent.mkdir(parents=True)
    notes.write_text(lines)
    kept, other = lines.splitlines()
    told = await chat.say(ask)
    assert head in told
    assert all(line in told for line in (kept, other))
    asked = await chat.say(take_back)
    assert sure in asked
    assert (kept in asked, other in asked, notes.read_text()) == (True, False, lines)
    await chat.say(yes)
    assert notes.read_text() == f"{other}\n"
    assert kept not in await chat.say(ask)
    assert await chat.say(take_back) == nothing


async def test_what_was_asked_is_known_in_the_next_container(
    store_harness: StoreHarness, tmp_path: Path
) -> None:
    async with talking(store_harness, Workspace(tmp_path)) as chat:
        await chat.say("remind me at 9 to call mum")
        again = chat.anew()
        assert await again.say("evening") == "I'll remind you on Mon 2026-02-09 21:00: call mum (reminder 1)."
        assert "Morning" not in await again.say("hello"), "answered once, it is asked no more"


async def test_the_file_of_a_conversation_keeps_its_names(chat: Chat) -> None:
    """A container of the version before or after this one goes on with it."""
    await chat.say("remind me at 9 to call mum")
    kept = json.loads((chat.workspace.group / ".andy-talk.json").read_text())
    assert set(kept) == {"turn", "before", "after"}
    assert set(kept["after"]) == {"questions", "shown", "list", "task", "told_day"}
    assert set(kept["after"]["questions"][0]) == {"wish", "slot", "text", "sender", "at", "options"}


async def test_an_answer_in_a_turn_that_is_tried_again_counts_once(chat: Chat) -> None:
    await chat.say("remind me at 9 to call mum")
    async with chat.turn() as turn:
        first, again = await chat.take(turn, "evening"), await chat.anew().take(turn, "evening")
    assert first == again == "I'll remind you on Mon 2026-02-09 21:00: call mum (reminder 1)."
    assert len(await chat.home.harness.rows("SELECT id FROM notifications")) == 1


async def test_a_question_of_yesterday_is_forgotten(chat: Chat) -> None:
    await chat.say("remind me at 9 to call mum")
    chat.home.clock.wall_ms += DAY_MS + 1
    assert await chat.say("evening") == (
        "I can't do that: I only understand simple requests. Say 'help' to see which."
    )


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"turn": 1, "before": 7}', b"\xff", b"x" * 2_000_000])
async def test_a_damaged_memory_is_none(chat: Chat, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "group" / ".andy-talk.json").write_bytes(content)
    assert await chat.say("echo here") == "here"


async def test_main_is_told_once_a_day_how_more_would_be_understood(chat: Chat) -> None:
    await chat.home.harness.add_group("boss", is_main=True)
    for text in ("write me a poem", "시 써줘"):
        assert "KEY" not in await chat.say(text)
    assert "KEY" not in await chat.anew(Path("elsewhere")).say("sing")
    rows = "SELECT chat_jid, text FROM outbox WHERE dedupe_key LIKE 'owner:%'"
    (told,) = await chat.home.harness.rows(rows)
    assert told["chat_jid"] == "local:boss"
    assert "ANTHROPIC_API_KEY" in told["text"]
    chat.home.clock.wall_ms += DAY_MS
    await chat.say("write me a poem")
    assert len(await chat.home.harness.rows(rows)) == 2
