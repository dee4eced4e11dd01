"""Who is not let in by the HTTP API leaves a row in the audit: one a kind and minute."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from orchestrator.store import audit
from orchestrator.store.database import Tx
from orchestrator.web.guard import AccessGuard
from orchestrator.web.refusals import RefusalAudit, RefusedRequest
from tests.support.store_harness import StoreHarness
from tests.support.until import until

EVIL = "https://evil.example"
WITH_TOKEN = {"Authorization": "Bearer secret"}


async def inside(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("let in")


@pytest.fixture
def refusals(store_harness: StoreHarness) -> RefusalAudit:
    return RefusalAudit(store_harness.database, clock=store_harness.clock)


@pytest.fixture
async def outside(refusals: RefusalAudit) -> AsyncIterator[httpx.AsyncClient]:
    guard = AccessGuard(inside, token="secret", on_refusal=refusals.note)
    transport = httpx.ASGITransport(guard, client=("10.0.0.7", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def rows(store_harness: StoreHarness) -> list[dict[str, Any]]:
    async with store_harness.database.reading() as tx:
        found = await audit.newest(tx, limit=100)
    return [one["detail"] for one in found if one["kind"] == "http.refused"]


async def stop(running: asyncio.Task[None]) -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def knock(client: httpx.AsyncClient, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return (await client.get("/messages/x?key=mine", headers=named)).status_code


async def test_each_kind_of_refusal_is_written_down_with_what_it_named_and_no_token(
    store_harness: StoreHarness, refusals: RefusalAudit, outside: httpx.AsyncClient
) -> None:
    assert await knock(outside, Authorization="Bearer guessed") == 401
    assert await knock(outside, Origin=EVIL, **WITH_TOKEN) == 403
    assert await knock(outside, Origin="http://[", **WITH_TOKEN) == 403
    assert await knock(outside, Host="evil.example", **WITH_TOKEN) == 403
    assert await knock(outside, Sec_Fetch_Site="cross-site", **WITH_TOKEN) == 403
    await refusals.write()
    asked = {"method": "GET", "path": "/messages/x", "peer": "10.0.0.7"}
    found = await rows(store_harness)
    assert sorted(found, key=lambda one: one["error"]) == [
        {"error": "bad_host", "count": 1, "given": "evil.example", **asked},
        {"error": "bad_origin", "count": 3, "given": EVIL, **asked},
        {"error": "bad_token", "count": 1, "given": None, **asked},
    ]
    assert "guessed" not in str(found)


@pytest.mark.parametrize(
    "page",
    [
        {"Origin": "http://localhost:3000"},
        {"Origin": "http://127.0.0.1:8700"},
        {"Origin": "https://localhost:8700"},
        {"Origin": "http://localhost"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
async def test_a_page_of_another_port_of_this_machine_may_not_come_in(
    outside: httpx.AsyncClient, page: dict[str, str]
) -> None:
    assert await knock(outside, Host="localhost:8700", **page, **WITH_TOKEN) == 403


@pytest.mark.parametrize(
    "page",
    [
        {"Host": "localhost:8700", "Origin": "http://localhost:8700", "Sec_Fetch_Site": "same-origin"},
        {"Host": "[::1]:8700", "Origin": "http://[::1]:8700"},
        {"Host": "[::1]", "Origin": "http://[::1]"},
        {"Host": "127.0.0.1", "Origin": "http://127.0.0.1:80"},
        {"Host": "localhost:8700", "Sec_Fetch_Site": "none"},
    ],
)
async def test_andys_own_pages_may_come_in(outside: httpx.AsyncClient, page: dict[str, str]) -> None:
    with pytest.raises(AssertionError, match="let in"):
        await knock(outside, **page, **WITH_TOKEN)


async def test_a_first_refusal_is_written_at_once_and_a_thousand_more_are_one_row(
    store_harness: StoreHarness, refusals: RefusalAudit, outside: httpx.AsyncClient
) -> None:
    running = asyncio.create_task(refusals.run(), name="refusals")
    await knock(outside)
    await until(lambda: rows(store_harness), "the first is there")
    for _ in range(1000):
        await knock(outside)
    assert [one["count"] for one in await rows(store_harness)] == [1]
    await stop(running)
    assert [one["count"] for one in await rows(store_harness)] == [1, 1000]


async def test_a_refusal_of_another_kind_need_not_wait_for_the_end_of_the_minute(
    store_harness: StoreHarness, refusals: RefusalAudit, outside: httpx.AsyncClient
) -> None:
    running = asyncio.create_task(refusals.run(), name="refusals")
    for expected, headers in (("bad_token", {}), ("bad_origin", {"Origin": EVIL, **WITH_TOKEN})):
        await knock(outside, **headers)

        async def is_there(error: str = expected) -> bool:
            return error in {one["error"] for one in await rows(store_harness)}

        await until(is_there, f"{expected} is there")
    await stop(running)


async def test_the_mark_of_a_path_that_is_left_out_is_written_as_it_is(
    store_harness: StoreHarness, refusals: RefusalAudit
) -> None:
    refusals.note(RefusedRequest(error="unknown_hook", path="/hooks/…", method="POST", peer=None))
    refusals.note(RefusedRequest(error="unknown_path", path="/ä", method="GET", peer=None))
    await refusals.write()
    assert [one["path"] for one in await rows(store_harness)] == ["/hooks/…", r"/\xe4"]


async def test_after_a_minute_those_in_between_are_written_though_nobody_knocks_again(
    store_harness: StoreHarness,
) -> None:
    refusals = RefusalAudit(store_harness.database, clock=store_harness.clock, period_seconds=0.05)
    running = asyncio.create_task(refusals.run(), name="refusals")
    for _ in range(5):
        refusals.note(RefusedRequest(error="bad_token", path="/chat", method="POST", peer=None))
        await asyncio.sleep(0)

    async def total() -> bool:
        return bool(sum(one["count"] for one in await rows(store_harness)) == 5)

    await until(total, "all of them are written")
    await stop(running)


async def test_what_comes_while_a_row_is_written_has_a_row_with_its_own_time_path_and_peer(
    store_harness: StoreHarness, refusals: RefusalAudit, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = audit.append

    def note(path: str) -> None:
        store_harness.clock.wall_ms += 1_000
        refusals.note(RefusedRequest(error="bad_token", path=path, method="GET", peer=path[1:]))

    async def append_while_more_come(tx: Tx, event: audit.AuditEvent) -> None:
        monkeypatch.undo()
        note("/second")
        note("/third")
        await append(tx, event)

    monkeypatch.setattr(audit, "append", append_while_more_come)
    note("/first")
    first_ms = store_harness.clock.now_ms()
    await refusals.write()
    await refusals.write()
    await refusals.write()

    async with store_harness.database.reading() as tx:
        found = await audit.newest(tx, limit=100)
    written = [(one["at_ms"], *map(one["detail"].get, ("path", "peer", "count"))) for one in found]
    assert sorted(written) == [
        (first_ms, "/first", "first", 1),
        (first_ms + 1_000, "/second", "second", 2),
    ]


async def test_what_cannot_be_written_down_now_is_counted_on(
    store_harness: StoreHarness, refusals: RefusalAudit, outside: httpx.AsyncClient
) -> None:
    async def rename(before: str, after: str) -> None:
        async with store_harness.database.transaction() as tx:
            await tx.execute(f"ALTER TABLE {before} RENAME TO {after}")

    await rename("audit", "away")
    await knock(outside)
    await refusals.write()
    await rename("away", "audit")
    assert await rows(store_harness) == []
    await knock(outside)
    await refusals.write()
    await refusals.write()
    assert [one["count"] for one in await rows(store_harness)] == [2]


async def test_what_is_stored_while_the_host_is_told_to_stop_is_stored_once(
    store_harness: StoreHarness, refusals: RefusalAudit, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = store_harness.database._commit

    async def commit_and_stop() -> None:
        monkeypatch.undo()
        running.cancel()
        await commit()

    monkeypatch.setattr(store_harness.database, "_commit", commit_and_stop)
    running = asyncio.create_task(refusals.run(), name="refusals")
    refusals.note(RefusedRequest(error="bad_token", path="/chat", method="POST", peer=None))
    await asyncio.wait({running})
    assert running.cancelled()
    assert [one["count"] for one in await rows(store_harness)] == [1]
