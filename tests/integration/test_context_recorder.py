"""A group's context follows the store: real rows, real files, killed anywhere."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent_runner.wire.frames import Result, TurnEnd
from orchestrator.context import recorder
from orchestrator.context.dialogue import RegisteredMessages
from orchestrator.context.message_mapping import TAKEN_BACK
from orchestrator.context.models import Context
from orchestrator.context.recorder import MAX_EXCHANGES, SNAPSHOT_MS, ContextRecorder
from orchestrator.context.tokens import EstimatingCounter
from orchestrator.domain.values import Folder, Group, SessionCommand, TurnState
from orchestrator.groups import registration
from orchestrator.store import exchanges, groups, messages, outbox, turns
from tests.support.household import Household, a_message
from tests.support.live_files import contents
from tests.support.until import until

FAMILY = Folder("family")


@dataclass
class House:
    household: Household
    home: Path
    recorder: ContextRecorder
    folds: list[RegisteredMessages]

    def again(self) -> None:
        """Another host on the same home: nothing that the first kept in memory is there."""
        self.recorder = _recorder(self.household, self.home, self.folds)

    @property
    def files(self) -> Path:
        return self.home / "data/context/family/.ai-brain"

    @property
    def kept(self) -> Context:
        return self.recorder.manager(FAMILY).load(now_ms=self.household.clock.now_ms()).context

    @property
    def window(self) -> list[tuple[str, str]]:
        return [(one.id, one.content) for one in self.kept.conversation.recent_window]

    async def say(self, text: str, *answers: str) -> int:
        """A whole turn, which the context does not know of yet."""
        await self.household.hear(f"@Andy {text}")
        return (await self.household.answer(*answers)).id

    async def catch_up(self) -> None:
        await self.recorder.catch_up(FAMILY)

    async def clear(self) -> int:
        async with self.household.database.transaction() as tx:
            group = await groups.known(tx, "family")
            turn = await turns.add_command(tx, group, SessionCommand.CLEAR, now_ms=0)
            await turns.settle(tx, turn, TurnState.ANSWERED, reason="cleared", now_ms=0)
        return turn


def _recorder(household: Household, home: Path, folds: list[RegisteredMessages]) -> ContextRecorder:
    def note(group: Group, registered: RegisteredMessages) -> None:
        assert group.folder == FAMILY
        folds.append(registered)

    return ContextRecorder(
        household.database,
        contexts=home / "data" / "context",
        env=home / "data" / "env",
        counter=EstimatingCounter(),
        clock=household.clock,
        bus=household.bus,
        name="Andy",
        on_notified=household.wakeups.outbox.set,
        on_fold=note,
    )


@pytest.fixture
async def house(household: Household, tmp_path: Path) -> House:
    async with household.database.transaction() as tx:
        await registration.ensure_main(tx, now_ms=0)
    await household.add_group()
    (tmp_path / "data" / "env" / "family").mkdir(parents=True)
    folds: list[RegisteredMessages] = []
    return House(household, tmp_path, _recorder(household, tmp_path, folds), folds)


async def test_what_was_said_is_in_the_context_once_however_often_it_looks(house):
    first = await house.say("how long to Busan?", "Let me look.", "Two hours.")
    for _ in range(2):
        await house.catch_up()
    second = await house.say("and by bus?", "Four.")
    for _ in range(2):
        await house.catch_up()
        house.again()
    assert house.window == [
        (f"t{first}.u", "Jane: how long to Busan?"),
        (f"t{first}.a", "Let me look.\n\nTwo hours."),
        (f"t{second}.u", "Jane: and by bus?"),
        (f"t{second}.a", "Four."),
    ]
    assert (house.kept.stats.dialog_turns, house.kept.pending_user) == (2, None)


async def test_a_question_is_there_while_its_turn_runs_and_its_answer_once_it_ended(house):
    await house.household.hear("@Andy hello")
    turn, run, _ = await house.household.start_next()
    await house.catch_up()
    assert (house.window, house.kept.pending_user) == ([(f"t{turn.id}.u", "Jane: hello")], f"t{turn.id}.u")
    await house.household.lose(run)
    await house.catch_up()
    assert house.kept.pending_user == f"t{turn.id}.u", "it is tried again"
    await house.household.hear("@Andy are you there?")
    await house.household.answer("Yes.")
    await house.catch_up()
    assert house.window == [(f"t{turn.id}.u", "Jane: hello\nJane: are you there?"), (f"t{turn.id}.a", "Yes.")]
    assert house.kept.pending_user is None


async def test_what_is_said_on_the_way_is_part_of_the_answer_and_no_answer_yet(house):
    await house.household.hear("@Andy hello")
    turn, run, _ = await house.household.start_next()
    async with house.household.database.transaction() as tx:
        await outbox.add(
            tx, chat_jid=turn.chat_jid, text="Wait.", dedupe_key=f"say:{turn.id}:x", turn_id=turn.id, now_ms=0
        )
    await house.catch_up()
    assert [one for one, _ in house.window] == [f"t{turn.id}.u"]
    for frame in (Result(n=1, turn=turn.id, result="Here."), TurnEnd(n=2, turn=turn.id)):
        await house.household.take(run, frame)
    await house.catch_up()
    assert house.window[1] == (f"t{turn.id}.a", "Wait.\n\nHere.")


async def test_a_question_that_failed_stays_and_waits_for_no_answer(house):
    await house.household.hear("@Andy hello")
    turn, run, _ = await house.household.start_next()
    await house.catch_up()
    await house.household.lose(run, is_retryable=False)
    await house.catch_up()
    assert (house.window, house.kept.pending_user) == ([(f"t{turn.id}.u", "Jane: hello")], None)


async def test_a_cleared_conversation_is_closed_once_and_what_comes_after_is_kept(house):
    await house.say("one", "1")
    await house.clear()
    after = await house.say("two", "2")
    for _ in range(2):
        await house.catch_up()
        house.again()
    assert house.window == [(f"t{after}.u", "Jane: two"), (f"t{after}.a", "2")]
    assert len(list((house.files / "snapshots").glob("*.json"))) == 1, "what was before can be restored"


async def test_a_reset_by_hand_brings_nothing_back(house):
    await house.say("one", "1")
    await house.catch_up()
    house.recorder.manager(FAMILY).reset(now_ms=1)
    house.again()
    await house.catch_up()
    assert house.window == []


async def test_workers_and_isolated_runs_leave_no_trace(house):
    await house.say("hello", "hi")
    await house.say("hello", "hi")
    async with house.household.database.transaction() as tx:
        await tx.execute("UPDATE turns SET kind = 'worker' WHERE id = 1")
        await tx.execute("UPDATE turns SET is_isolated = 1 WHERE id = 2")
    await house.catch_up()
    assert house.window == []


async def test_an_old_home_without_a_context_gets_one_of_what_is_recent(house, monkeypatch):
    for number in range(3):
        await house.say(f"question {number}", f"answer {number}")
    monkeypatch.setattr("orchestrator.context.recorder.MAX_EXCHANGES", 2)
    assert MAX_EXCHANGES == 100
    await house.catch_up()
    assert [text for _, text in house.window] == [
        "Jane: question 1",
        "answer 1",
        "Jane: question 2",
        "answer 2",
    ]


async def test_the_copy_of_the_container_follows_also_what_commands_did(house):
    copy = house.home / "data/env/family/context.json"
    await house.say("hello", "hi")
    await house.catch_up()
    document = json.loads(copy.read_text())
    assert [one["content"] for one in document["conversation"]["recent_window"]] == ["Jane: hello", "hi"]
    assert "writer" not in document
    assert (house.home / "data/env/family/workflow.json").exists()
    house.recorder.manager(FAMILY).record_decision("We go by train.", now_ms=5)
    await house.recorder.sweep()
    assert json.loads(copy.read_text())["memory"]["last_decisions"] == ["We go by train."]
    copy.unlink()
    await house.recorder.show(FAMILY)
    assert copy.exists()


async def test_a_copy_that_cannot_be_made_in_time_keeps_no_container_waiting(house, monkeypatch):
    monkeypatch.setattr(recorder, "PATIENCE_SECONDS", 0.05)
    released = threading.Event()
    monkeypatch.setattr(ContextRecorder, "_show", lambda *_: released.wait())
    try:
        await house.recorder.show(FAMILY)
    finally:
        released.set()


async def test_a_group_whose_container_was_never_prepared_gets_no_copy(house):
    (house.home / "data/env/family").rmdir()
    await house.say("hello", "hi")
    await house.catch_up()
    assert not (house.home / "data/env").joinpath("family").exists()


async def test_secrets_are_neither_in_the_context_nor_in_its_copy(house):
    await house.say("my password=hunter22 and sk-ant-api03-aaaabbbbcccc", "I keep ghp_0123456789abcdef0123")
    await house.catch_up()
    await house.recorder.use(await _group(house), "record_decision", {"decision": "pw: token=abc12345"}, "r")
    house.recorder.manager(FAMILY).snapshot(now_ms=1)
    held = b"".join(contents(house.home, "**/*.json").values())
    assert [one for one in (b"hunter22", b"sk-ant", b"ghp_", b"abc12345") if one in held] == []


async def _group(house) -> Group:
    async with house.household.database.reading() as tx:
        return await groups.known(tx, "family")


async def test_a_tool_is_refused_in_words_when_the_disk_hangs(house, monkeypatch):
    monkeypatch.setattr(recorder, "PATIENCE_SECONDS", 0.05)
    released = threading.Event()
    monkeypatch.setattr(ContextRecorder, "_use", lambda *_: released.wait())
    try:
        reply = await house.recorder.use(await _group(house), "record_decision", {"decision": "x"}, "r")
    finally:
        released.set()
    assert (reply.ok, reply.code, reply.request_id) == (False, "context_busy", "r")


async def test_a_snapshot_is_taken_every_half_hour_when_something_changed(house):
    snapshots = house.recorder.manager(FAMILY).snapshots
    clock = house.household.clock
    await house.recorder.sweep()
    assert snapshots() == []
    await house.say("hello", "hi")
    clock.wall_ms += SNAPSHOT_MS
    await house.recorder.sweep()
    assert len(snapshots()) == 1
    await house.say("hello", "hi")
    await house.recorder.sweep()
    house.again()
    await house.recorder.sweep()
    assert len(snapshots()) == 1, "half an hour has not passed, whichever host it was"
    clock.wall_ms += SNAPSHOT_MS
    await house.recorder.sweep()
    assert len(snapshots()) == 2
    clock.wall_ms += SNAPSHOT_MS
    await house.recorder.sweep()
    assert len(snapshots()) == 2, "nothing has changed"


async def test_a_damaged_context_is_mended_and_the_owner_is_told_once(house):
    await house.say("hello", "hi")
    await house.catch_up()
    house.recorder.manager(FAMILY).snapshot(now_ms=house.household.clock.now_ms())
    (house.files / "context.json").write_text('{"version": "1.0", ')
    for _ in range(2):
        await house.recorder.sweep()
        house.again()
    told = [one.text for one in await house.household.outgoing() if one.chat_jid == "local:main"]
    assert len(told) == 1
    assert "context.json of 'family' cannot be read" in told[0]
    assert "andy context show family" in told[0]
    assert len(house.window) == 2
    assert len(list(house.files.glob("context.corrupt-*"))) == 1


async def test_what_was_said_after_the_snapshot_is_read_again_when_it_takes_a_damaged_ones_place(house):
    first = await house.say("one", "1")
    await house.catch_up()
    house.recorder.manager(FAMILY).snapshot(now_ms=house.household.clock.now_ms())
    second = await house.say("two", "2")
    await house.catch_up()
    (house.files / "context.json").write_text("{")
    third = await house.say("three", "3")
    await house.catch_up()
    assert [one for one, _ in house.window] == [
        f"t{turn}.{who}" for turn in (first, second, third) for who in "ua"
    ]


async def test_the_loop_follows_events_and_outlives_a_context_that_is_held(house):
    looking = asyncio.create_task(house.recorder.run(), name="context")
    try:
        await until(lambda: house.household.bus._listeners, "it listens")
        turn = await house.say("hello", "hi")
        house.household.bus.publish("turn.answered", group="family", turn=turn)
        await until(lambda: len(house.window) == 2, "the exchange is there")
    finally:
        looking.cancel()
        await asyncio.wait({looking})


async def test_a_group_whose_disk_hangs_keeps_no_other_from_being_followed_and_has_one_thread(
    house, monkeypatch
):
    monkeypatch.setattr(recorder, "PATIENCE_SECONDS", 0.5)
    write, released, begun = ContextRecorder._write, threading.Event(), []

    def hang(self, group, found):
        if group.folder != FAMILY:
            return write(self, group, found)
        begun.append(group.folder)
        released.wait()
        return []

    monkeypatch.setattr(ContextRecorder, "_write", hang)
    await house.household.add_group("work")
    brain = house.home / "data/context/work/.ai-brain/context.json"

    def is_written(text):
        return brain.exists() and text in brain.read_text()

    looking = asyncio.create_task(house.recorder.run(), name="context")
    try:
        await until(lambda: begun, "it hangs")
        for number in range(3):
            await house.household.hear("@Andy hello", "work")
            turn = await house.household.answer(f"answer {number}", folder="work")
            for folder in ("family", "work"):
                house.household.bus.publish("turn.answered", group=folder, turn=turn.id)
            await until(partial(is_written, f"answer {number}"), "the other is followed")
        assert begun == ["family"]
        released.set()
        await until(lambda: len(begun) > 1, "it is looked at again")
    finally:
        released.set()
        looking.cancel()
        await asyncio.wait({looking})


async def test_words_that_are_taken_back_leave_the_context_too(house):
    heard = await house.household.hear("@Andy the code is 4711")
    turn = await house.household.answer("Noted.")
    looking = asyncio.create_task(house.recorder.run(), name="context")
    try:
        await until(lambda: len(house.window) == 2, "it is there")
        async with house.household.database.reading() as tx:
            (message,) = await messages.requests_of(tx, turn.id, limit=1)
        assert heard.seq == message.seq
        await house.household.intake.receive(a_message("", deletes=message.id))
        copy = house.home / "data/env/family/context.json"
        await until(
            lambda: copy.exists() and "4711" not in copy.read_text(), "the words are gone from the copy too"
        )
    finally:
        looking.cancel()
        await asyncio.wait({looking})
    assert house.window[0] == (f"t{turn.id}.u", TAKEN_BACK)
    assert "4711" not in (house.files / "context.json").read_text()


async def test_a_host_killed_between_question_and_answer_is_caught_up_by_the_next(house):
    await house.household.hear("@Andy hello")
    turn, run, _ = await house.household.start_next()
    await house.catch_up()
    house.again()
    await house.household.lose(run)
    await house.household.answer("hi")
    await house.recorder.sweep()
    assert house.window == [(f"t{turn.id}.u", "Jane: hello"), (f"t{turn.id}.a", "hi")]


async def test_what_is_settled_is_not_read_again(house, monkeypatch):
    await house.say("hello", "hi")
    await house.catch_up()
    marks: list[Any] = []
    after = exchanges.after

    async def noted(tx: Any, folder: Any, mark: int, *, limit: int) -> Any:
        marks.append(mark)
        return await after(tx, folder, mark, limit=limit)

    monkeypatch.setattr(exchanges, "after", noted)
    await house.catch_up()
    await house.household.hear("@Andy more")
    open_turn, _, _ = await house.household.start_next()
    await house.catch_up()
    await house.catch_up()
    assert marks == [1, 1, open_turn.id - 1]


async def test_c_23_a_repository_around_the_home_takes_nothing_of_what_was_said(house):
    (house.home / ".git").mkdir()
    looking = asyncio.create_task(house.recorder.run(), name="context")
    try:
        ignored = house.home / ".gitignore"
        await until(lambda: ignored.exists() and ignored.read_text() == ".ai-brain/\n", "the line is there")
    finally:
        looking.cancel()
        await asyncio.wait({looking})
