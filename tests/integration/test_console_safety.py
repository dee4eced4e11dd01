"""Safety in the console: what was refused is allowed where it stands, and nothing misleads."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.domain.values import Folder, RunId
from orchestrator.groups import changes
from orchestrator.home.directory import Home
from orchestrator.proxies import mcp_logins
from orchestrator.proxies.mcp_logins import McpLogin
from orchestrator.store import audit
from orchestrator.store.access import approvals
from orchestrator.store.access.approvals import ApprovalKind, ApprovalRequest
from orchestrator.store.database import Database, Tx
from orchestrator.store.groups import groups
from orchestrator.store.reader import read_once
from orchestrator.store.settings import mcp_servers
from orchestrator.store.settings.mcp_servers import McpServer
from orchestrator.web.console import marks
from tests.support.console_browser import console_browser, send_form

PLACE = "shop.example:443"


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with console_browser(tmp_path / "home") as made:
        await refuse(tmp_path, "family", PLACE)
        yield made


async def refuse(tmp_path: Path, folder: str, target: str, *, egress: object = None) -> int:
    """Have a place be refused to a group, whose network is a list; return the row of the audit."""
    database = await Database.open(Home(tmp_path / "home").database)
    listed = {"allowlist": ["example.org:443"]} if egress is None else egress
    async with database.transaction() as tx:
        await changes.configure(tx, folder, {"egress": listed}, by="a test", now_ms=1)
        detail = {"target": target, "reason": "it is not on the list of this group", "unlogged": 2}
        event = audit.AuditEvent(at_ms=1, kind="egress.refused", folder=Folder(folder), detail=detail)
        await audit.append(tx, event)
        (row,) = await audit.newest(tx, limit=1)
    await database.close()
    return int(row["id"])


def targets(tmp_path: Path, folder: str) -> Any:
    async def read(tx: Tx) -> Any:
        return (await groups.known(tx, folder)).container_config.get("egress")

    return read_once(Home(tmp_path / "home").database, read)


def part(page: str, name: str) -> str:
    return page.partition(f'id="part-{name}"')[2].partition("<section")[0]


async def test_a_refused_place_is_allowed_for_a_while_for_the_group_or_never(browser, tmp_path):
    page = (await browser.get("/console/safety")).text
    row = re.search(rf"<li>(?:(?!<li>).)*{PLACE}.*?</li>", part(page, "refused"), re.DOTALL)
    assert row
    assert "3 times" in row[0]
    number = re.search(r'name="row" value="(\d+)"', row[0])
    assert number

    page = await send_form(browser, "/safety/refused", of="/safety", row=number[1], verdict="once")
    assert "allowed until" in part(page.text, "approvals")
    assert f"Allowed for Family for 15 minutes: {PLACE}" in page.text
    assert PLACE not in part(page.text, "refused"), "what is allowed now stands as that alone"
    page = await send_form(browser, "/safety/refused", of="/safety", row=number[1], verdict="never")
    assert "never allowed" in part(page.text, "approvals")
    assert "allowed until" not in part(page.text, "approvals"), "the last word counts"
    assert PLACE not in part(page.text, "refused"), "it is not told again"
    page = await send_form(browser, "/safety/refused", of="/safety", row=number[1], verdict="group")
    assert "never allowed" not in part(page.text, "approvals")
    assert targets(tmp_path, "family") == {"allowlist": ["example.org:443", PLACE]}
    assert PLACE not in part(page.text, "refused")
    history = (await browser.get("/console/groups/family")).text
    assert "Show or undo" in history.partition('id="changes"')[2]


async def test_only_what_was_refused_can_be_allowed(browser, tmp_path):
    other = await refuse(tmp_path, "work", "odd host:1")
    for row in (str(other), "1", "0", "x", "9" * 40):
        for verdict in ("once", "group", "never", "always"):
            page = await send_form(browser, "/safety/refused", of="/safety", row=row, verdict=verdict)
            assert page.status_code == 422, (row, verdict)
    assert targets(tmp_path, "work") == {"allowlist": ["example.org:443"]}


async def test_only_what_was_in_force_is_told_as_taken_back(browser, tmp_path):
    database = await Database.open(Home(tmp_path / "home").database)
    async with database.transaction() as tx:
        request = ApprovalRequest(
            folder=Folder("family"),
            kind=ApprovalKind.EGRESS,
            subject="a.example:443",
            run_id=RunId("r1"),
            turn_id=None,
        )
        now_ms = time.time_ns() // 1_000_000
        asked = await approvals.add(tx, request, now_ms=now_ms, expires_ms=now_ms + 600_000)
    await database.close()
    form = {"of": "/safety", "request": str(asked.id), "back": "yes"}
    page = await send_form(browser, "/safety/approvals", decision="allow", **form)
    assert page.status_code == 200, page.text
    assert "a.example:443" in part(page.text, "approvals")
    assert "Taken back" not in page.text
    page = await send_form(browser, "/safety/approvals", decision="refuse", **form)
    assert "Taken back from Family: a.example:443" in page.text


async def test_a_closed_network_is_opened_for_the_group_alone(browser, tmp_path):
    number = await refuse(tmp_path, "work", "api.example:443", egress="none")
    page = (await browser.get("/console/safety?group=work")).text
    assert "Allow for 15 minutes" not in part(page, "refused")
    assert PLACE not in part(page, "refused"), "that was refused to another group"
    once = await send_form(browser, "/safety/refused", of="/safety", row=str(number), verdict="once")
    assert once.status_code == 422
    assert "Open its network for this host" in part(page, "refused")
    done = await send_form(browser, "/safety/refused", of="/safety", row=str(number), verdict="group")
    assert targets(tmp_path, "work") == {"allowlist": ["api.example:443"]}
    assert "Its network is a list of hosts." in done.text
    assert re.search(r'action="/console/groups/work/changes/\d+/undo"', done.text), "and can be undone there"


async def test_whatever_could_mislead_in_a_request_is_written_out(browser, tmp_path):
    detail = '{"to": "a@b.example",\n "body": "' + "pay \u202e\n" * 50 + '"}'
    database = await Database.open(Home(tmp_path / "home").database)
    async with database.transaction() as tx:
        for kind, subject, text in (
            (ApprovalKind.EGRESS, "xn--80ak6aa92e.com:443", ""),
            (ApprovalKind.MCP, "mail/send", detail),
        ):
            request = ApprovalRequest(
                folder=Folder("family"),
                kind=kind,
                subject=subject,
                detail=text,
                call_hash=kind.value,
                run_id=RunId("r"),
                turn_id=None,
            )
            await approvals.add(tx, request, now_ms=1, expires_ms=1 << 50)
    await database.close()
    page = part((await browser.get("/console/safety")).text, "approvals")
    assert "xn--80ak6aa92e.com:443" in page
    assert "reads as <bdi>аррӏе.com</bdi> (Cyrillic)" in page
    assert "\u202e" not in page
    assert r"\u202e\u000a" in page
    assert f"{len(detail)} characters in 52 lines" in page, "what is folded can be counted"


@pytest.mark.parametrize(
    ("subject", "notes"),
    [
        ("shop.example:443", []),
        ("xn--80ak6aa92e.com:443", ["аррӏе.com", "Cyrillic"]),
        ("xn--h1alffa9f.xn--p1ai:443", ["россия.рф", "Cyrillic"]),
        ("xn--9999999999999:1", ["xn--9999999999999"]),
        ("xn--:1", [""]),
        ("", []),
    ],
)
def test_an_encoded_host_is_read_with_its_scripts(subject, notes):
    assert marks.host_notes(subject) == notes


async def test_what_a_person_typed_wrong_is_no_refusal_of_an_agent(browser, tmp_path):
    await send_form(browser, "/board/tasks", of="/board", whose="family", title="x", deadline="blursday")
    page = (await browser.get("/console/safety")).text
    assert "create_task" not in page.partition("Refused lately")[2].partition("What agents reach")[0]
    assert "create task" in (await browser.get("/console/safety/audit?refused=yes")).text, "the audit has it"


async def test_a_row_of_the_audit_is_a_sentence_and_of_an_unknown_kind_what_is_recorded(browser, tmp_path):
    database = await Database.open(Home(tmp_path / "home").database)
    async with database.transaction() as tx:
        for kind, detail in (
            ("egress.refused", {"target": "shop\u202eevil.example:443", "reason": "it is not on the list"}),
            ("command", {"type": "dashboard.create_task", "ok": False, "code": "CAP"}),
            ("task.pause", {"task": "t1"}),
            ("someday.new", {"a": [{"deep": "<b>"}]}),
            ("mcp.request", {}),
        ):
            await audit.append(
                tx, audit.AuditEvent(at_ms=1, kind=kind, folder=Folder("family"), detail=detail)
            )
    await database.close()
    page = (await browser.get("/console/safety/audit")).text
    assert re.search(r"The agent wanted to reach shop.{1,40}evil.example:443 and was refused", page)
    assert "\u202e" not in page
    assert "The agent asked Andy: create task" in page
    assert "A scheduled task was changed by hand: pause" in page
    assert "someday.new" in page
    assert "The agent used the MCP server –" in page
    assert "<b>" not in page
    browser.cookies.set("andy_language", "ko")
    assert "예약된 일을 직접 바꿨습니다: pause" in (await browser.get("/console/safety/audit")).text


async def test_a_login_at_a_server_is_shown_with_the_way_back_when_it_is_over(browser, tmp_path):
    home = Home(tmp_path / "home")
    login = McpLogin(
        id="1",
        url="https://notes.example/mcp",
        client={"client_secret": "cs-1"},
        is_own_client=False,
        metadata={},
        resource=None,
        access_token="at-1",
        refresh_token="rt-1",
        scope=None,
        obtained_ms=0,
        expires_ms=None,
    )
    server = McpServer(name="notes", url=login.url, groups=(Folder("family"),))
    database = await Database.open(home.database)
    async with database.transaction() as tx:
        await mcp_servers.put(tx, server, now_ms=1)
    await database.close()
    seen = []
    for refused in (None, "invalid_grant"):
        mcp_logins.write(home.data, "notes", login.model_copy(update={"refused": refused}))
        seen.append((await browser.get("/console/safety")).text)
    assert "logged in" in seen[0]
    assert "andy mcp login notes" not in seen[0]
    assert "login over" in seen[1]
    assert "andy mcp login notes" in seen[1]
    assert not any(secret in page for page in seen for secret in ("at-1", "rt-1", "cs-1"))
