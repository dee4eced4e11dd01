"""Files of chats over HTTP: what came in and what an agent sent, and nothing else of this machine."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from orchestrator.domain.values import Attachment, ChatJid, Folder
from orchestrator.groups import attachments
from orchestrator.store.conversation import outbox
from orchestrator.web.app import web_app
from orchestrator.web.downloads import file_routes
from tests.integration.test_api import TOKEN, source_of
from tests.support.store_harness import StoreHarness


@pytest.fixture
async def client(store_harness: StoreHarness, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    for folder in ("family", "chess"):
        await store_harness.add_group(folder)
        (tmp_path / "groups" / folder / "attachments").mkdir(parents=True)
    (tmp_path / "data" / "outgoing").mkdir(parents=True)
    (tmp_path / "secret").write_text("key")
    app = web_app(file_routes(source_of(store_harness, tmp_path)), token="secret", on_refusal=lambda _: None)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=TOKEN) as client:
        yield client


async def send(
    store_harness: StoreHarness, path: Path, *, name: str = "plan.html", folder: str = "family"
) -> str:
    """Queue a message with a file, and return its id."""
    async with store_harness.database.transaction() as tx:
        await outbox.add(
            tx,
            chat_jid=ChatJid(f"local:{folder}"),
            folder=Folder(folder),
            text="the plan",
            dedupe_key=str(path) + name,
            now_ms=1,
            attachment=Attachment(path=path, name=name, mime="text/html"),
        )
    return str((await store_harness.outgoing())[-1].message_id)


def assert_saved_only(answer: httpx.Response, name: str) -> None:
    """A browser saves it, whatever it is."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"] == f"attachment; filename*=UTF-8''{quote(name)}"
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"


async def test_what_came_in_and_what_was_sent_is_saved_and_never_shown(client, store_harness, tmp_path):
    page = b"<script>alert(1)</script>"
    name = "b\u00f6se \u202egpj.html"
    (tmp_path / "groups/family/attachments/evil.html").write_bytes(page)
    (tmp_path / "data/outgoing/out-1a").write_bytes(page)
    message = await send(store_harness, tmp_path / "data/outgoing/out-1a", name=name)

    received = await client.get("/api/groups/family/files/evil.html")
    assert_saved_only(received, "evil.html")
    sent = await client.get(f"/api/messages/family/{message}/file")
    assert_saved_only(sent, name)
    assert received.content == sent.content == page


@pytest.mark.parametrize(
    "name", ["link", "hard", "pipe", "inside", "%2e%2e", "..%2f..%2fsecret", "none", "x%00", "%ff"]
)
async def test_no_name_leads_to_another_file_of_this_machine(client, tmp_path, name):
    place = tmp_path / "groups/family/attachments"
    (place / "link").symlink_to(tmp_path / "secret")
    os.link(tmp_path / "secret", place / "hard")
    os.mkfifo(place / "pipe")
    (place / "inside").mkdir()

    answer = await client.get(f"/api/groups/family/files/{name}")
    assert answer.status_code in (404, 422)
    assert "key" not in answer.text


async def test_a_row_that_names_another_file_gives_none(client, store_harness, tmp_path):
    """The store may be one of a backup that somebody else has made."""
    (tmp_path / "data/outgoing/out-2b").symlink_to(tmp_path / "secret")
    for path in (tmp_path / "secret", tmp_path / "data/outgoing/out-2b", tmp_path / "data/outgoing/out-3c"):
        message = await send(store_harness, path)
        answer = await client.get(f"/api/messages/family/{message}/file")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "file_not_kept")


async def test_a_file_is_that_of_its_own_group_and_of_a_message_that_has_one(client, store_harness, tmp_path):
    (tmp_path / "data/outgoing/out-4d").write_bytes(b"chess")
    message = await send(store_harness, tmp_path / "data/outgoing/out-4d", folder="chess")
    for path in (f"family/{message}", "chess/nothing", "nobody/x"):
        answer = await client.get(f"/api/messages/{path}/file")
        assert answer.status_code == 404, path
    assert (await client.get(f"/api/messages/chess/{message}/file")).content == b"chess"


async def test_without_the_token_nothing_is_given(client, tmp_path):
    (tmp_path / "groups/family/attachments/note").write_text("x")
    stranger = {"Authorization": "Bearer wrong"}
    assert (await client.get("/api/groups/family/files/note", headers=stranger)).status_code == 401


async def test_what_is_larger_than_the_bound_is_not_given(client, tmp_path, monkeypatch):
    (tmp_path / "groups/family/attachments/large").write_bytes(b"x" * 100)
    monkeypatch.setattr("orchestrator.web.downloads.MAX_BYTES", 99)
    assert attachments.FOLDER == "attachments"
    assert (await client.get("/api/groups/family/files/large")).status_code == 422
