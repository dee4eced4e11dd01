"""Defines a tool: its description for the model, and the command that it becomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from agent_runner.ipc_client import HostClient
from agent_runner.wire.mailbox import TRANSPORT, Command, Reply

MAX_MISTAKES, MAX_MISTAKE_CHARS = 10, 300
"""Most reasons in the text that refuses arguments, and most characters of each: there may be thousands."""


class BadArguments(ValueError):
    """Arguments of a tool do not fit; the text names the first of them, and says why."""


@cache
def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return a model's JSON Schema, which takes a millisecond and more to make and never changes."""
    return model.model_json_schema(by_alias=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool: its description for the model, and the command whose fields are its arguments."""

    name: str
    description: str
    command: type[BaseModel]
    """The request of `agent_runner.wire.mailbox`; what its fields describe is what the model fills in."""
    preset: Mapping[str, Any] = field(default_factory=dict)
    """Fields that have these values where the model gives none."""
    is_only_main: bool = False
    makes: bool = False
    """Whether the tool creates something that a retried turn must not create twice."""
    refusal: str = "bad_arguments"
    """The code of a reply to arguments that do not fit."""
    is_deferred: bool = False
    """Whether a model gets only its name at first, and looks the rest up before it calls it."""

    def full_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments as pydantic makes it, with the defaults of `preset`.

        Fields of the command that the model does not fill in (`TRANSPORT`) are left out.
        """
        schema = _schema_of(self.command)
        fields = {
            name: field_schema | ({"default": self.preset[name]} if name in self.preset else {})
            for name, field_schema in schema["properties"].items()
            if name not in TRANSPORT
        }
        needed = [name for name in schema.get("required", ()) if name not in TRANSPORT]
        # Without the command's docstring, which is for those who read the code.
        return {"properties": fields} | ({"required": needed} if needed else {})

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments as a model is shown it: shorter than pydantic's."""
        shortened: dict[str, Any] = _shortened(self.full_schema())
        return {"type": "object", "properties": {}} | shortened

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
        """Send the tool's command with these arguments to the host, and return its reply.

        `turn` is the number of the turn in which the tool is called; None outside of one. For a tool that
        makes something, the request has the id `request_id`, under which the host does it only once.

        Arguments that do not fit are refused with the code in `refusal`; the host is not asked then.
        """
        try:
            command = self.read(arguments)
            self._check_choices(arguments)
        except BadArguments as error:
            return Reply(request_id="none", ok=False, code=self.refusal, text=str(error))
        filled_in = {"turn": turn} | ({"request_id": request_id} if self.makes else {})
        return await host.ask(command.model_copy(update=filled_in))

    def read(self, arguments: dict[str, Any]) -> Command:
        """Return the command that the arguments make.

        The wire ignores unknown fields; here they are refused, so that a slip of the model is noticed.

        Raises:
            BadArguments: they do not fit.
        """
        unknown = arguments.keys() - self.full_schema()["properties"].keys()
        if unknown:
            raise BadArguments(_refusal_of(f"{name}: there is no such argument" for name in sorted(unknown)))
        try:
            command = self.command.model_validate({**self.preset, **arguments}, by_alias=False, by_name=True)
        except ValidationError as error:
            raise BadArguments(mistakes(error)) from error
        return cast("Command", command)

    def _check_choices(self, arguments: dict[str, Any]) -> None:
        """Raise `BadArguments` if an argument is none of the values that its schema lists (`enum`).

        The command itself accepts any word, since it leaves the check to the host.
        """
        wrong = [
            f"{name}: use one of {', '.join(field_schema['enum'])}"
            for name, field_schema in self.schema()["properties"].items()
            if "enum" in field_schema and arguments.get(name) not in (None, *field_schema["enum"])
        ]
        if wrong:
            raise BadArguments(_refusal_of(wrong))


def mistakes(error: ValidationError) -> str:
    """Return one line that says which arguments do not fit, and why, from pydantic's error."""
    return _refusal_of(
        f"{'.'.join(str(part) for part in mistake['loc'])}: {mistake['msg']}"
        for mistake in error.errors(include_input=False, include_url=False)
    )


def _refusal_of(lines: Iterable[str]) -> str:
    """Return the text that refuses arguments: the first `MAX_MISTAKES` reasons, and how many more."""
    reasons = [
        line if len(line) <= MAX_MISTAKE_CHARS else f"{line[: MAX_MISTAKE_CHARS - 1]}…" for line in lines
    ]
    ending = [f"and {len(reasons) - MAX_MISTAKES:,} more"] if len(reasons) > MAX_MISTAKES else []
    return "The arguments do not fit. " + "; ".join([*reasons[:MAX_MISTAKES], *ending])


_CHECKED_ANYWAY = (
    *("title", "additionalProperties", "minLength", "maxLength", "minItems", "maxItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
)
"""Parts of a schema that cost tokens in each request; arguments that break one are refused with a reason."""


def _shortened(schema: Any, *, is_parameters: bool = False) -> Any:
    """Return a JSON schema without the parts that cost tokens and say little.

    These are bounds, titles, empty defaults, that an argument with a default may also be null, and the type
    of one whose values are listed (`enum`). `is_parameters`: whether the keys of `schema` are the names of
    arguments, not those of a JSON schema.
    """
    if isinstance(schema, list):
        return [_shortened(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if is_parameters:  # one may be called `title`
        return {name: _shortened(value) for name, value in schema.items()}
    shortened = {name: value for name, value in schema.items() if name not in _CHECKED_ANYWAY}
    if "default" in shortened:
        if shortened["default"] in (None, "", []):
            del shortened["default"]
        kinds = [kind for kind in shortened.get("anyOf", ()) if kind != {"type": "null"}]
        if len(kinds) == 1:
            # The only kind besides null takes the place of `anyOf`. The order of the keys has no meaning: the
            # kind comes first, but after a default that is left.
            without_kinds = {name: value for name, value in shortened.items() if name != "anyOf"}
            shortened = without_kinds | kinds[0] if "default" in without_kinds else kinds[0] | without_kinds
            shortened = {name: value for name, value in shortened.items() if name not in _CHECKED_ANYWAY}
    if "enum" in shortened:
        shortened.pop("type", None)
    return {name: _shortened(value, is_parameters=name == "properties") for name, value in shortened.items()}
