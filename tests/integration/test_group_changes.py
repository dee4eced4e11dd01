"""What the owner changes of a group is kept outside of its container, and put back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Folder
from orchestrator.groups import changes, memory_templates
from orchestrator.groups.changes import GroupChangeRefused, diff
from orchestrator.store import group_changes
from orchestrator.store.group_changes import KEPT, GroupPart, UnknownGroupChange
from tests.processes.andy import AndyProcess
from tests.support.store_harness import StoreHarness

MEMORY, SETTINGS = GroupPart.MEMORY, GroupPart.SETTINGS


@pytest.fixture
async def home(store_harness: StoreHarness, tmp_path: Path) -> Path:
    await store_harness.add_group()
    (tmp_path / "groups" / "family").mkdir(parents=True)
    return tmp_path


async def put(store_harness: StoreHarness, home: Path, part: GroupPart, text: str, **fields) -> None:
    async with store_harness.database.transaction() as tx:
        await changes.apply(
            tx,
            home,
            "family",
            part,
            text,
            **{"check": lambda _: None, "by": "a browser", "now_ms": 5} | fields,
        )


async def kept(store_harness: StoreHarness) -> list[dict]:
    async with store_harness.database.reading() as tx:
        return await group_changes.rows(tx, Folder("family"))


async def now(store_harness: StoreHarness, home: Path, part: GroupPart) -> str:
    async with store_harness.database.reading() as tx:
        return await changes.current(tx, home, "family", part)


async def test_a_change_keeps_what_was_before_and_who_made_it(store_harness, home):
    (home / "groups" / "family" / "CLAUDE.md").write_text("by the agent\n")
    await put(store_harness, home, MEMORY, "by the owner\n")
    await put(store_harness, home, SETTINGS, '{"cpus": 2}')
    assert await now(store_harness, home, MEMORY) == "by the owner\n"
    assert json.loads(await now(store_harness, home, SETTINGS)) == {"cpus": 2.0}
    of_settings, of_memory = await kept(store_harness)
    assert (of_memory["by"], of_memory["added"], of_memory["removed"]) == ("a browser", 1, 1)
    async with store_harness.database.reading() as tx:
        change = await group_changes.get(tx, Folder("family"), of_memory["number"])
    assert (change.before, change.after) == ("by the agent\n", "by the owner\n")

    await put(store_harness, home, MEMORY, change.before, undoes=change.number)
    assert await now(store_harness, home, MEMORY) == "by the agent\n"
    audited = await store_harness.rows(
        "SELECT kind, detail FROM audit WHERE kind LIKE 'group.%ed' ORDER BY id"
    )
    noted = [(row["kind"], json.loads(row["detail"])) for row in audited][-3:]
    assert [(kind, detail.get("change"), detail["undoes"]) for kind, detail in noted] == [
        ("group.memory_changed", 1, None),
        ("group.configured", 2, None),
        ("group.memory_changed", 3, 1),
    ]
    assert "owner" not in repr(noted), "the audit has no text"
    assert of_settings["part"] == "settings"


async def test_what_changed_meanwhile_is_not_overwritten(store_harness, home):
    (home / "groups" / "family" / "CLAUDE.md").write_text("new")

    def check(found: str) -> None:
        raise GroupChangeRefused(found)

    with pytest.raises(GroupChangeRefused, match="new"):
        await put(store_harness, home, MEMORY, "mine", check=check)
    assert await now(store_harness, home, MEMORY) == "new"
    assert await kept(store_harness) == []


async def test_a_memory_that_cannot_be_written_leaves_no_trace(store_harness, home):
    folder = home / "groups" / "family"
    folder.rmdir()
    (home / "elsewhere").mkdir()
    folder.symlink_to(home / "elsewhere")
    with pytest.raises(OSError, match="family"):
        await put(store_harness, home, MEMORY, "mine")
    assert await kept(store_harness) == []
    assert not list((home / "elsewhere").iterdir())


@pytest.mark.parametrize(
    ("part", "text", "why"),
    [
        (SETTINGS, "[]", "no JSON object"),
        (SETTINGS, "{", "no JSON"),
        (SETTINGS, '{"colour": 1}', "'colour'"),
        (MEMORY, "x" * (changes.MAX_MEMORY_CHARS + 1), "shorten it"),
    ],
)
async def test_what_cannot_be_kept_is_refused_with_the_reason(store_harness, home, part, text, why):
    with pytest.raises(BadRequest, match=why):
        await put(store_harness, home, part, text)
    assert await kept(store_harness) == []


async def test_a_memory_too_large_to_be_kept_whole_is_not_replaced(store_harness, home):
    (home / "groups" / "family" / "CLAUDE.md").write_text("x" * (memory_templates.MAX_READ_BYTES + 1))
    with pytest.raises(GroupChangeRefused, match="64 KiB"):
        await put(store_harness, home, MEMORY, "mine")


async def test_the_oldest_changes_of_each_part_are_forgotten(store_harness, home):
    for number in range(KEPT + 3):
        await put(store_harness, home, MEMORY, f"{number}")
    await put(store_harness, home, SETTINGS, '{"cpus": 2}')
    await put(store_harness, home, SETTINGS, '{"cpus": 2}')
    found = await kept(store_harness)
    assert [one["part"] for one in found].count("memory") == KEPT
    assert [one["part"] for one in found].count("settings") == 1, "what changes nothing is no change"
    async with store_harness.database.reading() as tx:
        with pytest.raises(UnknownGroupChange, match="history"):
            await group_changes.get(tx, Folder("family"), 1)


# The difference


def lines(before: str, after: str) -> list[str]:
    return [f"{one.kind}{one.text}" for one in diff(before, after)]


def test_a_difference_has_two_lines_around_each_change_and_says_where_some_are_left_out():
    before = "\n".join("abcdefghijkl")
    after = before.replace("b", "B").replace("k", "K")
    assert lines(before, after) == [
        *(" a", "-b", "+B", " c", " d", "…"),
        *(" i", " j", "-k", "+K", " l"),
    ]
    assert lines("same", "same") == []
    assert lines("@@ -1 +1 @@\n--- x\n", "+++ y\n") == ["-@@ -1 +1 @@", "---- x", "++++ y", " "]


def test_texts_of_very_many_lines_are_not_compared_line_by_line():
    kept, many = [f"{number}" for number in range(3_000)], ["a", "b"] * 400
    assert lines("\n".join([*kept, "a"]), "\n".join([*kept, "b"]))[-2:] == ["-a", "+b"], "but for their ends"
    found = diff("\n".join([*kept, *many, "end"]), "\n".join([*kept, *many[1:], "c", "end"]))
    assert [line.kind for line in found] == [*"-" * 800, *"+" * 800]


# On the command line


def test_a_change_is_listed_shown_and_undone_on_the_command_line(tmp_path: Path) -> None:
    andy = AndyProcess(tmp_path / "home")
    assert andy.cli("groups", "register", "family").returncode == 0
    assert "nothing to undo" in andy.cli("groups", "undo", "family").stderr
    assert "Nothing was changed yet" in andy.cli("groups", "history", "family").stdout
    assert andy.cli("groups", "config", "family", "--set", '{"cpus": 2}').returncode == 0
    (row,) = andy.listed("groups", "history", "family")
    assert (row["part"], row["by"], row["undoes"]) == ("settings", "the command line", None)
    assert '+   "cpus": 2.0' in andy.cli("groups", "history", "family", "1").stdout

    asked = andy.cli("groups", "undo", "family")
    assert (asked.returncode, "--yes" in asked.stderr, '-   "cpus": 2.0' in asked.stdout) == (1, True, True)
    assert "Put back" in andy.cli("groups", "undo", "family", "--yes").stdout
    assert andy.listed("groups", "config", "family") == {}
    assert andy.listed("groups", "history", "family")[0]["undoes"] == 1
    assert "as it was" in andy.cli("groups", "undo", "family", "1").stdout
    unknown = andy.cli("groups", "undo", "family", "99")
    assert (unknown.returncode, "has no change 99" in unknown.stderr) == (1, True)
