"""Who gets into the console, and who does not."""

from __future__ import annotations

import json
import re

import httpx
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.signed_in import Visit, assert_accessible, code_address
from tests.processes.andy import AndyProcess, until


def browser_less(andy: AndyProcess, **headers: str) -> httpx.Client:
    return httpx.Client(base_url=andy.address, headers=headers, trust_env=False)


def test_without_a_session_the_address_of_andy_shows_the_sign_in(andy: AndyProcess, context: BrowserContext):
    page = context.new_page()
    page.goto(andy.address)

    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert_accessible(page)
    page.get_by_label("Token").fill("guessed")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("That is not the token")
    page.get_by_label("Token").fill((andy.home / "data" / "token").read_text())
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Now", exact=True)).to_be_visible()


def test_a_code_lets_one_browser_in_once_and_leaves_the_address(andy: AndyProcess, context: BrowserContext):
    address = andy.cli("open", "--no-browser").stdout.strip()
    page = context.new_page()
    page.goto(address)
    page.wait_for_url("**/console/now")
    cookie = next(one for one in context.cookies() if one["name"] == "andy_session")
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")

    context.clear_cookies()
    page.goto(f"{andy.address}/healthz")  # a change of the fragment alone loads nothing
    page.goto(address)
    expect(page.get_by_role("alert")).to_contain_text("andy open")
    assert "#" not in page.url


def test_signing_out_ends_the_session(page: Page, andy: AndyProcess, context: BrowserContext):
    before = context.cookies()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()

    context.add_cookies(before)  # type: ignore[arg-type]
    page.goto(f"{andy.address}/console/now")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_revoked_session_is_told_that_it_is_over(visitor: Visit, andy: AndyProcess):
    visitor.allowed.append("401")
    listed = andy.listed("sessions", "list")
    assert listed[0]["browser"].startswith("Chrome")
    assert andy.cli("sessions", "revoke", "--all").stdout.strip().endswith("signed out.")

    visitor.page.goto(f"{andy.address}/console/now")
    expect(visitor.page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert andy.listed("sessions", "list") == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1:1"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_a_foreign_host_origin_or_port_is_refused(andy: AndyProcess, headers: dict[str, str]):
    with browser_less(andy, **headers) as http:
        assert http.get("/console/sign-in").status_code == 403
        assert http.post("/console/sign-in", data={"secret": "x"}).status_code == 403


def test_a_change_without_its_form_is_refused_and_one_sent_twice_is_done_once(page: Page, andy: AndyProcess):
    cookies = {one["name"]: one["value"] for one in page.context.cookies()}
    form = page.locator("form[action$='/preferences'] input[name=_form]").get_attribute("value")
    assert form
    with httpx.Client(base_url=andy.address, cookies=cookies, trust_env=False) as http:
        assert http.post("/console/preferences", data={"theme": "dark"}).status_code == 403
        forged = {"theme": "dark", "_form": form[:-1] + ("0" if form[-1] != "0" else "1")}
        assert http.post("/console/preferences", data=forged).status_code == 403
        sent = {"theme": "dark", "_form": form}
        assert http.post("/console/preferences", data=sent).status_code == 303
        again = http.post("/console/preferences", data=sent)
    assert again.status_code == 409
    assert "done once" in again.text


def test_wrong_tokens_are_tried_a_few_times_only_and_codes_still_count(
    andy: AndyProcess, context: BrowserContext
):
    with browser_less(andy) as http:

        def is_limited() -> bool:
            return http.post("/console/sign-in", data={"secret": "wrong"}).status_code == 429

        until(is_limited, what="wrong tokens are refused for a while")
    page = context.new_page()
    page.goto(code_address(andy))
    page.wait_for_url("**/console/now")


def test_language_and_look_are_applied_by_a_button_and_what_is_typed_stays(visitor: Visit):
    page = visitor.page
    page.goto(f"{visitor.address}/console/costs")
    page.locator("summary", has_text="New budget").click()
    page.get_by_label("Amount").fill("17")
    page.get_by_text("Preferences").click()
    page.get_by_label("Language").focus()
    page.keyboard.press("ArrowDown")
    page.get_by_label("Look").select_option("dark")
    expect(page.locator("html")).to_have_attribute("lang", "en")
    expect(page.locator("html[data-theme]")).to_have_count(0)
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.locator("html")).to_have_attribute("lang", "ko")
    expect(page.locator("input[name=amount]").last).to_have_value("17")
    page.goto(f"{visitor.address}/console/now")
    expect(page.get_by_role("heading", name="지금", exact=True)).to_be_visible()


