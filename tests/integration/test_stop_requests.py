"""Stopping a question in the chat: the real intake, database and pool, with scripted containers."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_runner.wire.frames import Ack, Result, ToolEnd, ToolStart, TurnEnd
from orchestrator.containers import pool
from orchestrator.domain.values import Quote, Turn, TurnState
from orchestrator.inbound.intake import build_intake
from orchestrator.queue.stop_requests import StopRequests, is_stop, reply
from orchestrator.store.runs import runs, tool_calls
from tests.doubles.scripted_runtime import ScriptedContainer, ScriptedRuntime, scripted_pool
from tests.support.host_contexts import host_context
from tests.support.store_harness import StoreHarness, a_message
from tests.support.until import until


async def nothing_at_once(*_: object, **__: object) -> None:
    return None


@dataclass
class Harness:
    store: StoreHarness
    runtime: ScriptedRuntime
    pool: pool.RunPool

    async def ask(self, text: str = "@Andy clean the shed list", **changes: object) -> Turn:
        await self.store.hear(text, **changes)
        return (await self.store.queued())[0]

    async def start(self, turn: Turn) -> ScriptedContainer:
        """Give a turn to a new container that has taken it."""
        count = len(self.runtime.started)
        await self.pool.start(turn)
        await until(lambda: len(self.runtime.started) > count, "a container is started")
        self.runtime.started[-1].say(Ack(n=1, turn=turn.id))

        async def is_acknowledged() -> bool:
            return bool(await self.store.rows("SELECT 1 FROM turns WHERE acked_ms IS NOT NULL"))

        await until(is_acknowledged, "it has the turn")
        return self.runtime.started[-1]

    async def texts(self) -> list[str]:
        return [one.text for one in await self.store.outgoing()]


@pytest.fixture
async def harness(
    store_harness: StoreHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Harness]:
    monkeypatch.setattr(pool, "REAP_SECONDS", 0.01)
    await store_harness.add_group()
    runtime = ScriptedRuntime()
    async with asyncio.TaskGroup() as tasks:
        running = scripted_pool(store_harness, runtime, tasks, tmp_path)
        reaper = tasks.create_task(running.reap())
        stops = StopRequests(host_context(store_harness), stop_run=running.stop_soon)
        store_harness.intake = build_intake(
            host_context(store_harness), at_once=nothing_at_once, stop=stops.answer
        )
        yield Harness(store_harness, runtime, running)
        for task in [reaper, *running.tasks()]:
            task.cancel()


async def test_who_asked_stops_the_turn_and_its_container_without_a_model(harness: Harness) -> None:
    turn = await harness.ask()
    container = await harness.start(turn)
    accepted = await harness.store.hear("@Andy stop")
    assert accepted.is_replied_to
    stopped = await harness.store.turn(turn.id)
    assert (stopped.state, stopped.reason) == (TurnState.FAILED, "it was stopped in the chat.")
    await until(container.has_ended.is_set, "its container is killed")
    await until(lambda: harness.pool.live() == [], "its slot is free")
    assert await harness.texts() == ["Stopped. As far as I know I had changed nothing."]
    (run,) = await harness.store.rows("SELECT exit_kind FROM runs")
    assert run["exit_kind"] == "stopped"


async def test_nothing_the_container_says_counts_once_the_chat_has_read_that_it_stopped(
    harness: Harness,
) -> None:
    turn = await harness.ask()
    container = await harness.start(turn)
    container.can_be_ended = False  # the engine is slow to kill it
    token = (await harness.store.rows("SELECT token_hash FROM runs"))[0]["token_hash"]
    container.say(Result(n=2, turn=turn.id, result="half of it"))

    async def is_held() -> bool:
        return "half of it" in await harness.texts()

    await until(is_held, "it is held")
    await harness.store.hear("@Andy never mind")
    container.say(Result(n=3, turn=turn.id, result="the rest"))
    container.say(TurnEnd(n=4, turn=turn.id))

    async def is_read() -> bool:
        return bool(await harness.store.rows("SELECT 1 FROM runs WHERE last_frame = 4"))

    await until(is_read, "its frames are read")
    assert await harness.texts() == ["Stopped. As far as I know I had changed nothing."]
    assert (await harness.store.turn(turn.id)).state is TurnState.FAILED
    async with harness.store.database.reading() as tx:
        assert await runs.holder_of_token(tx, token) is None, "its token opens nothing any more"
    container.can_be_ended = True
    await until(container.has_ended.is_set, "it is killed as soon as the engine can")


async def test_what_was_done_before_is_told_in_words(harness: Harness) -> None:
    turn = await harness.ask()
    container = await harness.start(turn)
    tools = ["Bash", "Read", "Write", "Write", "mcp__andy__send_message", "mcp__door__open"]
    for number, tool in enumerate(tools):
        call = f"c{number}"
        container.say(ToolStart(n=2 + 2 * number, turn=turn.id, call=call, tool=tool, summary="…"))
        container.say(ToolEnd(n=3 + 2 * number, turn=turn.id, call=call, status="success", ms=5))

    async def are_told() -> bool:
        return len(await harness.store.rows("SELECT 1 FROM tool_calls WHERE is_ok")) == len(tools)

    await until(are_told, "its calls are recorded")
    await harness.store.hear("@Andy stop")
    assert await harness.texts() == [
        (
            "Stopped. What I had done by then stays: 1 command, 2 changes to files, 1 sent message,"
            " 1 call of another tool."
        )
    ]


async def test_what_waits_stays_and_the_stopped_question_is_not_asked_again(harness: Harness) -> None:
    turn = await harness.ask()
    await harness.start(turn)
    await harness.store.hear("@Andy and what time is it?", sender="local:bob", sender_name="Bob")
    await harness.store.hear("@Andy 그만")
    (waiting,) = await harness.store.queued()
    assert waiting.id != turn.id
    harness.store.numbers = itertools.count(100)  # the pool has used the first numbers for its runs
    _, _, order = await harness.store.start_next()
    assert "what time is it" in order.prompt
    assert "clean the shed" not in order.prompt
    assert await harness.texts() == ["멈췄어요. 그 전에 바꾼 것은 없는 것 같아요."]


async def test_what_has_not_begun_is_not_begun(harness: Harness) -> None:
    turn = await harness.ask()
    await harness.store.hear("@Andy stop")
    assert await harness.store.queued() == []
    assert (await harness.store.turn(turn.id)).state is TurnState.FAILED
    assert await harness.texts() == ["OK, I will not begin with it."]


async def test_what_an_earlier_attempt_had_done_is_told_while_the_next_one_waits(harness: Harness) -> None:
    turn = await harness.ask()
    started, run, _ = await harness.store.start_next()
    async with harness.store.database.transaction() as tx:
        await tool_calls.begin(
            tx, started, run, call_id="c1", parent_id=None, tool="Bash", summary="…", now_ms=1
        )
    await harness.store.lose(run)
    assert [one.id for one in await harness.store.queued()] == [turn.id]
    await harness.store.hear("@Andy stop")
    assert await harness.texts() == ["Stopped. What I had done by then stays: 1 command."]


async def test_another_person_may_not_stop_it_and_is_told_who_may(harness: Harness) -> None:
    turn = await harness.ask()
    await harness.start(turn)
    await harness.store.hear("@Andy stop", sender="local:bob", sender_name="Bob")
    assert (await harness.store.turn(turn.id)).state is TurnState.RUNNING
    assert await harness.texts() == ["Only the one who asked (Jane) or the owner can stop this."]
    await harness.store.hear("@Andy stop", sender="local:me", sender_name="Owner", is_from_me=True)
    assert (await harness.store.turn(turn.id)).state is TurnState.FAILED


async def test_who_asked_stops_it_under_the_other_address_of_their_messenger_as_well(
    harness: Harness,
) -> None:
    opaque, phone = "777@lid", "491701234567@s.whatsapp.net"
    turn = await harness.ask(sender=opaque)
    container = await harness.start(turn)
    await harness.store.hear("@Andy stop", sender=phone, sender_alias=opaque)
    await until(container.has_ended.is_set, "its container is killed")
    assert await harness.texts() == ["Stopped. As far as I know I had changed nothing."]


async def test_what_two_have_asked_together_only_the_owner_stops(harness: Harness) -> None:
    await harness.ask()
    turn = await harness.ask("@Andy and the list", sender="local:bob", sender_name="Bob")
    await harness.start(turn)
    await harness.store.hear("@Andy stop")
    assert (await harness.store.turn(turn.id)).state is TurnState.RUNNING
    assert await harness.texts() == ["Only the one who asked (Bob, Jane) or the owner can stop this."]


@pytest.mark.parametrize("sign", ["✋", "✋🏽", "❌", "🛑"])
async def test_a_hand_under_the_question_stops_it(harness: Harness, sign: str) -> None:
    question = a_message("@Andy clean the shed list")
    await harness.store.intake.accept(question)
    (turn,) = await harness.store.queued()
    await harness.start(turn)
    quote = Quote(message_id=question.id, sender="Jane", text=question.text)
    await harness.store.hear(f"[reacted {sign}]", quote=quote, ignored="reaction", reaction=sign)
    assert (await harness.store.turn(turn.id)).state is TurnState.FAILED


async def test_never_mind_means_what_its_sender_asked_and_not_what_runs_for_another(harness: Harness) -> None:
    other = await harness.ask("@Andy clean", sender="local:bob", sender_name="Bob")
    await harness.start(other)
    own = await harness.ask("@Andy and the shed")
    await harness.store.hear("@Andy never mind")
    assert (await harness.store.turn(other.id)).state is TurnState.RUNNING
    assert (await harness.store.turn(own.id)).state is TurnState.FAILED


async def test_a_reply_to_a_question_means_that_question(harness: Harness) -> None:
    first = await harness.ask("@Andy clean")
    await harness.start(first)
    question = a_message("@Andy and the shed")
    await harness.store.intake.accept(question)
    (second,) = await harness.store.queued()
    quote = Quote(message_id=question.id, sender="Jane", text=question.text)
    await harness.store.hear("@Andy stop", quote=quote)
    assert (await harness.store.turn(first.id)).state is TurnState.RUNNING
    assert (await harness.store.turn(second.id)).state is TurnState.FAILED


async def test_the_next_prompt_has_the_talk_before_and_nothing_of_what_was_stopped(harness: Harness) -> None:
    await harness.store.hear("the meeting is at three now", sender="local:bob", sender_name="Bob")
    question = a_message("@Andy clean the shed list")
    await harness.store.intake.accept(question)
    (turn,) = await harness.store.queued()
    await harness.store.hear("the shop shuts at six", sender="local:bob", sender_name="Bob")
    await harness.start(turn)
    quote = Quote(message_id=question.id, sender="Jane", text=question.text)
    await harness.store.hear("[reacted ✋]", quote=quote, ignored="reaction", reaction="✋")
    await harness.store.hear("@Andy remind us of the meeting")
    harness.store.numbers = itertools.count(100)  # the pool has used the first numbers for its runs
    _, _, order = await harness.store.start_next()
    assert "the meeting is at three now" in order.prompt
    assert "the shop shuts at six" in order.prompt, "talk beside the question was not stopped"
    assert "shed list" not in order.prompt
    assert "✋" not in order.prompt


async def test_who_may_not_stop_it_is_not_answered_for_a_sign_or_a_word_for_others(harness: Harness) -> None:
    question = a_message("@Andy clean the shed list")
    await harness.store.intake.accept(question)
    (turn,) = await harness.store.queued()
    await harness.start(turn)
    bob = {"sender": "local:bob", "sender_name": "Bob"}
    quote = Quote(message_id=question.id, sender="Jane", text=question.text)
    await harness.store.hear("[reacted ❌]", quote=quote, ignored="reaction", reaction="❌", **bob)
    await harness.store.hear("/stop", **bob)
    assert await harness.texts() == []
    assert (await harness.store.turn(turn.id)).state is TurnState.RUNNING


async def test_a_hand_under_another_message_stops_nothing(harness: Harness) -> None:
    other = a_message("see you at six")
    await harness.store.intake.accept(other)
    turn = await harness.ask()
    await harness.start(turn)
    quote = Quote(message_id=other.id, sender="Jane", text=other.text)
    await harness.store.hear("[reacted ✋]", quote=quote, ignored="reaction", reaction="✋")
    assert (await harness.store.turn(turn.id)).state is TurnState.RUNNING


async def test_people_who_say_stop_to_each_other_stop_nothing(harness: Harness) -> None:
    turn = await harness.ask()
    await harness.start(turn)
    await harness.store.hear("stop")
    await harness.store.hear("@Andy stop the shed list from growing")
    assert (await harness.store.turn(turn.id)).state is TurnState.RUNNING
    await harness.store.hear("/stop")
    assert (await harness.store.turn(turn.id)).state is TurnState.FAILED


async def test_the_word_is_for_the_agent_where_nothing_runs_and_the_command_is_answered(
    harness: Harness,
) -> None:
    await harness.store.hear("@Andy /stop")
    assert await harness.texts() == ["No question of this chat is being worked on."]
    accepted = await harness.store.hear("@Andy never mind")
    assert not accepted.is_replied_to
    assert len(await harness.store.queued()) == 1


async def test_a_host_that_dies_before_it_kills_the_container_removes_it_when_it_starts(
    harness: Harness,
) -> None:
    turn = await harness.ask()
    container = await harness.start(turn)
    stops = StopRequests(host_context(harness.store), stop_run=lambda *_: None)
    harness.store.intake = build_intake(
        host_context(harness.store), at_once=nothing_at_once, stop=stops.answer
    )
    await harness.store.hear("@Andy stop")
    async with asyncio.TaskGroup() as tasks:
        next_life = scripted_pool(harness.store, harness.runtime, tasks, Path("/nonexistent"))
        await next_life.adopt()
        assert next_life.live() == []
    assert container.has_ended.is_set()
    assert (await harness.store.turn(turn.id)).attempt == 1


STOPS = [
    *(
        "stop",
        "Stop!",
        "please stop",
        "stop it",
        "never mind",
        "Nevermind.",
        "forget it",
        "nvm",
        "/stop",
        "/STOP",
    ),
    *(
        "ok stop",
        "Stop, please",
        "stop stop",
        "never mind, thanks",
        "Never-mind",
        "stop @Andy",
        "ＳＴＯＰ",
        "stop\u200b",
    ),
    *(
        "✋",
        "✋🏽",
        "✋✋",
        "❌",
        "🖐",
        "그만",
        "그만해",
        "그만해줘",
        "그만 해 주세요",
        "그만 좀 해",
        "멈춰",
        "멈춰 주세요",
    ),
    *("이제 그만", "그만！", "하지 마", "아니야 그만", "그만ㅠㅠ", "멈추세요", "중지해줘"),
]
GOES_ON = [
    *(
        "",
        "stop the music",
        "stop reminding me",
        "where is the bus stop",
        "cancel the reminder",
        "don't stop",
    ),
    *("no", "ok ✋ then", "/stop now", "stopp", "stop?", "cancel that", "cancel", "ok", "please"),
    *("그만두고 싶어", "취소 1", "취소", "알람 취소", "아니", "됐어!", "됐습니다", "하지 마세요라고 했어"),
]


@pytest.mark.parametrize("text", STOPS)
def test_words_that_stop(text: str) -> None:
    assert is_stop(text)


@pytest.mark.parametrize("text", GOES_ON)
def test_words_that_do_not(text: str) -> None:
    assert not is_stop(text)


@pytest.mark.parametrize("unit", [",", " ", ",@", "@", "ok "])
def test_a_long_message_is_no_request_to_stop_and_takes_no_time(unit: str) -> None:
    assert not is_stop("a" + unit * (2_000_000 // len(unit)) + "\nx")


@pytest.mark.parametrize("between", [",", " ", ", ", ",@x,", " " * 100])
def test_a_call_of_andy_at_the_end_of_a_request_to_stop_is_no_part_of_it(between: str) -> None:
    assert is_stop(f"stop{between}@Andy")


def test_the_reply_counts_in_both_languages() -> None:
    done = Counter({"Bash": 2, "Edit": 1, "Write": 1, "x": 3})
    assert reply(done, has_begun=True, is_korean=False) == (
        "Stopped. What I had done by then stays: 2 commands, 2 changes to files, 3 calls of other tools."
    )
    assert reply(done, has_begun=True, is_korean=True) == (
        "멈췄어요. 그 전에 한 일은 그대로 있어요: 명령 2번, 파일 변경 2번, 다른 도구 호출 3번."
    )
