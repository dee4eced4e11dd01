"""An honest container's mailbox, and what stays in the quarantine."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_runner.wire import files
from agent_runner.wire.mailbox import MAX_FILE_BYTES
from orchestrator.ipc import mailbox
from orchestrator.ipc.mailbox import Mailbox
from orchestrator.ipc.rejected_files import MAX_RECORDS


@dataclass
class Later:
    """A clock that is ahead of the files' own times."""

    ahead_ms: int = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


@dataclass(frozen=True)
class Post:
    directory: Path
    kept: Path
    clock: Later
    box: Mailbox

    def put(self, name: str, text: str = "{}") -> Path:
        path = self.directory / name
        path.write_text(text)
        return path


@pytest.fixture
def post(tmp_path: Path) -> Post:
    directory = tmp_path / "ipc" / "family" / "messages"
    directory.mkdir(parents=True)
    clock, errors = Later(), tmp_path / "ipc" / "errors"
    box = Mailbox(
        directory, errors=errors, folder="family", owner_uids=frozenset({os.geteuid()}), clock=clock
    )
    return Post(directory, errors / "family", clock, box)


def test_letters_come_oldest_name_first_with_their_exact_bytes(post: Post) -> None:
    for at in (3, 1, 2):
        post.put(f"176380000000{at}-abcd.json", f'{{"text": "안녕 {at}"}}')
    batch = post.box.take()
    assert [request.body.decode() for request in batch.requests] == [
        f'{{"text": "안녕 {n}"}}' for n in (1, 2, 3)
    ]
    assert not batch.rejections
    assert not batch.has_more


def test_a_letter_stays_until_it_is_done(post: Post) -> None:
    path = post.put(files.unique_name())
    (request,) = post.box.take().requests
    assert post.box.take().requests == (request,)
    post.box.remove(request)
    post.box.remove(request)
    assert not path.exists()


def test_a_letter_that_was_written_anew_meanwhile_is_not_lost(post: Post) -> None:
    name = files.unique_name()
    post.put(name, "first")
    (first,) = post.box.take().requests
    files.write_whole(post.directory / name, "second")
    post.box.remove(first)
    assert [request.body for request in post.box.take().requests] == [b"second"]


def test_a_hand_written_file_is_taken_once_it_is_at_rest(post: Post) -> None:
    post.put("by-hand.json", '{"half": ')
    assert not post.box.take().requests
    post.clock.ahead_ms = mailbox.SETTLE_MS
    assert [request.name for request in post.box.take().requests] == ["by-hand.json"]


def test_a_partial_file_has_an_hour(post: Post) -> None:
    path = post.put(".1763800000000-abcd.json.12ab.partial")
    post.clock.ahead_ms = mailbox.UNFINISHED_MS - 60_000
    assert post.box.take() == mailbox.RequestBatch()
    assert path.exists()
    post.clock.ahead_ms = mailbox.UNFINISHED_MS
    assert [refusal.name for refusal in post.box.take().rejections] == [path.name]
    assert not path.exists()


def test_a_file_that_is_written_by_a_clock_ahead_is_left_until_it_is_whole(post: Post) -> None:
    post.clock.ahead_ms = -3 * mailbox.UNFINISHED_MS
    name = files.unique_name()
    partial = post.put(f".{name}.12ab.partial", '{"half": ')
    post.put("by-hand.json", '{"half": ')
    post.put(files.unique_name(), '{"half": ')  # broken as it is: what was renamed is not written any more
    (broken,) = post.box.take().requests
    assert broken.body == b'{"half": '
    post.box.remove(broken)

    with partial.open("a") as writing:
        writing.write("1}")
    partial.rename(post.directory / name)
    post.put("by-hand.json", '{"half": 1}')
    batch = post.box.take()
    assert [request.body for request in batch.requests] == [b'{"half": 1}'] * 2
    assert batch.rejections == ()


def test_a_pass_takes_so_many_letters_and_says_that_there_are_more(post: Post) -> None:
    names = sorted(files.unique_name() for _ in range(5))
    for name in names:
        post.put(name)
    batch = post.box.take(limit=3)
    assert [request.name for request in batch.requests] == names[:3]
    assert batch.has_more
    for request in batch.requests:
        post.box.remove(request)
    rest = post.box.take(limit=3)
    assert [request.name for request in rest.requests] == names[3:]
    assert not rest.has_more


def test_a_pass_holds_so_many_bytes(post: Post) -> None:
    for _ in range(10):
        post.put(files.unique_name(), "x" * MAX_FILE_BYTES)
    batch = post.box.take()
    assert sum(len(request.body) for request in batch.requests) == mailbox.MAX_PASS_BYTES
    assert batch.has_more


def test_what_means_nothing_is_kept_with_its_reason(post: Post) -> None:
    path = post.put("1763800000000-abcd.json", "no json")
    (request,) = post.box.take().requests
    post.box.reject(request, "text: field required")
    post.box.remove(request)
    assert not path.exists()
    body, reason = sorted(post.kept.iterdir())
    assert body.read_text() == "no json"
    assert reason.name == f"{body.stem}.reason"
    assert reason.read_text() == "messages/1763800000000-abcd.json: text: field required\n"


def test_the_quarantine_keeps_the_newest_hundred(post: Post) -> None:
    for at in range(MAX_RECORDS + 5):
        post.put(f"{1763800000000 + at}-abcd.json", str(at))
    for request in post.box.take().requests:
        post.box.reject(request, "means nothing")
        post.box.remove(request)
    reasons = sorted(post.kept.glob("*.reason"))
    assert len(reasons) == MAX_RECORDS
    assert len(list(post.kept.iterdir())) == 2 * MAX_RECORDS
    assert all(path.with_suffix(".json").exists() for path in reasons)


def test_a_missing_mailbox_is_empty(post: Post) -> None:
    (request,) = (post.put(files.unique_name()), *post.box.take().requests)[1:]
    post.box.remove(request)
    post.directory.rmdir()
    assert post.box.take() == mailbox.RequestBatch()
    post.box.remove(request)
