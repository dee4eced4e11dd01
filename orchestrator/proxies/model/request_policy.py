"""Decide by a request's body what else a container may make the model service do besides answering.

The service itself can search the web, fetch an address, run code, call another's MCP server, or answer at a
higher price. By that, a container without internet access would reach the internet, and could spend more than
its budget counts. So a request passes only with parts that its group may use, or that are known to do none of
that; any other part is refused by its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.groups.settings import ModelFeature
from orchestrator.proxies import strict_json
from orchestrator.proxies.model import error_responses
from orchestrator.proxies.model.error_responses import ProxyRefused
from orchestrator.proxies.strict_json import NotStrictJson

MAX_SEARCHES_A_REQUEST = 10
"""Web searches of one request, of all its search tools together; the CLI sends one, of at most 8."""
FIELDS = frozenset(
    {
        "cache_control",
        "context_management",
        "max_tokens",
        "messages",
        "metadata",
        "model",
        "output_config",
        "output_format",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
    }
)
"""Fields whose cost a budget counts and that reach nothing outside. `service_tier` is not one of them."""
_PAID_FIELDS: Mapping[str, ModelFeature] = {"inference_geo": "inference_geo", "speed": "fast_mode"}
"""Fields that cost more, each with the feature by which the owner allows it."""
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@\[\]-]{0,199}")
_VERSIONED = re.compile(r"([a-z_]+)_20\d{6}")
"""The name of a type with its date, as in `web_search_20250305`."""
_HARMLESS_TOOLS = ("bash", "computer", "memory", "text_editor", "tool_search_tool")
"""Tools that the service knows by name and that reach nothing outside of the conversation."""
_EDITS = ("clear_thinking", "clear_tool_uses")
"""Edits of the context that cost nothing."""
_PAID_EDITS: Mapping[str, ModelFeature] = {"compact": "compaction"}
"""Edits that are model answers themselves, at their own price, each with the feature that allows it."""
_OUTPUT_MEMBERS = frozenset({"effort", "format", "task_budget", "timing"})
"""Members of `output_config` that the CLI sends, for a whole request or for one message."""
_ADDRESS_NAME_ENDING = "_url"
"""The end of the names of members by which services with the same API fetch an address, as in `image_url`."""
_FETCHING_TYPES = ("url", "image_url", "input_image")
"""Types of blocks and sources that name an address which the service fetches."""
_QUOTING_TYPES = (
    "search_result",
    "search_result_location",
    "web_fetch_result",
    "web_search_result",
    "web_search_result_location",
)
"""Types of blocks whose `source` or `url` is a text that only says where another text is from."""
_STORED_FILE_TYPES = ("file", "input_file")
"""Types of blocks that name a file stored at the service."""
_INLINE_SOURCES = ("base64", "content", "text")
"""Types of sources that contain their content."""
_UNCHECKED_FIELDS = ("context_management", "metadata")
"""Fields that are judged separately, or that the service reads for free."""
_CALL_TYPES = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
"""Types of blocks that are past calls of a tool, with its input."""
_SENSITIVE = frozenset(
    {"definition", "file_id", "mcp_servers", "output_config", "source", "tools", "type", "url"}
)
"""Judged names. With another case, some parsers take them for the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """Facts of a request that decide how long its answer is waited for and how it is judged."""

    model: str | None = None
    """The model that it names; None if it names none in a known form."""
    is_streamed: bool = False
    """Whether it asks for a stream of events."""
    searches: int = 0
    """Web searches that the service may make for it."""


def check_request(
    body: bytes, *, may_search: bool, is_open: bool, features: Collection[ModelFeature] = ()
) -> RequestFacts:
    """Check a request of the Messages API by its body, and return its facts if it may pass.

    Args:
        body: the body in JSON; an empty one passes.
        may_search: whether the model service may search the web for it.
        is_open: whether its group's containers reach the internet anyway.
        features: the features of the service that the owner lets the group pay for.

    Raises:
        ProxyRefused: its JSON is ambiguous (400), or it requests what its group may not (403).
    """
    return read_request(body, may_search=may_search, is_open=is_open, features=features)[0]


