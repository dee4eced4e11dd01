"""Record cycles: the wake requests that a turn takes, the agent's next wake, and how the cycle ended.

All methods work in the transactions of their callers, which start and end turns. A free cycle is one that is
no answer to a message or a scheduled task: the agent woke by its timer, or because something happened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from zoneinfo import ZoneInfo

from orchestrator.base.clock import Clock
from orchestrator.domain import schedule_tag
from orchestrator.domain.schedule_tag import ScheduleTag
from orchestrator.domain.values import Folder, Group, Turn, TurnKind, TurnState
from orchestrator.loop import cycle_prompt, wake_policy
from orchestrator.loop.wake_policy import (
    CycleOutcome,
    CycleState,
    RequestedInterval,
    SleepRequest,
    WakeDecision,
    WakePolicy,
    read_clock,
    read_interval,
)
from orchestrator.store.conversation import messages, outbox
from orchestrator.store.database import Tx, after_commit
from orchestrator.store.groups import groups
from orchestrator.store.loop import cycles, events, loops, wake_requests
from orchestrator.store.loop.cycles import Cycle
from orchestrator.store.loop.loops import Loop, LoopStatus, NextWake
from orchestrator.store.loop.wake_requests import WakeRequest
from orchestrator.store.runs import turns

LEASE_MS = 120_000
"""Milliseconds of a loop's lease, renewed while its turn runs; after a host died, the loop pauses that long.
"""
HEARTBEAT, CRON = "heartbeat", "cron"
PASSIVE = (
    *("set_next_wake", "list_tasks", "list_reminders", "list_notifications", "refresh_groups"),
    *("notify_self", "acknowledge_notification", "list_notices", "cancel_notice"),
)
"""Commands that only read or take notes: a cycle with no other command counts as idle."""
ECHO_MESSAGES = 50
"""Messages of people in which a tag is searched, to recognise one that the agent only repeats."""
MAX_TEXTS, MAX_TAGS = 10, 10
"""The largest numbers of texts of a turn, the last ones, and of tags of each, that are read."""
ACTION_LOOP = "action:loop"


Summary = Callable[[Tx, Turn, Group], Awaitable[str | None]]
"""Returns the dashboard's summary for the prompt of a free cycle; None when there is nothing to show."""


async def no_summary(tx: Tx, turn: Turn, group: Group) -> str | None:
    """Return None: a group without a dashboard has no summary."""
    del tx, turn, group
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedCycle:
    """A started cycle, with the wake requests that it answers."""

    id: int
    wakes: tuple[WakeRequest, ...]


