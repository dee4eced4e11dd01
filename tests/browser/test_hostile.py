"""Texts that people in chats and agents in containers choose do nothing on any page of the console."""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

import pytest

pytest.importorskip("tests.support.whatsapp_library", exc_type=ImportError)

from neonize.proto.Neonize_pb2 import GroupInfo, GroupName
from neonize.proto.waE2E import WAWebProtobufsE2E_pb2 as e2e
from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import Message
from playwright.sync_api import Page, expect

from orchestrator.context.context_manager import ContextManager
from orchestrator.context.tokens import EstimatingCounter
from tests.browser.signed_in import WIDTHS, Visit, assert_nothing_sticks_out
from tests.doubles import whatsapp_events as wa
from tests.doubles.whatsapp_phone import Phone
from tests.processes.andy import AndyProcess, until

FAMILY = f"{wa.FAMILY}@g.us"
MOST_ALIKE = 2
"""Pages that are looked at of those whose addresses differ in numbers, groups and values alone."""
DOWNLOADS = ("/files/", "/care/backups/", "/care/download")
TURNING = "\u202e"


def hostile(field: str) -> str:
    """What somebody would write into a field to have the owner's browser do something."""
    return (
        f"<script>ran='{field}'</script><img src=//evil.example/{field} onerror=ran='{field}'>"
        f"<b hx-get=//evil.example hx-trigger=load>\"' onclick=ran=1 '[a](javascript:ran=2)"
        f" http://evil.example {TURNING}{field}\u202c\u2066z\u2069"
    )


@pytest.fixture(scope="module")
def phone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Phone]:
    with Phone(tmp_path_factory.mktemp("hostile") / "home") as made:
        subjects = {wa.FAMILY: hostile("subject"), "777": hostile("strangers")}
        made.groups = [
            GroupInfo(JID=wa.group(user), GroupName=GroupName(Name=subject))
            for user, subject in subjects.items()
        ]
        made.files[b"k"] = b"x"
        made.pair()
        yield made


@pytest.fixture(scope="module")
def andy(phone: Phone) -> Iterator[AndyProcess]:
    """A host that has met every hostile text: from WhatsApp, over HTTP, and from an agent's files."""
    with AndyProcess(phone.store.parent.parent, environment=phone.environment) as host:
        with host.http() as http:
            family = {
                "folder": "family",
                "jid": FAMILY,
                "name": hostile("name"),
                "trigger": hostile("t")[:64].strip(),
            }
            made = http.post("/groups", json=family)
            assert made.status_code == 201, made.text
            http.get(f"/{quote(hostile('path'))}", headers={"Host": "evil.example"})
            for tool, given in board_texts().items():
                done = http.post(f"/dashboards/family/tools/{tool}", json=given)
                assert done.status_code == 200, done.text
            http.post("/reminders", json={"group": "family", "text": hostile("reminder"), "at": "in 3 hours"})
            http.post("/groups/family/say", json={"text": hostile("andy")}).raise_for_status()
        host.cli("tasks", "add", "family", hostile("task"), "--cron", "0 9 * * *")
        for number, event in enumerate(chat_messages()):
            phone.write(wa.heard(event, message_id=f"3A{number}", name=hostile("sender")))
        until(
            lambda: len(host.rows("SELECT 1 FROM messages WHERE is_bot_message = 0")) >= len(chat_messages()),
            what="all messages in the store",
        )
        fill_memory(host)
        yield host


def board_texts() -> dict[str, dict[str, object]]:
    return {
        "create_task": {"title": hostile("board"), "context": hostile("context")},
        "create_question": {"question": hostile("question")},
        "schedule_notification": {"message": hostile("notification"), "scheduled_at": "in 4 hours"},
    }


def chat_messages() -> list[Message]:
    """One of each kind of message that brings texts of somebody's choice."""
    option = e2e.PollCreationMessage.Option(optionName=hostile("option"))
    document = e2e.DocumentMessage(
        mediaKey=b"k", directPath="/v", mimetype=hostile("mime"), fileLength=1, fileName=hostile("file")
    )
    return [
        Message(conversation=f"@Andy {hostile('text')}"),
        wa.text(hostile("reply"), stanzaID="3A0", participant=f"{wa.JANE}@s.whatsapp.net",
                quotedMessage=Message(conversation=hostile("quoted"))),
        Message(pollCreationMessage=e2e.PollCreationMessage(name=hostile("poll"), options=[option])),
        Message(contactMessage=e2e.ContactMessage(displayName=hostile("contact"), vcard="TEL:1")),
        Message(locationMessage=e2e.LocationMessage(name=hostile("place"), address=hostile("address"))),
        Message(documentMessage=document),
        Message(conversation="m" * 2**20),
        wa.a_reaction("3A0", hostile("reaction"), chat=wa.group(), sender=wa.jid(wa.JANE)),
    ]  # fmt: skip


