"""Every page of the console answers bad input in words, and none with an error of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from orchestrator.web.console.app import find_pages
from tests.processes.andy import AndyProcess

UNKNOWN = {"folder": "nobody", "message": "99999999", "name": "none.tar.gz", "number": "99999999"}
ODD = "0", "-1", "x", "9" * 15, "9" * 40, "%00", "%ff", "..%2f..", "'", "\u202e"
QUERIES = [
    "?" + "&".join(f"{name}={value}" for name in ("page", "before", "from", "group", "day", "q", "part"))
    for value in ("nobody", "-1", "x", "9" * 15, "9" * 40, "%00", "%27", "%ff")
]
SHOWS = sorted((page.name, path) for page in find_pages() for path in page.shows)
CHANGES = sorted((page.name, path) for page in find_pages() for path in page.changes if "{" in path)
TITLE = re.compile(r"<h1[^>]*>\s*\S")


def filled(path: str, value: str | None = None) -> str:
    return re.sub(r"{(\w+)(?::\w+)?}", lambda found: value or UNKNOWN.get(found[1], "99999999"), path)


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A browser without scripts that is signed in."""
    with (
        AndyProcess(tmp_path_factory.mktemp("bad-input") / "home") as andy,
        httpx.Client(base_url=andy.address, trust_env=False, timeout=120) as made,
    ):
        token = (andy.home / "data" / "token").read_text()
        assert made.post("/console/sign-in", data={"secret": token}).status_code == 303
        yield made


def new_form(http: httpx.Client) -> str:
    found = re.search(r'name="_form" value="([^"]+)"', http.get("/console/chats").text)
    assert found
    return found[1]


def assert_in_words(answer: httpx.Response, *, status: tuple[int, ...]) -> None:
    where = f"{answer.request.method} {answer.request.url}"
    assert answer.status_code in status, f"{where}: {answer.status_code} {answer.text[:300]}"
    is_part = "part=" in str(answer.request.url) or answer.request.url.path.endswith("/needs")
    if answer.headers["content-type"].startswith("text/html") and not is_part:
        assert TITLE.search(answer.text), where
    assert "Traceback" not in answer.text, where


@pytest.mark.parametrize(("name", "path"), SHOWS)
def test_a_page_of_what_is_not_there_or_cannot_be_says_so(http: httpx.Client, name: str, path: str) -> None:
    for query in ("", *QUERIES):
        found = http.get(f"/console{filled(path)}{query}")
        assert_in_words(found, status=(200, 400, 404, 422))
        if "{" in path and not query:
            assert found.status_code == 404, path
    if "{" in path:
        for value in ODD:
            assert_in_words(http.get(f"/console{filled(path, value)}"), status=(200, 307, 400, 404, 422))


@pytest.mark.parametrize("digits", [20, 400, 5_000])
def test_a_number_that_is_too_long_for_the_store_leads_to_no_page(http: httpx.Client, digits: int) -> None:
    answer = http.get(f"/console/groups/main/changes/{'9' * digits}")
    assert_in_words(answer, status=(404,))
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_settings_that_are_nested_too_deeply_are_refused_in_words(http: httpx.Client) -> None:
    deep = {"_form": new_form(http), "_seen": "{}", "text": '{"a":' * 3_000 + "1" + "}" * 3_000}
    answer = http.post("/console/groups/main/settings", data=deep)
    assert_in_words(answer, status=(400, 409, 422))
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert http.get("/console/now").status_code == 200


@pytest.mark.parametrize(("name", "path"), CHANGES)
def test_a_change_of_what_is_not_there_is_refused_in_words(http: httpx.Client, name: str, path: str) -> None:
    answer = http.post(f"/console{filled(path)}", data={"_form": new_form(http), "_seen": "{}"})
    if answer.status_code == 303:  # back to its page, which says what was not done
        answer = http.get(answer.headers["location"])
        assert "banner" in answer.text
    else:
        assert_in_words(answer, status=(400, 403, 404, 409, 422))
    without = http.post(f"/console{filled(path)}", data={"_seen": "{}"})
    assert_in_words(without, status=(403,))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"unit": "xyz"}, "is no unit of a budget"),
        ({"unit": ""}, "is no unit of a budget"),
        ({"period": "week"}, "is no period of a budget"),
    ],
)
def test_a_budget_of_an_unknown_unit_or_period_is_refused(
    http: httpx.Client, changed: dict[str, str], said: str
) -> None:
    sent = {"amount": "5", "unit": "usd", "period": "day", "whose": "", **changed}
    answer = http.post("/console/costs/budgets", data={"_form": new_form(http), **sent})
    assert answer.status_code == 422
    assert said in answer.text
    assert "There is no budget" in answer.text


def test_a_form_of_a_session_that_ended_is_not_done_and_says_so(http: httpx.Client) -> None:
    form = new_form(http)
    assert http.post("/console/sign-out", data={"_form": form}).status_code == 303
    answer = http.post("/console/chats/main/say", data={"_form": "x", "text": "lost"})
    assert (answer.status_code, urlsplit(answer.headers["location"]).path) == (303, "/console/sign-in")
    assert parse_qs(urlsplit(answer.headers["location"]).query) == {"lost": ["form"]}
    assert "nothing was done" in http.get(answer.headers["location"]).text
    part = http.get("/console/chats?part=list", headers={"HX-Request": "true"})
    assert (part.status_code, part.headers["hx-redirect"]) == (401, "/console/sign-in")
