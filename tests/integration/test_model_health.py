"""Refusals and outages of the model service: what stops turns, who is told, and how it ends by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from agent_runner.wire.frames import TurnEnd
from orchestrator.domain import failures
from orchestrator.domain.failures import FailureOwner, ModelError
from orchestrator.domain.values import Folder, Group, Run, Turn, TurnKind, TurnState
from orchestrator.proxies.model import health
from orchestrator.proxies.model.exchange import Answered, RunIdentity
from orchestrator.proxies.model.health import ModelHealth
from orchestrator.proxies.model.limits import ModelProxyLimits
from orchestrator.proxies.run_tokens import token_hash
from orchestrator.queue.availability import Availability
from orchestrator.store.database import Tx
from orchestrator.store.runs.model_refusals import OWN_CHOICE, ModelRefusal
from tests.doubles.messages_api import (
    Fail,
    FailLate,
    Hang,
    Say,
    SayLate,
    ScriptedMessagesApi,
    Step,
    Tokens,
)
from tests.support.read_only import read_only
from tests.support.running_proxy import Proxied, proxied
from tests.support.store_harness import StoreHarness
from tests.support.until import until

REFUSED_KEY = Fail(401, "authentication_error", "invalid x-api-key")
OVERLOADED = Fail(529, "overloaded_error", "Overloaded")
UNKNOWN = Fail(404, "not_found_error", "model: claude-9")
MINUTE_MS = 60_000


@dataclass
class Harness:
    """A family and its owner before a real proxy, whose service answers as a test says."""

    store_harness: StoreHarness
    served: Proxied
    api: ScriptedMessagesApi
    health: ModelHealth
    available: Availability
    model: str | None = None
    worker_model: str | None = None
    """The model that is set for turns of workers alone."""

    async def begin(self, folder: str = "family", text: str = "@Andy hi") -> tuple[Turn, Run]:
        """A question that a container works on, which shows the proxy its token."""
        await self.store_harness.hear(text, folder)
        turn, run, _ = await self.store_harness.start_next(folder)
        self.works_on(turn, run)
        return turn, run

    def works_on(self, turn: Turn, run: Run) -> None:
        self.served.runs[token_hash(self.served.token)] = RunIdentity(
            run_id=run.id, folder=turn.folder, turn_id=turn.id, kind=turn.kind, is_main=turn.folder == "main"
        )

    async def ask(self, step: Step, *, probe: Step | None = None) -> httpx.Response:
        """One request of the container; the service answers the host's own request alike, or with `probe`."""
        self.api.probe = probe
        self.api.then(step)
        return await self.served.call()

    async def fails(self, turn: Turn, run: Run) -> Turn:
        """The agent gives up."""
        end = TurnEnd(n=9, turn=turn.id, status="error", error="API Error: 401 …", code="agent")
        await self.store_harness.take(run, end)
        return await self.store_harness.turn(turn.id)

    async def refuse(self, step: Step = REFUSED_KEY, folder: str = "family") -> Turn:
        """A whole question that the service refuses."""
        turn, run = await self.begin(folder)
        await self.ask(step)
        return await self.fails(turn, run)

    async def told(self, folder: str) -> list[str]:
        rows = await self.store_harness.rows(
            "SELECT text FROM outbox WHERE group_folder = ? ORDER BY id", folder
        )
        return [row["text"] for row in rows]

    async def turn_away(self, folder: str = "family") -> tuple[bool, Turn]:
        """What becomes of a new question before it is begun."""
        await self.store_harness.hear("@Andy and now?", folder)
        turn = (await self.store_harness.queued(folder))[-1]
        return await self.available.turn_away(turn), await self.store_harness.turn(turn.id)

    def restart(self) -> None:
        """The host begins anew: all that it had in mind is gone."""
        self.health = _health(self)
        self.available._refusal = _refusal_of(self)


def _health(harness: Harness) -> ModelHealth:
    async def model_of(folder: Folder, kind: TurnKind | None) -> str | None:
        del folder
        return (kind is TurnKind.WORKER and harness.worker_model) or harness.model

    async def probe(model: str | None) -> Answered:
        return await harness.served.proxy.probe(model)

    async def recovered(tx: Tx, refusal: ModelRefusal) -> None:
        await health.notify_recovery(tx, refusal, now_ms=harness.store_harness.clock.now_ms())

    return ModelHealth(
        harness.store_harness.database,
        source=harness.served.source,
        clock=harness.store_harness.clock,
        model_of=model_of,
        probe=probe,
        on_recovery=recovered,
        on_change=harness.store_harness.wakeups.outages.set,
    )


