"""Accept a message: judge who may ask what, store it and queue its turn, all in one transaction."""

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
    Folder,
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
from orchestrator.store.access import requests as access_requests
from orchestrator.store.conversation import chats, messages, outbox, polls
from orchestrator.store.database import Database, Tx, after_commit
from orchestrator.store.groups import groups
from orchestrator.store.loop import wake_requests
from orchestrator.store.runs import turn_outages, turns
from orchestrator.store.undo import turn_effects

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
"""`(tx, group, poll, votes, *, newest, is_text)`: answer the board question of a poll and return the reply.
"""
Undo = Callable[..., Awaitable["ReplyAtOnce | None"]]
"""`(tx, group, message, text, *, is_asked, role)`: undo what the message asks to undo; None for any other."""
Forget = Callable[..., Awaitable["ReplyAtOnce | None"]]
"""`(tx, group, message, text, *, is_asked)`: forget the sender if they ask for it, else return None."""
MAX_TEXT_CHARS = 65_536
MAX_QUOTE_CHARS = 4_000
MAX_UNUSED_CHATS = 1_000
"""Number of chats without a group that are remembered, the newest first."""
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
UNREADABLE = "its words could not be read"
LOCAL = "chat"
"""Kind of the wake request for a message that came through the terminal or HTTP."""
API = "api"
"""Source of the wake request for a message over HTTP, which the command line and the console use too."""
AT_ONCE = "without an agent"
"""The reason stored with a turn that was answered by the host alone."""
MAX_NAME_CHARS = 40
"""Most characters of a sender's name in a text of Andy's."""
_HANGUL = re.compile("[ㄱ-ㅎㅏ-ㅣ가-힣]")
_FIELDS = tuple(field.name for field in fields(Inbound))


