"""Settings: `andy.toml` < `.env` < environment, each key by its one name."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from orchestrator.errors import SettingError


def known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError("not a time zone: use a name such as Europe/Berlin or Asia/Seoul") from error
    return name


def _zone_of_this_machine() -> str:
    from tzlocal import get_localzone_name

    try:
        return known_zone(get_localzone_name())
    except (ValueError, OSError, LookupError):
        return "UTC"


def _sayable(name: str) -> str:
    if not name.strip() or any(character in name for character in "\n\r<>@"):
        raise ValueError("use a plain name, without line breaks, '<', '>' and '@'")
    return name.strip()


UsdPerMillion = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class ModelPrice(BaseModel):
    """Dollars a million tokens; what is left out of the cache follows `input` as the list prices do."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: UsdPerMillion
    output: UsdPerMillion
    cache_read: UsdPerMillion | None = None
    cache_write: UsdPerMillion | None = None
    cache_write_hour: UsdPerMillion | None = None


def _from_json(value: Any) -> Any:
    """A table of a file, or its JSON where there can be no tables."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError('use JSON such as {"model": {"input": 3, "output": 15}}') from error


class Settings(BaseSettings):
    """What the owner may set. Field names in lower case, the same names in upper case in files."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, case_sensitive=False, env_ignore_empty=True
    )

    assistant_name: Annotated[str, AfterValidator(_sayable)] = Field(
        "Andy", max_length=40, description="What the assistant is called: `@Andy`."
    )
    max_concurrent_containers: int = Field(
        5, ge=1, le=100, description="Containers that live at once, idle ones counted."
    )
    idle_timeout: int = Field(
        1_800_000, ge=1_000, description="Milliseconds after the last answer until an idle container closes."
    )
    container_timeout: int = Field(
        1_800_000,
        ge=1_000,
        description="Milliseconds a turn may take, and after which a container is replaced.",
    )
    tz: Annotated[str, AfterValidator(known_zone)] = Field(
        default_factory=_zone_of_this_machine,
        description="The time zone of prompts, reminders and schedules.",
    )
    andy_runtime: Literal["auto", "docker", "process"] = Field(
        "auto", description="Where agents run: `docker`, or `process`, which isolates nothing."
    )
    andy_agent: Literal["auto", "claude", "offline"] = Field(
        "auto", description="Who answers: `claude` with a credential, `offline` without a model."
    )
    andy_model: str | None = Field(None, description="The model, as the Claude CLI names it.")
    andy_port: int = Field(
        8700, ge=0, le=65535, description="The port of the HTTP door on 127.0.0.1; 0 picks one."
    )
    andy_image: str = Field("andy-agent:latest", min_length=1, description="The agent image.")
    assistant_has_own_number: bool = Field(
        default=False,
        description="Whether the WhatsApp account is the assistant's alone: on yours it signs its messages.",
    )
    andy_attachment_mb: int = Field(
        25, ge=0, le=100, description="How large a file from or to a chat may be, in MB; 0 takes none."
    )
    andy_prices: Annotated[
        dict[Annotated[str, Field(min_length=1)], ModelPrice], BeforeValidator(_from_json)
    ] = Field(
        default_factory=dict,
        description="What models cost, by name: dollars a million tokens. Goes before the list prices.",
    )
    andy_log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="How much is logged; never the text of a message."
    )

    @property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.tz)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take what `load` merged, and nothing besides: it knows where each value came from."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)


HOME_KEY = "ANDY_HOME"


def home_directory(given: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Where `groups/ data/ store/` are: the argument, `ANDY_HOME`, else the current directory."""
    return (given or Path(environment.get(HOME_KEY) or ".")).expanduser().resolve()


def load(home: Path, environment: Mapping[str, str] = os.environ, **overrides: Any) -> Settings:
    """Read the settings of a home.

    Raises:
        SettingError: one line that names the file, the key and the mend.
    """
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    sources = (
        (str(home / "andy.toml"), _from_toml(home / "andy.toml")),
        (str(home / ".env"), _from_dotenv(home / ".env")),
        ("the environment", _from_environment(environment)),
        ("the command line", {key: value for key, value in overrides.items() if value is not None}),
    )
    for name, found in sources:
        for key, value in found.items():
            values[key.lower()] = value
            origin[key.lower()] = name
    try:
        return Settings(**values)
    except ValidationError as error:
        raise _explained(error, origin) from error


def _from_toml(path: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be read: {error}. Mend or remove it.") from error
    for key in found:
        if key.lower() not in Settings.model_fields:
            raise SettingError(f"{path}: '{key}' is no setting. Known: {', '.join(known_names())}.")
    return found


def _from_dotenv(path: Path) -> dict[str, Any]:
    from dotenv import dotenv_values

    try:
        return _ours(dotenv_values(path, interpolate=False), str(path))
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be read: {error}. Mend or remove it.") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    return _ours(environment, "the environment")


def _ours(found: Mapping[str, str | None], where: str) -> dict[str, Any]:
    """Those of our names; an `ANDY_…` that is none of them is a typing error, not somebody else's."""
    ours: dict[str, Any] = {}
    for key, value in found.items():
        if key.lower() in Settings.model_fields:
            if value:
                ours[key] = value
        elif key.startswith("ANDY_") and key != HOME_KEY:
            raise SettingError(f"{where}: '{key}' is no setting. Known: {', '.join(known_names())}.")
    return ours


def known_names() -> list[str]:
    return sorted(name.upper() for name in Settings.model_fields)


def _explained(error: ValidationError, origin: Mapping[str, str]) -> SettingError:
    first = error.errors(include_url=False, include_context=False)[0]
    key, *parts = (str(part) for part in first["loc"] or ("?",))
    reason = first["msg"].removeprefix("Value error, ")
    return SettingError(
        f"{origin.get(key, '?')}: {'.'.join([key.upper(), *parts])}: {reason} (it is {first['input']!r})."
    )
