"""Make manipulated backups, as an attacker would, and check that restoring them is refused."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.backup import archive
from orchestrator.domain.errors import BackupError
from orchestrator.home.directory import Home
from tests.support.backups import put_back, tree


def rewritten(source: Path, target: Path, change: Callable[[str, bytes, tarfile.TarFile], object]) -> Path:
    """A copy of a backup; `change` gets each member and adds what it likes, or gives True to keep it."""
    with tarfile.open(source) as old, tarfile.open(target, "w:gz") as new:
        for member in old:
            file = old.extractfile(member)
            text = file.read() if file else b""
            if change(member.name, text, new) is True:
                member.size = len(text)
                new.addfile(member, io.BytesIO(text))
    return target


def planted(tar: tarfile.TarFile, name: str, *, kind: bytes = tarfile.REGTYPE, link: str = "") -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, 0 if kind != tarfile.REGTYPE else 4
    tar.addfile(info, io.BytesIO(b"evil") if kind == tarfile.REGTYPE else None)


def added(tar: tarfile.TarFile, text: bytes, *evils: dict[str, object]) -> None:
    """The table of contents with what was planted in it, as one who knows the form would write it."""
    contents = archive.BackupContents.model_validate_json(text)
    for evil in evils:
        is_link = evil.get("kind") == tarfile.SYMTYPE
        contents = contents.with_link() if is_link else contents.with_file(4)
    told = contents.model_dump_json().encode()
    info = tarfile.TarInfo(archive.CONTENTS)
    info.size = len(told)
    tar.addfile(info, io.BytesIO(told))


def refused(home: Home, tmp_path: Path, source: Path, *, match: str = "Nothing was changed") -> None:
    before, beside = tree(home.root), sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(BackupError, match=match) as told:
        put_back(home, source, force=True)
    assert "\n" not in str(told.value)
    assert tree(home.root) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == beside
    assert not Path("/tmp/evil-absolute").exists()
