"""The library in a test's process: `pytest.importorskip` this before anything that imports the library."""

from __future__ import annotations

import subprocess
import warnings

with warnings.catch_warnings():
    # It asks `uname` on its way in, and leaves the process and its pipe to whoever starts the next one.
    warnings.simplefilter("ignore", ResourceWarning)
    import neonize.aioze.client  # noqa: F401

    while subprocess._active:  # type: ignore[attr-defined]
        subprocess._cleanup()  # type: ignore[attr-defined]
