from __future__ import annotations

import json
from typing import Any

import pytest

from agent_runner.ipc_client import HostClient
from agent_runner.tools.table import TABLE, Tool, tools_for, words_of
from agent_runner.tools.wire import DASHBOARD_TOOLS
from agent_runner.wire.mailbox import Command, Reply, ScheduleTask, parse_command

EXAMPLES: dict[str, dict[str, Any]] = {
    "send_message": {"text": "안녕"},
    "send_file": {"path": "plan.pdf", "caption": "the plan"},
    "react": {"emoji": "🎉", "message": "we won"},
    "send_poll": {"question": "Tea?", "options": ["Yes", "No"], "is_multiple": True, "until": "2h"},
    "search_history": {"query": "milk", "before": 3},
    "register_group": {"jid": "local:bees", "name": "Bees", "folder": "bees", "requires_trigger": False},
    "change_group": {
        "folder": "bees",
        "trigger": "",
        "requires_trigger": False,
        "people": {"*": "guest"},
    },
    "unregister_group": {"folder": "bees"},
    "refresh_groups": {},
    "choose_model": {"model": "local/qwen3", "target_folder": "family", "work": "tasks"},
    "schedule_task": {"prompt": "뉴스", "schedule_type": "cron", "schedule_value": "0 9 * * *"},
    "reschedule_task": {"task_id": "task-1", "schedule_value": "1h"},
    "pause_task": {"task_id": "task-1"},
    "resume_task": {"task_id": "task-1"},
    "cancel_task": {"task_id": "task-1"},
    "run_task": {"task_id": "task-1"},
    "list_tasks": {},
    "set_next_wake": {"next": "45m", "reason": "waiting for feedback"},
    "control_loop": {"action": "on", "target_folder": "bees"},
    "create_plan": {"title": "부산 여행", "tasks": ["book the train"]},
    "update_plan_task": {"task_id": "task_001", "status": "completed"},
    "set_active_plan": {"plan_id": "plan_001"},
    "set_active_task": {"task_id": None},
    "record_decision": {"decision": "We go by train."},
    "note_open_file": {"path": "trip/plan.md"},
    "memory": {"action": "forget", "about": "the blue bicycle"},
}


class Listening(HostClient):
    """Keeps what it is asked instead of writing it."""

    def __init__(self) -> None:
        self.asked: list[Command] = []

    async def ask(self, command: Command) -> Reply:
        self.asked.append(command)
        return Reply(request_id="r", ok=True, code="done", text="Done.")


def tool_named(name: str) -> Tool:
    return next(tool for tool in TABLE if tool.name == name)


@pytest.mark.parametrize("tool", TABLE, ids=lambda tool: tool.name)
async def test_every_tool_becomes_a_command_that_the_wire_knows(tool: Tool) -> None:
    host = Listening()
    reply = await tool.call(EXAMPLES[tool.name], host)
    assert reply.ok
    assert parse_command(host.asked[0].to_json()) == host.asked[0]


@pytest.mark.parametrize("tool", TABLE, ids=lambda tool: tool.name)
async def test_every_schema_describes_each_parameter_and_others_are_refused(tool: Tool) -> None:
    schema = tool.schema()
    assert schema["type"] == "object"
    assert all("description" in parameter for parameter in schema["properties"].values())
    assert '"title": "' not in json.dumps(schema), "a parameter may be called so; what pydantic adds is text"
    host = Listening()
    reply = await tool.call({**EXAMPLES[tool.name], "nonsense": 1}, host)
    assert (reply.ok, host.asked) == (False, [])
    assert "nonsense" in reply.text


@pytest.mark.parametrize("tool", [*TABLE, *DASHBOARD_TOOLS], ids=lambda tool: tool.name)
def test_a_model_is_shown_what_a_tool_takes_and_not_what_only_the_host_checks(tool: Tool) -> None:
    shown, checked = tool.schema(), tool.full_schema()
    assert set(shown["properties"]) == set(checked.get("properties", {}))
    assert shown.get("required") == checked.get("required")
    assert "\n" not in tool.description
    assert len(tool.description) <= 150
    text = json.dumps(shown)
    for costly in ("null", "maxLength", "additionalProperties"):
        assert costly not in text or tool.name.startswith("set_active_")
    for name, field in checked.get("properties", {}).items():
        kinds = [field, *field.get("anyOf", [])]
        words = next((kind["enum"] for kind in kinds if "enum" in kind), None)
        assert shown["properties"][name].get("enum") == words, "the words that fit are shown"


