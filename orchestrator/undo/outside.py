"""Describes the effects of a turn that cannot be undone: sent messages, web
pages, programs, foreign servers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.store.runs.tool_calls import ToolCallRecord

_MCP = re.compile(r"mcp__([^_].*?)__(.+)")
_OWN = frozenset({"andy", "dashboard", "context"})
"""MCP servers of the host itself: their changes are recorded, row by row."""
_WORDS = {
    "sent": ("message was sent", "messages were sent", "이미 보낸 메시지 {n}개"),
    "withdrawn": (
        "message was deleted and is not sent again",
        "messages were deleted and are not sent again",
        "삭제해서 다시 보내지 않는 메시지 {n}개",
    ),
    "runs": ("run of a task had begun", "runs of tasks had begun", "이미 시작된 작업 {n}번"),
    "Bash": (
        "command ran: only its files are put back",
        "commands ran: only their files are put back",
        "실행한 명령 {n}번 (파일만 되돌려요)",
    ),
    "WebFetch": ("page was fetched", "pages were fetched", "열어 본 웹페이지 {n}개"),
    "WebSearch": ("search went out", "searches went out", "웹 검색 {n}번"),
    "files": (
        "time its files could not be compared",
        "times its files could not be compared",
        "비교하지 못한 파일 변경 {n}번",
    ),
    "not_kept": (
        "file whose earlier content was not kept",
        "files whose earlier content was not kept",
        "이전 내용을 보관하지 못한 파일 {n}개",
    ),
    "noted": (
        "note of the conversation stays",
        "notes of the conversation stay",
        "대화 메모 {n}개",
    ),
    "forgotten": ("thing was forgotten for good", "things were forgotten for good", "영영 잊은 것 {n}개"),
}
_SERVER = ("call of {name}", "calls of {name}", "{name} 호출 {n}번")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideEffect:
    """An effect that stays even if the turn is undone."""

    kind: str
    """`sent`, `runs`, a tool, or `server/tool` of an MCP server."""
    count: int

    def text(self, *, is_korean: bool = False) -> str:
        """Return the effect in words, with its count, such as `2 searches went out`. Pure."""
        singular, plural, korean = _WORDS.get(self.kind, _SERVER)  # other kinds are tools of MCP servers
        # `{n}` in the text stands for the count, and `{name}` for the tool.
        text = korean if is_korean else f"{{n}} {singular if self.count == 1 else plural}"
        return text.format(n=self.count, name=self.kind)


def lasting_effects(calls: Sequence[ToolCallRecord], **counted: int) -> tuple[OutsideEffect, ...]:
    """Return the effects of a turn that stay even if it is undone: those `counted`, then those of tools.

    Pure. `calls` are the turn's tool calls, also failed ones, because they may have done something. `counted`
    are the numbers of other kinds of effects, by kind; a kind with the number 0 is left out.
    """
    counts = Counter(counted)
    counts.update(kind for call in calls if (kind := _kind(call.tool)) is not None)
    return tuple(OutsideEffect(kind=kind, count=count) for kind, count in counts.items() if count)


def _kind(tool: str) -> str | None:
    """Return the kind of effect that a call of a tool has and that cannot be undone; None if it has none.

    For a tool of an MCP server, the kind is `server/tool`.
    """
    if tool in _WORDS:  # a tool of the agent's program, such as `Bash`
        return tool
    if tool == "mcp__andy__web_search":
        return "WebSearch"
    match = _MCP.fullmatch(tool)
    return f"{match[1]}/{match[2]}" if match and match[1] not in _OWN else None
