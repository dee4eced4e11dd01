"""Read and write the host's own files so that each is complete or absent, even after a power cut.

All functions block.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from orchestrator.base.redaction import Redactor

FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
_PARTIAL = ".tmp-"


class Unreadable(Exception):
    """A file exists and cannot be used; the text says why."""


def make_private(*directories: Path) -> None:
    """Create directories with their parents, or take existing ones, and let only their owner read them."""
    for directory in directories:
        directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        directory.chmod(DIRECTORY_MODE)  # `mkdir` obeys the umask, and skips existing directories


def encoded(document: dict[str, Any], redactor: Redactor) -> bytes:
    """Return a document as indented JSON in UTF-8, with its secrets replaced by `redactor`."""
    redacted = redactor.redacted(document)
    try:
        # The standard library's encoder takes ten times as long when it indents, as it then runs in Python.
        return to_json(redacted, indent=1) + b"\n"
    except ValueError:  # a lone surrogate, which UTF-8 cannot encode
        return json.dumps(redacted, ensure_ascii=False, indent=1).encode("utf-8", "replace") + b"\n"


def write_durably(path: Path, data: bytes) -> None:
    """Write `data` to the file at `path`, so that it is complete or unchanged even after a power cut.

    Raises:
        OSError: the file cannot be written, and the earlier one is unchanged; or it was written, but its
            folder cannot be synced.
    """
    # A complete and synced file beside the old one is renamed over it.
    partial = path.with_name(f"{path.name}{_PARTIAL}{os.getpid()}-{secrets.token_hex(4)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), FILE_MODE)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(directory: Path) -> None:
    """Sync a directory, so that the names in it survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_document(path: Path, *, most_bytes: int) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None where there is no file.

    Raises:
        Unreadable: it is not a regular file, has more than `most_bytes`, or is not a JSON object.
        OSError: the file cannot be read.
    """
    # No link is followed, and a named pipe in its place does not block the opening.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Unreadable("it is a link") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Unreadable("it is no file")
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise Unreadable(f"it has more than {most_bytes:,} bytes")
    return _parsed(data)


def sweep_partials(directory: Path) -> None:
    """Remove the partial files that a killed writer left in a directory.

    Call it only where no other writer can be at work: its partial file would be removed, too.
    """
    for path in directory.glob(f"*{_PARTIAL}*"):
        path.unlink(missing_ok=True)


def _parsed(data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`. Raises `Unreadable` if it is none."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise Unreadable("it is no JSON object")
    return document
