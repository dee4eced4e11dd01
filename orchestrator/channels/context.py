"""Define what the host passes to a channel: enough to write one without knowing the rest of the host.

It is a module of its own because channels import it, and `registry` imports the channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.channels.voice.transcriber import VoiceTranscriber
from orchestrator.domain.values import ChatJid
from orchestrator.store.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelContext:
    """The clock, database, event bus and settings that all channels of a host share."""

    home: Path
    database: Database
    clock: Clock
    bus: EventBus
    assistant: str
    has_own_number: bool
    """Whether the account is the assistant's alone; otherwise its messages appear among its owner's own."""
    attachment_bytes: int
    """Bytes of the largest file that is fetched; 0 fetches none."""
    wake_outbox: Callable[[], None]
    """Makes the delivery look now for messages to send."""
    on_typing: Callable[[ChatJid], None] = lambda _: None
    """Called when somebody types in a chat, registered or not. It must neither block nor raise."""
    voice: VoiceTranscriber | None = None
    """Transcribes voice notes; None if that is off."""
