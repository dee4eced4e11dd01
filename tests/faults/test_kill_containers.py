"""With Docker: containers, host and engine die at any moment. Nothing is lost, doubled or left behind."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path

import docker
import pytest
from docker.errors import APIError

from orchestrator.containers.docker.client import ALREADY_SO
from orchestrator.domain import failures
from tests.processes import own_engine
from tests.processes.andy import until
from tests.processes.engine_relay import RelayThread
from tests.processes.killable_andy import SOAK_KILLS, MortalAndy
from tests.processes.own_engine import OwnEngine
from tests.support.skips import only_in_soak

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(2400 + 30 * SOAK_KILLS),
    pytest.mark.usefixtures("agent_image"),
]
GROUPS = ("main", "one", "two", "three")
SLOTS = {"MAX_CONCURRENT_CONTAINERS": "3"}
"""Fewer than groups, so that a slot that leaks is missed."""

BLOWS: tuple[Callable[[docker.APIClient, str], None], ...] = (
    lambda client, ref: client.kill(ref),
    lambda client, ref: client.remove_container(ref, force=True),
)
STAGES = {
    "made": "SELECT 1 FROM runs WHERE id = ?",
    "known": "SELECT 1 FROM runs WHERE id = ? AND container_ref IS NOT NULL",
    "acknowledged": "SELECT 1 FROM turns WHERE run_id = ? AND acked_ms IS NOT NULL",
    "answered": "SELECT 1 FROM turns WHERE run_id = ? AND state = 'answered'",
}
BEGUN_AGAIN = "SELECT 1 FROM turns WHERE attempt > 1"
MOST_ROUNDS = 100 + SOAK_KILLS


def test_containers_killed_and_removed_at_random_cost_no_answer(
    tmp_path: Path, docker_client: docker.APIClient
) -> None:
    chance = random.Random(20261122)
    said: dict[str, str | None] = {}
    hit = 0
    rounds = itertools.count()
    with MortalAndy(tmp_path / "home", runtime="docker", environment=SLOTS) as andy:
        andy.register(*GROUPS[1:])
        # A slow machine may answer before each blow falls: then it takes more of them.
        while hit < (SOAK_KILLS or 4) or not andy.rows(BEGUN_AGAIN):
            number = next(rounds)
            assert number < MOST_ROUNDS, f"{hit} containers were hit, none of them in a turn"
            for group in GROUPS:
                text = f"echo {number:04d}{group}"
                said[text] = andy.try_to_say(text, group=group)
            hit += _strike(andy, docker_client, chance)
            hit += _strike(andy, docker_client, chance)
            andy.until_settled_all()
        andy.check_answers(said)
        assert all(said.values())
        andy.check_no_leak()


def _strike(andy: MortalAndy, client: docker.APIClient, chance: random.Random) -> int:
    """End a random container at a random stage of its turn; how many it hit."""
    run, ref = chance.choice(sorted(until(andy.containers, what="a container").items()))
    stage = STAGES[chance.choice(list(STAGES))]
    until(lambda: andy.rows(stage, run) or run not in andy.live_runs(), what="the stage, or its end")
    try:
        chance.choice(BLOWS)(client, ref)
    except APIError as error:
        if error.status_code not in ALREADY_SO:
            raise
        return 0
    return 1


@only_in_soak
def test_a_host_killed_at_random_goes_on_with_its_containers(tmp_path: Path) -> None:
    chance = random.Random(20261123)
    said: dict[str, str | None] = {}
    went_on = 0
    with MortalAndy(tmp_path / "home", runtime="docker", environment=SLOTS) as andy:
        andy.register(*GROUPS[1:])
        said |= {f"echo k{group}": andy.try_to_say(f"echo k{group}", group=group) for group in GROUPS[:3]}
        andy.until_settled_all()
        reach = andy.points()
        """How far a host comes that starts three containers: measured, as it grows with what a start does."""
        andy.kill()
        for number in itertools.count():
            if number >= (SOAK_KILLS or 5) and went_on > (3 if SOAK_KILLS else 1):
                break
            assert number < MOST_ROUNDS, (
                f"containers of a killed host answered its next one in {went_on} lives"
            )
            before = set(andy.containers())
            answered_before = _answered_by(andy, before)
            andy.start_to_die_at(chance.randint(1, reach))
            until(lambda: andy.is_dead() or andy.is_up(), what="up or dead")
            for count in range(chance.randint(1, 4)):
                text = f"echo k{number:04d}n{count}"
                said[text] = andy.try_to_say(text, group=chance.choice(GROUPS))
            until(lambda: andy.is_dead() or andy.unsettled() == 0, what=f"dead or done after kill {number}")
            went_on += _answered_by(andy, before) > answered_before
            andy.kill()
        andy.start_to_die_at(0)
        andy.until_settled_all()
        andy.check_answers(said)
        andy.check_no_leak()


def _answered_by(andy: MortalAndy, runs: set[str]) -> int:
    (row,) = andy.rows(
        "SELECT count(*) AS n FROM turns"
        " WHERE state = 'answered' AND run_id IN (SELECT value FROM json_each(?))",
        json.dumps(sorted(runs)),
    )
    return int(row["n"])


@only_in_soak
def test_an_engine_that_breaks_off_and_comes_back_costs_no_answer(tmp_path: Path) -> None:
    environment = {**SLOTS, "REJOIN_SECONDS": "600", "OUTAGE_NOTICE_AFTER_MS": "1000"}
    said: dict[str, str | None] = {}
    with (
        RelayThread(tmp_path / "engine.sock") as relay,
        MortalAndy(
            tmp_path / "home", runtime="docker", environment={**environment, "DOCKER_HOST": relay.address}
        ) as andy,
    ):
        andy.register("one", "two")
        for text, group in (("echo main0", "main"), ("echo one0", "one")):
            said[text] = andy.try_to_say(text, group=group)
        andy.until_settled_all()
        before = andy.containers()
        relay.break_off()
        for text, group in (("echo main1", "main"), ("echo two1", "two")):
            said[text] = andy.try_to_say(text, group=group)
        until(
            lambda: andy.rows("SELECT 1 FROM turns WHERE reason = 'Docker does not answer.'"),
            what="the group without a container has felt it",
        )
        assert andy.listed("status")["engine"] is False
        until(
            lambda: andy.rows(
                "SELECT 1 FROM outbox WHERE group_folder = 'two' AND text = ?",
                failures.WAITING[failures.Outage.ENGINE],
            ),
            what="who waits is told",
        )
        assert andy.say("echo one1", group="one", wait=0)["outcome"] in ("queued", "running")
        relay.come_back()
        andy.until_settled_all()
        andy.check_answers(said)
        andy.check_no_leak()
        assert set(before.values()) <= set(andy.containers().values()), "what lived was heard again"


@only_in_soak
def test_an_engine_that_stays_away_for_long_costs_no_answer_either(tmp_path: Path) -> None:
    environment = {**SLOTS, "REJOIN_SECONDS": "1"}
    said: dict[str, str | None] = {}
    with (
        RelayThread(tmp_path / "engine.sock") as relay,
        MortalAndy(
            tmp_path / "home", runtime="docker", environment={**environment, "DOCKER_HOST": relay.address}
        ) as andy,
    ):
        andy.register("one")
        said["echo one0"] = andy.try_to_say("echo one0", group="one")
        andy.until_settled_all()
        before = set(andy.containers())
        relay.break_off()
        said["echo one1"] = andy.try_to_say("echo one1", group="one")
        until(lambda: not before & andy.live_runs(), what="the run is given up")
        relay.come_back()
        andy.until_settled_all()
        andy.check_answers(said)
        andy.check_no_leak()
        assert not before & set(andy.containers()), "the container that was given up is ended"


@pytest.mark.skipif(own_engine.why_not() is not None, reason=own_engine.why_not() or "")
def test_an_engine_stopped_or_killed_and_started_costs_no_answer(
    tmp_path: Path, docker_client: docker.APIClient, agent_image: str
) -> None:
    said: dict[str, str | None] = {}
    with OwnEngine() as engine:
        engine.load(docker_client, agent_image)
        environment = {**SLOTS, "REJOIN_SECONDS": "1", "DOCKER_HOST": engine.address}
        with MortalAndy(tmp_path / "home", runtime="docker", environment=environment) as andy:
            andy.register(*GROUPS[1:])
            for end in (engine.stop, engine.kill):
                word = end.__name__
                texts = {group: f"echo {word}{group}" for group in ("main", "one")}
                said |= {text: andy.try_to_say(text, group=group) for group, text in texts.items()}
                until(andy.containers, what="a container")
                end()
                said[f"echo {word}two"] = andy.try_to_say(f"echo {word}two", group="two")
                until(
                    lambda: andy.rows(
                        "SELECT 1 FROM turns WHERE state = 'queued' AND reason = 'Docker does not answer.'"
                    ),
                    what="a group has felt it",
                )
                engine.start()
                andy.until_settled_all()
            andy.check_answers(said)
            andy.check_no_leak()
    assert all(said.values())
