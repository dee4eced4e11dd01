"""The pipe to a running CLI of Claude: what comes over it that is no message."""

from __future__ import annotations

import json
import subprocess
from typing import Any, cast

import pytest
from claude_agent_sdk import ProcessError

from agent_runner.agents.claude.cli_command import StartedCli
from agent_runner.agents.claude.cli_transport import CliProcess
from agent_runner.tools.mcp_server import ToolServer

OUTPUT = '{no message}\\n{"type": "first"}\\n{"type": "second", "te'
COMMAND = ["sh", "-c", f"printf '{OUTPUT}'; kill -9 $$"]


def started(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.fixture
def cli() -> CliProcess:
    """A CLI that is killed while it writes its second message."""
    return CliProcess(StartedCli(COMMAND, started(COMMAND), cast("Any", None)), cast("Any", None))


async def test_a_cli_that_is_killed_while_it_writes_has_ended_by_itself(cli: CliProcess) -> None:
    messages = cli.read_messages()

    assert await anext(messages) == {"type": "first"}
    with pytest.raises(ProcessError):
        await anext(messages)
    await cli.close()


class Broken(ToolServer):
    """Tools that cannot even be listed."""

    def __init__(self) -> None:
        pass

    async def answer(self, message: dict[str, Any], *, server: str = "") -> dict[str, Any] | None:
        raise LookupError("no tools")


async def test_a_cli_is_not_left_waiting_for_the_answer_of_tools_that_break() -> None:
    call = {"subtype": "mcp_message", "server_name": "andy", "message": {"id": 1, "method": "tools/list"}}
    request = json.dumps({"type": "control_request", "request_id": "r1", "request": call})
    command = ["sh", "-c", f"printf '%s\\n' '{request}'; exec cat"]  # it shows what it is answered
    cli = CliProcess(StartedCli(command, started(command), cast("Any", None)), Broken())

    answer = await anext(cli.read_messages())

    response = {"subtype": "error", "request_id": "r1", "error": "LookupError: no tools"}
    assert answer == {"type": "control_response", "response": response}
    await cli.close()