def fill_memory(host: AndyProcess) -> None:
    """Write what a hostile agent writes: its notes, its plans, its summary."""
    host.say(f"remember for next time: {hostile('notice')}")
    for folder in ("family", "main"):
        manager = ContextManager.of(host.home / "data" / "context", folder, counter=EstimatingCounter())
        until(lambda kept=manager: kept.load(now_ms=1).context.revision, what="the conversation is kept")
        summary = manager.load(now_ms=1).context.conversation.running_summary
        manager.put_summary(hostile("summary"), instead_of=summary, now_ms=1)
        manager.create_plan(hostile("plan"), objective=hostile("objective"), tasks=["x" * 190], now_ms=1)
        manager.record_decision(hostile("decision"), now_ms=1)
        manager.snapshot(now_ms=1)
    (host.home / "groups" / "family" / "CLAUDE.md").write_text(hostile("memory") + "\n" + "n" * 9_000)


LOOK = """() => {
    const main = document.querySelector("main");
    const walker = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
    const turning = [];
    while (walker.nextNode()) {
        const inField = walker.currentNode.parentElement.closest("textarea, option");
        if (!inField && /[\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]/.test(walker.currentNode.data))
            turning.push(walker.currentNode.data.slice(0, 80));
    }
    const elements = [...main.querySelectorAll("*")];
    const attributes = elements.flatMap((one) => [...one.attributes].map((a) => a.name));
    const bad = "script, img, iframe, object, embed, [hx-get*='//evil'], [src*='//evil']";
    return {
        ran: window.ran ?? null,
        foreign: main.querySelectorAll(bad).length,
        handlers: attributes.filter((name) => name.startsWith("on")),
        links: [...main.querySelectorAll("a")].map((a) => a.href).filter((to) => !/^https?:/.test(to)),
        turning,
    };
}"""
NOTHING = {"ran": None, "foreign": 0, "handlers": [], "links": [], "turning": []}


def assert_harmless(page: Page) -> None:
    assert page.evaluate(LOOK) == NOTHING, page.url
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert_nothing_sticks_out(page)


def kind_of(address: str) -> str:
    """Return an address without what differs between pages of one kind."""
    path, _, query = address.partition("?")
    names = sorted(pair.partition("=")[0] for pair in query.split("&"))
    return f"{re.sub(r'(?<=/)(?:main|family|[^/]*[0-9][^/]*)(?=/|$)', '*', path)}?{'&'.join(names)}"


def test_no_page_runs_or_fetches_what_a_text_says(visitor: Visit, andy: AndyProcess) -> None:
    page = visitor.page
    visitor.allowed += ["404", "400"]
    seen: set[str] = set()
    shown: set[str] = set()
    alike: Counter[str] = Counter()
    waiting = deque(["/console/now", *(f"/console/{name}?group=family" for name in ("board", "mind", "log"))])
    while waiting:
        path = waiting.popleft()
        alike[kind_of(path)] += 1
        if alike[kind_of(path)] > MOST_ALIKE:
            continue
        page.goto(andy.address + path)
        seen.add(path)
        assert_harmless(page)
        text = page.locator("main").inner_text()
        shown |= {field for field in FIELDS if f"ran='{field}'" in text}
        for link in page.eval_on_selector_all("a[href]", "all => all.map(a => a.getAttribute('href'))"):
            to = urlsplit(link)
            address = to.path + (f"?{to.query}" if to.query else "")
            if to.path.startswith("/console/") and not any(one in to.path for one in DOWNLOADS):
                waiting.extend({address} - seen - set(waiting))
    assert sorted(FIELDS - shown) == [], f"each text is seen on one of {sorted(seen)}"
    assert len(seen) > 30, "it goes everywhere"


FIELDS = {
    *("strangers", "name", "board", "question", "notification", "reminder", "andy", "task", "text", "sender"),
    *("reply", "poll", "option", "contact", "place", "address", "notice", "summary", "objective", "plan"),
    "decision",
}
"""What is shown as it was written: files, refused paths and quotes are renamed, encoded or left out."""


@pytest.mark.parametrize(
    "path",
    ["/chats/{}", "/groups/{}", "/mind?group={}", "/log?group={}", "/log/search?q={}", "/care/backups/{}",
     "/coming?group={}", "/safety/audit?group={}", "/board?group={}", "/groups?name={}&jid={}", "/{}"],
)  # fmt: skip
def test_an_address_is_no_text_of_the_page_either(visitor: Visit, path: str) -> None:
    visitor.allowed += ["404", "400", "503"]
    visitor.page.goto(f"{visitor.address}/console{path.replace('{}', quote(hostile('address'), safe=''))}")
    assert_harmless(visitor.page)


def test_what_comes_while_a_page_is_open_does_nothing_either(
    visitor: Visit, andy: AndyProcess, phone: Phone
) -> None:
    page = visitor.page
    page.goto(f"{andy.address}/console/chats/family")
    expect(page.locator("html")).to_have_attribute("data-live", "yes")
    phone.write(wa.heard(hostile("late"), message_id="3ALATE", name=hostile("stranger")))
    expect(page.locator("#part-lines").get_by_text("ran='late'")).to_be_visible()
    assert_harmless(page)
    stored = andy.rows("SELECT content FROM messages WHERE content LIKE '%late%'")
    assert json.dumps(hostile("late"))[1:40] in json.dumps(stored[0]["content"]), "it is kept as it was said"
