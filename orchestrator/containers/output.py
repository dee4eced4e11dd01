"""Read the output of a container to its end: decode frames, apply each to the store, publish the effects.

The schema of a frame is checked in `agent_runner.wire.frames.parse_frame`; `OutputReader._parse` decides here
what happens with a frame that does not fit it.

A lost engine does not end a run: the container is searched for `REJOIN_SECONDS`.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import structlog

from agent_runner.wire.document import OtherVersion, WireError
from agent_runner.wire.frames import (
    Draft,
    FailureFrame,
    Frame,
    FrameDecoder,
    FrameLine,
    Heartbeat,
    Ready,
    Standby,
    ToolEnd,
    ToolStart,
    UnknownKind,
    parse_frame,
)
from orchestrator.base.rate_limits import TokenBucket
from orchestrator.containers import frame_effects, timeouts, turn_progress
from orchestrator.containers.live_runs import LiveRunState
from orchestrator.containers.ports import PoolContext, event_word, until_stored
from orchestrator.containers.runtime_selection import version_fix
from orchestrator.containers.termination import (
    GROUP_CHANGED,
    IMAGE_REPLACED,
    Orphan,
    Orphans,
    RunEnd,
    Termination,
    classify,
    classify_exit,
    stop_container,
)
from orchestrator.domain.errors import ContainerError, EngineGone
from orchestrator.domain.failures import Outage
from orchestrator.domain.protocols import Exit, RunningContainer
from orchestrator.domain.values import RunState, TurnState
from orchestrator.store.runs import turn_outages, turns

log = structlog.get_logger(__name__)

REJOIN_SECONDS = 60.0
"""Seconds that a container is searched for while its engine does not answer; then its turn is retried."""
MAX_LOGGED_REFUSALS = 10
"""Unreadable frames of a run that are logged one by one, then each thousandth: a
container could send millions.
"""
ENDLESS_OUTPUT = timeouts.TimeoutVerdict(kill=True, reason="it talked without end.", is_retryable=False)


def other_version(image: str, *, is_retryable: bool) -> timeouts.TimeoutVerdict:
    """Return the decision to end a container that speaks another version of the protocol, with the fix.

    `image` is the name of its image.
    """
    reason = f"my container is of another version than the rest of me: {version_fix(image)}."
    return timeouts.TimeoutVerdict(kill=True, reason=reason, is_retryable=is_retryable)


class OutputReader:
    """Reads containers. One reader serves all; the state of each is in its `LiveRunState`."""

    def __init__(self, context: PoolContext, *, termination: Termination, orphans: Orphans) -> None:
        """`termination` ends runs; `orphans` has the containers that were given up and are to be removed."""
        self._context = context
        self._termination = termination
        self._orphans = orphans

    async def follow(self, live: LiveRunState, container: RunningContainer) -> RunEnd:
        """Read and apply a container's output to its end, and return how the run ended.

        If the connection to the engine is lost, the container is searched for and, if found, read on. A
        container that is not found in time is left to be removed later.
        """
        try:
            return await self._read_to_end(live, container)
        except EngineGone as gone:
            live.container = None  # so that the timeouts do not count the engine's absence
            await self.note_outage(live)
            try:
                rejoined = await self._rejoin(live)
            except TimeoutError:
                self._orphans.add(Orphan.of(live.run))
                return classify(gone)
        await self.note_outage(live, is_over=True)
        if rejoined is None:  # the engine has no such container any more, so its exit code is unknown
            return classify_exit(live, Exit(code=None))
        live.container = rejoined
        live.last_frame_ms = self._context.clock.steady_ms()
        self._context.bus.publish("run.rejoined", group=live.run.folder, run=live.run.id)
        return await self.follow(live, rejoined)

    async def note_outage(self, live: LiveRunState, *, is_over: bool = False) -> None:
        """Record that a container's turn begins to wait for the engine; with `is_over`, that the wait ended.

        Nothing is recorded for a run without a turn. The chat is notified, elsewhere, of an outage that
        lasts.
        """
        async for attempt in until_stored():
            with attempt:
                async with self._context.database.transaction() as tx:
                    turn = await turns.running_in(tx, live.run.id)
                    if turn is not None and is_over:
                        await turn_outages.end(tx, turn.id, Outage.ENGINE)
                    elif turn is not None:
                        now_ms = self._context.clock.now_ms()
                        await turn_outages.begin(tx, turn.id, Outage.ENGINE, since_ms=now_ms)
        self._context.wakeups.outages.set()

    async def _read_to_end(self, live: LiveRunState, container: RunningContainer) -> RunEnd:
        """Apply a container's frames to the end of its output, and return how it ended.

        A container that has to be killed is stopped first.

        Raises:
            EngineGone: the connection to the engine was lost, and the container may still run.
        """
        await self._read_frames(live, container)
        if live.must_be_killed and not await stop_container(container):
            # So that `Termination.end_overdue` tries again during the wait below: it skips runs with a
            # `verdict`.
            live.stop_verdict, live.verdict = live.verdict, None
        exited = await container.wait()
        live.has_exited = True
        return classify_exit(live, exited)

    async def _rejoin(self, live: LiveRunState) -> RunningContainer | None:
        """Find the container of a run again after the engine was lost, trying for `REJOIN_SECONDS`.

        Return None when the engine answers and does not have the container.

        Raises:
            TimeoutError: no engine listed its containers in time.
        """
        import stamina

        async with asyncio.timeout(REJOIN_SECONDS):
            # Also after a refusal: an engine may refuse to list a container that is being removed.
            async for attempt in stamina.retry_context(
                on=ContainerError, attempts=None, timeout=None, wait_initial=0.5, wait_max=5
            ):
                with attempt:
                    containers = await self._context.runtime.adopt()  # every container of this install
        return next((container for container in containers if container.run_id == live.run.id), None)

    async def _read_frames(self, live: LiveRunState, container: RunningContainer) -> None:
        """Apply the frames of a container, the lines of its output, until they end or it has to be killed.

        In the second case its remaining output is not read, and the pipe is closed: an engine does not end a
        container whose output nobody reads.
        """
        decoder = FrameDecoder()
        # The output is read from its start again, so it first repeats this many frames that were applied. The
        # rate limits do not apply to these.
        live.free_replays = live.last_frame
        async with aclosing(container.output()) as output:
            async for chunk in output:
                for line in decoder.feed(chunk):
                    if isinstance(line, FrameLine) and not live.must_be_killed:
                        await self._take_line(live, line)
                if live.must_be_killed:
                    return

    async def _parse(self, live: LiveRunState, line: FrameLine) -> Frame | None:
        """Parse a line of a container's output as a frame; return None if it is not one that can be applied.

        A frame of an unknown kind comes from a newer container and is ignored. An unreadable one is counted,
        as is one of another version of the protocol, and the first ones are logged. But if one of another
        version comes first, the container is killed, unless it is to end anyway.
        This waits while such frames come faster than the limit.
        """
        try:
            return parse_frame(line)
        except UnknownKind:  # from a newer runner: an optional kind of frame
            await self._wait_for_rate(live, live.frame_rate)
        except OtherVersion as error:
            await self._wait_for_rate(live, live.frame_rate)
            if not live.has_read_frame and live.verdict is None:
                # A container of an earlier host has that host's version. Then a new one, of this host's
                # version, may succeed.
                verdict = other_version(self._context.image, is_retryable=live.is_adopted)
                log.warning("run.other_version", run=live.run.id, group=live.run.folder, reason=str(error))
                self._termination.schedule_kill(live, verdict)
            else:
                _note_unreadable(live, error)
        except WireError as error:
            await self._wait_for_rate(live, live.frame_rate)
            _note_unreadable(live, error)
        return None

    async def _take_line(self, live: LiveRunState, line: FrameLine) -> None:
        """Parse one line of a container's output as a frame, and apply it once.

        A frame that was applied before, which a repeated output brings again, changes nothing in the store.
        This waits while the container sends faster than the limits. They do not apply to the
        `live.free_replays` repeats that come when the output is read again from its start.
        """
        frame = await self._parse(live, line)
        if frame is None:
            return
        live.has_read_frame = True
        live.last_frame_ms = self._context.clock.steady_ms()
        is_new = frame.n > live.last_frame  # otherwise an earlier host or stream has read it
        # More repeats than expected are limited, too: a container could repeat old frames without end.
        if is_new or live.free_replays == 0:
            # A turn's progress has a limit of its own: short turns with many tool calls must not look like a
            # flood.
            is_progress = isinstance(frame, Draft | ToolStart | ToolEnd)
            await self._wait_for_rate(live, live.progress_rate if is_progress else live.frame_rate)
        else:
            live.free_replays -= 1
        match frame:
            case Draft() if is_new:
                self._take_draft(live, frame)
                return
            case Standby():
                self._note_standby(live, frame.cpu_seconds)
                return
            case Heartbeat() | Ready():  # not recorded as the last frame: a repeated one may count as new
                if is_new:
                    await self._store_session(live, frame.new_session_id)
                return
            case ToolStart() | ToolEnd() if is_new:
                # In a thread: the known secrets are read from a file.
                frame = await asyncio.to_thread(turn_progress.safe_report, frame, self._context.ports.redact)
            case FailureFrame():
                live.failure = frame_effects.plain_reason(frame.error)
        if is_new:
            await self._apply(live, frame)
            live.last_frame = frame.n

    def _take_draft(self, live: LiveRunState, frame: Draft) -> None:
        """Add a new piece of the text that the model is writing, and notify watchers, though not of each.

        The text is held in memory only: a lost piece costs nothing, but a row in the database for each would.
        """
        live.last_frame = frame.n
        live.draft.take(frame)
        if live.draft.claim_notification(self._context.clock):
            self._publish_progress(live, "agent.text", frame.turn)

    def _publish_progress(self, live: LiveRunState, kind: str, turn: int) -> None:
        """Publish an event, named `kind`, that a turn makes progress. The event is not stored."""
        self._context.bus.publish_transient(kind, group=live.run.folder, turn=turn, run=live.run.id)

    async def _wait_for_rate(self, live: LiveRunState, rate: TokenBucket) -> None:
        """Wait until `rate` admits one more frame of a run.

        A run that far exceeds the rate is marked for killing, unless it is to be killed for another reason.
        """
        await rate.wait()
        if rate.is_overrun and live.verdict is None:
            self._termination.schedule_kill(live, ENDLESS_OUTPUT)

    def _note_standby(self, live: LiveRunState, cpu_seconds: float) -> None:
        """Publish, once, that a container which was started ahead of its first turn has booted.

        `cpu_seconds` is the processor time that its boot took, which is remembered. Nothing is done for a
        container that was started for a turn.
        """
        if live.sign is not None and live.cpu_seconds is None:
            live.cpu_seconds = cpu_seconds
            self._context.bus.publish("run.ready", group=live.run.folder, run=live.run.id)

    async def _store_session(self, live: LiveRunState, session_id: str | None) -> None:
        """Record the session that a busy container reports, so that a crash does not lose the conversation.

        Nothing is done if it reports none (None), if the session is recorded already, if the container is not
        busy, or if the run is isolated: its session is never continued. While the disk refuses the write, it
        is tried again, without a limit.
        """
        if session_id is None or session_id == live.session_id or live.run.is_isolated:
            return
        if live.state is not RunState.BUSY:
            return
        async for attempt in until_stored():
            with attempt:
                async with self._context.database.transaction() as tx:
                    now_ms = self._context.clock.now_ms()
                    # False if the turn has just ended: a report in the next turn stores the session.
                    if await frame_effects.store_session(tx, live.run, session_id, now_ms=now_ms):
                        live.session_id = session_id

    async def _apply(self, live: LiveRunState, frame: Frame) -> None:
        """Apply a frame to the store and act on the changes, if it makes any.

        While the disk refuses, it is tried again: if the frame were dropped, an answer could be lost.
        """
        now_ms = self._context.clock.now_ms
        ports = self._context.ports
        async for attempt in until_stored():
            with attempt:
                effect = await self._context.database.write(
                    lambda tx: frame_effects.apply(
                        tx,
                        live.run,
                        frame,
                        requeue=ports.requeue,
                        now_ms=now_ms(),
                        on_success=ports.on_success,
                    )
                )
        if effect is not None:
            live.session_id = frame.new_session_id or live.session_id
            await self._act_on(live, effect)

    async def _act_on(self, live: LiveRunState, effect: frame_effects.FrameEffect) -> None:
        """Publish the changes that a stored frame has made to its turn.

        The file with the order of an acknowledged turn is removed. A result that was dropped, because its
        turn has reached the limit of results, is logged. If the turn has ended, the run becomes idle, or is
        asked to close, and the queue and the sending of messages are woken.
        """
        ids = {"group": live.run.folder, "turn": effect.turn.id, "run": live.run.id}
        if effect.is_acked:
            self._context.bus.publish("turn.acknowledged", **ids)
            await asyncio.to_thread(self._context.ports.files.remove_turn, live.run.folder, effect.turn.id)
        if effect.is_progress:
            self._publish_progress(live, "agent.tool", effect.turn.id)
        if effect.is_left_out and live.silenced_turn != effect.turn.id:
            live.silenced_turn = effect.turn.id  # so that it is logged once for each turn
            log.warning("result.left_out", **ids, reason="the turn has said enough")
        if effect.restored is not None:
            self._context.bus.publish(
                "conversation.restored", **ids, detail=effect.restored, reason=frame_effects.SESSION_GONE
            )
        for notice in effect.delivered_notices:
            self._context.bus.publish(
                "notice.told", group=live.run.folder, turn=effect.turn.id, detail=str(notice)
            )
        if effect.ended is None:
            return
        live.draft.forget()
        live.enter(RunState.IDLE, self._context.clock.steady_ms())
        # The limit is per turn: hundreds of quick questions in a row are no flood.
        live.frame_rate.forgive()
        live.progress_rate.forgive()
        if effect.ended is not TurnState.ANSWERED:
            await self._termination.close(live, reason="its turn was not answered")
        elif live.is_retired:
            is_outdated = live.container is not None and live.container.is_outdated
            reason = IMAGE_REPLACED if is_outdated else GROUP_CHANGED
            await self._termination.close(live, reason=reason)
        self._context.bus.publish(
            f"turn.{event_word(effect.ended)}", **ids, attempt=effect.turn.attempt, reason=effect.reason
        )
        self._context.wakeups.outbox.set()
        self._context.wakeups.lanes.set()


def _note_unreadable(live: LiveRunState, error: WireError) -> None:
    """Count a frame that cannot be read. The first ones of a run are logged, and then each thousandth."""
    live.unreadable_frames += 1
    if live.unreadable_frames <= MAX_LOGGED_REFUSALS or live.unreadable_frames % 1000 == 0:
        ids = {"run": live.run.id, "group": live.run.folder}
        log.warning("frame.refused", **ids, reason=str(error), count=live.unreadable_frames)