class CycleRecorder:
    """Records the cycles of all groups. Everything is in the store, except for `changed_by_agent`."""

    def __init__(
        self,
        *,
        clock: Clock,
        zone_of: Callable[[Group], ZoneInfo],
        for_people: Callable[[str], str],
        summary: Summary = no_summary,
        rules: WakePolicy = wake_policy.RULES,
    ) -> None:
        """Set up the recorder.

        Args:
            clock: the clock.
            zone_of: returns the time zone of a group.
            for_people: returns the part of an agent's text that people see.
            summary: returns the part of the dashboard for the prompt of a free cycle.
            rules: the bounds and rates for wakes.
        """
        self._clock = clock
        self._zone_of = zone_of
        self._for_people = for_people
        self._summary = summary
        self.rules = rules
        self.changed_by_agent: set[Folder] = set()
        """Groups whose agent has changed files in its present cycle; the watcher of the folders adds them."""

    # A turn starts

    async def begin(self, tx: Tx, turn: Turn) -> StartedCycle | None:
        """Record that a turn starts, if the loop of its group is on.

        The turn is then a cycle of the loop, by which the group's agent wakes by itself at times. Another
        cycle of the group that is still open ends first. The turn takes the pending wake requests that it
        answers: a question those that messages made, a scheduled task those that tasks made (one for this
        task is added first), and both also those of the timer. A free cycle, which is no question and no
        task, takes all of them, and gets its prompt now.

        Return the cycle. None if the loop is off, for a session command, and for a turn of the dashboard's
        worker; then nothing is recorded.
        """
        loop = await loops.get(tx, turn.folder)
        if loop is None or loop.status is LoopStatus.STOPPED:
            return None
        if turn.command is not None or turn.kind is TurnKind.WORKER:
            return None
        now_ms = self._clock.now_ms()
        # A host that was killed may have left a cycle open; two open ones would both set the next wake.
        await self._end_other_cycle(tx, loop, turn)
        if turn.kind is TurnKind.TASK:
            await wake_requests.add(
                tx,
                turn.folder,
                kind=CRON,
                key=f"task:{turn.id}",
                source="scheduler",
                reason=turn.task_id or "",
                now_ms=now_ms,
            )
        pending = await wake_requests.pending(tx, turn.folder)
        # A question takes only messages and the timer: a changed file must wait for a free cycle, whose
        # prompt names it.
        taken = [wake for wake in pending if _is_for(wake, turn)]
        by_timer = turn.kind is TurnKind.AUTO and any(wake.kind == HEARTBEAT for wake in taken)
        # Stored for the limit of cycles an hour whose time the agent itself has set.
        cycle_id = await cycles.begin(tx, turn, set_by=loop.set_by if by_timer else None, now_ms=now_ms)
        await wake_requests.take(tx, taken, cycle_id)
        # Read back from the store: a retried turn took some of them at its first attempt.
        wakes = tuple(await wake_requests.of_cycle(tx, cycle_id))
        kinds = sorted({wake.kind for wake in wakes})
        await cycles.note_triggers(tx, cycle_id, [cycle_prompt.describe_wake(wake) for wake in wakes])
        await loops.start(tx, turn.folder, turn.id, now_ms=now_ms, until_ms=now_ms + LEASE_MS)
        ids = {"cycle": cycle_id, "turn": turn.id}
        await self._record_event(tx, turn.folder, "cycle.start", **ids, kind=turn.kind.value)
        await self._record_event(tx, turn.folder, "trigger", **ids, kinds=kinds)
        if turn.kind is TurnKind.AUTO:
            await self._write_prompt(tx, turn, loop, wakes)
        return StartedCycle(id=cycle_id, wakes=wakes)

    async def _write_prompt(self, tx: Tx, turn: Turn, loop: Loop, wakes: tuple[WakeRequest, ...]) -> None:
        """Write the prompt of a free cycle's turn from the present state of the group, and store it.

        `wakes` are the requests to wake the agent that the turn answers.
        """
        group = await groups.known(tx, turn.folder)
        text = await cycle_prompt.prompt(
            tx,
            group,
            wakes,
            last_end_ms=loop.last_end_ms,
            summary=await self._summary(tx, turn, group),
            zone=self._zone_of(group),
            now_ms=self._clock.now_ms(),
        )
        await loops.set_prompt(tx, turn.id, text)

    async def _end_other_cycle(self, tx: Tx, loop: Loop, turn: Turn) -> None:
        """End another open cycle of the turn's group, since a group has one cycle at a time.

        Unless `turn` is a free cycle itself, a queued free cycle is removed; it is queued again later.
        """
        if turn.kind is not TurnKind.AUTO:
            await loops.drop_waiting_turn(tx, turn.folder)
        other = await cycles.running_of(tx, turn.folder)
        if other is None or other.turn_id == turn.id:
            return
        other_turn = await turns.get(tx, other.turn_id)
        if other_turn is not None and other_turn.ended_ms is not None:
            await self._finish(tx, loop, other, other_turn)
        else:
            # Its turn was removed, or has not ended: another attempt at it opens the cycle again.
            await self._close(tx, other, CycleOutcome.BUSY, ended_ms=self._clock.now_ms())

    # A turn succeeded

    async def read_schedule_tags(self, tx: Tx, turn: Turn) -> None:
        """Read when the agent wants to wake next from the tags in its replies, before these are sent.

        `turn` has just succeeded. Whether it has said anything to people is recorded, too. If several replies
        have a usable tag, the last of them counts. A turn that is no open cycle is ignored.
        """
        cycle = await cycles.of_turn(tx, turn.id)
        if cycle is None or cycle.ended_ms is not None:
            return
        texts = await outbox.of_turn(tx, turn.id)
        if any(message.attachment is not None or self._for_people(message.text) for message in texts):
            await cycles.note_spoken(tx, cycle.id)
        group = await groups.by_folder(tx, turn.folder)
        tagged = [tags for message in texts if (tags := schedule_tag.find(message.text))][-MAX_TEXTS:]
        if group is None or not tagged:
            return
        # A person can write a tag and make the agent repeat it, so a tag that is in the chat is not taken for
        # the agent's own.
        incoming = [
            message.text
            for message in await messages.newest(tx, turn.chat_jid, limit=ECHO_MESSAGES)
            if not message.is_bot_message
        ]
        for tags in tagged:
            await self._apply_tags(
                tx, cycle, group, tags[:MAX_TAGS], incoming=schedule_tag.bare("\n".join(incoming))
            )

    async def _apply_tags(
        self, tx: Tx, cycle: Cycle, group: Group, tags: tuple[ScheduleTag, ...], *, incoming: str
    ) -> None:
        """Record the first usable tag of a text as the agent's request when to wake next.

        Also record why the other `tags` are refused. `incoming` is the recent text of people in the chat: a
        tag that occurs there is not the agent's own.
        """
        is_set = False
        for tag in tags:
            interval = self._requested_by(tag, group)
            # Each refusal is recorded: an agent whose request is ignored silently repeats it for ever.
            if schedule_tag.is_echo(tag, incoming):
                await self._reject(tx, cycle, tag.one_line, "it repeats what somebody wrote")
            elif interval is None:
                await self._reject(tx, cycle, tag.one_line, "it names no clear time")
            elif is_set:
                await self._reject(tx, cycle, tag.one_line, f"one of {len(tags)} in a text: the first counts")
            else:
                is_set = True
                await cycles.note_wake_request(
                    tx,
                    cycle.id,
                    raw=_short(tag.next or tag.at or ""),
                    reason=tag.reason,
                    asked_ms=interval.ms,
                    at_ms=interval.at_ms,
                    is_soonest=interval.is_soonest,
                )
            if tag.warnings:
                await self._record_event(
                    tx, cycle.folder, "schedule.warning", cycle=cycle.id, warnings=list(tag.warnings)
                )

    def _requested_by(self, tag: ScheduleTag, group: Group) -> RequestedInterval | None:
        """Return the sleep that an agent requests by a tag; None if the tag names no clear time."""
        if tag.next is not None:
            return read_interval(tag.next)
        if tag.at is None:
            return None
        return read_clock(tag.at, now_ms=self._clock.now_ms(), zone=self._zone_of(group))

    async def _reject(self, tx: Tx, cycle: Cycle, tag_text: str, reason: str) -> None:
        """Record that a tag by which an agent requests its next wake does not count, and the reason.

        `tag_text` is the tag as it stands in the agent's reply, on one line.
        """
        await self._record_event(
            tx, cycle.folder, "schedule.rejected", cycle=cycle.id, raw=tag_text, reason=reason
        )

    # A turn ended

    async def settle(self, tx: Tx) -> None:
        """End the cycles whose turns have ended, and decide when each group's agent wakes next."""
        # Read from the store, so that the next host settles what a crash prevented here.
        for cycle in await cycles.unfinished(tx):
            turn = await turns.get(tx, cycle.turn_id)
            if turn is not None and turn.ended_ms is None:
                continue
            loop = await loops.get(tx, cycle.folder)
            # An undo of what first switched a loop on removes its state, also while a cycle of it runs.
            if turn is None or loop is None:
                after_commit(tx, partial(self.changed_by_agent.discard, cycle.folder))
                await self._close(tx, cycle, CycleOutcome.SKIPPED, ended_ms=self._clock.now_ms())
            else:
                await self._finish(tx, loop, cycle, turn)

    async def _finish(self, tx: Tx, loop: Loop, cycle: Cycle, turn: Turn) -> None:
        """End a cycle whose `turn` has ended: record its outcome, and set when the agent wakes next."""
        assert turn.ended_ms is not None
        # All times count from the turn's end, not from now, so that a settlement after a restart is the same.
        ended_ms = turn.ended_ms
        has_changed_files = cycle.folder in self.changed_by_agent
        # Or the next cycle would count as one that did something. If the transaction fails, it is repeated.
        after_commit(tx, partial(self.changed_by_agent.discard, cycle.folder))
        outcome = await self._outcome(tx, cycle, turn, has_changed_files=has_changed_files)
        # An unanswered message caps the sleep, or it would wait for as long as the agent chose to sleep.
        unanswered_turn = await cycles.unanswered(tx, cycle.folder)
        # How often this message has shortened a sleep already; None if no message is unanswered.
        cap_count = (
            await cycles.count_capped_by(tx, cycle.folder, unanswered_turn)
            if unanswered_turn is not None
            else None
        )
        decision = wake_policy.decide_wake(
            CycleState(
                outcome=outcome,
                auto_ms=loop.auto_ms,
                sleep_request=_sleep_request_of(cycle, ended_ms=ended_ms)
                if turn.state is TurnState.ANSWERED
                else None,
                soonest_streak=loop.soonest_streak,
                caps=cap_count,
                self_wakes=await cycles.self_set_starts(
                    tx, cycle.folder, since_ms=ended_ms - wake_policy.HOUR_MS
                ),
            ),
            ended_ms,
            self.rules,
        )
        await self._apply_decision(tx, cycle, decision, ended_ms=ended_ms, outcome=outcome)
        await cycles.end(
            tx,
            cycle.id,
            outcome=outcome.value,
            error=turn.reason if outcome is CycleOutcome.ERROR else None,
            ended_ms=ended_ms,
            applied_ms=decision.next_ms - ended_ms,
            is_bounded=decision.is_bounded,
            capped_by=unanswered_turn if decision.is_capped else None,
            next_wake_ms=decision.next_ms,
            trace=decision.trace,
        )
        await self._record_cycle_end(tx, cycle, decision, outcome, ended_ms=ended_ms)

    async def _apply_decision(
        self, tx: Tx, cycle: Cycle, decision: WakeDecision, *, ended_ms: int, outcome: CycleOutcome
    ) -> None:
        """Store when a group's agent wakes next, and two values for the decision after its next cycle.

        These are `auto_ms`, the sleep that applies if the agent requests none, and `soonest_streak`, how many
        cycles in a row have requested the shortest sleep. The loop's lease, by which no other cycle of the
        group starts, is released. `ended_ms` is when the cycle ended, in epoch milliseconds.
        """
        await loops.end(
            tx,
            cycle.folder,
            auto_ms=decision.auto_ms,
            soonest_streak=decision.soonest_streak,
            is_noop=outcome is CycleOutcome.NOOP,
            ended_ms=ended_ms,
        )
        next_wake = NextWake(
            at_ms=decision.next_ms, set_by=decision.set_by, reason=decision.why, trace=decision.trace
        )
        await loops.set_wake(tx, cycle.folder, next_wake)
        await loops.release(tx, cycle.folder, cycle.turn_id)

    async def _outcome(self, tx: Tx, cycle: Cycle, turn: Turn, *, has_changed_files: bool) -> CycleOutcome:
        """Return the outcome of a cycle whose turn has ended: whether it failed, and whether it did anything.

        `has_changed_files` says whether the agent changed files meanwhile.
        """
        if turn.state is TurnState.FAILED:
            return CycleOutcome.ERROR
        if cycle.has_spoken or has_changed_files:
            return CycleOutcome.ACTION
        # Commands that only read or take notes do not count, or an agent that lists its tasks never backs
        # off.
        actions = await cycles.count_actions(tx, cycle.folder, since_ms=cycle.started_ms, passive=PASSIVE)
        return CycleOutcome.ACTION if actions else CycleOutcome.NOOP

    async def _close(self, tx: Tx, cycle: Cycle, outcome: CycleOutcome, *, ended_ms: int) -> None:
        """End a cycle that has no result, with this outcome; when the agent wakes next stays unchanged."""
        await cycles.end(
            tx,
            cycle.id,
            outcome=outcome.value,
            error=None,
            ended_ms=ended_ms,
            applied_ms=None,
            is_bounded=False,
            capped_by=None,
            next_wake_ms=None,
            trace=(),
        )
        await loops.release(tx, cycle.folder, cycle.turn_id)
        await self._record_event(
            tx, cycle.folder, "cycle.end", cycle=cycle.id, turn=cycle.turn_id, outcome=outcome.value
        )

    async def _record_cycle_end(
        self, tx: Tx, cycle: Cycle, decision: WakeDecision, outcome: CycleOutcome, *, ended_ms: int
    ) -> None:
        """Record the events of a cycle's end: its outcome, and when the agent wakes next and why."""
        ids = {"cycle": cycle.id, "turn": cycle.turn_id}
        event = "action" if outcome is CycleOutcome.ACTION else "idle"
        await self._record_event(tx, cycle.folder, event, **ids)
        await self._record_event(tx, cycle.folder, "cycle.end", **ids, outcome=outcome.value)
        set_to = {"applied_ms": decision.next_ms - ended_ms, "next_wake_at": decision.next_ms}
        # A message that was not answered has shortened the sleep. Limits for an agent's requests, which may
        # change it as well, are reported as `bounded`.
        if decision.is_capped:
            await self._record_event(
                tx, cycle.folder, "schedule.capped", **ids, **set_to, reason="pending_message"
            )
        if cycle.schedule_raw is not None:
            sleep_request = {
                "next": cycle.schedule_raw,
                "reason": cycle.schedule_reason,
                "bounded": decision.is_bounded,
            }
            await self._record_event(tx, cycle.folder, "schedule", **ids, **sleep_request, **set_to)
        else:
            await self._record_event(tx, cycle.folder, "auto_adjust", **ids, **set_to)

    async def _record_event(self, tx: Tx, folder: Folder, event: str, **data: object) -> None:
        """Store an event of a group's loop with its data; it is published after the commit."""
        await events.append(tx, ACTION_LOOP, group=folder, now_ms=self._clock.now_ms(), event=event, **data)


