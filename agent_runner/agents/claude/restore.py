"""Puts the conversation so far before a model, through hooks of the CLI.

With the first prompt of a connection: what its session lacks. After a compaction: the plan, task and
decisions. The host is informed of a compaction, so that the group does not lose what the session loses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from agent_runner.ipc_client import HostClient
from agent_runner.wire.context_tools import COMPACTED, COMPACTING, MAX_SUMMARY_CHARS
from agent_runner.wire.mailbox import Remember, Reply
from agent_runner.wire.order import MAX_RESTORE_CHARS, RestoreMode, RestoreOrder

REPLY_WAIT_SECONDS = 3.0
"""Seconds for which a compaction waits for the host's reply."""
HookEvent = Literal["UserPromptSubmit", "PreCompact", "PostCompact", "SessionStart"]
Hook = Callable[[Any, str | None, Any], Awaitable[Any]]
Hooks = Mapping[HookEvent, Sequence[Hook]]


class RestoreHooks:
    """The hooks of one agent, over all its connections."""

    def __init__(self, restore: RestoreOrder, host: HostClient) -> None:
        """`restore` is the host's order for the conversation; compactions are reported to `host`."""
        self.mode: RestoreMode = restore.mode
        """The order's mode, or the one that replaces it if the session to resume is gone."""
        self._host = host
        self._pending = restore.text
        """The text to put before the next prompt; None for none."""
        self._last_text: str | None = None
        """The text that was put before the last prompt."""
        self._fallback = restore.fallback
        """The text for a new session, if the session to resume is gone."""
        self._plan_and_decisions = restore.meta
        """The plan, task and decisions, for a session that was compacted."""

    def begin(self, restore: RestoreOrder) -> None:
        """Take another order of the host for the conversation; called before the first prompt."""
        self.mode, self._pending = restore.mode, restore.text
        self._fallback, self._plan_and_decisions = restore.fallback, restore.meta

    def begin_new_session(self) -> None:
        """Put the order's fallback text before the next prompt, because the session to resume is gone.

        The mode becomes `rehydrate`, or `fresh` if the order has no such text.
        """
        self._pending = self._fallback
        self.mode = "rehydrate" if self._fallback else "fresh"

    def repeat_text(self) -> None:
        """Put the last text before the next prompt, too: the CLI dropped the last prompt with its text."""
        self._pending = self._last_text

    def hooks(self) -> Hooks:
        """Return the functions that the CLI is to call, by the event at which it calls them."""
        # At a compaction the CLI calls PreCompact, then SessionStart, then PostCompact.
        return {
            "UserPromptSubmit": [self._with_prompt],
            "PreCompact": [self._before_compaction],
            "SessionStart": [self._at_session_start],
            "PostCompact": [self._after_compaction],
        }

    async def _with_prompt(self, hook_input: Any, _: str | None, __: Any) -> dict[str, Any]:
        """Put the pending text before a prompt, once; later prompts get none."""
        # Remembered for `repeat_text`: the CLI may drop a prompt with all that was put before it.
        self._last_text, self._pending = self._pending, None
        return _put_before(hook_input, self._last_text)

    async def _before_compaction(self, _: Any, __: str | None, ___: Any) -> dict[str, Any]:
        """Notify the host that the session is being compacted, and take newer plans from its reply.

        The plan, task and decisions in the reply replace those of the run order. If the host refuses or does
        not reply in time, those of the order remain, and the compaction goes on.
        """
        reply = await self._notify_host(Remember(tool=COMPACTING))
        newer = reply.data.get("meta") if reply is not None and reply.ok else None
        if isinstance(newer, str):
            self._plan_and_decisions = newer[:MAX_RESTORE_CHARS]
        return {}

    async def _at_session_start(self, hook_input: Any, _: str | None, __: Any) -> dict[str, Any]:
        """Put the plan and decisions before the conversation, if it was compacted; else add nothing."""
        # A compaction removes what hooks have put before earlier prompts.
        return _put_before(
            hook_input, self._plan_and_decisions if hook_input.get("source") == "compact" else None
        )

    async def _after_compaction(self, hook_input: Any, _: str | None, __: Any) -> dict[str, Any]:
        """Give the host the summary that replaces the session's messages."""
        # A text that was cut may end in half a character, which no file can have.
        text = str(hook_input.get("compact_summary") or "").encode("utf-8", "replace").decode("utf-8")
        summary = text[:MAX_SUMMARY_CHARS]
        await self._notify_host(Remember(tool=COMPACTED, arguments={"summary": summary}))
        return {}

    async def _notify_host(self, command: Remember) -> Reply | None:
        """Send a command to the host and return its reply; None if none came in `REPLY_WAIT_SECONDS`.

        The host gets the command also if its reply came too late.
        """
        try:
            async with asyncio.timeout(REPLY_WAIT_SECONDS):
                return await self._host.ask(command)
        except TimeoutError:
            return None


def _put_before(hook_input: Any, text: str | None) -> dict[str, Any]:
    """Return a hook's output that makes the CLI put a text before the prompt; empty for no text."""
    if not text:
        return {}
    return {"hookSpecificOutput": {"hookEventName": hook_input["hook_event_name"], "additionalContext": text}}