def test_no_two_tools_of_a_model_have_one_name() -> None:
    names = [tool.name for tool in (*TABLE, *DASHBOARD_TOOLS)]
    assert len(set(names)) == len(names)
    assert {"update_task", "reschedule_task"} <= set(names)


def test_other_groups_do_not_see_the_tools_of_main() -> None:
    assert {tool.name for tool in tools_for(is_main=True)} - {
        tool.name for tool in tools_for(is_main=False)
    } == {
        "register_group",
        "change_group",
        "unregister_group",
        "refresh_groups",
        "choose_model",
        "control_loop",
    }


@pytest.mark.parametrize(
    ("name", "arguments", "mistake"),
    [
        ("send_message", {}, "text"),
        ("send_message", {"text": ""}, "text"),
        ("send_message", {"text": "x" * 100_001}, "text"),
        ("set_next_wake", {"next": "30m", "when": "x"}, "when"),
        ("schedule_task", {"prompt": "x", "schedule_type": "soon", "schedule_value": "1h"}, "schedule_type"),
        ("register_group", {"jid": "a", "name": "b", "folder": "c" * 65}, "folder"),
    ],
)
async def test_arguments_that_do_not_fit_are_named_and_the_host_is_not_asked(
    name: str, arguments: dict[str, Any], mistake: str
) -> None:
    host = Listening()
    reply = await tool_named(name).call(arguments, host)
    assert (reply.ok, reply.code) == (False, "bad_arguments")
    assert mistake in reply.text
    assert host.asked == []


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("create_plan", {"title": "x", "tasks": [7] * 5_000}),
        ("list_tasks", {f"slip_{number}": number for number in range(5_000)}),
        ("list_tasks", {"slip" * 50_000: 1}),
    ],
)
async def test_a_refusal_names_the_first_mistakes_and_counts_the_others(
    name: str, arguments: dict[str, Any]
) -> None:
    reply = await tool_named(name).call(arguments, Listening())
    assert (reply.ok, reply.code) == (False, "bad_arguments")
    assert len(reply.text) < 4_000
    assert ("and 4,990 more" in reply.text) is (len(max(arguments, key=len)) < 100)


async def test_a_message_names_the_turn_it_belongs_to() -> None:
    host = Listening()
    await tool_named("send_message").call({"text": "x"}, host, turn=12)
    assert json.loads(host.asked[0].to_json())["turn"] == 12


def test_a_reply_is_read_with_its_data() -> None:
    reply = Reply(request_id="r", ok=True, code="done", text="Set.", data={"id": 4, "말": "차"})
    assert words_of(reply) == 'Set.\n{"id": 4, "말": "차"}'


async def test_what_makes_something_asks_under_the_id_it_is_given_and_nothing_else_does() -> None:
    host = Listening()
    for name, arguments in EXAMPLES.items():
        await tool_named(name).call(arguments, host, request_id="t1-abc-1")
    named = {command.type for command in host.asked if command.request_id == "t1-abc-1"}
    assert named == {"send_file", "send_poll", "schedule_task", "run_task", "remember"}


async def test_a_task_of_the_tools_is_in_the_conversation_unless_said_otherwise() -> None:
    host = Listening()
    await tool_named("schedule_task").call(EXAMPLES["schedule_task"], host)
    (command,) = host.asked
    assert isinstance(command, ScheduleTask)
    assert (command.context_mode, command.catch_up, command.overlap) == ("group", "latest", "skip")


@pytest.mark.parametrize(
    ("name", "slip"),
    [
        ("run_task", {"turn": 3}),
        ("run_task", {"request_id": "mine"}),
        ("run_task", {"type": "cancel_task"}),
        ("run_task", {"taskId": "task-2"}),
        ("search_history", {"limit": 50}),
    ],
)
async def test_a_model_fills_in_no_field_that_it_is_not_shown(name: str, slip: dict[str, Any]) -> None:
    host = Listening()
    reply = await tool_named(name).call({**EXAMPLES[name], **slip}, host)
    assert (reply.code, host.asked) == ("bad_arguments", [])
    assert next(iter(slip)) in reply.text


@pytest.mark.parametrize(
    ("name", "field"), [("control_loop", "action"), ("choose_model", "work"), ("reschedule_task", "overlap")]
)
async def test_a_word_that_does_not_fit_is_refused_with_those_that_do(name: str, field: str) -> None:
    host = Listening()
    tool = tool_named(name)
    reply = await tool.call({**EXAMPLES[name], field: "sideways"}, host)
    assert (reply.code, host.asked) == ("bad_arguments", [])
    assert all(word in reply.text for word in tool.schema()["properties"][field]["enum"])
