"""The pure rules: what a request's name and kind can be, and what may still be written."""

from __future__ import annotations

import os
import stat

import pytest

from agent_runner.wire import files
from agent_runner.wire.mailbox import MAX_FILE_BYTES
from orchestrator.ipc import entries, mailbox


@pytest.mark.parametrize(
    ("name", "is_good"),
    [
        ("1763800000000-ab12.json", True),
        ("by-hand.json", True),
        ("메모.json", True),
        ("with space.json", True),
        (".hidden.json", False),
        ("x.json.partial", False),
        ("x.txt", False),
        ("two\nlines.json", False),
        ("\x1b[2J.json", False),
        ("\u202egpj.json", False),
        (os.fsdecode(b"\xff\xfe.json"), False),
    ],
)
def test_a_letter_has_a_plain_json_name(name: str, is_good: bool) -> None:
    assert (mailbox.fault_of_name(name) is None) is is_good


@pytest.mark.parametrize(
    ("name", "rest_ms", "may_be"),
    [
        ("1763800000000-ab12.json", 0, False),
        ("by-hand.json", 999, True),
        ("by-hand.json", 1_000, False),
        (".x.json.ab12.partial", 3_599_999, True),
        (".x.json.ab12.partial", 3_600_000, False),
        ("x.tmp", 0, True),
        ("two\nlines.json", 0, False),
        ("by-hand.json", -1, False),
        ("x.tmp", -1, True),
        (".x.json.ab12.partial", -86_400_000, True),
    ],
)
def test_only_a_young_file_may_be_unfinished(name: str, rest_ms: int, may_be: bool) -> None:
    assert mailbox.may_be_unfinished(name, rest_ms) is may_be


def test_a_name_of_our_own_writers_is_finished_at_once() -> None:
    assert not mailbox.may_be_unfinished(files.unique_name(), 0)


def _info(*, mode: int = stat.S_IFREG, links: int = 1, size: int = 2, uid: int = 1000) -> os.stat_result:
    return os.stat_result((mode | 0o644, 1, 1, links, uid, uid, size, 0, 0, 0))


@pytest.mark.parametrize(
    ("info", "says"),
    [
        (_info(), None),
        (_info(size=MAX_FILE_BYTES), None),
        (_info(size=MAX_FILE_BYTES + 1), "bytes"),
        (_info(links=2), "2 links"),
        (_info(uid=0), "user 0"),
        (_info(mode=stat.S_IFIFO), "FIFO"),
        (_info(mode=stat.S_IFSOCK), "socket"),
        (_info(mode=stat.S_IFLNK), "symbolic link"),
        (_info(mode=stat.S_IFCHR), "character device"),
        (_info(mode=stat.S_IFBLK), "block device"),
        (_info(mode=stat.S_IFDIR), "directory"),
    ],
)
def test_only_a_small_single_regular_file_of_the_right_owner_is_acceptable(
    info: os.stat_result, says: str | None
) -> None:
    fault = entries.fault_of(info, frozenset({1000}))
    assert fault is None if says is None else fault is not None and says in fault
