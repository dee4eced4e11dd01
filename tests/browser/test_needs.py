"""The page Now begins with the things that wait for the owner; each page counts them."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from playwright.sync_api import Page, expect

from tests.browser.signed_in import Visit, assert_accessible
from tests.processes.andy import AndyProcess

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def andy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AndyProcess]:
    """A host that asks nothing about its tasks by itself."""
    environment = {"AGENTS_WORKER_ENABLED": "false"}
    with AndyProcess(tmp_path_factory.mktemp("needs") / "home", environment=environment) as host:
        yield host


def write(andy: AndyProcess, sql: str, *values: object) -> None:
    with closing(sqlite3.connect(andy.home / "store" / "messages.db", isolation_level=None)) as store:
        store.execute(sql, values)


def use(andy: AndyProcess, tool: str, **arguments: str) -> None:
    with andy.http() as http:
        answer = http.post(f"/dashboards/main/tools/{tool}", json=arguments)
    assert answer.json()["ok"], answer.text


def counted(page: Page, number: int) -> None:
    """Expect a number beside Now in the navigation and in the tab's title; none where it is 0."""
    expect(page).to_have_title(re.compile(rf"^\({number}\) " if number else r"^[^(]"))
    badge = page.get_by_role("navigation", name="Pages").locator(".count")
    expect(badge).to_contain_text(str(number)) if number else expect(badge).to_have_count(0)


def test_what_waits_is_first_on_now_is_counted_everywhere_and_is_done_in_place(
    visitor: Visit, andy: AndyProcess
) -> None:
    page, now_ms = visitor.page, int(time.time() * 1000)
    page.goto(f"{andy.address}/console/costs")
    counted(page, 0)
    page.goto(f"{andy.address}/console/now")

    use(andy, "create_task", title="Pay the rent", deadline="2025-02-10")
    use(andy, "create_question", question="Which hall shall we take?")
    counted(page, 2)  # the page that is open is told
    write(
        andy,
        "INSERT INTO approvals (group_folder, kind, subject, call_hash, detail, run_id, state, asked_ms,"
        " expires_ms) VALUES ('main', 'egress', 'paste.example:443', '', '', 'run-1', 'waiting', ?, ?)",
        now_ms,
        now_ms + HOUR_MS,
    )
    write(
        andy,
        "INSERT INTO budgets (group_folder, is_background, period, unit, amount, set_ms)"
        " VALUES ('main', 1, 'day', 'tokens', 0, ?)",
        now_ms,
    )
    (andy.home / "backups").mkdir(exist_ok=True)
    page.goto(f"{andy.address}/console/chats")
    counted(page, 4)
    page.get_by_role("link", name="Now 4").click()

    needs = page.get_by_role("region", name="Needs you")
    expect(needs.get_by_role("listitem")).to_have_count(4)
    expect(needs.get_by_text("has spent its budget for the day")).to_be_visible()
    expect(needs.get_by_role("link", name="Raise")).to_be_visible()
    assert_accessible(page)
    assert "needs" in page.locator("main section").first.get_attribute("class")

    asked = needs.get_by_role("listitem").filter(has_text="paste.example")
    asked.get_by_role("button", name="Refuse").click()
    counted(page, 3)
    assert page.url.endswith("/console/now"), "one stays where the rest waits"
    needs.get_by_label("Your answer").fill("The big one")
    needs.get_by_role("button", name="Send the answer").click()
    counted(page, 2)
    assert [one["answer"] for one in andy.rows("SELECT answer FROM questions")] == ["The big one"]
    late = needs.get_by_role("listitem").filter(has_text="Pay the rent")
    late.get_by_role("button", name="Complete").click()
    counted(page, 1)
    write(andy, "DELETE FROM budgets")
    page.reload()
    counted(page, 0)
    expect(page.get_by_text("Needs you")).to_have_count(0)
    page.locator("summary", has_text="works:").click()
    expect(page.locator("#works dl")).to_contain_text("Disk")


