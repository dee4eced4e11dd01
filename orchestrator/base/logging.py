"""Logs: one line per event on stderr, for people at a terminal and JSON elsewhere, and a copy in a file.

Repeated lines are thinned out, so that failing in a loop does not fill the disk.
"""

from __future__ import annotations

import io
import json
import logging
import os
import queue
import re
import sys
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from io import TextIOWrapper
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from typing import Any, Self, TextIO, cast
from zoneinfo import ZoneInfo

import structlog

from orchestrator.base.clock import utc_stamp
from orchestrator.base.terminal_escaping import one_line, raw_stream, visible

_NOISY = ("asyncio", "uvicorn.error")
"""Loggers that write a line, or a traceback, for whatever a stranger does at a socket."""

_LEVEL = re.compile(r"(?:\[|\b)(debug|info|warning|error|critical)\b(?=\s*\]|\s)", re.IGNORECASE)
"""The level in a line that structlog or `logging` writes for a terminal."""
_CONSOLE = re.compile(
    r"(?P<at>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*) \[(?P<level>[a-z]+) *\] "
    r"(?P<event_and_fields>.*)"
)
_BEFORE_FIELDS = re.compile(r"(?<! ) ++(?=\w++=)")
_FIELD = re.compile(r"(?<!\w)(\w++)=('[^']*'|\"[^\"]*\"|\S+)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
FILE_BYTES = 5 * 1024 * 1024
OLDER_FILES = 3
"""Full files that are retained beside the current one: together at most 20 MiB."""
MAX_WAITING_LINES = 10_000
"""Lines that may wait for the disk. Further ones are dropped, since no caller may wait for a slow disk."""

MAX_THROTTLE_KEYS = 1_000
"""Keys that a `LogThrottle` remembers at most, since untrusted clients may send any number of them.

Further keys that come within one interval are throttled together, as one key.
"""
_OTHER_KEYS = object()
"""The key that stands for all keys of a `LogThrottle` which it does not remember."""


def configure(level: str, *, log_file: LogFile | None = None, is_quiet: bool = False) -> None:
    """Set up structlog and pass the libraries' own logging from `warning` on.

    `log_file` gets a copy of every line, as JSON. With `is_quiet` a terminal shows only errors, because the
    command prints sentences for people there; a program that reads stderr still gets every line. The
    libraries' loggers that write a line for whatever a client does (`_NOISY`) are throttled.
    """
    to_person = sys.stderr.isatty()
    renderer: structlog.typing.Processor = (
        # Not the default, which prints the values of all local variables: texts, tokens.
        structlog.dev.ConsoleRenderer(exception_formatter=_write_traceback)
        if to_person
        else structlog.processors.JSONRenderer(_to_json)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([log_file] if log_file else []),
            *([_drop_below_error] if to_person and is_quiet else []),
            _escape_texts if to_person else structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(
            cast("TextIO", _Lossy(raw_stream(sys.stderr) if to_person else sys.stderr))
        ),
        cache_logger_on_first_use=True,
    )
    to_stderr = logging.StreamHandler(sys.stderr)
    to_stderr.setLevel(logging.ERROR if to_person and is_quiet else logging.WARNING)
    logging.basicConfig(
        level=logging.WARNING, handlers=[to_stderr], format="%(levelname)s %(name)s %(message)s"
    )
    for name in _NOISY:
        logging.getLogger(name).addFilter(ThrottledLogger())
    if log_file is not None:
        logging.getLogger().addHandler(log_file.handler)


class _Lossy:
    """A stream that drops what cannot be written.

    stderr may be a file on a full disk. Whoever logs there, a loop that reports its failure among others, has
    to go on.
    """

    def __init__(self, stream: TextIO) -> None:
        """`stream` is the stream to write to."""
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text, or lose it if the stream is broken; return its length in either case."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream; what cannot be written is lost."""
        with suppress(OSError):
            self._stream.flush()


def _drop_below_error(
    _: object, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Return an event of level error or above; a processor of structlog. Raises `DropEvent` for others.

    `method` is the name of the logger's method that was called.
    """
    if method not in ("error", "critical", "exception", "fatal"):
        raise structlog.DropEvent
    return event


def _escape_texts(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Return an event with the control characters in its texts escaped; a processor of structlog.

    It comes before the event is coloured, which adds control characters.
    """
    return {name: one_line(value) if isinstance(value, str) else value for name, value in event.items()}


def _write_traceback(out: TextIO, error: structlog.typing.ExcInfo) -> None:
    """Write the traceback of an error to `out`, with its control characters escaped."""
    text = io.StringIO()
    structlog.dev.plain_traceback(text, error)
    out.write(visible(text.getvalue()))


def _to_json(fields: Any, **options: Any) -> str:
    """Return the fields of an event as one line of JSON. `options` are further arguments of `json.dumps`.

    Control characters, marks of direction and halves of surrogate pairs are escaped. Such halves stand for
    the bytes of a file name that are no UTF-8, and no file can be written with them.
    """
    return visible(json.dumps(fields, ensure_ascii=False, **options))


# The copy in a file


class LogFile:
    """A processor of structlog and a handler of logging, both writing to one file. Neither ever blocks."""

    def __init__(self, path: Path) -> None:
        """Lines for the file at `path` are queued, and written by a thread from `__enter__` on.

        Lines that come while `MAX_WAITING_LINES` wait are dropped.
        """
        lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        self.handler = _LineQueue(lines)
        self._listener = QueueListener(lines, _PrivateFile(path))
        self._render = structlog.processors.JSONRenderer(_to_json)

    def __enter__(self) -> Self:
        """Start the thread that writes the lines."""
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Write the waiting lines, end the thread, and close the file."""
        self._listener.stop()
        for handler in self._listener.handlers:
            handler.close()

    def __call__(self, logger: Any, name: str, event: Any) -> Any:
        """Queue a copy of an event that is on its way to stderr, and return the event unchanged."""
        copy = structlog.processors.format_exc_info(logger, name, dict(event))
        self.handler.take(self._render(logger, name, copy))
        return event


class _LineQueue(QueueHandler):
    """Lines on their way to the thread; those beyond its capacity are dropped."""

    queue: queue.SimpleQueue[logging.LogRecord]

    def take(self, line: str | bytes) -> None:
        """Queue a finished line; it is dropped if too many wait."""
        self.enqueue(logging.LogRecord("andy", logging.INFO, "", 0, line, None, None))

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return a library's record as one whose message is a line of JSON, like those of Andy's own log."""
        prepared = super().prepare(record)
        fields = {
            "event": prepared.getMessage(),
            "logger": record.name,
            "level": record.levelname.lower(),
            "timestamp": utc_stamp(round(record.created * 1000)),
        }
        # The file gets the message alone: the logger and the level of the new record do not matter.
        return logging.LogRecord("andy", logging.INFO, "", 0, _to_json(fields), None, None)

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue a record for the thread that writes; it is dropped if `MAX_WAITING_LINES` wait already."""
        if self.queue.qsize() < MAX_WAITING_LINES:
            self.queue.put_nowait(record)


class _PrivateFile(RotatingFileHandler):
    """A file for its owner only, created at the first line. A disk that cannot be
    written is reported once.
    """

    def __init__(self, path: Path) -> None:
        """`path` is the path of the newest file; older files get a number at the end of their names."""
        self._is_reported = False
        """Whether a failure to write was printed: only the first failure is."""
        super().__init__(path, maxBytes=FILE_BYTES, backupCount=OLDER_FILES, encoding="utf-8", delay=True)

    def _open(self) -> TextIOWrapper:
        """Open the log for appending: only this user may read it, and no link is followed.

        A missing folder is created.
        """
        path = Path(self.baseFilename)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return TextIOWrapper(os.fdopen(os.open(path, flags, 0o600), "ab"), encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's own name
        """Report on stderr, at the first error only, that the log file cannot be written."""
        del record
        if not self._is_reported:
            self._is_reported = True
            _write_own_line(sys.stderr, f"{self.baseFilename} cannot be written: {sys.exc_info()[1]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLogLine:
    """One line of a log, as people read it."""

    level: str
    """debug, info, warning, error or critical; empty if the line has none."""
    text: str
    at: datetime | None = None
    """The local time of the event; None for a line that is not Andy's."""
    event: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Its other fields, as text: `group`, `run`, `turn` and whatever else it has."""
    exception: str = ""


def read_line(line: str, zone: ZoneInfo) -> HostLogLine:
    """Return a line of a log file with its parts, and as text for people, with its time in `zone`.

    A line that is not Andy's JSON is read as one that was written for a terminal.
    """
    try:
        # Escaped again: JSON's own escapes are gone, and no page can be written with half a surrogate pair.
        fields = {name: visible(str(value)) for name, value in json.loads(line).items() if value is not None}
        event, level = fields.pop("event"), fields.pop("level", "")
        at = datetime.fromisoformat(fields.pop("timestamp")).astimezone(zone)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return _read_console_line(line, zone)
    exception = fields.pop("exception", "")
    fields_text = " ".join(f"{name}={value}" for name, value in fields.items())
    text = f"{at:%Y-%m-%d %H:%M:%S} [{level}] {event}" + (f"  {fields_text}" if fields_text else "")
    return HostLogLine(
        level=level,
        text=f"{text}\n{exception}" if exception else text,
        at=at,
        event=event,
        fields=fields,
        exception=exception,
    )


def _read_console_line(line: str, zone: ZoneInfo) -> HostLogLine:
    """Return a line that was written for a terminal with its parts; a time without a zone is in `zone`.

    Any other line has only its text and, where that names one, its level. Colours are removed.
    """
    bare = _COLOUR.sub("", line)
    match = _CONSOLE.fullmatch(bare)
    if match is None:
        level = _LEVEL.search(bare)
        return HostLogLine(level=level[1].lower() if level else "", text=bare)
    try:
        at = datetime.fromisoformat(match["at"])
    except ValueError:
        return HostLogLine(level=match["level"], text=bare)
    event, *fields = _BEFORE_FIELDS.split(match["event_and_fields"], maxsplit=1)
    return HostLogLine(
        level=match["level"],
        text=bare,
        at=at.astimezone(zone) if at.tzinfo else at.replace(tzinfo=zone),
        event=event,
        fields={name: value.strip("'\"") for name, value in _FIELD.findall("".join(fields))},
    )


def _write_own_line(stream: TextIO, text: str) -> None:
    """Write a line about Andy itself to a stream, without the logger."""
    stream.write(f"andy: {text}\n")
    stream.flush()


# What comes again and again


class LogThrottle:
    """Passes the first event of a key, then one every `seconds`; counts those in between.

    While it remembers `MAX_THROTTLE_KEYS` keys whose next event does not pass yet, all others count as one.
    """

    def __init__(self, *, seconds: float = 10.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`seconds` is the time between two events of a key that pass; `monotonic` returns a time in seconds
        that only goes forward.
        """
        self._seconds = seconds
        self._monotonic = monotonic
        self._passes_at: dict[Hashable, float] = {}
        """Map each key to the time, by `monotonic`, from which its next event passes; the earliest first."""
        self._dropped_counts: dict[Hashable, int] = {}
        """Map each key to the number of its events that were dropped since the last that passed."""

    def passes(self, key: Hashable) -> bool:
        """Return whether an event of this key may be written now; count it as dropped if not."""
        now = self._monotonic()
        if key not in self._passes_at:
            key = self._key_for_new(key, now)
        if now < self._passes_at.get(key, now):
            self._dropped_counts[key] = self._dropped_counts.get(key, 0) + 1
            return False
        # Removed first, so that it comes to the end: the order is that of the times.
        self._passes_at.pop(key, None)
        self._passes_at[key] = now + self._seconds
        return True

    def take_dropped(self, key: Hashable) -> int:
        """Return how many events of a key were dropped since the last that passed, and reset the count.

        Call it after `passes`. Keys beyond `MAX_THROTTLE_KEYS` have one common count. It also contains the
        events that were not reported before their keys were forgotten.
        """
        return self._dropped_counts.pop(key if key in self._passes_at else _OTHER_KEYS, 0)

    def _key_for_new(self, key: Hashable, now: float) -> Hashable:
        """Return the key under which to throttle a key that is not remembered yet.

        That is the key itself if there is room for it, or if room can be made: the remembered key whose pause
        ends first is forgotten, if its pause has ended by `now`, and its dropped events are counted under
        `_OTHER_KEYS`. Without room, `_OTHER_KEYS` is returned, which stands for all further keys.
        """
        if len(self._passes_at) < MAX_THROTTLE_KEYS:
            return key
        oldest, due = next(iter(self._passes_at.items()))
        if now < due:
            return _OTHER_KEYS
        del self._passes_at[oldest]
        if dropped_count := self._dropped_counts.pop(oldest, 0):
            self._dropped_counts[_OTHER_KEYS] = self._dropped_counts.get(_OTHER_KEYS, 0) + dropped_count
        return key


class ThrottledLogger(logging.Filter):
    """Throttles the lines of one logger, and reports with the next of a kind how many were dropped."""

    def __init__(self, throttle: LogThrottle | None = None) -> None:
        """`throttle` decides which lines pass; None is one with the usual interval."""
        super().__init__()
        self._throttle = throttle or LogThrottle()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record. One that is logged says how many like it were not logged before."""
        # The lines after the first differ with each event: a socket's number, a traceback.
        key = str(record.msg).partition("\n")[0]
        if not self._throttle.passes(key):
            return False
        if dropped_count := self._throttle.take_dropped(key):
            record.msg = f"(and {dropped_count} more like this were not logged) {record.msg}"
        return True
