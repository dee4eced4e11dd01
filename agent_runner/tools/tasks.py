"""The tools for tasks: what the agent is asked at a time, or again and again."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from agent_runner.tools.tool import NoParameters, Parameters, Tool
from agent_runner.wire import mailbox
from agent_runner.wire.mailbox import Command

SCHEDULE_VALUE = (
    "cron: five fields in local time, e.g. '0 9 * * 1-5', or words: 'every other Tuesday at 8:00'. interval: "
    "30m, 1h30m, 1d; at least 60 s. once: a local ISO time such as 2026-11-22T18:30, or 'tomorrow 9am', '2h'."
)
PROMPT = "What you will be asked then, with everything it needs. Your final answer goes to the chat."
CONTEXT_MODE = "group: in this conversation. isolated: in a session that knows the files and the prompt only."
OVERLAP = "Due while its last run goes on: skip it, or queue one."
CATCH_UP = "Due while the assistant was down: skip, run the latest, or all (at most 10)."
DST = "For cron: what a time counts as that the clocks show twice or skip. both: whenever it is shown."
CHECK = (
    "A bash script that is run first, 30 s at most. Its last line is JSON: "
    '{"wakeAgent": false} ends the run without asking you, {"wakeAgent": true, "data": …} asks you with the '
    "data. Try it first."
)
ID = "The id that schedule_task or list_tasks told."

Kind = Literal["cron", "interval", "once"]
Context = Literal["group", "isolated"]
Overlap = Literal["skip", "queue"]
CatchUp = Literal["skip", "latest", "all"]
Dst = Literal["once", "both"]


class ScheduleParameters(Parameters):
    prompt: str = Field(min_length=1, description=PROMPT)
    schedule_type: Kind = Field(description="How it repeats.")
    schedule_value: str = Field(min_length=1, max_length=200, description=SCHEDULE_VALUE)
    context_mode: Context = Field(default="group", description=CONTEXT_MODE)
    overlap: Overlap = Field(default="skip", description=OVERLAP)
    catch_up: CatchUp = Field(default="latest", description=CATCH_UP)
    dst: Dst | None = Field(default=None, description=DST)
    check: str | None = Field(default=None, max_length=mailbox.MAX_CHECK_CHARS, description=CHECK)
    target_folder: str | None = Field(
        default=None,
        max_length=64,
        description="Another group, by its folder; only from main.",
    )


class UpdateParameters(Parameters):
    task_id: str = Field(min_length=1, max_length=64, description=ID)
    prompt: str | None = Field(default=None, min_length=1, description=PROMPT)
    schedule_type: Kind | None = Field(default=None, description="Needs schedule_value too.")
    schedule_value: str | None = Field(default=None, min_length=1, max_length=200, description=SCHEDULE_VALUE)
    context_mode: Context | None = Field(default=None, description=CONTEXT_MODE)
    overlap: Overlap | None = Field(default=None, description=OVERLAP)
    catch_up: CatchUp | None = Field(default=None, description=CATCH_UP)
    dst: Dst | None = Field(default=None, description=DST)
    check: str | None = Field(
        default=None, max_length=mailbox.MAX_CHECK_CHARS, description=f"{CHECK} An empty one removes it."
    )


class TaskIdParameters(Parameters):
    task_id: str = Field(min_length=1, max_length=64, description=ID)


def _schedule(given: ScheduleParameters) -> Command:
    return mailbox.ScheduleTask(**given.model_dump())


def _update(given: UpdateParameters) -> Command:
    return mailbox.UpdateTask(**given.model_dump())


def _pause(given: TaskIdParameters) -> Command:
    return mailbox.ActOnTask(type="pause_task", task_id=given.task_id)


def _resume(given: TaskIdParameters) -> Command:
    return mailbox.ActOnTask(type="resume_task", task_id=given.task_id)


def _cancel(given: TaskIdParameters) -> Command:
    return mailbox.ActOnTask(type="cancel_task", task_id=given.task_id)


def _run(given: TaskIdParameters) -> Command:
    return mailbox.ActOnTask(type="run_task", task_id=given.task_id)


def _list(_: NoParameters) -> Command:
    return mailbox.ListTasks()


TASK_TOOLS: tuple[Tool[Any], ...] = (
    Tool(
        name="schedule_task",
        description="Be asked something at a time, or again and again. A fixed text that is told once is "
        "schedule_notification.",
        parameters=ScheduleParameters,
        command=_schedule,
        makes=True,
    ),
    Tool(
        name="reschedule_task",
        description="Change a scheduled task: its prompt, its times; what you do not give stays as it is.",
        parameters=UpdateParameters,
        command=_update,
        is_deferred=True,
    ),
    Tool(
        name="pause_task",
        description="Let a scheduled task rest until resume_task.",
        parameters=TaskIdParameters,
        command=_pause,
        is_deferred=True,
    ),
    Tool(
        name="resume_task",
        description="Let a paused scheduled task go on at its next time; nothing is caught up.",
        parameters=TaskIdParameters,
        command=_resume,
        is_deferred=True,
    ),
    Tool(
        name="cancel_task",
        description="End a scheduled task for good.",
        parameters=TaskIdParameters,
        command=_cancel,
        is_deferred=True,
    ),
    Tool(
        name="run_task",
        description="Run a scheduled task once now, besides its schedule, also a paused one.",
        parameters=TaskIdParameters,
        command=_run,
        is_deferred=True,
        makes=True,
    ),
    Tool(
        name="list_tasks",
        description="List this group's scheduled tasks with next times; from main, those of all groups.",
        parameters=NoParameters,
        command=_list,
        is_deferred=True,
    ),
)
