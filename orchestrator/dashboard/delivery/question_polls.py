"""Ask a question of the board as a poll where people choose among answers, and take the answers."""

from __future__ import annotations

from collections.abc import Sequence

from agent_runner.wire.dashboard import asks_if_done
from agent_runner.wire.mailbox import MAX_QUESTION_CHARS
from orchestrator.dashboard.delivery import instant_replies
from orchestrator.dashboard.services import answers, questions
from orchestrator.dashboard.services.context import ServiceContext
from orchestrator.dashboard.words import rule_texts
from orchestrator.domain.dashboard import Notification, Question, ToolRefused
from orchestrator.domain.polls import Poll
from orchestrator.domain.values import ChatJid, MessageId
from orchestrator.store.board import questions as board_questions
from orchestrator.store.conversation.polls import PollVote

MAX_NAMES = 20
"""The largest number of voters that are named beside one answer."""


def poll_of(row: Notification, question: Question | None, text: str, *, now_ms: int) -> Poll | None:
    """Return the poll that asks the question which the notification `row` is about. Pure.

    `text` is the notification's text. None where there is no poll: the question is None or closed, has no
    answers to choose from, or the text is too long for a poll. The poll's message id and final chat are set
    when it is queued.
    """
    question_text = " ".join(text.split())
    if question is None or not question.is_open or len(question_text) > MAX_QUESTION_CHARS:
        return None
    options = question.options
    # A question whether a task is done can be answered with "Yes" or "Not yet", though it has no options.
    if not options and question.task_id is not None and asks_if_done(question.question):
        options = rule_texts.answers_for(question.question).done_or_not
    if not options:
        return None
    return Poll(
        question=question_text,
        options=options,
        folder=row.folder,
        chat_jid=row.chat_jid or ChatJid(""),
        message_id=MessageId(""),
        board_question=question.id,
        created_ms=now_ms,
    )


async def record_votes(
    ctx: ServiceContext, poll: Poll, votes: Sequence[PollVote], *, newest: str, is_text: bool
) -> str | None:
    """Record the votes of a poll as the answer to its question on the dashboard.

    `newest` is the answer that was chosen last: the question's task is changed as it says, if it says so
    clearly. `is_text` says that it was written as a text, not chosen in the messenger's poll. Return the
    reply to the chat; it is empty if the messenger's poll itself shows the vote and no task was changed. None
    where the question was removed or is closed, or the answer is refused, as when all took their votes back.
    """
    question = await board_questions.get(ctx.tx, ctx.folder, poll.board_question or "")
    if question is None:
        return None
    try:
        await questions.answer(ctx, question_id=question.id, answer=answer_text(poll, votes))
    except ToolRefused:
        return None
    texts = rule_texts.answers_for(poll.question)
    effect = await answers.carry_out(ctx, question, newest)
    if effect is not None:
        return instant_replies.effect_line(effect, texts)
    return texts.noted.format(count=1) if is_text else ""


def answer_text(poll: Poll, votes: Sequence[PollVote]) -> str:
    """Return who chose which option, such as "Plum (Jane, Tom), None (Kim)". Pure.

    Options that nobody chose are left out; of many voters for one, the first `MAX_NAMES` are named.
    """
    lines = []
    for index, option in enumerate(poll.options):
        names = [" ".join(vote.name.split()) for vote in votes if index in vote.chosen]
        if names:
            lines.append(f"{option} ({', '.join(names[:MAX_NAMES])})")
    return ", ".join(lines)
