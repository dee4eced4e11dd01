"""To-dos and lists as Markdown checklists in the group's own directory.

A person may edit the files too: only the lines that are asked about change. Calls block.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from agent_runner.agents.offline.intents import TODO
from agent_runner.wire.files import write_whole

MAX_ITEM_CHARS = 500
MAX_NAME_CHARS = 40
MAX_FILE_BYTES = 1024 * 1024

_ITEM = re.compile(
    r"(?P<bullet>\s*(?:[-*+]|\d{1,3}[.)])\s+)(?:\[(?P<mark>[ xX])\]\s+)?(?P<text>\S.*?)(?P<end>\s*)",
    re.DOTALL,
)


class ChecklistFault(StrEnum):
    """Why a list cannot be used as asked."""

    BAD_NAME = "bad_name"
    NO_LIST = "no_list"
    NO_ITEM = "no_item"
    MANY_ITEMS = "many_items"
    ITEM_TOO_LONG = "item_too_long"
    NOT_OURS = "not_ours"
    """It is no plain text file inside the group's directory."""


class ListFault(Exception):
    """A list cannot be used as asked."""

    def __init__(self, fault: ChecklistFault) -> None:
        super().__init__(fault.value)
        self.fault = fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One entry. `number` counts all entries from 1, so it stays when others are done."""

    number: int
    text: str
    is_done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What became of new entries."""

    new: tuple[str, ...]
    there_already: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    at: int
    item: Item


class Checklists:
    """The lists of one group.

    Every method may raise `ListFault`, and `OSError` when the disk refuses.
    """

    def __init__(self, group: Path) -> None:
        self._group = group

    def names(self) -> list[str]:
        """The named lists, sorted, without the to-dos."""
        directory = self._inside(self._group / "lists")
        if not directory.is_dir():
            return []
        stems = (unicodedata.normalize("NFC", path.stem) for path in directory.glob("*.md"))
        return sorted(stem for stem in stems if not stem.startswith("."))

    def items(self, name: str) -> list[Item]:
        """Every entry of a list, done ones too. Raises `NO_LIST` when there is no such file."""
        return [line.item for line in _lines_with_items(self._read_existing(name))]

    def add(self, name: str, texts: Sequence[str]) -> Added:
        """Put entries at the end, beginning the list where there is none; open ones are not repeated."""
        wanted = [_clean(text) for text in texts]
        lines = self._read(name) or [f"# {_title(name)}\n", "\n"]
        open_texts = {line.item.text.casefold() for line in _lines_with_items(lines) if not line.item.is_done}
        new = [text for text in dict.fromkeys(wanted) if text.casefold() not in open_texts]
        if new:
            self._write(name, _with_new(lines, new))
        return Added(new=tuple(new), there_already=tuple(text for text in wanted if text not in new))

    def finish(self, name: str, which: str) -> Item:
        """Check off the entry with this number or text; one that is done already stays so."""
        lines = self._read_existing(name)
        found = _find(_lines_with_items(lines), which)
        if not found.item.is_done:
            lines[found.at] = _checked(lines[found.at])
            self._write(name, lines)
        return found.item

    def remove(self, name: str, which: str) -> Item:
        """Take the entry with this text, else this number, out of the list."""
        lines = self._read_existing(name)
        found = _find(_lines_with_items(lines), which)
        del lines[found.at]
        self._write(name, lines)
        return found.item

    def clear_done(self, name: str) -> int:
        """Take all done entries out and return how many there were."""
        lines = self._read_existing(name)
        done = {line.at for line in _lines_with_items(lines) if line.item.is_done}
        if done:
            self._write(name, [line for at, line in enumerate(lines) if at not in done])
        return len(done)

    def clear(self, name: str) -> int:
        """Take every entry out and return how many there were."""
        lines = self._read_existing(name)
        entries = {line.at for line in _lines_with_items(lines)}
        if entries:
            self._write(name, [line for at, line in enumerate(lines) if at not in entries])
        return len(entries)

    def _read_existing(self, name: str) -> list[str]:
        lines = self._read(name)
        if lines is None:
            raise ListFault(ChecklistFault.NO_LIST)
        return lines

    def _read(self, name: str) -> list[str] | None:
        try:
            return read_plain(self._path(name)).splitlines(keepends=True)
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise ListFault(ChecklistFault.NOT_OURS) from error

    def _write(self, name: str, lines: Sequence[str]) -> None:
        path = self._path(name)
        if name != TODO:
            path.parent.mkdir(exist_ok=True)
        write_whole(path, "".join(lines))

    def _path(self, name: str) -> Path:
        if name == TODO:
            return self._inside(self._group / "todo.md")
        return self._inside(self._group / "lists" / f"{file_stem(name)}.md")

    def _inside(self, path: Path) -> Path:
        """Follow links only where they stay in the group's directory."""
        try:
            real = path.resolve()
        except (OSError, RuntimeError) as error:
            raise ListFault(ChecklistFault.NOT_OURS) from error
        if not real.is_relative_to(self._group.resolve()):
            raise ListFault(ChecklistFault.NOT_OURS)
        return real


