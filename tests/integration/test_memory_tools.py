"""What agents keep of a conversation: through the dispatcher, into real files, once a request."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from agent_runner.wire import context_tools as wire
from agent_runner.wire.mailbox import Reply
from orchestrator.context import script, tools
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.dialogue import NewMessage
from orchestrator.context.files import LOCK
from orchestrator.context.group_memory import GroupMemory
from orchestrator.context.recorder import ContextRecorder
from orchestrator.context.tokens import EstimatingCounter
from orchestrator.domain.values import Folder
from orchestrator.ipc.command_dispatcher import CommandDispatcher
from orchestrator.scheduler.timing import schedule_reader
from orchestrator.scheduler.when import point_ms
from orchestrator.store.groups import groups
from tests.support.store_harness import SEOUL, StoreHarness

Ask = Callable[..., Awaitable[Reply]]


@pytest.fixture
async def recorder(store_harness: StoreHarness, tmp_path: Path) -> ContextRecorder:
    await store_harness.add_group()
    await store_harness.add_group("work")
    return ContextRecorder(
        store_harness.database,
        contexts=tmp_path / "context",
        env=tmp_path / "env",
        counter=EstimatingCounter(),
        clock=store_harness.clock,
        bus=store_harness.bus,
        name="Andy",
        on_notified=store_harness.wakeups.outbox.set,
    )


@pytest.fixture
def ask(store_harness: StoreHarness, recorder: ContextRecorder, tmp_path: Path) -> Ask:
    dispatcher = CommandDispatcher(
        store_harness.database,
        clock=store_harness.clock,
        read_time=point_ms,
        times=schedule_reader(lambda _: SEOUL),
        zone_of=lambda _: SEOUL,
        wakeups=store_harness.wakeups,
        bus=store_harness.bus,
        contexts=GroupMemory(
            store_harness.database,
            recorder,
            home=tmp_path,
            clock=store_harness.clock,
            bus=store_harness.bus,
        ),
    )

    async def asked(tool: str, *, by: str = "family", request: str | None = None, **arguments: Any) -> Reply:
        async with store_harness.database.reading() as tx:
            group = await groups.known(tx, by)
        number = next(store_harness.numbers)
        body = {
            "type": "remember",
            "requestId": request or f"r{number}",
            "tool": tool,
            "arguments": arguments,
        }
        return await dispatcher.handle(group, "request", json.dumps(body).encode())

    return asked


@pytest.fixture
def family(recorder: ContextRecorder) -> ContextManager:
    return recorder.manager(Folder("family"))


async def test_a_plan_is_made_worked_through_and_left(ask: Ask, family: ContextManager) -> None:
    made = await ask("create_plan", title="부산 여행", objective="A weekend", tasks=["train", "hotel"])
    assert made.data == {"plan_id": "plan_001", "tasks": {"task_001": "train", "task_002": "hotel"}}
    assert (await ask("set_active_task", task_id="task_001")).ok
    done = await ask("update_plan_task", task_id="task_001", status="completed")
    assert (done.ok, done.text) == (True, "The task is task_001, 'train', completed.")
    assert (await ask("update_plan_task", title="pack")).data["task_id"] == "task_003"
    kept = family.load(now_ms=0)
    assert kept.context.memory.active_plan_id == "plan_001"
    assert kept.context.memory.active_task_id != "task_001", "it is done"
    assert (await ask("set_active_plan", plan_id=None)).text == "No plan is active."
    assert (
        await ask("set_active_plan", plan_id="plan_001")
    ).text == "The active plan is plan_001, '부산 여행'."


async def test_what_belongs_to_a_plan_is_kept_and_told_to_a_new_session(
    ask: Ask, family: ContextManager
) -> None:
    about = {"background": "Ten years married", "constraints": ["no flights"], "references": ["trip/plan.md"]}
    assert (await ask("create_plan", title="Trip", tasks=["book", "pack"], **about)).ok
    changes = {"dependencies": ["task_001"], "outputs": ["trip/list.md"]}
    assert (await ask("update_plan_task", task_id="task_002", **changes)).ok
    assert (await ask("update_plan_task", task_id="task_002", outputs=["trip/bag.md"])).ok
    assert (await ask("note_open_file", path="trip/plan.md")).ok

    kept = family.load(now_ms=0)
    (plan,) = kept.workflow.plans
    assert plan.context.model_dump(mode="json") == about
    assert plan.tasks[1].dependencies == ("task_001",)
    assert plan.tasks[1].outputs == ("trip/list.md", "trip/bag.md")
    assert kept.context.memory.working_directory == "/workspace/group/trip"
    told = "\n".join(family.hydrate_prompt(now_ms=0).lines)
    for text in ("Ten years married", "no flights", "(after task_001)", "/workspace/group/trip"):
        assert text in told


@pytest.mark.parametrize(
    ("before", "code"),
    [(["task_003"], "plan_refused"), (["task_002"], "plan_refused"), (["task_009"], "unknown_plan_task")],
)
async def test_no_task_waits_for_itself_or_for_none(
    ask: Ask, family: ContextManager, before: list[str], code: str
) -> None:
    assert (await ask("create_plan", title="Trip", tasks=["a", "b", "c"])).ok
    assert (await ask("update_plan_task", task_id="task_003", dependencies=["task_002"])).ok
    refused = await ask("update_plan_task", task_id="task_002", dependencies=before)
    assert (refused.ok, refused.code) == (False, code)
    assert family.load(now_ms=0).workflow.plans[0].tasks[1].dependencies == ()


async def test_decisions_and_files_are_kept(ask: Ask, family: ContextManager) -> None:
    assert (await ask("record_decision", decision=" We go by train. ")).data == {"decisions": 1}
    assert (await ask("note_open_file", path="/workspace/group/trip/plan.md")).data == {
        "open_files": ["trip/plan.md"]
    }
    memory = family.load(now_ms=0).context.memory
    assert (memory.last_decisions, memory.open_files) == (("We go by train.",), ("trip/plan.md",))


async def test_a_request_that_comes_again_makes_nothing_twice(ask: Ask, family: ContextManager) -> None:
    first = await ask("create_plan", request="t1-abc-1", title="Trip", tasks=["train"])
    assert await ask("create_plan", request="t1-abc-1", title="Trip", tasks=["train"]) == first
    assert len(family.load(now_ms=0).workflow.plans) == 1


async def test_a_host_killed_between_file_and_answer_makes_nothing_twice(
    ask: Ask, family: ContextManager, store_harness: StoreHarness
) -> None:
    for tool, arguments in (("create_plan", {"title": "Trip"}), ("update_plan_task", {"title": "train"})):
        await ask(tool, request=f"id-{tool}", **arguments)
        async with store_harness.database.transaction() as tx:
            await tx.execute("DELETE FROM commands")
        assert (await ask(tool, request=f"id-{tool}", **arguments)).ok
    (plan,) = family.load(now_ms=0).workflow.plans
    assert len(plan.tasks) == 1


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("set_active_plan", {"plan_id": "plan_009"}, "unknown_plan"),
        ("set_active_task", {"task_id": "task_009"}, "unknown_plan"),
        ("update_plan_task", {"plan_id": "plan_001", "task_id": "task_009"}, "unknown_plan_task"),
        ("update_plan_task", {"plan_id": "plan_009", "task_id": "task_001"}, "unknown_plan"),
        ("update_plan_task", {"task_id": "task_001"}, "no_plan"),
        ("update_plan_task", {"plan_id": "plan_001"}, "empty"),
        ("update_plan_task", {"plan_id": "plan_001", "task_id": "task_001", "status": "x"}, "bad_arguments"),
        ("create_plan", {"title": "x" * 201}, "too_long"),
        ("create_plan", {"title": " "}, "empty"),
        ("create_plan", {"title": "x", "objective": "x" * 2_001}, "too_long"),
        ("create_plan", {"title": "x", "tasks": ["y"] * 51}, "too_many"),
        ("create_plan", {"title": "x", "tasks": [""]}, "empty"),
        ("create_plan", {}, "bad_arguments"),
        ("create_plan", {"title": "x", "colour": "red"}, "bad_arguments"),
        ("record_decision", {"decision": "x" * 201}, "too_long"),
        ("record_decision", {"decision": "\n"}, "empty"),
        ("note_open_file", {"path": "x" * 301}, "too_long"),
        ("set_active_plan", {}, "bad_arguments"),
        ("dance", {}, "unknown_tool"),
    ],
)
async def test_what_cannot_be_kept_is_refused_with_a_code(
    ask: Ask, family: ContextManager, tool: str, arguments: dict[str, Any], code: str
) -> None:
    await ask("create_plan", title="Trip", tasks=["train"])
    await ask("set_active_plan", plan_id=None)
    before = family.load(now_ms=0)
    reply = await ask(tool, **arguments)
    assert (reply.ok, reply.code) == (False, code), reply.text
    assert family.load(now_ms=0) == before


async def test_a_context_that_is_held_is_said_to_be_busy(tmp_path: Path) -> None:
    manager = ContextManager.of(tmp_path, "family", counter=EstimatingCounter(), lock_seconds=0.01)
    manager.record_decision("x", now_ms=0)
    with FileLock(manager.files.path / LOCK):
        reply = tools.use(manager, "record_decision", {"decision": "y"}, request_id="r", now_ms=0)
    assert (reply.ok, reply.code) == (False, "context_busy")


async def test_a_disk_that_takes_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "family").write_text("no folder")
    manager = ContextManager.of(tmp_path, "family", counter=EstimatingCounter())
    reply = tools.use(manager, "record_decision", {"decision": "y"}, request_id="r", now_ms=0)
    assert (reply.ok, reply.code) == (False, "disk")


async def test_each_group_keeps_its_own(ask: Ask, recorder: ContextRecorder) -> None:
    await ask("record_decision", by="work", decision="We ship on Friday.")
    assert recorder.manager(Folder("family")).load(now_ms=0).context.is_empty
    assert not recorder.manager(Folder("work")).load(now_ms=0).context.is_empty


@pytest.mark.parametrize(
    ("change", "code"), [("kind = 'worker'", "not_allowed"), ("is_isolated = 1", "apart")]
)
async def test_workers_and_isolated_runs_keep_nothing(
    ask: Ask, family: ContextManager, store_harness: StoreHarness, change: str, code: str
) -> None:
    await store_harness.hear("@Andy hello")
    await store_harness.start_next()
    async with store_harness.database.transaction() as tx:
        await tx.execute(f"UPDATE turns SET {change}")
    assert (await ask("record_decision", decision="x")).code == code
    assert family.load(now_ms=0).context.is_empty


async def test_c_18_a_switch_of_plans_begins_the_summary_anew_where_that_is_asked(
    ask: Ask, family: ContextManager
) -> None:
    await ask("create_plan", title="Trip", objective="A day at the sea")
    family.join_summary("They spoke of bees.", now_ms=1)
    assert (await ask("set_active_plan", plan_id="plan_001")).ok
    assert family.load(now_ms=0).context.conversation.running_summary == "They spoke of bees."
    assert (await ask("set_active_plan", plan_id="plan_001", resets_summary=True)).ok
    assert family.load(now_ms=0).context.conversation.running_summary == "Trip\nA day at the sea"
    (taken,) = family.snapshots()
    assert "bees" in family.files.snapshots.read(taken.name).context.conversation.running_summary


async def test_compacting_takes_a_snapshot_and_its_summary_joins_the_running_one(
    ask: Ask, family: ContextManager
) -> None:
    family.register_message(
        NewMessage(id="t1.u", role="user", content="Jane: train or bus?", at_ms=1), now_ms=1
    )
    family.record_decision("We go by train, not by car.", now_ms=2)
    compacting = await ask(wire.COMPACTING)
    assert compacting.ok
    assert "We go by train, not by car." in compacting.data["meta"], "it is what the session is told again"
    assert "train or bus" not in compacting.data["meta"]
    assert len(family.snapshots()) == 1
    long = "They decided to go by train. " + "Much was said besides, of this and of that. " * 60
    assert (await ask(wire.COMPACTED, summary=f"{long} The password=hunter22 was told.")).ok
    summary = family.load(now_ms=0).context.conversation.running_summary
    assert "They decided to go by train." in summary
    assert "hunter22" not in summary
    assert script.weight(summary) <= script.MAX_SUMMARY_WEIGHT
    assert (await ask(wire.COMPACTED)).ok, "no summary changes nothing"
    assert family.load(now_ms=0).context.conversation.running_summary == summary


def test_no_model_is_offered_the_words_of_the_runner() -> None:
    offered = {one.name for one in wire.TOOLS}
    assert set(wire.ARGUMENTS) - offered == {wire.COMPACTING, wire.COMPACTED}
