"""Changing `.env`, which is the owner's."""

from __future__ import annotations

import errno

import pytest

from orchestrator.base.installation import COMPOSE_HOME
from orchestrator.domain.errors import SettingError
from orchestrator.home import dotenv_file


def test_what_else_is_in_it_stays_as_it_is():
    text = "# mine\nTZ=Europe/Berlin\n\nexport ANTHROPIC_API_KEY=old\nOTHER='a b'"

    assert dotenv_file.changed(text, {"ANTHROPIC_API_KEY": "new"}) == (
        "# mine\nTZ=Europe/Berlin\n\nOTHER='a b'\nANTHROPIC_API_KEY=new\n"
    )


def test_a_name_that_only_begins_the_same_is_another():
    assert dotenv_file.changed("ANTHROPIC_API_KEY_2=x\n", {"ANTHROPIC_API_KEY": "y"}) == (
        "ANTHROPIC_API_KEY_2=x\nANTHROPIC_API_KEY=y\n"
    )


def test_what_is_silenced_becomes_a_comment():
    assert dotenv_file.changed("A=1\nB=2\n", {"C": "3"}, ["A"]) == "# A=1\nB=2\nC=3\n"


def test_a_value_of_several_lines_is_replaced_or_silenced_whole():
    text = "A='first\nsecond'\nB=2\n"

    assert dotenv_file.changed(text, {"A": "1"}) == "B=2\nA=1\n"
    assert dotenv_file.changed(text, {"C": "3"}, ["A"]) == "# A='first\n# second'\nB=2\nC=3\n"


@pytest.mark.parametrize("value", ["a\nB=1", "a #b", "'a'", ' "', " a"])
def test_a_value_that_a_line_cannot_hold_is_refused(value):
    with pytest.raises(SettingError):
        dotenv_file.changed("", {"A": value})


def test_it_is_for_the_owner_alone_also_when_it_was_not(tmp_path):
    path = tmp_path / ".env"
    path.write_text("A=1\n")
    path.chmod(0o644)

    assert dotenv_file.put(path, {"B": "2"}, silences=("A", "B", "C")) == ["A"]
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("# A=1\nB=2\n", 0o600)


def test_a_link_to_it_stays_a_link(tmp_path):
    (tmp_path / "real").write_text("A=1\n")
    (tmp_path / ".env").symlink_to(tmp_path / "real")

    dotenv_file.put(tmp_path / ".env", {"A": "2"})

    assert (tmp_path / ".env").is_symlink()
    assert (tmp_path / "real").read_text() == "A=2\n"


def test_what_cannot_be_written_is_said_and_nothing_is_left(tmp_path):
    (tmp_path / ".env").mkdir()

    with pytest.raises(SettingError, match="is a folder"):
        dotenv_file.put(tmp_path / ".env", {"A": "1"})
    assert [one.name for one in tmp_path.iterdir()] == [".env"]


def test_a_file_that_is_not_in_utf_8_is_to_be_saved_so(tmp_path, monkeypatch):
    (tmp_path / ".env").write_bytes(b"A=\xe4\n")

    for in_container in (False, True):
        if in_container:
            monkeypatch.setenv("ANDY_HOME", COMPOSE_HOME)
        with pytest.raises(SettingError, match="is not in UTF-8: save it so") as refused:
            dotenv_file.put(tmp_path / ".env", {"B": "1"})
        assert "permissions" not in str(refused.value)


def test_a_full_disk_is_to_be_cleared(tmp_path, monkeypatch):
    def write_whole(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(dotenv_file, "write_whole", write_whole)
    with pytest.raises(SettingError, match="make room on the disk") as refused:
        dotenv_file.put(tmp_path / ".env", {"A": "1"})
    assert "permissions" not in str(refused.value)


def test_a_value_that_an_unclosed_quote_before_it_would_take_in_is_refused():
    with pytest.raises(SettingError, match=r"an earlier line of \.env has a quote that is not closed"):
        dotenv_file.changed("A='abc\nC=1\n", {"B": "it's"})
    assert dotenv_file.changed("A='abc\nC=1\n", {"B": "its"}) == "A='abc\nC=1\nB=its\n"
