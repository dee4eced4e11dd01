"""Lays texts out in columns, as commands list things. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def short(text: str, width: int) -> str:
    """Return `text` on one line, cut with `…` to at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which gets an `s` unless the number is 1: `1 file`, `1,200 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size_text(size: int) -> str:
    """Return a number of bytes as text: `1.2 MB`, `340 kB`."""
    # `//` rounds down: applied to the negative number, it rounds the kB up.
    return f"{size / 1_000_000:,.1f} MB" if size >= 1_000_000 else f"{-(-size // 1000)} kB"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a table: one for `head`, the titles of the columns, and one for each row.

    Cells are padded with blanks, so that each column has one width.
    """
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