def test_a_phone_has_four_tabs_and_more_and_the_console_can_be_installed(visitor: Visit):
    page = visitor.page
    page.set_viewport_size({"width": 390, "height": 844})
    pages = page.get_by_role("navigation", name="Pages")
    expect(pages.get_by_role("link")).to_have_count(4)
    pages.get_by_role("button", name="More").press("Enter")
    pages.get_by_role("link", name="Care").click()
    expect(page.get_by_role("heading", name="Care", exact=True)).to_be_visible()
    expect(pages.get_by_role("link")).to_have_count(4)
    assert page.evaluate("document.querySelector('.daily').getBoundingClientRect().bottom") == 844

    fetched = """async (path) => {
        const answer = await fetch(path);
        return [answer.headers.get("content-type"), await answer.text()];
    }"""
    kind, text = page.evaluate(fetched, page.locator("link[rel=manifest]").get_attribute("href"))
    app = json.loads(text)
    assert kind.startswith("application/manifest+json")
    assert (app["start_url"], app["display"]) == ("/console/", "standalone")
    assert {(one["sizes"], one["purpose"]) for one in app["icons"]} >= {
        ("192x192", "any"),
        ("512x512", "maskable"),
    }
    for one in app["icons"]:
        assert page.evaluate(fetched, one["src"])[0] == "image/png"
    session = page.context.new_cdp_session(page)
    found = session.send("Page.getInstallabilityErrors")["installabilityErrors"]
    assert [one["errorId"] for one in found] == ["in-incognito"], "which only the test is"


def test_an_unknown_page_is_told_in_words(visitor: Visit):
    visitor.allowed.append("404")
    visitor.page.goto(f"{visitor.address}/console/nowhere")
    expect(visitor.page.get_by_text("There is no such page")).to_be_visible()
    expect(visitor.page.get_by_role("link", name="Back")).to_be_visible()
    assert_accessible(visitor.page)


def test_a_page_says_when_andy_is_away_and_goes_on_when_he_is_back(visitor: Visit, andy: AndyProcess):
    visitor.allowed += ["ERR_", "Failed to fetch", "network error", "503"]
    page = visitor.page
    expect(page.locator("html")).to_have_attribute("data-live", "yes")
    port = andy.address.rpartition(":")[2]
    andy.terminate()
    expect(page.get_by_text("Andy does not answer")).to_be_visible()

    andy.start_at(port)
    expect(page.get_by_text("Andy does not answer")).to_be_hidden()
    expect(page.locator("html")).to_have_attribute("data-live", "yes")


def test_every_answer_forbids_what_a_page_does_not_need(andy: AndyProcess, page: Page):
    answer = page.reload()
    assert answer is not None
    policy = answer.headers["content-security-policy"]
    assert re.match(
        r"default-src 'none'; script-src 'self' 'nonce-[\w-]+'; style-src 'self'; connect-src 'self';"
        r" img-src 'self'; manifest-src 'self'; worker-src 'self'; form-action 'self';"
        r" frame-ancestors 'none'; base-uri 'none'$",
        policy,
    )
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-store"


def test_what_is_sent_while_andy_is_away_is_kept_on_the_page_and_sent_when_he_is_back(
    visitor: Visit, andy: AndyProcess
):
    visitor.allowed += ["ERR_", "Failed to fetch", "network error", "503"]
    page = visitor.page
    page.goto(f"{andy.address}/console/chats/main")
    box = page.get_by_label("Write a message")
    box.fill("are you there?")
    port = andy.address.rpartition(":")[2]
    andy.terminate()
    away = page.get_by_text("Andy does not answer")
    expect(away).to_be_visible()
    with page.expect_event("requestfailed", lambda one: one.method == "HEAD"):
        box.press("Enter")
    expect(box).to_have_value("are you there?")
    expect(away).to_be_in_viewport()

    andy.start_at(port)
    box.press("Enter")
    expect(page.locator(".said", has_text="are you there?")).to_be_visible()


def test_any_number_of_tabs_is_live_and_hears_all_also_over_a_restart(
    visitor: Visit, andy: AndyProcess, context: BrowserContext
):
    """A browser opens six connections to a host: with one for each tab, the seventh would wait for ever."""
    visitor.allowed += [
        "ERR_CONNECTION_REFUSED",
        "Failed to fetch",
        "ERR_EMPTY_RESPONSE",
        "ERR_CONNECTION_RESET",
    ]
    tabs = [visitor.page, *(context.new_page() for _ in range(7))]
    for tab in tabs:
        tab.goto(f"{visitor.address}/console/chats/main")
    for tab in tabs:
        expect(tab.locator("html")).to_have_attribute("data-live", "yes")

    def all_show(text: str) -> None:
        for tab in tabs:
            expect(tab.get_by_role("article").filter(has_text=text)).to_have_count(1)

    andy.say("the first for all tabs", wait=0)
    all_show("the first for all tabs")
    tabs.pop(0).goto(f"{visitor.address}/console/care")
    tabs.pop().close()
    andy.say("and one after a tab was closed", wait=0)
    all_show("and one after a tab was closed")

    port = andy.address.rpartition(":")[2]
    andy.kill()
    for tab in tabs:
        expect(tab.get_by_text("Andy does not answer")).to_be_visible()
    andy.start_at(port)
    andy.say("said after the restart", wait=0)
    all_show("said after the restart")
    for tab in tabs:
        expect(tab.get_by_text("Andy does not answer")).to_be_hidden()
        tab.close()


def test_a_browser_without_shared_workers_is_live_too(visitor: Visit, andy: AndyProcess):
    page = visitor.page
    page.add_init_script("delete window.SharedWorker")
    page.goto(f"{visitor.address}/console/chats/main")
    expect(page.locator("html")).to_have_attribute("data-live", "yes")
    andy.say("for who has no worker", wait=0)
    expect(page.get_by_text("for who has no worker")).to_have_count(1)
