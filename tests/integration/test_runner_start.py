"""The shortcuts of the Claude agent's start, held against what they stand for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent_runner.agents.claude.cli_command import CliSettings, start_early
from agent_runner.agents.claude.sdk_import import import_sdk
from agent_runner.carrier import waiting_runner
from agent_runner.wire.order import RestoreOrder, RunOrder, TurnLimits, TurnOrder
from agent_runner.workspace import Workspace
from orchestrator.containers.run_orders import RunOrders
from orchestrator.home.settings import Settings
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.proxies.model.routing import ModelRouter
from orchestrator.proxies.model.token_usage import Prices
from tests.doubles.messages_api import Say, ScriptedMessagesApi, Tokens, all_text, system_text
from tests.processes.runner import PLAIN, RunnerProcess, order_of
from tests.support.host_contexts import host_context
from tests.support.store_harness import StoreHarness

REPORTER = """#!{python}
import json, os, sys
with open({report!r}, "w") as file:
    json.dump({{"arguments": sys.argv[1:], "environment": dict(os.environ), "cwd": os.getcwd()}}, file)
"""


def reporter(directory: Path) -> tuple[Path, Path]:
    """Make a program that writes down how it was started; return it and its report."""
    program, report = directory / "claude", directory / "report.json"
    program.write_text(REPORTER.format(python=sys.executable, report=str(report)))
    program.chmod(0o755)
    return program, report


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"session_id": "0b9d1f3e-1111-4222-8333-444444444444"},
        {"session_id": "--version", "model": "claude-haiku-4-5"},
        {"session_id": "0b9d1f3e-1111-4222-8333-444444444444", "restore": RestoreOrder(resume_at="5a1d")},
        {"restore": RestoreOrder(resume_at="of a session that is not resumed")},
        {"limits": TurnLimits(model_turns=7, output_tokens=4_096), "is_main": True},
        {"progress": True, "restore": RestoreOrder(resume_at="5a1d"), "session_id": "x"},
        {"assistant_name": "Ada", "timezone": "Asia/Seoul"},
        {
            "limits": TurnLimits(model_turns=10),
            "model": "claude-haiku-4-5",
            "instructions": "- Keep order 정리",
        },
    ],
)
async def test_the_cli_is_started_just_as_the_sdk_would(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    import_sdk()
    from claude_agent_sdk._internal.transport.subprocess_cli import SubprocessCLITransport

    from agent_runner.agents.claude import sdk_client

    monkeypatch.setenv("CLAUDECODE", "1")
    (workspace.shared / "CLAUDE.md").write_text("- shared 기억")
    (workspace.extra / "code").mkdir()
    part = more.get("instructions")
    order = order_of("hi", **{name: value for name, value in more.items() if name != "instructions"})
    order = order.model_copy(update={"turn": order.turn.model_copy(update={"instructions": part})})
    program, report = reporter(workspace.root)
    settings = replace(CliSettings.of(order.model_dump(), workspace), cli=program)
    chosen = replace(
        sdk_client.options(settings, order),
        mcp_servers={name: {"type": "sdk", "name": name} for name in ("andy", "dashboard", "ans")},
    )
    transport = SubprocessCLITransport("", chosen)
    await transport.connect()
    assert transport._process
    await transport._process.wait()
    await transport.close()
    started = json.loads(report.read_text())
    ours = replace(settings, cli=CliSettings.of(order.model_dump(), workspace).cli).environment()
    assert started["arguments"] == settings.command()[1:]
    assert (
        started["arguments"]
        == (sdk_client.sdk_command(sdk_client.options(settings, order), settings) or [])[1:]
    )
    assert started["cwd"] == str(workspace.group)
    assert {**started["environment"], "LC_CTYPE": ""} == {**ours, "LC_CTYPE": ""}


@pytest.mark.parametrize(
    "more", [{}, {"session_id": "x", "limits": TurnLimits(model_turns=3), "is_main": True}]
)
def test_the_order_as_it_was_read_starts_the_cli_that_the_agent_wants(
    workspace: Workspace, more: dict[str, Any]
) -> None:
    order = order_of("hi", **more)
    bare = RunOrder.model_validate_json(order.model_dump_json(by_alias=True, exclude_defaults=True))
    line = order.model_dump_json(by_alias=True, exclude_unset=True).encode()
    started = start_early(line, workspace)
    assert started
    started.process.kill()
    started.process.communicate()
    assert started.command == CliSettings.of(bare.model_dump(), workspace).command()


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b'{"agent": "offline"}', b'{"agent": "claude", "limits": 3}']
)
def test_an_order_that_does_not_ask_for_claude_starts_nothing(workspace: Workspace, line: bytes) -> None:
    assert start_early(line, workspace) is None


def python(program: str) -> list[str]:
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return finished.stdout.split()


def test_a_runner_that_waits_ends_with_a_carrier_that_never_had_an_order(tmp_path: Path) -> None:
    waiting = waiting_runner.start(tmp_path, [])
    output, errors = waiting.communicate(timeout=60)
    assert (waiting.returncode, output, errors) == (0, b"", b"")


def test_a_runner_that_waits_has_the_environment_of_its_order(tmp_path: Path) -> None:
    waiting = waiting_runner.start(tmp_path, ["sh", "-c", "printenv TZ; date +%z; cat"])
    waiting_runner.hand_over(waiting, {"TZ": "Asia/Kathmandu"}, b"the order")
    assert waiting.stdout is not None
    with waiting, waiting.stdout as output:
        assert output.read() == b"Asia/Kathmandu\n+0545\nthe order\n"


def test_a_carrier_connects_before_it_loads_what_takes_long() -> None:
    program = """
