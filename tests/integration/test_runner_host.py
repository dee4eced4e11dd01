from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agent_runner.ipc_client import HostClient
from agent_runner.wire.mailbox import Command, ListReminders, Reply, SendMessage, parse_command
from agent_runner.workspace import Workspace
from tests.support.until import DEADLINE_SECONDS

NewClient = Callable[..., HostClient]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path)
    for directory in (workspace.messages, workspace.tasks, workspace.replies):
        directory.mkdir(parents=True)
    return workspace


@pytest.fixture
def client(workspace: Workspace) -> Iterator[NewClient]:
    """Make clients of the host, which are closed at the end."""
    with ExitStack() as stack:

        def make(**options: Any) -> HostClient:
            made = HostClient(workspace, **options)
            stack.callback(made.close)
            return made

        yield make


async def request_in(directory: Path) -> Command:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not (found := requests(directory)):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return found[0]


def requests(directory: Path) -> list[Command]:
    return [parse_command(file.read_text()) for file in sorted(directory.glob("*.json"))]


def answer(workspace: Workspace, request_id: str, text: str) -> None:
    reply = Reply(request_id=request_id, ok=True, code="done", text=text, data={"id": 7})
    partial = workspace.replies / ".partial"
    partial.write_text(reply.to_json())
    partial.rename(workspace.replies / f"{request_id}.json")


async def test_a_message_lies_in_messages_and_its_reply_comes_back(
    workspace: Workspace, client: NewClient
) -> None:
    before_ms = time.time_ns() // 1_000_000
    asked = asyncio.create_task(client(reply_seconds=60).ask(SendMessage(text="안녕 ---")), name="ask")
    request = await request_in(workspace.messages)
    assert isinstance(request, SendMessage)
    assert request.asked_ms is not None
    assert before_ms <= request.asked_ms <= time.time_ns() // 1_000_000
    assert request.text == "안녕 ---"
    assert request.request_id
    answer(workspace, request.request_id, "Sent.")
    reply = await asked
    assert (reply.ok, reply.text, reply.data) == (True, "Sent.", {"id": 7})


async def test_any_other_command_lies_in_tasks(workspace: Workspace, client: NewClient) -> None:
    asked = asyncio.create_task(client(reply_seconds=60).ask(ListReminders()), name="ask")
    request = await request_in(workspace.tasks)
    assert request.request_id
    answer(workspace, request.request_id, "None.")
    assert (await asked).text == "None."


async def test_two_requests_at_once_get_their_own_replies(workspace: Workspace, client: NewClient) -> None:
    host = client(reply_seconds=60)
    first = asyncio.create_task(host.ask(SendMessage(text="one")), name="first")
    second = asyncio.create_task(host.ask(ListReminders()), name="second")
    one, two = await request_in(workspace.messages), await request_in(workspace.tasks)
    answer(workspace, two.request_id or "", "for two")
    assert (await second).text == "for two"
    answer(workspace, one.request_id or "", "for one")
    assert (await first).text == "for one"


async def test_a_silent_host_is_reported_as_such(workspace: Workspace, client: NewClient) -> None:
    reply = await client(reply_seconds=0.1).ask(ListReminders())
    assert (reply.ok, reply.code) == (False, "no_answer")
    assert reply.text.startswith("The host did not answer in 0.1 s")


async def test_an_unreadable_answer_is_reported_as_such(workspace: Workspace, client: NewClient) -> None:
    asked = asyncio.create_task(client(reply_seconds=60).ask(ListReminders()), name="ask")
    request = await request_in(workspace.tasks)
    (workspace.replies / f"{request.request_id}.json").write_text("[1")
    assert (await asked).code == "bad_reply"


async def test_an_empty_answer_that_a_power_failure_left_is_waited_over(
    workspace: Workspace, client: NewClient
) -> None:
    path = workspace.replies / "t1-r0.json"
    path.touch()
    asked = asyncio.create_task(client(reply_seconds=60).ask(ListReminders(request_id="t1-r0")), name="ask")
    await request_in(workspace.tasks)
    answer(workspace, "t1-r0", "None.")
    assert (await asked).text == "None."


async def test_a_request_that_cannot_be_written_is_reported_as_such(
    workspace: Workspace, client: NewClient
) -> None:
    workspace.tasks.rmdir()
    reply = await client().ask(ListReminders())
    assert (reply.ok, reply.code) == (False, "not_written")


async def test_a_missing_replies_directory_ends_in_no_answer(workspace: Workspace, client: NewClient) -> None:
    workspace.replies.rmdir()
    reply = await client(reply_seconds=0.1).ask(ListReminders())
    assert reply.code == "no_answer"
