"""Containers that speak the wire wrongly, all at once: each hurts its own turn, and nobody else waits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults.hostile_scripts import SCENARIOS, Answered, Ended
from tests.processes.andy import AndyProcess, until
from tests.support.homes import furnish
from tests.support.skips import only_in_soak
from tests.support.store_harness import a_group

pytestmark = [pytest.mark.host, pytest.mark.timeout(1500)]
MAX_GROWTH_BYTES = 100 * 1024 * 1024
SETTINGS = {"MAX_CONCURRENT_CONTAINERS": str(len(SCENARIOS) + 2), "CONTAINER_TIMEOUT": "45000"}


class Besieged(AndyProcess):
    """One honest group among hostile ones, asked all the while; the host's memory is measured."""

    def __init__(self, home: Path, runtime: str) -> None:
        super().__init__(home, runtime=runtime, environment=SETTINGS)
        self.program = [sys.executable, str(Path(__file__).with_name("host_with_hostile_agents.py"))]
        self.before = self.most = 0
        self.honest: list[str] = []

    def lay_scripts(self) -> None:
        scripts = self.home / "hostile"
        scripts.mkdir(parents=True)
        for name, scenario in SCENARIOS.items():
            (scripts / f"{name}.py").write_text(scenario.script, encoding="utf-8")

    def measure(self) -> int:
        self.most = max(self.most, psutil.Process(self.pid).memory_info().rss)
        return self.most

    def ask_the_honest(self) -> None:
        word = f"word{len(self.honest)}"
        found = self.say(f"echo {word}", group="honest")
        assert found.get("reply") == word, f"the honest group waits: {found}"
        self.honest.append(word)
        self.measure()

    def first_attempt(self, group: str) -> tuple[str, str] | None:
        """State and reason of a group's turn once its first attempt has ended."""
        (turn,) = self.rows("SELECT * FROM turns WHERE group_folder = ? ORDER BY id LIMIT 1", group)
        has_ended = turn["attempt"] > 1 or turn["state"] in ("answered", "failed")
        return (turn["state"], turn["reason"] or "") if has_ended else None

    def noted(self, group: str) -> set[str]:
        """The kinds of lines that the host's log has of a group."""
        return {line.get("event", "") for line in self.logged() if line.get("group") == group}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("process", marks=only_in_soak),
        pytest.param("docker", marks=pytest.mark.docker),
    ],
)
def andy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Besieged]:
    if request.param == "docker":
        request.getfixturevalue("agent_image")
    home = tmp_path_factory.mktemp("siege") / "home"
    besieged = Besieged(home, str(request.param))
    furnish(home, [a_group(name, requires_trigger=False) for name in ("honest", *SCENARIOS)])
    besieged.lay_scripts()
    with besieged as andy:
        andy.ask_the_honest()
        andy.before = andy.measure()
        for name in SCENARIOS:
            andy.say(f"hello {name}", group=name, wait=0)
        until(
            lambda: andy.ask_the_honest() or _all_ended(andy),
            what="all first attempts have ended",
            seconds=500,
        )
        yield andy


def _all_ended(andy: Besieged) -> bool:
    return all(andy.first_attempt(name) for name in SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_hostile_runner_hurts_its_own_turn_at_most(andy: Besieged, name: str) -> None:
    scenario = SCENARIOS[name]
    ended = andy.first_attempt(name)
    assert ended is not None
    state, reason = ended
    match scenario.outcome:
        case Answered(reply=reply):
            assert state == "answered", reason
            texts = until(lambda: _sent(andy, name), what="its reply is sent")
            assert "\n\n".join(texts) == reply
        case Ended(reasons=reasons):
            # Where the machine is slow, the limit of a turn may come before what the scenario names.
            assert any(one in reason for one in (*reasons, "it took longer than")), (state, reason)
    if scenario.noted is not None and "it took longer than" not in (reason or ""):
        assert scenario.noted in andy.noted(name)


def _sent(andy: Besieged, group: str) -> list[str]:
    """What a group's chat was told, once all of it is on its way no more."""
    rows = andy.rows("SELECT text, state FROM outbox WHERE group_folder = ? ORDER BY id", group)
    return [row["text"] for row in rows] if {row["state"] for row in rows} == {"sent"} else []


def test_others_are_answered_all_the_while(andy: Besieged) -> None:
    assert len(andy.honest) > 3
    assert len(
        andy.rows("SELECT 1 FROM messages WHERE chat_jid = 'local:honest' AND sender = 'andy'")
    ) == len(andy.honest)


def test_the_hosts_memory_stays_bounded(andy: Besieged) -> None:
    assert andy.measure() - andy.before < MAX_GROWTH_BYTES


def test_no_session_was_stolen_or_forged(andy: Besieged) -> None:
    assert andy.rows("SELECT * FROM sessions") == []


def test_nobody_spoke_in_a_chat_of_another(andy: Besieged) -> None:
    assert andy.rows("SELECT 1 FROM outbox WHERE chat_jid <> 'local:' || group_folder") == []


def test_a_container_that_ignores_every_wish_to_end_is_gone(andy: Besieged) -> None:
    first = "SELECT 1 FROM runs WHERE group_folder = 'ignores-sigterm' AND ended_ms IS NOT NULL"
    until(lambda: andy.rows(first), what="its first run has ended")
