"""Find events and progress in the Claude CLI's messages, which cost no round trip, unlike hooks."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import claude_agent_sdk as sdk

from agent_runner.ans.lazy_notices import LazyNotices
from agent_runner.error_log import log_fault
from agent_runner.progress import TurnProgress
from agent_runner.wire.notices import InjectAt
from agent_runner.wire.order import RestoredConversation

if TYPE_CHECKING:
    from agent_runner.ans.rules import NoticeRules

logger = logging.getLogger(__name__)

MEASURED_FROM = 20_000
"""Tokens below which a conversation fills no model's window, so that the CLI is not asked for its size."""
UNMEASURED_SHARE = 0.5
"""Share of the expected window below which the CLI is not asked, so that the first prompt does not wait."""
BYTES_A_TOKEN = 3
"""Bytes that count as a token while a model writes: the exact count arrives only at the end."""
IGNORED_KINDS = frozenset({"init", "status", "task_started", "task_progress", "task_updated"})
"""Kinds of the CLI's system messages that become no event, because they are frequent and of no interest."""
_WINDOW_FIGURES = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
"""Figures of a call's usage whose sum is the size of the conversation, in tokens."""
MAX_FIGURE = 10**12
"""The largest figure that is believed: no model has such a window, and no turn writes so much."""

Usage = Callable[[], Awaitable[Any]]
"""A function that asks the CLI how full its window is: `get_context_usage` of the SDK's client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWindow:
    """The size of the model's window, and the use at which the CLI compacts by itself, in tokens."""

    tokens: int
    compaction_at: int | None
    """None if the CLI has reported no such number, as when it does not compact by itself: then only the size
    of the window is a limit.
    """


class SdkStreamEvents:
    """Reads the messages of one run's CLI, over all its connections."""

    def __init__(
        self, noticing: LazyNotices, progress: TurnProgress, *, so_far: RestoredConversation | None = None
    ) -> None:
        """Events are reported to `noticing`, and the progress of a turn to `progress`.

        `so_far` has the figures of the resumed session; None for a new one.
        """
        self.usage: Usage | None = None
        """The function that asks the CLI how full the model's window is; None until the CLI is connected."""
        self._noticing = noticing
        self._progress = progress
        self._message_id: str | None = None
        """The id of the answer that the last message was a part of."""
        self._context_tokens = so_far.context_tokens if so_far else 0
        self._expected_window = so_far.context_window if so_far else 0
        """The size in tokens of the window that the resumed session's model had.

        0 for a new session, and after a model has answered: that may be another model.
        """
        self._window: ModelWindow | None = None

    def resumes(self, so_far: RestoredConversation) -> None:
        """Record the size of the resumed session and of its window, before the first prompt."""
        self._context_tokens, self._expected_window = so_far.context_tokens, so_far.context_window

    def process_message(self, message: sdk.Message) -> None:
        """Report the progress and the events in one message of the CLI; `IGNORED_KINDS` are no events.

        A subagent's tool calls are shown as progress, and its end is an event; its texts are not reported.
        """
        try:
            report_progress(self._progress, message)
        except Exception as error:  # noqa: BLE001  # no answer may be lost because its progress cannot be shown
            log_fault("a message of the CLI was not shown", error)
        match message:
            case sdk.AssistantMessage(parent_tool_use_id=None):
                self._noticing.do(lambda rules: self._process_model_message(rules, message))
            case sdk.SystemMessage(subtype="task_notification", data=data):
                self._noticing.do(lambda rules: _process_subagent_end(rules, data))
            case sdk.SystemMessage(subtype=subtype, data=data) if subtype not in IGNORED_KINDS:
                self._noticing.do(lambda rules: _process_cli_message(rules, subtype, data))

    async def measure(self, at: InjectAt) -> None:
        """Report to the notice rules how full the model's window is; a warning is delivered at `at`.

        Nothing is reported for a small conversation, or if the size of the window is unknown. The CLI is
        asked for the size until it has named one.
        """
        # Asking the CLI costs a round trip before a prompt, and a small conversation cannot fill a window.
        if self._context_tokens < max(MEASURED_FROM, self._expected_window * UNMEASURED_SHARE):
            return
        if self._window is None and self.usage is not None:
            self._window = _window(await self.usage())
        if self._window is not None:
            rules = await self._noticing.load()
            rules.measured(
                self._context_tokens, self._window.tokens, compaction_at=self._window.compaction_at, at=at
            )

    def compacted(self) -> None:
        """Record that the CLI has compacted the conversation: its size is unknown until the next answer."""
        self._context_tokens = 0
        self._noticing.do(lambda rules: rules.compacted())

    def _process_model_message(self, rules: NoticeRules, message: sdk.AssistantMessage) -> None:
        """Report a message of the model to the rules: the request, the tokens and the tool calls in it.

        Its figures also give the size of the conversation. Each part of an answer arrives as a message of its
        own.
        """
        from agent_runner.ans.tool_events import ToolCall

        # An answer with a text and two calls arrives as three messages with one id, and is one request.
        if message.message_id is None or message.message_id != self._message_id:
            self._message_id = message.message_id
            rules.model_asked()
        self._expected_window = 0  # the window of the model that answers now is asked for in `measure`
        self._context_tokens = window_tokens(message.usage)
        rules.model_wrote(tokens=_tokens(message.content))
        for block in message.content:
            if isinstance(block, sdk.ToolUseBlock):
                rules.calls.pending(ToolCall(id=block.id, name=block.name, arguments=_arguments(block)))


