"""What an agent fetches of the web through its group's proxy, over TLS as real pages are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from tests.doubles.messages_api import Say, ScriptedMessagesApi, UseTool, all_text, system_text, tool_results
from tests.processes.andy import AndyProcess, until
from tests.support.trusting_image import andy_in_a_small_internet

pytestmark = [pytest.mark.timeout(900), pytest.mark.docker]


@pytest.fixture
def andy(
    tmp_path: Path, agent_image: str, docker_client: docker.APIClient, api: ScriptedMessagesApi
) -> Iterator[AndyProcess]:
    with andy_in_a_small_internet(tmp_path, docker_client, agent_image, api) as andy:
        yield andy


def test_a_page_is_fetched_where_it_is_listed_and_elsewhere_the_agent_is_told_why_not(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    listed = json.dumps({"egress": {"allowlist": ["good.example:443"]}})
    assert andy.cli("groups", "config", "main", "--set", listed).returncode == 0
    api.then(
        UseTool("WebFetch", {"url": "https://good.example/", "prompt": "When is it open?"}),
        UseTool("WebFetch", {"url": "https://other.example/", "prompt": "What is there?"}),
        UseTool("Bash", {"command": "curl -sS https://good.example/"}),
        UseTool("Bash", {"command": "curl -sS https://other.example/ 2>&1; echo code $?"}),
        Say("From 9 to 5."),
    )
    assert andy.say("when is it open?")["reply"] == "From 9 to 5."
    asked, fetched, other, by_curl, other_by_curl = api.turns
    assert "good.example:443" in system_text(asked), "it is told which places it reaches"
    (page,) = [one for one in api.requests if one.kind == "side"]
    assert "Open from 9 to 5" in all_text(page), "the page has come, and a model reads it for the agent"
    assert "Scripted summary." in json.dumps(tool_results(fetched))
    assert "proxy refused the connection" in json.dumps(tool_results(other))
    assert "Open from 9 to 5" in json.dumps(tool_results(by_curl))
    assert "403" in json.dumps(tool_results(other_by_curl))
    until(lambda: "other.example:443" in places(andy, "egress.refused"), what="the refusal is written down")
    assert places(andy, "egress.connection") == {"good.example:443"}


def places(andy: AndyProcess, kind: str) -> set[str]:
    return {row["detail"]["target"] for row in andy.listed("audit") if row["kind"] == kind}
