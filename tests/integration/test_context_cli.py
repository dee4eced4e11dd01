"""`andy context` on a home whose Andy is down, and beside another writer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from filelock import FileLock

from orchestrator.context.context_manager import ContextManager
from orchestrator.context.dialogue import NewMessage
from orchestrator.context.files import LOCK
from orchestrator.context.tokens import EstimatingCounter
from orchestrator.domain.values import Folder
from orchestrator.groups import registration
from orchestrator.store.database import Database
from orchestrator.store.people import memory_notes, people
from orchestrator.store.people import removals as person_removals
from orchestrator.store.people.memory_notes import MemoryNote
from orchestrator.store.runs import sessions
from tests.processes.andy import AndyProcess


@pytest.fixture
async def andy(tmp_path: Path) -> AndyProcess:
    """A home with a group that nobody has started yet."""
    home = tmp_path / "home"
    (home / "groups").mkdir(parents=True)
    database = await Database.open(home / "store" / "messages.db")
    async with database.transaction() as tx:
        await registration.ensure_main(tx, now_ms=1)
        await sessions.put_current(tx, Folder("main"), "the-session", now_ms=1)
    await database.close()
    return AndyProcess(home, environment={"TZ": "Asia/Seoul"})


@pytest.fixture
def manager(andy: AndyProcess) -> ContextManager:
    return ContextManager.of(andy.home / "data" / "context", "main", counter=EstimatingCounter())


def speak(manager: ContextManager, turn: int, text: str) -> None:
    manager.register_message(NewMessage(id=f"t{turn}.u", role="user", content=text, at_ms=turn), now_ms=turn)
    manager.register_message(
        NewMessage(id=f"t{turn}.a", role="assistant", content="Noted.", at_ms=turn), now_ms=turn
    )


def told(andy: AndyProcess, *arguments: str) -> str:
    done = andy.cli("context", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_where_nothing_is_kept_it_says_so(andy: AndyProcess) -> None:
    assert told(andy, "show", "main") == "Nothing is kept of 'main' yet.\n"
    assert "has no plan" in told(andy, "plan", "main")
    assert "There are no snapshots yet" in told(andy, "snapshots", "main")
    assert "has begun yet" in told(andy, "why", "main")
    assert not (andy.home / "data" / "context").exists(), "looking makes nothing"
    unknown = andy.cli("context", "show", "nobody")
    assert (unknown.returncode, "There is no group 'nobody'" in unknown.stderr) == (1, True)
    assert andy.cli("context", "show", "../main").returncode == 1


def test_all_that_is_kept_is_shown(andy: AndyProcess, manager: ContextManager) -> None:
    speak(manager, 1, "Jane: train or bus?")
    manager.register_message(NewMessage(id="t2.u", role="user", content="Jane: and when?", at_ms=2), now_ms=2)
    manager.create_plan("부산 여행", objective="A weekend", tasks=["train", "hotel"], now_ms=3)
    manager.set_active_task("task_001", now_ms=3)
    manager.record_decision("We go by train.", now_ms=3)
    manager.note_open_file("trip/plan.md", now_ms=3)
    shown = told(andy, "show", "main")
    for part in ("plan_001, 부산 여행", "train (in_progress)", "We go by train.", "trip/plan.md"):
        assert part in shown
    assert "user (not answered yet): Jane: and when?" in shown
    assert "assistant: Noted." in shown
    document = andy.listed("context", "show", "main")
    assert document["context"]["memory"]["last_decisions"] == ["We go by train."]
    assert "→ plan_001  부산 여행 (in_progress)\n" in told(andy, "plan", "main")
    assert andy.listed("context", "plan", "main")["active_task"] == "task_001"


def test_a_context_that_was_mended_is_said_so(andy: AndyProcess, manager: ContextManager) -> None:
    speak(manager, 1, "Jane: hello")
    manager.snapshot(now_ms=1)
    (manager.files.path / "context.json").write_text("{")
    first = andy.cli("context", "show", "main")
    assert "cannot be read" in first.stderr
    assert "Jane: hello" in first.stdout
    assert "the bad one is kept as context.corrupt-" in first.stdout
    assert "the bad one is kept as context.corrupt-" in told(andy, "show", "main")


def test_a_snapshot_is_restored_and_the_session_is_not_gone_on_with(
    andy: AndyProcess, manager: ContextManager
) -> None:
    speak(manager, 1, "Jane: one")
    first = manager.snapshot(now_ms=1_000)
    assert first is not None
    speak(manager, 2, "Jane: two")
    (row,) = andy.listed("context", "snapshots", "main")
    assert (row["name"], row["pinned"]) == (first.name, False)
    assert "is kept for good" in told(andy, "pin", "main", first.name)
    assert "pinned" in told(andy, "snapshots", "main")
    assert "no longer" in told(andy, "pin", "main", first.name, "--off")

    asked = andy.cli("context", "restore", "main", first.name)
    assert (asked.returncode, "--yes" in asked.stderr) == (1, True)
    assert len(manager.load(now_ms=9).context.conversation.recent_window) == 4

    done = told(andy, "restore", "main", first.name, "--yes")
    assert "The replaced context is context-" in done
    window = manager.load(now_ms=9).context.conversation.recent_window
    assert [one.content for one in window] == ["Jane: one", "Noted."]
    assert andy.rows("SELECT 1 FROM sessions") == []
    for name in ("context-19700101T000000Z-r99.json", "../x"):
        refused = andy.cli("context", "restore", "main", name)
        assert (refused.returncode, f"There is no snapshot '{name}'" in refused.stderr) == (1, True)


def test_a_reset_forgets_but_plans_only_when_asked(andy: AndyProcess, manager: ContextManager) -> None:
    speak(manager, 1, "Jane: one")
    manager.create_plan("Trip", now_ms=1)
    refused = andy.cli("context", "reset", "main")
    assert (refused.returncode, "--yes" in refused.stderr) == (1, True)
    assert "is context-" in told(andy, "reset", "main", "--yes")
    kept = manager.load(now_ms=9)
    assert kept.context.is_empty
    assert len(kept.workflow.plans) == 1
    told(andy, "reset", "main", "--with-plans", "--yes")
    assert manager.load(now_ms=9).workflow.plans == ()


def test_who_finds_it_held_is_told_to_try_again(andy: AndyProcess, manager: ContextManager) -> None:
    speak(manager, 1, "Jane: one")
    with FileLock(manager.files.path / LOCK):
        busy = andy.cli("context", "show", "main")
    assert (busy.returncode, "try again" in busy.stderr) == (1, True)


def test_a_group_that_was_removed_leaves_its_context(andy: AndyProcess) -> None:
    assert andy.cli("groups", "register", "family").returncode == 0
    contexts = andy.home / "data" / "context"
    manager = ContextManager.of(contexts, "family", counter=EstimatingCounter())
    speak(manager, 1, "Jane: one")
    assert andy.cli("groups", "remove", "family").returncode == 0
    assert "Jane: one" in told(andy, "show", "family")
    for path in ("../context", "family/../family", "family/snapshots"):
        unknown = andy.cli("context", "show", path)
        assert (unknown.returncode, "There is no group" in unknown.stderr) == (1, True), path


def test_what_became_a_secret_is_not_put_back(andy: AndyProcess, manager: ContextManager) -> None:
    speak(manager, 1, "the mail's password is velvet-tiger-49")
    taken = manager.snapshot(now_ms=1)
    assert taken is not None
    (andy.home / ".env").write_text("MAIL_PASSWORD=velvet-tiger-49\n")
    speak(manager, 2, "hello")
    told(andy, "restore", "main", taken.name, "--yes")
    kept = (manager.files.path / "context.json").read_text()
    assert "velvet" not in kept
    assert "[redacted]" in kept


def test_a_summary_and_plans_are_corrected(andy: AndyProcess, manager: ContextManager) -> None:
    speak(manager, 1, "Jane: one")
    manager.create_plan("Trip", objective="Sea", tasks=["Book", "Pack"], now_ms=1)
    manager.set_active_task("task_001", now_ms=1)
    assert "is context-" in told(andy, "correct", "main", "--summary", "Jane likes tea.")
    assert andy.rows("SELECT 1 FROM sessions") == [], "a new session begins with it"
    given = ("correct", "main", "--plan", "plan_001")
    told(andy, *given, "--title", "Trip to the sea")
    told(andy, *given, "--task", "task_001", "--status", "completed")
    told(andy, *given, "--task", "task_002", "--title", "Pack the tent")
    kept = manager.load(now_ms=9)
    (plan,) = kept.workflow.plans
    assert kept.context.conversation.running_summary == "Jane likes tea."
    assert (plan.title, plan.objective) == ("Trip to the sea", "Sea")
    assert [(one.title, one.status.value) for one in plan.tasks] == [
        ("Book", "completed"),
        ("Pack the tent", "pending"),
    ]
    assert kept.context.memory.active_task_id == "task_002", "after a task that is over comes the next"

    for words, why in (
        (("--summary", "x" * 701), "too long"),
        (("--plan", "plan_009", "--title", "x"), "no plan 'plan_009'"),
        (("--plan", "plan_001", "--task", "task_009", "--title", "x"), "no task 'task_009'"),
        (("--plan", "plan_001", "--task", "task_001", "--status", "maybe"), "is no state"),
    ):
        refused = andy.cli("context", "correct", "main", *words)
        assert (refused.returncode, why in refused.stderr) == (1, True), refused.stderr
    for words, fix in (
        ((), "--summary TEXT, or --plan ID"),
        (("--summary", "x", "--task", "task_001"), "--task changes nothing: add --plan ID"),
        (("--summary", "x", "--title", "x", "--status", "completed"), "--title, --status changes nothing"),
        (("--summary", "x", "--objective", "x"), "--objective changes nothing: add --plan ID"),
        (("--summary", "x", "--forget"), "--forget changes nothing: add --plan ID"),
        (("--plan", "plan_001", "--status", "completed"), "add --task ID"),
        (("--plan", "plan_001", "--title", "x", "--forget"), "leave out --title, or --forget"),
        (("--plan", "plan_001"), "what is to be changed of the plan: --title"),
        (("--plan", "plan_001", "--task", "task_001"), "what is to be changed of the plan: --title"),
    ):
        refused = andy.cli("context", "correct", "main", *words)
        lines = refused.stderr.strip().splitlines()
        assert (refused.returncode, len(lines), fix in lines[0]) == (2, 1, True), refused.stderr
    assert manager.load(now_ms=9) == kept
    told(andy, "correct", "main", "--summary", "Jane likes coffee.", "--plan", "plan_001")
    assert manager.load(now_ms=9).context.conversation.running_summary == "Jane likes coffee."

    told(andy, *given, "--forget")
    kept = manager.load(now_ms=9)
    assert (kept.workflow.plans, kept.context.memory.active_plan_id) == ((), None)
    audited = andy.rows("SELECT detail FROM audit WHERE kind = 'context.changed'")
    assert [row["detail"].startswith('{"snapshot":"context-') for row in audited] == [True] * 6


async def test_people_are_shown_with_their_notes_and_forgotten(andy: AndyProcess) -> None:
    database = await Database.open(andy.home / "store" / "messages.db")
    note = MemoryNote(
        folder=Folder("main"), text="Mina likes tea", about=("local:mina",), said_by=("local:jun",), at_ms=1
    )
    async with database.transaction() as tx:
        for address, name in (("local:mina", "Mina"), ("local:jun", "Jun")):
            await people.note(tx, Folder("main"), address, name, now_ms=1)
        await memory_notes.add(tx, note, request_id="r1")
    assert told(andy, "people", "main") == "person_note.1: Mina likes tea (about Mina; said by Jun)\n"
    assert json.loads(told(andy, "people", "main", "mina", "--json"))["notes"][0]["text"] == "Mina likes tea"
    assert "Mina: owner; known as local:mina" in told(andy, "people", "main", "local:mina")
    unsure = andy.cli("context", "forget", "main", "local:mina")
    assert unsure.returncode != 0
    assert "as soon as" in told(andy, "forget", "main", "local:mina", "--yes")
    unknown = andy.cli("context", "forget", "main", "Zoe", "--yes")
    assert (unknown.returncode, "local:jun (Jun)" in unknown.stderr) == (1, True)
    due = await database.read(person_removals.due)
    assert [(one.addresses, one.by) for one in due] == [(frozenset({"local:mina"}), "command line")]
    await database.close()
