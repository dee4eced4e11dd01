"""Read and change the context of one group: every other module goes through `ContextManager`.

Every method blocks for a few milliseconds (a lock, a read, a write): call it in a thread. Any may raise
`ContextBusy` when another writer locks the group's files for 5 s, and `OSError` when the disk fails; the
earlier files are unchanged then. `now_ms` is epoch milliseconds. Texts are redacted before they are stored.
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
from orchestrator.context.models import FROM_SESSION, Checkpoint, Context, ContextMessage
from orchestrator.context.script import within
from orchestrator.context.snapshots import ContextSnapshot, SnapshotContents
from orchestrator.context.tokens import ScaledCounter, TokenCounter
from orchestrator.context.workflow import Plan, PlanContext, PlanStatus, PlanTask, TaskFields, UnknownPlanTask

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
        """Return the context of a group under `contexts` (`data/context`); nothing is created on the disk
        yet.

        `summariser` makes summaries, by default without a model. `report` is called in the calling thread
        with each repair that a load makes.

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
        """Return the group's context and workflow; both are empty where nothing is stored."""
        return self.files.read(now_ms)

    def counting_as(self, factor: float) -> ContextManager:
        """Return a manager that counts tokens as a model with this factor does."""
        return replace(self, counter=ScaledCounter(self.counter, factor))

    def hydrate_prompt(
        self, *, now_ms: int, exclude: Collection[str] = (), contents: SnapshotContents | None = None
    ) -> Hydrated:
        """Return the text for a new session (`hydrate.hydrated`); it is false when there is nothing to say.

        `exclude` has the ids of messages that are in the session's next prompt anyway (S5). `contents` are
        the documents, if they were loaded already.
        """
        contents = contents or self.load(now_ms=now_ms)
        return hydrate.hydrated(
            contents.context, contents.workflow, self.counter, now_ms=now_ms, exclude=exclude
        )

    def meta(self, *, now_ms: int, contents: SnapshotContents | None = None) -> str:
        """Return the text for a compacted session (`hydrate.meta`), empty when there is nothing to say.

        It is made of `contents`, by default of the stored context.
        """
        contents = contents or self.load(now_ms=now_ms)
        return hydrate.meta(contents.context, contents.workflow, self.counter)

    # The dialogue

    def register_message(self, *spoken: NewMessage, now_ms: int) -> RegisteredMessages:
        """Store one message or several: a user's before the model is called, the assistant's after it
        answered. Each id is stored once; nothing is written if all ids are known.
        The result has the new ids and the messages that left the window, for a model to summarise later.
        """
        clean = [replace(message, content=self._clean(message.content)) for message in spoken]
        with self.files.changed(now_ms) as draft:
            result = dialogue.registered(
                draft.context, clean, counter=self.counter, summariser=self.summariser
            )
            draft.context = result.context
        return result

    def settle(self, message_id: str, *, now_ms: int) -> None:
        """Record that a question will get no answer, because its turn failed for good."""
        with self.files.changed(now_ms) as draft:
            if draft.context.pending_user == message_id:
                draft.context = draft.context.model_copy(update={"pending_user": None})

    def put_summary(self, summary: str, *, instead_of: str, now_ms: int) -> bool:
        """Replace the summary `instead_of`; return False, without a change, if it was replaced meanwhile."""
        with self.files.changed(now_ms) as draft:
            is_unchanged = draft.context.conversation.running_summary == instead_of
            if is_unchanged:
                _set_summary(draft, within(self._clean(summary)))
        return is_unchanged

    def join_summary(self, session_summary: str, *, now_ms: int) -> None:
        """Merge a summary that the agent's session wrote, as at a compaction, into the stored summary."""
        with self.files.changed(now_ms) as draft:
            old = draft.context.conversation
            summary = merged(old.running_summary, self._clean(session_summary))
            # The messages that the session summed up are not known. With this mark among the ids, the summary
            # is made anew when any earlier message is deleted.
            _set_summary(draft, summary, folded=dict.fromkeys((*old.folded, FROM_SESSION)))

    def stored_turns(self, *, now_ms: int) -> set[int]:
        """Return the turns whose messages are in the context or in one of its snapshots."""
        turn_ids = dialogue.turns_in(self.load(now_ms=now_ms).context)
        return turn_ids.union(
            *(dialogue.turns_in(contents.context) for contents in self.files.snapshots.readable())
        )

    def remove_messages(
        self, message_ids: Collection[str], messages: Mapping[str, ContextMessage], *, now_ms: int
    ) -> None:
        """Remove the texts of the messages of `message_ids` from the context and its snapshots.

        `messages` are all messages that are stored, by id, in their present form (`dialogue.without`).
        """
        clean = {
            message.id: message.model_copy(update={"content": self._clean(message.content)})
            for message in messages.values()
        }
        remaining = partial(
            dialogue.without, message_ids=message_ids, messages=clean, summariser=self.summariser
        )
        with self.files.changed(now_ms) as draft:
            # Under one lock, so that no snapshot with the texts is taken in between.
            draft.context = remaining(draft.context)
            self.files.snapshots.rewrite(remaining)

    def close_conversation(self, *, now_ms: int, through_turn: int | None = None) -> ContextSnapshot | None:
        """Take a snapshot, then delete the dialogue, its summary and the SDK's session (`/clear`).

        Plans, decisions and open files stay. No turn up to `through_turn` is registered again. Return the new
        snapshot; None if none was needed.
        """
        with self.files.changed(now_ms) as draft:
            snapshot = self._snapshot(draft, now_ms, "close")
            context = dialogue.closed(draft.context, through_turn=through_turn)
            draft.context = context.model_copy(update={"sdk": memory.without_session(context.sdk)})
        return snapshot

    def reset(self, *, now_ms: int, with_plans: bool = False) -> ContextSnapshot | None:
        """Take a snapshot, then delete everything but the plans; `with_plans` deletes the plans too.

        Messages registered before are not registered again; the owner can restore the snapshot. Return the
        new snapshot; None if none was needed.
        """
        with self.files.changed(now_ms) as draft:
            snapshot = self._snapshot(draft, now_ms, "reset")
            draft.context = memory.forgotten(draft.context, now_ms)
            if with_plans:
                draft.workflow = workflow.bootstrap(draft.workflow.project_name, now_ms)
            else:
                draft.workflow = workflow.with_current(draft.workflow, None, now_ms=now_ms)
        return snapshot

    def correct(self, change: Correct, *, now_ms: int) -> ContextSnapshot | None:
        """Take a snapshot, then replace context and plans by the result of `change`.

        The SDK's session is dropped: it would still contain what was corrected. An error of `change` leaves
        all as it was. Return the new snapshot; None if none was needed.
        """
        with self.files.changed(now_ms) as draft:
            # First, because it may refuse: then no snapshot is taken.
            corrected = change(draft.contents)
            snapshot = self._snapshot(draft, now_ms, "correction")
            draft.workflow = corrected.workflow
            sdk = memory.without_session(corrected.context.sdk)
            draft.context = corrected.context.model_copy(update={"sdk": sdk})
        return snapshot

    def save(self, context: Context, *, base: Context, now_ms: int) -> Context:
        """Save a changed copy of the context loaded as `base`, merged with later saves of others; return what
        was stored.
        """
        with self.files.changed(now_ms) as draft:
            is_unchanged = draft.context.revision == base.revision
            joined = context if is_unchanged else merging.merged(base, draft.context, context)
            cut = window.trimmed(joined.conversation.recent_window, self.counter)
            conversation = joined.conversation.model_copy(update={"recent_window": cut.remaining})
            draft.context = joined.model_copy(
                update={"conversation": conversation, "revision": draft.context.revision}
            )
            if cut.evicted:
                ids = (message.id for message in cut.evicted)
                summary = self.summariser.fold(conversation.running_summary, cut.evicted)
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
        """Store what the SDK reported of its session; None leaves a value unchanged.

        A new session starts its own checkpoints.
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
        """Create a plan with pending tasks and make it the active one. A repeated request adds none.

        Raises `PlanRefused`: it has no title, is too long, or there are too many. `request_id` is by which a
        repetition is known; None means that it is none.
        """
        with self.files.changed(now_ms) as draft:
            plan = draft.workflow.plan(draft.workflow.made_by(request_id))
            if plan is None:
                draft.workflow = workflow.with_new_plan(
                    draft.workflow,
                    title=self._clean(title),
                    objective=self._clean(objective),
                    tasks=[self._clean(task) for task in tasks],
                    context=PlanContext(**self._cleaned((context or PlanContext()).model_dump())),
                    request_id=request_id,
                    now_ms=now_ms,
                )
                plan = draft.workflow.plans[-1]
                _set_active_ids(draft, plan.id, None)
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
        """Change a task of the active plan, or of `plan_id`; without `task_id`, add a task.

        When the active task ends, the next one becomes active. A repetition of the request `request_id`
        changes nothing.

        Raises:
            UnknownPlan, UnknownPlanTask: no such plan or task exists.
            PlanRefused: a field cannot be stored.
        """
        with self.files.changed(now_ms) as draft:
            plan = workflow.known_plan(draft.workflow, plan_id or draft.context.memory.active_plan_id or "")
            changed_id = draft.workflow.made_by(request_id)
            if changed_id is None:
                draft.workflow = workflow.with_task(
                    draft.workflow,
                    plan.id,
                    task_id,
                    request_id=request_id,
                    now_ms=now_ms,
                    **cast("TaskFields", self._cleaned(fields)),
                )
                # The newest entry of `requests` has the id that a new task has got.
                changed_id = draft.workflow.requests[-1][1] if request_id else task_id
                plan = workflow.known_plan(draft.workflow, plan.id)
            # Without an id, the changed task is the new one at the end.
            task = workflow.known_task(plan, changed_id or plan.tasks[-1].id)
            _update_active_task(draft, plan, task)
        return task

    def set_active_plan(
        self, plan_id: str | None, *, resets_summary: bool = False, now_ms: int
    ) -> Plan | None:
        """Make a plan the active one, or none; its task in progress becomes the active task.

        With `resets_summary`, the plan's title and objective replace the summary, after a snapshot. Return
        the plan; None if no plan is active now.

        Raises:
            UnknownPlan: no plan has this id.
        """
        with self.files.changed(now_ms) as draft:
            draft.workflow = workflow.with_current(draft.workflow, plan_id, now_ms=now_ms)
            plan = draft.workflow.plan(plan_id)
            if draft.context.memory.active_plan_id != plan_id:
                tasks = plan.tasks if plan else ()
                in_progress = (task.id for task in tasks if task.status is PlanStatus.IN_PROGRESS)
                _set_active_ids(draft, plan_id, next(in_progress, None))
            if resets_summary and plan:
                self._snapshot(draft, now_ms, "plan")
                opening = "\n".join(filter(None, (plan.title, plan.objective)))
                _set_summary(draft, within(opening), folded=())
        return plan

    def set_active_task(self, task_id: str | None, *, now_ms: int) -> PlanTask | None:
        """Make a task of the active plan the active one, or none; a pending task becomes in progress.

        Return the task; None if no task is active now.

        Raises:
            UnknownPlanTask: no plan is active, or it has no such task.
        """
        with self.files.changed(now_ms) as draft:
            plan = draft.workflow.plan(draft.context.memory.active_plan_id)
            if task_id is None:
                _set_active_ids(draft, plan.id if plan else None, None)
                return None
            if plan is None:
                raise UnknownPlanTask(task_id)
            task = workflow.known_task(plan, task_id)
            if task.status is PlanStatus.PENDING:
                draft.workflow = workflow.with_task(
                    draft.workflow, plan.id, task_id, status=PlanStatus.IN_PROGRESS, now_ms=now_ms
                )
                task = workflow.known_task(workflow.known_plan(draft.workflow, plan.id), task_id)
            _set_active_ids(draft, plan.id, task_id)
        return task

    def record_decision(self, text: str, *, now_ms: int) -> tuple[str, ...]:
        """Store a decision, cut to 200 characters; return all stored, at most 20, the newest last."""
        clean = self._clean(text)
        changed = self._change_memory(lambda before: memory.with_decision(before, clean), now_ms)
        return changed.last_decisions

    def note_open_file(self, path: str, *, now_ms: int) -> tuple[str, ...]:
        """Store the path of an open file; return all stored, at most 20, the newest last."""
        clean = self._clean(path)
        return self._change_memory(lambda before: memory.with_open_file(before, clean), now_ms).open_files

    # Snapshots

    def snapshot(self, *, now_ms: int, reason: str = "timer") -> ContextSnapshot | None:
        """Take a snapshot; return None when nothing is stored, or nothing changed since the newest."""
        if not self.files.path.is_dir():
            return None
        with self.files.changed(now_ms) as draft:
            return self._snapshot(draft, now_ms, reason)

    def snapshots(self) -> list[ContextSnapshot]:
        """Return all snapshots, newest first."""
        return self.files.snapshots.listed()

    def restore(self, name: str, *, now_ms: int) -> ContextSnapshot | None:
        """Take a snapshot, then replace context and workflow by those of the snapshot `name`.

        The SDK's session is dropped, since it contains what the restored context lacks; messages registered
        after the snapshot are not registered again. Return the new snapshot; None if none was needed.

        Raises:
            UnknownSnapshot, SnapshotDamaged: nothing was changed.
        """
        contents = self.files.snapshots.read(name)
        with self.files.changed(now_ms) as draft:
            snapshot = self._snapshot(draft, now_ms, "restore")
            old = draft.context
            registered = contents.context.conversation.seen.up_to(old.conversation.seen.floor)
            conversation = contents.context.conversation.model_copy(
                update={"seen": registered.with_ids(old.conversation.seen.ids)}
            )
            draft.workflow = contents.workflow
            draft.context = contents.context.model_copy(
                update={
                    "conversation": conversation,
                    "revision": old.revision,
                    "sdk": memory.without_session(old.sdk),
                    "pending_user": None,
                }
            )
        return snapshot

    def pin(self, name: str) -> None:
        """Protect a snapshot from retention. Raises `UnknownSnapshot`."""
        self.files.snapshots.pin(name)

    def unpin(self, name: str) -> None:
        """Let retention delete a pinned snapshot again. Raises `UnknownSnapshot`."""
        self.files.snapshots.unpin(name)

    def _clean(self, text: str) -> str:
        """Return a text without secrets."""
        # Before anything is cut: the redactor recognises a secret only if it is whole.
        return self.files.redactor.redact(text.replace("\0", ""))

    def _cleaned(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return fields, each None, a text or a list of texts, with their texts cleaned."""
        cleaned: dict[str, Any] = {}
        for name, value in fields.items():
            if isinstance(value, str):
                cleaned[name] = self._clean(value)
            else:
                cleaned[name] = value and [self._clean(text) for text in value]
        return cleaned

    def _snapshot(self, draft: ContextDraft, now_ms: int, reason: str) -> ContextSnapshot | None:
        """Take a snapshot of a draft; return None if nothing was ever stored, or if this revision has one."""
        if draft.context.revision == 0:
            return None
        return self.files.snapshots.create(draft.contents, now_ms=now_ms, reason=reason)

    def _change_memory(self, change: Callable[[models.Memory], models.Memory], now_ms: int) -> models.Memory:
        """Replace the memory by the result of `change`, and return it."""
        with self.files.changed(now_ms) as draft:
            changed = change(draft.context.memory)
            if changed != draft.context.memory:
                draft.context = draft.context.model_copy(update={"memory": changed})
        return changed


