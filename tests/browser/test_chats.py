"""Now, the chats and one message, as the owner uses them."""

from __future__ import annotations

from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from orchestrator.web.console.pages.chats import first_of_days, ignored_sequences
from tests.browser.signed_in import Visit, assert_accessible, suspend_agent
from tests.processes.andy import AndyProcess, until

HOSTILE = (
    "<script>window.ran = 1</script>"
    "<img src=http://evil.example/p.png onerror='window.ran = 2'>"
    '<div hx-get="http://evil.example/x" hx-trigger="load">hx</div>'
    '<div hx-get="/console/now" hx-trigger="load" hx-nonce="guess">own</div>'
    "[click](javascript:window.ran=3) ![p](http://evil.example/q.png) "
    "\u202eevil\u202c \u2066x\u2069 https://good.example@evil.example/ {{ 7 * 7 }}"
)


def chat_of(andy: AndyProcess, folder: str) -> str:
    with andy.http() as http:
        http.post("/groups", json={"folder": folder, "name": folder.title()}).raise_for_status()
    return f"{andy.address}/console/chats/{folder}"


def test_a_first_reply_comes_without_key_phone_and_terminal(page: Page):
    page.get_by_role("link", name="Chats").click()
    page.get_by_role("link", name="Main").click()
    page.get_by_label("Write a message").fill("echo hello")
    page.keyboard.press("Enter")
    own = page.locator("article.own").filter(has_text="hello")
    expect(own).to_be_visible()
    asked = page.locator("article:not(.own)").filter(has_text="echo hello")
    expect(asked.get_by_text("answered")).to_be_visible()
    assert_accessible(page)

    asked.get_by_role("link", name="what became of it").click()
    way = page.locator("ol.way")
    for step in (
        "It came in",
        "It waits for its turn",
        "An agent takes it up",
        "It is answered",
        "The reply is sent",
    ):
        expect(way.get_by_text(step, exact=True)).to_be_visible()
    expect(page.locator(".log").last).to_contain_text("turn.answered")
    assert_accessible(page)


def test_a_message_that_was_ignored_says_why_and_how_to_call(page: Page, andy: AndyProcess):
    address = chat_of(andy, "lake")
    andy.say("we need milk", group="lake", wait=0)
    page.goto(address)
    expect(page.locator("article").filter(has_text="we need milk")).to_be_visible()
    andy.say("and bread", group="lake", wait=0)
    quiet = page.locator(".not-called")
    expect(quiet).to_have_count(1)
    expect(quiet).to_contain_text("2 messages not for Andy")
    expect(quiet).to_contain_text("write @Andy in the message")


def test_lines_of_several_days_are_told_apart_and_runs_that_call_nobody_are_counted():
    noon, day = 1_780_000_000_000, 86_400_000
    called = {"state": "answered", "reason": None}
    quiet = {"state": "ignored", "reason": "no trigger"}
    lines = [
        {"seq": 1, "at_ms": noon, **quiet},
        {"seq": 2, "at_ms": noon + 1, **quiet},
        {"seq": 3, "at_ms": noon + day, **called},
        {"seq": 4, "at_ms": noon + 3 * day, **quiet},
    ]
    zone = ZoneInfo("Asia/Seoul")
    assert first_of_days(lines, zone) == {1: "2026-05-29", 3: "2026-05-30", 4: "2026-06-01"}
    assert first_of_days(lines[:2], zone) == {1: "2026-05-29"}
    assert ignored_sequences(lines) == {1: 0, 2: 2, 4: 1}


@pytest.fixture(scope="module")
def long_chat(andy: AndyProcess) -> str:
    """Return the address of a conversation of 120 lines."""
    address = chat_of(andy, "long")
    with andy.http() as http:
        for number in range(1, 121):
            text = f"long line {number} of the talk"
            http.post("/chat", json={"group": "long", "text": text, "wait": 0}).raise_for_status()
    return address


