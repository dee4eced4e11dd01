"""Budgets and runaway turns: what passes, what is refused, who is told, and what becomes of the turn."""

from __future__ import annotations

import asyncio
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
from orchestrator.domain.errors import StoreError
from orchestrator.domain.values import Folder, Role, Run, RunId, Turn, TurnId, TurnKind, TurnState
from orchestrator.proxies.model import usage_writer as usage_writer_module
from orchestrator.proxies.model.budget_admission import Admission
from orchestrator.proxies.model.exchange import ExchangeEnd, ProxyExchange, RunIdentity
from orchestrator.proxies.model.token_usage import ParsedUsage
from orchestrator.proxies.run_tokens import token_hash
from orchestrator.store.groups import groups
from orchestrator.store.money import budgets
from orchestrator.store.money.budgets import Budget, Period, Unit
from orchestrator.store.runs import turn_outages
from tests.doubles.messages_api import Say, ScriptedMessagesApi, Tokens
from tests.support.running_proxy import Proxied, proxied
from tests.support.store_harness import StoreHarness
from tests.support.until import until

SEOUL = ZoneInfo("Asia/Seoul")
DAY_MS = 24 * 3_600_000
BODY = json.dumps({"model": "claude-sonnet-4-5", "stream": True, "messages": []}).encode()


