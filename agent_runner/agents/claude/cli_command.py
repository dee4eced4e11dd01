"""Builds the command of the Claude CLI. It imports only light modules, because it runs before anything else.

The CLI takes half a second to boot, as long as Python takes to import what the runner needs, and the order
contains all its settings. So the CLI is started first, and both boot concurrently.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent_runner.agents.claude.boot_files import BootFiles, boot_files
from agent_runner.agents.claude.prompt import system_prompt
from agent_runner.workspace import Workspace

SERVER = "andy"
DASHBOARD = "dashboard"
NOTICES = "ans"
SERVERS = (SERVER, DASHBOARD, NOTICES)
"""Tools of three kinds, each under a name of its own."""
SETTING_SOURCES: tuple[Literal["user", "project"], ...] = ("user", "project")
BUILT_IN_TOOLS = ("Bash", "Read", "Write", "Edit", "Task", "NotebookEdit", "ToolSearch")
"""Tools of the CLI that agents get. Others schedule work that would die with the container, ask a person at a
terminal, or do what Bash also does (Glob and Grep: 900 tokens in each request). `ToolSearch` finds the
deferred tools.
"""
SKILL_TOOL = "Skill"
"""The tool for skills, only offered if there are any: its description costs 400 tokens in each request."""
SETTINGS = json.dumps({"skipWebFetchPreflight": True, "skillOverrides": {"plugin-authoring": "off"}})
"""Settings of the CLI. Before it fetches a page it would ask Anthropic's server about the host, past both
proxies. The skill is the CLI's own one that its environment cannot switch off.
"""
BROWSER = Path("/opt/browser")
"""The browser of images that were built with one."""
PR_SET_PDEATHSIG = 1
"""The operation of Linux's `prctl` that names the signal for the parent's death."""
SUBAGENT_LIMITS = {
    "CLAUDE_CODE_MAX_CONCURRENT_SUBAGENTS": "3",
    "CLAUDE_CODE_MAX_SUBAGENT_SPAWN_DEPTH": "1",  # a subagent cannot start others
}
"""Limits of subagents. Their requests are counted and limited with their turn."""
SMALLER_REQUESTS = {
    "CLAUDE_AGENT_SDK_DISABLE_BUILTIN_AGENTS": "1",  # agents for reading code; ours is in sdk_client
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",  # a second memory, where no owner would look
    "CLAUDE_CODE_DISABLE_BUNDLED_SKILLS": "1",  # for code, but for a `loop` that would die with the session
    "CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS": "1",
    "CLAUDE_CODE_FORK_SUBAGENT": "0",
    "CLAUDE_CODE_SIMPLE_SYSTEM_PROMPT": "1",  # short descriptions of the CLI's tools, whatever the model
}
"""Variables that keep a request small. Figures: `docs/decisions/0015-a-system-prompt-of-our-own.md`."""

FOR_PLAIN_SERVICES = {
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # a line before the prompt that defeats every prompt cache
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
}
"""Variables for services that are not Anthropic's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpProgram:
    """An MCP server of the owner's that is a program, and its read-only folder."""

    name: str
    folder: Path
    command: tuple[str, ...]

    def as_config(self) -> dict[str, Any]:
        """Return the CLI's configuration of this server, which starts it in the server's own folder.

        The CLI's working folder would be wrong: the agent can write there.
        """
        # The folder and the command are arguments of the shell, not part of its script: it interprets nothing
        # in them.
        arguments = ["-c", 'cd "$0" && exec "$@"', str(self.folder), *self.command]
        return {"type": "stdio", "command": "/bin/sh", "args": arguments}


