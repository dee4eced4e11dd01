"""Describe the chats of this machine, which are always there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.channels.description import ChannelDescription
from orchestrator.domain.protocols import Channel, Feature
from orchestrator.domain.values import ChatJid

if TYPE_CHECKING:
    from orchestrator.channels.context import ChannelContext

PREFIX = "local:"


def owns(jid: ChatJid) -> bool:
    """Return whether `jid` is a chat of this machine: `local:<name>`."""
    return jid.startswith(PREFIX)


def build(context: ChannelContext) -> Channel:
    from orchestrator.channels.local.channel import LocalChannel

    del context
    return LocalChannel()


CHANNEL = ChannelDescription(
    name="local",
    title="Chats of this machine",
    about={
        "en": "Chats without a phone: in the console, over HTTP, and in a terminal of this machine.",
        "ko": "휴대전화 없이 하는 대화입니다. 콘솔과 HTTP, 이 컴퓨터의 터미널에서 합니다.",
    },
    owns=owns,
    build=build,
    features=frozenset({Feature.IDEMPOTENT}),
    is_always_on=True,
)
