"""Refusals and outages of the model service: what stops turns, who is told, and how it ends by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from agent_runner.wire.frames import TurnEnd
from orchestrator.domain import failures
from orchestrator.domain.failures import ModelError
from orchestrator.domain.values import Folder, Group, Run, Turn, TurnKind, TurnState
from orchestrator.proxies.model import health
from orchestrator.proxies.model.exchange import Answered, RunIdentity
from orchestrator.proxies.model.health import ModelHealth
from orchestrator.proxies.model.limits import ModelProxyLimits
from orchestrator.proxies.run_tokens import token_hash
from orchestrator.queue.availability import Availability
from orchestrator.store.database import Tx
from orchestrator.store.model_refusals import ModelRefusal
from tests.doubles.messages_api import Fail, Hang, Say, ScriptedMessagesApi, Step
from tests.support.household import Household
from tests.support.running_proxy import Proxied, proxied
from tests.support.until import until

REFUSED_KEY = Fail(401, "authentication_error", "invalid x-api-key")
OVERLOADED = Fail(529, "overloaded_error", "Overloaded")
UNKNOWN = Fail(404, "not_found_error", "model: claude-9")
MINUTE_MS = 60_000


@dataclass
class House:
    """A family and its owner before a real proxy, whose service answers as a test says."""

    household: Household
    served: Proxied
    api: ScriptedMessagesApi
    health: ModelHealth
    available: Availability
    model: str | None = None

    async def begin(self, folder: str = "family", text: str = "@Andy hi") -> tuple[Turn, Run]:
        """A question that a container works on, which shows the proxy its token."""
        await self.household.hear(text, folder)
        turn, run, _ = await self.household.start_next(folder)
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
        await self.household.take(run, end)
        return await self.household.turn(turn.id)

    async def refuse(self, step: Step = REFUSED_KEY, folder: str = "family") -> Turn:
        """A whole question that the service refuses."""
        turn, run = await self.begin(folder)
        await self.ask(step)
        return await self.fails(turn, run)

    async def told(self, folder: str) -> list[str]:
        rows = await self.household.rows("SELECT text FROM outbox WHERE group_folder = ? ORDER BY id", folder)
        return [row["text"] for row in rows]

    async def turn_away(self, folder: str = "family") -> tuple[bool, Turn]:
        """What becomes of a new question before it is begun."""
        await self.household.hear("@Andy and now?", folder)
        turn = (await self.household.queued(folder))[-1]
        return await self.available.turn_away(turn), await self.household.turn(turn.id)

    def restart(self) -> None:
        """The host begins anew: all that it had in mind is gone."""
        self.health = _health(self)
        self.available._refusal = _refusal_of(self)


def _health(house: House) -> ModelHealth:
    async def model_of(folder: Folder, kind: TurnKind | None) -> str | None:
        del folder, kind
        return house.model

    async def probe(model: str | None) -> Answered:
        return await house.served.proxy.probe(model)

    async def recovered(tx: Tx, refusal: ModelRefusal) -> None:
        await health.notify_recovery(tx, refusal, now_ms=house.household.clock.now_ms())

    return ModelHealth(
        house.household.database,
        source=house.served.source,
        clock=house.household.clock,
        model_of=model_of,
        probe=probe,
        on_recovery=recovered,
        on_change=house.household.wakeups.outages.set,
    )


def _refusal_of(house: House):  # type: ignore[no-untyped-def]
    async def refusal(group: Group, kind: TurnKind) -> ModelRefusal | None:
        del group, kind
        return await house.health.refusal(house.model)

    return refusal


@pytest.fixture
async def house(household: Household, tmp_path: Path) -> AsyncIterator[House]:
    await household.add_group("main", is_main=True, requires_trigger=False)
    await household.add_group("family")
    house: House

    async def judge(identity: RunIdentity, answered: Answered) -> bool:
        return await house.health.judge(identity, answered)

    limits = ModelProxyLimits(first_byte_seconds=1)
    with ScriptedMessagesApi(default=Say("ok")) as api:
        async with proxied(tmp_path, judge=judge, limits=limits) as served:
            served.environment["ANTHROPIC_BASE_URL"] = api.url
            house = House(household, served, api, None, None)  # type: ignore[arg-type]
            house.health = _health(house)
            house.available = Availability(
                household.database,
                clock=household.clock,
                wakeups=household.wakeups,
                bus=household.bus,
                refusal=_refusal_of(house),
            )
            yield house


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
    house: House, step: Fail, says: str
) -> None:
    turn, run = await house.begin()
    response = await house.ask(step)
    assert (response.status_code, response.headers["x-should-retry"]) == (step.status, "false")

    ended = await house.fails(turn, run)
    assert (ended.state, ended.attempt) == (TurnState.FAILED, 1)
    assert await house.told("family") == [failures.REFUSED]
    (told,) = await house.told("main")
    assert says in told


async def test_further_turns_fail_at_once_and_the_owner_is_told_no_second_time(house: House) -> None:
    await house.refuse()
    for folder in ("family", "family"):
        is_away, turn = await house.turn_away(folder)
        assert (is_away, turn.state, turn.run_id) == (True, TurnState.FAILED, None)
    assert await house.told("family") == [failures.REFUSED] * 3, "each asker reads one sentence"
    assert len(await house.told("main")) == 1
    assert len(house.api.probes) == 1, "the service is left alone for a minute"


async def test_where_the_owner_asks_the_cause_is_the_answer(house: House) -> None:
    await house.refuse(folder="main")
    (told,) = await house.told("main")
    assert "refuses ANTHROPIC_API_KEY" in told
    await house.turn_away("main")
    assert (await house.told("main"))[1:] == [failures.STILL_REFUSED]


async def test_another_key_is_asked_about_at_once(house: House) -> None:
    await house.refuse()
    (house.served.home / ".env").write_text("ANTHROPIC_API_KEY=sk-ant-api03-the-next\n")
    house.api.probe = Say("ok")
    is_away, turn = await house.turn_away()
    assert (is_away, turn.state) == (False, TurnState.QUEUED)
    assert (await house.told("main"))[1:] == [failures.WORKS_AGAIN]
    assert house.api.probes[-1].headers["x-api-key"] == "sk-ant-api03-the-next"


async def test_the_same_key_is_asked_about_each_minute(house: House) -> None:
    await house.refuse()
    house.api.probe = Say("ok")
    assert (await house.turn_away())[0]
    house.household.clock.pass_ms(MINUTE_MS)
    assert not (await house.turn_away())[0]
    assert house.health.refusals == []


async def test_a_refusal_outlives_the_host_and_is_told_once(house: House) -> None:
    await house.refuse()
    house.restart()
    await house.health.load()
    assert [one.cause for one in house.health.refusals] == [ModelError.KEY_REFUSED]
    assert (await house.turn_away())[0]
    assert len(house.api.probes) == 2, "a new host sees for itself"
    assert len(await house.told("main")) == 1


async def test_what_one_request_alone_is_refused_stops_nobody_else(house: House) -> None:
    turn, run = await house.begin()
    response = await house.ask(Fail(403, "permission_error", "not this one"), probe=Say("ok"))
    assert response.headers["x-should-retry"] == "false"
    assert (await house.fails(turn, run)).state is TurnState.QUEUED
    assert await house.told("main") == []
    await house.household.hear("hi", "main")
    (other,) = await house.household.queued("main")
    assert not await house.available.turn_away(other)


async def test_a_model_that_is_not_there_stops_its_own_turns_alone(house: House) -> None:
    house.model = "claude-9"
    await house.refuse(UNKNOWN)
    assert [one.model for one in house.health.refusals] == ["claude-9"]
    assert (await house.turn_away())[0]
    assert "does not know the model 'claude-9' (HTTP 404)" in (await house.told("main"))[0]
    house.model = "claude-10"
    assert not (await house.turn_away())[0]


async def test_a_container_that_asks_for_a_strange_model_stops_no_other_turn(house: House) -> None:
    turn, run = await house.begin()
    await house.ask(UNKNOWN, probe=Say("ok"))
    assert (await house.fails(turn, run)).state is TurnState.FAILED
    assert not (await house.turn_away())[0]


async def test_without_a_key_no_container_is_begun(house: House) -> None:
    (house.served.home / ".env").write_text("")
    assert (await house.turn_away())[0]
    assert "there is no key" in (await house.told("main"))[0]
    (house.served.home / ".env").write_text("ANTHROPIC_API_KEY=sk-ant-api03-at-last\n")
    assert not (await house.turn_away())[0]


async def test_what_nobody_waits_for_stays_queued(house: House) -> None:
    await house.refuse()
    async with house.household.database.transaction() as tx:
        cursor = await tx.execute(
            "INSERT INTO turns (group_folder, chat_jid, kind, state, queued_ms, not_before_ms)"
            " VALUES ('family', 'local:family', 'auto', 'queued', 0, 0) RETURNING id"
        )
        row = await cursor.fetchone()
    turn = await house.household.turn(row["id"])  # type: ignore[index]
    assert await house.available.turn_away(turn)
    turn = await house.household.turn(turn.id)
    assert (turn.state, turn.attempt) == (TurnState.QUEUED, 1)
    assert turn.not_before_ms == house.household.clock.now_ms() + MINUTE_MS


# For a while


async def test_an_outage_counts_no_attempt_and_ends_after_a_quarter_of_an_hour(house: House) -> None:
    turn, run = await house.begin()
    for _ in range(8):
        response = await house.ask(OVERLOADED)
        assert "x-should-retry" not in response.headers
        turn = await house.fails(turn, run)
        assert (turn.state, turn.attempt) == (TurnState.QUEUED, 1)
        house.household.clock.pass_ms(90_000)
        turn, run, _ = await house.household.start_next()
        house.works_on(turn, run)
    house.household.clock.pass_ms(failures.MAX_OUTAGE_MS)
    assert (await house.ask(OVERLOADED)).headers["x-should-retry"] == "false"
    assert (await house.fails(turn, run)).state is TurnState.FAILED
    assert "overloaded or out of reach for 15 minutes" in (await house.told("family"))[-1]
    assert house.api.probes == []


async def test_a_good_answer_ends_the_outage(house: House) -> None:
    turn, run = await house.begin()
    await house.ask(OVERLOADED)
    house.household.clock.pass_ms(failures.MAX_OUTAGE_MS)
    assert (await house.ask(Say("ok"))).status_code == 200
    assert "x-should-retry" not in (await house.ask(OVERLOADED)).headers, "a new one begins"
    assert (await house.fails(turn, run)).state is TurnState.QUEUED


async def test_a_service_that_wants_to_be_left_alone_for_long_is_not_waited_for(house: House) -> None:
    turn, run = await house.begin()
    limit = Fail(429, "rate_limit_error", "later", {"retry-after": "7200"})
    assert (await house.ask(limit)).headers["x-should-retry"] == "false"
    assert (await house.fails(turn, run)).state is TurnState.FAILED
    assert "answers again in 120 minutes" in (await house.told("family"))[-1]


async def test_a_chat_is_told_once_that_it_waits_and_not_before_half_a_minute(house: House) -> None:
    await house.begin()
    await house.ask(OVERLOADED)
    telling = asyncio.create_task(house.available.run(), name="availability")
    try:
        house.household.clock.pass_ms(failures.TELL_OUTAGE_AFTER_MS - 1_000)
        await house.ask(OVERLOADED)
        assert await house.told("family") == []
        house.household.clock.pass_ms(1_000)
        await house.ask(OVERLOADED)

        async def is_told() -> bool:
            return bool(await house.told("family"))

        await until(is_told, "the chat is told")
        house.household.clock.pass_ms(failures.TELL_OUTAGE_AFTER_MS)
        await house.ask(OVERLOADED)
        await house.available.notify_waiting()
    finally:
        telling.cancel()
    assert await house.told("family") == [failures.WAITING[failures.Outage.MODEL]]


async def test_a_service_that_takes_a_question_and_says_nothing_is_an_outage(house: House) -> None:
    turn, run = await house.begin()
    response = await house.ask(Hang())
    assert (response.status_code, response.json()["error"]["type"]) == (504, "timeout_error")
    turn = await house.fails(turn, run)
    assert (turn.state, turn.attempt) == (TurnState.QUEUED, 1)
    (outage,) = await house.household.rows("SELECT * FROM turn_outages")
    assert outage["since_ms"] < house.household.clock.now_ms(), "it waits since it has asked"


async def test_a_turn_that_has_met_an_outage_can_be_removed_with_its_rows(house: House) -> None:
    turn, _ = await house.begin()
    await house.ask(OVERLOADED)
    async with house.household.database.transaction() as tx:
        await tx.execute("UPDATE messages SET turn_id = NULL, ignored_reason = 'x'")
        await tx.execute("DELETE FROM turns WHERE id = ?", (turn.id,))
    assert await house.household.rows("SELECT * FROM turn_outages") == []


async def test_a_service_that_is_silent_when_it_is_asked_again_is_asked_once_a_minute(house: House) -> None:
    await house.refuse()
    house.household.clock.pass_ms(MINUTE_MS)
    house.api.probe = Hang()
    assert [(await house.turn_away())[0] for _ in range(3)] == [True] * 3
    assert len(house.api.probes) == 2


async def test_a_key_that_is_there_at_last_is_noticed_without_a_question(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PROBE_EVERY_MS", 10)
    (house.served.home / ".env").write_text("")
    assert (await house.turn_away())[0]
    (house.served.home / ".env").write_text("ANTHROPIC_API_KEY=sk-ant-api03-at-last\n")
    looking = asyncio.create_task(house.health.run(), name="model-health")
    await until(lambda: house.health.refusals == [], "the refusal is over")
    looking.cancel()
    assert (await house.told("main"))[-1] == failures.WORKS_AGAIN
