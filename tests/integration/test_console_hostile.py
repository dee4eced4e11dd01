"""No address and no form of the console ends in a fault or a dropped connection, whatever stands in it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from orchestrator.domain.errors import StoreCorrupt
from orchestrator.store.access import web_sessions
from orchestrator.web.console.app import find_pages
from orchestrator.web.console.page import TEMPLATES
from tests.support.console_browser import console_browser

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOSTILE = {
    "400 digits": "9" * 400,
    "negative": "-9223372036854775809",
    "digits of another script": quote("٣٤٥"),
    "a digit that is none": quote("²"),
    "deep JSON": quote('{"a":' * 3_000),
    "deep lists": quote("[" * 1_200),
    "NUL": "a%00b",
    "a lone surrogate": "%ED%A0%80",
    "no UTF-8": "%FF%FE",
    "beyond what SQLite counts": "9223372036854775808",
    "a float": "1e999",
    "markup": quote('"><script>alert(1)</script>'),
}
"""Values as they stand in an address or a form, percent-encoded."""
IN_CODE = re.compile(r"""\b(?:query|number|text|raw|all|is_set|_asked)\(\s*(?:view,\s*)?["'](\w+)["']""")
PLACE = re.compile(r"\{(\w+)(?::\w+)?\}")
TOO_MUCH = ("/care/backups", "/care/doctor", "/care/uploads")
"""Forms that have no fields but begin something long, or take files."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    async with console_browser(tmp_path_factory.mktemp("hostile") / "home") as made:
        yield made


def names_in_code() -> list[str]:
    """Return each name of a query or a field that a page's code asks for."""
    sources = (Path(TEMPLATES).parent / "pages").glob("*.py")
    return sorted({name for path in sources for name in IN_CODE.findall(path.read_text(encoding="utf-8"))})


def addresses(kind: str, value: str) -> Iterator[str]:
    """Return each route with `value` in its places, and with a real group in all but the last of them."""
    for page in find_pages():
        for path in getattr(page, kind):
            if path in TOO_MUCH and kind == "changes":
                continue
            yield "/console" + PLACE.sub(value, path)
            beginning, _, last = path.rpartition("{")
            if beginning:
                yield "/console" + PLACE.sub("family", beginning) + PLACE.sub(value, "{" + last)


@pytest.mark.slow
@pytest.mark.parametrize("what", HOSTILE)
async def test_no_page_fails(browser, what):
    value = HOSTILE[what]
    query = "&".join(f"{name}={value}" for name in names_in_code())
    assert query
    for path in dict.fromkeys(addresses("shows", value)):
        for address in (path, f"{path}?{query}&{query}"):
            answer = await browser.get(address[:60_000])
            assert answer.status_code < 500, (address[:200], answer.text[-500:])


@pytest.mark.slow
@pytest.mark.parametrize("what", HOSTILE)
async def test_no_form_fails(browser, what):
    value = HOSTILE[what]
    fields = "&".join(f"{name}={value}" for name in names_in_code())
    numbers: list[str] = []
    for path in dict.fromkeys(addresses("changes", value)):
        if not numbers:  # each form of a page has its own
            page = await browser.get("/console/coming")
            numbers = re.findall(r'name="_form" value="([^"]+)"', page.text)
        number = numbers.pop()
        answer = await browser.post(
            path[:60_000],
            content=f"_form={number}&_seen={value}&{fields}&{fields}",
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        )
        assert answer.status_code < 500, (path[:200], answer.text[-500:])
        assert "form_forged" not in answer.text
        assert "script>alert" not in answer.text.replace("&lt;script>alert", "")


@pytest.mark.parametrize(
    "address", ["//[", "http://[", "http://[x/console/", "http://]/", "\\\\[", "/console/%"]
)
async def test_an_address_that_is_none_is_passed_over(browser, address):
    async with httpx.AsyncClient(base_url=browser.base_url, trust_env=False, verify=False) as stranger:
        page = await stranger.get("/console/sign-in", params={"next": address})
    assert page.status_code == 200
    page = await browser.get("/console/groups/nobody", headers={"referer": address})
    assert page.status_code == 404


async def said_with_a_file(browser: httpx.AsyncClient, *, speaker: str) -> httpx.Response:
    """Send a text with a file from the page of a chat, and return the answer."""
    page = await browser.get("/console/chats/family")
    form = re.search(r'name="_form" value="([^"]+)"', page.text)
    assert form
    return await browser.post(
        "/console/chats/family/say",
        data={"_form": form[1], "text": "see the plan", "speaker": speaker},
        files={"file": ("plan.txt", b"x", "text/plain")},
    )


async def test_a_file_that_cannot_be_stored_is_said_beside_the_text(tmp_path):
    home = tmp_path / "home"
    # An agent may do this: the folder is its own. Laid before the host, which makes it at some time, starts.
    place = home / "groups" / "family" / "attachments"
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path)
    async with console_browser(home) as browser:
        answer = await said_with_a_file(browser, speaker="member")
    assert answer.status_code == 422
    assert "see the plan" in answer.text
    assert "plan.txt" in answer.text
    assert not (tmp_path / "plan.txt").exists()


async def test_a_file_is_not_dropped_when_the_owner_speaks_as_andy(tmp_path):
    async with console_browser(tmp_path / "home") as browser:
        answer = await said_with_a_file(browser, speaker="andy")
    assert answer.status_code == 422
    assert "see the plan" in answer.text
    assert "not as Andy" in answer.text


async def test_a_refused_message_leaves_no_file_and_is_refused_in_the_language_of_the_page(tmp_path):
    home = tmp_path / "home"
    async with console_browser(home) as browser:
        browser.cookies.set("andy_language", "ko")
        said = {"speaker": "member", "chat": "local:main", "text": "see the plan"}
        for changed, status, reason in (
            ({}, 422, "이 요청은 처리할 수 없습니다"),
            ({"chat": "", "speaker": "andy"}, 422, "not as Andy"),
            ({"chat": "", "text": " "}, 422, "내용이 비어 있습니다"),
            ({"chat": "", "text": "x" * 200_000}, 413, "글이 너무 깁니다"),
        ):
            page = await browser.get("/console/chats/family")
            form = re.findall(r'name="_form" value="([^"]+)"', page.text)
            fields = {"_form": form[0], **said, **changed}
            file = {"file": ("plan.txt", b"x", "text/plain")} if fields["text"].strip() else None
            answer = await browser.post("/console/chats/family/say", data=fields, files=file)
            assert (answer.status_code, reason in answer.text) == (status, True), answer.text[-3000:]
    assert list(home.glob("groups/family/attachments/plan*")) == []


async def test_a_database_that_cannot_be_read_is_said_on_a_page(browser, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise StoreCorrupt

    monkeypatch.setattr(web_sessions, "find", fail)
    answer = await browser.get("/console/now")
    assert (answer.status_code, answer.headers["content-type"]) == (503, "text/html; charset=utf-8")
    assert "content-security-policy" in answer.headers
    assert "Andy cannot do that right now." in answer.text
