"""Keeps libraries out of this process that another one would load with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(*modules: str) -> Iterator[None]:
    """Let `import` of these fail inside the block, as if they were not installed; afterwards they can be.

    For a library that is an extra of another one, which loads it where it is installed.
    """
    absent = [module for module in modules if module not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for module in absent:
            del sys.modules[module]
