"""The way out, as a hostile container may use it; nothing but loopback is ever reached."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from orchestrator.base.asgi_server import listen
from orchestrator.domain.network_targets import NetworkTarget, parse_target
from orchestrator.domain.values import Folder, RunId, TurnId
from orchestrator.proxies.egress.destinations import Resolver
from orchestrator.proxies.egress.proxy import Approve, EgressCaller, EgressLimits, EgressProxy
from orchestrator.store.audit import AuditEvent
from tests.doubles.clock import FakeClock
from tests.processes.small_internet import PUBLIC, SmallInternet
from tests.support.until import DEADLINE_SECONDS

TOKEN = "andy-token"


@dataclass
class Served:
    port: int
    internet: SmallInternet
    allowed: set[NetworkTarget]
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
        allowed={parse_target(text) for text in allowed or ("good.example:443",)},
    )

    async def identify(token: str) -> EgressCaller | None:
        if token != TOKEN:
            return None
        return EgressCaller(
            run_id=RunId("r"),
            folder=Folder("family"),
            turn_id=TurnId(1),
            allowed=frozenset(served.allowed),
            asks=approve is not None,
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
            writer.write(connect("good.example:443") + b"early ")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 200 Connection established\r\n\r\n"
            writer.write(b"later")
            writer.write_eof()
            assert await reader.read() == b"early later|end"
        (event,) = await served.until_noted()
    assert served.internet.dialled == [(PUBLIC, 443)]
    assert (event.kind, event.folder, event.run_id, event.turn_id) == ("egress.connection", "family", "r", 1)
    assert event.detail == {
        "target": "good.example:443",
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
            writer.write(connect("good.example:443"))
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.read() == b""
        (event,) = await served.until_noted()
    assert event.kind == "egress.connection"


async def test_a_tunnel_in_use_stays_open() -> None:
    loop = asyncio.get_running_loop()
    async with serving(limits=EgressLimits(idle_seconds=2.0)) as served, served.socket() as (reader, writer):
        writer.write(connect("good.example:443"))
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
        for _ in range(700):
            _, writer = await stack.enter_async_context(served.socket(peer="127.0.0.2"))
            writer.write(b"CONNECT good.example:443 HTTP/1.1\r\n")
        (event,) = await served.until_noted()
        assert await served.status("good.example:443") == 200
    assert (event.detail["peer"], event.detail["reason"]) == (
        "127.0.0.2",
        "this container has too many connections open",
    )


async def test_connections_that_are_being_made_count_for_their_group() -> None:
    async with serving(limits=EgressLimits(connections_a_group=1)) as served, AsyncExitStack() as stack:
        asked = asyncio.Event()

        async def never(target: NetworkTarget) -> list[str]:
            asked.set()
            return await asyncio.get_running_loop().create_future()

        served.internet.resolve = never  # type: ignore[method-assign, assignment]
        _, writer = await stack.enter_async_context(served.socket())
        writer.write(connect("good.example:443"))
        await asked.wait()
        assert await served.status("good.example:443") == 403
        (event,) = await served.until_noted()
    assert event.detail["reason"] == "this group has too many connections open"


async def test_a_place_that_breaks_off_ends_the_tunnel() -> None:
    async with serving() as served:

        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.transport.abort()

        rude = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        served.internet.port = rude.sockets[0].getsockname()[1]
        async with served.socket() as (reader, writer):
            writer.write(connect("good.example:443") + b"x")
            await reader.readuntil(b"\r\n\r\n")
            with suppress(ConnectionError):
                assert await reader.read() == b""
        assert (await served.until_noted())[0].detail["bytes_out"] == 1
        rude.close()
        await rude.wait_closed()


async def test_refusals_in_a_loop_leave_one_row() -> None:
    async with serving() as served:
        for _ in range(20):
            assert await served.status("other.example:443") == 403
    assert len(served.events) == 1


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
