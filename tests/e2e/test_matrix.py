"""The main job over Matrix: the demo of the documentation, on a real homeserver and a real `andy up`."""

from __future__ import annotations

import pytest

pytest.importorskip("nio")

from tests.processes.matrix_demo import Demo
from tests.support.skips import only_in_soak

pytestmark = pytest.mark.host


@only_in_soak
def test_the_demo_of_the_documentation_happens(tmp_path, homeserver, capsys):
    (tmp_path / "home").mkdir()
    Demo(tmp_path, homeserver).run()

    shown = capsys.readouterr().out
    assert "Andy:" in shown
    assert "✓ All steps succeeded" in shown
    assert "drink water" in shown
