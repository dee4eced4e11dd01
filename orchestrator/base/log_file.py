"""The host's own log on disk: JSON lines in `data/logs/andy.log`, rotated, written by a thread of its own."""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
from io import TextIOWrapper
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from typing import Any, Self, TextIO

import structlog

from orchestrator.base.clock import utc_stamp

FILE_BYTES = 5 * 1024 * 1024
OLDER_FILES = 3
MOST_WAITING = 10_000
NAME = "andy.log"


class LogFile:
    """A processor of structlog and a handler of logging, both into one file. Neither ever blocks."""

    def __init__(self, folder: Path) -> None:
        lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        self.handler = _Waiting(lines)
        self._listener = QueueListener(lines, _Private(folder / NAME))
        self._render = structlog.processors.JSONRenderer(ensure_ascii=False)

    def __enter__(self) -> Self:
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Write what waits."""
        self._listener.stop()

    def __call__(self, logger: Any, name: str, event: Any) -> Any:
        """Keep a copy of an event that is on its way to stderr."""
        copy = structlog.processors.format_exc_info(logger, name, dict(event))
        self.handler.take(self._render(logger, name, copy))
        return event


class _Waiting(QueueHandler):
    """Lines on their way to the thread; what is too much for it is left out."""

    queue: queue.SimpleQueue[logging.LogRecord]

    def take(self, line: str | bytes) -> None:
        self.enqueue(logging.LogRecord("andy", logging.INFO, "", 0, line, None, None))

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """A library's record as a line like our own."""
        prepared = super().prepare(record)
        told = {
            "event": prepared.getMessage(),
            "logger": record.name,
            "level": record.levelname.lower(),
            "timestamp": utc_stamp(round(record.created * 1000)),
        }
        return logging.LogRecord(
            "andy", logging.INFO, "", 0, json.dumps(told, ensure_ascii=False), None, None
        )

    def enqueue(self, record: logging.LogRecord) -> None:
        if self.queue.qsize() < MOST_WAITING:
            self.queue.put_nowait(record)


class _Private(RotatingFileHandler):
    """A file for its owner alone, made at the first line. A disk that takes nothing is told once."""

    def __init__(self, path: Path) -> None:
        self._is_told = False
        super().__init__(path, maxBytes=FILE_BYTES, backupCount=OLDER_FILES, encoding="utf-8", delay=True)

    def _open(self) -> TextIOWrapper:
        path = Path(self.baseFilename)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        how = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return TextIOWrapper(os.fdopen(os.open(path, how, 0o600), "ab"), encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's own name
        del record
        if not self._is_told:
            self._is_told = True
            _complain(sys.stderr, f"{self.baseFilename} cannot be written: {sys.exc_info()[1]}")


def _complain(stream: TextIO, text: str) -> None:
    stream.write(f"andy: {text}\n")
    stream.flush()
