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
    """Return the variables of this process for a user who has no Andy yet, and whose home is `owner`."""
    passed = {name: text for name, text in os.environ.items() if not name.startswith(_OWN)}
    return {**passed, "HOME": str(owner)}


def install_wheel(wheel: Path, folder: Path) -> Path:
    """Install a wheel into a new virtual environment in `folder`, and return the path of the program `andy`.

    The libraries are those of the environment that this runs in, which has the locked versions. Raises
    `ReleaseRefused`.
    """
    venv.create(folder, symlinks=True, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    # After the wheel's own, which therefore hides the Andy of this environment.
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder / "bin" / "andy"


def try_wheel(wheel: Path, folder: Path, version: str) -> None:
    """Install a wheel below `folder`, and run its `andy demo` in an empty folder there.

    Raises `ReleaseRefused` if that fails, has another version, or leaves files.
    """
    owner, empty = folder / "owner", folder / "empty"
    owner.mkdir(parents=True)
    empty.mkdir()
    andy = install_wheel(wheel, folder / "env")
    environment = clean_environment(owner)
    own_version = _run_alone(andy, "--version", cwd=empty, environment=environment).strip()
    if own_version != version:
        raise ReleaseRefused(f"The wheel of {version} says that it is {own_version}: it holds other files.")
    print(_run_alone(andy, "demo", "--runtime", "process", cwd=empty, environment=environment))
    if files := [path.name for path in empty.iterdir()]:
        raise ReleaseRefused(f"'andy demo' of the wheel leaves {', '.join(files)} in the folder: mend that.")


def _run_alone(*command: str | Path, cwd: Path, environment: dict[str, str]) -> str:
    """Run `andy` of the wheel in the folder `cwd`, and return what it wrote to stdout.

    It gets exactly the variables in `environment`. Raises `ReleaseRefused` if it fails.
    """
    result = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=START_SECONDS, check=False
    )
    if result.returncode != 0:
        raise ReleaseRefused(f"'andy {command[1]}' of the wheel fails:\n{result.stdout}{result.stderr}")
    return result.stdout


def compose_program() -> tuple[str, ...]:
    """Return the command that starts Compose on this machine. Raises `ReleaseRefused` if there is none."""
    plugin = ("docker", "compose")
    with suppress(ReleaseRefused):  # Docker has no such plugin here
        run(*plugin, "version", cwd=Path.cwd())
        return plugin
    if shutil.which("docker-compose"):
        return ("docker-compose",)
    raise ReleaseRefused("Docker Compose is missing, with which a release is tried: install docker-compose.")


def try_compose(made: Path, folder: Path) -> None:
    """Start Andy from the Compose file in `made`, in the new `folder`, ask him something, and stop him.

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
        question = "remind me in 3 hours to stretch"
        answer = compose("exec", "-T", "andy", "andy", "chat", "main", "-m", question)
        if "stretch" not in answer:
            raise ReleaseRefused(f"Andy of the Compose file does not answer as he should: {answer}")
        print(answer)


@contextmanager
def _started(folder: Path) -> Iterator[Callable[..., str]]:
    """Start the Compose file in `folder`, yield a function that runs a command of Compose, and take it down.

    The function returns what the command wrote to stdout, and raises `ReleaseRefused` if it fails.
    """
    program = compose_program()
    environment = clean_environment(Path.home())

    def compose(*words: str) -> str:
        """Run a command of Compose, given with its arguments, and return its output."""
        result = subprocess.run(
            [*program, *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )
        if result.returncode != 0:
            output = (result.stdout + result.stderr)[-3000:]
            raise ReleaseRefused(f"'docker compose {words[0]}' fails:\n{output}")
        return result.stdout

    try:
        compose("up", "-d")
        yield compose
    finally:
        try:
            compose("down", "--volumes", "--timeout", "60")
        except ReleaseRefused as error:  # printed only: raised, it would hide why the trial failed
            print(error)


def _wait_for(port: int, compose: Callable[..., str]) -> None:
    """Wait until Andy answers on this port that he is healthy.

    Raises `ReleaseRefused` with his log if he does not within `START_SECONDS`; `compose` runs a command of
    Compose, to read it.
    """
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
    """Return a random port on which nothing listens on this machine."""
    while True:
        # Below those that the kernel gives to programs by itself: minutes pass until Andy binds it.
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
