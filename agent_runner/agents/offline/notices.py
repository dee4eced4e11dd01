"""Show a person the notices that a model would be given at the points of its turn."""

from __future__ import annotations

from agent_runner.agents.offline.intents import say
from agent_runner.ans.noticing import LazyNotices
from agent_runner.wire.notices import Notice
from agent_runner.wire.order import MAX_RESTORE_CHARS, TurnOrder
from agent_runner.wire.times import Language

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