def _refusal_of(harness: Harness):  # type: ignore[no-untyped-def]
    async def refusal(group: Group, kind: TurnKind) -> ModelRefusal | None:
        del group, kind
        return await harness.health.refusal(harness.model)

    return refusal


@pytest.fixture
async def harness(store_harness: StoreHarness, tmp_path: Path) -> AsyncIterator[Harness]:
    limits = ModelProxyLimits(first_byte_seconds=1)
    async with harness_of(store_harness, tmp_path, limits=limits) as harness:
        yield harness


@asynccontextmanager
async def harness_of(
    store_harness: StoreHarness, tmp_path: Path, *, limits: ModelProxyLimits
) -> AsyncIterator[Harness]:
    await store_harness.add_group("main", is_main=True, requires_trigger=False)
    await store_harness.add_group("family")
    harness: Harness

    async def judge(identity: RunIdentity, answered: Answered) -> bool:
        return await harness.health.judge(identity, answered)

    with ScriptedMessagesApi(default=Say("ok")) as api:
        async with proxied(tmp_path, judge=judge, limits=limits) as served:
            served.environment["ANTHROPIC_BASE_URL"] = api.url
            harness = Harness(store_harness, served, api, None, None)  # type: ignore[arg-type]
            harness.health = _health(harness)
            harness.available = Availability(
                store_harness.database,
                clock=store_harness.clock,
                wakeups=store_harness.wakeups,
                bus=store_harness.bus,
                refusal=_refusal_of(harness),
            )
            yield harness


# For good


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (REFUSED_KEY, "refuses ANTHROPIC_API_KEY (HTTP 401). Put a valid ANTHROPIC_API_KEY into .env."),
        (Fail(403, "permission_error", "no"), "refuses ANTHROPIC_API_KEY (HTTP 403)"),
        (Fail(400, message="Your credit balance is too low to access the API."), "has no credit left"),
    ],
)
async def test_a_refusal_for_good_fails_the_turn_once_and_tells_who_can_mend_it(
    harness: Harness, step: Fail, says: str
) -> None:
    turn, run = await harness.begin()
    response = await harness.ask(step)
    assert (response.status_code, response.headers["x-should-retry"]) == (step.status, "false")

    ended = await harness.fails(turn, run)
    assert (ended.state, ended.attempt) == (TurnState.FAILED, 1)
    assert await harness.told("family") == [failures.REFUSED]
    (told,) = await harness.told("main")
    assert says in told


async def test_further_turns_fail_at_once_and_the_owner_is_told_no_second_time(harness: Harness) -> None:
    await harness.refuse()
    for folder in ("family", "family"):
        is_away, turn = await harness.turn_away(folder)
        assert (is_away, turn.state, turn.run_id) == (True, TurnState.FAILED, None)
    assert await harness.told("family") == [failures.REFUSED] * 3, "each asker reads one sentence"
    assert len(await harness.told("main")) == 1
    assert len(harness.api.probes) == 1, "the service is left alone for a minute"


async def test_where_the_owner_asks_the_cause_is_the_answer(harness: Harness) -> None:
    await harness.refuse(folder="main")
    (told,) = await harness.told("main")
    assert "refuses ANTHROPIC_API_KEY" in told
    await harness.turn_away("main")
    assert (await harness.told("main"))[1:] == [failures.STILL_REFUSED]


async def test_another_key_is_asked_about_at_once(harness: Harness) -> None:
    await harness.refuse()
    (harness.served.home / ".env").write_text("ANTHROPIC_API_KEY=sk-ant-api03-the-next\n")
    harness.api.probe = Say("ok")
    is_away, turn = await harness.turn_away()
    assert (is_away, turn.state) == (False, TurnState.QUEUED)
    assert (await harness.told("main"))[1:] == [failures.WORKS_AGAIN]
    assert harness.api.probes[-1].headers["x-api-key"] == "sk-ant-api03-the-next"


async def test_the_same_key_is_asked_about_each_minute(harness: Harness) -> None:
    await harness.refuse()
    harness.api.probe = Say("ok")
    assert (await harness.turn_away())[0]
    harness.store_harness.clock.pass_ms(MINUTE_MS)
    assert not (await harness.turn_away())[0]
    assert harness.health.refusals == []