def read_request(
    body: bytes, *, may_search: bool, is_open: bool, features: Collection[ModelFeature] = ()
) -> tuple[RequestFacts, dict[str, Any]]:
    """Check a request, and return its facts and its body as a JSON object; an empty one for an empty body.

    `may_search` says whether the service may search the web for it, `is_open` whether the group's containers
    reach the internet anyway. `features` are those that the owner lets the group pay for.

    Raises `ProxyRefused`: it is malformed (400), which includes ambiguous JSON and too many searches, or it
    requests what its group may not (403).
    """
    if not body:
        return RequestFacts(), {}
    try:
        document = strict_json.parse(body)
    except NotStrictJson as error:
        raise ProxyRefused(error_responses.malformed(str(error))) from None
    if not isinstance(document, dict):
        raise ProxyRefused(error_responses.malformed("it is no object"))
    for name in document:
        if name not in FIELDS:
            _check_feature(_PAID_FIELDS.get(name), features, f"the field '{name[:40]}' of the model service")
    _check_edits(document.get("context_management"), features)
    _check_output(document.get("output_config"))
    _check_tools(document.get("tools"), may_search=may_search, is_open=is_open)
    # The fields left out here were judged above, or are read by the service for free.
    checked_values = [value for name, value in document.items() if name not in _UNCHECKED_FIELDS]
    searches = 0
    for part in _objects(checked_values):
        _check_part(part, may_search=may_search, is_open=is_open)
        searches += _searches_of(part)
    if searches > MAX_SEARCHES_A_REQUEST:
        fault = f"its search tools have max_uses of {searches} together, and {MAX_SEARCHES_A_REQUEST} may be"
        raise ProxyRefused(error_responses.malformed(fault))
    model = document.get("model")
    facts = RequestFacts(
        model=model if isinstance(model, str) and _MODEL_NAME.fullmatch(model) else None,
        is_streamed=document.get("stream") is True,
        searches=searches,
    )
    return facts, document


def _check_part(part: dict[str, Any], *, may_search: bool, is_open: bool) -> None:
    """Raise `ProxyRefused` if a JSON object anywhere in a request demands what its group may not use.

    `may_search` says whether the service may search the web, `is_open` whether the group reaches the internet
    anyway.
    """
    # A service might take `MCP_servers` for `mcp_servers`, which is judged below.
    for name in part:
        if name not in _SENSITIVE and name.casefold().strip() in _SENSITIVE:
            raise ProxyRefused(error_responses.malformed(f"'{name[:40]}' is not written as the API has it"))
    if part.get("mcp_servers"):
        raise ProxyRefused(error_responses.not_allowed("MCP servers that the model service calls"))
    _check_output(part.get("output_config"))
    _check_source(part, is_open=is_open)
    # Messages may bring tools as well, so each part is looked at, not only the field `tools`.
    kind = part.get("type")
    _check_tools(part.get("tools"), may_search=may_search, is_open=is_open)
    if kind == "tool_definition":
        _check_tools([part.get("definition")], may_search=may_search, is_open=is_open)
    type_match = _VERSIONED.fullmatch(kind) if isinstance(kind, str) else None
    if type_match is not None:
        _check_tool(type_match[1], part, may_search=may_search, is_open=is_open)


def _check_source(part: dict[str, Any], *, is_open: bool) -> None:
    """Raise `ProxyRefused` if the service would fetch the content of `part`, or has it stored.

    `part` is an object of the request; each object is checked by one call, also one inside of another.
    `is_open` says whether the group reaches the internet anyway: then the service may fetch addresses.
    """
    kind = part.get("type")
    source = part.get("source")
    has_address = any(name.casefold().strip().endswith(_ADDRESS_NAME_ENDING) for name in part)
    # A block of a quoting type has a `source` or `url` that only says where its text is from.
    if kind not in _QUOTING_TYPES:
        # Anthropic's API reads no address from these members here, but a compatible service might fetch it.
        has_address = has_address or part.get("url") is not None or not isinstance(source, dict | None)
    if not is_open and (kind in _FETCHING_TYPES or has_address):
        raise ProxyRefused(error_responses.not_allowed("addresses that the model service fetches"))
    if kind == "container_upload":
        raise ProxyRefused(error_responses.not_allowed("containers of the model service"))
    # A source of the type "url" is left out: it is an object itself, and judged above in its own call.
    is_stored = isinstance(source, dict) and source.get("type") not in (*_INLINE_SOURCES, "url")
    if is_stored or kind in _STORED_FILE_TYPES or "file_id" in part:
        raise ProxyRefused(error_responses.not_allowed("files that are stored at the model service"))


def _check_output(output: object) -> None:
    """Raise `ProxyRefused` if `output_config` has members that are not known to be harmless.

    None stands for a request without it.
    """
    if output is None:
        return
    if not isinstance(output, dict):
        raise ProxyRefused(error_responses.malformed("output_config is no object"))
    for name in output:
        if name not in _OUTPUT_MEMBERS:
            raise ProxyRefused(error_responses.not_allowed(f"the member '{name[:40]}' of output_config"))


