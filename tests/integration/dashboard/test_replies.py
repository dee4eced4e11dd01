"""Replies that need no model, from the messenger to the dashboard and back."""

from __future__ import annotations

import pytest

from orchestrator.dashboard.delivery import instant_replies
from orchestrator.domain.dashboard import Actor, Caller, Priority
from orchestrator.domain.values import ChatJid, MessageId, Quote, TurnKind, TurnState
from orchestrator.groups import registration
from orchestrator.inbound.intake import Intake
from tests.support.dashboards import FOLDER, a_notification, a_question, a_task, at
from tests.support.store_harness import a_message
from tests.support.worker_harness import WorkerHarness


class Replied(WorkerHarness):
    """Its messages come in through an intake that knows the dashboard."""

    def __post_init__(self):
        super().__post_init__()
        harness = self.harness

        async def do(tx, group, text, quote, *, is_asked):
            caller = Caller(actor=Actor.USER, now_ms=harness.clock.now_ms(), is_person=True)
            return await instant_replies.answer(
                self.service.service_context(tx, group, caller), text, quote, is_asked=is_asked
            )

        self.intake = Intake(
            harness.database,
            clock=harness.clock,
            name="Andy",
            wakeups=harness.wakeups,
            bus=harness.bus,
            at_once=do,
        )

    async def hear(self, text, *, under=None):
        quote = Quote(message_id=MessageId(under), sender="andy", text="…") if under else None
        return await self.intake.accept(a_message(text, quote=quote))

    async def react(self, sign, *, under, **more):
        quote = Quote(message_id=MessageId(under), sender="andy", text="…")
        return await self.intake.accept(
            a_message(f"[reacted {sign}]", quote=quote, ignored="reaction", reaction=sign, **more)
        )

    async def status(self):
        (task,) = await self.harness.rows("SELECT status FROM dashboard_tasks")
        return task["status"]

    async def tell(self, id_="n_001"):
        """Have a notification delivered, and give the messenger's id of it."""
        async with self.delivering():
            await self.look("2026-02-09 09:00")
            return (await self.until_status(id_, "delivered")).channel_msg_id


@pytest.fixture
async def harness(store_harness):
    await store_harness.add_group()
    harness = Replied(store_harness)
    await harness.put(
        a_task(deadline="2026-02-10"), a_notification(), a_notification("n_002", due="2026-02-09 18:00")
    )
    return harness


async def said(harness):
    return [one.text for one in await harness.harness.outgoing() if one.turn_id is not None]


@pytest.mark.parametrize("text", ["done", "완료!", "@Andy done"])
async def test_done_under_a_notification_completes_its_task_without_a_model(harness, text):
    told = await harness.tell()
    accepted = await harness.hear(text, under=told)
    turn = await harness.harness.turn(accepted.turn_id)
    assert (turn.state, turn.reason) == (TurnState.ANSWERED, "without an agent")
    (task,) = await harness.harness.rows("SELECT status, completed_ms FROM dashboard_tasks")
    assert (task["status"], task["completed_ms"]) == ("completed", at("2026-02-09 09:00"))
    assert (await harness.row("n_002")).status == "cancelled"
    assert (await said(harness))[0].startswith("✅ blog")
    assert await harness.harness.queued() == []


@pytest.mark.parametrize("sign", ["✅", "👍", "👍🏽", "✅\ufe0f"])
async def test_a_sign_on_a_reminder_completes_its_task_and_only_once(harness, sign):
    told = await harness.tell()

    accepted = await harness.react(sign, under=told)

    assert (accepted.outcome, await harness.status()) == ("queued", "completed")
    assert (await harness.harness.turn(accepted.turn_id)).state is TurnState.ANSWERED
    assert (await harness.row("n_002")).status == "cancelled"
    assert (await said(harness))[0].startswith("✅ blog")
    again = await harness.react(sign, under=told, sender="local:bob")
    assert (again.outcome, again.reason) == ("ignored", "reaction")
    assert len(await said(harness)) == 1


async def test_a_sign_that_says_nothing_of_a_task_is_only_kept(harness):
    told = await harness.tell()
    for sign, under in (("❤️", told), ("✅", "another message")):
        assert (await harness.react(sign, under=under)).outcome == "ignored"
    assert (await harness.status(), await said(harness)) == ("active", [])


async def test_a_thumb_up_is_no_answer_to_how_far_it_is_but_a_check_mark_is(harness):
    async with harness.harness.database.transaction() as tx:
        await tx.execute("UPDATE notifications SET type = 'progress_check'")
    told = await harness.tell()

    assert (await harness.react("👍", under=told)).outcome == "ignored"
    assert await harness.status() == "active"
    await harness.react("✅", under=told)
    assert await harness.status() == "completed"


