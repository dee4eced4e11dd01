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
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.board import questions as board_questions

LIST_MS = 3_600_000
"""Milliseconds for which people may answer by the numbers of a list; the first such message uses it up."""
MAX_LISTED = 20
COMPLETED_BY_THUMB = (NotificationType.REMINDER, NotificationType.DEADLINE_ALERT)


async def answer(ctx: ServiceContext, text: str, quote: Quote | None, *, is_asked: bool) -> str | None:
    """Do what a message requests and return the reply; None where only an agent can answer it.

    It may be a reply to a notification (`quote` is the message that it quotes), the request for the list of
    questions, or answers by the numbers of that list. `is_asked` says whether the message calls Andy; one
    that quotes a notification needs no call.
    """
    notification = await _quoted_notification(ctx, quote)
    if notification is not None:
        reply = await _reply_to_notification(ctx, notification, text)
        if reply is not None:
            return reply
    if not (is_asked or notification):
        return None
    if text.strip().casefold() in reply_parser.LIST_QUESTIONS:
        return await list_questions(ctx, rule_texts.answers_for(text))
    return await _answer_by_numbers(ctx, text)


async def list_questions(ctx: ServiceContext, texts: rule_texts.AnswerTexts) -> str:
    """Return a text that lists the open questions, those without an answer, or says that there are none.

    Only the oldest `MAX_LISTED` are listed. They are recorded as shown to people, and with their numbers, by
    which people can answer from now on. `texts` are in the people's language.
    """
    open_questions = (await board_questions.unanswered(ctx.tx, ctx.folder))[:MAX_LISTED]
    if not open_questions:
        return texts.none_open
    await board_questions.note_list(
        ctx.tx, ctx.folder, [question.id for question in open_questions], now_ms=ctx.now_ms
    )
    for question in open_questions:
        await board_questions.note_shown(ctx.tx, ctx.folder, question.id, now_ms=ctx.now_ms)
    lines = [
        f"{number}. {' '.join(question.question.split())}"
        for number, question in enumerate(open_questions, start=1)
    ]
    return "\n".join([*lines, "", texts.how_to_answer])


async def _quoted_notification(ctx: ServiceContext, quote: Quote | None) -> Notification | None:
    """Return the delivered notification of the group that a message quotes; None if it quotes none."""
    if quote is None:
        return None
    notification = await board_notifications.by_channel_message(ctx.tx, quote.message_id)
    if (
        notification is None
        or notification.folder != ctx.folder
        or notification.status is not NotificationStatus.DELIVERED
    ):
        return None
    return notification


async def _reply_to_notification(ctx: ServiceContext, notification: Notification, text: str) -> str | None:
    """Do what a reply to a notification requests, such as “done” or “later 2h”, and return Andy's reply.

    None where only an agent can understand it.
    """
    try:
        match reply_parser.read(text):
            case reply_parser.DoneReply(emoji=""):
                return await _complete_task_of(ctx, notification, rule_texts.answers_for(text))
            case reply_parser.DoneReply(emoji=emoji):
                return await _complete_by_emoji(ctx, notification, emoji)
            case reply_parser.LaterReply(pause_ms=pause_ms, time_text=time_text):
                return await _schedule_again(ctx, notification, pause_ms, time_text)
            case None:
                return None
    except ToolRefused as refused:
        # A time that this parser cannot read may still be understood by an agent.
        return None if refused.code == "UNPARSEABLE_TIME" else f"⚠️ {refused}"


async def _complete_by_emoji(ctx: ServiceContext, notification: Notification, emoji: str) -> str | None:
    """Complete the open task of a notification because of an emoji under it, and return the reply.

    A thumbs-up counts only under reminders and deadline alerts. None if nothing is completed by the emoji.
    """
    if notification.task_id is None or (
        emoji == reply_parser.THUMB and notification.type not in COMPLETED_BY_THUMB
    ):
        return None
    task = await ctx.task(notification.task_id)
    if task.status.is_terminal:
        return None
    return await _complete_task_of(ctx, notification, rule_texts.answers_for(task.title))


async def _complete_task_of(
    ctx: ServiceContext, notification: Notification, texts: rule_texts.AnswerTexts
) -> str | None:
    """Complete the task of a notification, and return the reply.

    A notification about no task and no question is only acknowledged. None for one about a question, which an
    agent has to understand. Raises `ToolRefused`.
    """
    if notification.task_id is None:
        return None if notification.question_id is not None else "✅"
    return await _complete(ctx, notification.task_id, texts)


