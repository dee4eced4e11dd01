"""Who `andy` is in its container: the owner of the home, and never root."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.compose.entrypoint import ORDINARY, User, take_over

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can step down")
WHO = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from orchestrator.compose.entrypoint import become, owner_of, take_over
home = Path(sys.argv[2])
user = owner_of(home)
take_over(home, user)
become(user)
try:
    os.setuid(0)
except PermissionError:
    print(os.getresuid(), os.getresgid(), os.environ["HOME"])
"""


@pytest.fixture
def home(tmp_path) -> Path:
    for name in ("groups/family", "data/ipc", "store", "backups"):
        (tmp_path / "home" / name).mkdir(parents=True)
    return tmp_path / "home"


def who(home: Path) -> str:
    root = Path(__file__).parents[2]
    return subprocess.run(
        [sys.executable, "-c", WHO, str(root), str(home)], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_root_becomes_the_owner_of_the_home_and_cannot_go_back(home):
    os.chown(home / "data", 4321, 8765)

    assert who(home) == "(4321, 4321, 4321) (8765, 8765, 8765) /home/andy"


def test_a_home_of_root_is_given_to_an_ordinary_user(home):
    (home / "store" / "messages.db").touch()

    assert who(home) == "(1000, 1000, 1000) (1000, 1000, 1000) /home/andy"
    for path in (home / "store" / "messages.db", home / "groups" / "family", home / "data", home / "backups"):
        assert path.stat().st_uid == ORDINARY


def test_what_docker_made_in_a_folder_of_somebody_is_theirs(home):
    """Without a clone nothing but the Compose file and `.env` is there before the first start."""
    os.chown(home, 4321, 8765)

    assert who(home) == "(4321, 4321, 4321) (8765, 8765, 8765) /home/andy"
    assert (home / "data").stat().st_uid == 4321


def test_a_home_that_was_given_away_before_stays_with_them(home):
    os.chown(home, 4321, 8765)
    os.chown(home / "data", ORDINARY, ORDINARY)

    assert who(home) == "(1000, 1000, 1000) (1000, 1000, 1000) /home/andy"


def test_what_root_left_in_the_home_of_another_is_given_to_them(home):
    os.chown(home / "data", 4321, 8765)
    (home / "store" / "messages.db").touch()

    who(home)

    assert (home / "store" / "messages.db").stat().st_uid == 4321


def test_what_an_agent_planted_is_given_to_nobody(home, tmp_path):
    secret = tmp_path / "secret"
    secret.touch()
    (home / "groups" / "family" / "link").symlink_to(secret)
    os.link(secret, home / "groups" / "family" / "second-name")
    (home / "groups" / "family" / "folder").symlink_to(tmp_path)

    take_over(home, User(ORDINARY, ORDINARY))

    assert secret.stat().st_uid == 0
    assert tmp_path.stat().st_uid == 0


def test_what_an_agent_that_still_runs_removes_meanwhile_ends_nothing(home, monkeypatch):
    for name in ("gone", "note"):
        (home / "groups" / "family" / name).touch()
    look = os.stat

    def sees(path: Any, **options: Any) -> os.stat_result:
        if path == "gone":
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return look(path, **options)

    monkeypatch.setattr(os, "stat", sees)
    take_over(home, User(ORDINARY, ORDINARY))
    assert (home / "groups" / "family" / "note").lstat().st_uid == ORDINARY


@pytest.mark.parametrize("number", [errno.EROFS, errno.EPERM])
def test_a_folder_that_cannot_be_given_away_ends_nothing(home, monkeypatch, number):
    for name in ("groups/family/shared", "groups/family/shared/deep"):
        (home / name).mkdir()
    for name in ("groups/family/shared/song", "store/messages.db"):
        (home / name).touch()
    shared = (home / "groups" / "family" / "shared").stat().st_ino
    give_folder, give_file = os.fchown, os.chown

    def refuse(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == shared:  # such as a read-only mount, or one of another machine
            raise OSError(number, os.strerror(number))

    def fchown(descriptor: int, *owner: int) -> None:
        refuse(descriptor)
        give_folder(descriptor, *owner)

    def chown(name: str, *owner: int, dir_fd: int, follow_symlinks: bool) -> None:
        refuse(dir_fd)
        give_file(name, *owner, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "fchown", fchown)
    monkeypatch.setattr(os, "chown", chown)
    take_over(home, User(ORDINARY, ORDINARY))
    assert (home / "store" / "messages.db").stat().st_uid == ORDINARY
    assert (home / "groups" / "family" / "shared" / "song").stat().st_uid == 0


def test_what_belongs_to_others_stays_theirs(home):
    (home / "groups" / "family" / "note").touch()
    os.chown(home / "groups" / "family" / "note", 1234, 1234)

    take_over(home, User(ORDINARY, ORDINARY))

    assert (home / "groups" / "family" / "note").stat().st_uid == 1234
