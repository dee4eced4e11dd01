"""The dashboard's tools: their descriptions for a model, and their arguments for the host."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from agent_runner.wire.tools import Arguments, OfferedTool

MAX_TEXT_CHARS = 100_000
"""A request with a longer text is refused whole; the host's refusals name the limit of each field."""

Priority = Literal["low", "medium", "high"]
QuestionType = Literal[
    "info_gather",
    "progress_check",
    "deadline_check",
    "start_check",
    "blocker_check",
    "status_check",
    "completion_check",
    "routine_check",
]
NotificationType = Literal[
    "reminder", "deadline_alert", "progress_check", "blocker_followup", "question_reminder"
]
Id = Annotated[str, Field(min_length=1, max_length=100)]
Text = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]
Tag = Annotated[str, Field(min_length=1, max_length=1_000)]
Day = Annotated[int, Field(ge=0, le=6)]

TIME = (
    "When, in the group's zone: an ISO time such as 2026-02-10T18:00. Also taken: a day (09:00), "
    "'in 2 hours 30 minutes', 'tomorrow 9am', 'monday 9am'."
)
DEADLINE = "An ISO day such as 2026-02-10, or an ISO time. Empty: none."
CONTEXT = "Background for later."
_ASKS_IF_DONE = re.compile(r"is it done|finished\?|다 됐나요|끝났나요|끝났어", re.IGNORECASE)


def asks_if_done(question: str) -> bool:
    """Return whether a "yes" to a question about a task means that the task is done."""
    return _ASKS_IF_DONE.search(question) is not None


class ScheduleNotification(Arguments):
    message: Text = Field(min_length=1, description="The text, word for word.")
    scheduled_at: Text = Field(description=TIME)
    type: NotificationType = "reminder"
    priority: Priority = "medium"
    related_task_id: Id | None = None
    related_question_id: Id | None = None
    context: Text = Field(default="", description="The reason; the chat does not see it.")


class UpdateNotification(Arguments):
    notification_id: Id
    message: Text | None = Field(default=None, description="The new text.")
    scheduled_at: Text | None = Field(default=None, description="As in schedule_notification.")
    priority: Priority | None = None


class CancelNotification(Arguments):
    notification_id: Id
    reason: Text = Field(default="", description="The reason.")


class ListNotifications(Arguments):
    status: Literal["pending", "delivered", "cancelled", "failed", "expired"] | None = None
    related_task_id: Id | None = None
    type: NotificationType | None = None
    limit: int = Field(default=50, ge=1, le=200, description="At most 200.")
    from_time: Text | None = Field(default=None, description="Only notifications due then or later.")
    to_time: Text | None = Field(default=None, description="Only notifications due then or before.")
    notification_id: Id | None = Field(default=None, description="Only this notification, with its history.")


class CreateQuestion(Arguments):
    question: Text = Field(min_length=1, description="The question, as people will read it.")
    priority: Priority = "medium"
    type: QuestionType = "info_gather"
    related_task_id: Id | None = None
    context: Text = Field(default="", description=CONTEXT)
    options: tuple[Tag, ...] = Field(
        default=(), max_length=100, description="2 to 10 answers to choose from; empty: any answer."
    )


class UpdateQuestion(Arguments):
    question_id: Id
    priority: Priority | None = None
    type: QuestionType | None = None
    cooldown_hours: int | None = Field(default=None, ge=0, description="Hours before it is asked again.")
    context: Text | None = Field(default=None, description=CONTEXT)


class RemoveQuestion(Arguments):
    question_id: Id
    reason: Text = Field(default="", description="The reason.")


class UpdateBoardTask(Arguments):
    task_id: Id
    title: Text | None = Field(default=None, min_length=1, description="The new title.")
    progress: int | None = Field(default=None, ge=0, le=100, description="Percent.")
    progress_note: Text | None = Field(default=None, description="What was done, in a few words.")
    status: Literal["active", "completed", "someday", "cancelled"] | None = Field(
        default=None, description="The end of a task ends its notifications and questions."
    )
    blocked: bool | None = Field(default=None, description="Whether the task is blocked.")
    blocker_note: Text | None = Field(default=None, description="What the task waits for.")
    context: Text | None = Field(default=None, description=CONTEXT)
    deadline: Text | None = Field(default=None, description=DEADLINE)
    priority: Priority | None = None
    tags: tuple[Tag, ...] | None = Field(default=None, description="All its tags; they replace the old ones.")