async def test_a_refusal_outlives_the_host_and_is_told_once(harness: Harness) -> None:
    await harness.refuse()
    harness.restart()
    await harness.health.load()
    assert [one.cause for one in harness.health.refusals] == [ModelError.KEY_REFUSED]
    assert (await harness.turn_away())[0]
    assert len(harness.api.probes) == 2, "a new host sees for itself"
    assert len(await harness.told("main")) == 1


async def test_what_one_request_alone_is_refused_stops_nobody_else(harness: Harness) -> None:
    turn, run = await harness.begin()
    response = await harness.ask(Fail(403, "permission_error", "not this one"), probe=Say("ok"))
    assert response.headers["x-should-retry"] == "false"
    assert (await harness.fails(turn, run)).state is TurnState.QUEUED
    assert await harness.told("main") == []
    await harness.store_harness.hear("hi", "main")
    (other,) = await harness.store_harness.queued("main")
    assert not await harness.available.turn_away(other)


async def test_a_model_that_is_not_there_stops_its_own_turns_alone(harness: Harness) -> None:
    harness.model = "claude-9"
    await harness.refuse(UNKNOWN)
    assert [one.model for one in harness.health.refusals] == ["claude-9"]
    assert (await harness.turn_away())[0]
    assert "does not know the model 'claude-9' (HTTP 404)" in (await harness.told("main"))[0]
    harness.model = "claude-10"
    assert not (await harness.turn_away())[0]


async def test_a_container_that_asks_for_a_strange_model_stops_no_other_turn(harness: Harness) -> None:
    turn, run = await harness.begin()
    await harness.ask(UNKNOWN, probe=Say("ok"))
    assert (await harness.fails(turn, run)).state is TurnState.FAILED
    assert not (await harness.turn_away())[0]


async def test_without_a_key_no_container_is_begun(harness: Harness) -> None:
    (harness.served.home / ".env").write_text("")
    assert (await harness.turn_away())[0]
    assert "there is no key" in (await harness.told("main"))[0]
    (harness.served.home / ".env").write_text("ANTHROPIC_API_KEY=sk-ant-api03-at-last\n")
    assert not (await harness.turn_away())[0]


@pytest.mark.parametrize("content", [b"\xff", b"ANTHROPIC_API_KEY=sk-ant-api03-a b\n"])
async def test_a_key_that_cannot_be_read_is_not_called_missing(harness: Harness, content: bytes) -> None:
    path = harness.served.home / ".env"
    path.write_bytes(content)
    assert (await harness.turn_away())[0]
    (text,) = await harness.told("main")
    assert "cannot be read from .env. 'andy doctor' shows the reason and the fix." in text
    assert "there is no key" not in text
    path.write_text("ANTHROPIC_API_KEY=sk-ant-api03-at-last\n")
    assert not (await harness.turn_away())[0]


async def test_what_nobody_waits_for_stays_queued(harness: Harness) -> None:
    await harness.refuse()
    async with harness.store_harness.database.transaction() as tx:
        cursor = await tx.execute(
            "INSERT INTO turns (group_folder, chat_jid, kind, state, queued_ms, not_before_ms)"
            " VALUES ('family', 'local:family', 'auto', 'queued', 0, 0) RETURNING id"
        )
        row = await cursor.fetchone()
    turn = await harness.store_harness.turn(row["id"])  # type: ignore[index]
    assert await harness.available.turn_away(turn)
    turn = await harness.store_harness.turn(turn.id)
    assert (turn.state, turn.attempt) == (TurnState.QUEUED, 1)
    assert turn.not_before_ms == harness.store_harness.clock.now_ms() + MINUTE_MS


# For a while


async def test_an_outage_counts_no_attempt_and_ends_after_a_quarter_of_an_hour(harness: Harness) -> None:
    turn, run = await harness.begin()
    for _ in range(8):
        response = await harness.ask(OVERLOADED)
        assert "x-should-retry" not in response.headers
        turn = await harness.fails(turn, run)
        assert (turn.state, turn.attempt) == (TurnState.QUEUED, 1)
        harness.store_harness.clock.pass_ms(90_000)
        turn, run, _ = await harness.store_harness.start_next()
        harness.works_on(turn, run)
    harness.store_harness.clock.pass_ms(failures.MAX_OUTAGE_MS)
    assert (await harness.ask(OVERLOADED)).headers["x-should-retry"] == "false"
    assert (await harness.fails(turn, run)).state is TurnState.FAILED
    assert "overloaded or out of reach for 15 minutes" in (await harness.told("family"))[-1]
    assert harness.api.probes == []


