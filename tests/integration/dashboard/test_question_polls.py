"""Questions of the board with answers to choose from: asked as polls, settled by votes and by numbers."""

from __future__ import annotations

import pytest

from orchestrator.dashboard.delivery import question_polls
from orchestrator.domain.dashboard import Actor, Caller
from orchestrator.domain.protocols import Feature
from orchestrator.domain.values import MessageId, Quote
from orchestrator.inbound.intake import Intake
from orchestrator.store.board import questions as board_questions
from tests.doubles.channel import ScriptedChannel
from tests.support.command_dispatchers import dashboards_of
from tests.support.dashboards import a_notification, a_question, a_task
from tests.support.notification_harness import NotificationHarness
from tests.support.store_harness import SEOUL, a_message


class Asked(NotificationHarness):
    def __post_init__(self):
        super().__post_init__()
        harness = self.harness
        service = dashboards_of(harness, lambda _: SEOUL)

        async def answer(tx, group, poll, votes, *, newest, is_text):
            caller = Caller(actor=Actor.USER, now_ms=harness.clock.now_ms(), is_person=True)
            ctx = service.service_context(tx, group, caller)
            return await question_polls.record_votes(ctx, poll, votes, newest=newest, is_text=is_text)

        self.intake = Intake(
            harness.database,
            clock=harness.clock,
            name="Andy",
            wakeups=harness.wakeups,
            bus=harness.bus,
            answer_poll=answer,
        )

    async def ask(self):
        async with self.delivering():
            await self.look("2026-02-09 09:00")
            return (await self.until_status("n_001", "delivered")).channel_msg_id

    async def vote(self, poll, *chosen, by="jane"):
        quote = Quote(message_id=MessageId(poll), sender="andy", text="")
        self.harness.clock.wall_ms += 1
        return await self.intake.accept(
            a_message(
                "[voted in a poll]",
                quote=quote,
                vote=chosen,
                ignored="poll vote",
                sender=f"local:{by}",
                sender_name=by.title(),
                sent_ms=self.harness.clock.wall_ms,
            )
        )

    async def question(self):
        async with self.harness.database.reading() as tx:
            return await board_questions.get(tx, "family", "q_001")

    async def said(self):
        return [one.text for one in await self.harness.outgoing() if one.turn_id is not None]


@pytest.fixture
def features():
    return {Feature.POLLS}


@pytest.fixture
async def harness(store_harness, features):
    await store_harness.add_group()
    channel = ScriptedChannel(features=frozenset({*features, Feature.IDEMPOTENT}))
    return Asked(store_harness, channel=channel)


async def put(harness, **question):
    asked = a_question("q_001", **question)
    notification = a_notification(message=asked.question, task_id=None, question_id="q_001")
    await harness.put(a_task(deadline="2026-02-10"), asked, notification)


async def test_one_with_options_is_a_poll_and_a_choice_settles_it_with_who_chose_what(harness):
    await put(harness, question="Which hall?", options=("Big", "Small"))
    poll = await harness.ask()
    (shown,) = harness.channel.shown
    assert shown.poll is not None
    assert shown.poll.options == ("Big", "Small")
    accepted = await harness.vote(poll, 1)
    assert (await harness.harness.turn(accepted.turn_id)).reason == "without an agent"
    assert (await harness.question()).answer == "Small (Jane)"
    await harness.vote(poll, 0, by="tom")
    await harness.vote(poll, 1, by="kim")
    assert (await harness.question()).answer == "Big (Tom), Small (Jane, Kim)"
    assert await harness.harness.queued() == []
    assert await harness.said() == [], "a poll shows by itself that a choice counts"


async def test_whether_it_is_done_is_asked_with_yes_and_yes_completes_the_task(harness):
    await put(harness, question="“blog” is at 90%. Is it done?", task_id="task_001")
    poll = await harness.ask()
    assert harness.channel.shown[0].poll.options == ("Yes", "Not yet")
    await harness.vote(poll, 1)
    assert (await harness.question()).answer == "Not yet (Jane)"
    await harness.vote(poll, 0)
    (task,) = await harness.harness.rows("SELECT status FROM dashboard_tasks")
    assert task["status"] == "completed"
    assert (await harness.said())[0].startswith("✅")


async def test_one_in_words_is_a_text_as_before(harness):
    await put(harness, question="What is in the way?", task_id="task_001")
    await harness.ask()
    assert harness.channel.shown[0].poll is None


@pytest.mark.parametrize("features", [set()])
async def test_elsewhere_the_number_settles_it_and_is_confirmed(harness):
    await put(harness, question="어느 홀이 좋아요?", options=("큰 홀", "작은 홀"))
    poll = await harness.ask()
    assert harness.channel.shown[0].text.endswith("하나를 골라 번호로 답해 주세요.")
    quote = Quote(message_id=MessageId(poll), sender="andy", text="")
    await harness.intake.accept(a_message("2", quote=quote))
    assert (await harness.question()).answer == "작은 홀 (Jane)"
    assert await harness.said() == ["✅ 답변 1개를 적어 두었습니다."]
    assert await harness.harness.queued() == []


async def test_who_may_not_change_the_board_settles_nothing(harness):
    await put(harness, question="Which hall?", options=("Big", "Small"))
    poll = await harness.ask()
    async with harness.harness.database.transaction() as tx:
        await tx.execute(
            "UPDATE registered_groups SET container_config = ?", ('{"people": {"local:gus": "guest"}}',)
        )
    await harness.vote(poll, 0, by="gus")
    assert (await harness.question()).answer is None


async def test_a_closed_question_is_not_answered(harness):
    await put(harness, question="Which hall?", options=("Big", "Small"))
    poll = await harness.ask()
    async with harness.harness.database.transaction() as tx:
        await tx.execute("UPDATE questions SET closed_ms = 1, closed_reason = 'Removed'")
    accepted = await harness.vote(poll, 0)
    assert accepted.outcome == "ignored"
    assert (await harness.question()).answer is None
