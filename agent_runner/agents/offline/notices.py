"""Show a person the notices that a model would be given at the points of its turn."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agent_runner.agents.offline.intents import say
from agent_runner.ans.noticing import LazyNotices
from agent_runner.ipc_client import HostClient
from agent_runner.wire.mailbox import Command, Reply
from agent_runner.wire.notices import Notice
from agent_runner.wire.order import MAX_RESTORE_CHARS, TurnOrder
from agent_runner.wire.times import Language

if TYPE_CHECKING:
    from agent_runner.ans.rules import NoticeRules
    from agent_runner.ans.tool_events import ToolCall

READ_ALREADY = (
    "host.notification.delivered",
    "host.notification.expired",
    "host.command.refused",
    "host.budget.warning",
)
"""Facts that stood in the chat as they happened: a model has to be given them, who reads along has not."""


async def turn_start(noticing: LazyNotices, turn: TurnOrder) -> None:
    """Take what is to be shown with the answer, and withdraw what is not for a person."""
    if all(_is_read(notice) for notice in turn.notices):
        return
    rules = await noticing.load()
    for notice in turn.notices:
        if _is_read(notice):
            rules.notices.withdraw(notice.id)
    await rules.drain("turn_start", limit=MAX_RESTORE_CHARS)


async def turn_end(noticing: LazyNotices) -> None:
    """Take what matters most off the list: no model is there to go on with it, and the person has seen it."""
    if noticing.rules is not None:
        await noticing.rules.drain("turn_end", limit=MAX_RESTORE_CHARS, at_least="high")


def shown_lines(noticing: LazyNotices, turn: TurnOrder, language: Language) -> str:
    """Return a line for each notice that the host gave to the turn and that any point of it has taken."""
    if noticing.rules is None:
        return ""
    taken = {each.id for each in noticing.rules.notices.told}
    return "\n".join(_line(notice, language) for notice in turn.notices if notice.id in taken)


def _is_read(notice: Notice) -> bool:
    return notice.event_type in READ_ALREADY and notice.priority not in ("high", "critical")


def _line(notice: Notice, language: Language) -> str:
    message = " ".join(str(notice.payload.get("message") or notice.event_type).split())
    if notice.event_type.startswith("agent.self."):
        return say("own_note", language, note=message)
    return say("host_fact", language, fact=message)


class ObservedHost(HostClient):
    """The host, each request to which is reported as a call of a tool: its begin and how it ended."""

    def __init__(self, host: HostClient, noticing: LazyNotices) -> None:
        self._host = host
        self._noticing = noticing
        self._calls = 0
        self.turn: int | None = None
        """The turn that is being answered."""

    async def ask(self, command: Command) -> Reply:
        self._calls += 1
        number = self._calls
        self._noticing.do(lambda rules: rules.calls.pending(_call(number, command)))
        began = time.monotonic()
        reply = await self._host.ask(command.model_copy(update={"turn": self.turn}))
        duration_ms = round((time.monotonic() - began) * 1000)
        self._noticing.do(lambda rules: _report(rules, _call(number, command), reply, duration_ms))
        if self._noticing.rules is not None:
            await self._noticing.rules.drain("after_tool", limit=MAX_RESTORE_CHARS)
        return reply

    def close(self) -> None:
        self._host.close()


def _report(rules: NoticeRules, call: ToolCall, reply: Reply, duration_ms: int) -> None:
    if reply.ok:
        rules.calls.succeeded(call, result_chars=len(reply.text), duration_ms=duration_ms)
    else:
        rules.calls.failed(call, reply.text, duration_ms=duration_ms, error_type=reply.code)
    rules.batch_ended([call])


def _call(number: int, command: Command) -> ToolCall:
    # Imported here: it takes a tenth of a second, and is called once the rules of notices are loaded anyway.
    from agent_runner.ans.tool_events import ToolCall

    arguments = command.model_dump(exclude={"v", "type", "request_id"}, exclude_none=True)
    return ToolCall(id=f"call-{number}", name=command.type, arguments=arguments)
