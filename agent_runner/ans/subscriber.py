"""Define a subscriber: the events it takes, their batching, and the point and form of their delivery."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, ValidationError

from agent_runner.ans.event import EventLevel, NoticeEvent, is_pattern, matches
from agent_runner.wire.notices import InjectAt, Priority, Severity

_TEMPLATE = re.compile(r"[A-Za-z0-9_-]{1,60}\.j2")
MAX_PATTERNS = 50
"""Most event types, and most sources, of a subscriber."""


class BadSubscriber(ValueError):
    """A subscriber's file cannot be used; the text gives the reason in one line."""


def _checked_pattern(text: str) -> str:
    """Return a pattern of event types unchanged. Raises `ValueError` if the text is no such pattern."""
    if not is_pattern(text):
        raise ValueError("is neither an event type nor 'prefix.*'")
    return text


def _checked_template(text: str) -> str:
    """Return the name of a template unchanged. Raises `ValueError` if the text is no such name."""
    if not _TEMPLATE.fullmatch(text):
        raise ValueError("is no template's name, such as 'my_note.j2'")
    return text


class _Table(BaseModel):
    """A table of a subscriber's file: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class EventFilter(_Table):
    """The table `[subscriber]` of a file: the subscriber's id, name, description and version."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)
    name: str = Field(min_length=1, max_length=100)
    description: str = Field(default="", max_length=500)
    version: str = Field(default="1.0.0", pattern=r"^\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?$")


class Events(_Table):
    """The table `[events]`: the types, least severity and sources of the events that the subscriber takes."""

    types: list[Annotated[str, AfterValidator(_checked_pattern)]] = Field(
        min_length=1, max_length=MAX_PATTERNS
    )
    severity_filter: Severity = "info"
    sources: list[str] | None = Field(default=None, max_length=MAX_PATTERNS)


class Batching(_Table):
    """The table `[batching]`: the time and number of a batch, and the key and time of repeated events.

    Windows are in milliseconds; `max_size` counts entries.
    """

    window_ms: int = Field(default=2_000, ge=0, le=10_000, strict=True)
    max_size: int = Field(default=10, ge=1, le=100, strict=True)
    dedupe_key: str = Field(default="", max_length=200)
    dedupe_window_ms: int = Field(default=5_000, ge=0, le=60_000, strict=True)


class Output(_Table):
    """The table `[output]`: the priority, point and template of notices; `core` ones cannot be disabled."""

    priority: Priority = "normal"
    inject_at: InjectAt = "after_tool"
    template: Annotated[str, AfterValidator(_checked_template)]
    core: StrictBool = False


class _File(_Table):
    """A subscriber's whole file."""

    subscriber: EventFilter
    events: Events
    batching: Batching = Batching()
    output: Output


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """One validated subscriber. `is_of_group`: its file is in the group's folder, as may be its template."""

    about: EventFilter
    events: Events
    batching: Batching
    output: Output
    is_of_group: bool = False

    @property
    def id(self) -> str:
        return self.about.id

    def names(self, event_type: str) -> bool:
        """Return whether the subscriber takes events of this type, if their severity and source fit."""
        return any(matches(pattern, event_type) for pattern in self.events.types)

    def takes(self, event: NoticeEvent) -> bool:
        """Return whether the subscriber takes this event, by type, severity and source."""
        return (
            event.severity >= EventLevel.of(self.events.severity_filter)
            and (self.events.sources is None or event.source in self.events.sources)
            and self.names(event.type)
        )

    def dedupe_key(self, event: NoticeEvent) -> str:
        """Return a key that is equal for repeated events, such as `tool_failure:tool.call.failure:Read`."""
        if not self.batching.dedupe_key:
            return f"{self.id}:{event.dedupe_key}"
        parts = (_part(part, event) for part in self.batching.dedupe_key.split(":"))
        return ":".join((self.id, *parts))


def _part(part: str, event: NoticeEvent) -> str:
    """Return the value for one part of a dedupe key as a subscriber writes it.

    `type` is the event's type, `payload.path` the field `path` of its payload; other text stays as it is.
    """
    if part == "type":
        return event.type
    if part.startswith("payload."):
        return str(event.payload.get(part.removeprefix("payload."), ""))[:200]
    return part


def parse_subscriber(text: str, *, is_of_group: bool = False) -> Subscriber:
    """Return the subscriber that a TOML text describes. `is_of_group`: whether it is a group's own.

    Raises:
        BadSubscriber: it is no TOML, a key is missing, unknown or out of range, or a group's own is `core`.
    """
    import tomllib

    try:
        file = _File.model_validate(tomllib.loads(text))
    except ValidationError as error:
        raise BadSubscriber(_first_reason(error)) from error
    except ValueError as error:  # also of a number with too many digits
        raise BadSubscriber(f"it is no TOML: {error}") from error
    except RecursionError as error:
        raise BadSubscriber("it is nested too deep") from error
    if is_of_group and file.output.core:
        raise BadSubscriber("output.core: only Andy's own subscribers are core")
    return Subscriber(
        about=file.subscriber,
        events=file.events,
        batching=file.batching,
        output=file.output,
        is_of_group=is_of_group,
    )


def _first_reason(error: ValidationError) -> str:
    """Return the first validation error of a subscriber's file in one line: the key, and what is wrong."""
    first: Any = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}"