def test_a_found_message_stands_marked_in_its_conversation(page: Page, andy: AndyProcess, long_chat: str):
    page.goto(long_chat)
    page.get_by_role("searchbox", name="Search this group").fill("line 7 of")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="line 7 of").click()
    found = page.locator("article.found")
    expect(found).to_contain_text("long line 7 of the talk")
    expect(found).to_be_in_viewport()
    expect(page.locator("article")).to_have_count(32)
    page.get_by_role("link", name="Newer").click()
    expect(page.locator("article.found")).to_contain_text("long line 32 of the talk")
    assert_accessible(page)


def test_chats_stand_beside_the_one_that_is_read_with_what_is_unread_in_each(page: Page, andy: AndyProcess):
    first, second = chat_of(andy, "left"), chat_of(andy, "right")
    andy.say("for the left", group="left", wait=0)
    andy.say("for the right", group="right", wait=0)
    page.goto(f"{andy.address}/console/chats")
    listed = page.get_by_role("navigation", name="Chats")
    left, right = (listed.get_by_role("link").filter(has_text=name) for name in ("Left", "Right"))
    expect(left.locator(".count")).to_have_text("1 unread")
    expect(left).to_contain_text("for the left")
    expect(page.get_by_text("Choose a conversation.")).to_be_visible()
    assert_accessible(page)

    left.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Left")
    expect(page.get_by_role("article")).to_contain_text("for the left")
    expect(left).to_have_attribute("aria-current", "page")
    expect(left.locator(".count")).to_have_count(0)
    andy.say("more for the right", group="right", wait=0)
    expect(right.locator(".count")).to_have_text("2 unread")  # the list is live on a page of another group
    expect(right).to_contain_text("more for the right")
    assert_accessible(page)

    page.set_viewport_size({"width": 390, "height": 844})
    expect(listed).to_be_hidden()
    settings = page.get_by_role("link", name="Settings of this group")
    expect(settings).to_have_attribute("href", "/console/groups/left")
    page.locator(".back").click()
    expect(left.locator(".count")).to_have_count(0)
    expect(right.locator(".count")).to_have_text("2 unread")
    expect(page.get_by_text("Choose a conversation.")).to_be_hidden()
    page.goto(second)
    page.goto(f"{andy.address}/console/chats")
    expect(listed.locator(".unread").filter(has_text="Right")).to_have_count(0)
    assert first != second


def test_the_handle_of_a_message_and_the_fixed_head_are_easy_to_hit(
    page: Page, andy: AndyProcess, long_chat: str
):
    page.goto(long_chat)
    handle = page.get_by_role("link", name="what became of it").last
    box = handle.bounding_box()
    assert box is not None
    assert min(box["width"], box["height"]) >= 24
    page.evaluate("document.scrollingElement.scrollTop = 900")
    expect(page.get_by_role("heading", level=1, name="Long")).to_be_in_viewport()
    expect(page.get_by_role("searchbox", name="Search this group")).to_be_in_viewport()

    page.get_by_label("you").fill("Mia")
    page.get_by_label("Write a message").fill("who am I?")
    page.keyboard.press("Enter")
    expect(page.get_by_role("article").last).to_contain_text("who am I?")
    expect(page.get_by_label("you")).to_have_value("Mia")


def test_back_leads_to_the_place_that_one_has_left(page: Page, andy: AndyProcess, long_chat: str):
    page.goto(long_chat)
    line = page.locator("article").filter(has_text="long line 90 of")
    way = line.get_by_role("link", name="what became of it")
    way.hover()
    before = page.evaluate("document.scrollingElement.scrollTop")
    way.click()
    expect(page.locator("ol.way")).to_be_visible()
    page.go_back()
    expect(line).to_be_in_viewport()
    assert abs(page.evaluate("document.scrollingElement.scrollTop") - before) < 50


