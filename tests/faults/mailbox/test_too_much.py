"""Mailboxes too full, and a host that has no descriptors left."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.domain.errors import MailboxError
from orchestrator.ipc import mailbox
from orchestrator.ipc.mailbox import RequestBatch
from orchestrator.ipc.rejected_files import MAX_RECORDS
from tests.support.hostile_mailbox import GOOD, REFUSED, Post


def test_a_directory_is_left_alone_whatever_it_holds(post: Post) -> None:
    deep = post.directory / GOOD
    for level in range(30):
        deep = deep / f"{level}.json"
    deep.mkdir(parents=True)
    (post.directory / "empty.partial").mkdir()
    (deep / GOOD).write_text("{}")
    post.clock.ahead_ms = mailbox.UNFINISHED_MS * 2
    assert post.take() == RequestBatch()
    assert (deep / GOOD).exists()


def test_a_mailbox_full_of_directories_does_not_spin(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "MAX_ENTRIES", 10)
    for place in range(30):
        (post.directory / f"{place}.json").mkdir()
    assert not post.take().has_more


def test_partial_files_have_no_grace_in_a_mailbox_that_is_too_full(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "MAX_ENTRIES", 10)
    for place in range(300):
        post.put(f".{place}.partial")
    post.put(GOOD)
    found = []
    has_more = True
    while has_more:
        batch = post.take()
        for request in batch.requests:
            found.append(request.name)
            post.box.remove(request)
        has_more = batch.has_more
    assert found == [GOOD]
    assert len(list(post.directory.iterdir())) <= 10


@pytest.mark.slow
def test_tens_of_thousands_of_files_are_taken_in_bounded_passes(post: Post) -> None:
    count, limit = 25_000, 2_500  # twice what one pass looks at
    directory = os.open(post.directory, os.O_RDONLY)
    for place in range(count):
        name = f"{1763800000000 + place}-abcd.json" if place % 2 else f"{place}.json\n"
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=directory))
    os.close(directory)
    requests = refusals = passes = 0
    has_more = True
    while has_more:
        batch = post.take(limit)
        assert len(batch.requests) <= limit
        assert len(batch.rejections) <= mailbox.MAX_REJECTIONS
        for request in batch.requests:
            post.box.remove(request)
        requests, refusals, passes = (
            requests + len(batch.requests),
            refusals + len(batch.rejections),
            passes + 1,
        )
        has_more = batch.has_more
    assert (requests, refusals) == (count // 2, count // 2)
    assert passes >= count // limit
    assert not any(post.directory.iterdir())
    assert len(post.reasons()) <= MAX_RECORDS


def test_a_host_out_of_files_believes_nothing_bad_of_a_letter(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = post.put(GOOD)
    with monkeypatch.context() as scarce:
        scarce.setattr(os, "open", _none_left_for(GOOD, os.open))
        with pytest.raises(OSError, match="Too many open files"):
            post.box.take()
    assert path.exists()
    assert len(post.take().requests) == 1


def _none_left_for(name: str, really_open: Callable[..., int]) -> Callable[..., int]:
    def opening(path: str, *arguments: int, **named: int) -> int:
        if path == name:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return really_open(path, *arguments, **named)

    return opening


def test_no_descriptor_is_left_open(post: Post) -> None:
    def count() -> int:
        return len(list(Path("/dev/fd").iterdir()))

    post.take()
    before = count()
    for reason in ("a FIFO", "symbolic link", "1048577 bytes", "a socket"):
        REFUSED[reason](post.directory / GOOD, post)
        post.put("1763800000001-abcd.json")
        post.take()
    post.directory.rename(post.root / "moved")
    post.directory.symlink_to(post.root)
    with pytest.raises(MailboxError):
        post.take()
    assert count() == before
