"""The way out, as a hostile container may use it; nothing but loopback is ever reached."""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from agent_runner.wire.listeners import listen
from orchestrator.domain.errors import StoreError
from orchestrator.domain.network_targets import NetworkTarget, parse_target
from orchestrator.domain.values import Folder, RunId, TurnId
from orchestrator.proxies.egress import public_addresses
from orchestrator.proxies.egress.client_hello import ClientHelloReader, LaterHellos
from orchestrator.proxies.egress.proxy import (
    ACCESS_DENIED,
    Approve,
    EgressCaller,
    EgressLimits,
    EgressProxy,
)
from orchestrator.proxies.egress.public_addresses import EgressConnection, Resolver
from orchestrator.proxies.name_lookups import LOOKUPS_A_SHARE
from orchestrator.store.audit import AuditEvent
from tests.doubles.clock import FakeClock
from tests.doubles.name_server import SilentNameServer, silent_name_server
from tests.processes.small_internet import PUBLIC, SmallInternet
from tests.support.client_hellos import ECH, GREASE_ECH, client_hello, in_records, with_extension
from tests.support.trusting_image import Certificates
from tests.support.until import DEADLINE_SECONDS

TOKEN = "andy-token"
OTHER_TOKEN = "token-of-another-group"


@dataclass
class Served:
    port: int
    internet: SmallInternet
    allowed: set[NetworkTarget]
    asks: bool
    tokens: set[str] = field(default_factory=lambda: {TOKEN, OTHER_TOKEN})
    events: list[AuditEvent] = field(default_factory=list)
    noted: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, event: AuditEvent) -> None:
        self.events.append(event)
        self.noted.set()

    async def until_noted(self, count: int = 1) -> list[AuditEvent]:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(self.events) < count:
                self.noted.clear()
                await self.noted.wait()
        return self.events

    @asynccontextmanager
    async def socket(
        self, *, peer: str = "127.0.0.1"
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(peer, 0))
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                yield reader, writer
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def status(self, target: str, *, token: str = TOKEN, head: bytes | None = None) -> int:
        async with self.socket() as (reader, writer):
            writer.write(head or connect(target, token))
            return int((await reader.readline()).split()[1])


def connect(target: str, token: str = TOKEN, *lines: str, user: str = "run") -> bytes:
    proof = base64.b64encode(f"{user}:{token}".encode()).decode()
    own = (f"CONNECT {target} HTTP/1.1", f"Host: {target}", f"Proxy-Authorization: Basic {proof}")
    return "\r\n".join([*own, *lines, "", ""]).encode("latin-1")


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say back all that comes, and end when it ends."""
    with suppress(OSError):
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
        writer.write(b"|end")
    writer.close()


@asynccontextmanager
async def serving(
    *allowed: str, limits: EgressLimits | None = None, approve: Approve | None = None, **names: str
) -> AsyncIterator[Served]:
    """A proxy that lets one run out to `allowed`, and asks about other places with `approve`."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    internet = SmallInternet(port=server.sockets[0].getsockname()[1])
    internet.names = {"good.example": [[PUBLIC]], **{name: [[address]] for name, address in names.items()}}
    listener = listen("127.0.0.1", 0)
    served = Served(
        port=listener.getsockname()[1],
        internet=internet,
        allowed={parse_target(text) for text in allowed or ("good.example:443", "good.example:22")},
        asks=approve is not None,
    )

    async def identify(token: str) -> EgressCaller | None:
        if token not in served.tokens:
            return None
        run, folder = ("r", "family") if token == TOKEN else ("s", "work")
        return EgressCaller(
            run_id=RunId(run),
            folder=Folder(folder),
            turn_id=TurnId(1),
            allowed=frozenset(served.allowed),
            asks=served.asks,
        )

    proxy = EgressProxy(
        listener,
        identify=identify,
        note=served.note,
        clock=FakeClock(),
        approve=approve,
        internet=internet,
        limits=limits,
    )
    task = asyncio.create_task(proxy.serve(), name="egress")
    try:
        yield served
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        proxy.close()
        server.close()
        await server.wait_closed()


