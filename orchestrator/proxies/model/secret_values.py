"""What is secret on this host, by its value: for those who take secrets out of what they keep.

Values stay in memory. Each is given in the forms in which it may be quoted: as it is, inside JSON or a URL,
and in base64, wherever it stands there.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus, unquote, urlsplit

from orchestrator.domain.errors import SettingError
from orchestrator.proxies.model.secrets import CredentialSource

LEAST_CHARS = 8
"""A shorter value would take pieces out of words."""
ORDINARY_CHARS = 24
"""Letters alone may be a word, a name, or some of them; so many are none."""
_TELLING = frozenset(
    {"KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "PASSCODE", "PASS", "PAT"}
)
_WORD = r"(?:[^\W\d_][^\W\d_A-Z]*|[A-Z]+)"
_WORDS = re.compile(rf"{_WORD}(?:[ ._-]{_WORD})*")
_NUMBER = re.compile(r"[\d .:/_-]{1,16}")


class KnownSecrets:
    """Gives the forms of all that is secret, the longest first. Safe in any thread; blocks for one `stat`."""

    def __init__(self, source: CredentialSource, *, own: Iterable[str] = ()) -> None:
        """`own` are secrets that the host made itself."""
        self._source = source
        self._own = tuple(own)
        self._made: tuple[Mapping[str, str] | None, tuple[str, ...]] = (None, ())

    def __call__(self) -> tuple[str, ...]:
        made_of, forms = self._made
        try:
            dotenv = self._source.dotenv()
        except SettingError:
            # Who needs the key says so. What was known is taken out all the same.
            return forms
        if dotenv is not made_of:
            named = [*dotenv.items(), *self._source.environment.items()]
            forms = forms_of([*self._own, *secret_values(named)])
            self._made = (dotenv, forms)
        return forms


def secret_values(named: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Pick the values that are secret by the names that they have, and passwords inside URLs; no paths."""
    for name, given in named:
        value = given.strip()
        if _is_telling(name) and not is_ordinary(value) and not _is_path(value):
            yield value
        yield from (one for one in _passwords_in(value) if not is_ordinary(one))


def is_ordinary(value: str) -> bool:
    """Whether a value may stand in any text: it is short, words, or a number. Pure."""
    if len(value) < LEAST_CHARS or _NUMBER.fullmatch(value):
        return True
    return len(value) < ORDINARY_CHARS and _WORDS.fullmatch(value) is not None


def forms_of(values: Iterable[str]) -> tuple[str, ...]:
    """Return all forms of some values, the longest first. Pure."""
    forms = {form for value in values for form in _forms(value) if len(form) >= LEAST_CHARS}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def _is_telling(name: str) -> bool:
    return not _TELLING.isdisjoint(part.removesuffix("S") for part in name.upper().split("_"))


def _is_path(value: str) -> bool:
    return os.path.exists(value)  # noqa: PTH110 - that of Path raises for what no path can be


def _passwords_in(value: str) -> tuple[str, ...]:
    """Those of a URL, as it stands there and as it is meant."""
    try:
        found = urlsplit(value).password if "://" in value else None
    except ValueError:
        return ()
    return (found, unquote(found)) if found else ()


def _forms(value: str) -> Iterator[str]:
    yield value
    yield " ".join(value.split())
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    for escaped in (quote(value, safe=""), quote(value), quote_plus(value)):
        yield escaped
        yield re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), escaped)
    for encoded in _in_base64(value.encode()):
        yield encoded
        yield encoded.translate(str.maketrans("+/", "-_"))


def _in_base64(data: bytes) -> Iterator[str]:
    """All of it by itself; and what it alone decides of a longer text, wherever it begins there."""
    yield base64.b64encode(data).decode()
    for before in range(3):
        first, last = -(-before * 8 // 6), (before + len(data)) * 8 // 6
        yield base64.b64encode(bytes(before) + data).decode()[first:last]
