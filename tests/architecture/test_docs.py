"""The documentation says what is: nothing it names is missing, nothing that is goes unnamed."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cyclopts import CycloptsError

from docs import generate
from orchestrator.base.announcements import LOOPS_OF
from orchestrator.cli import demo
from orchestrator.cli import main as cli
from orchestrator.home import settings
from orchestrator.ipc.command_dispatcher import HANDLERS
from orchestrator.proxies.model import credentials
from orchestrator.store.database import migrations
from orchestrator.web.api.routes import ApiServices, api_routes

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
SOURCES = sorted(
    path for package in ("orchestrator", "agent_runner") for path in (ROOT / package).rglob("*.py")
)
HAND_WRITTEN = "\n".join(generate.PART.sub("", page.read_text()) for page in PAGES)
ALL = "\n".join(page.read_text() for page in PAGES)

FENCE = re.compile(r"^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
COMMAND = re.compile(r"(?:\.venv/bin/)?andy(?= |$)")
EVENT_NAMES = {
    "message.{accepted.outcome}": ("message.queued", "message.ignored"),
    "message.{state}": ("message.skipped", "message.dead"),
    "turn.{event_word(effect.ended)}": ("turn.answered", "turn.put_back", "turn.failed"),
    "turn.{event_word(settled.state)}": ("turn.put_back", "turn.failed"),
    "task.{fired_task.outcome}": ("task.due", "task.skipped", "task.paused"),
    "command.{command.type}": tuple(f"command.{name}" for name in HANDLERS),
    "notification.{notification_log.event_word(change)}": tuple(
        f"notification.{word}"
        for word in (
            *("created", "moved", "postponed", "reworded", "reprioritised"),
            *("not_sent", "delivered", "cancelled", "expired", "failed"),
        )
    ),
    "{event.kind}": (
        *("trigger:chat", "trigger:whatsapp", "trigger:cron", "trigger:workspace"),
        *("trigger:alert", "trigger:heartbeat", "trigger:manual", "action:loop"),
    ),
}
"""What a kind that is made at run time can be. A new one is to be added here."""


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


# What is made from the code


def test_making_the_generated_parts_anew_changes_nothing():
    # A process of its own: the names in usage lines depend on what the program was started with.
    made = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (made.returncode, made.stdout) == (0, ""), f"run 'make docs'{made.stderr}"


def test_every_part_has_its_place():
    assert sorted(generate.PARTS) == sorted(found["name"] for found in generate.PART.finditer(ALL))


# What is, is named


def test_every_page_is_linked_from_the_readme_or_a_page_linked_there():
    linked = _linked_from(ROOT / "README.md")
    pages = {ROOT / "README.md", *linked, *(page for one in linked for page in _linked_from(one))}
    assert [page.name for page in sorted((ROOT / "docs").glob("*.md")) if page not in pages] == []
    listed = (ROOT / "README.md").read_text().partition("To begin: ")[2]
    assert "(docs/conformance.md)" in listed


def _linked_from(page: Path) -> set[Path]:
    found = {(page.parent / link[1]).resolve() for link in LINK.finditer(page.read_text()) if link[1]}
    return {path for path in found if path.suffix == ".md" and path.exists()}


def test_every_setting_is_documented():
    assert [name for name in settings.known_names() if f"`{name}`" not in ALL] == []


def test_every_credential_is_documented():
    known = {*credentials._SETTINGS, credentials.UPSTREAM_SETTING}
    assert set(generate.CREDENTIALS) == known
    assert [name for name in (*known, settings.HOME_KEY) if f"`{name}`" not in ALL] == []


def test_every_setting_of_the_example_is_one():
    named = set(re.findall(r"^#? ?([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert named <= {*settings.known_names(), *generate.CREDENTIALS}


def test_every_command_is_documented():
    assert [name for name in commands(cli.app) if f"## andy {name}\n" not in ALL] == []


def test_every_command_shows_an_example_of_itself():
    shown = [name for name in commands(cli.app) if f"Example: `andy {name}" in ALL]
    groups = {name.rpartition(" ")[0] for name in commands(cli.app)}
    assert [name for name in commands(cli.app) if name not in {*shown, *groups}] == []


def commands(app: Any, *above: str) -> Iterator[str]:
    for name in app:
        if not name.startswith("-"):
            yield " ".join((*above, name))
            yield from commands(app[name], *above, name)


def test_every_package_says_what_it_is_for_and_where_to_start():
    folders = [path for path in SOURCES if path.name == "__init__.py"]
    folders.remove(ROOT / "orchestrator" / "__init__.py")
    told = {path: re.search(r"Start with `([\w/]+\.py)`", path.read_text()) for path in folders}
    parents = {path.parent.parent / "__init__.py" for path in folders}

    assert [relative(path) for path, start in told.items() if start is None and path not in parents] == []
    assert [
        relative(path) for path, start in told.items() if start and not (path.parent / start[1]).is_file()
    ] == []


def test_every_table_is_documented():
    scripts = "\n".join(migrations())
    dropped = re.findall(r"DROP TABLE (\w+)", scripts)
    tables = [table for table in re.findall(r"CREATE TABLE (\w+)", scripts) if table not in dropped]
    assert tables
    assert [table for table in tables if f"| `{table}` |" not in HAND_WRITTEN] == []


def test_every_event_is_documented():
    kinds = {kind for path in SOURCES for kind in published(path)}
    assert "turn.started" in kinds
    assert sorted(kind for kind in kinds if f"`{kind}`" not in HAND_WRITTEN) == []


def published(path: Path) -> Iterator[str]:
    text = path.read_text()
    if ".publish(" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "publish"
        ):
            kind = ast.unparse(node.args[0])
            if kind == "announcement.kind":
                yield from LOOPS_OF
            else:
                yield from EVENT_NAMES[kind[2:-1]] if kind.startswith("f") else (ast.literal_eval(kind),)


def test_every_route_is_documented():
    given = dict.fromkeys(field.name for field in fields(ApiServices))
    services = ApiServices(**{**given, "pairings": {"whatsapp": None}})  # type: ignore[arg-type]
    routes = [f"{min(route.methods - {'HEAD'})} {route.path}" for route in api_routes(services)]
    assert [route for route in routes if f"`{route}`" not in HAND_WRITTEN] == []


# What is named, is


def test_every_link_leads_somewhere():
    for page in (*PAGES, ROOT / "CHANGELOG.md"):
        for target, anchor in LINK.findall(page.read_text()):
            found = (page.parent / target) if target else page
            assert found.exists(), f"{relative(page)}: {target}"
            if anchor:
                assert anchor in anchors(found), f"{relative(page)}: {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_decisions_are_numbered_without_gaps():
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(path.name[:4]) for path in decisions] == list(range(1, len(decisions) + 1))
    heads = [path.read_text().partition(". ")[0] for path in decisions]
    assert heads == [f"# {number}" for number in range(1, len(decisions) + 1)]


def test_every_word_of_the_glossary_has_one_sentence():
    rows = re.findall(
        r"^\| ([^|]+) \| ([^|]+) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE
    )
    meanings = {word: meaning for word, meaning in rows if word not in ("word", "---")}
    assert len(meanings) > 50
    assert {"turn", "run", "lane", "cycle", "notice", "outbox", "scheduled task"} <= set(meanings)
    assert [word for word, text in meanings.items() if not text.endswith(".") or ". " in text] == []


def test_every_path_of_the_code_exists():
    named = set(re.findall(r"`((?:orchestrator|agent_runner|tests|container|benchmarks)/[\w./-]*)`", ALL))
    assert named
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_every_test_that_is_named_exists():
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^ *(?:async )?def (test_\w+)", tests, re.MULTILINE))
    named = set(re.findall(r"`(test_\w+)`", HAND_WRITTEN))
    assert named
    assert sorted(named - defined) == []


def test_every_make_target_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {found for text in snippets() for found in re.findall(r"^make ([a-z-]+)", text.strip())}
    assert named
    assert named <= targets


def snippets() -> Iterator[str]:
    """Every line of a shell block, every `code` in a text, and what stands after a comment sign."""
    for found in FENCE.finditer(ALL):
        if found["kind"] == "sh":
            yield from (part for line in found["body"].splitlines() for part in line.split("# then: "))
    yield from SPAN.findall(FENCE.sub("", ALL))


def said_in_code() -> Iterator[str]:
    """Commands that messages to people name: 'andy …' in quotes, or after the path of the program."""
    for path in SOURCES:
        text = path.read_text()
        if "andy " not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from re.findall(r"'(andy [^'\n]+)'", node.value)
                yield from re.findall(r"(\.venv/bin/andy [\w ]+)", node.value)


@cache  # and not at import, which each process pays for
def command_lines() -> list[str]:
    found = {text.strip() for text in (*snippets(), *said_in_code())}
    return sorted(text for text in found if COMMAND.match(text))


def test_every_command_line_can_be_given():
    for line in command_lines():
        words = shlex.split(COMMAND.sub("", line, count=1), comments=True)
        given = [word for word in words if word != "…"]
        try:
            cli.app.parse_args(given, exit_on_error=False, print_error=False)
        except CycloptsError as error:
            pytest.fail(f"{line}: {error}")


def test_command_lines_are_found_at_all():
    assert 'andy chat main -m "remind me in 10 minutes to stretch"' in command_lines()
    assert ".venv/bin/andy up" in command_lines()
    assert "andy image build" in command_lines()
    assert demo.__file__ in map(str, SOURCES)
