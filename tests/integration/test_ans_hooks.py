"""Where a model is told its notices: the real SDK and CLI, a model that is scripted, the host by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agent_runner.wire.files import unique_name, write_whole
from agent_runner.wire.mailbox import NotifySelf
from agent_runner.wire.order import RestoreOrder, TurnOrder
from agent_runner.workspace import Workspace
from tests.doubles.messages_api import (
    Fail,
    Recorded,
    Say,
    ScriptedMessagesApi,
    Step,
    Tokens,
    UseTool,
    UseTools,
    all_text,
    last_user_text,
    tool_names,
    tool_results,
)
from tests.processes.noticing_runner import (
    OPEN,
    STUCK,
    NoticingRunner,
    SharedNoticingRun,
    a_notice,
    notices_blocks,
    whole_text,
    with_notices,
)
from tests.processes.runner import RUN, make_workspace, order_of

pytestmark = pytest.mark.slow

TRUE = UseTool("Bash", {"command": "true"})


def run(
    workspace: Workspace, api: ScriptedMessagesApi, *notices: Any, more: str = "", prompt: str = "go"
) -> NoticingRunner:
    return NoticingRunner(workspace, with_notices(order_of(prompt), notices), api, more=more)


def note(message: str, **more: Any) -> UseTool:
    return UseTool("mcp__ans__notify_self", {"message": message, **more})


def subscriber(workspace: Workspace, name: str, template: str, **output: str) -> None:
    """Add one of the group's own."""
    folder = workspace.group / "subscribers"
    folder.mkdir(exist_ok=True)
    lines = "\n".join(f'{key} = "{value}"' for key, value in {"template": f"{name}.j2", **output}.items())
    (folder / f"{name}.toml").write_text(
        f'[subscriber]\nid = "{name}"\nname = "{name}"\n[events]\ntypes = ["tool.call.success"]\n'
        f"[batching]\nwindow_ms = 0\nmax_size = 1\ndedupe_window_ms = 0\n[output]\n{lines}\n"
    )
    (folder / f"{name}.j2").write_text(template)


@pytest.fixture(scope="class")
def kept_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedNoticingRun]:
    workspace = make_workspace(tmp_path_factory.mktemp("shared"))
    with ScriptedMessagesApi() as api, run(workspace, api) as runner:
        yield SharedNoticingRun(runner, api)


@pytest.fixture
def shared(kept_run: SharedNoticingRun) -> SharedNoticingRun:
    kept_run.begin()
    return kept_run


class TestNoticesOfTheHost:
    def test_a_notice_is_in_the_request_of_its_prompt_and_not_in_the_words_of_people(
        self, shared: SharedNoticingRun
    ) -> None:
        (told,) = shared.told("go", a_notice(7, "the code is 42"))
        assert shared.told("again") == ()
        first, second = (whole_text(turn) for turn in shared.turns)
        assert first.count("[NOTE] the code is 42") == second.count("[NOTE] the code is 42") == 1
        assert last_user_text(shared.turns[0]) == "go"
        assert (told.id, told.event_type, told.priority) == (7, "agent.self.notify", "normal")
        assert "the code is 42" in told.text

    def test_what_awaits_a_tool_is_told_after_the_whole_batch_once(self, shared: SharedNoticingRun) -> None:
        batch = UseTools(tuple(UseTool("Bash", {"command": f"true {number}"}) for number in range(3)))
        shared.api.then(UseTool("Read", {"file_path": "/etc/passwd"}), batch, TRUE, Say("done"))
        (told,) = shared.told("go", a_notice(3, "look at the file", tool_name="Bash"))
        texts = [whole_text(turn).count("look at the file") for turn in shared.turns]
        assert texts == [0, 0, 1, 1]
        assert told.id == 3

    def test_a_turn_that_fails_has_told_nothing(self, shared: SharedNoticingRun) -> None:
        shared.api.then(Fail(403), Say("now"))
        failed = shared.runner.ended(shared.ask("go", a_notice(4, "do not forget me")))
        assert failed.error
        assert failed.told == ()
        assert [notice.id for notice in shared.told("again", a_notice(4, "do not forget me"))] == [4]
        assert "do not forget me" in whole_text(shared.turns[-1])

    def test_what_a_failed_turn_noted_for_at_once_is_told_in_the_next(
        self, shared: SharedNoticingRun
    ) -> None:
        """N-64: a note that only the run knows of is not lost with a turn that fails after it was told."""
        shared.api.then(note("mind the gap", deliver_at="immediate"), Fail(403), Say("I do"), Say("I did"))
        failed = shared.runner.ended(shared.ask("go"))
        assert failed.error
        assert failed.told == ()
        (told,) = shared.told("again")
        assert shared.told("and now?") == ()
        assert told.text == "[NOTE] mind the gap"
        counts = [whole_text(turn).count("[NOTE] mind the gap") for turn in shared.turns]
        assert counts[-2] == counts[-3] + 1
        assert counts[-1] == counts[-2]


