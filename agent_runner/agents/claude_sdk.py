"""The half of the Claude agent that needs the SDK: import it after `claude_import.import_sdk`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast
from uuid import uuid4
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import claude_agent_sdk as sdk
from claude_agent_sdk.types import HookContext, HookInput, HookJSONOutput

from agent_runner.agents.claude_cli import CliProcess
from agent_runner.agents.claude_command import (
    SERVERS,
    CliSettings,
    additions,
)
from agent_runner.faults import log_fault
from agent_runner.hooks import archive
from agent_runner.interfaces import Outcome, TokenUsage
from agent_runner.wire.order import RunOrder

ProcessError = sdk.ProcessError
AT_THE_CAP = "error_max_turns"
"""What it did until then stands: only who is given a cap meets it."""


def options(settings: CliSettings, order: RunOrder) -> sdk.ClaudeAgentOptions:
    """Say `settings` in the SDK's words, with the hooks that only it can have."""
    return sdk.ClaudeAgentOptions(
        cli_path=settings.cli,
        cwd=settings.cwd,
        system_prompt=settings.append if settings.is_bare else _preset(settings.append),
        tools=list(settings.tools),
        allowed_tools=list(settings.allowed_tools),
        max_turns=settings.model_turns,
        model=settings.model,
        permission_mode="bypassPermissions",
        resume=settings.resume,
        add_dirs=list(settings.extra),
        setting_sources=list(settings.setting_sources),
        env=additions(),
        hooks={"PreCompact": [sdk.HookMatcher(hooks=[_archiver(settings, order)])]},
        verbatim_prompts=True,  # an '@name' or a leading '/' in a chat message is no command
    )


def _preset(append: str) -> sdk.types.SystemPromptPreset:
    return {
        "type": "preset",
        "preset": "claude_code",
        "append": append,
        "snapshot": False,  # a resumed session follows the rules of today
    }


def sdk_command(chosen: sdk.ClaudeAgentOptions) -> list[str] | None:
    """Return the command that the SDK would start the CLI with, or None when this release hides it."""
    servers: Any = {name: {"type": "sdk", "name": name} for name in SERVERS}
    try:
        from claude_agent_sdk._internal.transport.subprocess_cli import SubprocessCLITransport

        with_tools = replace(chosen, mcp_servers=servers)
        build: Callable[[], list[str]] = SubprocessCLITransport("", with_tools)._build_command  # noqa: SLF001
        return build()
    except (ImportError, AttributeError, TypeError):
        return None


async def connect(cli: CliProcess, chosen: sdk.ClaudeAgentOptions) -> sdk.ClaudeSDKClient:
    """Introduce the SDK to a CLI that runs already.

    Raises:
        sdk.ClaudeSDKError: the CLI ended, for example because the session to resume is not there.
    """
    client = sdk.ClaudeSDKClient(chosen, transport=cast("Any", cli))
    await client.connect()
    return client


def _archiver(settings: CliSettings, order: RunOrder) -> sdk.HookCallback:
    async def archive_transcript(given: HookInput, _: str | None, __: HookContext) -> HookJSONOutput:
        transcript = Path(given["transcript_path"])
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
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return ZoneInfo("UTC")


async def ask(
    client: sdk.ClaudeSDKClient, prompt: str, on_session: Callable[[str], None]
) -> sdk.ResultMessage | None:
    """Ask once and return the result of this prompt, or None when the CLI ends without one.

    `on_session` hears of the session's id with the first message that tells it.
    """
    prompt_id = str(uuid4())
    await client.query(_one_message(prompt, prompt_id))

    def on_event(event: sdk.SystemMessage) -> None:
        if event.subtype == "init":
            on_session(str(event.data["session_id"]))

    return await _result_of(client, prompt_id, on_event)


@dataclass(frozen=True, slots=True)
class Compacted:
    """What came of `/compact`: its result, and whether the CLI reported the boundary that proves it."""

    result: sdk.ResultMessage | None
    has_boundary: bool


async def compact(client: sdk.ClaudeSDKClient, cli: CliProcess) -> Compacted:
    """Have the CLI summarise the conversation.

    Written past the client, which marks every message as text of a person, so that it is no command.
    """
    prompt_id, boundaries = str(uuid4()), 0

    def on_event(event: sdk.SystemMessage) -> None:
        nonlocal boundaries
        boundaries += event.subtype == "compact_boundary"

    async for message in _one_message("/compact", prompt_id):
        await cli.write(json.dumps(message) + "\n")
    result = await _result_of(client, prompt_id, on_event)
    return Compacted(result, boundaries > 0)


async def _result_of(
    client: sdk.ClaudeSDKClient, prompt_id: str, on_event: Callable[[sdk.SystemMessage], None]
) -> sdk.ResultMessage | None:
    async for message in client.receive_messages():
        if isinstance(message, sdk.SystemMessage):
            on_event(message)
        if isinstance(message, sdk.ResultMessage) and prompt_id in (
            message.user_message_uuids or [prompt_id]
        ):
            return message
    return None


async def _one_message(prompt: str, prompt_id: str) -> AsyncIterator[dict[str, Any]]:
    content = {"role": "user", "content": prompt}
    yield {"type": "user", "uuid": prompt_id, "message": content, "parent_tool_use_id": None}


def outcome_of(result: sdk.ResultMessage) -> Outcome:
    """Judge a result: an error result is an error, whatever was said before."""
    usage = _usage(result)
    if not result.is_error and result.subtype == "success":
        return Outcome(usage=usage)
    if result.subtype == AT_THE_CAP:
        return Outcome(note="it has asked the model as often as it may", usage=usage)
    reasons = result.errors or [result.result or "", result.subtype]
    reason = next((" ".join(reason.split()) for reason in reasons if reason.strip()), "no reason given")
    return Outcome(error=reason[:500], code="agent", usage=usage)


def _usage(result: sdk.ResultMessage) -> TokenUsage | None:
    used = result.usage
    if not used:
        return None
    models = list(result.model_usage or {})
    return TokenUsage(
        model=models[0] if len(models) == 1 else ", ".join(models) or None,
        input_tokens=int(used.get("input_tokens") or 0),
        output_tokens=int(used.get("output_tokens") or 0),
        cache_read_tokens=int(used.get("cache_read_input_tokens") or 0),
        cache_write_tokens=int(used.get("cache_creation_input_tokens") or 0),
    )
