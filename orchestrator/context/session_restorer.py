"""Restore a group's conversation in a new container from its session and the stored context.

The decision is made before a container is recorded, from the store, the session's transcript and the group's
context. If one of them cannot be read in time, the session is resumed unchecked: a turn never fails for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from agent_runner.wire.order import MAX_LAST_QUESTION, MAX_RESTORE_CHARS, RestoredConversation, RestoreOrder
from orchestrator.base import event_bus
from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.containers.ports import ChosenAgent, Restoration
from orchestrator.context import hydrate, transcript
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.hydrate import Hydrated
from orchestrator.context.models import Checkpoint, Context, answer_id, question_id
from orchestrator.context.recorder import ContextRecorder, next_events
from orchestrator.context.resume_or_retell import (
    RestoreDecision,
    RestoreFacts,
    plan_restore,
    start_new_session,
)
from orchestrator.context.tokens import TokenFactors
from orchestrator.domain.errors import AndyError
from orchestrator.domain.values import Folder, Group, Turn
from orchestrator.store.database import Database, Tx
from orchestrator.store.groups import groups
from orchestrator.store.runs import checkpoints, runs, sessions

log = structlog.get_logger(__name__)

PATIENCE_SECONDS = 15.0
"""Seconds that a start waits for the stored context on a busy machine. Another writer may lock it for 5 s."""
TRANSCRIPT_SECONDS = 5.0
"""Seconds that a start waits for the transcript of a session. A disk may be slow, or hang."""
UNREAD = "what was kept of it could not be read in time"
NO_SESSIONS = "this agent keeps no sessions of its own"


class SessionRestorer:
    """Decides how new containers continue their conversations. Each host has one instance."""

    def __init__(
        self,
        database: Database,
        recorder: ContextRecorder,
        *,
        session_files: Path,
        agent_of: Callable[[Group, Turn], ChosenAgent],
        factors: TokenFactors,
        clock: Clock,
        bus: EventBus,
    ) -> None:
        """`session_files` is `data/sessions`; `agent_of` may raise `AndyError` for invalid settings."""
        self._database = database
        self._recorder = recorder
        self._session_files = session_files
        self._agent_of = agent_of
        self._factors = factors
        self._clock = clock
        self._bus = bus

    def loops(self) -> dict[str, Callable[[], Any]]:
        """Map the name of the loop that the host is to run and supervise to its function."""
        return {"restoring": self.run}

    # Before a container starts

    async def restore(self, turn: Turn, group: Group, session_id: str | None) -> Restoration:
        """Return how a new container continues the conversation of a group.

        `session_id` is the group's agent session, None if it has none. Nothing is raised: if what is stored
        cannot be read in time, the session is resumed unchecked.
        """
        ids = {"group": group.folder, "turn": turn.id}
        facts = _facts_without_store(session_id, now_ms=self._clock.now_ms())
        try:
            agent = self._agent_of(group, turn)
            facts = await self._store_facts(turn, session_id, agent)
            facts = await self._with_transcript_in_time(facts, group)
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await self._decide(group, facts, agent)
        except (AndyError, OSError, TimeoutError) as error:
            log.warning("conversation.not_read", **ids, reason=str(error))
        except Exception:
            # A fault in the stored conversation must not leave the question unanswered.
            log.exception("conversation.not_read", **ids)
        return _restoration_without_context(facts)

    async def _with_transcript_in_time(self, facts: RestoreFacts, group: Group) -> RestoreFacts:
        """Return the facts with the transcript of the session; unchanged if it cannot be read in time."""
        try:
            async with asyncio.timeout(TRANSCRIPT_SECONDS):
                return await asyncio.to_thread(_with_transcript, facts, self._session_files, group.folder)
        except OSError as error:  # `TimeoutError` is an `OSError`
            log.warning("transcript.not_read", group=group.folder, reason=str(error) or "it took too long")
            return facts

    async def _decide(self, group: Group, facts: RestoreFacts, agent: ChosenAgent) -> Restoration:
        """Return how the conversation continues, decided by the facts and the stored context.

        The offline agent has no sessions: its order has only the text on plans, decisions and open files, and
        whether a conversation is stored.

        Raises:
            ContextBusy, OSError: the stored context cannot be read.
        """
        # Without this, a conversation that was cleared a moment ago would be retold.
        await self._recorder.catch_up(group.folder)
        manager = self._recorder.manager(group.folder)
        planned = await asyncio.to_thread(_plan_with_texts, manager, facts, factors=self._factors)
        if agent.agent == "offline":
            # `whole_text` is empty, and so false, if no conversation is stored.
            mode = "rehydrate" if planned.whole_text else "fresh"
            restore = RestoreOrder(mode=mode, reason=NO_SESSIONS, meta=planned.meta)
            resumed_session = None
        else:
            restore = planned.order()
            resumed_session = planned.decision.session_id
        return Restoration(
            restore=restore,
            decided_on_session=facts.session_id,
            session_id=resumed_session,
            model=agent.model,
            provider=agent.provider,
            service=agent.service_name,
            facts=planned.figures(),
        )

    async def _store_facts(self, turn: Turn, session_id: str | None, agent: ChosenAgent) -> RestoreFacts:
        """Return the facts for the decision that are in the database.

        `session_id` is the group's agent session, None if it has none. `agent` will answer.
        """
        async with self._database.reading() as tx:
            # The next prompt repeats all messages after the last one that was answered: the cursor.
            cursor = await sessions.cursor_of(tx, turn.folder)
            return RestoreFacts(
                session_id=session_id,
                answered=await checkpoints.answered(tx, turn.folder, session_id) if session_id else None,
                checkpoints=await checkpoints.since_start(tx, turn.folder, session_id) if session_id else (),
                repeated_turns=await checkpoints.turns_in_prompt(tx, turn, cursor),
                model=agent.model,
                model_window=await runs.window_of(tx, agent.model),
                provider=agent.provider,
                now_ms=self._clock.now_ms(),
            )

    # After a turn

    async def run(self) -> None:
        """Record the state of a group's agent session in its context whenever a turn was answered.

        Runs until it is cancelled.
        """
        with self._bus.listening("turn.answered") as events:
            while True:
                answered = await next_events(events)
                for folder in {Folder(event.group) for event in answered if event.group is not None}:
                    await self._note(folder)
                # A write to the disk for each answer of a busy group would slow down the others.
                await asyncio.sleep(event_bus.PAUSE_SECONDS)

    async def _note(self, folder: Folder) -> None:
        """Record the state of a group's agent session in its context; a failure is only logged."""
        session = await self._database.read(partial(_answered_session, folder=folder))
        if session is None:
            return
        answered, turn_checkpoints = session
        try:
            await asyncio.to_thread(_note_session, self._recorder.manager(folder), answered, turn_checkpoints)
        except (AndyError, OSError) as error:
            # Only a warning: the store has the state, and the context's copy is for people to read.
            log.warning("context.behind", group=folder, reason=str(error))


