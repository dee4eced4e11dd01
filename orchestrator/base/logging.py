"""Logs: one line an event on stderr, for people at a terminal, JSON elsewhere."""

from __future__ import annotations

import io
import logging
import sys
from typing import TextIO

import structlog

from orchestrator.base.log_file import LogFile
from orchestrator.base.log_throttle import ThrottledLogger
from orchestrator.base.terminal_escaping import one_line, raw_stream, visible

_NOISY = ("asyncio", "uvicorn.error")
"""Loggers that say a line, or a traceback, for whatever a stranger at a socket does."""


def configure(level: str, *, kept: LogFile | None = None) -> None:
    """Set up structlog and let the libraries' own logging through from `warning`.

    `kept` gets a copy of every line, as JSON.
    """
    to_person = sys.stderr.isatty()
    renderer: structlog.typing.Processor = (
        # Not the default, which prints the values of all local variables: texts, tokens.
        structlog.dev.ConsoleRenderer(exception_formatter=_write_traceback)
        if to_person
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([kept] if kept else []),
            _write_out if to_person else structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(raw_stream(sys.stderr) if to_person else sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    for name in _NOISY:
        logging.getLogger(name).addFilter(ThrottledLogger())
    if kept is not None:
        logging.getLogger().addHandler(kept.handler)


def _write_out(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape the values of a line that is then coloured."""
    return {name: one_line(value) if isinstance(value, str) else value for name, value in event.items()}


def _write_traceback(out: TextIO, error: structlog.typing.ExcInfo) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, error)
    out.write(visible(text.getvalue()))
