"""The credential of the model service, and all secrets of this host: read here, never shown.

Values stay in memory. The code that removes secrets from stored data gets each value in every form in which
it may be quoted: plain, inside JSON or a URL, and in base64 at any offset.
"""

from __future__ import annotations

import base64
import html
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypedDict
from urllib.parse import quote, quote_plus, unquote, urlsplit

from orchestrator.domain import failures
from orchestrator.domain.errors import SettingError
from orchestrator.domain.model_services import PRESETS, ModelService
from orchestrator.home import setting_sources
from orchestrator.store.runs.model_refusals import ModelRefusal

DEFAULT_UPSTREAM = "https://api.anthropic.com"
UPSTREAM_SETTING = "ANTHROPIC_BASE_URL"
"""The setting with the base URL of the model service."""
# A header can carry nothing else, and a library that refuses a value quotes it in its error.
_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]+")
_OAUTH_PREFIX = "sk-ant-oat"
"""The beginning of a subscription's token."""
_PREFIXES = {_OAUTH_PREFIX: "CLAUDE_CODE_OAUTH_TOKEN", "sk-ant-": "ANTHROPIC_API_KEY"}


class CredentialKind(StrEnum):
    """The way in which a credential is sent to the model service."""

    API_KEY = "api_key"
    """The credential is sent as `x-api-key`."""
    OAUTH = "oauth"
    """The credential is the bearer token of a subscription, which the API accepts under its OAuth beta."""
    BEARER = "bearer"
    """The credential is the bearer token of a gateway."""
    NONE = "none"
    """No credential is sent: a service of the owner's own may want no key."""


_SETTINGS = {
    "ANTHROPIC_API_KEY": CredentialKind.API_KEY,
    "CLAUDE_CODE_OAUTH_TOKEN": CredentialKind.OAUTH,
    "ANTHROPIC_AUTH_TOKEN": CredentialKind.BEARER,
}


SETTINGS = tuple(_SETTINGS)
"""The settings that can contain the credential; the first that is set counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A key or token. Its text is not in its repr."""

    kind: CredentialKind
    secret: str = field(repr=False)
    setting: str
    """The name under which it was read."""


MAX_SECRET_BYTES = 64 * 1024
"""Bytes of a file with a secret; a longer one is refused."""
NO_KEY_NEEDED = Credential(kind=CredentialKind.NONE, secret="", setting="no key")


@dataclass(frozen=True, slots=True)
class _Stamp:
    """The attributes of a file that reveal a change."""

    modified_ns: int
    size: int
    inode: int


@dataclass(frozen=True, slots=True)
class _DotEnv:
    """The values of `.env` as last read, with the file's attributes; `stamp` is None for a missing file."""

    stamp: _Stamp | None
    values: Mapping[str, str] = field(default_factory=dict, repr=False)


def read_credential(text: str) -> Credential:
    """Return the credential in a pasted text: a key, a token, or either as `NAME=…`.

    Raises:
        SettingError: the text is no credential.
    """
    pasted = text.strip()
    setting, equals, secret = pasted.partition("=")
    # Without a known name before it, an `=` may be a part of the secret.
    if not equals or setting not in _SETTINGS:
        matching_names = [name for prefix, name in _PREFIXES.items() if pasted.startswith(prefix)]
        if not matching_names:
            known_names = ", ".join(f"{name}=…" for name in _SETTINGS)
            raise SettingError(
                "This is neither an API key (sk-ant-api…) nor a token (sk-ant-oat…). What is neither"
                f" can be given by its name: {known_names}."
            )
        setting = matching_names[0]  # `_PREFIXES` has the longest prefix first
        secret = pasted
    if not secret:
        raise SettingError(f"{setting} is empty.")
    return Credential(kind=_SETTINGS[setting], secret=_check_secret(setting, secret.strip()), setting=setting)


