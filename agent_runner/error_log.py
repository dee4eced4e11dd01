"""Reports a failure: to the host in one line, to the log without the conversation."""

from __future__ import annotations

import logging
import traceback

logger = logging.getLogger(__name__)

MAX_REASON_CHARS = 500
"""Most characters of the reason of an error."""


def one_line(error: BaseException) -> str:
    """Return an error's type and message in one line that fits a frame."""
    words = " ".join(str(error).split()) or "no reason given"
    return f"{type(error).__name__}: {words}".encode("utf-8", "replace").decode("utf-8")[:MAX_REASON_CHARS]


def log_fault(activity: str, error: BaseException) -> None:
    """Log an error's type and where it was raised, without its message, which may quote the conversation.

    `activity` says what failed: it is the beginning of the line.
    """
    places = "".join(traceback.format_tb(error.__traceback__))
    logger.error("%s: %s\n%s", activity, type(error).__name__, places)