@pytest.mark.parametrize("is_off", [False, True])
async def test_a_question_outlives_an_outage_in_which_the_machine_slept_or_was_off(
    harness: Harness, is_off: bool
) -> None:
    turn, run = await harness.begin()
    await harness.ask(OVERLOADED)
    clock = harness.store_harness.clock
    clock.wall_ms += 8 * 3_600_000
    if is_off:
        harness.restart()
        await harness.health.load()
    assert "x-should-retry" not in (await harness.ask(OVERLOADED)).headers
    assert (await harness.fails(turn, run)).state is TurnState.QUEUED

    clock.pass_ms(90_000)
    turn, run, _ = await harness.store_harness.start_next()
    harness.works_on(turn, run)
    clock.pass_ms(failures.MAX_OUTAGE_MS)
    assert (await harness.ask(OVERLOADED)).headers["x-should-retry"] == "false", "it goes on counting"


async def test_a_turn_whose_outage_lasted_while_the_host_was_off_is_tried_again(harness: Harness) -> None:
    turn, run = await harness.begin()
    await harness.ask(OVERLOADED)
    harness.store_harness.clock.wall_ms += 8 * 3_600_000
    await harness.store_harness.lose(run, fault=FailureOwner.RESTART)
    assert (await harness.store_harness.turn(turn.id)).state is TurnState.QUEUED


async def test_an_outage_that_began_while_the_clock_was_ahead_ends_after_a_quarter_of_an_hour(
    harness: Harness,
) -> None:
    clock = harness.store_harness.clock
    clock.wall_ms += 8 * 3_600_000
    await harness.begin()
    await harness.ask(OVERLOADED)
    clock.wall_ms -= 8 * 3_600_000
    assert "x-should-retry" not in (await harness.ask(OVERLOADED)).headers
    clock.pass_ms(failures.MAX_OUTAGE_MS)
    assert (await harness.ask(OVERLOADED)).headers["x-should-retry"] == "false"


async def test_a_good_answer_ends_the_outage(harness: Harness) -> None:
    turn, run = await harness.begin()
    await harness.ask(OVERLOADED)
    harness.store_harness.clock.pass_ms(failures.MAX_OUTAGE_MS)
    assert (await harness.ask(Say("ok"))).status_code == 200
    assert "x-should-retry" not in (await harness.ask(OVERLOADED)).headers, "a new one begins"
    assert (await harness.fails(turn, run)).state is TurnState.QUEUED


async def test_a_service_that_wants_to_be_left_alone_for_long_is_not_waited_for(harness: Harness) -> None:
    turn, run = await harness.begin()
    limit = Fail(429, "rate_limit_error", "later", {"retry-after": "7200"})
    assert (await harness.ask(limit)).headers["x-should-retry"] == "false"
    assert (await harness.fails(turn, run)).state is TurnState.FAILED
    assert "answers again in 120 minutes" in (await harness.told("family"))[-1]


async def test_a_chat_is_told_once_that_it_waits_and_not_before_half_a_minute(harness: Harness) -> None:
    await harness.begin()
    await harness.ask(OVERLOADED)
    telling = asyncio.create_task(harness.available.run(), name="availability")
    try:
        harness.store_harness.clock.pass_ms(failures.OUTAGE_NOTICE_AFTER_MS - 1_000)
        await harness.ask(OVERLOADED)
        assert await harness.told("family") == []
        harness.store_harness.clock.pass_ms(1_000)
        await harness.ask(OVERLOADED)

        async def is_told() -> bool:
            return bool(await harness.told("family"))

        await until(is_told, "the chat is told")
        harness.store_harness.clock.pass_ms(failures.OUTAGE_NOTICE_AFTER_MS)
        await harness.ask(OVERLOADED)
        await harness.available.notify_waiting()
    finally:
        telling.cancel()
    assert await harness.told("family") == [failures.WAITING[failures.Outage.MODEL]]


