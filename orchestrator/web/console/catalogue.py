"""The console's texts in English and Korean: one TOML file a page, with the tables `[en]` and `[ko]`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent / "texts"
"""The folder of the files with texts."""
LANGUAGES = {"en": "English", "ko": "한국어"}
"""The languages of the console, by their codes, each in its own name."""
DEFAULT = "en"
"""The language for a browser that prefers none of them."""
MAX_HEADER_CHARS = 500
"""Characters of an `Accept-Language` header that are read."""


class TextMissing(KeyError):
    """No text has this key in this language: a bug, which a test finds."""


class _Shown(dict[str, str]):
    """The values of a text; a missing one is shown as `…`."""

    def __missing__(self, key: str) -> str:
        """Return an ellipsis for a value that a text wants and that is not there. `format_map` calls this."""
        return "…"


class Catalogue:
    """All texts by language and key; the key of a text is `FILE.NAME`."""

    def __init__(self, texts: Mapping[str, Mapping[str, str]]) -> None:
        """`texts` maps the code of a language, and then the key of a text, to the text."""
        self.texts = texts

    @classmethod
    def load(cls, folder: Path = FOLDER) -> Catalogue:
        """Return a catalogue of the texts in all TOML files of a folder. Blocks.

        The key of a text is the name of its file and its own name, such as `now.title`.
        """
        texts: dict[str, dict[str, str]] = {language: {} for language in LANGUAGES}
        for path in sorted(folder.glob("*.toml")):
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
            for language, table in tables.items():
                texts[language] |= {f"{path.stem}.{name}": text for name, text in table.items()}
        return cls(texts)

    def text(self, language: str, key: str, /, **values: object) -> str:
        """Return a text in a language, with `values` in the places of their names such as `{name}`.

        The values are not escaped. Raises `TextMissing` if there is no such text.
        """
        try:
            text = self.texts[language][key]
        except KeyError as error:
            raise TextMissing(f"{key} in {language}") from error
        return text.format(**values) if values else text

    def translated(self, language: str, key: str, english: str, values: Mapping[str, str]) -> str:
        """Return the text with a key in a language or, if there is none, the text `english` unchanged.

        It is for texts that the code has in English, with `values` put in already. The catalogue has only
        their translations, so that no sentence is written twice; `values` are put into those here. A missing
        value is shown as `…`.
        """
        translation = self.texts[language].get(key)
        return english if translation is None else translation.format_map(_Shown(values))

    def has(self, key: str) -> bool:
        """Return whether there is a text with this key, in the default language."""
        return key in self.texts[DEFAULT]


def preferred_language(accept_language: str) -> str:
    """Return the code of the console's language that an `Accept-Language` header prefers. Pure.

    It is `DEFAULT` if the header names none of the console's languages.
    """
    weighted_names: list[tuple[float, str]] = []
    for part in accept_language[:MAX_HEADER_CHARS].split(","):  # such as `ko-KR;q=0.8`
        name, _, parameter = part.strip().partition(";")
        try:
            weight = float(parameter.strip().removeprefix("q=")) if parameter else 1.0
        except ValueError:  # a part that is malformed
            continue
        weighted_names.append((weight, name.partition("-")[0].lower()))
    weighted_names.sort(key=lambda weighted: -weighted[0])
    return next((name for weight, name in weighted_names if name in LANGUAGES and weight > 0), DEFAULT)
