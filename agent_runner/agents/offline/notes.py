"""Notices as people are told them: notes to itself that the host keeps, and what it says went wrong."""

from __future__ import annotations

from collections.abc import Iterable

from agent_runner.agents.offline.conversation import Asked
from agent_runner.agents.offline.intents import say
from agent_runner.ipc_client import HostClient
from agent_runner.wire.mailbox import NotifySelf
from agent_runner.wire.notices import Notice
from agent_runner.wire.notify_self import refusal_of
from agent_runner.wire.order import TurnOrder
from agent_runner.wire.times import Language

NEVER = 0
READ_ALREADY = (
    *("host.notification.delivered", "host.notification.expired"),
    *("host.command.refused", "host.budget.warning"),
)
"""Facts that stood in the chat as they happened: a model has to be told of them, who reads along has not."""


async def keep(host: HostClient, text: str, asked: Asked) -> str:
    """Have the host keep a note until it was said; a refusal is told in its own words."""
    note = NotifySelf(
        request_id=asked.next_id(),
        message=text,
        category="reminder",
        persist_cross_session=True,
        expires_in_hours=NEVER,
    )
    if refusal := refusal_of(note):
        return refusal.text
    reply = await host.ask(note)
    return asked.say("note_kept", note=text) if reply.ok else reply.text


def shown(turn: TurnOrder) -> list[Notice]:
    """Of what the host keeps for a turn, what a person is told: all but what the chat has read itself."""
    return [each for each in turn.notices if not _is_read(each)]


def _is_read(notice: Notice) -> bool:
    return notice.event_type in READ_ALREADY and notice.priority not in ("high", "critical")


def lines(told: Iterable[Notice], language: Language) -> list[str]:
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
