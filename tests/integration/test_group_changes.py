"""What the owner changes of a group is kept outside of its container, and put back."""

from __future__ import annotations

import json
import shlex
from contextlib import nullcontext
from pathlib import Path

import httpx
import pytest

from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Folder
from orchestrator.groups import changes, memory_templates, settings
from orchestrator.groups.changes import GroupChangeRefused, diff
from orchestrator.groups.name_and_trigger import GroupProfile, ProfileRefused
from orchestrator.groups.roles import MAX_PEOPLE
from orchestrator.groups.settings import ConfigRefused
from orchestrator.store.groups import changes as group_changes
from orchestrator.store.groups import groups
from orchestrator.store.groups.changes import MAX_CHANGES, GroupPart, UnknownGroupChange
from orchestrator.web.api.groups import GroupApi, group_routes
from orchestrator.web.app import web_app
from tests.processes.andy import AndyProcess
from tests.support.store_harness import StoreHarness

MEMORY, SETTINGS, PROFILE = GroupPart.MEMORY, GroupPart.SETTINGS, GroupPart.PROFILE


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
        return await group_changes.views(tx, Folder("family"))


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


async def test_a_name_and_a_trigger_are_changed_and_put_back(store_harness, home):
    before = await now(store_harness, home, PROFILE)
    async with store_harness.database.transaction() as tx:
        wanted = GroupProfile(name=" The\n family ", trigger="@house", requires_trigger=False)
        await changes.set_profile(tx, "family", wanted, by="a test", now_ms=5)
        group = await groups.known(tx, "family")
    assert (group.name, group.trigger, group.requires_trigger) == ("The family", "@house", False)
    (row,) = await kept(store_harness)
    assert (row["part"], row["by"]) == ("profile", "a test")

    await put(store_harness, home, PROFILE, before, undoes=row["number"])
    assert await now(store_harness, home, PROFILE) == before
    async with store_harness.database.transaction() as tx:
        await changes.set_profile(tx, "family", GroupProfile(trigger=""), by="a test", now_ms=6)
        assert (await groups.known(tx, "family")).name == group_name(before), "what is not given stays"
    assert len(await kept(store_harness)) == 2, "no trigger before, none after: nothing was changed"


@pytest.mark.parametrize("is_one_step", [True, False])
async def test_a_change_is_undone_with_those_of_its_step_and_without_others_of_its_millisecond(
    store_harness, home, is_one_step
):
    before = await now(store_harness, home, PROFILE)
    async with store_harness.database.transaction() as tx:
        wanted = GroupProfile(name="Kin", trigger=None, requires_trigger=None)
        async with group_changes.in_one_step(tx, Folder("family")) if is_one_step else nullcontext():
            await changes.set_profile(tx, "family", wanted, by="a test", now_ms=5)
            await changes.configure(tx, "family", {"cpus": 2.0}, by="a test", now_ms=5)
        newest = (await group_changes.views(tx, Folder("family")))[0]["number"]
        parts = await changes.put_back(tx, home, "family", newest, by="a test", now_ms=5)
    assert parts == ((SETTINGS, PROFILE) if is_one_step else (SETTINGS,))
    assert await now(store_harness, home, SETTINGS) == "{}"
    assert (await now(store_harness, home, PROFILE) == before) == is_one_step
    async with store_harness.database.transaction() as tx:
        newest = (await group_changes.views(tx, Folder("family")))[0]["number"]
        again = await changes.put_back(tx, home, "family", newest, by="a test", now_ms=5)
    assert set(again) == set(parts), "an undo is one step, too"


async def store_unreadable(store_harness: StoreHarness, fields: dict[str, object]) -> None:
    await store_harness.database.write(
        lambda tx: tx.execute("UPDATE registered_groups SET container_config = ?", (json.dumps(fields),))
    )


async def test_the_repair_of_unreadable_settings_is_recorded_with_what_was_stored(store_harness, home):
    stored = {"cpus": 2.0, "egress": {"allowlist": ["example.com:443"]}, "of_a_newer_andy": 1}
    await store_unreadable(store_harness, stored)
    assert json.loads(await now(store_harness, home, SETTINGS)) == stored
    async with store_harness.database.transaction() as tx:
        await changes.configure(tx, "family", {"of_a_newer_andy": None}, by="a test", now_ms=5)
        (row,) = await group_changes.views(tx, Folder("family"))
        change = await group_changes.get(tx, Folder("family"), row["number"])
        with pytest.raises(BadRequest, match="'of_a_newer_andy' is no key"):
            await changes.put_back(tx, home, "family", row["number"], by="a test", now_ms=6)
    assert json.loads(change.before) == stored
    repaired = {"cpus": 2.0, "egress": {"allowlist": ["example.com:443"]}}
    assert json.loads(await now(store_harness, home, SETTINGS)) == repaired, "no stand-in is stored"


async def test_unreadable_settings_are_repaired_as_a_text_and_lose_only_what_is_removed(store_harness, home):
    await store_unreadable(store_harness, {"cpus": 2.0, "of_a_newer_andy": 1})
    await put(store_harness, home, SETTINGS, '{"cpus": 2.0}')
    assert json.loads(await now(store_harness, home, SETTINGS)) == {"cpus": 2.0}
    async with store_harness.database.reading() as tx:
        assert (await groups.known(tx, "family")).container_config == {"cpus": 2.0}


