"""Import the Claude Agent SDK without the `mcp` package.

The SDK imports `mcp` at its top for servers of tools that run inside Python, and `mcp` builds some 500
pydantic models. Our tools do without it (`tools.mcp_server`), so empty stand-ins are in its place while the
SDK is imported. From the start of the runner to the first request for the model it takes 1.6 s with them and
3.5 s with a plain import (medians of 11 runs in turns on two busy cores). If it ever fails, the SDK is
imported as it is.

This leans on the inside of one release, so `pyproject.toml` pins the SDK exactly, and
`tests/integration/test_runner_start.py` fails when another one is installed, or when it is imported slowly.
"""

from __future__ import annotations

import importlib
import logging
import sys
from types import ModuleType

logger = logging.getLogger(__name__)

SDK = "claude_agent_sdk"
ABSENT = (
    "mcp",
    "mcp.types",
    "mcp.server",
    "mcp.shared",
    "mcp.shared.memory",
    "mcp.shared.message",
    "jsonschema",  # checks the arguments of such a server's tools
)
"""Modules that the SDK imports and we do not need."""
NEEDED = (
    SDK,
    f"{SDK}._internal.query",
    f"{SDK}._internal.message_parser",
    f"{SDK}._internal.session_resume",
    f"{SDK}._internal.session_store_validation",
    f"{SDK}._internal.transport.subprocess_cli",
)
"""Modules that connecting and prompting import, all while the stand-ins are there."""


class StandIn(ModuleType):
    """A module with an empty class under any name, so that the SDK can import what we never use from it."""

    def __getattr__(self, name: str) -> type:
        """Return an empty class; names such as `__path__` are missing, as in a module that is no package."""
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Nothing,), {})


class Nothing:
    """Replaces a class that is only named."""

    def __init_subclass__(cls, **options: object) -> None:
        """Accept the options that the real class would accept."""


def import_sdk() -> None:
    """Import the modules of the Claude SDK that the agent needs. Slow: call it in a thread.

    While they are imported, empty modules stand in for those in `ABSENT`: these take most of the time, and
    the SDK only names classes of them. If the import with stand-ins fails, or if the SDK or `mcp` is imported
    already, the modules are imported without them.
    """
    if SDK in sys.modules or "mcp" in sys.modules:
        _import_needed()
        return
    stand_ins = _stand_ins()
    sys.modules.update(stand_ins)
    try:
        _import_needed()
    except Exception as error:  # noqa: BLE001  # a release may fail in any way; the plain import follows
        logger.warning("the SDK is imported the slow way: %s", type(error).__name__)
        _forget(SDK)
    finally:
        for name, stand_in in stand_ins.items():
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]
    # After a failure, without stand-ins; else all modules are there already, and this does nothing.
    _import_needed()


def _import_needed() -> None:
    """Import all modules in `NEEDED`."""
    for name in NEEDED:
        importlib.import_module(name)


def _stand_ins() -> dict[str, ModuleType]:
    """Return an empty module for each name in `ABSENT`, each an attribute of its parent."""
    stand_ins: dict[str, ModuleType] = {name: StandIn(name) for name in ABSENT}
    for name, module in stand_ins.items():
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(stand_ins[parent], leaf, module)
    return stand_ins


def _forget(package: str) -> None:
    """Remove a package and its modules from `sys.modules`, so that the next import loads them again."""
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]
