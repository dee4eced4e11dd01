"""Print the text of a PDF, page by page: `pdf_text.py FILE [--pages 3-7]`."""

from __future__ import annotations

import argparse
import sys

from pypdf import PdfReader
from pypdf.errors import PyPdfError

MAX_PAGES = 500
"""Most pages that are printed at once."""


def main() -> int:
    """Print the text of the first `MAX_PAGES` pages that the command line names; return the exit code.

    It is 1 if the file is locked with a password or cannot be read.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--pages", default="", help="such as 3-7, 5 or 501-; all by default")
    arguments = parser.parse_args()
    try:
        reader = PdfReader(arguments.file)
        if reader.is_encrypted and not reader.decrypt(""):
            print("It is locked with a password: ask for one without.", file=sys.stderr)
            return 1
        count = len(reader.pages)
        first, dash, last = arguments.pages.partition("-")
        start = max(1, int(first or 1))
        end = int(last) if last else count if dash or not first else start
        numbers = range(start, min(end, count, start + MAX_PAGES - 1) + 1)
        texts = {number: (reader.pages[number - 1].extract_text() or "").strip() for number in numbers}
    except (OSError, PyPdfError, ValueError, IndexError) as error:
        print(f"It cannot be read: {error}", file=sys.stderr)
        return 1
    empty = sum(not text for text in texts.values())
    print(f"{count} pages; of {len(texts)} read, {empty} have no text.")
    for number, text in texts.items():
        print(f"\n--- page {number} ---\n{text}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
