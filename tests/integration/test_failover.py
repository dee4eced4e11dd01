"""The next service answers when the first does not: each fault, for each kind of turn, and the way back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_runner.wire.mailbox import Reply
from orchestrator.context import summarizer
from orchestrator.context.models import ContextMessage, iso
from orchestrator.context.tokens import EstimatingCounter
from orchestrator.domain import failures
from orchestrator.domain.model_services import ServicePrice, WorkKind
from orchestrator.domain.values import TurnKind, TurnState
from orchestrator.home.settings import Settings
from orchestrator.inbound.prompt import BEGUN_BEFORE, MAY_BE_DONE
from orchestrator.proxies import feature
from orchestrator.proxies.model.failover import QUIET_MS
from orchestrator.proxies.model.limits import ModelProxyLimits
from orchestrator.reports import models
from orchestrator.store import audit
from orchestrator.store.audit import AuditEvent
from orchestrator.store.conversation import outbox
from orchestrator.store.runs import commands, tool_calls, turns
from orchestrator.store.settings import model_services
from tests.doubles.faulty_upstream import Behave, FaultyUpstream, Received, answer, hang, reset
from tests.doubles.messages_api import Say, ScriptedMessagesApi, all_text
from tests.support.model_services_harness import ServicesHarness, said, several_services
from tests.support.read_only import read_only
from tests.support.store_harness import StoreHarness
from tests.support.until import until

KINDS = (TurnKind.CHAT, TurnKind.TASK, TurnKind.WORKER)
JSON = "application/json"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def refusal(status: int, kind: str, message: str) -> Behave:
    error = {"type": "error", "error": {"type": kind, "message": message}}
    return answer(status, json.dumps(error).encode(), content_type=JSON)


def chunk(name: str, data: dict[str, object]) -> bytes:
    event = f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode()
    return f"{len(event):x}\r\n".encode() + event + b"\r\n"


BEGUN = HEAD + chunk("message_start", {"message": {"model": "m", "usage": {"input_tokens": 1}}})
TOOL = {"index": 0, "content_block": {"type": "tool_use", "id": "t", "name": "Bash", "input": {}}}
OPENED = BEGUN + chunk("content_block_start", TOOL)


def begun(raw: bytes, *, then: str) -> Behave:
    """Begin an answer with `raw`, then close, wait, or end the stream in good form."""

    async def behave(
        _: Received, up: FaultyUpstream, reader: asyncio.StreamReader, to: asyncio.StreamWriter
    ) -> None:
        to.write(raw)
        await to.drain()
        match then:
            case "stops":
                await up.until_hung_up(reader)
            case "ends":
                to.write(b"0\r\n\r\n")
            case _:
                to.transport.abort()

    return behave


async def by_the_byte(
    _: Received, __: FaultyUpstream, reader: asyncio.StreamReader, to: asyncio.StreamWriter
) -> None:
    """Send a byte now and then, which never makes an event; end when nobody listens."""
    to.write(HEAD)
    with suppress(ConnectionError):
        for _number in range(500):
            to.write(b"1\r\n:\r\n")
            await to.drain()
            await asyncio.sleep(0.02)


FAULTS: dict[str, Behave] = {
    "refused key": refusal(401, "authentication_error", "invalid x-api-key"),
    "no credit": refusal(400, "invalid_request_error", "Your credit balance is too low."),
    "unknown model": refusal(404, "not_found_error", "model: claude-9"),
    "unknown model in other words": refusal(400, "invalid_request_error", "claude-9 is not a valid model ID"),
    "overload": refusal(529, "overloaded_error", "Overloaded"),
    "5xx": answer(500, b"oops", content_type="text/plain"),
    "no answer": reset,
    "no first byte": hang,
    "a stream that stops": begun(BEGUN, then="stops"),
    "another format": answer(200, b'{"object":"chat.completion","choices":[]}', content_type=JSON),
    "a redirect": answer(302, b"", location="https://login.example/"),
    "a page": answer(200, b"<html>Log in</html>", content_type="text/html"),
    "a break within a tool call": begun(OPENED, then="breaks"),
    "an end within a tool call": begun(OPENED, then="ends"),
    "a byte now and then": by_the_byte,
}


async def pings(
    _: Received, up: FaultyUpstream, reader: asyncio.StreamReader, to: asyncio.StreamWriter
) -> None:
    """Begin an answer, and then send nothing but signs of life; end when nobody listens."""
    to.write(BEGUN)
    with suppress(ConnectionError):
        for _number in range(500):
            to.write(chunk("ping", {}))
            await to.drain()
            await asyncio.sleep(0.02)


STREAM = "text/event-stream"
MORE_FAULTS: dict[str, Behave] = {
    "an object that is no message": answer(200, b'{"ok":true}', content_type=JSON),
    "a message in place of a stream": answer(200, b'{"type":"message","content":[]}', content_type=JSON),
    "an error below a good status": answer(
        200, b'{"type":"error","error":{"type":"overloaded_error"}}', content_type=JSON
    ),
    "a stream of another format": answer(
        200, b'data: {"choices":[]}\n\ndata: [DONE]\n\n', content_type=STREAM
    ),
    "an empty stream": answer(200, b"", content_type=STREAM),
    "half an event": begun(HEAD + b"c\r\nevent: messag\r\n", then="stops"),
    "an error as the first event": answer(
        200, b'event: error\ndata: {"type":"error","error":{"type":"api_error"}}\n\n', content_type=STREAM
    ),
    "nothing but pings": pings,
}


SILENT = {"no first byte", "a stream that stops", "a byte now and then", "half an event", "nothing but pings"}
"""Faults that the proxy recognises by the time that passes."""


@pytest.fixture
def spare() -> Iterator[ScriptedMessagesApi]:
    with ScriptedMessagesApi(default=Say("from the spare one")) as api:
        yield api


@pytest.fixture
async def first() -> AsyncIterator[FaultyUpstream]:
    async with FaultyUpstream() as upstream:
        yield upstream


@pytest.fixture
async def harness(
    store_harness: StoreHarness,
    database_path: Path,
    tmp_path: Path,
    first: FaultyUpstream,
    spare: ScriptedMessagesApi,
) -> AsyncIterator[ServicesHarness]:
    async with several_services(
        store_harness,
        database_path,
        tmp_path,
        url=first.url,
        limits=ModelProxyLimits(life_after_seconds=0.1),
        settings=Settings(tz="Asia/Seoul", andy_model="claude-sonnet-4-6"),
    ) as made:
        await made.add("spare", spare.url)
        await made.choose(WorkKind.FALLBACK, "spare/qwen3")
        yield made


def works(first: FaultyUpstream) -> None:
    first.behave = begun_and_said


async def begun_and_said(
    _: Received, __: FaultyUpstream, ___: asyncio.StreamReader, to: asyncio.StreamWriter
) -> None:
    to.write(BEGUN)
    to.write(chunk("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "first"}}))
    to.write(chunk("message_stop", {}) + b"0\r\n\r\n")


async def conditions(harness: ServicesHarness) -> list[dict[str, Any]]:
    async with harness.store_harness.database.reading() as tx:
        return await models.conditions(tx, harness.proxies.models)


def places(harness: ServicesHarness) -> list[str]:
    return [one.run.service or "anthropic" for one in harness.attempts]


CASES = [(fault, kind) for fault in FAULTS for kind in KINDS] + [
    (fault, TurnKind.CHAT) for fault in MORE_FAULTS
]


@pytest.mark.parametrize(("fault", "kind"), CASES)
async def test_whatever_the_first_does_the_next_answers_the_same_turn_and_the_first_comes_back(
    harness: ServicesHarness, first: FaultyUpstream, fault: str, kind: TurnKind
) -> None:
    first.behave = (FAULTS | MORE_FAULTS)[fault]
    harness.wait_briefly(is_brief=fault in SILENT)
    began_ms = harness.store_harness.clock.now_ms()
    turn = await harness.settle(await harness.asked(kind))

    assert (turn.state, turn.attempt) == (TurnState.ANSWERED, 1), "no attempt counts"
    assert places(harness) == ["anthropic", "spare"]
    assert harness.attempts[-1].text == "from the spare one"
    assert harness.attempts[0].run.provider != harness.attempts[1].run.provider
    assert harness.store_harness.clock.now_ms() == began_ms, "it waited for nothing"

    await harness.proxies.failover.test_once()
    works(first)
    harness.wait_briefly(is_brief=False)
    await harness.proxies.failover.test_once()
    turn = await harness.settle(await harness.asked(kind))
    assert (turn.state, places(harness)[2:]) == (TurnState.ANSWERED, ["anthropic"])
    assert harness.attempts[-1].text == "first"


async def test_what_the_host_has_met_itself_all_turns_leave_and_the_owner_is_told_once_with_the_fix(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    first.behave = FAULTS["refused key"]
    await harness.settle(await harness.asked())
    await harness.proxies.failover.test_once()
    await harness.proxies.failover.test_once()
    await harness.settle(await harness.asked(TurnKind.TASK))

    assert places(harness) == ["anthropic", "spare", "spare"], "the second turn does not try"
    down, spare = await conditions(harness)
    assert (down["used_by"], down["stand_in"]) == (["main", "family"], "spare/qwen3")
    assert down["down_since_ms"] == harness.store_harness.clock.now_ms()
    assert down["mend"] == "Put a valid key into .env."
    assert (spare["used_by"], spare["down_since_ms"]) == ([], None)
    (told,) = await harness.told("main")
    assert "'anthropic' cannot be used" in told
    assert "Put a valid key into .env." in told
    works(first)
    await harness.proxies.failover.test_once()
    assert (await harness.told("main"))[1:] == [
        "✅ The model service 'anthropic' answers again: it is asked from the next turn on."
    ]
    assert [one["down_since_ms"] for one in await conditions(harness)] == [None, None]


async def test_each_service_is_listed_with_the_groups_and_the_kinds_of_work_that_ask_it(
    harness: ServicesHarness,
) -> None:
    await harness.configure(model="spare/qwen3", models={"worker": "claude-haiku-4-5"})
    of_dotenv, spare = await conditions(harness)
    assert (of_dotenv["used_by"], spare["used_by"]) == (["main", "family (worker)"], ["family"])


async def test_what_one_turn_alone_has_met_stops_no_other(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    """A container can provoke a refusal; the host's own question is answered."""

    async def refuses_containers(received: Received, *rest: object) -> None:
        is_hosts = received.values("user-agent") == ["andy"]
        behave = begun_and_said if is_hosts else FAULTS["refused key"]
        await behave(received, *rest)  # type: ignore[arg-type]

    first.behave = refuses_containers
    await harness.settle(await harness.asked())
    assert harness.proxies.models.down == set(), "nobody else leaves it before the host has asked"
    await harness.proxies.failover.test_once()

    assert harness.proxies.models.down == set()
    assert await harness.told("main") == []
    works(first)
    await harness.settle(await harness.asked())
    assert places(harness) == ["anthropic", "spare", "anthropic"]


