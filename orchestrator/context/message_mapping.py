"""Turn an exchange (what was asked and answered) into the messages that a context keeps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agent_runner.wire.order import Request
from orchestrator.context.dialogue import TAKEN_BACK, NewMessage
from orchestrator.context.models import answer_id, question_id
from orchestrator.domain.silence import is_silence
from orchestrator.domain.values import Group, TurnKind
from orchestrator.inbound import triggers
from orchestrator.outbound.format import for_people
from orchestrator.store.exchanges import TurnExchange

BY_ITSELF = "(Nobody asked: you woke by yourself.)"
BY_SCHEDULE = "(A scheduled task asked:)"
CALLED = "(called you)"


def asked_in_words(exchange: TurnExchange, group: Group, *, name: str) -> str:
    """Return what was asked, a line `sender: text` for each message, without the assistant's `name` in
    front.
    """
    requests = (
        Request(sender=one.sender, text=triggers.without_trigger(one.text, group, name=name))
        for one in exchange.asked
    )
    return _asked(exchange.kind, requests)


def said_in_words(exchange: TurnExchange) -> str:
    """Return what people have seen of the answer; empty when the agent was silent."""
    seen = (for_people(text) for text in exchange.said)
    return "\n\n".join(text for text in seen if text and not is_silence(text))


def is_worth_keeping(exchange: TurnExchange) -> bool:
    """Return whether an exchange is part of the conversation: what an agent does by itself in silence
    is not.
    """
    return exchange.kind is not TurnKind.AUTO or bool(said_in_words(exchange))


def spoken_in(exchange: TurnExchange, group: Group, *, name: str) -> Iterator[NewMessage]:
    """Yield the messages of an exchange: the question, and the answer once the turn has ended."""
    if not is_worth_keeping(exchange):
        return
    asked = asked_in_words(exchange, group, name=name)
    answer = said_in_words(exchange)
    if asked:
        yield NewMessage(id=question_id(exchange.turn), role="user", content=asked, at_ms=exchange.asked_ms)
    if exchange.is_settled and answer:
        at_ms = exchange.ended_ms or exchange.asked_ms
        yield NewMessage(id=answer_id(exchange.turn), role="assistant", content=answer, at_ms=at_ms)


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
