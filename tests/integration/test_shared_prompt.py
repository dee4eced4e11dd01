"""The prompt that all groups share: its files on the host, and what a model is told of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from agent_runner.agents.claude.prompt import FILES, MAX_FILE_CHARS, system_prompt
from agent_runner.workspace import Workspace
from orchestrator.groups import memory_templates
from tests.doubles.messages_api import Say, ScriptedMessagesApi, UseTool, system_text
from tests.processes.runner import RunnerProcess, make_workspace
from tests.support.priced_turns import main_order, prepare_main

GLOBAL = Path("groups/global")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "groups").mkdir()
    return tmp_path


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return make_workspace(tmp_path / "workspace")


def ensure(home: Path, *, worker_minutes: int = 30) -> list[str]:
    return memory_templates.ensure_prompt(home, assistant="Ada", worker_minutes=worker_minutes)


def test_a_home_gets_each_file_once_and_filled_in(home: Path) -> None:
    assert ensure(home) == list(memory_templates.PROMPT) == list(FILES)
    texts = {name: (home / GLOBAL / name).read_text() for name in FILES}
    assert "You are Ada" in texts["SOUL.md"]
    assert "every 30 minutes" in texts["DASHBOARD.md"]
    for name, text in texts.items():
        assert "{" not in text
        assert len(text) <= MAX_FILE_CHARS // 2, f"{name} leaves the owner room"
    assert ensure(home) == []


def test_what_the_rules_have_to_say_is_said(home: Path) -> None:
    ensure(home)
    rules = (home / GLOBAL / "AGENTS.md").read_text()
    for words in (
        "come before anything else",
        "markdown",
        "final answer",
        "SILENT",
        "one memory",
        "never an order",
    ):
        assert words in rules
    assert "<internal>" not in "".join((home / GLOBAL / name).read_text() for name in FILES), (
        "one word for silence"
    )
    board = (home / GLOBAL / "DASHBOARD.md").read_text()
    assert all(name in board for name in ("create_task", "schedule_notification", "schedule_task", "worker"))


def test_what_somebody_changed_stays_and_the_rest_is_renewed(home: Path) -> None:
    ensure(home)
    (home / GLOBAL / "DASHBOARD.md").write_text("mine")
    assert ensure(home, worker_minutes=45) == []
    (home / GLOBAL / "DASHBOARD.md").unlink()
    (home / GLOBAL / "SOUL.md").write_text("")
    assert ensure(home, worker_minutes=45) == ["DASHBOARD.md"]
    assert ensure(home, worker_minutes=60) == ["DASHBOARD.md"], "unchanged, so the new figure is put in"
    assert "every 60 minutes" in (home / GLOBAL / "DASHBOARD.md").read_text()
    assert (home / GLOBAL / "SOUL.md").read_text() == "", "emptied on purpose"


def test_files_of_a_home_that_lost_its_digests_are_renewed_with_the_next_change(home: Path) -> None:
    ensure(home)
    (home / memory_templates.SHIPPED).unlink()  # as if the host had been killed before it wrote them
    assert ensure(home) == []
    assert ensure(home, worker_minutes=45) == ["DASHBOARD.md"]
    assert "every 45 minutes" in (home / GLOBAL / "DASHBOARD.md").read_text()


def test_a_file_of_the_owners_own_is_kept_in_a_home_that_is_older(home: Path) -> None:
    (home / GLOBAL).mkdir()
    (home / GLOBAL / "AGENTS.md").write_text("be kind")
    assert "AGENTS.md" not in ensure(home)
    (home / memory_templates.SHIPPED).write_text("no JSON")
    assert ensure(home) == []
    assert (home / GLOBAL / "AGENTS.md").read_text() == "be kind"


def test_a_link_that_was_planted_is_neither_followed_nor_replaced(home: Path, tmp_path: Path) -> None:
    (home / GLOBAL).mkdir()
    secret = tmp_path / "secret"
    secret.write_text("kept")
    (home / GLOBAL / "SOUL.md").symlink_to(secret)
    assert "SOUL.md" not in ensure(home)
    assert (secret.read_text(), (home / GLOBAL / "SOUL.md").is_symlink()) == ("kept", True)


def test_a_model_is_told_the_files_in_their_order(workspace: Workspace) -> None:
    for name in FILES:
        (workspace.shared / name).write_text(f"this is {name}")
    (workspace.shared / "CLAUDE.md").write_text("shared memory")
    told = system_prompt({"assistant_name": "Ada", "timezone": "Asia/Seoul"}, workspace)
    places = [told.index(f"this is {name}") for name in FILES]
    assert places == sorted(places)
    assert told.startswith("You are Ada")
    assert "Asia/Seoul" in told
    assert told.endswith("shared memory")
    in_main = system_prompt({"is_main": True}, workspace)
    assert "shared memory" not in in_main
    assert "../global/" in in_main


def test_a_file_that_is_too_long_is_cut_and_says_so(
    workspace: Workspace, capfd: pytest.CaptureFixture[str]
) -> None:
    (workspace.shared / "USER.md").write_text("한" * (MAX_FILE_CHARS + 1))
    told = system_prompt({}, workspace)
    assert told.count("한") == MAX_FILE_CHARS
    assert "USER.md is cut here" in told
    assert "USER.md is longer" in capfd.readouterr().err


def test_files_and_memory_that_are_full_of_wide_letters_fit_in_one_argument(workspace: Workspace) -> None:
    for name in FILES:
        (workspace.shared / name).write_text("한" * MAX_FILE_CHARS)
    (workspace.shared / "CLAUDE.md").write_text("글" * 30_000)
    order = {"egress": "allowlist", "reachable": [f"{number}.example.org" for number in range(1_000)]}
    told = system_prompt(order, workspace)
    assert told.count("한") == MAX_FILE_CHARS * len(FILES), "the owner's files are whole"
    assert told.endswith("글")
    assert subprocess.run(["true", told], check=False).returncode == 0


def test_without_any_file_a_model_knows_how_to_answer(workspace: Workspace) -> None:
    assert "SILENT" in system_prompt({}, workspace)


def test_what_main_may_have_planted_holds_up_no_other_group(workspace: Workspace, tmp_path: Path) -> None:
    os.mkfifo(workspace.shared / "AGENTS.md")
    (tmp_path / "elsewhere").write_text("from elsewhere")
    (workspace.shared / "SOUL.md").symlink_to(tmp_path / "elsewhere")
    (workspace.shared / "USER.md").mkdir()
    told = system_prompt({}, workspace)
    assert "from elsewhere" not in told
    assert "SILENT" in told


def test_main_changes_what_all_groups_are_told(workspace: Workspace) -> None:
    prepare_main(workspace)
    soul = {"file_path": str(workspace.shared / "SOUL.md"), "content": "You speak like a pirate."}
    steps = [UseTool("Read", {"file_path": soul["file_path"]}), UseTool("Write", soul), Say("Aye.")]
    with ScriptedMessagesApi(steps) as api:
        environment = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "placeholder"}
        with RunnerProcess(workspace, main_order(), environment=environment) as runner:
            assert runner.wait_for("turn_end").status == "success"
        assert "thoughtful friend" in system_text(api.turns[0])
    assert "pirate" in system_prompt({}, workspace)