class MoveToHistory(Arguments):
    task_id: Id = Field(description="A task that is completed or cancelled.")
    reflection: Text = Field(default="", description="What was learned from it.")


class CreateBoardTask(Arguments):
    title: Text = Field(min_length=1, description="The task, in at most 200 characters.")
    deadline: Text = Field(default="", description=DEADLINE)
    priority: Priority = "medium"
    context: Text = Field(default="", description=CONTEXT)
    tags: tuple[Tag, ...] = Field(default=(), description="Words to find it by.")


class AnswerQuestion(Arguments):
    question_id: Id
    answer: Text = Field(description="The answer.")


class SaveInsight(Arguments):
    content: Text = Field(min_length=1, description="Knowledge that stays true for longer.")
    category: Literal["tech", "life", "work", "learning"] = "learning"
    title: Text = Field(default="", description="A few words; default: the beginning of content.")
    source: Text = Field(default="", description="Its source.")
    tags: tuple[Tag, ...] = Field(default=(), description="Words to find it by.")


class SetRecurring(Arguments):
    task_id: Id
    enabled: bool = Field(default=True, description="False: the task does not recur.")
    days_of_week: tuple[Day, ...] | None = Field(
        default=None, description="The days: 0 is Monday, 6 is Sunday."
    )
    check_time: Annotated[str, Field(max_length=20)] | None = Field(
        default=None, description="The time on those days, e.g. 18:00."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardTool(OfferedTool):
    """A tool of a dashboard."""

    is_for_worker: bool = True
    """Whether a dashboard's worker may use it."""


TOOLS: tuple[DashboardTool, ...] = (
    DashboardTool(
        name="schedule_notification",
        description="Send a text to the chat at a time, word for word: a reminder.",
        arguments=ScheduleNotification,
        makes=True,
    ),
    DashboardTool(
        name="update_notification",
        description="Change the text, time or priority of a pending notification.",
        arguments=UpdateNotification,
        is_deferred=True,
    ),
    DashboardTool(
        name="cancel_notification",
        description="Cancel a pending notification.",
        arguments=CancelNotification,
    ),
    DashboardTool(
        name="list_notifications",
        description="List notifications and reminders by due time.",
        arguments=ListNotifications,
    ),
    DashboardTool(
        name="create_question",
        description="Store a question that people are asked at a suitable time.",
        arguments=CreateQuestion,
        is_deferred=True,
        makes=True,
    ),
    DashboardTool(
        name="update_question",
        description="Change an open question.",
        arguments=UpdateQuestion,
        is_deferred=True,
    ),
    DashboardTool(
        name="remove_question",
        description="Close a question that need not be asked any more.",
        arguments=RemoveQuestion,
        is_deferred=True,
    ),
    DashboardTool(
        name="update_task",
        description="Change a task of the board; arguments that you leave out stay as they are.",
        arguments=UpdateBoardTask,
    ),
    DashboardTool(
        name="move_to_history",
        description="Take a completed or cancelled task off the board.",
        arguments=MoveToHistory,
        is_deferred=True,
    ),
    DashboardTool(
        name="create_task",
        description="Add a task to the board.",
        arguments=CreateBoardTask,
        is_for_worker=False,
        makes=True,
    ),
    DashboardTool(
        name="answer_question",
        description="Store somebody's answer to an open question.",
        arguments=AnswerQuestion,
        is_for_worker=False,
    ),
    DashboardTool(
        name="save_insight",
        description="Store something learned.",
        arguments=SaveInsight,
        is_deferred=True,
        makes=True,
    ),
    DashboardTool(
        name="set_recurring",
        description="Set the days of the week on which a task of the board recurs. This only records them: "
        "it starts and sends nothing.",
        arguments=SetRecurring,
        is_deferred=True,
        is_for_worker=False,
    ),
)
ALIASES = {"archive_task": "move_to_history"}
"""Older names that the host still accepts; no model is offered them."""
