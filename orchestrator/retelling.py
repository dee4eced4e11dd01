"""An exchange in the words in which a conversation keeps it. Pure."""

from __future__ import annotations

from orchestrator.inbound import triggers
from orchestrator.models import Group, TurnKind
from orchestrator.outbound.format import for_people
from orchestrator.silence import is_silence
from orchestrator.store.exchanges import Asked, Exchange

BY_ITSELF = "(Nobody asked: you woke by yourself.)"
BY_SCHEDULE = "(A scheduled task asked:)"


def asked_in_words(exchange: Exchange, group: Group, *, name: str) -> str:
    """What was asked: `sender: text` a line, the assistant's `name` before it left out."""
    match exchange.kind:
        case TurnKind.AUTO:
            return BY_ITSELF
        case TurnKind.TASK:
            return " ".join([BY_SCHEDULE, *(one.text for one in exchange.asked)])
        case _:
            return "\n".join(_line(one, group, name) for one in exchange.asked)


def said_in_words(exchange: Exchange) -> str:
    """What people have seen of the answer; empty of one that was silent."""
    seen = (for_people(text) for text in exchange.said)
    return "\n\n".join(text for text in seen if text and not is_silence(text))


def is_worth_keeping(exchange: Exchange) -> bool:
    """Whether it is part of a conversation: what an agent does by itself, in silence, is none."""
    return exchange.kind is not TurnKind.AUTO or bool(said_in_words(exchange))


def _line(one: Asked, group: Group, name: str) -> str:
    text = triggers.without_trigger(one.text, group, name=name) or one.text.strip()
    return f"{one.sender}: {text}" if one.sender else text
