"""Connect the notices of a run with the hooks of the Claude CLI, which pass text to the model.

Of the notices, only this module and `sdk_stream` import the SDK. A hook always answers within
`ANSWER_SECONDS`, because the CLI drops a prompt whose hook takes too long; after a hook that took too long,
the other hooks of its turn return nothing at once. Tools that are called together are reported once. The work
of a subagent is not reported: the subagent would get notices that are for the agent.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import claude_agent_sdk as sdk

from agent_runner.ans.lazy_notices import LazyNotices
from agent_runner.ans.sdk_stream import SdkStreamEvents
from agent_runner.error_log import log_fault
from agent_runner.wire.notices import OWN_TOOLS
from agent_runner.wire.order import MAX_RESTORE_CHARS

if TYPE_CHECKING:
    from agent_runner.ans.tool_events import ToolCall

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 2.0
"""Seconds after which a hook answers without notices."""
MATCHER_SECONDS = 30.0
"""Seconds after which the CLI gives up a hook."""
MAX_CHARS = MAX_RESTORE_CHARS
"""Most characters of the notices that one hook passes to the model."""
FILE_TOOLS = ("Read", "Edit", "Write", "NotebookEdit")
"""The tools after which the agent knows the content of their file."""
EDITORS = ("Edit", "Write", "NotebookEdit")
"""The tools that change their file."""
COMMANDS = ("Bash",)
"""The tools that may change any file."""
LOOKED_AT = rf"^(?:{'|'.join((*EDITORS, *COMMANDS))}|{OWN_TOOLS}.*)$"
"""Matches the tools before which a hook runs; before others it would only cost a round trip."""
NOT_CALLED = "<tool_use_error>"
"""The start of the CLI's result for a call that no hook has seen: unknown tool, wrong arguments."""
OF_THE_MAIN_AGENT = "Notices are the main agent's: say what it should note in your report."
"""The reason that a subagent gets when its call of one of the tools for notices is denied."""
ANSWER_STANDS = (
    "Your answer is sent as it stands. Say only what is to be added to it, or nothing between <internal> "
    "and </internal>."
)
"""The text after notices that make the model go on: its first answer is sent to the chat in any case."""

Hook = Callable[[Any], Awaitable[dict[str, Any]]]


