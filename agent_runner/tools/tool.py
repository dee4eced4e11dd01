"""What a tool is: how the model sees it, and the command it becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from agent_runner.ipc_client import HostClient
from agent_runner.wire.mailbox import Command, Reply

P = TypeVar("P", bound=BaseModel)


class Parameters(BaseModel):
    """What the model fills in. Unknown names are refused, so that a slip is noticed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoParameters(Parameters):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool(Generic[P]):
    """One tool: how the model sees it, and the command it becomes."""

    name: str
    description: str
    parameters: type[P]
    command: Callable[[P], Command]
    is_only_main: bool = False
    makes: bool = False
    """It makes something that a turn tried again must not make twice."""
    refusal: str = "bad_arguments"
    """The code of a reply to arguments that do not fit."""

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the parameters."""
        bare: dict[str, Any] = _without_titles(self.parameters.model_json_schema())
        return {"type": "object", "properties": {}} | bare

    async def call(
        self,
        arguments: dict[str, Any],
        host: HostClient,
        *,
        turn: int | None = None,
        request_id: str | None = None,
    ) -> Reply:
        """Ask the host, under `request_id` if it makes something.

        Arguments that do not fit are the reply `refusal`, and the host is not asked.
        """
        try:
            command = self.command(self.parameters.model_validate(arguments))
        except ValidationError as error:
            return Reply(request_id="none", ok=False, code=self.refusal, text=mistakes(error))
        known = {"turn": turn} | ({"request_id": request_id} if self.makes else {})
        return await host.ask(command.model_copy(update=known))


def mistakes(error: ValidationError) -> str:
    """Say in one line which arguments do not fit, and why."""
    lines = [
        f"{'.'.join(str(part) for part in mistake['loc'])}: {mistake['msg']}"
        for mistake in error.errors(include_input=False, include_url=False)
    ]
    return "The arguments do not fit. " + "; ".join(lines)


def _without_titles(schema: Any) -> Any:
    """Drop the titles that pydantic adds: they cost tokens and say nothing."""
    if isinstance(schema, dict):
        return {
            name: _without_titles(value)
            for name, value in schema.items()
            if not (name == "title" and isinstance(value, str))
        }
    return schema
