"""Notice an agent that calls the same tool with the same arguments over and over."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from agent_runner.ans.event import Happening

KEY_ARGUMENTS = ("path", "query", "thread_id", "file_path", "command", "pattern", "url")
WRITTEN = ("command", "content", "old_string", "new_string", "edits", "new_source")
"""What tells one piece of work on a file from the next, and so has to be the same as a whole."""
KEY_CHARS = 50
WINDOW = 6
REPETITIONS = 3


def pattern_of(tool_name: str, arguments: Mapping[str, Any]) -> str:
    """Name a call: the tool, and the beginnings of its telling arguments."""
    told = (f"{key}={str(arguments[key])[:KEY_CHARS]}" for key in KEY_ARGUMENTS if arguments.get(key))
    return f"{tool_name}({', '.join(told)})"


def likeness(tool_name: str, arguments: Mapping[str, Any]) -> int:
    """Return the same for calls that do the same thing again."""
    has_key = any(arguments.get(key) for key in KEY_ARGUMENTS)
    compared = [name for name in sorted(arguments) if not has_key or name in WRITTEN]
    return hash((pattern_of(tool_name, arguments), *(f"{name}={arguments[name]}" for name in compared)))


class RepeatDetector:
    """Watches the last `WINDOW` calls of a turn, and says once a turn that one came `REPETITIONS` times."""

    def __init__(self) -> None:
        self._last: deque[int] = deque(maxlen=WINDOW)
        self._is_told = False

    def begin_turn(self) -> None:
        self._last.clear()
        self._is_told = False

    def called(self, tool_name: str, arguments: Mapping[str, Any]) -> Happening | None:
        """Take note of a call. Returns `agent.loop.detected` when it is one too many."""
        like = likeness(tool_name, arguments)
        self._last.append(like)
        count = self._last.count(like)
        if count < REPETITIONS or self._is_told:
            return None
        self._is_told = True
        suggestion = "The result will not change: try another way, or say what is in the way."
        return Happening(
            type="agent.loop.detected",
            severity="critical",
            payload={"pattern": pattern_of(tool_name, arguments), "count": count, "suggestion": suggestion},
        )
