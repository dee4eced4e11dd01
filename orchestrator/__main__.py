"""`andy`, and `python -m orchestrator`. Help and version are printed before anything slow is imported."""

from __future__ import annotations

import gc
import sys

from orchestrator import __version__

IMPORTED_OBJECTS = 100_000
"""More objects than the imports of a command make."""


def main() -> None:
    """Run the command line and exit."""
    try:
        _run()
    except KeyboardInterrupt:  # while modules are imported; a command that has started handles it itself
        sys.exit(130)  # 128 and the number of the signal, as shells say it


def _run() -> None:
    """Print the version or the help page, or run the command that the arguments name.

    `andy up` with simple options runs without the library of the command line, which is slow to load, and
    then exits the process.
    """
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-V"]):
        _write(f"{__version__}\n")
        return
    if arguments in ([], ["--help"], ["-h"], ["help"]):
        from orchestrator.cli import commands

        _write(commands.help_page())
        return
    # Imported objects are never garbage, but searching them for it takes a sixth of the time of a start. With
    # this limit the collector does not run while modules are imported.
    gc.set_threshold(IMPORTED_OBJECTS)
    if arguments[0] == "up":
        from orchestrator.cli import exit_codes, host_process

        if (options := host_process.plain_options(arguments[1:])) is not None:
            exit_codes.exit_after(lambda: host_process.run_plain(options))
    from orchestrator.cli import main as cli

    cli.main()


def _write(text: str) -> None:
    """Print a text at once; exit if it cannot be written, such as to a full disk."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        from orchestrator.cli import exit_codes

        exit_codes.end_unwritten(error)


if __name__ == "__main__":
    main()
