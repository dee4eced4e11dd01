"""Turn the events and the host's notices of one run into texts for its model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent_runner.ans.deferred import DeferredNotices, TurnFacts, awaits
from agent_runner.ans.escaping import one_line
from agent_runner.ans.event import EventDraft, EventLevel, NoticeEvent
from agent_runner.ans.event_queue import EventQueue
from agent_runner.ans.formatter import Formatter
from agent_runner.ans.notification import RANK, NoticeBatch
from agent_runner.ans.registry import SubscriberRegistry
from agent_runner.ans.renderer import RenderedNotices, compose
from agent_runner.ans.subscriber_store import SubscriberFolder, SubscriberStore
from agent_runner.wire.conditions import BadCondition
from agent_runner.wire.notices import (
    MAX_DELIVERED,
    MAX_NOTICE_CHARS,
    DeliveredNotice,
    InjectAt,
    Notice,
    Priority,
    Severity,
)

logger = logging.getLogger(__name__)

INJECTION_CHARS = 9_500
"""Most characters that the CLI passes uncut from a hook to the model."""


def _utc_now() -> datetime:
    """Return the present time, aware and in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnNotices:
    """The outcome of one turn's notices."""

    delivered: tuple[DeliveredNotice, ...] = ()
    """The notices that the model read."""
    returned: tuple[int, ...] = ()
    """The ids of the host's notices that it did not read."""


