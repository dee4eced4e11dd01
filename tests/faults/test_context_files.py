"""A context's files under kill -9, two writers at once, spoilt content and a disk that refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.context.context_manager import ContextManager
from orchestrator.context.files import ContextRepair
from orchestrator.context.tokens import EstimatingCounter
from orchestrator.context.workflow import Workflow
from orchestrator.domain.errors import ContextBusy
from tests.support.dialogues import MINUTE, NOW, answers, asks
from tests.support.skips import IS_SOAK

ROOT = Path(__file__).resolve().parents[2]
SAVES = 1_000 if IS_SOAK else 160
"""Saves of a context, of which about each 15th is killed."""
SAVING = Path(__file__).with_name("saving_context.py")
KILLING = Path(__file__).with_name("killing_context.py")


@pytest.fixture
def troubles() -> list[ContextRepair]:
    return []


@pytest.fixture
def context_manager(tmp_path: Path, troubles: list[ContextRepair]) -> ContextManager:
    return manager(tmp_path, troubles)


def manager(contexts: Path, troubles: list[ContextRepair], *, lock_seconds: float = 5.0) -> ContextManager:
    return ContextManager.of(
        contexts, "family", counter=EstimatingCounter(), report=troubles.append, lock_seconds=lock_seconds
    )


def saver(contexts: Path, first: int, turns: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, SAVING, contexts, str(first), str(turns)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def converse(context_manager: ContextManager, turns: int = 2) -> None:
    for turn in range(1, turns + 1):
        context_manager.register_message(asks(turn, f"Q{turn}"), answers(turn, f"A{turn}"), now_ms=NOW + turn)


# Writers


@pytest.mark.slow
def test_two_processes_of_200_messages_each_lose_none(tmp_path: Path):
    savers = [saver(tmp_path, first, 100) for first in (1, 1_001)]
    told = [one.communicate(timeout=500)[0].split() for one in savers]

    assert [one.returncode for one in savers] == [0, 0]
    context = manager(tmp_path, []).load(now_ms=NOW).context
    registered = {message for lines in told for message in lines}
    assert len(registered) == 400
    assert registered == set(context.conversation.seen.ids)
    assert context.stats.dialog_turns == 200
    # Each save was one: of messages, plans, tasks.
    assert context.revision == 400 + 2 * 20


def test_threads_of_one_process_lose_none_either(tmp_path: Path):
    def register(turn: int) -> None:
        manager(tmp_path, [], lock_seconds=60).register_message(
            asks(turn, "?"), answers(turn, "!"), now_ms=NOW
        )

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(register, range(1, 101)))

    assert manager(tmp_path, []).load(now_ms=NOW).context.stats.dialog_turns == 100


@pytest.mark.host
@pytest.mark.timeout(1200)
def test_kill_9_while_saving_leaves_a_file_that_parses_and_loses_nothing_that_was_told(tmp_path: Path):
    killed = subprocess.run(
        [sys.executable, KILLING, tmp_path, str(SAVES)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == 0, killed.stderr
    told, kills = map(int, killed.stdout.split())

    troubles: list[ContextRepair] = []
    context_manager = manager(tmp_path, troubles)
    context_manager.record_decision("Go on", now_ms=NOW)
    assert told >= SAVES
    assert kills >= SAVES // 40
    assert troubles == []
    assert list(context_manager.files.path.glob("*.tmp-*")) == []
    assert all(context_manager.files.snapshots.read(one.name) for one in context_manager.snapshots())


def test_a_lock_that_is_held_is_waited_for_and_then_told(tmp_path: Path, troubles: list[ContextRepair]):
    context_manager = manager(tmp_path, troubles, lock_seconds=0.1)
    converse(context_manager)
    hasty = manager(tmp_path, troubles, lock_seconds=0.1)

    with context_manager.files.changing(NOW), ThreadPoolExecutor(1) as other:
        with pytest.raises(ContextBusy, match="try again") as raised:
            other.submit(hasty.record_decision, "x", now_ms=NOW).result()
        assert raised.value.code == "context_busy"

    assert hasty.record_decision("x", now_ms=NOW) == ("x",)


def test_a_lock_dies_with_its_holder(tmp_path: Path):
    program = (
        "import sys, os, pathlib, signal\n"
        "from orchestrator.context.files import ContextFiles\n"
        "files = ContextFiles.of(pathlib.Path(sys.argv[1]), 'family')\n"
        "with files.changing(0):\n"
        "    print('held', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    holder = subprocess.run(
        [sys.executable, "-c", program, tmp_path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert holder.stdout == "held\n"

    assert manager(tmp_path, [], lock_seconds=0.1).record_decision("x", now_ms=NOW) == ("x",)


# What lies there


SPOILT = {
    "cut": '{"version": "1.0", "memory": {"active_pl',
    "empty": "",
    "binary": "\x00\x01\x02" * 100,
    "list": "[1, 2]",
    "wrong_types": '{"version": "1.0", "conversation": {"recent_window": [{"id": 7}]}}',
    "negative": '{"version": "1.0", "revision": -4}',
    "deep": '{"version": "1.0", "x": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "no_version": "{}",
}


@pytest.mark.parametrize("kind", SPOILT)
def test_c_10_a_spoilt_context_is_kept_aside_and_the_newest_valid_snapshot_restored(
    context_manager: ContextManager, troubles: list[ContextRepair], kind: str
):
    converse(context_manager)
    context_manager.create_plan("Trip", now_ms=NOW)
    good = context_manager.snapshot(now_ms=NOW)
    context_manager.record_decision("Later", now_ms=NOW)
    bad = context_manager.snapshot(now_ms=NOW + MINUTE)
    assert good is not None
    assert bad is not None
    (context_manager.files.path / "snapshots" / bad.name).write_text("{")
    (context_manager.files.path / "context.json").write_text(SPOILT[kind])

    kept = context_manager.load(now_ms=NOW + 2 * MINUTE)

    assert [one.id for one in kept.context.conversation.recent_window] == ["t1.u", "t1.a", "t2.u", "t2.a"]
    assert kept.context.memory.active_plan_id == "plan_001"
    (trouble,) = troubles
    assert trouble.kind == ("unknown_version" if kind == "no_version" else "corrupt")
    assert trouble.folder == "family"
    assert good.name in trouble.text
    assert trouble.moved_to is not None
    assert (context_manager.files.path / trouble.moved_to).read_text() == SPOILT[kind]
    assert kept.context.revision > bad.revision, "a number is not given twice"
    assert context_manager.load(now_ms=NOW) == kept
    assert len(troubles) == 1, "it is told once"


def test_c_10_without_a_snapshot_it_begins_anew(
    context_manager: ContextManager, troubles: list[ContextRepair]
):
    converse(context_manager)
    (context_manager.files.path / "context.json").write_text("{")

    assert context_manager.load(now_ms=NOW).context.is_empty
    assert "it starts empty" in troubles[0].text
    converse(context_manager)
    assert context_manager.hydrate_prompt(now_ms=NOW)


@pytest.mark.parametrize("version", ["2.0", "10.3", "x"])
def test_an_unknown_major_version_is_set_aside_and_not_overwritten(
    context_manager: ContextManager, troubles: list[ContextRepair], version: str
):
    converse(context_manager)
    newer = json.dumps({"version": version, "all": "different"})
    (context_manager.files.path / "context.json").write_text(newer)

    context_manager.record_decision("Go on", now_ms=NOW)

    (trouble,) = troubles
    assert trouble.kind == "unknown_version"
    assert trouble.moved_to is not None
    assert (context_manager.files.path / trouble.moved_to).read_text() == newer


def test_a_later_minor_version_is_read(context_manager: ContextManager, troubles: list[ContextRepair]):
    converse(context_manager)
    path = context_manager.files.path / "context.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "version": "1.7", "something": {"new": 1}}))

    assert len(context_manager.load(now_ms=NOW).context.conversation.recent_window) == 4
    assert troubles == []


@pytest.mark.parametrize("kind", ["link", "directory", "fifo", "huge"])
def test_what_is_no_file_of_ours_is_set_aside(
    context_manager: ContextManager, troubles: list[ContextRepair], tmp_path: Path, kind: str
):
    converse(context_manager)
    context_manager.snapshot(now_ms=NOW)
    path = context_manager.files.path / "context.json"
    path.unlink()
    outside = tmp_path / "outside.json"
    outside.write_text("{}")
    match kind:
        case "link":
            path.symlink_to(outside)
        case "directory":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case _:
            path.write_text(" " * 3_000_000)

    context_manager.record_decision("Go on", now_ms=NOW)

    assert [trouble.kind for trouble in troubles] == ["corrupt"]
    assert path.is_file()
    assert not path.is_symlink()
    assert outside.read_text() == "{}"
    assert len(context_manager.load(now_ms=NOW).context.conversation.recent_window) == 4


def test_of_spoilt_files_the_newest_five_are_kept(
    context_manager: ContextManager, troubles: list[ContextRepair]
):
    converse(context_manager)
    for number in range(8):
        (context_manager.files.path / "context.json").write_text(f"{{{number}")
        context_manager.load(now_ms=NOW + number * MINUTE)

    kept = sorted(path.read_text() for path in context_manager.files.path.glob("context.corrupt-*.json"))
    assert kept == ["{3", "{4", "{5", "{6", "{7"]
    assert len(troubles) == 8


@pytest.mark.parametrize(
    "content", ["{", '{"version": "2.0", "plans": 7}', '{"version": "1.0"}', '{"version": "3.0"}']
)
def test_a_spoilt_workflow_is_kept_aside_and_restored_too(
    context_manager: ContextManager, troubles: list[ContextRepair], content: str
):
    context_manager.create_plan("Trip", now_ms=NOW)
    context_manager.record_decision("Go", now_ms=NOW)
    context_manager.snapshot(now_ms=NOW)
    (context_manager.files.path / "workflow.json").write_text(content)

    kept = context_manager.load(now_ms=NOW)

    assert [plan.title for plan in kept.workflow.plans] == ["Trip"]
    assert kept.context.memory.active_plan_id == "plan_001"
    assert len(troubles) == 1
    assert (context_manager.files.path / str(troubles[0].moved_to)).read_text() == content


def test_c_8_a_plan_that_is_gone_is_taken_from_the_hand_and_told(
    context_manager: ContextManager, troubles: list[ContextRepair]
):
    context_manager.create_plan("Trip", now_ms=NOW)
    (context_manager.files.path / "workflow.json").unlink()

    told = context_manager.hydrate_prompt(now_ms=NOW)

    assert "ACTIVE PLAN: none" in told.text
    assert 'NOTE: "What was in hand changed: the plan plan_001 is gone."' in told.text
    assert [trouble.kind for trouble in troubles] == ["dangling"]
    context_manager.create_plan("Another", now_ms=NOW)
    assert "NOTE" not in context_manager.hydrate_prompt(now_ms=NOW).text


def test_c_8_the_workflow_is_written_first_so_a_crash_between_leaves_nothing_dangling(
    context_manager: ContextManager, troubles: list[ContextRepair], monkeypatch: pytest.MonkeyPatch
):
    converse(context_manager)
    before = context_manager.load(now_ms=NOW).context

    def crash(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(type(context_manager.files), "_write_context", crash)
        with pytest.raises(OSError, match="Input/output"):
            context_manager.create_plan("Trip", request_id="r1", now_ms=NOW)

    assert (
        json.loads((context_manager.files.path / "context.json").read_text())["revision"] == before.revision
    )
    assert context_manager.load(now_ms=NOW).context.memory.active_plan_id == "plan_001"
    assert context_manager.create_plan("Trip", request_id="r1", now_ms=NOW).id == "plan_001"
    assert troubles == []


def test_c_7_a_workflow_of_version_1_is_migrated_once_and_kept(
    context_manager: ContextManager, troubles: list[ContextRepair]
):
    converse(context_manager)
    old = {"version": "1.0", "tasks": [{"id": "task_001", "title": "One", "status": "done"}]}
    (context_manager.files.path / "workflow.json").write_text(json.dumps(old))

    kept = context_manager.load(now_ms=NOW)

    assert (kept.workflow.version, kept.workflow.plans[0].id) == ("2.0", "plan_legacy")
    assert kept.context.memory.active_plan_id == "plan_legacy"
    assert context_manager.load(now_ms=NOW + MINUTE) == kept
    (copy,) = (context_manager.files.path / "snapshots").glob("workflow-v1-*.json")
    assert json.loads(copy.read_text()) == old
    assert troubles == []
    Workflow.model_validate(json.loads((context_manager.files.path / "workflow.json").read_text()))


def test_an_outsized_context_comes_down_to_256_kib(
    context_manager: ContextManager, troubles: list[ContextRepair]
):
    converse(context_manager)
    path = context_manager.files.path / "context.json"
    document = json.loads(path.read_text())
    template = document["conversation"]["recent_window"][0]
    document["conversation"]["recent_window"] = [
        {**template, "id": f"t{turn}.u", "content": "x" * 5_000} for turn in range(1, 150)
    ]
    document["conversation"]["vector_cache"] = [{"id": "msg_034", "embedding": [0.1] * 1_000}]
    path.write_text(json.dumps(document))

    context_manager.record_decision("Go on", now_ms=NOW)

    assert path.stat().st_size <= 256 * 1024
    assert troubles == []
    assert context_manager.load(now_ms=NOW).context.conversation.recent_window[-1].id == "t149.u"


# The disk


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_refuses_leaves_what_was_there(
    context_manager: ContextManager, monkeypatch: pytest.MonkeyPatch, call: str
):
    converse(context_manager)
    before = context_manager.load(now_ms=NOW)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os if call == "fsync" else Path, call, full)
        with pytest.raises(OSError, match="No space"):
            context_manager.record_decision("Lost", now_ms=NOW)

    assert context_manager.load(now_ms=NOW) == before
    assert list(context_manager.files.path.glob("*.tmp-*")) == []


def test_what_a_killed_writer_left_is_swept(context_manager: ContextManager):
    converse(context_manager)
    left = context_manager.files.path / "context.json.tmp-123-abcdef"
    left.write_text("half")

    context_manager.load(now_ms=NOW)

    assert not left.exists()


def test_a_block_that_fails_writes_nothing(context_manager: ContextManager):
    converse(context_manager)
    before = context_manager.load(now_ms=NOW)

    def fail() -> None:
        with context_manager.files.changing(NOW) as draft:
            draft.context = draft.context.model_copy(update={"pending_user": "t9.u"})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()

    assert context_manager.load(now_ms=NOW) == before