@dataclass(frozen=True, slots=True)
class ReplyAtOnce:
    """The reply to a message that needs no agent."""

    text: str
    turn_id: TurnId | None = None
    """The turn that ended with this reply; None if it is not recorded yet."""
    is_for_host: bool = False
    """Whether the reply answers a command for the host, such as "stop", which no agent may read as a request.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """The sender of a message, as the owner's list and the group's rules judge them."""

    group: Group
    role: Role
    rights: Rights
    is_listed: bool
    """Whether the owner's list of senders allows them to ask."""

    @property
    def may_ask(self) -> bool:
        """Whether the sender may ask the agent, by the owner's list and by the rights of their role."""
        return self.is_listed and Permission.CALL in self.rights.may

    @property
    def is_restricted(self) -> bool:
        """Whether the sender's questions run in turns with the rights of their role only."""
        return roles.is_restricted(self.rights, self.group)

    @property
    def changes_board(self) -> bool:
        """Whether the sender's answers to reminders and questions change the dashboard without an agent."""
        return {Permission.MEMORY, Permission.SCHEDULE} <= self.rights.may


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The result of taking in a message."""

    outcome: Literal["queued", "ignored", "duplicate", "unregistered", "dropped", "amended"]
    """`queued`: it belongs to a turn. `ignored`: it is stored, as context for later turns. `duplicate`: it
    was stored before. `unregistered`: its chat has no group. `dropped`: it is not stored. `amended`: it
    changed an earlier message.
    """
    seq: Seq | None = None
    """The message's number; None if it is not stored."""
    turn_id: TurnId | None = None
    """The turn that it belongs to; None if it belongs to none."""
    reason: str | None = None
    """The reason why it is in no turn, or was amended; None for a queued one."""
    is_replied_to: bool = False
    """Whether the chat gets a reply at once, without an agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A message that `Intake.take` stored in a transaction; pass it to `Intake.announce` after the commit."""

    message: Inbound
    folder: Folder | None
    """The folder of its chat's group; None if the chat is not registered."""
    accepted: Accepted
    denial_to_log: SenderVerdict | None
    """The reason why the sender may not ask; None if they may, or if it is not to be logged."""
    new_trouble: str | None
    """The fault in the list of senders of which the owner is notified now; None if there is no new one."""


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
        """Set up the intake.

        Each argument from `at_once` to `answer_poll` is a function of another package that handles one kind
        of message. If it is None, such messages are handled like all others.

        Args:
            database: the database.
            clock: the clock.
            name: the assistant's name.
            wakeups: wakes the loops that have something to do.
            bus: the event bus.
            read_senders: returns the owner's list of senders after blocking reads of files; by default
                everybody may ask.
            at_once: does what a message requests, if that needs no agent.
            approve: decides a request of an agent, as the owner says.
            stop: stops what a message says to stop.
            undo: undoes what a message asks to undo.
            forget: forgets a sender who asks for it.
            answer_poll: answers a question of the dashboard by a poll.
            on_talk: called with the chat of each message that does not call Andy.
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
        """Store a message and queue its turn, a question to the agent; return the outcome.

        The outcome is also published, and the loops that act on it are woken. `cursor` is the channel's
        position in its stream of messages, stored with the message; None stores none.

        Raises:
            TextEmpty, TextTooLong: nothing was stored.
            StoreError: the database cannot be used now.
        """
        taken = await self._database.write(lambda tx: self.take(tx, message, cursor=cursor))
        # After the commit, because whoever is woken has to find the message in the store.
        self.announce(taken)
        return taken.accepted

    async def receive(self, message: Inbound, *, cursor: str | None = None) -> None:
        """Accept a message as `accept` does, for a channel; return once the message is stored.

        `cursor` is the channel's new position in its stream of messages; None if it has no such position.
        """
        await self.accept(message, cursor=cursor)

    async def take(self, tx: Tx, message: Inbound, *, cursor: str | None = None) -> Taken:
        """Store a message and queue its turn (a question to the agent) in the transaction `tx`.

        The caller passes the result to `announce` after the commit. `cursor` is the channel's position in its
        stream of messages, stored with the message; None stores none. The owner is notified if the list of
        senders is broken.

        Raises:
            TextEmpty, TextTooLong: nothing was stored.
        """
        _check_content(message)
        message = _storable(message, self._clock.now_ms())
        sender_list = self._read_senders()
        former_addresses = await groups.former_addresses(tx, message.chat_jid)
        verdict = senders.judge(message, sender_list, former_addresses=former_addresses)
        group = await groups.by_jid(tx, message.chat_jid)
        accepted = await self._take(tx, message, group, verdict)
        # In the transaction of its message: a cursor that is ahead after a crash would lose the message.
        if cursor is not None and message.channel is not None:
            await chats.set_cursor(tx, message.channel, cursor)
        is_trouble_new = False
        if sender_list.trouble and accepted.outcome != "unregistered":
            is_trouble_new = await self._notify_broken_list(tx, sender_list)
        # A list that cannot be read has no rule about logging: what it denies is logged.
        is_logged_denial = verdict is not SenderVerdict.ALLOWED and (
            sender_list.rules is None or sender_list.rules.log_denied
        )
        return Taken(
            message=message,
            folder=group.folder if group is not None else None,
            accepted=accepted,
            denial_to_log=verdict if is_logged_denial else None,
            new_trouble=sender_list.trouble if is_trouble_new else None,
        )

    def announce(self, taken: Taken) -> None:
        """Log and publish what `take` did with a message, and wake the loops that it concerns.

        To be called after the commit, since whoever is woken has to find the message in the database.
        """
        message, accepted = taken.message, taken.accepted
        if taken.denial_to_log is not None:
            log.info(
                "sender.denied",
                chat=message.chat_jid,
                sender=message.sender,
                verdict=taken.denial_to_log.value,
            )
        if taken.new_trouble is not None:
            log.error("senders.broken", reason=taken.new_trouble)
        # `take` has put a text into the outbox: a notice to the owner, or a reply to the chat.
        if taken.new_trouble is not None or accepted.is_replied_to:
            self._wakeups.outbox.set()
        if accepted.is_replied_to:
            self._wakeups.notifications.set()  # the time of the next notification may have changed
        # Nothing was stored now, so there is nothing to publish.
        if accepted.seq is None or accepted.outcome == "duplicate":
            return
        self._bus.publish(
            f"message.{accepted.outcome}",
            group=taken.folder,
            message=message.id,
            turn=accepted.turn_id,
            detail=accepted.reason,
        )
        if accepted.reason == triggers.NO_TRIGGER:
            self._on_talk(message.chat_jid)
        if accepted.turn_id is not None or accepted.reason == amendments.FILE_CAME:
            self._wakeups.lanes.set()

    async def _notify_broken_list(self, tx: Tx, sender_list: OwnerRules[SenderRules]) -> bool:
        """Notify the owner that the list of senders is broken, once for each version of its file.

        Return whether the owner is notified now.
        """
        text = f"⚠️ Until this is fixed, only you can ask me anything: {sender_list.trouble}"
        return await owner.notify(tx, text, about=sender_list.version, now_ms=self._clock.now_ms())

    async def _take(self, tx: Tx, message: Inbound, group: Group | None, verdict: SenderVerdict) -> Accepted:
        """Decide what becomes of a message, store it accordingly, and return the outcome.

        `group` is the group of its chat; a message of a chat without one is not stored. `verdict` says what
        the owner's list of senders allows the sender.
        """
        await chats.upsert(
            tx,
            message.chat_jid,
            name=message.chat_name,
            channel=message.channel,
            is_group=message.is_group,
            at_ms=message.sent_ms,
        )
        if group is None:
            await self._take_from_stranger(tx, message, may_ask=verdict is SenderVerdict.ALLOWED)
            return Accepted(outcome="unregistered", reason="the chat is not registered")
        message = await _with_stored_quote(tx, message)
        asker = await _asker(tx, message, group, is_listed=verdict is SenderVerdict.ALLOWED)
        # A message with a file is stored without it at first, with a time (`file_until_ms`) up to which the
        # file may come. Once the file is fetched, or cannot be, the message comes again without such a time.
        known = await messages.find(tx, message.chat_jid, message.id)
        if known is not None and known.file_until_ms is not None and message.file_until_ms is None:
            return await self._complete(tx, known, message, group, asker)
        if known is not None:
            return Accepted(
                outcome="duplicate", seq=known.seq, turn_id=known.turn_id, reason=known.ignored_reason
            )
        if await outbox.is_ours(tx, message.id):
            # A channel may echo a message of Andy's own before the host has recorded that it was sent.
            return Accepted(outcome="duplicate", reason=messages.OWN_MESSAGE)
        if verdict is SenderVerdict.DROPPED:
            return Accepted(outcome="dropped", reason=senders.NOT_ALLOWED)
        if message.is_unreadable:
            await self._notify_unreadable(tx, message, group)
            return Accepted(outcome="dropped", reason=UNREADABLE, is_replied_to=True)
        await people.note_sender(tx, group, message, now_ms=self._clock.now_ms())
        return await self._take_registered(tx, message, group, asker)

    async def _take_from_stranger(self, tx: Tx, message: Inbound, *, may_ask: bool) -> None:
        """Ask the owner about a chat without a group if the message calls Andy. The message is not stored.

        If the message deletes an earlier one, its text is removed from the question to the owner. `may_ask`
        says whether the owner's list of senders allows the sender to ask.
        """
        # Strangers can create any number of chats, so old ones that nothing refers to are deleted.
        await chats.forget_unused(tx, newest=MAX_UNUSED_CHATS, excluded=message.chat_jid)
        if message.deletes is not None:
            await access_requests.blank(tx, message.chat_jid, message.deletes, sender=message.sender)
        if not may_ask or not triggers.is_stranger_calling(message, name=self._name):
            return
        # The chat gets no answer, which would tell any stranger that somebody listens.
        request = await access.ask(tx, message, now_ms=self._clock.now_ms())
        if request is not None:
            after_commit(tx, partial(self._bus.publish, "access.asked", detail=str(request.id)))
            after_commit(tx, self._wakeups.outbox.set)

    async def _complete(
        self, tx: Tx, known: Message, message: Inbound, group: Group, asker: Asker
    ) -> Accepted:
        """Store the file of the stored message `known`, or why there is none, and return the outcome.

        `message` is the same message, which the channel delivers again with the file. A voice note that calls
        Andy by name asks something from now on, if its sender may ask: it joins a turn, a question to the
        agent.
        """
        await messages.complete(tx, known, message)
        turn_id = known.turn_id
        is_call = message.spoken and triggers.is_called_aloud(message.spoken, group, name=self._name)
        # A text that is empty by now was deleted while the file was fetched: it asks for nothing any more.
        if asker.may_ask and is_call and known.text and known.ignored_reason == triggers.NO_TRIGGER:
            now_ms = self._clock.now_ms()
            turn_id = await _join(tx, message, group, asker, now_ms=now_ms)
            await messages.claim(tx, known.seq, turn_id)
            await turns.extend(tx, turn_id, known.seq)
            await self._wake_loop(tx, message, group, now_ms=now_ms)
        return Accepted(outcome="amended", seq=known.seq, turn_id=turn_id, reason=amendments.FILE_CAME)

    async def _notify_unreadable(self, tx: Tx, message: Inbound, group: Group) -> None:
        """Put a text into the outbox that says that a message could not be read.

        A chat gets at most one such text in each hour of the clock.
        """
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
        """Decide what becomes of a new message of a registered chat, and return the outcome.

        The message may be a deletion, a vote, an edit, a session command, something that needs no agent, a
        question to the agent, or only context for later ones.
        """
        if is_hook(message.sender):
            # A message of a program is only stored: it may not command, stop or approve, nor answer a
            # reminder.
            return await self._store(tx, message, group, asker)
        if message.deletes is not None:
            # The deleted message may have been a vote in a poll, which then no longer counts.
            voters = None if message.is_moderated else await people.addresses_of(tx, message.sender)
            await polls.take_back(tx, message.chat_jid, message.deletes, voters=voters)
            return _accepted_as(await amendments.delete(tx, message, now_ms=self._clock.now_ms()))
        voted = await self._take_vote(tx, message, group, asker)
        if voted is not None:
            return voted
        if message.edits is not None:
            # Some messengers send an edit without what the message quotes: a reply to Andy still calls him.
            text = triggers.without_trigger(message.text, group, name=self._name)
            await votes.follow_edit(tx, replace(message, text=text))
            with_quote = await _with_quote_of_original(tx, message, message.edits)
            is_request = asker.may_ask and await self._why_ignored(tx, with_quote, group) is None
            edit_result = await amendments.edit(
                tx,
                message,
                group,
                is_request=is_request,
                restricted_to=asker.role if asker.is_restricted else None,
                now_ms=self._clock.now_ms(),
            )
            if isinstance(edit_result, Amendment):
                return _accepted_as(edit_result)
            # The edited message is unknown, was read, or is asked anew: the edit goes on as a message.
            message = edit_result
        command = triggers.session_command(message.text, group, name=self._name)
        if command is not None and asker.may_ask and message.ignored is None:
            return await self._apply_command(tx, message, group, command, asker)
        # A reaction asks an agent for nothing (`ignored`), but its emoji may be a command such as a stop.
        if asker.may_ask and (message.ignored is None or message.reaction is not None):
            answered = await self._answer_at_once(tx, message, group, asker)
            if answered is not None:
                return answered
        return await self._store(tx, message, group, asker)

    async def _take_vote(self, tx: Tx, message: Inbound, group: Group, asker: Asker) -> Accepted | None:
        """Count a message that votes in one of Andy's polls, and return the outcome.

        A person votes by the messenger's poll or by a text. None for a message that is no vote, and for a
        counted text that answers no question of the dashboard: the caller handles it like any other text.
        """
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
        """Count a vote in one of Andy's polls, or a text for Andy that answers a poll.

        Return None for any other message.
        """
        if message.ignored is not None and message.vote is None:
            return None
        is_text = message.vote is None and await self._why_ignored(tx, message, group) is None
        if message.vote is None and not is_text:
            return None
        request = replace(message, text=triggers.without_trigger(message.text, group, name=self._name))
        return await votes.count(tx, request, group, is_text=is_text, now_ms=self._clock.now_ms())

    async def _answer_board(
        self, tx: Tx, counted: CountedVote, group: Group, asker: Asker, *, is_text: bool
    ) -> Accepted | None:
        """Answer a question of the group's dashboard by a vote in its poll, without an agent.

        The message and the reply are stored in a turn (a question to the agent) that has ended already.
        Return the outcome; None if the voter may not answer it, or if the question is not answered by this
        vote. `is_text` says that the vote was written as a text, not chosen in the messenger's poll.
        """
        may_answer = asker.may_ask and asker.changes_board and counted.is_new and counted.chosen
        if self._answer_poll is None or not may_answer:
            return None
        votes_of_all = await polls.votes_of(tx, counted.poll)
        newest = counted.poll.chosen_text(counted.chosen)
        # The changes are recorded for a turn that does not exist yet, so that they can be undone later.
        async with turn_effects.recording(tx, turn_effects.PROVISIONAL, now_ms=self._clock.now_ms()):
            text = await self._answer_poll(
                tx, group, counted.poll, votes_of_all, newest=newest, is_text=is_text
            )
        if text is None:
            await turn_effects.forget_provisional(tx)
            return None
        # Stored as a message of its own, even if it replaces an earlier vote: it was answered on its own.
        message = replace(counted.message, edits=None)
        return await self._record_reply(tx, message, group, ReplyAtOnce(text), asker)

    async def _store_vote(self, tx: Tx, counted: CountedVote, group: Group, asker: Asker) -> Accepted:
        """Store the message of a counted vote, and return the outcome.

        It replaces the message of the person's previous vote (`edits` of the message) if no agent has read
        that. If the vote starts a turn, a question to the agent, the turn waits a while for further votes. If
        the vote chooses the same as the person's previous one, its message is not stored.
        """
        message, now_ms = counted.message, self._clock.now_ms()
        if not counted.is_new:
            return Accepted(outcome="dropped", reason=polls_rules.VOTE)
        # A vote of somebody who may not ask counts but starts no turn. As it counts, no refusal is sent.
        starts_turn = counted.starts_turn and asker.may_ask
        if message.edits is not None:
            restricted_to = asker.role if asker.is_restricted else None
            edit_result = await amendments.edit(
                tx, message, group, is_request=starts_turn, restricted_to=restricted_to, now_ms=now_ms
            )
            if isinstance(edit_result, Amendment):
                return _accepted_as(edit_result)
            message = edit_result  # still to be stored
        if not starts_turn:
            return await self._store(tx, message, group, asker)
        accepted = await self._store(tx, replace(message, ignored=None, is_call=True), group, asker)
        await votes.collect(tx, counted.poll, message, now_ms=now_ms)
        return accepted

    async def _answer_at_once(self, tx: Tx, message: Inbound, group: Group, asker: Asker) -> Accepted | None:
        """Do what a message requests that needs no agent: stop, undo, forget, approve, or change the board.

        Store the message and the reply, and return the outcome. None for a message that needs an agent.
        """
        text = message.reaction or triggers.without_trigger(message.text, group, name=self._name)
        is_asked = not message.ignored and await self._why_ignored(tx, message, group) is None
        stop_reply = None
        if self._stop is not None:
            stop_reply = await self._stop(tx, group, message, text, is_asked=is_asked, role=asker.role)
        # A stop is a command for the host, not for an agent; undo and forget mark their replies themselves.
        reply = ReplyAtOnce(stop_reply, is_for_host=True) if stop_reply is not None else None
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
        """Store a message that needed no agent in a turn that has ended already, and return the outcome.

        The turn, normally a question to the agent, is the one that `reply` names, or else a new one, to which
        the changes that the message made are assigned. The reply is put into the outbox unless its text is
        empty. The turn of a command for the host is recorded as stopped (`STOP_REQUEST`), which keeps its
        message out of the prompts of later turns.
        """
        now_ms = self._clock.now_ms()
        turn_id = reply.turn_id
        if turn_id is None:
            turn_id = await turns.add_answered(
                tx, group.folder, message.chat_jid, reason=AT_ONCE, now_ms=now_ms, role=asker.role
            )
            await turn_effects.assign_provisional(tx, turn_id)
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
        """Allow or refuse what an agent asked for, or change the dashboard, as a message says.

        Return the reply; None if the message says neither. The changes can be undone later like those of an
        agent: they are recorded under `PROVISIONAL` until the message has a turn.

        Args:
            tx: the transaction.
            group: the group of the chat.
            message: the message.
            text: its text without a call of Andy, or its reaction.
            asker: the sender.
            is_asked: whether the message is for Andy.
            now_ms: the present time, in epoch milliseconds.
        """
        reply = None
        async with turn_effects.recording(tx, turn_effects.PROVISIONAL, now_ms=now_ms):
            if self._approve is not None:
                reply = await self._approve(tx, group, text, role=asker.role)
            if reply is None and self._at_once is not None and asker.changes_board:
                reply = await self._at_once(tx, group, text, message.quote, is_asked=is_asked)
        if reply is None:
            # Nothing was done: drop the provisional record, or the next turn would be given its effects.
            await turn_effects.forget_provisional(tx)
            return None
        return ReplyAtOnce(reply)

    async def _apply_command(
        self, tx: Tx, message: Inbound, group: Group, command: SessionCommand, asker: Asker
    ) -> Accepted:
        """Store a message with a session command such as `/clear`, and queue a turn that carries it out.

        If the sender may give no commands, the message is stored with that reason. The refusal is explained
        in the chat only if Andy would not ignore the message anyway. Return the outcome.
        """
        now_ms = self._clock.now_ms()
        why_not = None if Permission.COMMAND in asker.rights.may else triggers.ONLY_OWNER
        turn_id = None
        # `_why_ignored` has no reason if the message is for Andy. People who could ask nothing here need not
        # learn that a program listens.
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
        """Send the chat a text why the command in `message` was refused."""
        await outbox.add(
            tx,
            chat_jid=message.chat_jid,
            folder=group.folder,
            text=f"I did not do that: {why_not}.",
            dedupe_key=f"denied:{message.chat_jid}:{message.id}",
            now_ms=self._clock.now_ms(),
        )

    async def _why_ignored(self, tx: Tx, message: Inbound, group: Group) -> str | None:
        """Return why a message does not ask the agent for anything, or None when it does."""
        # The channel may provide another form of the text in which to look for a call of Andy.
        text = message.text if message.call_text is None else message.call_text
        return triggers.ignored_reason(
            text or message.file or "",
            group,
            name=self._name,
            is_addressed=await _is_addressed(tx, message),
        )

    async def _store(self, tx: Tx, message: Inbound, group: Group, asker: Asker) -> Accepted:
        """Store a message and return the outcome.

        A message that asks something joins a turn, a question to the agent, and wakes an agent that wakes by
        itself. Any other is context: it joins the queued turn of its chat, if there is one. A sender who may
        not ask because of their role gets one text about that.
        """
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
        """Request that the group's agent wakes now because of a message, even if it chose to sleep longer.

        Nothing happens if the group's loop, its agent's waking by itself, is off.
        """
        # A message without a channel came from the terminal or over HTTP.
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
        """Return the queued turn (a question to the agent) that a message joins.

        A message that asks something (`is_request`) creates a turn if none is queued. For any other message,
        None is returned then. A turn that waits for further votes in a poll goes on waiting when a vote in
        the messenger's poll joins it, but starts at once when any other request does.
        """
        if is_request:
            turn_id = await _join(tx, message, group, asker, now_ms=now_ms)
            if message.vote is None:
                await turns.hurry_new(tx, turn_id, now_ms=now_ms)
            return turn_id
        waiting = await turns.queued_chat(tx, group.folder, message.chat_jid)
        return waiting.id if waiting else None


async def _asker(tx: Tx, message: Inbound, group: Group, *, is_listed: bool) -> Asker:
    """Return the sender of a message, with their role and rights in the group.

    Only the addresses that the channel reports for the sender count (`sender` and `sender_alias`), no names.
    `is_listed` says whether the owner's list of senders allows them to ask.
    """
    role = await people.role_in(
        tx, group, message.sender, alias=message.sender_alias, is_from_me=message.is_from_me
    )
    rights = roles.rights_of(role, settings.of(group))
    return Asker(group=group, role=role, rights=rights, is_listed=is_listed)


async def _join(tx: Tx, message: Inbound, group: Group, asker: Asker, *, now_ms: int) -> TurnId:
    """Return the queued turn (a question to the agent) for a message that asks something.

    If no queued turn has the rights of the message's sender, one is created.
    """
    return await turns.join_chat(
        tx,
        group.folder,
        message.chat_jid,
        now_ms=now_ms,
        role=asker.role,
        is_restricted=asker.is_restricted,
    )


async def _explain_role(tx: Tx, message: Inbound, group: Group, *, now_ms: int) -> bool:
    """Explain in the chat, once for each person, that the sender's role may not ask: in Korean or English.

    Return whether the text is queued now. Nothing is explained to a program.
    """
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


def _accepted_as(amendment: Amendment) -> Accepted:
    """Return the outcome of a message that edits or deletes an earlier one.

    It is `amended` if a stored message was changed, and `dropped` if none was, because the earlier message is
    not stored or the sender may not change it.
    """
    if amendment.message is None:
        return Accepted(outcome="dropped", reason=amendment.reason)
    return Accepted(
        outcome="amended", seq=amendment.message.seq, turn_id=amendment.turn_id, reason=amendment.reason
    )


def _check_content(message: Inbound) -> None:
    """Check that a message has content and is not too long; a deletion needs no content.

    Raises `TextEmpty`, `TextTooLong`.
    """
    # A message that could not be decrypted is accepted here, so that its chat can get a text about that.
    has_content = message.text.strip() or message.file or message.is_unreadable
    if not has_content and message.deletes is None:
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
    """Return the message in a form that SQLite can store and a calendar can show.

    Half of a surrogate pair, which some clients send, becomes `?`; a time before 1970 or more than a day
    ahead becomes now.
    """
    changed: dict[str, Any] = {}
    for name in _FIELDS:
        value = getattr(message, name)
        if isinstance(value, str) and (cleaned := _without_half_surrogates(value)) != value:
            changed[name] = cleaned
    if message.quote is not None:
        quote = message.quote
        changed["quote"] = replace(
            quote, sender=_without_half_surrogates(quote.sender), text=_without_half_surrogates(quote.text)
        )
    if not 0 <= message.sent_ms <= now_ms + DAY_MS:
        changed["sent_ms"] = now_ms
    return replace(message, **changed) if changed else message


def _without_half_surrogates(text: str) -> str:
    """Return a text in which half of a surrogate pair, which cannot be encoded, becomes `?`."""
    return text.encode("utf-8", "replace").decode("utf-8")


async def _with_quote_of_original(tx: Tx, message: Inbound, original: MessageId) -> Inbound:
    """Return an edit with the quote of the message `original` that it edits, unless it has one itself."""
    if message.quote is not None:
        return message
    target = await messages.find(tx, message.chat_jid, original)
    return replace(message, quote=target.quote) if target is not None else message


async def _with_stored_quote(tx: Tx, message: Inbound) -> Inbound:
    """Return a message whose quoted sender and text are those of the stored message, if that is stored.

    A sender could forge the quote that their messenger sends. The text is cut to `MAX_QUOTE_CHARS`.
    """
    if message.quote is None:
        return message
    quoted = await messages.find(tx, message.chat_jid, message.quote.message_id)
    if quoted is None or not quoted.text:
        return message
    text = quoted.text if len(quoted.text) <= MAX_QUOTE_CHARS else f"{quoted.text[:MAX_QUOTE_CHARS]}… [cut]"
    return replace(message, quote=replace(message.quote, sender=quoted.sender_name, text=text))


async def _is_addressed(tx: Tx, message: Inbound) -> bool:
    """Return whether a message is for the assistant: it mentions its account or replies to a message of it.

    `message.is_call` says that the messenger itself reports this.
    """
    if message.is_call or message.quote is None:
        return message.is_call
    quoted = await messages.find(tx, message.chat_jid, message.quote.message_id)
    # A message of the assistant may be in the outbox only, if its sending is not recorded yet.
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
    """Build the intake of a host, which takes in all messages.

    It reads the owner's list of senders again whenever that file changes. The arguments after `host` are
    functions of other packages that handle one kind of message each, see `Intake`.
    """

    async def approve(tx: Tx, group: Group, text: str, *, role: Role) -> str | None:
        """Decide a request as an owner's message says, and return the reply; None for other messages."""
        return await approval_replies.answer(tx, group, text, role=role, now_ms=host.clock.now_ms())

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
