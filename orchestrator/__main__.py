"""`andy`, and `python -m orchestrator`. What needs no command is told before anything slow is imported."""

from __future__ import annotations

import gc
import sys

from orchestrator import __version__

IMPORTED_OBJECTS = 100_000
"""More objects than the imports of a command make."""


def main() -> None:
    """Run the command line and exit."""
    words = sys.argv[1:]
    if words in (["--version"], ["-V"]):
        sys.stdout.write(f"{__version__}\n")
        return
    if words in ([], ["--help"], ["-h"]):
        from orchestrator.cli import commands

        sys.stdout.write(commands.help_page())
        return
    # What is imported stays: to look through it for garbage, again and again, is a sixth of a start.
    gc.set_threshold(IMPORTED_OBJECTS)
    from orchestrator.cli import main as cli

    cli.main()


if __name__ == "__main__":
    main()
