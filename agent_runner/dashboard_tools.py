"""The tools for the dashboard: made from the wire's own table, so that both sides mean the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent_runner.tool import Tool
from agent_runner.wire import dashboard, mailbox


def _asking(name: str) -> Callable[[dashboard.Arguments], mailbox.Command]:
    def ask(given: dashboard.Arguments) -> mailbox.Command:
        return mailbox.Dashboard(tool=name, arguments=given.model_dump(mode="json", exclude_unset=True))

    return ask


DASHBOARD_TOOLS: tuple[Tool[Any], ...] = tuple(
    Tool(
        name=one.name,
        description=one.description,
        parameters=one.arguments,
        command=_asking(one.name),
        makes=one.makes,
        refusal="VALIDATION",
    )
    for one in dashboard.TOOLS
)
WORKER_TOOLS = tuple(one.name for one in dashboard.TOOLS if one.is_for_worker)
"""The host refuses the others to a worker, whatever it is told here."""
