"""An exchange in the words in which a conversation keeps it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from agent_runner.wire.order import Request
from orchestrator.inbound import triggers
from orchestrator.models import Group, TurnKind
from orchestrator.outbound.format import for_people
from orchestrator.silence import is_silence
from orchestrator.store.exchanges import Exchange

BY_ITSELF = "(Nobody asked: you woke by yourself.)"
BY_SCHEDULE = "(A scheduled task asked:)"
CALLED = "(called you)"
TAKEN_BACK = "(taken back by who wrote it)"


def asked_in_words(exchange: Exchange, group: Group, *, name: str) -> str:
    """What was asked: `sender: text` a line, the assistant's `name` before it left out."""
    requests = (
        Request(sender=one.sender, text=triggers.without_trigger(one.text, group, name=name))
        for one in exchange.asked
    )
    return _asked(exchange.kind, requests)


def said_in_words(exchange: Exchange) -> str:
    """What people have seen of the answer; empty of one that was silent."""
    seen = (for_people(text) for text in exchange.said)
    return "\n\n".join(text for text in seen if text and not is_silence(text))


def is_worth_keeping(exchange: Exchange) -> bool:
    """Whether it is part of a conversation: what an agent does by itself, in silence, is none."""
    return exchange.kind is not TurnKind.AUTO or bool(said_in_words(exchange))


def _asked(kind: TurnKind, requests: Iterable[Request]) -> str:
    match kind:
        case TurnKind.AUTO:
            return BY_ITSELF
        case TurnKind.TASK:
            return " ".join([BY_SCHEDULE, *(one.text for one in requests)])
        case _:
            return "\n".join(_line(one) for one in requests) or TAKEN_BACK


def _line(one: Request) -> str:
    text = one.text or CALLED
    return f"{one.sender}: {text}" if one.sender else text
