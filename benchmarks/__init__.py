"""Speed, as ratios measured in one run.

`python -m benchmarks [NAME…]` measures; `docs/benchmarks.md` says what and why. Nothing here is a test: a
shared machine cannot promise a time, but two things measured in turns on it can be compared.
"""

import sys
from pathlib import Path
from types import ModuleType

_TESTS = str(Path(__file__).resolve().parents[1] / "tests")
# For the scripted Messages API in `tests/doubles`. An installed library owns the name `tests`, by which the
# modules there import each other: it is taken from it.
sys.path.append(_TESTS)
if "tests" not in sys.modules:  # where tests import this they have it already
    sys.modules["tests"] = ModuleType("tests")
    sys.modules["tests"].__path__ = [_TESTS]
