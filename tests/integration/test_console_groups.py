"""A group in the console: its settings as a form, its memory, its changes; nothing is half saved."""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from html import unescape
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from filelock import FileLock

from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.domain.errors import StoreError
from orchestrator.domain.values import Folder
from orchestrator.groups.access import free_folder
from orchestrator.groups.settings import GroupConfig, text_of
from orchestrator.home.directory import Home
from orchestrator.inbound.intake import Intake
from orchestrator.reports import group_rules
from orchestrator.store.database import Database, Tx
from orchestrator.store.groups import changes as group_changes
from orchestrator.store.groups import groups
from orchestrator.store.reader import read_once
from orchestrator.store.settings import model_services
from orchestrator.web.console import settings_form
from orchestrator.web.console.catalogue import LANGUAGES, Catalogue
from orchestrator.web.console.pages import chats
from orchestrator.web.console.pages import groups as group_pages
from orchestrator.web.console.pages.groups import RULE_NAMES
from orchestrator.web.console.pages.mind import facts_in
from tests.support.console_browser import console_browser, hidden_fields, send_form, write_beside
from tests.support.store_harness import a_message
from tests.support.until import until

WORK = "/groups/work"


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with console_browser(tmp_path / "home") as made:
        yield made


def stored(tmp_path: Path, folder: str = "work") -> dict[str, Any]:
    async def read(tx: Tx) -> dict[str, Any]:
        group = await groups.known(tx, folder)
        return {
            "name": group.name,
            "trigger": group.trigger,
            "every": not group.requires_trigger,
            "config": group.container_config,
            "changes": [one["part"] for one in await group_changes.views(tx, group.folder)],
        }

    return read_once(Home(tmp_path / "home").database, read)


WHOLE = {
    "mounts": [{"path": "~/photos", "name": "photos", "writable": True}],
    "timeout_ms": 90_000,
    "memory_mb": 512,
    "cpus": 0.5,
    "agent": "offline",
    "model": "local/m",
    "models": {"tasks": "far/m"},
    "timezone": "Asia/Seoul",
    "egress": {"allowlist": ["example.org:443"]},
    "web_search": "off",
    "model_features": ["compaction"],
    "speech": True,
    "node_label": "disk=fast",
    "skills": ["chart"],
    "ask": ["egress", "mcp:*"],
}
SENT = {
    "name": "The work",
    "trigger": "@work",
    "every": "yes",
    "mounts_path0": "~/photos",
    "mounts_name0": "photos",
    "mounts_writable0": "yes",
    "timeout_ms": "1.5",
    "memory_mb": "512",
    "cpus": "0.5",
    "agent": "offline",
    "model": "local/m",
    "models_tasks": "far/m",
    "timezone": "Asia/Seoul",
    "egress": "listed",
    "egress_hosts": " example.org:443 \r\n\r\n",
    "web_search": "off",
    "model_features": "compaction",
    "speech": "yes",
    "node_label": "disk=fast",
    "skills": "chart",
    "ask_egress": "yes",
    "ask": "mcp:*",
}


@pytest.mark.slow
async def test_every_setting_is_set_and_taken_back_by_the_form(browser, tmp_path):
    assert set(WHOLE) == set(settings_form.fields()), "each setting is tried"
    page = await send_form(browser, f"{WORK}/form", of=WORK, **SENT)
    assert "Saved." in page.text
    now = stored(tmp_path)
    assert (now["name"], now["trigger"], now["every"]) == ("The work", "@work", True)
    assert now["config"] == WHOLE
    assert now["changes"][:2] == ["settings", "profile"]

    page = await send_form(browser, f"{WORK}/form", of=WORK, **SENT)
    assert "Nothing is different" in page.text, "what is shown is what is sent"
    assert stored(tmp_path)["changes"] == now["changes"]

    await send_form(browser, f"{WORK}/form", of=WORK, name="Work", egress="none", skills_all="yes")
    assert stored(tmp_path)["config"] == {}


@pytest.mark.parametrize("values", [WHOLE, {}], ids=["all", "none"])
def test_the_values_that_are_shown_are_read_back_the_same(values):
    shown = settings_form.stored_values(values)
    assert set(shown) >= set(settings_form.fields())
    assert GroupConfig.model_validate(values).to_fields() == values


