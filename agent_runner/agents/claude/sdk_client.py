"""The half of the Claude agent that needs the SDK: import it after `sdk_import.import_sdk`."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast
from uuid import uuid4
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import claude_agent_sdk as sdk
from claude_agent_sdk._errors import MessageParseError
from claude_agent_sdk.types import HookContext, HookInput, HookJSONOutput

from agent_runner.agents.claude.cli_command import SETTINGS, CliSettings
from agent_runner.agents.claude.cli_transport import CliProcess
from agent_runner.agents.claude.compaction import archive
from agent_runner.agents.claude.restore import Hooks
from agent_runner.agents.claude.shown_files import Block
from agent_runner.ans.sdk_hooks import NoticeHooks
from agent_runner.ans.sdk_stream import SdkStreamEvents, figure, window_tokens
from agent_runner.error_log import log_fault
from agent_runner.interfaces import TokenUsage, TurnOutcome
from agent_runner.wire.order import RunOrder

ProcessError = sdk.ProcessError
DROPPED = "The Claude CLI did not take the prompt: a hook kept it waiting, twice."
NOT_FOR_SUBAGENTS = ("Task", "ToolSearch")
"""Tools that subagents do not get: they start no subagents themselves, and look nothing up."""
SUBAGENTS_A_TURN = 12
"""Subagents that may be started in one turn; `cli_command.SUBAGENT_LIMITS` has the most that run at once."""
STARTS_SUBAGENT = "^(?:Task|Agent)$"
NO_MORE_SUBAGENTS = (
    f"This turn has started {SUBAGENTS_A_TURN} subagents, which is the most: do the rest yourself."
)
MAX_REASON_CHARS = 500
"""Most characters of the reason for a failed turn."""
MAX_MODELS_CHARS = 200
"""Most characters of the names of a turn's models together, in its usage."""
MAX_TURNS_REACHED = "error_max_turns"
"""The CLI's code for a turn that reached its limit. What it did until then stays done."""


def options(
    settings: CliSettings,
    order: RunOrder,
    *hooks: Hooks,
    notice_hooks: NoticeHooks | None = None,
    subagents: SubagentLimit | None = None,
) -> sdk.ClaudeAgentOptions:
    """Return `settings` as SDK options, with the hooks that only the SDK can have.

    `hooks` are further hooks by event. `notice_hooks` deliver notices, `subagents` limits the number of
    subagents; None leaves these out.
    """
    return sdk.ClaudeAgentOptions(
        cli_path=settings.cli,
        cwd=settings.cwd,
        system_prompt={
            "type": "custom",
            "prompt": settings.system_prompt,
            "snapshot": False,  # a resumed session follows today's rules
        },
        tools=list(settings.tools),
        allowed_tools=list(settings.allowed_tools),
        max_turns=settings.model_turns,
        model=settings.model,
        permission_mode="bypassPermissions",
        resume=settings.resume,
        resume_session_at=settings.resume_at,
        settings=SETTINGS,
        include_partial_messages=settings.streams_text,
        strict_mcp_config=True,  # no server of the group's own folder
        add_dirs=list(settings.extra),
        plugins=[{"type": "local", "path": str(plugin)} for plugin in settings.plugins],
        setting_sources=list(settings.setting_sources),
        agents={} if settings.is_bare else {"general-purpose": _subagent(settings)},
        env=settings.additions(),
        hooks=_matchers(
            {"PreCompact": [_archiver(settings, order)]},
            *hooks,
            notice_hooks=notice_hooks,
            subagents=subagents,
        ),
        verbatim_prompts=True,  # an '@name' or a leading '/' in a chat message is no command
    )


