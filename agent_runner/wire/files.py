"""Write a file so that a reader sees all of it or nothing."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path


def unique_name() -> str:
    """Return a new file name `{epoch ms}-{random}.json`; such names sort by time, to the millisecond."""
    return f"{time.time_ns() // 1_000_000:013d}-{secrets.token_hex(4)}.json"


def write_whole(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write `text` as a file at `path`, in place of an existing one; a reader never sees a part of it.

    It is written under another name in the same directory, then renamed. It is not flushed to the disk: after
    a power cut it may be empty. `mode` has the file's permissions. After an error, an existing file at `path`
    is unchanged.

    Raises:
        OSError: the directory is missing, or the disk is full.
        UnicodeEncodeError: the text has a surrogate.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask: the other side reads it as another user
            file.write(text)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
