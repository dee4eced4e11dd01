"""A run that is started ahead of its first turn: the real SDK and CLI, only the model is scripted."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from agent_runner.wire.files import unique_name, write_whole
from agent_runner.wire.order import RestoreOrder, RunOrder, TurnOrder
from agent_runner.workspace import Workspace
from tests.doubles.messages_api import Say, ScriptedMessagesApi, all_text, last_user_text, system_text
from tests.processes.runner import PLAIN, RUN, RunnerProcess, order_of

pytestmark = pytest.mark.slow

AGAIN = "the CLI is started again"


def standby(workspace: Workspace, api: ScriptedMessagesApi, **terms: Any) -> RunnerProcess:
    """Return a runner that is started ahead of its first turn."""
    order = order_of("", turn=0, **terms).model_copy(update={"is_standby": True})
    environment = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "placeholder"}
    return RunnerProcess(workspace, order, environment=environment, command=PLAIN)


def ask(runner: RunnerProcess, order: RunOrder) -> None:
    """Give a runner its first turn with the terms of `order`, as the host does."""
    write_whole(runner.workspace.input / unique_name(), order.first_turn().to_json())


def cli_of(runner: RunnerProcess) -> int:
    """Return the process id of the CLI that runs now."""
    [cli] = [one for one in psutil.Process(runner.process.pid).children() if "claude" in one.name()]
    return cli.pid


def test_the_first_turn_is_asked_of_the_cli_that_has_booted(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    api.then(Say("Hello there"), Say("Once more"))
    with standby(workspace, api) as runner:
        ready = runner.wait_for("standby")
        assert ready.cpu_seconds > 0
        assert not api.turns, "nobody has asked anything"
        booted = cli_of(runner)
        ask(runner, order_of("hi", turn=7))
        runner.wait_for("turn_end", turn=7)
        assert cli_of(runner) == booted
        runner.ask(8, "and again")
        runner.wait_for("turn_end", turn=8)
    assert runner.results(7) == ["Hello there"]
    assert runner.results(8) == ["Once more"]
    assert [last_user_text(turn) for turn in api.turns] == ["hi", "and again"]
    assert AGAIN not in runner.stderr


def test_a_model_that_was_changed_meanwhile_is_the_one_that_is_asked(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    with standby(workspace, api, model="claude-haiku-4-5") as runner:
        runner.wait_for("standby")
        ask(runner, order_of("hi", model="claude-opus-5-5", timezone="Asia/Seoul"))
        assert runner.wait_for("turn_end").status == "success"
    assert [turn.body["model"] for turn in api.turns] == ["claude-opus-5-5"]
    assert "Asia/Seoul" in system_text(api.turns[0])
    assert AGAIN in runner.stderr


def test_the_memory_that_was_written_meanwhile_is_read(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    (workspace.group / "CLAUDE.md").write_text("This group is about bees.")
    with standby(workspace, api) as runner:
        runner.wait_for("standby")
        (workspace.group / "CLAUDE.md").write_text("This group is about wasps.")
        ask(runner, order_of("hi"))
        runner.wait_for("turn_end")
    assert "about wasps" in all_text(api.turns[0])
    assert "about bees" not in all_text(api.turns[0])


def test_the_session_that_is_current_by_then_is_resumed(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    with RunnerProcess(workspace, order_of("remember the bees"), environment=_environment(api)) as before:
        session = before.wait_for("turn_end").new_session_id
        before.close()
        assert before.exit_code() == 0
    (workspace.input / "_close").unlink()
    with standby(workspace, api) as runner:
        runner.wait_for("standby")
        restore = RestoreOrder(mode="resume")
        ask(runner, order_of("what was it?", turn=2, session_id=session, restore=restore))
        assert runner.wait_for("ack").restored == "resume"
        assert runner.wait_for("turn_end").new_session_id == session
    assert "remember the bees" in all_text(api.turns[-1])


def test_what_is_restored_is_decided_by_the_order_of_the_turn(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    with standby(workspace, api) as runner:
        runner.wait_for("standby")
        restore = RestoreOrder(mode="rehydrate", text="Earlier they spoke about wasps.")
        ask(runner, order_of("hi", restore=restore))
        assert runner.wait_for("ack").restored == "rehydrate"
        runner.wait_for("turn_end")
    assert "about wasps" in all_text(api.turns[0])
    assert AGAIN not in runner.stderr


def test_a_cli_that_died_while_it_waited_costs_nobody_an_answer(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    api.then(Say("Here"))
    with standby(workspace, api) as runner:
        runner.wait_for("standby")
        psutil.Process(cli_of(runner)).kill()
        ask(runner, order_of("hi"))
        end = runner.wait_for("turn_end")
        assert end.status == "success", (end, runner.stderr)
    assert runner.results(1) == ["Here"]


def test_a_session_that_is_gone_does_not_keep_a_run_from_getting_ready(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    gone = "0b9d1f3e-1111-4222-8333-444444444444"
    with standby(workspace, api, session_id=gone, restore=RestoreOrder(mode="resume")) as runner:
        runner.wait_for("standby")
        restore = RestoreOrder(mode="resume", fallback="Earlier they spoke about wasps.")
        ask(runner, order_of("hi", session_id=gone, restore=restore))
        assert runner.wait_for("turn_end").status == "success"
    assert [last_user_text(turn) for turn in api.turns] == ["hi"]
    assert "about wasps" in all_text(api.turns[0])


def test_a_run_that_was_started_in_vain_is_closed_like_any_other(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    with standby(workspace, api) as runner:
        runner.wait_for("standby")
        runner.close()
        assert runner.exit_code() == 0
    assert not api.turns
    assert [frame.kind for frame in runner.frames if frame.kind != "heartbeat"] == ["ready", "standby"]


def test_the_agent_without_a_model_waits_too(workspace: Workspace, api: ScriptedMessagesApi) -> None:
    with standby(workspace, api, agent="offline") as runner:
        runner.wait_for("standby")
        ask(runner, order_of("help", agent="offline"))
        assert runner.wait_for("turn_end").status == "success"
    assert not api.turns


def test_a_first_turn_carries_the_terms_and_no_secret_of_a_file_is_needed() -> None:
    order = order_of("hi", turn=3, model="claude-opus-5-5", session_id="s", is_main=True)
    sent = TurnOrder.parse(order.first_turn().to_json())
    assert (sent.run, sent.turn, sent.prompt) == (RUN, 3, "hi")
    waiting = order_of("", turn=0).model_copy(update={"is_standby": True})
    assert waiting.begun_by(sent) == order


def _environment(api: ScriptedMessagesApi) -> dict[str, str]:
    return {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "placeholder"}
