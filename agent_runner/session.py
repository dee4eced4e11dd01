"""One run: its first turn, then further turns, until the host closes it.

A run may be started ahead (on standby): then it waits for its first turn, with the agent ready to answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from agent_runner.ans.lazy_notices import LazyNotices
from agent_runner.checks import CheckResult, run_check
from agent_runner.cpu_time import used_cpu_seconds
from agent_runner.error_log import log_fault, one_line
from agent_runner.frame_writer import FrameWriter
from agent_runner.inbox import TurnInbox
from agent_runner.interfaces import Agent, TokenUsage, TurnOutcome
from agent_runner.progress import TurnProgress
from agent_runner.wire.frames import (
    Ack,
    ErrorCode,
    Heartbeat,
    Result,
    Standby,
    TurnEnd,
    Usage,
    time_limit_reason,
)
from agent_runner.wire.mailbox import MAX_TEXT_CHARS
from agent_runner.wire.order import RunOrder, TurnOrder

CLOSE_SECONDS = 2.0
"""Seconds that the agent may take to close."""
GET_READY_SECONDS = 60.0
"""Seconds that the agent of a run that was started ahead may take to start; then it starts with its turn."""
Check = Callable[[TurnOrder], Awaitable[CheckResult]]
"""Runs the check of a turn that has one."""

MAX_CUT_NOTE_CHARS = 40
"""Characters that are reserved for the note at the end of a text that was cut."""
TURN_CUT_OFF = 0
"""Exit code when a turn was cut off as ordered, which leaves the agent unusable: a clean end."""
AGENT_BROKE = 1
"""The exit code for an agent that could not go on."""


class RunnerSession:
    """Passes turns to the agent one after another and reports their ends to the host.

    An agent that returns an error stays in use; one that raises has broken and ends the run.
    """

    def __init__(
        self,
        order: RunOrder,
        agent: Agent,
        inbox: TurnInbox,
        outlet: FrameWriter,
        noticing: LazyNotices,
        *,
        progress: TurnProgress | None = None,
        check: Check = run_check,
    ) -> None:
        """Set up the session; `run` runs it.

        Args:
            order: the settings of the run (limits, model and others) with the first turn. If the run was
                started ahead, both are provisional: the first turn comes from `inbox`, with its settings.
            agent: answers the turns.
            inbox: returns the further turns.
            outlet: sends frames to the host.
            noticing: has the notices of the run: lines for the model about what happens in it.
            progress: reports what the agent does; without it, that is not reported.
            check: runs the check of a turn that has one.
        """
        self._order = order
        self._check = check
        self._agent = agent
        self._inbox = inbox
        self._outlet = outlet
        self._noticing = noticing
        self._progress = progress or TurnProgress()
        self._is_started = False
        """Whether the agent is ready to answer."""
        self._is_order_pending = False
        """Whether the agent still has the provisional order with which its run was started ahead.

        `_answer` then passes it the order that came with the first turn, `_order`.
        """

    async def run(self) -> int:
        """Answer turns until the host closes the run or the agent breaks; return the exit code."""
        turn: TurnOrder | None = self._order.turn
        try:
            if self._order.is_standby:
                turn = await self._wait_for_first()
            while turn is not None:
                code = await self._handle(turn)
                if code is not None:
                    return code
                turn = await self._inbox.next()
        finally:
            await self._close()
        return 0

    async def _wait_for_first(self) -> TurnOrder | None:
        """Start the agent ahead of the first turn, report `Standby` to the host, and wait for the turn.

        If the agent cannot be started in time, that is only logged: nothing is reported, and the first turn
        starts it. The turn brings the settings of the run (model, limits and others), which replace the
        provisional ones in `_order`. Return the turn; None if the host ends the run without one.
        """
        try:
            async with asyncio.timeout(GET_READY_SECONDS):
                await self._agent.start()
                await self._noticing.preload()
        except Exception as error:  # noqa: BLE001  # no turn waits yet; the first turn starts the agent again
            log_fault("the agent could not get ready", error)
            await self._agent.close()
        else:
            self._is_started = True
            self._outlet.put(Standby, cpu_seconds=await asyncio.to_thread(used_cpu_seconds))
        turn = await self._inbox.next()
        if turn is not None:
            self._order = self._order.begun_by(turn)
            self._noticing.use_order(self._order)
            # The agent gets the new order only in `_answer`: an error or a timeout there fails this turn, and
            # is reported as its end. Here nothing would be reported of it.
            self._is_order_pending = True
        return turn

    async def beat(self, seconds: float) -> None:
        """Report every `seconds` that the runner is alive, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            # The session's id goes with each frame: after a crash in the middle of a turn the host knows
            # where to continue.
            self._outlet.put(Heartbeat, new_session_id=self._agent.session_id)

    async def _handle(self, turn: TurnOrder) -> int | None:
        """Process one turn, and report its end to the host, whatever the agent does.

        The end of a cancelled turn is not reported. After a turn that did not break the agent, the notices
        are loaded for the next turn.

        Return None if the run continues, else the exit code with which it has to end.
        """
        self._noticing.begin_turn(turn, session_id=self._agent.session_id)
        self._progress.begin_turn(turn.turn)
        limit = self._order.limits.turn_seconds
        budget = asyncio.timeout(limit)
        try:
            async with budget:
                self._end(turn, await self._answer(turn))
            await self._noticing.warm()
        except Exception as error:  # noqa: BLE001  # whatever an agent raises fails its turn, and is reported
            # Not by the exception's type: an agent's own timeouts raise `TimeoutError`, too.
            if budget.expired():
                # A code of its own, because the host must not try again: the turn's tools would do everything
                # once more.
                self._end(turn, TurnOutcome(error=time_limit_reason(limit), code="timeout"))
                return TURN_CUT_OFF
            log_fault(f"the agent broke in turn {turn.turn}", error)
            self._end(turn, TurnOutcome(error=one_line(error), code="agent"))
            return AGENT_BROKE
        return None

    async def _answer(self, turn: TurnOrder) -> TurnOutcome:
        """Start the agent if need be, run the turn's check, and let the agent answer; return the outcome.

        The host is notified when the turn was accepted. A check may end the turn without the agent.
        """
        if self._is_order_pending:
            self._is_order_pending = False
            # False if the agent is not ready to answer by this order: then it is started below.
            self._is_started = await self._agent.begin(self._order)
        # The acknowledgement says how the conversation goes on, which is known once the agent has started. A
        # turn with a check starts the agent only if there is something to do.
        if turn.check is None:
            await self._start()
        self._outlet.put(Ack, turn=turn.turn, restored=self._agent.restored)
        if turn.check is not None:
            verdict = await self._check(turn)
            if verdict.turn is None:  # there is nothing to do, or the check failed
                return verdict.outcome or TurnOutcome()
            turn = verdict.turn
            await self._start()

        async def say(text: str) -> None:
            """Send a text of this turn to the host."""
            self._say(turn, text)

        return await self._agent.answer(turn, say)

    async def _start(self) -> None:
        """Start the agent, once."""
        if not self._is_started:
            await self._agent.start()
            self._is_started = True

    def _say(self, turn: TurnOrder, text: str) -> None:
        """Send a text for the chat to the host; an empty one is not sent."""
        if text.strip():
            self._outlet.put(
                Result, turn=turn.turn, result=_sendable(text), new_session_id=self._agent.session_id
            )

    def _end(self, turn: TurnOrder, outcome: TurnOutcome) -> None:
        """Report the end of a turn with this outcome, its usage and the notices that the model got."""
        self._progress.end_turn()
        if outcome.usage is not None:
            self._report_usage(turn, outcome.usage)
        code: ErrorCode | None = None if outcome.error is None else outcome.code or "agent"
        delivered = self._noticing.end_turn(outcome, session_id=self._agent.session_id)
        self._outlet.put(
            TurnEnd,
            turn=turn.turn,
            status="success" if outcome.error is None else "error",
            error=outcome.error,
            code=code,
            note=outcome.note,
            told=delivered,
            checkpoint=outcome.checkpoint,
            restored=self._agent.restored,
            new_session_id=self._agent.session_id,
        )

    def _report_usage(self, turn: TurnOrder, usage: TokenUsage) -> None:
        """Report the tokens of a turn to the host."""
        self._outlet.put(
            Usage,
            turn=turn.turn,
            model=usage.model,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            context_tokens=usage.context_tokens,
            context_window=usage.context_window,
        )

    async def _close(self) -> None:
        """Report the end of the run to its notices and close the agent, in `CLOSE_SECONDS` at most.

        An error in closing the agent is only logged.
        """
        self._noticing.end_session(session_id=self._agent.session_id)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._agent.close()
        except Exception as error:  # noqa: BLE001  # the run ends anyway
            log_fault("the agent did not close", error)


def _sendable(text: str) -> str:
    """Return a text in a form that fits a frame.

    Lone surrogates, which UTF-8 cannot encode, become question marks. A text of more than `MAX_TEXT_CHARS` is
    cut, and ends with a note of its whole length.
    """
    clean = text.encode("utf-8", "replace").decode("utf-8")
    if len(clean) <= MAX_TEXT_CHARS:
        return clean
    return f"{clean[: MAX_TEXT_CHARS - MAX_CUT_NOTE_CHARS]}\n… (cut: {len(clean):,} characters)"
