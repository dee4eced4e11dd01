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

# Not "When shall I remind you that it is due?", nor "When was it done?". The words before `due` may have the
# task's title.
_ASKS_FOR_DEADLINE = re.compile(
    r"\A\W*(?:(?:by|until)\s+)?when\W*\Z|\bby\s+when\b|\bdeadline\b|\bdue\s+date\b|\bwhen\s+will\s+it\s+be\b"
    r"|\bwhen\s+(?!(?:did|was|were|has|have|had)\b)(?:(?!\b(?:remind|tell|ask)\b)[^?]){0,240}"
    r"\b(?:due|done|ready|finish(?:ed)?|completed?|deliver(?:ed)?)\b"
    r"|\A\W*언제(?:쯤)?(?:요|죠|인가요|예요)?\W*\Z|언제까지|언제쯤?\s*(?:끝(?!났)|완료|마무리|다\s*(?:되|돼|될))"
    r"|(?:마감|기한)[^?]{0,240}(?:언제|며칠)|언제[^?]{0,240}(?:마감|기한)",
    re.IGNORECASE,
)
_ASKS_FOR_PROGRESS = re.compile(
    r"\bhow\s+far\b|\bgoing\b|\bprogress\b|\b(?:done|ready|finished|completed?)\b|%"
    r"|어디까지|얼마나\s*(?:되|됐|했|끝)|어떻게\s*되어|진행|다\s*됐|끝났",
    re.IGNORECASE,
)
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

    "yes" to "is it done?" completes the task, a time as the answer to when it will be done moves its
    deadline, "60 %" as the answer to how far it is sets its progress. None if nothing was changed: the
    question has no open task, only an agent understands the answer, or the change was refused.
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
    # The questions of all types but `INFO_GATHER`, which is the default, are about how the task goes.
    is_about_progress = question.type is not QuestionType.INFO_GATHER or _ASKS_FOR_PROGRESS.search(
        question.question
    )
    percentage = _PERCENTAGE.fullmatch(answer.strip())
    # 100 % may mean that the task is completed, or not yet: an agent has to read it.
    if is_about_progress and percentage and int(percentage[1]) < 100:
        return _Change("progress", tasks.TaskChanges(progress=int(percentage[1])))
    is_about_deadline = question.type is QuestionType.DEADLINE_CHECK or _ASKS_FOR_DEADLINE.search(
        question.question
    )
    if is_about_deadline and _names_future_time(ctx, answer):
        return _Change("deadline", tasks.TaskChanges(deadline=answer))
    return None


def _names_future_time(ctx: ServiceContext, text: str) -> bool:
    """Return whether a text names a day or a time that is in the future."""
    try:
        deadline = when.parse_deadline(text, now_ms=ctx.now_ms, zone=ctx.zone)
    except ToolRefused:
        return False
    return deadline is not None and not when.is_over(deadline, now_ms=ctx.now_ms, zone=ctx.zone)
