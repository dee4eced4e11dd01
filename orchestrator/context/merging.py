"""Merge two changes of one context that were made at the same time, so that neither is lost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from orchestrator.context.models import Checkpoint, Context, ContextMessage, Dialogue, Memory, Sdk, Stats
from orchestrator.context.window import in_order

T = TypeVar("T")


def merged(base: Context, disk: Context, mine: Context) -> Context:
    """Return the merged context of two that were changed at the same time, from the same stored `base`.

    `disk` was saved meanwhile by another process; `mine` is saved now. For a single value, `mine` wins if it
    differs from `base`: it is saved later, whatever the clocks say. Lists have the changes of both sides;
    messages are joined by id. A message that left the window of newest messages on either side, and so is in
    its summary, does not return.
    """
    return disk.model_copy(
        update={
            "memory": _memory(base.memory, disk.memory, mine.memory),
            "conversation": _conversation(base.conversation, disk.conversation, mine.conversation),
            "stats": Stats(
                dialog_turns=disk.stats.dialog_turns + mine.stats.dialog_turns - base.stats.dialog_turns,
                total_tokens=disk.stats.total_tokens + mine.stats.total_tokens - base.stats.total_tokens,
            ),
            "sdk": _sdk(base.sdk, disk.sdk, mine.sdk),
            "pending_user": _changed_value(base.pending_user, disk.pending_user, mine.pending_user),
        }
    )


def _memory(base: Memory, disk: Memory, mine: Memory) -> Memory:
    """Return the merged memory of two that were changed from the same `base`.

    `disk` was saved meanwhile by another process; `mine` is saved now.

    A single value is that of `mine` if it was changed there, else that of `disk`; lists have the changes of
    both sides.
    """
    return disk.model_copy(
        update={
            "active_plan_id": _changed_value(base.active_plan_id, disk.active_plan_id, mine.active_plan_id),
            "active_task_id": _changed_value(base.active_task_id, disk.active_task_id, mine.active_task_id),
            "last_decisions": _merged_items(base.last_decisions, disk.last_decisions, mine.last_decisions),
            "open_files": _merged_items(base.open_files, disk.open_files, mine.open_files),
            "working_directory": _changed_value(
                base.working_directory, disk.working_directory, mine.working_directory
            ),
            "note": _changed_value(base.note, disk.note, mine.note),
        }
    )


def _conversation(base: Dialogue, disk: Dialogue, mine: Dialogue) -> Dialogue:
    """Return the merged dialogue of two that were changed from the same `base`.

    `disk` was saved meanwhile by another process; `mine` is saved now.

    A message that left the window of newest messages on one side is not in the result's window either. A
    message that either side has added before counts as added (`seen`).
    """
    in_window = in_order(
        (
            *_not_evicted(disk.recent_window, other=mine),
            *_not_evicted(mine.recent_window, other=disk),
        )
    )
    return disk.model_copy(
        update={
            "running_summary": _changed_value(
                base.running_summary, disk.running_summary, mine.running_summary
            ),
            # The ids of the messages in the summary.
            "folded": _merged_items(base.folded, disk.folded, mine.folded),
            "recent_window": in_window,
            # All messages of turns up to the floor count as added; both sides' floors and ids apply.
            "seen": disk.seen.up_to(mine.seen.floor).with_ids(mine.seen.ids),
        }
    )


def _not_evicted(window: Iterable[ContextMessage], *, other: Dialogue) -> list[ContextMessage]:
    """Return the messages of one side's window that the `other` side has in its window, or never had."""
    in_window = {message.id for message in other.recent_window}
    return [message for message in window if message.id in in_window or message.id not in other.seen]


def _sdk(base: Sdk, disk: Sdk, mine: Sdk) -> Sdk:
    """Return the merged state of the SDK's session, changed on two sides from the same `base`.

    `disk` was saved meanwhile by another process; `mine` is saved now.

    If the two sides have different sessions, the side that changed the session counts, `mine` if both did;
    only the ids of earlier sessions (`history`) are merged.
    """
    history = _merged_items(base.history, disk.history, mine.history)
    # Checkpoints belong to one session, so those of two sessions are not joined.
    if disk.session_id != mine.session_id:
        changed = mine if mine.session_id != base.session_id else disk
        return changed.model_copy(update={"history": history})
    return mine.model_copy(
        update={
            "model": _changed_value(base.model, disk.model, mine.model),
            "provider": _changed_value(base.provider, disk.provider, mine.provider),
            "context_tokens": _changed_value(base.context_tokens, disk.context_tokens, mine.context_tokens),
            "last_active_ms": max(disk.last_active_ms, mine.last_active_ms),
            "checkpoints": _checkpoints(disk.checkpoints, mine.checkpoints),
            "history": history,
        }
    )


def _checkpoints(disk: Sequence[Checkpoint], mine: Sequence[Checkpoint]) -> tuple[Checkpoint, ...]:
    """Return the checkpoints of both sides in the order of turns, one a turn.

    Where both sides have one for a turn, that of `mine` (saved now) counts, not that of `disk` (saved
    meanwhile).
    """
    by_turn = {checkpoint.turn: checkpoint for checkpoint in (*disk, *mine)}
    return tuple(by_turn[turn] for turn in sorted(by_turn))


def _changed_value(base: T, disk: T, mine: T) -> T:
    """Return the merged value: `mine`, saved now, if it differs from `base`, else `disk`, saved before."""
    return disk if mine == base else mine


def _merged_items(base: Sequence[str], disk: Sequence[str], mine: Sequence[str]) -> tuple[str, ...]:
    """Return the merged list of two that were changed from the same `base`; each item once.

    `disk` was saved meanwhile by another process; `mine` is saved now. First come the items of `disk`,
    without those that `mine` has removed from `base`, then the items that `mine` has added. An item that both
    sides have added is among those of `mine`.
    """
    removed = set(base) - set(mine)
    new = [item for item in mine if item not in base]
    remaining = [item for item in disk if item not in removed and item not in new]
    return tuple(dict.fromkeys((*remaining, *new)))