class CredentialSource:
    """Finds the credential: the environment first, then `home/.env`, read again when that file changes.

    Blocks for one `stat` per call, and for reading the file when it is not `is_fresh`. Safe in any thread.
    """

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        """Read the files that variables `NAME_FILE` of the environment name.

        `home` is the folder with `.env`. An error in a file is raised later, by `current`.
        """
        self._path = home / ".env"
        self._environment = environment
        self._problem: SettingError | None = None
        """The error of a secret's file, which is raised when a credential is requested."""
        try:
            secrets = secrets_of_files(environment)
        except SettingError as error:
            self._problem = error
            secrets = secrets_of_files(environment, is_strict=False)
        if secrets:
            self._environment = {**environment, **secrets}
        self._read = _DotEnv(stamp=None)

    @property
    def is_fresh(self) -> bool:
        """Whether `.env` is unchanged since it was last read: then only one `stat` blocks in each call."""
        try:
            return _stamp(self._path) == self._read.stamp
        except OSError:
            return False

    def current(self) -> Credential | None:
        """Return the present credential, or None when none is configured.

        Raises:
            SettingError: the credential has characters that no key has, or `.env` cannot be read. Or at the
                start, a file named by a variable such as `ANTHROPIC_API_KEY_FILE` could not be read.
        """
        if self._problem is not None:
            raise self._problem
        return _credential(self._environment) or _credential(self.dotenv())

    def upstream(self) -> str:
        """Return the base URL of the model service, without a slash at its end.

        Raises:
            SettingError: the setting is no http(s) URL, or `.env` cannot be read.
        """
        from_environment = self._environment.get(UPSTREAM_SETTING, "").strip()
        if from_environment:
            return _check_url(from_environment)
        return _check_url(self.dotenv().get(UPSTREAM_SETTING, "").strip() or DEFAULT_UPSTREAM)

    def has_gateway(self) -> bool:
        """Return whether `ANTHROPIC_BASE_URL` names another service than Anthropic's own.

        An unusable address counts as another service: `upstream` reports the fault.
        """
        try:
            return urlsplit(self.upstream()).hostname != urlsplit(DEFAULT_UPSTREAM).hostname
        except SettingError:
            return True

    def value(self, name: str) -> str | None:
        """Return the value of a setting in the environment or, if it is not there, in `.env`.

        Return None if it is not set. Raises `SettingError` if it has characters that no header can carry, or
        `.env` cannot be read.
        """
        value = (self._environment.get(name) or self.dotenv().get(name, "")).strip()
        if value and not _HEADER_VALUE.fullmatch(value):
            raise SettingError(f"{name} holds a character that cannot be sent: copy it again.")
        return value or None

    def is_usable(self, name: str) -> bool:
        """Return whether `value` would return a value. Raises `SettingError` if `.env` cannot be read."""
        value = (self._environment.get(name) or self.dotenv().get(name, "")).strip()
        return _HEADER_VALUE.fullmatch(value) is not None

    def credential_of(self, service: ModelService) -> Credential | None:
        """Return the credential of a model service that the owner added; None if its key is not set.

        Raises `SettingError` if the key has characters that no key has, or `.env` cannot be read.
        """
        if service.key_env is None:
            return NO_KEY_NEEDED
        secret = (self._environment.get(service.key_env) or self.dotenv().get(service.key_env, "")).strip()
        if not secret:
            return None
        # A service of no known kind gets its key as a bearer token.
        preset = PRESETS.get(service.kind)
        is_bearer = preset is None or preset.is_bearer
        return Credential(
            kind=CredentialKind.BEARER if is_bearer else CredentialKind.API_KEY,
            secret=_check_secret(service.key_env, secret),
            setting=service.key_env,
        )

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables of this process."""
        return self._environment

    def dotenv(self) -> Mapping[str, str]:
        """Return the values of `.env`; the same mapping object as long as the file has not changed.

        Raises:
            SettingError: the file cannot be read.
        """
        try:
            stamp = _stamp(self._path)
            if stamp != self._read.stamp:
                self._read = _DotEnv(stamp, _parse(self._path) if stamp else {})
        except (OSError, UnicodeDecodeError) as error:
            raise setting_sources.unreadable(self._path, error) from error
        return self._read.values

    def readable_dotenv(self) -> Mapping[str, str]:
        """Return the values of `.env`, for removing secrets from texts. Never raises.

        If the file has a fault or cannot be read, return the values that were read last, together with those
        that can be read now: a text may contain any of them.
        """
        with suppress(SettingError):
            return self.dotenv()
        readable: Mapping[str, str] = {}
        with suppress(OSError, UnicodeDecodeError):
            if _stamp(self._path) is not None:
                readable = _parse(self._path, is_strict=False)
        return {**self._read.values, **readable}


def _stamp(path: Path) -> _Stamp | None:
    """Return the attributes of a file that reveal a change; None if it does not exist. Raises `OSError`."""
    try:
        status = os.stat(path)  # noqa: PTH116 - one system call
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise OSError("not a regular file")
    return _Stamp(status.st_mtime_ns, status.st_size, status.st_ino)


def _parse(path: Path, *, is_strict: bool = True) -> dict[str, str]:
    """Return the values of `.env`, with the secrets of the files that its values `NAME_FILE` name. Blocks.

    With `is_strict`, an unreadable file of a model service's credential raises `SettingError`; otherwise it
    is skipped.
    """
    from dotenv import dotenv_values

    # A key may contain a dollar sign.
    values = dotenv_values(path, interpolate=False, encoding="utf-8")
    values_by_name = {name: value for name, value in values.items() if value is not None}
    return values_by_name | secrets_of_files(values_by_name, is_strict=is_strict)


def secrets_of_files(values: Mapping[str, str], *, is_strict: bool = True) -> dict[str, str]:
    """Return the secret `NAME` from each file that `NAME_FILE` names, as Docker mounts secrets.

    `values` are settings by their names. A `NAME` that has a value itself, or that is not the name of a
    secret, such as `SSL_CERT`, is left out. A file that cannot be read is skipped.

    Raises:
        SettingError: with `is_strict`, the file of a model service's credential cannot be read; the text
            names it.
    """
    secrets: dict[str, str] = {}
    for file_name, path in values.items():
        name = file_name.removesuffix("_FILE")
        # Skipped: names without this ending, empty paths, names with a value of their own or of no secret.
        if name == file_name or not path or values.get(name) or not is_secret_name(name):
            continue
        try:
            secrets[name] = _read_secret_file(Path(path))
        except (OSError, ValueError) as error:
            if is_strict and name in _SETTINGS:
                raise SettingError(
                    f"{file_name} names {path}, which cannot be read ({error}): correct it, or set {name}."
                ) from error
    return secrets


def _read_secret_file(path: Path) -> str:
    """Return the text of a small file, stripped.

    Raises `OSError` if it cannot be read, `ValueError` if it is too large or no UTF-8.
    """
    if not path.is_file():  # reading a pipe might never end
        raise OSError("it is no file")
    with path.open("rb") as file:
        content = file.read(MAX_SECRET_BYTES + 1)
    if len(content) > MAX_SECRET_BYTES:
        raise ValueError(f"it has more than {MAX_SECRET_BYTES} bytes")
    return content.decode().strip()


def _credential(values: Mapping[str, str]) -> Credential | None:
    """Return the first credential that is set among these values; None if none is."""
    for setting, kind in _SETTINGS.items():
        secret = values.get(setting, "").strip()
        if secret:
            return Credential(
                kind=_kind(kind, secret), secret=_check_secret(setting, secret), setting=setting
            )
    return None


def _kind(kind: CredentialKind, secret: str) -> CredentialKind:
    """Return how a secret is sent; `kind` is the way that belongs to the setting in which it was found."""
    # A subscription's token may be set as ANTHROPIC_AUTH_TOKEN, the setting for gateways. The API accepts it
    # only with the OAuth beta.
    is_oauth = kind is CredentialKind.BEARER and secret.startswith(_OAUTH_PREFIX)
    return CredentialKind.OAUTH if is_oauth else kind


def _check_secret(setting: str, secret: str) -> str:
    """Return a secret unchanged if it can be sent in a header.

    Raises `SettingError` otherwise, with the setting's name and without the secret.
    """
    if not _PRINTABLE.fullmatch(secret):
        raise SettingError(f"{setting} holds a space or a character that no key has: copy it again.")
    return secret


def _check_url(url: str) -> str:
    """Return the URL of a service without a slash at its end.

    Raises `SettingError` for a URL that is unusable, has a query, or contains a password.
    """
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


LEAST_CHARS = 8
"""Least characters of a secret: a shorter value would remove parts of words."""
ORDINARY_CHARS = 24
"""Letters that may still be ordinary words or names; a longer value of letters is no word."""
_SECRET_WORDS = frozenset(
    {"KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "PASSCODE", "PASS", "PAT"}
)
# One word is `Hello`, `hello` or `HELLO`, but not `HeLLo`; several are like `hello-big World`.
_WORD = r"(?:[^\W\d_][^\W\d_A-Z]*|[A-Z]+)"
_WORDS = re.compile(rf"{_WORD}(?:[ ._-]{_WORD})*")
_NUMBER = re.compile(r"[\d .:/_-]{1,16}")  # also a date, a time or a telephone number


class KnownSecrets:
    """Returns the forms of all secrets, the longest first. Safe in any thread.

    Blocks for one `stat`, and for reading `.env` while it is new, has changed or cannot be read.
    """

    def __init__(self, source: CredentialSource, *, own: Iterable[str] = ()) -> None:
        """`source` has the secrets of the environment and `.env`; `own` are those that the host created."""
        self._source = source
        self._own = tuple(own)
        self._cached_forms: tuple[Mapping[str, str] | None, tuple[str, ...]] = (None, ())
        """The values of `.env` from which the forms were made, and the forms."""

    def __call__(self) -> tuple[str, ...]:
        """Return the forms of all present secrets, the longest first.

        If `.env` or a file that it names cannot be read, these are the secrets that can be read, and those
        that were read last.
        """
        cached_dotenv, forms = self._cached_forms
        # The code that needs the key reports what cannot be read.
        dotenv = self._source.readable_dotenv()
        # Each call returns another mapping while a file cannot be read; the forms take long to make.
        if dotenv is not cached_dotenv and dotenv != cached_dotenv:
            values_by_name = [*dotenv.items(), *self._source.environment.items()]
            forms = forms_of([*self._own, *secret_values(values_by_name)])
            self._cached_forms = (dotenv, forms)
        return forms


def secret_values(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the values that are secret by their names, and the passwords in URLs under any name. Blocks.

    `pairs` are names with their values. Left out are paths of existing files, and values that occur in
    ordinary text: short ones, words and numbers.
    """
    for name, raw_value in pairs:
        value = raw_value.strip()
        # The value under a name such as `SSH_KEY` may be the path of a file, which is no secret itself.
        if is_secret_name(name) and not is_ordinary(value) and not _is_path(value):
            yield value
        yield from (password for password in _passwords_in(value) if not is_ordinary(password))


