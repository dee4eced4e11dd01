"""The trial of a release: what was made is installed and started in empty folders, as its users do it."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sysconfig
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from release.artifacts import COMPOSE, run
from release.decisions import ReleaseRefused

START_SECONDS = 400
"""Seconds that both containers may take to start on a machine under load."""
ANYBODY = 4321
"""The user whose folder a trial by root starts Andy in."""
_OWN = ("ANDY_", "XDG_", "PYTHON", "COMPOSE_", "ORCHESTRATOR_")
"""The beginnings of variables that would lead a trial to another Andy."""


def clean_environment(owner: Path) -> dict[str, str]:
    """Return the environment of a user who has no Andy yet."""
    passed = {name: text for name, text in os.environ.items() if not name.startswith(_OWN)}
    return {**passed, "HOME": str(owner)}


def install_wheel(wheel: Path, folder: Path) -> Path:
    """Install a wheel into a new environment in `folder` and return its program.

    The libraries are those of the environment that this runs in: they are the locked ones.
    """
    venv.create(folder, symlinks=True, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    # After the wheel's own, which therefore hides the Andy of this environment.
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder / "bin" / "andy"


def try_wheel(wheel: Path, folder: Path, version: str) -> None:
    """Run `andy demo` of an installed wheel in an empty folder. Raises `ReleaseRefused`."""
    owner, empty = folder / "owner", folder / "empty"
    owner.mkdir(parents=True)
    empty.mkdir()
    andy = install_wheel(wheel, folder / "env")
    environment = clean_environment(owner)
    found = _run_alone(andy, "--version", cwd=empty, environment=environment).strip()
    if found != version:
        raise ReleaseRefused(f"The wheel of {version} says that it is {found}: it holds other files.")
    print(_run_alone(andy, "demo", "--runtime", "process", cwd=empty, environment=environment))
    if left := [path.name for path in empty.iterdir()]:
        raise ReleaseRefused(f"'andy demo' of the wheel leaves {', '.join(left)} in the folder: mend that.")


def _run_alone(*command: str | Path, cwd: Path, environment: dict[str, str]) -> str:
    """Run a program with this environment and nothing besides."""
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=START_SECONDS, check=False
    )
    if done.returncode != 0:
        raise ReleaseRefused(f"'andy {command[1]}' of the wheel fails:\n{done.stdout}{done.stderr}")
    return done.stdout


def compose_program() -> tuple[str, ...]:
    """Return how Compose is started here. Raises `ReleaseRefused` where it is missing."""
    plugin = ("docker", "compose")
    with suppress(ReleaseRefused):
        run(*plugin, "version", cwd=Path.cwd())
        return plugin
    if shutil.which("docker-compose"):
        return ("docker-compose",)
    raise ReleaseRefused("Docker Compose is missing, with which a release is tried: install docker-compose.")


def try_compose(made: Path, folder: Path) -> None:
    """Start Andy from the Compose file in an empty folder, ask him something, and take him down.

    Raises:
        ReleaseRefused: he does not start, or does not answer.
    """
    folder.mkdir()
    shutil.copy2(made / COMPOSE, folder / COMPOSE)
    port = _free_port()
    settings = folder / ".env"
    settings.touch(mode=0o600)
    settings.write_text(
        f"COMPOSE_PROJECT_NAME=andyrelease{secrets.token_hex(4)}\nANDY_PORT={port}\n", encoding="utf-8"
    )
    if os.geteuid() == 0:  # a user of their own, as on any machine; Docker makes the rest as root
        for path in (folder, settings):
            os.chown(path, ANYBODY, ANYBODY)
    with _started(folder) as compose:
        _wait_for(port, compose)
        said = compose("exec", "-T", "andy", "andy", "chat", "main", "-m", "remind me in 3 hours to stretch")
        if "stretch" not in said:
            raise ReleaseRefused(f"Andy of the Compose file does not answer as he should: {said}")
        print(said)


@contextmanager
def _started(folder: Path) -> Iterator[Callable[..., str]]:
    """Have the Compose file up, and give the function that runs a command of Compose."""
    program = compose_program()
    environment = clean_environment(Path.home())

    def compose(*words: str) -> str:
        done = subprocess.run(
            [*program, *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise ReleaseRefused(f"'docker compose {words[0]}' fails:\n{(done.stdout + done.stderr)[-3000:]}")
        return done.stdout

    try:
        compose("up", "-d")
        yield compose
    finally:
        try:
            compose("down", "--volumes", "--timeout", "60")
        except ReleaseRefused as error:  # it would hide why the trial failed
            print(error)


def _wait_for(port: int, compose: Callable[..., str]) -> None:
    """Wait until Andy is healthy. Raises `ReleaseRefused` with the log where he never is."""
    until = time.monotonic() + START_SECONDS
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < until:
        try:
            opener.open(f"http://127.0.0.1:{port}/healthz", timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
        else:
            return
    raise ReleaseRefused(f"Andy of the Compose file does not start:\n{compose('logs', '--no-color')[-3000:]}")


def _free_port() -> int:
    """Return a port that the kernel gives nobody by itself: minutes pass until it is bound."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
