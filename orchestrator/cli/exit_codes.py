"""How `andy` ends: its exit codes, and an error as one line for the person who called it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from orchestrator.base.terminal_escaping import escaped_output
from orchestrator.domain.errors import AndyError, BadRequest, NotRunning, UnknownTask, leaves

FAILED, USAGE, NOT_RUNNING = 1, 2, 3
INTERRUPTED = 130
MOST_SHOWN = 1000
"""Characters of an error."""


class UsageError(BadRequest):
    """What was typed after `andy` cannot be read: `andy` exits with 2, as for an unknown option."""

    code = "usage"


def exit_after(command: Callable[[], int]) -> NoReturn:
    """Run a command and exit with the code that it returns, or with that of the error that leaves it."""
    with escaped_output():
        try:
            sys.exit(command())
        except AndyError as error:
            _fail(error)
        except BaseExceptionGroup as group:
            known = [error for error in leaves(group) if isinstance(error, AndyError)]
            if not known:
                raise
            _fail(known[0])
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            sys.stderr.close()
            sys.exit(0)


def shortened(text: str) -> str:
    """Return a text that fits a terminal: what was typed stands in errors, and the fix at their end."""
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN // 2]} … {text[-MOST_SHOWN // 2 :]}"


def _fail(error: AndyError) -> NoReturn:
    fix = " See 'andy tasks list'." if isinstance(error, UnknownTask) else ""
    print(f"andy: {shortened(str(error))}{fix}", file=sys.stderr)
    match error:
        case NotRunning():
            sys.exit(NOT_RUNNING)
        case UsageError():
            sys.exit(USAGE)
        case _:
            sys.exit(FAILED)
