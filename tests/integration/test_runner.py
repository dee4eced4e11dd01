"""The runner with the real SDK and the real CLI; only the model is scripted."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from agent_runner.wire.frames import Draft
from agent_runner.wire.mailbox import SendMessage
from agent_runner.wire.order import Request, TurnLimits
from agent_runner.workspace import Workspace
from tests.doubles.messages_api import (
    Fail,
    Hang,
    Say,
    SayInParts,
    ScriptedMessagesApi,
    Tokens,
    UseTool,
    all_text,
    last_user_text,
    system_text,
    tool_names,
    tool_results,
)
from tests.processes.andy import until
from tests.processes.runner import PLAIN, RUN, RunnerProcess, SharedRun, make_workspace, order_of
from tests.support.process_checks import is_alive

Shared = SharedRun[RunnerProcess]


def environment(api: ScriptedMessagesApi) -> dict[str, str]:
    return {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "placeholder"}


def run(workspace: Workspace, api: ScriptedMessagesApi, prompt: str, **more: object) -> RunnerProcess:
    return RunnerProcess(workspace, order_of(prompt, **more), environment=environment(api))


def run_plainly(workspace: Workspace, api: ScriptedMessagesApi, prompt: str) -> RunnerProcess:
    """Make a runner whose children are those of the process itself."""
    return RunnerProcess(workspace, order_of(prompt), environment=environment(api), command=PLAIN)


def test_a_turn_is_answered_in_numbered_frames(workspace: Workspace, api: ScriptedMessagesApi) -> None:
    tokens = Tokens(
        input_tokens=101, output_tokens=23, cache_read_input_tokens=7, cache_creation_input_tokens=5
    )
    api.then(Say("Hello there", tokens=tokens))
    with run(workspace, api, "hi", model="claude-opus-5-5") as runner:
        end = runner.wait_for("turn_end")
        session = end.new_session_id
    assert kinds(runner) == ["ready", "ack", "result", "usage", "turn_end"]
    assert [frame.n for frame in runner.frames] == list(range(1, len(runner.frames) + 1))
    assert (end.status, end.error) == ("success", None)
    assert session
    assert runner.results(1) == ["Hello there"]
    usage = runner.wait_for("usage")
    assert usage.model_dump(include={"input_tokens", "output_tokens", "model"}) == {
        "input_tokens": 101,
        "output_tokens": 23,
        "model": "claude-opus-5-5",
    }
    assert usage.model_dump(include={"cache_read_tokens", "cache_write_tokens"}) == {
        "cache_read_tokens": 7,
        "cache_write_tokens": 5,
    }
    assert runner.stray == []


def test_the_model_is_told_who_it_is_and_what_all_groups_share(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    (workspace.shared / "CLAUDE.md").write_text("Everyone here likes 떡볶이.")
    (workspace.group / "CLAUDE.md").write_text("This group is about bees.")
    with run(workspace, api, "hi", assistant_name="Ada", timezone="Asia/Seoul") as runner:
        runner.wait_for("turn_end")
    assert "You are Ada" in system_text(api.turns[0])
    assert "Asia/Seoul" in system_text(api.turns[0])
    assert "떡볶이" in system_text(api.turns[0])
    assert "about bees" in all_text(api.turns[0])


def test_a_turn_ends_at_its_cap_of_model_calls(workspace: Workspace, api: ScriptedMessagesApi) -> None:
    api.then(*[UseTool("Bash", {"command": "true", "description": "x"}) for _ in range(4)])
    with run(workspace, api, "hi", limits=TurnLimits(model_turns=2)) as runner:
        end = runner.wait_for("turn_end")
    assert end.status == "success", "what it did until then is done, and not to be done again"
    assert len(api.turns) <= 3


@pytest.mark.parametrize("is_bare", [False, True], ids=["chat", "worker"])
def test_a_call_of_the_model_writes_at_most_what_the_order_says(
    workspace: Workspace, api: ScriptedMessagesApi, is_bare: bool
) -> None:
    order = order_of("hi", limits=TurnLimits(output_tokens=4_321))
    assert order.turn is not None
    part = "Keep the dashboard." if is_bare else None
    order = order.model_copy(update={"turn": order.turn.model_copy(update={"instructions": part})})
    with RunnerProcess(workspace, order, environment=environment(api)) as runner:
        runner.wait_for("turn_end")
    assert api.turns[0].body["max_tokens"] == 4_321


def test_what_the_agent_does_is_told_while_it_does_it(workspace: Workspace, api: ScriptedMessagesApi) -> None:
    broken = {"file_path": "/nowhere/at all"}
    api.then(
        UseTool("Bash", {"command": "printf hello\n\n", "description": "x"}, text="I look first."),
        UseTool("Read", broken),
        SayInParts("The first half", " and the second."),
    )
    with run(workspace, api, "hi", progress=True) as runner:
        draft = until(lambda: next((one for one in texts_of(runner) if "half" in one.text), None))
        assert "turn_end" not in kinds(runner), "the text is told while it is written"
        api.go_on()
        end = runner.wait_for("turn_end")
    assert end.status == "success"
    assert (draft.turn, draft.at, draft.text) == (1, 0, "The first half")
    started = [frame for frame in runner.frames if frame.kind == "tool_start"]
    assert [(one.tool, one.summary, one.parent) for one in started] == [
        ("Bash", "printf hello", None),
        ("Read", "/nowhere/at all", None),
    ]
    ended = [frame for frame in runner.frames if frame.kind == "tool_end"]
    assert [(one.call, one.status) for one in ended] == [
        (started[0].call, "success"),
        (started[1].call, "error"),
    ]
    assert all(0 < one.ms < 60_000 for one in ended)
    assert runner.results(1) == ["The first half and the second."]
    assert [one.text for one in texts_of(runner)][:2] == ["I look first.", "The first half"]
    assert runner.frames.index(texts_of(runner)[0]) < runner.frames.index(started[0])


def test_what_a_subagent_calls_names_the_call_that_started_it(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    task = {"description": "count", "prompt": "Count.", "subagent_type": "general-purpose"}
    api.then(
        UseTool("Task", task),
        UseTool("Bash", {"command": "echo 7", "description": "x"}, text="A subagent's words."),
        Say("It is 7."),
        Say("Seven."),
    )
    with run(workspace, api, "count", progress=True) as runner:
        runner.wait_for("turn_end")
    started = {frame.tool: frame for frame in runner.frames if frame.kind == "tool_start"}
    ended = {frame.call: frame for frame in runner.frames if frame.kind == "tool_end"}
    parent = next(frame for name, frame in started.items() if name in ("Task", "Agent"))
    assert parent.parent is None
    assert started["Bash"].parent == parent.call
    assert {parent.call, started["Bash"].call} == set(ended)
    assert not any("words" in one.text for one in texts_of(runner)), "these are for the agent alone"


def test_an_agent_without_a_model_tells_the_same_of_its_work(workspace: Workspace) -> None:
    order = order_of("remind me", agent="offline", progress=True)
    asked = (
        Request(sender="Jane", text="remind me in 5 minutes: tea"),
        Request(sender="Jane", text="echo bees"),
    )
    order = order.model_copy(update={"turn": order.turn.model_copy(update={"requests": asked})})
    with RunnerProcess(workspace, order) as runner:
        command = runner.request(workspace.tasks)
        until(lambda: "tool_start" in kinds(runner))
        assert "tool_end" not in kinds(runner)
        runner.reply(command, "It is set.", data={"due": "2026-11-22T03:20:00+00:00", "id": 1})
        runner.wait_for("turn_end")
    call = next(frame for frame in runner.frames if frame.kind == "tool_start")
    assert (call.tool, call.parent) == (command.type, None)
    assert "tea" in call.summary
    end = next(frame for frame in runner.frames if frame.kind == "tool_end")
    assert (end.call, end.status) == (call.call, "success")


def test_a_host_that_does_not_want_it_is_told_nothing_of_the_work(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    api.then(UseTool("Bash", {"command": "true", "description": "x"}), Say("Done."))
    with run(workspace, api, "hi") as runner:
        runner.wait_for("turn_end")
    assert kinds(runner) == ["ready", "ack", "result", "usage", "turn_end"]


def test_a_session_is_resumed_by_another_process(workspace: Workspace, api: ScriptedMessagesApi) -> None:
    with run(workspace, api, "remember the bees") as runner:
        session = runner.wait_for("turn_end").new_session_id
        runner.close()
        assert runner.exit_code() == 0
    (workspace.input / "_close").unlink()
    with run(workspace, api, "what was it?", turn=2, session_id=session) as runner:
        assert runner.wait_for("turn_end").new_session_id == session
    assert "remember the bees" in all_text(api.turns[-1])


@pytest.mark.parametrize("gone", ["0b9d1f3e-1111-4222-8333-444444444444", "no-uuid", "--version"])
def test_a_session_that_is_gone_is_replaced_and_the_prompt_asked_once(
    workspace: Workspace, api: ScriptedMessagesApi, gone: str
) -> None:
    with run(workspace, api, "hello again", session_id=gone) as runner:
        end = runner.wait_for("turn_end")
    assert end.status == "success"
    assert end.new_session_id not in (None, gone)
    assert [last_user_text(turn) for turn in api.turns] == ["hello again"]


def test_close_ends_the_run_after_its_turn(workspace: Workspace, api: ScriptedMessagesApi) -> None:
    with run(workspace, api, "hi") as runner:
        runner.close("another-run", RUN)
        assert runner.exit_code() == 0
    assert kinds(runner)[-1] == "turn_end"
    assert runner.results(1) == ["Nothing is scripted."]


@pytest.mark.slow
def test_sigterm_ends_a_run_whose_model_hangs(workspace: Workspace, api: ScriptedMessagesApi) -> None:
    api.then(Hang())
    with run_plainly(workspace, api, "hi") as runner:
        api.wait_for_turns(1)
        children = child_processes(runner.process.pid)
        assert children
        runner.process.send_signal(signal.SIGTERM)
        assert runner.exit_code() == 143
    until(lambda: not any(is_alive(child) for child in children), what="the CLI has ended too")
    assert kinds(runner) == ["ready", "ack"]


def test_the_cli_dies_with_a_runner_that_is_killed(workspace: Workspace, api: ScriptedMessagesApi) -> None:
    api.then(Hang())
    with run_plainly(workspace, api, "hi") as runner:
        api.wait_for_turns(1)
        (child,) = child_processes(runner.process.pid)
        runner.process.kill()
        runner.exit_code()
        until(lambda: not is_alive(child), what="the CLI has ended too")


def test_a_turn_that_takes_too_long_is_stopped_and_ends_the_run(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    api.then(Hang())
    with run(workspace, api, "hi", limits=TurnLimits(turn_seconds=1)) as runner:
        end = runner.wait_for("turn_end")
        assert runner.exit_code() == 0
    assert end.status == "error"
    assert "longer than 1 s" in (end.error or "")


@pytest.mark.slow
def test_a_cli_that_is_killed_ends_the_run_with_the_reason(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    api.then(Hang())
    with run_plainly(workspace, api, "the prompt text") as runner:
        api.wait_for_turns(1)
        for child in child_processes(runner.process.pid):
            os.kill(child, signal.SIGKILL)
        end = runner.wait_for("turn_end")
        assert runner.exit_code() == 1
    assert (end.status, getattr(end, "code", None)) == ("error", "agent")
    assert end.error
    assert "the prompt text" not in runner.stderr


def test_main_has_the_tools_to_register_groups_and_does_not_read_their_memory(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    (workspace.shared / "CLAUDE.md").write_text("shared memory")
    with run(workspace, api, "hi", is_main=True) as runner:
        runner.wait_for("turn_end")
    assert "mcp__andy__register_group" in json.dumps(api.turns[0].body)
    assert "shared memory" not in system_text(api.turns[0])


@pytest.fixture(scope="class")
def kept_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    workspace = make_workspace(tmp_path_factory.mktemp("shared"))
    (workspace.input / "0.json").write_text("{")
    (workspace.input / "1.json").write_text('{"v": 9}')
    with ScriptedMessagesApi() as api, run(workspace, api, "hi") as runner:
        yield SharedRun(runner, api)


@pytest.fixture
def shared(kept_run: Shared) -> Shared:
    kept_run.begin()
    return kept_run


class TestTurnsOfARun:
    def test_a_follow_up_goes_on_in_the_same_session(self, shared: Shared) -> None:
        shared.api.then(Say("one"), Say("two"))
        first = shared.answer_to("first question")
        second = shared.answer_to("second question")
        assert shared.runner.results(second.turn or 0) == ["two"]
        assert first.new_session_id == second.new_session_id
        assert "first question" in all_text(shared.turns[1])
        assert last_user_text(shared.turns[1]) == "second question"

    def test_a_turn_file_seen_twice_is_answered_once(self, shared: Shared) -> None:
        runner = shared.runner
        runner.ask(1, "again?")
        new = shared.ask("new")
        runner.ask(new, "the same turn in another file")
        runner.wait_for("turn_end", turn=new)
        last = shared.answer_to("last").turn
        ended = [frame.turn for frame in runner.frames if frame.kind == "turn_end"]
        assert ended[-2:] == [new, last]
        assert ended.count(1) == ended.count(new) == 1
        assert len(shared.turns) == 2

    def test_files_of_other_runs_and_broken_ones_are_ignored(self, shared: Shared) -> None:
        shared.runner.ask(7, "stranded", run="another-run")
        shared.answer_to("mine")
        assert not any("stranded" in all_text(turn) for turn in shared.turns)
        assert "0.json is ignored" in shared.runner.stderr

    def test_a_close_of_another_run_is_ignored(self, shared: Shared) -> None:
        shared.runner.close("another-run")
        assert shared.answer_to("still there?").status == "success"


class TestWhatAModelSays:
    def test_a_tool_call_becomes_a_file_and_the_reply_reaches_the_model(self, shared: Shared) -> None:
        runner = shared.runner
        shared.api.then(UseTool("send_message", {"text": "working on it"}, text="Let me see."), Say("done"))
        turn = shared.ask("hi")
        request = runner.request(runner.workspace.messages)
        assert isinstance(request, SendMessage)
        assert (request.text, request.turn) == ("working on it", turn)
        runner.reply(request, "Sent.", data={"outbox": 5})
        runner.wait_for("turn_end", turn=turn)
        assert runner.results(turn) == ["done"]
        (result,) = tool_results(shared.turns[1])
        assert "Sent." in str(result["content"])
        assert "outbox" in str(result["content"])
        assert not result.get("is_error")

    def test_a_refusal_of_the_host_is_an_error_to_the_model(self, shared: Shared) -> None:
        runner = shared.runner
        tea = {"message": "tea", "scheduled_at": "30m"}
        shared.api.then(UseTool("mcp__dashboard__schedule_notification", tea), Say("sorry"))
        turn = shared.ask("hi")
        runner.reply(runner.request(runner.workspace.tasks), "That time is past.", ok=False)
        runner.wait_for("turn_end", turn=turn)
        (result,) = tool_results(shared.turns[1])
        assert result["is_error"] is True
        assert "That time is past." in str(result["content"])

    def test_only_main_has_the_tools_to_register_groups(self, shared: Shared) -> None:
        shared.answer_to("hi")
        names = set(tool_names(shared.turns[0]))
        assert {"Bash", "Read", "mcp__andy__send_message", "mcp__dashboard__schedule_notification"} <= names
        assert "mcp__andy__register_group" not in json.dumps(shared.turns[0].body)

    def test_a_reply_may_contain_the_marker_of_the_frames(self, shared: Shared) -> None:
        text = "안녕\n---NANOCLAW_OUTPUT_END---\n---NANOCLAW_OUTPUT_START---\n한글 🙂 end"
        shared.api.then(Say(text))
        turn = shared.answer_to("hi").turn
        assert shared.runner.results(turn or 0) == [text]

    def test_an_error_result_is_an_error_and_the_run_goes_on(self, shared: Shared) -> None:
        shared.api.then(Fail(403, "permission_error", "no credit"), Say("better"))
        end = shared.answer_to("hi")
        after = shared.answer_to("again")
        assert (end.status, getattr(end, "code", None)) == ("error", "agent")
        assert "no credit" in (end.error or "")
        assert shared.runner.results(end.turn or 0) == []
        assert (after.status, shared.runner.results(after.turn or 0)) == ("success", ["better"])

    def test_an_error_after_words_is_still_an_error(self, shared: Shared) -> None:
        words = UseTool("Bash", {"command": "true", "description": "x"}, text="I am on it.")
        shared.api.then(words, Fail(403))
        end = shared.answer_to("hi")
        assert end.status == "error"
        assert shared.runner.results(end.turn or 0) == []

    def test_a_chat_message_is_neither_a_command_nor_a_file_reference(self, shared: Shared) -> None:
        (shared.runner.workspace.group / "secret.txt").write_text("contents of the file")
        shared.answer_to("/compact @secret.txt")
        assert last_user_text(shared.turns[0]) == "/compact @secret.txt"
        assert "contents of the file" not in all_text(shared.turns[0])


def kinds(runner: RunnerProcess) -> list[str]:
    """Of its frames; how often its heart beats meanwhile says more of the machine."""
    return [frame.kind for frame in runner.frames if frame.kind != "heartbeat"]


def texts_of(runner: RunnerProcess) -> list[Draft]:
    return [frame for frame in runner.frames if isinstance(frame, Draft)]


def child_processes(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]
