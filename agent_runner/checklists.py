"""To-dos and lists as Markdown checklists in the group's own directory.

A person may edit the files too: only the lines that are asked about change. Calls block.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from agent_runner.ans.safe_folder import NotPlain, read_plain
from agent_runner.wire.files import write_whole
from agent_runner.wire.unicode_forms import composed

TODO = "todo"
"""The name of the to-do list, which is a file beside the others."""
MAX_ITEM_CHARS = 500
"""Most characters of an entry; a longer one is refused."""
MAX_NAME_CHARS = 40
"""Most characters of a list's name; a longer one is refused."""
MAX_FILE_BYTES = 1024 * 1024
"""Most bytes of a list's file; a longer file is not touched."""

_ITEM = re.compile(
    r"(?P<bullet>\s*(?:[-*+]|\d{1,3}[.)])\s+)(?:\[(?P<mark>[ xX])\]\s+)?(?P<text>\S.*?)(?P<end>\s*)\Z",
    re.DOTALL,
)


class ListProblem(StrEnum):
    """The reason why a list cannot be used as requested."""

    BAD_NAME = "bad_name"
    NO_LIST = "no_list"
    NO_ITEM = "no_item"
    MANY_ITEMS = "many_items"
    ITEM_TOO_LONG = "item_too_long"
    NOT_OURS = "not_ours"
    """The path is no plain text file inside the group's directory."""


class ListError(Exception):
    """A list cannot be used as requested."""

    def __init__(self, problem: ListProblem) -> None:
        """`problem` is the reason, by which a caller chooses a sentence."""
        super().__init__(problem.value)
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One entry. `number` counts all entries from 1, so it stays when others are done."""

    number: int
    text: str
    is_done: bool
    line: int
    """The index of the line in the file, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """The result of adding entries."""

    new: tuple[str, ...]
    there_already: tuple[str, ...]


class Checklists:
    """The lists of one group.

    Every method may raise `ListError`, and `OSError` when the disk refuses.
    """

    def __init__(self, group: Path) -> None:
        """`group` is the group's folder."""
        self._group = group

    def names(self) -> list[str]:
        """Return the names of the lists, sorted, without the to-do list. They are the names of files."""
        directory = self._inside(self._group / "lists")
        if not directory.is_dir():
            return []
        stems = (composed(path.stem) for path in directory.glob("*.md"))
        return sorted(stem for stem in stems if not stem.startswith("."))

    def items(self, name: str, *, is_needed: bool = True) -> list[Item]:
        """Return every entry of a list, done ones too.

        `is_needed`: whether a missing list is an error; otherwise it has no entries.

        Raises:
            ListError: `NO_LIST`, if there is no such list and one is needed.
        """
        return _items(self._read(name, is_needed=is_needed))

    def add(self, name: str, texts: Sequence[str]) -> Added:
        """Put entries at the end of a list, which is created if missing; return which texts were new.

        A text that an open entry has already is not added again. Raises `ListError`.
        """
        one_line_texts = [" ".join(text.split()) for text in texts]
        if any(len(text) > MAX_ITEM_CHARS for text in one_line_texts):
            raise ListError(ListProblem.ITEM_TOO_LONG)
        title = "To-do" if name == TODO else " ".join(name.split())
        lines = self._read(name, is_needed=False) or [f"# {title}\n", "\n"]
        open_texts = {item.text.casefold() for item in _items(lines) if not item.is_done}
        new = [text for text in dict.fromkeys(one_line_texts) if text.casefold() not in open_texts]
        if new:
            self._write(name, _with_new(lines, new))
        return Added(new=tuple(new), there_already=tuple(text for text in one_line_texts if text not in new))

    def find(self, name: str, texts: Sequence[str], *, is_done: bool = False) -> list[Item]:
        """Return an entry of a list for each of `texts`, which are texts or numbers of entries; none twice.

        `is_done` says whether done entries are looked for, or open ones (`_find`). Raises `ListError` if no
        or several entries fit one of the texts.
        """
        items = self.items(name)
        found: list[Item] = []
        for text in texts:
            found.append(_find([item for item in items if item not in found], text, is_done=is_done))
        return found

    def is_same(self, name: str, other: str) -> bool:
        """Return whether two names are those of one file. Raises `ListError`."""
        return self._path(name) == self._path(other)

    def tick(self, name: str, ticked: Sequence[Item], *, is_done: bool) -> None:
        """Mark entries as done or open, by their line numbers; those that have that mark stay unchanged.

        The list must not have changed since it was read.
        """
        lines = self._read(name)
        changed = [item.line for item in ticked if item.is_done is not is_done]
        mark = "x" if is_done else " "
        for line in changed:
            lines[line] = _ITEM.sub(rf"\g<bullet>[{mark}] \g<text>\g<end>", lines[line])
        if changed:
            self._write(name, lines)

    def take_out(self, name: str, removed: Sequence[Item]) -> None:
        """Remove entries, by their line numbers, from a list that must not have changed since it was read."""
        line_numbers = {item.line for item in removed}
        lines = self._read(name)
        if line_numbers:
            self._write(name, [line for index, line in enumerate(lines) if index not in line_numbers])

    def _read(self, name: str, *, is_needed: bool = True) -> list[str]:
        """Return the lines of a list's file. If that is missing, return none, or raise if it `is_needed`.

        Raises `ListError`.
        """
        try:
            data = read_plain(str(self._path(name)), limit=MAX_FILE_BYTES).data
            return data.decode().splitlines(keepends=True)
        except FileNotFoundError as error:
            if not is_needed:
                return []
            raise ListError(ListProblem.NO_LIST) from error
        except (NotPlain, UnicodeDecodeError) as error:
            raise ListError(ListProblem.NOT_OURS) from error

    def _write(self, name: str, lines: Sequence[str]) -> None:
        """Write a list's file, whole or not at all. Raises `OSError`."""
        path = self._path(name)
        if name != TODO:
            path.parent.mkdir(exist_ok=True)
        write_whole(path, "".join(lines))

    def _path(self, name: str) -> Path:
        """Return the path of a list's file. Raises `ListError` for a bad name, or a link that leads out."""
        if name == TODO:
            return self._inside(self._group / "todo.md")
        return self._inside(self._group / "lists" / f"{file_stem(name)}.md")

    def _inside(self, path: Path) -> Path:
        """Return a path with its links followed. Raises `ListError` if it leads out of the group's folder."""
        try:
            # Programs of the agent may have put a link there.
            real = path.resolve()
        except (OSError, RuntimeError) as error:
            raise ListError(ListProblem.NOT_OURS) from error
        if not real.is_relative_to(self._group.resolve()):
            raise ListError(ListProblem.NOT_OURS)
        return real


