"""The points of the offline agent's own loop: what a model is told at them, here a person is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_runner.agents.offline import notes
from agent_runner.ans.noticing import LazyNotices
from agent_runner.ipc_client import HostClient
from agent_runner.wire.mailbox import Command, Reply
from agent_runner.wire.order import MAX_RESTORE_CHARS, TurnOrder
from agent_runner.wire.times import Language

if TYPE_CHECKING:
    from agent_runner.ans.rules import NoticeRules
    from agent_runner.ans.tool_events import ToolCall


async def turn_start(noticing: LazyNotices, turn: TurnOrder) -> None:
    """Tell what is to be said with the answer. What is not for a person stays untold."""
    shown = notes.shown(turn)
    if not shown:
        return
    rules = await noticing.load()
    for notice in turn.notices:
        if notice not in shown:
            rules.notices.withdraw(notice.id)
    await rules.drain("turn_start", limit=MAX_RESTORE_CHARS)


async def turn_end(noticing: LazyNotices) -> None:
    """Let go of what matters most: no model is there to go on with it, and the person was told."""
    if noticing.rules is not None:
        await noticing.rules.drain("turn_end", limit=MAX_RESTORE_CHARS, at_least="high")


def told(noticing: LazyNotices, turn: TurnOrder, language: Language) -> str:
    """Return in short lines what the turn was given and has told, at whichever of its points."""
    if noticing.rules is None:
        return ""
    ids = {each.id for each in noticing.rules.notices.told}
    return "\n".join(notes.lines((each for each in turn.notices if each.id in ids), language))


class ObservedHost(HostClient):
    """The host, where each request is a call of a tool: begun, ended well or not, and judged at once."""

    def __init__(self, host: HostClient, noticing: LazyNotices) -> None:
        self._host = host
        self._noticing = noticing
        self._calls = 0
        self.turn: int | None = None
        """The turn that is being answered."""

    async def ask(self, command: Command) -> Reply:
        self._calls += 1
        asked = _Asked(number=self._calls, command=command)
        self._noticing.do(asked.begun)
        began = time.monotonic()
        reply = await self._host.ask(command.model_copy(update={"turn": self.turn}))
        duration_ms = round((time.monotonic() - began) * 1000)
        self._noticing.do(lambda rules: asked.ended(rules, reply, duration_ms))
        if self._noticing.rules is not None:
            await self._noticing.rules.drain("after_tool", limit=MAX_RESTORE_CHARS)
        return reply

    def close(self) -> None:
        self._host.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    number: int
    command: Command

    def begun(self, rules: NoticeRules) -> None:
        rules.calls.pending(self._call())

    def ended(self, rules: NoticeRules, reply: Reply, duration_ms: int) -> None:
        call = self._call()
        if reply.ok:
            rules.calls.succeeded(call, result_chars=len(reply.text), duration_ms=duration_ms)
        else:
            rules.calls.failed(call, reply.text, duration_ms=duration_ms, error_type=reply.code)
        rules.batch_ended([call])

    def _call(self) -> ToolCall:
        from agent_runner.ans.tool_events import ToolCall

        arguments = self.command.model_dump(exclude={"v", "type", "request_id"}, exclude_none=True)
        return ToolCall(id=f"call-{self.number}", name=self.command.type, arguments=arguments)
