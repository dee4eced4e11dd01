"""Andy as a unit of systemd: its text as systemd itself reads it, and what is asked of systemctl."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.cli import service
from orchestrator.cli.main import app
from orchestrator.cli.uninstall import uninstall
from orchestrator.domain.errors import AndyError, EngineGone
from orchestrator.home import lock as home_lock
from orchestrator.home.directory import Home

STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*" >>"$CALLS"
case "$*" in
*--property=Linger) echo "Linger=$LINGER" ;;
*" show "*|show*) printf 'LoadState=loaded\\nUnitFileState=enabled\\nActiveState=%s\\n' "$ACTIVE"
    printf 'SubState=running\\nMainPID=4242\\nNRestarts=3\\n' ;;
*PrivateUsers=yes*true|*ProtectHome*true) exit "$NO_NAMESPACES" ;;
*fails*) echo "Failed to enable: no" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that systemd runs, as far as the command line can tell: it writes down what it is asked."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("systemctl", "loginctl", "systemd-run"):
        (programs / name).write_text(STAND_IN)
        (programs / name).chmod(0o755)
    made = tmp_path / "calls"
    made.touch()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(made))
    monkeypatch.setenv("LINGER", "yes")
    monkeypatch.setenv("ACTIVE", "inactive")
    monkeypatch.setenv("NO_NAMESPACES", "0")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(service, "SYSTEMD", tmp_path)
    return made


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone() -> None:
        raise EngineGone

    monkeypatch.setattr("orchestrator.containers.docker.runtime.probe", gone)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of a name that systemd would take for several words, and for something else."""
    made = tmp_path / "my 100%h $HOME"
    made.mkdir()
    return made


def andy(home: Path, *words: str) -> None:
    app(["service", *words, "--home", str(home)], result_action="return_value")


