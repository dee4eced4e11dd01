"""Tools from the wire's own tables, so that both sides use the same definitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from agent_runner.tools.tool import BadArguments, Tool, mistakes
from agent_runner.wire import context_tools, dashboard, mailbox
from agent_runner.wire.mailbox import Command
from agent_runner.wire.tools import Arguments, OfferedTool


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedTool(Tool):
    """A tool of one of the wire's tables: its command contains the arguments, which the host checks again."""

    arguments: type[Arguments]

    def full_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments as pydantic makes it."""
        return self.arguments.model_json_schema()

    def read(self, arguments: dict[str, Any]) -> Command:
        """Return the command that contains the tool's name and these arguments. Raises `BadArguments`."""
        try:
            validated = self.arguments.model_validate(arguments)
        except ValidationError as error:
            raise BadArguments(mistakes(error)) from error
        fields = {"tool": self.name, "arguments": validated.model_dump(mode="json", exclude_unset=True)}
        return cast("Command", self.command.model_validate(fields))


def _tools(
    table: Iterable[OfferedTool], command: type[BaseModel], *, refusal: str = "bad_arguments"
) -> tuple[Tool, ...]:
    """Return the tools of a table; each becomes a command of this class.

    `refusal` is the code of a reply to arguments that do not fit.
    """
    return tuple(
        WrappedTool(
            name=tool.name,
            description=tool.description,
            arguments=tool.arguments,
            command=command,
            makes=tool.makes,
            is_deferred=tool.is_deferred,
            refusal=refusal,
        )
        for tool in table
    )


MEMORY_TOOLS = _tools(context_tools.TOOLS, mailbox.Remember)
DASHBOARD_TOOLS = _tools(dashboard.TOOLS, mailbox.UseDashboard, refusal="VALIDATION")
WORKER_TOOLS = tuple(tool.name for tool in dashboard.TOOLS if tool.is_for_worker)
"""The worker's tools. The host refuses others to a worker, whatever is offered here."""