async def test_a_check_mark_as_a_reply_completes_too(harness):
    told = await harness.tell()
    await harness.hear("✅", under=told)
    assert await harness.status() == "completed"


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("later 2h", "2026-02-09 11:00"),
        ("나중에 2시간 후", "2026-02-09 11:00"),
        ("later tomorrow 9am", "2026-02-10 09:00"),
        ("later", "2026-02-09 10:00"),
        ("later 2 hours", "2026-02-09 11:00"),
        ("한 시간 후에 다시 알려줘", "2026-02-09 10:00"),
        ("30분", "2026-02-09 09:30"),
    ],
)
async def test_later_under_a_notification_has_it_come_again(harness, text, due):
    told = await harness.tell()
    await harness.hear(text, under=told)
    again = next(row for row in await harness.notifications() if row["created_by"] == "user")
    first = await harness.row("n_001")
    assert (again["message"], again["due_ms"], again["task_id"]) == (first.message, at(due), "task_001")
    assert await said(harness) == [f"⏰ {due}"]


async def test_other_words_under_a_notification_are_the_agents(harness):
    told = await harness.tell()
    accepted = await harness.hear("@Andy done with which part?", under=told)
    assert (await harness.harness.turn(accepted.turn_id)).state is TurnState.QUEUED


async def test_done_under_anything_else_is_the_agents(harness):
    accepted = await harness.hear("@Andy done", under="M-of-somebody")
    assert (await harness.harness.turn(accepted.turn_id)).state is TurnState.QUEUED


async def test_open_questions_are_listed_and_answered_by_number(harness):
    await harness.put(
        a_question("q_1", question="Which hall?", created_ms=1),
        a_question("q_2", question="When?", created_ms=2, priority=Priority.HIGH),
    )
    await harness.hear("@Andy /questions")
    assert (await said(harness))[0].startswith("1. Which hall?\n2. When?")
    assert [row["asked_count"] for row in await harness.questions()] == [1, 1]
    await harness.hear("@Andy 1. the big one 2. at six")
    assert [row["answer"] for row in await harness.questions()] == ["the big one", "at six"]
    assert await harness.harness.queued() == []
    accepted = await harness.hear("@Andy 1. milk")
    assert (await harness.harness.turn(accepted.turn_id)).state is TurnState.QUEUED, "the numbers hold once"


async def test_in_korean_it_is_done_and_answered_in_korean(harness):
    told = await harness.tell()
    await harness.put(a_question("q_1", task_id=None), a_question("q_2", task_id=None, question="언제?"))
    await harness.hear("@Andy /질문")
    await harness.hear("@Andy 1.큰 홀 2.여섯 시")
    await harness.hear("다 했어", under=told)
    await harness.hear("@Andy /질문")
    listed, noted, done, none = await said(harness)
    assert listed.endswith("번호를 붙여 한 메시지로 답해 주세요: “1. … 2. …”")
    assert noted == "✅ 답변 2개를 적어 두었습니다."
    assert done.startswith("✅ blog")
    assert done.endswith("(알림 1개 취소)")
    assert none == "열린 질문이 없습니다."
    assert sorted(row["answer"] for row in await harness.questions()) == ["여섯 시", "큰 홀"]


async def test_numbers_that_nobody_was_told_are_words(harness):
    await harness.put(a_question("q_1"))
    accepted = await harness.hear("@Andy 1. the big one")
    assert (await harness.harness.turn(accepted.turn_id)).state is TurnState.QUEUED
    assert (await harness.questions())[0]["answer"] is None


async def test_numbers_hold_for_an_hour(harness):
    await harness.put(a_question("q_1"))
    harness.is_now("2026-02-09 09:00")
    await harness.hear("@Andy /questions")
    harness.is_now("2026-02-09 10:01")
    await harness.hear("@Andy 1. the big one")
    assert (await harness.questions())[0]["answer"] is None


@pytest.mark.parametrize("unfit", ["\u200b", "x" * 10_001, "a\x01b"], ids=["unseen", "long", "control"])
async def test_a_numbered_answer_that_does_not_fit_is_refused_in_words_and_none_is_noted(harness, unfit):
    await harness.put(a_question("q_1", created_ms=1), a_question("q_2", question="When?", created_ms=2))
    await harness.hear("@Andy /questions")

    accepted = await harness.hear(f"@Andy 1. the big one\n2. {unfit}")

    assert (await harness.harness.turn(accepted.turn_id)).state is TurnState.ANSWERED
    assert (await said(harness))[-1].startswith("⚠️ No answer noted. 2: answer ")
    assert [row["answer"] for row in await harness.questions()] == [None, None]
    await harness.hear("@Andy 1. the big one\n2. at six")
    assert [row["answer"] for row in await harness.questions()] == ["the big one", "at six"]


