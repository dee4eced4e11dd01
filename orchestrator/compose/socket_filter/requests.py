"""Parse requests to the engine strictly, by one table of allowed ones. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any
from urllib.parse import parse_qsl, urlencode

from pydantic import BaseModel, ValidationError

from orchestrator.compose.socket_filter import swarm_template, template

REF = r"(?P<ref>[a-zA-Z0-9][a-zA-Z0-9_.-]{0,200})"
VERSION = re.compile(r"/v1\.[0-9]{1,3}(?=/)")


class RequestForbidden(Exception):
    """The request is not allowed; the text says why."""


class ObjectNotFound(Exception):
    """The engine has no object of that name; docker-py understands it as "gone already"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredResponse:
    """The filter's own answer: a list without what is not Andy's."""

    document: Any


class RequestKind(Enum):
    """The effect of a request; it decides which checks of `checks.py` apply."""

    ASK = auto()
    INSPECT_IMAGE = auto()
    LIST_CONTAINERS = auto()
    CREATE_CONTAINER = auto()
    INSPECT_CONTAINER = auto()
    START_CONTAINER = auto()
    USE_CONTAINER = auto()
    ATTACH = auto()
    LIST_NETWORKS = auto()
    CREATE_NETWORK = auto()
    INSPECT_NETWORK = auto()
    REMOVE_NETWORK = auto()
    JOIN_NETWORK = auto()
    LEAVE_NETWORK = auto()
    ASK_SWARM = auto()
    LIST_NODES = auto()
    LIST_SERVICES = auto()
    CREATE_SERVICE = auto()
    REMOVE_SERVICE = auto()
    LIST_TASKS = auto()
    LIST_SECRETS = auto()
    CREATE_SECRET = auto()
    REMOVE_SECRET = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRule:
    """One form of request that is allowed."""

    method: str
    path: re.Pattern[str]
    kind: RequestKind
    query: Mapping[str, str] = field(default_factory=dict)
    """Each parameter that may be given, with the form of its value."""
    body: type[BaseModel] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """An allowed request, provided that its objects are Andy's. `target` and `body` are rebuilt.

    `ref` is the id or the name of the object in the path; empty if the path names none.
    """

    kind: RequestKind
    method: str
    target: str
    version: str
    ref: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    body: dict[str, Any] | None = None

    def labelled(self, project: str) -> EngineRequest:
        """Return this request to create an object, with the label that marks the project's objects."""
        body = dict(self.body or {})
        body["Labels"] = body["Labels"] | {template.PROJECT_LABEL: project}
        return replace(self, body=body)


def _rule(
    method: str,
    path: str,
    kind: RequestKind,
    query: Mapping[str, str] | None = None,
    body: type[BaseModel] | None = None,
) -> RequestRule:
    """Return a rule for a request that is allowed: its method, its path, its parameters and its body.

    `path`, and each value of `query`, is a regular expression. Without `query` no parameter is allowed, and
    without `body` no body.
    """
    return RequestRule(method=method, path=re.compile(path), kind=kind, query=query or {}, body=body)


# The forms of values: booleans as docker-py and the engine's own client write them, and small numbers.
_YES, _NO, _FLAG, _COUNT = "1|[Tt]rue", "0|[Ff]alse", "0|1|[Tt]rue|[Ff]alse", "-?[0-9]{1,6}"
_ALL_WIRES = {"stdin": _YES, "stdout": _YES, "stderr": _YES, "stream": _YES}
_LISTED = {"filters": ".*"}
RULES = (
    _rule("GET", "/_ping", RequestKind.ASK),
    _rule("HEAD", "/_ping", RequestKind.ASK),
    _rule("GET", "/version", RequestKind.ASK),
    _rule("GET", r"/images/(?P<ref>[a-z0-9][a-zA-Z0-9_./:@-]{0,200})/json", RequestKind.INSPECT_IMAGE),
    _rule(
        "GET",
        "/containers/json",
        RequestKind.LIST_CONTAINERS,
        {"all": _FLAG, "size": _NO, "trunc_cmd": _FLAG, "limit": _COUNT, "filters": ".*"},
    ),
    _rule(
        "POST",
        "/containers/create",
        RequestKind.CREATE_CONTAINER,
        {"name": template.NAME},
        template.NewContainer,
    ),
    _rule("GET", f"/containers/{REF}/json", RequestKind.INSPECT_CONTAINER),
    _rule("POST", f"/containers/{REF}/attach", RequestKind.ATTACH, _ALL_WIRES),
    _rule("POST", f"/containers/{REF}/start", RequestKind.START_CONTAINER),
    _rule("POST", f"/containers/{REF}/stop", RequestKind.USE_CONTAINER, {"t": _COUNT}),
    _rule("POST", f"/containers/{REF}/wait", RequestKind.USE_CONTAINER),
    _rule(
        "GET",
        f"/containers/{REF}/logs",
        RequestKind.USE_CONTAINER,
        {"follow": _FLAG, "stdout": _FLAG, "stderr": _FLAG},
    ),
    _rule(
        "DELETE", f"/containers/{REF}", RequestKind.USE_CONTAINER, {"force": _FLAG, "v": _FLAG, "link": _NO}
    ),
    _rule("GET", "/networks", RequestKind.LIST_NETWORKS, {"filters": ".*"}),
    _rule("POST", "/networks/create", RequestKind.CREATE_NETWORK, body=template.NewNetwork),
    _rule("GET", f"/networks/{REF}", RequestKind.INSPECT_NETWORK),
    _rule("DELETE", f"/networks/{REF}", RequestKind.REMOVE_NETWORK),
    _rule("POST", f"/networks/{REF}/connect", RequestKind.JOIN_NETWORK, body=template.Join),
    _rule("POST", f"/networks/{REF}/disconnect", RequestKind.LEAVE_NETWORK, body=template.Leave),
    _rule("GET", "/info", RequestKind.ASK_SWARM),
    _rule("GET", "/nodes", RequestKind.LIST_NODES),
    _rule("GET", "/services", RequestKind.LIST_SERVICES, _LISTED),
    _rule("POST", "/services/create", RequestKind.CREATE_SERVICE, body=swarm_template.NewService),
    _rule("DELETE", f"/services/{REF}", RequestKind.REMOVE_SERVICE),
    _rule("GET", "/tasks", RequestKind.LIST_TASKS, _LISTED),
    _rule("GET", "/secrets", RequestKind.LIST_SECRETS, _LISTED),
    _rule("POST", "/secrets/create", RequestKind.CREATE_SECRET, body=swarm_template.NewSecret),
    _rule("DELETE", f"/secrets/{REF}", RequestKind.REMOVE_SECRET),
)


