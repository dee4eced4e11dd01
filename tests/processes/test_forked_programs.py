"""Programs that are forked from a template are, to who starts them, processes of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.forked_programs import forked

SHOW = """
import os, sys
print(sys.stdin.readline().strip(), os.environ["MARK"], os.getcwd(), *sys.argv[1:], flush=True)
print("loud", file=sys.stderr)
"""


def start(code: str, *arguments: str, directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*forked("runner", "-c", code), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"MARK": "here"},
        cwd=directory,
        text=True,
    )


def test_it_has_its_streams_arguments_environment_and_directory(tmp_path: Path) -> None:
    with start(SHOW, "a", "b c", directory=tmp_path) as process:
        assert process.communicate("hello\n") == (f"hello here {tmp_path} a b c\n", "loud\n")
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("raise SystemExit(7)", 7),
        ("raise SystemExit('no')", 1),
        ("raise LookupError('why')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_it_ends_with_the_code_or_the_signal_of_the_program(tmp_path: Path, code: str, ended: int) -> None:
    with start(code, directory=tmp_path) as process:
        _, error = process.communicate()
    assert process.returncode == ended
    assert ("no" in error, "why" in error) == ("no" in code, "why" in code)


def test_it_is_terminated_as_it_wants_to_be(tmp_path: Path) -> None:
    # Not `pause`, which would go on waiting after a signal that came just before it.
    begin = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(9)); print('up', flush=True)\n"
    with start(f"{begin}while True: time.sleep(0.01)", directory=tmp_path) as process:
        assert process.stdout
        assert process.stdout.readline() == "up\n"
        process.terminate()
        assert process.wait() == 9


def test_the_program_dies_where_its_process_is_killed(tmp_path: Path) -> None:
    with start("print('up', flush=True); import signal; signal.pause()", directory=tmp_path) as process:
        assert process.stdout
        assert process.stdout.readline() == "up\n"
        process.kill()
        assert process.stdout.read() == "", "nobody holds its output any more"


def test_a_module_is_run_as_python_runs_it(tmp_path: Path) -> None:
    command = forked("runner", "-m", "json.tool")
    done = subprocess.run(command, input="[1]", capture_output=True, text=True, cwd=tmp_path, check=True)
    plain = subprocess.run(
        [sys.executable, "-m", "json.tool"], input="[1]", capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == (plain.stdout, "")
