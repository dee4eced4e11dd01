"""The console page of models: services are added, chosen, ordered and removed as on the command line."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.domain.model_services import ServicePrice
from orchestrator.home.directory import Home
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.reader import read_once
from orchestrator.store.settings import model_services
from tests.support.console_browser import console_browser, send_form, write_beside


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with console_browser(tmp_path / "home") as made:
        yield made


def stored(tmp_path: Path) -> dict[str, Any]:
    async def read(tx: Tx) -> dict[str, Any]:
        work = await groups.known(tx, "work")
        return {
            "services": {one.name: one for one in await model_services.every(tx)},
            "chosen": [(one.work, one.model, one.may_be_dearer) for one in await model_services.choices(tx)],
            "work": {name: work.container_config.get(name) for name in ("model", "models")},
        }

    return read_once(Home(tmp_path / "home").database, read)


FALLBACK = [("fallback", "local/m", False), ("fallback", "far/m", True)]


async def test_services_are_added_chosen_put_in_order_and_removed(browser, tmp_path):
    new = {
        "name": "third",
        "kind": "ollama",
        "model": "qwen3",
        "price": "0.3,1.2",
        "window": "32768",
        "url": "",
    }
    page = await send_form(browser, "/models/services", **new)
    assert "andy models test third" in page.text
    added = stored(tmp_path)["services"]["third"]
    assert (added.url, added.window, added.price) == ("http://127.0.0.1:11434", 32768, ServicePrice(0.3, 1.2))

    await send_form(browser, "/models/choices", chosen="third/qwen3", whose="", work="worker")
    await send_form(browser, "/models/choices", chosen="third/qwen3", whose="work", work="tasks")
    await send_form(browser, "/models/choices", chosen="", whose="work", work="all")
    assert stored(tmp_path)["work"] == {"model": None, "models": {"tasks": "third/qwen3"}}
    assert ("worker", "third/qwen3", False) in stored(tmp_path)["chosen"]

    page = await send_form(browser, "/models/services/third/remove")
    assert page.status_code == 422
    assert "still chosen" in page.text
    for whose, work in (("", "worker"), ("work", "tasks")):
        await send_form(browser, "/models/choices", chosen="", whose=whose, work=work)
    await send_form(browser, "/models/services/third/remove")
    assert "third" not in stored(tmp_path)["services"]
    assert stored(tmp_path)["chosen"] == [*FALLBACK, ("tasks", "far/m", False)], "nothing else has changed"


async def test_each_place_of_the_list_to_fall_back_on_is_dearer_or_not_by_itself(browser, tmp_path):
    page = await browser.get("/console/models")
    assert page.text.count(" checked") == 1, "the second of the two"
    places = {
        "model0": "far/m",
        "model1": "local/m",
        "dearer0": "yes",
        "model4": "claude-haiku-4-5",
        "dearer4": "yes",
    }
    await send_form(browser, "/models/fallback", of="/models", **places)
    assert stored(tmp_path)["chosen"][:3] == [
        ("fallback", "far/m", True),
        ("fallback", "local/m", False),
        ("fallback", "claude-haiku-4-5", True),
    ]


async def test_of_two_who_change_the_list_the_second_is_shown_what_it_is_now(browser, tmp_path):
    page = await browser.get("/console/models")
    seen = unescape(re.findall(r'name="_seen" value="([^"]+)"', page.text)[-1])
    await send_form(browser, "/models/fallback", of="/models", model0="far/m")
    refused = await send_form(browser, "/models/fallback", _seen=seen, model0="local/m")

    assert refused.status_code == 409
    assert [one for one in stored(tmp_path)["chosen"] if one[0] == "fallback"] == [
        ("fallback", "far/m", False)
    ]


async def test_a_service_that_is_given_again_keeps_what_the_form_does_not_ask_for(browser, tmp_path):
    changed = "first_byte_seconds = 900, tested_ms = 5, abilities = '[\"images\"]'"
    await write_beside(Home(tmp_path / "home"), f"UPDATE model_services SET {changed}")
    again = {"name": "local", "kind": "gateway", "url": "http://127.0.0.1:9", "model": "m", "window": "64000"}
    await send_form(browser, "/models/services", **again)
    local = stored(tmp_path)["services"]["local"]

    assert (local.window, local.first_byte_seconds, local.tested_ms) == (64_000, 900, 5)
    assert sorted(local.abilities) == ["images"]


async def test_a_group_that_is_gone_stays_chosen_in_the_form(browser):
    page = await send_form(browser, "/models/choices", chosen="far/m", whose="gone", work="all")
    assert '<option value="gone" selected>' in page.text


REFUSED = {
    "/models/services": [
        ({"name": "x", "kind": "gateway", "url": ""}, "Say where a gateway of your own is"),
        ({"name": "x", "kind": "no such"}, "is no kind of service"),
        ({"name": "X y", "kind": "ollama"}, "cannot name a service"),
        ({"name": "x", "kind": "ollama", "window": "many"}, "no number of tokens"),
        ({"name": "x", "kind": "ollama", "window": "9"}, "a first request needs 16,000"),
        ({"name": "x", "kind": "ollama", "price": "cheap"}, "is no price"),
        ({"name": "x", "kind": "gateway", "url": "http://models.example.org"}, "use https"),
        ({"name": "x", "kind": "ollama", "key_env": "PATH"}, "is no name of a key"),
    ],
    "/models/choices": [
        ({"chosen": "a b", "whose": "", "work": "all"}, "is no model"),
        ({"chosen": "far/m", "whose": "nobody", "work": "all"}, "nobody"),
        ({"chosen": "far/m", "whose": "", "work": "fallback"}, "is no kind of work"),
    ],
    "/models/fallback": [({"model0": "<b>"}, "is no model")],
}


@pytest.mark.parametrize("path", REFUSED)
async def test_what_cannot_be_used_is_said_in_words_and_nothing_is_changed(browser, tmp_path, path):
    before = stored(tmp_path)
    for fields, reason in REFUSED[path]:
        page = await send_form(browser, path, of="/models", **fields)
        assert page.status_code in (400, 404, 422), fields
        assert reason in page.text, (fields, page.text[-2000:])
        assert stored(tmp_path) == before
