"""What `andy image build --with browser --with node` puts into the image, used by an agent in it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from orchestrator.containers.image import build
from orchestrator.containers.image.context import ImageSources
from tests.doubles.messages_api import Say, ScriptedMessagesApi, UseTool, all_text, tool_results
from tests.processes.andy import AndyProcess, until
from tests.support.skips import ON_PURPOSE
from tests.support.trusting_image import andy_in_a_small_internet

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.docker,
    pytest.mark.skipif(
        not os.environ.get("TESTS_OF_LAYERS"),
        reason=f"{ON_PURPOSE}downloads Chromium and Node.js, 1.5 GB: `make soak`, or set TESTS_OF_LAYERS",
    ),
]
ROOT = Path(__file__).parents[2]
TAG = "andy-agent-test:layers"


@pytest.fixture
def andy(
    tmp_path: Path, agent_image: str, docker_client: docker.APIClient, api: ScriptedMessagesApi
) -> Iterator[AndyProcess]:
    if build.layers_of(docker_client, TAG) != ("browser", "node") or not build.is_current(
        docker_client, TAG, ROOT
    ):
        build.build(
            docker_client, tag=TAG, layers=("browser", "node"), sources=ImageSources.below(ROOT), say=print
        )
    with andy_in_a_small_internet(tmp_path, docker_client, TAG, api) as andy:
        yield andy


def test_a_page_is_opened_through_the_groups_proxy_alone_and_node_runs(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    listed = json.dumps({"egress": {"allowlist": ["good.example:443"]}})
    assert andy.cli("groups", "config", "main", "--set", listed).returncode == 0
    api.then(
        UseTool("Skill", {"skill": "browser:browser"}),
        UseTool("Bash", {"command": "browse text https://good.example/; browse links https://good.example/"}),
        UseTool("Bash", {"command": "browse shot https://good.example/ page.png; head -c 4 page.png"}),
        UseTool("Bash", {"command": "browse pdf https://good.example/ page.pdf; head -c 4 page.pdf"}),
        UseTool("Bash", {"command": "browse text https://other.example/; echo code $?"}),
        UseTool("Bash", {"command": "browse text http://good.example/; echo code $?"}),
        UseTool("Bash", {"command": BY_ITSELF}),
        UseTool("Bash", {"command": "node --version; npm --version; node -e 'console.log(6 * 7)'"}),
        Say("Done."),
    )
    assert andy.say("look at that page")["reply"] == "Done."
    told, text, shot, pdf, other, plain, by_itself, node = (
        json.dumps(tool_results(turn)) for turn in api.turns[1:]
    )
    assert "browse text URL" in told + all_text(api.turns[1])
    assert "Open from 9 to 5" in text
    assert "also on Sunday" in text, "its script has run"
    assert "Not loaded, for it is not on this group's list: " in text
    assert "elsewhere.example:443" in text
    assert "/times" in text
    assert "page.png: " in shot
    assert "PNG" in shot
    assert "%PDF" in pdf
    assert "other.example:443 is not on the list of places" in other
    assert "code 1" in other
    assert "the address has to begin with https://" in plain
    assert "ERR_" in by_itself, "without the proxy nothing is reached"
    assert "Open from" not in by_itself
    assert '"v' in node
    assert "42" in node

    # Of refusals for one reason in a row, the first is written down and the others are counted with it.
    until(lambda: places(andy, "egress.refused"), what="it is written down")
    assert "good.example:443" not in places(andy, "egress.refused")
    assert places(andy, "egress.connection") == {"good.example:443"}


BY_ITSELF = "env -u HTTPS_PROXY -u https_proxy browse text https://good.example/"


def places(andy: AndyProcess, kind: str) -> set[str]:
    return {row["detail"]["target"] for row in andy.listed("audit") if row["kind"] == kind}
