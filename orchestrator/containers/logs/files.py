"""The log files of runs, `data/logs/{folder}/{utc time}-{run}.log`: their names, lines and removal."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.base.clock import utc_stamp

MAX_FILES = 50
"""Log files that each group retains."""
MAX_AGE_MS = 14 * 24 * 3_600_000
"""Milliseconds after its last change at which a log is removed."""
PRIVATE_DIRECTORY, PRIVATE_FILE = 0o700, 0o600
_NAME = re.compile(r"^(?P<time>\d{8}T\d{6}Z)-(?P<run>[\w-]+)\.log$", re.ASCII)
# Only at the beginning of a line, where the host writes: the container's own text may say the same.
_STDERR = re.compile(rb"^\S+Z stderr@(\d{1,18})\| ", re.MULTILINE)
_FACT = re.compile(r" (\w+)=(\"(?:[^\"\\]|\\.)*\"|[^\s\"]+)")
_EVENT = re.compile(rf"^(?P<at>\S+Z) (?P<kind>[a-z_]+\.[a-z_]+)(?P<facts>(?:{_FACT.pattern})*)$")
_BARE = re.compile(r"^[\w.:/,@+-]+$", re.ASCII)
# Bytes at the end of a log in which the position of the last logged stderr is looked for.
_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """The log file of one run."""

    path: Path
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """One event of a run, parsed from its log."""

    at_ms: int
    kind: str
    facts: dict[str, str]


def path_of(root: Path, folder: str, run: str, started_ms: int) -> Path:
    """Return the path of a run's log; its name begins with the time of the run's start."""
    at = datetime.fromtimestamp(started_ms / 1000, UTC)
    return root / folder / f"{at:%Y%m%dT%H%M%SZ}-{run}.log"


def of_group(root: Path, folder: str) -> list[RunFile]:
    """Return a group's logs, the oldest first; none if the group has no folder of logs.

    Files with other names than logs have are left out.
    """
    try:
        # Names begin with the time of the run's start.
        names = sorted(path.name for path in (root / folder).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    matches = [(name, _NAME.match(name)) for name in names]
    return [RunFile(path=root / folder / name, run=match["run"]) for name, match in matches if match]


def event_line(at_ms: int, kind: str, facts: Mapping[str, object]) -> str:
    """Return a line such as `2026-11-22T03:15:01.123Z turn.put_back turn=3 reason="I ran out of memory."`.

    `facts` are the fields after the event's name, `kind`. A field whose value is None is left out.
    """
    fields = "".join(f" {name}={_format_value(value)}" for name, value in facts.items() if value is not None)
    return f"{utc_stamp(at_ms)} {kind}{fields}\n"


def read_event(line: str) -> LoggedEvent | None:
    """Parse one line of a log into its event; return None for a line of stderr, and for an incomplete one."""
    match = _EVENT.match(line.rstrip("\n"))
    if match is None:
        return None
    try:
        facts = {name: _parse_value(value) for name, value in _FACT.findall(match["facts"])}
        at = datetime.fromisoformat(match["at"])
    except ValueError:
        # A full disk cuts a line anywhere, and the next line then goes on right behind it.
        return None
    return LoggedEvent(at_ms=round(at.timestamp() * 1000), kind=match["kind"], facts=facts)


def stderr_line(at_ms: int, end: int, text: str) -> str:
    """Return the log line for a piece of stderr, in a form that cannot be taken for an event.

    `end` is the position in the stream at which the piece ends, in bytes.
    """
    return f"{utc_stamp(at_ms)} stderr@{end}| {printable(text)}\n"


def printable(text: str) -> str:
    """Return `text` on one line, safe for a terminal: control and invisible characters become escapes."""
    if text.isprintable():
        return text
    return "".join(
        character
        # Blanks that stay: the tab, the wide one of East Asian texts, and the one that breaks no line.
        if character.isprintable() or character in "\t\u3000\xa0"
        else character.encode("unicode_escape").decode()
        for character in text
    )


def append(path: Path, text: str, *, creates: bool) -> int:
    """Append to a log that only its owner can read, and return its new size in bytes.

    With `creates` a missing file and its folders are created; otherwise a missing file is an error.

    Raises:
        OSError: it cannot be written, or is not a plain file.
    """
    if creates:
        for folder in (path.parent.parent, path.parent):
            folder.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    # Without O_NONBLOCK, opening a pipe would wait for somebody to read from it.
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags | (os.O_CREAT if creates else 0), PRIVATE_FILE)
    with os.fdopen(descriptor, "ab") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", str(path))
        file.write(text.encode())
        return file.tell()


def handled_bytes(path: Path) -> int:
    """Return the number of bytes of a container's stderr that its log already covers; 0 without a log.

    The last line of stderr in the log names the number. It is looked for in the last `_TAIL_BYTES` of the
    file; without one there, 0 is returned.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = file.seek(max(0, size - _TAIL_BYTES))
            if start:
                file.readline()  # the rest of a line, which is the container's text
            ends = _STDERR.findall(file.read())  # the positions in the stream at which logged lines end
    except FileNotFoundError:
        return 0
    return int(ends[-1]) if ends else 0


def prune(root: Path, *, now_ms: int, keep: Collection[Path]) -> int:
    """Remove each group's logs beyond the newest `MAX_FILES`, and those older than `MAX_AGE_MS`.

    The files in `keep` are never removed. `root` has one folder for each group. Return how many files were
    removed. Raises `OSError`.
    """
    removed = 0
    for folder in _folders(root):
        for path in _surplus(root, folder, now_ms):
            if path not in keep:
                path.unlink(missing_ok=True)
                removed += 1
    return removed


def _folders(root: Path) -> list[str]:
    """Return the names of the folders in `root`, each of which has the logs of one group."""
    try:
        with os.scandir(root) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _surplus(root: Path, folder: str, now_ms: int) -> list[Path]:
    """Return the logs of a group beyond the newest `MAX_FILES`, and those older than `MAX_AGE_MS`."""
    surplus = []
    for newer_logs, log in enumerate(reversed(of_group(root, folder))):
        changed_ms = log.path.lstat().st_mtime_ns // 1_000_000
        if newer_logs >= MAX_FILES or now_ms - changed_ms > MAX_AGE_MS:
            surplus.append(log.path)
    return surplus


def _format_value(value: object) -> str:
    """Return the value of an event's field as it is written to the log, on one line.

    It is plain if it has only simple characters, else a JSON string.
    """
    text = printable(str(value).replace("\n", " "))
    return text if _BARE.match(text) else json.dumps(text, ensure_ascii=False)


def _parse_value(value: str) -> str:
    """Return the value of an event's field from its written form, which is plain or a JSON string."""
    return str(json.loads(value)) if value.startswith('"') else value