@dataclass(frozen=True, slots=True, kw_only=True)
class CliSettings:
    """All settings with which a CLI process is started."""

    cli: Path
    cwd: Path
    system_prompt: str
    """The text in place of the CLI's own prompt, which is about programming and costs 6,400 tokens."""
    extra: tuple[Path, ...]
    """Further folders that the agent may use."""
    model: str | None
    model_turns: int | None
    """The most calls of the model in one turn; None for no limit."""
    resume: str | None
    """The id of the session to resume; None for a new one."""
    output_tokens: int | None = None
    """The most tokens of one call of the model; None leaves it to the CLI."""
    resume_at: str | None = None
    """The id of the message after which the resumed session is continued; None continues at its end."""
    is_plain_service: bool = False
    """Whether its model service is not Anthropic's, and so has no deferred tools and no betas."""
    window: int | None = None
    """Tokens of its model's window; None leaves it to the CLI."""
    tools: tuple[str, ...] = BUILT_IN_TOOLS
    mcp_servers: tuple[str, ...] = ()
    """Names of servers behind the host's proxy."""
    mcp_programs: tuple[McpProgram, ...] = ()
    plugins: tuple[Path, ...] = ()
    """The folders with the skills of the host and of the image."""
    streams_text: bool = False
    """Whether the model's text is passed on while it is written."""
    is_bare: bool = False
    """Whether the turn has instructions of its own: no memory of the group, and only Andy's tools."""
    read_at_boot: BootFiles = frozenset()
    """The state of the files that it reads at boot; only for a run that is started ahead."""

    @property
    def allowed_tools(self) -> tuple[str, ...]:
        """The names of the tools that the CLI may use without asking, and of the servers that have tools."""
        # The servers are listed, too: a release of the CLI that enforces the list would leave them out.
        return (*self.tools, *(f"mcp__{name}" for name in self.servers()))

    @property
    def setting_sources(self) -> tuple[Literal["user", "project"], ...]:
        """The places from which the CLI reads settings and memory.

        Empty for a turn with instructions of its own (`is_bare`).
        """
        return () if self.is_bare else SETTING_SOURCES

    def servers(self) -> dict[str, dict[str, Any]]:
        """Return the configuration of each MCP server by its name.

        Andy's own servers run in this process. The owner's are reached through the host's proxy, or are
        programs that the CLI starts.
        """
        own: dict[str, dict[str, Any]] = {name: {"type": "sdk", "name": name} for name in SERVERS}
        programs = {program.name: program.as_config() for program in self.mcp_programs}
        return own | {name: _through_proxy(name) for name in self.mcp_servers} | programs

    @classmethod
    def of(cls, order: Mapping[str, Any], workspace: Workspace) -> CliSettings:
        """Return the settings for a run from the fields of its `RunOrder`, validated or not. Reads files.

        If the turn has `instructions`, they are the whole system prompt, and there are neither built-in
        tools, nor plugins, nor MCP servers of the owner.

        Raises:
            FileNotFoundError: there is no CLI.
        """
        instructions = (order.get("turn") or {}).get("instructions")
        return cls(
            cli=bundled_cli(),
            cwd=workspace.group,
            system_prompt=instructions or system_prompt(order, workspace),
            is_bare=bool(instructions),
            extra=_directories(workspace.extra),
            model=order.get("model"),
            model_turns=(order.get("limits") or {}).get("model_turns"),
            output_tokens=(order.get("limits") or {}).get("output_tokens"),
            is_plain_service=bool(order.get("is_plain_service")),
            window=order.get("window"),
            resume=order.get("session_id"),
            # After the message of `resume_at`, the session may have a question whose answer never came; the
            # CLI would ask it again.
            resume_at=(order.get("restore") or {}).get("resume_at") if order.get("session_id") else None,
            mcp_servers=() if instructions else tuple(order.get("mcp_servers") or ()),
            mcp_programs=() if instructions else _programs(order, workspace),
            streams_text=bool(order.get("progress")),
            plugins=() if instructions else _plugins(workspace),
            tools=() if instructions else _built_in(order, workspace),
            read_at_boot=boot_files(workspace) if order.get("is_standby") else frozenset(),
        )

    def command(self) -> list[str]:
        """Return the command line of the CLI, with the same arguments in the same order as the SDK builds."""
        # A command that differs from the SDK's would have the CLI started a second time.
        command = [str(self.cli), "--output-format", "stream-json", "--verbose"]
        command += ["--system-prompt", self.system_prompt]
        command += ["--tools", ",".join(self.tools)]
        command += ["--allowedTools", ",".join(self.allowed_tools)]
        if self.model_turns:
            command += ["--max-turns", str(self.model_turns)]
        if self.model:
            command += ["--model", self.model]
        command += ["--permission-mode", "bypassPermissions"]
        if self.resume:
            command.append(f"--resume={self.resume}")
        command += ["--settings", SETTINGS]
        for directory in self.extra:
            command += ["--add-dir", str(directory)]
        command += ["--mcp-config", json.dumps({"mcpServers": self.servers()})]
        if self.streams_text:
            command.append("--include-partial-messages")
        command.append("--strict-mcp-config")
        if self.resume_at:
            command.append(f"--resume-session-at={self.resume_at}")
        command.append(f"--setting-sources={','.join(self.setting_sources)}")
        for plugin in self.plugins:
            command += ["--plugin-dir", str(plugin)]
        return [*command, "--input-format", "stream-json"]

    def environment(self) -> dict[str, str]:
        """Return the environment of the CLI: what the SDK would give it, with Andy's additions."""
        # Left out as by the SDK: with CLAUDECODE, the CLI would take itself for a child of Claude Code.
        inherited = {name: value for name, value in os.environ.items() if name != "CLAUDECODE"}
        return {
            **inherited,
            "CLAUDE_CODE_ENTRYPOINT": "sdk-py",
            **self.additions(),
            "CLAUDE_AGENT_SDK_VERSION": _sdk_version(self.cli),
            "CLAUDE_CODE_SDK_READS_SESSION_STATE": "1",
            "PWD": str(self.cwd),
        }

    def additions(self) -> dict[str, str]:
        """Return the variables that Andy adds to the CLI's environment, by name."""
        ours = {
            "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",  # a turn's work ends with the turn
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            **SUBAGENT_LIMITS,
            **SMALLER_REQUESTS,
            # Without this variable the CLI would not search tools, since ANTHROPIC_BASE_URL is the host's
            # proxy. In a bare turn, and for a service without deferred tools, all tools are in each request.
            "ENABLE_TOOL_SEARCH": str(not self.is_bare and not self.is_plain_service).lower(),
            # The CLI's maximum, which lasts six minutes of an overloaded model. The CLI repeats one request;
            # if it gave up, the turn would start again and call its tools a second time. The host's proxy
            # reports errors for which retries are useless.
            "CLAUDE_CODE_MAX_RETRIES": "15",
            "DISABLE_AUTOUPDATER": "1",
        }
        if self.is_plain_service:
            ours |= FOR_PLAIN_SERVICES
        if self.window:
            # The CLI compacts and limits answers by its own table of models, which lacks this one.
            ours["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = ours["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(
                self.window
            )
            # An answer may fill a quarter of the window; the rest is for the conversation.
            ours["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(max(1_000, self.window // 4))
        if self.output_tokens:
            ours["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(self.output_tokens)
        if os.geteuid() == 0:
            ours["IS_SANDBOX"] = "1"  # otherwise it refuses bypassPermissions to root
        return ours


@dataclass(frozen=True, slots=True)
class StartedCli:
    """A CLI process and the settings it was started with."""

    command: list[str]
    process: subprocess.Popen[bytes]
    settings: CliSettings


def start_cli(settings: CliSettings, command: list[str] | None = None) -> StartedCli:
    """Start the CLI; it is killed when this process dies.

    `command` is what the SDK would run; without it, the command is derived from `settings`. Raises `OSError`.
    """
    chosen = command or settings.command()
    process = subprocess.Popen(
        chosen,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=settings.cwd,
        env=settings.environment(),
        preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509  # one call of prctl, no lock
    )
    return StartedCli(chosen, process, settings)


def start_early(order_line: bytes, workspace: Workspace) -> StartedCli | None:
    """Start the CLI for a run order, before that is validated; None if the order names another agent.

    `order_line` is a `RunOrder` as JSON. Any error gives None, too: it is left to the regular start, which
    can report it.
    """
    try:
        order = json.loads(order_line)
        if order["agent"] != "claude":
            return None
        return start_cli(CliSettings.of(order, workspace))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, subprocess.SubprocessError):
        return None


def bundled_cli() -> Path:
    """Return the path of the CLI in the SDK's wheel; the SDK is not imported. Raises `FileNotFoundError`."""
    spec = importlib.util.find_spec("claude_agent_sdk")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("claude-agent-sdk is not installed")
    cli = Path(spec.origin).parent / "_bundled" / "claude"
    if not cli.is_file():
        raise FileNotFoundError("this build of claude-agent-sdk carries no CLI")
    return cli


def _sdk_version(cli: Path) -> str:
    """Return the version of the SDK whose wheel has the CLI at the path `cli`.

    It is in `_version.py` of the package, two levels above the CLI (`_bundled/claude`); reading that is
    faster than `importlib.metadata`.
    """
    text = (cli.parents[1] / "_version.py").read_text(encoding="utf-8")
    return text.rpartition("__version__ = ")[2].strip().strip("\"'")


def _built_in(order: Mapping[str, Any], workspace: Workspace) -> tuple[str, ...]:
    """Return the names of the CLI's built-in tools that a turn may use."""
    # The model service itself does the searching; pages are fetched by the container, which needs a way to
    # the internet for that.
    search = ("WebSearch",) if order.get("web_search") else ()
    fetch = ("WebFetch",) if order.get("egress") in {"open", "allowlist"} else ()
    skills = (SKILL_TOOL,) if _has_skills(workspace) else ()
    return (*BUILT_IN_TOOLS, *search, *fetch, *skills)


def _plugins(workspace: Workspace) -> tuple[Path, ...]:
    """Return the folders with skills that are plugins; a folder in which nothing is mounted is left out."""
    folders = (workspace.skills, BROWSER)
    return tuple(folder for folder in folders if (folder / ".claude-plugin" / "plugin.json").is_file())


def _has_skills(workspace: Workspace) -> bool:
    """Return whether the CLI will find skills: of plugins, of the group, or of its user."""
    user_folder = os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude"
    plugins = (plugin / "skills" for plugin in _plugins(workspace))
    folders = (*plugins, workspace.group / ".claude" / "skills", Path(user_folder) / "skills")
    return any(next(folder.glob("*/SKILL.md"), None) is not None for folder in folders)


def _programs(order: Mapping[str, Any], workspace: Workspace) -> tuple[McpProgram, ...]:
    """Return the MCP servers of an order that are programs, sorted by name."""
    return tuple(
        McpProgram(name=name, folder=workspace.mcp / name, command=tuple(command))
        for name, command in sorted((order.get("mcp_programs") or {}).items())
    )


def _through_proxy(name: str) -> dict[str, Any]:
    """Return the configuration of an MCP server behind the host's proxy: its address, and the run's token.

    The environment of this process has both.
    """
    proxy, token = os.environ.get("ANTHROPIC_BASE_URL", ""), os.environ.get("ANTHROPIC_API_KEY", "")
    return {
        "type": "http",
        "url": f"{proxy}/mcp/{name}",
        "headers": {"Authorization": f"Bearer {token}"},
    }


def _directories(parent: Path) -> tuple[Path, ...]:
    """Return the folders directly inside a folder, sorted; empty if there is no such folder."""
    if not parent.is_dir():
        return ()
    return tuple(sorted(entry for entry in parent.iterdir() if entry.is_dir()))


def _die_with(parent_pid: int) -> Callable[[], None] | None:
    """Return a function that makes a child process die with its parent, whose process id is `parent_pid`.

    The child calls it before it becomes the CLI. None outside of Linux, where the CLI may outlive the runner.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def die_with_parent() -> None:
        """Have the kernel kill this process when its parent dies."""
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # The runner may have died before the call; then nothing would ever kill the CLI.
        if os.getppid() != parent_pid:
            os._exit(1)

    return die_with_parent
