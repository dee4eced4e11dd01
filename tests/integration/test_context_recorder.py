"""A group's context follows the store: real rows, real files, killed anywhere."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs

from agent_runner.wire.frames import Result, TurnEnd
from orchestrator.base import event_bus
from orchestrator.context import recorder
from orchestrator.context.dialogue import RegisteredMessages
from orchestrator.context.message_mapping import TAKEN_BACK
from orchestrator.context.models import Context
from orchestrator.context.recorder import MAX_EXCHANGES, SNAPSHOT_MS, ContextRecorder
from orchestrator.context.tokens import EstimatingCounter
from orchestrator.domain.errors import StoreError
from orchestrator.domain.values import Folder, Group, SessionCommand, TurnState
from orchestrator.groups import owner, registration
from orchestrator.store.conversation import exchanges, messages, outbox
from orchestrator.store.groups import groups
from orchestrator.store.runs import turns
from tests.support.live_files import contents
from tests.support.store_harness import StoreHarness, a_message
from tests.support.until import until

FAMILY = Folder("family")


@dataclass
class Harness:
    store_harness: StoreHarness
    home: Path
    recorder: ContextRecorder
    folds: list[RegisteredMessages]

    def again(self) -> None:
        """Another host on the same home: nothing that the first kept in memory is there."""
        self.recorder = _recorder(self.store_harness, self.home, self.folds)

    @property
    def files(self) -> Path:
        return self.home / "data/context/family/.ai-brain"

    @property
    def kept(self) -> Context:
        return self.recorder.manager(FAMILY).load(now_ms=self.store_harness.clock.now_ms()).context

    @property
    def window(self) -> list[tuple[str, str]]:
        return [(one.id, one.content) for one in self.kept.conversation.recent_window]

    async def say(self, text: str, *answers: str) -> int:
        """A whole turn, which the context does not know of yet."""
        await self.store_harness.hear(f"@Andy {text}")
        return (await self.store_harness.answer(*answers)).id

    async def catch_up(self) -> None:
        await self.recorder.catch_up(FAMILY)

    async def clear(self) -> int:
        async with self.store_harness.database.transaction() as tx:
            group = await groups.known(tx, "family")
            turn = await turns.add_command(tx, group.folder, group.jid, SessionCommand.CLEAR, now_ms=0)
            await turns.settle(tx, turn, TurnState.ANSWERED, reason="cleared", now_ms=0)
        return turn


def _recorder(store_harness: StoreHarness, home: Path, folds: list[RegisteredMessages]) -> ContextRecorder:
    def note(group: Group, registered: RegisteredMessages) -> None:
        assert group.folder == FAMILY
        folds.append(registered)

    return ContextRecorder(
        store_harness.database,
        contexts=home / "data" / "context",
        env=home / "data" / "env",
        counter=EstimatingCounter(),
        clock=store_harness.clock,
        bus=store_harness.bus,
        name="Andy",
        on_notified=store_harness.wakeups.outbox.set,
        on_evicted=note,
    )


@pytest.fixture
async def harness(store_harness: StoreHarness, tmp_path: Path) -> Harness:
    async with store_harness.database.transaction() as tx:
        await registration.ensure_main(tx, now_ms=0)
    await store_harness.add_group()
    (tmp_path / "data" / "env" / "family").mkdir(parents=True)
    folds: list[RegisteredMessages] = []
    return Harness(store_harness, tmp_path, _recorder(store_harness, tmp_path, folds), folds)


async def test_what_was_said_is_in_the_context_once_however_often_it_looks(harness):
    first = await harness.say("how long to Busan?", "Let me look.", "Two hours.")
    for _ in range(2):
        await harness.catch_up()
    second = await harness.say("and by bus?", "Four.")
    for _ in range(2):
        await harness.catch_up()
        harness.again()
    assert harness.window == [
        (f"t{first}.u", "Jane: how long to Busan?"),
        (f"t{first}.a", "Let me look.\n\nTwo hours."),
        (f"t{second}.u", "Jane: and by bus?"),
        (f"t{second}.a", "Four."),
    ]
    assert (harness.kept.stats.dialog_turns, harness.kept.pending_user) == (2, None)


async def test_a_question_is_there_while_its_turn_runs_and_its_answer_once_it_ended(harness):
    await harness.store_harness.hear("@Andy hello")
    turn, run, _ = await harness.store_harness.start_next()
    await harness.catch_up()
    assert (harness.window, harness.kept.pending_user) == (
        [(f"t{turn.id}.u", "Jane: hello")],
        f"t{turn.id}.u",
    )
    await harness.store_harness.lose(run)
    await harness.catch_up()
    assert harness.kept.pending_user == f"t{turn.id}.u", "it is tried again"
    await harness.store_harness.hear("@Andy are you there?")
    await harness.store_harness.answer("Yes.")
    await harness.catch_up()
    assert harness.window == [
        (f"t{turn.id}.u", "Jane: hello\nJane: are you there?"),
        (f"t{turn.id}.a", "Yes."),
    ]
    assert harness.kept.pending_user is None


async def test_what_is_said_on_the_way_is_part_of_the_answer_and_no_answer_yet(harness):
    await harness.store_harness.hear("@Andy hello")
    turn, run, _ = await harness.store_harness.start_next()
    async with harness.store_harness.database.transaction() as tx:
        await outbox.add(
            tx, chat_jid=turn.chat_jid, text="Wait.", dedupe_key=f"say:{turn.id}:x", turn_id=turn.id, now_ms=0
        )
    await harness.catch_up()
    assert [one for one, _ in harness.window] == [f"t{turn.id}.u"]
    for frame in (Result(n=1, turn=turn.id, result="Here."), TurnEnd(n=2, turn=turn.id)):
        await harness.store_harness.take(run, frame)
    await harness.catch_up()
    assert harness.window[1] == (f"t{turn.id}.a", "Wait.\n\nHere.")


async def test_a_question_that_failed_stays_and_waits_for_no_answer(harness):
    await harness.store_harness.hear("@Andy hello")
    turn, run, _ = await harness.store_harness.start_next()
    await harness.catch_up()
    await harness.store_harness.lose(run, is_retryable=False)
    await harness.catch_up()
    assert (harness.window, harness.kept.pending_user) == ([(f"t{turn.id}.u", "Jane: hello")], None)


async def test_a_cleared_conversation_is_closed_once_and_what_comes_after_is_kept(harness):
    await harness.say("one", "1")
    await harness.clear()
    after = await harness.say("two", "2")
    for _ in range(2):
        await harness.catch_up()
        harness.again()
    assert harness.window == [(f"t{after}.u", "Jane: two"), (f"t{after}.a", "2")]
    assert len(list((harness.files / "snapshots").glob("*.json"))) == 1, "what was before can be restored"


async def test_a_reset_by_hand_brings_nothing_back(harness):
    await harness.say("one", "1")
    await harness.catch_up()
    harness.recorder.manager(FAMILY).reset(now_ms=1)
    harness.again()
    await harness.catch_up()
    assert harness.window == []


async def test_workers_and_isolated_runs_leave_no_trace(harness):
    await harness.say("hello", "hi")
    await harness.say("hello", "hi")
    async with harness.store_harness.database.transaction() as tx:
        await tx.execute("UPDATE turns SET kind = 'worker' WHERE id = 1")
        await tx.execute("UPDATE turns SET is_isolated = 1 WHERE id = 2")
    await harness.catch_up()
    assert harness.window == []


async def test_an_old_home_without_a_context_gets_one_of_what_is_recent(harness, monkeypatch):
    for number in range(3):
        await harness.say(f"question {number}", f"answer {number}")
    monkeypatch.setattr("orchestrator.context.recorder.MAX_EXCHANGES", 2)
    assert MAX_EXCHANGES == 100
    await harness.catch_up()
    assert [text for _, text in harness.window] == [
        "Jane: question 1",
        "answer 1",
        "Jane: question 2",
        "answer 2",
    ]


async def test_the_copy_of_the_container_follows_also_what_commands_did(harness):
    copy = harness.home / "data/env/family/context.json"
    await harness.say("hello", "hi")
    await harness.catch_up()
    document = json.loads(copy.read_text())
    assert [one["content"] for one in document["conversation"]["recent_window"]] == ["Jane: hello", "hi"]
    assert "writer" not in document
    assert (harness.home / "data/env/family/workflow.json").exists()
    harness.recorder.manager(FAMILY).record_decision("We go by train.", now_ms=5)
    await harness.recorder.sweep()
    assert json.loads(copy.read_text())["memory"]["last_decisions"] == ["We go by train."]
    copy.unlink()
    await harness.recorder.write_copies(FAMILY)
    assert copy.exists()


async def test_a_copy_that_cannot_be_made_in_time_keeps_no_container_waiting(harness, monkeypatch):
    monkeypatch.setattr(recorder, "PATIENCE_SECONDS", 0.05)
    released = threading.Event()
    monkeypatch.setattr(ContextRecorder, "_write_copies_for_new_container", lambda *_: released.wait())
    try:
        await harness.recorder.write_copies(FAMILY)
    finally:
        released.set()


async def test_a_group_whose_container_was_never_prepared_gets_no_copy(harness):
    (harness.home / "data/env/family").rmdir()
    await harness.say("hello", "hi")
    await harness.catch_up()
    assert not (harness.home / "data/env").joinpath("family").exists()


async def test_a_copy_that_could_not_be_written_is_written_by_a_later_pass(harness):
    await harness.say("hello", "hi")
    await harness.recorder.sweep()
    copy = harness.home / "data/env/family/context.json"
    copy.unlink()
    copy.mkdir()
    harness.recorder.manager(FAMILY).record_decision("Take the train.", now_ms=1)
    await harness.recorder.sweep()
    copy.rmdir()
    await harness.recorder.sweep()
    assert "Take the train." in copy.read_text()


async def test_secrets_are_neither_in_the_context_nor_in_its_copy(harness):
    await harness.say("my password=hunter22 and sk-ant-api03-aaaabbbbcccc", "I keep ghp_0123456789abcdef0123")
    await harness.catch_up()
    await harness.recorder.use(
        await _group(harness), "record_decision", {"decision": "pw: token=abc12345"}, "r"
    )
    harness.recorder.manager(FAMILY).snapshot(now_ms=1)
    held = b"".join(contents(harness.home, "**/*.json").values())
    assert [one for one in (b"hunter22", b"sk-ant", b"ghp_", b"abc12345") if one in held] == []


async def _group(harness) -> Group:
    async with harness.store_harness.database.reading() as tx:
        return await groups.known(tx, "family")


async def test_a_tool_is_refused_in_words_when_the_disk_hangs(harness, monkeypatch):
    monkeypatch.setattr(recorder, "PATIENCE_SECONDS", 0.05)
    released = threading.Event()
    monkeypatch.setattr(ContextRecorder, "_use_tool", lambda *_: released.wait())
    try:
        reply = await harness.recorder.use(await _group(harness), "record_decision", {"decision": "x"}, "r")
    finally:
        released.set()
    assert (reply.ok, reply.code, reply.request_id) == (False, "context_busy", "r")


async def test_a_snapshot_is_taken_every_half_hour_when_something_changed(harness):
    snapshots = harness.recorder.manager(FAMILY).snapshots
    clock = harness.store_harness.clock
    await harness.recorder.sweep()
    assert snapshots() == []
    await harness.say("hello", "hi")
    clock.wall_ms += SNAPSHOT_MS
    await harness.recorder.sweep()
    assert len(snapshots()) == 1
    await harness.say("hello", "hi")
    await harness.recorder.sweep()
    harness.again()
    await harness.recorder.sweep()
    assert len(snapshots()) == 1, "half an hour has not passed, whichever host it was"
    clock.wall_ms += SNAPSHOT_MS
    await harness.recorder.sweep()
    assert len(snapshots()) == 2
    clock.wall_ms += SNAPSHOT_MS
    await harness.recorder.sweep()
    assert len(snapshots()) == 2, "nothing has changed"


async def test_a_snapshot_is_taken_after_the_clock_was_set_back(harness):
    snapshots = harness.recorder.manager(FAMILY).snapshots
    await harness.say("hello", "hi")
    await harness.recorder.sweep()
    harness.store_harness.clock.wall_ms -= 365 * 86_400_000
    await harness.say("hello", "hi")
    await harness.recorder.sweep()
    assert len(snapshots()) == 2
    await harness.say("hello", "hi")
    await harness.recorder.sweep()
    assert len(snapshots()) == 2, "half an hour has not passed"


async def test_a_damaged_context_is_mended_and_the_owner_is_told_once(harness):
    await harness.say("hello", "hi")
    await harness.catch_up()
    harness.recorder.manager(FAMILY).snapshot(now_ms=harness.store_harness.clock.now_ms())
    (harness.files / "context.json").write_text('{"version": "1.0", ')
    for _ in range(2):
        await harness.recorder.sweep()
        harness.again()
    told = [one.text for one in await harness.store_harness.outgoing() if one.chat_jid == "local:main"]
    assert len(told) == 1
    assert "context.json of 'family' cannot be read" in told[0]
    assert "andy context show family" in told[0]
    assert len(harness.window) == 2
    assert len(list(harness.files.glob("context.corrupt-*"))) == 1


async def test_the_owner_is_told_of_a_damaged_context_once_the_store_takes_it(harness, monkeypatch):
    await harness.say("hello", "hi")
    await harness.catch_up()
    (harness.files / "context.json").write_text("{")
    with monkeypatch.context() as patch:
        patch.setattr(owner, "notify", AsyncMock(side_effect=StoreError("database or disk is full")))
        with suppress(StoreError):
            await harness.recorder.sweep()
    await harness.recorder.sweep()
    (told,) = [one for one in await harness.store_harness.outgoing() if one.chat_jid == "local:main"]
    assert "context.json of 'family' cannot be read" in told.text


async def test_what_was_said_after_the_snapshot_is_read_again_when_it_takes_a_damaged_ones_place(harness):
    first = await harness.say("one", "1")
    await harness.catch_up()
    harness.recorder.manager(FAMILY).snapshot(now_ms=harness.store_harness.clock.now_ms())
    second = await harness.say("two", "2")
    await harness.catch_up()
    (harness.files / "context.json").write_text("{")
    third = await harness.say("three", "3")
    await harness.catch_up()
    assert [one for one, _ in harness.window] == [
        f"t{turn}.{who}" for turn in (first, second, third) for who in "ua"
    ]


async def test_the_loop_follows_events_and_outlives_a_context_that_is_held(harness):
    looking = asyncio.create_task(harness.recorder.run(), name="context")
    try:
        await until(lambda: harness.store_harness.bus._listeners, "it listens")
        turn = await harness.say("hello", "hi")
        harness.store_harness.bus.publish("turn.answered", group="family", turn=turn)
        await until(lambda: len(harness.window) == 2, "the exchange is there")
    finally:
        looking.cancel()
        await asyncio.wait({looking})


async def test_a_group_that_is_answered_again_and_again_is_followed_at_once_and_then_now_and_then(
    harness, monkeypatch
):
    monkeypatch.setattr(event_bus, "PAUSE_SECONDS", 3_600.0)
    followed = []

    async def catch_up(self, folder):
        followed.append(folder)

    monkeypatch.setattr(ContextRecorder, "catch_up", catch_up)
    looking = asyncio.create_task(harness.recorder.run(), name="context")
    try:
        await until(lambda: sorted(followed) == ["family", "main"], "it has looked at all")
        harness.store_harness.bus.publish("turn.answered", group="family", turn=1)
        await until(lambda: len(followed) == 3, "it follows at once")
        for turn in range(2, 20):
            harness.store_harness.bus.publish("turn.answered", group="family", turn=turn)
            for _ in range(5):
                await asyncio.sleep(0)
        assert len(followed) == 3
    finally:
        looking.cancel()
        await asyncio.wait({looking})


async def test_a_group_whose_disk_hangs_keeps_no_other_from_being_followed_and_has_one_thread(
    harness, monkeypatch
):
    monkeypatch.setattr(recorder, "PATIENCE_SECONDS", 0.5)
    write, released, begun = ContextRecorder._write_exchanges, threading.Event(), []

    def hang(self, group, found):
        if group.folder != FAMILY:
            return write(self, group, found)
        begun.append(group.folder)
        released.wait()
        return []

    monkeypatch.setattr(ContextRecorder, "_write_exchanges", hang)
    await harness.store_harness.add_group("work")
    brain = harness.home / "data/context/work/.ai-brain/context.json"

    def is_written(text):
        return brain.exists() and text in brain.read_text()

    looking = asyncio.create_task(harness.recorder.run(), name="context")
    try:
        await until(lambda: begun, "it hangs")
        for number in range(3):
            await harness.store_harness.hear("@Andy hello", "work")
            turn = await harness.store_harness.answer(f"answer {number}", folder="work")
            for folder in ("family", "work"):
                harness.store_harness.bus.publish("turn.answered", group=folder, turn=turn.id)
            await until(partial(is_written, f"answer {number}"), "the other is followed")
        assert begun == ["family"]
        released.set()
        await until(lambda: len(begun) > 1, "it is looked at again")
    finally:
        released.set()
        looking.cancel()
        await asyncio.wait({looking})


async def test_a_look_at_all_groups_takes_a_few_at_a_time_and_leaves_none_out(harness, monkeypatch):
    folders = {"main", "family", *(f"group{number}" for number in range(2 * recorder.MAX_GROUPS_AT_ONCE))}
    for folder in sorted(folders - {"main", "family"}):
        await harness.store_harness.add_group(folder)
    going, most, seen = set(), [], []

    async def catch_up(self, folder):
        going.add(folder)
        most.append(len(going))
        await asyncio.sleep(0)
        going.remove(folder)
        seen.append(folder)

    monkeypatch.setattr(ContextRecorder, "catch_up", catch_up)
    await harness.recorder.sweep()

    assert sorted(seen) == sorted(folders)
    assert max(most) == recorder.MAX_GROUPS_AT_ONCE


async def test_a_context_with_a_time_that_no_clock_shows_holds_up_no_other_group(harness):
    store = harness.store_harness
    await store.add_group("zoo")
    await harness.say("hello", "hi")
    await harness.catch_up()
    stored = json.loads((harness.files / "context.json").read_text())
    stored["conversation"]["recent_window"][-1]["ts"] = "9999-12-31T23:59:59-12:00"
    (harness.files / "context.json").write_text(json.dumps(stored))
    await harness.say("and you?", "well")
    await store.hear("@Andy hello zoo", "zoo")
    await store.answer("hi", folder="zoo")
    await harness.recorder.sweep()
    zoo = harness.recorder.manager(Folder("zoo")).load(now_ms=store.clock.now_ms()).context
    assert len(zoo.conversation.recent_window) == 2
    assert {text for _, text in harness.window} == {"Jane: hello", "hi", "Jane: and you?", "well"}


async def test_an_error_in_one_group_is_logged_and_holds_up_no_other(harness, monkeypatch):
    seen = []

    async def catch_up(self, folder):
        seen.append(folder)
        if folder == FAMILY:
            raise ValueError("year 10000 is out of range")

    monkeypatch.setattr(ContextRecorder, "catch_up", catch_up)
    with capture_logs() as logs:
        await harness.recorder.sweep()
        await harness.recorder.sweep()
    assert seen == ["family", "main", "family"], "only what failed is tried again"
    assert [(line["event"], line["group"]) for line in logs] == [("context.behind", FAMILY)] * 2


async def test_a_snapshot_that_fails_for_any_reason_holds_up_no_other_group(harness, monkeypatch):
    store = harness.store_harness
    await harness.say("hello", "hi")
    await store.hear("@Andy hello main", "main")
    await store.answer("hi", folder="main")
    take = ContextRecorder._take_snapshot

    def fail_for_family(self, folder, now_ms):
        if folder == FAMILY:
            raise ValueError("year 10000 is out of range")
        return take(self, folder, now_ms)

    monkeypatch.setattr(ContextRecorder, "_take_snapshot", fail_for_family)
    await harness.recorder.sweep()
    assert harness.recorder.manager(Folder("main")).snapshots()


async def test_a_directory_that_cannot_be_read_holds_up_no_other_group(harness):
    store = harness.store_harness
    (harness.home / "data/context").mkdir(parents=True)
    (harness.home / "data/context/family").write_text("no directory")
    await store.hear("@Andy hello main", "main")
    await store.answer("hi", folder="main")
    await harness.recorder.sweep()
    main = harness.recorder.manager(Folder("main")).load(now_ms=store.clock.now_ms()).context
    assert len(main.conversation.recent_window) == 2


async def test_a_group_in_which_nothing_happened_costs_a_second_look_nothing(harness, monkeypatch):
    await harness.recorder.sweep()
    seen = []
    monkeypatch.setattr(ContextRecorder, "catch_up", partial(_noted, seen))
    await harness.recorder.sweep()
    assert seen == []
    await harness.say("hello", "hi")
    await harness.recorder.sweep()
    assert seen == [FAMILY]


async def _noted(seen, folder):
    seen.append(folder)


async def test_words_that_are_taken_back_leave_the_context_too(harness):
    heard = await harness.store_harness.hear("@Andy the code is tulip")
    turn = await harness.store_harness.answer("Noted.")
    looking = asyncio.create_task(harness.recorder.run(), name="context")
    try:
        await until(lambda: len(harness.window) == 2, "it is there")
        async with harness.store_harness.database.reading() as tx:
            (message,) = await messages.requests_of(tx, turn.id, limit=1)
        assert heard.seq == message.seq
        await harness.store_harness.intake.receive(a_message("", deletes=message.id))
        copy = harness.home / "data/env/family/context.json"
        await until(
            lambda: copy.exists() and "tulip" not in copy.read_text(), "the words are gone from the copy too"
        )
    finally:
        looking.cancel()
        await asyncio.wait({looking})
    assert harness.window[0] == (f"t{turn.id}.u", TAKEN_BACK)
    assert "tulip" not in (harness.files / "context.json").read_text()


async def test_a_host_killed_between_question_and_answer_is_caught_up_by_the_next(harness):
    await harness.store_harness.hear("@Andy hello")
    turn, run, _ = await harness.store_harness.start_next()
    await harness.catch_up()
    harness.again()
    await harness.store_harness.lose(run)
    await harness.store_harness.answer("hi")
    await harness.recorder.sweep()
    assert harness.window == [(f"t{turn.id}.u", "Jane: hello"), (f"t{turn.id}.a", "hi")]


async def test_what_is_settled_is_not_read_again(harness, monkeypatch):
    await harness.say("hello", "hi")
    await harness.catch_up()
    marks: list[Any] = []
    after = exchanges.after

    async def noted(tx: Any, folder: Any, mark: int, *, limit: int) -> Any:
        marks.append(mark)
        return await after(tx, folder, mark, limit=limit)

    monkeypatch.setattr(exchanges, "after", noted)
    await harness.catch_up()
    await harness.store_harness.hear("@Andy more")
    open_turn, _, _ = await harness.store_harness.start_next()
    await harness.catch_up()
    await harness.catch_up()
    assert marks == [1, 1, open_turn.id - 1]


async def test_c_23_a_repository_around_the_home_takes_nothing_of_what_was_said(harness):
    (harness.home / ".git").mkdir()
    looking = asyncio.create_task(harness.recorder.run(), name="context")
    try:
        ignored = harness.home / ".gitignore"
        await until(lambda: ignored.exists() and ignored.read_text() == ".ai-brain/\n", "the line is there")
    finally:
        looking.cancel()
        await asyncio.wait({looking})
