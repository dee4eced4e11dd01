"""The way of an agent's call to an MCP server of the owner's: who may, what is added, what is bounded."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Folder
from orchestrator.proxies import mcp_gateway
from orchestrator.proxies.mcp_gateway import Approve, McpGateway, SecretMask
from orchestrator.proxies.model.exchange import RunIdentity
from orchestrator.reports import mcp
from orchestrator.store import mcp_servers
from orchestrator.store.audit import AuditEvent
from orchestrator.store.database import Tx
from orchestrator.store.mcp_servers import McpServer
from tests.doubles.clock import FakeClock
from tests.doubles.faulty_upstream import FaultyUpstream, answer
from tests.support.running_proxy import Proxied, proxied
from tests.support.store_harness import StoreHarness

SECRET = "the-secret-of-the-notes"
CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "write", "arguments": {"t": "x"}},
}


@dataclass
class Servers:
    """A proxy that leads group-0 to a server called `notes`."""

    served: Proxied
    upstream: FaultyUpstream
    secrets: dict[str, str] = field(default_factory=lambda: {"NOTES_TOKEN": SECRET})
    noted: list[AuditEvent] = field(default_factory=list)

    async def call(self, name: str = "notes", message: object = CALL, **options: object) -> int:
        response = await self.served.call(f"/mcp/{name}", content=json.dumps(message), **options)
        return response.status_code


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    async with serving(tmp_path) as found:
        yield found


@asynccontextmanager
async def serving(home: Path, *, approve: Approve | None = None, **changes: object) -> AsyncIterator[Servers]:
    async with FaultyUpstream() as upstream:
        upstream.behave = answer(200, b"{}")
        notes = a_server(**{"url": f"{upstream.url}/deep/mcp", **changes})

        async def find(folder: Folder, name: str) -> McpServer | None:
            return notes if (folder, name) == ("group-0", "notes") else None

        made: list[Servers] = []
        gateway = McpGateway(
            find,
            lambda name: made[0].secrets.get(name),
            note=lambda event: made[0].noted.append(event),
            clock=FakeClock(),
            approve=approve,
        )
        async with proxied(home, mcp=gateway) as served:
            made.append(Servers(served, upstream))
            yield made[0]


def a_server(**changes: object) -> McpServer:
    fields = {
        "name": "notes",
        "url": "https://notes.example/mcp",
        "header": "Authorization",
        "secret_env": "NOTES_TOKEN",
        "groups": (Folder("main"),),
    }
    return McpServer(**{**fields, **changes})  # type: ignore[arg-type]


async def test_the_secret_is_added_and_the_run_token_taken_off(servers: Servers) -> None:
    assert await servers.call(headers={"mcp-session-id": "s1", "cookie": "no"}) == 200
    (received,) = servers.upstream.received
    assert received.target == "/deep/mcp"
    assert received.values("authorization") == [f"Bearer {SECRET}"]
    assert received.values("mcp-session-id") == ["s1"]
    assert servers.served.token not in repr(received)
    assert not received.values("cookie") + received.values("x-api-key")


async def test_a_call_that_the_owner_does_not_allow_is_not_passed_on_and_the_agent_reads_why(
    tmp_path: Path,
) -> None:
    asked: list[object] = []
    answers = ["the owner has refused it (request 1)", None]

    async def approve(identity: RunIdentity, server: str, tool: str, arguments: object) -> str | None:
        asked.append((identity.folder, server, tool, arguments))
        return answers.pop(0)

    async with serving(tmp_path, approve=approve) as servers:
        response = await servers.served.call("/mcp/notes", content=json.dumps(CALL))
        assert response.status_code == 200
        result = response.json()
        assert (result["id"], result["result"]["isError"]) == (1, True)
        assert result["result"]["content"][0]["text"] == "Not done: the owner has refused it (request 1)."
        assert servers.upstream.received == []
        assert servers.noted[0].detail["refused"] == "the owner has refused it (request 1)"
        assert await servers.call() == 200
        assert await servers.call(message={"jsonrpc": "2.0", "id": 2, "method": "tools/list"}) == 200
        assert len(servers.upstream.received) == 2
        assert asked == [("group-0", "notes", "write", {"t": "x"})] * 2, "only calls of tools are asked about"


async def test_a_group_that_is_not_listed_gets_403_and_nothing_is_sent(servers: Servers) -> None:
    assert await servers.call(token=servers.served.other_token) == 403
    assert await servers.call("others") == 403
    assert await servers.call("notes/deeper") == 403
    assert await servers.call(token="of-nobody") == 401
    assert servers.upstream.received == []


async def test_a_server_that_is_a_program_is_not_reached_through_the_proxy(tmp_path: Path) -> None:
    async with serving(tmp_path, url=None, command=("python3", "server.py"), secret_env=None) as servers:
        assert await servers.call() == 403


async def test_a_secret_that_is_not_set_is_asked_of_the_owner_and_nothing_is_sent(servers: Servers) -> None:
    servers.secrets.clear()
    response = await servers.served.call("/mcp/notes", content=json.dumps(CALL))
    assert (response.status_code, servers.upstream.received) == (403, [])
    assert "set NOTES_TOKEN in .env" in response.json()["error"]["message"]


async def test_calls_are_written_down_by_name_and_without_what_they_hold(servers: Servers) -> None:
    await servers.call()
    (event,) = servers.noted
    assert (event.kind, event.folder) == ("mcp.request", "group-0")
    assert {name: event.detail[name] for name in ("server", "method", "tool", "status")} == {
        "server": "notes",
        "method": "tools/call",
        "tool": "write",
        "status": 200,
    }
    assert "arguments" not in json.dumps(event.detail)


@pytest.mark.parametrize("message", [[CALL, CALL], "ping", 7])
async def test_what_is_no_single_message_does_not_pass(servers: Servers, message: object) -> None:
    assert await servers.call(message=message) == 400
    assert servers.upstream.received == []


async def test_a_turn_calls_so_often_and_no_more(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_gateway, "CALLS_A_TURN", 2)
    assert [await servers.call() for _ in range(3)] == [200, 200, 403]


async def test_what_a_server_sends_back_has_no_secret_in_it(servers: Servers) -> None:
    servers.upstream.behave = answer(200, f"it is {SECRET}!".encode(), mcp_session_id=f"s-{SECRET}")
    response = await servers.served.call("/mcp/notes", content=json.dumps(CALL))
    assert response.text == "it is [secret]!"
    assert SECRET not in str(response.headers)
    servers.upstream.behave = answer(401, b"{}")
    assert await servers.call() == 502, "the CLI would take a 401 for its own"


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_a_secret_is_masked_however_it_is_cut(size: int) -> None:
    text = f"a {SECRET}{SECRET} b the-secret-of-the the-secret".encode()
    mask = SecretMask(SECRET)
    passed = [mask.part(text[at : at + size]) for at in range(0, len(text), size)]
    assert b"".join([*passed, mask.rest()]) == b"a [secret][secret] b the-secret-of-the the-secret"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "dashboard"}, "cannot name a server"),
        ({"name": "Notes/.."}, "cannot name a server"),
        ({"url": "ftp://notes.example"}, "is no URL"),
        ({"url": "https://me:pw@notes.example/"}, "--secret-env"),
        ({"url": "http://notes.example/mcp"}, "use https"),
        ({"secret_env": "sk-live-1234"}, "is no name of a variable"),
        ({"header": "Host"}, "no header"),
        ({"groups": (Folder("nobody"),)}, "nobody"),
    ],
)
async def test_what_cannot_be_a_server_is_refused_with_the_fix(
    store_harness: StoreHarness, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    await store_harness.add_group("main", is_main=True)
    with pytest.raises(BadRequest, match=words):
        async with store_harness.database.transaction() as tx:
            await mcp.add(tx, a_server(**changes), home=tmp_path, now_ms=1)
    assert await store_harness.rows("SELECT * FROM mcp_servers") == []


async def test_servers_are_set_listed_and_removed_and_that_is_written_down(
    store_harness: StoreHarness, tmp_path: Path
) -> None:
    await store_harness.add_group("main", is_main=True)
    async with store_harness.database.transaction() as tx:
        await mcp.add(tx, a_server(url="http://127.0.0.1:9/mcp"), home=tmp_path, now_ms=1)
        await mcp.add(tx, a_server(), home=tmp_path, now_ms=2)
    async with store_harness.database.reading() as tx:
        (row,) = await mcp.rows(tx, lambda _: False, home=tmp_path)
    assert (row["url"], row["has_secret"]) == ("https://notes.example/mcp", False)
    assert "NOTES_TOKEN, NOT SET" in "\n".join(mcp.lines([row]))
    await store_harness.add_group("family")
    async with store_harness.database.transaction() as tx:
        await mcp.add(tx, a_server(groups=(Folder("family"),)), home=tmp_path, now_ms=2)
        assert await names_for(tx, "main") == ["notes"], "both may"
        await mcp.remove(tx, "notes", "main", now_ms=3)
        assert await names_for(tx, "main") == []
        assert await names_for(tx, "family") == ["notes"]
        await mcp.remove(tx, "notes", now_ms=3)
    with pytest.raises(BadRequest, match="andy mcp list"):
        async with store_harness.database.transaction() as tx:
            await mcp.remove(tx, "notes", now_ms=3)
    rows = await store_harness.rows("SELECT kind FROM audit ORDER BY id")
    assert [row["kind"] for row in rows if row["kind"].startswith("mcp.")] == [
        *["mcp.added"] * 3,
        *["mcp.removed"] * 2,
    ]


async def names_for(tx: Tx, folder: str) -> list[str]:
    return [server.name for server in await mcp_servers.of_group(tx, Folder(folder))]
