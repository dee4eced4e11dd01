"""Answer messages that need no model, in the transaction that stores the message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.dashboard.services import answers, notifications, questions, tasks
from orchestrator.dashboard.services.context import ServiceContext
from orchestrator.dashboard.words import reply_parser, rule_texts, when
from orchestrator.domain.dashboard import (
    BoardTaskStatus,
    Notification,
    NotificationRequest,
    NotificationStatus,
    NotificationType,
    ToolRefused,
)
from orchestrator.domain.values import Quote
from orchestrator.store import dashboard_notifications, dashboard_questions

LIST_MS = 3_600_000
"""So long the numbers of a list hold, and for one message."""
MAX_LISTED = 20
FOR_A_THUMB = (NotificationType.REMINDER, NotificationType.DEADLINE_ALERT)


async def answer(ctx: ServiceContext, text: str, quote: Quote | None, *, is_asked: bool) -> str | None:
    """Do what a message asks for and return the reply; None where it takes an agent to answer.

    `is_asked`: the message is meant for Andy. One under a notification is.
    """
    notification = await _quoted(ctx, quote)
    if notification is not None:
        reply = await _under(ctx, notification, text)
        if reply is not None:
            return reply
    if not (is_asked or notification):
        return None
    if text.strip().casefold() in reply_parser.LIST_QUESTIONS:
        return await list_questions(ctx, rule_texts.answers_for(text))
    return await _by_number(ctx, text)


async def list_questions(ctx: ServiceContext, words: rule_texts.AnswerTexts) -> str:
    """Return the open questions with numbers; from now on people can answer by these numbers."""
    found = (await dashboard_questions.unanswered(ctx.tx, ctx.folder))[:MAX_LISTED]
    if not found:
        return words.none_open
    await dashboard_questions.note_list(
        ctx.tx, ctx.folder, [question.id for question in found], now_ms=ctx.now_ms
    )
    for question in found:
        await dashboard_questions.note_asked(ctx.tx, ctx.folder, question.id, now_ms=ctx.now_ms)
    lines = [
        f"{number}. {' '.join(question.question.split())}" for number, question in enumerate(found, start=1)
    ]
    return "\n".join([*lines, "", words.how_to_answer])


async def _quoted(ctx: ServiceContext, quote: Quote | None) -> Notification | None:
    if quote is None:
        return None
    found = await dashboard_notifications.by_channel_message(ctx.tx, quote.message_id)
    if found is None or found.folder != ctx.folder or found.status is not NotificationStatus.DELIVERED:
        return None
    return found


async def _under(ctx: ServiceContext, notification: Notification, text: str) -> str | None:
    try:
        match reply_parser.read(text):
            case reply_parser.DoneReply(by_sign=""):
                return await _done(ctx, notification, rule_texts.answers_for(text))
            case reply_parser.DoneReply(by_sign=sign):
                return await _done_by_sign(ctx, notification, sign)
            case reply_parser.LaterReply(pause_ms=pause_ms, words=words):
                return await _later(ctx, notification, pause_ms, words)
            case None:
                return None
    except ToolRefused as refused:
        # What it cannot do an agent may understand.
        return None if refused.code == "UNPARSEABLE_TIME" else f"⚠️ {refused}"


async def _done_by_sign(ctx: ServiceContext, notification: Notification, sign: str) -> str | None:
    """Complete a task that is still open. A thumb up says so of a reminder or an alert alone."""
    if notification.task_id is None or (sign == reply_parser.THUMB and notification.type not in FOR_A_THUMB):
        return None
    task = await ctx.task(notification.task_id)
    if task.status.is_terminal:
        return None
    return await _done(ctx, notification, rule_texts.answers_for(task.title))


async def _done(ctx: ServiceContext, notification: Notification, words: rule_texts.AnswerTexts) -> str | None:
    if notification.task_id is None:
        return None if notification.question_id is not None else "✅"
    return await _complete(ctx, notification.task_id, words)


async def _complete(ctx: ServiceContext, task_id: str, words: rule_texts.AnswerTexts) -> str:
    result = await tasks.update(ctx, task_id, tasks.TaskChanges(status=BoardTaskStatus.COMPLETED))
    return _completed_line(result.data, words)


def _completed_line(task: Mapping[str, Any], words: rule_texts.AnswerTexts) -> str:
    cancelled = task.get("cancelled_notifications") or 0
    more = words.cancelled.format(count=cancelled) if cancelled else ""
    return f"✅ {task['title']}{more}"


async def _later(ctx: ServiceContext, notification: Notification, pause_ms: int | None, words: str) -> str:
    due_ms = (
        ctx.now_ms + pause_ms
        if pause_ms is not None
        else when.due_ms(words, now_ms=ctx.now_ms, zone=ctx.zone).at_ms
    )
    outcome = await notifications.intend(
        ctx,
        NotificationRequest(
            message=notification.message,
            due_ms=due_ms,
            due_text=words or None,
            type=NotificationType.REMINDER,
            priority=notification.priority,
            task_id=notification.task_id,
            question_id=notification.question_id,
            context=f"put off: {notification.id}",
        ),
    )
    if outcome.refused is not None:
        raise outcome.refused
    return f"⏰ {when.format_time(due_ms, ctx.zone)}"


async def _by_number(ctx: ServiceContext, text: str) -> str | None:
    ids = await dashboard_questions.newest_list(ctx.tx, ctx.folder, since_ms=ctx.now_ms - LIST_MS)
    given = reply_parser.answers(text, count=len(ids)) if ids else None
    if given is None:
        return None
    found = [await dashboard_questions.get(ctx.tx, ctx.folder, ids[number - 1]) for number, _ in given]
    if not all(question is not None and question.is_open for question in found):
        return None
    words = rule_texts.answers_for(text)
    answered = [(question, said) for question, (_, said) in zip(found, given, strict=True) if question]
    # All answers first: a task that is completed closes its other questions.
    for question, said in answered:
        await questions.answer(ctx, question_id=question.id, answer=said)
    effects = [await answers.carry_out(ctx, question, said) for question, said in answered]
    lines = [effect_line(effect, words) for effect in effects if effect is not None]
    await dashboard_questions.use_list(ctx.tx, ctx.folder, now_ms=ctx.now_ms)
    if noted := len(given) - len(lines):
        lines.append(words.noted.format(count=noted))
    return "\n".join(lines)


def effect_line(effect: answers.Effect, words: rule_texts.AnswerTexts) -> str:
    """Return what an answer did to its task, for the chat."""
    task = effect.result.data
    match effect.name:
        case "completed":
            return _completed_line(task, words)
        case "deadline":
            return f"📅 {task['title']}: {str(task['deadline'])[:16].replace('T', ' ')}"
        case "progress":
            return f"📈 {task['title']}: {task['progress']} %"
