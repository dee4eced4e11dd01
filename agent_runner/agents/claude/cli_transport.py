"""The pipe to a running Claude CLI, as an SDK `Transport`.

Two things differ from the SDK's own: the CLI runs before the SDK is imported, and messages to Andy's MCP
server are answered here (`tools.mcp_server`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from typing import IO, Any

from agent_runner.agents.claude.cli_command import SERVERS, StartedCli
from agent_runner.error_log import log_fault, one_line
from agent_runner.tools.mcp_server import ToolServer

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Most bytes of one message of the CLI."""
EXIT_SECONDS = 1.0
"""Seconds that the CLI may take to write its transcript after the end of its input."""


class CliProcess:
    """One CLI process. Used by one client, in the loop that calls `connect`."""

    def __init__(self, started: StartedCli, tools: ToolServer) -> None:
        """`started` is the running CLI; `tools` answers its messages to Andy's MCP servers."""
        self.command = started.command
        self.settings = started.settings
        self._process = started.process
        self._tools = tools
        self._answers: dict[str, asyncio.Task[None]] = {}
        """The tasks that answer requests of the CLI, by request id."""
        # Messages are written in threads, and two of them must not mix on the pipe.
        self._writing = threading.Lock()
        self._is_ending = False
        """Whether this side has asked the CLI to end, so that its end is no error."""

    async def connect(self) -> None:
        """Do nothing: the process runs already."""

    async def write(self, data: str) -> None:
        """Write to the CLI's stdin. If the CLI has ended, no error is raised: `read_messages` raises it."""
        await asyncio.to_thread(self._write, data.encode())

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the CLI's messages for the SDK; those for Andy's MCP servers are answered here.

        Raises the SDK's `ProcessError` when the CLI ends, unless `end_input` or `kill` was called before.
        """
        async for line in await self._lines():
            message = _message_in(line)
            if message is not None and not self._handle_tool_message(message):
                yield message
        code = await asyncio.to_thread(self._process.wait)
        if not self._is_ending:
            from claude_agent_sdk import ProcessError

            raise ProcessError("The Claude CLI ended by itself", exit_code=code)

    async def end_input(self) -> None:
        """Close the CLI's stdin, after which it finishes its transcript and ends."""
        self._is_ending = True
        with contextlib.suppress(BrokenPipeError):
            await asyncio.to_thread(self._stdin().close)

    async def close(self) -> None:
        """Let the CLI finish its transcript and end; kill it after `EXIT_SECONDS`."""
        for answer in self._answers.values():
            answer.cancel()
        try:
            async with asyncio.timeout(EXIT_SECONDS):
                await self.end_input()
                await asyncio.to_thread(self._process.wait)
        except TimeoutError:
            self.kill()

    def kill(self) -> None:
        """Kill the CLI and wait for its end, which follows at once."""
        self._is_ending = True
        self._process.kill()
        self._process.wait()

    def is_ready(self) -> bool:
        """Return whether the CLI still runs."""
        return self._process.poll() is None

    async def _lines(self) -> asyncio.StreamReader:
        """Return the CLI's stdout as a stream that can be read line by line."""
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, self._process.stdout)
        return reader

    def _stdin(self) -> IO[bytes]:
        """Return the pipe to the CLI's stdin."""
        assert self._process.stdin is not None
        return self._process.stdin

    def _write(self, data: bytes) -> None:
        """Write to the CLI's stdin; do nothing if that is closed. Blocks."""
        with self._writing, contextlib.suppress(BrokenPipeError, ValueError):
            self._stdin().write(data)
            self._stdin().flush()

    def _handle_tool_message(self, message: dict[str, Any]) -> bool:
        """Handle a message for one of Andy's MCP servers, and return whether it is one.

        Any other message is left to the SDK. A request is answered in a task of its own; when the CLI cancels
        the request, that task is cancelled.
        """
        match message:
            case {
                "type": "control_request",
                "request_id": str(request_id),
                "request": {"subtype": "mcp_message", "server_name": name, "message": dict(call)},
            } if name in SERVERS:
                task = asyncio.create_task(self._answer(request_id, name, call), name=f"tool-{request_id}")
                self._answers[request_id] = task
                return True
            case {"type": "control_cancel_request", "request_id": str(request_id)} if (
                request_id in self._answers
            ):
                self._answers[request_id].cancel()
                return True
        return False

    async def _answer(self, request_id: str, server: str, call: dict[str, Any]) -> None:
        """Answer one message for an MCP server of Andy's, on the CLI's stdin; with an error if that fails.

        `request_id` is that of the CLI's request, `server` the name of the server, `call` the message itself.
        """
        try:
            # The CLI sends an MCP notification as a request, too, and waits for a response: it gets an empty
            # one.
            try:
                answer = await self._tools.answer(call, server=server)
                response = {"mcp_response": answer or {"jsonrpc": "2.0", "result": {}}}
                body = {"subtype": "success", "request_id": request_id, "response": response}
            except Exception as error:  # noqa: BLE001  # whatever breaks, the model goes on without the answer
                log_fault("a message of the CLI for a tool broke", error)
                body = {"subtype": "error", "request_id": request_id, "error": one_line(error)}
            await self.write(json.dumps({"type": "control_response", "response": body}) + "\n")
        finally:
            self._answers.pop(request_id, None)


def _message_in(line: bytes) -> dict[str, Any] | None:
    """Parse a line of the CLI's output as a message, which is a JSON object; None for any other line.

    The last line of a CLI that was killed while it wrote may be a part of a message.
    """
    if not line.startswith(b"{"):
        return None
    try:
        message: dict[str, Any] = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message
