"""Change the memory beside the dialogue: the active plan and task, decisions, open files. Pure."""

from __future__ import annotations

import posixpath
from typing import Any

from orchestrator.base.redaction import redact
from orchestrator.context import models, script
from orchestrator.context.models import (
    MAX_CHECKPOINTS,
    MAX_CONTENT_CHARS,
    MAX_DECISION_CHARS,
    MAX_DECISIONS,
    MAX_FOLDED,
    MAX_OPEN_FILES,
    MAX_PATH_CHARS,
    MAX_SESSION_HISTORY,
    Checkpoint,
    Context,
    Memory,
    Sdk,
)
from orchestrator.context.workflow import AiSession, Workflow

WORKSPACE = "/workspace/group"
"""The working directory of an agent, as its container sees it."""


def with_decision(memory: Memory, text: str) -> Memory:
    """Return the memory with a decision at the end of its list, shortened and redacted.

    A decision that is in the list already moves to the end; a blank text is ignored.
    """
    clean = script.shortened(redact(" ".join(text.split())), MAX_DECISION_CHARS)
    return memory.model_copy(
        update={"last_decisions": _with_newest(memory.last_decisions, clean, MAX_DECISIONS)}
    )


def with_open_file(memory: Memory, path: str) -> Memory:
    """Return the memory with a file at the end of its open files; a blank or too long path is ignored.

    A path that is in the list already moves to the end. The file's directory becomes the working directory.
    Secrets in the path are redacted.
    """
    clean = redact(path.strip().replace("\0", ""))
    if not clean or len(clean) > MAX_PATH_CHARS:
        return memory
    # Paths are those in the container, whatever the system of the host.
    directory = posixpath.normpath(posixpath.join(WORKSPACE, posixpath.dirname(clean)))
    return memory.model_copy(
        update={
            "open_files": _with_newest(memory.open_files, clean, MAX_OPEN_FILES),
            "working_directory": directory[:MAX_PATH_CHARS],
        }
    )


def with_active(memory: Memory, plan_id: str | None, task_id: str | None) -> Memory:
    """Return the memory with another active plan and task, None for no active one.

    It is not checked whether they exist. The note about an earlier repair is removed.
    """
    return memory.model_copy(update={"active_plan_id": plan_id, "active_task_id": task_id, "note": None})


def with_ai_session(workflow: Workflow, memory: Memory) -> Workflow:
    """Return the workflow with a copy of the active plan, files and decisions in its field `ai_session`.

    The copy is for programs that read the workflow's file alone. The same object is returned if nothing
    changes.
    """
    plan = workflow.plan(memory.active_plan_id)
    task = plan.task(memory.active_task_id) if plan and memory.active_task_id else None
    session = AiSession(
        last_context=": ".join(item.title for item in (plan, task) if item is not None),
        active_files=memory.open_files,
        key_decisions=memory.last_decisions,
    )
    if session == workflow.metadata.ai_session:
        return workflow
    metadata = workflow.metadata.model_copy(update={"ai_session": session})
    return workflow.model_copy(update={"metadata": metadata})


def without_decision(memory: Memory, text: str) -> Memory:
    """Return the memory without the decision that has this text."""
    remaining = tuple(decision for decision in memory.last_decisions if decision != text)
    return memory.model_copy(update={"last_decisions": remaining})


def forgotten(old: Context, now_ms: int) -> Context:
    """Return an empty context in place of `old`.

    It still has the ids of the messages that were added before, so that none is added again, the ids of
    earlier sessions, the time at which the context was made, and its revision.
    """
    fresh = models.bootstrap(now_ms)
    sdk = without_session(old.sdk)
    return fresh.model_copy(
        update={
            "conversation": fresh.conversation.model_copy(update={"seen": old.conversation.seen}),
            "created_at": old.created_at,
            "revision": old.revision,
            "sdk": sdk.model_copy(update={"model": None, "provider": None, "last_active_ms": 0}),
        }
    )


def repaired(context: Context, workflow: Workflow) -> Memory:
    """Return the context's memory with an active plan and task that exist; the same object if they do.

    The workflow's current plan counts where the two differ: its file is written first, so after a crash
    between both writes it is right. No task of it is active then. A plan or task that is gone is named in the
    memory's note.
    """
    memory = context.memory
    current = workflow.plan(workflow.current_plan_id)
    plan = current or workflow.plan(memory.active_plan_id)
    # Each plan numbers its own tasks: the same id in another plan is another task, which nobody has begun.
    has_other_plan = plan is not None and plan.id != memory.active_plan_id
    task = plan.task(memory.active_task_id) if plan and memory.active_task_id and not has_other_plan else None
    plan_id = plan.id if plan else None
    task_id = task.id if task else None
    if (plan_id, task_id) == (memory.active_plan_id, memory.active_task_id):
        return memory
    lost = []
    if memory.active_plan_id and workflow.plan(memory.active_plan_id) is None:
        lost.append(f"the plan {memory.active_plan_id} is gone")
    if memory.active_task_id and task is None and not has_other_plan:
        lost.append(f"the task {memory.active_task_id} is gone")
    note = f"What was in hand changed: {', '.join(lost)}." if lost else None
    return memory.model_copy(update={"active_plan_id": plan_id, "active_task_id": task_id, "note": note})


