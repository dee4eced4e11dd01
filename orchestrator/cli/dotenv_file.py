"""Change `.env`, which is the owner's: what else is in it stays as it is."""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from agent_runner.wire.files import write_whole
from orchestrator.domain.errors import SettingError


def put(path: Path, values: Mapping[str, str], *, silences: Collection[str] = ()) -> list[str]:
    """Set `values`, turning lines of `silences` into comments; tells which were. For the owner alone. Blocks.

    Raises:
        SettingError: it cannot be read or written; nothing was changed.
    """
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        silenced = [name for name in silences if name not in values and _line_of(name).search(text)]
        write_whole(path.resolve(), changed(text, values, silenced), mode=0o600)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} cannot be changed ({error}): mend its permissions.") from error
    return silenced


def changed(text: str, values: Mapping[str, str], silenced: Collection[str] = ()) -> str:
    """The file with `values` set. Pure. Raises `SettingError` for a value that a line cannot hold."""
    from dotenv import dotenv_values

    for name in silenced:
        text = _line_of(name).sub(r"# \g<0>", text)
    for name, value in values.items():
        line = f"{name}={value}"
        if dotenv_values(stream=io.StringIO(line), interpolate=False) != {name: value}:
            raise SettingError(f"{name} holds a character that {Path('.env')} cannot hold.")
        text = _line_of(name).sub("", text)
        text = f"{text.rstrip()}\n{line}\n" if text.strip() else f"{line}\n"
    return text


def _line_of(name: str) -> re.Pattern[str]:
    return re.compile(rf"^[ \t]*(?:export[ \t]+)?{re.escape(name)}[ \t]*=.*$\n?", re.MULTILINE)
