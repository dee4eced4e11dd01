"""Remove from a request what a service cannot read, and what would make every request different. Pure.

Only for services other than Anthropic's, which gets the CLI's request unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from orchestrator.domain.model_services import Ability

FIELDS = frozenset(
    {
        "max_tokens",
        "messages",
        "model",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
    }
)
"""Fields that every service of the Messages API reads."""
UNSEEN = "[A picture was here. This model cannot see pictures: say so if it matters.]"
_TOOL_FIELDS = ("name", "description", "input_schema")
_CHANGES_EACH_TIME = "x-anthropic-billing-header"
"""The start of a text that the CLI puts before its prompt and that differs each
time: it defeats prompt caches.
"""


def adapted(document: Mapping[str, Any], *, model: str | None, abilities: Collection[str]) -> dict[str, Any]:
    """Return a request in the form that a service with these abilities takes, for this model.

    The CLI names Anthropic's models for side work; the service has one model for everything.
    """
    made = {name: value for name, value in document.items() if name in FIELDS}
    if model is not None:
        made["model"] = model
    if "system" in made:
        made["system"] = _system(made["system"])
    has_tools = Ability.TOOLS in abilities
    # Tools of Anthropic's service, such as its web search, have no schema: other services do not know them.
    tools = [_tool(tool) for tool in _dicts(made.pop("tools", None)) if "input_schema" in tool]
    choice = made.pop("tool_choice", None)
    if has_tools and tools:
        made["tools"] = tools
        if isinstance(choice, dict):
            made["tool_choice"] = choice
    made["messages"] = [
        _message(one, sees=Ability.IMAGES in abilities, calls=has_tools)
        for one in _dicts(made.get("messages"))
    ]
    return made


def _system(system: Any) -> Any:
    if not isinstance(system, list):
        return system
    return [
        _without_cache_marks(part)
        for part in _dicts(system)
        if not str(part.get("text", "")).startswith(_CHANGES_EACH_TIME)
    ]


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    return {name: tool[name] for name in _TOOL_FIELDS if name in tool}


def _message(message: dict[str, Any], *, sees: bool, calls: bool) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [_part(part, sees=sees, calls=calls) for part in _dicts(content)]
    return {**message, "content": parts}


def _part(part: dict[str, Any], *, sees: bool, calls: bool) -> dict[str, Any]:
    """Return a part of a message; what the service cannot read is replaced by text."""
    kind = part.get("type")
    if kind in ("image", "document") and not sees:
        return {"type": "text", "text": UNSEEN}
    # A conversation may have begun at a service that calls tools: its past calls stay readable as text.
    if kind == "tool_use" and not calls:
        return {"type": "text", "text": f"[The tool {part.get('name')} was called.]"}
    if kind == "tool_result":
        inner = part.get("content")
        if isinstance(inner, list):
            part = {**part, "content": [_part(one, sees=sees, calls=calls) for one in _dicts(inner)]}
        if not calls:
            return {"type": "text", "text": f"[It answered: {part.get('content')}]"}
    return _without_cache_marks(part)


def _without_cache_marks(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != "cache_control"}


def _dicts(found: Any) -> list[dict[str, Any]]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