async def test_a_place_that_is_not_listed_waits_for_the_owner_where_a_rule_says_so() -> None:
    asked: list[str] = []
    answers: asyncio.Queue[str | None] = asyncio.Queue()

    async def approve(caller: EgressCaller, target: NetworkTarget) -> str | None:
        asked.append(f"{caller.folder} {target}")
        return await answers.get()

    async with serving(approve=approve) as served:
        assert await served.status("good.example:443") == 200
        assert asked == [], "what is listed is not asked about"
        waiting = asyncio.create_task(served.status("good.example:8443"), name="waiting")
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not asked:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not waiting.done()
        answers.put_nowait(None)
        assert await waiting == 200
        answers.put_nowait("the owner has refused it")
        assert await served.status("other.example:443") == 403
        answers.put_nowait(None)
        assert await served.status("nowhere.example:443") == 403, "allowed, and not of the internet"
        assert await served.status("good.example:443", token="of-nobody") == 407
        reasons = [one.detail["reason"] for one in served.events if one.kind == "egress.refused"]
    assert "the owner has refused it" in reasons
    assert asked == [
        "family good.example:8443",
        "family other.example:443",
        "family nowhere.example:443",
    ]


async def test_a_listed_place_is_reached_and_its_bytes_are_counted() -> None:
    async with serving() as served:
        async with served.socket() as (reader, writer):
            writer.write(connect("good.example:22") + b"early ")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 200 Connection established\r\n\r\n"
            writer.write(b"later")
            writer.write_eof()
            assert await reader.read() == b"early later|end"
        (event,) = await served.until_noted()
    assert served.internet.dialled == [(PUBLIC, 22)]
    assert (event.kind, event.folder, event.run_id, event.turn_id) == ("egress.connection", "family", "r", 1)
    assert event.detail == {
        "target": "good.example:22",
        "address": PUBLIC,
        "bytes_out": 11,
        "bytes_in": 15,
        "ms": event.detail["ms"],
    }


@pytest.mark.parametrize(
    "target",
    [
        "other.example:443",
        "good.example:80",
        "good.example:8443",
        "sub.good.example:443",
        "good.example.:444",
    ],
)
async def test_exactly_the_listed_places_are_reached(target: str) -> None:
    async with serving(**{"other.example": PUBLIC, "sub.good.example": PUBLIC}) as served:
        assert await served.status(target) == 403
        (event,) = await served.until_noted()
    assert (event.kind, event.detail["reason"]) == ("egress.refused", "it is not on the list of this group")
    assert served.internet.looked_up == []


async def test_a_name_is_the_same_in_any_case_and_with_a_dot_behind() -> None:
    async with serving() as served:
        assert await served.status("GOOD.Example.:443") == 200


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "169.254.169.254", "100.100.100.200", "224.0.0.1", "172.17.0.1"),
        *("0.0.0.0", "::1", "fd00::1", "fe80::1%lo", "::ffff:127.0.0.1", "64:ff9b::a9fe:a9fe"),
    ],
)
async def test_a_listed_name_that_leads_home_is_refused(address: str) -> None:
    async with serving("home.example:443", **{"home.example": address}) as served:
        assert await served.status("home.example:443") == 403
        (event,) = await served.until_noted()
    assert served.internet.dialled == []
    assert event.detail["reason"] == "the name leads to an address that is not of the internet"


async def test_one_address_at_home_among_others_is_enough_to_refuse() -> None:
    async with serving("mixed.example:443") as served:
        served.internet.names["mixed.example"] = [[PUBLIC, "127.0.0.1"]]
        assert await served.status("mixed.example:443") == 403
    assert served.internet.dialled == []


async def test_a_name_that_changes_its_mind_is_dialled_where_it_was_looked_at() -> None:
    async with serving("rebind.example:443") as served:
        served.internet.names["rebind.example"] = [[PUBLIC], ["127.0.0.1"]]
        assert await served.status("rebind.example:443") == 200
        assert served.internet.looked_up == ["rebind.example"], "once"
        assert served.internet.dialled == [(PUBLIC, 443)]
        assert await served.status("rebind.example:443") == 403