async def test_the_form_leaves_the_roles_of_people_as_they_are(browser, tmp_path):
    roles = {"people": {"local:mina": "guest"}, "roles": {"guest": {"mcp": True}}}
    change = "UPDATE registered_groups SET container_config = ? WHERE folder = 'work'"
    await write_beside(Home(tmp_path / "home"), change, rows=[(json.dumps(roles),)])
    await send_form(browser, f"{WORK}/form", of=WORK, name="Work", egress="open", skills_all="yes")
    assert stored(tmp_path)["config"] == {"egress": "open", **roles}


async def test_a_role_that_is_given_while_the_form_is_saved_stays(browser, tmp_path, monkeypatch):
    every, calls = model_services.every, itertools.count()
    people = {"local:mina": "guest"}
    with_people = "json_set(container_config, '$.people', json(?))"
    change = f"UPDATE registered_groups SET container_config = {with_people} WHERE folder = 'work'"

    async def every_as_a_role_is_given(tx):
        """Return the services. The form is saved with the second call, before which the group was read."""
        if next(calls) == 1:
            await write_beside(Home(tmp_path / "home"), change, rows=[(json.dumps(people),)])
        return await every(tx)

    monkeypatch.setattr(group_pages, "model_services", SimpleNamespace(every=every_as_a_role_is_given))
    page = await saved(browser, cpus="2", skills_all="yes")
    assert page.status_code == 200
    assert stored(tmp_path)["config"] == {"cpus": 2.0, "people": people}


async def test_people_are_given_roles_and_roles_their_rules(browser, tmp_path):
    await send_form(browser, f"{WORK}/people", of=WORK, address="*", role="guest")
    page = await send_form(browser, f"{WORK}/people", of=WORK, address="local:mina", role="owner")
    assert page.status_code in (400, 404, 422), "nobody there has this address"
    rules = {"member_call": "yes", "member_network": "yes", "member_spend": "50", "guest_spend": "20"}
    page = await send_form(browser, f"{WORK}/rules", of=WORK, **rules)
    assert "Saved." in page.text
    no = dict.fromkeys(("mcp", "memory", "schedule", "history"), False)
    config = stored(tmp_path)["config"]
    assert config["people"] == {"*": "guest"}
    assert config["roles"] == {"guest": {"call": False}, "member": {**no, "spend": 50}}
    for no_percent in ("half", "9" * 5_000, "²"):
        page = await send_form(browser, f"{WORK}/rules", of=WORK, **{**rules, "guest_spend": no_percent})
        assert page.status_code == 422
    await send_form(browser, f"{WORK}/people", of=WORK, address="*", role="default")
    assert "people" not in stored(tmp_path)["config"]


async def test_rules_that_cannot_be_read_are_not_replaced_by_those_that_the_form_showed_instead(
    browser, tmp_path
):
    config = {"roles": {"guest": {"spend": 5, "shout": True}}}
    change = "UPDATE registered_groups SET container_config = ? WHERE folder = 'work'"
    await write_beside(Home(tmp_path / "home"), change, rows=[(json.dumps(config),)])
    page = await send_form(browser, f"{WORK}/rules", of=WORK, member_spend="50")
    assert "andy groups config work --set" in page.text
    assert stored(tmp_path)["config"] == config


@pytest.mark.parametrize("language", LANGUAGES)
async def test_safety_shows_in_one_table_what_is_done_for_whom(browser, language):
    browser.cookies.set("andy_language", language)
    page = await browser.get("/console/safety?group=work")
    texts = Catalogue.load().texts[language]
    for key in ("act_memory", "answer_joined", "part_reaches", "rule_guest"):
        assert texts[f"safety.{key}"].replace("'", "&#39;") in page.text, key
    page = await browser.get("/console/safety")
    assert texts["safety.act_memory"] not in page.text, "the table is of one group"


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_act_and_answer_of_the_rules_has_words(language):
    texts = Catalogue.load().texts[language]
    wanted = [f"safety.act_{one}" for one in group_rules.ACTS]
    wanted += [f"safety.answer_{one}" for one in group_rules.ANSWERS]
    wanted += [f"safety.part_{one}" for one in group_rules.PARTS]
    wanted += [f"groups.rule_{one}" for one in (*RULE_NAMES, "spend")]
    assert [key for key in wanted if key not in texts] == []