async def _complete(ctx: ServiceContext, task_id: str, texts: rule_texts.AnswerTexts) -> str:
    """Complete a task, and return the reply. Raises `ToolRefused`."""
    result = await tasks.update(ctx, task_id, tasks.TaskChanges(status=BoardTaskStatus.COMPLETED))
    return _completed_line(result.data, texts)


def _completed_line(task: Mapping[str, Any], texts: rule_texts.AnswerTexts) -> str:
    """Return the line for the chat that a task is completed.

    `task` is the data of the result of `tasks.update`: the task's fields and the number of its notifications
    that were cancelled.
    """
    cancelled = task.get("cancelled_notifications") or 0
    cancelled_note = texts.cancelled.format(count=cancelled) if cancelled else ""
    return f"✅ {task['title']}{cancelled_note}"


async def _schedule_again(
    ctx: ServiceContext, notification: Notification, pause_ms: int | None, time_text: str
) -> str:
    """Schedule a reminder with the text of a delivered notification, for its chat, and return the reply.

    It is due after `pause_ms` or, if that is None, at the time that `time_text` names.

    Raises:
        ToolRefused: the text is no time in the future, or nothing may be scheduled.
    """
    due_ms = (
        ctx.now_ms + pause_ms
        if pause_ms is not None
        else when.parse_due_time(time_text, now_ms=ctx.now_ms, zone=ctx.zone).at_ms
    )
    outcome = await notifications.try_schedule(
        # A group may have several chats: the person replies in the one to which the notification was sent.
        ctx.for_chat(notification.chat_jid or ctx.chat_jid),
        NotificationRequest(
            message=notification.message,
            due_ms=due_ms,
            due_text=time_text or None,
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


async def _answer_by_numbers(ctx: ServiceContext, text: str) -> str | None:
    """Record the answers in a text such as `1. yes 2. at six`, and return the reply.

    The numbers are those of the list of questions that was shown in the last hour; it can be answered once.
    Tasks are changed as the answers say. If one answer cannot be stored, such as one that is too long, none
    is recorded, and the reply says why. None unless the whole text consists of answers to questions that are
    still open.
    """
    ids = await board_questions.newest_list(ctx.tx, ctx.folder, since_ms=ctx.now_ms - LIST_MS)
    numbered = reply_parser.answers(text, count=len(ids)) if ids else None
    if numbered is None:
        return None
    listed_questions = [
        await board_questions.get(ctx.tx, ctx.folder, ids[number - 1]) for number, _ in numbered
    ]
    if not all(question is not None and question.is_open for question in listed_questions):
        return None
    texts = rule_texts.answers_for(text)
    answered = [
        (question, answer)
        for question, (_, answer) in zip(listed_questions, numbered, strict=True)
        if question  # all are there, as was checked above
    ]
    # Checked before the first one is recorded: a refusal leaves the whole list to be answered again.
    for number, answer in numbered:
        try:
            questions.checked_answer(answer)
        except ToolRefused as refused:
            return texts.none_noted.format(number=number, reason=refused)
    # All answers first: a task that is completed closes its other questions.
    for question, answer in answered:
        await questions.answer(ctx, question_id=question.id, answer=answer)
    effects = [await answers.carry_out(ctx, question, answer) for question, answer in answered]
    lines = [effect_line(effect, texts) for effect in effects if effect is not None]
    await board_questions.use_list(ctx.tx, ctx.folder, now_ms=ctx.now_ms)
    # Answers that changed no task are only counted in the reply.
    only_noted_count = len(numbered) - len(lines)
    if only_noted_count:
        lines.append(texts.noted.format(count=only_noted_count))
    return "\n".join(lines)


def effect_line(effect: answers.Effect, texts: rule_texts.AnswerTexts) -> str:
    """Return the line for the chat about the change that the answer to a question made to its task."""
    task = effect.result.data
    match effect.name:
        case "completed":
            return _completed_line(task, texts)
        case "deadline":
            # `2026-02-10T18:00:00+09:00` → `2026-02-10 18:00`
            return f"📅 {task['title']}: {str(task['deadline'])[:16].replace('T', ' ')}"
        case "progress":
            return f"📈 {task['title']}: {task['progress']} %"
