"""A new user's first day in the console: without a key, a phone or a terminal; and by the keyboard alone."""

from __future__ import annotations

import pytest

pytest.importorskip("tests.support.whatsapp_library", exc_type=ImportError)

from collections.abc import Iterator

from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.signed_in import Visit, suspend_agent
from tests.doubles import whatsapp_events as wa
from tests.doubles.whatsapp_phone import Phone
from tests.processes.andy import AndyProcess

MOST_TABS = 120
FOCUSED = """() => {
    const one = document.activeElement, style = getComputedStyle(one);
    if (one === document.body) return ["", true];  // between the last and the first stop
    const name = one.getAttribute("aria-label") || one.labels?.[0]?.innerText || one.innerText || "";
    return [name.trim(), style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0];
}"""


@pytest.fixture(scope="module")
def phone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Phone]:
    with Phone(tmp_path_factory.mktemp("day") / "home") as made:
        made.haste |= {"pairing_session.SETTLE_SECONDS": 0, "pairing_session.FIRST_SECONDS": 0}
        yield made


@pytest.fixture(scope="module")
def andy(phone: Phone) -> Iterator[AndyProcess]:
    with AndyProcess(phone.store.parent.parent, environment=phone.environment) as host:
        yield host


def test_a_first_day_needs_no_key_no_phone_and_no_terminal(visitor: Visit, andy: AndyProcess) -> None:
    """`visitor` came in by what `andy open` does; from here on everything is done in its page."""
    page = visitor.page

    def open_page(name: str) -> None:
        page.get_by_role("navigation", name="Pages", exact=True).get_by_role(
            "link", name=name, exact=True
        ).click()
        page.wait_for_url(f"**/console/{name.lower()}")

    open_page("Chats")
    page.get_by_role("link", name="Main").click()
    page.get_by_label("Write a message").fill("hello")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("article.own").filter(has_text="I'm Andy")).to_be_visible()

    open_page("Groups")
    page.locator("summary", has_text="Register a group").click()
    page.get_by_label("Name").fill("The garden")
    page.get_by_role("button", name="Register", exact=True).click()
    expect(page.get_by_text("The garden is registered")).to_be_visible()

    open_page("Coming")
    page.locator("summary", has_text="New").click()
    page.locator("#new-coming").get_by_label("Group").select_option(label="The garden")
    page.get_by_label("Text").fill("Water the roses")
    page.get_by_label("When").fill("in 3 seconds")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".banner.ok")).to_be_visible()
    open_page("Chats")
    page.get_by_role("link", name="The garden").click()
    expect(page.locator("article.own").filter(has_text="Water the roses")).to_be_visible(timeout=60_000)

    page.get_by_label("Write a message").fill("we need a new hose")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("article:not(.own)").filter(has_text="a new hose")).to_be_visible()
    expect(page.locator(".not-called").get_by_text("not for Andy")).to_be_visible()
    expect(page.locator(".not-called").get_by_text("write @Andy in the message")).to_be_visible()
    page.get_by_label("Write a message").fill("@Andy echo found it")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("article.own").filter(has_text="found it")).to_be_visible()

    open_page("Care")
    page.get_by_role("button", name="Make a backup").click()
    expect(page.get_by_text("is made.")).to_be_visible()
    with page.expect_download() as fetched:
        page.get_by_role("link", name="Download").first.click()
    assert fetched.value.path().stat().st_size > 1_000


class Keyboard:
    """Someone who has no mouse."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def to(self, name: str, *, key: str = "Tab") -> None:
        """Press Tab until what has this name has the focus; whatever has it on the way is seen to."""
        for _ in range(MOST_TABS):
            self.page.keyboard.press(key)
            found, is_seen = self.page.evaluate(FOCUSED)
            assert is_seen or not found, f"the focus on '{found}' cannot be seen"
            if found.startswith(name):
                return
        raise AssertionError(f"Tab does not lead to '{name}' on {self.page.url}")

    def press(self, name: str) -> None:
        self.to(name)
        self.page.keyboard.press("Enter")

    def write(self, name: str, text: str) -> None:
        self.to(name)
        self.page.keyboard.press("Control+A")
        self.page.keyboard.type(text)

    def open(self, name: str) -> None:
        """Open a page by the navigation, which stands before what has the focus: what was just done."""
        is_within = "document.querySelector('main').contains(document.activeElement)"
        key = "Shift+Tab" if self.page.evaluate(is_within) else "Tab"
        while key == "Shift+Tab" and self.page.evaluate(is_within):
            self.page.keyboard.press(key)
        if not self.page.evaluate(FOCUSED)[0].startswith(name):
            self.to(name, key=key)
        self.page.keyboard.press("Enter")
        self.page.wait_for_url(f"**/console/{name.lower()}")
        self.page.keyboard.press("Tab")
        expect(self.page.get_by_role("link", name="Skip to the content")).to_be_focused()
        self.page.keyboard.press("Enter")
        expect(self.page.locator("main")).to_be_focused()


def test_the_keyboard_alone_is_enough(context: BrowserContext, andy: AndyProcess, phone: Phone) -> None:
    page = context.new_page()
    page.set_default_timeout(60_000)
    keys = Keyboard(page)
    page.goto(andy.address)
    keys.write("Token", (andy.home / "data" / "token").read_text())
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/now")

    keys.open("Chats")
    keys.press("Main")
    page.wait_for_url("**/console/chats/main")
    box = page.get_by_label("Write a message")
    expect(box).to_be_focused()
    page.keyboard.type("echo by hand")
    page.keyboard.press("Enter")
    expect(page.locator("article.own").filter(has_text="by hand")).to_be_visible()

    suspend_agent(andy, "main")
    expect(box).to_be_focused()  # it is written in again at once
    page.keyboard.type("echo never")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="At work now")).to_be_visible()
    keys.press("Stop")
    expect(page.get_by_text("it was stopped by hand").first).to_be_visible()

    keys.open("Groups")
    keys.press("Register a group")
    keys.write("Name", "chess")
    keys.press("Register")
    expect(page.get_by_text("chess is registered")).to_be_visible()

    with andy.http() as http:
        asked = {"question": "Which hall shall we take?"}
        assert http.post("/dashboards/main/tools/create_question", json=asked).is_success
        wish = {"group": "main", "text": "Pack the tent", "at": "in 3 hours"}
        assert http.post("/reminders", json=wish).is_success
    keys.open("Board")
    keys.write("Your answer", "The big one")
    keys.press("Send the answer")
    expect(page.get_by_text("The answer is noted.")).to_be_visible()

    keys.open("Coming")
    keys.press("Change")
    page.wait_for_url(lambda address: "edit=" in address)
    keys.write("When", "in 5 hours")
    keys.press("Save")
    expect(page.locator(".banner.ok")).to_be_visible()

    keys.open("Channels")
    keys.press("Show a QR code")
    expect(page.get_by_role("img", name="QR code")).to_be_visible()
    phone.scan()
    expect(page.get_by_text(f"WhatsApp is paired with +{wa.ANDY}.")).to_be_visible()

    keys.open("Care")
    keys.press("Make a backup")
    expect(page.get_by_text("is made.")).to_be_visible()