async def test_an_outage_whose_end_cannot_be_stored_ends_with_the_next_answer(harness: Harness) -> None:
    turn, run = await harness.begin()
    await harness.ask(OVERLOADED)
    async with read_only(harness.store_harness.database):
        assert (await harness.ask(Say("hi"))).status_code == 500
    assert (await harness.ask(Say("hi"))).status_code == 200
    assert await harness.store_harness.rows("SELECT * FROM turn_outages") == []
    await harness.store_harness.take(run, TurnEnd(n=9, turn=turn.id))


async def test_a_refusal_that_is_met_while_an_outage_ends_is_lifted_by_the_next_answer(
    harness: Harness,
) -> None:
    await harness.refuse(folder="main")
    turn, run = await harness.begin()
    identity = harness.served.runs[token_hash(harness.served.token)]
    await harness.ask(OVERLOADED, probe=REFUSED_KEY)
    refused = Answered(error=ModelError.KEY_REFUSED, status=401)

    async with harness.store_harness.database.transaction():  # both wait for it, one behind the other
        ending = asyncio.create_task(harness.health.end_outage(identity), name="ending")
        judging = asyncio.create_task(harness.health.judge(identity, refused), name="judging")
        await asyncio.sleep(0)
    await asyncio.gather(ending, judging)
    assert len(await harness.store_harness.rows("SELECT * FROM turn_stops WHERE turn_id = ?", turn.id)) == 1

    await harness.health.end_outage(identity)
    assert await harness.store_harness.rows("SELECT * FROM turn_stops WHERE turn_id = ?", turn.id) == []
    await harness.store_harness.take(run, TurnEnd(n=9, turn=turn.id))


async def test_a_service_that_takes_a_question_and_says_nothing_is_an_outage(harness: Harness) -> None:
    turn, run = await harness.begin()
    response = await harness.ask(Hang())
    assert (response.status_code, response.json()["error"]["type"]) == (504, "timeout_error")
    turn = await harness.fails(turn, run)
    assert (turn.state, turn.attempt) == (TurnState.QUEUED, 1)
    (outage,) = await harness.store_harness.rows("SELECT * FROM turn_outages")
    assert outage["since_ms"] < harness.store_harness.clock.now_ms(), "it waits since it has asked"


async def test_a_service_that_is_slow_to_begin_is_waited_for_with_one_request(
    store_harness: StoreHarness, tmp_path: Path
) -> None:
    """A model on one's own machine may read a long prompt for minutes before its first byte."""
    patient = ModelProxyLimits(slow_seconds=0.1)
    async with harness_of(store_harness, tmp_path, limits=patient) as harness:
        await harness.begin()
        asking = asyncio.create_task(harness.ask(SayLate("At last.")), name="asking")

        async def is_slow() -> bool:
            return bool(await harness.store_harness.rows("SELECT 1 FROM turn_outages"))

        await until(is_slow, "it is noticed that the service is slow")
        harness.store_harness.clock.pass_ms(failures.OUTAGE_NOTICE_AFTER_MS)
        await harness.available.notify_waiting()
        await harness.available.notify_waiting()
        assert await harness.told("family") == [failures.WAITING[failures.Outage.MODEL]]
        harness.store_harness.clock.pass_ms(2 * failures.MAX_OUTAGE_MS)
        harness.api.go_on()
        response = await asking
        assert (response.status_code, "At last." in response.text) == (200, True)
        assert len(harness.api.turns) == 1, "what is asked again is paid again"
        assert await harness.store_harness.rows("SELECT * FROM turn_outages") == []


STREAMED = b'{"model":"claude","stream":true,"messages":[]}'


async def test_a_stream_that_is_slow_to_begin_gets_pings_until_it_does(
    store_harness: StoreHarness, tmp_path: Path
) -> None:
    """The CLI closes a connection on which nothing has come for six minutes."""
    patient = ModelProxyLimits(slow_seconds=0.05, ping_seconds=0.05)
    async with harness_of(store_harness, tmp_path, limits=patient) as harness:
        await harness.begin()
        harness.api.then(SayLate("At last."))
        lines: list[str] = []
        async with harness.served.streaming(STREAMED) as response:
            async for line in response.aiter_lines():
                lines.append(line)
                if lines.count("event: ping") == 3:
                    harness.api.go_on()
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        begins = lines.index("event: message_start")
        assert set(lines[:begins]) == {"event: ping", 'data: {"type": "ping"}', ""}
        assert "At last." in "".join(lines[begins:])
        assert len(harness.api.turns) == 1
        (exchange,) = await harness.served.recorded()
        assert exchange.usage is not None
        assert exchange.usage.output_tokens == Tokens().output_tokens, "what it used is counted as ever"


