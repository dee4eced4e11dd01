from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_runner.ans.lazy_notices import LazyNotices
from agent_runner.ipc_client import HostClient
from agent_runner.tools.mcp_server import METHOD_NOT_FOUND, ToolServer
from agent_runner.tools.table import tools_for
from agent_runner.wire.mailbox import Command, Reply, SendMessage, UseDashboard
from agent_runner.workspace import Workspace
from tests.processes.runner import order_of


class Answering(HostClient):
    """Says yes to everything, or breaks."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(Workspace(Path("/nowhere")))
        self.error = error
        self.asked: list[Command] = []

    async def ask(self, command: Command) -> Reply:
        self.asked.append(command)
        if self.error is not None:
            raise self.error
        return Reply(request_id="r", ok=True, code="done", text="Sent.")


def server(host: HostClient | None = None, *, is_main: bool = False) -> ToolServer:
    order = order_of("hi", is_main=is_main)
    return ToolServer(order, host or Answering(), LazyNotices(order, Workspace(Path("/nowhere"))))


async def ask(tools: ToolServer, method: str, **parameters: Any) -> Any:
    answer = await tools.answer({"jsonrpc": "2.0", "id": 0, "method": method, "params": parameters})
    assert answer
    assert (answer["jsonrpc"], answer["id"]) == ("2.0", 0)
    return answer.get("result", answer.get("error"))


async def test_it_introduces_itself_in_the_version_it_is_asked_for() -> None:
    result = await ask(server(), "initialize", protocolVersion="2026-07-28")
    assert result["protocolVersion"] == "2026-07-28"
    assert "tools" in result["capabilities"]


@pytest.mark.parametrize("is_main", [True, False])
async def test_it_lists_the_tools_of_its_group(is_main: bool) -> None:
    result = await ask(server(is_main=is_main), "tools/list")
    assert [tool["name"] for tool in result["tools"]] == [tool.name for tool in tools_for(is_main=is_main)]
    assert all(tool["inputSchema"]["type"] == "object" for tool in result["tools"])


async def test_a_call_is_asked_of_the_host_for_the_turn_at_hand() -> None:
    host = Answering()
    tools = server(host)
    tools.turn = 9
    result = await ask(tools, "tools/call", name="send_message", arguments={"text": "hi"})
    assert result == {"content": [{"type": "text", "text": "Sent."}], "isError": False}
    assert host.asked == [SendMessage(text="hi", turn=9)]


async def test_a_tool_that_breaks_is_an_error_to_the_model_only() -> None:
    tools = server(Answering(OSError("disk full")))
    result = await ask(tools, "tools/call", name="list_tasks")
    assert result["isError"] is True
    assert result["content"][0]["text"] == "OSError: disk full"


@pytest.mark.parametrize("name", ["register_group", "nonsense"])
async def test_a_tool_that_is_not_the_groups_is_not_called(name: str) -> None:
    host = Answering()
    result = await ask(server(host), "tools/call", name=name, arguments={})
    assert result["isError"] is True
    assert host.asked == []


async def test_a_ping_is_answered() -> None:
    assert await ask(server(), "ping") == {}


async def test_an_unknown_method_is_refused() -> None:
    assert (await ask(server(), "resources/list"))["code"] == METHOD_NOT_FOUND


@pytest.mark.parametrize("odd", [["a list"], [], "a text", "", 7])
async def test_a_tool_is_not_called_with_what_is_no_object(odd: Any) -> None:
    host = Answering()
    result = await ask(server(host), "tools/call", name="list_tasks", arguments=odd)
    assert result["isError"] is True
    assert "object" in result["content"][0]["text"]
    assert host.asked == []


@pytest.mark.parametrize("none", [{}, {"arguments": None}, {"arguments": {}}])
async def test_a_tool_can_be_called_without_arguments(none: dict[str, Any]) -> None:
    result = await ask(server(), "tools/call", name="list_tasks", **none)
    assert result["isError"] is False


@pytest.mark.parametrize("odd", [["a list"], "a text", 7, None])
async def test_a_call_without_an_object_names_no_tool(odd: Any) -> None:
    answer = await server().answer({"jsonrpc": "2.0", "id": 0, "method": "tools/call", "params": odd})
    assert answer
    assert answer["result"]["isError"] is True


async def test_a_notification_gets_no_answer() -> None:
    assert await server().answer({"jsonrpc": "2.0", "method": "notifications/initialized"}) is None


async def test_a_turn_that_is_tried_again_asks_under_the_same_ids() -> None:
    """What a first try made is then found and not made again; the same call twice in one try is two."""
    task = {"prompt": "news", "schedule_type": "interval", "schedule_value": "1h"}

    async def one_try() -> list[str | None]:
        host = Answering()
        tools = server(host)
        tools.turn = 9
        for arguments in (task, task, {**task, "prompt": "weather"}):
            await ask(tools, "tools/call", name="schedule_task", arguments=arguments)
        return [command.request_id for command in host.asked]

    first = await one_try()
    assert len(set(first)) == 3
    assert await one_try() == first


async def test_the_dashboards_tools_are_a_server_of_their_own() -> None:
    host = Answering()
    tools = server(host)
    tools.turn = 9
    listing = {"jsonrpc": "2.0", "id": 0, "method": "tools/list"}
    answer = await tools.answer(listing, server="dashboard")
    assert answer is not None
    names = {tool["name"] for tool in answer["result"]["tools"]}
    assert {"create_task", "update_task", "move_to_history"} <= names
    assert len(names) == 13
    call = {"name": "update_task", "arguments": {"task_id": "task_1", "progress": 80}}
    await tools.answer({**listing, "method": "tools/call", "params": call}, server="dashboard")
    assert host.asked == [
        UseDashboard(tool="update_task", arguments={"task_id": "task_1", "progress": 80}, turn=9)
    ]


async def test_what_does_not_fit_a_dashboards_tool_is_told_without_asking() -> None:
    host = Answering()
    params = {"name": "create_task", "arguments": {"title": "x", "created_by": "me"}}
    call = {"jsonrpc": "2.0", "id": 0, "method": "tools/call", "params": params}
    answer = await server(host).answer(call, server="dashboard")
    assert answer is not None
    assert "created_by" in answer["result"]["content"][0]["text"]
    assert host.asked == []
