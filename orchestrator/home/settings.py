"""The settings: each name, its default, what it takes and what it means. Loading validates them."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from datetime import time
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
)

from orchestrator.domain.errors import SettingError
from orchestrator.domain.model_services import is_near
from orchestrator.domain.web_search import SearchService, service_name_of
from orchestrator.home.directory import HOME_KEY
from orchestrator.home.setting_sources import (
    COMMAND_LINE,
    DEFAULT_NAME,
    SettingSource,
    known_zone,
    merged,
    read_sources,
    zone_of_this_machine,
)


def _plain_name(name: str) -> str:
    """Return a name that people can call in a chat, without blanks around it.

    Raises `ValueError` if it is empty, or has a line break, `<`, `>` or `@`.
    """
    if not name.strip() or any(character in name for character in "\n\r<>@"):
        raise ValueError("use a plain name, without line breaks, '<', '>' and '@'")
    return name.strip()


def _times_of_day(text: str) -> str:
    """Return times of day, which have commas between them, each as `HH:MM`.

    Raises `ValueError` if one of them is no time.
    """
    try:
        times = [time.fromisoformat(part.strip()) for part in text.split(",")]
    except ValueError as error:
        raise ValueError("use times of day such as 09:00,18:00") from error
    return ",".join(f"{moment:%H:%M}" for moment in times)


def _channel_names(text: str) -> str:
    """Return names of channels in lower case, each once, with commas between them; empty for `none`.

    Raises `ValueError` for a name with other characters than letters, digits, `-` and `_`.
    """
    names = [name for part in text.split(",") if (name := part.strip().lower())]
    if names == ["none"]:
        return ""
    if not all(name.replace("-", "").replace("_", "").isalnum() for name in names):
        raise ValueError("use names of channels such as whatsapp,matrix")
    return ",".join(dict.fromkeys(names))


def _command_line(text: str) -> str:
    """Return a text unchanged, if a shell can split it into words. Raises `ValueError` otherwise."""
    try:
        shlex.split(text)
    except ValueError as error:
        raise ValueError(f"it is no command line: {error}") from error
    return text


_ADDRESS = re.compile(r"[^\s\\?#\x00-\x20\x7f-\U0010ffff]+")


def _search_address(text: str) -> str:
    """Return the address of a SearXNG, a search service, without `/search` at its end; empty if none is set.

    `https` is allowed anywhere, `http` only in the owner's network. Raises `ValueError` for another address,
    and for one with a password.
    """
    if not text:
        return ""
    try:
        parts = urlsplit(text)
        # `port` raises `ValueError` if it is no number up to 65535. `_ADDRESS` matches ASCII without blanks,
        # backslashes, `?` and `#`.
        is_whole = bool(parts.hostname) and parts.port != 0 and bool(_ADDRESS.fullmatch(text))
    except ValueError:
        is_whole = False
    if not is_whole or parts.scheme not in ("http", "https"):
        raise ValueError("write http://HOST[:PORT][/PATH] or https://HOST[/PATH], and nothing behind it")
    if "@" in parts.netloc:
        raise ValueError(
            "it holds a password: let your SearXNG be reached without one, from this machine alone"
        )
    if parts.scheme == "http" and not is_near(parts.hostname or ""):
        raise ValueError("write https:// for a place of the internet: words of your chats go there")
    return text.rstrip("/").removesuffix("/search")


def _web_origin(text: str | None) -> str | None:
    """Return a web origin unchanged, which is a scheme and a host without a path; None if none is set.

    Raises `ValueError` for anything else.
    """
    if text is None:
        return None
    parts = urlsplit(text)
    if (
        parts.scheme not in ("http", "https")
        or f"{parts.scheme}://{parts.netloc}" != text
        or not parts.hostname
    ):
        raise ValueError("use an origin without a path, such as https://andy.example.org")
    return text


UsdPerMillion = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class ModelPrice(BaseModel):
    """A price in dollars a million tokens; cache prices left out follow `input` as list prices do."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: UsdPerMillion
    output: UsdPerMillion
    cache_read: UsdPerMillion | None = None
    cache_write: UsdPerMillion | None = None
    cache_write_hour: UsdPerMillion | None = None


def _from_json(value: Any) -> Any:
    """Return a setting that is a table: parsed from JSON if it is a text, else as a TOML file has it.

    Raises `ValueError` for a text that is no JSON.
    """
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(
            'use JSON such as {"model": {"input": 3, "output": 15}}, or {"notifications": 90}'
        ) from error


