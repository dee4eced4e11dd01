"""Count the tokens of each part of a request to the Messages API."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

OWN = "mcp__"
"""How the names of tools begin that are not the CLI's own."""


def tokens_by_part(body: dict[str, Any], count: Callable[[str], int]) -> dict[str, int]:
    """Return the tokens of a request's system prompt, the CLI's tools, our tools and its messages."""
    tools = body.get("tools") or []
    own = [tool for tool in tools if tool["name"].startswith(OWN)]
    return {
        "system prompt": count("\n".join(texts(body.get("system", "")))),
        "tools of the CLI": sum(count(_json(tool)) for tool in tools if tool not in own),
        "own tools": sum(count(_json(tool)) for tool in own),
        "messages": sum(count("\n".join(texts(one["content"]))) for one in body["messages"]),
    }


def texts(content: Any) -> list[str]:
    """Return each block of a content: its text, or the block itself as JSON."""
    if isinstance(content, str):
        return [content]
    return [str(block["text"]) if block.get("type") == "text" else _json(block) for block in content]


def without_marks(content: Any) -> Any:
    """Return a content without the marks that tell the service up to where to cache."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [{name: value for name, value in block.items() if name != "cache_control"} for block in content]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