class TestNotesToItself:
    def test_the_tools_are_on_a_server_of_their_own(self, shared: SharedNoticingRun) -> None:
        shared.told("go")
        names = {"notify_self", "acknowledge_notification", "list_notices", "cancel_notice"}
        text = json.dumps(shared.turns[0].body)
        assert all(
            f"mcp__ans__{name}" in text or f"mcp__ans__{name}" in tool_names(shared.turns[0])
            for name in names
        )

    def test_a_note_for_later_is_kept_by_the_host_and_one_for_this_turn_is_told_in_it(
        self, shared: SharedNoticingRun
    ) -> None:
        shared.api.then(
            note("tomorrow", deliver_at="next_turn", persist_cross_session=True),
            note("after bash", deliver_at="after_tool", tool_name="Bash", priority="high"),
            note("now", deliver_at="on_condition", condition="tool_completed(Bash)"),
            TRUE,
            Say("done"),
        )
        turn = shared.ask("go")
        kept = [shared.runner.keep(number) for number in (11, 12, 13)]
        told = shared.runner.told(turn)
        assert [command.message for command in kept] == ["tomorrow", "after bash", "now"]
        assert all(command.turn == turn for command in kept)
        assert {notice.id for notice in told} == {12, 13}
        last = whole_text(shared.turns[-1])
        assert last.count("[NOTE] after bash") == 1
        assert last.count("[NOTE] now") == 1
        assert "[NOTE] tomorrow" not in last
        assert '"persistence_id\\": 11' in whole_text(shared.turns[1])

    def test_a_note_for_after_any_tool_does_not_come_with_the_tool_that_made_it(
        self, shared: SharedNoticingRun
    ) -> None:
        shared.api.then(note("after any tool", deliver_at="after_tool"), TRUE, Say("done"))
        turn = shared.ask("go")
        shared.runner.keep(14)
        assert [notice.id for notice in shared.runner.told(turn)] == [14]
        found = ["[NOTE] after any tool" in whole_text(turn) for turn in shared.turns]
        assert found == [False, False, True]

    def test_a_bad_value_is_an_error_that_names_what_fits(self, shared: SharedNoticingRun) -> None:
        bad: list[tuple[dict[str, Any], str, str]] = [
            ({"message": ""}, "missing_message", "say what"),
            ({"message": "m", "priority": "urgent"}, "bad_enum", "low, normal, high, critical"),
            (
                {"message": "m", "deliver_at": "on_condition", "condition": "import os"},
                "bad_condition",
                "tool_completed",
            ),
            ({"message": "m", "deliver_at": "after_n_turns", "turns": 0}, "bad_value", "from 1 to 100"),
        ]
        calls = tuple(UseTool("mcp__ans__notify_self", arguments) for arguments, _, _ in bad)
        shared.api.then(UseTools(calls), Say("done"))
        shared.told("go")
        assert not list(shared.runner.workspace.tasks.iterdir())
        for result, (_, code, named) in zip(tool_results(shared.turns[1]), bad, strict=True):
            assert result["is_error"] is True
            assert code in json.dumps(result["content"])
            assert named in json.dumps(result["content"])

    def test_what_was_cancelled_or_the_host_refuses_is_not_told(self, shared: SharedNoticingRun) -> None:
        shared.api.then(
            UseTool("mcp__ans__cancel_notice", {"notice_id": 21}),
            note("one more", deliver_at="after_tool"),
            TRUE,
            Say("done"),
        )
        turn = shared.ask("go", a_notice(21, "to be dropped", tool_name="Bash"))
        assert shared.runner.agree().type == "cancel_notice"
        refused = shared.runner.request(shared.runner.workspace.tasks)
        assert isinstance(refused, NotifySelf)
        shared.runner.reply(refused, "20 notices wait already.", ok=False)
        told = shared.runner.told(turn)
        assert [notice.event_type for notice in told] == ["tool.call.failure"]
        last = whole_text(shared.turns[-1])
        assert "to be dropped" not in last
        assert "[NOTE] one more" not in last