async def test_a_silent_address_leaves_the_other_version_of_the_protocol_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Packets of IPv6 get lost on many networks that hand out addresses of it."""
    monkeypatch.setattr(public_addresses, "ATTEMPT_SECONDS", 0.01)
    lost = ["2606:2800:220::1", "2606:2800:220::2"]
    async with serving("both.example:443") as served:
        dial = served.internet.dial

        async def dial_by_v4(address: str, port: int) -> EgressConnection:
            if address in lost:
                await asyncio.Event().wait()
            return await dial(address, port)

        served.internet.dial = dial_by_v4  # type: ignore[method-assign]
        served.internet.names["both.example"] = [[lost[0], PUBLIC]]
        assert await served.status("both.example:443") == 200
        served.internet.dial = dial  # type: ignore[method-assign]
        served.internet.dialled.clear()
        served.internet.dead = {*lost, PUBLIC}
        served.internet.names["both.example"] = [[*lost, PUBLIC]]
        assert await served.status("both.example:443") == 403
    assert [address for address, _ in served.internet.dialled] == [lost[0], PUBLIC, lost[1]]


async def test_a_slow_address_is_still_used_when_the_next_one_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(public_addresses, "ATTEMPT_SECONDS", 0.01)
    slow, has_refused = "1.1.1.1", asyncio.Event()
    async with serving() as served:
        dial = served.internet.dial

        async def dial_slowly(address: str, port: int) -> EgressConnection:
            if address == slow:
                await has_refused.wait()
                return await dial(address, port)
            has_refused.set()
            raise ConnectionRefusedError

        served.internet.dial = dial_slowly  # type: ignore[method-assign]
        served.internet.names["good.example"] = [[slow, PUBLIC]]
        assert await served.status("good.example:443") == 200


@pytest.mark.parametrize("target", ["localhost:{port}", "127.0.0.1:{port}", "[::ffff:127.0.0.1]:{port}"])
async def test_the_real_lookup_of_a_place_at_home_is_refused(target: str) -> None:
    async with serving() as served:
        listed = target.format(port=served.internet.port)
        served.allowed.add(parse_target(listed))
        served.internet.resolve = Resolver().resolve  # type: ignore[method-assign]
        assert await served.status(listed) == 403
    assert served.internet.dialled == []


@pytest.mark.parametrize(
    "target", ["127.1:80", "2130706433:80", "0x7f000001:80", "good.example", "*:443", "/"]
)
async def test_a_target_in_another_form_is_refused(target: str) -> None:
    async with serving() as served:
        assert await served.status(target) == 400
    assert served.internet.looked_up == []


async def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    async with serving() as served:
        served.internet.names["good.example"] = [["1.1.1.1", PUBLIC]]
        served.internet.dead = {"1.1.1.1"}
        assert await served.status("good.example:443") == 200
        served.internet.dead.add(PUBLIC)
        assert await served.status("good.example:443") == 403


async def test_a_change_of_the_list_works_at_once() -> None:
    async with serving() as served:
        assert await served.status("good.example:443") == 200
        served.allowed.clear()
        assert await served.status("good.example:443") == 403


@pytest.mark.parametrize("token", ["", "wrong", "andy-token "])
async def test_a_stranger_is_refused(token: str) -> None:
    async with serving() as served:
        assert await served.status("good.example:443", token=token) == 407
        assert (await served.until_noted())[0].folder is None
    assert served.internet.looked_up == []


async def test_a_token_lets_nobody_out_of_another_container() -> None:
    async with serving() as served:
        assert await served.status("good.example:443") == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, local_addr=("127.0.0.2", 0))
        writer.write(connect("good.example:443"))
        assert int((await reader.readline()).split()[1]) == 407
        writer.close()
        (refused,) = [event for event in await served.until_noted(2) if event.kind == "egress.refused"]
        assert (refused.folder, refused.detail["peer"]) == ("family", "127.0.0.2")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"CONNECT good.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", 407),
        (b"CONNECT good.example:443 HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic !!\r\n\r\n", 407),
        (
            b"CONNECT good.example:443 HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Bearer andy-token\r\n\r\n",
            407,
        ),
        (connect("good.example:443", TOKEN, "Proxy-Authorization: Basic cnVuOng="), 407),
        (connect("good.example:443").replace(b"Basic", b"Bearer"), 407),
        (connect("good.example:443", user="andy"), 407),
        (connect("good.example:443", TOKEN, "Content-Length: 5") + b"hello", 400),
        (connect("good.example:443", TOKEN, "Transfer-Encoding: chunked"), 400),
        (b"GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n", 405),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 405),
        (b"CONNECT good.example:443 HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 200 + b"\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"CONNECT good.example:443 HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 20_000 + b"\r\n\r\n", 400),
    ],
)
async def test_what_is_no_proper_request_is_refused(head: bytes, status: int) -> None:
    async with serving() as served:
        assert await served.status("", head=head) == status
    assert served.internet.looked_up == []


async def test_a_head_that_never_ends_is_cut_off() -> None:
    async with serving(limits=EgressLimits(head_seconds=0.1)) as served, served.socket() as (reader, writer):
        writer.write(b"CONNECT good.example:443 HTTP/1.1\r\n")
        assert await reader.read() == b""


async def test_a_silent_tunnel_is_closed_and_counted() -> None:
    async with serving(limits=EgressLimits(idle_seconds=0.1)) as served:
        async with served.socket() as (reader, writer):
            writer.write(connect("good.example:22"))
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.read() == b""
        (event,) = await served.until_noted()
    assert event.kind == "egress.connection"


@pytest.mark.slow
async def test_a_tunnel_in_use_stays_open() -> None:
    loop = asyncio.get_running_loop()
    async with serving(limits=EgressLimits(idle_seconds=2.0)) as served, served.socket() as (reader, writer):
        writer.write(connect("good.example:22"))
        await reader.readuntil(b"\r\n\r\n")
        end = loop.time() + 2.5
        while loop.time() < end:
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"


async def test_a_group_has_a_bounded_number_of_connections() -> None:
    async with serving(limits=EgressLimits(connections_a_group=1)) as served:
        async with served.socket() as (reader, writer):
            writer.write(connect("good.example:443"))
            await reader.readuntil(b"\r\n\r\n")
            assert await served.status("good.example:443") == 403
        await served.until_noted(2)
        assert await served.status("good.example:443") == 200


async def test_all_together_have_a_bounded_number_of_connections() -> None:
    async with serving(limits=EgressLimits(connections=1)) as served, served.socket() as (reader, writer):
        writer.write(connect("good.example:443"))
        await reader.readuntil(b"\r\n\r\n")
        async with served.socket() as (second, _):
            assert await second.read() == b""


async def test_half_sent_requests_of_one_container_leave_room_for_the_others() -> None:
    async with serving() as served, AsyncExitStack() as stack:
        for _ in range(110):
            _, writer = await stack.enter_async_context(served.socket(peer="127.0.0.2"))
            writer.write(b"CONNECT good.example:443 HTTP/1.1\r\n")
        (event,) = await served.until_noted()
        assert await served.status("good.example:443") == 200
    assert (event.detail["peer"], event.detail["reason"]) == (
        "127.0.0.2",
        "this container has too many connections open",
    )


async def test_requests_without_end_are_answered_slower_by_run_or_else_by_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = list[float]()
    real_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await real_sleep(0)

    monkeypatch.setattr("orchestrator.proxies.egress.proxy.asyncio.sleep", sleep)
    limits = EgressLimits(requests_at_once=2, requests_a_second=2.0)
    async with serving(limits=limits) as served:
        for token in ("wrong", TOKEN, OTHER_TOKEN):
            waits.clear()
            statuses = [await served.status("elsewhere.example:443", token=token) for _ in range(7)]
            assert statuses == [407 if token == "wrong" else 403] * 7
            assert waits == [0.5, 1.0, 1.5, 2.0, 2.0], token


async def test_connections_of_a_container_that_has_too_many_cost_no_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may connect again and again: each is closed before asyncio makes a connection of it."""
    made = list[object]()
    real_protocol = asyncio.StreamReaderProtocol.connection_made

    def connection_made(self: asyncio.StreamReaderProtocol, transport: asyncio.Transport) -> None:
        made.append(transport.get_extra_info("sockname")[1])
        real_protocol(self, transport)

    async with serving(limits=EgressLimits(connections_a_peer=1)) as served, AsyncExitStack() as stack:
        _, writer = await stack.enter_async_context(served.socket())
        writer.write(b"CONNECT good.example:443 HTTP/1.1\r\n")
        async with served.socket() as (reader, _):
            assert await reader.read() == b"", "it is refused, so the first one counts"
        monkeypatch.setattr(asyncio.StreamReaderProtocol, "connection_made", connection_made)
        for _ in range(10):
            async with served.socket() as (reader, _):
                with suppress(ConnectionError):
                    assert await reader.read() == b""
        assert made.count(served.port) == 0
        monkeypatch.undo()
        async with served.socket(peer="127.0.0.2") as (reader, other):
            other.write(connect("elsewhere.example:443"))
            assert b"403" in await reader.readline()


