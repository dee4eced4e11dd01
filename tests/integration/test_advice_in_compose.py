"""Each refusal in Compose's container names a fix that works there, where the checkout is read-only."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest
from filelock import FileLock

from orchestrator.backup import group_export, make
from orchestrator.base import installation
from orchestrator.base.clock import SystemClock
from orchestrator.cli import doctor, doctor_checks, voice
from orchestrator.cli.exit_codes import exit_after
from orchestrator.cli.main import app
from orchestrator.compose.self_inspect import FILTER_SOCKET
from orchestrator.domain.errors import BackupError, BadRequest, HomeError, SettingError
from orchestrator.groups import owner
from orchestrator.home import dotenv_file, settings
from orchestrator.home import lock as home_lock
from orchestrator.home.directory import Home
from orchestrator.store.conversation import outbox
from tests.support.store_harness import StoreHarness


@pytest.fixture(autouse=True)
def in_compose(tmp_path, monkeypatch):
    """A process with the environment of Andy's container, whose home is a temporary folder."""
    for module in (
        "orchestrator.base.installation",
        "orchestrator.home.dotenv_file",
        "orchestrator.backup.archive",
        "orchestrator.backup.make",
    ):
        monkeypatch.setattr(f"{module}.COMPOSE_HOME", str(tmp_path))
    monkeypatch.setattr(installation, "clone", lambda: None)
    monkeypatch.setenv("ANDY_HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{FILTER_SOCKET}")
    installation.installer.cache_clear()
    yield
    installation.installer.cache_clear()


def a_home(path: Path) -> Home:
    home = Home(path)
    home.make()
    return home


