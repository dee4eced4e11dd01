"""Decide by the body of a request what a container may have the model service do besides answering.

The service itself can search the web, fetch an address, run code or call another's MCP server. A container
without a way out would have one there: so each of these passes only where its group may do it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from orchestrator.proxies.model import error_responses
from orchestrator.proxies.model.error_responses import ProxyRefused

MAX_PARTS = 1_000_000
"""Of JSON: more would keep the host at work for seconds. A million tokens of text have fewer."""
MAX_SEARCHES_A_REQUEST = 10
"""The CLI asks for 8 at most."""

_VERSIONED = re.compile(r"([a-z_]+)_20\d{6}")
_DONE_BY_THE_CLIENT = ("bash", "computer", "memory", "text_editor", "tool_search_tool")
"""Tools that the service knows by name and that reach nothing outside of the conversation."""
_FREE = frozenset({"context_management", "input", "input_examples", "input_schema", "metadata"})
"""Keys whose values the service does not read for tools or addresses; anything may stand there."""


def check(body: bytes, *, may_search: bool, is_open: bool) -> None:
    """Return if a request may pass. `is_open` tells whether its group reaches the internet anyway.

    Raises:
        ProxyRefused: it is no JSON that has one meaning (400), or asks for what its group may not (403).
    """
    for part in _objects(parsed(body)) if body else ():
        if part.get("mcp_servers"):
            raise ProxyRefused(error_responses.not_allowed("MCP servers that the model service calls"))
        kind = part.get("type")
        if kind == "url" and not is_open:
            raise ProxyRefused(error_responses.not_allowed("addresses that the model service fetches"))
        versioned = _VERSIONED.fullmatch(kind) if isinstance(kind, str) else None
        if versioned is not None:
            _check_tool(versioned[1], part, may_search=may_search, is_open=is_open)


def _check_tool(name: str, tool: dict[str, Any], *, may_search: bool, is_open: bool) -> None:
    match name:
        case "web_search":
            if not may_search:
                raise ProxyRefused(error_responses.NO_SEARCH)
            most = tool.get("max_uses")
            if type(most) is not int or not 1 <= most <= MAX_SEARCHES_A_REQUEST:
                fault = f"web search needs max_uses, of at most {MAX_SEARCHES_A_REQUEST}"
                raise ProxyRefused(error_responses.malformed(fault))
        case "web_fetch" if is_open:
            return
        case _ if name not in _DONE_BY_THE_CLIENT:
            raise ProxyRefused(error_responses.not_allowed(f"the service's own tool '{name}'"))


def parsed(body: bytes) -> Any:
    """Parse JSON that has one meaning. Raises `ProxyRefused` (400)."""
    if body.count(b",") + body.count(b"{") + body.count(b"[") > MAX_PARTS:
        raise ProxyRefused(error_responses.malformed(f"its JSON has more than {MAX_PARTS:,} parts"))
    try:
        return json.loads(body.decode(), object_pairs_hook=_unambiguous)
    except (ValueError, RecursionError):
        raise ProxyRefused(error_responses.malformed("its body is no JSON that has one meaning")) from None


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a key that is there twice, another reader could take the other value."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _objects(body: Any) -> Iterator[dict[str, Any]]:
    """Yield each object that the service reads. Not recursive: its depth is the container's to choose."""
    waiting = [body]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += [value for key, value in part.items() if key not in _FREE]
        elif isinstance(part, list):
            waiting += part
