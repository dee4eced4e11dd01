"""Take a message in: judge who may ask what, store it and queue its turn, all in one transaction."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal

import structlog

from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.tables import short
from orchestrator.base.wakeups import Wakeups
from orchestrator.domain import polls as polls_rules
from orchestrator.domain.errors import TextEmpty, TextTooLong
from orchestrator.domain.turn_signs import Sign
from orchestrator.domain.values import (
    ChatJid,
    Group,
    Inbound,
    Message,
    MessageId,
    Role,
    Seq,
    SessionCommand,
    TurnId,
    is_hook,
    person_of,
)
from orchestrator.groups import access, owner, people, roles, settings
from orchestrator.groups.host_context import HostContext
from orchestrator.groups.owner import OwnerRules
from orchestrator.groups.roles import Permission, Rights
from orchestrator.inbound import amendments, approval_replies, senders, triggers, votes
from orchestrator.inbound.amendments import Amendment
from orchestrator.inbound.senders import SenderRules, SenderVerdict
from orchestrator.inbound.votes import CountedVote
from orchestrator.store import (
    access_requests,
    chats,
    groups,
    messages,
    outbox,
    polls,
    turn_effects,
    turn_outages,
    turns,
    wake_requests,
)
from orchestrator.store.database import Database, Tx, after_commit

log = structlog.get_logger(__name__)

ReadSenders = Callable[[], OwnerRules[SenderRules]]
AtOnce = Callable[..., Awaitable[str | None]]
"""`(tx, group, text, quote, *, is_asked)`: do what needs no agent and return the reply, else None."""
Approve = Callable[..., Awaitable[str | None]]
"""`(tx, group, text, *, role)`: decide a request of an agent and return the reply, else None."""
Stop = Callable[..., Awaitable[str | None]]
"""`(tx, group, message, text, *, is_asked, role)`: stop what the message says to stop and return the reply,
else None."""
AnswerPoll = Callable[..., Awaitable[str | None]]
"""`(tx, group, poll, votes, *, newest, is_text)`: answer the question of the board that a poll asks and
return the reply, else None."""
Undo = Callable[..., Awaitable["ReplyAtOnce | None"]]
"""`(tx, group, message, text, *, is_asked, role)`: undo what the message says to undo; None of any other."""
Forget = Callable[..., Awaitable["ReplyAtOnce | None"]]
"""`(tx, group, message, text, *, is_asked)`: forget the sender who says so; None of any other message."""
MAX_TEXT_CHARS = 65_536
MAX_QUOTE_CHARS = 4_000
MAX_UNUSED_CHATS = 1_000
"""Chats that were only seen and are remembered, the newest."""
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
UNREADABLE = "its words could not be read"
LOCAL = "chat"
"""The kind of a wake request by a message that came through the terminal or HTTP."""
API = "api"
"""Source of a wake by a message that came over HTTP: the command line and the console use it too."""
AT_ONCE = "without an agent"
MAX_NAME_CHARS = 40
_HANGUL = re.compile("[ㄱ-ㅎㅏ-ㅣ가-힣]")
_FIELDS = tuple(field.name for field in fields(Inbound))


@dataclass(frozen=True, slots=True)
class ReplyAtOnce:
    """The reply to a message that needs no agent."""

    text: str
    turn_id: TurnId | None = None
    """The turn that has ended with it; None where it is still to be recorded."""
    is_for_host: bool = False
    """Whether it answers words for the host alone, such as "stop", which no agent is to read as a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """The sender of a message, as the owner's list and the group's rules judge them."""

    group: Group
    role: Role
    rights: Rights
    is_listed: bool
    """Whether the owner's list lets them ask."""

    @property
    def may_ask(self) -> bool:
        return self.is_listed and Permission.CALL in self.rights.may

    @property
    def is_restricted(self) -> bool:
        """Whether they ask in turns of their role's own."""
        return roles.is_restricted(self.rights, self.group)

    @property
    def changes_board(self) -> bool:
        """Whether they may answer reminders and questions without an agent."""
        return {Permission.MEMORY, Permission.SCHEDULE} <= self.rights.may


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The result of taking in a message."""

    outcome: Literal["queued", "ignored", "duplicate", "unregistered", "dropped", "amended"]
    seq: Seq | None = None
    turn_id: TurnId | None = None
    reason: str | None = None
    is_replied_to: bool = False
    """Whether the chat is told something at once, without an agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A message that `Intake.take` stored in a transaction: for `Intake.announce`, once that is committed."""

    message: Inbound
    accepted: Accepted
    denied: SenderVerdict | None
    """The reason why the sender may not ask, if it has to be logged."""
    trouble: str | None
    """The problem with the list of senders, if the owner has to be notified of it."""


class Intake:
    """Accepts the inbound messages of every channel."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        name: str,
        wakeups: Wakeups,
        bus: EventBus,
        read_senders: ReadSenders = OwnerRules,
        at_once: AtOnce | None = None,
        approve: Approve | None = None,
        stop: Stop | None = None,
        undo: Undo | None = None,
        forget: Forget | None = None,
        answer_poll: AnswerPoll | None = None,
        on_talk: Callable[[ChatJid], None] = lambda _: None,
    ) -> None:
        """`read_senders` reads the owner's list of senders and blocks; without it everybody may ask.

        `on_talk` is told the chat of each message that calls nobody.
        """
        self._database = database
        self._read_senders = read_senders
        self._at_once = at_once
        self._approve = approve
        self._stop = stop
        self._undo = undo
        self._answer_poll = answer_poll
        self._forget = forget
        self._on_talk = on_talk
        self._clock = clock
        self._name = name
        self._wakeups = wakeups
        self._bus = bus

    async def accept(self, message: Inbound, *, cursor: str | None = None) -> Accepted:
        """Store `message` and queue its turn in one transaction, then wake the dispatcher.

        `cursor` is stored with it: see `domain.protocols.Receive`.

        Raises:
            TextEmpty, TextTooLong: nothing was stored.
        """
        taken = await self._database.write(lambda tx: self.take(tx, message, cursor=cursor))
        self.announce(taken)
        return taken.accepted

    async def receive(self, message: Inbound, *, cursor: str | None = None) -> None:
        """Accept for a channel, which only needs to know that the message is durable."""
        await self.accept(message, cursor=cursor)

    async def take(self, tx: Tx, message: Inbound, *, cursor: str | None = None) -> Taken:
        """Store `message` and queue its turn, as work for `Database.write`; `announce` the result afterwards.

        Raises:
            TextEmpty, TextTooLong: nothing was stored.
        """
        _check(message)
        message = _storable(message, self._clock.now_ms())
        found = self._read_senders()
        verdict = senders.judge(message, found)
        accepted = await self._take(tx, message, verdict)
        if cursor is not None and message.channel is not None:
            await chats.set_cursor(tx, message.channel, cursor)
        is_trouble_new = False
        if found.trouble and accepted.outcome != "unregistered":
            is_trouble_new = await self._notify_broken_list(tx, found)
        is_denial = verdict is not SenderVerdict.ALLOWED and (found.rules is None or found.rules.log_denied)
        return Taken(
            message=message,
            accepted=accepted,
            denied=verdict if is_denial else None,
            trouble=found.trouble if is_trouble_new else None,
        )

    def announce(self, taken: Taken) -> None:
        """Publish the event of a message, and wake those who have to do with it."""
        message, accepted = taken.message, taken.accepted
        if taken.denied is not None:
            log.info(
                "sender.denied", chat=message.chat_jid, sender=message.sender, verdict=taken.denied.value
            )
        if taken.trouble is not None:
            log.error("senders.broken", reason=taken.trouble)
        if taken.trouble is not None or accepted.is_replied_to:
            self._wakeups.outbox.set()
        if accepted.is_replied_to:
            self._wakeups.notifications.set()  # the reply may have changed when the next of them is due
        if accepted.seq is None or accepted.outcome == "duplicate":
            return
        self._bus.publish(
            f"message.{accepted.outcome}", message=message.id, turn=accepted.turn_id, detail=accepted.reason
        )
        if accepted.reason == triggers.NO_TRIGGER:
            self._on_talk(message.chat_jid)
        if accepted.turn_id is not None or accepted.reason == amendments.FILE_CAME:
            self._wakeups.lanes.set()

    async def _notify_broken_list(self, tx: Tx, found: OwnerRules[SenderRules]) -> bool:
        """Notify the owner that the list of senders is broken, once for each state of the file."""
        text = f"⚠️ Until this is fixed, only you can ask me anything: {found.trouble}"
        return await owner.notify(tx, text, about=found.version, now_ms=self._clock.now_ms())

    async def _take(self, tx: Tx, message: Inbound, verdict: SenderVerdict) -> Accepted:
        await chats.upsert(
            tx,
            message.chat_jid,
            name=message.chat_name,
            channel=message.channel,
            is_group=message.is_group,
            at_ms=message.sent_ms,
        )
        group = await groups.by_jid(tx, message.chat_jid)
        if group is None:
            await self._take_from_stranger(tx, message, may_ask=verdict is SenderVerdict.ALLOWED)
            return Accepted(outcome="unregistered", reason="the chat is not registered")
        message = await _with_stored_quote(tx, message)
        asker = await _asker(tx, message, group, is_listed=verdict is SenderVerdict.ALLOWED)
        known = await messages.find(tx, message.chat_jid, message.id)
        if known is not None and known.file_until_ms is not None and message.file_until_ms is None:
            return await self._complete(tx, known, message, group, asker)
        if known is not None:
            return Accepted(
                outcome="duplicate", seq=known.seq, turn_id=known.turn_id, reason=known.ignored_reason
            )
        if await outbox.is_ours(tx, message.id):
            # A channel may echo what was sent before the host has noted that it was.
            return Accepted(outcome="duplicate", reason=messages.OWN_MESSAGE)
        if verdict is SenderVerdict.DROPPED:
            return Accepted(outcome="dropped", reason=senders.NOT_ALLOWED)
        if message.is_unreadable:
            await self._notify_unreadable(tx, message, group)
            return Accepted(outcome="dropped", reason=UNREADABLE, is_replied_to=True)
        await people.note_sender(tx, group, message, now_ms=self._clock.now_ms())
        return await self._take_registered(tx, message, group, asker)

    async def _take_from_stranger(self, tx: Tx, message: Inbound, *, may_ask: bool) -> None:
        """Ask the owner about a chat without a group that calls; nothing else of its messages is stored."""
        await chats.forget_unused(tx, newest=MAX_UNUSED_CHATS, but=message.chat_jid)
        if message.deletes is not None:
            await access_requests.blank(tx, message.chat_jid, message.deletes, sender=message.sender)
        if not may_ask or not triggers.is_stranger_calling(message, name=self._name):
            return
        asked = await access.ask(tx, message, now_ms=self._clock.now_ms())
        if asked is not None:
            after_commit(tx, partial(self._bus.publish, "access.asked", detail=str(asked.id)))
            after_commit(tx, self._wakeups.outbox.set)

    async def _complete(
        self, tx: Tx, known: Message, message: Inbound, group: Group, asker: Asker
    ) -> Accepted:
        """Put the file of a message into it. A voice note is a request if it turns out to call by name."""
        await messages.complete(tx, known, message)
        turn_id = known.turn_id
        is_call = message.spoken and triggers.is_called_aloud(message.spoken, group, name=self._name)
        if asker.may_ask and is_call and known.ignored_reason == triggers.NO_TRIGGER:
            now_ms = self._clock.now_ms()
            turn_id = await _join(tx, message, group, asker, now_ms=now_ms)
            await messages.claim(tx, known.seq, turn_id)
            await turns.extend(tx, turn_id, known.seq)
            await self._wake_loop(tx, message, group, now_ms=now_ms)
        return Accepted(outcome="amended", seq=known.seq, turn_id=turn_id, reason=amendments.FILE_CAME)

    async def _notify_unreadable(self, tx: Tx, message: Inbound, group: Group) -> None:
        """Say in the chat that a message could not be read: once an hour, however many there are."""
        now_ms = self._clock.now_ms()
        await outbox.add(
            tx,
            chat_jid=message.chat_jid,
            folder=group.folder,
            text=f"⚠️ I could not read what {message.sender_name} wrote."
            " If it was for me, please send it again.",
            dedupe_key=f"unreadable:{message.chat_jid}:{now_ms // HOUR_MS}",
            now_ms=now_ms,
        )

    async def _take_registered(self, tx: Tx, message: Inbound, group: Group, asker: Asker) -> Accepted:
        """Take a new message of a registered chat: an edit, a deletion, a command, a request or talk."""
        if is_hook(message.sender):
            # No word of a program commands, stops or approves anything, nor answers a reminder.
            return await self._store(tx, message, group, asker)
        if message.deletes is not None:
            await polls.take_back(tx, group.folder, message.deletes, voter=message.sender)
            return _amended(await amendments.delete(tx, message, now_ms=self._clock.now_ms()))
        voted = await self._take_vote(tx, message, group, asker)
        if voted is not None:
            return voted
        if message.edits is not None:
            # Some messengers send an edit without what the message quotes: a reply to Andy still calls him.
            whole = await _with_quote_of_original(tx, message, message.edits)
            is_request = asker.may_ask and await self._why_ignored(tx, whole, group) is None
            left = await amendments.edit(
                tx,
                message,
                group,
                is_request=is_request,
                restricted_to=asker.role if asker.is_restricted else None,
                now_ms=self._clock.now_ms(),
            )
            if isinstance(left, Amendment):
                return _amended(left)
            message = left
        command = triggers.session_command(message.text, group, name=self._name)
        if command is not None and asker.may_ask and message.ignored is None:
            return await self._apply_command(tx, message, group, command, asker)
        if asker.may_ask and (message.ignored is None or message.reaction is not None):
            answered = await self._answer_at_once(tx, message, group, asker)
            if answered is not None:
                return answered
        return await self._store(tx, message, group, asker)

    async def _take_vote(self, tx: Tx, message: Inbound, group: Group, asker: Asker) -> Accepted | None:
        """Count a vote; None of a message that is none, and of a text that is read like any other."""
        counted = await self._count_vote(tx, message, group)
        if counted is None:
            return None
        answered = None
        if counted.poll.board_question is not None:
            answered = await self._answer_board(tx, counted, group, asker, is_text=message.vote is None)
        if answered is None and message.vote is not None:
            return await self._store_vote(tx, counted, group, asker)
        return answered

    async def _count_vote(self, tx: Tx, message: Inbound, group: Group) -> CountedVote | None:
        """Count a vote in a poll, or a text for Andy that answers one by numbers; None of all else."""
        if message.ignored is not None and message.vote is None:
            return None
        is_text = message.vote is None and await self._why_ignored(tx, message, group) is None
        if message.vote is None and not is_text:
            return None
        said = replace(message, text=triggers.without_trigger(message.text, group, name=self._name))
        return await votes.count(tx, said, group, is_text=is_text, now_ms=self._clock.now_ms())

    async def _answer_board(
        self, tx: Tx, counted: CountedVote, group: Group, asker: Asker, *, is_text: bool
    ) -> Accepted | None:
        """Answer a question of the board by a vote, in a turn that has ended; None where that cannot be."""
        may_answer = asker.may_ask and asker.changes_board and counted.is_new and counted.chosen
        if self._answer_poll is None or not may_answer:
            return None
        given = await polls.votes_of(tx, counted.poll)
        newest = counted.poll.chosen_text(counted.chosen)
        async with turn_effects.recording(tx, turn_effects.PROVISIONAL, now_ms=self._clock.now_ms()):
            text = await self._answer_poll(tx, group, counted.poll, given, newest=newest, is_text=is_text)
        if text is None:
            await turn_effects.forget_provisional(tx)
            return None
        message = replace(counted.message, edits=None)
        return await self._record_reply(tx, message, group, ReplyAtOnce(text), asker)

    async def _store_vote(self, tx: Tx, counted: CountedVote, group: Group, asker: Asker) -> Accepted:
        """Store the message of a vote. It begins a turn where it may, or replaces the person's last one."""
        message, now_ms = counted.message, self._clock.now_ms()
        if not counted.is_new:
            return Accepted(outcome="dropped", reason=polls_rules.VOTE)
        # Nobody has to be told that a vote of theirs begins nothing: it counts all the same.
        is_begin = counted.is_begin and asker.may_ask
        if message.edits is not None:
            restricted_to = asker.role if asker.is_restricted else None
            left = await amendments.edit(
                tx, message, group, is_request=is_begin, restricted_to=restricted_to, now_ms=now_ms
            )
            if isinstance(left, Amendment):
                return _amended(left)
            message = left
        if not is_begin:
            return await self._store(tx, message, group, asker)
        accepted = await self._store(tx, replace(message, ignored=None, is_call=True), group, asker)
        await votes.collect(tx, counted.poll, message, now_ms=now_ms)
        return accepted

    async def _answer_at_once(self, tx: Tx, message: Inbound, group: Group, asker: Asker) -> Accepted | None:
        """Answer what needs no agent, in a turn that has ended as soon as it is queued; None of all else."""
        text = message.reaction or triggers.without_trigger(message.text, group, name=self._name)
        is_asked = not message.ignored and await self._why_ignored(tx, message, group) is None
        stopped = None
        if self._stop is not None:
            stopped = await self._stop(tx, group, message, text, is_asked=is_asked, role=asker.role)
        reply = ReplyAtOnce(stopped, is_for_host=True) if stopped is not None else None
        if reply is None and self._undo is not None:
            reply = await self._undo(tx, group, message, text, is_asked=is_asked, role=asker.role)
        if reply is None and self._forget is not None:
            reply = await self._forget(tx, group, message, text, is_asked=is_asked)
        now_ms = self._clock.now_ms()
        if reply is None:
            reply = await self._act_at_once(tx, group, message, text, asker, is_asked=is_asked, now_ms=now_ms)
        if reply is None:
            return None
        return await self._record_reply(tx, message, group, reply, asker)

    async def _record_reply(
        self, tx: Tx, message: Inbound, group: Group, reply: ReplyAtOnce, asker: Asker
    ) -> Accepted:
        """Store a message that needs no agent in a turn of its own; send the reply, if it has words."""
        now_ms = self._clock.now_ms()
        turn_id = reply.turn_id
        if turn_id is None:
            turn_id = await turns.add_answered(
                tx, group.folder, message.chat_jid, reason=AT_ONCE, now_ms=now_ms, role=asker.role
            )
            await turn_effects.adopt(tx, turn_id)
        seq = await messages.add(
            tx, message, received_ms=now_ms, is_request=True, turn_id=turn_id, ignored_reason=None
        )
        await turns.extend(tx, turn_id, seq)
        if reply.is_for_host:
            await turn_outages.note_stop(
                tx, turn_id, code=turn_outages.STOP_REQUEST, reason=AT_ONCE, now_ms=now_ms
            )
        if reply.text:
            await outbox.add(
                tx,
                chat_jid=message.chat_jid,
                folder=group.folder,
                text=reply.text,
                dedupe_key=f"at-once:{turn_id}",
                turn_id=turn_id,
                now_ms=now_ms,
            )
        return Accepted(outcome="queued", seq=seq, turn_id=turn_id, is_replied_to=True)

    async def _act_at_once(
        self, tx: Tx, group: Group, message: Inbound, text: str, asker: Asker, *, is_asked: bool, now_ms: int
    ) -> ReplyAtOnce | None:
        """Do what needs no agent and return the reply; what it changes can be undone like a turn."""
        reply = None
        async with turn_effects.recording(tx, turn_effects.PROVISIONAL, now_ms=now_ms):
            if self._approve is not None:
                reply = await self._approve(tx, group, text, role=asker.role)
            if reply is None and self._at_once is not None and asker.changes_board:
                reply = await self._at_once(tx, group, text, message.quote, is_asked=is_asked)
        if reply is None:
            # Nothing was done, so that nothing is there; else the next turn would be given it.
            await turn_effects.forget_provisional(tx)
            return None
        return ReplyAtOnce(reply)

    async def _apply_command(
        self, tx: Tx, message: Inbound, group: Group, command: SessionCommand, asker: Asker
    ) -> Accepted:
        """Queue a turn of its own for a session command, or store why it may not be given."""
        now_ms = self._clock.now_ms()
        why_not = None if Permission.COMMAND in asker.rights.may else triggers.ONLY_OWNER
        turn_id = None
        # Others, who could ask nothing here, need not know that anyone listens.
        is_explained = why_not is not None and await self._why_ignored(tx, message, group) is None
        if why_not is None:
            turn_id = await turns.add_command(tx, group.folder, message.chat_jid, command, now_ms=now_ms)
        elif is_explained:
            await self._explain_refusal(tx, message, group, why_not)
        seq = await messages.add(
            tx,
            message,
            received_ms=now_ms,
            is_request=why_not is None,
            turn_id=turn_id,
            ignored_reason=why_not,
        )
        if turn_id is None:
            return Accepted(outcome="ignored", seq=seq, reason=why_not, is_replied_to=is_explained)
        await turns.extend(tx, turn_id, seq)
        return Accepted(outcome="queued", seq=seq, turn_id=turn_id)

    async def _explain_refusal(self, tx: Tx, message: Inbound, group: Group, why_not: str) -> None:
        """Say in the chat why a command was refused."""
        await outbox.add(
            tx,
            chat_jid=message.chat_jid,
            folder=group.folder,
            text=f"I did not do that: {why_not}.",
            dedupe_key=f"denied:{message.chat_jid}:{message.id}",
            now_ms=self._clock.now_ms(),
        )

    async def _why_ignored(self, tx: Tx, message: Inbound, group: Group) -> str | None:
        return triggers.ignored_reason(
            message.text or message.file or "",
            group,
            name=self._name,
            is_addressed=await _is_addressed(tx, message),
        )

    async def _store(self, tx: Tx, message: Inbound, group: Group, asker: Asker) -> Accepted:
        now_ms = self._clock.now_ms()
        reason = message.ignored or await self._why_ignored(tx, message, group)
        is_explained = False
        if reason is None and not asker.may_ask:
            reason = roles.MAY_NOT_CALL if asker.is_listed else senders.NOT_ALLOWED
            is_explained = asker.is_listed and await _explain_role(tx, message, group, now_ms=now_ms)
        turn_id = await self._turn_for(tx, message, group, asker, is_request=reason is None, now_ms=now_ms)
        seq = await messages.add(
            tx,
            message,
            received_ms=now_ms,
            is_request=reason is None,
            turn_id=turn_id,
            ignored_reason=reason if turn_id is None else None,
        )
        if turn_id is None:
            return Accepted(outcome="ignored", seq=seq, reason=reason, is_replied_to=is_explained)
        await turns.extend(tx, turn_id, seq)
        if reason is None:
            await self._wake_loop(tx, message, group, now_ms=now_ms)
        return Accepted(outcome="queued", seq=seq, turn_id=turn_id)

    async def _wake_loop(self, tx: Tx, message: Inbound, group: Group, *, now_ms: int) -> None:
        """Wake the group's loop, however long it wanted to sleep."""
        await wake_requests.add(
            tx,
            group.folder,
            kind=message.channel or LOCAL,
            key=f"{wake_requests.MESSAGE}{message.id}",
            source=message.channel or API,
            reason=f"a message of {len(message.text)} characters",
            is_direct=True,
            now_ms=now_ms,
        )

    async def _turn_for(
        self, tx: Tx, message: Inbound, group: Group, asker: Asker, *, is_request: bool, now_ms: int
    ) -> TurnId | None:
        """Return the queued turn that a message belongs to; a request makes one, other talk only joins."""
        if is_request:
            turn_id = await _join(tx, message, group, asker, now_ms=now_ms)
            if message.vote is None:
                await turns.hurry_new(tx, turn_id, now_ms=now_ms)
            return turn_id
        waiting = await turns.queued_chat(tx, group.folder, message.chat_jid)
        return waiting.id if waiting else None


