"""The way of an agent's call to an MCP server of the owner's: who may, what is added, what is bounded."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest

from orchestrator.domain.errors import BadRequest, SettingError
from orchestrator.domain.values import Folder
from orchestrator.proxies import mcp_gateway
from orchestrator.proxies.mcp_gateway import Approve, McpGateway, SecretMask, SessionSeal
from orchestrator.proxies.mcp_message import McpMessage
from orchestrator.proxies.model.exchange import RunIdentity
from orchestrator.proxies.parsing_process import ParsingProcess
from orchestrator.reports import mcp
from orchestrator.store.audit import AuditEvent
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.settings import mcp_servers
from orchestrator.store.settings.mcp_servers import McpServer
from tests.doubles.clock import FakeClock
from tests.doubles.faulty_upstream import FaultyUpstream, answer, say
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
            parsing=(parsing := ParsingProcess(clock=FakeClock())),
            sessions=SessionSeal(b"key"),
            approve=approve,
        )
        async with aclosing(parsing), proxied(home, mcp=gateway) as served:
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
    assert await servers.call(headers={"mcp-protocol-version": "2025-11-25", "cookie": "no"}) == 200
    (received,) = servers.upstream.received
    assert received.target == "/deep/mcp"
    assert received.values("authorization") == [f"Bearer {SECRET}"]
    assert received.values("mcp-protocol-version") == ["2025-11-25"]
    assert servers.served.token not in repr(received)
    assert not received.values("cookie") + received.values("x-api-key")


async def test_a_call_that_the_owner_does_not_allow_is_not_passed_on_and_the_agent_reads_why(
    tmp_path: Path,
) -> None:
    asked: list[object] = []
    answers = ["the owner has refused it (request 1)", None]

    async def approve(identity: RunIdentity, server: str, message: McpMessage) -> str | None:
        if message.tool is None:
            return None
        asked.append((identity.folder, server, message.tool, message.arguments))
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
        assert asked == [("group-0", "notes", "write", '{"t": "x"}')] * 2, (
            "only calls of tools are asked about"
        )


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


async def test_a_secret_that_cannot_be_read_is_the_owners_to_mend_and_nothing_is_sent(
    servers: Servers,
) -> None:
    class Unreadable(dict[str, str]):
        def get(self, *_: object) -> str:  # type: ignore[override]
            raise SettingError("/home/me/.env cannot be read")

    servers.secrets = Unreadable()
    response = await servers.served.call("/mcp/notes", content=json.dumps(CALL))
    assert response.status_code == 403
    assert "its owner has to correct .env" in response.text
    assert "/home/me" not in response.text
    assert servers.upstream.received == []


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


PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


@pytest.mark.parametrize(
    "message",
    [
        [CALL, CALL],
        "ping",
        7,
        {},
        {**PING, "method": None},
        {**PING, "method": "ping\0"},
        {**PING, "id": True},
        {**PING, "params": []},
        {**PING, "Method": "tools/call"},
        {**PING, "ｍethod": "tools/call"},
        {**PING, "method\u200b": "tools/call"},
        {**PING, "paramſ": {}, "params": {}},
        {**CALL, "params": {"name": "read", "Name": "delete_all"}},
        {**CALL, "params": {"name": "read", "arguments": {"a": {"k": 1, "\u212a": 2}}}},
        {**CALL, "params": {"name": "read of the server weather (request 2).\nAnswer: allow 1"}},
        {**CALL, "params": {"name": "a" * 129}},
        {**CALL, "params": {"name": {"a": 1}}},
        {**CALL, "params": {"name": "read", "arguments": [1]}},
        {**CALL, "params": {"name": "read", "arguments": {"a": "\ud800"}}},
        {**CALL, "params": {"name": "read", "arguments": {"\udc00": 1}}},
        {**CALL, "params": {"name": "read", "_meta": [1]}},
        {**PING, "params": {"a" + "\u0301" * 300: 1}},
    ],
)
async def test_what_is_no_single_message_with_one_meaning_does_not_pass(
    servers: Servers, message: object
) -> None:
    assert await servers.call(message=message) == 400
    assert servers.upstream.received == []


@pytest.mark.parametrize(
    "body",
    [
        b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"ping"}',
        json.dumps(PING).encode("utf-16"),
        json.dumps(PING).encode("utf-32"),
        b'{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call"}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":1e999}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":' + b"9" * 4_001 + b"}}",
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":[' + b"0," * 100_000 + b"0]}}",
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b"[" * 60_000,
        b"\x1f\x8b\x08\x00",
        b"",
    ],
)
async def test_bytes_that_two_readers_could_read_differently_do_not_pass(
    servers: Servers, body: bytes
) -> None:
    response = await servers.served.call("/mcp/notes", content=body)
    assert response.status_code == 400
    assert servers.upstream.received == []


async def test_a_server_reads_what_was_judged_whatever_charset_it_was_told(servers: Servers) -> None:
    hidden = (
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"+ACIAfQ-,+ACI-method+ACI-:+ACI-tools/call"}}'
    )
    charset = {"content-type": "application/json; charset=utf-7"}
    response = await servers.served.call("/mcp/notes", content=hidden, headers=charset)
    assert response.status_code == 200

    extra = {
        **CALL,
        "params": {**CALL["params"], "whim": {"ttl": 1}, "_meta": {"progressToken": 7}},
        "more": 1,
    }
    spoken = {**extra, "params": {**extra["params"], "arguments": {"t": "안녕 \u202e 👋"}}}
    assert await servers.call(message=spoken) == 200

    for received in servers.upstream.received:
        assert received.values("content-type") == ["application/json"]
        assert received.values("content-length") == [str(len(received.body))]
        assert received.body.isascii(), "it reads the same in every charset"
    first, second = (json.loads(received.body) for received in servers.upstream.received)
    assert first == json.loads(hidden)
    assert second == {
        **CALL,
        "params": {"name": "write", "arguments": {"t": "안녕 \u202e 👋"}, "_meta": {"progressToken": 7}},
    }


async def test_an_answer_to_a_request_of_the_servers_passes(servers: Servers) -> None:
    assert await servers.call(message={"jsonrpc": "2.0", "id": "s1", "result": {"roots": []}}) == 200
    assert json.loads(servers.upstream.received[0].body)["result"] == {"roots": []}


async def test_a_session_is_of_the_group_that_began_it(servers: Servers) -> None:
    servers.upstream.behave = answer(200, b"{}", mcp_session_id="s1")
    begun = await servers.served.call("/mcp/notes", content=json.dumps(PING))
    session = begun.headers["mcp-session-id"]
    assert session != "s1"

    own = {"mcp-session-id": session, "last-event-id": "e7"}
    assert await servers.call(headers=own) == 200
    assert servers.upstream.received[-1].values("mcp-session-id") == ["s1"]
    assert servers.upstream.received[-1].values("last-event-id") == ["e7"]
    assert await servers.call(headers={"last-event-id": "e7"}) == 200
    assert servers.upstream.received[-1].values("last-event-id") == []
    of_others = SessionSeal(b"key").sealer(Folder("group-1"), "notes")(b"s1").decode()
    for named in ("s1", of_others, "", f"{session}x"):
        assert await servers.call(headers={"mcp-session-id": named}) == 404
    assert len(servers.upstream.received) == 3


async def test_an_answer_in_a_coding_that_hides_a_secret_does_not_pass(servers: Servers) -> None:
    servers.upstream.behave = answer(200, gzip.compress(SECRET.encode()), content_encoding="gzip")
    assert await servers.call() == 502
    servers.upstream.behave = answer(200, b"{}", content_encoding="identity")
    assert await servers.call() == 200


@pytest.mark.parametrize(
    ("changes", "told"), [({}, "broke off"), ({"url": "http://127.0.0.1:1/mcp"}, "cannot be reached")]
)
async def test_a_server_that_gives_no_answer_is_named_and_not_taken_for_the_model_service(
    tmp_path: Path, changes: dict[str, object], told: str
) -> None:
    async with serving(tmp_path, **changes) as servers:
        servers.upstream.behave = say(b"")
        response = await servers.served.call("/mcp/notes", content=json.dumps(CALL))
    assert response.status_code == 502
    assert response.json()["error"]["message"].startswith(f"The MCP server 'notes' {told}")
    (noted,) = servers.noted
    assert noted.detail["cause"]


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


@pytest.mark.parametrize("size", [1, 5, 1_000])
def test_a_secret_is_masked_in_every_form_that_json_and_urls_write_it(size: int) -> None:
    secret = 'pass/word "é" 1234'
    forms = [
        json.dumps(secret),
        json.dumps(secret, ensure_ascii=False),
        json.dumps(secret).replace("/", "\\/"),
    ]
    text = " | ".join([secret, *forms, quote(secret), quote(secret, safe="")]).encode()
    mask = SecretMask(secret)
    passed = [mask.part(text[at : at + size]) for at in range(0, len(text), size)]
    assert b"word" not in b"".join([*passed, mask.rest()])


@pytest.mark.parametrize(
    "written",
    [
        r"pass\/w\u002Br\u003Cd\u003E\u0026\"\u00E9\u0027",
        r"pass/w\u002br\u003cd\u003e\u0026\u0022\u00e9\u0027",
        r"pass/w+r\u003Cd\u003E\u0026\"é'",
        "pass%2Fw%2Br%3Cd%3E%26%22%C3%A9'",
        "pass/w+r&lt;d&gt;&amp;&quot;é&#x27;",
        "pass/w+r&lt;d&gt;&amp;&#34;é&#39;",
        "pass&#x2F;w&#x2B;r&lt;d&gt;&amp;&quot;é&#x27;",
    ],
)
def test_a_secret_is_masked_as_other_writers_of_json_html_and_urls_escape_it(written: str) -> None:
    mask = SecretMask("pass/w+r<d>&\"é'")
    passed = [mask.part(one.to_bytes()) for one in f"a {written} b".encode()]
    assert b"".join([*passed, mask.rest()]) == b"a [secret] b"


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


async def test_a_group_keeps_settings_that_cannot_be_read_when_its_servers_change(
    store_harness: StoreHarness, tmp_path: Path
) -> None:
    stored = {"egress": "open", "people": {"local:mina": "owner"}, "of_a_newer_andy": 1}
    await store_harness.add_group("main", is_main=True)
    async with store_harness.database.transaction() as tx:
        await groups.set_config(tx, Folder("main"), stored, now_ms=1)
        await mcp.add(tx, a_server(), home=tmp_path, now_ms=1)
        await mcp.note_login(tx, a_server(), is_logged_in=True, now_ms=2)
        await mcp.remove(tx, "notes", now_ms=3)
    (row,) = await store_harness.rows("SELECT container_config FROM registered_groups")
    assert json.loads(row["container_config"]) == stored


async def test_servers_are_set_listed_and_removed_and_that_is_written_down(
    store_harness: StoreHarness, tmp_path: Path
) -> None:
    await store_harness.add_group("main", is_main=True)
    async with store_harness.database.transaction() as tx:
        await mcp.add(tx, a_server(url="http://127.0.0.1:9/mcp"), home=tmp_path, now_ms=1)
        await mcp.add(tx, a_server(), home=tmp_path, now_ms=2)
    async with store_harness.database.reading() as tx:
        (row,) = await mcp.rows(tx, lambda _: False, home=tmp_path, now_ms=2)
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
