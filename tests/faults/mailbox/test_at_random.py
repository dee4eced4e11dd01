"""Containers that plant at random, or without a pause."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent_runner.wire.mailbox import MAX_FILE_BYTES
from orchestrator.ipc import mailbox
from orchestrator.ipc.rejected_files import MAX_RECORDS
from tests.support.hostile_mailbox import (
    GOOD,
    SECRET,
    Plant,
    Post,
    deadline,
    fifo,
    hard_link_to_the_secret,
    honest,
    huge,
    just_too_big,
    link_to_a_device,
    link_to_nothing,
    link_to_the_secret,
)

NAMES = st.one_of(
    st.sampled_from([GOOD, ".x.json.partial", "x.partial", "a.json", "A.JSON", ".json", "..json", "x.json "]),
    st.from_regex(r"\A[0-9]{13}-[0-9a-z]{4,16}\.json\Z"),
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=60),
    st.binary(min_size=1, max_size=80)
    .map(lambda raw: raw.replace(b"/", b"_").replace(b"\0", b"_") + b".json")
    .map(os.fsdecode),
)


BODIES = st.one_of(st.binary(max_size=200), st.just(b"z" * MAX_FILE_BYTES))
KINDS = st.sampled_from([fifo, link_to_the_secret, link_to_nothing, link_to_a_device, just_too_big, huge])


def _plantable(post: Post, name: str) -> bool:
    path = post.directory / name
    return name not in {".", ".."} and len(os.fsencode(name)) <= 255 and not os.path.lexists(path)


class HostileContainer(RuleBasedStateMachine):
    """A container plants what it can; the host passes. `requests` is what it may believe, by name."""

    def __init__(self) -> None:
        super().__init__()
        self._temporary = tempfile.TemporaryDirectory()
        self.post = Post(Path(self._temporary.name))
        self.honest: dict[str, bytes] = {}
        self.left: set[str] = set()
        self.junk: set[str] = set()

    def teardown(self) -> None:
        self._temporary.cleanup()

    @rule(name=NAMES, body=BODIES)
    def write(self, name: str, body: bytes) -> None:
        if not _plantable(self.post, name):
            return
        self.post.put(name, body)
        if mailbox.fault_of_name(name) is None:
            self.honest[name] = body
        elif mailbox.may_be_unfinished(name, self.post.clock.ahead_ms):
            self.left.add(name)
        else:
            self.junk.add(name)

    @rule(name=NAMES, kind=KINDS)
    def plant(self, name: str, kind: Plant) -> None:
        if not _plantable(self.post, name):
            return
        kind(self.post.directory / name, self.post)
        is_regular = kind in {just_too_big, huge}
        if is_regular and mailbox.may_be_unfinished(name, self.post.clock.ahead_ms):
            self.left.add(name)
        else:
            self.junk.add(name)

    @rule(name=NAMES)
    def make_directory(self, name: str) -> None:
        if _plantable(self.post, name):
            (self.post.directory / name).mkdir()
            self.left.add(name)

    @precondition(lambda self: self.honest)
    @rule(data=st.data())
    def link_twice(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.honest)))
        if _plantable(self.post, f"{name[:100]}.2.json"):
            (self.post.directory / f"{name[:100]}.2.json").hardlink_to(self.post.directory / name)
            del self.honest[name]
            self.junk |= {name, f"{name[:100]}.2.json"}

    @rule(limit=st.integers(1, 4))
    def host_passes(self, limit: int) -> None:
        batch = self.post.take(limit)
        assert len(batch.requests) <= limit
        for request in batch.requests:
            # The second name of a file counts as a request again once the first was removed.
            expected = self.honest.pop(request.name, None)
            if expected is None:
                assert request.name in self.junk
                self.junk.remove(request.name)
            else:
                assert request.body == expected
            self.post.box.remove(request)
        for refusal in batch.rejections:
            assert refusal.name in self.junk
            self.junk.remove(refusal.name)
        if not batch.has_more:
            assert not self.honest
            assert not self.junk

    @invariant()
    def nothing_of_the_hosts_was_touched(self) -> None:
        assert self.post.secret.read_bytes() == SECRET
        assert len(self.post.reasons()) <= MAX_RECORDS

    @invariant()
    def every_entry_is_accounted_for(self) -> None:
        found = {path.name for path in self.post.directory.iterdir()}
        assert found == set(self.honest) | self.left | self.junk


HostileContainer.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


test_whatever_a_container_plants_only_true_letters_come_out = pytest.mark.slow(HostileContainer.TestCase)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(bodies=st.lists(BODIES, max_size=6))
def test_every_byte_of_every_letter_arrives(bodies: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as root:
        post = Post(Path(root))
        for place, body in enumerate(bodies):
            post.put(f"{1763800000000 + place}-abcd.json", body)
        assert [request.body for request in post.take().requests] == bodies


def test_a_container_that_writes_and_swaps_all_the_time_never_gets_the_secret_out(post: Post) -> None:
    stop = threading.Event()
    container = threading.Thread(target=_swap_for_ever, args=(post, stop), name="container")
    container.start()
    try:
        with deadline(60):
            for _ in range(300):
                for request in post.box.take().requests:
                    assert request.body in {b"", b"{}"}
                    post.box.remove(request)
    finally:
        stop.set()
        container.join()
    assert post.secret.read_bytes() == SECRET


def _swap_for_ever(post: Post, stop: threading.Event) -> None:
    """Rename honest files, links, FIFOs and hard links over the same name, without a pause."""
    path = post.directory / GOOD
    plants: list[Plant] = [
        honest,
        link_to_the_secret,
        fifo,
        hard_link_to_the_secret,
    ]
    turn = 0
    while not stop.is_set():
        made = post.root / "made"
        plants[turn % len(plants)](made, post)
        made.replace(path)
        made.unlink(missing_ok=True)
        turn += 1
