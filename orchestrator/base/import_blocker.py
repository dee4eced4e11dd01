"""Keeps a library out of this process that another one would load with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(module: str) -> Iterator[None]:
    """Let `import module` fail inside the block, as if it were not installed; it can be imported afterwards.

    For a library that is an extra of another one, which loads it where it is installed.
    """
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]
