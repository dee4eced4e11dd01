"""Define the three Protocols of the host: `Channel`, `ContainerRuntime` and `RunningContainer`.

The fourth, `Agent`, belongs to the container's program (`agent_runner.interfaces`). The store has no
Protocol: tests use real SQLite.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from orchestrator.domain.polls import Poll
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


class Receive(Protocol):
    """Accepts a message from a channel."""

    def __call__(self, message: Inbound, *, cursor: str | None = None) -> Awaitable[None]:
        """Store a message and return once it is durable.

        `cursor` is the place in the messenger's own stream up to which the channel then has all messages. It
        is stored in the same transaction under `message.channel` (`store.conversation.chats.cursor` reads
        it), so that after a crash the channel asks for no message twice and misses none.

        Raises:
            BadRequest: the message cannot be taken; neither it nor `cursor` was stored.
            StoreError: the database cannot be used now.
        """
        ...


# The core asks for these and names no messenger, so that a new messenger needs no change elsewhere.
class Feature(StrEnum):
    """An ability of a messenger beyond texts and files."""

    QUOTES = "quotes"
    """A message can answer another one visibly."""
    MENTIONS = "mentions"
    REACTIONS = "reactions"
    POLLS = "polls"
    """A question with options can be sent as a poll, and its votes say who chose which option."""
    TYPING = "typing"
    MARKS = "marks"
    """Markdown's bold, lists and code are shown as such, in the messenger's own format."""
    EDITS = "edits"
    """Edits of messages come in."""
    DELETIONS = "deletions"
    """Deletions of messages come in."""
    WITHDRAWALS = "withdrawals"
    """A message of Andy's own can be deleted for everybody in its chat, within the messenger's limits."""
    READ_RECEIPTS = "read receipts"
    """People can see that a message was read."""
    THREADS = "threads"
    """A chat has threads or topics, and an answer goes into the one it belongs to."""
    IDEMPOTENT = "idempotent sends"
    """A message that is sent again with the same id is shown once; if the channel cannot guarantee that for a
    message, it raises `OutcomeUnknown`. Without this feature, each send whose answer was lost ends as
    `OutcomeUnknown`.
    """


class Channel(Protocol):
    """A messenger. One task calls `run`; `send` and `set_typing` may come from others at any time."""

    name: str
    features: frozenset[Feature]
    """The abilities of the messenger. A caller leaves out what they do not include."""
    max_text_chars: int | None
    """The longest text that `send` takes, in code points; None when no text is too long."""
    max_file_bytes: int | None
    """The largest file that `send` takes; None when the owner's own limit is the only one."""

    def owns(self, jid: ChatJid) -> bool:
        """Return whether `jid` is an address of this channel. Pure; never raises."""
        ...

    async def run(self, receive: Receive) -> None:
        """Stay connected and pass messages to `receive` until cancelled; retry after errors that may pass."""
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
        thread: str | None = None,
        poll: Poll | None = None,
    ) -> MessageId | None:
        """Send a message to a chat. Called again with the same `message_id`, it must not show a second one.

        If it cannot know whether it would, it raises `OutcomeUnknown`.

        With an `attachment`, `text` is shown under the file and may be empty. Each other argument is passed
        only to a channel with the feature of its name: `quote` is the message of the chat that this one
        answers, `mention` is the person whom it is for, and `thread` is the thread of the message that is
        answered, as the channel reported it. `poll` is sent as a poll, with `text` for those who cannot see
        polls; a vote comes in as an `Inbound` with `vote`. If the chat takes no polls, raise
        `ChannelRefused`: the caller then sends the text.

        Return the messenger's own id of the message, or None if that is `message_id`. The id is stored, so
        that the channel can find the message when somebody answers it
        (`store.conversation.messages.own_by_channel_id`).

        Raises:
            ChannelDown: it was not sent; it may work later. If the chat has a new address, the error's
                `moved_to` names it.
            ChannelRefused: it was not sent, and never will be.
            OutcomeUnknown: it may have been sent, and sent again it could be shown twice.
        """
        ...

    async def set_typing(self, jid: ChatJid, *, is_typing: bool) -> None:
        """Show or hide the typing sign in a chat. Best effort; never raises.

        Called only if the channel has `Feature.TYPING`.
        """
        ...

    async def react(self, message: Message, sign: str) -> None:
        """Put the emoji `sign` under a message, in place of Andy's previous one; an empty one removes it.

        Called only if the channel has `Feature.REACTIONS`.

        Raises:
            ChannelDown: it was not put there; it may work later.
            ChannelRefused: it was not put there, and never will be.
        """
        ...

    async def end_poll(self, message: Message) -> None:
        """Show that a poll of Andy's own takes no more votes; one that is over or gone is no error.

        Called only if the channel has `Feature.POLLS`.

        Raises:
            ChannelDown: it still takes votes; it may work later.
            ChannelRefused: it can never be ended there; its further votes do not count.
        """
        ...

    async def withdraw(self, message: Message) -> None:
        """Delete a message of Andy's own for everybody; one that is gone is no error.

        Called only if the channel has `Feature.WITHDRAWALS`.

        Raises:
            ChannelDown: it was not deleted; it may work later.
            ChannelRefused: it was not deleted, and never will be.
        """
        ...

    def status(self) -> dict[str, Any]:
        """Return the state of the connection, for `/status`; an empty dict for a channel without one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A path of the host that a container sees at a path of its own."""

    source: Path
    target: str
    is_writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """All that a runtime needs to start one container."""

    run_id: RunId
    folder: Folder
    mounts: Sequence[Mount]
    environment: dict[str, str] = field(default_factory=dict)
    memory_bytes: int = 2 * 1024**3
    cpus: float = 2.0
    pids: int = 512
    is_open: bool = False
    """Whether it may reach the internet, through a second network that is not internal."""
    node_label: str | None = None
    """`NAME=VALUE`: a runtime of several machines starts it only on nodes with this label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The end of a container. `code` is None when it cannot be known any more."""

    code: int | None
    was_oom_killed: bool = False
    stderr_tail: str = ""


