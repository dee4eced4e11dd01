"""Which channel owns an address. A new messenger is one module and one line in `app`."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.interfaces import Channel
from orchestrator.models import ChatJid


class Channels:
    """The channels of this host, asked in their order."""

    def __init__(self, channels: Sequence[Channel]) -> None:
        self.all = tuple(channels)

    def owner(self, jid: ChatJid) -> Channel | None:
        return next((channel for channel in self.all if channel.owns(jid)), None)