async def test_connections_that_are_being_made_count_for_their_group() -> None:
    async with serving(limits=EgressLimits(connections_a_group=1)) as served, AsyncExitStack() as stack:
        asked = asyncio.Event()

        async def never(target: NetworkTarget, folder: Folder) -> list[str]:
            asked.set()
            return await asyncio.get_running_loop().create_future()

        served.internet.resolve = never  # type: ignore[method-assign, assignment]
        _, writer = await stack.enter_async_context(served.socket())
        writer.write(connect("good.example:443"))
        await asked.wait()
        assert await served.status("good.example:443") == 403
        (event,) = await served.until_noted()
    assert event.detail["reason"] == "this group has too many connections open"


@pytest.fixture
async def name_server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SilentNameServer]:
    with silent_name_server(monkeypatch, PUBLIC) as server:
        yield server


async def test_a_silent_name_server_holds_up_no_other_group_and_no_other_thread(
    name_server: SilentNameServer,
) -> None:
    async with serving("silent.example:443", "good.example:443") as served, AsyncExitStack() as stack:
        served.internet.resolve = Resolver().resolve  # type: ignore[method-assign]
        for _ in range(40):
            _, writer = await stack.enter_async_context(served.socket())
            writer.write(connect("silent.example:443"))
        async with asyncio.timeout(DEADLINE_SECONDS):
            await name_server.two_wait.wait()
            assert await served.status("good.example:443", token=OTHER_TOKEN) == 200
            await asyncio.to_thread(lambda: None)
        assert not name_server.released.is_set()
        assert name_server.waiting <= LOOKUPS_A_SHARE


