"""Hears one container: takes its frames from its first byte to its end, also across a lost engine."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import stamina
import structlog

from agent_runner.wire.document import WireError
from agent_runner.wire.frames import (
    FailureFrame,
    Frame,
    FrameDecoder,
    FrameLine,
    Heartbeat,
    Ready,
    parse_frame,
)
from orchestrator.containers import exit_classification, frames, timeouts
from orchestrator.containers.live_run import LiveRunState
from orchestrator.containers.orphans import Orphan, Orphans
from orchestrator.containers.ports import PoolContext, until_stored, word_of
from orchestrator.containers.termination import CHANGED, Termination
from orchestrator.domain.errors import EngineGone
from orchestrator.domain.failures import Outage
from orchestrator.domain.protocols import Exit, RunningContainer
from orchestrator.domain.values import RunState, TurnState
from orchestrator.store import turn_outages, turns

log = structlog.get_logger(__name__)

REJOIN_SECONDS = 60.0
REFUSALS_TOLD = 10
TALKS_WITHOUT_END = timeouts.TimeoutVerdict(kill=True, reason="it talked without end.", is_retryable=False)


class OutputReader:
    """One for all containers; what is known of each is in its `LiveRunState`."""

    def __init__(self, around: PoolContext, ending: Termination, leftovers: Orphans) -> None:
        self._around = around
        self._ending = ending
        self._leftovers = leftovers

    async def follow(self, life: LiveRunState, container: RunningContainer) -> exit_classification.RunEnd:
        """Hear a container to its end; when the engine breaks off, look for it again for a while."""
        try:
            return await self._hear_out(life, container)
        except EngineGone as gone:
            life.container = None  # it cannot be judged by its silence now
            await self.note_outage(life)
            try:
                again = await self._rejoin(life)
            except TimeoutError:
                self._leftovers.add(Orphan.of(life.run))
                return exit_classification.classify(gone)
        await self.note_outage(life, is_over=True)
        if again is None:
            return _judge_exit(life, Exit(code=None))
        life.container, life.heard_ms = again, self._around.clock.steady_ms()
        self._around.bus.publish("run.rejoined", group=life.run.folder, run=life.run.id)
        return await self.follow(life, again)

    async def note_outage(self, life: LiveRunState, *, is_over: bool = False) -> None:
        """Record since when the turn of a container waits for its engine: whoever asked is told in time."""
        async for attempt in until_stored():
            with attempt:
                async with self._around.database.transaction() as tx:
                    turn = await turns.running_in(tx, life.run.id)
                    if turn is not None and is_over:
                        await turn_outages.end(tx, turn.id, Outage.ENGINE)
                    elif turn is not None:
                        now_ms = self._around.clock.now_ms()
                        await turn_outages.begin(tx, turn.id, Outage.ENGINE, since_ms=now_ms)
        self._around.hints.outages.give()

    async def _hear_out(self, life: LiveRunState, container: RunningContainer) -> exit_classification.RunEnd:
        await self._hear(life, container)
        if life.has_to_go:
            await self._ending.kill(container)
        exited = await container.wait()
        life.has_exited = True
        return _judge_exit(life, exited)

    async def _rejoin(self, life: LiveRunState) -> RunningContainer | None:
        """Find it again; None when the engine answers and has it no more.

        Raises:
            TimeoutError: no engine answered in time.
        """
        async with asyncio.timeout(REJOIN_SECONDS):
            async for attempt in stamina.retry_context(
                on=EngineGone, attempts=None, timeout=None, wait_initial=0.5, wait_max=5
            ):
                with attempt:
                    found = await self._around.runtime.adopt()
        return next((one for one in found if one.run_id == life.run.id), None)

    async def _hear(self, life: LiveRunState, container: RunningContainer) -> None:
        """Take what it says until it ends, or has to go.

        What is in its pipe then is not heard any more, and the pipe is closed: an engine does not end a
        container whose output nobody takes.
        """
        decoder = FrameDecoder()
        life.replays = life.last_frame
        async with aclosing(container.output()) as output:
            async for chunk in output:
                for line in decoder.feed(chunk):
                    if isinstance(line, FrameLine) and not life.has_to_go:
                        await self._read(life, line)
                if life.has_to_go:
                    return

    async def _read(self, life: LiveRunState, line: FrameLine) -> None:
        try:
            frame = parse_frame(line)
        except WireError as error:
            await self._keep_pace(life)
            life.refused += 1
            if life.refused <= REFUSALS_TOLD or life.refused % 1000 == 0:
                ids = {"run": life.run.id, "group": life.run.folder}
                log.warning("frame.refused", **ids, reason=str(error), count=life.refused)
            return
        life.heard_ms = self._around.clock.steady_ms()
        is_new = frame.n > life.last_frame  # else it was heard before, by an earlier host or stream
        if is_new or life.replays == 0:
            await self._keep_pace(life)
        else:
            life.replays -= 1
        match frame:
            case Heartbeat() | Ready():
                if is_new:
                    await self._know_session(life, frame.new_session_id)
                return
            case FailureFrame():
                life.failure = frames.plain_reason(frame.error)
        if is_new:
            await self._take(life, frame)
            life.last_frame = frame.n

    async def _keep_pace(self, life: LiveRunState) -> None:
        await life.pace.wait()
        if life.pace.is_overrun and life.verdict is None:
            self._ending.condemn(life, TALKS_WITHOUT_END)

    async def _know_session(self, life: LiveRunState, session_id: str | None) -> None:
        """Record a turn's session before anything is said in it: a crash then does not cost the conversation.

        One that is known costs nothing.
        """
        if session_id is None or session_id == life.session_id or life.run.is_isolated:
            return
        if life.state is not RunState.BUSY:
            return
        async for attempt in until_stored():
            with attempt:
                async with self._around.database.transaction() as tx:
                    now_ms = self._around.clock.now_ms()
                    if await frames.know_session(tx, life.run, session_id, now_ms=now_ms):
                        life.session_id = session_id

    async def _take(self, life: LiveRunState, frame: Frame) -> None:
        """Record a frame, however often the disk refuses: a frame left out would be a lost answer."""
        now_ms = self._around.clock.now_ms
        ties = self._around.ties
        async for attempt in until_stored():
            with attempt:
                async with self._around.database.transaction() as tx:
                    taken = await frames.take(
                        tx, life.run, frame, give_back=ties.give_back, now_ms=now_ms(), hear=ties.hear
                    )
        if taken is not None:
            life.session_id = frame.new_session_id or life.session_id
            await self._react(life, taken)

    async def _react(self, life: LiveRunState, taken: frames.FrameEffect) -> None:
        ids = {"group": life.run.folder, "turn": taken.turn.id, "run": life.run.id}
        if taken.is_acked:
            self._around.bus.publish("turn.acknowledged", **ids)
            await asyncio.to_thread(self._around.ties.forget_turn, life.run.folder, taken.turn.id)
        if taken.is_left_out and life.muted_turn != taken.turn.id:
            life.muted_turn = taken.turn.id
            log.warning("result.left_out", **ids, reason="the turn has said enough")
        if taken.restored is not None:
            self._around.bus.publish(
                "conversation.restored", **ids, detail=taken.restored, reason=frames.SESSION_GONE
            )
        for notice in taken.told:
            self._around.bus.publish(
                "notice.told", group=life.run.folder, turn=taken.turn.id, detail=str(notice)
            )
        if taken.ended is None:
            return
        life.enter(RunState.IDLE, self._around.clock.steady_ms())
        if taken.ended is not TurnState.ANSWERED:
            await self._ending.close(life, reason="its turn was not answered")
        elif life.is_retired:
            await self._ending.close(life, reason=CHANGED)
        self._around.bus.publish(
            f"turn.{word_of(taken.ended)}", **ids, attempt=taken.turn.attempt, reason=taken.reason
        )
        self._around.hints.outbox.give()
        self._around.hints.lanes.give()


def _judge_exit(life: LiveRunState, ended: Exit) -> exit_classification.RunEnd:
    judged = life.sentence() or exit_classification.classify(ended, failure=life.failure)
    if judged.kind is exit_classification.RunEndKind.CLOSED and life.state is not RunState.BUSY:
        # Nobody waited for it. One that an earlier host asked to end does not say why.
        return replace(judged, reason=f"closed: {life.close_reason or 'it had nothing to do'}")
    return judged
