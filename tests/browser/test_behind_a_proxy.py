"""The console behind a reverse proxy with TLS, and what a cut or a killed host does to an open page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from agent_runner.wire.files import unique_name, write_whole
from tests.browser.conftest import PATIENCE_MS
from tests.processes.andy import AndyProcess, until
from tests.processes.reverse_proxy import ReverseProxy, own_certificate

SECURE = "__Host-andy_session"


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReverseProxy]:
    with ReverseProxy(own_certificate(tmp_path_factory.mktemp("tls"))) as made:
        yield made


@pytest.fixture(scope="module")
def andy(proxy: ReverseProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AndyProcess]:
    home = tmp_path_factory.mktemp("behind") / "home"
    with AndyProcess(home, environment={"ANDY_WEB_ORIGIN": proxy.origin}) as host:
        proxy.target = int(host.address.rpartition(":")[2])
        yield host


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    made = chromium.new_context(locale="en-US", ignore_https_errors=True)
    made.set_default_timeout(PATIENCE_MS)
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext, proxy: ReverseProxy, andy: AndyProcess) -> Page:
    """Signed in by the token, at the address of the proxy."""
    made = context.new_page()
    made.goto(f"{proxy.origin}/console/chats/main")
    made.get_by_label("Token").fill((andy.home / "data" / "token").read_text())
    made.get_by_role("button", name="Sign in").click()
    made.wait_for_url("**/console/chats/main")
    expect(made.locator("html")).to_have_attribute("data-live", "yes", timeout=PATIENCE_MS)
    return made


def lines(page: Page) -> Counter[str]:
    """How often each number of a message stands in the page."""
    return Counter(page.locator("article.line").evaluate_all("all => all.map(one => one.id)"))


def stored(andy: AndyProcess) -> Counter[str]:
    rows = andy.rows("SELECT seq FROM messages WHERE chat_jid = 'local:main'")
    return Counter(f"m{row['seq']}" for row in rows)


def test_the_cookie_is_bound_to_tls_and_events_and_forms_pass(page: Page, andy: AndyProcess) -> None:
    (cookie,) = [one for one in page.context.cookies() if "session" in one["name"]]
    assert (cookie["name"], cookie["secure"], cookie["httpOnly"], cookie["path"]) == (SECURE, True, True, "/")
    assert cookie["sameSite"] == "Strict"

    andy.say("echo over TLS")
    expect(page.locator("article.own").filter(has_text="over TLS")).to_be_visible(timeout=PATIENCE_MS)
    page.get_by_label("Write a message").fill("echo from a form")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("article.own").filter(has_text="from a form")).to_be_visible(timeout=PATIENCE_MS)


def test_behind_the_proxy_host_origin_and_cookie_are_held_to_its_address(
    page: Page, proxy: ReverseProxy, andy: AndyProcess
) -> None:
    (value,) = [one["value"] for one in page.context.cookies() if one["name"] == SECURE]
    port = proxy.origin.rpartition(":")[2]
    with httpx.Client(base_url=proxy.origin, verify=False, trust_env=False) as http:
        signed_in = {"Cookie": f"{SECURE}={value}"}
        assert http.get("/console/now", headers=signed_in).status_code == 200
        same = {**signed_in, "Origin": proxy.origin}
        assert http.get("/console/now", headers=same).status_code == 200
        assert http.get("/console/now", headers={"Cookie": f"andy_session={value}"}).status_code == 303
        for headers in (
            {"Host": "localhost"},
            {"Host": "localhost:1"},
            {"Host": "evil.example"},
            {"Host": f"evil.example:{port}"},
            {"Origin": f"http://localhost:{port}"},
            {"Origin": "https://localhost"},
            {"Origin": "https://localhost:1"},
            {"Origin": andy.address},
            {"Origin": "null"},
        ):
            assert http.get("/console/now", headers={**signed_in, **headers}).status_code == 403, headers
    with httpx.Client(base_url=andy.address, trust_env=False) as http:
        direct = http.get("/console/now", headers={"Cookie": f"{SECURE}={value}"})
        assert direct.status_code == 303, "without TLS the cookie that is bound to it lets nobody in"


def test_a_cut_neither_loses_nor_doubles_a_line(page: Page, proxy: ReverseProxy, andy: AndyProcess) -> None:
    """The cut ends when lines have come that the page cannot know: what it misses counts, not how long."""
    andy.say("echo before")
    expect(page.locator("article.own").filter(has_text="before")).to_be_visible(timeout=PATIENCE_MS)
    page.get_by_label("Write a message").fill("half a senten")

    proxy.cut()
    expect(page.get_by_text("Andy does not answer")).to_be_visible(timeout=PATIENCE_MS)
    for number in range(5):
        andy.say(f"echo missed {number}")
    assert "missed" not in page.content()
    asked = len(proxy.asked)
    proxy.mend()

    expect(page.locator("article.own").filter(has_text="missed 4")).to_be_visible(timeout=PATIENCE_MS)
    expect(page.get_by_text("Andy does not answer")).to_be_hidden()
    until(lambda: lines(page) == stored(andy), what="each line once")
    again = b"".join(proxy.asked[asked:]).lower()
    assert b"last-event-id:" in again or b"/console/live?since=" in again, "the page says what it knows"
    expect(page.get_by_label("Write a message")).to_have_value("half a senten")


def test_a_file_that_an_agent_sent_is_fetched_from_its_chat(
    page: Page, andy: AndyProcess, proxy: ReverseProxy
):
    (andy.home / "groups" / "main" / "plan.html").write_text("<script>alert(1)</script>")
    request = {"type": "send_file", "path": "plan.html", "caption": "the plan"}
    mailbox = andy.home / "data" / "ipc" / "main" / "messages"
    mailbox.mkdir(parents=True, exist_ok=True)
    write_whole(mailbox / unique_name(), json.dumps(request))
    link = page.get_by_role("link", name="Download plan.html")
    with page.expect_download() as downloading:
        link.click()
    assert downloading.value.suggested_filename == "plan.html"
    assert Path(downloading.value.path()).read_text() == "<script>alert(1)</script>"

    for copy in (andy.home / "data" / "outgoing").iterdir():
        copy.unlink()
    page.goto(proxy.origin + str(link.get_attribute("href")))
    expect(page.get_by_text("not kept any more")).to_be_visible()


def test_a_host_that_is_killed_comes_back_under_the_open_page(
    page: Page, proxy: ReverseProxy, andy: AndyProcess
) -> None:
    andy.say("echo of the first life")
    expect(page.locator("article.own").filter(has_text="first life")).to_be_visible(timeout=PATIENCE_MS)
    andy.kill()
    expect(page.get_by_text("Andy does not answer")).to_be_visible(timeout=PATIENCE_MS)

    andy.start_at(str(proxy.target))
    expect(page.get_by_text("Andy does not answer")).to_be_hidden(timeout=PATIENCE_MS)
    andy.say("echo of the second life")
    expect(page.locator("article.own").filter(has_text="second life")).to_be_visible(timeout=PATIENCE_MS)
    until(lambda: lines(page) == stored(andy), what="each line once")


def test_a_hook_is_reached_through_the_proxy_and_its_count_outlives_a_kill(
    proxy: ReverseProxy, andy: AndyProcess
) -> None:
    andy.cli("groups", "register", "yard")
    made = json.loads(andy.cli("hooks", "add", "yard", "--name", "gate", "--json").stdout)
    assert made["address"].startswith(f"{proxy.origin}/hooks/")
    with httpx.Client(verify=False, trust_env=False) as http:
        for number in range(3):
            assert http.post(made["address"], data={"text": f"opens {number}"}).status_code == 202
        andy.kill()
        andy.start()
        proxy.target = int(andy.address.rpartition(":")[2])
        assert http.post(made["address"], data={"text": "opens again"}).status_code == 202
    (hook,) = andy.listed("hooks", "list", "yard")
    assert hook["uses"] == 4
    texts = [row["content"] for row in andy.rows("SELECT content FROM messages WHERE sender LIKE 'hook:%'")]
    assert texts == ["opens 0", "opens 1", "opens 2", "opens again"]
    secret = made["address"].rpartition("/")[2].encode()
    assert [one for one in andy.home.rglob("*") if one.is_file() and secret in one.read_bytes()] == []
