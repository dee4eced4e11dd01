"""On the path of a test's processes: the bridge gets a client that talks to the test's phone."""

from __future__ import annotations

import sys
import types
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]

if "orchestrator.channels.whatsapp.bridge" in sys.orig_argv:
    # Some library installs a package of this name, which would win over a directory without a file in it.
    package = sys.modules["tests"] = types.ModuleType("tests")
    package.__path__ = [str(TESTS)]

    from orchestrator.channels.whatsapp import library

    def _load() -> object:
        from tests.processes.whatsapp_bridge import remote_client

        return remote_client

    library.load = _load
