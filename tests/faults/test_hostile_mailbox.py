"""Whatever a container plants in its mailbox: the host neither follows it, blocks on it nor believes it."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent_runner.wire.mailbox import MAX_FILE_BYTES
from orchestrator.errors import MailboxError
from orchestrator.ipc import entries, mailbox
from orchestrator.ipc.mailbox import Batch, Mailbox
from orchestrator.ipc.quarantine import MAX_KEPT

GOOD = "1763800000000-abcd.json"
SECRET = b"the owner's secret"
is_root = os.geteuid() == 0


@dataclass
class Later:
    """A clock ahead of the files' own times: all files are at rest."""

    ahead_ms: int = mailbox.SETTLE_MS

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


class Post:
    """One group's mailbox, a secret of the host beside it, and a deadline on every call."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / "ipc" / "family" / "tasks"
        self.directory.mkdir(parents=True)
        self.kept = root / "ipc" / "errors" / "family"
        self.secret = root / "secret"
        self.secret.write_bytes(SECRET)
        self.clock = Later()
        self.box = Mailbox(
            self.directory,
            errors=self.kept.parent,
            folder="family",
            owner_uids=frozenset({os.geteuid()}),
            clock=self.clock,
        )

    def put(self, name: str, body: bytes = b"{}") -> Path:
        path = self.directory / name
        path.write_bytes(body)
        return path

    def take(self, limit: int = 200) -> Batch:
        with deadline(10):
            return self.box.take(limit)

    def reasons(self) -> list[str]:
        return [path.read_text() for path in sorted(self.kept.glob("*.reason"))]


@contextmanager
def deadline(seconds: int) -> Iterator[None]:
    """Break off a call that blocks, with a signal: a blocked system call hears nothing else."""

    def late(*_: object) -> None:
        pytest.fail(f"blocked for {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path)


def _honest(path: Path, post: Post) -> None:
    path.write_bytes(b"{}")


def _fifo(path: Path, post: Post) -> None:
    os.mkfifo(path)


def _link_to_the_secret(path: Path, post: Post) -> None:
    path.symlink_to(post.secret)


def _link_to_nothing(path: Path, post: Post) -> None:
    path.symlink_to(post.root / "nothing")


def _link_to_a_device(path: Path, post: Post) -> None:
    path.symlink_to("/dev/zero")


def _hard_link_to_the_secret(path: Path, post: Post) -> None:
    path.hardlink_to(post.secret)


def _socket(path: Path, post: Post) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path has at most 107 bytes
        try:
            listener.bind(path.name)
        finally:
            os.chdir(here)


def _huge(path: Path, post: Post) -> None:
    with path.open("wb") as file:
        file.truncate(100 * 1024 * 1024)


def _just_too_big(path: Path, post: Post) -> None:
    path.write_bytes(b"x" * (MAX_FILE_BYTES + 1))


def _device(path: Path, post: Post) -> None:
    if not is_root:
        pytest.skip("only root can make a device node")
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("device nodes cannot be made here")


def _of_another_user(path: Path, post: Post) -> None:
    if not is_root:
        pytest.skip("only root can give a file away")
    path.write_bytes(b"{}")
    os.chown(path, 4242, 4242)


Plant = Callable[[Path, Post], None]
REFUSED: dict[str, Plant] = {
    "a FIFO": _fifo,
    "symbolic link": _link_to_the_secret,
    "a symbolic link": _link_to_nothing,
    "is a symbolic link": _link_to_a_device,
    "2 links": _hard_link_to_the_secret,
    "a socket": _socket,
    "104857600 bytes": _huge,
    "1048577 bytes": _just_too_big,
    "character device": _device,
    "user 4242": _of_another_user,
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_no_letter_is_removed_unread_and_the_rest_taken(post: Post, reason: str) -> None:
    REFUSED[reason](post.directory / GOOD, post)
    post.put("1763800000001-abcd.json")
    batch = post.take()
    assert [letter.name for letter in batch.letters] == ["1763800000001-abcd.json"]
    assert [refusal.name for refusal in batch.refusals] == [GOOD]
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
    first_look = entries.look

    def look_and_swap(directory: int, name: str) -> os.stat_result | None:
        info = first_look(directory, name)
        path.unlink()
        REFUSED[reason](path, post)
        return info

    monkeypatch.setattr(entries, "look", look_and_swap)
    batch = post.take()
    assert not batch.letters
    assert [refusal.name for refusal in batch.refusals] == [GOOD]
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
    assert not batch.letters
    assert "grew above" in batch.refusals[0].reason


def test_a_file_that_is_cut_while_it_is_read_ends(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    path = post.put(GOOD, b"x" * 4096)
    read = os.read

    def cut_and_read(file: int, size: int) -> bytes:
        os.truncate(path, 10)
        return read(file, size)

    monkeypatch.setattr(os, "read", cut_and_read)
    assert [letter.body for letter in post.take().letters] == [b"x" * 10]


HOLD_A_LEASE = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(fcntl, "F_SETLEASE"), reason="leases are Linux's")
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
    assert not batch.letters
    assert "cannot be opened" in batch.refusals[0].reason


@pytest.mark.parametrize(
    "name", ["two\nlines.json", "\x1b]0;owned\x07.json", os.fsdecode(b"\xff\xfe.json"), "\u202egpj.json"]
)
def test_a_name_that_could_fool_a_reader_is_refused_and_written_down_escaped(post: Post, name: str) -> None:
    post.put(name)
    (refusal,) = post.take().refusals
    assert refusal.name == name
    (reason,) = post.reasons()
    assert reason.isascii()
    assert reason.rstrip("\n").isprintable()


def test_a_directory_is_left_alone_whatever_it_holds(post: Post) -> None:
    deep = post.directory / GOOD
    for level in range(30):
        deep = deep / f"{level}.json"
    deep.mkdir(parents=True)
    (post.directory / "empty.partial").mkdir()
    (deep / GOOD).write_text("{}")
    post.clock.ahead_ms = mailbox.UNFINISHED_MS * 2
    assert post.take() == Batch()
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
        for letter in batch.letters:
            found.append(letter.name)
            post.box.done(letter)
        has_more = batch.has_more
    assert found == [GOOD]
    assert len(list(post.directory.iterdir())) <= 10


def test_a_hundred_thousand_files_are_taken_in_bounded_passes(post: Post) -> None:
    count, limit = 100_000, 5_000
    directory = os.open(post.directory, os.O_RDONLY)
    for place in range(count):
        name = f"{1763800000000 + place}-abcd.json" if place % 2 else f"{place}.json\n"
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=directory))
    os.close(directory)
    letters = refusals = passes = 0
    has_more = True
    while has_more:
        batch = post.take(limit)
        assert len(batch.letters) <= limit
        assert len(batch.refusals) <= mailbox.MAX_REFUSALS
        for letter in batch.letters:
            post.box.done(letter)
        letters, refusals, passes = letters + len(batch.letters), refusals + len(batch.refusals), passes + 1
        has_more = batch.has_more
    assert (letters, refusals) == (count // 2, count // 2)
    assert passes >= count // limit
    assert not any(post.directory.iterdir())
    assert len(post.reasons()) <= MAX_KEPT


def test_a_mailbox_replaced_by_a_link_is_an_error_and_nothing_is_followed(post: Post) -> None:
    elsewhere = post.root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / GOOD).write_bytes(SECRET)
    (letter,) = [post.put(GOOD), *post.take().letters][1:]
    post.directory.rename(post.root / "moved")
    post.directory.symlink_to(elsewhere)
    for call in (post.box.take, lambda: post.box.done(letter)):
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


@pytest.mark.parametrize("kind", [_fifo, _huge])
def test_a_mailbox_replaced_by_anything_else_is_an_error(post: Post, kind: Plant) -> None:
    post.directory.rmdir()
    kind(post.directory, post)
    with pytest.raises(MailboxError):
        post.take()


def test_a_letter_replaced_by_a_link_is_not_followed_when_it_is_ended(post: Post) -> None:
    path = post.put(GOOD)
    (letter,) = post.take().letters
    path.unlink()
    path.symlink_to(post.secret)
    post.box.quarantine(letter, "means nothing")
    assert path.is_symlink(), "what lies there now is for the next pass"
    assert [refusal.name for refusal in post.take().refusals] == [GOOD]
    assert post.secret.read_bytes() == SECRET
    (kept,) = post.kept.glob("*.json")
    assert kept.read_bytes() == b"{}"
    assert not kept.is_symlink()


def test_a_host_out_of_files_believes_nothing_bad_of_a_letter(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = post.put(GOOD)
    with monkeypatch.context() as scarce:
        scarce.setattr(os, "open", _none_left_for(GOOD, os.open))
        with pytest.raises(OSError, match="Too many open files"):
            post.box.take()
    assert path.exists()
    assert len(post.take().letters) == 1


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
    for letter in batch.letters:
        post.box.done(letter)
    failed = [
        [letter.name for letter in batch.letters] != [GOOD],
        ["cannot be opened" in refusal.reason for refusal in batch.refusals] != [True],
        any(post.directory.iterdir()),
    ]
    return sum(failed)


NAMES = st.one_of(
    st.sampled_from([GOOD, ".x.json.partial", "x.partial", "a.json", "A.JSON", ".json", "..json", "x.json "]),
    st.from_regex(r"\A[0-9]{13}-[0-9a-z]{4,16}\.json\Z"),
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=60),
    st.binary(min_size=1, max_size=80)
    .map(lambda raw: raw.replace(b"/", b"_").replace(b"\0", b"_") + b".json")
    .map(os.fsdecode),
)
BODIES = st.one_of(st.binary(max_size=200), st.just(b"z" * MAX_FILE_BYTES))
KINDS = st.sampled_from(
    [_fifo, _link_to_the_secret, _link_to_nothing, _link_to_a_device, _just_too_big, _huge]
)


def _plantable(post: Post, name: str) -> bool:
    path = post.directory / name
    return name not in {".", ".."} and len(os.fsencode(name)) <= 255 and not os.path.lexists(path)


class HostileContainer(RuleBasedStateMachine):
    """A container plants what it can; the host passes. `letters` is what it may believe, by name."""

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
        is_regular = kind in {_just_too_big, _huge}
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
        assert len(batch.letters) <= limit
        for letter in batch.letters:
            # The second name of a file counts as a letter again once the first was removed.
            expected = self.honest.pop(letter.name, None)
            if expected is None:
                assert letter.name in self.junk
                self.junk.remove(letter.name)
            else:
                assert letter.body == expected
            self.post.box.done(letter)
        for refusal in batch.refusals:
            assert refusal.name in self.junk
            self.junk.remove(refusal.name)
        if not batch.has_more:
            assert not self.honest
            assert not self.junk

    @invariant()
    def nothing_of_the_hosts_was_touched(self) -> None:
        assert self.post.secret.read_bytes() == SECRET
        assert len(self.post.reasons()) <= MAX_KEPT

    @invariant()
    def every_entry_is_accounted_for(self) -> None:
        found = {path.name for path in self.post.directory.iterdir()}
        assert found == set(self.honest) | self.left | self.junk


HostileContainer.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
test_whatever_a_container_plants_only_true_letters_come_out = HostileContainer.TestCase


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(bodies=st.lists(BODIES, max_size=6))
def test_every_byte_of_every_letter_arrives(bodies: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as root:
        post = Post(Path(root))
        for place, body in enumerate(bodies):
            post.put(f"{1763800000000 + place}-abcd.json", body)
        assert [letter.body for letter in post.take().letters] == bodies


def test_a_container_that_writes_and_swaps_all_the_time_never_gets_the_secret_out(post: Post) -> None:
    stop = threading.Event()
    container = threading.Thread(target=_swap_for_ever, args=(post, stop), name="container")
    container.start()
    try:
        with deadline(60):
            for _ in range(300):
                for letter in post.box.take().letters:
                    assert letter.body in {b"", b"{}"}
                    post.box.done(letter)
    finally:
        stop.set()
        container.join()
    assert post.secret.read_bytes() == SECRET


def _swap_for_ever(post: Post, stop: threading.Event) -> None:
    """Rename honest files, links, FIFOs and hard links over the same name, without a pause."""
    path = post.directory / GOOD
    plants: list[Plant] = [
        _honest,
        _link_to_the_secret,
        _fifo,
        _hard_link_to_the_secret,
    ]
    turn = 0
    while not stop.is_set():
        made = post.root / "made"
        plants[turn % len(plants)](made, post)
        made.replace(path)
        made.unlink(missing_ok=True)
        turn += 1