@dataclass
class Harness:
    """A family and its owner, a proxy with a gate, and a service whose every answer takes 100 tokens."""

    store_harness: StoreHarness
    served: Proxied
    gate: Admission
    ended: list[RunId] = field(default_factory=list)

    async def allow(self, amount: int, folder: str | None = None, **changes: Any) -> None:
        settings = {"is_background": False, "period": Period.DAY, "unit": Unit.TOKENS, **changes}
        async with self.store_harness.database.transaction() as tx:
            await budgets.put(
                tx, folder=Folder(folder) if folder else None, amount=amount, now_ms=0, **settings
            )

    def works_for(
        self,
        folder: str,
        *,
        turn: Turn | None = None,
        kind: TurnKind | None = TurnKind.CHAT,
        spend: int = 100,
    ) -> None:
        self.served.runs[token_hash(self.served.token)] = RunIdentity(
            run_id=RunId("run-1"),
            folder=Folder(folder),
            turn_id=turn.id if turn else None,
            kind=kind,
            is_main=folder == "main",
            role=turn.role if turn else Role.OWNER,
            spend=spend,
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
        return [
            (one.chat_jid.removeprefix("local:"), one.text) for one in await self.store_harness.outgoing()
        ]


@pytest.fixture
async def harness(store_harness: StoreHarness, tmp_path: Path) -> AsyncIterator[Harness]:
    async with a_harness(store_harness, tmp_path) as harness:
        yield harness


@asynccontextmanager
async def a_harness(
    store_harness: StoreHarness, home: Path, *, requests_a_turn: int = 200
) -> AsyncIterator[Harness]:
    await store_harness.add_group("main", is_main=True)
    await store_harness.add_group("family")
    ended: list[RunId] = []

    async def end(run_id: RunId, _: str) -> None:
        ended.append(run_id)

    gate = Admission(
        store_harness.database,
        clock=store_harness.clock,
        zone=SEOUL,
        requests_a_turn=requests_a_turn,
        on_queued=store_harness.wakeups.outbox.set,
        on_runaway=end,
    )

    async def all_budgets() -> tuple[Budget, ...]:
        async with store_harness.database.reading() as tx:
            return tuple(await budgets.every(tx))

    tokens = Tokens(input_tokens=60, output_tokens=40)
    with ScriptedMessagesApi(default=Say("ok"), tokens=tokens) as api:
        async with proxied(
            home, usage_writer=gate.usage_writer, admit=gate.admit, budgets=all_budgets
        ) as served:
            served.environment["ANTHROPIC_BASE_URL"] = api.url
            harness = Harness(store_harness, served, gate, ended)
            harness.works_for("family")
            yield harness


async def test_guests_have_their_part_of_a_budget_together_and_members_the_rest(harness: Harness) -> None:
    people = {"people": {"local:gil": "guest", "local:gus": "guest"}}
    async with harness.store_harness.database.transaction() as tx:
        await groups.set_config(tx, Folder("family"), people, now_ms=0)
    await harness.allow(1_000, "family")

    async def asked_by(sender: str) -> Turn:
        await harness.store_harness.hear("@Andy look", sender=f"local:{sender}")
        turn, run, _ = await harness.store_harness.start_next()
        await harness.store_harness.take(run, TurnEnd(n=9, turn=turn.id))
        return turn

    gil = await asked_by("gil")
    harness.works_for("family", turn=gil, spend=20)
    assert await harness.statuses(3) == [200, 200, 402], "two answers of 100 tokens are 20 % of 1,000"
    await harness.gate.usage_writer.flush()
    harness.works_for("family", turn=await asked_by("gus"), spend=20)
    refused = await harness.ask()
    assert refused.status_code == 402
    assert "Guests may use 20 % of the budget of family for today together" in refused.text
    harness.works_for("family", turn=await asked_by("mina"))
    assert await harness.statuses(9) == [200] * 8 + [402], "the whole budget is for all"
    harness.store_harness.clock.wall_ms += DAY_MS
    harness.works_for("family", turn=gil, spend=20)
    assert (await harness.ask()).status_code == 200

    harness.works_for("family", turn=gil, spend=0)
    assert (await harness.ask()).status_code == 403


async def test_an_answer_that_is_stored_while_the_next_question_waits_counts_once_for_a_guest(
    harness: Harness,
) -> None:
    store = harness.store_harness
    async with store.database.transaction() as tx:
        await groups.set_config(tx, Folder("family"), {"people": {"local:gil": "guest"}}, now_ms=0)
    await harness.allow(1_000, "family")
    await store.hear("@Andy look", sender="local:gil")
    turn, _, _ = await store.start_next()
    harness.works_for("family", turn=turn, spend=20)
    assert (await harness.ask()).status_code == 200, "100 of 200 tokens"
    async with store.database.reading() as tx:
        all_budgets = tuple(await budgets.every(tx))
    guest = replace(harness.served.runs[token_hash(harness.served.token)], budgets=all_budgets)
    lock = store.database._lock
    async with asyncio.TaskGroup() as tasks, lock:
        tasks.create_task(harness.gate.usage_writer.flush(), name="flush")
        await until(lambda: len(lock._waiters or ()) == 1, "the answer is about to be stored")
        tasks.create_task(harness.gate.admit(guest), name="admit")
        await until(lambda: len(lock._waiters or ()) == 2, "the question waits behind it")


async def test_guests_of_each_group_have_their_own_part_of_a_budget_of_all_groups(harness: Harness) -> None:
    await harness.store_harness.add_group("work")
    await harness.allow(1_000)

    async def guest_of(folder: str) -> Turn:
        people = {"people": {"local:gil": "guest"}}
        async with harness.store_harness.database.transaction() as tx:
            await groups.set_config(tx, Folder(folder), people, now_ms=0)
        await harness.store_harness.hear("@Andy look", folder=folder, sender="local:gil")
        turn, run, _ = await harness.store_harness.start_next(folder)
        await harness.store_harness.take(run, TurnEnd(n=9, turn=turn.id))
        return turn

    for folder in ("work", "family"):
        harness.works_for(folder, turn=await guest_of(folder), spend=20)
        assert await harness.statuses(2) == [200, 200], "what guests elsewhere used is not theirs"
        refused = await harness.ask()
        assert (
            f"Guests of {folder} may use 20 % of the budget of all groups for today together" in refused.text
        )
        await harness.gate.usage_writer.flush()


async def test_requests_pass_until_the_budget_is_spent(harness: Harness) -> None:
    await harness.allow(250, "family")
    assert await harness.statuses(5) == [200, 200, 200, 402, 402]
    response = await harness.ask()
    assert response.headers["x-should-retry"] == "false"
    error = response.json()["error"]
    assert error["type"] == "billing_error"
    assert error["message"].startswith("The budget of family for today is spent (250 tokens).")


async def test_what_is_not_stored_yet_counts_and_so_does_what_is(harness: Harness) -> None:
    await harness.allow(200, "family")
    assert await harness.statuses(1) == [200]
    await harness.gate.usage_writer.flush()
    assert await harness.statuses(2) == [200, 402], "one stored, one waiting"
    await harness.gate.usage_writer.flush()
    assert await harness.statuses(1) == [402]


async def test_a_budget_in_money_counts_the_cost(harness: Harness) -> None:
    cost = 60 * 3000 + 40 * 15000
    await harness.allow(2 * cost, "family", unit=Unit.USD, period=Period.MONTH)
    assert await harness.statuses(3) == [200, 200, 402]


async def test_a_change_works_at_once(harness: Harness) -> None:
    await harness.allow(100, "family")
    assert await harness.statuses(2) == [200, 402]
    await harness.allow(300, "family")
    assert await harness.statuses(3) == [200, 200, 402]
    async with harness.store_harness.database.transaction() as tx:
        (found,) = await budgets.every(tx)
        assert await budgets.remove(tx, found.id)
    assert await harness.statuses(1) == [200]


async def test_the_next_day_begins_anew(harness: Harness) -> None:
    await harness.allow(100, "family")
    assert await harness.statuses(2) == [200, 402]
    harness.store_harness.clock.pass_ms(DAY_MS)
    assert await harness.statuses(2) == [200, 402]


@pytest.mark.parametrize("period", Period)
async def test_what_was_used_while_the_clock_was_ahead_spends_no_budget_of_today(
    harness: Harness, period: Period
) -> None:
    await harness.allow(100, "family", period=period)
    clock = harness.store_harness.clock
    clock.wall_ms += 400 * DAY_MS
    assert await harness.statuses(2) == [200, 402]
    await harness.gate.usage_writer.flush()
    clock.wall_ms -= 400 * DAY_MS
    assert await harness.statuses(2) == [200, 402]


async def test_what_guests_used_while_the_clock_was_ahead_is_no_part_of_their_present_share(
    harness: Harness,
) -> None:
    async with harness.store_harness.database.transaction() as tx:
        await groups.set_config(tx, Folder("family"), {"people": {"local:gil": "guest"}}, now_ms=0)
    await harness.allow(500, "family")
    await harness.store_harness.hear("@Andy look", sender="local:gil")
    turn, _, _ = await harness.store_harness.start_next()
    harness.works_for("family", turn=turn, spend=20)
    clock = harness.store_harness.clock
    clock.wall_ms += 400 * DAY_MS
    assert await harness.statuses(2) == [200, 402]
    await harness.gate.usage_writer.flush()
    clock.wall_ms -= 400 * DAY_MS
    assert await harness.statuses(1) == [200]


async def test_another_group_goes_on(harness: Harness) -> None:
    await harness.allow(100, "family")
    assert await harness.statuses(2) == [200, 402]
    harness.works_for("main")
    assert await harness.statuses(2) == [200, 200]


async def test_the_owners_chat_heeds_its_own_budget_alone(harness: Harness) -> None:
    await harness.allow(100)
    assert await harness.statuses(2) == [200, 402]
    harness.works_for("main")
    assert await harness.statuses(2) == [200, 200]
    harness.works_for("main", kind=TurnKind.WORKER)
    assert await harness.statuses(1) == [402]
    harness.works_for("main")
    await harness.allow(300, "main")
    assert await harness.statuses(2) == [200, 402]


async def test_background_work_cannot_eat_what_is_left_for_chat(harness: Harness) -> None:
    await harness.allow(300)
    await harness.allow(100, is_background=True)
    harness.works_for("family", kind=TurnKind.TASK)
    assert await harness.statuses(2) == [200, 402]
    for kind in (TurnKind.AUTO, TurnKind.WORKER, None):
        harness.works_for("family", kind=kind)
        assert await harness.statuses(1) == [402], kind
    harness.works_for("family")
    assert await harness.statuses(3) == [200, 200, 402], "background work counts for all"


async def test_chat_does_not_use_up_what_background_work_has(harness: Harness) -> None:
    await harness.allow(150, is_background=True)
    harness.works_for("family", kind=TurnKind.TASK)
    assert await harness.statuses(1) == [200]
    harness.works_for("family")
    assert await harness.statuses(2) == [200, 200]
    harness.works_for("family", kind=TurnKind.TASK)
    assert await harness.statuses(2) == [200, 402]


async def test_the_agent_of_a_chat_that_is_told_of_a_budget_notices_it_in_its_next_turn(
    harness: Harness,
) -> None:
    await harness.allow(500, "family")
    await harness.statuses(3)
    await harness.gate.usage_writer.flush()
    sql = "SELECT * FROM cross_session_notifications WHERE group_folder = 'family'"
    assert await harness.store_harness.rows(sql) == []
    await harness.statuses(1)
    await harness.gate.usage_writer.flush()
    (fact,) = await harness.store_harness.rows(sql)
    assert (fact["event_type"], fact["count"], fact["priority"]) == ("host.budget.warning", 1, "normal")
    assert "80 % of the budget of family for today is used" in json.loads(fact["payload_json"])["message"]
    assert await harness.statuses(3) == [200, 402, 402]
    await harness.gate.usage_writer.flush()
    (fact,) = await harness.store_harness.rows(sql)
    assert (fact["count"], fact["priority"]) == (2, "high")
    assert await harness.store_harness.queued() == [], "it begins no turn"


async def test_owner_and_group_are_warned_once_and_told_once(harness: Harness) -> None:
    await harness.allow(400, "family")
    await harness.statuses(3)
    assert await harness.told() == []
    await harness.statuses(1)
    spent = "⚠️ The budget of family for today is spent (400 tokens)."
    assert [(chat, text[: len(spent)]) for chat, text in await harness.told()] == [
        ("main", spent),
        ("family", spent),
    ]
    assert await harness.statuses(3) == [402, 402, 402]
    assert len(await harness.told()) == 2
    harness.store_harness.clock.pass_ms(DAY_MS)
    await harness.statuses(4)
    assert len(await harness.told()) == 4, "the next day it is told again"


async def test_the_warning_comes_before_the_end(harness: Harness) -> None:
    await harness.allow(500)
    await harness.statuses(4)
    warned = [("main", "⚠️ 80 % of the budget of all groups for today is used (500 tokens).")]
    assert await harness.told() == warned
    await harness.statuses(1)
    told = await harness.told()
    assert [chat for chat, _ in told] == ["main", "main", "family"]


async def test_an_answer_is_counted_once_while_it_is_stored(harness: Harness) -> None:
    await harness.allow(240)
    harness.works_for("main")
    await harness.statuses(1)
    assert await harness.told() == [], "100 of 240, which no request has looked at"
    await harness.statuses(1)
    (told,) = await harness.told()
    assert told[1].startswith("⚠️ 83 % of the budget of all groups")


async def test_a_budget_set_below_what_is_used_is_told_at_the_next_request(harness: Harness) -> None:
    await harness.statuses(2)
    assert await harness.told() == []
    await harness.allow(50, "family")
    assert await harness.statuses(1) == [402]
    assert [chat for chat, _ in await harness.told()] == ["main", "family"]


async def a_running_turn(harness: Harness) -> tuple[Turn, Run]:
    await harness.store_harness.hear("@Andy hello")
    turn, run, _ = await harness.store_harness.start_next()
    harness.works_for("family", turn=turn)
    return turn, run


async def test_a_turn_that_was_refused_fails_at_once_with_the_hosts_reason(harness: Harness) -> None:
    await harness.allow(0, "family")
    turn, run = await a_running_turn(harness)
    assert await harness.statuses(1) == [402]
    lie = TurnEnd(n=1, turn=turn.id, status="error", error="the network was down", code="agent")
    taken = await harness.store_harness.take(run, lie)
    assert taken is not None
    assert taken.ended is TurnState.FAILED
    found = await harness.store_harness.turn(turn.id)
    assert (found.state, found.attempt) == (TurnState.FAILED, 1)
    assert found.reason is not None
    assert found.reason.startswith("the budget of family for today is spent (0 tokens). The next begins on")


async def test_a_container_cannot_say_that_its_budget_is_spent(harness: Harness) -> None:
    turn, run = await a_running_turn(harness)
    lie = TurnEnd(n=1, turn=turn.id, status="error", error="API Error: 402 the budget is spent", code="agent")
    taken = await harness.store_harness.take(run, lie)
    assert taken is not None
    assert taken.ended is TurnState.QUEUED


async def test_a_container_that_dies_of_it_is_not_tried_again_either(harness: Harness) -> None:
    await harness.allow(0, "family")
    turn, run = await a_running_turn(harness)
    await harness.statuses(1)
    await harness.store_harness.lose(run)
    assert (await harness.store_harness.turn(turn.id)).state is TurnState.FAILED


async def test_a_turn_that_got_round_a_refusal_is_answered(harness: Harness) -> None:
    await harness.allow(0, "family")
    turn, run = await a_running_turn(harness)
    await harness.statuses(1)
    taken = await harness.store_harness.take(run, TurnEnd(n=1, turn=turn.id))
    assert taken is not None
    assert taken.ended is TurnState.ANSWERED


async def test_a_turn_that_asks_without_end_is_stopped(store_harness: StoreHarness, tmp_path: Path) -> None:
    async with a_harness(store_harness, tmp_path, requests_a_turn=3) as harness:
        turn, run = await a_running_turn(harness)
        assert await harness.statuses(6) == [200, 200, 200, 429, 429, 429]
        assert harness.ended == [RunId("run-1")], "once"
        await store_harness.lose(run)
        found = await store_harness.turn(turn.id)
        assert (found.state, found.reason) == (
            TurnState.FAILED,
            "it asked the model more than 3 times in one turn.",
        )
        assert any("more than 3 times" in text for _, text in await harness.told())


async def test_a_turn_that_asks_without_end_is_stopped_though_its_stop_fails_at_first(
    store_harness: StoreHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_harness(store_harness, tmp_path, requests_a_turn=3) as harness:
        await a_running_turn(harness)
        assert await harness.statuses(3) == [200, 200, 200]
        with monkeypatch.context() as patch:
            patch.setattr(turn_outages, "note_stop", no_space)
            assert (await harness.ask()).status_code != 200
            assert harness.ended == []
        assert await harness.statuses(3) == [429, 429, 429]
        assert harness.ended == [RunId("run-1")]


async def no_space(*_: object, **__: object) -> None:
    raise StoreError("the disk is full")


async def test_each_turn_has_its_own_count(store_harness: StoreHarness, tmp_path: Path) -> None:
    async with a_harness(store_harness, tmp_path, requests_a_turn=2) as harness:
        turn, _ = await a_running_turn(harness)
        assert await harness.statuses(2) == [200, 200]
        harness.served.runs[token_hash(harness.served.token)] = replace(
            harness.served.runs[token_hash(harness.served.token)], turn_id=turn.id + 1
        )
        assert await harness.statuses(2) == [200, 200]
        assert harness.ended == []


async def test_what_cannot_be_recorded_does_not_pass(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_writer_module, "MAX_WAITING", 1)
    assert await harness.statuses(3) == [200, 200, 503]
    await harness.gate.usage_writer.flush()
    assert await harness.statuses(1) == [200]


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


async def test_a_turn_that_has_searched_fifty_times_searches_no_more(harness: Harness) -> None:
    def may(turn: int) -> bool:
        return harness.gate.searches.remaining(RunId("run-1"), TurnId(turn)) > 0

    for number in range(50):
        assert may(7), number
        searcher = RunIdentity(run_id=RunId("run-1"), folder=Folder("family"), turn_id=TurnId(7))
        harness.gate.usage_writer.note_exchange(searcher, a_search())
    assert not may(7)
    assert may(8), "the next turn may"
