"""A mailbox that is no longer the directory that the host made."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from orchestrator.domain.errors import MailboxError
from tests.support.hostile_mailbox import GOOD, SECRET, Plant, Post, fifo, huge, is_root


def test_a_mailbox_replaced_by_a_link_is_an_error_and_nothing_is_followed(post: Post) -> None:
    elsewhere = post.root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / GOOD).write_bytes(SECRET)
    (request,) = [post.put(GOOD), *post.take().requests][1:]
    post.directory.rename(post.root / "moved")
    post.directory.symlink_to(elsewhere)
    for call in (post.box.take, lambda: post.box.remove(request)):
        with pytest.raises(MailboxError, match="'tasks' is not the directory that the host made"):
            call()
    assert (elsewhere / GOOD).read_bytes() == SECRET


def test_a_group_directory_replaced_by_a_link_is_an_error_too(post: Post) -> None:
    group = post.directory.parent
    other = post.root / "other"
    (other / "tasks").mkdir(parents=True)
    (other / "tasks" / GOOD).write_bytes(SECRET)
    group.rename(post.root / "moved")
    group.symlink_to(other)
    with pytest.raises(MailboxError):
        post.take()


@pytest.mark.parametrize("kind", [fifo, huge])
def test_a_mailbox_replaced_by_anything_else_is_an_error(post: Post, kind: Plant) -> None:
    post.directory.rmdir()
    kind(post.directory, post)
    with pytest.raises(MailboxError):
        post.take()


@pytest.mark.skipif(not is_root, reason="only root can become another user and back")
def test_a_mailbox_closed_by_a_container_of_the_hosts_own_user_is_opened_again() -> None:
    """The host as an ordinary user, whose containers run as the same one."""
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        child = os.fork()
        if child == 0:
            os._exit(_closed_mailbox(Path(root)))
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def _closed_mailbox(root: Path) -> int:
    """Return how many expectations failed; runs as user 4242 in a process of its own."""
    home = root / "home"
    home.mkdir()
    os.chown(home, 4242, 4242)
    os.setgid(4242)
    os.setuid(4242)
    post = Post(home)
    post.put(GOOD)
    post.put("1763800000001-abcd.json").chmod(0)
    post.directory.chmod(0o500)
    batch = post.box.take()
    for request in batch.requests:
        post.box.remove(request)
    failed = [
        [request.name for request in batch.requests] != [GOOD],
        ["cannot be opened" in refusal.reason for refusal in batch.rejections] != [True],
        any(post.directory.iterdir()),
    ]
    return sum(failed)