BAD = [
    ("name", {"name": " "}),
    ("trigger", {"trigger": "x" * 65}),
    ("timeout_ms", {"timeout_ms": "soon"}),
    ("timeout_ms", {"timeout_ms": "9" * 400}),
    ("memory_mb", {"memory_mb": "12.5"}),
    ("cpus", {"cpus": "nan"}),
    ("agent", {"agent": "robot"}),
    ("model", {"model": "lokal/m"}),
    ("models", {"models_worker": "no model"}),
    ("timezone", {"timezone": "Mars/Olympus"}),
    ("egress", {"egress": "listed", "egress_hosts": "not a host"}),
    ("egress", {"egress": "listed"}),
    ("egress", {"egress": "ajar"}),
    ("web_search", {"web_search": "altavista"}),
    ("node_label", {"node_label": "x"}),
    ("ask", {"ask": "everything"}),
    ("ask", {"egress": "open", "ask_egress": "yes"}),
    ("mounts", {"mounts_path0": "~/x", "mounts_name0": "n" * 129}),
    ("model_features", {"model_features": "magic"}),
]


@pytest.mark.slow
async def test_a_bad_value_is_said_at_its_field_and_nothing_is_saved(browser, tmp_path):
    before = stored(tmp_path)
    for language, (field, sent) in product(LANGUAGES, BAD):
        browser.cookies.set("andy_language", language)
        typed = {"name": "Another", "speech": "yes", "skills_all": "yes", **sent}
        page = await send_form(browser, f"{WORK}/form", of=WORK, **typed)
        assert page.status_code == 422, sent
        said = Catalogue.load().text(language, f"groups.wrong_{field}")
        assert said.replace("'", "&#39;") in page.text, (field, sent)
        assert "name" in sent or 'value="Another"' in page.text, "what was typed is still there"
    assert stored(tmp_path) == before


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_setting_has_a_sentence_and_a_reason(language):
    texts = Catalogue.load().texts[language]
    wanted = [
        f"groups.{kind}" for name in settings_form.fields() for kind in (f"set_{name}", f"wrong_{name}")
    ]
    wanted += [f"groups.set_{name}_hint" for name in settings_form.fields() if name != "egress"]
    wanted += [
        f"groups.option_{one.name}_{word}" for one in settings_form.fields().values() for word in one.options
    ]
    assert [key for key in wanted if key not in texts] == []


async def test_what_changed_since_the_form_was_opened_is_not_overwritten(browser, tmp_path):
    opened = await browser.get(f"/console{WORK}")
    await send_form(browser, f"{WORK}/form", of=WORK, name="Work", egress="open", skills_all="yes")
    hidden = hidden_fields(opened.text, f"{WORK}/form")
    page = await browser.post(f"/console{WORK}/form", data={**hidden, "name": "Mine", "egress": "none"})
    assert page.status_code == 409
    assert "It has changed since" in page.text
    assert stored(tmp_path)["name"] == "Work"
    assert stored(tmp_path)["config"] == {"egress": "open"}


async def test_a_name_and_a_trigger_are_put_back(browser, tmp_path):
    before = stored(tmp_path)
    await send_form(
        browser, f"{WORK}/form", of=WORK, name="Other", trigger="@x", egress="none", skills_all="yes"
    )
    page = await browser.get(f"/console{WORK}")
    number = max(int(one.split('"')[0]) for one in page.text.split(f"{WORK}/changes/")[1:])
    numbers = range(number, number - 2, -1)
    parts = stored(tmp_path)["changes"][:2]
    change = f"{WORK}/changes/{numbers[parts.index('profile')]}"
    page = await send_form(
        browser,
        f"{WORK}/profile",
        of=change,
        sure="yes",
        text=json.dumps({"name": before["name"], "trigger": "", "requires_trigger": not before["every"]}),
    )
    assert "Name and trigger are saved." in page.text
    assert stored(tmp_path)["name"] == before["name"]


async def test_the_settings_as_text_are_shown_before_they_are_saved(browser, tmp_path):
    page = await send_form(browser, f"{WORK}/settings", of=WORK, text='{"cpus": 2}')
    assert "What will be different" in page.text
    assert stored(tmp_path)["config"].get("cpus") is None
    page = await send_form(browser, f"{WORK}/settings", of=WORK, text='{"a":' * 3000)
    assert page.status_code in (400, 422)
    page = await send_form(browser, f"{WORK}/settings", of=WORK, text="{")
    assert page.status_code == 422
    assert "no JSON" in page.text


