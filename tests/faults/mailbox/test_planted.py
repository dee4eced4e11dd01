"""What is no request is rejected unread: links, pipes, devices, and files that change meanwhile."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

import pytest

from agent_runner.wire.mailbox import MAX_FILE_BYTES
from orchestrator.ipc import entries
from tests.support.hostile_mailbox import GOOD, REFUSED, SECRET, Post
from tests.support.skips import THIS_MACHINE


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_no_letter_is_removed_unread_and_the_rest_taken(post: Post, reason: str) -> None:
    REFUSED[reason](post.directory / GOOD, post)
    post.put("1763800000001-abcd.json")
    batch = post.take()
    assert [request.name for request in batch.requests] == ["1763800000001-abcd.json"]
    assert [refusal.name for refusal in batch.rejections] == [GOOD]
    (kept,) = post.reasons()
    assert reason in kept
    assert not os.path.lexists(post.directory / GOOD)
    assert post.secret.read_bytes() == SECRET
    assert not list(post.kept.glob("*.json")), "only the reason is kept"


@pytest.mark.parametrize("reason", ["a FIFO", "symbolic link", "2 links", "a socket", "character device"])
def test_the_same_is_so_when_it_was_swapped_in_after_the_first_look(
    post: Post, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = post.put(GOOD)
    first_look = entries.status_of

    def look_and_swap(directory: int, name: str) -> os.stat_result | None:
        info = first_look(directory, name)
        path.unlink()
        REFUSED[reason](path, post)
        return info

    monkeypatch.setattr(entries, "status_of", look_and_swap)
    batch = post.take()
    assert not batch.requests
    assert [refusal.name for refusal in batch.rejections] == [GOOD]
    assert post.secret.read_bytes() == SECRET


def test_a_file_that_grows_while_it_is_read_is_refused(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    path = post.put(GOOD, b"x" * MAX_FILE_BYTES)
    read = os.read

    def grow_and_read(file: int, size: int) -> bytes:
        with path.open("ab") as grown:
            grown.write(b"y" * 4096)
        return read(file, size)

    monkeypatch.setattr(os, "read", grow_and_read)
    batch = post.take()
    assert not batch.requests
    assert "grew above" in batch.rejections[0].reason


def test_a_file_that_is_cut_while_it_is_read_ends(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    path = post.put(GOOD, b"x" * 4096)
    read = os.read

    def cut_and_read(file: int, size: int) -> bytes:
        os.truncate(path, 10)
        return read(file, size)

    monkeypatch.setattr(os, "read", cut_and_read)
    assert [request.body for request in post.take().requests] == [b"x" * 10]


HOLD_A_LEASE = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(fcntl, "F_SETLEASE"), reason=f"{THIS_MACHINE}leases are Linux's")
def test_a_lease_on_a_file_does_not_hold_the_host_up(post: Post) -> None:
    path = post.put(GOOD)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_A_LEASE, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        batch = post.take()
        holder.kill()
    assert not batch.requests
    assert "cannot be opened" in batch.rejections[0].reason


@pytest.mark.parametrize(
    "name", ["two\nlines.json", "\x1b]0;owned\x07.json", os.fsdecode(b"\xff\xfe.json"), "\u202egpj.json"]
)
def test_a_name_that_could_fool_a_reader_is_refused_and_written_down_escaped(post: Post, name: str) -> None:
    post.put(name)
    (refusal,) = post.take().rejections
    assert refusal.name == name
    (reason,) = post.reasons()
    assert reason.isascii()
    assert reason.rstrip("\n").isprintable()


def test_a_letter_replaced_by_a_link_is_not_followed_when_it_is_ended(post: Post) -> None:
    path = post.put(GOOD)
    (request,) = post.take().requests
    path.unlink()
    path.symlink_to(post.secret)
    post.box.reject(request, "means nothing")
    post.box.remove(request)
    assert path.is_symlink(), "what lies there now is for the next pass"
    assert [refusal.name for refusal in post.take().rejections] == [GOOD]
    assert post.secret.read_bytes() == SECRET
    (kept,) = post.kept.glob("*.json")
    assert kept.read_bytes() == b"{}"
    assert not kept.is_symlink()
