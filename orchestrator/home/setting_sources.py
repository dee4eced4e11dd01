"""Reads the settings: `andy.toml` < `.env` < the environment < the command line. Nothing is validated here.

It loads quickly, so commands that need only the time zone use it; `settings.py` validates.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from orchestrator.base.installation import COMPOSE_HOME
from orchestrator.domain.errors import SettingError

TABLES = ("agents", "heartbeat", "notify")
"""Tables that `andy.toml` may have: `[agents.worker] enabled` is the setting `agents_worker_enabled`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingSource:
    """The settings of one place. Names are as written there, in any case, and may be unknown."""

    kind: Literal["toml", "dotenv", "environment", "command line"]
    name: str
    """The name of the place in error messages."""
    entries: Mapping[str, Any]
    """Each name with its value, as written there."""

    @property
    def values(self) -> dict[str, Any]:
        """The values that count: a name with an empty value in `.env` or the environment is ignored."""
        if self.kind == "toml":
            return dict(self.entries)
        return {key: value for key, value in self.entries.items() if value is not None and value != ""}


DEFAULT_NAME = "Andy"
"""The assistant's name, unless the owner sets `ASSISTANT_NAME`."""
COMMAND_LINE: Literal["command line"] = "command line"
"""Kind of the command line's settings, which a later start of the same host uses again."""


def read_sources(
    home: Path, environment: Mapping[str, str] = os.environ, **overrides: Any
) -> tuple[SettingSource, ...]:
    """Return the settings of each place, unchecked, the weakest place first.

    The places are `andy.toml` and `.env` in `home`, the environment, and the command line (`overrides`).

    Raises:
        SettingError: a file cannot be read; the text names it.
    """
    toml, dotenv = home / "andy.toml", home / ".env"
    return (
        SettingSource(kind="toml", name=str(toml), entries=_from_toml(toml)),
        SettingSource(kind="dotenv", name=str(dotenv), entries=_from_dotenv(dotenv)),
        SettingSource(kind="environment", name="the environment", entries=environment),
        SettingSource(kind=COMMAND_LINE, name="the command line", entries=overrides),
    )


def merged(sources: tuple[SettingSource, ...]) -> dict[str, Any]:
    """Return each setting by its lower-case name; of several places, the last one that sets it counts."""
    return {key.lower(): value for source in sources for key, value in source.values.items()}


def zone(home: Path, environment: Mapping[str, str] = os.environ) -> ZoneInfo:
    """Return the owner's time zone: that of the setting `TZ`, else that of this machine.

    Only this setting is checked, which takes a hundredth of the time that loading all settings takes.

    Raises:
        SettingError: it is no time zone, or a file cannot be read.
    """
    # Without pydantic, since loading all settings takes longer than a command that prints one time.
    name = merged(read_sources(home, environment)).get("tz")
    if name is None:
        return ZoneInfo(zone_of_this_machine())
    try:
        return ZoneInfo(known_zone(name))
    except (TypeError, ValueError):
        from orchestrator.home import settings  # its error names the place and the fix

        return settings.load(home, environment).zone


def assistant_name(home: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Return what the assistant is called, for a command that shows it; nothing is validated.

    Raises:
        SettingError: a file of settings cannot be read.
    """
    # Read without pydantic, whose import would take a command several times as long as the rest.
    name = merged(read_sources(home, environment)).get("assistant_name")
    return name.strip() if isinstance(name, str) else DEFAULT_NAME


def known_zone(name: str) -> str:
    """Return the name of a time zone unchanged. Raises `ValueError` when there is no such zone."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError("not a time zone: use a name such as Europe/Berlin or Asia/Seoul") from error
    return name


def zone_of_this_machine() -> str:
    """Return the name of this machine's time zone, `UTC` if that is not known."""
    from tzlocal import get_localzone_name

    try:
        return known_zone(get_localzone_name())
    except (ValueError, OSError, LookupError):
        return "UTC"


def unreadable(path: Path, error: OSError | ValueError) -> SettingError:
    """Return the error that says why a settings file cannot be read, and how to fix that.

    For a file that may not be read, the fix is a command that gives it to the user of this process.
    """
    if not isinstance(error, PermissionError):
        return SettingError(f"{path} cannot be read: {error}. Correct it as UTF-8 text, or remove it.")
    if os.environ.get("ANDY_HOME") == COMPOSE_HOME:  # the path is the container's, not the host's
        instruction, file_name = "on the host, beside docker-compose.yml", path.name
    else:
        instruction, file_name = "type", shlex.quote(str(path))
    command = f"sudo chown {os.geteuid()} {file_name} && sudo chmod 600 {file_name}"
    return SettingError(f"{path} cannot be read, for it is another user's: {instruction}: {command}")


def _from_toml(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML file; none if there is no file. Raises `SettingError`."""
    try:
        if not path.exists():
            return {}
        import tomllib

        return _flat(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the settings of a TOML file with one level of names.

    A key in one of `TABLES` becomes `table_key`, as `agents_worker_enabled`; all others stay. `prefix` is the
    beginning of the names in an inner table.
    """
    flat: dict[str, Any] = {}
    for key, value in table.items():
        # A `prefix` means that `table` is inside of one of `TABLES`: its inner tables are made flat, too.
        is_table = isinstance(value, dict) and (prefix or key.lower() in TABLES)
        flat |= _flat(value, f"{prefix}{key}_") if is_table else {f"{prefix}{key}": value}
    return flat


def _from_dotenv(path: Path) -> dict[str, str | None]:
    """Return the settings in a `.env` file; none if there is no file. A name without `=` has the value None.

    Raises `SettingError`.
    """
    try:
        if not path.exists():
            return {}
        from dotenv import dotenv_values

        # Values are taken as they are: a `$` may be part of an API key.
        return dotenv_values(path, interpolate=False)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
