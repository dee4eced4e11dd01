"""What is kept is changed by its owner between answers, never during one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest

from agent_runner.wire.frames import Ack, TurnEnd
from orchestrator.context import owner_changes
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.owner_changes import ConversationBusy
from orchestrator.context.recorder import ContextCopies
from orchestrator.context.snapshots import ContextSnapshot
from orchestrator.domain.errors import ContextBusy
from tests.support.dialogues import NOW
from tests.support.store_harness import StoreHarness


async def change(store_harness: StoreHarness, manager: ContextManager, root: Path, summary: str) -> None:
    await owner_changes.change(
        store_harness.database,
        manager,
        ContextCopies(root),
        lambda manager, now_ms: manager.correct(
            lambda kept: owner_changes.with_summary(kept, summary), now_ms=now_ms
        ),
        now_ms=NOW,
    )


async def test_nothing_is_changed_while_the_agent_answers(
    store_harness: StoreHarness, manager: ContextManager, tmp_path: Path
) -> None:
    await store_harness.add_group()
    (tmp_path / "env" / "family").mkdir(parents=True)
    await store_harness.hear("@Andy hello")
    turn, run, _ = await store_harness.start_next()
    with pytest.raises(ConversationBusy, match="wait"):
        await change(store_harness, manager, tmp_path / "env", "too early")
    assert manager.load(now_ms=NOW).context.conversation.running_summary == ""

    await store_harness.take(run, Ack(n=1, turn=turn.id))
    await store_harness.take(run, TurnEnd(n=2, turn=turn.id))
    await change(store_harness, manager, tmp_path / "env", "in time")
    assert manager.load(now_ms=NOW).context.conversation.running_summary == "in time"
    assert "in time" in (tmp_path / "env" / "family" / "context.json").read_text(), "its container sees it"
    assert await store_harness.rows("SELECT 1 FROM sessions") == []


async def test_a_change_whose_copy_cannot_be_made_now_is_made_all_the_same(
    store_harness: StoreHarness, manager: ContextManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store_harness.add_group()

    def busy(*_: object, **__: object) -> NoReturn:
        raise ContextBusy("family")

    def change_before_another_writes(manager: ContextManager, now_ms: int) -> ContextSnapshot | None:
        snapshot = manager.correct(lambda kept: owner_changes.with_summary(kept, "new"), now_ms=now_ms)
        monkeypatch.setattr(ContextManager, "load", busy)
        return snapshot

    copies = ContextCopies(tmp_path)
    await owner_changes.change(
        store_harness.database, manager, copies, change_before_another_writes, now_ms=NOW
    )
    monkeypatch.undo()
    assert manager.load(now_ms=NOW).context.conversation.running_summary == "new"


async def test_no_turn_starts_while_the_context_is_changed(
    store_harness: StoreHarness, manager: ContextManager, tmp_path: Path
) -> None:
    await store_harness.add_group()
    await store_harness.hear("@Andy hello")
    path = await store_harness.database.path()

    def start_meanwhile(manager: ContextManager, now_ms: int) -> ContextSnapshot | None:
        is_refused = pytest.raises(sqlite3.OperationalError, match="locked")
        with closing(sqlite3.connect(path, timeout=0)) as another_process, is_refused:
            another_process.execute("BEGIN IMMEDIATE")
        return manager.snapshot(now_ms=now_ms)

    copies = ContextCopies(tmp_path)
    await owner_changes.change(store_harness.database, manager, copies, start_meanwhile, now_ms=NOW)
    assert len(await store_harness.queued()) == 1
