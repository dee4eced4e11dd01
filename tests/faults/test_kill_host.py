"""`kill -9` of the host at the points of a turn: nothing lost, nothing doubled.

`make soak` tries every point, `make check` each twelfth: the simulated world kills a host at any step, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.andy import until
from tests.processes.killable_andy import MortalAndy, every_nth

pytestmark = [pytest.mark.host, pytest.mark.timeout(3000)]
DISTANCE = every_nth(12)
LEAST = 25
"""Points that a turn has at the least."""


def test_no_point_of_a_turn_is_a_bad_one_to_die_at(tmp_path: Path) -> None:
    said: dict[str, str | None] = {}
    deaths = 0
    with MortalAndy(tmp_path / "home") as andy:
        for point in range(1, 500, DISTANCE):
            andy.kill()
            andy.keep_notice(f"note{point:03d}")
            andy.start_to_die_at(point)
            until(lambda: andy.is_dead() or andy.is_up(), what="up or dead")
            word = f"w{point:03d}"
            if not andy.is_dead():
                said[f"echo {word}"] = andy.try_to_say(f"echo {word}")
                if said[f"echo {word}"] is None:
                    until(andy.is_dead, what="whoever does not answer is dead")
            until(lambda: andy.is_dead() or andy.unsettled() == 0, what=f"dead or done at point {point}")
            if not andy.is_dead():
                break
            assert andy.has_died_by_kill()
            deaths += 1
        else:
            pytest.fail("the work has no end")
        andy.check_answers(said)
        assert andy.check_notices() > LEAST // DISTANCE
    assert deaths > LEAST // DISTANCE, "a turn has more points than that"
