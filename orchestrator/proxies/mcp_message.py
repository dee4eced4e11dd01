"""Parse a message of the Model Context Protocol, and write a new one from the parsed content. Pure.

The server must read exactly what was checked. Another parser may use another charset, ignore the case of a
member's name, or read a member that the gateway does not know; so none of the received bytes is sent on.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.proxies import strict_json
from orchestrator.proxies.strict_json import NotStrictJson

CALL_METHOD = "tools/call"
# The owner reads this name in a question: a free text could pretend to be another question.
TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""The protocol's own rule for the name of a tool."""
METHOD_NAME = re.compile(r"[A-Za-z0-9_/.$-]{1,128}")
"""The characters in the names of the protocol's methods."""
KNOWN_METHODS = frozenset(
    {
        "completion/complete",
        "initialize",
        "logging/setLevel",
        "notifications/cancelled",
        "notifications/initialized",
        "notifications/progress",
        "notifications/roots/list_changed",
        "ping",
        "prompts/get",
        "prompts/list",
        "resources/list",
        "resources/read",
        "resources/subscribe",
        "resources/templates/list",
        "resources/unsubscribe",
        "tools/call",
        "tools/list",
    }
)
"""Methods that clients send by the protocol's schema. Another method might do what a rule forbids."""
_MEMBERS = ("jsonrpc", "id", "method", "params", "result", "error")
"""Members of a message that are sent on; others are dropped."""
_CALL_MEMBERS = ("name", "arguments", "_meta")
"""Members of the params of a call that are sent on."""
MAX_SHOWN_CHARS = 20_000
"""Most characters of a call's arguments that are stored for the question to the owner."""
_ATTEMPT_MEMBERS = ("progressToken", "claudecode/toolUseId")
"""Members of `_meta` that identify one attempt at a call. They always differ, so
they are not part of its hash.
"""
_OPAQUE_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class McpMessage:
    """A message in the form in which it is sent on."""

    body: bytes = b""
    """ASCII JSON with the members that the protocol knows."""
    id: str | int | None = None
    """The id that an answer repeats; None for a notification, which has no answer."""
    method: str | None = None
    """The method; None for an answer to a request of the server's."""
    tool: str | None = None
    """The name of the tool; None if the message is no call."""
    call_hash: str = ""
    """A hash that identifies a repeated call; empty if the message is no call."""
    arguments: str = ""
    """The arguments of a call as JSON, and its `_meta` if any, at most `MAX_SHOWN_CHARS`."""
    is_of_task: bool = False
    """Whether it starts a task of protocol version 2025-11-25, or asks about one."""

    def to_wire(self) -> tuple[dict[str, Any], bytes]:
        """Return the message for another process: its fields except the body as a JSON object, and the body.

        The member "body" is None in the object, because JSON cannot contain bytes.
        """
        return {**asdict(self), "body": None}, self.body

    @classmethod
    def from_wire(cls, fields: dict[str, Any], body: bytes) -> McpMessage:
        """Return the message from the two values that `to_wire` has returned."""
        return cls(**{**fields, "body": body})


def read_message(body: bytes) -> McpMessage:
    """Parse the one message in the body of a request, and write a new one with its known members only.

    Raises:
        NotStrictJson: the body is no message of the protocol, or parsers may differ on what it says.
    """
    document = strict_json.parse(body, folds_names=True)
    if not isinstance(document, dict):
        raise NotStrictJson("an MCP server takes one message at a time")
    message = {name: document[name] for name in _MEMBERS if name in document}
    message_id = message.get("id")
    method = message.get("method")
    params = message.get("params", {})
    # Booleans are excluded separately, because they are instances of `int`.
    if isinstance(message_id, bool) or not isinstance(message_id, str | int | None):
        raise NotStrictJson("the id of a message is a text or a whole number")
    if method is None and not ({"result", "error"} & message.keys()):
        raise NotStrictJson("a message has a method, a result or an error")
    if method is not None and not (isinstance(method, str) and METHOD_NAME.fullmatch(method)):
        raise NotStrictJson("its method is no name of one")
    if not isinstance(params, dict):
        raise NotStrictJson("its params are no object")
    if method != CALL_METHOD:
        body = strict_json.to_ascii_json(message)
        return McpMessage(body=body, id=message_id, method=method, is_of_task=_is_of_task(method, params))
    return _tool_call(message, params, message_id)


def _tool_call(message: dict[str, Any], params: dict[str, Any], message_id: str | int | None) -> McpMessage:
    """Return the message that calls a tool, with the params in `message` reduced to the known members.

    `message` is the parsed message, whose params are replaced here; `params` are the received ones, and
    `message_id` is its id. Members of `_meta` that only identify an attempt are sent, but are neither in the
    hash nor in the arguments that are shown to the owner, which are cut to `MAX_SHOWN_CHARS`.

    Raises `NotStrictJson` if the name, the arguments or `_meta` are not of the protocol's form.
    """
    tool = params.get("name")
    arguments = params.get("arguments", {})
    if not (isinstance(tool, str) and TOOL_NAME.fullmatch(tool)):
        raise NotStrictJson("the name of a tool has 1 to 128 letters, digits, '_', '-' and '.'")
    if not isinstance(arguments, dict):
        raise NotStrictJson("what a tool is called with is an object")
    meta = params.get("_meta", {})
    if not isinstance(meta, dict):
        raise NotStrictJson("the _meta of a call is an object")
    message["params"] = {name: params[name] for name in _CALL_MEMBERS if name in params}
    body = strict_json.to_ascii_json(message)
    judged_meta = {name: value for name, value in meta.items() if not _identifies_attempt(name, value)}
    # A call with `_meta` is hashed as a list and one without it as an object, so the two never have one hash.
    sorted_call = json.dumps([arguments, judged_meta] if judged_meta else arguments, sort_keys=True)
    parts = [arguments, judged_meta] if judged_meta else [arguments]
    shown_arguments = " with _meta ".join(
        json.dumps(part, sort_keys=True, ensure_ascii=False) for part in parts
    )
    return McpMessage(
        body=body,
        id=message_id,
        method=CALL_METHOD,
        tool=tool,
        call_hash=hashlib.sha256(sorted_call.encode()).hexdigest(),
        arguments=shown_arguments[:MAX_SHOWN_CHARS],
        is_of_task=_is_of_task(CALL_METHOD, params),
    )


def _is_of_task(method: str | None, params: dict[str, Any]) -> bool:
    """Return whether a message starts a task of the protocol, or asks about one.

    A task is a call whose result is fetched later. `method` is None for an answer to the server.
    """
    # Such as `tasks/get`, and `notifications/tasks/status`.
    is_about_tasks = method is not None and method.removeprefix("notifications/").startswith("tasks/")
    return is_about_tasks or params.get("task") is not None


def _identifies_attempt(name: str, value: object) -> bool:
    """Return whether a member of `_meta` identifies one attempt at a call and carries nothing else.

    Its value must be a number or a short name: a longer text could be content.
    """
    if name not in _ATTEMPT_MEMBERS or isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, str) and _OPAQUE_NAME.fullmatch(value) is not None)
