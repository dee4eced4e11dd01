"""What is no backup, or a bad one, is refused and changes nothing."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import tarfile
from contextlib import closing

import pytest

from orchestrator.backup import archive
from orchestrator.domain.errors import StoreTooNew
from tests.support.backups import make, put_back, tree
from tests.support.spoilt_backups import added, planted, refused, rewritten


def test_what_is_planted_would_be_taken_were_it_harmless(home, tmp_path):
    made, harmless = make(home, tmp_path / "b.tar.gz"), {"name": "groups/main/new"}

    def plant(name: str, text: bytes, tar: tarfile.TarFile) -> bool:
        if name == archive.CONTENTS:
            planted(tar, **harmless)
            added(tar, text, harmless)
        return name != archive.CONTENTS

    put_back(home, rewritten(made.path, tmp_path / "good.tar.gz", plant), force=True)
    assert (home.groups / "main" / "new").read_bytes() == b"evil"


EVIL = {
    "traversal": {"name": "groups/../../evil"},
    "above": {"name": "../evil"},
    "absolute": {"name": "/tmp/evil-absolute"},
    "elsewhere": {"name": "data/token"},
    "lock": {"name": "data/orchestrator.lock"},
    "code": {"name": "orchestrator/cli.py"},
    "twice": {"name": "groups/main/CLAUDE.md"},
    "link out": {"name": "groups/main/l", "kind": tarfile.SYMTYPE, "link": "../../../evil"},
    "link to another group": {"name": "groups/main/l", "kind": tarfile.SYMTYPE, "link": "../global"},
    "absolute link": {"name": "groups/main/l", "kind": tarfile.SYMTYPE, "link": "/etc/passwd"},
    "folder is a link": {"name": "groups/other", "kind": tarfile.SYMTYPE, "link": "main"},
    "store is a link": {"name": "store", "kind": tarfile.SYMTYPE, "link": "groups/main"},
    "link over what is in it": {
        "name": "groups/main/conversations",
        "kind": tarfile.SYMTYPE,
        "link": "CLAUDE.md",
    },
    "hard link": {"name": "groups/main/h", "kind": tarfile.LNKTYPE, "link": "store/messages.db"},
    "device": {"name": "groups/main/dev", "kind": tarfile.CHRTYPE},
    "pipe": {"name": "groups/main/pipe", "kind": tarfile.FIFOTYPE},
    "too deep": {"name": "groups/main/" + "d/" * 200 + "x"},
}


@pytest.mark.parametrize("evil", EVIL.values(), ids=EVIL)
def test_an_archive_that_reaches_out_is_refused_and_changes_nothing(home, tmp_path, evil):
    made = make(home, tmp_path / "b.tar.gz")

    def plant(name: str, text: bytes, tar: tarfile.TarFile) -> bool:
        if name == archive.CONTENTS:
            planted(tar, **evil)
            added(tar, text, evil)
        return name != archive.CONTENTS

    source = rewritten(made.path, tmp_path / "evil.tar.gz", plant)
    refused(home, tmp_path, source, match="it holds|is no plain file|something in it")


@pytest.mark.parametrize("has_filter", [True, False], ids=["new Python", "Python of Debian 12"])
def test_a_link_that_turns_back_in_an_earlier_backup_is_left_out_of_the_restored_home(
    home, tmp_path, monkeypatch, has_filter
):
    if not has_filter:
        monkeypatch.delattr(tarfile, "data_filter")
    made = make(home, tmp_path / "b.tar.gz")
    links = [
        {"name": "groups/main/conversations/top", "kind": tarfile.SYMTYPE, "link": ".."},
        {"name": "groups/main/conversations/out", "kind": tarfile.SYMTYPE, "link": "top/../other"},
    ]

    def plant(name: str, text: bytes, tar: tarfile.TarFile) -> bool:
        if name == archive.CONTENTS:
            for link in links:
                planted(tar, **link)
            added(tar, text, *links)
        return name != archive.CONTENTS

    done = put_back(home, rewritten(made.path, tmp_path / "old.tar.gz", plant), force=True)

    restored = home.groups / "main" / "conversations"
    assert (restored / "top").is_symlink()
    assert not (restored / "out").is_symlink()
    assert done.left_out == ("groups/main/conversations/out",)


def test_a_number_that_is_none_in_a_header_is_refused(home, tmp_path):
    with (home.groups / "main" / "with-holes").open("wb") as file:
        file.truncate(2**21)
    made = make(home, tmp_path / "b.tar.gz")
    whole = gzip.decompress(made.path.read_bytes())
    size = b"GNU.sparse.realsize=2097152"
    assert size in whole
    source = tmp_path / "spoilt.tar.gz"
    source.write_bytes(gzip.compress(whole.replace(size, size.replace(b"9", b"x"))))
    refused(home, tmp_path, source, match="it is broken")


def test_a_link_that_something_lies_under_is_refused(home, tmp_path):
    made = make(home, tmp_path / "b.tar.gz")

    def plant(name: str, text: bytes, tar: tarfile.TarFile) -> bool:
        if name == archive.CONTENTS:
            planted(tar, "groups/main/l", kind=tarfile.SYMTYPE, link="conversations")
            planted(tar, "groups/main/l/through")
            added(tar, text, {"name": "l", "kind": tarfile.SYMTYPE}, {"name": "through"})
        return name != archive.CONTENTS

    source = rewritten(made.path, tmp_path / "evil.tar.gz", plant)
    refused(home, tmp_path, source, match="something in it")


BROKEN = {
    "cut": lambda text: text[: len(text) // 2],
    "cut at the end": lambda text: text[:-9],
    "a bit is wrong": lambda text: text[:500] + bytes([text[500] ^ 0x10]) + text[501:],
    "empty": lambda text: b"",
    "something else": lambda text: b"not a backup at all, but some text" * 100,
    "half a database": lambda text: b"SQLite format 3\0" + b"\xff" * 5000,
}


@pytest.mark.parametrize("breaking", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused_and_changes_nothing(home, tmp_path, breaking):
    made = make(home, tmp_path / "b.tar.gz")
    made.path.write_bytes(breaking(made.path.read_bytes()))
    refused(home, tmp_path, made.path)


def test_an_archive_without_its_last_files_is_not_whole(home, tmp_path):
    made = make(home, tmp_path / "b.tar.gz")
    lost = rewritten(made.path, tmp_path / "lost.tar.gz", lambda name, *_: name != "groups/main/CLAUDE.md")
    refused(home, tmp_path, lost, match="incomplete")
    lost = rewritten(made.path, tmp_path / "lost.tar.gz", lambda name, *_: name != archive.CONTENTS)
    refused(home, tmp_path, lost, match="incomplete")
    lost = rewritten(made.path, tmp_path / "lost.tar.gz", lambda name, *_: name != archive.MANIFEST)
    refused(home, tmp_path, lost, match="does not begin with")


def test_a_damaged_database_in_it_is_seen_before_anything_is_moved(home, tmp_path):
    made = make(home, tmp_path / "b.tar.gz")

    def spoil(name: str, text: bytes, tar: tarfile.TarFile) -> bool | None:
        if name != archive.DATABASE:
            return True
        info = tarfile.TarInfo(name)
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text[:4096] + b"\xa5" * (len(text) - 4096)))
        return None

    refused(home, tmp_path, rewritten(made.path, tmp_path / "spoilt.tar.gz", spoil), match="damaged")


def test_a_newer_store_is_refused(home, tmp_path):
    made = make(home, tmp_path / "b.tar.gz")

    def newer(name: str, text: bytes, tar: tarfile.TarFile) -> bool | None:
        if name != archive.MANIFEST:
            return True
        told = json.dumps({**json.loads(text), "store_version": 999}).encode()
        info = tarfile.TarInfo(name)
        info.size = len(told)
        tar.addfile(info, io.BytesIO(told))
        return None

    source = rewritten(made.path, tmp_path / "newer.tar.gz", newer)
    before = tree(home.root)
    with pytest.raises(StoreTooNew, match="version 999"):
        put_back(home, source, force=True)
    with closing(sqlite3.connect(tmp_path / "newer.db")) as bare:
        bare.execute("PRAGMA user_version = 999")
    with pytest.raises(StoreTooNew, match="version 999"):
        put_back(home, tmp_path / "newer.db", force=True)
    assert tree(home.root) == before


@pytest.mark.parametrize(
    ("name", "target", "inside"),
    [
        ("groups/a/l", "x/y", True),
        ("groups/a/b/l", "../x", True),
        ("groups/a/b/l", "..", True),
        ("groups/a/l", "..", False),
        ("groups/a/l", "../b/x", False),
        ("groups/a/l", "b/../../c", False),
        ("groups/a/l", "x/../..", False),
        ("groups/a/b/l", ".././/x", True),
        ("groups/a/l", "/x", False),
        ("groups/l", "a", False),
        ("data/sessions/a/.claude/l", "../x", True),
        ("data/sessions/a/.claude/l", "../../b", False),
        ("store/l", "x", False),
    ],
)
def test_a_link_may_lead_about_its_own_group(name, target, inside):
    assert archive.stays_inside(name, target) is inside


@pytest.mark.parametrize(
    ("target", "turns"),
    [("../../x", False), ("././..//../x/y", False), ("..", False), ("x/../y", True), ("../x/.", False)],
)
def test_a_target_turns_back_after_a_name(target, turns):
    assert archive.turns_back(target) is turns
