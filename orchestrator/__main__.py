"""`andy`, and `python -m orchestrator`. The version is told before anything slow is imported."""

from __future__ import annotations

import sys

from orchestrator import __version__


def main() -> None:
    if sys.argv[1:] in (["--version"], ["-V"]):
        sys.stdout.write(f"{__version__}\n")
        return
    from orchestrator.cli import main as cli

    cli.main()


if __name__ == "__main__":
    main()