def with_session(
    sdk: Sdk,
    *,
    session_id: str | None,
    model: str | None = None,
    provider: str | None = None,
    context_tokens: int | None = None,
    now_ms: int,
) -> Sdk:
    """Return the state of the SDK's session updated by what the SDK reported; None leaves a value unchanged.

    With a new `session_id`, the checkpoints of the old session are dropped, and its id goes to the history.
    `context_tokens` are the tokens of the conversation. `now_ms` becomes the time of the last report.
    """
    # Never earlier than before, because the clock may have been set back.
    changes: dict[str, Any] = {"last_active_ms": max(now_ms, sdk.last_active_ms)}
    reported = {"model": model, "provider": provider, "context_tokens": context_tokens}
    changes |= {name: value for name, value in reported.items() if value is not None}
    if session_id and session_id != sdk.session_id:
        sdk = without_session(sdk)
        changes["session_id"] = session_id
    return sdk.model_copy(update=changes)


def without_session(sdk: Sdk) -> Sdk:
    """Return the state of the agent's session with no session: its id goes to the history of ids.

    Its checkpoints and its number of tokens are dropped.
    """
    if sdk.session_id is None:
        return sdk
    history = _with_newest(sdk.history, sdk.session_id, MAX_SESSION_HISTORY)
    return sdk.model_copy(
        update={"session_id": None, "checkpoints": (), "context_tokens": 0, "history": history}
    )


def with_checkpoint(sdk: Sdk, turn: int, uuid: str) -> Sdk:
    """Return the session's state with a checkpoint: the last message of `turn` has this uuid.

    An earlier checkpoint of the turn is replaced; the newest `MAX_CHECKPOINTS` are stored.
    """
    others = [checkpoint for checkpoint in sdk.checkpoints if checkpoint.turn != turn]
    return sdk.model_copy(
        update={"checkpoints": (*others, Checkpoint(turn=turn, uuid=uuid))[-MAX_CHECKPOINTS:]}
    )


def capped(context: Context) -> Context:
    """Return the context with its lists, summary and other short texts cut to their limits; messages stay."""
    memory, conversation, sdk = context.memory, context.conversation, context.sdk
    decisions = [script.shortened(text, MAX_DECISION_CHARS) for text in memory.last_decisions if text.strip()]
    files = [text for text in memory.open_files if text.strip() and len(text) <= MAX_PATH_CHARS]
    return context.model_copy(
        update={
            "memory": memory.model_copy(
                update={
                    "last_decisions": tuple(dict.fromkeys(decisions))[-MAX_DECISIONS:],
                    "open_files": tuple(dict.fromkeys(files))[-MAX_OPEN_FILES:],
                    "working_directory": memory.working_directory[:MAX_PATH_CHARS],
                    "note": memory.note and script.shortened(memory.note, MAX_PATH_CHARS),
                }
            ),
            "conversation": conversation.model_copy(
                update={
                    "running_summary": script.cut_to_weight(conversation.running_summary),
                    "folded": conversation.folded[-MAX_FOLDED:],
                }
            ),
            "sdk": sdk.model_copy(
                update={
                    "checkpoints": sdk.checkpoints[-MAX_CHECKPOINTS:],
                    "history": sdk.history[-MAX_SESSION_HISTORY:],
                }
            ),
        }
    )


def with_two_messages(context: Context) -> Context:
    """Return the context with its two newest messages only, each cut to `MAX_CONTENT_CHARS`.

    It replaces a context that is too large for its file.
    """
    window = [
        message.model_copy(update={"content": script.shortened(message.content, MAX_CONTENT_CHARS)})
        for message in context.conversation.recent_window[-2:]
    ]
    conversation = context.conversation.model_copy(update={"recent_window": tuple(window)})
    return context.model_copy(update={"conversation": conversation})


def _with_newest(listed: tuple[str, ...], new: str, most: int) -> tuple[str, ...]:
    """Return the list with `new` at its end, and nowhere else; at most the newest `most` items.

    An empty `new` is not added.
    """
    added = (new,) if new else ()
    return (*(item for item in listed if item != new), *added)[-most:]
