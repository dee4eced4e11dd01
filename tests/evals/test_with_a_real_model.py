"""`make eval`: a real model is asked each dialogue of the table. It costs some cents and needs a key."""

from __future__ import annotations

import os

import pytest

from agent_runner.workspace import Workspace
from tests.evals.dialogues import Dialogue, hold, mistakes, read_dialogues
from tests.support.dashboard_harness import DashboardHarness
from tests.support.skips import ON_PURPOSE

KEYS = ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN", "ANTHROPIC_AUTH_TOKEN")
PASSED_ON = (*KEYS, "ANTHROPIC_BASE_URL")
DIALOGUES = read_dialogues()

if not os.environ.get("ANDY_EVAL"):
    pytest.skip(
        f"{ON_PURPOSE}{len(DIALOGUES)} dialogues for a real model: 'make eval'", allow_module_level=True
    )
if not any(os.environ.get(name) for name in KEYS):
    pytest.skip(
        f"no model was asked any of {len(DIALOGUES)} dialogues: set {KEYS[0]}", allow_module_level=True
    )


@pytest.mark.parametrize("dialogue", DIALOGUES, ids=lambda dialogue: dialogue.name)
async def test_a_model_calls_the_tools_that_are_expected(
    dialogue: Dialogue, home: DashboardHarness, workspace: Workspace
) -> None:
    await home.harness.add_group("family", is_main=dialogue.is_main)
    environment = {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}
    done = await hold(
        dialogue, home, workspace, environment=environment, model=os.environ.get("EVAL_MODEL") or None
    )
    assert mistakes(dialogue, done) == [], done