def test_what_is_typed_outlives_a_reload_and_a_session_that_is_over(
    visitor: Visit, andy: AndyProcess, long_chat: str
):
    visitor.allowed.append("401")
    page = visitor.page
    page.goto(long_chat)
    box = page.get_by_label("Write a message")
    box.fill("half a thought")
    page.reload()
    expect(box).to_have_value("half a thought")

    andy.cli("sessions", "revoke", "--all")
    box.press("Enter")
    page.get_by_label("Token").fill((andy.home / "data" / "token").read_text())
    page.get_by_role("button", name="Sign in").click()
    page.goto(long_chat)
    expect(box).to_have_value("half a thought")
    box.press("Enter")
    expect(page.locator("article", has_text="half a thought")).to_be_visible()
    expect(box).to_have_value("")
    page.reload()
    expect(box).to_have_value("")


def test_new_lines_come_by_themselves_and_a_cut_loses_and_doubles_none(
    page: Page, andy: AndyProcess, context: BrowserContext, visitor: Visit
):
    visitor.allowed += ["ERR_INTERNET_DISCONNECTED", "Failed to fetch", "network error"]
    page.goto(chat_of(andy, "cut"))
    expect(page.locator("html")).to_have_attribute("data-live", "yes")
    andy.say("line 1", group="cut", wait=0)
    expect(page.get_by_text("line 1", exact=True)).to_be_visible()

    context.set_offline(True)
    for number in range(2, 12):
        andy.say(f"line {number}", group="cut", wait=0)
    context.set_offline(False)

    expect(page.locator("article")).to_have_count(11)
    shown = page.locator("article .said").all_inner_texts()
    assert [one.strip() for one in shown] == [f"line {number}" for number in range(1, 12)]


def test_what_could_not_be_fetched_while_the_news_came_is_fetched_again(
    page: Page, andy: AndyProcess, visitor: Visit
):
    visitor.allowed += ["ERR_FAILED", "Failed to fetch"]
    page.goto(chat_of(andy, "lost"))
    expect(page.locator("html")).to_have_attribute("data-live", "yes")
    failed: list[str] = []

    def fail(route: Route) -> None:
        failed.append(route.request.url)
        route.abort()

    page.route("**part=*", fail)
    andy.until_settled(andy.say("line 1", group="lost", wait=0)["id"])
    until(lambda: page.wait_for_timeout(50) or failed, what="the news has come")
    page.unroute("**part=*")

    expect(page.get_by_text("line 1", exact=True)).to_be_visible()


def test_a_text_of_a_chat_runs_nothing_and_fetches_nothing(page: Page, andy: AndyProcess, visitor: Visit):
    address = chat_of(andy, "bad")
    with andy.http() as http:
        body = {"group": "bad", "text": HOSTILE, "sender": HOSTILE[:80], "wait": 0}
        http.post("/chat", json=body).raise_for_status()
        http.post("/groups/bad/say", json={"text": HOSTILE}).raise_for_status()
    until(lambda: andy.rows("SELECT 1 FROM messages WHERE is_bot_message = 1 AND content LIKE '%evil%'"))
    before = len(visitor.requests)
    for where in (address, f"{andy.address}/console/chats"):
        page.goto(where)
        expect(page.locator("html")).to_have_attribute("data-live", "yes")
        expect(page.locator("main script, main img, main [hx-get*=evil], main iframe")).to_have_count(0)
        assert page.evaluate("window.ran") is None
        assert_accessible(page)
    page.goto(address)
    expect(page.get_by_text("{{ 7 * 7 }}").first).to_be_visible()
    assert all(
        link.startswith("http")
        for link in page.eval_on_selector_all(".said a", "all => all.map(a => a.href)")
    )
    assert not [one for one in visitor.requests[before:] if "evil" in one]
    # What only a store that was written by somebody else could hold is not taken for a page's own either.
    page.evaluate(
        """() => {
            const box = document.createElement("div");
            box.innerHTML = '<div id="planted" hx-get="/console/chats" hx-trigger="load"></div>';
            document.querySelector("main").append(box);
            htmx.process(box);
        }"""
    )
    visitor.allowed.append("hx-csp")
    assert page.evaluate("document.getElementById('planted').hasAttribute('hx-get')") is False


