"""The credential of the model service: read on the host, never changed there, never shown."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.domain.errors import SettingError

DEFAULT_UPSTREAM = "https://api.anthropic.com"
UPSTREAM_SETTING = "ANTHROPIC_BASE_URL"
# A header can carry nothing else, and a library that refuses one quotes it in its error.
_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_OAUTH_PREFIX = "sk-ant-oat"
_PREFIXES = {_OAUTH_PREFIX: "CLAUDE_CODE_OAUTH_TOKEN", "sk-ant-": "ANTHROPIC_API_KEY"}


class CredentialKind(StrEnum):
    """How a credential is presented."""

    API_KEY = "api_key"
    """As `x-api-key`."""
    OAUTH = "oauth"
    """As a bearer token of a subscription, which the API takes under its OAuth beta."""
    BEARER = "bearer"
    """As a bearer token of a gateway."""


_SETTINGS = {
    "ANTHROPIC_API_KEY": CredentialKind.API_KEY,
    "CLAUDE_CODE_OAUTH_TOKEN": CredentialKind.OAUTH,
    "ANTHROPIC_AUTH_TOKEN": CredentialKind.BEARER,
}


SETTINGS = tuple(_SETTINGS)
"""The names a credential has, the first that is set counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A key or token. Its text shows in no repr."""

    kind: CredentialKind
    secret: str = field(repr=False)
    setting: str
    """The name it was read under."""


@dataclass(frozen=True, slots=True)
class _Stamp:
    """What tells one state of a file from another."""

    modified_ns: int
    size: int
    inode: int


@dataclass(frozen=True, slots=True)
class _DotEnv:
    stamp: _Stamp | None
    values: Mapping[str, str] = field(default_factory=dict, repr=False)


def read_credential(text: str) -> Credential:
    """Read what a person pastes: a key, a token, or either as `NAME=…`.

    Raises:
        SettingError: it is none.
    """
    given = text.strip()
    setting, equals, secret = given.partition("=")
    if not equals or setting not in _SETTINGS:
        names = [name for prefix, name in _PREFIXES.items() if given.startswith(prefix)]
        if not names:
            known = ", ".join(f"{name}=…" for name in _SETTINGS)
            raise SettingError(
                "This is neither an API key (sk-ant-api…) nor a token (sk-ant-oat…). What is neither"
                f" can be given by its name: {known}."
            )
        setting, secret = names[0], given
    if not secret:
        raise SettingError(f"{setting} is empty.")
    return Credential(
        kind=_SETTINGS[setting], secret=_checked_secret(setting, secret.strip()), setting=setting
    )


class CredentialSource:
    """Finds the credential: the environment first, then `home/.env`, read again when that file changes.

    Blocks for one `stat` a call, and for reading the file when it is not `is_fresh`. Safe in any thread.
    """

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self._path = home / ".env"
        self._environment = environment
        self._read = _DotEnv(stamp=None)

    @property
    def is_fresh(self) -> bool:
        """Whether the file is as it was read: then nothing blocks but one `stat`."""
        try:
            return _stamp(self._path) == self._read.stamp
        except OSError:
            return False

    def current(self) -> Credential | None:
        """Return the credential to use now, or None when none is configured.

        Raises:
            SettingError: it holds what no key holds, or `.env` cannot be read.
        """
        return _credential(self._environment) or _credential(self.dotenv())

    def upstream(self) -> str:
        """Return the base URL of the model service, without a slash at its end.

        Raises:
            SettingError: it is no http(s) URL, or `.env` cannot be read.
        """
        own = self._environment.get(UPSTREAM_SETTING, "").strip()
        return _checked_url(own or self.dotenv().get(UPSTREAM_SETTING, "").strip() or DEFAULT_UPSTREAM)

    @property
    def environment(self) -> Mapping[str, str]:
        """What is set for this process."""
        return self._environment

    def dotenv(self) -> Mapping[str, str]:
        """Return what `.env` sets; the very same mapping as long as the file has not changed.

        Raises:
            SettingError: it cannot be read.
        """
        try:
            stamp = _stamp(self._path)
            if stamp != self._read.stamp:
                self._read = _DotEnv(stamp, _parse(self._path) if stamp else {})
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(f"{self._path} cannot be read: make it a UTF-8 file of this user.") from error
        return self._read.values


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - one system call
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise OSError("not a regular file")
    return _Stamp(found.st_mtime_ns, found.st_size, found.st_ino)


def _parse(path: Path) -> dict[str, str]:
    from dotenv import dotenv_values

    values = dotenv_values(path, interpolate=False, encoding="utf-8")
    return {name: value for name, value in values.items() if value is not None}


def _credential(values: Mapping[str, str]) -> Credential | None:
    for setting, kind in _SETTINGS.items():
        secret = values.get(setting, "").strip()
        if secret:
            return Credential(
                kind=_kind(kind, secret), secret=_checked_secret(setting, secret), setting=setting
            )
    return None


def _kind(kind: CredentialKind, secret: str) -> CredentialKind:
    is_oauth = kind is CredentialKind.BEARER and secret.startswith(_OAUTH_PREFIX)
    return CredentialKind.OAUTH if is_oauth else kind


def _checked_secret(setting: str, secret: str) -> str:
    if not _PRINTABLE.fullmatch(secret):
        raise SettingError(f"{setting} holds a space or a character that no key has: copy it again.")
    return secret


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or not _PRINTABLE.fullmatch(url) or parts.query or parts.fragment:
        raise SettingError(f"{UPSTREAM_SETTING} is no URL of a service: write https://host[:port][/path].")
    if "@" in parts.netloc:
        raise SettingError(f"{UPSTREAM_SETTING} holds a password: put it in ANTHROPIC_AUTH_TOKEN instead.")
    return url.rstrip("/")
