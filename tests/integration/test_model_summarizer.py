"""A summary by a model: the scripted service on a real socket, the real door, its gate and its ledger."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.context import script
from orchestrator.context.models import ContextMessage, iso
from orchestrator.context.summarizer import (
    MAX_OUTPUT_TOKENS,
    MAX_PARTS,
    PART_TOKENS,
    SYSTEM,
    ModelSummarizer,
    SummaryRefused,
    checked,
)
from orchestrator.context.tokens import EstimatingCounter
from orchestrator.domain.values import Folder
from orchestrator.proxies.feature import ContainerProxies
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.proxies.model.host_calls import HostModelCalls, NotAnswered
from orchestrator.store.database import Database
from orchestrator.store.groups import groups
from orchestrator.store.money import budgets, usage
from orchestrator.store.money.budgets import Period, Unit
from tests.doubles.faulty_upstream import answer
from tests.doubles.messages_api import (
    Fail,
    Hang,
    Say,
    ScriptedMessagesApi,
    Tokens,
    last_user_text,
    system_text,
)
from tests.support.host_contexts import host_context
from tests.support.running_proxy import REAL_KEY, proxied
from tests.support.store_harness import StoreHarness

MODEL = "claude-haiku-4-5"
COUNTER = EstimatingCounter()


def said(number: int, content: str, role: str = "user") -> ContextMessage:
    return ContextMessage(id=f"t{number}.{role[0]}", role=role, content=content, ts=iso(number * 1000))


@dataclass
class Harness:
    store_harness: StoreHarness
    proxies: ContainerProxies
    api: ScriptedMessagesApi
    seconds: float = 20.0

    async def fold(self, old: str, *evicted: ContextMessage) -> str:
        return await ModelSummarizer(self._ask, COUNTER, seconds=self.seconds).fold(old, evicted)

    async def _ask(self, system: str, text: str) -> str:
        async with self.store_harness.database.reading() as tx:
            group = await groups.known(tx, "family")
        return await self.proxies.ask_model(
            group, model=MODEL, system=system, text=text, max_tokens=MAX_OUTPUT_TOKENS
        )

    async def spent(self) -> usage.Sums:
        await self.proxies.admission.usage_writer.flush()
        async with self.store_harness.database.reading() as tx:
            return await usage.spent(
                tx, folder=Folder("family"), since_ms=0, until_ms=usage.LATEST_MS, only_background=True
            )


@pytest.fixture
async def make(
    store_harness: StoreHarness, database_path: Path, tmp_path: Path
) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def made(*steps: Any, **options: Any) -> Harness:
            await store_harness.add_group()
            api = stack.enter_context(ScriptedMessagesApi(steps, tokens=Tokens(input_tokens=90)))
            reader = await Database.open_readonly(database_path)
            stack.push_async_callback(reader.close)
            environment = {"ANTHROPIC_API_KEY": "sk-ant-api03-the-key", "ANTHROPIC_BASE_URL": api.url}
            proxies = ContainerProxies(
                host_context(store_harness, tmp_path, reader=reader),
                credentials=CredentialSource(tmp_path, environment),
                address="127.0.0.1",
                on_runaway=_never,
            )
            await proxies.open(stack)
            return Harness(store_harness, proxies, api, **options)

        yield made


async def _never(run_id: str, reason: str) -> None:
    raise AssertionError(f"{run_id}: {reason}")


async def test_a_model_writes_the_summary_and_its_spending_is_counted(make):
    harness = await make(Say("They go by train on Saturday."))
    made = await harness.fold("They plan a trip.", said(1, "Train or bus?"), said(1, "Train.", "assistant"))
    assert made == "They go by train on Saturday."
    (asked,) = harness.api.turns
    given = json.loads(last_user_text(asked))
    assert given["summary_so_far"] == "They plan a trip."
    assert [one["text"] for one in given["messages"]] == ["Train or bus?", "Train."]
    assert (asked.body["max_tokens"], asked.body["model"]) == (400, MODEL)
    assert system_text(asked) == SYSTEM
    assert asked.headers["x-api-key"] == "sk-ant-api03-the-key"
    spent = await harness.spent()
    assert (spent.requests, spent.input_tokens) == (1, 90)


async def test_more_than_three_thousand_tokens_are_summarised_in_parts_first(make):
    harness = await make(Say("part one"), Say("part two"), Say("All of it."))
    long = "word " * 1200
    assert await harness.fold("", said(1, long), said(2, long)) == "All of it."
    *parts, last = [json.loads(last_user_text(one)) for one in harness.api.turns]
    assert [len(part["messages"]) for part in parts] == [1, 1]
    assert all(COUNTER.count(part["messages"][0]["text"]) <= PART_TOKENS for part in parts)
    assert last == {"summary_so_far": "", "parts": ["part one", "part two"]}


async def test_what_a_summary_costs_has_a_bound_however_much_there_is(make):
    harness = await make(*(Say("a part") for _ in range(MAX_PARTS)), Say("The end."))
    assert await harness.fold("", *(said(n, "word " * 2000) for n in range(30))) == "The end."
    assert len(harness.api.turns) == MAX_PARTS + 1


async def test_a_spent_budget_stops_it_before_the_model_is_asked(make):
    harness = await make()
    async with harness.store_harness.database.transaction() as tx:
        await budgets.put(
            tx,
            folder=Folder("family"),
            is_background=True,
            period=Period.DAY,
            unit=Unit.TOKENS,
            amount=0,
            now_ms=0,
        )
    with pytest.raises(NotAnswered, match="budget"):
        await harness.fold("", said(1, "hello"))
    assert harness.api.requests == []


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (Fail(529, "overloaded_error", "busy"), "busy"),
        (Fail(401, "authentication_error", "no"), "HTTP"),
        (Say("half a", stop_reason="max_tokens"), "end"),
        (Say(""), "empty"),
        (Say("long. " * 200), "too long"),
        (Say("가" * 401), "too long"),
        (Say("They edit src/secret/plan.md."), "nobody spoke of"),
        (Say("See https://example.org/x"), "nobody spoke of"),
        (Say("It is task_042."), "nobody spoke of"),
    ],
)
async def test_what_cannot_be_kept_is_refused(make, step, reason):
    harness = await make(step)
    with pytest.raises((NotAnswered, SummaryRefused), match=reason):
        await harness.fold("", said(1, "hello"))


async def test_a_model_that_says_nothing_is_waited_for_a_while(make):
    harness = await make(Hang(), seconds=0.05)
    with pytest.raises(TimeoutError):
        await harness.fold("", said(1, "hello"))


@pytest.mark.parametrize(
    "behave",
    [
        answer(
            200, f'{{"type": "message", "content": ["{REAL_KEY}"]}}'.encode(), content_type="application/json"
        ),
        answer(200, b"no gzip", content_type="application/json", content_encoding="gzip"),
    ],
)
async def test_an_answer_that_does_not_come_whole_is_an_answer_of_nobody(tmp_path, monkeypatch, behave):
    async def no_budgets():
        return ()

    async with proxied(tmp_path) as served:
        served.upstream.behave = behave
        monkeypatch.setattr("orchestrator.proxies.model.host_calls.new_token", lambda: served.token)
        with pytest.raises(NotAnswered, match="broke off"):
            await HostModelCalls(no_budgets).ask(
                served.proxy.app, Folder("main"), is_main=True, model=MODEL, system="", text="", max_tokens=9
            )


async def test_a_token_of_the_host_opens_the_door_once(make):
    harness = await make(Say("One."))
    await harness.fold("", said(1, "hello"))
    assert harness.proxies._host_calls._open == {}


def test_what_was_spoken_of_may_be_named():
    given = ["See notes/plan.md and task_042, https://example.org/x?", "the 2027 budget, commit a1b2c3d4"]
    text = "notes/plan.md, task_042, https://example.org/x; 2027. a1b2c3d4!"
    assert checked(text, given) == text


def test_ordinary_words_name_nothing():
    text = "Jane decided: they go on Saturday at 9:30, e.g. by train. 부산에 가기로 했다. 10 people."
    assert checked(text, []) == text
    assert script.weight(text) <= script.MAX_SUMMARY_WEIGHT


def test_a_secret_in_a_summary_is_taken_out():
    assert "hunter" not in checked("The password=hunter22 was told.", ["password=hunter22"])
