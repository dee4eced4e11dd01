"""Speed, as ratios measured in one run.

`python -m benchmarks [NAME…]` measures; `docs/benchmarks.md` says what and why. Nothing here is a test: a
shared machine cannot promise a time, but two things measured in turns on it can be compared.
"""

import sys
from pathlib import Path
from types import ModuleType

_TESTS = str(Path(__file__).resolve().parents[1] / "tests")
# Benchmarks use the doubles in `tests/`. An installed library also has a package named `tests`, which Python
# would find first: this one takes its name.
if "tests" not in sys.modules:  # where a test imports this, pytest has done it already
    sys.modules["tests"] = ModuleType("tests")
    sys.modules["tests"].__path__ = [_TESTS]