async def test_a_lookup_without_an_answer_is_refused_with_its_reason(name_server: SilentNameServer) -> None:
    async with serving("silent.example:443") as served:
        served.internet.resolve = Resolver(lookup_seconds=0.1).resolve  # type: ignore[method-assign]
        assert await served.status("silent.example:443") == 403
        (event,) = await served.until_noted()
    assert event.detail["reason"] == "the name was not looked up in time: its name server may be silent"


async def test_all_groups_together_have_a_bounded_number_of_lookups(name_server: SilentNameServer) -> None:
    async with serving("silent.example:443", "good.example:443") as served, AsyncExitStack() as stack:
        served.internet.resolve = Resolver(lookups=2).resolve  # type: ignore[method-assign]
        for _ in range(2):
            _, writer = await stack.enter_async_context(served.socket())
            writer.write(connect("silent.example:443"))
        await name_server.two_wait.wait()
        assert await served.status("good.example:443", token=OTHER_TOKEN) == 403
        (event,) = await served.until_noted()
        assert event.detail["reason"] == "too many names are being looked up: try again in a minute"
        name_server.released.set()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while await served.status("good.example:443", token=OTHER_TOKEN) != 200:
                pass


async def test_a_place_that_breaks_off_ends_the_tunnel() -> None:
    async with serving() as served:

        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.transport.abort()

        rude = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        served.internet.port = rude.sockets[0].getsockname()[1]
        async with served.socket() as (reader, writer):
            writer.write(connect("good.example:22") + b"x")
            await reader.readuntil(b"\r\n\r\n")
            with suppress(ConnectionError):
                assert await reader.read() == b""
        assert (await served.until_noted())[0].detail["bytes_out"] == 1
        rude.close()
        await rude.wait_closed()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("tls"))


