"""What `andy doctor` can tell of WhatsApp, each in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.channels import status
from orchestrator.channels.status import ChannelStatus
from orchestrator.channels.whatsapp import doctor_checks
from tests.doubles import whatsapp_store
from tests.support.whatsapp_names import ANDY

BROKEN = """
import importlib.abc, sys

class Refuses(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "neonize":
            raise {error}

sys.meta_path.insert(0, Refuses())
"""


def break_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BROKEN.format(error=error))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))


def test_a_library_that_loads_is_no_problem(tmp_path):
    found = doctor_checks.check_library(tmp_path)

    assert (found.is_problem, found.text) == (False, "The WhatsApp library loads.")


@pytest.mark.parametrize(
    ("error", "mend"),
    [
        ("ModuleNotFoundError('no', name='neonize')", "pip install neonize"),
        ("ImportError('failed to find libmagic.  Check your installation')", "apt-get install libmagic1"),
        ("OSError('invalid ELF header')", "reinstall neonize"),
        ("SystemExit(3)", "reinstall neonize"),
    ],
)
def test_a_library_that_does_not_load_is_one_line_with_its_mend(tmp_path, monkeypatch, error, mend):
    break_library(tmp_path, monkeypatch, error)

    found = doctor_checks.check_library(tmp_path)

    assert found.is_problem
    assert mend in found.text
    assert "\n" not in found.text


def test_where_nobody_has_paired_nothing_is_wrong(tmp_path):
    found = doctor_checks.check_login(tmp_path)

    assert (found.is_problem, "andy whatsapp pair" in found.text) == (False, True)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store" / "whatsapp.db"
    whatsapp_store.lay_store(path)
    path.chmod(0o600)
    return path


def test_a_sound_login_says_whose_it_is(tmp_path, store):
    found = doctor_checks.check_login(tmp_path)

    assert (found.is_problem, found.text) == (False, f"WhatsApp is paired with +{ANDY}.")


def test_a_login_that_others_can_read_is_a_problem(tmp_path, store):
    store.chmod(0o644)

    assert f"chmod 600 {store}" in doctor_checks.check_login(tmp_path).text


def test_a_damaged_login_is_a_problem(tmp_path, store):
    store.write_bytes(b"no database at all, " * 100)

    found = doctor_checks.check_login(tmp_path)
    assert (found.is_problem, "pair this host" in found.text) == (True, True)


@pytest.mark.parametrize("state", ["banned", "replaced", "outdated", "unusable"])
def test_what_only_the_owner_can_mend_is_a_problem_and_a_broken_line_is_none(tmp_path, store, state):
    file = tmp_path / "data" / "whatsapp" / "condition.json"
    status.write(file, ChannelStatus(state=state, advice="Do this."))
    assert (doctor_checks.check_login(tmp_path).is_problem, doctor_checks.check_login(tmp_path).text) == (
        True,
        "Do this.",
    )

    status.write(file, ChannelStatus(state="disconnected", advice="WhatsApp is not connected: x"))
    assert not doctor_checks.check_login(tmp_path).is_problem


def test_who_was_logged_out_is_told_to_pair_again(tmp_path):
    file = tmp_path / "data" / "whatsapp" / "condition.json"
    status.write(file, ChannelStatus(state="logged_out", advice="WhatsApp logged this device out (x)."))

    found = doctor_checks.check_login(tmp_path)
    assert (found.is_problem, found.text.endswith("'andy whatsapp pair'.")) == (True, True)


def test_who_has_paired_again_since_is_well(tmp_path, store):
    file = tmp_path / "data" / "whatsapp" / "condition.json"
    status.write(file, ChannelStatus(state="logged_out", advice="WhatsApp logged this device out (x)."))

    assert not doctor_checks.check_login(tmp_path).is_problem
