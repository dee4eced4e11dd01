"""The owner sees what each agent reaches, what was refused, and whether the audit is as it was written."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing

from playwright.sync_api import expect

from tests.browser.conftest import PATIENCE_MS
from tests.browser.signed_in import Visit, assert_accessible
from tests.processes.andy import AndyProcess, until


def command(andy: AndyProcess, *words: str) -> None:
    done = andy.cli(*words)
    assert done.returncode == 0, done.stderr


def test_what_agents_reach_and_what_was_refused_is_shown(visitor: Visit, andy: AndyProcess) -> None:
    wanted = {
        "egress": {"allowlist": ["pypi.org:443"]},
        "web_search": False,
        "mounts": [{"path": "/srv/photos", "writable": True}],
    }
    command(andy, "groups", "register", "family", "--name", "Family")
    command(andy, "groups", "config", "family", "--set", json.dumps(wanted))
    command(
        andy,
        "mcp",
        "add",
        "notes",
        "https://notes.example/mcp",
        "--group",
        "family",
        "--secret-env",
        "NOTES_TOKEN",
    )
    program = andy.home / "mcp" / "dice"
    program.mkdir(parents=True)
    (program / "server.py").touch()
    command(andy, "mcp", "add", "dice", "--command", "python3 server.py")
    shutil.rmtree(program)
    with andy.http(Host="evil.example") as stranger:
        assert stranger.get("/status").status_code == 403
    until(
        lambda: andy.rows("SELECT 1 FROM audit WHERE kind = 'http.refused'"), what="the refusal in the audit"
    )
    assert andy.say("@Andy remind me tomorrow at 9am to pack", group="family")["outcome"] == "answered"

    page = visitor.page
    page.goto(f"{andy.address}/console/safety")
    family = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="family"))
    expect(family).to_contain_text("pypi.org:443")
    expect(family).to_contain_text("/srv/photos is not shown")
    expect(family).to_contain_text("off")
    expect(family).to_contain_text("notes")
    main = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="main"))
    expect(main).to_contain_text("closed")
    expect(page.get_by_role("row").filter(has_text="https://notes.example/mcp")).to_contain_text("not set")
    dice = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="dice"))
    expect(dice).to_contain_text("python3 server.py")
    expect(dice).to_contain_text("a program in mcp/dice, read-only")
    expect(dice).to_contain_text("folder missing")
    expect(page.get_by_role("row").filter(has_text="http.refused")).to_be_visible()
    assert_accessible(page)

    page.get_by_role("link", name="All commands").click()
    expect(page.get_by_role("cell", name="done", exact=True).first).to_be_visible()
    assert_accessible(page)


def test_what_is_refused_is_seen_as_it_happens(visitor: Visit, andy: AndyProcess) -> None:
    page = visitor.page
    page.goto(f"{andy.address}/console/safety/audit?refused=yes")
    expect(page.locator("html")).to_have_attribute("data-live", "yes")
    with andy.http(Origin="https://evil.example") as stranger:
        assert stranger.get("/status").status_code == 403
    expect(page.get_by_role("row").filter(has_text="bad_origin")).to_be_visible(timeout=PATIENCE_MS)

    page.goto(f"{andy.address}/console/safety")
    expect(page.locator("html")).to_have_attribute("data-live", "yes")
    asked = page.get_by_role("table", name="Commands of containers").locator("tbody tr")
    before = asked.count()
    andy.say("@Andy remind me tomorrow at 10am to sing")
    expect(asked).to_have_count(before + 1, timeout=PATIENCE_MS)


def test_the_audit_is_paged_and_its_chain_is_checked(visitor: Visit, andy: AndyProcess) -> None:
    with andy.http() as http:
        for _ in range(26):
            assert http.post("/groups", json={"folder": "chess", "name": "Chess"}).is_success
            assert http.delete("/groups/chess").is_success
    page = visitor.page
    page.goto(f"{andy.address}/console/safety/audit")
    expect(page.get_by_text("The chain holds")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(50)
    assert_accessible(page)
    page.get_by_role("link", name="Older").click()
    (newest,) = andy.rows("SELECT max(id) AS last FROM audit")
    expect(page.get_by_role("row").nth(1).locator("code")).to_contain_text(f"{newest['last'] - 50} group.")
    page.get_by_role("link", name="Newer").click()
    expect(page.get_by_text("The chain holds")).to_be_visible()

    with closing(sqlite3.connect(andy.home / "store" / "messages.db")) as database, database:
        (guard,) = database.execute("SELECT sql FROM sqlite_master WHERE name = 'audit_is_not_changed'")
        database.execute("DROP TRIGGER audit_is_not_changed")
        database.execute("UPDATE audit SET detail = '{}' WHERE id = 3")
        database.execute(guard[0])
    page.get_by_role("link", name="Read all of them again").click()
    expect(page.get_by_text("row 3 was changed")).to_be_visible()
    assert_accessible(page)