class SubagentLimit:
    """Refuses more than `SUBAGENTS_A_TURN` subagents in one turn, with an explanation for the agent."""

    def __init__(self) -> None:
        self._started = 0
        """Subagents that were started in this turn."""

    def begin_turn(self) -> None:
        """Set the count of started subagents to 0, because a turn begins."""
        self._started = 0

    def matcher(self) -> sdk.HookMatcher:
        """Return the hook that the CLI calls before each start of a subagent."""
        return sdk.HookMatcher(matcher=STARTS_SUBAGENT, hooks=[self._count])

    async def _count(self, _: HookInput, __: str | None, ___: HookContext) -> HookJSONOutput:
        """Count a subagent that is about to start; refuse it beyond the limit."""
        self._started += 1
        if self._started <= SUBAGENTS_A_TURN:
            return {}
        return {
            "hookSpecificOutput": {
                "hookEventName": "PreToolUse",
                "permissionDecision": "deny",
                "permissionDecisionReason": NO_MORE_SUBAGENTS,
            }
        }


def _matchers(*hooks: Hooks, notice_hooks: NoticeHooks | None, subagents: SubagentLimit | None) -> Any:
    """Return all hooks for the SDK: by event, a list of matchers with one hook each.

    Hooks of one event then run concurrently, and each has its own size limit. `notice_hooks` and `subagents`
    may be None: then there are no hooks for notices, and none that limit subagents.
    """
    of_notices = notice_hooks.matchers() if notice_hooks is not None else {}
    matchers: dict[str, list[sdk.HookMatcher]] = defaultdict(list, of_notices)
    for callbacks_by_event in hooks:
        for event, callbacks in callbacks_by_event.items():
            # Measured: the CLI passes on 10,000 characters from each hook; of a longer text, only a preview.
            matchers[event] += [sdk.HookMatcher(hooks=[callback]) for callback in callbacks]
    if subagents is not None:
        matchers["PreToolUse"].append(subagents.matcher())
    return dict(matchers)


def _subagent(settings: CliSettings) -> sdk.AgentDefinition:
    """Return the definition of the only kind of subagent that the agent may start.

    It has the CLI's tools, but not Andy's, which act for the chat.
    """
    return sdk.AgentDefinition(
        description="Does a longer piece of work by itself and reports what came of it.",
        prompt="Do the work that you are given with the tools you have, then report what came of it: what "
        "you found or made, with the paths of files, and what you could not do. Nobody but the "
        "assistant that asked you reads it.",
        tools=[name for name in settings.tools if name not in NOT_FOR_SUBAGENTS],
    )


def sdk_command(chosen: sdk.ClaudeAgentOptions, settings: CliSettings) -> list[str] | None:
    """Return the command with which the SDK would start the CLI for the options in `chosen`.

    Only a private class of the SDK builds it; None if that class has changed in the installed release.
    """
    try:
        from claude_agent_sdk._internal.transport.subprocess_cli import SubprocessCLITransport

        with_tools = replace(chosen, mcp_servers=cast("Any", settings.servers()))
        build: Callable[[], list[str]] = SubprocessCLITransport("", with_tools)._build_command  # noqa: SLF001
        return build()
    except (ImportError, AttributeError, TypeError):
        return None


async def connect(cli: CliProcess, chosen: sdk.ClaudeAgentOptions) -> sdk.ClaudeSDKClient:
    """Connect the SDK to a running CLI, with the options in `chosen`, and return the SDK's client.

    Raises:
        sdk.ClaudeSDKError: the CLI ended, for example because the session to resume does not exist.
    """
    client = sdk.ClaudeSDKClient(chosen, transport=cast("Any", cli))
    await client.connect()
    return client


def _archiver(settings: CliSettings, order: RunOrder) -> sdk.HookCallback:
    """Return a hook that the CLI calls before it compacts a conversation.

    It writes the conversation to a file in `conversations/` of the CLI's working folder.
    """

    async def archive_transcript(hook_input: HookInput, _: str | None, __: HookContext) -> HookJSONOutput:
        """Write the conversation to a file; a failure is only logged, and does not stop the compaction."""
        transcript = Path(hook_input["transcript_path"])
        now = datetime.now(_zone(order.timezone))
        try:
            await asyncio.to_thread(
                archive, transcript, settings.cwd / "conversations", assistant=order.assistant_name, now=now
            )
        except OSError as error:
            log_fault("the conversation was not archived", error)
        return {}

    return archive_transcript


