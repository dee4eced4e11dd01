"""The tools for the loop: when the agent wakes next, and in main whose agents wake at all."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from agent_runner.tools.tool import Parameters, Tool
from agent_runner.wire import mailbox, wakes
from agent_runner.wire.mailbox import Command


class WakeParameters(Parameters):
    next: str = Field(min_length=1, max_length=100, description=wakes.NEXT)
    reason: str = Field(
        default="", max_length=wakes.MAX_REASON_CHARS, description="What you wait for, in a few words."
    )


class LoopParameters(Parameters):
    action: Literal["on", "off", "pause", "resume", "wake"] = Field(
        description="on, off: whether the agent wakes by itself. pause, resume. wake: now."
    )
    target_folder: str | None = Field(
        default=None, max_length=64, description="The group, by its folder. Default: this group."
    )
    reason: str = Field(
        default="", max_length=wakes.MAX_REASON_CHARS, description="For wake: what it is told."
    )


def _set(given: WakeParameters) -> Command:
    return mailbox.SetNextWake(next=given.next, reason=given.reason)


def _control(given: LoopParameters) -> Command:
    return mailbox.ControlLoop(**given.model_dump())


LOOP_TOOLS: tuple[Tool[Any], ...] = (
    Tool(
        name="set_next_wake",
        description="Say when you wake next by yourself, if this group's loop is on; the last call counts.",
        parameters=WakeParameters,
        command=_set,
        is_deferred=True,
    ),
    Tool(
        name="control_loop",
        description="Let a group's agent wake by itself, or no more, or rest, or wake now. Each wake costs a "
        "turn of the model. Only on the owner's wish.",
        parameters=LoopParameters,
        command=_control,
        is_only_main=True,
        is_deferred=True,
    ),
)
