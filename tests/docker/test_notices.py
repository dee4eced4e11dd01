"""What a hook bounds, in a real container: the agent image, its SDK and CLI, and a model that is scripted."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_runner.workspace import Workspace
from tests.doubles.messages_api import Say, ScriptedMessagesApi, Tokens, UseTool, last_user_text
from tests.processes.noticing_runner import (
    STUCK,
    ContainedRunner,
    a_notice,
    notices_blocks,
    whole_text,
    with_notices,
)
from tests.processes.runner import make_workspace, order_of

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]
HOOK_CHARS = 10_000


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return make_workspace(tmp_path / "workspace")


def test_thirty_thousand_characters_of_notices_stay_under_the_cap_of_a_hook(
    agent_image: str, workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    notices = [a_notice(number, f"N{number:02d} " + "x" * 1_900) for number in range(1, 17)]
    with ContainedRunner(agent_image, workspace, with_notices(order_of("go"), notices), api) as runner:
        first = {notice.id for notice in runner.told(1)}
        runner.ask(2, "more", *(notice for notice in notices if notice.id not in first))
        second = {notice.id for notice in runner.told(2)}
    assert first
    assert second
    assert not first & second
    blocks = [block for turn in api.turns for block in notices_blocks(turn)]
    assert blocks
    assert all(len(block) < HOOK_CHARS and "saved to" not in block for block in blocks)
    assert "N01" in whole_text(api.turns[0])


def test_a_hook_that_never_ends_costs_no_prompt_and_no_notice(
    agent_image: str, workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    order = with_notices(order_of("go"), [a_notice(5, "I wait")])
    with ContainedRunner(agent_image, workspace, order, api, more=STUCK) as runner:
        end = runner.ended(1)
        assert (end.error, end.told) == (None, ())
        runner.ask(2, "again", a_notice(5, "I wait"))
        assert [notice.id for notice in runner.told(2)] == [5]
    assert "UserPromptSubmit took too long" in runner.stderr
    assert [last_user_text(turn) for turn in api.turns] == ["go", "again"]


def test_compaction_loses_neither_what_waits_nor_what_was_just_told(
    agent_image: str, workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    full = UseTool("Bash", {"command": "true"}, tokens=Tokens(input_tokens=970_000))
    api.then(Say("hello"), full, UseTool("Read", {"file_path": "/etc/passwd"}), Say("done"))
    with ContainedRunner(agent_image, workspace, order_of("go"), api) as runner:
        runner.ended(1)
        runner.ask(2, "go on", a_notice(8, "still waiting", tool_name="Read"), a_notice(9, "just told"))
        told = {notice.id for notice in runner.told(2) if notice.id}
    assert told == {8, 9}
    after, last = api.turns[2], api.turns[-1]
    assert "hello" not in whole_text(after), "the conversation was compacted"
    assert whole_text(after).count("just told") == 1, "told again, for it went with the conversation"
    assert "still waiting" not in whole_text(after)
    assert "still waiting" in whole_text(last)
