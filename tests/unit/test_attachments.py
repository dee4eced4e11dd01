"""Files between a chat and a folder that a hostile container writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.groups import attachments
from orchestrator.groups.attachments import MAX_NAME_BYTES, FileRefused, safe_name


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "groups" / "family").mkdir(parents=True)
    (tmp_path / "secret").write_text("key")
    (tmp_path / "in.bin").write_bytes(b"picture")
    return tmp_path


def kept(home: Path, name: str = "cat.jpg") -> str:
    return attachments.keep(home, "family", name, home / "in.bin")


def taken(home: Path, path: str, *, limit: int = 100) -> attachments.StagedFile:
    return attachments.take(home, "family", path, home / "data" / "outgoing" / "1", limit=limit)


@pytest.mark.parametrize(
    ("given_name", "name"),
    [
        ("cat.jpg", "cat.jpg"),
        ("../../etc/passwd", "passwd"),
        ("..\\..\\boot.ini", "boot.ini"),
        (".ssh", "ssh"),
        ("보고서 최종.pdf", "보고서_최종.pdf"),
        ("a\x00b\n.txt", "a_b.txt"),
        ("..", ""),
        ("", ""),
        ("x" * 300 + ".pdf", "x" * 116 + ".pdf"),
        ("no.such" + "ending" * 10, ("no.such" + "ending" * 10)),
    ],
)
def test_a_name_is_made_one_that_cannot_leave_its_directory(given_name, name):
    assert safe_name(given_name) == name


@given(st.text(max_size=400))
def test_whatever_the_name_it_stays_in_its_directory(text):
    name = safe_name(text)

    assert "/" not in name
    assert "\0" not in name
    assert not name.startswith(".")
    assert len(name.encode()) <= MAX_NAME_BYTES


def test_a_file_is_kept_under_its_name_and_the_next_beside_it(home):
    assert kept(home) == "attachments/cat.jpg"
    assert kept(home) == "attachments/cat-2.jpg"

    assert (home / "groups/family/attachments/cat-2.jpg").read_bytes() == b"picture"


def test_a_file_is_the_containers_to_read_and_remove(home):
    os.chown(home / "groups/family", 1234, 1234)
    kept(home)

    for path in ("attachments", "attachments/cat.jpg"):
        assert (home / "groups/family" / path).stat().st_uid == 1234


@pytest.mark.parametrize("trap", ["groups/family", "groups/family/attachments"])
def test_a_link_in_the_way_is_not_followed(home, trap):
    path = home / trap
    if path.exists():
        path.rmdir()
    (home / "elsewhere").mkdir()
    path.symlink_to(home / "elsewhere")

    with pytest.raises(OSError, match=r"(?i)directory|symbolic|levels"):
        kept(home)
    assert list((home / "elsewhere").iterdir()) == []


def test_a_planted_file_or_link_is_left_and_another_name_taken(home):
    place = home / "groups/family/attachments"
    place.mkdir()
    (place / "cat.jpg").symlink_to(home / "secret")

    assert kept(home) == "attachments/cat-2.jpg"
    assert (home / "secret").read_text() == "key"


def test_a_groups_file_is_copied_out_of_its_reach(home):
    (home / "groups/family/out").mkdir()
    (home / "groups/family/out/a b.pdf").write_bytes(b"body")

    for path in ("out/a b.pdf", "/workspace/group/out/a b.pdf"):
        found = taken(home, path)
        assert (found.path.read_bytes(), found.name, found.size) == (b"body", "a_b.pdf", 4)
        assert found.path.stat().st_mode & 0o777 == 0o600
        found.path.unlink()


@pytest.mark.parametrize(
    "path", ["../../secret", "/etc/passwd", "a/../../../secret", "", ".", "x\0y", "missing", "a/" * 30 + "b"]
)
def test_a_path_that_leads_out_is_refused(home, path):
    with pytest.raises(FileRefused):
        taken(home, path)


def test_links_pipes_and_directories_are_refused(home):
    folder = home / "groups/family"
    (folder / "link").symlink_to(home / "in.bin")
    os.link(home / "secret", folder / "hard")
    os.mkfifo(folder / "pipe")
    (folder / "dir").mkdir()
    (folder / "dirlink").symlink_to(home)
    (folder / "empty").touch()

    for path in ("link", "hard", "pipe", "dir", "dirlink/secret", "empty"):
        with pytest.raises(FileRefused):
            taken(home, path)
    assert not (home / "data/outgoing/1").exists()


def test_a_file_over_the_limit_is_refused(home):
    (home / "groups/family/big").write_bytes(b"x" * 101)

    with pytest.raises(FileRefused, match="101 bytes"):
        taken(home, "big")