class RunningContainer(Protocol):
    """A started container. Cancelling any call leaves the container as it is."""

    run_id: RunId
    folder: Folder
    ref: str
    """The runtime's own id for it, which the store records to find the container again."""
    is_outdated: bool
    """Whether its image differs from the one that a container would be started from now; False if unknown."""

    def output(self) -> AsyncGenerator[bytes, None]:
        """Yield stdout from its first byte, in any chunks, until the container ends.

        Called once; a caller that stops early closes it. A container adopted from an earlier host yields its
        whole output again.

        Raises:
            EngineGone: the stream broke while the container may live on.
        """
        ...

    async def wait(self) -> Exit:
        """Wait until the container has ended, and return its exit. Raises `EngineGone`."""
        ...

    async def stop(self, *, grace_seconds: float = 2.0) -> None:
        """Send SIGTERM, then SIGKILL after `grace_seconds`. A missing container is no error.

        Raises `EngineGone`.
        """
        ...

    async def remove(self) -> None:
        """Remove the container with its output. A missing container is no error.

        Called once its end and its output are recorded.
        """
        ...


class ContainerRuntime(Protocol):
    """Starts containers, and finds those that an earlier host left running."""

    name: str
    is_isolated: bool

    async def start(self, spec: ContainerSpec, order: str) -> RunningContainer:
        """Start a container and write `order`, one line that says what to do, to its stdin.

        After an error or a cancellation nothing is left behind.

        Raises:
            EngineGone: no engine answers.
            ImageMissing: the agents' image is missing.
            ContainerError: the engine refuses, with its reason.
        """
        ...

    async def adopt(self) -> Sequence[RunningContainer]:
        """Return the containers that an earlier host of this installation left, ended ones too.

        Raises `EngineGone`.
        """
        ...

    async def close(self) -> None:
        """Close the runtime's threads and connections. Containers stay."""
        ...
