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
        """The group's folder: the agent's working directory, the only one that is its own."""
        return self.root / "group"

    @property
    def shared(self) -> Path:
        """The folder with the prompt and the memory of all groups; only the owner's group may change them."""
        return self.root / "global"

    @property
    def extra(self) -> Path:
        """The parent of the owner's folders that are mounted for the group, each under its name."""
        return self.root / "extra"

    @property
    def skills(self) -> Path:
        """The read-only folder of a CLI plugin with the skills that the owner has chosen; absent if none."""
        return self.root / "skills"

    @property
    def mcp(self) -> Path:
        """The parent of the read-only folders of those MCP servers that are programs, each under its name."""
        return self.root / "mcp"

    @property
    def snapshots(self) -> Path:
        """The folder of files that the host writes for the agent, such as its context and the calendar."""
        return self.root / "env"

    @property
    def input(self) -> Path:
        """The folder in which the host writes turns, and the file `_close` that ends the run."""
        return self.root / "ipc" / "input"

    @property
    def replies(self) -> Path:
        """The folder with the host's replies to requests, one file each."""
        return self.root / "ipc" / "replies"

    @property
    def messages(self) -> Path:
        """The folder for requests of the agent that send something to a chat."""
        return self.root / "ipc" / "messages"

    @property
    def tasks(self) -> Path:
        """The folder for all other requests of the agent."""
        return self.root / "ipc" / "tasks"
