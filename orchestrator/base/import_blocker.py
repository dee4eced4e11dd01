"""Prevents a library from loading optional other libraries into this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(*modules: str) -> Iterator[None]:
    """Make `import` of these modules fail inside the block, as if they were not installed.

    It is for an optional dependency that a library loads whenever it is installed. A module that was imported
    before stays importable.
    """
    absent = [module for module in modules if module not in sys.modules]
    # An `import` of a module whose entry here is None fails at once, without a search.
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for module in absent:
            del sys.modules[module]
