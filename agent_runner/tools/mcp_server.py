"""The tool table as an MCP server inside the runner.

It implements the four messages that the CLI sends to a server of tools. The `mcp` package implements the
whole protocol, but importing it takes longer than everything else at the start of a container together.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any

from agent_runner.agents.claude.cli_command import DASHBOARD, SERVER
from agent_runner.ans.lazy_notices import LazyNotices
from agent_runner.error_log import log_fault, one_line
from agent_runner.ipc_client import HostClient
from agent_runner.tools.table import tools_for, words_of
from agent_runner.tools.tool import Tool
from agent_runner.tools.wire import DASHBOARD_TOOLS
from agent_runner.wire.order import RunOrder

METHOD_NOT_FOUND = -32601
"""The code of JSON-RPC for a method that does not exist."""


class ToolServer:
    """Answers JSON-RPC messages of the Model Context Protocol with the tools of one group."""

    def __init__(self, order: RunOrder, host: HostClient, noticing: LazyNotices) -> None:
        """Calls of tools become requests to `host`; those for notices also use `noticing`.

        `order` decides which tools there are.
        """
        self.turn: int | None = None
        """The turn that is being answered."""
        self._host = host
        self._calls: Counter[tuple[int | None, str]] = Counter()
        """The number of calls of a tool with the same arguments, by turn and hash."""
        self._tools = _tools_of(order)
        self._noticing = noticing
        self._is_worker = order.turn.kind == "worker"

    async def answer(self, message: dict[str, Any], *, server: str = SERVER) -> dict[str, Any] | None:
        """Return the answer to a JSON-RPC message for the server of this name; None if it is a notification.

        An error in a tool is part of the answer, never raised.
        """
        if "id" not in message:
            return None
        parameters = _object(message.get("params"))
        match message.get("method"):
            case "initialize":
                result = _introduction(server, parameters)
            case "ping":
                result = {}
            case "tools/list":
                result = {"tools": self._listing(server)}
            case "tools/call":
                result = await self._call(server, str(parameters.get("name")), parameters.get("arguments"))
            case method:
                return _error(message["id"], f"no method {method}")
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    def _tools_on(self, server: str) -> dict[str, Tool]:
        """Return the tools of a server by name; `server` is one of `cli_command.SERVERS`.

        Those for notices are made at their first use. A dashboard's worker has none for notices.
        """
        if server not in self._tools:  # the one for notices, since the others are there from the start
            self._tools[server] = {} if self._is_worker else _notice_tools(self._noticing)
        return self._tools[server]

    def _listing(self, server: str) -> list[dict[str, Any]]:
        """Return the tools of a server as the answer to `tools/list` describes them."""
        return [tool.listing() for tool in self._tools_on(server).values()]

    async def _call(self, server: str, name: str, arguments: Any) -> dict[str, Any]:
        """Call a tool of a server and return its result, which is marked as an error if the call failed.

        An unknown tool and an exception in a tool give such a result, too. `arguments` are those of the
        message, None if it has none.
        """
        tool = self._tools_on(server).get(name)
        if tool is None:
            return _text_result(f"There is no tool {name}.", is_error=True)
        if not isinstance(arguments, dict | None):
            return _text_result("The arguments do not fit. They have to be an object.", is_error=True)
        arguments = arguments or {}
        try:
            request_id = self._request_id(name if server == SERVER else f"{server}.{name}", arguments)
            reply = await tool.call(arguments, self._host, turn=self.turn, request_id=request_id)
        except Exception as error:  # noqa: BLE001  # the model is told, and goes on without the tool
            log_fault(f"the tool {name} broke", error)
            return _text_result(one_line(error), is_error=True)
        return _text_result(words_of(reply), is_error=not reply.ok)

    def _request_id(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Count a call of a tool, and return the id that its request has at the host; None outside a turn.

        The same call of a retried turn gets the same id, so that the host does nothing twice. A call that is
        repeated within the turn gets another one.
        """
        if self.turn is None:
            return None
        text = json.dumps([name, arguments], sort_keys=True)
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:24]
        self._calls[self.turn, digest] += 1
        return f"t{self.turn}-{digest}-{self._calls[self.turn, digest]}"


def _tools_of(order: RunOrder) -> dict[str, dict[str, Tool]]:
    """Return the tools of Andy's own server and of the dashboard's, by server and name.

    A dashboard's worker has only a few tools of the dashboard, in Andy's own server.
    """
    is_worker = order.turn.kind == "worker"
    own_tools = tools_for(is_main=order.is_main, is_worker=is_worker, searches_web=order.search_tool)
    dashboard_tools = () if is_worker else DASHBOARD_TOOLS
    return {
        SERVER: {tool.name: tool for tool in own_tools},
        DASHBOARD: {tool.name: tool for tool in dashboard_tools},
    }


def _notice_tools(noticing: LazyNotices) -> dict[str, Tool]:
    """Return the tools for notices, by name."""
    # Imported only when the CLI asks for its tools, so that the import does not delay the CLI's start.
    from agent_runner.tools.notices import notice_tools

    return {tool.name: tool for tool in notice_tools(noticing)}


def _introduction(server: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a server to `initialize`, in the protocol version that the CLI names."""
    return {
        "protocolVersion": parameters.get("protocolVersion", "2025-06-18"),
        "capabilities": {"tools": {}},
        "serverInfo": {"name": server, "version": "1"},
    }


def _object(value: Any) -> dict[str, Any]:
    """Return a part of a message that has to be an object; an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def _text_result(text: str, *, is_error: bool) -> dict[str, Any]:
    """Return the result of a tool call that consists of a text."""
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def _error(request_id: Any, text: str) -> dict[str, Any]:
    """Return the JSON-RPC answer that refuses a request for a method that does not exist."""
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": METHOD_NOT_FOUND, "message": text}}
