"""Run pytest, then run its failed tests again, alone: `python tests/support/second_look.py NAME -m docker …`.

Tests with real engines, browsers and networks sometimes fail because of the machine that they share. A test
that fails again while nothing else runs is red. One that passes then is printed, because it or the product
has a fault to look for. More than `MOST` failures are no coincidence, so none is run again; nor is anything
run again when pytest itself ends with an error.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MOST = 3
"""Most failed tests that are run again; with more, none is."""
PYTEST = (sys.executable, "-m", "pytest")
CACHES = Path(__file__).parents[2] / ".pytest_cache" / "second_look"


def main(name: str, *options: str) -> int:
    cache = CACHES / name
    failed_file = cache / "v" / "cache" / "lastfailed"
    failed_file.unlink(missing_ok=True)
    code = subprocess.call([*PYTEST, "-o", f"cache_dir={cache}", *options])
    if code != 1 or not failed_file.exists():
        return code
    failed = sorted(json.loads(failed_file.read_text()))
    if len(failed) > MOST:
        return code
    print(f"\n{len(failed)} failed beside others, and run once more, alone:", *failed, sep="\n  ", flush=True)
    code = subprocess.call([*PYTEST, *(each for each in options if each == "--leftovers"), *failed])
    if code == 0:
        print("Red at first, green alone. Each has a fault to look for:", *failed, sep="\n  ", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
