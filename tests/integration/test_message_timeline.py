"""Where a message is, and all that befell it, told with nothing but the store and the logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_runner.wire.frames import Ack, Result, TurnEnd
from orchestrator.containers.logs import files
from orchestrator.domain.values import OutboxState, Run, TurnId, TurnKind
from orchestrator.reports import message_timeline
from orchestrator.reports.message_timeline import NoMessage
from orchestrator.store import audit
from orchestrator.store.conversation import outbox
from orchestrator.store.money import usage
from tests.support.store_harness import SEOUL, StoreHarness


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "logs"


async def traced(
    store_harness: StoreHarness, logs: Path, asked: str, folder: str = "family"
) -> dict[str, Any]:
    async with store_harness.database.reading() as tx:
        found = await message_timeline.find(tx, folder, asked)
    return message_timeline.with_logs(found, logs)


def logged(store_harness: StoreHarness, logs: Path, run: Run, kind: str, **facts: object) -> None:
    path = files.path_of(logs, run.folder, run.id, run.started_ms)
    files.append(path, files.event_line(store_harness.clock.now_ms(), kind, facts), creates=True)


def told(found: dict[str, Any]) -> str:
    return "\n".join(line[16:] for line in message_timeline.lines(found, zone=SEOUL))


async def test_an_answered_message_is_followed_to_its_reply(store_harness, clock, logs):
    await store_harness.add_group("family", requires_trigger=False)
    accepted = await store_harness.hear("what is\nnew?", id="M-one")
    clock.pass_ms(100)
    turn, run, _ = await store_harness.start_next()
    clock.pass_ms(100)
    for frame in (
        Ack(n=1, turn=turn.id),
        Result(n=2, turn=turn.id, result="nothing"),
        TurnEnd(n=3, turn=turn.id),
    ):
        await store_harness.take(run, frame)
    (reply,) = await store_harness.outgoing()
    clock.pass_ms(100)
    await store_harness.deliver_all()
    found = await traced(store_harness, logs, "M-one")
    assert found == await traced(store_harness, logs, str(accepted.seq)), "by its number too"
    assert (found["turn"]["state"], found["turn"]["run_frames"]) == ("answered", 3)
    (attempt,) = found["attempts"]
    assert (attempt["run"], attempt["outcome"]) == (run.id, "answered")
    assert attempt["acked_ms"] - found["message"]["received_ms"] == 200
    assert found["replies"][0]["sent_ms"] == clock.now_ms()
    assert told(found).splitlines() == [
        f"message {accepted.seq} (M-one), Jane: what is new?",
        f"turn {turn.id} (chat) is queued",
        f"try 1: given to run {run.id}",
        "its agent has it",
        "answered",
        f"said ({reply.id}): nothing",
        f"sent as {reply.message_id}, try 0",
    ]
    by_reply = await traced(store_harness, logs, reply.message_id)
    assert by_reply["turn"]["id"] == turn.id, "what Andy said leads to what it was asked"


async def test_each_attempt_is_told_by_the_log_of_its_run(store_harness, clock, logs):
    await store_harness.add_group("family", requires_trigger=False)
    await store_harness.hear("first", id="M1")
    turn, first, _ = await store_harness.start_next()
    logged(store_harness, logs, first, "turn.started", turn=turn.id, attempt=1)
    logged(store_harness, logs, first, "turn.acknowledged", turn=turn.id)
    clock.pass_ms(500)
    await store_harness.lose(first)
    logged(store_harness, logs, first, "turn.put_back", turn=turn.id, attempt=1, reason="it broke.")
    found = await traced(store_harness, logs, "M1")
    assert [(one["run"], one["outcome"], one["reason"]) for one in found["attempts"]] == [
        (first.id, "put_back", "it broke.")
    ]
    assert "is to go on from here; place 1, try 2 after it broke." in told(found)

    _, second, _ = await store_harness.start_next()
    logged(store_harness, logs, second, "turn.started", turn=turn.id, attempt=2)
    found = await traced(store_harness, logs, "M1")
    assert [(one["attempt"], one["run"], one["outcome"]) for one in found["attempts"]] == [
        (1, first.id, "put_back"),
        (2, second.id, None),
    ]
    assert f"the agent works on it; run {second.id} has sent 0 frames" in told(found)


async def test_each_attempt_of_one_run_shows_its_log_lines(store_harness, clock, logs):
    await store_harness.add_group("family", requires_trigger=False)
    await store_harness.hear("first", id="M1")
    turn, run, _ = await store_harness.start_next()
    for attempt in (1, 2):
        logged(store_harness, logs, run, "turn.started", turn=turn.id, attempt=attempt)
        clock.pass_ms(500)
        logged(store_harness, logs, run, "turn.put_back", turn=turn.id, attempt=attempt)
        clock.pass_ms(30_000)
        logged(store_harness, logs, run, "turn.started", turn=turn.id + 10, attempt=1)
        clock.pass_ms(30_000)
    await store_harness.lose(run)
    found = await traced(store_harness, logs, "M1")
    assert [line.split()[1:4:2] for line in found["log"]] == [
        ["turn.started", "attempt=1"],
        ["turn.put_back", "attempt=1"],
        ["turn.started", "attempt=2"],
        ["turn.put_back", "attempt=2"],
    ]


async def test_a_line_that_a_full_disk_cut_hides_no_message(store_harness, logs):
    await store_harness.add_group("family", requires_trigger=False)
    await store_harness.hear("first", id="M1")
    turn, run, _ = await store_harness.start_next()
    path = files.path_of(logs, run.folder, run.id, run.started_ms)
    files.append(path, "2026-11-22T03:1", creates=True)
    logged(store_harness, logs, run, "turn.started", turn=turn.id, attempt=1)
    found = await traced(store_harness, logs, "M1")
    assert [one["attempt"] for one in found["attempts"]] == [1], "as the store has it"


async def test_what_a_log_says_of_other_turns_is_not_told(store_harness, clock, logs):
    await store_harness.add_group("family", requires_trigger=False)
    await store_harness.hear("first", id="M1")
    turn, run, _ = await store_harness.start_next()
    logged(store_harness, logs, run, "turn.started", turn=turn.id + 10, attempt=1)
    path = files.path_of(logs, run.folder, run.id, run.started_ms)
    forged = files.stderr_line(clock.now_ms(), 10, f"2026-05-28T20:26:40.000Z turn.failed turn={turn.id}")
    files.append(path, forged, creates=False)
    (attempt,) = (await traced(store_harness, logs, "M1"))["attempts"]
    assert (attempt["run"], attempt["outcome"]) == (run.id, None)


async def test_an_ignored_message_says_why_and_a_stuck_reply_what_it_waits_for(store_harness, clock, logs):
    await store_harness.add_group("family")
    await store_harness.hear("just talk", id="M1")
    assert told(await traced(store_harness, logs, "M1")).endswith("no turn: no trigger")
    await store_harness.hear("@Andy hello", id="M2")
    await store_harness.answer("hi")
    async with store_harness.database.transaction() as tx:
        (one,) = await outbox.heads(tx)
        await outbox.begin_attempt(tx, one.id)
        await outbox.try_later(tx, one.id, at_ms=clock.now_ms() + 5_000, error="The channel is down.")
    assert "on its way, 1 try so far: The channel is down." in told(await traced(store_harness, logs, "M2"))
    async with store_harness.database.transaction() as tx:
        await outbox.finish(tx, one.id, OutboxState.DEAD, now_ms=clock.now_ms(), error="refused")
    assert told(await traced(store_harness, logs, "M2")).endswith("dead: refused")


@pytest.mark.parametrize("asked", ["nothing", "99", "9" * 30, "", "٣"])
async def test_a_message_that_is_not_there_is_said_not_to_be(store_harness, logs, asked):
    await store_harness.add_group("family")
    await store_harness.add_group("work", requires_trigger=False)
    elsewhere = await store_harness.hear("secret", "work", id="M1")
    for each in (asked, "M1", str(elsewhere.seq)):
        with pytest.raises(NoMessage):
            await traced(store_harness, logs, each)


async def test_what_a_turn_did_and_cost_is_told_between_its_start_and_its_end(store_harness, clock, logs):
    await store_harness.add_group("family", requires_trigger=False)
    await store_harness.hear("first", id="M1")
    turn, run, _ = await store_harness.start_next()
    logged(store_harness, logs, run, "turn.started", turn=turn.id, attempt=1)
    clock.pass_ms(100)
    async with store_harness.database.transaction() as tx:
        for of_turn in (turn.id, turn.id + 10):
            await audit.append(
                tx,
                audit.AuditEvent(
                    at_ms=clock.now_ms(),
                    kind="command",
                    folder=run.folder,
                    turn_id=of_turn,
                    detail={"type": "x"},
                ),
            )
            await usage.add(tx, answer_of(run, of_turn, at_ms=clock.now_ms()))
    clock.pass_ms(100)
    await store_harness.take(run, Ack(n=1, turn=turn.id))
    await store_harness.take(run, TurnEnd(n=2, turn=turn.id))
    clock.pass_ms(60_000)
    logged(store_harness, logs, run, "run.ended")

    found = await traced(store_harness, logs, "M1")

    assert [one["step"] for one in found["steps"]] == [
        "received", "queued", "started", "work", "acknowledged", "answered"
    ]  # fmt: skip
    assert found["steps"][3]["text"] == "command type=x"
    assert (found["cost"]["requests"], found["cost"]["cost_usd"], found["cost"]["models"]) == (
        1,
        0.002,
        ["m"],
    )
    assert told(found).splitlines()[-1] == "it took 1 answers of m: 15 tokens, about $0.0020"
    assert [line.split()[1] for line in found["log"]] == ["turn.started"], "and nothing of later"


async def test_what_subagents_used_is_told_as_a_part_of_what_the_turn_used(store_harness, clock, logs):
    await store_harness.add_group("family", requires_trigger=False)
    await store_harness.hear("first", id="M1")
    turn, run, _ = await store_harness.start_next()
    async with store_harness.database.transaction() as tx:
        for is_subagent in (False, True, True):
            await usage.add(tx, answer_of(run, turn.id, at_ms=clock.now_ms(), is_subagent=is_subagent))
    await store_harness.take(run, Ack(n=1, turn=turn.id))
    await store_harness.take(run, TurnEnd(n=2, turn=turn.id))

    found = await traced(store_harness, logs, "M1")

    assert [found["cost"][part] for part in ("requests", "input_tokens", "models")] == [3, 30, ["m"]]
    assert (found["cost"]["subagents"]["requests"], found["cost"]["subagents"]["cost_usd"]) == (2, 0.004)
    assert [line.strip() for line in told(found).splitlines()[-2:]] == [
        "it took 3 answers of m: 45 tokens, about $0.0060",
        "of that, subagents: 2 answers, 30 tokens, about $0.0040",
    ]


def answer_of(run: Run, turn_id: int, *, at_ms: int, is_subagent: bool = False) -> usage.UsageEntry:
    return usage.UsageEntry(
        at_ms=at_ms,
        folder=run.folder,
        run_id=run.id,
        turn_id=TurnId(turn_id),
        kind=TurnKind.CHAT,
        task_id=None,
        model="m",
        input_tokens=10,
        output_tokens=5,
        cache_read_tokens=0,
        cache_write_tokens=0,
        cost_nano_usd=2_000_000,
        is_whole=True,
        is_subagent=is_subagent,
    )
