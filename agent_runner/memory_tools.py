"""The tools for plans and decisions: made from the wire's own table, so that both sides mean the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent_runner.tool import Tool
from agent_runner.wire import mailbox, remembering


def _asking(name: str) -> Callable[[remembering.Arguments], mailbox.Command]:
    def ask(given: remembering.Arguments) -> mailbox.Command:
        return mailbox.Remember(tool=name, arguments=given.model_dump(mode="json", exclude_unset=True))

    return ask


MEMORY_TOOLS: tuple[Tool[Any], ...] = tuple(
    Tool(
        name=one.name,
        description=one.description,
        parameters=one.arguments,
        command=_asking(one.name),
        makes=one.makes,
    )
    for one in remembering.TOOLS
)
