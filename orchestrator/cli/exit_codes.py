"""Ends `andy` with its exit code, and shows an error as one line for the person who called it."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from orchestrator.base.terminal_escaping import escaped_output
from orchestrator.domain.errors import AndyError, BadRequest, NotRunning, UnknownTask, leaves

FAILED, USAGE, NOT_RUNNING = 1, 2, 3
NOT_ANSWERED, NOT_FOR_ANDY = 4, 5
"""Exit codes of `andy chat -m`: the reply did not arrive in time, and the message did not call Andy."""
INTERRUPTED = 130
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk."""
MAX_SHOWN_CHARS = 1000
"""Characters of an error's text that are shown."""


class UsageError(BadRequest):
    """The arguments of a command are invalid: `andy` exits with 2, as for an unknown option."""

    code = "usage"


def exit_after(command: Callable[[], int]) -> NoReturn:
    """Run a command and exit with the code that it returns, or with the code of the error that it raises.

    If the reader of its output is gone, it exits with 0; after Ctrl-C, with `INTERRUPTED`; after the end of
    the input at a question, with `FAILED`. An `OSError` ends as `end_unwritten` says. Any other error that is
    not Andy's is raised again.
    """
    with escaped_output():
        try:
            code = command()
            sys.stdout.flush()
            sys.exit(code)
        except AndyError as error:
            _fail(error)
        except BaseExceptionGroup as group:
            errors = leaves(group)
            if any(isinstance(error, BrokenPipeError) for error in errors):
                _end_quietly()
            own_errors = [error for error in errors if isinstance(error, AndyError)]
            if not own_errors:
                raise
            _fail(own_errors[0])
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except EOFError:  # Ctrl-D at a question
            print("\nandy: Nothing was typed, so nothing more is done.", file=sys.stderr)
            sys.exit(FAILED)
        except OSError as error:
            end_unwritten(error)
        except SystemExit as ended:
            # rich, which prints help pages, exits with 1 when the reader of a pipe is gone.
            if isinstance(ended.__context__, BrokenPipeError):
                _end_quietly()
            raise


def end_unwritten(error: OSError) -> NoReturn:
    """Exit from a command that failed with an error of the operating system.

    The output cannot be written, since its reader is gone or the disk is full; or the command named a file or
    folder of another user. Any other error is raised again.
    """
    if isinstance(error, BrokenPipeError):
        _end_quietly()
    if isinstance(error, PermissionError) and error.filename is not None:
        path = shortened(str(error.filename))
        fix = "name another place, or call andy as the user who owns it"
        print(f"andy: {path} cannot be read or written ({error.strerror}): {fix}.", file=sys.stderr)
        sys.exit(FAILED)
    if error.errno not in UNWRITABLE:
        raise error
    print(
        f"andy: The output cannot be written ({error.strerror}): make room, and try again.", file=sys.stderr
    )
    # Python flushes stdout once more at its exit, and would report the same error again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(FAILED)


def _end_quietly() -> NoReturn:
    """Exit without an error after the reader of a pipe, such as `head`, has closed it."""
    sys.stderr.close()  # Python would report there that it cannot flush stdout
    sys.exit(0)


def shortened(text: str) -> str:
    """Return the text of an error; without its middle, if it is longer than `MAX_SHOWN_CHARS`.

    An error may quote a long input, and its text ends with the fix.
    """
    if len(text) <= MAX_SHOWN_CHARS:
        return text
    half = MAX_SHOWN_CHARS // 2
    return f"{text[:half]} … {text[-half:]}"


def _fail(error: AndyError) -> NoReturn:
    """Print the text of an error on stderr, and exit with the code for its class."""
    # Imported here, since most commands end without an error.
    from orchestrator.base.installation import as_typed_here

    fix = " See 'andy tasks list'." if isinstance(error, UnknownTask) else ""
    text = f"{shortened(str(error))}{fix}"
    print(f"andy: {as_typed_here(text)}", file=sys.stderr)
    match error:
        case NotRunning():
            sys.exit(NOT_RUNNING)
        case UsageError():
            sys.exit(USAGE)
        case _:
            sys.exit(FAILED)
