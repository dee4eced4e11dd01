"""Record the answer to a question, and change its task where a person's answer is unambiguous."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from agent_runner.wire.dashboard import asks_if_done
from orchestrator.dashboard.services import questions, tasks
from orchestrator.dashboard.services.context import ServiceContext
from orchestrator.dashboard.words import reply_parser, when
from orchestrator.domain.dashboard import (
    Actor,
    BoardTaskStatus,
    Question,
    QuestionType,
    ToolRefused,
    ToolResult,
)
from orchestrator.store.board import questions as board_questions
from orchestrator.store.board import tasks as board_tasks

_ASKS_WHEN = re.compile(r"\bwhen\b|\bdeadline\b|\bdue\b|언제|마감|기한", re.IGNORECASE)
# "60 %", "about 60 percent done", "약 60프로 정도": the number is 60.
_PERCENTAGE = re.compile(
    r"(?:about\s+|약\s*)?(\d{1,3})\s*(?:%|percent|퍼센트|프로)(?:\s*(?:done|정도))?\.?", re.IGNORECASE
)


EffectName = Literal["completed", "deadline", "progress"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The change that an answer made to its question's task."""

    name: EffectName
    result: ToolResult


async def answer(ctx: ServiceContext, *, question_id: str, answer: str) -> ToolResult:
    """Record the answer to a question, and change the question's task if a person gave the answer directly.

    An answer that an agent passes on is only recorded. If a task was changed, the field `effect` of the
    result's data is the name of the change. Otherwise an agent has to read the answer. Raises `ToolRefused`.
    """
    result = await questions.answer(ctx, question_id=question_id, answer=answer)
    question = await board_questions.get(ctx.tx, ctx.folder, question_id)
    if question is None or ctx.caller.actor is not Actor.USER:
        return result
    effect = await carry_out(ctx, question, answer)
    return result if effect is None else replace(result, data={**result.data, "effect": effect.name})


async def carry_out(ctx: ServiceContext, question: Question, answer: str) -> Effect | None:
    """Change the task of a question as an answer clearly requests, and return the change.

    "yes" to "is it done?" completes the task, a time moves its deadline, "60 %" sets its progress. None if
    nothing was changed: the question has no open task, only an agent understands the answer, or the change
    was refused.
    """
    task = await board_tasks.get(ctx.tx, ctx.folder, question.task_id) if question.task_id else None
    if task is None or task.status.is_terminal:
        return None
    change = _change_of(ctx, question, answer)
    if change is None:
        return None
    # The version that the caller expects is the question's, so the task is changed without one.
    unversioned = ctx.for_caller(replace(ctx.caller, expect_version=None))
    try:
        return Effect(name=change.name, result=await tasks.update(unversioned, task.id, change.changes))
    except ToolRefused:
        return None  # the answer itself is recorded all the same, for an agent to read


class _Change(NamedTuple):
    """A change of a task that an answer requests, and its name."""

    name: EffectName
    changes: tasks.TaskChanges


def _change_of(ctx: ServiceContext, question: Question, answer: str) -> _Change | None:
    """Return the change of the question's task that an answer clearly requests; None if it requests none."""
    if asks_if_done(question.question) and reply_parser.means_done(answer):
        return _Change("completed", tasks.TaskChanges(status=BoardTaskStatus.COMPLETED))
    percentage = _PERCENTAGE.fullmatch(answer.strip())
    # 100 % may mean that the task is completed, or not yet: an agent has to read it.
    if percentage and int(percentage[1]) < 100:
        return _Change("progress", tasks.TaskChanges(progress=int(percentage[1])))
    is_about_time = question.type is QuestionType.DEADLINE_CHECK or _ASKS_WHEN.search(question.question)
    if is_about_time and _names_future_time(ctx, answer):
        return _Change("deadline", tasks.TaskChanges(deadline=answer))
    return None


def _names_future_time(ctx: ServiceContext, text: str) -> bool:
    """Return whether a text names a day or a time that is in the future."""
    try:
        deadline = when.parse_deadline(text, now_ms=ctx.now_ms, zone=ctx.zone)
    except ToolRefused:
        return False
    return deadline is not None and not when.is_over(deadline, now_ms=ctx.now_ms, zone=ctx.zone)