RETENTION_DAYS = {
    "approvals": 365,
    "access_requests": 365,
    "commands": 90,
    "cycles": 365,
    "dashboard_tasks": 365,
    "messages": 0,
    "notifications": 180,
    "outbox": 365,
    "polls": 365,
    "question_lists": 90,
    "questions": 365,
    "runs": 365,
    "scheduled_tasks": 365,
    "task_run_logs": 365,
    "tool_calls": 30,
    "turns": 365,
    "usage": 730,
}
"""Days that ended rows stay in each table, unless the owner sets another number; 0 is without end."""


def _with_default_days(days: dict[str, int]) -> dict[str, int]:
    """Return the days that ended rows stay in each table; those that the owner does not set are the defaults.

    Raises `ValueError` for an unknown table.
    """
    # Reminders were a table of their own once: a home that still sets their days is accepted.
    days = {table: table_days for table, table_days in days.items() if table != "reminders"}
    for table in days:
        if table not in RETENTION_DAYS:
            raise ValueError(f"'{table[:40]}' is none of {', '.join(RETENTION_DAYS)}")
    return RETENTION_DAYS | days


class Settings(BaseModel):
    """The settings of the owner. Fields are in lower case; files have the same names in upper case."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def origins(self) -> Mapping[str, str]:
        """Map each setting to the place that set it: `.env`, `andy.toml`, `environment` or `command line`."""
        return self._origins

    def record_origins(self, origins: Mapping[str, str]) -> Self:
        """Record the place that each setting came from, and return the settings."""
        self._origins = {name: origin for name, origin in origins.items() if name in type(self).model_fields}
        return self

    assistant_name: Annotated[str, AfterValidator(_plain_name)] = Field(
        DEFAULT_NAME, max_length=40, description="What the assistant is called: `@Andy`."
    )
    max_concurrent_containers: int = Field(
        5, ge=1, le=1000, description="Containers that live at once, idle ones counted, on all machines."
    )
    max_containers_per_node: int = Field(
        0,
        ge=0,
        le=100,
        description="Containers on one machine of a swarm without a label `andy.slots`; 0: all.",
    )
    andy_foresight: int = Field(
        2,
        ge=0,
        le=20,
        description="Containers that may wait booted before anybody asks, and may still end while others"
        " start; each takes some 130 MiB; 0 is none.",
    )
    idle_timeout: int = Field(
        1_800_000, ge=1_000, description="Milliseconds after the last answer until an idle container closes."
    )
    container_timeout: int = Field(
        1_800_000,
        ge=1_000,
        description="Milliseconds a turn may take, and after which a container is replaced.",
    )
    andy_turn_tokens: int = Field(
        32_000,
        ge=0,
        description="Tokens a model may write in a turn before it is stopped; 0 is no limit.",
    )
    andy_max_output_tokens: int = Field(
        0,
        ge=0,
        le=128_000,
        description="Tokens that one call of the model may write, its thinking included; 0 leaves it to the"
        " Claude CLI.",
    )
    tz: Annotated[str, AfterValidator(known_zone)] = Field(
        default_factory=zone_of_this_machine,
        description="The time zone of prompts, reminders and schedules.",
    )
    andy_runtime: Literal["auto", "docker", "process", "swarm"] = Field(
        "auto",
        description="Where agents run: `docker`; `swarm`, on several machines; `process` isolates nothing.",
    )
    andy_agent: Literal["auto", "claude", "offline"] = Field(
        "auto", description="Who answers: `claude` with a credential, `offline` without a model."
    )
    andy_model: str | None = Field(
        None,
        description="The model, as the Claude CLI names it, or as `SERVICE/MODEL`, see `andy models list`.",
    )
    andy_first_byte_seconds: int = Field(
        0,
        ge=0,
        le=7_200,
        description="Seconds that the model service may take to begin an answer before it is asked again;"
        " 0: 90 for Anthropic's own, 600 for any other, such as a model on this machine.",
    )
    andy_port: int = Field(
        8700,
        ge=0,
        le=65535,
        description="The port of the console and the HTTP API on 127.0.0.1; 0 picks one.",
    )
    andy_web_origin: Annotated[str | None, AfterValidator(_web_origin)] = Field(
        None,
        description="Where browsers reach the console through a reverse proxy: `https://andy.example.org`.",
    )
    andy_image: str = Field("andy-agent:latest", min_length=1, description="The agent image.")
    andy_channels: Annotated[str, AfterValidator(_channel_names)] = Field(
        "whatsapp",
        description="The messengers that are switched on, see `andy channels list`; or `none`.",
    )
    andy_resend_unknown: Annotated[str, AfterValidator(_channel_names)] = Field(
        "none",
        description="The messengers, such as `telegram`, on which a message is sent again when the answer to"
        " its sending was lost, though it may then be there twice; or `none`, which lists it in"
        " `andy outbox list`.",
    )
    assistant_has_own_number: bool = Field(
        default=False,
        description="Whether the WhatsApp account is the assistant's alone: on yours it signs its messages.",
    )
    andy_attachment_mb: int = Field(
        25, ge=0, le=100, description="How large a file from or to a chat may be, in MB; 0 takes none."
    )
    andy_voice_model: str = Field(
        "base",
        pattern=r"^(|[A-Za-z0-9][A-Za-z0-9._-]{0,63})$",
        description="The model that writes down voice notes, see `andy voice install`; empty: none.",
    )
    andy_speech_command: Annotated[str, AfterValidator(_command_line)] = Field(
        "",
        max_length=2_000,
        description="The program that reads replies aloud, for groups with `speech`: text on its stdin, sound"
        " on its stdout or in `{file}`. Empty: none.",
    )
    andy_prices: Annotated[
        dict[Annotated[str, Field(min_length=1)], ModelPrice], BeforeValidator(_from_json)
    ] = Field(
        default_factory=dict,
        description="What models cost, by name: dollars a million tokens. Goes before the list prices.",
    )
    andy_web_search: Annotated[SearchService, BeforeValidator(service_name_of)] = Field(
        SearchService.ANTHROPIC,
        description="Who searches the web for agents: `anthropic` (the model service), `searxng`, `brave`"
        " or `off`; a group may differ.",
    )
    andy_searxng_url: Annotated[str, AfterValidator(_search_address)] = Field(
        "",
        max_length=500,
        description="The address of your SearXNG, such as `http://127.0.0.1:8888`. Its `search.formats` needs"
        " `json`.",
    )
    andy_search_price: float = Field(
        0.01,
        ge=0,
        le=100,
        description="What one search costs at Anthropic or Brave, in dollars, for budgets in money.",
    )
    andy_retention: Annotated[
        dict[str, Annotated[int, Field(ge=0, le=36_500)]],
        BeforeValidator(_from_json),
        AfterValidator(_with_default_days),
    ] = Field(
        default_factory=lambda: RETENTION_DAYS,
        description="Days that ended rows stay in a table before they are archived; 0 is for ever.",
    )
    andy_context_summary: Literal["extractive", "model"] = Field(
        "extractive",
        description="How old messages are summed up: `extractive` selects sentences, `model` writes.",
    )
    andy_context_model: str = Field(
        "claude-haiku-4-5",
        min_length=1,
        description="The model that writes summaries; a cheap one is enough.",
    )
    andy_log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="How much is logged; never the text of a message."
    )
    agents_worker_enabled: bool = Field(
        default=True, description="Whether dashboards are updated automatically at all."
    )
    agents_worker_use_llm: bool = Field(default=True, description="Whether a model judges what rules cannot.")
    agents_worker_fallback_to_rules: bool = Field(
        default=True,
        description="Whether rules update dashboards, also when the model fails or there is none.",
    )
    agents_worker_model: str = Field("", description="The worker's model; empty: the group's own.")
    heartbeat_interval_s: int = Field(
        1800, ge=1, le=86_400, description="Seconds between two updates of a dashboard by the rules."
    )
    notify_slots: Annotated[str, AfterValidator(_times_of_day)] = Field(
        "09:00,18:00", description="Times of day for notifications that have no time of their own."
    )
    notify_quiet_start: int = Field(
        23, ge=0, le=23, description="The hour from which only urgent notifications are sent."
    )
    notify_quiet_end: int = Field(
        8, ge=0, le=23, description="The hour at which that ends; the same hour as the start: never."
    )
    notify_daily_limit: int = Field(
        10,
        ge=0,
        le=1_000,
        description="Automatic notifications to a group in a day, urgent ones not counted; 0: no limit.",
    )
    notify_cap_per_task: int = Field(
        3, ge=1, le=100, description="Notifications of one task that may be pending at a time."
    )

    @property
    def zone(self) -> ZoneInfo:
        """The time zone that `tz` names."""
        return ZoneInfo(self.tz)

    @property
    def channels(self) -> tuple[str, ...]:
        """The names in `andy_channels`, in their order."""
        return tuple(filter(None, self.andy_channels.split(",")))

    @property
    def resends(self) -> frozenset[str]:
        """The channels on which a message is sent again if nobody knows whether it arrived."""
        return frozenset(filter(None, self.andy_resend_unknown.split(",")))

    @property
    def slots(self) -> tuple[time, ...]:
        """The times of day of `notify_slots`, earliest first."""
        return tuple(sorted(time.fromisoformat(part) for part in self.notify_slots.split(",")))

    def warnings(self) -> list[str]:
        """Return a warning if the dashboard worker is on, but its model and its rules are both off."""
        if self.agents_worker_enabled and not (
            self.agents_worker_use_llm or self.agents_worker_fallback_to_rules
        ):
            text = (
                "AGENTS_WORKER_USE_LLM and AGENTS_WORKER_FALLBACK_TO_RULES are both off: nothing keeps"
                " dashboards up. Say AGENTS_WORKER_ENABLED=false if that is meant."
            )
            return [text]
        return []


def load(home: Path, environment: Mapping[str, str] = os.environ, **overrides: Any) -> Settings:
    """Return the settings of a home: of its files, the environment, and `overrides` of the command line.

    Raises:
        SettingError: one line with the place, the name and the fix.
    """
    sources = read_sources(home, environment, **overrides)
    for source in sources:
        _check_names(source)
    values = {key: value for key, value in merged(sources).items() if key in Settings.model_fields}
    try:
        settings = Settings(**values)
    except ValidationError as error:
        origin = {key.lower(): source.name for source in sources for key in source.values}
        raise _explained(error, origin) from error
    # A file is recorded by its name alone, such as `.env`, the other places by their kind.
    return settings.record_origins(
        {
            key.lower(): Path(source.name).name if source.kind in ("toml", "dotenv") else source.kind
            for source in sources
            for key in source.values
        }
    )


def changed_since(
    running: Settings, home: Path, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the settings that the next start would read differently than the `running` ones.

    The keys are their names, the values the places that set them; an empty place is the default. Settings
    from the command line stay. The result is empty if a file cannot be read, which `andy doctor` reports.
    """
    later = as_next_start(running, home, environment)
    return {
        name: later.origins.get(name, "")
        for name in type(running).model_fields
        if getattr(later, name) != getattr(running, name)
    }


