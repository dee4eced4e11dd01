"""The paths in a container, below one root, so that a plain process can have the same layout elsewhere."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Workspace:
    """The directories of one group, as its agent sees them."""

    root: Path

    @classmethod
    def from_environment(cls) -> Workspace:
        """Return the workspace below `ANDY_WORKSPACE`, by default `/workspace`."""
        return cls(Path(os.environ.get("ANDY_WORKSPACE", "/workspace")))

    @property
    def group(self) -> Path:
        """The agent's working directory, the only one that is its own."""
        return self.root / "group"

    @property
    def shared(self) -> Path:
        """`groups/global/`, the prompt and the memory of all groups; only main may change them."""
        return self.root / "global"

    @property
    def extra(self) -> Path:
        """The owner's folders that are mounted for the group, each under its name."""
        return self.root / "extra"

    @property
    def skills(self) -> Path:
        """A plugin of the CLI, read-only, with the skills that the owner has chosen; absent without one."""
        return self.root / "skills"

    @property
    def mcp(self) -> Path:
        """The owner's MCP servers that are programs: a read-only folder each."""
        return self.root / "mcp"

    @property
    def snapshots(self) -> Path:
        """Files that the host writes for the agent to read, such as its context and the calendar."""
        return self.root / "env"

    @property
    def input(self) -> Path:
        """Turns and `_close`, written by the host."""
        return self.root / "ipc" / "input"

    @property
    def replies(self) -> Path:
        """The host's replies to requests, one file each."""
        return self.root / "ipc" / "replies"

    @property
    def messages(self) -> Path:
        """Requests of the agent that send something to a chat."""
        return self.root / "ipc" / "messages"

    @property
    def tasks(self) -> Path:
        """All other requests of the agent."""
        return self.root / "ipc" / "tasks"