async def test_all_keys_that_make_settings_unreadable_are_named_and_the_advice_repairs_them(
    store_harness, home
):
    await store_unreadable(store_harness, {"memory_mb": "lots", "foo": 1, "bar": 2, "cpus": 2.0})
    async with store_harness.database.transaction() as tx:
        with pytest.raises(ConfigRefused) as refused:
            settings.to_change(await groups.known(tx, "family"))
        with pytest.raises(ConfigRefused, match=r"memory_mb: .*'foo' is no key"):
            await changes.configure(tx, "family", {"bar": None}, by="a test", now_ms=5)
        *_, command = str(refused.value).partition("andy groups config family --set ")
        (argument,) = shlex.split(command)
        assert json.loads(argument) == {"memory_mb": None, "foo": None, "bar": None}
        await changes.configure(tx, "family", json.loads(argument), by="a test", now_ms=5)
        assert settings.to_change(await groups.known(tx, "family")).to_fields() == {"cpus": 2.0}


def group_name(profile: str) -> str:
    return str(json.loads(profile)["name"])


@pytest.mark.parametrize(
    ("field", "value"), [("name", "  "), ("name", "x" * 201), ("trigger", "@" + "x" * 64)]
)
async def test_a_name_or_trigger_that_cannot_be_used_is_refused_by_its_field(
    store_harness, home, field, value
):
    before = await now(store_harness, home, PROFILE)
    profile = GroupProfile(requires_trigger=False).model_copy(update={field: value})
    async with store_harness.database.transaction() as tx:
        with pytest.raises(ProfileRefused) as refused:
            await changes.set_profile(tx, "family", profile, by="a test", now_ms=5)
    assert refused.value.field == field
    assert await now(store_harness, home, PROFILE) == before


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
        (SETTINGS, "[" * 100_000, "no JSON"),
        (SETTINGS, '{"colour": 1}', "'colour'"),
        (PROFILE, '{"colour": 1}', "a name, a trigger"),
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


async def test_a_memory_that_is_cut_within_a_character_is_not_replaced(store_harness, home):
    text = "x" * (memory_templates.MAX_READ_BYTES - 2) + "한" * 2_000
    (home / "groups" / "family" / "CLAUDE.md").write_text(text)
    with pytest.raises(GroupChangeRefused, match="64 KiB"):
        await put(store_harness, home, MEMORY, "mine")
    assert (home / "groups" / "family" / "CLAUDE.md").read_text() == text


async def test_settings_larger_than_a_memory_file_may_be_are_replaced(store_harness, home):
    people = {f"{number}{'9' * 100}@s.whatsapp.net": "guest" for number in range(MAX_PEOPLE)}
    await put(store_harness, home, SETTINGS, json.dumps({"people": people}))
    (large,) = await kept(store_harness)
    await put(store_harness, home, SETTINGS, '{"cpus": 2}')

    assert len(await kept(store_harness)) == 2
    assert large["added"] >= MAX_PEOPLE


async def test_the_oldest_changes_of_each_part_are_forgotten(store_harness, home):
    for number in range(MAX_CHANGES + 3):
        await put(store_harness, home, MEMORY, f"{number}")
    await put(store_harness, home, SETTINGS, '{"cpus": 2}')
    await put(store_harness, home, SETTINGS, '{"cpus": 2}')
    found = await kept(store_harness)
    assert [one["part"] for one in found].count("memory") == MAX_CHANGES
    assert [one["part"] for one in found].count("settings") == 1, "what changes nothing is no change"
    async with store_harness.database.reading() as tx:
        with pytest.raises(UnknownGroupChange, match="history"):
            await group_changes.get(tx, Folder("family"), 1)


# Over HTTP


async def test_a_program_changes_what_it_names_and_is_told_why_not(store_harness, home):
    api = GroupApi(
        store_harness.database,
        clock=store_harness.clock,
        has_gateway=lambda: False,
    )
    app = web_app(group_routes(api), token="secret", on_refusal=lambda _: None)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app),
        base_url="http://127.0.0.1",
        headers={"Authorization": "Bearer secret"},
    ) as client:
        changed = (await client.patch("/groups/family", json={"trigger": "@house"})).json()
        assert (changed["trigger"], changed["name"]) == ("@house", "Family")
        for body, status in (({"name": ""}, 422), ({"colour": 1}, 400), ({"trigger": 5}, 400)):
            assert (await client.patch("/groups/family", json=body)).status_code == status
        assert (await client.patch("/groups/nobody", json={"name": "x"})).status_code == 404
        wish = {"folder": "choir", "config": {"model": "local/qwen3"}}
        refused = await client.post("/groups", json=wish)
        assert "There is no service 'local'" in refused.text
        wish["config"] = {"model": "sonnet"}
        assert (await client.post("/groups", json=wish)).json()["folder"] == "choir"
    (row,) = await kept(store_harness)
    assert (row["part"], row["by"]) == ("profile", "the HTTP API")


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
    renamed = andy.cli("groups", "change", "family", "--name", "The family", "--no-trigger")
    assert renamed.stdout == "'family' is called The family and answers every message.\n"
    assert andy.listed("groups", "history", "family")[0]["part"] == "profile"
    listed = andy.cli("groups", "history", "family").stdout
    assert (" name and trigger " in listed, "profile" in listed) == (True, False)
    assert andy.cli("groups", "undo", "family", "--yes").returncode == 0
    assert andy.listed("groups", "list")[-1]["requires_trigger"] is True
    assert "Name a change" in andy.cli("groups", "change", "family").stderr
    unknown = andy.cli("groups", "undo", "family", "99")
    assert (unknown.returncode, "has no change 99" in unknown.stderr) == (1, True)