def as_next_start(running: Settings, home: Path, environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings that the next start would read, or the running ones if it could not read them."""
    from_command_line = {
        name: getattr(running, name) for name, origin in running.origins.items() if origin == COMMAND_LINE
    }
    try:
        return load(home, environment, **from_command_line)
    except SettingError:
        return running


NO_SETTINGS = (HOME_KEY, "ANDY_VOICE", "ANDY_LAYERS")
"""Names that begin as settings do and are none: the home, and what Compose builds images with."""


def _check_names(source: SettingSource) -> None:
    """Refuse a name that is no setting but was probably meant as one. Raises `SettingError`.

    In `andy.toml` and on the command line, that is every unknown name. `.env` also contains keys of model
    services, so there it is a name that begins with `ANDY_` or is nearly one of Andy's; the environment
    contains other programs' names, so there it is only one that begins with `ANDY_`.
    """
    for key in source.entries:
        # `NO_SETTINGS` are Andy's own names that are no settings, such as `ANDY_HOME`.
        if key.lower() in Settings.model_fields or (source.kind != "toml" and key in NO_SETTINGS):
            continue
        is_ours = source.kind in ("toml", "command line") or key.startswith("ANDY_")
        if is_ours or (source.kind == "dotenv" and _meant_by(key)):
            raise _unknown(key.upper() if source.kind == "command line" else key, source.name)


def _unknown(key: str, where: str) -> SettingError:
    """Return the error about a key that is no setting; its text names a similar one, or else all settings.

    `where` is the place that has the key.
    """
    meant = _meant_by(key)
    suggestion = f"Did you mean {meant}?" if meant else f"Known: {', '.join(known_names())}."
    return SettingError(f"{where}: '{key}' is no setting. {suggestion}")


def _meant_by(key: str) -> str | None:
    """Return the setting whose name is nearly the same as `key`; None if there is none."""
    import difflib

    return next(iter(difflib.get_close_matches(key.upper(), known_names(), n=1, cutoff=0.85)), None)


def known_names() -> list[str]:
    """Return the names of all settings in upper case, sorted."""
    return sorted(name.upper() for name in Settings.model_fields)


def _explained(error: ValidationError, origin: Mapping[str, str]) -> SettingError:
    """Return the first error of pydantic as an error of Andy's, in one sentence.

    `origin` maps each setting to the place that set it.
    """
    first = error.errors(include_url=False, include_context=False)[0]
    key, *parts = (str(part) for part in first["loc"] or ("?",))
    reason = first["msg"].removeprefix("Value error, ")
    return SettingError(
        f"{origin.get(key, '?')}: {'.'.join([key.upper(), *parts])}: {reason} (it is {first['input']!r})."
    )
