"""A carrier whose host, runner or connection fails at the worst moment: what was found once, step by step."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json

import pytest

from agent_runner.carrier import carrier as carrier_module
from agent_runner.carrier import requests
from agent_runner.carrier.local_trees import LocalTrees
from agent_runner.wire.carrier import REQUEST_NAME
from agent_runner.wire.trees import Changes, Entry
from tests.support.carrier_node import ABANDONED_SECONDS, GROUP, MAX_OUTPUT_BYTES, CarrierNode


@pytest.fixture
def node(tmp_path):
    """A node whose runner has its order."""
    made = CarrierNode(tmp_path)
    take_all(made)
    assert made.carrier_started
    yield made
    made.close()


def take_all(node):
    """Let the host take and answer all that comes."""
    node.pass_seconds(4)
    while node.host.inbox:
        node.host.take()
        node.pass_seconds(2)


def say(node, **frame):
    node.runner.write(json.dumps({"v": 1, **frame}, separators=(",", ":")).encode() + b"\n")
    node.settle()


def test_a_connection_that_breaks_after_a_long_time_is_made_again(node):
    node.pass_seconds(2 * ABANDONED_SECONDS)
    node.host.break_off()
    node.pass_seconds(4)

    assert node.host.connection
    assert node.code is None


def test_after_more_output_than_a_run_may_have_none_is_passed_on(node):
    say(node, kind="ack", n=1)
    node.runner.write(b"x" * MAX_OUTPUT_BYTES + b"\n" + b'{"kind":"turn_end","n":2}\n')
    take_all(node)

    assert b"turn_end" not in node.host.heard
    assert node.host.exits == [137]


def test_a_run_whose_files_the_host_refuses_ends_and_says_so(node):
    say(node, kind="ack", n=1)
    (node.group / "a.md").write_text("a")
    say(node, kind="turn_end", n=2, status="success")
    node.host.send("too_much", reason="more than a turn may leave")
    node.host.break_off()
    take_all(node)

    assert b"turn_end" not in node.host.heard
    assert node.host.exits == [137]


def test_a_file_of_which_only_a_part_came_is_whole_after_the_next_connection(node):
    node.host.write_input("1.json", parts=2, is_whole=False)
    node.host.break_off()
    take_all(node)

    assert node.input_files() == node.host.input


def test_a_request_to_send_a_file_that_is_not_there_ends_no_run(node):
    node.write_request("1.json", "gone.png")
    (node.group / "gone.png").unlink()
    take_all(node)

    assert node.stored_requests.keys() == {"1.json"}
    assert node.code is None


@pytest.mark.parametrize("name", ["my note.json", "메모.json", "a\nb.json", f"{'n' * 240}.json"])
def test_a_request_whose_name_no_host_takes_is_sent_under_another(node, name):
    node.write_request(name, text="one")
    node.write_request("unfinished.partial")
    take_all(node)

    (stored,) = node.stored_requests
    assert REQUEST_NAME.fullmatch(stored)
    assert node.stored_requests[stored] == node.requests[name]
    assert node.waiting_requests() == {"unfinished.partial"}


def test_a_name_that_is_used_again_is_another_request(node):
    node.write_request("note.json", text="one")
    take_all(node)
    node.write_request("note.json", text="two")
    take_all(node)

    assert node.stored_requests == node.requests
    assert not node.waiting_requests()


def test_a_request_written_over_one_that_is_on_its_way_is_not_removed_for_it(node):
    node.write_request("note.json", text="one")
    node.pass_seconds(2)
    assert node.host.kinds() == ["request"]
    node.write_request("note.json", text="two, in the meantime")
    take_all(node)

    assert node.stored_requests == node.requests
    assert not node.waiting_requests()


def test_what_the_agent_asked_for_last_comes_before_its_exit(node):
    node.write_request("1.json", "last.png")
    node.runner.end(0, leaves_child=False)
    take_all(node)

    assert node.stored_requests.keys() == {"1.json"}
    assert node.host.exits == [0]


def test_a_sent_file_that_is_removed_goes_from_the_host_too_where_its_answer_was_lost(node):
    node.write_request("1.json", "sent.png")
    node.pass_seconds(2)
    while node.host.kinds() != ["stage_end"]:
        node.host.take()
    node.host.take(is_answered=False)
    assert "sent.png" in node.host_files
    node.host.break_off()
    (node.group / "sent.png").unlink()
    take_all(node)
    node.runner.end(0, leaves_child=False)
    take_all(node)

    assert node.host_files == node.files()


def test_a_file_that_is_asked_for_overtakes_no_end_of_a_turn(node, monkeypatch):
    send = carrier_module.CarrierConnection.send

    async def send_output_slowly(connection, kind, payload=b"", **fields):
        if kind == "out":
            await asyncio.sleep(3)
        await send(connection, kind, payload, **fields)

    say(node, kind="ack", n=1)
    (node.group / "a.md").write_text("a")
    monkeypatch.setattr(carrier_module.CarrierConnection, "send", send_output_slowly)
    say(node, kind="turn_end", n=2, status="success")
    while not node.stored:
        node.host.take()
    node.host.break_off()
    node.write_request("1.json", "sent.png")
    take_all(node)
    take_all(node)

    assert b"turn_end" in node.host.heard
    assert node.host_files == node.files()


def test_a_directory_that_the_host_may_have_is_not_removed_there(tmp_path):
    trees = LocalTrees(tmp_path)
    trees.update_tree(GROUP, {}, is_whole=True, is_writable=True)
    (tmp_path / "group" / "sub").mkdir()
    (tmp_path / "group" / "sub" / "a.md").write_text("a")
    found = trees.find_changes()
    trees.mark_uncertain(found)

    assert trees.find_changes() == found
    assert found[GROUP].removed == ()


def test_a_removed_file_that_the_host_may_have_lost_is_sent_when_it_comes_again(tmp_path):
    trees = LocalTrees(tmp_path)
    trees.update_tree(GROUP, {}, is_whole=True, is_writable=True)
    path = tmp_path / "group" / "a.md"
    path.write_text("a")
    trees.mark_stored(trees.find_changes())
    path.unlink()
    trees.mark_uncertain(trees.find_changes())
    path.write_text("a")

    (changed,) = trees.find_changes().values()
    assert changed.put.keys() == {"a.md"}


def test_a_change_of_the_host_whose_content_was_lost_is_no_change_of_the_agent(tmp_path):
    def entry(text: bytes) -> Entry:
        return Entry("file", 0o644, len(text), hashlib.sha256(text).hexdigest())

    trees = LocalTrees(tmp_path)
    path = tmp_path / "group" / "a.md"
    path.parent.mkdir()
    path.write_bytes(b"old")
    path.chmod(0o644)
    trees.update_tree(GROUP, {"a.md": entry(b"old")}, is_whole=True, is_writable=True)
    trees.change(GROUP, Changes((), {"a.md": entry(b"newer"), "b.md": entry(b"b")}))
    assert trees.find_changes() == {}

    trees.put_file(GROUP, "a.md", entry(b"newer"), io.BytesIO(b"newer"))
    assert trees.find_changes() == {}


def test_a_file_that_is_removed_while_files_are_sent_adds_nothing_to_those_the_host_has(node, monkeypatch):
    send, tries = carrier_module.send_changes, []

    async def send_once_it_is_gone(connection, kind, target, tree, changed, **fields):
        tries.append(changed)
        (node.group / "b.md").unlink(missing_ok=True)
        await send(connection, kind, target, tree, changed, **fields)

    monkeypatch.setattr(carrier_module, "send_changes", send_once_it_is_gone)
    say(node, kind="ack", n=1)
    for name in ("a.md", "b.md", "c.md"):
        (node.group / name).write_text(name)
    say(node, kind="turn_end", n=2, status="success")
    take_all(node)

    assert len(tries) == 2
    assert b"turn_end" in node.host.heard
    assert node.host_files == node.files()


@pytest.mark.parametrize("becomes", ["link", "folder"])
def test_a_file_to_be_sent_that_becomes_something_else_ends_no_run(node, monkeypatch, becomes):
    send, path = carrier_module.send_changes, node.group / "sent.png"

    async def send_once_it_is_replaced(connection, kind, target, tree, changed, **fields):
        path.unlink()
        if becomes == "link":
            path.symlink_to("CLAUDE.md")
        else:
            path.mkdir()
        await send(connection, kind, target, tree, changed, **fields)

    monkeypatch.setattr(carrier_module, "send_changes", send_once_it_is_replaced)
    node.write_request("1.json", "sent.png")
    for _ in range(4):
        node.pass_seconds(2)
        if node.host.kinds() != ["request"]:
            node.host.take()
    assert node.code is None

    if becomes == "link":
        path.unlink()
    else:
        path.rmdir()
    take_all(node)
    assert node.stored_requests.keys() == {"1.json"}


def test_a_runner_ends_with_its_carrier(node):
    say(node, kind="ack", n=1)
    node.host.send("bye")
    node.settle()

    assert node.code == 0
    assert node.runner.code == -9


def test_a_file_that_cannot_be_read_fails_the_turn_and_is_named(node, monkeypatch):
    def find_changes(_):
        raise PermissionError(13, "Permission denied", "private.txt")

    say(node, kind="ack", n=1)
    monkeypatch.setattr(LocalTrees, "find_changes", find_changes)
    say(node, kind="turn_end", n=2, status="success")
    (said,) = (message for message in node.host.inbox if message.kind == "too_much")
    take_all(node)

    assert said.fields["reason"] == "'private.txt' cannot be read: Permission denied"
    assert b"turn_end" not in node.host.heard
    assert node.host.exits == [137]


def test_a_mailbox_that_the_agent_has_removed_ends_no_run(node):
    (node.group.parent / "ipc" / "messages").rmdir()
    node.write_request("1.json", text="still sent")
    take_all(node)
    assert node.stored_requests.keys() == {"1.json"}

    node.runner.end(0, leaves_child=False)
    take_all(node)
    assert node.host.exits == [0]


def test_a_request_that_cannot_be_removed_is_sent_once_and_breaks_no_connection(node, monkeypatch):
    def unlink(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(requests.Path, "unlink", unlink)
    node.write_request("1.json", text="once")
    take_all(node)

    connection = node.host.connection
    take_all(node)
    assert node.stored_requests.keys() == {"1.json"}
    assert connection is not None
    assert node.host.connection is connection


def test_a_request_that_is_nested_too_deep_names_no_file():
    assert requests.file_named_in(b'{"a":' * 100_000) is None
