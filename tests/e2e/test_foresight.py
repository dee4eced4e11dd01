"""A container that is started before the question answers it, makes room, and survives no host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.messages_api import Say, ScriptedMessagesApi, last_user_text
from tests.processes.andy import until
from tests.processes.killable_andy import MortalAndy

FAMILY = "family"


@pytest.fixture
def andy(tmp_path: Path, runtime: str, api: ScriptedMessagesApi) -> Iterator[MortalAndy]:
    environment = {
        "ANTHROPIC_API_KEY": "sk-ant-api03-any",
        "ANTHROPIC_BASE_URL": api.url,
        "MAX_CONCURRENT_CONTAINERS": "1",
    }
    with MortalAndy(tmp_path / "home", runtime=runtime, agent="auto", environment=environment) as andy:
        andy.register(FAMILY)
        yield andy


def opened(andy: MortalAndy, group: str) -> dict[str, Any]:
    """Open a group's chat, as `andy chat` does, and return its container once it is booted."""
    with andy.http() as http:
        http.post(f"/chat/{group}/opened").raise_for_status()
    until(lambda: "run.ready" in kinds(andy), what="a container has booted ahead")
    (container,) = andy.listed("status")["containers"]
    assert (container["group"], container["state"]) == (group, "ready")
    return dict(container)


def kinds(andy: MortalAndy) -> list[str]:
    with andy.http() as http:
        events = http.get("/events", params={"recent": "200", "follow": "false"}).text
    return [line.split('"kind":')[1].split('"')[1] for line in events.splitlines() if '"kind":' in line]


def test_a_container_started_ahead_answers_and_then_makes_room(
    andy: MortalAndy, api: ScriptedMessagesApi
) -> None:
    container = opened(andy, "main")
    assert "containers  0 of 1, 1 ready" in andy.cli("status").stdout
    assert not api.turns, "nobody has asked anything"

    api.then(Say("Here I am."))
    assert andy.say("are you there?")["reply"] == "Here I am."
    assert ["are you there?" in last_user_text(turn) for turn in api.turns] == [True]
    found = andy.listed("status")
    assert [one["run"] for one in found["containers"]] == [container["run"]], "it was the one that waited"
    assert found["foresight"]["hits"] == {"opened": 1}

    api.then(Say("Me too."))
    assert andy.say("and you?", group=FAMILY)["reply"] == "Me too.", "it takes the only slot over"


def test_a_killed_host_leaves_no_second_container_of_a_group(
    andy: MortalAndy, api: ScriptedMessagesApi
) -> None:
    before = opened(andy, "main")
    andy.kill()
    andy.start()
    assert andy.listed("status")["containers"] == []
    api.then(Say("Still here."))
    assert andy.say("are you there?")["reply"] == "Still here."
    (after,) = andy.listed("status")["containers"]
    assert after["run"] != before["run"]
    andy.check_no_leak()
    assert andy.rows("SELECT 1 FROM outbox WHERE text LIKE '%could not%'") == []