class NoticeHooks:
    """Connects the notices of one run with the hooks of its CLI, over all its connections."""

    def __init__(
        self, noticing: LazyNotices, *, stream: SdkStreamEvents, on_first_prompt: Callable[[], None]
    ) -> None:
        """`noticing` has the notices of the run, `stream` reads the messages of its CLI.

        `on_first_prompt` is called once, at the first prompt, when the CLI has its session.
        """
        self.answered_already: str | None = None
        """The answer with which the model wanted to end this turn, before `_turn_end` made it go on.

        None if `_turn_end` did not, or if that answer was empty.
        """
        self._noticing = noticing
        self._stream = stream
        self._on_first_prompt: Callable[[], None] | None = on_first_prompt
        self._is_stuck = False
        """Whether a hook of this turn took too long."""
        self._prompt_notices = ""
        """The text of the notices that were delivered with this turn's prompt."""
        self._delivered_texts: list[str] = []
        """The texts of all notices that the model got in this turn."""

    def begin_turn(self) -> None:
        """Forget the last turn: its notices, `answered_already`, and whether a hook took too long."""
        self.answered_already = None
        self._is_stuck = False
        self._prompt_notices = ""
        self._delivered_texts.clear()

    def matchers(self) -> dict[str, list[sdk.HookMatcher]]:
        """Return the hooks that the CLI calls, by event."""
        return {
            "UserPromptSubmit": [self._matcher(self._turn_start)],
            "PreToolUse": [self._matcher(self._before_tool, LOOKED_AT)],
            "PostToolUse": [self._matcher(self._tool_succeeded)],
            "PostToolUseFailure": [self._matcher(self._tool_failed)],
            "PostToolBatch": [self._matcher(self._after_tools)],
            "Stop": [self._matcher(self._turn_end)],
            # The CLI also reports a compaction by this event; the hook does nothing at any other start.
            "SessionStart": [self._matcher(self._compacted)],
        }

    def _matcher(self, hook: Hook, matcher: str | None = None) -> sdk.HookMatcher:
        """Return a hook for the CLI that calls `hook`, but answers in time and never raises.

        `matcher` is a pattern of the tools for which the CLI calls it; None for all, or if none is involved.
        """

        async def bounded(hook_input: Any, _: str | None, __: Any) -> Any:
            """Call the hook for at most `ANSWER_SECONDS`; after a failure, answer nothing."""
            # After one hook that took too long, each other one could make the turn wait as long again.
            if self._is_stuck:
                return {}
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    return await hook(hook_input)
            except TimeoutError:
                self._is_stuck = True
                logger.warning("the notices of %s took too long and wait", hook_input.get("hook_event_name"))
            except Exception as error:  # noqa: BLE001  # a prompt must not fail because of its notices
                log_fault("the notices broke", error)
            return {}

        return sdk.HookMatcher(matcher=matcher, hooks=[bounded], timeout=MATCHER_SECONDS)

    async def _turn_start(self, hook_input: Any) -> dict[str, Any]:
        """Deliver due notices with the prompt. A repeated prompt of the turn gets the earlier ones, too.

        At the run's first prompt, `on_first_prompt` is called, and notices are delivered only if they are
        loaded already or the run starts with one.
        """
        if self._on_first_prompt is not None:
            self._on_first_prompt()
            self._on_first_prompt = None
            # Without a notice to deliver, the first prompt does not wait for the slow loading.
            if self._noticing.rules is None and not self._noticing.starts_with_notice:
                self._noticing.warm_soon()
                return {}
        rules = await self._noticing.load()
        await rules.look_at_files()
        await self._stream.measure("turn_start")
        # The CLI may drop a prompt and send it again: the earlier notices and the new ones share one limit.
        room = MAX_CHARS - len(self._prompt_notices)
        text = await rules.drain("turn_start", limit=room)
        self._prompt_notices = "\n".join(filter(None, (self._prompt_notices, text)))
        return self._output(hook_input, self._prompt_notices, new_text=text)

    async def _before_tool(self, hook_input: Any) -> dict[str, Any]:
        """Find changes of files by others before an edit or a command; deny subagents the notice tools.

        The changes become notices, which a later hook delivers; changes after a command's start count as its
        own. A subagent's edit is not looked at: it is the main agent that has read the file.
        """
        name = str(hook_input["tool_name"])
        # Otherwise, a subagent could get or delete notices that are for the agent.
        if hook_input.get("agent_id") and name.startswith(OWN_TOOLS):
            return _denied(OF_THE_MAIN_AGENT)
        if name in COMMANDS:
            await (await self._noticing.load()).command_begins(str(hook_input["tool_use_id"]))
        elif (path := _path(hook_input)) and not hook_input.get("agent_id"):
            await (await self._noticing.load()).look_at_file(path)
        return {}

    async def _tool_succeeded(self, hook_input: Any) -> dict[str, Any]:
        """Report a call that succeeded, and remember the state of the file that was read or edited with it.

        Later changes of that file by others are reported to the agent. The end of a command is noted, too. Of
        a subagent's calls, only ends of commands and edits are noted: its edits count as the agent's own, but
        the agent does not know a file that a subagent has read.
        """
        rules = await self._noticing.load()
        path = _path(hook_input)
        if hook_input["tool_name"] in COMMANDS:
            await rules.commands_ended(str(hook_input["tool_use_id"]))
        tools = EDITORS if hook_input.get("agent_id") else FILE_TOOLS
        if path and hook_input["tool_name"] in tools:
            await asyncio.to_thread(rules.files.remember, path)
        if not hook_input.get("agent_id"):
            rules.calls.succeeded(
                _call(hook_input),
                result_chars=_length(hook_input.get("tool_response")),
                duration_ms=int(hook_input.get("duration_ms") or 0),
            )
        return {}

    async def _tool_failed(self, hook_input: Any) -> dict[str, Any]:
        """Report a call of the agent that failed, and note the end of a command.

        Of a subagent's calls, only ends of commands are noted.
        """
        rules = await self._noticing.load()
        if hook_input["tool_name"] in COMMANDS:
            await rules.commands_ended(str(hook_input["tool_use_id"]))
        if not hook_input.get("agent_id"):
            rules.calls.failed(
                _call(hook_input),
                str(hook_input.get("error") or ""),
                duration_ms=int(hook_input.get("duration_ms") or 0),
                error_type="interrupted" if hook_input.get("is_interrupt") else "execution_error",
            )
        return {}

    async def _after_tools(self, hook_input: Any) -> dict[str, Any]:
        """Report calls that were made together; return a hook's output with the notices due after them.

        Calls that never reached their tool are reported as failed. A model's window that is filling up leads
        to one of the notices. Of a subagent's calls, only ends of commands are noted.
        """
        rules = await self._noticing.load()
        calls = [_call(call_input) for call_input in hook_input["tool_calls"]]
        await rules.commands_ended(*(call.id for call in calls))
        if hook_input.get("agent_id"):
            return {}
        for call, call_input in zip(calls, hook_input["tool_calls"], strict=True):
            if not rules.calls.has_ended(call.id):
                rules.calls.failed(call, _not_called(call_input), error_type="not_called")
        rules.batch_ended(calls)
        await self._stream.measure("after_tool")
        text = await rules.drain("after_tool", limit=MAX_CHARS)
        return self._output(hook_input, text, new_text=text)

    async def _turn_end(self, hook_input: Any) -> dict[str, Any]:
        """Make the model continue once if there are urgent notices, so that it reads them; others wait.

        Its answer so far is then stored in `answered_already`: it is sent as it is, and `ANSWER_STANDS` tells
        the model to write only what is to be added.
        """
        # `stop_hook_active` is set when the model has gone on because of this hook; without the check, it
        # might never stop.
        if hook_input.get("agent_id") or hook_input.get("stop_hook_active"):
            return {}
        room = MAX_CHARS - len(ANSWER_STANDS) - 1
        text = await (await self._noticing.load()).drain("turn_end", limit=room, at_least="high")
        if not text:
            return {}
        self.answered_already = hook_input.get("last_assistant_message") or None
        return self._output(hook_input, f"{text}\n{ANSWER_STANDS}", new_text=text)

    async def _compacted(self, hook_input: Any) -> dict[str, Any]:
        """Deliver this turn's notices again, because a compaction removed them from the conversation.

        The newest of them that fit into `MAX_CHARS` are delivered, then notices that have become due since.
        """
        if hook_input.get("source") != "compact":  # the session has started for another reason
            return {}
        self._stream.compacted()
        delivered = _newest(self._delivered_texts, MAX_CHARS)
        rules = await self._noticing.load()
        text = await rules.drain("turn_start", limit=MAX_CHARS - len(delivered))
        return self._output(hook_input, "\n".join(filter(None, (delivered, text))), new_text=text)

    def _output(self, hook_input: Any, text: str, *, new_text: str) -> dict[str, Any]:
        """Return a hook's output with a text for the model, empty for no text, and store the new part of it.

        `new_text` is the part that was not delivered before in this turn; empty if there is none. If a
        compaction removes it from the conversation, `_compacted` delivers it again.
        """
        if new_text:
            self._delivered_texts.append(new_text)
        if not text:
            return {}
        output = {"hookEventName": hook_input["hook_event_name"], "additionalContext": text}
        return {"hookSpecificOutput": output}