def _zone(name: str) -> ZoneInfo:
    """Return a time zone by its name; UTC for an unknown name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return ZoneInfo("UTC")


@dataclass(slots=True)
class PromptOutcome:
    """The outcome of a prompt. Without a `result` the CLI ended before it had one."""

    result: sdk.ResultMessage | None = None
    checkpoint: str | None = None
    """The id of the prompt's last message in the transcript; None if none was seen."""
    context_tokens: int = 0
    """Tokens in the model's window at the last call; 0 if unknown."""
    has_boundary: bool = False
    """Whether the CLI reported that it compacted the session."""
    is_dropped: bool = False
    """Whether the CLI dropped the prompt because a hook took too long: nothing has reached the model."""

    def process_message(self, message: sdk.Message) -> None:
        """Set the fields of the outcome from a message of the CLI; the text of the message is not kept.

        Messages of a subagent are ignored.
        """
        if isinstance(message, sdk.AssistantMessage | sdk.UserMessage):
            # A subagent's messages are not part of the conversation that a session resumes.
            if message.parent_tool_use_id is not None:
                return
            self.checkpoint = message.uuid or self.checkpoint
        if isinstance(message, sdk.AssistantMessage):
            self.context_tokens = window_tokens(message.usage) or self.context_tokens
        elif isinstance(message, sdk.SystemMessage) and message.subtype == "compact_boundary":
            self.has_boundary = True
            self.context_tokens = figure(_mapping(message.data.get("compact_metadata")).get("post_tokens"))
        elif isinstance(message, sdk.SystemMessage) and message.subtype == "informational":
            # Measured: the result of a dropped prompt says success. Only this message shows that it was
            # dropped: a hook gave no verdict in time, and the CLI has not kept the prompt.
            verdict = _mapping(message.data.get("prompt_submit_outcome"))
            if verdict:  # the last one decides
                self.is_dropped = verdict.get("kind") == "no_verdict" and not verdict.get("prompt_kept")
        elif isinstance(message, sdk.ResultMessage):
            self.result = message


async def ask(
    client: sdk.ClaudeSDKClient,
    prompt: str | list[Block],
    on_session: Callable[[str], None],
    stream: SdkStreamEvents,
) -> PromptOutcome:
    """Send one prompt, wait for its result and return the outcome.

    `prompt` is a text, or a list of blocks with files, as `shown_files` makes. `on_session` is called with
    the id of the session when the CLI reports it; `stream` gets every message of the CLI.
    """
    prompt_id = str(uuid4())
    await client.query(_one_message(prompt, prompt_id))
    return await _receive_outcome(client, prompt_id, on_session, stream)


async def compact(
    client: sdk.ClaudeSDKClient, cli: CliProcess, on_session: Callable[[str], None], stream: SdkStreamEvents
) -> PromptOutcome:
    """Make the CLI summarise the conversation, and return the outcome.

    `on_session` is called with the id of the session when the CLI reports it; `stream` gets every message.
    """
    prompt_id = str(uuid4())
    # Written directly to the CLI: the client marks every message as a person's text, which is no command.
    async for message in _one_message("/compact", prompt_id):
        await cli.write(json.dumps(message) + "\n")
    return await _receive_outcome(client, prompt_id, on_session, stream)