def is_ordinary(value: str) -> bool:
    """Return whether a value is too common to be removed from texts: short, words, or a number. Pure."""
    if len(value) < LEAST_CHARS or _NUMBER.fullmatch(value):
        return True
    return len(value) < ORDINARY_CHARS and _WORDS.fullmatch(value) is not None


def forms_of(values: Iterable[str]) -> tuple[str, ...]:
    """Return all forms in which the secrets `values` may be quoted in stored data, the longest first. Pure.

    Forms of fewer than `LEAST_CHARS` characters are left out.
    """
    forms = {form for value in values for form in _forms(value) if len(form) >= LEAST_CHARS}
    # The longest first: removing a shorter form that a longer one contains would leave the rest of that one.
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def is_secret_name(name: str) -> bool:
    """Return whether a setting's name says that its value is secret, by a part such as `KEY` or `TOKENS`."""
    return not _SECRET_WORDS.isdisjoint(part.removesuffix("S") for part in name.upper().split("_"))


def _is_path(value: str) -> bool:
    """Return whether a value is the path of something that exists. Blocks."""
    return os.path.exists(value)  # noqa: PTH110 - `Path.exists` raises for a text that no path can be


def _passwords_in(value: str) -> tuple[str, ...]:
    """Return the password in a URL, as written and decoded; nothing if the value is no URL with one."""
    try:
        password = urlsplit(value).password if "://" in value else None
    except ValueError:
        return ()
    return (password, unquote(password)) if password else ()


