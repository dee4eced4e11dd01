"""MCP servers that are programs: which are taken, and how the real CLI starts one."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from agent_runner.wire.order import TurnOrder
from orchestrator.containers.mounts import program_folder
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Folder
from orchestrator.reports import mcp
from orchestrator.store.settings import mcp_servers
from orchestrator.store.settings.mcp_servers import McpServer
from tests.doubles.messages_api import Say, ScriptedMessagesApi, UseTool, tool_names, tool_results
from tests.processes import mcp_program
from tests.processes.runner import RUN, RunnerProcess, make_workspace, order_of
from tests.support.store_harness import StoreHarness

COMMAND = "python3 server.py"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    put_program(home / "mcp" / "dice")
    return home


def put_program(folder: Path) -> None:
    folder.mkdir(parents=True)
    shutil.copyfile(mcp_program.__file__, folder / "server.py")
    for path in (folder.parent, folder):
        path.chmod(0o755)
    (folder / "server.py").chmod(0o644)


def a_program(command: str = COMMAND, **changes: object) -> McpServer:
    fields = {"name": "dice", "command": mcp.command_of(command), "groups": (Folder("main"),)}
    return McpServer(**{**fields, **changes})  # type: ignore[arg-type]


async def add(store_harness: StoreHarness, server: McpServer, home: Path) -> None:
    async with store_harness.database.transaction() as tx:
        await mcp.add(tx, server, home=home, now_ms=1)


async def test_a_program_of_the_owners_folder_is_set_listed_and_written_down(
    store_harness: StoreHarness, home: Path
) -> None:
    await store_harness.add_group("main", is_main=True)
    for command in (COMMAND, "python3 -m server", "./server.py --sides 6"):
        await add(store_harness, a_program(command), home)
    async with store_harness.database.reading() as tx:
        (row,) = await mcp.rows(tx, lambda _: True, home=home, now_ms=1)
        assert [one.command for one in await mcp_servers.of_group(tx, Folder("main"))] == [
            ("./server.py", "--sides", "6")
        ]
        assert await mcp_servers.of_group(tx, Folder("family")) == []
    assert (row["url"], row["place"], row["has_secret"], row["has_folder"]) == (
        None,
        "./server.py --sides 6",
        None,
        True,
    )
    (added, *_) = await store_harness.rows("SELECT detail FROM audit WHERE kind = 'mcp.added'")
    assert json.loads(added["detail"])["command"] == ["python3", "server.py"]
    shutil.rmtree(home / "mcp" / "dice")
    async with store_harness.database.reading() as tx:
        assert "mcp/dice IS MISSING" in "\n".join(
            mcp.lines(await mcp.rows(tx, lambda _: True, home=home, now_ms=1))
        )


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (a_program(name="shelf"), "Put the program into the folder .*mcp/shelf first"),
        (a_program(name="linked"), "a link does not count"),
        (a_program(secret_env="DICE_TOKEN"), "no secret may be: serve what needs one over HTTP"),
        (
            a_program("npx some-server"),
            "is a file in .*mcp/dice: a server that is a program must be stored there",
        ),
        (a_program("python3 /workspace/group/server.py"), "must be stored there"),
        (a_program("python3 ../../groups/main/server.py"), "has no '..'"),
        (a_program("python3 closed.py"), "chmod -R a\\+rX"),
    ],
)
async def test_what_is_no_program_of_the_owners_is_refused_with_the_fix(
    store_harness: StoreHarness, home: Path, server: McpServer, words: str
) -> None:
    await store_harness.add_group("main", is_main=True)
    (home / "mcp" / "linked").symlink_to(home / "mcp" / "dice")
    (home / "mcp" / "dice" / "closed.py").touch(mode=0o000)
    with pytest.raises(BadRequest, match=words):
        await add(store_harness, server, home)
    assert await store_harness.rows("SELECT * FROM mcp_servers") == []
    assert program_folder(home, "linked") is None


@pytest.mark.parametrize("line", ["", "   ", "python3 'server.py"])
def test_a_line_that_names_no_program_is_refused(line: str) -> None:
    with pytest.raises(BadRequest, match="command line"):
        mcp.command_of(line)


def test_the_cli_starts_a_program_in_its_own_folder_and_not_in_the_agents(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    put_program(workspace.mcp / "dice")
    (workspace.group / "server.py").write_text("raise SystemExit('this one is the agent\\'s')")
    order = order_of("roll", mcp_programs={"dice": (sys.executable, "server.py")})
    with ScriptedMessagesApi([UseTool("mcp__dice__roll", {"sides": 6}), Say("A six.")]) as api:
        environment = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "placeholder"}
        with RunnerProcess(workspace, order, environment=environment) as runner:
            runner.wait_for("turn_end")
            assert runner.results(1) == ["A six."]
        rolled = json.dumps(tool_results(api.turns[-1]))
    assert f"rolled 6 of 6 in {os.path.realpath(workspace.mcp / 'dice')}" in rolled


def test_a_run_with_a_part_of_its_own_is_given_no_program(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    put_program(workspace.mcp / "dice")
    part = TurnOrder(run=RUN, turn=1, kind="worker", prompt="look", instructions="You look after a board.")
    order = order_of("", mcp_programs={"dice": (sys.executable, "server.py")})
    with ScriptedMessagesApi([Say("Nothing.")]) as api:
        environment = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "placeholder"}
        changed = order.model_copy(update={"turn": part})
        with RunnerProcess(workspace, changed, environment=environment) as runner:
            runner.wait_for("turn_end")
        assert not [name for name in tool_names(api.turns[0]) if name.startswith("mcp__dice")]
        assert "mcp__dice" not in json.dumps(api.turns[0].body)