async def _answered_session(
    tx: Tx, *, folder: Folder
) -> tuple[checkpoints.AnsweredSession, list[checkpoints.TurnCheckpoint]] | None:
    """Return the state of a group's agent session, and the turns that were answered in it.

    None if the group has no session, or nothing was answered in it.
    """
    session_id = await sessions.current(tx, folder)
    if session_id is None or await groups.by_folder(tx, folder) is None:
        return None
    answered = await checkpoints.answered(tx, folder, session_id)
    return None if answered is None else (answered, await checkpoints.since_start(tx, folder, session_id))


def _facts_without_store(session_id: str | None, *, now_ms: int) -> RestoreFacts:
    """Return the facts for the case that not even the database can be read.

    With them, the decision is to resume the session if there is one.
    """
    # `plan_restore` would begin a new session if nothing was answered in the old one.
    answered = checkpoints.AnsweredSession(session_id=session_id, at_ms=now_ms) if session_id else None
    return RestoreFacts(session_id=session_id, answered=answered, now_ms=now_ms)


def _restoration_without_context(facts: RestoreFacts) -> Restoration:
    """Return how a new container continues a conversation whose stored context could not be read.

    The session is resumed, or a new one begins, without any text of the stored context. The facts that could
    be read decide, such as a transcript that is missing.
    """
    transcript_read = facts.transcript
    # Only the answered turns (checkpoints) whose last message is in the transcript: for any other turn, the
    # stored context's texts would be needed.
    in_transcript = [
        checkpoint
        for checkpoint in facts.checkpoints
        if transcript_read is not None and checkpoint.uuid and transcript_read.has(checkpoint.uuid)
    ]
    decision = plan_restore(replace(facts, checkpoints=in_transcript, has_stored_context=False))
    return Restoration(
        restore=RestoreOrder(mode=decision.mode, reason=UNREAD, resume_at=decision.resume_at),
        decided_on_session=facts.session_id,
        session_id=decision.session_id,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlannedRestore:
    """A decision, and the texts that go with it."""

    decision: RestoreDecision
    whole_text: Hydrated
    """The text for a new session."""
    delta_text: Hydrated
    """The text with the messages that the resumed session lacks."""
    meta: str | None
    """The text on plans, decisions and open files, for after a compaction; None if there are none."""
    so_far: RestoredConversation
    """Figures about the conversation as it is before the next prompt: its turns, age, tokens and more."""

    def order(self) -> RestoreOrder:
        """Return the part of the container's order that says how its conversation continues."""
        # A session is resumed in the modes `resume` and `resume_plus_delta`.
        mode, is_resumed = self.decision.mode, self.decision.session_id is not None
        # A resumed session gets only what it lacks: with the whole text it would have its history twice.
        hydrated = self.delta_text if is_resumed else self.whole_text
        return RestoreOrder(
            mode=mode,
            reason=self.decision.reason,
            text=_text_for_order(hydrated) if mode in ("rehydrate", "resume_plus_delta") else None,
            # For a session that cannot be resumed after all, as it no longer exists.
            fallback=_text_for_order(self.whole_text) if is_resumed else None,
            resume_at=self.decision.resume_at,
            meta=self.meta,
            # A fresh start continues nothing, so all figures are those of an empty conversation.
            so_far=RestoredConversation() if mode == "fresh" else self.so_far,
        )

    def figures(self) -> dict[str, int]:
        """Return figures about the text that the container gets, for the event `conversation.restored`."""
        hydrated = self.delta_text if self.decision.session_id is not None else self.whole_text
        return {
            "messages_in_window": len(hydrated.message_ids),
            "summary_chars": hydrated.summary_chars,
            "age_seconds": self.whole_text.age_seconds,
        }


def _plan_with_texts(
    manager: ContextManager, facts: RestoreFacts, *, factors: TokenFactors
) -> _PlannedRestore:
    """Read a group's stored context, and decide how its conversation continues in a new container. Blocks.

    `factors` has for each model how many tokens it makes of one token of our own counter. Return the decision
    with the texts for the model. They leave out the questions and answers of `facts.repeated_turns`, whose
    questions are in the next prompt anyway. `meta` is the text that the session gets after it was compacted.
    """
    manager = manager.counting_as(factors.of(facts.model))
    contents = manager.load(now_ms=facts.now_ms)
    context = contents.context
    repeated_ids = {id_of(turn) for turn in facts.repeated_turns for id_of in (question_id, answer_id)}
    whole_text = manager.hydrate_prompt(now_ms=facts.now_ms, exclude=repeated_ids, contents=contents)
    window = [message for message in context.conversation.recent_window if message.turn is not None]
    facts = replace(
        facts,
        has_stored_context=bool(whole_text),
        stored_turns=sorted({message.turn for message in window if message.turn is not None}),
    )
    decision = plan_restore(facts)
    missing_ids = {message.id for message in window if message.turn in decision.missing}
    delta_text = hydrate.delta(context, missing=missing_ids, exclude=repeated_ids)
    # The text for a resumed session is short. If not all missing messages fit, a new session gets them all.
    if decision.mode == "resume_plus_delta" and len(delta_text.message_ids) < len(missing_ids):
        decision = start_new_session(facts, f"{decision.reason}, more than it can be told")
    elif decision.mode == "resume_plus_delta" and not delta_text:
        # The missing turns had no messages.
        decision = replace(decision, mode="resume", missing=())
    meta = manager.meta(now_ms=facts.now_ms, contents=contents)
    return _PlannedRestore(
        decision=decision,
        whole_text=whole_text,
        delta_text=delta_text,
        meta=meta[:MAX_RESTORE_CHARS] or None,
        so_far=_conversation_figures(context, whole_text, facts, repeated_ids),
    )


def _conversation_figures(
    context: Context, whole_text: Hydrated, facts: RestoreFacts, repeated_ids: Collection[str]
) -> RestoredConversation:
    """Return figures about the conversation before the next prompt, which are given to the container.

    `whole_text` is the text for a new session. `repeated_ids` are the ids of messages that are in the prompt:
    they are not counted.
    """
    restored_ids = set(whole_text.message_ids)
    questions = [message for message in context.conversation.recent_window if message.role == "user"]
    restored_questions = [message.content for message in questions if message.id in restored_ids]
    repeated_count = sum(message.id in repeated_ids for message in questions)
    return RestoredConversation(
        turns=max(0, context.stats.dialog_turns - repeated_count),
        exchanges_kept=len(restored_questions),
        messages_kept=len(restored_ids),
        summary_chars=whole_text.summary_chars,
        age_seconds=whole_text.age_seconds,
        last_question=restored_questions[-1][:MAX_LAST_QUESTION] if restored_questions else "",
        context_tokens=facts.answered.context_tokens if facts.answered else 0,
        context_window=facts.model_window or 0,
    )


def _with_transcript(facts: RestoreFacts, session_files: Path, folder: str) -> RestoreFacts:
    """Return the facts with the transcript of the session that would be resumed. Blocks.

    They are unchanged if there is no session, or if no turn was answered in it. `session_files` is
    `data/sessions`.

    Raises:
        OSError: the transcript cannot be read, or not in time.
    """
    if facts.session_id is None or facts.answered is None:
        return facts
    return replace(facts, transcript=transcript.read(session_files, folder, facts.session_id))


def _note_session(
    manager: ContextManager,
    answered: checkpoints.AnsweredSession,
    turn_checkpoints: Sequence[checkpoints.TurnCheckpoint],
) -> None:
    """Record in a group's context the state of its session and the newest turn that is in it. Blocks."""
    in_transcript = (
        Checkpoint(turn=checkpoint.turn, uuid=checkpoint.uuid)
        for checkpoint in reversed(turn_checkpoints)
        if checkpoint.uuid is not None
    )
    manager.note_session(
        session_id=answered.session_id,
        model=answered.model,
        provider=answered.provider,
        context_tokens=answered.context_tokens,
        checkpoint=next(in_transcript, None),
        now_ms=answered.at_ms,
    )


def _text_for_order(hydrated: Hydrated) -> str | None:
    """Return a text as a container's order has it, cut to `MAX_RESTORE_CHARS`; None if it is empty."""
    return hydrated.text[:MAX_RESTORE_CHARS] or None
