"""The processor time of a session, also beside processes with odd names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent_runner.cpu_time import used_cpu_seconds


def test_names_with_brackets_or_cut_in_a_character_hide_no_processor_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernel cuts a name after 15 bytes.
    for number, name in enumerate((b"a) b (", "a한국어이름시험".encode()[:15], b"python"), 1):
        (tmp_path / str(number)).mkdir()
        stat = b"%d (%s) S 1 1 %d 0 -1 0 0 0 0 0 100 50 0 0" % (number, name, os.getsid(0))
        (tmp_path / str(number) / "stat").write_bytes(stat)
    monkeypatch.setattr("agent_runner.cpu_time.Path", lambda _: tmp_path)

    assert used_cpu_seconds() == pytest.approx(3 * 150 / os.sysconf("SC_CLK_TCK"))
