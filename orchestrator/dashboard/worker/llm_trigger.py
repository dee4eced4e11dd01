"""Decide when a model is to update a dashboard: only if something changed since it did so last. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.domain.dashboard import BoardSnapshot, BoardTask, BoardTaskStatus, Dashboard

_FAILED_MARK = "!"
PASSES_PER_PERIOD = 4
"""Passes of the rules in one period of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardDigest:
    """Two hashes of a dashboard: of the fields that people set, and of the cases that need judgement."""

    content_hash: str
    cases_hash: str
    """Empty if no case needs judgement."""
    has_failed: bool = False
    """Whether the model's turn about this state failed; it is repeated a period later."""

    @classmethod
    def of(cls, snapshot: BoardSnapshot, to_judge: Sequence[str]) -> BoardDigest:
        """Return the hashes of a dashboard.

        `to_judge` are the cases that rules cannot decide, as `kind:id`; each unread answer is one. Without
        any, their hash is empty.
        """
        content = [_judged_fields(task) for task in sorted(snapshot.tasks, key=lambda task: task.id)]
        # With the times of the unread answers, so that an answer which replaces another is a new case.
        cases: list[object] = [*to_judge, *(question.answered_ms for question in snapshot.answered)]
        return cls(content_hash=_hash(content), cases_hash=_hash(cases) if to_judge else "")

    @classmethod
    def read(cls, text: str | None) -> BoardDigest | None:
        """Return the digest that a stored text represents; None where none was stored."""
        if text is None:
            return None
        # `<content>:<cases>`, with `_FAILED_MARK` at the end after a failed turn: see `__str__`.
        content_hash, _, cases_hash = text.removesuffix(_FAILED_MARK).partition(":")
        return cls(content_hash=content_hash, cases_hash=cases_hash, has_failed=text.endswith(_FAILED_MARK))

    def __str__(self) -> str:
        """Return the text to store: `<content>:<cases>`, the two hashes, with a mark after a failed turn."""
        return f"{self.content_hash}:{self.cases_hash}{_FAILED_MARK if self.has_failed else ''}"


def why_ask(dashboard: Dashboard, digest: BoardDigest, *, now_ms: int, period_ms: int) -> str | None:
    """Return why a model is to update a dashboard now: `judge`, `period`, or `again` after a failed turn.

    `digest` describes the dashboard as it is now. New cases that need judgement get a turn at once, other
    changes one in each `period_ms`. None if no turn is needed: a dashboard that has not changed since the
    model's last turn gets none, however long ago that was.
    """
    last_judged = BoardDigest.read(dashboard.worker_digest)
    has_failed = last_judged is not None and last_judged.has_failed
    judged_cases = "" if last_judged is None else last_judged.cases_hash
    if digest.cases_hash not in ("", judged_cases) and not has_failed:
        return "judge"
    since_ms = dashboard.created_ms if dashboard.worker_last_ms is None else dashboard.worker_last_ms
    # After a failure too: asking again at once would repeat the failure at every pass of the rules. A time in
    # the future is from before the clock was set back.
    if 0 <= now_ms - since_ms < period_ms:
        return None
    if has_failed:
        return "again"
    judged_content = NO_TASKS_HASH if last_judged is None else last_judged.content_hash
    return "period" if digest.content_hash != judged_content else None


def _judged_fields(task: BoardTask) -> list[object]:
    """Return the values of a task's fields that people and agents set.

    Only a change of these makes a model look at the dashboard again, not a change by the rules.
    """
    # Rules move tasks between `active` and `someday`; if that counted as a change, each move would cost a
    # model's turn.
    status = task.status if task.status.is_terminal else BoardTaskStatus.ACTIVE
    deadline = (task.deadline.at_ms, task.deadline.date) if task.deadline else None
    return [
        task.id,
        task.title,
        status.value,
        task.pct,
        deadline,
        task.priority.value,
        task.blocked_ms,
        task.blocker_note,
        task.context,
        list(task.tags),
        task.progress_note,
    ]


def _hash(value: object) -> str:
    """Return a short hash of a value that JSON can hold."""
    # Sixteen digits are enough to see a change, and stay readable in the store.
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")).hexdigest()[:16]


NO_TASKS_HASH = _hash([])
"""The content hash of a dashboard without tasks, for example with one reminder: no model needs to look."""