@asynccontextmanager
async def pages(
    served: Served, certificates: Certificates, context: ssl.SSLContext | None = None
) -> AsyncIterator[list[str | None]]:
    """Have a server of `good.example` stand for the internet; yields the names by which it was called."""
    called: list[str | None] = []
    if context is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.folder / "server.crt", certificates.folder / "server.key")
    context.sni_callback = lambda _socket, name, _context: called.append(name)

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await reader.readline()
            writer.write(b"hello")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0, ssl=context) as server:
        served.internet.port = server.sockets[0].getsockname()[1]
        yield called


async def over_tls(served: Served, certificates: Certificates, target: str, name: str | None) -> bytes:
    """Ask for a page through the tunnel, as a client does that was sent to `name`. Raises `ssl.SSLError`."""
    context = ssl.create_default_context(cafile=certificates.authority)
    context.check_hostname = name is not None
    async with served.socket() as (reader, writer):
        writer.write(connect(target))
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        await writer.start_tls(context, server_hostname=name)
        writer.write(b"GET /\r\n")
        return await reader.read()


async def test_a_client_reaches_over_tls_the_host_that_it_named(certificates: Certificates) -> None:
    async with serving() as served, pages(served, certificates) as called:
        assert await over_tls(served, certificates, "good.example:443", "good.example") == b"hello"
        assert await over_tls(served, certificates, "GOOD.example.:443", "good.example") == b"hello"
        events = await served.until_noted(2)
    assert called == ["good.example"] * 2
    assert {event.kind for event in events} == {"egress.connection"}


@pytest.mark.parametrize("target", ["good.example:443", "good.example:22", "93.184.215.14:443"])
async def test_another_host_behind_the_same_address_is_not_reached(
    certificates: Certificates, target: str
) -> None:
    names = {"93.184.215.14": PUBLIC}
    async with (
        serving("good.example:443", "good.example:22", "93.184.215.14:443", **names) as served,
        pages(served, certificates) as called,
    ):
        with pytest.raises(ssl.SSLError, match="ACCESS_DENIED"):
            await over_tls(served, certificates, target, "other-customer.example")
        (event,) = await served.until_noted()
    assert called == [], "not a byte has gone there"
    assert (event.kind, event.folder, event.detail["target"]) == ("egress.refused", "family", target)
    assert event.detail["reason"] == "the TLS hello names another host than CONNECT"
    assert event.detail["server_name"] == "other-customer.example"


