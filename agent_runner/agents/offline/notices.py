"""Show a person the notices that a model would be given at the points of its turn."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
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
    *("host.notification.delivered", "host.notification.expired"),
    *("host.command.refused", "host.budget.warning"),
)
"""Facts that stood in the chat as they happened: a model has to be told of them, who reads along has not."""


async def turn_start(noticing: LazyNotices, turn: TurnOrder) -> None:
    """Tell what is to be said with the answer. What is not for a person stays untold."""
    shown = _shown(turn)
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
    return "\n".join(_lines((each for each in turn.notices if each.id in ids), language))


def _shown(turn: TurnOrder) -> list[Notice]:
    """Of what the host keeps for a turn, what a person is told: all but what the chat has read itself."""
    return [each for each in turn.notices if not _is_read(each)]


def _is_read(notice: Notice) -> bool:
    return notice.event_type in READ_ALREADY and notice.priority not in ("high", "critical")


def _lines(told: Iterable[Notice], language: Language) -> list[str]:
    """Say them in short lines, each once."""
    return [
        say("note_to_self", language, note=_message(each))
        if _is_note(each)
        else say("host_fact", language, fact=_message(each))
        for each in told
    ]


def _is_note(notice: Notice) -> bool:
    return notice.event_type.startswith("agent.self.")


def _message(notice: Notice) -> str:
    return " ".join(str(notice.payload.get("message") or notice.event_type).split())


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
        context = _Asked(number=self._calls, command=command)
        self._noticing.do(context.begun)
        began = time.monotonic()
        reply = await self._host.ask(command.model_copy(update={"turn": self.turn}))
        duration_ms = round((time.monotonic() - began) * 1000)
        self._noticing.do(lambda rules: context.ended(rules, reply, duration_ms))
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