@pytest.mark.parametrize(
    ("step", "kind", "message"),
    [
        (FailLate(529, "overloaded_error", "Overloaded"), "overloaded_error", "Overloaded"),
        (Hang(), "timeout_error", "did not answer in time"),
    ],
)
async def test_a_slow_stream_that_comes_to_nothing_ends_with_an_error_event(
    store_harness: StoreHarness, tmp_path: Path, step: Step, kind: str, message: str
) -> None:
    limits = ModelProxyLimits(slow_seconds=0.05, ping_seconds=0.05, first_byte_seconds=2)
    async with harness_of(store_harness, tmp_path, limits=limits) as harness:
        turn, run = await harness.begin()
        harness.api.then(step)
        lines = []
        async with harness.served.streaming(STREAMED) as response:
            async for line in response.aiter_lines():
                lines.append(line)
                harness.api.go_on()
        assert lines[0] == "event: ping"
        at = lines.index("event: error")
        error = json.loads(lines[at + 1].removeprefix("data: "))["error"]
        assert error["type"] == kind
        assert message in error["message"]
        turn = await harness.fails(turn, run)
        assert (turn.state, turn.attempt) == (TurnState.QUEUED, 1), "an outage counts no attempt"


async def test_a_turn_that_has_met_an_outage_can_be_removed_with_its_rows(harness: Harness) -> None:
    turn, _ = await harness.begin()
    await harness.ask(OVERLOADED)
    async with harness.store_harness.database.transaction() as tx:
        await tx.execute("UPDATE messages SET turn_id = NULL, ignored_reason = 'x'")
        await tx.execute("DELETE FROM turns WHERE id = ?", (turn.id,))
    assert await harness.store_harness.rows("SELECT * FROM turn_outages") == []


async def test_a_service_that_is_silent_when_it_is_asked_again_is_asked_once_a_minute(
    harness: Harness,
) -> None:
    await harness.refuse()
    harness.store_harness.clock.pass_ms(MINUTE_MS)
    harness.api.probe = Hang()
    assert [(await harness.turn_away())[0] for _ in range(3)] == [True] * 3
    assert len(harness.api.probes) == 2


async def test_each_of_several_refused_models_is_asked_for_once_a_minute(harness: Harness) -> None:
    for harness.model in ("claude-8", "claude-9"):
        await harness.refuse(UNKNOWN)
    harness.api.probe = UNKNOWN
    for _ in range(3):
        assert (await harness.turn_away())[0]
    assert [one.body["model"] for one in harness.api.probes] == ["claude-8", "claude-9"]
    harness.store_harness.clock.pass_ms(MINUTE_MS)
    for _ in range(3):
        assert (await harness.turn_away())[0]
    assert len(harness.api.probes) == 4


