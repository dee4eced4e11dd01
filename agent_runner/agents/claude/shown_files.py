"""Show a model the files that came with messages: pictures as pictures, short texts as text.

A message names its file in square brackets, `[image attachments/20261122-0930-image.jpg]`. A file that is too
large, or neither a picture nor a text, stays a path in the prompt, which the model's tools can read.
"""

from __future__ import annotations

import base64
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_PICTURES, MAX_TEXTS = 5, 3
"""Most pictures, and most texts, of one prompt: the last that it names."""
MAX_PICTURE_BYTES = 3_700_000
"""Bytes of a picture: the service accepts 5 MB, encoded in base64."""
MAX_BYTES = 10_000_000
"""Bytes of all pictures of one prompt."""
MAX_TEXT_BYTES = 12_000
"""Most bytes of a text; a longer file stays a path."""
MAX_PIXELS = 8_000
"""Most pixels of a picture's side."""
_FILE_IN_BRACKETS = re.compile(r"\[[^\[\]\n]{1,60}? (attachments/[\w(+-][\w.,()+-]{0,200})")
_SUFFIXES = (".txt", ".md", ".csv", ".tsv", ".json", ".log", ".ics", ".vcf", ".xml", ".yaml", ".yml", ".toml")

Block = dict[str, Any]
"""One part of a prompt, as the service's interface has it."""


def content_of(prompt: str, folder: Path) -> str | list[Block]:
    """Return a prompt as a list of blocks: its text, then the files in `folder` that it names.

    If it names no file that can be shown, return the text alone. Reads files: call it in a thread.
    """
    names = list(dict.fromkeys(_FILE_IN_BRACKETS.findall(prompt)))
    blocks = [*_texts(names, folder), *_pictures(names, folder)] if names else []
    return [{"type": "text", "text": prompt}, *blocks] if blocks else prompt


def _texts(names: list[str], folder: Path) -> Iterator[Block]:
    """Yield a block for each of the last `MAX_TEXTS` text files that are named; paths are below `folder`.

    A file that is longer than `MAX_TEXT_BYTES`, empty or no text is left out.
    """
    chosen = [name for name in names if name.lower().endswith(_SUFFIXES)]
    for name in chosen[-MAX_TEXTS:]:
        body = _read(folder / name, limit=MAX_TEXT_BYTES)  # empty for a longer file
        try:
            text = body.decode()
        except UnicodeDecodeError:
            continue
        if text.strip() and "\0" not in text:
            # Escaped, so that a file cannot end its own element and continue as the prompt.
            safe = text.replace("&", "&amp;").replace("<", "&lt;")
            yield {"type": "text", "text": f'<file path="{name}">\n{safe}\n</file>'}


def _pictures(names: list[str], folder: Path) -> Iterator[Block]:
    """Yield two blocks, name and picture, for each of the last `MAX_PICTURES` pictures that are named.

    They come in the order of the names, which are paths below `folder`. A picture is left out if it is larger
    than `MAX_PICTURE_BYTES`, or than what the later ones leave of `MAX_BYTES`.
    """
    pictures: list[list[Block]] = []
    bytes_left = MAX_BYTES
    for name in reversed(names):
        body = _read(folder / name, limit=min(bytes_left, MAX_PICTURE_BYTES))
        if (kind := kind_of(body)) is None:
            continue
        bytes_left -= len(body)
        source = {"type": "base64", "media_type": kind, "data": base64.b64encode(body).decode("ascii")}
        pictures.append([{"type": "text", "text": f"{name}:"}, {"type": "image", "source": source}])
        if len(pictures) == MAX_PICTURES:
            break
    for blocks in reversed(pictures):
        yield from blocks


def kind_of(body: bytes) -> str | None:
    """Return the media type of a whole picture that the service accepts, by its first and last bytes.

    None for any other file, a truncated one, or a PNG with a side of more than `MAX_PIXELS`; the size of
    other pictures is not checked. Pure.
    """
    if body.startswith(b"\x89PNG\r\n\x1a\n") and b"IEND" in body[-16:]:
        # Width and height have four bytes each, after the signature and the head of the first chunk.
        sides = int.from_bytes(body[16:20], "big"), int.from_bytes(body[20:24], "big")
        return "image/png" if min(sides) > 0 and max(sides) <= MAX_PIXELS else None
    if body.startswith(b"\xff\xd8\xff") and body.rstrip(b"\0").endswith(b"\xff\xd9"):
        return "image/jpeg"
    if body[:6] in (b"GIF87a", b"GIF89a") and body.endswith(b";"):
        return "image/gif"
    # The head of a WebP names the bytes that follow its first eight.
    if body[:4] == b"RIFF" and body[8:12] == b"WEBP" and int.from_bytes(body[4:8], "little") + 8 <= len(body):
        return "image/webp"
    return None


def _read(path: Path, *, limit: int) -> bytes:
    """Return the bytes of a file; no bytes if it is larger than `limit`, no regular file, or missing."""
    try:
        # No link is followed, and a pipe without a writer is not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or info.st_size > limit:
            return b""
        with open(descriptor, "rb", closefd=False) as file:
            body = file.read(limit + 1)  # not to its end: it may grow while it is read
        return body if len(body) <= limit else b""
    finally:
        os.close(descriptor)