import sys, agent_runner.carrier.carrier
print(*({"pydantic", "watchdog"} & set(sys.modules)))
"""
    assert python(program) == []


@pytest.mark.slow
def test_the_sdk_is_imported_without_mcp_and_leaves_no_stand_in_behind() -> None:
    program = """
import sys
from agent_runner.agents.claude.sdk_import import import_sdk
import_sdk()
loaded = {name.partition(".")[0] for name in sys.modules}
print("claude_agent_sdk" in loaded, "mcp" in loaded, "jsonschema" in loaded)
import jsonschema, mcp.types
print(mcp.types.Tool.__module__, callable(jsonschema.validate))
"""
    assert python(program) == ["True", "False", "False", "mcp_types._types", "True"]


def test_the_sdk_is_the_one_release_that_the_shortcuts_were_tried_with() -> None:
    """An upgrade is a decision: run this module with it, then measure the start and move both pins."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["agent"]]
    pins = {each for each in wanted if each.startswith("claude-agent-sdk")}
    assert pins == {f"claude-agent-sdk=={version('claude-agent-sdk')}"}


@pytest.mark.slow
def test_an_sdk_that_wants_more_of_mcp_is_imported_as_it_is() -> None:
    program = """
import sys
from agent_runner.agents.claude import sdk_import
sdk_import.ABSENT = ("mcp", "mcp.types")
sdk_import.import_sdk()
import claude_agent_sdk, mcp.server
print("mcp.server" in sys.modules, issubclass(claude_agent_sdk.ToolAnnotations, mcp.types.ToolAnnotations))
"""
    assert python(program) == ["True", "True"]


def environment(api: ScriptedMessagesApi) -> dict[str, str]:
    return {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "placeholder"}


def test_the_cli_that_was_started_early_is_the_one_that_answers(workspace: Workspace) -> None:
    with (
        ScriptedMessagesApi() as api,
        RunnerProcess(workspace, order_of("hi"), environment=environment(api), command=PLAIN) as runner,
    ):
        runner.wait_for("turn_end")
    assert "anew" not in runner.stderr
    assert "slow way" not in runner.stderr


OTHER_COMMAND = """
import sys
from agent_runner import __main__
early = __main__.start_early
__main__.start_early = lambda line, workspace: early(line.replace(b'"UTC"', b'"Asia/Tokyo"'), workspace)
sys.exit(__main__.main())
"""


def test_a_cli_with_another_command_is_replaced(workspace: Workspace) -> None:
    command = [sys.executable, "-c", OTHER_COMMAND]
    with (
        ScriptedMessagesApi() as api,
        RunnerProcess(workspace, order_of("hi"), environment=environment(api), command=command) as runner,
    ):
        assert runner.wait_for("turn_end").status == "success"
        assert "UTC" in system_text(api.turns[0])
        assert "Tokyo" not in system_text(api.turns[0])
    assert "started again" in runner.stderr


def test_a_conversation_is_kept_before_it_is_compacted(workspace: Workspace) -> None:
    full = Tokens(input_tokens=990_000)
    with (
        ScriptedMessagesApi([Say("The bees are fine.", tokens=full), Say("Still fine.")]) as api,
        RunnerProcess(workspace, order_of("How are the bees?"), environment=environment(api)) as runner,
    ):
        runner.wait_for("turn_end", turn=1)
        runner.ask(2, "And now?")
        runner.keep_compaction()
        runner.wait_for("turn_end", turn=2)
        assert runner.results(2) == ["Still fine."]
        assert "Scripted summary" in all_text(api.turns[1])
    (kept,) = (workspace.group / "conversations").glob("*.md")
    assert "**User**: How are the bees?" in kept.read_text()
    assert "**Andy**: The bees are fine." in kept.read_text()


@pytest.mark.parametrize(("setting", "limit"), [(0, None), (8_192, 8_192)])
async def test_the_most_tokens_of_a_call_are_a_setting(
    store_harness: StoreHarness, tmp_path: Path, setting: int, limit: int | None
) -> None:
    group = await store_harness.add_group()
    settings = Settings(tz="Asia/Seoul", andy_agent="claude", andy_max_output_tokens=setting)
    credentials = CredentialSource(tmp_path, {"ANTHROPIC_API_KEY": "sk-ant-api03-the-key"})
    host = host_context(store_harness, tmp_path, settings)
    models = ModelRouter(host.reader, settings=settings, credentials=credentials, prices=Prices())
    proxies: Any = SimpleNamespace(models=models)
    orders = RunOrders(host, credentials=credentials, proxies=proxies, uid=os.getuid())
    run = await store_harness.begin_run()
    turn = TurnOrder(run=run.id, turn=1, kind="chat", prompt="hi")

    order = orders.order(run, group, turn, None)

    assert order.limits.output_tokens == limit
