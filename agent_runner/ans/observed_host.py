"""Report an agent's requests to the host as tool calls, where no SDK reports them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from agent_runner.ans.lazy_notices import LazyNotices
from agent_runner.ipc_client import HostClient
from agent_runner.progress import TurnProgress
from agent_runner.wire.mailbox import Command, Reply
from agent_runner.wire.order import MAX_RESTORE_CHARS

if TYPE_CHECKING:
    from agent_runner.ans.rules import NoticeRules
    from agent_runner.ans.tool_events import ToolCall


class ObservedHost(HostClient):
    """A client of the host that reports each request as a tool call: its start, and how it ended."""

    def __init__(self, host: HostClient, noticing: LazyNotices, progress: TurnProgress) -> None:
        """Requests are sent through `host`, and reported to `noticing` and `progress`."""
        self._host = host
        self._progress = progress
        self._noticing = noticing
        self._calls = 0
        self.turn: int | None = None
        """The turn that is being answered, which each request names; None before the first."""

    async def ask(self, command: Command) -> Reply:
        """Send a command to the host and return the reply; report the start and the end of the call.

        The progress and the notices get the reports. Then the notices that are due at the end of a tool count
        as delivered, for the offline agent has no model that would read them.
        """
        self._calls += 1
        number = self._calls
        call = f"call-{number}"
        self._noticing.do(lambda rules: rules.calls.pending(_call(call, command)))
        self._progress.tool_started(call, command.type, _arguments(command))
        began = time.monotonic()
        reply = await self._host.ask(command.model_copy(update={"turn": self.turn}))
        duration_ms = round((time.monotonic() - began) * 1000)
        self._progress.tool_ended(call, ok=reply.ok)
        self._noticing.do(lambda rules: _report(rules, _call(call, command), reply, duration_ms))
        if self._noticing.rules is not None:
            # Only for its effect: the text is dropped, and the notices count as delivered. The agent's answer
            # to the chat then has a line for each of them. The limit is that of a hook of the CLI.
            await self._noticing.rules.drain("after_tool", limit=MAX_RESTORE_CHARS)
        return reply

    def close(self) -> None:
        """Close the client of the host."""
        self._host.close()


def _report(rules: NoticeRules, call: ToolCall, reply: Reply, duration_ms: int) -> None:
    """Report how a call ended, and that it was the only one of its batch. `reply` is that of the host."""
    if reply.ok:
        rules.calls.succeeded(call, result_chars=len(reply.text), duration_ms=duration_ms)
    else:
        rules.calls.failed(call, reply.text, duration_ms=duration_ms, error_type=reply.code)
    rules.batch_ended([call])


def _arguments(command: Command) -> dict[str, Any]:
    """Return the fields of a command that an agent fills in, as the arguments of a tool."""
    return command.model_dump(exclude={"v", "type", "request_id"}, exclude_none=True)


def _call(call_id: str, command: Command) -> ToolCall:
    """Return a command to the host as the call of a tool that is named after the command's type."""
    # Imported here, because it takes a tenth of a second: when this runs, the rules have been loaded anyway.
    from agent_runner.ans.tool_events import ToolCall

    return ToolCall(id=call_id, name=command.type, arguments=_arguments(command))