def _call(hook_input: Any) -> ToolCall:
    """Return the tool call that a hook is about."""
    from agent_runner.ans.tool_events import ToolCall

    arguments = hook_input.get("tool_input")
    return ToolCall(
        id=str(hook_input["tool_use_id"]),
        name=str(hook_input["tool_name"]),
        arguments=arguments if isinstance(arguments, dict) else {},
    )


def _path(hook_input: Any) -> str | None:
    """Return the path of the file that a tool call reads or edits; None for a call of another tool."""
    arguments = hook_input.get("tool_input")
    if hook_input.get("tool_name") not in FILE_TOOLS or not isinstance(arguments, dict):
        return None
    path = arguments.get("file_path") or arguments.get("notebook_path")
    return path if isinstance(path, str) else None


def _length(response: Any) -> int:
    """Return the characters of a tool's result, as JSON if it is no text."""
    return len(response) if isinstance(response, str) else len(json.dumps(response, default=str))


def _not_called(call: Any) -> str:
    """Return the CLI's reason why a call did not reach its tool."""
    response = call.get("tool_response")
    text = response if isinstance(response, str) else json.dumps(response, default=str)
    return text.replace(NOT_CALLED, "").replace("</tool_use_error>", "").strip()


def _newest(texts: list[str], limit: int) -> str:
    """Return the last of `texts` that fit in `limit` characters, in their order, one per line."""
    fitting: list[str] = []
    for text in reversed(texts):
        limit -= len(text) + 1
        if limit < 0:
            break
        fitting.insert(0, text)
    return "\n".join(fitting)


def _denied(reason: str) -> dict[str, Any]:
    """Return a hook's output that denies a call."""
    decision = {"permissionDecision": "deny", "permissionDecisionReason": reason}
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **decision}}
