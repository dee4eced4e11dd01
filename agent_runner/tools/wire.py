"""The tools that the wire's own tables tell of, so that both sides mean the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from agent_runner.tools.tool import Tool
from agent_runner.wire import context_tools, dashboard, mailbox
from agent_runner.wire.mailbox import Command
from agent_runner.wire.tools import Arguments, OfferedTool


def _tools(
    table: Iterable[OfferedTool],
    kind: type[mailbox.UseDashboard | mailbox.Remember],
    *,
    refusal: str = "bad_arguments",
) -> tuple[Tool[Any], ...]:
    return tuple(
        Tool(
            name=one.name,
            description=one.description,
            parameters=one.arguments,
            command=_asking(kind, one.name),
            makes=one.makes,
            is_deferred=one.is_deferred,
            refusal=refusal,
        )
        for one in table
    )


def _asking(kind: type[mailbox.UseDashboard | mailbox.Remember], name: str) -> Callable[[Arguments], Command]:
    def ask(given: Arguments) -> Command:
        return kind(tool=name, arguments=given.model_dump(mode="json", exclude_unset=True))

    return ask


MEMORY_TOOLS = _tools(context_tools.TOOLS, mailbox.Remember)
DASHBOARD_TOOLS = _tools(dashboard.TOOLS, mailbox.UseDashboard, refusal="VALIDATION")
WORKER_TOOLS = tuple(one.name for one in dashboard.TOOLS if one.is_for_worker)
"""The host refuses the others to a worker, whatever it is told here."""
