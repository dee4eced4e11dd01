"""The options of `andy up` as they are usually written are read without the library of the command line."""

from __future__ import annotations

import pytest

from orchestrator.cli.host_process import plain_options


def test_options_are_read_in_either_form():
    assert plain_options([]) == {}
    assert plain_options(
        ["--home", "/srv/andy home", "--runtime=docker", "--agent", "offline", "--port=0"]
    ) == {
        "--home": "/srv/andy home",
        "--runtime": "docker",
        "--agent": "offline",
        "--port": "0",
    }


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "-h",
        "--port",
        "--port=",
        "--port many",
        "--port 123456",
        "--port -1",
        "--runtime podman",
        "--home --port",
        "--home=",
        "--home /srv/안디",
        "--homes /srv",
        "--port 1 --port 2",
        "extra",
        "= x",
        "--no-port",
    ],
)
def test_anything_else_is_for_the_command_line_to_judge(line):
    assert plain_options(line.split()) is None
