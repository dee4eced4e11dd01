"""Make transcripts line by line in the form in which the Claude CLI writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SESSION = "0b9d1f3e-1111-4222-8333-444444444444"


class Writing:
    """Appends messages, each the child of the one before it unless another is named."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.last: str | None = None

    def asks(self, text: str, *, after: str | None = None, **more: Any) -> str:
        return self._message("user", text, after, **more)

    def answers(self, text: str) -> str:
        return self._message("assistant", [{"type": "text", "text": text}])

    def uses_tool(self) -> str:
        self._message("assistant", [{"type": "tool_use", "id": "t", "name": "Bash", "input": {}}])
        return self._message("user", [{"type": "tool_result", "tool_use_id": "t", "content": "hi"}])

    def attaches(self, **more: str) -> str:
        return self._add("attachment", attachment={"type": "date", **more})

    def compacts(self) -> str:
        boundary = self._add(
            "system", subtype="compact_boundary", parentUuid=None, logicalParentUuid=self.last
        )
        self._message("user", "This session is being continued …", isCompactSummary=True)
        self._message("user", "<local-command-caveat>…", isMeta=True)
        self._message("user", "<command-name>/compact</command-name>")
        self._message("user", "<local-command-stdout>Compacted</local-command-stdout>")
        return boundary

    def notes(self, kind: str = "cost-state", **fields: Any) -> None:
        """Add a line that is no message."""
        self.lines.append(json.dumps({"type": kind, **fields}))

    def _message(self, role: str, content: Any, after: str | None = None, **more: Any) -> str:
        return self._add(role, after, message={"role": role, "content": content}, **more)

    def _add(self, kind: str, after: str | None = None, **fields: Any) -> str:
        uuid = f"u{len(self.lines):03d}"
        entry = {"type": kind, "uuid": uuid, "parentUuid": after or self.last, "isSidechain": False, **fields}
        self.lines.append(json.dumps(entry, ensure_ascii=False))
        self.last = uuid
        return uuid

    def text(self, lines: slice = slice(None)) -> str:
        return "".join(f"{line}\n" for line in self.lines[lines])


def place(sessions: Path, folder: str = "family", project: str = "-workspace-group") -> Path:
    """Where the transcript of `SESSION` lies; its directories are made."""
    directory = sessions / folder / ".claude" / "projects" / project
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{SESSION}.jsonl"
