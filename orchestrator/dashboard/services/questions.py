"""Create, change, answer and close questions. Rows are never deleted, so nothing is asked twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agent_runner.wire.mailbox import MAX_OPTION_CHARS, MAX_OPTIONS, MIN_OPTIONS
from orchestrator.dashboard.rules import dedupe
from orchestrator.dashboard.services import notifications
from orchestrator.dashboard.services.context import ServiceContext, new_id
from orchestrator.dashboard.views import serializers
from orchestrator.dashboard.words import texts, when
from orchestrator.domain.dashboard import (
    Actor,
    BoardTask,
    Priority,
    Question,
    QuestionType,
    ToolRefused,
    ToolResult,
)
from orchestrator.store.board import questions as board_questions

MAX_QUESTION = 1_000
MAX_COOLDOWN_H = 8_760


async def create(
    ctx: ServiceContext,
    *,
    question: str,
    priority: Priority = Priority.MEDIUM,
    type: QuestionType = QuestionType.INFO_GATHER,  # noqa: A002 - the tool's own name
    related_task_id: str | None = None,
    context: str = "",
    options: Sequence[str] = (),
) -> ToolResult:
    """Create a question for people, unless the same is open or was asked a short time ago.

    `options` are answers to choose from; without any, people answer in words.

    Raises:
        ToolRefused: a value does not fit, the question repeats another one, its task is unknown or has ended,
            or too many questions are open.
    """
    question = texts.text("question", question, limit=MAX_QUESTION, is_needed=True)
    context = texts.text("context", context)
    options = checked_options(options)
    if related_task_id is not None:
        await ctx.check_open_task(related_task_id, why_not="there is nothing to ask")
    await _check_not_repeated(ctx, question, related_task_id, type)
    if await board_questions.count_open(ctx.tx, ctx.folder) >= ctx.limits.questions:
        raise ToolRefused("CAP", f"{ctx.limits.questions} questions are open already.")
    created = Question(
        folder=ctx.folder,
        id=new_id("q"),
        question=question,
        context=context,
        priority=priority,
        type=type,
        task_id=related_task_id,
        cooldown_h=dedupe.QUESTION_HOURS[type],
        created_by=ctx.caller.actor,
        created_ms=ctx.now_ms,
        options=options,
    )
    created = await _store(ctx, created, read_version=None)
    return ToolResult(
        text=f"Question {created.id} is put: {created.question}", data=serializers.question(created, ctx.zone)
    )


def checked_options(raw_options: Sequence[str]) -> tuple[str, ...]:
    """Return the answers from which people choose, each on one line; an empty list is allowed, too.

    Raises:
        ToolRefused: VALIDATION, if there are too few or too many, or one is empty, too long or repeated.
    """
    options = tuple(texts.line("options", option) for option in raw_options)
    if options and not MIN_OPTIONS <= len(options) <= MAX_OPTIONS:
        raise ToolRefused("VALIDATION", f"options: give {MIN_OPTIONS} to {MAX_OPTIONS}, or none.")
    if not all(0 < len(option) <= MAX_OPTION_CHARS for option in options):
        raise ToolRefused("VALIDATION", f"options: each has 1 to {MAX_OPTION_CHARS} characters.")
    if len({option.casefold() for option in options}) < len(options):
        raise ToolRefused("VALIDATION", "options: two of them are the same.")
    return options


async def update(
    ctx: ServiceContext,
    *,
    question_id: str,
    priority: Priority | None = None,
    type: QuestionType | None = None,  # noqa: A002 - the tool's own name
    cooldown_hours: int | None = None,
    context: str | None = None,
) -> ToolResult:
    """Change a question that nobody has answered; None leaves a value unchanged.

    `cooldown_hours` must pass before the same is asked again.

    Raises:
        ToolRefused: there is no such open question, it changed since the caller was shown it, a value does
            not fit, or nothing would be different.
    """
    row = await ctx.question(question_id)
    if row.answered_ms is not None:
        raise ToolRefused("ALREADY_ANSWERED", f"Question {row.id} is answered: {row.answer}")
    if row.closed_ms is not None:
        raise ToolRefused("CLOSED", f"Question {row.id} is closed: {row.closed_reason}")
    if cooldown_hours is not None and not 0 <= cooldown_hours <= MAX_COOLDOWN_H:
        raise ToolRefused("VALIDATION", f"cooldown_hours is 0 to {MAX_COOLDOWN_H}.")
    requested = {
        "priority": priority,
        "type": type,
        "cooldown_h": cooldown_hours,
        "context": None if context is None else texts.text("context", context),
    }
    changes = {
        name: value for name, value in requested.items() if value is not None and value != getattr(row, name)
    }
    if not changes:
        raise ToolRefused("NOTHING_TO_CHANGE", f"Nothing of question {row.id} would be different.")
    await ctx.check_seen(row, serializers.question(row, ctx.zone))
    changed = await _store(ctx, replace(row, **changes), read_version=row.version)  # type: ignore[arg-type]
    differences = ", ".join(f"{name} {getattr(row, name)} → {value}" for name, value in changes.items())
    return ToolResult(
        text=f"Question {row.id} is changed: {differences}.", data=serializers.question(changed, ctx.zone)
    )


async def remove(ctx: ServiceContext, *, question_id: str, reason: str = "") -> ToolResult:
    """Close a question that needs no answer, and cancel the notifications about it.

    Closing it again changes nothing. Raises `ToolRefused` if there is no such question, or if it changed
    since the caller was shown it.
    """
    row = await ctx.question(question_id)
    if row.closed_ms is not None:
        return ToolResult(
            text=f"Question {row.id} was closed before.", data=serializers.question(row, ctx.zone)
        )
    await ctx.check_seen(row, serializers.question(row, ctx.zone))
    # The row is not deleted: its cooldown prevents the rules from asking the same thing tomorrow.
    closed = await _close(ctx, row, texts.text("reason", reason) or "Removed")
    return ToolResult(
        text=f"Question {row.id} is closed ({closed.closed_reason}): {row.question}",
        data=serializers.question(closed, ctx.zone),
    )


async def answer(ctx: ServiceContext, *, question_id: str, answer: str) -> ToolResult:
    """Record the answer to a question, in place of an earlier one, and cancel the notifications about it.

    The same answer again changes nothing.

    Raises:
        ToolRefused: the answer is empty or too long or has control characters, there is no such question, it
            is closed, or it has another version than the caller expects.
    """
    answer = checked_answer(answer)
    row = await ctx.question(question_id)
    if row.answer == answer:
        return ToolResult(
            text=f"Question {row.id} has this answer already.", data=serializers.question(row, ctx.zone)
        )
    # The version is checked although an answer may be replaced: two people may answer at once.
    ctx.check_version(row, serializers.question(row, ctx.zone))
    if row.closed_ms is not None:
        raise ToolRefused("CLOSED", f"Question {row.id} is closed: {row.closed_reason}")
    # `processed_ms` is cleared, so that a model reads the new answer too.
    answered = replace(row, answer=answer, answered_ms=ctx.now_ms, processed_ms=None)
    answered = await _store(ctx, answered, read_version=row.version)
    await notifications.cancel_of_question(ctx, row.id)
    return ToolResult(
        text=f"Question {row.id} is answered: {row.question}", data=serializers.question(answered, ctx.zone)
    )


def checked_answer(answer: str) -> str:
    """Return an answer to a question without space around it.

    Raises:
        ToolRefused: it is empty or too long, or has control characters.
    """
    answer = answer.strip()
    if not answer:
        raise ToolRefused("EMPTY", "The answer is empty.")
    return texts.text("answer", answer, is_needed=True)


async def close_of_task(ctx: ServiceContext, task_id: str, reason: str) -> int:
    """Close the open questions about a task for this reason, and return how many there were."""
    open_questions = await board_questions.unanswered(ctx.tx, ctx.folder, task_id)
    for row in open_questions:
        await _close(ctx, row, reason)
    return len(open_questions)


async def close_outdated(ctx: ServiceContext, before: BoardTask, after: BoardTask) -> int:
    """Close the open questions that a change of their task has answered or outdated; return how many.

    A new deadline closes the questions about the deadline, and about whether the task has been started or
    completed. A task that is blocked or unblocked closes those about the block. A new title closes questions
    of the rules, whose text has the old title; the rules ask again where needed.
    """
    kinds: set[QuestionType] = set()
    if before.deadline != after.deadline:
        kinds |= {QuestionType.DEADLINE_CHECK, QuestionType.COMPLETION_CHECK, QuestionType.START_CHECK}
    if before.is_blocked != after.is_blocked:
        kinds |= {QuestionType.BLOCKER_CHECK}
    is_renamed = before.title != after.title
    outdated = [
        row
        for row in await board_questions.unanswered(ctx.tx, ctx.folder, after.id)
        if row.type in kinds or (is_renamed and row.created_by is Actor.WORKER)
    ]
    for row in outdated:
        await _close(ctx, row, dedupe.TASK_CHANGED)
    return len(outdated)


async def _close(ctx: ServiceContext, row: Question, reason: str) -> Question:
    """Close a question, cancel the notifications about it, and return the changed row."""
    await notifications.cancel_of_question(ctx, row.id)
    return await _store(
        ctx, replace(row, closed_ms=ctx.now_ms, closed_reason=reason), read_version=row.version
    )


async def _check_not_repeated(
    ctx: ServiceContext, text: str, task_id: str | None, kind: QuestionType
) -> None:
    """Check that a new question repeats no other one that is open, or that is in its cooldown.

    The cooldown of a question begins when it was last asked, answered or closed. An automatic question that
    gathers information must not repeat a settled one at all. `text` and `kind` are those of the new question,
    `task_id` is the task that it is about, if there is one.

    Raises:
        ToolRefused: DUPLICATE, or COOLDOWN if it may be asked later.
    """
    same_text = await board_questions.open_like(ctx.tx, ctx.folder, text)
    of_same_task = [] if task_id is None else await board_questions.of_task(ctx.tx, ctx.folder, task_id, kind)
    open_questions = [*same_text, *(row for row in of_same_task if row.is_open)]
    if open_questions:
        row = open_questions[0]
        raise ToolRefused("DUPLICATE", f"Question {row.id} asks that already: {row.question}", ids=[row.id])
    settled = await board_questions.settled_like(
        ctx.tx, ctx.folder, text, task_id, unsettled=dedupe.UNSETTLED
    )
    # Information that a person gave once stays known; the state of a task may be asked again after a while.
    if settled and ctx.caller.is_automatic and kind is QuestionType.INFO_GATHER:
        row = settled[0]
        end = f"answered: {row.answer}" if row.answer is not None else f"closed: {row.closed_reason}"
        raise ToolRefused("DUPLICATE", f"Question {row.id} was the same and is {end}", ids=[row.id])
    for row in [*of_same_task, *settled]:
        # The cooldown counts from whatever came last, so an answer or a close does not shorten it.
        last_ms = max(row.last_asked_ms or 0, row.answered_ms or 0, row.closed_ms or 0)
        cooldown_ms = row.cooldown_h * dedupe.HOUR_MS
        if dedupe.is_lately(last_ms, cooldown_ms, now_ms=ctx.now_ms):
            until = when.format_time(last_ms + cooldown_ms, ctx.zone)
            raise ToolRefused(
                "COOLDOWN",
                f"{row.id} asked that lately; not again before {until}.",
                ids=[row.id],
                until=until,
            )


async def _store(ctx: ServiceContext, row: Question, *, read_version: int | None) -> Question:
    """Store a question and return it with its new version.

    `read_version` is the version that was read, None for a new question.

    Raises:
        ToolRefused: STALE, if the stored question has another version by now.
    """
    row = replace(row, version=await ctx.version(), changed_turn=ctx.caller.turn_id)
    if not await board_questions.put(ctx.tx, row, read_version=read_version):
        raise ToolRefused("STALE", f"{row.id} was changed meanwhile.")
    return row
