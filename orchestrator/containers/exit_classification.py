"""What the end of a container means: for the log, for the person waiting, for the turn that was in it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.domain.errors import ContainerError, EngineGone, ImageMissing
from orchestrator.domain.failures import Fault
from orchestrator.domain.protocols import Exit

SIGTERM_CODE, SIGKILL_CODE = 143, 137
MAX_DETAIL_CHARS = 500


class Kind(StrEnum):
    CLOSED = "closed"
    """It ended well."""
    STOPPED = "stopped"
    """Somebody asked it to end."""
    TIMED_OUT = "timed_out"
    OOM_KILLED = "oom_killed"
    CRASHED = "crashed"
    LOST = "lost"
    """Nobody saw how it ended."""
    REFUSED = "refused"
    """The runtime did not start it."""
    IMAGE_MISSING = "image_missing"
    ENGINE_GONE = "engine_gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended. `reason` finishes a sentence for a person; `detail` is for the log.

    A turn still open in the run is tried again if `is_retryable`.
    """

    kind: Kind
    reason: str
    is_retryable: bool
    detail: str = ""

    @property
    def fault(self) -> Fault:
        """Whose fault it is: that nothing could be started is none of the turn's."""
        match self.kind:
            case Kind.ENGINE_GONE:
                return Fault.ENGINE
            case Kind.IMAGE_MISSING | Kind.REFUSED | Kind.LOST:
                return Fault.HOST
            case _:
                return Fault.TURN


def classify(end: Exit | ContainerError | OSError, *, failure: str | None = None) -> Outcome:
    """Judge an exit, or what kept a container from starting or being heard.

    `failure` is what the runner itself said was wrong, if it said so before it ended.
    """
    match end:
        case Exit():
            return _of_exit(end, failure)
        case ImageMissing():
            return _outcome(Kind.IMAGE_MISSING, "my container image is missing.", end, is_retryable=False)
        case EngineGone():
            return _outcome(Kind.ENGINE_GONE, "Docker does not answer.", end)
        case ContainerError():
            return _outcome(Kind.REFUSED, "my container could not be started.", end)
        case OSError():
            return _outcome(Kind.REFUSED, "my folders could not be prepared.", end)


def _of_exit(end: Exit, failure: str | None) -> Outcome:
    kind, reason = _cause(end)
    return Outcome(kind=kind, reason=failure or reason, is_retryable=True, detail=_last_line(end.stderr_tail))


def _cause(end: Exit) -> tuple[Kind, str]:
    if end.was_oom_killed:
        return Kind.OOM_KILLED, "I ran out of memory."
    match end.code:
        case None:
            return Kind.LOST, "my container vanished."
        case 0:
            return Kind.CLOSED, "my container ended before I had answered."
        case code if code == SIGTERM_CODE:
            return Kind.STOPPED, "my container was stopped."
        case code if code == SIGKILL_CODE:
            return Kind.CRASHED, "my container was killed."
        case code:
            return Kind.CRASHED, f"my container crashed (exit code {code})."


def _outcome(kind: Kind, reason: str, error: Exception, *, is_retryable: bool = True) -> Outcome:
    return Outcome(kind=kind, reason=reason, is_retryable=is_retryable, detail=str(error))


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][-MAX_DETAIL_CHARS:] if lines else ""