def test_what_failed_and_what_was_not_sent_stands_with_its_words_and_is_tried_again_in_place(
    visitor: Visit, andy: AndyProcess
) -> None:
    page, now_ms = visitor.page, int(time.time() * 1000)
    with andy.http() as http:
        http.post("/groups", json={"folder": "trip", "name": "Trip to Seoul"}).raise_for_status()
    (chat,) = andy.rows("SELECT jid FROM registered_groups WHERE folder = 'trip'")
    write(
        andy,
        "INSERT INTO turns (id, group_folder, chat_jid, kind, first_seq, last_seq, attempt, state, reason,"
        " queued_ms, not_before_ms, started_ms, ended_ms)"
        " VALUES (9000, 'trip', ?, 'chat', 9000, 9000, 5, 'failed', 'the model did not answer', ?, ?, ?, ?)",
        *(chat["jid"], now_ms, now_ms, now_ms, now_ms),
    )
    write(
        andy,
        "INSERT INTO messages (seq, chat_jid, id, sender, sender_name, content, sent_ms, received_ms,"
        " is_request, turn_id, group_folder)"
        " VALUES (9000, ?, 'm1', 'mia', 'Mia', '@Andy when does the train leave?', ?, ?, 1, 9000, 'trip')",
        *(chat["jid"], now_ms, now_ms),
    )
    write(
        andy,
        "INSERT INTO outbox (group_folder, chat_jid, text, dedupe_key, state, message_id, created_ms,"
        " next_attempt_ms) VALUES ('trip', ?, 'The tickets are here.', 'k', 'dead', 'm2', ?, ?)",
        *(chat["jid"], now_ms, now_ms),
    )
    page.goto(f"{andy.address}/console/now")
    failed = page.get_by_role("region", name="Needs you").get_by_role("listitem")
    asked = failed.filter(has_text="Trip to Seoul got no answer")
    expect(asked).to_contain_text("@Andy when does the train leave?")
    expect(asked).to_contain_text("the model did not answer")
    unsent = failed.filter(has_text="could not be sent")
    expect(unsent).to_contain_text("The tickets are here.")
    assert_accessible(page)

    unsent.get_by_role("button", name="Send again").click()
    expect(page.get_by_text("The message is on its way again.")).to_be_visible()
    expect(failed.filter(has_text="The tickets are here.")).to_have_count(0)
    asked.get_by_role("link", name="Trip to Seoul").click()
    expect(page.locator("article.found")).to_contain_text("when does the train leave?")
    page.go_back()
    asked.get_by_role("button", name="Put aside").click()
    expect(failed.filter(has_text="when does the train leave?")).to_have_count(0)
    assert page.url.endswith("/console/now"), "one stays where the rest waits"
    (turn,) = andy.rows("SELECT state FROM turns WHERE id = 9000")
    assert turn["state"] == "failed", "nothing is tried again"
    write(andy, "DELETE FROM router_state WHERE key LIKE 'put_aside:%'")
    page.reload()
    asked.get_by_role("button", name="Try again").click()
    expect(failed.filter(has_text="when does the train leave?")).to_have_count(0)


def test_messengers_that_are_not_on_are_listed_with_what_adds_them_and_local_chats_are_counted(
    visitor: Visit, andy: AndyProcess
) -> None:
    page = visitor.page
    andy.say("echo hello")
    page.goto(f"{andy.address}/console/channels")
    others = page.locator("section", has=page.get_by_role("heading", name="Other messengers"))
    for name in ("Telegram", "Matrix"):
        row = others.get_by_role("listitem").filter(has_text=name)
        row.locator("summary", has_text=f"Add {name}").click()
        expect(row.get_by_role("button", name="Log in")).to_be_visible()
    local = page.locator("section", has=page.get_by_role("heading", name="Chats of this machine"))
    chats = len(andy.rows("SELECT jid FROM group_chats"))
    expect(local).to_contain_text(f"{chats} seen, {chats} of them with an agent")
    assert_accessible(page)


def test_a_chat_that_calls_is_let_in_or_turned_away_in_place_and_main_may_do_it_too(
    visitor: Visit, andy: AndyProcess
) -> None:
    page, now_ms = visitor.page, int(time.time() * 1000)
    for number, words in enumerate(["@Andy may we come in?", "@Andy <b>hi</b>", "@Andy buy now"], start=1):
        jid = f"tg:-{number}"
        write(andy, "INSERT INTO chats (jid, name, is_group) VALUES (?, ?, 1)", jid, f"Choir {number}")
        write(
            andy,
            "INSERT INTO access_requests (chat_jid, chat_name, channel, is_direct, people, sender,"
            " sender_name, is_owner, message_id, words, state, asked_ms)"
            " VALUES (?, ?, 'telegram', 0, 12, 'tg:5', 'Ann', 0, '1', ?, 'waiting', ?)",
            jid,
            f"Choir {number}",
            words,
            now_ms,
        )
    page.goto(f"{andy.address}/console/now")
    counted(page, 3)
    needs = page.get_by_role("region", name="Needs you")
    expect(needs).to_contain_text("Choir 1 calls Andy and has no group. telegram · 12 people")
    expect(needs).to_contain_text("@Andy <b>hi</b>")
    assert_accessible(page)
    needs.get_by_role("listitem").filter(has_text="Choir 1").get_by_role("button", name="Register").click()
    counted(page, 2)
    assert page.url.endswith("/console/now"), "one stays where the rest waits"
    assert "choir-1" in [one["folder"] for one in andy.listed("groups", "list")]
    assert andy.say("block 3")["reply"] == "Blocked: `Choir 3` is not asked about again."
    counted(page, 1)  # the page that is open is told
    page.goto(f"{andy.address}/console/groups")
    assert_accessible(page)
    page.locator("#seen").get_by_role("button", name="Ignore").click()
    expect(page.locator("#seen .badge")).to_have_text(["ignored", "blocked"])
    counted(page, 0)
