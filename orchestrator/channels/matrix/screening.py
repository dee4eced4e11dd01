"""Remove from an answer what matrix-nio cannot parse, so that one event does not block others. Pure.

The library parses a whole answer or nothing, and an unexpected shape may raise anything.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import nio
import structlog

from orchestrator.channels.receiving import storable

log = structlog.get_logger(__name__)

MAX_DEPTH = 100
"""Levels of nesting that are read. No event with a meaning here has ten."""
MAX_DIGITS = 400
"""Digits of a number that are read."""
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
"""The strings and brackets of JSON."""
Parse = Callable[[dict[str, Any]], object]
_WRAPPED = f"andy.unparsed.{secrets.token_hex(16)}"
"""The type of a replacement for an event that the library cannot parse. No sender can know it."""
_ROOM_LISTS: tuple[tuple[str, Parse], ...] = (
    ("timeline", nio.Event.parse_event),
    ("state", nio.Event.parse_event),
    ("ephemeral", nio.EphemeralEvent.parse_event),
    ("account_data", nio.AccountDataEvent.parse_event),
    ("invite_state", nio.InviteEvent.parse_event),
)
_LISTS: tuple[tuple[str, Parse], ...] = (
    ("to_device", nio.ToDeviceEvent.parse_event),
    ("account_data", nio.AccountDataEvent.parse_event),
    ("presence", nio.PresenceEvent.from_dict),
)


def readable(body: bytes) -> object:
    """Parse JSON that the standard parser refuses, without parts that are nested too
    deep or have too many digits.

    Return None if it is no JSON at all.
    """
    text = body.decode("utf-8", "replace")
    pieces: list[str] = []
    start = depth = 0
    for found in _TOKENS.finditer(text):
        sign = found[0]
        if sign in "[{":
            depth += 1
            if depth == MAX_DEPTH + 1:
                pieces.append(f"{text[start : found.start()]}null")
        elif sign in "]}":
            if depth == MAX_DEPTH + 1:
                start = found.end()
            depth -= 1
    pieces.append(text[start:])
    try:
        return json.loads("".join(pieces), parse_int=_number)
    except (RecursionError, ValueError):
        return None


def _number(digits: str) -> int:
    return int(digits) if len(digits) <= MAX_DIGITS else 0


def screened(answer: object) -> dict[Any, Any]:
    """Return the JSON of an answer with every event in it as the library can parse it."""
    if not isinstance(answer, dict):
        return {}
    if isinstance(answer.get("chunk"), list):
        answer["chunk"] = list(_readable(answer["chunk"], nio.Event.parse_event, wraps=True))
    for section in _tables(answer.get("rooms")):
        for room in _tables(section):
            _screen(room, _ROOM_LISTS)
    _screen(answer, _LISTS)
    return answer


def unwrapped(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event as received, in text that can be stored: half a surrogate pair becomes `?`."""
    if event.get("type") == _WRAPPED:
        event = event["content"]["event"]
    try:
        return storable(event)
    except (RecursionError, TypeError, ValueError):
        return {**event, "content": {}}


def _screen(holder: dict[str, Any], lists: tuple[tuple[str, Parse], ...]) -> None:
    for name, parse in lists:
        part = holder.get(name)
        if isinstance(part, dict) and isinstance(part.get("events"), list):
            part["events"] = list(_readable(part["events"], parse, wraps=name == "timeline"))


def _readable(found: list[Any], parse: Parse, *, wraps: bool) -> Iterator[dict[str, Any]]:
    """Yield events that `parse` accepts; with `wraps` also the others, wrapped in an
    event that it accepts.
    """
    for one in found:
        if not isinstance(one, dict):
            continue
        try:
            # The library modifies an invitation while it parses it.
            parse(deepcopy(one))
        except Exception as error:  # noqa: BLE001 - of the library
            log.warning("matrix.event_not_parsed", type=str(one.get("type"))[:80], reason=repr(error)[:200])
            if wraps:
                yield {
                    "type": _WRAPPED,
                    "event_id": "$unparsed",
                    "sender": "@unparsed:unparsed",
                    "origin_server_ts": 0,
                    "content": {"event": one},
                }
        else:
            yield one


def _tables(value: object) -> list[dict[str, Any]]:
    return [one for one in value.values() if isinstance(one, dict)] if isinstance(value, dict) else []