def report_progress(progress: TurnProgress, message: sdk.Message) -> None:
    """Report the progress of the turn in a message: calls of tools, their ends, text as it is written."""
    match message:
        case sdk.StreamEvent(parent_tool_use_id=None, event=event):
            _report_text(progress, event)
        case sdk.AssistantMessage(content=content, parent_tool_use_id=parent):
            for block in content:
                if isinstance(block, sdk.ToolUseBlock):
                    progress.tool_started(block.id, block.name, _arguments(block), parent=parent)
        case sdk.UserMessage(content=list() as content):
            for block in content:
                if isinstance(block, sdk.ToolResultBlock):
                    progress.tool_ended(block.tool_use_id, ok=not block.is_error)


def figure(value: Any) -> int:
    """Return a number of tokens that the CLI or a model service has named; 0 if it is no such number."""
    if not isinstance(value, int | float) or not 0 <= value <= MAX_FIGURE:  # also false for NaN
        return 0
    return int(value)


def window_tokens(usage: Any) -> int:
    """Return the tokens that one call of the model read, cached ones included; 0 if that is unknown.

    `usage` are the model service's figures of the call.
    """
    return sum(figure(usage.get(part)) for part in _WINDOW_FIGURES) if isinstance(usage, dict) else 0


def _arguments(call: sdk.ToolUseBlock) -> dict[str, Any]:
    """Return the arguments of a call; none if the model has sent something else in their place."""
    arguments: Any = call.input
    return arguments if isinstance(arguments, dict) else {}


def _report_text(progress: TurnProgress, event: Mapping[str, Any]) -> None:
    """Report the text that the model writes, by an event of the model service's stream."""
    match event:
        case {"type": "content_block_start", "content_block": {"type": "text"}}:
            progress.text_begins()
        case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": str(text)}}:
            progress.text(text)


def _process_subagent_end(rules: NoticeRules, data: dict[str, Any]) -> None:
    """Report that a subagent has succeeded or failed, by the fields of the CLI's message."""
    fields = {"task_id": str(data.get("task_id") or "")}
    summary = str(data.get("summary") or "")
    if data.get("status") == "completed":
        duration_ms = (data.get("usage") or {}).get("duration_ms") or 0
        completed = fields | {"result_summary": summary, "duration_ms": duration_ms}
        rules.notices.emit("subagent.complete", "info", completed, source="subagent")
    else:
        failed = fields | {"error_message": summary or str(data.get("status") or "no reason given")}
        rules.notices.emit("subagent.failed", "error", failed, source="subagent")


def _process_cli_message(rules: NoticeRules, subtype: str, data: dict[str, Any]) -> None:
    """Report a system message of the CLI; `subtype` is its kind, and `data` has its fields."""
    payload = {"event_name": subtype, "data": data}
    rules.notices.emit("cli.event", "info", payload, source="cli", dedupe_key=subtype)


def _tokens(content: list[Any]) -> int:
    """Return a rough number of tokens in the blocks of an answer.

    It is never too small for English, and about right for Korean.
    """
    sizes = (len(_text_of(block).encode("utf-8", "replace")) for block in content)
    return sum(math.ceil(size / BYTES_A_TOKEN) for size in sizes)


def _text_of(block: Any) -> str:
    """Return all that a model wrote in a block of its answer, to count its tokens; empty for other blocks."""
    match block:
        case sdk.TextBlock(text=text):
            return text
        case sdk.ThinkingBlock(thinking=thinking):
            return thinking
        case sdk.ToolUseBlock(name=name, input=arguments):
            return f"{name}{arguments}"
        case _:
            return ""


def _window(usage: Any) -> ModelWindow | None:
    """Return the size of the model's window from the CLI's answer about its use; None if that has no size."""
    tokens = figure(usage.get("maxTokens"))
    if not tokens:
        return None
    compaction_at = usage.get("isAutoCompactEnabled") and usage.get("autoCompactThreshold")
    return ModelWindow(tokens=tokens, compaction_at=figure(compaction_at) or None)
