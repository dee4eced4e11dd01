"""`andy`, and `python -m orchestrator`. What needs no command is told before anything slow is imported."""

from __future__ import annotations

import sys

from orchestrator import __version__


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
    from orchestrator.cli import main as cli

    cli.main()


if __name__ == "__main__":
    main()
