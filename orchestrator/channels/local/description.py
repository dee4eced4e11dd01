"""Describe the chats of this machine, which are always there."""

from __future__ import annotations

from orchestrator.channels.description import ChannelDescription, deferred
from orchestrator.domain.protocols import Feature
from orchestrator.domain.values import ChatJid

PREFIX = "local:"


def owns(jid: ChatJid) -> bool:
    """Return whether `jid` is a chat of this machine: `local:<name>`."""
    return jid.startswith(PREFIX)


CHANNEL = ChannelDescription(
    name="local",
    title="Chats of this machine",
    about={
        "en": "Chats without a phone: in the console, over HTTP, and in a terminal of this machine.",
        "ko": "휴대전화 없이 하는 대화입니다. 콘솔과 HTTP, 이 컴퓨터의 터미널에서 합니다.",
    },
    owns=owns,
    build=deferred("orchestrator.channels.local.channel:LocalChannel"),
    features=frozenset({Feature.IDEMPOTENT}),
    is_always_on=True,
)
