"""Every event is emitted by what really happens: the real SDK and CLI, and a model that is scripted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from agent_runner.wire.files import unique_name, write_whole
from agent_runner.wire.order import RestoredConversation, RestoreOrder, TurnLimits, TurnOrder
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
)
from tests.processes.noticing_runner import (
    NoticingRunner,
    SharedNoticingRun,
    a_notice,
    whole_text,
    with_notices,
)
from tests.processes.runner import RUN, make_workspace, order_of

pytestmark = pytest.mark.slow

HAIKU = "claude-haiku-4-5"
"""Its window is 200,000 tokens."""


def run(workspace: Workspace, api: ScriptedMessagesApi, *, more: str = "", **order: Any) -> NoticingRunner:
    return NoticingRunner(workspace, order_of("go", **order), api, more=more)


def a_file(workspace: Workspace, name: str = "a.txt", text: str = "one\n") -> str:
    path = workspace.group / name
    path.write_text(text)
    return str(path)


def test_calls_of_tools_are_pending_and_end_once_each_well_or_not_or_too_late(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    good = UseTool("Read", {"file_path": a_file(workspace)})
    missing = UseTool("Read", {"file_path": str(workspace.group / "none.txt")})
    failing = UseTool("Bash", {"command": "echo out of paper >&2; exit 3"})
    slow = UseTool("Bash", {"command": "sleep 30", "timeout": 1000})
    api.then(UseTools((good, missing, failing, slow)), Say("done"))
    with run(workspace, api) as runner:
        told = runner.told(1)
        pending = runner.payloads("tool.call.pending")
        (success,) = runner.payloads("tool.call.success")
        failures = runner.payloads("tool.call.failure")
        (timeout,) = runner.payloads("tool.call.timeout")
        (batch,) = runner.payloads("tool.batch.complete")
    assert [call["tool_name"] for call in pending] == ["Read", "Read", "Bash", "Bash"]
    assert pending[2]["arguments"] == {"command": "echo out of paper >&2; exit 3"}
    assert success["call_id"] == pending[0]["call_id"]
    assert success["result_length"] > 0
    assert {call["call_id"] for call in failures} == {pending[1]["call_id"], pending[2]["call_id"]}
    assert any("File does not exist" in call["error_message"] for call in failures)
    assert any("out of paper" in call["error_message"] for call in failures)
    assert (timeout["call_id"], timeout["error_type"]) == (pending[3]["call_id"], "timeout")
    assert (timeout["timeout_seconds"], timeout["timeout_ms"]) == (1.0, 1000)
    assert (batch["tool_count"], batch["success_count"], batch["failure_count"]) == (4, 1, 3)
    assert batch["total_duration_ms"] >= timeout["duration_ms"] >= 1000
    text = whole_text(api.turns[1])
    assert text.count("<system_notification>") == 1, "told once for the whole batch"
    assert "out of paper" in text[text.index("<system_notification>") :]
    # One table, or more where the batch took longer than the window of what is told together.
    assert {notice.event_type for notice in told} <= {"tool.call.failure", "tool.call.timeout"}
    assert 1 <= len(told) <= 3


@pytest.fixture(scope="class")
def kept_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedNoticingRun]:
    workspace = make_workspace(tmp_path_factory.mktemp("shared"))
    with ScriptedMessagesApi() as api, run(workspace, api) as runner:
        yield SharedNoticingRun(runner, api)


@pytest.fixture
def shared(kept_run: SharedNoticingRun) -> SharedNoticingRun:
    kept_run.begin()
    return kept_run


class TestEventsOfTurns:
    def test_a_refusal_of_the_host_and_a_call_of_nothing_are_failures(
        self, shared: SharedNoticingRun
    ) -> None:
        calls = (UseTool("list_tasks"), UseTool("Nonsense", {"x": 1}), UseTool("Read", {"path": "a"}))
        shared.api.then(UseTools(calls), Say("done"))
        turn, runner = shared.ask("go"), shared.runner
        runner.reply(runner.request(runner.workspace.tasks), "The list is locked.", ok=False)
        runner.ended(turn)
        failures = {call["tool_name"]: call for call in runner.payloads("tool.call.failure")}
        (batch,) = runner.payloads("tool.batch.complete")
        assert failures["mcp__andy__list_tasks"]["error_message"].startswith("The list is locked.")
        assert "No such tool available" in failures["Nonsense"]["error_message"]
        assert "file_path" in failures["Read"]["error_message"]
        assert failures["Read"]["error_type"] == "not_called"
        assert (batch["tool_count"], batch["failure_count"]) == (3, 3)

    def test_a_loop_is_told_before_the_model_goes_on_once_a_turn(self, shared: SharedNoticingRun) -> None:
        again = UseTool("Read", {"file_path": a_file(shared.runner.workspace, "again.txt")})
        shared.api.then(again, again, again, again, Say("done"))
        told = shared.told("go")
        (loop,) = shared.runner.payloads("agent.loop.detected")
        assert loop["count"] == 3
        assert loop["pattern"].startswith("Read(file_path=")
        assert "!loop" not in whole_text(shared.turns[2])
        assert whole_text(shared.turns[3]).count("!loop") == 1
        kinds = [(notice.event_type, notice.priority) for notice in told]
        assert kinds == [("agent.loop.detected", "critical")]

    def test_notes_to_itself_are_events_and_so_are_discoveries_and_checkpoints(
        self, shared: SharedNoticingRun
    ) -> None:
        def note(**more: str) -> UseTool:
            return UseTool("mcp__ans__notify_self", {"deliver_at": "immediate", **more})

        notes = (
            note(message="check the bill", priority="high"),
            note(message="water the plants", category="reminder"),
            note(message="Bo is allergic", category="discovery"),
            note(message="half done", category="checkpoint"),
        )
        shared.api.then(UseTools(notes), Say("done"))
        told = shared.told("go")
        events = shared.runner.events("agent.self.notify")
        (reminder,) = shared.runner.events("agent.self.remind")
        (discovery,) = shared.runner.payloads("discovery.notable")
        (checkpoint,) = shared.runner.payloads("task.checkpoint")
        messages = [event["payload"]["message"] for event in events]
        assert messages == ["check the bill", "Bo is allergic", "half done"]
        assert (events[0]["severity"], reminder["severity"]) == ("warning", "info")
        assert (discovery["message"], checkpoint["message"]) == ("Bo is allergic", "half done")
        assert discovery["event_id"] == events[1]["id"]
        assert whole_text(shared.turns[1]).count("[REMINDER] water the plants") == 1
        assert {notice.event_type for notice in told} == {"agent.self.notify", "agent.self.remind"}

    def test_a_file_that_others_changed_is_stale_at_the_next_turn(self, shared: SharedNoticingRun) -> None:
        path, own = (a_file(shared.runner.workspace, name) for name in ("a.txt", "own.txt"))
        read = UseTools((UseTool("Read", {"file_path": path}), UseTool("Read", {"file_path": own})))
        change = UseTool("Edit", {"file_path": own, "old_string": "one", "new_string": "mine"})
        shared.api.then(read, change, Say("read"), Say("noted"))
        shared.told("go")
        Path(path).write_text("two\n")
        shared.told("go on")
        (stale,) = shared.runner.payloads("source.stale")
        assert stale["path"].endswith("a.txt"), "what it wrote itself is not stale"
        assert "source_stale" in whole_text(shared.turns[3])
        assert "source_stale" not in whole_text(shared.turns[2])


def test_a_host_that_does_not_answer_is_a_timeout_and_nothing_else(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    impatient = (
        "from agent_runner import ipc_client\n"
        "ipc_client.HostClient.__init__.__kwdefaults__['reply_seconds'] = 0.2"
    )
    api.then(UseTool("list_tasks"), Say("done"))
    with run(workspace, api, more=impatient) as runner:
        runner.ended(1)
        (timeout,) = runner.payloads("tool.call.timeout")
        assert timeout["timeout_ms"] == 200
        assert not runner.events("tool.call.failure")
        assert not runner.events("tool.call.success")


def test_a_turn_that_is_tried_again_counts_once(workspace: Workspace, api: ScriptedMessagesApi) -> None:
    """N-54, N-71: checkpoints and messages count turns, not attempts at them."""
    api.then(Say("one"), Fail(403), Say("two"), Say("three"))
    order = order_of("go", restore=RestoreOrder(mode="rehydrate", so_far=RestoredConversation(turns=7)))
    with NoticingRunner(workspace, order, api) as runner:
        runner.ended(1)
        runner.ask(2, "more")
        assert runner.ended(2).error
        runner.ask(2, "more")
        runner.ask(3, "still more")
        runner.ended(3)
        (checkpoint,) = runner.payloads("task.checkpoint")
    assert checkpoint["turn"] == 10
    assert ["checkpoint:" in whole_text(turn) for turn in api.turns[-2:]] == [False, True]


def test_a_turn_begins_and_ends_with_its_question_and_so_does_the_session(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    api.then(UseTool("Bash", {"command": "true"}), Say("one"), Fail(403), Say("two"))
    with run(workspace, api) as runner:
        session = runner.ended(1).new_session_id
        runner.ask(2, "more")
        assert runner.ended(2).error
        runner.close()
        assert runner.exit_code() == 0
        kinds = [event["type"] for event in runner.events()]
        starts, ends = runner.payloads("agent.turn.start"), runner.payloads("agent.turn.end")
        queries = runner.payloads("query.start")
        (over,) = runner.payloads("session.end")
    assert [start["turn_number"] for start in starts] == [1, 2]
    assert [(end["reason"], end["tool_calls"], end["session_id"]) for end in ends] == [
        ("answered", 1, session),
        ("agent", 0, session),
    ]
    assert ends[0]["tokens_used"] > 0
    assert [(query["query"], query["turn"]) for query in queries] == [("go", 1), ("more", 2)]
    assert (over["turns"], over["session_id"]) == (2, session)
    assert kinds[0] == "agent.turn.start"
    assert kinds[-1] == "session.end"


def test_a_token_budget_is_told_when_it_is_nearly_and_when_it_is_used(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    long = UseTool("Bash", {"command": f"true {'x' * 2500}"})
    api.then(long, UseTool("Bash", {"command": f"true {'y' * 900}"}), Say("done"))
    with run(workspace, api, limits=TurnLimits(turn_tokens=1000)) as runner:
        told = runner.told(1)
        (warning,) = runner.payloads("budget.token.warning")
        (exceeded,) = runner.payloads("budget.token.exceeded")
    assert warning["limit"] == 1000
    assert 800 <= warning["current"] < 1000 <= exceeded["current"]
    assert "budget_warn: token" in whole_text(api.turns[1])
    assert "!exceeded: token" in whole_text(api.turns[2])
    assert [notice.event_type for notice in told] == ["budget.token.warning", "budget.token.exceeded"]


def test_a_turn_without_tools_that_was_too_long_is_told_with_the_next_prompt_once(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    api.then(Say("long " * 600), Say("short"), Say("short"))
    with run(workspace, api, limits=TurnLimits(turn_tokens=1000)) as runner:
        assert runner.told(1) == ()
        runner.ask(2, "go on")
        (told,) = runner.told(2)
        runner.ask(3, "and on")
        assert runner.told(3) == ()
        (exceeded,) = runner.payloads("budget.token.exceeded")
    assert exceeded["current"] == 1000
    assert told.event_type == "budget.token.exceeded"
    counts = [whole_text(turn).count("your last answer took 1,000 of 1,000 tokens") for turn in api.turns]
    assert counts == [0, 1, 1]


def test_an_iteration_budget_is_told_when_it_is_nearly_and_when_it_is_used(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    api.then(*(UseTool("Bash", {"command": f"true {number}"}) for number in range(10)), Say("done"))
    with run(workspace, api, limits=TurnLimits(iterations=10)) as runner:
        runner.ended(1)
        (warning,) = runner.payloads("budget.iteration.warning")
        (exceeded,) = runner.payloads("budget.iteration.exceeded")
    assert (warning["current"], warning["limit"]) == (7, 10)
    assert exceeded["current"] == 10
    assert "!exceeded: iteration" not in whole_text(api.turns[9])
    assert "!exceeded: iteration" in whole_text(api.turns[10])


CLOCK = """
from agent_runner.ans import rules
from itertools import count
ticks = count(0, 50)
rules.NoticeRules.__init__.__kwdefaults__["clock"] = lambda: float(next(ticks))
"""


def test_time_that_runs_out_is_told(workspace: Workspace, api: ScriptedMessagesApi) -> None:
    api.then(UseTool("Bash", {"command": "true"}), Say("done"))
    with run(workspace, api, more=CLOCK, limits=TurnLimits(turn_seconds=60)) as runner:
        runner.ended(1)
        (warning,) = runner.payloads("budget.timeout.warning")
    assert (warning["current"], warning["limit"], warning["remaining"]) == (50, 60, 10)


def test_every_tenth_turn_is_a_checkpoint(workspace: Workspace, api: ScriptedMessagesApi) -> None:
    with run(workspace, api) as runner:
        runner.ended(1)
        for turn in range(2, 12):
            runner.ask(turn, f"turn {turn}")
            runner.ended(turn)
        (checkpoint,) = runner.payloads("task.checkpoint")
    assert checkpoint["turn"] == 10
    assert "checkpoint:" not in whole_text(api.turns[8])
    assert "checkpoint:" in whole_text(api.turns[9])


def test_turns_and_messages_are_counted_over_containers(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    """N-54, N-71: no container lives for ten turns of a quiet chat."""
    restore = RestoreOrder(mode="rehydrate", so_far=RestoredConversation(turns=9))
    waiting = a_notice(7, "we talk a lot", condition="message_count_above(19)")
    order = with_notices(order_of("go", restore=restore), [waiting])
    with NoticingRunner(workspace, order, api) as runner:
        told = runner.told(1)
        (checkpoint,) = runner.payloads("task.checkpoint")
        runner.close()
        assert runner.exit_code() == 0
        (over,) = runner.payloads("session.end")
    assert checkpoint["turn"] == 10
    assert "checkpoint:" in whole_text(api.turns[0])
    assert 7 in {notice.id for notice in told}
    assert over["turns"] == 1


def test_a_window_that_is_nearly_full_is_told_with_the_first_prompt_of_a_new_container(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    """N-50: where each question finds a new container and needs no tool, there is no other moment."""
    with run(workspace, api, model=HAIKU) as runner:
        session = runner.ended(1).new_session_id
    for tokens, times in ((90_000, 0), (145_000, 1)):
        so_far = RestoredConversation(turns=1, context_tokens=tokens, context_window=200_000)
        restore = RestoreOrder(mode="resume", so_far=so_far)
        with run(workspace, api, model=HAIKU, session_id=session, restore=restore) as runner:
            runner.ended(1)
            assert len(runner.payloads("context.approaching_limit")) == times
        assert whole_text(api.turns[-1]).count("context_warn: 72%") == times


def test_what_awaits_a_share_of_the_window_is_told_in_a_new_container_too(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    """N-71."""
    with run(workspace, api, model=HAIKU) as runner:
        session = runner.ended(1).new_session_id
    so_far = RestoredConversation(turns=1, context_tokens=70_000, context_window=200_000)
    waiting = a_notice(5, "a third is full", condition="context_above_threshold(0.3)")
    restore = RestoreOrder(mode="resume", so_far=so_far)
    order = order_of("go", model=HAIKU, session_id=session, restore=restore)
    api.then(UseTool("Bash", {"command": "true"}, tokens=Tokens(input_tokens=70_000)), Say("done"))
    with NoticingRunner(workspace, with_notices(order, [waiting]), api) as runner:
        assert 5 in {notice.id for notice in runner.told(1)}


def test_a_window_that_fills_is_told_at_the_next_turn_and_again_after_it_was_compacted(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    full, small = Tokens(input_tokens=145_000), Tokens(input_tokens=30_000)
    api.then(Say("one", tokens=full), Say("two", tokens=full), Say("three", tokens=small))
    api.then(Say("four", tokens=full), Say("five", tokens=full))
    with run(workspace, api, model=HAIKU) as runner:
        for turn in range(2, 6):
            runner.ended(turn - 1)
            runner.ask(turn, f"turn {turn}")
        runner.ended(5)
        first, again = runner.payloads("context.approaching_limit")
    assert first == again
    assert (first["current_tokens"], first["max_tokens"]) == (145_000, 200_000)
    assert "context_warn: 72%" in whole_text(api.turns[1])
    assert whole_text(api.turns[2]).count("context_warn") == 1, "not said again"
    assert whole_text(api.turns[4]).count("context_warn") == 2, "armed again once use had fallen"


@pytest.mark.parametrize("mode", ["resume", "rehydrate"])
def test_a_conversation_that_goes_on_says_so_once(
    workspace: Workspace, api: ScriptedMessagesApi, mode: str
) -> None:
    session = None
    if mode == "resume":
        with run(workspace, api) as runner:
            session = runner.ended(1).new_session_id
            assert not runner.events("session.resumed")
    so_far = RestoredConversation(
        turns=34, exchanges_kept=5, messages_kept=9, last_question="which bees?", age_seconds=60
    )
    restore = RestoreOrder(mode=mode, reason="a new container", so_far=so_far)  # type: ignore[arg-type]
    with run(workspace, api, session_id=session, restore=restore) as runner:
        runner.ended(1)
        runner.ask(2, "more")
        runner.ended(2)
        (resumed,) = runner.payloads("session.resumed")
    assert (resumed["mode"], resumed["reason"], resumed["age_seconds"]) == (mode, "a new container", 60)
    loaded = (resumed["exchanges_loaded"], resumed["messages_in_window"])
    assert loaded == ((34, 0) if mode == "resume" else (5, 9))
    line = f'session_resumed: {loaded[0]} exchanges loaded - last: "which bees?"'
    first, second = api.turns[-2:]
    assert line in all_text(first)
    assert whole_text(first).count("session_resumed:") == whole_text(second).count("session_resumed:") == 1


def meanwhile(steps: list[Step], changes: dict[int, Callable[[], object]]) -> Callable[[Recorded], Step]:
    """Answer with one step after another; before those with these numbers, have somebody change something."""
    number = count()

    def decide(_: Recorded) -> Step:
        now = next(number)
        changes.get(now, lambda: None)()
        return steps[now]

    return decide


def test_a_file_that_others_changed_in_the_turn_is_stale_before_it_is_edited(workspace: Workspace) -> None:
    path = Path(a_file(workspace))
    read = UseTool("Read", {"file_path": str(path)})
    edit = UseTool("Edit", {"file_path": str(path), "old_string": "two", "new_string": "3"})
    by_others = {1: lambda: path.write_text("two\n")}
    with (
        ScriptedMessagesApi(meanwhile([read, edit, Say("done")], by_others)) as api,
        run(workspace, api) as runner,
    ):
        runner.ended(1)
        (stale,) = runner.payloads("source.stale")
    assert stale["path"] == "a.txt"
    assert "source_stale" in whole_text(api.turns[2])


def test_what_the_agents_own_commands_change_is_not_stale_and_what_others_change_between_them_is(
    workspace: Workspace,
) -> None:
    """N-52: commands of one batch run at once, and one that fails has changed things too."""
    mine, theirs = Path(a_file(workspace, "mine.txt")), Path(a_file(workspace, "theirs.txt"))

    def write(word: str, then: str = "true") -> UseTool:
        return UseTool("Bash", {"command": f"echo {word} > {mine}; {then}"})

    steps: list[Step] = [
        UseTools(tuple(UseTool("Read", {"file_path": str(path)}) for path in (mine, theirs))),
        UseTools((write("1", "sleep 0.3"), write("2"), UseTool("Bash", {"command": "sleep 0.3"}))),
        write("3", "exit 3"),
        UseTool("Bash", {"command": f"echo 4 > {mine}; sleep 30", "timeout": 1000}),
        UseTool("Bash", {"command": "true"}),
        Say("done"),
        Say("again"),
    ]
    by_others = {4: lambda: theirs.write_text("of somebody else\n")}
    with ScriptedMessagesApi(meanwhile(steps, by_others)) as api, run(workspace, api) as runner:
        runner.ended(1)
        runner.ask(2, "go on")
        runner.ended(2)
        assert [stale["path"] for stale in runner.payloads("source.stale")] == ["theirs.txt"]
    assert "source_stale: theirs.txt" in whole_text(api.turns[5])


def test_what_a_subagents_command_changes_is_the_agents_own(workspace: Workspace) -> None:
    """N-52."""
    path = a_file(workspace)
    task = {"description": "d", "prompt": "LOOK-FOR-IT", "subagent_type": "general-purpose"}
    of_agent: list[Step] = [UseTool("Read", {"file_path": path}), UseTool("Task", task), Say("1"), Say("2")]
    of_sub: list[Step] = [UseTool("Bash", {"command": f"echo below > {path}"}), Say("found")]

    def decide(request: Recorded) -> Step:
        return (of_agent if "ASK-SOMEBODY" in all_text(request) else of_sub).pop(0)

    order = order_of("ASK-SOMEBODY")
    with ScriptedMessagesApi(decide) as api, NoticingRunner(workspace, order, api) as runner:
        runner.ended(1)
        assert Path(path).read_text() == "below\n"
        runner.ask(2, "ASK-SOMEBODY else")
        runner.ended(2)
        assert runner.payloads("source.stale") == []


def subagents(answer: Step) -> Any:
    """Have the agent ask a subagent, which gets `answer`."""
    prompt = {"description": "d", "prompt": "LOOK-FOR-IT", "subagent_type": "general-purpose"}
    steps: list[Step] = [UseTool("Task", prompt), Say("done")]

    def decide(request: Recorded) -> Step:
        is_of_the_agent = "ASK-SOMEBODY" in all_text(request)
        return steps.pop(0) if is_of_the_agent else answer

    return decide


def test_a_subagent_ends_well_or_not(workspace: Workspace) -> None:
    order = order_of("ASK-SOMEBODY")
    with (
        ScriptedMessagesApi(subagents(Say("found it"))) as api,
        NoticingRunner(workspace, order, api) as runner,
    ):
        runner.ended(1)
        (complete,) = runner.payloads("subagent.complete")
    assert complete["task_id"]
    assert "subagent_done" in whole_text(api.turns[-1])
    with ScriptedMessagesApi(subagents(Fail(403))) as api, NoticingRunner(workspace, order, api) as runner:
        runner.ended(1)
        (failed,) = runner.payloads("subagent.failed")
    assert failed["error_message"]


def test_what_the_cli_says_of_itself_is_an_event(workspace: Workspace, api: ScriptedMessagesApi) -> None:
    api.then(Say("one"))
    with run(workspace, api) as runner:
        runner.ended(1)
        order = TurnOrder(run=RUN, turn=2, kind="chat", prompt="", command="compact")
        write_whole(workspace.input / unique_name(), order.to_json())
        runner.keep_compaction()
        runner.ended(2)
        said = [event["event_name"] for event in runner.payloads("cli.event")]
    assert "compact_boundary" in said
