"""The pipe to a running CLI of Claude: what comes over it that is no message."""

from __future__ import annotations

import subprocess
from typing import Any, cast

import pytest
from claude_agent_sdk import ProcessError

from agent_runner.agents.claude.cli_command import StartedCli
from agent_runner.agents.claude.cli_transport import CliProcess

OUTPUT = '{no message}\\n{"type": "first"}\\n{"type": "second", "te'
COMMAND = ["sh", "-c", f"printf '{OUTPUT}'; kill -9 $$"]


@pytest.fixture
def cli() -> CliProcess:
    """A CLI that is killed while it writes its second message."""
    process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    return CliProcess(StartedCli(COMMAND, process, cast("Any", None)), cast("Any", None))


async def test_a_cli_that_is_killed_while_it_writes_has_ended_by_itself(cli: CliProcess) -> None:
    messages = cli.read_messages()

    assert await anext(messages) == {"type": "first"}
    with pytest.raises(ProcessError):
        await anext(messages)
    await cli.close()