def file_stem(name: str) -> str:
    """Return the file name of a list, such as `weekend-trip` for `Weekend Trip`.

    Raises:
        ListError: `BAD_NAME`, for a name with anything but letters, digits, spaces, `-` and `_`, one that
            does not begin with a letter or digit, or one that is too long.
    """
    stem = "-".join(composed(name).casefold().split())
    # The categories of Unicode whose names begin with L, M and N: letters, marks on them, and numbers.
    is_plain = all(unicodedata.category(letter)[0] in "LMN" or letter in "-_" for letter in stem)
    if not stem or not is_plain or not stem[0].isalnum() or len(stem) > MAX_NAME_CHARS:
        raise ListError(ListProblem.BAD_NAME)
    return stem


def has_words(text: str, words: str) -> bool:
    """Return whether a text contains the words as whole ones: `egg` is in `6 eggs`, `ham` not in `shampoo`.

    They may have an English ending of a plural or possessive (`s`, `es`, `'s`). Korean joins particles to
    words, so there any part counts. A single letter is never found.
    """
    whole_words = rf"(?<![a-z\u00c0-\u024f]){re.escape(words.casefold())}(?:'?e?s)?(?![a-z\u00c0-\u024f])"
    return len(words) > 1 and re.search(whole_words, text.casefold()) is not None


def _items(lines: Sequence[str]) -> list[Item]:
    """Return the entries among the lines of a list, numbered from 1."""
    matches = [(place, match) for place, line in enumerate(lines) if (match := _ITEM.fullmatch(line))]
    return [
        Item(number=number, text=match["text"], is_done=match["mark"] in ("x", "X"), line=place)
        for number, (place, match) in enumerate(matches, 1)
    ]


def _find(items: Sequence[Item], which: str, *, is_done: bool = False) -> Item:
    """Return the entry that `which` means: one with this text, else this number, else one that contains it.

    `is_done` says whether a done entry is looked for, or an open one. An entry with the text or number is
    returned in either state; of several with the text, the first in the wanted state, if there is one. Only
    entries in the wanted state are searched for one that contains `which`. Raises `ListError` if no entry
    fits, or several contain it.
    """
    which = which.strip().casefold()
    same = [item for item in items if item.text.casefold() == which]
    same.sort(key=lambda item: item.is_done is not is_done)
    numbered = [item for item in items if which == str(item.number)]
    containing = [item for item in items if has_words(item.text, which)]
    containing = [item for item in containing if item.is_done is is_done]
    candidates = same[:1] or numbered or containing
    if len(candidates) != 1:
        raise ListError(ListProblem.MANY_ITEMS if candidates else ListProblem.NO_ITEM)
    return candidates[0]


def _with_new(lines: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Return the lines of a list with open entries of these texts after its last entry.

    If the list has no entry, they are put at its end. The new lines end as the other lines of the file do.
    """
    newline = "\r\n" if any(line.endswith("\r\n") for line in lines) else "\n"
    items = _items(lines)
    place = items[-1].line + 1 if items else len(lines)
    before = list(lines[:place])
    if before and not before[-1].endswith(("\n", "\r")):
        before[-1] += newline
    return [*before, *(f"- [ ] {text}{newline}" for text in texts), *lines[place:]]
