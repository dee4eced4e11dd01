"""A messenger of a simulated world: its server, which outlives the host, and the channel to it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from orchestrator.channels.connection import ChannelConnection
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.description import ChannelDescription
from orchestrator.channels.receiving import hand_in
from orchestrator.domain.errors import ChannelDown, ChannelRefused, OutcomeUnknown
from orchestrator.domain.polls import VOTE, Poll
from orchestrator.domain.protocols import Feature, Receive
from orchestrator.domain.values import Attachment, ChatJid, ChatMember, Inbound, Message, MessageId, Quote
from orchestrator.store.conversation import chats
from tests.simulation.loop import SimulatedLoop

MAX_TEXT_CHARS = 2_000
SLOW_SECONDS = 90.0
"""So long a send hangs that never answers; the host waits for 60."""


@dataclass(slots=True)
class Post:
    """Something that stands in a chat."""

    number: int
    jid: str
    text: str
    by: str
    """The person's name, or `Andy`."""
    at_ms: int
    """Wall time of the messenger."""
    key: str = ""
    quotes: int | None = None
    quoted: str = ""
    """The text that Andy quotes above a text of his."""
    sign: str = ""
    """The emoji that somebody put under the quoted post; empty of all that has words."""
    vote: tuple[int, ...] | None = None
    """The places of the options that somebody chose in the quoted poll; None of all that is no vote."""
    is_poll: bool = False
    """Whether it is a poll of the messenger's own, in which people choose with a tap."""


@dataclass(slots=True)
class Event:
    """What the server tells a channel: a post, or a change of one."""

    post: Post
    edits: int | None = None
    deletes: int | None = None


@dataclass(slots=True)
class Trouble:
    """The share of sends that goes wrong in each way; 0 without faults, and once they have ended."""

    lost_before: float = 0.0
    lost_after: float = 0.0
    refused: float = 0.0
    pause: float = 0.0
    hangs: float = 0.0
    breaks: float = 0.0
    redelivers: float = 0.0


