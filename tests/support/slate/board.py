"""The slate: files in a folder, in the place of a messenger's server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Refused(Exception):
    """The slate takes nothing now."""


class Board:
    """A slate in a folder; several objects on one folder are the same slate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, kind: str, **fields: Any) -> int:
        """Write down what a person does; return its number."""
        return self._append("written", {"kind": kind, **fields})

    def written(self, after: int) -> list[dict[str, Any]]:
        """Return what people did since the number `after`, each with its number."""
        return [line for line in self._lines("written") if line["number"] > after]

    def show(self, key: str, text: str, *, knows_keys: bool) -> None:
        """Show a text, once for each key. Raises `Refused`."""
        refusal = self.folder / "refuses"
        if refusal.exists():
            refusal.unlink()
            raise Refused
        if not knows_keys or all(line["key"] != key for line in self._lines("shown")):
            self._append("shown", {"key": key, "text": text})

    def shown(self) -> list[str]:
        return [line["text"] for line in self._lines("shown")]

    def refuse_next(self) -> None:
        (self.folder / "refuses").touch()

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / f"{name}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _append(self, name: str, fields: dict[str, Any]) -> int:
        number = len(self._lines(name)) + 1
        with (self.folder / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps({"number": number, **fields}) + "\n")
        return number
