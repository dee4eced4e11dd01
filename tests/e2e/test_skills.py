"""The skills that come with Andy, each found and used by the real CLI in a real container."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.messages_api import Say, ScriptedMessagesApi, UseTool, all_text, tool_names, tool_results
from tests.processes.andy import AndyProcess, until
from tests.support.pdfs import a_pdf
from tests.support.skips import only_in_soak

pytestmark = [pytest.mark.timeout(900), pytest.mark.docker]
CHART = {"kind": "bar", "title": "지출", "labels": ["월", "화"], "series": {"spent": [12, 7.5]}}
DRAW = (
    f"echo '{json.dumps(CHART)}' > chart.json; python3 /workspace/skills/skills/chart/draw.py chart.json"
    " chart.png; touch /workspace/skills/x 2>&1; ls /usr/share/fonts/truetype/nanum"
)
INSTALL = "pip --version && python3 -m venv /tmp/v && /tmp/v/bin/pip --version"


@pytest.fixture
def andy(tmp_path: Path, agent_image: str, api: ScriptedMessagesApi) -> Iterator[AndyProcess]:
    environment = {"ANTHROPIC_API_KEY": "sk-ant-api03-key", "ANTHROPIC_BASE_URL": api.url}
    with AndyProcess(tmp_path / "home", runtime="docker", agent="auto", environment=environment) as andy:
        yield andy


@only_in_soak
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


def test_a_pdf_is_read_and_a_week_looked_back_on_by_their_skills(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    attachments = andy.home / "groups" / "main" / "attachments"
    attachments.mkdir(parents=True)
    (attachments / "bill.pdf").write_bytes(a_pdf("Invoice 4711", "due on Friday"))
    api.then(
        UseTool("Skill", {"skill": "andy:summarise-pdf"}),
        UseTool("Bash", {"command": READ_PDF}),
        Say("Invoice 4711, due on Friday (p. 2)."),
    )
    assert andy.say("what is in the bill?")["reply"] == "Invoice 4711, due on Friday (p. 2)."
    _, told, read = api.turns
    assert "/workspace/skills/skills/summarise-pdf/pdf_text.py" in all_text(told)
    assert "2 pages; of 2 read" in json.dumps(tool_results(read))
    assert "--- page 2 ---\\ndue on Friday" in json.dumps(tool_results(read))

    before = len(api.turns)
    api.then(
        UseTool("Skill", {"skill": "andy:weekly-review"}),
        UseTool("mcp__dashboard__list_notifications"),
        UseTool("mcp__andy__list_tasks"),
        UseTool("mcp__andy__search_history", {"query": "bill"}),
        UseTool(
            "mcp__andy__schedule_task",
            {"prompt": "Do the weekly review", "schedule_type": "cron", "schedule_value": "0 18 * * 0"},
        ),
        Say("*Done* the bill was read."),
    )
    assert andy.say("do the weekly review, and every Sunday at six")["reply"] == "*Done* the bill was read."
    _, told, *answers = api.turns[before:]
    assert "Gather, and ask nobody" in all_text(told)
    failed = [one for turn in answers for one in tool_results(turn) if one.get("is_error")]
    assert failed == []
    assert "what is in the bill?" in json.dumps(tool_results(answers[2]))
    (task,) = andy.listed("tasks", "list")
    assert (task["prompt"], task["schedule_value"]) == ("Do the weekly review", "0 18 * * 0")


READ_PDF = "python3 /workspace/skills/skills/summarise-pdf/pdf_text.py attachments/bill.pdf"


def answers_of(andy: AndyProcess, turn: int) -> list:
    return andy.rows(f"SELECT 1 FROM usage WHERE turn_id = {turn}")
