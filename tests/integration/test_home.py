from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from contextlib import ExitStack

import pytest

from orchestrator.domain.errors import HomeError
from orchestrator.home import lock as home_lock
from orchestrator.home.directory import Home


@pytest.fixture
def home(tmp_path):
    made = Home(tmp_path / "home")
    made.make()
    return made


def test_what_is_missing_is_made_and_kept_from_others(home):
    for folder in (home.groups, home.ipc, home.database.parent):
        assert folder.is_dir()
    assert home.data.stat().st_mode & 0o777 == 0o711
    assert list(home.data.glob(".probe*")) == []
    home.make()


def test_the_token_is_made_once_and_is_the_owners_alone(home):
    token = home.token()

    assert len(token) >= 32
    assert home.token() == token
    assert home.token_file.stat().st_mode & 0o777 == 0o600


def test_a_token_file_left_empty_by_a_crash_gets_a_token(home):
    home.token_file.touch()

    token = home.token()

    assert len(token) >= 32
    assert home.token() == token


@pytest.mark.parametrize("content", [b"\0" * 43, b"\xff\xfe1", "schlüssel".encode(), b"two words"])
def test_a_damaged_token_or_id_is_named_with_the_fix(home, content):
    for file, read in ((home.token_file, home.token), (home.data / "install", home.install_id)):
        file.write_bytes(content)
        with pytest.raises(HomeError, match=f"{re.escape(str(file))} is damaged: remove it"):
            read()
        assert file.read_bytes() == content


def test_a_folder_in_place_of_the_token_or_the_id_is_named_with_the_fix(home):
    for file, read in ((home.token_file, home.token), (home.data / "install", home.install_id)):
        file.mkdir()
        with pytest.raises(HomeError, match=f"{re.escape(str(file))} is a folder: remove it"):
            read()


def test_a_start_that_was_killed_is_over_also_if_its_process_id_is_in_use_again(home):
    home.starting_file.write_text(f"{os.getpid()} 1790000000000")
    assert home_lock.starting_since_ms(home) is None

    with home_lock.starting(home, now_ms=1_790_000_060_000):
        assert home_lock.starting_since_ms(home) == 1_790_000_060_000

    assert [file.name for file in home.data.iterdir() if "starting" in file.name] == []


def test_a_second_start_leaves_the_file_of_the_first(home):
    with home_lock.starting(home, now_ms=1) as started:
        with home_lock.starting(home, now_ms=2):
            assert home_lock.starting_since_ms(home) == 1
        assert home_lock.starting_since_ms(home) == 1
        started()
        with home_lock.starting(home, now_ms=3):
            started()
            assert home_lock.starting_since_ms(home) == 3
    assert home_lock.starting_since_ms(home) is None


MAKE_TOKENS = """
import sys
from pathlib import Path
from orchestrator.home.directory import Home

for root in sys.stdin:
    print(Home(Path(root.strip())).token(), flush=True)
"""


def test_processes_that_make_the_token_at_once_get_the_one_that_is_stored(tmp_path):
    """Both are asked for the tokens of fifty homes, each at the same moment."""
    pipe, command = subprocess.PIPE, [sys.executable, "-c", MAKE_TOKENS]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1))
            for _ in range(2)
        ]
        for number in range(50):
            home = Home(tmp_path / f"home-{number}")
            home.make()
            for process in processes:
                process.stdin.write(f"{home.root}\n")
            assert {process.stdout.readline().strip() for process in processes} == {home.token()}


def test_a_token_that_another_process_stores_meanwhile_is_the_one_that_counts(home, monkeypatch):
    def wait(*_):
        """Wait for the lock until another process has made the token."""
        home.token_file.write_text("theirs")

    monkeypatch.setattr(fcntl, "flock", wait)
    assert home.token() == "theirs"
    assert home.token_file.read_text() == "theirs"


def test_a_home_that_never_ran_has_an_install_id(tmp_path):
    never_ran = Home(tmp_path / "new")

    assert never_ran.install_id() == never_ran.install_id()


def test_two_homes_have_two_install_ids(home, tmp_path):
    other = Home(tmp_path / "other")
    other.make()

    assert home.install_id() == home.install_id() != other.install_id()


def test_a_home_that_cannot_be_made_is_refused_with_the_mend(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(HomeError, match="ANDY_HOME"):
        Home(tmp_path / "file").make()
