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
    """Return the memory with a decision at the end; a repeated one moves there, a blank one is ignored."""
    clean = script.shortened(redact(" ".join(text.split())), MAX_DECISION_CHARS)
    return memory.model_copy(
        update={"last_decisions": _with_newest(memory.last_decisions, clean, MAX_DECISIONS)}
    )


def with_open_file(memory: Memory, path: str) -> Memory:
    """Return the memory with a file added at the end; a path that is blank or too long is ignored.

    The file's directory becomes the working directory.
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
    """Return the memory with another active plan and task, None for none; whether they exist is not
    checked.
    """
    return memory.model_copy(update={"active_plan_id": plan_id, "active_task_id": task_id, "note": None})


def with_ai_session(workflow: Workflow, memory: Memory) -> Workflow:
    """Return the workflow with the active plan, files and decisions as its `ai_session`.

    It is the same object where they are unchanged.
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
    """Return the memory without a decision."""
    remaining = tuple(decision for decision in memory.last_decisions if decision != text)
    return memory.model_copy(update={"last_decisions": remaining})


def forgotten(old: Context, now_ms: int) -> Context:
    """Return an empty context that still has the ids of registered messages, so that none is added again."""
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
    """Return the memory with active ids that exist; the same object if they all do.

    The workflow file is written first, so after a crash between both writes its current plan is right.
    """
    memory = context.memory
    current = workflow.plan(workflow.current_plan_id)
    plan = current or workflow.plan(memory.active_plan_id)
    task = plan.task(memory.active_task_id) if plan and memory.active_task_id else None
    plan_id, task_id = plan.id if plan else None, task.id if task else None
    if (plan_id, task_id) == (memory.active_plan_id, memory.active_task_id):
        return memory
    lost = []
    if memory.active_plan_id and workflow.plan(memory.active_plan_id) is None:
        lost.append(f"the plan {memory.active_plan_id} is gone")
    # With another plan, another task is active, which does not mean that the earlier task is gone.
    has_other_plan = plan is not None and plan.id != memory.active_plan_id
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
    """Return the state of the SDK's session with a report of it; a new session id starts new checkpoints.

    What is None in the report stays as it was. `context_tokens` are the tokens of the conversation.
    """
    # The clock may have been set back.
    changes: dict[str, Any] = {"last_active_ms": max(now_ms, sdk.last_active_ms)}
    reported = {"model": model, "provider": provider, "context_tokens": context_tokens}
    changes |= {name: value for name, value in reported.items() if value is not None}
    if session_id and session_id != sdk.session_id:
        sdk = without_session(sdk)
        changes["session_id"] = session_id
    return sdk.model_copy(update=changes)


def without_session(sdk: Sdk) -> Sdk:
    """Return the state without a session; the old session's id goes to the history."""
    if sdk.session_id is None:
        return sdk
    history = _with_newest(sdk.history, sdk.session_id, MAX_SESSION_HISTORY)
    return sdk.model_copy(
        update={"session_id": None, "checkpoints": (), "context_tokens": 0, "history": history}
    )


def with_checkpoint(sdk: Sdk, turn: int, uuid: str) -> Sdk:
    """Return the state with the uuid of the last message of a turn; the newest 20 are stored."""
    rest = [checkpoint for checkpoint in sdk.checkpoints if checkpoint.turn != turn]
    return sdk.model_copy(
        update={"checkpoints": (*rest, Checkpoint(turn=turn, uuid=uuid))[-MAX_CHECKPOINTS:]}
    )


def capped(context: Context) -> Context:
    """Return the context with every list and text cut to its limit."""
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
                    "running_summary": script.within(conversation.running_summary),
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


def bare(context: Context) -> Context:
    """Return the context with its two newest messages only, each cut to its limit.

    It replaces a context that is too large for its file.
    """
    window = [
        message.model_copy(update={"content": script.shortened(message.content, MAX_CONTENT_CHARS)})
        for message in context.conversation.recent_window[-2:]
    ]
    conversation = context.conversation.model_copy(update={"recent_window": tuple(window)})
    return context.model_copy(update={"conversation": conversation})


def _with_newest(listed: tuple[str, ...], new: str, most: int) -> tuple[str, ...]:
    """Return the list with `new` at its end, and nowhere else; at most the newest `most` items."""
    return (*(item for item in listed if item != new), *([new] if new else []))[-most:]
