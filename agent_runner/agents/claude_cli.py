"""The Claude CLI as a child process: its command line, and the pipe to it.

The SDK could start the CLI itself, but only once it is imported, which takes as long as the CLI needs to
start. So the child is started first, with the command that the SDK would build (the SDK half compares
the two and starts anew when they differ), and handed to the SDK as its `Transport`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent_runner.agents.claude_prompt import system_prompt
from agent_runner.tools import tools_for
from agent_runner.wire.order import RunOrder
from agent_runner.workspace import Workspace

SERVER = "andy"
SETTING_SOURCES: tuple[Literal["user", "project"], ...] = ("user", "project")
BUILT_IN_TOOLS = (
    "Bash",
    "Read",
    "Write",
    "Edit",
    "Glob",
    "Grep",
    "WebSearch",
    "WebFetch",
    "Task",
    "TaskOutput",
    "TaskStop",
    "TodoWrite",
    "Skill",
    "NotebookEdit",
)
"""What is left out schedules work inside the session, where it would die with the container, or asks a
person at a terminal."""
MAX_LINE_BYTES = 64 * 1024 * 1024
EXIT_SECONDS = 1.0
"""How long the CLI may take to write its transcript after the end of its input."""
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CliSettings:
    """All that a CLI process is started with, known before the SDK is."""

    cli: Path
    cwd: Path
    append: str
    tools: tuple[str, ...]
    allowed: tuple[str, ...]
    extra: tuple[Path, ...]
    model: str | None
    model_turns: int | None
    resume: str | None

    @classmethod
    def of(cls, order: RunOrder, workspace: Workspace, *, resume: str | None) -> CliSettings:
        own = (f"mcp__{SERVER}__{tool.name}" for tool in tools_for(is_main=order.is_main))
        return cls(
            cli=bundled_cli(),
            cwd=workspace.group,
            append=system_prompt(order, workspace),
            tools=BUILT_IN_TOOLS,
            allowed=(*BUILT_IN_TOOLS, *own),
            extra=_directories(workspace.extra),
            model=order.model,
            model_turns=order.limits.model_turns,
            resume=resume,
        )

    def command(self) -> list[str]:
        """Return the command line, argument by argument as the SDK builds it."""
        command = [str(self.cli), "--output-format", "stream-json", "--verbose"]
        command += ["--append-system-prompt", self.append, "--tools", ",".join(self.tools)]
        command += ["--allowedTools", ",".join(self.allowed)]
        if self.model_turns:
            command += ["--max-turns", str(self.model_turns)]
        if self.model:
            command += ["--model", self.model]
        command += ["--permission-mode", "bypassPermissions"]
        if self.resume:
            command.append(f"--resume={self.resume}")
        for directory in self.extra:
            command += ["--add-dir", str(directory)]
        servers = {"mcpServers": {SERVER: {"type": "sdk", "name": SERVER}}}
        command += ["--mcp-config", json.dumps(servers)]
        command.append(f"--setting-sources={','.join(SETTING_SOURCES)}")
        return [*command, "--input-format", "stream-json"]

    def environment(self) -> dict[str, str]:
        """Return what the CLI's environment has beside the runner's own."""
        return {
            "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",  # a turn's work ends with the turn
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        } | ({"IS_SANDBOX": "1"} if os.geteuid() == 0 else {})  # or bypassPermissions is refused to root


def bundled_cli() -> Path:
    """Find the CLI in the SDK's wheel without importing the SDK.

    Raises:
        FileNotFoundError: the SDK is not installed, or its wheel carries no CLI.
    """
    spec = importlib.util.find_spec("claude_agent_sdk")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("claude-agent-sdk is not installed")
    cli = Path(spec.origin).parent / "_bundled" / "claude"
    if not cli.is_file():
        raise FileNotFoundError("this build of claude-agent-sdk carries no CLI")
    return cli


def _directories(parent: Path) -> tuple[Path, ...]:
    if not parent.is_dir():
        return ()
    return tuple(sorted(entry for entry in parent.iterdir() if entry.is_dir()))


class CliProcess:
    """A running CLI. It has the methods of the SDK's `Transport` and dies with this process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._is_ending = False

    @classmethod
    async def start(cls, settings: CliSettings) -> CliProcess:
        """Start the CLI. Raises `OSError`."""
        process = await asyncio.create_subprocess_exec(
            *settings.command(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=settings.cwd,
            env=_environment(settings),
            limit=MAX_LINE_BYTES,
            preexec_fn=_die_with(os.getpid()),
        )
        return cls(process)

    async def connect(self) -> None:
        """Nothing to do: it runs."""

    async def write(self, data: str) -> None:
        """Write to its stdin. That it is gone is told by `read_messages`, with the reason."""
        stdin = self._stdin()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            stdin.write(data.encode())
            await stdin.drain()

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield what it says, until it ends. Raises the SDK's `ProcessError` when nobody asked it to."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if line.startswith(b"{"):
                yield json.loads(line)
        code = await self._process.wait()
        if not self._is_ending:
            from claude_agent_sdk import ProcessError

            raise ProcessError("The Claude CLI ended by itself", exit_code=code)

    async def end_input(self) -> None:
        self._is_ending = True
        self._stdin().close()

    async def close(self) -> None:
        """Let it finish its transcript, at most `EXIT_SECONDS`, then kill it."""
        await self.end_input()
        try:
            async with asyncio.timeout(EXIT_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def is_ready(self) -> bool:
        return self._process.returncode is None

    def _stdin(self) -> asyncio.StreamWriter:
        assert self._process.stdin is not None
        return self._process.stdin


def _environment(settings: CliSettings) -> dict[str, str]:
    """The environment that the SDK gives the CLI."""
    inherited = {name: value for name, value in os.environ.items() if name != "CLAUDECODE"}
    return {
        **inherited,
        "CLAUDE_CODE_ENTRYPOINT": "sdk-py",
        **settings.environment(),
        "CLAUDE_AGENT_SDK_VERSION": importlib.metadata.version("claude-agent-sdk"),
        "CLAUDE_CODE_SDK_READS_SESSION_STATE": "1",
        "PWD": str(settings.cwd),
    }


def _die_with(parent: int) -> Any:
    """Return what the child does before it becomes the CLI: ask to be killed when the runner dies."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return ask