async def test_settings_that_cannot_be_read_are_shown_as_they_are_stored_and_repaired_as_text(
    browser, tmp_path
):
    database = await Database.open(Home(tmp_path / "home").database)
    config = {"cpus": 2.0, "of_a_newer_andy": 1}
    try:
        async with database.transaction() as tx:
            await groups.set_config(tx, Folder("work"), config, now_ms=1)
    finally:
        await database.close()
    assert "of_a_newer_andy" in (await browser.get(f"/console{WORK}")).text
    page = await send_form(browser, f"{WORK}/settings", of=WORK, text='{"cpus": 2.0}')
    assert "What will be different" in page.text
    await send_form(browser, f"{WORK}/settings", of=WORK, text='{"cpus": 2.0}', sure="yes")
    assert stored(tmp_path)["config"] == {"cpus": 2.0}


async def test_the_memory_file_is_changed_on_the_page_memory(browser, tmp_path):
    file = tmp_path / "home" / "groups" / "work" / "CLAUDE.md"
    page = await send_form(
        browser, "/mind/work/memory", of="/mind?group=work", text="Tea at five.\n", sure="yes"
    )
    assert "The memory is saved." in page.text
    assert file.read_text() == "Tea at five.\n"
    page = await send_form(browser, "/mind/work/memory", of="/mind?group=work", text="x" * 20_001)
    assert page.status_code == 422
    assert "shorten it" in page.text


TABS = {
    "/board?group=work": "Board",
    "/coming?group=work": "Coming",
    "/mind?group=work": "Memory",
    "/costs?group=work": "Costs",
    "/safety?group=work": "Safety",
    "/groups/work": "Settings",
    "/log?group=work": "Log",
    "/chats/work": "Chat",
}
"""A page of one group, and the tab that it is."""


async def test_pages_of_one_group_have_its_name_and_its_tabs(browser):
    for path, current in TABS.items():
        page = (await browser.get(f"/console{path}")).text
        tabs = page.partition('class="tabs"')[2].partition("</nav>")[0]
        assert tabs.count("<li>") == 8, path
        assert f'aria-current="page">{current}<' in tabs, path
        name = 'class="grow"><h1>' if current == "Chat" else 'class="group-name">'
        assert page.partition(name)[2].startswith("<bdi>Work</bdi>"), path


async def test_a_group_is_registered_by_its_name_alone(browser, tmp_path):
    page = await send_form(browser, "/groups", of="/groups", name="우리 집")
    assert "우리 집 is registered" in page.text
    assert stored(tmp_path, "group-1")["name"] == "우리 집"
    page = await send_form(browser, "/groups", of="/groups", name="x", folder="no such name!")
    assert page.status_code == 422
    assert "is no folder name" in page.text


@pytest.mark.parametrize(
    ("name", "taken", "folder"),
    [
        ("The Family!", (), "the-family"),
        ("Café Zoë", (), "cafe-zoe"),
        ("Work", ("work", "work-2"), "work-3"),
        ("가족", ("group-1",), "group-2"),
        ("x" * 200, (), "x" * 40),
        ("--", (), "group-1"),
        ("global", ("global", "errors"), "global-2"),
    ],
)
def test_a_folder_is_like_the_name_and_free(name, taken, folder):
    assert free_folder(name, taken) == folder


def test_the_text_of_settings_is_what_is_undone():
    assert json.loads(text_of(WHOLE)) == WHOLE


async def saved(browser: httpx.AsyncClient, **changed: str) -> httpx.Response:
    """Send the form of the group's settings with some fields changed."""
    return await send_form(browser, f"{WORK}/form", of=WORK, **{"name": "Work", "trigger": "", **changed})


async def press(browser: httpx.AsyncClient, page: httpx.Response, label: str = "Undo") -> httpx.Response:
    """Press the button beside what was just done."""
    found = re.search(r'id="outcome".*?<form method="post" action="/console([^"]+)"', page.text, re.DOTALL)
    assert found, label
    number = re.search(r'name="_form" value="([^"]+)"', page.text[found.start() :])
    assert number
    return await browser.post(f"/console{found[1]}", data={"_form": number[1]}, follow_redirects=True)


