"""`/compact` and `/clear`: what people say to the conversation itself. Pure."""

from __future__ import annotations

from orchestrator.domain.values import Group, Inbound, SessionCommand
from orchestrator.inbound import triggers

ONLY_OWNER = "only the owner may use this here"
_BY_TEXT = {f"/{command.value}": command for command in SessionCommand}


def asked(text: str, group: Group, *, name: str) -> SessionCommand | None:
    """The command that a message is, whole and exact, with or without the trigger before it."""
    is_called = triggers.is_called(text, group, name=name)
    return _BY_TEXT.get(triggers.without_trigger(text, group, name=name) if is_called else text.strip())


def refusal(message: Inbound, group: Group) -> str | None:
    """None when the sender may: anyone in main, the owner elsewhere."""
    return None if group.is_main or message.is_from_me else ONLY_OWNER