class Messenger:
    """The server. Both ends of it are here: what people write, and what they see."""

    def __init__(
        self, name: str, loop: SimulatedLoop, seed: str, note: Callable[..., None], *, is_idempotent: bool
    ) -> None:
        self.name = name
        self.loop = loop
        self.is_idempotent = is_idempotent
        self.has_polls = False
        """Whether people choose with a tap; else a poll is a text with numbers."""
        self.max_text_chars = MAX_TEXT_CHARS
        self.chance = random.Random(f"{seed}:messenger:{name}")
        self.trouble = Trouble()
        self.events: list[Event] = []
        self.shown: list[Post] = []
        """All that stands in the chats, in order."""
        self.unsure: list[tuple[str, str]] = []
        """Chats and texts that the messenger refused for good, or whose sending ended in doubt.

        The texts may be missing.
        """
        self.refused: list[tuple[str, str]] = []
        """Chats and texts that the messenger refused for good: nobody has read these."""
        self.on_show: Callable[[], None] = lambda: None
        """Called as a text of Andy's is about to be shown."""
        self.on_shown: Callable[[], None] = lambda: None
        """Called as a text of Andy's was shown, and before its sender knows."""
        self.is_down = False
        self.taken = 0
        """How many of the events a host has taken in, or refused."""
        self._note = note
        self._keys: dict[str, Post] = {}
        self._changed = asyncio.Event()

    def write(self, jid: str, by: str, text: str, *, quotes: int | None = None, sign: str = "") -> Post:
        """Have a person write, or put a sign under a post."""
        post = self._post(jid, text, by, quotes=quotes)
        post.sign = sign
        self._tell(Event(post))
        return post

    def vote(self, poll: Post, by: str, place: int) -> Post:
        """Have a person choose an option of a poll; of one that is a text, by a reply with its number."""
        if not poll.is_poll:
            return self.write(poll.jid, by, str(place + 1), quotes=poll.number)
        post = self._post(poll.jid, f"taps on option {place + 1}", by, quotes=poll.number)
        post.vote = (place,)
        self._tell(Event(post))
        return post

    def edit(self, post: Post) -> None:
        """Have a person add a word to what they wrote."""
        self._note("said", f"{post.by} in {post.jid} adds a word to: {post.text}")
        changed = Post(post.number, post.jid, f"{post.text} please", post.by, self._now_ms())
        self._tell(Event(changed, edits=post.number))

    def delete(self, post: Post) -> None:
        """Have a person take back what they wrote."""
        self._note("said", f"{post.by} in {post.jid} takes back: {post.text}")
        self._tell(Event(Post(post.number, post.jid, "", post.by, self._now_ms()), deletes=post.number))

    def unsure_in(self, jid: str) -> list[str]:
        """Return the texts to a chat that the messenger refused for good, or whose sending ended in doubt."""
        return [text for other, text in self.unsure if other == jid]

    def go_down(self) -> None:
        self.is_down = True
        self._wake()

    def come_up(self) -> None:
        self.is_down = False
        self._wake()

    async def show(self, jid: str, text: str, key: str, *, is_poll: bool = False, quoted: str = "") -> None:
        """Show a text of Andy's, or go wrong in one of the ways of `trouble`."""
        await asyncio.sleep(self.chance.uniform(0.01, 0.3))
        if self.is_down:
            raise ChannelDown("The line is dead.")
        self.on_show()
        drawn, trouble = self.chance.random(), self.trouble
        for way in ("lost_before", "refused", "pause", "hangs", "breaks", "lost_after"):
            drawn -= getattr(trouble, way)
            if drawn < 0 and way == "refused" and self.is_idempotent and key in self._keys:
                break  # such a messenger answers a repeat as it answered the first
            if drawn < 0:
                if way == "refused" and not is_poll:  # a poll comes again as a text
                    self.refused.append((jid, text))
                await self._go_wrong(way, jid, text, key)
                break
        else:
            self._show_once(jid, text, key)
        if key in self._keys:
            self._keys[key].is_poll, self._keys[key].quoted = is_poll, quoted

    async def withdraw(self, key: str) -> None:
        """Take a text of Andy's out of its chat; one that is gone is no error."""
        await asyncio.sleep(self.chance.uniform(0.01, 0.3))
        if self.is_down or self.chance.random() < self.trouble.lost_before:
            raise ChannelDown("The line is dead.")
        if (post := self._keys.get(key)) is not None:
            self._note("andy", f"deletes in {post.jid}: {post.text}")
            post.text = ""
        if self.chance.random() < self.trouble.lost_after:
            raise ChannelDown("The answer was lost.")

    async def _go_wrong(self, way: str, jid: str, text: str, key: str) -> None:
        self._note("fault", f"{self.name}: {way.replace('_', ' ')}, of {text[:40]!r}")
        match way:
            case "lost_before":
                raise ChannelDown("The messenger could not be reached.")
            case "refused":
                self.unsure.append((jid, text))
                raise ChannelRefused("The messenger refuses this message.", is_chat_fine=True)
            case "pause":
                raise ChannelDown("Too fast.", pause_seconds=self.chance.uniform(1, 120))
            case "breaks":
                if not self.is_idempotent:
                    self.unsure.append((jid, text))
                raise ValueError("a bug of the messenger's library")
            case "hangs":
                if not self.is_idempotent:
                    self.unsure.append((jid, text))
                await asyncio.sleep(SLOW_SECONDS)
            case _:
                self._show_once(jid, text, key)
                if self.is_idempotent:
                    raise ChannelDown("The answer was lost.")
                self.unsure.append((jid, text))
                raise OutcomeUnknown

    def _show_once(self, jid: str, text: str, key: str) -> None:
        if self.is_idempotent and key in self._keys:
            return
        self._keys[key] = self._post(jid, text, "Andy", key=key)
        self.on_shown()

    def _post(self, jid: str, text: str, by: str, *, key: str = "", quotes: int | None = None) -> Post:
        post = Post(len(self.shown) + 1, jid, text, by, self._now_ms(), key=key, quotes=quotes)
        self.shown.append(post)
        self._note("said" if by != "Andy" else "andy", f"{by} in {jid}: {text}")
        return post

    def _now_ms(self) -> int:
        return self.loop.wall_ns() // 1_000_000

    def _tell(self, event: Event) -> None:
        self.events.append(event)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def changed(self) -> asyncio.Event:
        return self._changed


@dataclass(frozen=True, slots=True)
class Login:
    name: str = "andy"


