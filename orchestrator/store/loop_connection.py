"""The connection of transactions that run in the event loop, one call a statement.

It is a module of its own because importing aiosqlite takes commands that only read a third of their time.
"""

from __future__ import annotations

from typing import Any

import aiosqlite

from orchestrator.store.direct import AfterCommit


class LoopConnection(aiosqlite.Connection):
    """An aiosqlite connection that also holds what is to follow the commit of its open transaction."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take the arguments of `aiosqlite.Connection`."""
        super().__init__(*arguments, **options)
        self.deferred: list[AfterCommit] = []
        """Calls and announcements to make once the open transaction has committed, in order."""
