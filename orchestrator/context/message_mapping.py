"""Convert an exchange, a turn's question and answer, to the messages that a context stores. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agent_runner.wire.order import Request
from orchestrator.context.dialogue import TAKEN_BACK, NewMessage
from orchestrator.context.models import answer_id, question_id
from orchestrator.domain.silence import is_silence
from orchestrator.domain.values import Group, TurnKind
from orchestrator.inbound import triggers
from orchestrator.outbound.format import for_people
from orchestrator.store.conversation.exchanges import TurnExchange

AUTO_QUESTION = "(Nobody asked: you woke by yourself.)"
SCHEDULED_QUESTION = "(A scheduled task asked:)"
EMPTY_CALL = "(called you)"


def question_text(exchange: TurnExchange, group: Group, *, name: str) -> str:
    """Return the text of a turn's question: one line `sender: text` for each message that asked it.

    `name` is the assistant's name; a call such as `@Andy` in front of a text is left out.
    """
    requests = (
        Request(sender=message.sender, text=triggers.without_trigger(message.text, group, name=name))
        for message in exchange.asked
    )
    return _joined_question(exchange.kind, requests)


def answer_text(exchange: TurnExchange) -> str:
    """Return the part of a turn's answer that was shown to people; empty if the agent chose to be silent."""
    # `for_people` leaves out what the agent wrote for itself (`<internal>`).
    visible_texts = (for_people(text) for text in exchange.said)
    return "\n\n".join(text for text in visible_texts if text and not is_silence(text))


def is_conversation(exchange: TurnExchange) -> bool:
    """Return whether a turn's question and answer are part of the conversation.

    They are not if the agent woke by itself and said nothing.
    """
    return exchange.kind is not TurnKind.AUTO or bool(answer_text(exchange))


def messages_of(exchange: TurnExchange, group: Group, *, name: str) -> Iterator[NewMessage]:
    """Yield the messages of a turn as a context stores them: its question, and its answer once it has ended.

    `name` is the assistant's name. There are none if the agent woke by itself and said nothing; there is no
    answer if it said nothing that people may read.
    """
    if not is_conversation(exchange):
        return
    question = question_text(exchange, group, name=name)
    answer = answer_text(exchange)
    if question:
        yield NewMessage(
            id=question_id(exchange.turn), role="user", content=question, at_ms=exchange.asked_ms
        )
    if exchange.is_settled and answer:
        at_ms = exchange.ended_ms or exchange.asked_ms
        yield NewMessage(id=answer_id(exchange.turn), role="assistant", content=answer, at_ms=at_ms)


def _joined_question(kind: TurnKind, requests: Iterable[Request]) -> str:
    """Return the text of a turn's question: one line for each person's message that is in it.

    If the agent woke by itself or a scheduled task asked, a fixed text says so; the task's text follows it.
    If all messages were deleted, the text is `TAKEN_BACK`.
    """
    match kind:
        case TurnKind.AUTO:
            return AUTO_QUESTION
        case TurnKind.TASK:
            return " ".join([SCHEDULED_QUESTION, *(request.text for request in requests)])
        case _:
            return "\n".join(_sender_line(request) for request in requests) or TAKEN_BACK


def _sender_line(request: Request) -> str:
    """Return a message as the line `sender: text`; one without a text only called the assistant by name."""
    text = request.text or EMPTY_CALL
    return f"{request.sender}: {text}" if request.sender else text