async def test_what_is_put_off_comes_again_in_the_chat_to_which_it_was_sent(harness):
    other = ChatJid("local:cousins")
    async with harness.harness.database.transaction() as tx:
        await registration.add_chat(tx, FOLDER, other, now_ms=0)
    await harness.put(a_notification("n_9", due="2026-02-09 08:59", task_id=None, chat_jid=other))
    told = await harness.tell("n_9")
    await harness.hear("later 2h", under=told)
    (again,) = await harness.harness.rows("SELECT chat_jid FROM notifications WHERE context LIKE 'put off%'")
    assert again["chat_jid"] == other


async def test_what_was_put_off_of_something_done_says_why_not(harness):
    told = await harness.tell()
    await harness.call_tool("update_task", task_id="task_001", status="completed")
    await harness.hear("later 2h", under=told)
    assert "TASK_TERMINAL" not in (await said(harness))[0]
    assert (await said(harness))[0].startswith("⚠️")


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("1. yes", "completed"),
        ("1. Yes, it's done!", "completed"),
        ("1) done, thanks", "completed"),
        ("1. 네 끝났어요", "completed"),
        ("1. no", "active"),
        ("1. yes, but not the pictures", "active"),
    ],
)
async def test_a_numbered_yes_to_is_it_done_completes_the_task_as_a_plain_yes_does(harness, answer, status):
    await harness.cycle("2026-02-11 09:00")
    await harness.hear("@Andy /questions")
    assert "Is it done" in (await said(harness))[-1]

    await harness.hear(f"@Andy {answer}")

    assert await harness.status() == status
    (question,) = await harness.questions()
    assert question["answered_ms"] == at("2026-02-11 09:00")
    reply = (await said(harness))[-1]
    assert reply.startswith("✅ blog") if status == "completed" else "1" in reply
    assert [turn for turn in await harness.harness.queued() if turn.kind is TurnKind.CHAT] == []


async def test_two_numbered_answers_about_one_task_complete_it_once(harness):
    await harness.put(a_question(task_id="task_001", question="Have you finished?"))
    await harness.cycle("2026-02-11 09:00")
    await harness.hear("@Andy /questions")
    await harness.hear("@Andy 1. yes\n2. yes")
    assert await harness.status() == "completed"
    assert len((await said(harness))[-1].splitlines()) == 2
    assert [row["answer"] for row in await harness.questions()] == ["yes", "yes"]


async def test_a_numbered_yes_to_another_question_about_a_task_is_only_noted(harness):
    await harness.put(a_question(task_id="task_001", question="Will it be done in time?"))
    await harness.hear("@Andy /questions")
    await harness.hear("@Andy 1. yes")
    assert await harness.status() == "active"


@pytest.mark.parametrize(
    ("question", "answer", "deadline", "pct"),
    [
        ("When will it be done?", "tomorrow", "2026-02-10", 0),
        ("By when?", "tomorrow", "2026-02-10", 0),
        ("What is the deadline?", "tomorrow", "2026-02-10", 0),
        ("언제까지 되나요?", "내일", "2026-02-10", 0),
        ("언제쯤 끝날까요?", "내일", "2026-02-10", 0),
        ("When shall I remind you about the report?", "tomorrow", None, 0),
        ("When shall I remind you that it is due?", "tomorrow", None, 0),
        ("When did you last talk to Min about it?", "on Friday", None, 0),
        ("When was it finished?", "on Friday", None, 0),
        ("Who pays the bill that is due?", "Friday", None, 0),
        ("언제 다시 알려드릴까요?", "내일", None, 0),
        ("언제 끝났나요?", "금요일", None, 0),
        ("How far is the blog?", "60 %", None, 60),
        ("How much of it is done?", "about 60 percent", None, 60),
        ("어디까지 됐나요?", "60%", None, 60),
        ("How full is the tank?", "60%", None, 0),
        ("How sure are you?", "60%", None, 0),
    ],
)
async def test_an_answer_changes_what_its_question_asks_about_the_task(
    harness, question, answer, deadline, pct
):
    await harness.put(
        a_task("task_002", deadline=None, pct=0), a_question("q_1", task_id="task_002", question=question)
    )
    harness.is_now("2026-02-09 09:00")
    await harness.hear("@Andy /questions")
    await harness.hear(f"@Andy 1. {answer}")
    (task,) = await harness.harness.rows(
        "SELECT deadline_date, pct FROM dashboard_tasks WHERE id = 'task_002'"
    )
    assert (task["deadline_date"], task["pct"]) == (deadline, pct)
