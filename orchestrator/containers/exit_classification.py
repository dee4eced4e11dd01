"""What the end of a container means: for the log, for the person waiting, for the turn that was in it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.domain.errors import ContainerError, EngineGone, ImageMissing
from orchestrator.domain.failures import FailureOwner
from orchestrator.domain.protocols import Exit

SIGTERM_CODE, SIGKILL_CODE = 143, 137
MAX_DETAIL_CHARS = 500


class RunEndKind(StrEnum):
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
class RunEnd:
    """How a run ended. `reason` finishes a sentence for a person; `detail` is for the log.

    A turn still open in the run is tried again if `is_retryable`.
    """

    kind: RunEndKind
    reason: str
    is_retryable: bool
    detail: str = ""

    @property
    def fault(self) -> FailureOwner:
        """Whose fault it is: that nothing could be started is none of the turn's."""
        match self.kind:
            case RunEndKind.ENGINE_GONE:
                return FailureOwner.ENGINE
            case RunEndKind.IMAGE_MISSING | RunEndKind.REFUSED | RunEndKind.LOST:
                return FailureOwner.HOST
            case _:
                return FailureOwner.TURN


def classify(end: Exit | ContainerError | OSError, *, failure: str | None = None) -> RunEnd:
    """Judge an exit, or what kept a container from starting or being heard.

    `failure` is what the runner itself said was wrong, if it said so before it ended.
    """
    match end:
        case Exit():
            return _of_exit(end, failure)
        case ImageMissing():
            return _outcome(
                RunEndKind.IMAGE_MISSING, "my container image is missing.", end, is_retryable=False
            )
        case EngineGone():
            return _outcome(RunEndKind.ENGINE_GONE, "Docker does not answer.", end)
        case ContainerError():
            return _outcome(RunEndKind.REFUSED, "my container could not be started.", end)
        case OSError():
            return _outcome(RunEndKind.REFUSED, "my folders could not be prepared.", end)


def _of_exit(end: Exit, failure: str | None) -> RunEnd:
    kind, reason = _cause(end)
    return RunEnd(kind=kind, reason=failure or reason, is_retryable=True, detail=_last_line(end.stderr_tail))


def _cause(end: Exit) -> tuple[RunEndKind, str]:
    if end.was_oom_killed:
        return RunEndKind.OOM_KILLED, "I ran out of memory."
    match end.code:
        case None:
            return RunEndKind.LOST, "my container vanished."
        case 0:
            return RunEndKind.CLOSED, "my container ended before I had answered."
        case code if code == SIGTERM_CODE:
            return RunEndKind.STOPPED, "my container was stopped."
        case code if code == SIGKILL_CODE:
            return RunEndKind.CRASHED, "my container was killed."
        case code:
            return RunEndKind.CRASHED, f"my container crashed (exit code {code})."


def _outcome(kind: RunEndKind, reason: str, error: Exception, *, is_retryable: bool = True) -> RunEnd:
    return RunEnd(kind=kind, reason=reason, is_retryable=is_retryable, detail=str(error))


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][-MAX_DETAIL_CHARS:] if lines else ""