def test_lines_for_a_read_only_env_are_put_there_on_the_host(tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()  # so that root cannot write it either
    with pytest.raises(SettingError, match=r"on the host.*put ANDY_CHANNELS=none into \.env, then type"):
        dotenv_file.put(tmp_path / ".env", {"ANDY_CHANNELS": "none"})


@pytest.mark.parametrize("name", ["ANTHROPIC_API_KEY", "MY_PLACE"])
def test_a_secret_that_could_not_be_written_is_not_shown(tmp_path: Path, name: str) -> None:
    (tmp_path / ".env").mkdir()
    with pytest.raises(SettingError, match=f"put {name}=… into") as refused:
        dotenv_file.put(tmp_path / ".env", {name: "sk-secret"})
    assert "sk-secret" not in str(refused.value)


def test_what_compose_builds_with_may_stand_in_env(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("ANDY_VOICE=1\nANDY_LAYERS=browser\n")
    settings.load(tmp_path, {})
    (tmp_path / "andy.toml").write_text("ANDY_VOICE = 1\n")
    with pytest.raises(SettingError, match="'ANDY_VOICE' is no setting"):
        settings.load(tmp_path, {})


def test_the_demo_says_at_once_that_it_is_not_for_compose(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadRequest, match="docker compose exec andy andy chat main"):
        app(["demo"], exit_on_error=False, print_error=False, result_action="return_value")
    assert capsys.readouterr().out == ""


def test_what_listens_is_built_into_the_image(tmp_path: Path) -> None:
    assert "released image" in voice._library_help()
    (tmp_path / "container").mkdir()
    (tmp_path / "container" / "Dockerfile").touch()
    assert "ANDY_VOICE=1" in voice._library_help()
    assert "pip" not in voice._library_help()


def test_a_backup_goes_where_the_container_may_write(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    sqlite3.connect(home.database).close()
    with pytest.raises(BackupError, match=f"name a file in {tmp_path}/backups"):
        make._check_target(home, tmp_path / "nowhere" / "monday.tar.gz", replaces=False)


def test_a_place_of_somebody_else_is_refused_with_one_that_the_container_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = a_home(tmp_path)
    sqlite3.connect(home.database).close()
    stat = Path.stat

    def refused(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.parent.name == "of-somebody-else":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", refused)
    target = tmp_path / "of-somebody-else" / "monday.tar.gz"
    target.parent.mkdir()
    with pytest.raises(BackupError, match=f"such as {tmp_path}/backups/monday.tar.gz"):
        make.back_up(home, target, with_env=False, replaces=False, clock=SystemClock(), say=print)
    with pytest.raises(BackupError, match=f"such as '--to {tmp_path}/backups/family'"):
        group_export.checked_target(home, target.parent / "family")


def test_a_place_that_cannot_be_looked_at_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path / "tasks.json"))

    with pytest.raises(SystemExit) as ended:
        exit_after(command)
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        f"andy: {tmp_path}/tasks.json cannot be read or written (Permission denied): name another place,"
        " or call andy as the user who owns it.\n"
    )


def test_a_home_that_runs_is_stopped_by_docker_alone(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.make()
    with FileLock(home.lock_file), pytest.raises(HomeError, match="Docker starts and stops him here"):
        home_lock.acquire(home)


def run(*words: str) -> None:
    app([*words], exit_on_error=False, print_error=False, result_action="return_value")


def test_a_local_model_service_is_not_looked_for_in_the_container(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"own container: .*http://192\.168\.1\.20:8080 --kind llama"):
        run("models", "add", "local", "--kind", "llama.cpp")


def test_a_home_that_the_container_does_not_see_is_to_be_copied(tmp_path: Path) -> None:
    sqlite3.connect(a_home(tmp_path).database).close()
    with pytest.raises(BackupError, match=f"copy .* into backups/ .* name {tmp_path}/backups/nanoclaw here"):
        run("import", "nanoclaw", str(tmp_path / "elsewhere" / "nanoclaw"), "--dry-run")


def test_images_are_pushed_on_the_host() -> None:
    with pytest.raises(
        BadRequest, match=r"put ANDY_IMAGE=registry:5000/andy-agent:latest into .* push agent"
    ):
        run("image", "push", "registry:5000")


def test_commands_are_named_as_they_are_typed_on_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        raise BadRequest("See 'andy groups chats', or begin with 'andy up'.")

    with pytest.raises(SystemExit):
        exit_after(command)
    assert capsys.readouterr().err == (
        "andy: See 'docker compose exec andy andy groups chats', or begin with 'docker compose up -d'.\n"
    )
    assert installation.command("hooks", "revoke", "1") == "docker compose exec andy andy hooks revoke 1"


async def test_another_zone_counts_after_docker_has_restarted_him(tmp_path: Path) -> None:
    now_in_force = {"zone": "Asia/Seoul", "settings_changed": [{"name": "TZ"}]}
    finding = await doctor_checks.clock(Home(tmp_path), settings.load(tmp_path, {"TZ": "UTC"}), now_in_force)
    assert doctor.on_the_host(finding).fix == "docker compose restart andy"


async def test_the_owner_and_a_chat_read_commands_as_they_are_typed_on_the_host(
    store_harness: StoreHarness,
) -> None:
    await store_harness.add_group("main", is_main=True)
    await store_harness.add_group("family")
    await store_harness.hear("@Andy hello")
    (turn,) = await store_harness.queued()
    async with store_harness.database.transaction() as tx:
        await owner.notify(tx, "It fails: 'andy logs' has more.", about="a", now_ms=0)
        await owner.notify_once(tx, "It ends: see 'andy status'.", about="b", now_ms=0)
        await owner.notify_replacing_unsent(tx, "It waits: type 'andy up'.", about="c", now_ms=0)
        await outbox.add_failure(tx, turn, "⚠️ I failed: see 'andy doctor'.", now_ms=0)
    assert [each.text for each in await store_harness.outgoing()] == [
        "It fails: 'docker compose exec andy andy logs' has more.",
        "It ends: see 'docker compose exec andy andy status'.",
        "It waits: type 'docker compose up -d'.",
        "⚠️ I failed: see 'docker compose exec andy andy doctor'.",
    ]


async def test_another_way_to_type_a_command_is_no_news_to_the_owner(
    store_harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store_harness.add_group("main", is_main=True)
    for home in ("/srv/andy", os.environ["ANDY_HOME"]):
        monkeypatch.setenv("ANDY_HOME", home)
        async with store_harness.database.transaction() as tx:
            await owner.notify(tx, "It fails: 'andy logs' has more.", about="a", now_ms=0)
    assert len(await store_harness.outgoing()) == 1
