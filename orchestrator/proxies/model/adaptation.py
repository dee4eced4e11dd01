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
"""The text in place of a picture or document for a service that takes none."""
_TOOL_FIELDS = ("name", "description", "input_schema")
_CHANGING_TEXT = "x-anthropic-billing-header"
"""The start of a text that the CLI puts before its prompt and that differs each
time: it defeats prompt caches.
"""


def adapt_request(
    document: Mapping[str, Any], *, model: str | None, abilities: Collection[str]
) -> dict[str, Any]:
    """Return a request of the Messages API in the form that a service with these abilities can read.

    `model` replaces the request's model: for side work such as titles the Claude CLI names models that only
    Anthropic has. None leaves the request's model. Fields that not every service reads are left out.
    """
    adapted = {name: value for name, value in document.items() if name in FIELDS}
    if model is not None:
        adapted["model"] = model
    if "system" in adapted:
        adapted["system"] = _adapt_system(adapted["system"])
    has_tools = Ability.TOOLS in abilities
    # Tools of Anthropic's service, such as its web search, have no schema: other services do not know them.
    tools = [_adapt_tool(tool) for tool in _dicts(adapted.pop("tools", None)) if "input_schema" in tool]
    choice = adapted.pop("tool_choice", None)
    if has_tools and tools:
        adapted["tools"] = tools
        if isinstance(choice, dict):
            adapted["tool_choice"] = choice
    adapted["messages"] = [
        _adapt_message(message, can_see=Ability.IMAGES in abilities, can_call=has_tools)
        for message in _dicts(adapted.get("messages"))
    ]
    return adapted


def _adapt_system(system: Any) -> Any:
    """Return the system prompt without marks for prompt caches and the part that differs in every request.

    `system` is a text, which is returned unchanged, or a list of parts.
    """
    if not isinstance(system, list):
        return system
    return [
        _without_cache_marks(part)
        for part in _dicts(system)
        if not str(part.get("text", "")).startswith(_CHANGING_TEXT)
    ]


def _adapt_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool with only the members that every service reads."""
    return {name: tool[name] for name in _TOOL_FIELDS if name in tool}


def _adapt_message(message: dict[str, Any], *, can_see: bool, can_call: bool) -> dict[str, Any]:
    """Return a message with only parts that the service can read.

    `can_see` says whether the service takes pictures, `can_call` whether it takes tools.
    """
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [_adapt_part(part, can_see=can_see, can_call=can_call) for part in _dicts(content)]
    return {**message, "content": parts}


def _adapt_part(part: dict[str, Any], *, can_see: bool, can_call: bool) -> dict[str, Any]:
    """Return a part of a message without its mark for prompt caches, or a text if the service cannot read it.

    `can_see` says whether the service takes pictures and documents such as PDF, `can_call` whether it takes
    tools. The parts inside a tool's result are treated alike.
    """
    kind = part.get("type")
    if kind in ("image", "document") and not can_see:
        return {"type": "text", "text": UNSEEN}
    # A conversation may have begun at a service that calls tools: its past calls stay readable as text.
    if kind == "tool_use" and not can_call:
        return {"type": "text", "text": f"[The tool {part.get('name')} was called.]"}
    if kind == "tool_result":
        content = part.get("content")
        if isinstance(content, list):
            part = {
                **part,
                "content": [
                    _adapt_part(inner_part, can_see=can_see, can_call=can_call)
                    for inner_part in _dicts(content)
                ],
            }
        if not can_call:
            return {"type": "text", "text": f"[It answered: {part.get('content')}]"}
    return _without_cache_marks(part)


def _without_cache_marks(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a request without its mark for prompt caches."""
    return {name: value for name, value in part.items() if name != "cache_control"}


def _dicts(value: Any) -> list[dict[str, Any]]:
    """Return the JSON objects in a list; none if `value` is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