async def test_a_key_that_is_there_at_last_is_noticed_without_a_question(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PROBE_EVERY_MS", 10)
    (harness.served.home / ".env").write_text("")
    assert (await harness.turn_away())[0]
    (harness.served.home / ".env").write_text("ANTHROPIC_API_KEY=sk-ant-api03-at-last\n")
    looking = asyncio.create_task(harness.health.run(), name="model-health")
    await until(lambda: harness.health.refusals == [], "the refusal is over")
    looking.cancel()
    assert (await harness.told("main"))[-1] == failures.WORKS_AGAIN


async def test_the_model_of_the_agents_own_choice_is_asked_for_again_without_a_question(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PROBE_EVERY_MS", 10)
    harness.api.probe = UNKNOWN
    await harness.refuse(UNKNOWN)
    assert [one.model for one in harness.health.refusals] == [OWN_CHOICE]
    looking = asyncio.create_task(harness.health.run(), name="model-health")
    try:
        await until(lambda: len(harness.api.probes) == 1, "the host asks for it")
        harness.store_harness.clock.pass_ms(MINUTE_MS)
        await until(lambda: len(harness.api.probes) == 2, "the host asks for it again")
        assert [one.model for one in harness.health.refusals] == [OWN_CHOICE], "it is still unknown"
        assert {one.body["model"] for one in harness.api.probes} == {"claude"}, "the model that was refused"
        harness.api.probe = Say("ok")
        harness.store_harness.clock.pass_ms(MINUTE_MS)
        await until(lambda: harness.health.refusals == [], "the refusal is over")
    finally:
        looking.cancel()
    assert (await harness.told("main"))[1:] == [failures.WORKS_AGAIN]


async def test_the_model_of_the_agents_own_choice_works_again_when_a_question_is_answered(
    harness: Harness,
) -> None:
    await harness.refuse(UNKNOWN)
    assert [one.model for one in harness.health.refusals] == [OWN_CHOICE]
    await harness.begin()
    assert (await harness.ask(Say("ok"))).status_code == 200
    assert harness.health.refusals == []
    assert (await harness.told("main"))[1:] == [failures.WORKS_AGAIN]


async def test_an_answer_of_another_model_does_not_end_the_refusal_of_the_agents_own_choice(
    harness: Harness,
) -> None:
    """The CLI asks a small model for its own purposes, beside the one that answers the question."""
    await harness.refuse(UNKNOWN)
    await harness.begin()
    harness.api.then(Say("ok"))
    other = await harness.served.call(content=b'{"model":"claude-small","messages":[]}')
    assert other.status_code == 200
    assert [one.model for one in harness.health.refusals] == [OWN_CHOICE]
    assert len(await harness.told("main")) == 1, "nobody is told that it works again"


@pytest.mark.parametrize("model", ["claude-new", "new"])
async def test_the_refusal_of_the_agents_own_choice_ends_with_the_model_that_the_owner_then_chooses(
    harness: Harness, model: str
) -> None:
    await harness.refuse(UNKNOWN)
    harness.model = model
    await harness.begin()
    harness.api.then(Say("ok"))
    answer = await harness.served.call(content=b'{"model":"claude-new","messages":[]}')
    assert answer.status_code == 200
    assert harness.health.refusals == []


async def test_an_answer_of_the_model_for_workers_does_not_end_the_refusal_of_the_agents_own_choice(
    harness: Harness,
) -> None:
    harness.worker_model = "claude-small"
    await harness.refuse(UNKNOWN)
    turn, run = await harness.begin()
    harness.works_on(replace(turn, kind=TurnKind.WORKER), run)
    harness.api.then(Say("ok"))
    answer = await harness.served.call(content=b'{"model":"claude-small","messages":[]}')
    assert answer.status_code == 200
    assert [one.model for one in harness.health.refusals] == [OWN_CHOICE]
    assert len(await harness.told("main")) == 1, "nobody is told that it works again"


async def test_an_answer_of_another_model_does_not_end_the_refusal_of_the_one_that_is_set(
    harness: Harness,
) -> None:
    """A container that still runs with the earlier model, or a subagent, asks another one."""
    harness.model = "claude-nine"
    await harness.refuse(UNKNOWN)
    assert [one.model for one in harness.health.refusals] == ["claude-nine"]
    await harness.begin()
    harness.api.then(Say("ok"))
    other = await harness.served.call(content=b'{"model":"claude-small","messages":[]}')
    assert other.status_code == 200
    assert [one.model for one in harness.health.refusals] == ["claude-nine"]
    assert len(await harness.told("main")) == 1, "nobody is told that it works again"
    harness.api.then(Say("ok"))
    assert (await harness.served.call(content=b'{"model":"claude-nine","messages":[]}')).status_code == 200
    assert harness.health.refusals == []


async def test_after_a_restart_any_answer_ends_the_refusal_of_the_agents_own_choice(harness: Harness) -> None:
    await harness.refuse(UNKNOWN)
    harness.restart()
    await harness.health.load()
    await harness.begin()
    assert (await harness.ask(Say("ok"))).status_code == 200
    assert harness.health.refusals == []


async def test_a_service_that_answers_late_is_asked_again_by_the_host_alone_and_found_to_work(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question waits a few seconds for the host's own request: cut off, it must not count as the try."""
    monkeypatch.setattr(health, "MAX_PROBE_WAIT_SECONDS", 0.2)
    await harness.refuse()
    harness.store_harness.clock.pass_ms(2 * MINUTE_MS)
    harness.api.probe = Hang()
    assert await harness.health.refusal(None) is not None, "it did not wait for the answer"
    harness.api.probe = Say("yes")
    probing = asyncio.create_task(harness.health.run())
    await until(lambda: harness.health.refusals == [], "it answers again")
    probing.cancel()