def _forms(value: str) -> Iterator[str]:
    """Yield the forms in which a secret may be quoted in stored data, some of them several times.

    Data from which secrets are removed is searched for all of these forms.
    """
    yield value
    yield " ".join(value.split())  # some texts have their line breaks and runs of spaces replaced
    # Inside a text of JSON, and inside JSON that is itself a text of JSON, as in a tool's result.
    in_json = (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
    for form in {*in_json, *json_escapes(value), *_all_escaped(value)}:
        yield form
        yield json.dumps(form)[1:-1]  # without its quotes
        yield json.dumps(form, ensure_ascii=False)[1:-1]
    yield from _html_forms(value)
    # Bytes of the environment that are no UTF-8 are lone surrogates in `value`.
    encoded_value = value.encode("utf-8", "surrogateescape")
    for escaped in (
        quote(encoded_value, safe=""),
        quote(encoded_value),
        quote_plus(encoded_value),
        quote(encoded_value, safe="!'()*"),
    ):
        yield escaped
        # Some programs write the digits of an escape in lower case.
        yield re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), escaped)
    for encoded in _base64_forms(encoded_value):
        yield encoded
        yield encoded.translate(str.maketrans("+/", "-_"))  # the alphabet for URLs


_ESCAPED_BY_SOME = (
    "<>&",
    "<>&\u2028\u2029",
    "<>&'",
    "<>&'+",
    "<>&'\"",
    "<>&'\"+",
    "<>&'\"+`",
    "<>&'\"+/",
    "+",
)
"""Sets of characters that JSON writers escape without need, for readers that take it for HTML."""
_NEVER_ESCAPED = re.compile(r"[A-Za-z0-9._~=-]*")


