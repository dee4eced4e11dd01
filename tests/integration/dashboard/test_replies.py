"""Replies that need no model, from the messenger to the dashboard and back."""

from __future__ import annotations

import pytest

from orchestrator.dashboard.delivery import instant_replies
from orchestrator.domain.dashboard import Actor, Caller, Priority
from orchestrator.domain.values import MessageId, Quote, TurnState
from orchestrator.inbound.intake import Intake
from tests.support.dashboards import a_notification, a_question, a_task, at
from tests.support.household import a_message
from tests.support.worker_harness import UpkeptHouse


class Replied(UpkeptHouse):
    """Its messages come in through an intake that knows the dashboard."""

    def __post_init__(self):
        super().__post_init__()
        house = self.house

        async def do(tx, group, text, quote, *, is_asked):
            caller = Caller(actor=Actor.USER, now_ms=house.clock.now_ms(), is_person=True)
            return await instant_replies.answer(
                self.service.service_context(tx, group, caller), text, quote, is_asked=is_asked
            )

        self.intake = Intake(
            house.database, clock=house.clock, name="Andy", wakeups=house.wakeups, bus=house.bus, at_once=do
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
        (task,) = await self.house.rows("SELECT status FROM dashboard_tasks")
        return task["status"]

    async def tell(self, id_="n_001"):
        """Have a notification delivered, and give the messenger's id of it."""
        async with self.delivering():
            await self.look("2026-02-09 09:00")
            return (await self.until_status(id_, "delivered")).channel_msg_id


@pytest.fixture
async def house(household):
    await household.add_group()
    house = Replied(household)
    await house.put(
        a_task(deadline="2026-02-10"), a_notification(), a_notification("n_002", due="2026-02-09 18:00")
    )
    return house


async def said(house):
    return [one.text for one in await house.house.outgoing() if one.turn_id is not None]


@pytest.mark.parametrize("text", ["done", "완료!", "@Andy done"])
async def test_done_under_a_notification_completes_its_task_without_a_model(house, text):
    told = await house.tell()
    accepted = await house.hear(text, under=told)
    turn = await house.house.turn(accepted.turn_id)
    assert (turn.state, turn.reason) == (TurnState.ANSWERED, "without an agent")
    (task,) = await house.house.rows("SELECT status, completed_ms FROM dashboard_tasks")
    assert (task["status"], task["completed_ms"]) == ("completed", at("2026-02-09 09:00"))
    assert (await house.row("n_002")).status == "cancelled"
    assert (await said(house))[0].startswith("✅ blog")
    assert await house.house.queued() == []


@pytest.mark.parametrize("sign", ["✅", "👍", "👍🏽", "✅\ufe0f"])
async def test_a_sign_on_a_reminder_completes_its_task_and_only_once(house, sign):
    told = await house.tell()

    accepted = await house.react(sign, under=told)

    assert (accepted.outcome, await house.status()) == ("queued", "completed")
    assert (await house.house.turn(accepted.turn_id)).state is TurnState.ANSWERED
    assert (await house.row("n_002")).status == "cancelled"
    assert (await said(house))[0].startswith("✅ blog")
    again = await house.react(sign, under=told, sender="local:bob")
    assert (again.outcome, again.reason) == ("ignored", "reaction")
    assert len(await said(house)) == 1


async def test_a_sign_that_says_nothing_of_a_task_is_only_kept(house):
    told = await house.tell()
    for sign, under in (("❤️", told), ("✅", "another message")):
        assert (await house.react(sign, under=under)).outcome == "ignored"
    assert (await house.status(), await said(house)) == ("active", [])


async def test_a_thumb_up_is_no_answer_to_how_far_it_is_but_a_check_mark_is(house):
    async with house.house.database.transaction() as tx:
        await tx.execute("UPDATE notifications SET type = 'progress_check'")
    told = await house.tell()

    assert (await house.react("👍", under=told)).outcome == "ignored"
    assert await house.status() == "active"
    await house.react("✅", under=told)
    assert await house.status() == "completed"


async def test_a_check_mark_as_a_reply_completes_too(house):
    told = await house.tell()
    await house.hear("✅", under=told)
    assert await house.status() == "completed"


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
async def test_later_under_a_notification_has_it_come_again(house, text, due):
    told = await house.tell()
    await house.hear(text, under=told)
    again = next(row for row in await house.notifications() if row["created_by"] == "user")
    first = await house.row("n_001")
    assert (again["message"], again["due_ms"], again["task_id"]) == (first.message, at(due), "task_001")
    assert await said(house) == [f"⏰ {due}"]


async def test_other_words_under_a_notification_are_the_agents(house):
    told = await house.tell()
    accepted = await house.hear("@Andy done with which part?", under=told)
    assert (await house.house.turn(accepted.turn_id)).state is TurnState.QUEUED


async def test_done_under_anything_else_is_the_agents(house):
    accepted = await house.hear("@Andy done", under="M-of-somebody")
    assert (await house.house.turn(accepted.turn_id)).state is TurnState.QUEUED


async def test_open_questions_are_listed_and_answered_by_number(house):
    await house.put(
        a_question("q_1", question="Which hall?", created_ms=1),
        a_question("q_2", question="When?", created_ms=2, priority=Priority.HIGH),
    )
    await house.hear("@Andy /questions")
    assert (await said(house))[0].startswith("1. Which hall?\n2. When?")
    assert [row["asked_count"] for row in await house.questions()] == [1, 1]
    await house.hear("@Andy 1. the big one 2. at six")
    assert [row["answer"] for row in await house.questions()] == ["the big one", "at six"]
    assert await house.house.queued() == []
    accepted = await house.hear("@Andy 1. milk")
    assert (await house.house.turn(accepted.turn_id)).state is TurnState.QUEUED, "the numbers hold once"


async def test_in_korean_it_is_done_and_answered_in_korean(house):
    told = await house.tell()
    await house.put(a_question("q_1", task_id=None), a_question("q_2", task_id=None, question="언제?"))
    await house.hear("@Andy /질문")
    await house.hear("@Andy 1.큰 홀 2.여섯 시")
    await house.hear("다 했어", under=told)
    await house.hear("@Andy /질문")
    listed, noted, done, none = await said(house)
    assert listed.endswith("번호를 붙여 한 메시지로 답해 주세요: “1. … 2. …”")
    assert noted == "✅ 답변 2개를 적어 두었습니다."
    assert done.startswith("✅ blog")
    assert done.endswith("(알림 1개 취소)")
    assert none == "열린 질문이 없습니다."
    assert sorted(row["answer"] for row in await house.questions()) == ["여섯 시", "큰 홀"]


async def test_numbers_that_nobody_was_told_are_words(house):
    await house.put(a_question("q_1"))
    accepted = await house.hear("@Andy 1. the big one")
    assert (await house.house.turn(accepted.turn_id)).state is TurnState.QUEUED
    assert (await house.questions())[0]["answer"] is None


async def test_numbers_hold_for_an_hour(house):
    await house.put(a_question("q_1"))
    house.is_now("2026-02-09 09:00")
    await house.hear("@Andy /questions")
    house.is_now("2026-02-09 10:01")
    await house.hear("@Andy 1. the big one")
    assert (await house.questions())[0]["answer"] is None


async def test_what_was_put_off_of_something_done_says_why_not(house):
    told = await house.tell()
    await house.call_tool("update_task", task_id="task_001", status="completed")
    await house.hear("later 2h", under=told)
    assert "TASK_TERMINAL" not in (await said(house))[0]
    assert (await said(house))[0].startswith("⚠️")
