"""A skill of the owner's choice, found and used by the real CLI in a real container."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.messages_api import Say, ScriptedMessagesApi, UseTool, all_text, tool_names, tool_results
from tests.processes.andy import AndyProcess, until

pytestmark = [pytest.mark.timeout(900), pytest.mark.docker]
CHART = {"kind": "bar", "title": "지출", "labels": ["월", "화"], "series": {"spent": [12, 7.5]}}
DRAW = (
    f"echo '{json.dumps(CHART)}' > chart.json; python3 /workspace/skills/skills/chart/draw.py chart.json"
    " chart.png; touch /workspace/skills/x 2>&1; ls /usr/share/fonts/truetype/nanum"
)
INSTALL = "pip --version && python3 -m venv /tmp/v && /tmp/v/bin/pip --version"


@pytest.fixture
def api() -> Iterator[ScriptedMessagesApi]:
    with ScriptedMessagesApi() as api:
        yield api


@pytest.fixture
def andy(tmp_path: Path, agent_image: str, api: ScriptedMessagesApi) -> Iterator[AndyProcess]:
    environment = {"ANTHROPIC_API_KEY": "sk-ant-api03-key", "ANTHROPIC_BASE_URL": api.url}
    with AndyProcess(tmp_path / "home", runtime="docker", agent="auto", environment=environment) as andy:
        yield andy


def test_a_chart_is_drawn_by_its_skill_and_sent(andy: AndyProcess, api: ScriptedMessagesApi) -> None:
    api.then(
        UseTool("Skill", {"skill": "andy:chart"}),
        UseTool("Bash", {"command": DRAW}),
        UseTool("send_file", {"path": "chart.png", "caption": "Monday was dearer."}),
        UseTool("Bash", {"command": INSTALL}),
        Say("There it is."),
    )
    assert "There it is." in andy.say("draw what I spent")["reply"]
    asked, told, drawn, sent, installed = api.turns
    assert "Skill" in tool_names(asked)
    assert "andy:weekly-review" in all_text(asked), "the model is told of each by a line"
    assert "Draw a chart and send it" in all_text(told), "and of one whole when it asks"
    assert "/workspace/skills/skills/chart/draw.py" in all_text(told)
    seen = json.dumps(tool_results(drawn))
    assert "chart.png:" in seen
    assert "Read-only file system" in seen
    assert "NanumGothic.ttf" in seen
    assert "is on its way" in json.dumps(tool_results(sent))
    assert json.dumps(tool_results(installed)).count("site-packages/pip (python") == 2, tool_results(
        installed
    )

    subagent = {"description": "count", "prompt": "Count the files.", "subagent_type": "general-purpose"}
    api.then(UseTool("Task", subagent), Say("There are 7."), Say("Seven."))
    assert andy.say("how many files?")["reply"] == "Seven."
    (turn,) = andy.rows("SELECT max(id) AS id FROM turns")
    until(lambda: len(answers_of(andy, turn["id"])) == 3, what="all of it is the turn's")
    assert "Count the files." in all_text(api.turns[-2])
    assert "Task" not in tool_names(api.turns[-2]), "a subagent starts none"


def answers_of(andy: AndyProcess, turn: int) -> list:
    return andy.rows(f"SELECT 1 FROM usage WHERE turn_id = {turn}")