def test_silence_before_or_after_is_not_sent_beside_an_answer(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    subscriber(workspace, "grave", "look again", priority="high", inject_at="turn_end")
    answers = ("SILENT", "It is 5."), ("It is 5.", "SILENT")
    with run(workspace, api) as runner:
        shared = SharedNoticingRun(runner, api)
        shared.begin()
        for first, second in answers:
            api.then(TRUE, Say(first), Say(second))
            turn = shared.ask("what time is it?")
            runner.ended(turn)
            assert runner.results(turn) == ["It is 5."]
    assert len(shared.turns) == 6, "both were said in each turn"


def test_thirty_thousand_characters_of_notices_stay_under_the_cap_and_come_in_parts(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    notices = [a_notice(number, f"N{number:02d} " + "x" * 1_900) for number in range(1, 17)]
    with run(workspace, api, *notices) as runner:
        first = runner.told(1)
        runner.ask(2, "more", *notices[len(first) :])
        second = runner.told(2)
    assert 0 < len(first) < 16
    assert second
    assert not {notice.id for notice in first} & {notice.id for notice in second}
    for turn in api.turns:
        for block in notices_blocks(turn):
            assert len(block) < 10_000
            assert "saved to" not in block
    assert "N01" in whole_text(api.turns[0])


def test_hooks_that_never_end_keep_a_turn_waiting_once(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    api.then(TRUE, Say("done"))
    with run(workspace, api, more=STUCK.replace("len(calls) == 1", "True")) as runner:
        assert runner.ended(1).error is None
        assert runner.results(1) == ["done"]
    assert runner.stderr.count("took too long") == 1


def test_a_hook_that_never_ends_costs_no_prompt_and_no_notice(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    with run(workspace, api, a_notice(5, "I wait"), more=STUCK) as runner:
        end = runner.ended(1)
        assert end.error is None
        assert end.told == ()
        runner.ask(2, "again", a_notice(5, "I wait"))
        assert [notice.id for notice in runner.told(2)] == [5]
    assert "UserPromptSubmit took too long" in runner.stderr
    assert [last_user_text(turn) for turn in api.turns] == ["go", "again"]


DROPPING = """
import asyncio, sys
from agent_runner.agents.claude.sdk_import import import_sdk
import_sdk()
import claude_agent_sdk as sdk
from agent_runner.agents.claude import restore

begin, put, calls = sdk.HookMatcher.__init__, restore.RestoreHooks._with_prompt, []

def impatient(self, **given):
    begin(self, **(given | {"timeout": 2.0}))

async def stuck(self, given, *rest):
    calls.append(given)
    found = await put(self, given, *rest)
    if len(calls) == 1:
        await asyncio.Event().wait()
    return found

sdk.HookMatcher.__init__ = impatient
restore.RestoreHooks._with_prompt = stuck
"""
"""Another hook keeps the CLI waiting until it drops the prompt, after the notices for it were told."""


def test_a_prompt_that_the_cli_dropped_is_asked_again_once(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    api.then(Say("here I am"))
    order = with_notices(
        order_of("go", restore=RestoreOrder(mode="rehydrate", text="what was said before")),
        [a_notice(6, "and I")],
    )
    with NoticingRunner(workspace, order, api, more=DROPPING) as runner:
        end = runner.ended(1)
        assert runner.results(1) == ["here I am"]
        assert [notice.id for notice in end.told if notice.id] == [6]
    assert "asked again" in runner.stderr
    (turn,) = api.turns
    assert whole_text(turn).count("and I") == 1
    assert whole_text(turn).count("what was said before") == 1


def test_a_prompt_that_is_dropped_twice_is_an_error_and_not_an_answer(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    always = DROPPING.replace("len(calls) == 1", "True")
    with run(workspace, api, more=always) as runner:
        end = runner.ended(1)
        assert end.error
        assert "did not take the prompt" in end.error
        assert runner.results(1) == []
    assert api.turns == []


def test_what_matters_most_at_the_end_makes_the_model_go_on_once_and_keeps_its_answer(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    grave = {"priority": "critical", "inject_at": "turn_end"}
    subscriber(workspace, "grave", "at the end: look again", **grave)
    api.then(TRUE, Say("It is done."), Say("And I looked."))
    with run(workspace, api) as runner:
        told = runner.told(1)
        assert runner.results(1) == ["It is done.", "And I looked."]
    assert [notice.text for notice in told] == ["at the end: look again"]
    assert len(api.turns) == 3
    assert "at the end: look again" in whole_text(api.turns[2])


def test_what_matters_less_at_the_end_waits_for_the_next_turn(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    subscriber(workspace, "calm", "at the end: by the way", priority="normal", inject_at="turn_end")
    api.then(TRUE, Say("done"), Say("next"))
    with run(workspace, api) as runner:
        assert runner.told(1) == ()
        runner.ask(2, "go on")
        (told,) = runner.told(2)
    assert told.text == "at the end: by the way"
    assert [("by the way" in whole_text(turn)) for turn in api.turns] == [False, False, True]


def test_compaction_loses_neither_what_waits_nor_what_was_just_told(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    full = UseTool("Bash", {"command": "true"}, tokens=Tokens(input_tokens=970_000))
    api.then(Say("hello"), full, UseTool("Read", {"file_path": "/etc/passwd"}), Say("done"))
    with run(workspace, api) as runner:
        runner.ended(1)
        runner.ask(2, "go on", a_notice(8, "still waiting", tool_name="Read"), a_notice(9, "just told"))
        runner.keep_compaction()
        told = runner.told(2)
        assert "compact_boundary" in [event["event_name"] for event in runner.payloads("cli.event")]
    assert {notice.id for notice in told if notice.id} == {8, 9}
    before, after, last = api.turns[1], api.turns[2], api.turns[-1]
    assert "just told" in whole_text(before)
    assert "hello" not in whole_text(after), "the conversation was compacted"
    assert whole_text(after).count("just told") == 1, "told again, for it went with the conversation"
    assert "still waiting" not in whole_text(after)
    assert "still waiting" in whole_text(last)


def test_a_compaction_on_wish_tells_what_waits(workspace: Workspace, api: ScriptedMessagesApi) -> None:
    api.then(Say("one"), Say("two"))
    with run(workspace, api) as runner:
        runner.ended(1)
        order = TurnOrder(
            run=RUN, turn=2, kind="chat", prompt="", command="compact", notices=(a_notice(2, "kept for you"),)
        )
        write_whole(workspace.input / unique_name(), order.to_json())
        runner.keep_compaction()
        assert [notice.id for notice in runner.told(2)] == [2]
        runner.ask(3, "and now?")
        runner.ended(3)
    assert "kept for you" in whole_text(api.turns[-1])


def test_a_subagent_takes_no_notice_and_makes_none(workspace: Workspace) -> None:
    task = {"description": "d", "prompt": "LOOK-FOR-IT", "subagent_type": "general-purpose"}
    of_agent: list[Step] = [UseTool("Task", task), Say("done")]
    of_sub: list[Step] = [TRUE, note("from below", deliver_at="immediate"), Say("found")]

    def decide(request: Recorded) -> Step:
        return (of_agent if "ASK-SOMEBODY" in all_text(request) else of_sub).pop(0)

    waiting = a_notice(31, "for the agent alone", tool_name="Bash")
    any_tool = a_notice(32, "after its own tool", tool_name="")
    with ScriptedMessagesApi(decide) as api:
        with run(workspace, api, waiting, any_tool, prompt="ASK-SOMEBODY") as runner:
            told = runner.told(1)
        below = [turn for turn in api.turns if "ASK-SOMEBODY" not in all_text(turn)]
    assert len(below) == 3
    assert not any(OPEN in whole_text(turn) for turn in below)
    assert "No such tool available: mcp__ans__notify_self" in json.dumps(tool_results(below[2]))
    assert [notice.id for notice in told if notice.id] == [32]
