"""Import the WhatsApp library in a test's process.

Call `pytest.importorskip` on this module before any import that needs the library.
"""

from __future__ import annotations

import subprocess
import warnings

with warnings.catch_warnings():
    # On import, the library runs `uname` and leaves the process and its pipe open. Clean them up here: Python
    # would do so, with a warning, when some later test starts a process.
    warnings.simplefilter("ignore", ResourceWarning)
    import neonize.aioze.client  # noqa: F401

    while subprocess._active:  # type: ignore[attr-defined]
        subprocess._cleanup()  # type: ignore[attr-defined]
