"""Makes what people at a terminal are shown harmless: chats and agents choose the texts that commands print.

A terminal obeys control characters: they move the cursor, rewrite lines above, set the clipboard, or hide
what follows. They are shown as `\\u001b` instead, which in JSON stands for the same text.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast

_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # all that controls, but tabs and line ends
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # what turns the direction of writing, or ends lines
    "\ud800-\udfff"  # halves of characters, which cannot be written at all
    "]"
)


_LOOKS_EMPTY = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")


def visible(text: str) -> str:
    """Return `text` with what a terminal would obey written out; line ends and tabs stay."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def all_visible(text: str) -> str:
    """Return `text` in one line, with every character written out that is not seen where it stands.

    Beside what a terminal obeys these are zero-width and other format characters, fillers that look like
    blanks, and what has no meaning yet. A letter, a mark, a digit, a sign and the plain blank stay.
    """
    return "".join(one if _is_seen(one) else _written_out(one) for one in text)


def _is_seen(character: str) -> bool:
    if character in _LOOKS_EMPTY:
        return False
    return character == " " or unicodedata.category(character)[0] not in "CZ"


def _written_out(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def one_line(text: str) -> str:
    """Return `text` in one line that cannot pass for two."""
    return visible(text).replace("\n", "\\n")


class EscapedStream:
    """A text stream that writes control characters out as `\\u001b`. What draws with them writes to `raw`."""

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw
        self.rich_proxied_file = raw
        """Where rich writes, which the help of the commands is drawn with: no text of others is in it."""

    def write(self, text: str) -> int:
        self.raw.write(visible(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def raw_stream(stream: TextIO) -> TextIO:
    """Return what is behind an `EscapedStream`, for output that draws and escapes its texts itself."""
    return stream.raw if isinstance(stream, EscapedStream) else stream


@contextmanager
def escaped_output() -> Iterator[None]:
    """Have all that is printed inside, to stdout and stderr, escaped."""
    out, err = (cast("TextIO", EscapedStream(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        yield