async def _asker(tx: Tx, message: Inbound, group: Group, *, is_listed: bool) -> Asker:
    """Judge the sender of a message by the address that the channel has of them, and by nothing else."""
    role = await people.role_in(
        tx, group, message.sender, alias=message.sender_alias, is_from_me=message.is_from_me
    )
    rights = roles.rights_of(role, settings.of(group))
    return Asker(group=group, role=role, rights=rights, is_listed=is_listed)


async def _join(tx: Tx, message: Inbound, group: Group, asker: Asker, *, now_ms: int) -> TurnId:
    return await turns.join_chat(
        tx,
        group.folder,
        message.chat_jid,
        now_ms=now_ms,
        role=asker.role,
        is_restricted=asker.is_restricted,
    )


async def _explain_role(tx: Tx, message: Inbound, group: Group, *, now_ms: int) -> bool:
    """Say once, in the language of the request, that the sender's role may not ask; False if it was said."""
    if is_hook(message.sender):
        return False
    name = short(message.sender_name, MAX_NAME_CHARS)
    return await outbox.add(
        tx,
        chat_jid=message.chat_jid,
        folder=group.folder,
        text=roles.refusal_in_chat(name, is_korean=_HANGUL.search(message.text) is not None),
        dedupe_key=f"may-not-call:{group.folder}:{person_of(message.sender)}",
        now_ms=now_ms,
    )


