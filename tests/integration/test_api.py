"""`/api`: every list and document over HTTP, held to its description; bad questions, whole walks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.context.context_manager import ContextManager
from orchestrator.context.tokens import EncodingCounter
from orchestrator.dashboard.services.reminders import ReminderService
from orchestrator.domain.values import Folder, RunId, TurnId
from orchestrator.home.directory import Home
from orchestrator.web.api.lists import RESOURCES, ApiResource, ApiSource, list_routes
from orchestrator.web.api.openapi import ErrorDocument, description, openapi_route
from orchestrator.web.api.queries import MAX_LIMIT, PageQuery
from orchestrator.web.api.routes import ApiServices, api_routes
from orchestrator.web.app import web_app
from orchestrator.web.console.sessions import SessionService
from tests.support.filled_store import fill_store
from tests.support.store_harness import SEOUL, StoreHarness

TOKEN = {"Authorization": "Bearer secret"}
PATHS = {"group": "family", "id": "M1", "who": "local:jane"}
QUERIES = {
    "/api/messages": "group=family",
    "/api/changes": "group=family",
    "/api/notices": "group=family",
    "/api/search": "text=milk",
    "/api/logs": "group=family",
}


@pytest.fixture
async def harness(store_harness: StoreHarness, tmp_path: Path) -> StoreHarness:
    """Something of everything, twice, so that each list has a second page."""
    await fill_store(store_harness, Home(tmp_path))
    return store_harness


@pytest.fixture
async def client(harness: StoreHarness, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    routes = [*list_routes(source_of(harness, tmp_path)), openapi_route()]
    app = web_app(routes, token="secret", on_refusal=lambda _: None)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=TOKEN) as client:
        yield client


def source_of(harness: StoreHarness, tmp_path: Path) -> ApiSource:
    def context_of(folder: Folder) -> ContextManager:
        return ContextManager.of(
            tmp_path / "context",
            folder,
            counter=EncodingCounter(),
            project_name=folder,
            report=lambda _: None,
        )

    async def draft(run_id: RunId | None, turn_id: TurnId) -> str:
        return f"a draft of {turn_id}"

    async def nodes() -> list[dict[str, Any]]:
        plain = {"labels": ("disk=fast",), "slots": 5, "groups": ("family",), "problem": None}
        return [{"name": name, "address": "10.0.0.1", "state": "ready", **plain} for name in ("one", "two")]

    return ApiSource(
        home=Home(tmp_path),
        clock=harness.clock,
        zone=SEOUL,
        reminders=ReminderService(zone_of=lambda _: SEOUL),
        context_of=context_of,
        draft=draft,
        nodes=nodes,
    )


def address(resource: ApiResource, task: str = "") -> str:
    own = {"/api/tasks/{id}": task, "/api/turns/{id}": "1"}
    path = resource.path.replace("{id}", own.get(resource.path, "{id}"))
    return f"{path.format(**PATHS)}?{QUERIES.get(resource.path, '')}"


async def task_id(harness: StoreHarness) -> str:
    return str((await harness.rows("SELECT id FROM scheduled_tasks LIMIT 1"))[0]["id"])


def test_every_route_is_described_and_no_other():
    given = dict.fromkeys(field.name for field in fields(ApiServices))
    services = ApiServices(**{**given, "pairings": {"whatsapp": None}})
    served = {(route.path, method) for route in api_routes(services) for method in route.methods - {"HEAD"}}
    described = {
        (path, method.upper()) for path, methods in description()["paths"].items() for method in methods
    }
    assert described == served


def test_every_link_leads_to_a_parameter_of_an_operation():
    """Schemathesis ignores a link that leads nowhere."""
    operations = {
        one["operationId"]: one for methods in description()["paths"].values() for one in methods.values()
    }
    links = [
        link
        for one in operations.values()
        for response in one["responses"].values()
        for link in response.get("links", {}).values()
    ]
    assert len(links) > 40
    for link in links:
        parameters = {one["name"] for one in operations[link["operationId"]]["parameters"]}
        assert set(link["parameters"]) <= parameters


async def test_a_method_that_a_path_does_not_take_is_told_all_that_it_takes():
    async def found(request: Request) -> Response:
        return Response()

    both = [Route("/a", found), Route("/a", found, methods=["POST"])]
    app = web_app(
        [Route("/healthz", found)], token="secret", on_refusal=lambda _: None, more_routes=lambda: both
    )
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=TOKEN) as client:
        refused = await client.delete("/a")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, POST")


def test_whatever_the_description_refers_to_is_in_it():
    document = description()
    assert document["openapi"].startswith("3.1")
    known = set(document["components"]["schemas"])
    assert references(document) <= {f"#/components/schemas/{name}" for name in known}
    assert len(references(document)) > 30


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(one) for one in value.values()))
    return set().union(*(references(one) for one in value)) if isinstance(value, list) else set()


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda one: one.path)
async def test_each_answer_is_as_it_is_described(harness, client, resource):
    answer = await client.get(address(resource, await task_id(harness)))

    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    resource.answer.model_validate_json(answer.content, strict=True)
    if issubclass(resource.query, PageQuery):
        assert answer.json()["rows"], "the description is held to something"


async def test_the_description_is_served(client):
    assert (await client.get("/api/openapi.json")).json() == description()


@pytest.mark.parametrize(
    "resource",
    [one for one in RESOURCES if issubclass(one.query, PageQuery)],
    ids=lambda one: one.path,
)
async def test_pages_of_one_row_walk_over_every_row_once(harness, client, resource):
    first = address(resource)
    whole = (await client.get(f"{first}&limit={MAX_LIMIT}")).json()
    assert whole["next"] is None
    rows, cursor = [], ""
    for _ in range(len(whole["rows"]) + 1):
        page = (await client.get(f"{first}&limit=1{cursor}")).json()
        rows += page["rows"]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    in_order = [key(row) for row in whole["rows"]]
    walked = [key(row) for row in rows]
    assert walked in (in_order, in_order[::-1])
    assert len(walked) >= (1 if resource.path == "/api/loops" else 2)


def key(row: dict[str, Any]) -> str:
    # What depends on the time of the question is left out.
    return repr({name: value for name, value in row.items() if name != "in_ms"})


BAD = (
    ("/api/messages?group=nobody", 404, "unknown_group"),
    ("/api/messages", 400, "bad_query"),
    ("/api/messages?group=family&limit=0", 400, "bad_query"),
    ("/api/messages?group=family&limit=201", 400, "bad_query"),
    ("/api/messages?group=family&limit=9" + "9" * 500, 400, "bad_query"),
    ("/api/messages?group=family&limit=ten", 400, "bad_query"),
    ("/api/messages?group=family&cursor=x", 400, "bad_query"),
    ("/api/messages?group=family&cursor=-1", 400, "bad_query"),
    ("/api/messages?group=family&cursor=" + "9" * 30, 400, "bad_query"),
    ("/api/messages?group=family&after=nan", 400, "bad_query"),
    ("/api/messages?group=family&curser=1", 400, "bad_query"),
    ("/api/messages?group=" + "x" * 65, 400, "bad_query"),
    ("/api/messages/family/nothing", 404, "unknown_message"),
    ("/api/messages/family/" + "9" * 40, 404, "unknown_message"),
    ("/api/messages/nobody/M1", 404, "unknown_group"),
    ("/api/messages/family/%00", 404, "unknown_message"),
    ("/api/turns?group=nobody", 404, "unknown_group"),
    ("/api/runs?group=%F0%9F%99%82", 404, "unknown_group"),
    ("/api/tasks/nothing", 404, "unknown_task"),
    ("/api/notices", 400, "bad_query"),
    ("/api/notifications?status=lost", 400, "bad_query"),
    ("/api/audit?since=yesterday", 422, "bad_time"),
    ("/api/audit?refused=perhaps", 400, "bad_query"),
    ("/api/usage?by=hour", 400, "bad_query"),
    ("/api/upcoming?days=32", 400, "bad_query"),
    ("/api/search", 400, "bad_query"),
    ("/api/search?text=", 422, "bad_search"),
    ("/api/search?text=" + "x" * 201, 422, "bad_search"),
    ("/api/search?text=x&since=" + "1" * 41, 400, "bad_query"),
    ("/api/logs?group=../../etc", 400, "bad_query"),
    ("/api/logs?group=nobody", 404, "no_log"),
    ("/api/logs?group=family&run=../x", 400, "bad_query"),
    ("/api/logs?lines=0", 400, "bad_query"),
    ("/api/logs", 404, "no_log"),
    ("/api/context/nobody", 404, "unknown_group"),
    ("/api/context/..%2F..", 404, None),
    ("/api/context/family/people/zoe", 422, "unknown_person"),
)


@pytest.mark.parametrize(("path", "status", "code"), BAD, ids=[path[:60] for path, *_ in BAD])
async def test_what_cannot_be_answered_is_refused_in_one_line(client, path, status, code):
    answer = await client.get(path)

    assert answer.status_code == status, answer.text
    if code is not None:
        told = ErrorDocument.model_validate_json(answer.content).error
        assert told.code == code
        assert "\n" not in told.message
        assert len(told.message) < 400


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda one: one.path)
async def test_nobody_reads_without_the_token_or_from_another_page(client, resource):
    path = address(resource, "t")
    assert (await client.get(path, headers={"Authorization": "Bearer other"})).status_code == 401
    assert (await client.get(path, headers={"Origin": "http://evil.example"})).status_code == 403
    assert (await client.get(path, headers={"Host": "evil.example"})).status_code == 403
    refused = await client.post(path)
    assert (refused.status_code, sorted(refused.headers["allow"].split(", "))) == (405, ["GET", "HEAD"])
    told = {"code": "method_not_allowed", "message": f"POST is not for {path.partition('?')[0]}."}
    assert refused.json()["error"] == told


async def test_who_is_signed_in_to_the_console_reads_and_changes_nothing(store_harness, tmp_path):
    await store_harness.add_group("family")
    sessions = SessionService(
        store_harness.database, store_harness.database, token="secret", clock=store_harness.clock
    )
    signed_in = await sessions.sign_in(sessions.make_code(), agent="Firefox")

    async def is_session(cookie: str, agent: str) -> bool:
        return await sessions.find(cookie, agent=agent) is not None

    async def post(_: Request) -> Response:
        return Response("changed")

    routes = [*list_routes(source_of(store_harness, tmp_path)), Route("/api/x", post, methods=["POST"])]
    app = web_app(routes, token="secret", on_refusal=lambda _: None, is_session=is_session)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1"
    ) as browser:
        cookie = {"Cookie": f"other=1; andy_session={signed_in.cookie}"}
        assert (await browser.get("/api/groups", headers=cookie)).json()["rows"]
        assert (await browser.post("/api/x", headers=cookie)).status_code == 401
        assert (await browser.get("/groups", headers=cookie)).status_code == 401
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert (await browser.get("/api/groups", headers=cookie | headers)).status_code == 403
        wrong = {"Cookie": f"andy_session={signed_in.session.id}.x"}
        assert (await browser.get("/api/groups", headers=wrong)).status_code == 401
        await sessions.sign_out(signed_in)
        assert (await browser.get("/api/groups", headers=cookie)).status_code == 401


async def test_a_client_that_was_away_goes_on_after_the_last_message_it_saw(client):
    rows = (await client.get("/api/messages?group=family")).json()["rows"]
    later = (await client.get(f"/api/messages?group=family&after={rows[1]['seq']}&limit=1")).json()["rows"]
    assert later == rows[2:3]


async def test_routes_that_nobody_has_asked_for_are_made_at_the_first_request_and_once():
    made = []

    async def found(_: Request) -> Response:
        return Response("found")

    def more() -> list[Route]:
        made.append(1)
        return [Route("/later", found)]

    app = web_app([Route("/healthz", found)], token="secret", on_refusal=lambda _: None, more_routes=more)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=TOKEN) as client:
        assert (await client.get("/healthz")).text == "found"
        assert made == []
        answers = await asyncio.gather(*(client.get("/later") for _ in range(5)))
        assert {answer.text for answer in answers} == {"found"}
        nowhere = await client.get("/nowhere")
        assert nowhere.status_code == 404
        assert nowhere.json()["error"] == {"code": "not_found", "message": "There is nothing at /nowhere."}
    assert made == [1]
