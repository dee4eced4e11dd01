"""List the channels of the host and find the one that owns an address.

A new messenger is one module and one line in `build`.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.channels.context import ChannelContext
from orchestrator.channels.local import LocalChannel
from orchestrator.channels.voice import transcriber
from orchestrator.channels.voice.transcriber import VoiceTranscriber
from orchestrator.channels.whatsapp.channel import WhatsAppChannel
from orchestrator.domain.protocols import Channel
from orchestrator.domain.values import ChatJid
from orchestrator.groups.host_context import HostContext


def build(context: ChannelContext) -> tuple[Channel, ...]:
    """Return every channel of a host. None connects before its `run` is called."""
    return (
        LocalChannel(),
        WhatsAppChannel(context),
    )


def build_transcriber(host: HostContext) -> VoiceTranscriber | None:
    """Make what transcribes voice notes, where the owner has installed the library and the model for it."""
    folder = transcriber.model_folder(host.home, host.settings.andy_voice_model)
    is_ready = transcriber.has_library() and transcriber.is_model(folder)
    return VoiceTranscriber(folder) if is_ready else None


def build_channels(host: HostContext) -> Channels:
    """Make every channel of a host."""
    context = ChannelContext(
        home=host.home.root,
        database=host.database,
        clock=host.clock,
        bus=host.bus,
        assistant=host.settings.assistant_name,
        has_own_number=host.settings.assistant_has_own_number,
        attachment_bytes=host.attachment_bytes,
        wake_outbox=host.wakeups.outbox.set,
        voice=build_transcriber(host),
    )
    return Channels(build(context))


class Channels:
    """Holds the channels of this host, in the order in which they are asked for an address."""

    def __init__(self, channels: Sequence[Channel]) -> None:
        self.all = tuple(channels)

    @property
    def whatsapp(self) -> WhatsAppChannel:
        """The channel that has more to it than the protocol: it can be paired."""
        return next(channel for channel in self.all if isinstance(channel, WhatsAppChannel))

    def owner(self, jid: ChatJid) -> Channel | None:
        """Return the channel that owns `jid`, or None when none does."""
        return next((channel for channel in self.all if channel.owns(jid)), None)
