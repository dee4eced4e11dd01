"""Budgets and runaway turns: what passes, what is refused, who is told, and what becomes of the turn."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest

from agent_runner.wire.frames import TurnEnd
from orchestrator.domain.values import Folder, Run, RunId, Turn, TurnId, TurnKind, TurnState
from orchestrator.proxies.model import usage_writer as usage_writer_module
from orchestrator.proxies.model.budget_admission import Admission
from orchestrator.proxies.model.exchange import ExchangeEnd, ProxyExchange, RunIdentity
from orchestrator.proxies.model.token_usage import ParsedUsage
from orchestrator.proxies.run_tokens import token_hash
from orchestrator.store import budgets
from orchestrator.store.budgets import Budget, Period, Unit
from tests.doubles.messages_api import Say, ScriptedMessagesApi, Tokens
from tests.support.household import Household
from tests.support.running_proxy import Proxied, proxied

SEOUL = ZoneInfo("Asia/Seoul")
DAY_MS = 24 * 3_600_000
BODY = json.dumps({"model": "claude-sonnet-4-5", "stream": True, "messages": []}).encode()


@dataclass
class House:
    """A family and its owner, a proxy with a gate, and a service whose every answer takes 100 tokens."""

    household: Household
    served: Proxied
    gate: Admission
    ended: list[RunId] = field(default_factory=list)

    async def allow(self, amount: int, folder: str | None = None, **changes: Any) -> None:
        settings = {"is_background": False, "period": Period.DAY, "unit": Unit.TOKENS, **changes}
        async with self.household.database.transaction() as tx:
            await budgets.put(
                tx, folder=Folder(folder) if folder else None, amount=amount, now_ms=0, **settings
            )

    def works_for(
        self, folder: str, *, turn: Turn | None = None, kind: TurnKind | None = TurnKind.CHAT
    ) -> None:
        self.served.runs[token_hash(self.served.token)] = RunIdentity(
            run_id=RunId("run-1"),
            folder=Folder(folder),
            turn_id=turn.id if turn else None,
            kind=kind,
            is_main=folder == "main",
        )

    async def ask(self) -> httpx.Response:
        before = len(self.served.exchanges)
        response = await self.served.call(content=BODY)
        if response.status_code == 200:
            await self.served.recorded(before + 1)
        return response

    async def statuses(self, times: int) -> list[int]:
        return [(await self.ask()).status_code for _ in range(times)]

    async def told(self) -> list[tuple[str, str]]:
        """What chats were told, and which."""
        await self.gate.usage_writer.flush()
        return [(one.chat_jid.removeprefix("local:"), one.text) for one in await self.household.outgoing()]


@pytest.fixture
async def house(household: Household, tmp_path: Path) -> AsyncIterator[House]:
    async with a_house(household, tmp_path) as house:
        yield house


@asynccontextmanager
async def a_house(household: Household, home: Path, *, requests_a_turn: int = 200) -> AsyncIterator[House]:
    await household.add_group("main", is_main=True)
    await household.add_group("family")
    ended: list[RunId] = []

    async def end(run_id: RunId, _: str) -> None:
        ended.append(run_id)

    gate = Admission(
        household.database,
        clock=household.clock,
        zone=SEOUL,
        requests_a_turn=requests_a_turn,
        on_queued=household.wakeups.outbox.set,
        on_runaway=end,
    )

    async def all_budgets() -> tuple[Budget, ...]:
        async with household.database.reading() as tx:
            return tuple(await budgets.every(tx))

    tokens = Tokens(input_tokens=60, output_tokens=40)
    with ScriptedMessagesApi(default=Say("ok"), tokens=tokens) as api:
        async with proxied(
            home, usage_writer=gate.usage_writer, admit=gate.admit, budgets=all_budgets
        ) as served:
            served.environment["ANTHROPIC_BASE_URL"] = api.url
            house = House(household, served, gate, ended)
            house.works_for("family")
            yield house


async def test_requests_pass_until_the_budget_is_spent(house: House) -> None:
    await house.allow(250, "family")
    assert await house.statuses(5) == [200, 200, 200, 402, 402]
    response = await house.ask()
    assert response.headers["x-should-retry"] == "false"
    error = response.json()["error"]
    assert error["type"] == "billing_error"
    assert error["message"].startswith("The budget of family for today is spent (250 tokens).")


async def test_what_is_not_stored_yet_counts_and_so_does_what_is(house: House) -> None:
    await house.allow(200, "family")
    assert await house.statuses(1) == [200]
    await house.gate.usage_writer.flush()
    assert await house.statuses(2) == [200, 402], "one stored, one waiting"
    await house.gate.usage_writer.flush()
    assert await house.statuses(1) == [402]


async def test_a_budget_in_money_counts_the_cost(house: House) -> None:
    cost = 60 * 3000 + 40 * 15000
    await house.allow(2 * cost, "family", unit=Unit.USD, period=Period.MONTH)
    assert await house.statuses(3) == [200, 200, 402]


async def test_a_change_works_at_once(house: House) -> None:
    await house.allow(100, "family")
    assert await house.statuses(2) == [200, 402]
    await house.allow(300, "family")
    assert await house.statuses(3) == [200, 200, 402]
    async with house.household.database.transaction() as tx:
        (found,) = await budgets.every(tx)
        assert await budgets.remove(tx, found.id)
    assert await house.statuses(1) == [200]


async def test_the_next_day_begins_anew(house: House) -> None:
    await house.allow(100, "family")
    assert await house.statuses(2) == [200, 402]
    house.household.clock.pass_ms(DAY_MS)
    assert await house.statuses(2) == [200, 402]


async def test_another_group_goes_on(house: House) -> None:
    await house.allow(100, "family")
    assert await house.statuses(2) == [200, 402]
    house.works_for("main")
    assert await house.statuses(2) == [200, 200]


async def test_the_owners_chat_heeds_its_own_budget_alone(house: House) -> None:
    await house.allow(100)
    assert await house.statuses(2) == [200, 402]
    house.works_for("main")
    assert await house.statuses(2) == [200, 200]
    house.works_for("main", kind=TurnKind.WORKER)
    assert await house.statuses(1) == [402]
    house.works_for("main")
    await house.allow(300, "main")
    assert await house.statuses(2) == [200, 402]


async def test_background_work_cannot_eat_what_is_left_for_chat(house: House) -> None:
    await house.allow(300)
    await house.allow(100, is_background=True)
    house.works_for("family", kind=TurnKind.TASK)
    assert await house.statuses(2) == [200, 402]
    for kind in (TurnKind.AUTO, TurnKind.WORKER, None):
        house.works_for("family", kind=kind)
        assert await house.statuses(1) == [402], kind
    house.works_for("family")
    assert await house.statuses(3) == [200, 200, 402], "background work counts for all"


async def test_chat_does_not_use_up_what_background_work_has(house: House) -> None:
    await house.allow(150, is_background=True)
    house.works_for("family", kind=TurnKind.TASK)
    assert await house.statuses(1) == [200]
    house.works_for("family")
    assert await house.statuses(2) == [200, 200]
    house.works_for("family", kind=TurnKind.TASK)
    assert await house.statuses(2) == [200, 402]


async def test_the_agent_of_a_chat_that_is_told_of_a_budget_notices_it_in_its_next_turn(house: House) -> None:
    await house.allow(500, "family")
    await house.statuses(3)
    await house.gate.usage_writer.flush()
    sql = "SELECT * FROM cross_session_notifications WHERE group_folder = 'family'"
    assert await house.household.rows(sql) == []
    await house.statuses(1)
    await house.gate.usage_writer.flush()
    (fact,) = await house.household.rows(sql)
    assert (fact["event_type"], fact["count"], fact["priority"]) == ("host.budget.warning", 1, "normal")
    assert "80 % of the budget of family for today is used" in json.loads(fact["payload_json"])["message"]
    assert await house.statuses(3) == [200, 402, 402]
    await house.gate.usage_writer.flush()
    (fact,) = await house.household.rows(sql)
    assert (fact["count"], fact["priority"]) == (2, "high")
    assert await house.household.queued() == [], "it begins no turn"


async def test_owner_and_group_are_warned_once_and_told_once(house: House) -> None:
    await house.allow(400, "family")
    await house.statuses(3)
    assert await house.told() == []
    await house.statuses(1)
    spent = "⚠️ The budget of family for today is spent (400 tokens)."
    assert [(chat, text[: len(spent)]) for chat, text in await house.told()] == [
        ("main", spent),
        ("family", spent),
    ]
    assert await house.statuses(3) == [402, 402, 402]
    assert len(await house.told()) == 2
    house.household.clock.pass_ms(DAY_MS)
    await house.statuses(4)
    assert len(await house.told()) == 4, "the next day it is told again"


async def test_the_warning_comes_before_the_end(house: House) -> None:
    await house.allow(500)
    await house.statuses(4)
    warned = [("main", "⚠️ 80 % of the budget of all groups for today is used (500 tokens).")]
    assert await house.told() == warned
    await house.statuses(1)
    told = await house.told()
    assert [chat for chat, _ in told] == ["main", "main", "family"]


async def test_an_answer_is_counted_once_while_it_is_stored(house: House) -> None:
    await house.allow(240)
    house.works_for("main")
    await house.statuses(1)
    assert await house.told() == [], "100 of 240, which no request has looked at"
    await house.statuses(1)
    (told,) = await house.told()
    assert told[1].startswith("⚠️ 83 % of the budget of all groups")


async def test_a_budget_set_below_what_is_used_is_told_at_the_next_request(house: House) -> None:
    await house.statuses(2)
    assert await house.told() == []
    await house.allow(50, "family")
    assert await house.statuses(1) == [402]
    assert [chat for chat, _ in await house.told()] == ["main", "family"]


async def a_running_turn(house: House) -> tuple[Turn, Run]:
    await house.household.hear("@Andy hello")
    turn, run, _ = await house.household.start_next()
    house.works_for("family", turn=turn)
    return turn, run


async def test_a_turn_that_was_refused_fails_at_once_with_the_hosts_reason(house: House) -> None:
    await house.allow(0, "family")
    turn, run = await a_running_turn(house)
    assert await house.statuses(1) == [402]
    lie = TurnEnd(n=1, turn=turn.id, status="error", error="the network was down", code="agent")
    taken = await house.household.take(run, lie)
    assert taken is not None
    assert taken.ended is TurnState.FAILED
    found = await house.household.turn(turn.id)
    assert (found.state, found.attempt) == (TurnState.FAILED, 1)
    assert found.reason is not None
    assert found.reason.startswith("the budget of family for today is spent (0 tokens). The next begins on")


async def test_a_container_cannot_say_that_its_budget_is_spent(house: House) -> None:
    turn, run = await a_running_turn(house)
    lie = TurnEnd(n=1, turn=turn.id, status="error", error="API Error: 402 the budget is spent", code="agent")
    taken = await house.household.take(run, lie)
    assert taken is not None
    assert taken.ended is TurnState.QUEUED


async def test_a_container_that_dies_of_it_is_not_tried_again_either(house: House) -> None:
    await house.allow(0, "family")
    turn, run = await a_running_turn(house)
    await house.statuses(1)
    await house.household.lose(run)
    assert (await house.household.turn(turn.id)).state is TurnState.FAILED


async def test_a_turn_that_got_round_a_refusal_is_answered(house: House) -> None:
    await house.allow(0, "family")
    turn, run = await a_running_turn(house)
    await house.statuses(1)
    taken = await house.household.take(run, TurnEnd(n=1, turn=turn.id))
    assert taken is not None
    assert taken.ended is TurnState.ANSWERED


async def test_a_turn_that_asks_without_end_is_stopped(household: Household, tmp_path: Path) -> None:
    async with a_house(household, tmp_path, requests_a_turn=3) as house:
        turn, run = await a_running_turn(house)
        assert await house.statuses(6) == [200, 200, 200, 429, 429, 429]
        assert house.ended == [RunId("run-1")], "once"
        await household.lose(run)
        found = await household.turn(turn.id)
        assert (found.state, found.reason) == (
            TurnState.FAILED,
            "it asked the model more than 3 times in one turn.",
        )
        assert any("more than 3 times" in text for _, text in await house.told())


async def test_each_turn_has_its_own_count(household: Household, tmp_path: Path) -> None:
    async with a_house(household, tmp_path, requests_a_turn=2) as house:
        turn, _ = await a_running_turn(house)
        assert await house.statuses(2) == [200, 200]
        house.served.runs[token_hash(house.served.token)] = replace(
            house.served.runs[token_hash(house.served.token)], turn_id=turn.id + 1
        )
        assert await house.statuses(2) == [200, 200]
        assert house.ended == []


async def test_what_cannot_be_recorded_does_not_pass(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_writer_module, "MAX_WAITING", 1)
    assert await house.statuses(3) == [200, 200, 503]
    await house.gate.usage_writer.flush()
    assert await house.statuses(1) == [200]


def a_search() -> ProxyExchange:
    used = ParsedUsage(
        model="claude-sonnet-4-5",
        input_tokens=1,
        output_tokens=1,
        cache_read_tokens=0,
        cache_write_tokens=0,
        cache_write_hour_tokens=0,
        searches=1,
        is_whole=True,
    )
    return ProxyExchange(
        path="/v1/messages",
        status=200,
        ending=ExchangeEnd.WHOLE,
        duration_ms=1,
        bytes_in=1,
        bytes_out=1,
        usage=used,
    )


async def test_a_turn_that_has_searched_fifty_times_searches_no_more(house: House) -> None:
    def may(turn: int) -> bool:
        return house.gate.may_search(RunId("run-1"), TurnId(turn))

    for number in range(50):
        assert may(7), number
        searcher = RunIdentity(run_id=RunId("run-1"), folder=Folder("family"), turn_id=TurnId(7))
        house.gate.usage_writer.exchanged(searcher, a_search())
    assert not may(7)
    assert may(8), "the next turn may"
