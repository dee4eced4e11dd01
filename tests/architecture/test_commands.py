"""The list of commands is true, and no command loads what it does not need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli import commands, main

LIBRARIES = frozenset(
    {
        *("aiosqlite", "asyncio", "cyclopts", "docker", "httpx", "jinja2", "neonize", "prometheus_client"),
        *(
            "pydantic",
            "pydantic_settings",
            "rich",
            "starlette",
            "structlog",
            "tiktoken",
            "uvicorn",
            "watchdog",
        ),
    }
)
"""What takes long to load: each of them more than a bare interpreter takes to start."""

REPORT = """
import sys
from orchestrator.__main__ import main
sys.argv = ["andy", *sys.argv[1:]]
try:
    main()
except SystemExit as done:
    code = done.code or 0
else:
    code = 0
print(code, *sorted(sys.modules), file=sys.stderr)
"""


def loaded_by(*words: str, home: Path) -> set[str]:
    """Return the names of the modules that `andy WORDS` has loaded when it is done."""
    environment = {**os.environ, "ANDY_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", REPORT, *words], capture_output=True, text=True, check=True, env=environment
    )
    code, *modules = done.stderr.split()
    assert code == "0", done.stderr
    assert done.stdout
    return set(modules)


def test_the_list_of_commands_says_what_they_say_of_themselves():
    names = [entry.name for entry in commands.COMMANDS]
    assert names == sorted(set(names))
    for entry in commands.COMMANDS:
        own = " ".join(main.app[entry.name].help.split())
        assert own.startswith(entry.summary), entry.name


def test_a_page_of_all_commands_is_as_wide_as_it_is_told():
    for width in (60, 80, 200):
        page = commands.help_page(width=width)
        assert {len(line) for line in page.splitlines() if line.startswith(("│", "╭", "╰"))} == {width}
        assert [entry.name for entry in commands.COMMANDS if f"│ {entry.name} " not in page] == []


@pytest.mark.parametrize("words", [("--help",), ("-h",), ("--version",), ()])
def test_what_andy_is_loads_no_command(tmp_path: Path, words: tuple[str, ...]) -> None:
    loaded = loaded_by(*words, home=tmp_path)

    assert LIBRARIES & loaded == set()
    assert {name for name in loaded if name.startswith("orchestrator.cli.")} <= {"orchestrator.cli.commands"}


def test_a_command_loads_no_other(tmp_path: Path) -> None:
    loaded = {
        name for name in loaded_by("groups", "--help", home=tmp_path) if name.startswith("orchestrator")
    }

    targets = {f"orchestrator.cli.{entry.target.partition(':')[0]}" for entry in commands.COMMANDS}
    assert loaded & targets == {"orchestrator.cli.groups"}
