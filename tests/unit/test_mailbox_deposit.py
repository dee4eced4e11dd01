"""What the host leaves for a container."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from agent_runner.wire.mailbox import Reply
from agent_runner.wire.order import CloseOrder, TurnOrder
from orchestrator.ipc import deposit

ORDER = TurnOrder(run="run-1", turn=7, kind="chat", prompt="오늘 뭐 있어?")


def _reply(request_id: str) -> Reply:
    return Reply(request_id=request_id, ok=True, code="done", text="Done.")


def test_a_turn_lies_whole_under_the_name_that_is_returned(tmp_path: Path) -> None:
    name = deposit.write_turn(tmp_path, ORDER)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert TurnOrder.parse((tmp_path / name).read_bytes()) == ORDER


def test_a_turn_can_be_taken_back_twice(tmp_path: Path) -> None:
    name = deposit.write_turn(tmp_path, ORDER)
    deposit.remove_turn(tmp_path, name)
    deposit.remove_turn(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_a_close_order_names_its_runs_and_the_last_one_counts(tmp_path: Path) -> None:
    deposit.write_close(tmp_path, {"run-1"})
    deposit.write_close(tmp_path, {"run-2", "run-1"})
    (path,) = tmp_path.iterdir()
    assert path.name == "_close"
    assert CloseOrder.parse(path.read_bytes()).runs == ("run-1", "run-2")


def test_what_earlier_runs_left_is_cleared_but_not_what_is_kept(tmp_path: Path) -> None:
    kept, stale = deposit.write_turn(tmp_path, ORDER), deposit.write_turn(tmp_path, ORDER)
    deposit.write_close(tmp_path, {"run-1"})
    (tmp_path / ".x.json.ab12.partial").write_text("half")
    assert set(deposit.clear_stale(tmp_path, keep={kept})) == {stale, "_close", ".x.json.ab12.partial"}
    assert [path.name for path in tmp_path.iterdir()] == [kept]


def test_a_missing_input_directory_is_clear(tmp_path: Path) -> None:
    assert deposit.clear_stale(tmp_path / "missing") == ()


def test_a_reply_has_the_name_of_its_request(tmp_path: Path) -> None:
    deposit.write_reply(tmp_path, _reply("req-1"))
    assert Reply.parse((tmp_path / "req-1.json").read_bytes()) == _reply("req-1")


@pytest.mark.parametrize("request_id", ["../../etc/x", "a/b", ".", ""])
def test_no_reply_can_leave_its_directory(request_id: str) -> None:
    with pytest.raises(ValueError, match="request_id"):
        _reply(request_id)


def test_replies_of_more_than_an_hour_ago_go(tmp_path: Path) -> None:
    deposit.write_reply(tmp_path, _reply("old"))
    past = time.time() - deposit.REPLY_SECONDS - 60
    os.utime(tmp_path / "old.json", (past, past))
    deposit.write_reply(tmp_path, _reply("new"))
    assert [path.name for path in tmp_path.iterdir()] == ["new.json"]


def test_only_the_newest_thousand_replies_stay(tmp_path: Path) -> None:
    now = time.time()
    for place in range(deposit.MAX_REPLIES + 3):
        path = tmp_path / f"r{place}.json"
        path.write_text("{}")
        os.utime(path, (now - 600 + place / 10,) * 2)
    deposit.prune_replies(tmp_path, now_seconds=now)
    assert len(list(tmp_path.iterdir())) == deposit.MAX_REPLIES
    assert not (tmp_path / "r2.json").exists()
