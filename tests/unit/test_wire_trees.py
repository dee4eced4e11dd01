"""Trees that travel between two machines: what is copied, what is refused, and that nothing leads outside."""

from __future__ import annotations

import io
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runner.wire import trees
from agent_runner.wire.trees import Changes, Entry, TreeError

_NAMES = st.sampled_from(["a", "b", "가", "x.md"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map("/".join)
_CONTENTS = st.one_of(st.none(), st.binary(max_size=20), st.sampled_from(["/etc/passwd", "../.."]))
"""A directory, a file, or a link."""


def lay(root: Path, wanted: dict[str, bytes | str | None]) -> None:
    for path, content in wanted.items():
        place = root / path
        if any(parent.is_symlink() or parent.is_file() for parent in place.parents) or os.path.lexists(place):
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            place.mkdir()
        elif isinstance(content, str):
            place.symlink_to(content)
        else:
            place.write_bytes(content)


def scan(path: Path) -> trees.Tree:
    with trees.opened_root(path) as root:
        return trees.scan(root)


def copy(changed: Changes, source: Path, target: Path) -> None:
    with trees.opened_root(target) as root, trees.opened_root(source) as origin:
        for path in changed.removed:
            trees.remove(root, path)
        for path, entry in changed.put.items():
            if entry.kind == "dir":
                trees.put_directory(root, path, entry)
            elif entry.kind == "link":
                trees.put_link(root, path, entry)
            else:
                with trees.opened(origin, path) as file:
                    trees.put_file(root, path, entry, file.read)


@settings(max_examples=60, deadline=None)
@given(
    before=st.dictionaries(_PATHS, _CONTENTS, max_size=6),
    after=st.dictionaries(_PATHS, _CONTENTS, max_size=6),
)
def test_changes_make_one_tree_of_the_other(before, after, tmp_path_factory):
    old, new = tmp_path_factory.mktemp("old"), tmp_path_factory.mktemp("new")
    lay(old, before)
    lay(new, after)

    copy(trees.changes(scan(old), scan(new)), new, old)

    assert scan(old) == scan(new)
    assert not trees.changes(scan(old), scan(new))


def test_devices_pipes_and_sockets_are_left_out_and_no_link_is_followed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sock"))
    (tmp_path / "out").symlink_to("/etc")

    assert scan(tmp_path) == {"out": Entry("link", content="/etc")}


def test_what_is_still_being_written_is_not_seen(tmp_path):
    (tmp_path / ".turn.json.1a.partial").write_text("half")

    assert scan(tmp_path) == {}


def test_a_link_that_was_swapped_in_leads_nowhere(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (inside / "d").symlink_to(outside)
    entry = Entry("file", 0o644, 0, trees.hashlib.sha256(b"").hexdigest())

    with trees.opened_root(inside) as root:
        with pytest.raises(NotADirectoryError):
            trees.put_file(root, "d/x", entry, io.BytesIO().read)
        trees.remove(root, "d/x")
        trees.remove(root, "d")

    assert outside.is_dir()
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    "path", ["", "/etc/x", "../x", "a/../../x", "a//b", "./a", "a/\0", "a/" * 70 + "a", "x" * 5_000, "\ud800"]
)
def test_a_path_that_leads_out_of_its_tree_is_refused(path):
    with pytest.raises(TreeError):
        trees.checked_path(path)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kind": "device", "mode": 0, "size": 0, "content": ""},
        {"kind": "file", "mode": "0", "size": 0, "content": ""},
        {"kind": "file", "mode": 0, "size": -1, "content": ""},
        {"kind": "file", "mode": 0, "size": trees.MAX_FILE_BYTES + 1, "content": ""},
        {"kind": "link", "mode": 0, "size": 0, "content": "x" * 5_000},
        {"kind": "link", "mode": 0, "size": 0, "content": "a\0b"},
        {"kind": "link", "mode": 0, "size": 0, "content": "\ud800"},
        {"kind": ["link"], "mode": 0, "size": 0, "content": "a"},
        ["link", 0, 0, "a"],
        None,
    ],
)
def test_an_entry_that_is_none_is_refused(fields):
    with pytest.raises(TreeError):
        trees.entry_from(fields)


def test_a_link_may_lead_to_a_name_that_is_no_text():
    fields = {"kind": "link", "mode": 0, "size": 0, "content": "a\udcff"}  # as `os.readlink` returns it
    assert trees.entry_from(fields).content == "a\udcff"


def test_a_file_that_is_not_what_was_announced_leaves_the_old_one(tmp_path):
    (tmp_path / "notes.md").write_text("old")
    entry = Entry("file", 0o644, 3, "0" * 64)

    with trees.opened_root(tmp_path) as root, pytest.raises(TreeError):
        trees.put_file(root, "notes.md", entry, io.BytesIO(b"new").read)

    assert (tmp_path / "notes.md").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["notes.md"]


def test_set_id_bits_do_not_travel(tmp_path):
    program = tmp_path / "program"
    program.touch()
    program.chmod(0o6755)

    assert scan(tmp_path)["program"].mode == 0o755
    assert trees.entry_from({"kind": "file", "mode": 0o6777, "size": 0, "content": ""}).mode == 0o777


def test_more_than_may_travel_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(trees, "MAX_ENTRIES", 3)
    for number in range(4):
        (tmp_path / str(number)).touch()
    with pytest.raises(TreeError, match="more than 3 files"):
        scan(tmp_path)

    monkeypatch.setattr(trees, "MAX_ENTRIES", 50)
    monkeypatch.setattr(trees, "MAX_FILE_BYTES", 10)
    (tmp_path / "0").write_bytes(b"x" * 11)
    with pytest.raises(TreeError, match="'0'"):
        scan(tmp_path)


def test_a_file_is_read_again_only_when_it_changed(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("one")
    cache: trees.HashCache = {}
    with trees.opened_root(tmp_path) as root:
        trees.scan(root, cache)
        assert cache == {}, "one that was changed just now may be changed once more at the same time"
        monkeypatch.setattr(trees, "JUST_NOW_NS", -(10**18))  # it was long ago
        first = trees.scan(root, cache)
        monkeypatch.setattr(trees, "open_file", None)  # opening any would fail
        assert trees.scan(root, cache) == first


def test_a_folder_in_place_of_a_file_is_refused_and_leaves_no_descriptor_open(tmp_path):
    (tmp_path / "sub").mkdir()
    before = sorted(Path("/proc/self/fd").iterdir())
    with (
        pytest.raises(OSError, match="no plain file"),
        trees.opened_root(tmp_path) as root,
        trees.opened(root, "sub"),
    ):
        pass
    assert sorted(Path("/proc/self/fd").iterdir()) == before