def _set_active_ids(draft: ContextDraft, plan_id: str | None, task_id: str | None) -> None:
    """Make a plan and a task the active ones; None means that none is."""
    changed = memory.with_active(draft.context.memory, plan_id, task_id)
    if changed != draft.context.memory:
        draft.context = draft.context.model_copy(update={"memory": changed})


def _update_active_task(draft: ContextDraft, plan: Plan, task: PlanTask) -> None:
    """Change the active task after a task changed: a started task becomes active if none is, and the next
    one does when the active task ends.
    """
    memory_now = draft.context.memory
    if memory_now.active_plan_id != plan.id:
        return
    if task.status.is_over and memory_now.active_task_id == task.id:
        next_task = workflow.next_task(plan)
        _set_active_ids(draft, plan.id, next_task.id if next_task else None)
    elif task.status is PlanStatus.IN_PROGRESS and memory_now.active_task_id is None:
        _set_active_ids(draft, plan.id, task.id)


def _set_summary(draft: ContextDraft, summary: str, *, folded: Iterable[str] | None = None) -> None:
    """Replace the summary, and record the messages it was made of when `folded` is given."""
    conversation = draft.context.conversation
    folded_ids = conversation.folded if folded is None else tuple(folded)
    conversation = conversation.model_copy(update={"running_summary": summary, "folded": folded_ids})
    draft.context = draft.context.model_copy(update={"conversation": conversation})