async def _receive_outcome(
    client: sdk.ClaudeSDKClient, prompt_id: str, on_session: Callable[[str], None], stream: SdkStreamEvents
) -> PromptOutcome:
    """Read the CLI's messages up to the result of a prompt, or the CLI's end; return the prompt's outcome.

    A result of another prompt, such as a late one of the turn before, is skipped. `on_session` is called with
    the id of the session that the CLI reports; `stream` gets every message.
    """
    outcome = PromptOutcome()
    async for message in _messages(client):
        stream.process_message(message)
        match message:
            case sdk.SystemMessage(subtype="init", data={"session_id": str(session_id)}):
                on_session(session_id)
        # A result that names no prompt counts as this one's.
        if isinstance(message, sdk.ResultMessage) and prompt_id not in (
            message.user_message_uuids or [prompt_id]
        ):
            continue
        outcome.process_message(message)
        if outcome.result is not None:
            break
    return outcome


async def _messages(client: sdk.ClaudeSDKClient) -> AsyncIterator[sdk.Message]:
    """Yield the CLI's messages until it ends. One that the SDK cannot read is logged and left out.

    Raises:
        MessageParseError: the message that cannot be read is a result, which the turn waits for.
    """
    while True:
        try:
            async for message in client.receive_messages():
                yield message
        except MessageParseError as error:
            if _mapping(error.data).get("type") == "result":
                raise
            log_fault("a message of the CLI is left out", error)
        else:
            return


def _mapping(value: Any) -> dict[str, Any]:
    """Return a field of the CLI that has to be an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


async def _one_message(prompt: str | list[Block], prompt_id: str) -> AsyncIterator[dict[str, Any]]:
    """Yield one message: a prompt as the CLI expects it on its stdin. The SDK takes only an iterator.

    `prompt_id` is a new UUID, by which the CLI's result refers to the prompt.
    """
    content = {"role": "user", "content": prompt}
    yield {"type": "user", "uuid": prompt_id, "message": content, "parent_tool_use_id": None}


def outcome_of(prompt_outcome: PromptOutcome) -> TurnOutcome:
    """Return the outcome of a turn from the outcome of its prompt.

    It has an error if the CLI dropped the prompt, and for an error result, whatever the model wrote before. A
    turn that reached the limit of requests to the model has no error, but a note.

    Raises:
        RuntimeError: there is no result.
    """
    result = prompt_outcome.result
    usage = _usage(prompt_outcome)
    if result is None:
        raise RuntimeError("The Claude CLI ended without a result")
    if prompt_outcome.is_dropped:
        return TurnOutcome(error=DROPPED, code="agent")
    if not result.is_error and result.subtype == "success":
        return TurnOutcome(usage=usage, checkpoint=prompt_outcome.checkpoint)
    if result.subtype == MAX_TURNS_REACHED:
        note = "it has asked the model as often as it may"
        return TurnOutcome(note=note, usage=usage, checkpoint=prompt_outcome.checkpoint)
    errors = result.errors if isinstance(result.errors, list) else [result.errors]
    lines = (" ".join(str(reason).split()) for reason in (*errors, result.result, result.subtype) if reason)
    reason = next(filter(None, lines), "no reason given")
    return TurnOutcome(error=reason[:MAX_REASON_CHARS], code="agent", usage=usage)


def _usage(prompt_outcome: PromptOutcome) -> TokenUsage | None:
    """Return the tokens that a prompt used; None if the CLI has reported none."""
    usage = _mapping(prompt_outcome.result.usage) if prompt_outcome.result else {}
    if prompt_outcome.result is None or not usage:
        return None
    models = _mapping(prompt_outcome.result.model_usage)
    # A turn may have used several models: the smallest known window is the limit.
    windows = [figure(_mapping(model).get("contextWindow")) for model in models.values()]
    return TokenUsage(
        model=", ".join(models)[:MAX_MODELS_CHARS] or None,
        input_tokens=figure(usage.get("input_tokens")),
        output_tokens=figure(usage.get("output_tokens")),
        cache_read_tokens=figure(usage.get("cache_read_input_tokens")),
        cache_write_tokens=figure(usage.get("cache_creation_input_tokens")),
        context_tokens=prompt_outcome.context_tokens,
        context_window=min(filter(None, windows), default=0),
    )
