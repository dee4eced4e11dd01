"""The seams of the host: three Protocols. The fourth, `Agent`, is the container's: `agent_runner.interfaces`.

There is none for the store: tests use real SQLite.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from orchestrator.domain.values import (
    Attachment,
    ChatJid,
    ChatMember,
    Folder,
    Inbound,
    Message,
    MessageId,
    RunId,
)

Receive = Callable[[Inbound], Awaitable[None]]
"""Called by a channel for each message; returns when the message is durable. Raises `BadRequest`."""


class Feature(StrEnum):
    """What a messenger may be able to show beside texts and files."""

    QUOTES = "quotes"
    MENTIONS = "mentions"
    REACTIONS = "reactions"


class Channel(Protocol):
    """A messenger. One task calls `run`; `send` and `set_typing` may come from others at any time."""

    name: str
    features: frozenset[Feature]
    """What of this it can do. What it cannot, whoever sends leaves out."""
    max_text_chars: int | None
    """The longest text that `send` takes, in code points; None when no text is too long."""

    def owns(self, jid: ChatJid) -> bool:
        """Tell whether `jid` is an address of this channel. Pure; never raises."""
        ...

    async def run(self, receive: Receive) -> None:
        """Stay connected and hand in messages until cancelled. Errors that pass are its own to retry."""
        ...

    async def send(
        self,
        jid: ChatJid,
        text: str,
        message_id: MessageId,
        *,
        attachment: Attachment | None = None,
        quote: Message | None = None,
        mention: ChatMember | None = None,
    ) -> None:
        """Deliver once. The same `message_id` again must not show a second message.

        With an attachment, `text` is what stands under it and may be empty. `quote` is a message of the chat
        that it answers, given with `Feature.QUOTES`; `mention` the person whom it is for, given with
        `Feature.MENTIONS`.

        Raises:
            ChannelDown: it may work later.
            ChannelRefused: it never will.
        """
        ...

    async def set_typing(self, jid: ChatJid, *, is_typing: bool) -> None:
        """Show or hide the typing sign. Best effort; never raises."""
        ...

    async def react(self, message: Message, sign: str) -> None:
        """Put `sign` under a message in place of the last one; an empty sign takes that away.

        Called with `Feature.REACTIONS` only. Best effort; never raises.
        """
        ...

    def status(self) -> dict[str, Any]:
        """Tell how the connection is, for `/status`; nothing where there is none to tell of."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A host path at a container path."""

    source: Path
    target: str
    is_writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """All a runtime needs to start one container."""

    run_id: RunId
    folder: Folder
    mounts: Sequence[Mount]
    environment: dict[str, str] = field(default_factory=dict)
    memory_bytes: int = 2 * 1024**3
    cpus: float = 2.0
    pids: int = 512
    is_open: bool = False
    """Whether it may reach the internet, on a second network that is not closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a container ended. `code` is None when that cannot be known any more."""

    code: int | None
    was_oom_killed: bool = False
    stderr_tail: str = ""


class RunningContainer(Protocol):
    """A started container. Cancelling any call leaves the container as it is."""

    run_id: RunId
    folder: Folder
    ref: str
    """What the runtime knows it by: kept in the store to find it again."""

    def output(self) -> AsyncGenerator[bytes, None]:
        """Yield stdout from its first byte, in any chunks, until the container ends.

        Called once, and closed by who stops early. An adopted container yields again what an earlier
        host has read.

        Raises:
            EngineGone: the stream broke while the container may live on.
        """
        ...

    async def wait(self) -> Exit:
        """Return how it ended, once it has. Raises `EngineGone`."""
        ...

    async def stop(self, *, grace_seconds: float = 2.0) -> None:
        """SIGTERM, then SIGKILL after the grace. "Already gone" is no error. Raises `EngineGone`."""
        ...

    async def remove(self) -> None:
        """Forget it and its output; called when both are recorded. "Already gone" is no error."""
        ...


class ContainerRuntime(Protocol):
    """Where containers come from."""

    name: str
    is_isolated: bool

    async def start(self, spec: ContainerSpec, order: str) -> RunningContainer:
        """Start a container and write `order` (one line) to its stdin.

        After an error or a cancellation nothing is left behind.

        Raises:
            EngineGone: no engine answers.
            ImageMissing: there is nothing to start.
            ContainerError: the engine refuses, with its reason.
        """
        ...

    async def adopt(self) -> Sequence[RunningContainer]:
        """List what an earlier host of this install left, ended ones too. Raises `EngineGone`."""
        ...

    async def close(self) -> None:
        """Let go of threads and connections; containers stay."""
        ...
