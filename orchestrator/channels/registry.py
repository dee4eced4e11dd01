"""Build the channels that are switched on, and find the one that owns an address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import structlog
from pydantic import BaseModel

from orchestrator.base.supervision import reason_of
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.description import ChannelDescription
from orchestrator.channels.discovery import find, switched_on
from orchestrator.channels.unusable import UnusableChannel
from orchestrator.channels.voice import transcriber
from orchestrator.channels.voice.transcriber import VoiceTranscriber
from orchestrator.domain.errors import SettingError
from orchestrator.domain.protocols import Channel
from orchestrator.domain.turn_signs import Sign
from orchestrator.domain.values import ChatJid
from orchestrator.groups.host_context import HostContext

log = structlog.get_logger(__name__)


def build(context: ChannelContext, names: Sequence[str]) -> tuple[Channel, ...]:
    """Return the local channel and the channels with these `names`; a channel connects only in its `run`.

    A channel that cannot be built is replaced by an `UnusableChannel`.

    Raises:
        SettingError: there is no channel with one of the names, or its package cannot be loaded.
    """
    return tuple(_build_channel(description, context) for description in switched_on(names))


def _build_channel(description: ChannelDescription, context: ChannelContext) -> Channel:
    """Build and return the channel of a description.

    If its library is missing, or building it fails for any reason but its settings, log that and return an
    `UnusableChannel` in its place.

    Raises:
        SettingError: a setting of the channel is wrong.
    """
    try:
        return description.build(context)
    except ImportError as error:
        # Without a traceback: it would show no more than the name of the missing module.
        log.error("channel.library_missing", channel=description.name, reason=str(error))  # noqa: TRY400
        return UnusableChannel(description, advice=description.missing_library)
    except SettingError:
        raise
    except Exception as error:
        # A channel of another package may be broken in any way; Andy starts all the same.
        log.exception("channel.not_built", channel=description.name)
        advice = (
            f"{description.title} cannot be started ({reason_of(error)}): fix or remove its package, then"
            " start Andy again."
        )
        return UnusableChannel(description, advice=advice)


def build_transcriber(host: HostContext) -> VoiceTranscriber | None:
    """Build the transcriber of voice notes, if its library and model are installed; otherwise return None."""
    folder = transcriber.model_folder(host.home, host.settings.andy_voice_model)
    is_ready = transcriber.has_library() and transcriber.is_model(folder)
    return VoiceTranscriber(folder) if is_ready else None


def build_channels(host: HostContext) -> Channels:
    """Build the channels that a host's settings switch on. Raises `SettingError` if a setting is wrong."""
    context = ChannelContext(
        home=host.home.root,
        database=host.database,
        clock=host.clock,
        bus=host.bus,
        assistant=host.settings.assistant_name,
        has_own_number=host.settings.assistant_has_own_number,
        attachment_bytes=host.attachment_bytes,
        wake_outbox=host.wakeups.outbox.set,
        # Whoever types may soon ask something: the group's container can be started before that.
        on_typing=lambda jid: host.signs.note(Sign.TYPING, jid=jid),
        voice=build_transcriber(host),
    )
    return Channels(build(context, host.settings.channels))


class PairingService(Protocol):
    """Pairs a channel with a phone.

    Both methods return the progress, which serializes as `web.api.pairing.PairingView`. They may raise
    `AndyError`.
    """

    async def progress(self) -> BaseModel:
        """Return how far the pairing with a phone has got."""
        ...

    async def request_code(self, phone: str = "") -> BaseModel:
        """Request a code that pairs the phone, and return the progress.

        With an empty `phone` it is a QR code. If `phone` is a phone number, it is a code to type on the phone
        that has this number.
        """
        ...


@runtime_checkable
class PairedChannel(Protocol):
    """A channel that is paired with a phone."""

    @property
    def pairing(self) -> PairingService:
        """The service that pairs the channel with a phone."""
        ...


class Channels:
    """The channels of this host, in the order in which they are searched for an address."""

    def __init__(self, channels: Sequence[Channel]) -> None:
        """`channels` are the channels that are on, in the order in which they are asked for an address."""
        self.all = tuple(channels)

    @property
    def pairings(self) -> Mapping[str, PairingService]:
        """The pairing services by channel name, for the channels that are paired with a phone."""
        return {channel.name: channel.pairing for channel in self.all if isinstance(channel, PairedChannel)}

    @property
    def messengers(self) -> list[ChannelDescription]:
        """The descriptions of those channels that connect to a messenger."""
        return [description for channel in self.all if not (description := find(channel.name)).is_always_on]

    def owner(self, jid: ChatJid) -> Channel | None:
        """Return the channel that owns `jid`, or None when none does."""
        return next((channel for channel in self.all if channel.owns(jid)), None)
