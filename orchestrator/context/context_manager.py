"""Read and change the context of one group: every other module goes through `ContextManager`.

Every method blocks for a few milliseconds (a lock, a read, a write): call it in a thread. Any may raise
`ContextBusy` when another writer locks the group's files for 5 s, and `OSError` when the disk fails; the
earlier files are unchanged then. `now_ms` is epoch milliseconds. Texts are redacted before they are stored.

The stored summary has three sources: the summariser, here, when messages leave the window; a model, later
(`summarizer`); and the CLI, which writes one when it compacts its session (`join_summary`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack, cast

from orchestrator.base.redaction import BY_SHAPE, Redactor
from orchestrator.context import dialogue, hydrate, memory, merging, models, window, workflow
from orchestrator.context.dialogue import NewMessage, RegisteredMessages
from orchestrator.context.extractive_summary import ExtractiveSummarizer, Summarizer, merged
from orchestrator.context.files import ContextDraft, ContextFiles, Report
from orchestrator.context.hydrate import Hydrated
from orchestrator.context.models import FROM_PLAN, FROM_SESSION, Checkpoint, Context, ContextMessage
from orchestrator.context.script import cut_to_weight
from orchestrator.context.snapshots import ContextSnapshot, SnapshotContents
from orchestrator.context.tokens import ScaledCounter, TokenCounter
from orchestrator.context.workflow import Plan, PlanContext, PlanStatus, PlanTask, TaskFields

Correct = Callable[[SnapshotContents], SnapshotContents]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextManager:
    """The context of one group.

    It is cheap to create, caches nothing in memory, and is safe in any thread and process.
    """

    files: ContextFiles
    counter: TokenCounter
    summariser: Summarizer

    @classmethod
    def of(
        cls,
        contexts: Path,
        folder: str,
        *,
        counter: TokenCounter,
        summariser: Summarizer | None = None,
        project_name: str = "",
        report: Report = lambda _: None,
        lock_seconds: float = 5.0,
        redactor: Redactor = BY_SHAPE,
    ) -> ContextManager:
        """Return the context of the group with this folder name; nothing is created on the disk yet.

        `contexts` is the directory of all contexts (`data/context`). `summariser` makes summaries, by default
        without a model. `project_name` is the title of a new workflow, by default the folder's name. `report`
        is called in the calling thread with each repair that a load makes. `lock_seconds` is how long a call
        waits for another writer before it raises `ContextBusy`.

        Raises:
            FolderRefused: `folder` is not a valid folder name.
        """
        files = ContextFiles.of(
            contexts,
            folder,
            project_name=project_name,
            report=report,
            lock_seconds=lock_seconds,
            redactor=redactor,
        )
        return cls(files=files, counter=counter, summariser=summariser or ExtractiveSummarizer())

    # Reading

    def load(self, *, now_ms: int) -> SnapshotContents:
        """Return the group's stored conversation (context) and plans (workflow); both may be empty."""
        return self.files.read(now_ms)

    def counting_as(self, factor: float) -> ContextManager:
        """Return a manager whose token counts are multiplied by `factor`.

        Tokens are counted with one encoding. A certain model may divide a text into `factor` times as many.
        """
        return replace(self, counter=ScaledCounter(self.counter, factor))

    def hydrate_prompt(
        self, *, now_ms: int, exclude: Collection[str] = (), contents: SnapshotContents | None = None
    ) -> Hydrated:
        """Return the text that tells a new session of the agent about the conversation so far.

        It is empty, and so false, if nothing is stored. `exclude` has the ids of messages that are in the
        session's next prompt anyway. `contents` are the stored context and workflow, if the caller has
        loaded them already; by default they are loaded.
        """
        contents = contents or self.load(now_ms=now_ms)
        return hydrate.hydrated(
            contents.context, contents.workflow, self.counter, now_ms=now_ms, exclude=exclude
        )

    def meta(self, *, now_ms: int, contents: SnapshotContents | None = None) -> str:
        """Return the text on plans, decisions and open files that a session gets after it was compacted.

        It is empty if there are none. It is made of `contents`; by default they are loaded.
        """
        contents = contents or self.load(now_ms=now_ms)
        return hydrate.meta(contents.context, contents.workflow, self.counter)

    # The dialogue

    def register_message(self, *new_messages: NewMessage, now_ms: int) -> RegisteredMessages:
        """Add messages to the conversation: a user's before the model is called, an answer after it is given.

        Each id is added once; a message that is added again with another text replaces the earlier one while
        that is still stored in full. Nothing is written if all are known and unchanged. The result has the
        new ids, and the older messages that made room and are only in the summary now: a model may summarise
        them better later.
        """
        redacted = [replace(message, content=self._redacted(message.content)) for message in new_messages]
        with self.files.changing(now_ms) as draft:
            result = dialogue.registered(
                draft.context, redacted, counter=self.counter, summariser=self.summariser
            )
            draft.context = result.context
        return result

    def settle(self, message_id: str, *, now_ms: int) -> None:
        """Record that the question with this id will get no answer, because its turn failed for good.

        Nothing changes if another question, or none, waits for an answer.
        """
        with self.files.changing(now_ms) as draft:
            if draft.context.pending_user == message_id:
                draft.context = draft.context.model_copy(update={"pending_user": None})

    def put_summary(self, summary: str, *, instead_of: str, now_ms: int) -> bool:
        """Store `summary` as the conversation's summary if the stored one is still `instead_of`.

        Return whether it was; if it was replaced meanwhile, nothing changes.
        """
        with self.files.changing(now_ms) as draft:
            is_unchanged = draft.context.conversation.running_summary == instead_of
            if is_unchanged:
                _set_summary(draft, cut_to_weight(self._redacted(summary)))
        return is_unchanged

    def join_summary(self, session_summary: str, *, now_ms: int) -> None:
        """Merge the summary that the CLI, the agent's program, wrote at a compaction into the stored one."""
        with self.files.changing(now_ms) as draft:
            conversation = draft.context.conversation
            summary = merged(conversation.running_summary, self._redacted(session_summary))
            # The messages that the session summed up are not known. With this mark among the ids, the summary
            # is made again when any earlier message is deleted. It comes last, because only the newest ids
            # are stored.
            earlier_ids = (each for each in conversation.folded if each != FROM_SESSION)
            _set_summary(draft, summary, folded=(*earlier_ids, FROM_SESSION))

    def stored_turns(self, *, now_ms: int) -> set[int]:
        """Return the ids of the turns whose messages are in the context or in one of its readable snapshots.

        A turn counts also if its messages are in the summary only.
        """
        turn_ids = dialogue.turns_in(self.load(now_ms=now_ms).context)
        return turn_ids.union(
            *(dialogue.turns_in(contents.context) for contents in self.files.snapshots.readable())
        )

    def remove_messages(
        self, message_ids: Collection[str], messages: Mapping[str, ContextMessage], *, now_ms: int
    ) -> None:
        """Remove from the context and its snapshots what people deleted of the messages with these ids.

        `messages` has, by id, the present form of all messages of the turns that `self.stored_turns()` has
        returned. A message of `message_ids` gets its present text, or a note that it was deleted if it has
        none. A summary that contains such a message is made again from what is left of its messages.
        """
        redacted = {
            message.id: message.model_copy(update={"content": self._redacted(message.content)})
            for message in messages.values()
        }
        without_removed = partial(
            dialogue.without, message_ids=message_ids, messages=redacted, summariser=self.summariser
        )
        with self.files.changing(now_ms) as draft:
            # Under one lock, so that no snapshot with the texts is taken in between.
            draft.context = without_removed(draft.context)
            self.files.snapshots.rewrite(without_removed)

    def close_conversation(self, *, now_ms: int, through_turn: int | None = None) -> ContextSnapshot | None:
        """Take a snapshot, then delete the dialogue, its summary and the SDK's session (`/clear`).

        Plans, decisions and open files stay. No message that was added before, or is of a turn up to
        `through_turn`, can be added again. Return the new snapshot; None if nothing was ever stored, or if an
        earlier snapshot has the same state.
        """
        with self.files.changing(now_ms) as draft:
            snapshot = self._take_snapshot(draft, now_ms, "close")
            context = dialogue.closed(draft.context, through_turn=through_turn)
            draft.context = context.model_copy(update={"sdk": memory.without_session(context.sdk)})
        return snapshot

    def reset(self, *, now_ms: int, with_plans: bool = False) -> ContextSnapshot | None:
        """Take a snapshot, then delete everything that is stored but the plans, of which none stays current.

        `with_plans` deletes them too. Messages that were added before are never added again; the owner can
        restore the snapshot. Return the new snapshot; None if nothing was ever stored, or if an earlier
        snapshot has the same state.
        """
        with self.files.changing(now_ms) as draft:
            snapshot = self._take_snapshot(draft, now_ms, "reset")
            draft.context = memory.forgotten(draft.context, now_ms)
            if with_plans:
                draft.workflow = workflow.bootstrap(draft.workflow.project_name, now_ms)
            else:
                draft.workflow = workflow.with_current(draft.workflow, None, now_ms=now_ms)
        return snapshot

    def correct(self, change: Correct, *, now_ms: int) -> ContextSnapshot | None:
        """Take a snapshot, then replace the group's context and plans (`workflow`) by what `change` returns.

        The id of the agent's session is dropped: the session would still contain what was corrected. If
        `change` raises, its error is raised and nothing is changed. Return the new snapshot; None if nothing
        was ever stored, or if an earlier snapshot has the same state.
        """
        with self.files.changing(now_ms) as draft:
            # First, because it may refuse: then no snapshot is taken.
            corrected = change(draft.contents)
            snapshot = self._take_snapshot(draft, now_ms, "correction")
            draft.workflow = corrected.workflow
            sdk = memory.without_session(corrected.context.sdk)
            draft.context = corrected.context.model_copy(update={"sdk": sdk})
        return snapshot

    def save(self, context: Context, *, base: Context, now_ms: int) -> Context:
        """Save `context`, a changed copy of the context that was loaded as `base`; return what was stored.

        What others have saved since the load is merged with it. Messages that no longer fit the window of
        newest messages are folded into the summary.
        """
        with self.files.changing(now_ms) as draft:
            # Every save raises the revision, so an equal one means that nobody else has saved.
            is_unchanged = draft.context.revision == base.revision
            merged_context = context if is_unchanged else merging.merged(base, draft.context, context)
            trimmed = window.trimmed(merged_context.conversation.recent_window, self.counter)
            conversation = merged_context.conversation.model_copy(update={"recent_window": trimmed.remaining})
            # With the stored revision: writing the draft raises it by one.
            draft.context = merged_context.model_copy(
                update={"conversation": conversation, "revision": draft.context.revision}
            )
            if trimmed.evicted:
                ids = (message.id for message in trimmed.evicted)
                summary = self.summariser.fold(conversation.running_summary, trimmed.evicted)
                _set_summary(draft, summary, folded=(*conversation.folded, *ids))
        return draft.context

    # The SDK's session

    def note_session(
        self,
        *,
        session_id: str | None = None,
        model: str | None = None,
        provider: str | None = None,
        context_tokens: int | None = None,
        checkpoint: Checkpoint | None = None,
        now_ms: int,
    ) -> None:
        """Store what the agent SDK reported of its session; None leaves a value unchanged.

        `context_tokens` is the number of tokens of the conversation. `checkpoint` is a turn and the uuid of
        its last message. With a new session id, the checkpoints of the earlier session are dropped. `now_ms`
        is the time of the report, which is stored as well. Nothing is written if the same report of the same
        time is stored already.
        """
        base = self.load(now_ms=now_ms).context
        sdk = memory.with_session(
            base.sdk,
            session_id=session_id,
            model=model,
            provider=provider,
            context_tokens=context_tokens,
            now_ms=now_ms,
        )
        if checkpoint is not None:
            sdk = memory.with_checkpoint(sdk, checkpoint.turn, checkpoint.uuid)
        if sdk != base.sdk:
            self.save(base.model_copy(update={"sdk": sdk}), base=base, now_ms=now_ms)

    # Plans, decisions and open files

    def create_plan(
        self,
        title: str,
        *,
        objective: str = "",
        tasks: Sequence[str] = (),
        context: PlanContext | None = None,
        request_id: str | None = None,
        now_ms: int,
    ) -> Plan:
        """Create a plan and make it the active one; return it.

        `tasks` are the titles of its tasks, all of them pending. `request_id` identifies the request: if one
        with this id made a plan before, that plan is returned and nothing changes. With None, each call
        creates a plan.

        Raises:
            PlanRefused: the plan has no title, is too long, or there are too many plans.
        """
        with self.files.changing(now_ms) as draft:
            plan = draft.workflow.plan(draft.workflow.id_changed_by(request_id))
            if plan is None:
                draft.workflow = workflow.with_new_plan(
                    draft.workflow,
                    title=self._redacted(title),
                    objective=self._redacted(objective),
                    tasks=[self._redacted(task) for task in tasks],
                    context=PlanContext(**self._redacted_fields((context or PlanContext()).model_dump())),
                    request_id=request_id,
                    now_ms=now_ms,
                )
                plan = draft.workflow.plans[-1]
                _set_active(draft, plan.id, None)
        return plan

    def update_plan_task(
        self,
        task_id: str | None = None,
        *,
        plan_id: str | None = None,
        request_id: str | None = None,
        now_ms: int,
        **fields: Unpack[TaskFields],
    ) -> PlanTask:
        """Change a task of the plan `plan_id`, by default of the active plan; return the task.

        Without `task_id`, a task is added. `fields` are its new values. When the active task ends, the next
        one becomes active. If a request with the id `request_id` was carried out before, nothing changes, and
        the task that it changed is returned, whichever plan is active by now.

        Raises:
            UnknownPlan, UnknownPlanTask: no such plan or task exists.
            PlanRefused: a field cannot be stored.
        """
        with self.files.changing(now_ms) as draft:
            plan_id = plan_id or draft.context.memory.active_plan_id or ""
            if draft.workflow.id_changed_by(request_id) is not None:
                return workflow.task_changed_by(draft.workflow, request_id, plan_id)
            draft.workflow = workflow.with_task(
                draft.workflow,
                plan_id,
                task_id,
                request_id=request_id,
                now_ms=now_ms,
                **cast("TaskFields", self._redacted_fields(fields)),
            )
            plan = workflow.known_plan(draft.workflow, plan_id)
            # Without an id, the changed task is the new one at the end.
            task = workflow.known_task(plan, task_id or plan.tasks[-1].id)
            _update_active_task(draft, plan, task)
        return task

    def set_active_plan(
        self, plan_id: str | None, *, resets_summary: bool = False, now_ms: int
    ) -> Plan | None:
        """Make the plan with this id the active one, or no plan if it is None.

        Unless the plan was active already, its first task in progress becomes the active task; if it has
        none, no task is active.

        With `resets_summary`, the plan's title and objective replace the summary, after a snapshot; the
        summary stays if `plan_id` is None. Return the plan; None if no plan is active now.

        Raises:
            UnknownPlan: no plan has this id.
        """
        with self.files.changing(now_ms) as draft:
            draft.workflow = workflow.with_current(draft.workflow, plan_id, now_ms=now_ms)
            plan = draft.workflow.plan(plan_id)
            if draft.context.memory.active_plan_id != plan_id:
                tasks = plan.tasks if plan else ()
                in_progress = (task.id for task in tasks if task.status is PlanStatus.IN_PROGRESS)
                _set_active(draft, plan_id, next(in_progress, None))
            if resets_summary and plan:
                self._take_snapshot(draft, now_ms, "plan")
                opening = "\n".join(filter(None, (plan.title, plan.objective)))
                # `folded` lists the messages in the summary. The mark says that there are none: an empty list
                # would mean that they are not known.
                _set_summary(draft, cut_to_weight(opening), folded=(FROM_PLAN,))
        return plan

    def set_active_task(self, task_id: str | None, *, now_ms: int) -> PlanTask | None:
        """Make a task of the active plan the active one, or no task if `task_id` is None.

        A pending task is set to in progress. Return the task; None if no task is active now.

        Raises:
            UnknownPlan: no plan is active.
            UnknownPlanTask: the active plan has no such task.
        """
        with self.files.changing(now_ms) as draft:
            plan_id = draft.context.memory.active_plan_id
            if task_id is None:
                _set_active(draft, plan_id if draft.workflow.plan(plan_id) else None, None)
                return None
            plan = workflow.known_plan(draft.workflow, plan_id or "")
            task = workflow.known_task(plan, task_id)
            if task.status is PlanStatus.PENDING:
                draft.workflow = workflow.with_task(
                    draft.workflow, plan.id, task_id, status=PlanStatus.IN_PROGRESS, now_ms=now_ms
                )
                task = workflow.known_task(workflow.known_plan(draft.workflow, plan.id), task_id)
            _set_active(draft, plan.id, task_id)
        return task

    def record_decision(self, text: str, *, now_ms: int) -> tuple[str, ...]:
        """Store a decision, cut to 200 characters; return all stored decisions, at most 20, newest last.

        A blank one is not stored. One that is stored already becomes the newest; of more than 20, the oldest
        is dropped.
        """
        redacted = self._redacted(text)
        changed = self._change_memory(lambda before: memory.with_decision(before, redacted), now_ms)
        return changed.last_decisions

    def note_open_file(self, path: str, *, now_ms: int) -> tuple[str, ...]:
        """Store the path of a file that the agent works on.

        Return all such paths, at most 20, newest last; of more, the oldest is dropped. A blank path, or one
        of more than 300 characters, is not stored.
        """
        redacted = self._redacted(path)
        return self._change_memory(lambda before: memory.with_open_file(before, redacted), now_ms).open_files

    # Snapshots

    def snapshot(self, *, now_ms: int, reason: str = "timer") -> ContextSnapshot | None:
        """Take a snapshot of context and workflow, and return it.

        `reason` is stored with it. Return None when nothing is stored, or nothing changed since the newest
        snapshot.
        """
        if not self.files.path.is_dir():
            return None
        with self.files.changing(now_ms) as draft:
            return self._take_snapshot(draft, now_ms, reason)

    def snapshots(self) -> list[ContextSnapshot]:
        """Return all snapshots, newest first."""
        return self.files.snapshots.listed()

    def restore(self, name: str, *, now_ms: int) -> ContextSnapshot | None:
        """Take a snapshot, then replace the group's context and plans by those of the snapshot `name`.

        The id of the agent's session is dropped, since the session contains what the restored context lacks.
        Messages that were added after the snapshot are never added again. Return the new snapshot; None if
        nothing was ever stored, or if an earlier snapshot has the same state.

        Raises:
            UnknownSnapshot, SnapshotDamaged: nothing was changed.
        """
        contents = self.files.snapshots.read(name)
        with self.files.changing(now_ms) as draft:
            snapshot = self._take_snapshot(draft, now_ms, "restore")
            present = draft.context
            # `seen` records which messages were added: by their ids, and by `floor`, the turn up to which all
            # were. The result has what either of the two contexts has recorded.
            seen_now = present.conversation.seen
            seen = contents.context.conversation.seen.up_to(seen_now.floor).with_ids(seen_now.ids)
            conversation = contents.context.conversation.model_copy(update={"seen": seen})
            draft.workflow = contents.workflow
            draft.context = contents.context.model_copy(
                update={
                    "conversation": conversation,
                    "revision": present.revision,
                    "sdk": memory.without_session(present.sdk),
                    # Not the snapshot's: that question waited for its answer only at that time.
                    "pending_user": None,
                }
            )
        return snapshot

    def pin(self, name: str) -> None:
        """Protect a snapshot from being deleted when it is old. Raises `UnknownSnapshot`."""
        self.files.snapshots.pin(name)

    def unpin(self, name: str) -> None:
        """Let a protected snapshot be deleted again when it is old. Raises `UnknownSnapshot`."""
        self.files.snapshots.unpin(name)

    def _redacted(self, text: str) -> str:
        """Return a text with its secrets replaced, and without null characters."""
        # Before anything is cut: the redactor recognises a secret only if it is whole.
        return self.files.redactor.redact(text.replace("\0", ""))

    def _redacted_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return fields, each None, a text or a list of texts, with each text as `_redacted` returns it."""
        redacted: dict[str, Any] = {}
        for name, value in fields.items():
            if value is None:
                redacted[name] = None
            elif isinstance(value, str):
                redacted[name] = self._redacted(value)
            else:
                redacted[name] = [self._redacted(text) for text in value]
        return redacted

    def _take_snapshot(self, draft: ContextDraft, now_ms: int, reason: str) -> ContextSnapshot | None:
        """Take a snapshot of the context and plans in a draft, and return it. `reason` is stored with it.

        None if nothing was ever stored, or if a snapshot of this revision exists already.
        """
        if draft.context.revision == 0:
            return None
        return self.files.snapshots.create(draft.contents, now_ms=now_ms, reason=reason)

    def _change_memory(self, change: Callable[[models.Memory], models.Memory], now_ms: int) -> models.Memory:
        """Replace the memory (active plan, decisions, open files) by the result of `change`, and return it.

        Nothing is written if the result is equal.
        """
        with self.files.changing(now_ms) as draft:
            changed = change(draft.context.memory)
            if changed != draft.context.memory:
                draft.context = draft.context.model_copy(update={"memory": changed})
        return changed


def _set_active(draft: ContextDraft, plan_id: str | None, task_id: str | None) -> None:
    """Make a plan and a task of a draft the active ones; None means that none is active."""
    changed = memory.with_active(draft.context.memory, plan_id, task_id)
    if changed != draft.context.memory:
        draft.context = draft.context.model_copy(update={"memory": changed})


def _update_active_task(draft: ContextDraft, plan: Plan, task: PlanTask) -> None:
    """Choose the draft's active task after `task` of `plan` changed.

    A task in progress becomes active if no task is. When the active task has ended, the plan's next task
    becomes active. Nothing changes if `plan` is not the active plan.
    """
    memory_now = draft.context.memory
    if memory_now.active_plan_id != plan.id:
        return
    if task.status.is_over and memory_now.active_task_id == task.id:
        next_task = workflow.next_task(plan)
        _set_active(draft, plan.id, next_task.id if next_task else None)
    elif task.status is PlanStatus.IN_PROGRESS and memory_now.active_task_id is None:
        _set_active(draft, plan.id, task.id)


def _set_summary(draft: ContextDraft, summary: str, *, folded: Iterable[str] | None = None) -> None:
    """Replace the summary of a draft's conversation.

    `folded` has the ids of the messages that the summary was made of; None leaves the recorded ids unchanged.
    """
    conversation = draft.context.conversation
    folded_ids = conversation.folded if folded is None else tuple(folded)
    conversation = conversation.model_copy(update={"running_summary": summary, "folded": folded_ids})
    draft.context = draft.context.model_copy(update={"conversation": conversation})
