"""The tools for plans, decisions and open files: descriptions for a model, arguments for the host.

The runner itself sends `compacting` and `compacted`, which are offered to no model.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from agent_runner.wire.tools import Arguments, OfferedTool

MAX_TITLE_CHARS = 200
MAX_DECISION_CHARS = 200
MAX_PATH_CHARS = 300
MAX_OBJECTIVE_CHARS = 2_000
MAX_TASKS = 50
"""The largest number of tasks of a new plan."""
MAX_NOTE_CHARS = 500
MAX_NOTE_PEOPLE = 10
MAX_SUMMARY_CHARS = 100_000
"""The longest summary of a compacted conversation that the runner sends; the host shortens it."""
MAX_TEXT_CHARS = 100_000
"""A request with a longer text is refused whole; the host's refusals name the limit of each field."""

TaskStatus = Literal["pending", "in_progress", "blocked", "completed", "cancelled"]
Id = Annotated[str, Field(max_length=100)]
Text = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]


class SetActivePlan(Arguments):
    plan_id: Id | None = Field(description="The plan's id, such as plan_001; null: none is worked on.")
    resets_summary: bool = Field(
        default=False,
        description="True where the conversation so far has nothing to do with that plan: its objective"
        " takes the place of its summary.",
    )


class SetActiveTask(Arguments):
    task_id: Id | None = Field(description="A task's id in the active plan; null: none is worked on.")


class RecordDecision(Arguments):
    decision: Text = Field(
        min_length=1, description=f"What was decided: one sentence, at most {MAX_DECISION_CHARS} characters."
    )


class NoteOpenFile(Arguments):
    path: Text = Field(min_length=1, description="The file, from your working directory, e.g. trip/plan.md.")


class CreatePlan(Arguments):
    title: Text = Field(min_length=1, description=f"At most {MAX_TITLE_CHARS} characters.")
    objective: Text = Field(default="", description="The intended result.")
    tasks: tuple[Text, ...] = Field(
        default=(), description=f"The titles of its tasks, in their order, at most {MAX_TASKS}."
    )
    background: Text = Field(default="", description="Facts that all tasks need.")
    constraints: tuple[Text, ...] = Field(default=(), description="Conditions that must hold.")
    references: tuple[Text, ...] = Field(default=(), description="Files and addresses that belong to it.")


class UpdatePlanTask(Arguments):
    task_id: Id | None = Field(
        default=None, description="The task's id, such as task_001. Without one, a task is added."
    )
    plan_id: Id | None = Field(default=None, description="Its plan. Default: the active one.")
    title: Text | None = Field(default=None, description="Its title; a task that is added needs one.")
    status: TaskStatus | None = Field(
        default=None, description="pending, in_progress, blocked, completed or cancelled."
    )
    description: Text | None = Field(default=None, description="Facts that the task needs.")
    dependencies: tuple[Id, ...] | None = Field(
        default=None, description="Ids of all tasks of the plan that come before it."
    )
    outputs: tuple[Text, ...] = Field(default=(), description="The results, such as files.")


class UseMemory(Arguments):
    action: Literal["show", "forget", "note", "person"] = Field(
        description="forget removes for good, so show first; note stores a sentence; person shows one person."
    )
    about: Text = Field(
        default="",
        description="Words that the entry has, all of them, or its id from show; for note, the sentence.",
    )
    people: tuple[Id, ...] | None = Field(
        default=None,
        max_length=MAX_NOTE_PEOPLE,
        description="Names or addresses of the people concerned; default: those in the note, or who asks.",
    )


class Compacting(Arguments):
    """The session is about to be compacted: store its state."""


class Compacted(Arguments):
    """The session has been compacted; `summary` is its own summary."""

    summary: Annotated[str, Field(max_length=MAX_SUMMARY_CHARS)] = ""


TOOLS: tuple[OfferedTool, ...] = (
    OfferedTool(
        name="create_plan",
        description="Plan: start a plan with its tasks, for work of more than one conversation. It becomes "
        "the active plan.",
        arguments=CreatePlan,
        is_deferred=True,
        makes=True,
    ),
    OfferedTool(
        name="update_plan_task",
        description="Plan: change a task of a plan, or add one.",
        arguments=UpdatePlanTask,
        is_deferred=True,
        makes=True,
    ),
    OfferedTool(
        name="set_active_plan",
        description="Plan: say which plan this conversation is about from here on.",
        arguments=SetActivePlan,
        is_deferred=True,
    ),
    OfferedTool(
        name="set_active_task",
        description="Plan: say which task of the active plan is worked on.",
        arguments=SetActiveTask,
        is_deferred=True,
    ),
    OfferedTool(
        name="record_decision",
        description="Store a decision, so that it outlives this session.",
        arguments=RecordDecision,
    ),
    OfferedTool(
        name="note_open_file",
        description="Record that a file is being worked on, so that it is found again after this session.",
        arguments=NoteOpenFile,
        is_deferred=True,
    ),
    OfferedTool(
        name="memory",
        description="The memory of this chat and its people: show it to people who ask, forget what "
        "somebody takes back, or note a fact about a person.",
        arguments=UseMemory,
        is_deferred=True,
        makes=True,
    ),
)
COMPACTING, COMPACTED = "compacting", "compacted"
MEMORY = "memory"
"""The tool that shows everything remembered."""
ARGUMENTS: dict[str, type[Arguments]] = {
    **{tool.name: tool.arguments for tool in TOOLS},
    COMPACTING: Compacting,
    COMPACTED: Compacted,
}
"""The arguments of every accepted tool, by name."""
