"""Test that marks are read from the text of a test file, and files without a chosen mark are left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.unneeded_files import TESTS, UnneededFiles, marks_of

QUICK = "not docker and not host and not browser and not swarm and not slow"
ENGINES = "docker or host or browser or slow"
ALL = "pytestmark = [\n    pytest.mark.docker,\n    pytest.mark.timeout(9),\n]\n"
ONE = "@pytest.mark.host\ndef test_one(): ...\n\ndef test_two(): ...\n"
NONE = "def test_one(): ...\n"


@pytest.mark.parametrize(
    ("text", "chosen", "is_left_out"),
    [
        (ALL, QUICK, True),
        (ALL, ENGINES, False),
        (ALL, "swarm", True),
        (ONE, QUICK, False),
        (ONE, ENGINES, False),
        (ONE, "swarm", True),
        (NONE, QUICK, False),
        (NONE, ENGINES, True),
        (NONE, "docker or voice", False),
        (NONE, "", False),
    ],
)
def test_a_file_is_left_out_where_none_of_its_tests_can_be_chosen(
    text: str, chosen: str, is_left_out: bool, tmp_path: Path
) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(text)

    assert (UnneededFiles(chosen).pytest_ignore_collect(path) is True) is is_left_out
    assert (UnneededFiles(chosen).pytest_ignore_collect(tmp_path) is True) is is_left_out


def test_a_folder_says_what_its_tests_are_marked_with() -> None:
    loop = marks_of(TESTS / "e2e" / "test_loop.py")

    assert (loop.on_all, loop.on_some) == ({"host"}, {"docker"})
    assert UnneededFiles(QUICK).pytest_ignore_collect(TESTS / "browser") is True


def test_a_mark_that_no_text_shows_is_refused(request: pytest.FixtureRequest) -> None:
    request.node.add_marker("swarm")

    with pytest.raises(pytest.UsageError, match="has the marks"):
        UnneededFiles(QUICK).pytest_collection_modifyitems([request.node])