class RunNotices:
    """The notices of one run. Nothing in it is shared with another run.

    No method but `drain` blocks or takes long; slow modules are imported only for a delivery.
    """

    def __init__(self, group: Path | None = None, *, now: Callable[[], datetime] = _utc_now) -> None:
        """`group` is the group's folder, which may have subscribers of its own in `subscribers/`.

        With None, there are only Andy's own. `now` returns the time, aware and in UTC.
        """
        self.events = EventQueue(now=now)
        self.facts = TurnFacts()
        self._now = now
        self._registry = SubscriberRegistry()
        self._deferred = DeferredNotices()
        self._store = SubscriberStore(group)
        self._subscribers = SubscriberFolder()
        self._formatter = Formatter(self._template_of)
        self._lock = asyncio.Lock()
        self._of_host: dict[int, Notice] = {}
        """The host's notices of this turn, by id."""
        self._delivered: list[DeliveredNotice] = []
        """Reports to the host about the notices that the model got in this turn."""
        self._delivered_batches: list[NoticeBatch] = []
        """The batches of notices that the model got in this turn. If the turn fails, the run's own, unlike
        the host's, become due again.
        """
        self._arrived: list[tuple[Notice, InjectAt]] = []
        """The host's notices that were not passed on yet, each with the point of its delivery."""
        self._left_over: list[NoticeEvent] | None = None
        """Events from before this turn; None once they were passed on."""
        self._turn = 0
        """Counts turns that have ended: a text that was composed in an earlier one is not delivered."""

    def emit(
        self,
        event_type: str,
        severity: Severity,
        payload: Mapping[str, Any],
        *,
        source: str = "agent",
        dedupe_key: str = "",
    ) -> NoticeEvent:
        """Record an event of this run and return it; the subscribers make notices of it.

        A `priority` or `inject_at` in the payload overrides the subscriber's. `source` is the component that
        the event comes from. Events with the same `dedupe_key` count as repetitions; empty means by type and
        source.

        Raises:
            ValueError: `event_type` is no dotted lower-case name.
        """
        event = NoticeEvent(
            type=event_type,
            source=source,
            severity=EventLevel.of(severity),
            payload=payload,
            timestamp=self._now(),
            dedupe_key=dedupe_key,
        )
        self.events.emit(event)
        return event

    def happened(self, *drafts: EventDraft | None, source: str = "agent") -> None:
        """Record findings as events that come from the component `source`; None is ignored."""
        for draft in drafts:
            if draft is not None:
                self.emit(draft.type, draft.severity, draft.payload, source=source)

    def give(self, notices: Iterable[Notice], *, at: InjectAt = "turn_start") -> None:
        """Add notices of the host; one whose id was added in this turn already is ignored.

        They are delivered at the point `at` of a turn. One that waits for a tool or a condition is delivered
        when the tool has ended or the condition is true.
        """
        for notice in notices:
            if notice.id not in self._of_host:
                self._of_host[notice.id] = notice
                self._arrived.append((notice, at))

    def withdraw(self, notice_id: int) -> None:
        """Remove a notice of the host that was cancelled or acknowledged, so that it is not delivered."""
        self._of_host.pop(notice_id, None)
        self._arrived = [(notice, point) for notice, point in self._arrived if notice.id != notice_id]
        self._deferred.drop(notice_id)
        self._registry.withdraw(notice_id)

    def learn(
        self,
        *,
        context_tokens: int | None = None,
        max_context_tokens: int | None = None,
        total_tokens: int | None = None,
        max_tokens: int | None = None,
        message_count: int | None = None,
    ) -> None:
        """Record facts that the conditions of notices test; those that are None stay unchanged.

        Of the model's window of `max_context_tokens`, `context_tokens` are full. `total_tokens` is the number
        written in this turn alone, which may write `max_tokens` (0 for no limit); `message_count` is that of
        the conversation's messages. A condition makes notices due only once while it stays true; one that is
        false by the new facts can make notices due again later.
        """
        facts = self.facts
        self.facts = replace(
            facts,
            context_tokens=_new_or_known(context_tokens, facts.context_tokens),
            max_context_tokens=_new_or_known(max_context_tokens, facts.max_context_tokens),
            total_tokens=_new_or_known(total_tokens, facts.total_tokens),
            max_tokens=_new_or_known(max_tokens, facts.max_tokens),
            message_count=_new_or_known(message_count, facts.message_count),
        )
        self._deferred.rearm(self.facts)

    def tool_ended(self, name: str) -> None:
        """Record that a tool succeeded or failed; conditions see its end at the next `drain` only."""
        self.facts = replace(self.facts, completed_tools=self.facts.completed_tools | {name})

    def begin_turn(self, notices: Iterable[Notice] = ()) -> None:
        """Open a turn with the host's notices; earlier undelivered events are due at its first `drain`."""
        self.end_turn()  # a turn that was cut off has not been closed
        # Some may be left from a turn before that, if no `drain` has passed them on yet.
        self._left_over = [*(self._left_over or ()), *self.events.drain_pending()]
        self._delivered = []
        self.give(notices)

    def end_turn(self, *, is_well: bool = True) -> TurnNotices:
        """Close the turn and return the outcome of its notices.

        The host's notices that the model did not read are named in the outcome (`returned`) and removed here.

        `is_well`: whether the turn was answered. After a failed turn, the run's own notices that were
        delivered in it become due again, except those about that turn itself; the host passes its own notices
        again.
        """
        if not is_well:
            for batch in self._delivered_batches:
                # A notice about the failed turn itself means nothing in the next one.
                self._registry.take_back(batch.without_turn_entries())
        self._delivered_batches.clear()
        outcome = TurnNotices(delivered=self.delivered, returned=self.returned)
        for notice_id in self.returned:
            self.withdraw(notice_id)
        self._of_host.clear()
        self._turn += 1
        return outcome

    @property
    def delivered(self) -> tuple[DeliveredNotice, ...]:
        """Return the notices that the model read in this turn, in their order, at most `MAX_DELIVERED`.

        If there are more, the host's, which alone have an id, are preferred, then those of higher priority.
        """
        by_importance = sorted(
            enumerate(self._delivered),
            key=lambda numbered: (numbered[1].id is None, RANK[numbered[1].priority]),
        )
        # Those that are returned are put into their first order again, by their numbers.
        in_order = sorted(by_importance[:MAX_DELIVERED], key=lambda numbered: numbered[0])
        return tuple(notice for _, notice in in_order)

    @property
    def returned(self) -> tuple[int, ...]:
        """Return the ids of the host's notices that the model did not read in this turn."""
        delivered = {notice.id for notice in self._delivered}
        return tuple(notice_id for notice_id in self._of_host if notice_id not in delivered)

    @property
    def pending(self) -> int:
        """Return how many events and notices wait for delivery, a tool or a condition."""
        waiting = self.events.pending_count + len(self._left_over or ()) + len(self._arrived)
        return waiting + len(self._deferred) + self._registry.pending

    async def drain(
        self, point: InjectAt, *, limit: int = INJECTION_CHARS, at_least: Priority = "low"
    ) -> str:
        """Return the text with the notices that are due at a point, for the model; empty if there are none.

        It has at most `limit` characters; notices that do not fit, or have a lower priority than `at_least`,
        wait for a later point. A notice is delivered once. If this is cancelled, or if the turn ends
        meanwhile, nothing counts as delivered.
        """
        async with self._lock:
            if not self.pending:
                # A notice that comes later and waits for a tool has to wait for the next end of that tool.
                self._consume_tools()
                return ""
            turn = self._turn  # compared below: the turn may end while a thread does the work
            self._use_subscribers(await asyncio.to_thread(self._store.read))
            self._collect()
            candidates = self._registry.candidates(point, self._now_ms(), at_least=at_least)
            if not candidates:
                return ""
            injection = await asyncio.to_thread(compose, candidates, self._formatter.text, limit=limit)
            return self._commit(injection) if turn == self._turn else ""

    def _use_subscribers(self, subscribers: SubscriberFolder) -> None:
        """Use these subscribers and templates from now on; do nothing if they are the same as before."""
        if subscribers is not self._subscribers:
            self._subscribers = subscribers
            self._formatter.renew()
            self._registry.use(subscribers.subscribers, subscribers.disabled)

    def _collect(self) -> None:
        """Pass the events and notices that have arrived since the last call to the subscribers.

        A notice that waits is passed on once its tool has ended or its condition is true. Then the ended
        tools are forgotten.
        """
        if self._left_over is not None:
            # A subscriber may gather events for a time before they are due. Those that an earlier turn has
            # left undelivered are due at once.
            self._registry.accept(self._left_over)
            self._registry.carry_over(self._now_ms())
            self._left_over = None
        self._registry.accept(self.events.drain_pending())
        arrived, self._arrived = self._arrived, []
        for notice, point in arrived:
            if awaits(notice):
                self._await(notice)
            else:
                self._hand_over(notice, point)
        for notice in self._deferred.due(self.facts):
            self._hand_over(notice, "immediate")
        self._consume_tools()

    def _await(self, notice: Notice) -> None:
        """Let a notice wait for its tool or condition; log one whose condition is invalid."""
        try:
            self._deferred.add(notice)
        except BadCondition as error:
            logger.warning("notice %d is not delivered: %s", notice.id, one_line(str(error)))

    def _hand_over(self, notice: Notice, point: InjectAt) -> None:
        """Pass a notice of the host on to its subscriber, to be delivered at a point of a turn.

        One that is no valid event is only logged.
        """
        try:
            event = _event_of(notice)
        except (ValueError, OverflowError) as error:
            logger.warning("notice %d is not delivered: %s", notice.id, one_line(str(error)))
            return
        self._registry.give(notice.id, event, priority=notice.priority, at=point, count=notice.count)

    def _consume_tools(self) -> None:
        """Forget which tools have ended: each end counts at one `drain` only."""
        self.facts = replace(self.facts, completed_tools=frozenset())

    def _commit(self, injection: RenderedNotices) -> str:
        """Record the notices of a rendered text as delivered, and return the text."""
        for rendered in injection.delivered:
            self._registry.mark_delivered(rendered.batch)
            if rendered.text is not None:  # None for a batch that the text only counts
                self._delivered.append(_delivered_notice(rendered.batch, rendered.text))
                self._delivered_batches.append(rendered.batch)
        return injection.text

    def _template_of(self, batch: NoticeBatch) -> str | None:
        """Return the text of a batch's template; None if there is none."""
        return self._subscribers.template_named(batch.subscriber)

    def _now_ms(self) -> int:
        """Return the time in milliseconds since the epoch."""
        return int(self._now().timestamp() * 1000)


def _new_or_known(value: int | None, known: int) -> int:
    """Return the new value of a fact, such as a count; the known value if the new one is None."""
    return known if value is None else value


def _event_of(notice: Notice) -> NoticeEvent:
    """Return a notice of the host as an event.

    Raises:
        ValueError: its type is no dotted lower-case name, its severity is unknown, or its time is impossible.
        OverflowError: its time is too large.
    """
    return NoticeEvent(
        type=notice.event_type,
        source=notice.source,
        severity=EventLevel.of(notice.severity),
        payload=notice.payload,
        timestamp=datetime.fromtimestamp(notice.created_ms / 1000, UTC),
    )


def _delivered_notice(batch: NoticeBatch, text: str) -> DeliveredNotice:
    """Return the report to the host about a batch that was delivered as this text."""
    return DeliveredNotice(
        id=batch.notice_id,
        event_type=batch.event_type,
        priority=batch.priority,
        text=text[:MAX_NOTICE_CHARS],
    )
