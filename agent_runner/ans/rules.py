"""Find events in an agent's loop, by the same rules for every kind of agent."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from agent_runner.ans.detectors import BudgetUse, BudgetWatch, CheckpointPrompts, ContextUse, RepeatDetector
from agent_runner.ans.event import EventDraft
from agent_runner.ans.notices import RunNotices
from agent_runner.ans.staleness import KnownFiles
from agent_runner.ans.tool_events import ToolCall, ToolCallEvents
from agent_runner.interfaces import TurnOutcome
from agent_runner.wire.notices import DeliveredNotice, InjectAt, Priority
from agent_runner.wire.order import RestoredConversation, RestoreMode, RunOrder, TurnOrder
from agent_runner.workspace import Workspace

MAX_QUERY_CHARS = 200
"""Characters of a prompt that its event contains."""
RESUMED = {
    "resume": "this conversation goes on where it was",
    "resume_plus_delta": "this conversation goes on where it was, with what its session lacked",
    "rehydrate": "this conversation goes on in a new session, from what was kept of it",
}
"""The text of the notice about each way in which a conversation was loaded."""


class NoticeRules:
    """The notices of one run, and the rules that find events in it.

    A session opens and closes turns. An agent reports its work in a turn, and calls `drain` at each point of
    the turn for the text for its model.
    """

    def __init__(
        self,
        order: RunOrder,
        workspace: Workspace,
        *,
        notices: RunNotices | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Set up the rules for the run of `order`.

        `notices` are the run's notices; without them, new ones. `clock` returns a time in seconds that only
        goes forward; without it, that is `time.monotonic`.
        """
        # Looked up here, not as a default: tests replace `time.monotonic`, and a default would keep the
        # function of the test that imported this module first.
        clock = clock or time.monotonic
        limits = order.limits
        self.notices = notices or RunNotices(workspace.group)
        self.calls = ToolCallEvents(self.notices)
        self.files = KnownFiles(workspace.group)
        self._order = order
        self._clock = clock
        self._budgets = BudgetWatch(
            max_tokens=limits.turn_tokens or 0,
            max_iterations=limits.iterations,
            max_seconds=limits.turn_seconds,
        )
        self._loops = RepeatDetector()
        self._context = ContextUse()
        self._so_far = order.restore.so_far
        self._checkpoints = CheckpointPrompts(turn=self._so_far.turns)
        self._last_turn: int | None = None
        """The number of the host's turn that was started last, so that a retried turn counts once."""
        self._began = clock()
        """When the turn began, in seconds of `clock`."""
        self._iterations = 0
        """Requests to the model in this turn."""
        self._tokens = 0
        """Tokens that the turn has used."""
        self._messages = self._so_far.turns * 2
        """Messages of the conversation so far; each earlier turn counts as a question and an answer."""

    def warm(self) -> None:
        """Import the modules that a delivery needs. Blocks: use a thread."""
        importlib.import_module("agent_runner.ans.templating")

    def begin_turn(self, turn: TurnOrder, *, session_id: str | None) -> None:
        """Open a turn, with the host's notices for it, and report its start.

        Every tenth turn is a checkpoint: an event that asks the agent whether its plan is still right. A turn
        that is tried again is counted once, and leads to no second checkpoint. `session_id` is the agent's
        session; None before its first.
        """
        self.notices.begin_turn(turn.notices)
        self._began = self._clock()
        self._iterations = self._tokens = 0
        for rule in (self.calls, self._loops, self._budgets):
            rule.begin_turn()
        is_new = turn.turn != self._last_turn
        checkpoint = self._checkpoints.begin_turn() if is_new else None
        payload = {"turn_number": self._checkpoints.turn, "session_id": session_id}
        self.notices.emit("agent.turn.start", "info", payload)
        self._report_request(turn, is_new=is_new)
        self.notices.happened(checkpoint)  # ignored if it is None

    def end_turn(self, outcome: TurnOutcome, *, session_id: str | None) -> tuple[DeliveredNotice, ...]:
        """Close the turn and return the notices that its model read; none if the turn failed.

        Limits that an answered turn has reached, or nearly, and not reported yet, are reported with the next
        turn's prompt.
        `session_id` is the agent's session; None if it has none.
        """
        if outcome.error is None:
            # At "turn_start", that of the next turn: this turn's model can no longer react.
            self._report(self._budgets.look_back(**self._used()), at="turn_start")
        payload = {
            "turn_number": self._checkpoints.turn,
            "session_id": session_id,
            "reason": "answered" if outcome.error is None else outcome.code or "error",
            "tool_calls": self.calls.count,
            "tokens_used": self._tokens,
        }
        self.notices.emit("agent.turn.end", "info", payload)
        delivered = self.notices.end_turn(is_well=outcome.error is None).delivered
        return delivered if outcome.error is None else ()

    def end_session(self, *, session_id: str | None) -> None:
        """Report that the run has ended, with the number of its turns and of the conversation's messages.

        The messages include those of earlier runs. `session_id` is the agent's session; None if it has none.
        """
        turns = self._checkpoints.turn - self._so_far.turns  # without the turns of earlier runs
        payload = {"session_id": session_id, "turns": turns, "messages": self._messages}
        self.notices.emit("session.end", "info", payload)

    def resumed(self, mode: RestoreMode, reason: str, *, session_id: str | None) -> None:
        """Report that an earlier conversation was loaded, and why in this mode.

        Nothing is reported for a new conversation. `session_id` is that of the loaded one, if it has one.
        """
        if mode in RESUMED:
            payload = {"mode": mode, "reason": reason, "session_id": session_id, "message": RESUMED[mode]}
            self.notices.emit("session.resumed", "info", payload | _loaded(mode, self._so_far))

    async def look_at_files(self) -> None:
        """Report, at the start of a turn, the files that have changed since the agent read them."""
        await asyncio.to_thread(self.files.check_all)
        self._report(self.files.take(), at="turn_start")

    async def look_at_file(self, path: str) -> None:
        """Report whether a file that the agent is about to change has changed since the agent read it."""
        await asyncio.to_thread(self.files.check, path)
        self.notices.happened(*self.files.take())

    async def command_begins(self, call_id: str) -> None:
        """Record that a command of the agent begins, and report the changes that others made until now.

        Changes while the command runs count as the agent's. `call_id` is that of the tool call.
        """
        await asyncio.to_thread(self.files.begin_command, call_id)
        self.notices.happened(*self.files.take())

    async def commands_ended(self, *call_ids: str) -> None:
        """Record that the commands of these tool calls have ended: later changes of files are by others."""
        await asyncio.to_thread(self.files.end_commands, call_ids)

    def model_asked(self) -> None:
        """Count a request to the model, whose answer starts, and the answer as a message."""
        self._iterations += 1
        self._messages += 1
        self.notices.learn(message_count=self._messages)

    def model_wrote(self, *, tokens: int) -> None:
        """Record the tokens of a part of an answer."""
        self._tokens += tokens
        self.notices.learn(total_tokens=self._tokens, max_tokens=self._order.limits.turn_tokens or 0)

    def measured(self, tokens: int, window: int, *, compaction_at: int | None, at: InjectAt) -> None:
        """Record how full the model's window is, and report a warning if it is filling up.

        `tokens` is the size of the conversation and `window` that of the window, in tokens. `compaction_at`
        is the number of tokens at which the CLI compacts; None if it is not known. The warning is delivered
        at the point `at`.
        """
        self.notices.learn(context_tokens=tokens, max_context_tokens=window)
        self._report([self._context.measured(tokens, window, compaction_at=compaction_at)], at=at)

    def compacted(self) -> None:
        """Record that the CLI has compacted the conversation: a full window may be reported again."""
        self._context.compacted()

    def batch_ended(self, calls: list[ToolCall]) -> None:
        """Report that tool calls which were made together have ended, before the model continues.

        A call that is repeated too often, and a limit of the turn that is nearly reached, are reported, too.
        """
        self.calls.batch_ended(calls)
        for call in calls:
            self.notices.happened(self._loops.called(call.name, call.arguments))
        self._report(self._budgets.judge(**self._used()), at="immediate")

    async def drain(self, point: InjectAt, *, limit: int, at_least: Priority = "low") -> str:
        """Return the text with the notices that are due at a point of the turn, for the model.

        Empty if there are none. It has at most `limit` characters; notices that do not fit wait, or are only
        counted in its last line if their priority is low. Notices of a lower priority than `at_least` wait.
        """
        return await self.notices.drain(point, limit=limit, at_least=at_least)

    def _report(self, drafts: Iterable[EventDraft | None], *, at: InjectAt) -> None:
        """Report findings, which are to be delivered at the point `at`; None is ignored."""
        for draft in drafts:
            if draft is not None:
                self.notices.happened(replace(draft, payload={**draft.payload, "inject_at": at}))

    def _used(self) -> BudgetUse:
        """Return the tokens, requests to the model and seconds that the turn has used so far."""
        seconds = self._clock() - self._began
        return {"tokens": self._tokens, "iterations": self._iterations, "seconds": seconds}

    def _report_request(self, turn: TurnOrder, *, is_new: bool) -> None:
        """Report the prompt of a turn, which counts as a message of the conversation.

        The prompt of a turn that is tried again (not `is_new`) was counted already.
        """
        self._last_turn = turn.turn
        self._messages += is_new  # 1 for a new turn
        payload = {
            "query": turn.prompt[:MAX_QUERY_CHARS],
            "group": self._order.group,
            "turn": turn.turn,
            "kind": turn.kind,
        }
        self.notices.emit("query.start", "info", payload)
        self.notices.learn(message_count=self._messages)


def _loaded(mode: RestoreMode, so_far: RestoredConversation) -> dict[str, int | str]:
    """Return the figures of a loaded conversation (`so_far`) for the event that reports it.

    A session that was resumed (`mode`) has all of it: an exchange for each turn, and the figures of window
    and summary are 0. A new session (`rehydrate`) has only a stored part: some exchanges and messages in
    full, and a summary.
    """
    is_new = mode == "rehydrate"
    return {
        "exchanges_loaded": so_far.exchanges_kept if is_new else so_far.turns,
        "messages_in_window": so_far.messages_kept if is_new else 0,
        "summary_chars": so_far.summary_chars if is_new else 0,
        "age_seconds": so_far.age_seconds,
        "last_question": so_far.last_question,
    }