class MessengerChannel:
    """The `Channel` of one life of the host."""

    max_text_chars: int | None
    max_file_bytes: int | None = None

    def __init__(self, context: ChannelContext, server: Messenger, description: ChannelDescription) -> None:
        self.name = server.name
        self.features = description.features
        self.max_text_chars = server.max_text_chars
        self._context = context
        self._server = server
        self._connection = ChannelConnection[Login](
            context,
            description,
            read_login=lambda _: Login(),
            address_prefix=f"{server.name}:",
            chance=server.chance.random,
        )
        self._is_connected = False

    def owns(self, jid: ChatJid) -> bool:
        return jid.startswith(f"{self.name}:")

    def status(self) -> dict[str, Any]:
        return self._connection.status.as_data()

    async def run(self, receive: Receive) -> None:
        await self._connection.stay_connected(lambda _: self._hold(receive))

    async def _hold(self, receive: Receive) -> None:
        server = self._server
        await asyncio.sleep(server.chance.uniform(0.05, 1.0))
        if server.is_down:
            raise ChannelDown("No connection.")
        async with self._context.database.reading() as tx:
            place = int(await chats.cursor(tx, self.name) or 0)
        # A host that was killed may have stored more than it lived to say.
        server.taken = max(server.taken, place)
        if server.chance.random() < server.trouble.redelivers:
            place = max(0, place - server.chance.randrange(1, 4))
        await self._connection.note_connected()
        self._is_connected = True
        try:
            while True:
                changed = server.changed
                if server.is_down:
                    raise ChannelDown("The line is dead.")
                while place < len(server.events):
                    cursor = str(place + 1)
                    if not await hand_in(receive, self._inbound(server.events[place]), cursor=cursor):
                        async with self._context.database.transaction() as tx:
                            await chats.set_cursor(tx, self.name, cursor)
                    place += 1
                    server.taken = max(server.taken, place)
                    if server.chance.random() < server.trouble.redelivers / 3:
                        place = max(0, place - server.chance.randrange(1, 3))
                await changed.wait()
        finally:
            self._is_connected = False

    def _inbound(self, event: Event) -> Inbound:
        post = event.post
        quoted = self._server.shown[post.quotes - 1] if post.quotes else None
        return Inbound(
            chat_jid=ChatJid(post.jid),
            id=MessageId(f"p{post.number}" if event.edits is event.deletes is None else f"c{post.number}"),
            sender=f"{self.name}:{post.by.lower()}",
            sender_name=post.by,
            text=f"[reacted {post.sign}]" if post.sign else post.text,
            sent_ms=post.at_ms,
            chat_name=post.jid,
            channel=self.name,
            is_group=True,
            quote=None
            if quoted is None
            else Quote(
                message_id=MessageId(quoted.key or f"p{quoted.number}"), sender=quoted.by, text=quoted.text
            ),
            ignored="a reaction" if post.sign else VOTE if post.vote else None,
            vote=post.vote,
            reaction=post.sign or None,
            edits=None if event.edits is None else MessageId(f"p{event.edits}"),
            deletes=None if event.deletes is None else MessageId(f"p{event.deletes}"),
        )

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
        if not self._is_connected:
            raise self._connection.why_down()
        quoted = "" if quote is None else quote.text
        await self._server.show(jid, text, message_id, is_poll=poll is not None, quoted=quoted)
        return None

    async def end_poll(self, message: Message) -> None:
        if not self._is_connected:
            raise self._connection.why_down()

    async def withdraw(self, message: Message) -> None:
        if not self._is_connected:
            raise self._connection.why_down()
        await self._server.withdraw(message.id)

    async def set_typing(self, jid: ChatJid, *, is_typing: bool) -> None:
        pass

    async def react(self, message: Message, sign: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """In the place of a package's entry point: the discovery of channels finds the messenger by it."""

    server: Messenger
    features: frozenset[Feature] = field(
        default=frozenset({Feature.QUOTES, Feature.EDITS, Feature.DELETIONS, Feature.WITHDRAWALS})
    )

    def load(self) -> ChannelDescription:
        server, name = self.server, self.server.name
        features = self.features | ({Feature.IDEMPOTENT} if server.is_idempotent else set())
        features |= {Feature.POLLS} if server.has_polls else set()

        def build(context: ChannelContext) -> MessengerChannel:
            return MessengerChannel(context, server, description)

        description = ChannelDescription(
            name=name,
            title=name.title(),
            about={"en": "A simulated messenger.", "ko": "시뮬레이션 메신저입니다."},
            owns=lambda jid: jid.startswith(f"{name}:"),
            build=build,
            features=features,
            max_text_chars=server.max_text_chars,
            status_file=f"data/channels/{name}/status.json",
        )
        return description