async def test_what_was_saved_is_said_in_sentences_and_undone_with_one_button(browser, tmp_path):
    before = stored(tmp_path)
    page = await saved(browser, name="Office", trigger="@Bob")
    assert "It is called Office now. @Bob calls Andy here now, besides @Andy." in page.text
    assert stored(tmp_path)["trigger"] == "@Bob"
    page = await press(browser, page)
    assert "It is as before." in page.text
    now = stored(tmp_path)
    assert (now["name"], now["trigger"]) == (before["name"], before["trigger"])
    await press(browser, page)
    assert stored(tmp_path)["trigger"] == "@Bob", "an undo is undone, too"


async def test_an_undo_overwrites_nothing_that_came_later(browser, tmp_path):
    page = await saved(browser, trigger="@Bob")
    await saved(browser, trigger="@Eve")
    refused = await press(browser, page)
    assert refused.status_code == 422
    assert stored(tmp_path)["trigger"] == "@Eve"


@pytest.mark.parametrize(
    "trigger", ["...", ".*", "`andy`", "https://x.example/andy", "\u202e\u200b", "x" * 65, "a"]
)
async def test_a_trigger_that_nobody_can_type_is_refused_at_its_field(browser, tmp_path, trigger):
    before = stored(tmp_path)
    page = await saved(browser, trigger=trigger)
    assert page.status_code == 422
    assert "A call is what people type, such as @house" in page.text
    assert stored(tmp_path) == before


async def test_a_group_is_not_given_the_name_of_another(browser, tmp_path):
    for name in ("fAMILY", "Fam\u200bily", "\uff26amily"):
        page = await saved(browser, name=name)
        assert page.status_code == 422
        assert "family has this name already. Choose another." in page.text
    assert stored(tmp_path)["name"] == "Work"


def memory(tmp_path: Path, text: str | None = None) -> str:
    path = tmp_path / "home" / "groups" / "work" / "CLAUDE.md"
    if text is not None:
        # A host that has just started makes the folder soon after it listens.
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return path.read_bytes().decode()


async def test_a_damaged_file_is_named_by_the_look_that_finds_it(browser, tmp_path):
    context = Home(tmp_path / "home").root / "data" / "context" / "work" / ".ai-brain" / "context.json"
    context.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(context.parent / ".context.lock"):  # so that the host does not overwrite it meanwhile
        context.write_text("{")
    page = await browser.get("/console/mind?group=work")
    assert "the bad one is kept as context.corrupt-" in page.text


