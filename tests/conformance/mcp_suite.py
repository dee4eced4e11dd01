"""Run the conformance suite of the Model Context Protocol straight and through Andy's gateway.

`make conformance` calls this. It does so for a server of these tests, which has all that the suite asks for,
and for the reference server, and prints one line a scenario. It fails where the gateway changes a result that
is not listed here. The suite, the reference server and a Node.js come from npm, locked, into `.conformance/`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PLACE = ROOT / ".conformance"
MADE_ON_PURPOSE = {
    "dns-rebinding-protection": "the gateway writes Host anew and passes no Origin on",
}
"""Scenarios whose result the gateway changes, each with the reason."""
START_SECONDS = 60.0
SUITE_SECONDS = 300.0
_RESULT_FOLDER = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z")


def main() -> int:
    """Return 1 when the gateway changes a result that it should not."""
    environment = installed()
    port = free_port()
    own = [sys.executable, str(HERE / "everything_server.py"), str(port)]
    reference = ["mcp-server-everything", "streamableHttp"]
    environment["PORT"] = str(port)
    columns = [column for server in (own, reference) for column in both_ways(server, port, environment)]
    print("| scenario | straight | through the gateway | reference server | through the gateway |")
    print("| --- | --- | --- | --- | --- |")
    changed: set[str] = set()
    for scenario in sorted(set().union(*columns)):
        row = [column.get(scenario, "nothing") for column in columns]
        print(f"| `{scenario}` | {' | '.join(row)} |")
        if (row[0], row[2]) != (row[1], row[3]) and scenario not in MADE_ON_PURPOSE:
            changed.add(scenario)
    for scenario in sorted(changed):
        print(f"The gateway changes the result of {scenario}.", file=sys.stderr)
    return 1 if changed else 0


def both_ways(server: list[str], port: int, environment: dict[str, str]) -> list[dict[str, str]]:
    """Return the results of a server that listens on a port, straight and through the gateway."""
    url = f"http://127.0.0.1:{port}/mcp"
    with program(server, environment) as process:
        until_listening(port, process)
        with program([sys.executable, str(HERE / "gateway.py"), url], environment) as gateway:
            assert gateway.stdout is not None
            return [results(one, environment) for one in (url, gateway.stdout.readline().strip())]


def installed() -> dict[str, str]:
    """Return an environment in which `conformance` is a command, installed where it was not."""
    PLACE.mkdir(exist_ok=True)
    wanted = (HERE / "package-lock.json").read_text(encoding="utf-8")
    lock = PLACE / "package-lock.json"
    programs = PLACE / "node_modules" / ".bin"
    if not programs.is_dir() or not lock.is_file() or lock.read_text(encoding="utf-8") != wanted:
        shutil.copy(HERE / "package.json", PLACE)
        shutil.copy(HERE / "package-lock.json", PLACE)
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--silent"], cwd=PLACE, check=True)
    return {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


@contextmanager
def program(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run a program until the end of the block."""
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def results(url: str, environment: dict[str, str]) -> dict[str, str]:
    """Return what became of each scenario, such as `2 success, 1 failure`."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["conformance", "server", "--suite", "all", "--url", url, "--output-dir", folder]
        # It ends with 1 where any scenario fails, which the server without the gateway may, too.
        subprocess.run(
            command, env=environment, check=False, timeout=SUITE_SECONDS, stdout=subprocess.DEVNULL
        )
        found: dict[str, str] = {}
        for path in sorted(Path(folder).glob("*/checks.json")):
            match = _RESULT_FOLDER.fullmatch(path.parent.name)
            assert match is not None, path
            counts = Counter(
                check["status"].lower() for check in json.loads(path.read_text(encoding="utf-8"))
            )
            found[match[1]] = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def until_listening(port: int, process: subprocess.Popen[str]) -> None:
    """Wait until a program listens. Raises `RuntimeError` when it does not."""
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("The server did not start.")


if __name__ == "__main__":
    sys.exit(main())