def _amended(amended: Amendment) -> Accepted:
    if amended.message is None:
        return Accepted(outcome="dropped", reason=amended.reason)
    return Accepted(
        outcome="amended", seq=amended.message.seq, turn_id=amended.turn_id, reason=amended.reason
    )


def _check(message: Inbound) -> None:
    has_words = message.text.strip() or message.file or message.is_unreadable
    if not has_words and message.deletes is None:
        raise TextEmpty
    check_length(message.text)


def check_text(text: str) -> None:
    """Check that a text can be sent to a chat. Raises `TextEmpty`, `TextTooLong`."""
    if not text.strip():
        raise TextEmpty
    check_length(text)


def check_length(text: str) -> None:
    """Check that a text is no longer than a message may be. Raises `TextTooLong`."""
    if len(text) > MAX_TEXT_CHARS:
        raise TextTooLong(len(text), MAX_TEXT_CHARS)


def _storable(message: Inbound, now_ms: int) -> Inbound:
    """Return the message as SQLite can hold it and a calendar can show it.

    Half a surrogate pair, as clients cut them, becomes `?`; a time before 1970 or more than a day ahead
    becomes now.
    """
    changed: dict[str, Any] = {}
    for name in _FIELDS:
        value = getattr(message, name)
        if isinstance(value, str) and (whole := _whole(value)) != value:
            changed[name] = whole
    if message.quote is not None:
        quote = message.quote
        changed["quote"] = replace(quote, sender=_whole(quote.sender), text=_whole(quote.text))
    if not 0 <= message.sent_ms <= now_ms + DAY_MS:
        changed["sent_ms"] = now_ms
    return replace(message, **changed) if changed else message