def _is_for(wake: WakeRequest, turn: Turn) -> bool:
    """Return whether a turn answers a wake request, so that no other turn has to start for it.

    A free cycle answers any request, a question those that messages made, and a scheduled task those that
    tasks made (`CRON`). Each of them also answers the timer's (`HEARTBEAT`).
    """
    if turn.kind is TurnKind.AUTO:
        return True
    if turn.kind is TurnKind.CHAT:
        return wake.kind == HEARTBEAT or wake.dedupe_key.startswith(wake_requests.MESSAGE)
    return wake.kind in (HEARTBEAT, CRON)  # a scheduled task: turns of the worker are no cycles


def _sleep_request_of(cycle: Cycle, *, ended_ms: int) -> SleepRequest | None:
    """Return the sleep that the agent requested in a cycle, from its end on; None if it requested none."""
    if cycle.schedule_raw is None or cycle.schedule_asked_ms is None:
        return None
    at_ms = cycle.schedule_at_ms
    # A moment may have passed meanwhile; the sleep is negative then, and the shortest one applies.
    sleep_ms = cycle.schedule_asked_ms if at_ms is None else at_ms - ended_ms
    interval = RequestedInterval(ms=sleep_ms, is_soonest=cycle.is_soonest, at_ms=at_ms)
    return SleepRequest(interval=interval, raw=cycle.schedule_raw, reason=cycle.schedule_reason)


def _short(text: str) -> str:
    """Return a text on one line, cut to the characters of a request that are stored."""
    return " ".join(text.split())[: wake_policy.MAX_RAW_CHARS]
