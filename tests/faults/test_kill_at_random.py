"""`kill -9` of the host at random under load, again and again: nothing lost, nothing doubled.

Only in `make soak`: the simulated world kills its host at random in each of its worlds.
"""

from __future__ import annotations

import random
from pathlib import Path

import psutil
import pytest

from tests.processes.andy import AndyProcess, until
from tests.processes.killable_andy import SOAK_KILLS, MortalAndy
from tests.support.skips import only_in_soak

pytestmark = [pytest.mark.host, only_in_soak, pytest.mark.timeout(1500 + 30 * SOAK_KILLS)]
GROUPS = ("main", "one", "two", "three")


def test_random_kills_under_load(tmp_path: Path) -> None:
    chance = random.Random(20261122)
    said: dict[str, str | None] = {}
    with MortalAndy(tmp_path / "home") as andy:
        andy.register(*GROUPS[1:])
        andy.kill()
        for kill in range(SOAK_KILLS):
            andy.start_to_die_at(chance.randint(1, 60))
            until(lambda: andy.is_dead() or andy.is_up(), what="up or dead")
            for number in range(chance.randint(1, 4)):
                text = f"echo k{kill:04d}n{number}"
                said[text] = andy.try_to_say(text, group=chance.choice(GROUPS))
            until(lambda: andy.is_dead() or andy.unsettled() == 0, what=f"dead or done after kill {kill}")
            andy.kill()
        andy.start_to_die_at(0)
        andy.until_settled_all()
        andy.check_answers(said)
        until(lambda: _processes_of(andy) <= len(GROUPS), what="no agent is left over")


def _processes_of(andy: AndyProcess) -> int:
    """How many agents of this home live: idle ones may, one a group."""
    home = str(andy.home / "data" / "process")
    agents = (
        each.info
        for each in psutil.process_iter(["environ", "cmdline"])
        if "agent_runner" in " ".join(each.info["cmdline"] or ())
    )
    return sum(home in (info["environ"] or {}).get("ANDY_WORKSPACE", "") for info in agents)
