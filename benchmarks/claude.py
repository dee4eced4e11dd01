"""The Claude CLI of the image without Andy, and the scripted API that both talk to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.engine import Bare
from tests.doubles.messages_api import Recorded, Say, ScriptedMessagesApi, last_user_text

DUMMY_KEY = "sk-ant-api03-benchmark"
TOOLS = (
    "Bash,Read,Write,Edit,Glob,Grep,WebSearch,WebFetch,Task,TaskOutput,TaskStop,TodoWrite,Skill,NotebookEdit"
)
FLAGS = (
    "--output-format", "stream-json", "--verbose",
    "--tools", TOOLS, "--allowedTools", TOOLS,
    "--permission-mode", "bypassPermissions", "--setting-sources=user,project",
)  # fmt: skip
_CLI = "exec /opt/andy/lib/python3*/site-packages/claude_agent_sdk/_bundled/claude"

ONCE = ("sh", "-c", f'{_CLI} "$@" </dev/null', "claude", "-p", "hi", *FLAGS)
"""One question, as a person would put it on a command line. From an open stdin it would wait for more."""

IN_A_SESSION = (
    "python3", "-c",
    """
import asyncio, sys, time
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient

async def main():
    tools = sys.argv[1].split(",")
    options = ClaudeAgentOptions(
        system_prompt={"type": "preset", "preset": "claude_code"}, tools=tools, allowed_tools=tools,
        permission_mode="bypassPermissions", setting_sources=["user", "project"],
    )
    async with ClaudeSDKClient(options) as client:
        print("ready", flush=True)
        while question := await asyncio.to_thread(sys.stdin.readline):
            at = time.time()
            await client.query(question.strip())
            async for _ in client.receive_response():
                pass
            print(at, flush=True)

asyncio.run(main())
""",
    TOOLS,
)  # fmt: skip
"""One question a line of stdin; says for each when it was put to the SDK, once it is answered."""


def api_on(bare: Bare) -> ScriptedMessagesApi:
    """An API that says "Done." to everything, where both the host and bare containers reach it."""
    return ScriptedMessagesApi(default=Say("Done."), host=bare.gateway)


def environment(api: ScriptedMessagesApi) -> dict[str, str]:
    """What a bare CLI needs to reach the API."""
    return {
        "ANTHROPIC_BASE_URL": api.url,
        "ANTHROPIC_API_KEY": DUMMY_KEY,
        "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    }


def host_settings(api: ScriptedMessagesApi) -> Mapping[str, str]:
    """What the host needs to reach the API for its containers."""
    return {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": DUMMY_KEY}


def asking(text: str) -> Callable[[Recorded], bool]:
    """Whether a request puts this question."""
    return lambda request: request.kind == "turn" and text in last_user_text(request)