def read(method: str, target: str, body: bytes) -> EngineRequest:
    """Return a request to the engine that a rule allows, rebuilt from its parsed content.

    `target` is its path and query. The caller still has to check that its objects are Andy's.

    Raises:
        RequestForbidden: no rule allows it, or a parameter or a field is not in the rule.
    """
    path, _, query = target.partition("?")
    # docker-py escapes the `@` before an image's digest as `%40`. No other rule allows a path with `@`, so
    # this makes no other request an allowed one.
    path = path.replace("%40", "@")
    version = VERSION.match(path)
    path_without_version = path[version.end() :] if version else path
    rule, match = _matching(method, path_without_version)
    parameters = _parameters(rule, query)
    return EngineRequest(
        kind=rule.kind,
        method=method,
        target=f"{path}?{urlencode(parameters)}" if parameters else path,
        version=version[0] if version else "",
        ref=match.groupdict().get("ref", ""),
        query=parameters,
        body=_document(rule, body),
    )


def _matching(method: str, path: str) -> tuple[RequestRule, re.Match[str]]:
    """Return the rule that allows a request, and the match of its path. Raises `RequestForbidden`."""
    for rule in RULES:
        match = rule.path.fullmatch(path)
        if match and rule.method == method:
            return rule, match
    raise RequestForbidden(f"{method} {path} is nothing that Andy needs.")


def _parameters(rule: RequestRule, query: str) -> dict[str, str]:
    """Return the parameters of a query by name.

    Raises `RequestForbidden` if the query cannot be read, or for a parameter that the rule does not name,
    that occurs twice, or whose value does not match the rule.
    """
    try:
        pairs = (
            parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict") if query else []
        )
    except ValueError as error:
        raise RequestForbidden(f"The query cannot be read ({error}).") from error
    parameters: dict[str, str] = {}
    for name, value in pairs:
        form = rule.query.get(name)
        if form is None or name in parameters or not re.fullmatch(form, value):
            raise RequestForbidden(f"The parameter '{name}' is not in its form.")
        parameters[name] = value
    return parameters


def _document(rule: RequestRule, body: bytes) -> dict[str, Any] | None:
    """Return the body of a request, parsed by the rule's model, which refuses unknown fields.

    None if the rule allows no body. Raises `RequestForbidden` if the body does not fit the model.
    """
    if rule.body is None:
        if body:
            raise RequestForbidden("A body is not expected here.")
        return None
    try:
        document = rule.body.model_validate(json.loads(body, object_pairs_hook=_each_once))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise RequestForbidden(
            f"{'.'.join(map(str, first['loc'])) or 'The body'}: {first['msg']}."
        ) from error
    except (ValueError, RecursionError) as error:
        raise RequestForbidden(f"The body is no JSON object ({error}).") from error
    return document.model_dump(exclude_unset=True)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the names and values of a JSON object as a dict. Raises `ValueError` if a name occurs twice."""
    fields = dict(pairs)
    # Python takes the last of two equal keys; the engine could take another than the one that was checked.
    if len(fields) != len(pairs):
        raise ValueError("a key is there twice")
    return fields


def only_filter(text: str, *keys: str) -> tuple[str, str]:
    """Return the key and the value of the filter in a request for a list.

    `text` is the parameter `filters`: a JSON object with one of `keys` and a list of one value. Both results
    are empty if nothing is filtered. Raises `RequestForbidden` for any other filter.
    """
    try:
        filters = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise RequestForbidden("The filters are no JSON.") from error
    match filters:
        case {} if not filters:  # the pattern `{}` alone fits a mapping with keys, too
            return "", ""
        case dict() if len(filters) == 1 and (key := next(iter(filters))) in keys:
            if isinstance(filters[key], list) and len(filters[key]) == 1:
                return key, str(filters[key][0])
    raise RequestForbidden(f"The only filter here is one {' or '.join(keys)}.")