def _check_tools(tools: object, *, may_search: bool, is_open: bool) -> None:
    """Raise `ProxyRefused` if a list of tools has one that the group may not use.

    The container's own tools pass, and those of the service that are known to be harmless. `may_search` says
    whether the service may search the web, `is_open` whether the group reaches the internet anyway. None
    stands for no list.
    """
    if tools is None:
        return
    if not isinstance(tools, list):
        raise ProxyRefused(error_responses.malformed("tools is no list"))
    for tool in tools:
        kind = tool.get("type", "custom") if isinstance(tool, dict) else None
        if kind == "custom":
            continue
        # The whole name has to match, with any date of its version: a service might take a name with a blank
        # or in another case for the same tool.
        type_match = _VERSIONED.fullmatch(kind) if isinstance(kind, str) else None
        if type_match is None:
            raise ProxyRefused(error_responses.not_allowed(f"tools of the type {str(kind)[:40]!r}"))
        _check_tool(type_match[1], tool, may_search=may_search, is_open=is_open)


def _check_feature(
    feature: ModelFeature | None, features: Collection[ModelFeature], description: str
) -> None:
    """Raise `ProxyRefused` if a part of a request needs a paid feature that the group may not use.

    Args:
        feature: the feature that allows the part; None if the part is never allowed.
        features: the features that the owner lets the group pay for.
        description: names the part; it finishes "This group may not use …".
    """
    if feature is None:
        raise ProxyRefused(error_responses.not_allowed(description))
    if feature not in features:
        # The setting replaces the list, so the features that the group has already are in it, too.
        setting = json.dumps({"model_features": [*features, feature]})
        fix = f"; the owner may allow it: andy groups config FOLDER --set '{setting}'"
        raise ProxyRefused(error_responses.not_allowed(description + fix))


def _check_edits(management: object, features: Collection[ModelFeature]) -> None:
    """Raise `ProxyRefused` if the field `context_management` has edits that the group may not use.

    Edits that cost nothing pass, and those that a feature in `features` allows. None stands for no field.
    """
    if management is None:
        return
    edits = management.get("edits", []) if isinstance(management, dict) else None
    if not (isinstance(management, dict) and management.keys() <= {"edits"} and isinstance(edits, list)):
        raise ProxyRefused(error_responses.not_allowed("context_management other than a list of 'edits'"))
    for edit in edits:
        kind = edit.get("type") if isinstance(edit, dict) else None
        type_match = _VERSIONED.fullmatch(kind) if isinstance(kind, str) else None
        name = type_match[1] if type_match is not None else ""
        if name not in _EDITS:
            _check_feature(
                _PAID_EDITS.get(name), features, f"edits of the context such as {str(kind)[:40]!r}"
            )


def _check_tool(name: str, tool: dict[str, Any], *, may_search: bool, is_open: bool) -> None:
    """Raise `ProxyRefused` if the group may not use a tool of the service; `name` is without its date.

    `may_search` says whether the service may search the web, `is_open` whether the group reaches the internet
    anyway. A web search is malformed without a bound in `max_uses`.
    """
    match name:
        case "web_search":
            if not may_search:
                raise ProxyRefused(error_responses.NO_SEARCH)
            max_uses = tool.get("max_uses")
            # Without a bound, one request could search on and on before a budget counts it. `isinstance`
            # would take `true` for 1.
            if type(max_uses) is not int or not 1 <= max_uses <= MAX_SEARCHES_A_REQUEST:
                fault = f"web search needs max_uses, of at most {MAX_SEARCHES_A_REQUEST}"
                raise ProxyRefused(error_responses.malformed(fault))
        case "web_fetch" if is_open:  # without `is_open`, the next case refuses it
            return
        case _ if name not in _HARMLESS_TOOLS:
            raise ProxyRefused(error_responses.not_allowed(f"the service's own tool '{name}'"))


def _searches_of(part: dict[str, Any]) -> int:
    """Return how many web searches an object lets the service make; 0 if it is no search tool.

    The object was checked, so a search tool has a valid `max_uses`.
    """
    kind = part.get("type")
    type_match = _VERSIONED.fullmatch(kind) if isinstance(kind, str) else None
    return int(part["max_uses"]) if type_match is not None and type_match[1] == "web_search" else 0


def _objects(body: Any) -> Iterator[dict[str, Any]]:
    """Yield each JSON object in a request, at any depth, that may name a tool or an address to the service.

    The objects in the input of past calls and in schemas are left out: the service treats them neither as
    tools nor as addresses. Not recursive, because the container chooses the depth.
    """
    unread = [body]
    while unread:
        part = unread.pop()
        if isinstance(part, dict):
            yield part
            unread += [value for name, value in part.items() if not _is_plain_data(part, name)]
        elif isinstance(part, list):
            unread += part


def _is_plain_data(part: dict[str, Any], name: str) -> bool:
    """Return whether the member `name` of an object has plain data as its value, which needs no check.

    The service treats such a value neither as a tool nor as an address.
    """
    match name:
        case "input":
            return part.get("type") in _CALL_TYPES
        case "input_schema" | "input_examples":
            return "name" in part  # a tool's definition, which has a name
        case "schema":
            return part.get("type") == "json_schema"
        case _:
            return False
