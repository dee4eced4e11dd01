"""The console's texts in English and Korean: one TOML file a page, with the tables `[en]` and `[ko]`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent / "texts"
LANGUAGES = {"en": "English", "ko": "한국어"}
DEFAULT = "en"


class TextMissing(KeyError):
    """No text has this key in this language: a bug, which a test finds."""


class _Shown(dict[str, str]):
    """The values of a text; a missing one is shown as `…`."""

    def __missing__(self, key: str) -> str:
        """Return an ellipsis for a value that a text has a place for and nobody passed."""
        return "…"


class Catalogue:
    """All texts by language and key; the key of a text is `FILE.NAME`."""

    def __init__(self, texts: Mapping[str, Mapping[str, str]]) -> None:
        self.texts = texts

    @classmethod
    def load(cls, folder: Path = FOLDER) -> Catalogue:
        """Read every file of the folder. Blocks."""
        texts: dict[str, dict[str, str]] = {language: {} for language in LANGUAGES}
        for path in sorted(folder.glob("*.toml")):
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
            for language, table in tables.items():
                texts[language] |= {f"{path.stem}.{name}": text for name, text in table.items()}
        return cls(texts)

    def text(self, language: str, key: str, /, **values: object) -> str:
        """Return a text with its `{values}` put in, unescaped. Raises `TextMissing`."""
        try:
            text = self.texts[language][key]
        except KeyError as error:
            raise TextMissing(f"{key} in {language}") from error
        return text.format(**values) if values else text

    def translated(self, language: str, key: str, english: str, values: Mapping[str, str]) -> str:
        """Return the translation of a text that the code has in English; `own`, the English, if there is
        none.

        The files `settings`, `services` and `reasons` have no English, so that no sentence is written twice.
        """
        translation = self.texts[language].get(key)
        return english if translation is None else translation.format_map(_Shown(values))

    def has(self, key: str) -> bool:
        """Return whether there is a text with this key."""
        return key in self.texts[DEFAULT]


def preferred_language(accept_language: str) -> str:
    """Return the language of the console that an `Accept-Language` header prefers. Pure."""
    weighted_names: list[tuple[float, str]] = []
    for part in accept_language[:500].split(","):
        name, _, parameter = part.strip().partition(";")
        try:
            weight = float(parameter.strip().removeprefix("q=")) if parameter else 1.0
        except ValueError:
            continue
        weighted_names.append((weight, name.partition("-")[0].lower()))
    weighted_names.sort(key=lambda weighted: -weighted[0])
    return next((name for weight, name in weighted_names if name in LANGUAGES and weight > 0), DEFAULT)