def hello_retry_context(certificates: Certificates) -> ssl.SSLContext:
    """Return a server's context that asks every client of today for a second hello (HelloRetryRequest)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.folder / "server.crt", certificates.folder / "server.key")
    context.set_ecdh_curve("secp521r1")  # clients send the share of another curve at first
    return context


async def test_a_second_hello_may_name_the_same_host_alone(certificates: Certificates) -> None:
    context = hello_retry_context(certificates)
    async with serving() as served, pages(served, certificates, context) as called:
        assert await over_tls(served, certificates, "good.example:443", "good.example") == b"hello"
        assert called == ["good.example"] * 2, "one name for each hello"
        await served.until_noted()
        client = ssl.create_default_context(cafile=certificates.authority)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        handshake = client.wrap_bio(incoming, outgoing, server_hostname="good.example")
        async with served.socket() as (reader, writer):
            writer.write(connect("good.example:443"))
            await reader.readuntil(b"\r\n\r\n")
            with pytest.raises(ssl.SSLWantReadError):
                handshake.do_handshake()
            writer.write(outgoing.read())
            while not outgoing.pending:
                incoming.write(await reader.read(1))
                with pytest.raises(ssl.SSLWantReadError):
                    handshake.do_handshake()
            second = outgoing.read()
            assert b"good.example" in second
            writer.write(second.replace(b"good.example", b"evil.example"))
            answer = await reader.read()
        events = await served.until_noted(3)
    assert "evil.example" not in called
    assert answer.endswith(ACCESS_DENIED)
    refused = next(event for event in events if event.kind == "egress.refused")
    assert refused.detail["server_name"] == "evil.example"
    assert [event.kind for event in events].count("egress.connection") == 2


def handshake(
    client: ssl.SSLContext, server: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[bytes, ssl.SSLObject]:
    """Connect two ends in memory; return all that the client sent, and its end."""
    out, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(back, out, server_hostname="good.example", session=session)
    to_far, from_far = ssl.MemoryBIO(), ssl.MemoryBIO()
    far = server.wrap_bio(to_far, from_far, server_side=True)
    sent, ends = b"", {near, far}
    while ends:
        for end in (near, far):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
                ends.discard(end)
            piece = out.read()
            sent += piece
            to_far.write(piece)
            back.write(from_far.read())
    near.write(b"GET /\r\n")
    return sent + out.read(), near


@pytest.mark.parametrize("kind", ["TLS 1.3", "second hello", "TLS 1.2", "TLS 1.2 taken up again"])
def test_every_byte_of_a_real_client_goes_out(certificates: Certificates, kind: str) -> None:
    client = ssl.create_default_context(cafile=certificates.authority)
    server = hello_retry_context(certificates)
    if kind != "second hello":
        server.set_ecdh_curve("prime256v1" if "1.2" in kind else "X25519")
    if "1.2" in kind:
        server.maximum_version = ssl.TLSVersion.TLSv1_2
    sent, end = handshake(client, server)
    if "again" in kind:
        sent, end = handshake(client, server, end.session)
        assert end.session_reused
    assert sent.count(b"good.example") == (2 if kind == "second hello" else 1)
    reader = ClientHelloReader()
    first = reader.feed(sent[:3]) or reader.feed(sent[3:])
    assert first is not None
    hellos = LaterHellos(parse_target("good.example:443"), first)
    later = b"".join(hellos.feed(bytes([byte])) for byte in reader.later_bytes)
    assert reader.hello_bytes + later == sent


@pytest.mark.parametrize(("change", "status"), [("the run ends", 407), ("the group goes offline", 403)])
async def test_what_changes_while_the_owner_is_asked_counts(change: str, status: int) -> None:
    async def approve(caller: EgressCaller, target: NetworkTarget) -> str | None:
        if change == "the run ends":
            served.tokens.discard(TOKEN)
        else:
            served.asks = False
        return None

    async with serving(approve=approve) as served:
        assert await served.status("good.example:8443") == status
        assert [one.kind for one in await served.until_noted()] == ["egress.refused"]


async def test_a_place_that_was_listed_while_the_owner_was_asked_is_reached() -> None:
    async def approve(caller: EgressCaller, target: NetworkTarget) -> str | None:
        served.allowed.add(target)
        served.asks = False
        return None

    async with serving(approve=approve) as served:
        assert await served.status("good.example:8443") == 200


async def test_what_the_owner_has_allowed_is_one_host_as_well(certificates: Certificates) -> None:
    async def approve(caller: EgressCaller, target: NetworkTarget) -> str | None:
        return None

    async with (
        serving("elsewhere.example:443", approve=approve) as served,
        pages(served, certificates) as called,
    ):
        assert await over_tls(served, certificates, "good.example:443", "good.example") == b"hello"
        with pytest.raises(ssl.SSLError, match="ACCESS_DENIED"):
            await over_tls(served, certificates, "good.example:443", "other-customer.example")
    assert called == ["good.example"]


async def test_an_address_is_reached_without_a_name(certificates: Certificates) -> None:
    async with (
        serving("93.184.215.14:443", **{"93.184.215.14": PUBLIC}) as served,
        pages(served, certificates) as called,
    ):
        assert await over_tls(served, certificates, "93.184.215.14:443", None) == b"hello"
    assert called == [None]


async def opened(served: Served, target: str, *pieces: bytes) -> bytes:
    """Send the pieces through a tunnel, one by one, and return all that comes back."""
    async with served.socket() as (reader, writer):
        writer.write(connect(target))
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await reader.read()


@pytest.mark.parametrize(
    ("sent", "answer", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: other-customer.example\r\n\r\n", b"HTTP/1.1 403 ", "does not begin with"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 403 ", "does not begin with"),
        (client_hello(None), ACCESS_DENIED, "names no host"),
        (
            with_extension(client_hello("good.example"), ECH, GREASE_ECH),
            ACCESS_DENIED,
            "may hide another name",
        ),
        (in_records(b"\x02\x00\x00\x00", size=4), ACCESS_DENIED, "does not begin with"),
        (in_records(b"\x01\x01\x00\x00", size=4), ACCESS_DENIED, "over 16,384 bytes"),
    ],
    ids=["http", "ssh", "no name", "ech", "no hello", "too long"],
)
async def test_what_may_name_another_host_goes_nowhere(sent: bytes, answer: bytes, reason: str) -> None:
    async with serving() as served:
        assert (await opened(served, "good.example:443", sent)).startswith(answer)
        (event,) = await served.until_noted()
    assert event.kind == "egress.refused"
    assert reason in event.detail["reason"]


async def test_a_hello_in_pieces_is_whole_before_it_goes_out() -> None:
    hello = in_records(client_hello("good.example")[5:], size=7)
    async with serving() as served, served.socket() as (reader, writer):
        writer.write(connect("good.example:443") + hello[:3])
        await reader.readuntil(b"\r\n\r\n")
        for byte in hello[3:]:
            writer.write(bytes([byte]))
            await writer.drain()
        assert await reader.readexactly(len(hello)) == hello
        writer.write(b"\x17\x03\x03\x00\x05later")
        assert await reader.readexactly(10) == b"\x17\x03\x03\x00\x05later"


async def test_a_hello_that_never_ends_is_cut_off_and_written_down() -> None:
    async with serving(limits=EgressLimits(hello_seconds=0.1)) as served:
        assert await opened(served, "good.example:443", client_hello("good.example")[:-1]) == ACCESS_DENIED
        (event,) = await served.until_noted()
    assert event.detail["reason"] == "no whole TLS hello came in time"


async def test_a_place_that_speaks_first_is_heard_where_its_port_is_listed() -> None:
    async with serving() as served:

        async def banner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-there\r\n")
            writer.write(await reader.readline())
            writer.close()

        async with await asyncio.start_server(banner, "127.0.0.1", 0) as server:
            served.internet.port = server.sockets[0].getsockname()[1]
            async with served.socket() as (reader, writer):
                writer.write(connect("good.example:22"))
                await reader.readuntil(b"\r\n\r\n")
                assert await reader.readline() == b"SSH-2.0-there\r\n"
                writer.write(b"SSH-2.0-here\r\n")
                assert await reader.read() == b"SSH-2.0-here\r\n"


async def test_refusals_in_a_loop_leave_one_row() -> None:
    async with serving() as served:
        for _ in range(20):
            assert await served.status("other.example:443") == 403
    assert len(served.events) == 1


async def test_a_store_that_cannot_be_written_leaves_one_line_however_often_it_is_needed() -> None:
    async def fail(*_: object) -> None:
        raise StoreError("it is read-only")

    with capture_logs() as logs:
        async with serving(approve=fail) as served:
            for _ in range(20):
                async with served.socket() as (reader, writer):
                    writer.write(connect("other.example:443"))
                    assert await reader.read() == b""
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["egress.failed"]


async def test_no_token_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with capture_logs() as logs:
        async with serving() as served:
            await served.status("good.example:443")
            await served.until_noted()
            await served.status("other.example:443")
    proof = base64.b64encode(f"run:{TOKEN}".encode()).decode()
    told = [entry["event"] for entry in logs if entry["log_level"] != "debug"]
    assert told == ["egress.connection", "egress.refused"]
    assert TOKEN not in f"{logs}{caplog.text}"
    assert proof not in f"{logs}{caplog.text}"