async def forget(browser: httpx.AsyncClient, words: str) -> httpx.Response:
    """Press "Forget" beside the first fact with these words."""
    page = await browser.get("/console/mind?group=work")
    row = next(one for one in page.text.split("<li") if words in one and "/memory/forget" in one)
    fields = {name: unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', row)}
    return await browser.post("/console/mind/work/memory/forget", data=fields, follow_redirects=True)


async def test_a_fact_is_forgotten_with_one_button_and_comes_back_with_another(browser, tmp_path):
    text = (
        "# Work\n\n- The code of the shed is 42\n- [x] Mia & Jon <like> *tea*\r\n1. one\n---\n- 우유 좋아함\n"
    )
    memory(tmp_path, text)
    page = await browser.get("/console/mind?group=work")
    assert page.text.count("/memory/forget") == 4, "a heading and a rule are no facts"
    page = await forget(browser, "The code of the shed")
    assert "It is taken out of the memory" in page.text
    assert memory(tmp_path) == text.replace("- The code of the shed is 42\n", "")
    assert "It is as before." in (await press(browser, page)).text
    assert memory(tmp_path) == text
    await forget(browser, "Mia &amp; Jon")
    assert "Mia" not in memory(tmp_path)
    memory(tmp_path, "A paragraph of\ntwo lines.\n\n- An entry\n  of two lines\n- another\n")
    page = await browser.get("/console/mind?group=work")
    assert page.text.count("/memory/forget") == 3
    await forget(browser, "An entry of two lines")
    await forget(browser, "A paragraph of two lines.")
    assert memory(tmp_path) == "\n- another\n"


async def test_notes_of_people_are_shown_and_forgotten_and_so_are_people(browser, tmp_path):
    await write_beside(
        Home(tmp_path / "home"),
        "INSERT INTO group_people (group_folder, address, name, since_seq, since_ms)"
        " VALUES ('work', 'local:mina', '<Mina>', 1, 1), ('work', 'local:jun', 'Jun', 1, 1)",
        "INSERT INTO memory_notes (group_folder, text, about_json, said_by_json, at_ms, request_id)"
        """ VALUES ('work', 'likes <tea>', '["local:mina"]', '["local:jun"]', 1, 'r1')""",
    )
    page = (await browser.get("/console/mind?group=work")).text
    part = page.partition("Notes of people")[2]
    assert "likes &lt;tea&gt;" in part
    assert "about <bdi>&lt;Mina&gt;</bdi> · said by <bdi>Jun</bdi>" in part
    done = await send_form(browser, "/mind/work/notes/forget", of="/mind?group=work", id="person_note.1")
    assert "The note is forgotten." in done.text
    done = await send_form(browser, "/mind/work/people/forget", of="/mind?group=work", address="local:mina")
    assert "as soon as no turn runs" in done.text
    refused = await send_form(browser, "/mind/work/people/forget", of="/mind?group=work", address="Nobody")
    assert "Nobody here is known as" in refused.text

    def is_done() -> bool:
        with closing(sqlite3.connect(Home(tmp_path / "home").database)) as store:
            left = store.execute("SELECT address FROM group_people WHERE group_folder = 'work'").fetchall()
            waiting = store.execute("SELECT count(*) FROM person_removals").fetchone()
            return ("local:mina",) not in left and ("local:jun",) in left and waiting == (0,)

    await until(is_done, "the host has forgotten Mina")


async def test_only_the_line_that_was_meant_is_forgotten(browser, tmp_path):
    memory(tmp_path, "- one\n- two\n- two\n- three\n")
    page = (await browser.get("/console/mind?group=work")).text
    form = re.search(r'name="_form" value="([^"]+)"', page.partition("/memory/forget")[2])
    assert form
    memory(tmp_path, "- new\n- one\n- two\n- two\n- three\n")
    refused = await browser.post(
        "/console/mind/work/memory/forget", data={"_form": form[1], "lines": "- two", "place": "1"}
    )
    assert refused.status_code == 422
    assert "The memory was changed meanwhile" in refused.text
    assert memory(tmp_path).count("- two") == 2
    # The place that was sent holds a line with the same words by now, and it is another's.
    memory(tmp_path, "# Mia\n- tea\n# Jon\n- tea\n")
    form = re.search(r'name="_form" value="([^"]+)"', page.partition("/memory/forget")[2])
    page = (await browser.get("/console/mind?group=work")).text
    jon = re.findall(r'action="/console/mind/work/memory/forget".*?</form>', page, re.DOTALL)[1]
    fields = {name: unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', jon)}
    assert fields["place"] == "3"
    memory(tmp_path, "new\n\n# Mia\n- tea\n# Jon\n- tea\n")
    refused = await browser.post("/console/mind/work/memory/forget", data=fields)
    assert refused.status_code == 422
    assert memory(tmp_path).count("- tea") == 2
    memory(tmp_path, "- new\n- one\n- two\n- two\n- three\n")
    moved = await forget(browser, "three")
    assert moved.status_code == 200
    assert memory(tmp_path) == "- new\n- one\n- two\n- two\n"


async def test_calendars_are_given_out_and_followed_in_the_settings(browser, tmp_path):
    page = await send_form(browser, f"{WORK}/calendars", of=WORK, name="my phone")
    found = re.search(r"It is shown only now: (http://[^ <]+/calendar/[\w-]+\.ics)", page.text)
    assert found
    async with httpx.AsyncClient(trust_env=False) as program:
        assert (await program.get(found[1])).text.startswith("BEGIN:VCALENDAR")
        again = await browser.get(f"/console{WORK}")
        assert "my phone" in again.text
        assert found[1].rpartition("/")[2] not in again.text
        revoke = re.search(r"/groups/work/calendars/\d+/revoke", again.text)
        assert revoke
        await send_form(browser, revoke[0], of=WORK)
        assert (await program.get(found[1])).status_code == 404

    for fields, why in (
        ({"address": "ftp://x"}, "The address begins with https://"),
        ({"address": "https://ada:secret@x.example/"}, "without user and password in it"),
        ({"name": "a/b"}, "up to 40 letters"),
        ({"notice": "soon"}, "a number from 0 to 10080"),
        ({"password_env": "pass word"}, "the NAME of a line of .env"),
    ):
        sent = {"address": "https://127.0.0.1:1/x.ics", "name": "work", "notice": "30", "user": "", **fields}
        page = await send_form(browser, f"{WORK}/follow", of=WORK, **{"password_env": "", **sent})
        assert page.status_code == 422
        assert why in page.text
        assert re.search(r'<details class="new" id="new-follow" open>', page.text)
        assert "secret@" not in page.text or fields.get("address", "").startswith("https://ada")
    sent = {
        "address": "https://127.0.0.1:1/x.ics",
        "name": "work",
        "notice": "0",
        "user": "",
        "password_env": "",
    }
    page = await send_form(browser, f"{WORK}/follow", of=WORK, **sent)
    assert "It is read now, and then every 15 minutes." in page.text

    async def is_tried() -> bool:
        return "cannot be read" in (await browser.get(f"/console{WORK}")).text

    await until(is_tried, "the host tried to read it at once")
    page = await send_form(browser, f"{WORK}/unfollow", of=WORK, name="work")
    assert "not followed any more" in page.text


async def test_hooks_are_given_out_counted_and_revoked_in_the_settings(browser, tmp_path):
    page = await send_form(browser, f"{WORK}/hooks", of=WORK, name="door <b>", asks="yes")
    found = re.search(r"It is shown only now: (http://[^ <]+/hooks/[\w-]+)", page.text)
    assert found
    async with httpx.AsyncClient(trust_env=False) as program:
        assert (await program.post(found[1], data={"text": "rings"})).status_code == 202
        again = (await browser.get(f"/console{WORK}")).text
        hooks = again.partition('id="hooks"')[2].partition("</section>")[0]
        assert "door &lt;b&gt;" in hooks
        assert "asks the agent" in hooks
        assert "uses: 1, the last" in hooks
        assert found[1].rpartition("/")[2] not in again
        for language, why in (("en", "There is a hook of this name already"), ("ko", "같은 이름의 훅이")):
            browser.cookies.set("andy_language", language)
            refused = await send_form(browser, f"{WORK}/hooks", of=WORK, name="DOOR <b>")
            assert refused.status_code == 422
            assert why in refused.text
            assert 'value="DOOR &lt;b&gt;"' in refused.text
        revoke = re.search(r"/groups/work/hooks/\d+/revoke", again)
        assert revoke
        await send_form(browser, revoke[0], of=WORK)
        assert (await program.post(found[1], data={"text": "rings"})).status_code == 404


async def test_main_has_no_form_for_hooks_and_takes_none(browser, tmp_path):
    change = "UPDATE registered_groups SET is_main = 1 WHERE folder = 'work'"
    await write_beside(Home(tmp_path / "home"), change)
    page = await browser.get(f"/console{WORK}")
    assert page.status_code == 200
    assert 'id="hooks"' not in page.text
    refused = await send_form(browser, f"{WORK}/hooks", of=WORK, name="door")
    assert refused.status_code == 422
    assert "Main takes no hook" in refused.text


async def test_a_group_is_registered_by_hand_with_a_name_of_its_own(browser, tmp_path):
    for name, why in (
        ("   ", "Write what people call the group"),
        ("fAMILY", "family has this name already"),
    ):
        page = await send_form(browser, "/groups", of="/groups", name=name, folder="", jid="")
        assert page.status_code == 422
        assert why in page.text
    token = {"Authorization": f"Bearer {Home(tmp_path / 'home').token()}"}
    async with httpx.AsyncClient(base_url=browser.base_url, headers=token, trust_env=False) as program:
        refused = await program.post("/groups", json={"folder": "other", "name": "Family"})
    assert refused.status_code == 422
    assert "choose another name" in refused.text


async def test_why_a_group_is_not_registered_is_said_in_the_language_of_the_page(browser):
    browser.cookies.set("andy_language", "ko")
    page = await send_form(browser, "/groups", of="/groups", name="x", folder="global")
    assert page.status_code == 422
    assert "폴더 이름은" in page.text
    assert "is reserved" not in page.text
    page = await send_form(browser, "/groups/work/chats", of="/groups/work", jid="local:family")
    assert "이미 등록되어 있습니다" in page.text
    assert "registered as &#39;family&#39;: take it off first." in page.text, "the reason itself"
    page = await send_form(browser, "/groups/work/chats", of="/groups/work", jid="")
    assert "이 요청은 처리할 수 없습니다" in page.text


async def test_an_address_that_is_too_long_is_refused_in_plain_words(browser):
    page = await send_form(browser, "/groups/work/chats", of="/groups/work", jid="x" * 201)
    assert page.status_code == 422
    assert "A field is empty, too long, or of the wrong kind." in page.text
    assert "pydantic" not in page.text


async def test_a_chat_names_all_that_calls_andy_there(browser):
    await saved(browser, trigger="@Bob")
    page = (await browser.get("/console/chats/work")).text
    assert "Andy answers when he is called: @Andy, @Bob." in page


async def test_a_chat_can_be_read_while_a_full_disk_takes_no_note_of_it(browser, monkeypatch):
    marking = AsyncMock(side_effect=StoreError("database or disk is full"))
    monkeypatch.setattr(chats.message_store, "mark_read", marking)
    page = await browser.get("/console/chats/family")
    assert page.status_code == 200, page.text[-500:]
    marking.assert_awaited_once()


async def strangers_call(tmp_path: Path, *chats: str) -> None:
    """Have chats without a group call, each as its messenger hands it in."""
    database = await Database.open(Home(tmp_path / "home").database)
    try:
        intake = Intake(
            database, clock=SystemClock(), name="Andy", wakeups=Wakeups(), bus=EventBus(SystemClock())
        )
        for number, name in enumerate(chats, start=1):
            changes = {
                "chat_jid": f"tg:-{number}",
                "chat_name": name,
                "channel": "telegram",
                "sender": "tg:5",
            }
            await intake.accept(a_message("@Andy <b>hi</b>\u202e", **changes))
    finally:
        await database.close()


async def test_a_chat_that_calls_is_decided_where_it_is_listed(
    browser: httpx.AsyncClient, tmp_path: Path
) -> None:
    await strangers_call(tmp_path, "Choir <i>", "Bank", "Club")
    for page in ("/now", "/groups"):
        text = (await browser.get(f"/console{page}")).text
        assert text.count('action="/console/groups/requests"') == 9
        assert "Choir &lt;i&gt;" in text
        assert "@Andy &lt;b&gt;hi&lt;/b&gt;\\u202e" in text
    answer = await send_form(browser, "/groups/requests", of="/now", request="1", decision="register")
    assert str(answer.url).endswith("/console/groups/choir-i")
    assert "Choir &lt;i&gt; is registered." in answer.text
    for request, decision, said in [
        ("2", "ignore", "Ignored: Andy asks"),
        ("3", "block", "Blocked: Andy does"),
    ]:
        answer = await send_form(
            browser, "/groups/requests", of="/groups", request=request, decision=decision
        )
        assert said in answer.text
    assert answer.text.count('action="/console/groups/requests"') == 0
    assert '<span class="badge quiet">blocked</span>' in answer.text
    for request, decision in [("1", "ignore"), ("x", "block"), ("2", "open"), ("99", "block")]:
        answer = await send_form(
            browser, "/groups/requests", of="/groups", request=request, decision=decision
        )
        assert answer.status_code >= 400, (request, decision)


@pytest.mark.parametrize("part", ["calling", "none such"])
async def test_a_part_that_is_loaded_meanwhile_does_not_take_the_text_that_a_change_shows(browser, part):
    page = await browser.get("/console/groups")
    form = re.search(r'name="_form" value="([^"]+)"', page.text)
    assert form
    fields = {**hidden_fields(page.text, "/groups"), "_form": form[1], "name": "chess"}
    moved = await browser.post("/console/groups", data=fields, follow_redirects=False)
    assert moved.status_code == 303

    # The old page hears of the change before the browser has followed the redirection.
    assert (await browser.get("/console/groups", params={"part": part})).status_code == 200

    assert "chess is registered" in (await browser.get(moved.headers["location"])).text


def test_a_memory_file_of_short_lines_is_read_in_one_go() -> None:
    facts = facts_in("# Home\na\n" + "b\n" * 1_000_000 + "\n- c\nd\n---\n")
    assert [(fact.place, len(fact.lines)) for fact in facts] == [(0, 1), (1, 1_000_001), (1_000_003, 2)]
