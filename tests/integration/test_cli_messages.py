"""Reading messages of the Claude CLI that a later release, or a strange model service, may send."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import claude_agent_sdk as sdk
import pytest
from claude_agent_sdk._internal.message_parser import parse_message

from agent_runner.agents.claude.restore import RestoreHooks
from agent_runner.agents.claude.sdk_client import PromptOutcome, ask, outcome_of
from agent_runner.ans.lazy_notices import LazyNotices
from agent_runner.ans.sdk_stream import SdkStreamEvents
from agent_runner.ipc_client import HostClient
from agent_runner.progress import TurnProgress
from agent_runner.wire.frames import ToolStart, Usage
from agent_runner.wire.mailbox import Command, Reply
from agent_runner.wire.order import RestoreOrder
from agent_runner.workspace import Workspace
from tests.processes.runner import order_of
from tests.unit.test_turn_progress import Outlet

ODD_USAGE = {
    "input_tokens": -5,
    "output_tokens": "many",
    "cache_read_input_tokens": float("inf"),
    "cache_creation_input_tokens": 2**70,
}


def result(**fields: Any) -> dict[str, Any]:
    return {
        "type": "result",
        "subtype": "success",
        "duration_ms": 1,
        "duration_api_ms": 1,
        "is_error": False,
        "num_turns": 1,
        "session_id": "s",
        "result": "Done.",
        **fields,
    }


def said(*blocks: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "assistant", "message": {"content": list(blocks), "model": "m", **fields}}


class Client:
    """In place of the SDK's client: its CLI sends these messages."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = list(messages)

    async def query(self, prompt: Any) -> None:
        del prompt

    async def receive_messages(self) -> AsyncIterator[sdk.Message]:
        while self.messages:
            if (message := parse_message(self.messages.pop(0))) is not None:
                yield message


def stream_to(outlet: Outlet) -> SdkStreamEvents:
    progress = TurnProgress(outlet)
    progress.begin_turn(1)
    return SdkStreamEvents(LazyNotices(order_of("hi"), Workspace(Path("/nowhere"))), progress)


async def outcome_after(*messages: dict[str, Any]) -> PromptOutcome:
    """The outcome of a prompt after which the CLI sends these messages."""
    sessions: list[str] = []
    return await ask(cast("Any", Client(*messages)), "hi", sessions.append, stream_to(Outlet()))


async def test_figures_that_are_no_numbers_of_tokens_do_not_fail_an_answered_turn() -> None:
    models = {"a" * 150: {"contextWindow": "large"}, "b" * 150: None, "c": {"contextWindow": -1}}
    outcome = outcome_of(
        await outcome_after(
            said({"type": "text", "text": "Done."}, usage=ODD_USAGE),
            {"type": "system", "subtype": "compact_boundary", "compact_metadata": ["post_tokens"]},
            {"type": "system", "subtype": "informational", "prompt_submit_outcome": "kept"},
            result(usage=ODD_USAGE, modelUsage=models),
        )
    )
    assert outcome.error is None
    assert outcome.usage is not None
    frame = Usage(n=1, turn=1, **asdict(outcome.usage))
    assert (frame.input_tokens, frame.output_tokens, frame.context_tokens, frame.context_window) == (0,) * 4


@pytest.mark.parametrize(("usage", "models"), [([1], ["m"]), ("none", "m"), (7, {"m": 3})])
async def test_figures_of_another_form_do_not_fail_an_answered_turn(usage: Any, models: Any) -> None:
    prompt_outcome = await outcome_after(said(usage=usage), result(usage=usage, modelUsage=models))
    assert outcome_of(prompt_outcome).error is None


@pytest.mark.parametrize("errors", [[{"message": "overloaded"}], [None, "overloaded"], "overloaded"])
async def test_the_reason_of_a_failure_is_said_in_whatever_form_it_comes(errors: Any) -> None:
    failed = result(is_error=True, subtype="error_during_execution", errors=errors, result="overloaded")
    assert "overloaded" in str(outcome_of(await outcome_after(failed)).error)


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "assistant", "message": {"content": "words", "model": "m"}},
        said({"type": "thinking", "thinking": "hm"}),
        said({"kind": "text"}),
        {"type": "system", "subtype": "task_notification", "task_id": "t"},
        {"type": "rate_limit_event", "uuid": "u"},
        {"type": "no kind that is known"},
        {"type": "system", "subtype": "init"},
    ],
)
async def test_a_message_that_cannot_be_read_is_left_out(odd: dict[str, Any]) -> None:
    outcome = await outcome_after(odd, said({"type": "text", "text": "Done."}), result())
    assert outcome.result is not None
    assert outcome.result.result == "Done."


async def test_a_result_that_cannot_be_read_fails_the_turn_instead_of_being_waited_for() -> None:
    with pytest.raises(sdk.ClaudeSDKError, match="num_turns"):
        await outcome_after({key: value for key, value in result().items() if key != "num_turns"})


@pytest.mark.parametrize("arguments", [["a", "list"], None, "a text", 7])
async def test_a_call_with_any_input_is_reported(arguments: Any) -> None:
    outlet = Outlet()
    noticing = LazyNotices(order_of("hi"), Workspace(Path("/nowhere")))
    await noticing.load()
    progress = TurnProgress(outlet)
    progress.begin_turn(1)
    stream = SdkStreamEvents(noticing, progress)
    call = {"type": "tool_use", "id": "c1", "name": "Bash", "input": arguments}
    message = parse_message(said(call, usage=ODD_USAGE))
    assert message is not None

    stream.process_message(message)

    assert [frame.tool for frame in outlet.frames if isinstance(frame, ToolStart)] == ["Bash"]


async def test_an_event_that_cannot_be_reported_fails_no_turn_and_no_later_notice() -> None:
    noticing = LazyNotices(order_of("hi"), Workspace(Path("/nowhere")))

    def break_off(_: Any) -> None:
        raise KeyError("a field of a later release")

    reported: list[str] = []
    noticing.do(break_off)
    noticing.do(lambda _: reported.append("before loading"))
    await noticing.load()
    noticing.do(break_off)
    noticing.do(lambda _: reported.append("after loading"))

    assert reported == ["before loading", "after loading"]


class Writing(HostClient):
    """The host, which gets each request as its file has it."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    async def ask(self, command: Command) -> Reply:
        self.requests.append(command.to_json())
        return Reply(request_id="r", ok=True, code="ok", text="")


async def test_a_summary_that_ends_in_half_a_character_reaches_the_host() -> None:
    host = Writing()
    (after_compaction,) = RestoreHooks(RestoreOrder(), host).hooks()["PostCompact"]

    await after_compaction({"compact_summary": "the bees are blue \ud83d"}, None, None)

    assert "the bees are blue ?" in host.requests[0]


def test_a_prompt_that_the_cli_dropped_stays_so_whatever_else_it_says():
    outcome = PromptOutcome()
    for verdict in ({"prompt_submit_outcome": {"kind": "no_verdict"}}, {}):
        outcome.process_message(sdk.SystemMessage(subtype="informational", data=verdict))
    assert outcome.is_dropped


def test_a_prompt_that_the_cli_has_after_all_is_not_dropped():
    outcome = PromptOutcome()
    for verdict in ({"kind": "no_verdict"}, {"kind": "no_verdict", "prompt_kept": True}):
        data = {"prompt_submit_outcome": verdict}
        outcome.process_message(sdk.SystemMessage(subtype="informational", data=data))
    assert not outcome.is_dropped
