"""How a runner goes on with a conversation: the real SDK and CLI, and what a scripted model is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_runner.wire.frames import Frame
from agent_runner.wire.mailbox import Remember
from agent_runner.wire.order import RestoreOrder
from agent_runner.workspace import Workspace
from tests.doubles.messages_api import Fail, Hang, Say, ScriptedMessagesApi, Tokens, UseTool, all_text
from tests.processes.runner import RunnerProcess, order_of

pytestmark = pytest.mark.slow

GONE = "0b9d1f3e-1111-4222-8333-444444444444"


def run(workspace: Workspace, api: ScriptedMessagesApi, prompt: str, **more: object) -> RunnerProcess:
    environment = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "placeholder"}
    (workspace.input / "_close").unlink(missing_ok=True)
    return RunnerProcess(workspace, order_of(prompt, **more), environment=environment)


def answered(
    workspace: Workspace, api: ScriptedMessagesApi, prompt: str, *, turn: int = 1, **more: object
) -> tuple[Frame, Frame]:
    """Have one prompt answered in a process of its own; return its ack and its end."""
    with run(workspace, api, prompt, turn=turn, **more) as runner:
        end = runner.wait_for("turn_end", turn=turn)
        runner.close()
        assert runner.exit_code() == 0
        assert end.status == "success"
        return runner.wait_for("ack"), end


def transcript(workspace: Workspace, session: str) -> Path:
    (path,) = workspace.root.glob(f"home/.claude/projects/*/{session}.jsonl")
    return path


def test_what_is_restored_is_put_before_the_model_once(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    restore = RestoreOrder(mode="rehydrate", text="KEPT: the bees are blue", fallback="not this")
    with run(workspace, api, "hi", restore=restore) as runner:
        runner.wait_for("turn_end", turn=1)
        runner.ask(2, "and now?")
        runner.wait_for("turn_end", turn=2)
        ack = runner.wait_for("ack", turn=1)
    assert ack.restored == "rehydrate"
    assert [all_text(turn).count("KEPT: the bees are blue") for turn in api.turns] == [1, 1]
    assert "not this" not in all_text(api.turns[-1])


def test_a_fresh_conversation_is_told_nothing(workspace: Workspace, api: ScriptedMessagesApi) -> None:
    ack, _ = answered(workspace, api, "hi", restore=RestoreOrder(meta="PLAN: none"))
    assert ack.restored == "fresh"
    assert "PLAN: none" not in all_text(api.turns[0])


@pytest.mark.parametrize(
    ("fallback", "mode"), [("KEPT: the bees are blue", "rehydrate"), (None, "fresh")], ids=str
)
def test_what_was_kept_goes_with_the_prompt_when_the_session_is_gone(
    workspace: Workspace, api: ScriptedMessagesApi, fallback: str | None, mode: str
) -> None:
    restore = RestoreOrder(mode="resume_plus_delta", text="DELTA", fallback=fallback, resume_at=GONE)
    ack, end = answered(workspace, api, "what colour?", session_id=GONE, restore=restore)
    assert (ack.restored, end.restored) == (mode, mode)
    assert end.new_session_id != GONE
    (asked,) = api.turns
    assert all_text(asked).count("what colour?") == 1
    assert all_text(asked).count("KEPT") == (1 if fallback else 0)
    assert "DELTA" not in all_text(asked)


def test_a_session_goes_on_after_its_checkpoint_as_if_no_more_had_been_said(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    api.then(Say("Noted."), UseTool("Bash", {"command": "echo looking"}), Hang())
    _, end = answered(workspace, api, "blue is my colour")
    session = end.new_session_id
    assert session
    assert f'"uuid":"{end.checkpoint}"' in transcript(workspace, session).read_text()
    with run(workspace, api, "what is it?", turn=2, session_id=session):
        api.wait_for_turns(3)
    api.release()
    api.then(Say("Blue."), Say("As I said."))
    restore = RestoreOrder(mode="resume", resume_at=end.checkpoint)
    _, again = answered(workspace, api, "what is it?", turn=2, session_id=session, restore=restore)
    assert again.new_session_id == session
    asked = all_text(api.turns[3])
    assert [asked.count(text) for text in ("blue is my colour", "what is it?")] == [1, 1]
    assert "looking" not in json.dumps(api.turns[3].body["messages"])
    answered(workspace, api, "sure?", turn=3, session_id=session, restore=RestoreOrder(mode="resume"))
    asked = all_text(api.turns[4])
    assert [asked.count(text) for text in ("blue is my colour", "what is it?", "sure?")] == [1, 1, 1]


def test_a_checkpoint_that_is_not_in_the_session_costs_no_answer(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    _, end = answered(workspace, api, "blue is my colour")
    restore = RestoreOrder(mode="resume", fallback="KEPT: blue", resume_at=GONE)
    session = end.new_session_id
    ack, again = answered(workspace, api, "what is it?", session_id=session, restore=restore)
    assert ack.restored == "rehydrate"
    assert again.new_session_id != session
    assert all_text(api.turns[-1]).count("KEPT: blue") == 1


def test_a_turn_that_fails_has_no_checkpoint(workspace: Workspace, api: ScriptedMessagesApi) -> None:
    api.then(Fail(403, "permission_error", "no"))
    with run(workspace, api, "hi") as runner:
        end = runner.wait_for("turn_end")
    assert (end.status, end.checkpoint) == ("error", None)


def test_the_context_is_what_the_last_call_of_the_model_was_given(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    first = Tokens(input_tokens=100, cache_creation_input_tokens=1_000)
    last = Tokens(input_tokens=7, cache_read_input_tokens=1_200, cache_creation_input_tokens=30)
    api.then(UseTool("Bash", {"command": "true"}, tokens=first), Say("Done.", tokens=last))
    with run(workspace, api, "do it") as runner:
        usage = runner.wait_for("usage")
    assert usage.input_tokens == 107, "what was used is the sum"
    assert usage.context_tokens == 1_237
    assert usage.context_window >= 200_000


def test_what_a_conversation_stands_on_is_put_back_when_it_is_compacted(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    full = Tokens(input_tokens=990_000)
    api.then(Say("The bees are fine.", tokens=full), Say("Still fine."), Say("Yes."))
    restore = RestoreOrder(meta="PLAN: the old one")
    with run(workspace, api, "How are the bees?", restore=restore) as runner:
        first = runner.wait_for("turn_end", turn=1)
        runner.ask(2, "And now?")
        compacting = runner.request(workspace.tasks)
        assert isinstance(compacting, Remember)
        assert compacting.tool == "compacting"
        runner.reply(compacting, "kept", data={"meta": "PLAN: save the bees"})
        compacted = runner.request(workspace.tasks)
        assert isinstance(compacted, Remember)
        assert "Scripted summary." in compacted.arguments["summary"]
        runner.reply(compacted, "kept")
        second = runner.wait_for("turn_end", turn=2)
        session = second.new_session_id
        runner.close()
        assert runner.exit_code() == 0
    assert all_text(api.turns[1]).count("PLAN: save the bees") == 1
    assert "the old one" not in all_text(api.turns[1])
    assert second.checkpoint != first.checkpoint
    answered(workspace, api, "sure?", turn=3, session_id=session, restore=RestoreOrder(mode="resume"))
    assert all_text(api.turns[2]).count("PLAN: save the bees") == 1


def test_a_silent_host_keeps_no_conversation_from_being_compacted(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    api.then(Say("Fine.", tokens=Tokens(input_tokens=990_000)), Say("Still fine."))
    with run(workspace, api, "How are the bees?", restore=RestoreOrder(meta="PLAN: save them")) as runner:
        runner.wait_for("turn_end", turn=1)
        runner.ask(2, "And now?")
        runner.wait_for("turn_end", turn=2)
    assert all_text(api.turns[1]).count("PLAN: save them") == 1