def json_escapes(value: str) -> Iterator[str]:
    """Yield the forms of a value inside JSON with unneeded escapes, as Go, .NET and PHP write it."""
    if _NEVER_ESCAPED.fullmatch(value):
        # All forms would be the value itself; making them takes a tenth of a second for some kilobytes.
        yield value
        return
    for escaped_characters in _ESCAPED_BY_SOME:
        for is_ascii in (True, False):
            escaped = "".join(
                f"\\u{ord(character):04x}"
                if character in escaped_characters
                else json.dumps(character, ensure_ascii=is_ascii)[1:-1]  # without its quotes
                for character in value
            )
            for form in (escaped, escaped.replace("/", "\\/")):
                yield form
                yield re.sub(r"\\u[0-9a-f]{4}", lambda match: "\\u" + match[0][2:].upper(), form)


def _all_escaped(value: str) -> Iterator[str]:
    """Yield the forms of a value inside JSON in which each character is an escape such as `\\u0041`."""
    # JSON escapes the units of UTF-16, which have four digits each.
    digits = value.encode("utf-16-be", "surrogatepass").hex()
    units = [digits[start : start + 4] for start in range(0, len(digits), 4)]
    yield "".join(f"\\u{unit}" for unit in units)
    yield "".join(f"\\u{unit.upper()}" for unit in units)


def _html_forms(value: str) -> Iterator[str]:
    """Yield the forms of a value inside HTML and XML, with each way of writing quotes.

    Some programs also escape plus signs and slashes, or all characters beyond ASCII.
    """
    plain = html.escape(value, quote=False)
    for double_quote in ('"', "&quot;", "&#34;", "&#x22;"):
        for single_quote in ("'", "&#x27;", "&#39;", "&#039;", "&apos;"):
            form = plain.replace('"', double_quote).replace("'", single_quote)
            yield form
            yield form.replace("+", "&#43;")
            yield form.replace("+", "&#x2B;").replace("/", "&#x2F;")
            yield form.encode("ascii", "xmlcharrefreplace").decode()


def _base64_forms(data: bytes) -> Iterator[str]:
    """Yield the base64 of the data alone, and the parts that it has in the base64 of a longer text.

    These parts depend only on the offset of the data in that text, modulo 3.
    """
    yield base64.b64encode(data).decode()
    for offset in range(3):
        # A character of base64 has 6 bits. Those that share bits with the neighbouring bytes differ, and are
        # left out: the start is rounded up, the end down.
        start, end = math.ceil(offset * 8 / 6), (offset + len(data)) * 8 // 6
        yield base64.b64encode(bytes(offset) + data).decode()[start:end]


class RefusalView(TypedDict):
    """A reason for which the model service refuses requests; `model` is None where it refuses all of them."""

    cause: str
    model: str | None
    since_ms: int
    text: str
    mend: str


class CredentialView(TypedDict):
    """A credential without its value; `accepted` is None until a model was asked."""

    present: bool
    setting: str | None
    problem: str | None
    accepted: bool | None
    accepted_ms: int | None
    refusals: list[RefusalView]


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialStatus:
    """Whether there is a credential, its name, its faults, and whether it is accepted. Never its value."""

    setting: str | None = None
    problem: str | None = None
    refusals: Sequence[ModelRefusal] = ()
    """The current reasons why the model service refuses all requests, or those for one model."""
    accepted_ms: int | None = None
    """The time when a model last answered, in epoch milliseconds; None before any did."""

    def to_json_dict(self) -> CredentialView:
        """Return the status as the API and `--json` show it."""
        is_accepted: bool | None = None  # not known before a model was asked
        if self.refusals:
            is_accepted = False
        elif self.accepted_ms:
            is_accepted = True
        return {
            "present": self.setting is not None,
            "setting": self.setting,
            "problem": self.problem,
            "accepted": is_accepted,
            "accepted_ms": self.accepted_ms,
            "refusals": [_refusal_view(refusal) for refusal in self.refusals],
        }


def _refusal_view(refusal: ModelRefusal) -> RefusalView:
    """Return a refusal as the API and `--json` show it."""
    details = {"setting": refusal.setting, "model": refusal.model}
    return {
        "cause": refusal.cause.value,
        "model": refusal.model or None,
        "since_ms": refusal.since_ms,
        "text": failures.refusal_cause(refusal.cause, status=refusal.status, **details),
        "mend": failures.refusal_fix(refusal.cause, **details),
    }
