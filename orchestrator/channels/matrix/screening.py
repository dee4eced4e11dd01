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
_JSON_PARTS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
"""The strings and brackets of JSON. A string that is not closed goes on to the end."""
Parse = Callable[[dict[str, Any]], object]
_WRAPPER_TYPE = f"andy.unparsed.{secrets.token_hex(16)}"
"""The type of a replacement for an event that the library cannot parse. No sender can know it."""
_ROOM_LISTS: tuple[tuple[str, Parse], ...] = (
    ("timeline", nio.Event.parse_event),
    ("state", nio.Event.parse_event),
    ("ephemeral", nio.EphemeralEvent.parse_event),
    ("account_data", nio.AccountDataEvent.parse_event),
    ("invite_state", nio.InviteEvent.parse_event),
)
_ANSWER_LISTS: tuple[tuple[str, Parse], ...] = (
    ("to_device", nio.ToDeviceEvent.parse_event),
    ("account_data", nio.AccountDataEvent.parse_event),
    ("presence", nio.PresenceEvent.from_dict),
)


def parse_hostile_json(body: bytes) -> object:
    """Parse JSON that the standard parser refuses, without the parts that it refuses.

    A list or object nested deeper than `MAX_DEPTH` becomes null, and a whole number of more than
    `MAX_DIGITS` digits becomes 0. Return None if `body` is no JSON at all.
    """
    text = body.decode("utf-8", "replace")
    pieces: list[str] = []
    copied_until = depth = 0
    # Each list or object that is nested too deep is replaced by `null`; the text between them is copied.
    # Whole strings are found as well as brackets, so that a bracket within a string does not count.
    for match in _JSON_PARTS.finditer(text):
        bracket_or_string = match[0]
        if bracket_or_string in "[{":
            depth += 1
            if depth == MAX_DEPTH + 1:
                pieces.append(f"{text[copied_until : match.start()]}null")
        elif bracket_or_string in "]}":
            if depth == MAX_DEPTH + 1:
                copied_until = match.end()
            depth -= 1
    pieces.append(text[copied_until:])
    try:
        return json.loads("".join(pieces), parse_int=_bounded_int)
    except (RecursionError, ValueError):
        return None


def _bounded_int(digits: str) -> int:
    """Return the number that is written in `digits`; 0 for more than `MAX_DIGITS` of them."""
    return int(digits) if len(digits) <= MAX_DIGITS else 0


def with_parsable_events(answer: object) -> dict[Any, Any]:
    """Return the JSON of a homeserver's answer, changed in place: the library can then parse all its events.

    An answer that is no JSON object becomes an empty one. The pause that an error asks for (`retry_after_ms`)
    is left out if it is no whole number.
    """
    if not isinstance(answer, dict):
        return {}
    # The library cannot read an error with another pause at all: it would not even notice that the homeserver
    # asks for a pause.
    if type(answer.get("retry_after_ms", 0)) is not int:
        del answer["retry_after_ms"]
    # A page of a room's messages has its events in `chunk`; an answer to a sync has them in `rooms`.
    if isinstance(answer.get("chunk"), list):
        answer["chunk"] = list(_parsable(answer["chunk"], nio.Event.parse_event, wraps_others=True))
    # There each section (`join`, `invite`, `leave`) has its rooms by their ids.
    for section in _objects_in(answer.get("rooms")):
        for room in _objects_in(section):
            _screen_lists(room, _ROOM_LISTS)
    _screen_lists(answer, _ANSWER_LISTS)
    return answer


def original_event(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event as it was received, but with text that a database can store.

    An event that was wrapped, because the library cannot parse it, is unwrapped. Half a surrogate pair
    becomes `?`. The content of an event that cannot be written as JSON becomes empty.
    """
    if event.get("type") == _WRAPPER_TYPE:
        event = event["content"]["event"]
    try:
        return storable(event)
    except (RecursionError, TypeError, ValueError):
        return {**event, "content": {}}


def _screen_lists(holder: dict[str, Any], lists: tuple[tuple[str, Parse], ...]) -> None:
    """Replace each list of events in `holder`, a JSON object, by the events that the library can parse.

    `lists` has the name of each list with the function that parses its events. In the list of messages
    (`timeline`), other events are wrapped instead of left out, so that the rest of the host can read them.
    """
    for name, parse in lists:
        part = holder.get(name)
        if isinstance(part, dict) and isinstance(part.get("events"), list):
            part["events"] = list(_parsable(part["events"], parse, wraps_others=name == "timeline"))


def _parsable(items: list[Any], parse: Parse, *, wraps_others: bool) -> Iterator[dict[str, Any]]:
    """Yield the events for which `parse` raises no exception.

    With `wraps_others`, any other event is wrapped: an event of the type `_WRAPPER_TYPE` is yielded, which
    `parse` accepts, and which has the other one in its content. Without `wraps_others`, other events are left
    out. Items that are no JSON objects are always left out.
    """
    for event in items:
        if not isinstance(event, dict):
            continue
        try:
            # A copy, because the library modifies an invitation while it parses it.
            parse(deepcopy(event))
        except Exception as error:  # noqa: BLE001 - of the library
            log.warning("matrix.event_not_parsed", type=str(event.get("type"))[:80], reason=repr(error)[:200])
            if wraps_others:
                # With the fields that the library demands of each event.
                yield {
                    "type": _WRAPPER_TYPE,
                    "event_id": "$unparsed",
                    "sender": "@unparsed:unparsed",
                    "origin_server_ts": 0,
                    "content": {"event": event},
                }
        else:
            yield event


def _objects_in(value: object) -> list[dict[str, Any]]:
    """Return the members of a JSON object that are objects themselves; none if `value` is no object."""
    return (
        [member for member in value.values() if isinstance(member, dict)] if isinstance(value, dict) else []
    )
