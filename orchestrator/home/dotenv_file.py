"""Change lines of `.env`. The file is the owner's: all other lines and comments stay as they are."""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from agent_runner.wire.files import write_whole
from orchestrator.base.installation import COMPOSE_HOME
from orchestrator.domain.errors import SettingError

SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
"""The pattern of a name whose value is never shown."""


def put(path: Path, values: Mapping[str, str], *, silences: Collection[str] = ()) -> list[str]:
    """Set `values`, by their names, in the file `.env` at `path`, which is created if it is missing. Blocks.

    A line that sets a name of `silences` becomes a comment, unless `values` has the name, too. Return the
    names whose lines became comments. All other lines stay. Afterwards only the file's owner can read it.

    Raises:
        SettingError: the file cannot be read or written, or no line can hold a value; nothing was changed.
    """
    from dotenv import dotenv_values

    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        # `interpolate=False`, also in `changed`: a `$` in a value, such as a credential, has no meaning.
        present = dotenv_values(stream=io.StringIO(text), interpolate=False)
        silenced = [name for name in silences if name in present and name not in values]
        # The resolved path, so that a `.env` that is a link stays one.
        write_whole(path.resolve(), changed(text, values, silenced), mode=0o600)
    except (OSError, UnicodeDecodeError) as error:
        raise _unwritable(path, error, values) from error
    return silenced


def _unwritable(path: Path, error: OSError | UnicodeDecodeError, values: Mapping[str, str]) -> SettingError:
    """Return the error for a file `.env` that cannot be read or written.

    Its text names the fix. In Andy's container, where the file may be mounted so that it cannot be changed,
    that is to put lines with `values` into the file on the host.
    """
    if isinstance(error, UnicodeDecodeError):
        return SettingError(f"{path} is not in UTF-8: save it so.")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SettingError(f"{path} cannot be changed ({error.strerror}): make room on the disk.")
    if os.environ.get("ANDY_HOME") != COMPOSE_HOME:
        if isinstance(error, IsADirectoryError):
            return SettingError(f"{path} is a folder: move it away.")
        return SettingError(f"{path} cannot be changed ({error}): fix its permissions.")
    # Only values of Andy's own settings are shown: a service may keep its key under any other name.
    from orchestrator.home.settings import Settings

    lines = [
        f"{name}={value if name.lower() in Settings.model_fields and not SECRET.search(name) else '…'}"
        for name, value in values.items()
    ]
    return SettingError(
        f"{path.name} cannot be written from Andy's container: on the host, beside docker-compose.yml,"
        f" put {', '.join(lines)} into {path.name}, then type 'docker compose restart andy'."
    )


def changed(text: str, values: Mapping[str, str], silenced: Collection[str] = ()) -> str:
    """Return the text of a file `.env` with `values` set, and the lines of `silenced` as comments. Pure.

    A value that is set moves to the end of the file; if its name is in `silenced`, too, its earlier line
    stays as a comment. Raises `SettingError` for a value that no line can hold, or that an unclosed quote in
    an earlier line would take in.
    """
    from dotenv import dotenv_values
    from dotenv.parser import parse_stream

    parts = []
    # Not `dotenv.set_key`: each of its calls replaces the file, and it cannot turn a line into a comment.
    for binding in parse_stream(io.StringIO(text)):
        part = binding.original.string
        blank_lines = part[: len(part) - len(part.lstrip())]
        if binding.key in silenced:
            # A value may have several lines: the pattern finds the start of each that is not empty.
            part = blank_lines + re.sub("^(?=.)", "# ", part.lstrip(), flags=re.MULTILINE)
        elif binding.key in values:  # its line is left out here, and added below
            part = blank_lines.rstrip(" \t")
        parts.append(part)
    result = "".join(parts)
    for name, value in values.items():
        line = f"{name}={value}"
        # Read back, because a quote or a line break in a value would make another value of it.
        if dotenv_values(stream=io.StringIO(line), interpolate=False) != {name: value}:
            raise SettingError(f"{name} holds a character that .env cannot hold.")
        result = f"{result.rstrip()}\n{line}\n" if result.strip() else f"{line}\n"
    present = dotenv_values(stream=io.StringIO(text), interpolate=False)
    wanted = {name: value for name, value in present.items() if name not in silenced} | dict(values)
    # The text is read back whole: a quote in a value can be the end of one that an earlier line opens.
    if dotenv_values(stream=io.StringIO(result), interpolate=False) != wanted:
        raise SettingError(
            f"{', '.join(values)} cannot be set: an earlier line of .env has a quote that is not closed."
            " Close it first."
        )
    return result