def file_stem(name: str) -> str:
    """`Weekend Trip` is kept as `weekend-trip`. Only letters, digits, spaces, `-` and `_` can be in a name.

    Raises:
        ListFault: `BAD_NAME`.
    """
    stem = "-".join(unicodedata.normalize("NFC", name).casefold().split())
    is_plain = all(unicodedata.category(letter)[0] in "LMN" or letter in "-_" for letter in stem)
    if not stem or not is_plain or not stem[0].isalnum() or len(stem) > MAX_NAME_CHARS:
        raise ListFault(ChecklistFault.BAD_NAME)
    return stem


def read_plain(path: Path) -> str:
    """Read a plain text file, no link, not too large. Raises `ListFault`, `OSError`, `UnicodeError`."""
    # A pipe must not hold the reader up, and a link put there meanwhile must not lead it away.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            raise ListFault(ChecklistFault.NOT_OURS)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_FILE_BYTES).decode()
    finally:
        os.close(descriptor)


def _lines_with_items(lines: Sequence[str]) -> list[_Line]:
    matches = [(at, match) for at, line in enumerate(lines) if (match := _ITEM.fullmatch(line))]
    return [
        _Line(at=at, item=Item(number=number, text=match["text"], is_done=match["mark"] in ("x", "X")))
        for number, (at, match) in enumerate(matches, 1)
    ]


def _find(lines: Sequence[_Line], which: str) -> _Line:
    which = which.strip().casefold()
    same = [line for line in lines if line.item.text.casefold() == which]
    numbered = [line for line in lines if which == str(line.item.number)]
    alike = [line for line in lines if which in line.item.text.casefold() and not line.item.is_done]
    found = (
        sorted(same, key=lambda line: line.item.is_done)[:1] or numbered or (alike if len(which) > 1 else [])
    )
    if len(found) > 1:
        raise ListFault(ChecklistFault.MANY_ITEMS)
    if not found:
        raise ListFault(ChecklistFault.NO_ITEM)
    return found[0]


def _with_new(lines: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Put them after the last entry, else at the end, in the file's own kind of line end."""
    newline = "\r\n" if any(line.endswith("\r\n") for line in lines) else "\n"
    items = _lines_with_items(lines)
    place = items[-1].at + 1 if items else len(lines)
    before = list(lines[:place])
    if before and not before[-1].endswith(("\n", "\r")):
        before[-1] += newline
    return [*before, *(f"- [ ] {text}{newline}" for text in texts), *lines[place:]]


def _checked(line: str) -> str:
    match = _ITEM.fullmatch(line)
    assert match is not None
    return f"{match['bullet']}[x] {match['text']}{match['end']}"


def _clean(text: str) -> str:
    text = " ".join(text.split())
    if len(text) > MAX_ITEM_CHARS:
        raise ListFault(ChecklistFault.ITEM_TOO_LONG)
    return text


def _title(name: str) -> str:
    return "To-do" if name == TODO else " ".join(name.split())