def _whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


async def _with_quote_of_original(tx: Tx, message: Inbound, original: MessageId) -> Inbound:
    """Return an edit with the quote of the message that it changes, where it has none of its own."""
    if message.quote is not None:
        return message
    target = await messages.find(tx, message.chat_jid, original)
    return replace(message, quote=target.quote) if target is not None else message


async def _with_stored_quote(tx: Tx, message: Inbound) -> Inbound:
    """Return the message with the quoted words that the store has, which its sender cannot forge."""
    if message.quote is None:
        return message
    quoted = await messages.find(tx, message.chat_jid, message.quote.message_id)
    if quoted is None or not quoted.text:
        return message
    text = quoted.text if len(quoted.text) <= MAX_QUOTE_CHARS else f"{quoted.text[:MAX_QUOTE_CHARS]}… [cut]"
    return replace(message, quote=replace(message.quote, sender=quoted.sender_name, text=text))


async def _is_addressed(tx: Tx, message: Inbound) -> bool:
    """Return whether a message mentions the assistant's account or answers its words."""
    if message.is_call or message.quote is None:
        return message.is_call
    quoted = await messages.find(tx, message.chat_jid, message.quote.message_id)
    return quoted.is_bot_message if quoted else await outbox.is_ours(tx, message.quote.message_id)


def build_intake(
    host: HostContext,
    *,
    at_once: AtOnce,
    stop: Stop | None = None,
    undo: Undo | None = None,
    forget: Forget | None = None,
    answer_poll: AnswerPoll | None = None,
) -> Intake:
    """Make a host's intake, which reads the owner's list of senders anew when that file changes."""

    async def approve(tx: Tx, group: Group, text: str, *, role: Role) -> str | None:
        return await approval_replies.answer(
            tx, group, text, role=role, bus=host.bus, now_ms=host.clock.now_ms()
        )

    return Intake(
        host.database,
        clock=host.clock,
        name=host.settings.assistant_name,
        wakeups=host.wakeups,
        bus=host.bus,
        read_senders=owner.OwnerFile(owner.owner_directory() / senders.FILE, SenderRules).read,
        at_once=at_once,
        approve=approve,
        stop=stop,
        undo=undo,
        forget=forget,
        answer_poll=answer_poll,
        on_talk=lambda jid: host.signs.note(Sign.TALK, jid=jid),
    )
