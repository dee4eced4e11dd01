"""The tools for tasks: what the agent is asked at a time, or again and again."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from agent_runner.tools.tool import NoParameters, Parameters, Tool
from agent_runner.wire import mailbox
from agent_runner.wire.mailbox import Command

SCHEDULE_VALUE = (
    "cron: five fields in local time, e.g. '0 9 * * 1-5' (minute hour day month weekday). interval: "
    "milliseconds or a duration such as 30m, 1h30m, 1d; at least 60 s. once: a local ISO time without an "
    "offset such as 2026-11-22T18:30, or a duration from now. Work times out first; words are not understood."
)
PROMPT = (
    "What you will be asked then. Nobody is there to explain: name everything it needs. Your final answer "
    "goes to the chat."
)
CONTEXT_MODE = (
    "group: in this conversation, with its memory. isolated: in a fresh session that knows the files and the "
    "prompt only."
)
OVERLAP = "Due while its last run has not ended: skip that time, or queue one run behind it."
CATCH_UP = "Due times missed while the assistant was down: skip them, run the latest, or all (at most 10)."
DST = (
    "For cron, on days when the clocks change. once: a time shown twice counts the first time, a skipped one "
    "when the clocks jump. both: whenever the clocks show it. Usual: both if the hour is *, else once."
)
CHECK = (
    "A bash script, run first in your container (30 s, in your working directory). Its last line has to be "
    'JSON: {"wakeAgent": false} ends the run silently without asking you, {"wakeAgent": true, "data": …} '
    "asks you with the data. Use it to look often at little cost. Try it before you schedule it."
)
ID = "The id that schedule_task or list_tasks told."

Kind = Literal["cron", "interval", "once"]
Context = Literal["group", "isolated"]
Overlap = Literal["skip", "queue"]
CatchUp = Literal["skip", "latest", "all"]
Dst = Literal["once", "both"]


class ScheduleParameters(Parameters):
    prompt: str = Field(min_length=1, description=PROMPT)
    schedule_type: Kind = Field(description="cron: by the clock. interval: every so often. once.")
    schedule_value: str = Field(min_length=1, max_length=200, description=SCHEDULE_VALUE)
    context_mode: Context = Field(default="group", description=CONTEXT_MODE)
    overlap: Overlap = Field(default="skip", description=OVERLAP)
    catch_up: CatchUp = Field(default="latest", description=CATCH_UP)
    dst: Dst | None = Field(default=None, description=DST)
    check: str | None = Field(default=None, max_length=mailbox.MAX_CHECK_CHARS, description=CHECK)
    target_folder: str | None = Field(
        default=None,
        max_length=64,
        description="Another group, by its folder; only the main group may. Default: this group.",
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
    return mailbox.PauseTask(task_id=given.task_id)


def _resume(given: TaskIdParameters) -> Command:
    return mailbox.ResumeTask(task_id=given.task_id)


def _cancel(given: TaskIdParameters) -> Command:
    return mailbox.CancelTask(task_id=given.task_id)


def _run(given: TaskIdParameters) -> Command:
    return mailbox.RunTask(task_id=given.task_id)


def _list(_: NoParameters) -> Command:
    return mailbox.ListTasks()


TASK_TOOLS: tuple[Tool[Any], ...] = (
    Tool(
        name="schedule_task",
        description="Be asked something at a time or again and again, as if it were written to you then. For "
        "a fixed text set_reminder is cheaper. Returns the task's id.",
        parameters=ScheduleParameters,
        command=_schedule,
        makes=True,
    ),
    Tool(
        name="update_task",
        description="Change a task; what you do not give stays as it is.",
        parameters=UpdateParameters,
        command=_update,
    ),
    Tool(
        name="pause_task",
        description="Let a task rest until resume_task.",
        parameters=TaskIdParameters,
        command=_pause,
    ),
    Tool(
        name="resume_task",
        description="Let a paused task go on at its next time; nothing is caught up.",
        parameters=TaskIdParameters,
        command=_resume,
    ),
    Tool(
        name="cancel_task",
        description="End a task for good.",
        parameters=TaskIdParameters,
        command=_cancel,
    ),
    Tool(
        name="run_task",
        description="Run a task once now, besides its schedule, also a paused one.",
        parameters=TaskIdParameters,
        command=_run,
        makes=True,
    ),
    Tool(
        name="list_tasks",
        description="List this group's tasks that are active or paused, with ids and next times; from the "
        "main group, those of all groups.",
        parameters=NoParameters,
        command=_list,
    ),
)