@pytest.mark.parametrize("of_machine", [False, True], ids=["user", "machine"])
@pytest.mark.parametrize("has_engine", [False, True], ids=["", "docker"])
def test_systemd_finds_nothing_wrong_with_the_unit(
    home, tmp_path, capsys, monkeypatch, of_machine, has_engine
):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing: apt-get install systemd")
    if has_engine:
        monkeypatch.setattr("orchestrator.containers.docker.runtime.probe", answers)
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/user/1000/docker.sock")
    andy(home, "install", "--print", *(["--system"] if of_machine else []))
    text = capsys.readouterr().out
    (tmp_path / "andy.service").write_text(text)

    seen = subprocess.run(
        [
            "systemd-analyze",
            *([] if of_machine else ["--user"]),
            "verify",
            "--man=no",
            tmp_path / "andy.service",
        ],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (seen.returncode, seen.stdout + seen.stderr) == (0, ""), text
    assert ('"--runtime" "docker"' in text) is has_engine
    assert (f"User={home.owner()}" in text) is of_machine
    assert 'Environment="DOCKER_HOST=unix:///run/user/1000/docker.sock"' in text
    assert 'my 100%%h $HOME"' in text


@pytest.mark.parametrize(
    ("owner", "user_id"), [("andy", 0), ("root", 0), (None, 1000), (None, 0)],
    ids=["machine", "machine-root", "user", "user-root"],
)  # fmt: skip
def test_a_unit_is_shut_off_from_what_it_does_not_use(tmp_path, monkeypatch, owner, user_id):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing: apt-get install systemd")
    monkeypatch.setattr(service.os, "geteuid", lambda: user_id)
    unit = service.ServiceUnit(name="andy", home=Path("/srv/andy home"), is_system=owner is not None)
    text = service.render(unit, runtime="docker", owner=owner)
    is_of_root = owner == "root" or (owner is None and user_id == 0)
    (tmp_path / "andy.service").write_text(text)

    seen = subprocess.run(
        [
            "systemd-analyze",
            "security",
            "--offline=yes",
            f"--threshold={35 if is_of_root else 22}",
            tmp_path / "andy.service",
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert seen.returncode == 0, seen.stdout[-300:]
    assert 'ReadWritePaths="/srv/andy home"' in text
    assert "PrivateTmp=yes" in text
    assert "ProtectHome=read-only" in text
    assert ("CAP_NET_ADMIN" in text) is is_of_root
    assert ("PrivateUsers=yes" in text) is (owner is None and not is_of_root)


def test_a_home_in_a_shared_folder_stays_in_sight():
    unit = service.ServiceUnit(name="andy", home=Path("/tmp/andy"), is_system=True)

    assert "PrivateTmp" not in service.render(unit, runtime=None, owner="andy")


async def answers() -> None:
    """As an engine that is there."""


def test_it_is_installed_and_taken_away(home, calls, capsys):
    andy(home, "install")

    unit = Path(os.environ["XDG_CONFIG_HOME"], "systemd", "user", "andy.service")
    assert f"for {home}\n" in unit.read_text()
    assert [
        line for line in calls.read_text().splitlines() if " show" not in line and "-run" not in line
    ] == [
        "systemctl --user daemon-reload",
        "systemctl --user enable andy.service",
        "systemctl --user restart andy.service",
    ]
    assert "goes on when you log out" in capsys.readouterr().out
    andy(home, "uninstall")
    assert not unit.exists()
    assert "systemctl --user disable --now andy.service" in calls.read_text()
    with pytest.raises(AndyError, match="There is no"):
        andy(home, "uninstall")


@pytest.mark.parametrize("refused", [False, True])
def test_what_a_machine_refuses_to_its_users_is_not_in_their_unit(home, calls, capsys, monkeypatch, refused):
    monkeypatch.setenv("NO_NAMESPACES", "1" if refused else "0")

    andy(home, "install")

    text = Path(os.environ["XDG_CONFIG_HOME"], "systemd", "user", "andy.service").read_text()
    assert ("ProtectSystem=strict" in text) is not refused
    assert "NoNewPrivileges=yes" in text
    assert ("lets no user make namespaces" in capsys.readouterr().out) is refused
    (tried,) = [line for line in calls.read_text().splitlines() if line.startswith("systemd-run --user")]
    assert "--property=ProtectSystem=strict" in tried


def test_one_who_would_end_with_the_login_is_kept_or_it_is_told_how(home, calls, capsys, monkeypatch):
    monkeypatch.setenv("LINGER", "no")
    andy(home, "install")
    assert "loginctl enable-linger" in calls.read_text()

    loginctl = Path(os.environ["PATH"].split(":")[0], "loginctl")
    loginctl.write_text("#!/bin/sh\nexit 1\n")
    capsys.readouterr()
    andy(home, "install")
    assert "He ends when you log out. To keep him: sudo loginctl enable-linger " in capsys.readouterr().out


def test_its_state_is_told(home, calls, capsys, monkeypatch):
    monkeypatch.setenv("ACTIVE", "active")
    andy(home, "status")
    assert "'andy service install' writes it" in capsys.readouterr().out

    andy(home, "install")
    capsys.readouterr()
    andy(home, "status", "--json")
    found = json.loads(capsys.readouterr().out)
    names = ("installed", "enabled", "active", "state", "pid", "restarts", "lingers")
    assert [found[name] for name in names] == [True, True, True, "active (running)", 4242, 3, True]
    andy(home, "status")
    assert "state     active (running), process 4242" in capsys.readouterr().out


def test_the_unit_of_another_home_is_left_alone(home, calls, tmp_path):
    andy(home, "install")
    other = tmp_path / "other"
    other.mkdir()

    for action in ("install", "uninstall"):
        with pytest.raises(AndyError, match="for another home: choose another --name"):
            andy(other, action)
    andy(other, "install", "--name", "andy-two")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("install", "--name", "fails"),
            "'systemctl --user enable fails.service' failed: Failed to enable: no",
        ),
        (("install", "--name", "../up"), "is no name of a unit"),
        (("status", "--name", ""), "is no name of a unit"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(home, calls, words, told):
    with pytest.raises(AndyError, match=told) as failure:
        andy(home, *words)

    assert "\n" not in str(failure.value)


def test_a_home_that_runs_by_hand_is_not_run_twice(home, calls):
    Home(home).make()

    with (
        home_lock.starting(Home(home), now_ms=1_790_000_000_000),
        pytest.raises(AndyError, match="already: stop him where he runs"),
    ):
        andy(home, "install")
    assert "enable" not in calls.read_text()


def test_without_systemd_it_is_said_how_to_see_the_unit(home, calls, monkeypatch):
    monkeypatch.setattr(service, "SYSTEMD", home / "nothing")

    for word in ("install", "status", "uninstall"):
        with pytest.raises(
            AndyError, match="no service: 'andy up' starts Andy here, and 'andy service install"
        ):
            andy(home, word)
    assert calls.read_text() == ""


def test_what_stays_after_an_uninstall_has_the_name_of_the_image(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    home = tmp_path / "home"
    home.mkdir()
    for settings, image in (('andy_image = "registry.example/andy:1"', "registry.example/andy:1"),
                            ("andy_image = [", "andy-agent:latest")):  # fmt: skip
        (home / "andy.toml").write_text(settings)
        uninstall(yes=True, home=home)
        assert f"docker image rm {image}\n" in capsys.readouterr().out


def test_what_a_restore_has_put_aside_stays_after_an_uninstall(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    home, aside = tmp_path / "[home]", tmp_path / "[home].before-restore-20261122-031500"
    home.mkdir()
    aside.mkdir()
    uninstall(yes=True, home=home)
    assert f"what was there before a restore  rm -r {shlex.quote(str(aside))}\n" in capsys.readouterr().out