async def test_a_chat_is_told_once_in_one_line_where_it_took_long(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    clock = harness.store_harness.clock

    async def slow(*rest: object) -> None:
        clock.wall_ms += failures.MOVE_NOTICE_AFTER_MS + 1
        await reset(*rest)  # type: ignore[arg-type]

    first.behave = slow
    await harness.settle(await harness.asked())
    assert await harness.told("family") == [failures.MOVED, "from the spare one"]
    first.behave = FAULTS["5xx"]
    await harness.settle(await harness.asked())
    assert (await harness.told("family"))[2:] == ["from the spare one"]


async def test_what_was_done_before_is_told_so_that_it_is_not_done_twice(
    harness: ServicesHarness, first: FaultyUpstream, spare: ScriptedMessagesApi
) -> None:
    first.behave = FAULTS["no answer"]
    turn = await harness.attempt(await harness.asked())
    run = harness.attempts[0].run
    async with harness.store_harness.database.transaction() as tx:
        for number, tool in enumerate(("mcp__andy__send_message", "Bash")):
            summary = f"step {number}"
            await tool_calls.begin(
                tx, turn, run, call_id=tool, parent_id=None, tool=tool, summary=summary, now_ms=1
            )
        await tool_calls.end(tx, turn, run, call_id="Bash", is_ok=False, took_ms=1, now_ms=2)
    await harness.settle(turn)

    told = all_text(spare.turns[0])
    assert BEGUN_BEFORE in told
    assert f"- mcp__andy__send_message: step 0\n- Bash: step 1{MAY_BE_DONE}" in told


async def test_commands_of_an_output_that_was_not_read_are_told_so_that_they_are_not_given_twice(
    harness: ServicesHarness, first: FaultyUpstream, spare: ScriptedMessagesApi
) -> None:
    first.behave = FAULTS["no answer"]
    turn = await harness.attempt(await harness.asked())
    run = harness.attempts[0].run
    async with harness.store_harness.database.transaction() as tx:
        for name, type_, text in (("r1", "message", "Sent."), ("r2", "schedule_task", "Task 3 runs at 9.")):
            reply = Reply(request_id=name, ok=True, code="ok", text=text, data={})
            await commands.record(tx, turn.folder, type_, reply, now_ms=turn.queued_ms)
            event = AuditEvent(
                at_ms=turn.queued_ms,
                kind="command",
                folder=turn.folder,
                run_id=run.id,
                turn_id=turn.id,
                detail={"type": type_, "request": name, "ok": True, "code": "ok"},
            )
            await audit.append(tx, event)
        await outbox.add(
            tx,
            chat_jid=turn.chat_jid,
            folder=turn.folder,
            text="I have begun",
            dedupe_key="command:r1",
            turn_id=turn.id,
            now_ms=turn.queued_ms,
        )
    await harness.settle(turn)

    told = all_text(spare.turns[0])
    lines = "- mcp__andy__schedule_task: Task 3 runs at 9.\n- mcp__andy__send_message: I have begun"
    assert f"{BEGUN_BEFORE}\n{lines}" in told


async def test_what_was_done_before_an_outage_is_told_to_the_same_service_too(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    await harness.choose(WorkKind.FALLBACK)
    first.behave = FAULTS["overload"]
    turn = await harness.attempt(await harness.asked())
    assert BEGUN_BEFORE not in first.received[-1].body.decode(), "nothing was done yet"
    run = harness.attempts[0].run
    async with harness.store_harness.database.transaction() as tx:
        await tool_calls.begin(
            tx, turn, run, call_id="1", parent_id=None, tool="Bash", summary="a step", now_ms=1
        )
    works(first)
    turn = await harness.settle(turn)

    assert (turn.state, places(harness)) == (TurnState.ANSWERED, ["anthropic", "anthropic"])
    asked = json.loads(first.received[-1].body)["messages"][0]["content"]
    assert f"{BEGUN_BEFORE}\n- Bash: a step" in asked


@pytest.mark.parametrize("price", [None, ServicePrice(4, 1), ServicePrice(1, 16)])
async def test_nothing_dearer_stands_in_unless_the_owner_allowed_it(
    harness: ServicesHarness,
    first: FaultyUpstream,
    spare: ScriptedMessagesApi,
    tmp_path: Path,
    price: ServicePrice | None,
) -> None:
    """The chosen model costs $3 and $15 a million tokens; the other none that is known, or one above."""
    (tmp_path / ".env").write_text("SPARE_KEY=the-key-of-the-spare-one\n")
    await harness.add("spare", spare.url, price=price, key_env="SPARE_KEY")
    first.behave = FAULTS["5xx"]
    turn = await harness.settle(await harness.asked(TurnKind.TASK), most=3)
    assert (turn.state, set(places(harness))) == (TurnState.QUEUED, {"anthropic"})

    await harness.choose(WorkKind.FALLBACK, "spare/qwen3", may_be_dearer=True)
    assert (await harness.settle(turn)).state is TurnState.ANSWERED
    assert places(harness)[-1] == "spare"


async def test_a_turn_that_moved_goes_back_where_the_other_is_down_and_the_first_answers(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    async with FaultyUpstream(answer(500, b"oops")) as dead:
        await harness.add("spare", dead.url)
        first.behave = FAULTS["refused key"]
        turn = await harness.attempt(await harness.asked())
        turn = await harness.attempt(turn)
        assert places(harness) == ["anthropic", "spare"]
        works(first)
        harness.proxies.failover.suspect("spare", None)
        await harness.proxies.failover.test_once()
        assert harness.proxies.models.down == {"spare"}
        turn = await harness.settle(turn)
    assert (turn.state, harness.attempts[-1].text) == (TurnState.ANSWERED, "first")


async def test_a_turn_leaves_a_service_that_does_not_answer_for_one_that_answers_again(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    async with FaultyUpstream(answer(500, b"oops")) as dead:
        await harness.add("spare", dead.url)
        first.behave = FAULTS["refused key"]
        turn = await harness.attempt(await harness.asked())
        await harness.proxies.failover.test_once()
        assert harness.proxies.models.down == {"anthropic"}
        works(first)
        await harness.proxies.failover.test_once()
        began_ms = harness.store_harness.clock.now_ms()
        turn = await harness.attempt(turn)
        assert (turn.state, places(harness)) == (TurnState.QUEUED, ["anthropic", "spare"])
        turn = await harness.settle(turn)
    assert (turn.state, harness.attempts[-1].text) == (TurnState.ANSWERED, "first")
    assert (turn.attempt, harness.store_harness.clock.now_ms()) == (1, began_ms), "it waited for nothing"


async def test_a_turn_stays_where_the_service_that_it_left_has_not_answered_since(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    async with FaultyUpstream(answer(500, b"oops")) as dead:
        await harness.add("spare", dead.url)
        first.behave = FAULTS["refused key"]
        turn = await harness.attempt(await harness.asked())
        turn = await harness.attempt(turn)
        now_ms = harness.store_harness.clock.now_ms()
    assert places(harness) == ["anthropic", "spare"]
    assert (turn.state, turn.not_before_ms > now_ms) == (TurnState.QUEUED, True)


async def test_a_turn_does_not_move_to_a_service_that_is_known_to_be_down(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    async with FaultyUpstream(answer(500, b"oops")) as dead:
        await harness.add("spare", dead.url)
        harness.proxies.failover.suspect("spare", None)
        await harness.proxies.failover.test_once()
        first.behave = FAULTS["5xx"]
        turn = await harness.attempt(await harness.asked())
    assert places(harness) == ["anthropic"]
    works(first)
    turn = await harness.settle(turn)
    assert (turn.state, harness.attempts[-1].text) == (TurnState.ANSWERED, "first")


async def test_a_turn_that_moved_goes_on_at_the_first_when_the_list_is_emptied(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    first.behave = FAULTS["refused key"]
    turn = await harness.attempt(await harness.asked())
    await harness.choose(WorkKind.FALLBACK)
    works(first)
    turn = await harness.settle(turn)
    assert (turn.state, harness.attempts[-1].text) == (TurnState.ANSWERED, "first")


async def test_a_service_that_was_down_over_a_restart_is_asked_for_a_model_that_it_has(
    harness: ServicesHarness,
) -> None:
    async with FaultyUpstream(answer(500, b"oops")) as far:
        await harness.add("far", far.url, model="qwen3")
        harness.proxies.failover.suspect("far", "qwen3")
        await harness.proxies.failover.test_once()
        harness.proxies.failover._failed_models.clear()  # as in a new process
        await harness.proxies.failover.load()
        assert harness.proxies.models.down == {"far"}
        works(far)
        await harness.proxies.failover.test_once()
        assert harness.proxies.models.down == set()
        assert json.loads(far.received[-1].body)["model"] == "qwen3"


async def test_a_service_that_does_not_know_a_model_is_not_down_for_the_others(
    harness: ServicesHarness,
) -> None:
    async with FaultyUpstream(answer(500, b"oops")) as far:
        await harness.add("far", far.url, model="qwen3")
        harness.proxies.failover.suspect("far", "qwen4")
        await harness.proxies.failover.test_once()
        far.behave = FAULTS["unknown model"]
        await harness.proxies.failover.test_once()
        assert harness.proxies.models.down == set()


async def test_without_another_a_turn_waits_as_it_did(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    await harness.choose(WorkKind.FALLBACK)
    first.behave = FAULTS["overload"]
    turn = await harness.attempt(await harness.asked())
    assert (turn.state, turn.not_before_ms > harness.store_harness.clock.now_ms()) == (TurnState.QUEUED, True)


async def test_what_was_left_and_what_is_down_is_known_after_a_restart(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    first.behave = FAULTS["refused key"]
    turn = await harness.attempt(await harness.asked())
    await harness.proxies.failover.test_once()
    models = harness.proxies.models
    models.left, models.down = {}, set()
    await harness.proxies.failover.load()

    assert models.left == {turn.id: {"anthropic"}}
    assert models.down == {"anthropic"}


async def test_a_summary_is_written_by_the_next_as_well(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    first.behave = FAULTS["5xx"]
    group = await harness.group()
    asking = harness.proxies.ask_model(
        group, model="claude-haiku-4-5", system="Sum up.", text="…", max_tokens=9
    )
    assert await asyncio.wait_for(asking, 30) == "from the spare one"


async def test_a_summary_that_takes_too_long_is_written_by_the_next_and_the_service_is_suspected(
    harness: ServicesHarness, first: FaultyUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both limits are shortened by the same factor: the first service's has to leave time for the next."""
    monkeypatch.setattr(feature, "SUMMARY_SECONDS", feature.SUMMARY_SECONDS / 10)
    first.behave = FAULTS["no first byte"]
    harness.wait_briefly()
    group = await harness.group()

    async def ask(system: str, text: str) -> str:
        return await harness.proxies.ask_model(
            group, model="claude-haiku-4-5", system=system, text=text, max_tokens=9
        )

    asker = summarizer.ModelSummarizer(ask, EstimatingCounter(), seconds=summarizer.SECONDS / 10)
    evicted = ContextMessage(id="t1.u", role="user", content="hello", ts=iso(1000))
    assert await asker.fold("", [evicted]) == "from the spare one"
    before = len(first.received)
    await harness.proxies.failover.test_once()
    assert len(first.received) > before, "the host asks the slow one itself"


async def test_the_last_service_has_as_long_for_a_summary_as_its_caller_waits(
    harness: ServicesHarness, first: FaultyUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature, "SUMMARY_SECONDS", 0)
    first.behave = FAULTS["no first byte"]
    asking = harness.proxies.ask_model(
        await harness.group(), model="claude-haiku-4-5", system="Sum up.", text="…", max_tokens=9
    )
    assert await asking == "from the spare one"


async def test_a_service_that_refuses_for_good_and_has_no_other_fails_its_turn_once_with_the_fix(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    await harness.choose(WorkKind.FALLBACK)
    await harness.add("far", first.url, kind="gateway", model="m")
    await harness.configure(model="far/m")
    first.behave = FAULTS["unknown model"]
    turn = await harness.settle(await harness.asked())

    assert (turn.state, places(harness)) == (TurnState.FAILED, ["far"])
    (told,) = await harness.told("main")
    assert "At the model service 'far': the model service does not know the model 'm'" in told
    works(first)
    assert (await harness.settle(await harness.asked())).state is TurnState.ANSWERED, "the next one tries"


async def test_a_service_that_refuses_now_for_this_and_now_for_that_is_reported_once_a_day_for_each(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    await harness.choose(WorkKind.FALLBACK)
    await harness.add("far", first.url, kind="gateway", model="m")
    await harness.configure(model="far/m")
    faults = ("unknown model", "refused key", "no credit")
    for fault in faults * 2:
        first.behave = FAULTS[fault]
        assert (await harness.settle(await harness.asked())).state is TurnState.FAILED
        await harness.store_harness.deliver_all()
    assert len(await harness.told("main")) == len(faults)
    harness.store_harness.clock.pass_ms(24 * 3_600_000)
    assert (await harness.settle(await harness.asked())).state is TurnState.FAILED
    assert len(await harness.told("main")) == len(faults) + 1


@pytest.mark.parametrize("fault", ["a break within a tool call", "a byte now and then", "another format"])
async def test_the_owner_is_notified_once_whatever_fault_it_is(
    harness: ServicesHarness, first: FaultyUpstream, fault: str
) -> None:
    """The host meets the same when it asks by itself: it reads a stream to its end."""
    first.behave = FAULTS[fault]
    harness.wait_briefly(is_brief=fault in SILENT)
    for kind in KINDS:
        await harness.settle(await harness.asked(kind))
        await harness.proxies.failover.test_once()
    (text,) = await harness.told("main")
    assert "The next on the list answers meanwhile." in text


async def test_a_service_that_answers_the_host_and_breaks_off_in_turns_is_told_of_once_a_day(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    async def breaks_for_containers(received: Received, *rest: object) -> None:
        is_hosts = received.values("user-agent") == ["andy"]
        behave = begun_and_said if is_hosts else FAULTS["a break within a tool call"]
        await behave(received, *rest)  # type: ignore[arg-type]

    first.behave = breaks_for_containers
    for _ in range(2):
        await harness.settle(await harness.asked())
        await harness.proxies.failover.test_once()
    (text,) = await harness.told("main")
    assert "'anthropic' broke off or was silent in the middle of a turn" in text
    assert harness.proxies.models.down == set()
    harness.store_harness.clock.wall_ms += 86_400_000
    await harness.settle(await harness.asked())
    await harness.proxies.failover.test_once()
    assert len(await harness.told("main")) == 2


async def test_a_service_that_comes_and_goes_is_told_of_once_and_again_when_it_stays_away(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    look, clock = harness.proxies.failover.test_once, harness.store_harness.clock
    for _ in range(3):
        first.behave = FAULTS["5xx"]
        harness.proxies.failover.suspect("anthropic")
        await look()
        works(first)
        await look()
    assert len(await harness.told("main")) == 2, "down and back, once"
    first.behave = FAULTS["5xx"]
    harness.proxies.failover.suspect("anthropic")
    await look()
    clock.wall_ms += QUIET_MS
    await look()
    await look()
    assert "does not answer" in (await harness.told("main"))[2]
    works(first)
    await look()
    assert len(await harness.told("main")) == 4


async def test_an_outage_after_the_clock_was_set_back_is_told_of(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    for jump_ms in (0, -86_400_000):
        harness.store_harness.clock.wall_ms += jump_ms
        first.behave = FAULTS["5xx"]
        harness.proxies.failover.suspect("anthropic")
        await harness.proxies.failover.test_once()
        works(first)
        await harness.proxies.failover.test_once()
    assert [text[0] for text in await harness.told("main")] == ["⚠", "✅"] * 2


async def test_what_cannot_be_stored_of_a_service_now_is_stored_and_told_once_the_disk_takes_it(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    failover, database = harness.proxies.failover, harness.store_harness.database
    first.behave = FAULTS["5xx"]
    async with read_only(database):
        failover.suspect("anthropic")
        with pytest.raises(ExceptionGroup):
            await failover.test_once()
    failover.suspect("anthropic")
    await failover.test_once()
    assert ["does not answer" in text for text in await harness.told("main")] == [True]
    works(first)
    async with read_only(database):
        with pytest.raises(ExceptionGroup):
            await failover.test_once()
    await failover.test_once()
    assert [text[0] for text in await harness.told("main")] == ["⚠", "✅"]
    assert [one["down_since_ms"] for one in await conditions(harness)] == [None, None]


async def test_a_service_that_answers_again_does_not_wait_for_one_that_is_silent(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    first.behave = FAULTS["5xx"]
    async with FaultyUpstream(answer(500, b"oops")) as far:
        await harness.add("far", far.url)
        harness.proxies.failover.suspect("anthropic")
        harness.proxies.failover.suspect("far")
        await harness.proxies.failover.test_once()
        assert harness.proxies.models.down == {"anthropic", "far"}
        first.behave = hang
        first.hung_up.clear()
        works(far)
        looking = asyncio.create_task(harness.proxies.failover.test_once(), name="look")
        await until(lambda: harness.proxies.models.down == {"anthropic"}, "the other is back")
        assert not first.hung_up.is_set(), "it is asked at the same time"
        looking.cancel()
        await asyncio.wait({looking})


async def test_a_chosen_service_without_its_key_is_told_of_and_is_asked_once_the_key_is_there(
    harness: ServicesHarness, tmp_path: Path
) -> None:
    async with FaultyUpstream(begun_and_said) as paid:
        await harness.add("paid", paid.url, kind="gateway", model="m", key_env="PAID_API_KEY")
        await harness.configure(model="paid/m")
        await harness.settle(await harness.asked())
        await harness.settle(await harness.asked())
        assert places(harness) == ["spare", "spare"]
        await harness.proxies.failover.test_once()
        await harness.settle(await harness.asked())
        (text,) = await harness.told("main")
        assert "'paid' cannot be used" in text
        assert "PAID_API_KEY" in text
        (tmp_path / ".env").write_text("PAID_API_KEY=the-key-that-was-missing\n")
        await harness.proxies.failover.test_once()
        await harness.settle(await harness.asked())
    assert (places(harness)[-1], harness.attempts[-1].text) == ("paid", "first")


async def test_a_service_that_is_removed_while_it_is_down_does_not_answer_again(
    harness: ServicesHarness,
) -> None:
    async with FaultyUpstream(answer(500, b"oops")) as far:
        await harness.add("far", far.url)
        harness.proxies.failover.suspect("far")
        await harness.proxies.failover.test_once()
    async with harness.store_harness.database.transaction() as tx:
        await model_services.remove(tx, "far")
    await harness.proxies.failover.test_once()
    assert harness.proxies.models.down == set()
    assert len(await harness.told("main")) == 1


async def test_a_second_key_of_anthropics_stands_in_with_the_same_model(
    harness: ServicesHarness, first: FaultyUpstream, spare: ScriptedMessagesApi, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text("ANTHROPIC_SECOND_API_KEY=the-second-key-of-anthropic\n")
    await harness.add("second", spare.url, kind="anthropic", model=None, key_env="ANTHROPIC_SECOND_API_KEY")
    await harness.choose(WorkKind.FALLBACK, "second")
    first.behave = FAULTS["no credit"]
    await harness.settle(await harness.asked())
    assert places(harness) == ["anthropic", "second"]
    assert harness.attempts[-1].run.model == harness.attempts[0].run.model == "claude-sonnet-4-6"
    await harness.choose(WorkKind.FALLBACK, "second/claude-opus-4-6")
    turn = await harness.settle(await harness.asked(), most=2)
    assert (turn.state, places(harness)[2:]) == (TurnState.FAILED, ["anthropic"]), "that is dearer"


class NearService:
    """A model on a machine of the owner's, whose server may be stuck as a whole."""

    def __init__(self) -> None:
        self.looks = 0
        self.is_stuck = False
        self.said = asyncio.Event()

    async def behave(
        self,
        received: Received,
        up: FaultyUpstream,
        reader: asyncio.StreamReader,
        to: asyncio.StreamWriter,
    ) -> None:
        if self.is_stuck:
            await up.until_hung_up(reader)
        elif received.target == "/":
            self.looks += 1
            await answer(404, b"")(received, up, reader, to)
        else:
            await self.said.wait()
            await begun_and_said(received, up, reader, to)


async def test_a_near_service_that_reads_for_long_is_waited_for_while_its_server_lives(
    harness: ServicesHarness,
) -> None:
    near = NearService()
    async with FaultyUpstream(near.behave) as upstream:
        await harness.add("near", upstream.url)
        await harness.configure(model="near/qwen3")
        asking = asyncio.create_task(harness.settle_new(), name="ask")
        await until(lambda: near.looks >= 4, "it is looked at")
        assert not asking.done()
        near.said.set()
        await asking
    assert (places(harness), harness.attempts[-1].text) == (["near"], "first")


@pytest.mark.parametrize("is_begun", [False, True], ids=["at first", "in the middle"])
async def test_a_near_service_that_is_stuck_is_left(harness: ServicesHarness, is_begun: bool) -> None:
    near = NearService()

    async def behave(received: Received, up: FaultyUpstream, *rest: Any) -> None:
        if is_begun and received.target.startswith("/v1/messages"):
            await begun(BEGUN, then="stops")(received, up, *rest)
        else:
            await near.behave(received, up, *rest)

    near.is_stuck = True
    harness.wait_briefly()
    async with FaultyUpstream(behave) as upstream:
        await harness.add("near", upstream.url)
        await harness.configure(model="near/qwen3")
        turn = await harness.settle_new()
    assert (turn.state, places(harness)) == (TurnState.ANSWERED, ["near", "spare"])


ERROR_IN_STREAM = chunk("error", {"error": {"type": "overloaded_error", "message": "Overloaded"}})


async def test_an_error_within_a_stream_moves_the_turn_though_its_client_hangs_up_there(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    """The CLI reads no further than the error, and the service may hold the connection open."""
    first.behave = begun(OPENED + ERROR_IN_STREAM, then="stops")
    turn = await harness.settle_new()
    assert (turn.state, places(harness)) == (TurnState.ANSWERED, ["anthropic", "spare"])


async def test_a_turn_goes_back_to_the_first_when_the_last_fails(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    async with FaultyUpstream(FAULTS["5xx"]) as dead:
        await harness.add("spare", dead.url)
        first.behave = FAULTS["refused key"]
        turn = await harness.attempt(await harness.asked())
        works(first)
        for _ in range(6):
            turn = await harness.attempt(turn)
            await harness.proxies.failover.test_once()
            clock = harness.store_harness.clock
            clock.wall_ms = max(clock.wall_ms, turn.not_before_ms)
            if turn.state is not TurnState.QUEUED:
                break
    assert (turn.state, harness.attempts[-1].text) == (TurnState.ANSWERED, "first")


async def test_a_service_by_name_that_answers_again_has_no_trouble_any_more(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    answers = iter([FAULTS["5xx"], begun_and_said])

    async def once(received: Received, *rest: Any) -> None:
        await next(answers)(received, *rest)

    await harness.choose(WorkKind.FALLBACK)
    async with FaultyUpstream(once) as far:
        await harness.add("far", far.url)
        await harness.configure(model="far/qwen3")
        await harness.settle_new()
    assert await harness.store_harness.rows("SELECT * FROM turn_outages") == []


async def test_a_near_service_that_is_busy_or_loads_its_model_is_not_down(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    near = NearService()
    async with FaultyUpstream(near.behave) as upstream:
        await harness.add("near", upstream.url)
        harness.proxies.failover.suspect("near", "qwen3")
        looking = asyncio.create_task(harness.proxies.failover.test_once(), name="look")
        await until(lambda: near.looks >= 4, "its server is looked at meanwhile")
        near.said.set()
        await looking
        assert harness.proxies.models.down == set()
        near.is_stuck = True
        harness.wait_briefly()
        harness.proxies.failover.suspect("near", "qwen3")
        await harness.proxies.failover.test_once()
        assert harness.proxies.models.down == {"near"}


def model_of(received: Received) -> str:
    """Return the model of a request; empty for a ping, which the host sends beside a slow answer."""
    return str(json.loads(received.body)["model"]) if received.body else ""


@pytest.mark.parametrize("status", [403, 429, 503])
async def test_one_model_that_fails_takes_no_other_model_of_its_gateway_away(
    harness: ServicesHarness, status: int
) -> None:
    async def behave(received: Received, *rest: Any) -> None:
        is_bad = model_of(received) == "bad"
        await (refusal(status, "api_error", "not today") if is_bad else begun_and_said)(received, *rest)

    async with FaultyUpstream(behave) as gateway:
        await harness.add("gate", gateway.url, kind="gateway", model="good")
        await harness.choose(WorkKind.ALL, "gate/good")
        await harness.choose(WorkKind.TASKS, "gate/bad")
        await harness.settle(await harness.asked(TurnKind.TASK))
        await harness.proxies.failover.test_once()
        await harness.settle_new()
    assert harness.attempts[-1].run.service == "gate"
    assert harness.proxies.models.down == set()


async def test_a_question_on_the_side_for_a_model_that_is_not_there_moves_no_turn(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    async def behave(received: Received, *rest: Any) -> None:
        is_aside = model_of(received) == "claude-haiku-4-5"
        await (FAULTS["unknown model"] if is_aside else begun_and_said)(received, *rest)

    first.behave = behave
    turn = await harness.attempt(
        await harness.asked(), {"model": "claude-haiku-4-5", "messages": [said("A title?")]}
    )
    turn = await harness.settle(turn)
    assert (turn.state, places(harness)) == (TurnState.ANSWERED, ["anthropic", "anthropic"])


async def test_another_model_of_a_service_with_a_price_stands_in_only_if_it_may_be_dearer(
    harness: ServicesHarness, first: FaultyUpstream, spare: ScriptedMessagesApi, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text("SPARE_KEY=the-key-of-the-spare-one\n")
    await harness.add("spare", spare.url, price=ServicePrice(0.3, 1.2), key_env="SPARE_KEY")
    first.behave = FAULTS["no answer"]
    await harness.choose(WorkKind.FALLBACK, "spare/claude-opus-4-1")
    turn = await harness.settle(await harness.asked(), most=2)
    assert set(places(harness)) == {"anthropic"}
    await harness.choose(WorkKind.FALLBACK, "spare/qwen3")
    await harness.settle(turn)
    assert places(harness)[-1] == "spare"


async def test_a_near_server_that_streams_and_answers_nobody_else_is_not_left(
    harness: ServicesHarness,
) -> None:
    more = asyncio.Event()
    looks = 0

    async def behave(
        received: Received, up: FaultyUpstream, reader: asyncio.StreamReader, to: asyncio.StreamWriter
    ) -> None:
        nonlocal looks
        if received.target == "/":
            looks += 1
            if looks > 4:
                more.set()
            await up.until_hung_up(reader)
            return
        to.write(BEGUN)
        with suppress(ConnectionError):
            while not more.is_set():
                to.write(
                    chunk("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "a"}})
                )
                await to.drain()
                await asyncio.sleep(0.01)
            to.write(chunk("message_stop", {}) + b"0\r\n\r\n")

    harness.wait_briefly()
    async with FaultyUpstream(behave) as near:
        await harness.add("near", near.url)
        await harness.configure(model="near/qwen3")
        turn = await harness.settle_new()
    assert (turn.state, places(harness)) == (TurnState.ANSWERED, ["near"])


async def test_a_key_that_is_a_word_cuts_no_answer_that_has_the_word(
    harness: ServicesHarness, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text("LOCAL_API_KEY=first\n")
    async with FaultyUpstream(begun_and_said) as near:
        await harness.add("near", near.url, kind="ollama", key_env="LOCAL_API_KEY")
        await harness.configure(model="near/qwen3")
        await harness.settle_new()
    assert (places(harness), harness.attempts[-1].text) == (["near"], "first")


@pytest.mark.slow
async def test_comments_within_a_stream_are_signs_of_life(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    harness.change_limits(moving_seconds=3.0)

    async def behave(
        _: Received, __: FaultyUpstream, ___: asyncio.StreamReader, to: asyncio.StreamWriter
    ) -> None:
        to.write(BEGUN)
        with suppress(ConnectionError):
            # Longer than the limit in all, and a busy machine may write one of them late.
            for _number in range(80):
                to.write(b"10\r\n: PROCESSING .\n\n\r\n")
                await to.drain()
                await asyncio.sleep(0.05)
            to.write(chunk("message_stop", {}) + b"0\r\n\r\n")

    first.behave = behave
    await harness.settle_new()
    assert places(harness) == ["anthropic"]


async def test_the_owner_reads_when_the_last_service_fails_as_well(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    async with FaultyUpstream(FAULTS["5xx"]) as dead:
        await harness.add("spare", dead.url)
        first.behave = FAULTS["refused key"]
        turn = await harness.attempt(await harness.asked())
        await harness.proxies.failover.test_once()
        for _ in range(2):
            turn = await harness.attempt(turn)
            await harness.proxies.failover.test_once()
            harness.store_harness.clock.wall_ms = turn.not_before_ms
    of_first, of_spare = await harness.told("main")
    assert "The next on the list answers meanwhile." in of_first
    assert "'spare' does not answer (HTTP 500). No other on the list answers now." in of_spare


async def test_an_end_is_told_over_a_restart_where_the_begin_was_and_only_there(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    failover = harness.proxies.failover
    for is_told in (True, False):
        first.behave = FAULTS["5xx"]
        failover.suspect("anthropic")
        await failover.test_once()
        failover._last_alerts.clear()  # as in a new process
        await failover.load()
        works(first)
        await failover.test_once()
        if is_told:
            failover._last_alerts["anthropic"] = replace(
                failover._last_alerts["anthropic"], at_ms=harness.store_harness.clock.now_ms()
            )
    texts = await harness.told("main")
    assert [text[0] for text in texts] == ["⚠", "✅"]


async def test_what_a_container_did_before_it_died_is_told_to_the_next(
    harness: ServicesHarness, first: FaultyUpstream
) -> None:
    works(first)
    turn = await harness.asked()
    await harness.available.turn_away(turn)
    lost = await harness.store_harness.begin_run()
    order = await harness.store_harness.give(turn, lost)
    assert BEGUN_BEFORE not in order.prompt
    async with harness.store_harness.database.transaction() as tx:
        await tool_calls.begin(
            tx, turn, lost, call_id="1", parent_id=None, tool="Bash", summary="a step", now_ms=1
        )
        await turns.put_back(tx, turn, reason="killed", not_before_ms=0)
    await harness.settle(await harness.store_harness.turn(turn.id))

    asked = json.loads(first.received[-1].body)["messages"][0]["content"]
    assert f"{BEGUN_BEFORE}\n- Bash: a step" in asked
