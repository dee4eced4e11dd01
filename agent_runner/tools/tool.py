"""Defines a tool: its description for the model, and the command that it becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from agent_runner.ipc_client import HostClient
from agent_runner.wire.mailbox import Command, Reply

P = TypeVar("P", bound=BaseModel)


class Parameters(BaseModel):
    """The arguments that the model fills in. Unknown names are refused, so that a slip is noticed."""

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
    """Whether the tool creates something that a retried turn must not create twice."""
    refusal: str = "bad_arguments"
    """The code of a reply to arguments that do not fit."""
    is_deferred: bool = False
    """A model is told its name alone, and looks the rest up when it wants to call it."""

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the parameters as a model is shown it: shorter than pydantic's."""
        bare: dict[str, Any] = _shortened(self.parameters.model_json_schema())
        return {"type": "object", "properties": {}} | bare

    def listing(self) -> dict[str, Any]:
        """Return the tool as an MCP server lists it."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": self.schema(),
            "_meta": {"anthropic/alwaysLoad": not self.is_deferred},
        }

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


_CHECKED_ANYWAY = (
    *("title", "additionalProperties", "minLength", "maxLength", "minItems", "maxItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
)
"""Parts of a schema that cost tokens in each request; arguments that break one are refused with a reason."""


def _shortened(schema: Any, *, is_parameters: bool = False) -> Any:
    """Drop what costs tokens and says little: bounds, titles, and that what may be left out may be null."""
    if isinstance(schema, list):
        return [_shortened(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if is_parameters:  # here the keys are names of parameters, and one may be called `title`
        return {name: _shortened(value) for name, value in schema.items()}
    shortened = {name: value for name, value in schema.items() if name not in _CHECKED_ANYWAY}
    if shortened.get("default", ...) in (None, "", []):
        del shortened["default"]
        kinds = [kind for kind in shortened.get("anyOf", ()) if kind != {"type": "null"}]
        if len(kinds) == 1:
            shortened = kinds[0] | {name: value for name, value in shortened.items() if name != "anyOf"}
            shortened = {name: value for name, value in shortened.items() if name not in _CHECKED_ANYWAY}
    if "enum" in shortened:
        shortened.pop("type", None)
    return {name: _shortened(value, is_parameters=name == "properties") for name, value in shortened.items()}
