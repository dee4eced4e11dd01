"""The dashboard's tools: what each is told to a model, and what the host takes. The one source of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from agent_runner.wire.tools import Arguments, OfferedTool

MAX_TEXT_CHARS = 100_000
"""Longer ones are no request; the host tells what each field takes."""

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

PRIORITY = "low, medium or high."
TIME = (
    "When, in the group's zone: an ISO time such as 2026-02-10T18:00. Also taken: a day (09:00), "
    "'in 2 hours 30 minutes', 'tomorrow 9am', 'next monday'."
)
DEADLINE = "Until when: an ISO day such as 2026-02-10, or an ISO time. Empty: none."
TASK_ID = "The task's id, from the dashboard."
QUESTION_ID = "The question's id, from the dashboard."
NOTIFICATION_ID = "The notification's id, from the dashboard or list_notifications."
CONTEXT = "What is worth knowing about it later."


class ScheduleNotification(Arguments):
    message: Text = Field(min_length=1, description="What the chat will be told, word for word.")
    scheduled_at: Text = Field(description=TIME)
    type: NotificationType = Field(default="reminder", description="What it is.")
    priority: Priority = Field(default="medium", description=PRIORITY)
    related_task_id: Id | None = Field(default=None, description=TASK_ID)
    related_question_id: Id | None = Field(default=None, description=QUESTION_ID)
    context: Text = Field(default="", description="Why; the chat does not see it.")


class UpdateNotification(Arguments):
    notification_id: Id = Field(description=NOTIFICATION_ID)
    message: Text | None = Field(default=None, description="The new text.")
    scheduled_at: Text | None = Field(default=None, description=TIME)
    priority: Priority | None = Field(default=None, description=PRIORITY)


class CancelNotification(Arguments):
    notification_id: Id = Field(description=NOTIFICATION_ID)
    reason: Text = Field(default="", description="Why; e.g. 'User requested cancellation'.")


class ListNotifications(Arguments):
    status: Literal["pending", "delivered", "cancelled", "failed", "expired"] | None = Field(
        default=None, description="Only those of one state; pending are to come."
    )
    related_task_id: Id | None = Field(default=None, description="Only those about one task.")
    type: NotificationType | None = Field(default=None, description="Only those of one type.")
    limit: int = Field(default=50, ge=1, le=200, description="At most so many.")
    from_time: Text | None = Field(default=None, description="Only those due then or later.")
    to_time: Text | None = Field(default=None, description="Only those due then or before.")
    notification_id: Id | None = Field(
        default=None, description="Only this one, with its history: made, moved, reworded, sent, by whom."
    )


class CreateQuestion(Arguments):
    question: Text = Field(min_length=1, description="What people are to be asked, as they will read it.")
    priority: Priority = Field(default="medium", description=PRIORITY)
    type: QuestionType = Field(default="info_gather", description="What it is about.")
    related_task_id: Id | None = Field(default=None, description=TASK_ID)
    context: Text = Field(default="", description=CONTEXT)


class UpdateQuestion(Arguments):
    question_id: Id = Field(description=QUESTION_ID)
    priority: Priority | None = Field(default=None, description=PRIORITY)
    type: QuestionType | None = Field(default=None, description="What it is about.")
    cooldown_hours: int | None = Field(default=None, ge=0, description="How long it is not asked again.")
    context: Text | None = Field(default=None, description=CONTEXT)


class RemoveQuestion(Arguments):
    question_id: Id = Field(description=QUESTION_ID)
    reason: Text = Field(default="", description="Why it need not be asked any more.")


class UpdateBoardTask(Arguments):
    task_id: Id = Field(description=TASK_ID)
    progress: int | None = Field(default=None, ge=0, le=100, description="Percentage done.")
    progress_note: Text | None = Field(default=None, description="What was done, in a few words.")
    status: Literal["active", "completed", "someday", "cancelled"] | None = Field(
        default=None, description="completed and cancelled cancel its notifications and close its questions."
    )
    blocked: bool | None = Field(default=None, description="Whether it cannot go on now.")
    blocker_note: Text | None = Field(default=None, description="What it waits for.")
    context: Text | None = Field(default=None, description=CONTEXT)
    deadline: Text | None = Field(default=None, description=DEADLINE)
    priority: Priority | None = Field(default=None, description=PRIORITY)
    tags: tuple[Tag, ...] | None = Field(default=None, description="All its tags, in place of those it has.")


class MoveToHistory(Arguments):
    task_id: Id = Field(description="A task that is completed or cancelled.")
    reflection: Text = Field(default="", description="What was learned by it.")


class CreateBoardTask(Arguments):
    title: Text = Field(min_length=1, description="What is to be done, in at most 200 characters.")
    deadline: Text = Field(default="", description=DEADLINE)
    priority: Priority = Field(default="medium", description=PRIORITY)
    context: Text = Field(default="", description=CONTEXT)
    tags: tuple[Tag, ...] = Field(default=(), description="Words to find it by.")


class AnswerQuestion(Arguments):
    question_id: Id = Field(description=QUESTION_ID)
    answer: Text = Field(description="What was answered.")


class SaveInsight(Arguments):
    content: Text = Field(min_length=1, description="What was learned and holds for longer.")
    category: Literal["tech", "life", "work", "learning"] = Field(
        default="learning", description="tech, life, work or learning."
    )
    title: Text = Field(default="", description="A few words; default: how it begins.")
    source: Text = Field(default="", description="Where it comes from.")
    tags: tuple[Tag, ...] = Field(default=(), description="Words to find it by.")


class SetRecurring(Arguments):
    task_id: Id = Field(description=TASK_ID)
    enabled: bool = Field(default=True, description="False: it is done once.")
    days_of_week: tuple[Day, ...] | None = Field(
        default=None, description="On which days, 0 is Monday, 6 is Sunday."
    )
    check_time: Annotated[str, Field(max_length=20)] | None = Field(
        default=None, description="At what time that day, e.g. 18:00."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardTool(OfferedTool):
    """A tool of a dashboard."""

    is_for_worker: bool = True
    """The upkeep of a dashboard may use it."""


TOOLS: tuple[DashboardTool, ...] = (
    DashboardTool(
        name="schedule_notification",
        description="Dashboard: have the chat told something at a time, word for word. Look at what is "
        "scheduled first.",
        arguments=ScheduleNotification,
        makes=True,
    ),
    DashboardTool(
        name="update_notification",
        description="Dashboard: change the text, time or priority of a notification to come.",
        arguments=UpdateNotification,
    ),
    DashboardTool(
        name="cancel_notification",
        description="Dashboard: cancel a notification to come.",
        arguments=CancelNotification,
    ),
    DashboardTool(
        name="list_notifications",
        description="Dashboard: list notifications by due time.",
        arguments=ListNotifications,
    ),
    DashboardTool(
        name="create_question",
        description="Dashboard: put a question that people are asked when it suits.",
        arguments=CreateQuestion,
        makes=True,
    ),
    DashboardTool(
        name="update_question",
        description="Dashboard: change an open question.",
        arguments=UpdateQuestion,
    ),
    DashboardTool(
        name="remove_question",
        description="Dashboard: close a question that need not be asked any more.",
        arguments=RemoveQuestion,
    ),
    DashboardTool(
        name="update_task",
        description="Dashboard: change a task; what you do not give stays as it is. For what you are asked "
        "at a time, the other update_task.",
        arguments=UpdateBoardTask,
    ),
    DashboardTool(
        name="move_to_history",
        description="Dashboard: take a completed or cancelled task off the board.",
        arguments=MoveToHistory,
    ),
    DashboardTool(
        name="archive_task",
        description="Dashboard: the same as move_to_history.",
        arguments=MoveToHistory,
    ),
    DashboardTool(
        name="create_task",
        description="Dashboard: put something to be done on the board.",
        arguments=CreateBoardTask,
        is_for_worker=False,
        makes=True,
    ),
    DashboardTool(
        name="answer_question",
        description="Dashboard: note what somebody answered to an open question.",
        arguments=AnswerQuestion,
        is_for_worker=False,
    ),
    DashboardTool(
        name="save_insight",
        description="Dashboard: keep something learned.",
        arguments=SaveInsight,
        makes=True,
    ),
    DashboardTool(
        name="set_recurring",
        description="Dashboard: note on which days of the week a task is done again and again. It is shown "
        "with the task, and nothing is begun or told by it: for that there are schedule_task and "
        "schedule_notification.",
        arguments=SetRecurring,
        is_for_worker=False,
    ),
)
"""Thirteen, and one under its older name."""
