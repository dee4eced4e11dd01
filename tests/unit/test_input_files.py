"""What the host leaves for a container."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import structlog

from agent_runner.wire.mailbox import Reply
from agent_runner.wire.order import CloseOrder, TurnOrder
from orchestrator.domain.values import Folder, RunId
from orchestrator.ipc import input_files

ORDER = TurnOrder(run="run-1", turn=7, kind="chat", prompt="오늘 뭐 있어?")


def _reply(request_id: str) -> Reply:
    return Reply(request_id=request_id, ok=True, code="done", text="Done.")


def test_a_turn_lies_whole_under_the_name_that_is_returned(tmp_path: Path) -> None:
    name = input_files.write_turn(tmp_path, ORDER)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert TurnOrder.parse((tmp_path / name).read_bytes()) == ORDER


def test_a_turn_can_be_taken_back_twice(tmp_path: Path) -> None:
    name = input_files.write_turn(tmp_path, ORDER)
    input_files.remove_turn(tmp_path, name)
    input_files.remove_turn(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_a_close_order_names_its_runs_and_the_last_one_counts(tmp_path: Path) -> None:
    input_files.write_close(tmp_path, {"run-1"})
    input_files.write_close(tmp_path, {"run-2", "run-1"})
    (path,) = tmp_path.iterdir()
    assert path.name == "_close"
    assert CloseOrder.parse(path.read_bytes()).runs == ("run-1", "run-2")


def test_what_runs_that_are_over_left_is_cleared_but_not_what_a_living_one_has_to_read(
    tmp_path: Path,
) -> None:
    kept = input_files.write_turn(tmp_path, ORDER)
    stale = input_files.write_turn(tmp_path, ORDER.model_copy(update={"run": "run-0"}))
    (tmp_path / ".x.json.ab12.partial").write_text("half")
    (tmp_path / "0.json").write_text("no order")
    os.mkfifo(tmp_path / "fifo.json")
    assert (tmp_path / stale).exists()
    left = input_files.clear_stale(tmp_path, lambda run: run != ORDER.run)
    assert left == [input_files.RemainingInput(name=kept, runs=(ORDER.run,), turn=ORDER.turn)]
    assert [path.name for path in tmp_path.iterdir()] == [kept]


def test_a_long_turn_stays_for_its_living_run(tmp_path: Path) -> None:
    long = ORDER.model_copy(update={"prompt": "가" * 400_000})  # the longest prompt, in more than 1 MiB
    name = input_files.write_turn(tmp_path, long)
    left = input_files.clear_stale(tmp_path, lambda run: run != ORDER.run)
    assert [(file.name, file.turn) for file in left] == [(name, ORDER.turn)]
    assert (tmp_path / name).exists()


@pytest.mark.parametrize(("runs", "stays"), [({"run-0"}, False), ({"run-0", "run-1"}, True), (set(), False)])
def test_a_close_order_stays_while_one_that_it_names_lives(
    tmp_path: Path, runs: set[str], stays: bool
) -> None:
    input_files.write_close(tmp_path, runs)
    input_files.clear_stale(tmp_path, lambda run: run != "run-1")
    assert (tmp_path / "_close").exists() == stays


def test_a_missing_input_directory_is_clear(tmp_path: Path) -> None:
    assert input_files.clear_stale(tmp_path / "missing", lambda _: True) == []


def test_a_directory_that_cannot_be_cleared_is_told_and_the_others_are_cleared(tmp_path: Path) -> None:
    for folder in ("bees", "family"):
        (tmp_path / folder / "input").mkdir(parents=True)
        input_files.write_turn(tmp_path / folder / "input", ORDER)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "input").symlink_to(tmp_path / "family" / "input")
    inputs = input_files.InputFiles(tmp_path)
    with structlog.testing.capture_logs() as told:
        inputs.remove_files_of_others(())
    assert [one["group"] for one in told if one["event"] == "input.not_cleared"] == ["odd"]
    assert not list(tmp_path.glob("[bf]*/input/*"))


def test_a_run_that_is_over_takes_its_turns_along_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "family" / "input").mkdir(parents=True)
    inputs = input_files.InputFiles(tmp_path)
    inputs.write_turn(Folder("family"), ORDER)
    inputs.write_turn(Folder("family"), ORDER.model_copy(update={"run": "run-0", "turn": 99}))
    inputs.remove_run_files(Folder("family"), RunId("run-0"))
    (left,) = (tmp_path / "family" / "input").iterdir()
    assert TurnOrder.parse(left.read_bytes()) == ORDER
    inputs.remove_turn(Folder("family"), ORDER.turn)
    assert not left.exists()


def test_a_reply_has_the_name_of_its_request(tmp_path: Path) -> None:
    input_files.write_reply(tmp_path, _reply("req-1"))
    assert Reply.parse((tmp_path / "req-1.json").read_bytes()) == _reply("req-1")


@pytest.mark.parametrize("request_id", ["../../etc/x", "a/b", ".", ""])
def test_no_reply_can_leave_its_directory(request_id: str) -> None:
    with pytest.raises(ValueError, match="request_id"):
        _reply(request_id)


def test_replies_of_more_than_an_hour_ago_go(tmp_path: Path) -> None:
    input_files.write_reply(tmp_path, _reply("old"))
    past = time.time() - input_files.REPLY_SECONDS - 60
    os.utime(tmp_path / "old.json", (past, past))
    input_files.write_reply(tmp_path, _reply("new"))
    assert [path.name for path in tmp_path.iterdir()] == ["new.json"]


def test_only_the_newest_thousand_replies_stay(tmp_path: Path) -> None:
    now = time.time()
    for place in range(input_files.MAX_REPLIES + 3):
        path = tmp_path / f"r{place}.json"
        path.write_text("{}")
        os.utime(path, (now - 600 + place / 10,) * 2)
    input_files.prune_replies(tmp_path, now_seconds=now)
    assert len(list(tmp_path.iterdir())) == input_files.MAX_REPLIES
    assert not (tmp_path / "r2.json").exists()