def test_a_line_without_end_does_not_break_the_page(page: Page, andy: AndyProcess):
    address = chat_of(andy, "endless")
    text = "x" * 60_000
    with andy.http() as http:
        sent = http.post("/chat", json={"group": "endless", "text": text, "wait": 0})
    assert sent.status_code in (200, 202), sent.text
    page.goto(address)
    expect(page.get_by_text("of 60,000 characters")).to_be_visible()
    assert_accessible(page)
    page.get_by_role("link", name="Show all").click()
    expect(page.locator(".said").first).to_contain_text("x" * 5_000)
    assert_accessible(page)


def test_the_owner_speaks_as_andy(page: Page, andy: AndyProcess):
    page.goto(chat_of(andy, "speech"))
    page.get_by_label("Speak as").select_option("As Andy")
    page.get_by_label("Write a message").fill("Dinner is at *seven*.")
    page.get_by_role("button", name="Send").click()
    own = page.locator("article.own")
    expect(own.locator("strong").nth(1)).to_have_text("seven")


def test_what_cannot_be_sent_is_told_and_stays_in_the_box(page: Page, andy: AndyProcess, visitor: Visit):
    visitor.allowed.append("422")
    visitor.allowed.append("400")
    page.goto(chat_of(andy, "empty"))
    page.get_by_label("Write a message").fill("  ")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_be_visible()
    assert (
        andy.rows("SELECT 1 FROM messages m JOIN chats c ON c.jid = m.chat_jid WHERE c.name = 'Empty'") == []
    )


def test_a_file_goes_in_and_comes_out_again(page: Page, andy: AndyProcess, tmp_path: Path):
    note = tmp_path / "shopping list.txt"
    note.write_text("milk")
    page.goto(chat_of(andy, "files"))
    page.get_by_label("Write a message").fill("here it is")
    page.get_by_label("File").set_input_files(note)
    page.get_by_role("button", name="Send").click()
    link = page.get_by_role("link", name="Download")
    expect(link).to_be_visible()
    with page.expect_download() as downloading:
        link.click()
    assert Path(downloading.value.path()).read_text() == "milk"
    assert (andy.home / "groups" / "files" / "attachments" / "shopping_list.txt").read_text() == "milk"


@pytest.mark.parametrize(
    "path", ["/chats/nobody", "/chats/main/messages/99999999", "/chats/main/files/x", "/chats?before=x"]
)
def test_what_is_not_there_is_told_in_words(visitor: Visit, path: str):
    visitor.allowed += ["404", "400"]
    visitor.page.goto(f"{visitor.address}/console{path}")
    expect(visitor.page.locator("main h1")).to_be_visible()
    assert "Traceback" not in visitor.page.content()


def test_the_lights_of_now_have_their_fixes(page: Page):
    expect(page.get_by_role("heading", name="Containers")).to_be_visible()
    expect(page.get_by_text("nothing isolates them")).to_be_visible()
    page.locator("summary", has_text="Works:").click()
    expect(page.get_by_text("agents answer without a model")).to_be_visible()
    expect(page.get_by_text("There is no backup yet.")).to_be_visible()
    assert_accessible(page)


def test_a_turn_is_stopped_and_asked_again(page: Page, andy: AndyProcess):
    address = chat_of(andy, "stuck")
    andy.say("@Andy echo one", group="stuck")
    suspend_agent(andy, "stuck")
    page.goto(address)
    andy.say("@Andy echo two", group="stuck", wait=0)
    asked = page.locator("article:not(.own)").filter(has_text="echo two")
    expect(asked.get_by_text("Andy is at work on it")).to_be_visible()
    expect(page.get_by_role("heading", name="At work now")).to_be_visible()
    assert_accessible(page)
    page.get_by_label("At work now").get_by_role("button", name="Stop").click()
    expect(asked.get_by_text("it was stopped by hand")).to_be_visible()

    asked.get_by_role("button", name="Try again").click()
    expect(asked.get_by_text("answered", exact=True)).to_be_visible()
    expect(page.locator("article.own").filter(has_text="two")).to_be_visible()
