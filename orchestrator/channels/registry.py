"""Which channel owns an address. A new messenger is one module and one line in `build`."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.channels.context import ChannelContext
from orchestrator.channels.local import LocalChannel
from orchestrator.channels.whatsapp.channel import WhatsAppChannel
from orchestrator.domain.protocols import Channel
from orchestrator.domain.values import ChatJid


def build(context: ChannelContext) -> tuple[Channel, ...]:
    """Make every channel of a host. None connects before it is run."""
    return (
        LocalChannel(),
        WhatsAppChannel(context),
    )


class Channels:
    """The channels of this host, asked in their order."""

    def __init__(self, channels: Sequence[Channel]) -> None:
        self.all = tuple(channels)

    @property
    def whatsapp(self) -> WhatsAppChannel:
        return next(one for one in self.all if isinstance(one, WhatsAppChannel))

    def owner(self, jid: ChatJid) -> Channel | None:
        return next((channel for channel in self.all if channel.owns(jid)), None)
