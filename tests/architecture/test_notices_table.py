"""The docs name a test for each requirement of the notices, and show a subscriber that works."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from agent_runner.ans.notices import RunNotices
from agent_runner.ans.subscriber import parse_subscriber
from agent_runner.ans.subscriber_store import SubscriberStore
from agent_runner.ans.templating import check

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "notices.md").read_text()
RANGES = ((1, 4), (10, 13), (20, 26), (30, 34), (40, 43), (50, 54), (60, 64), (70, 75))
NUMBERS = tuple(f"N-{number}" for first, last in RANGES for number in range(first, last + 1))
UNTESTED = "no test of its own"
REQUIREMENTS = (ROOT / "docs" / "requirements.md").read_text()
ROWS = dict(re.findall(r"^\| (N-\d+) \|(.*)\|$", REQUIREMENTS, re.MULTILINE))


TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)


def defined() -> Iterator[str]:
    for path in (ROOT / "tests").rglob("test_*.py"):
        yield from TEST.findall(path.read_text(encoding="utf-8"))


def test_every_requirement_has_its_row_in_order():
    assert re.findall(r"^\| (N-\d+) \|", REQUIREMENTS, re.MULTILINE) == list(NUMBERS)


def test_every_row_names_tests_that_exist():
    named = {number: re.findall(r"`(test_\w+)`", ROWS[number]) for number in NUMBERS}
    silent = [
        number for number, names in named.items() if not names and not ROWS[number].endswith(f"| {UNTESTED} ")
    ]
    assert silent == []
    tests = frozenset(defined())
    missing = [f"{number}: {name}" for number, names in named.items() for name in names if name not in tests]
    assert missing == []


def test_the_subscriber_of_the_page_works():
    (toml,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    subscriber = parse_subscriber(toml, is_of_group=True)
    (template,) = re.findall(r"^```\n(\{#.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    check(template)
    assert subscriber.output.template in template.splitlines()[0]


async def test_what_the_page_says_its_subscriber_tells_is_what_it_tells(tmp_path):
    (toml,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (template,) = re.findall(r"^```\n(\{#.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (said,) = re.findall(r"^```text\n(<system.*?)\n```$", PAGE, re.DOTALL | re.MULTILINE)
    own = tmp_path / "subscribers"
    own.mkdir()
    (own / "slow_commands.toml").write_text(toml)
    (own / "slow_commands.j2").write_text(template)
    notices = RunNotices(tmp_path)
    for duration_ms in (213, 61, 55):
        notices.emit("tool.call.success", "info", {"tool_name": "Bash", "duration_ms": duration_ms})
    notices.begin_turn()
    assert await notices.drain("turn_start") == said


def test_a_file_that_cannot_be_used_is_told_of_as_the_page_says(tmp_path, caplog):
    own = tmp_path / "subscribers"
    own.mkdir()
    (own / "broken.toml").write_text(
        '[subscriber]\nid = "x"\nname = "x"\n[events]\ntypes = ["a.b"]\n[output]\n'
    )
    SubscriberStore(tmp_path).read()
    assert caplog.messages[0] in " ".join(PAGE.split())
