"""Make dialogues of turns that are a minute apart."""

from __future__ import annotations

from orchestrator.context.dialogue import NewMessage
from orchestrator.context.models import Context, ContextMessage, Dialogue, Memory, iso

NOW = 1_795_339_800_000
"""2026-11-22T09:30:00Z."""
MINUTE = 60_000


def question(turn: int, content: str) -> ContextMessage:
    return ContextMessage(id=f"t{turn}.u", role="user", content=content, ts=iso(NOW + turn * MINUTE))


def answer(turn: int, content: str) -> ContextMessage:
    return ContextMessage(
        id=f"t{turn}.a", role="assistant", content=content, ts=iso(NOW + turn * MINUTE + 30_000)
    )


def asks(turn: int, content: str) -> NewMessage:
    return NewMessage(id=f"t{turn}.u", role="user", content=content, at_ms=NOW + turn * MINUTE)


def answers(turn: int, content: str) -> NewMessage:
    return NewMessage(id=f"t{turn}.a", role="assistant", content=content, at_ms=NOW + turn * MINUTE + 30_000)


def context(
    *window: ContextMessage, summary: str = "", memory: Memory | None = None, pending: str | None = None
) -> Context:
    return Context(
        created_at=iso(NOW),
        updated_at=iso(NOW),
        memory=memory or Memory(),
        conversation=Dialogue(running_summary=summary, recent_window=window),
        pending_user=pending,
    )
