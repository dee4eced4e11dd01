"""A host with several model services: its proxies and orders are real.

A simple agent sends requests to the proxy as the Claude CLI does.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from agent_runner.wire.frames import Result, TurnEnd
from agent_runner.wire.order import RunOrder
from orchestrator.containers.run_orders import RunOrders
from orchestrator.domain.model_services import ModelService, WorkKind
from orchestrator.domain.values import Folder, Group, Run, Turn, TurnKind, TurnState
from orchestrator.home.settings import Settings
from orchestrator.proxies.feature import ContainerProxies
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.proxies.model.limits import ModelProxyLimits
from orchestrator.proxies.run_tokens import new_token, token_hash
from orchestrator.queue.availability import Availability
from orchestrator.store.database import Database
from orchestrator.store.groups import groups
from orchestrator.store.runs import runs
from orchestrator.store.settings import model_services
from orchestrator.store.settings.model_services import ChosenModel
from tests.support.host_contexts import host_context
from tests.support.store_harness import StoreHarness

KEY = "sk-ant-api03-the-key-of-dotenv"
MOST_TRIES = 3
"""How often the agent asks again where it may; the CLI does so fifteen times."""


@dataclass(frozen=True)
class Attempt:
    """One run of a turn: what it was ordered, and what the proxy answered last."""

    run: Run
    order: RunOrder
    status: int
    text: str


PRODUCTION = ModelProxyLimits()
BRIEF_SECONDS = {"moving_seconds": 0.3, "moving_ping_seconds": 0.5, "probe_seconds": 1.0, "life_seconds": 0.2}


@dataclass
class ServicesHarness:
    """`url` is the proxy's; `attempts` are the runs of all turns."""

    store_harness: StoreHarness
    proxies: ContainerProxies
    orders: RunOrders
    available: Availability
    url: str
    attempts: list[Attempt]
    limits: ModelProxyLimits

    def wait_briefly(self, *, is_brief: bool = True) -> None:
        """Let the proxy give a silent service up at once, or after as long as in production.

        A service that answers needs the second: on a busy machine its answer takes a while.
        """
        self.change_limits(
            **{
                name: seconds if is_brief else getattr(PRODUCTION, name)
                for name, seconds in BRIEF_SECONDS.items()
            }
        )

    def change_limits(self, **seconds: float) -> None:
        for name, value in seconds.items():
            # Frozen, and passed to each part of the proxy when it was made.
            object.__setattr__(self.limits, name, value)

    async def add(self, name: str, url: str, **fields: Any) -> ModelService:
        service = ModelService(name=name, url=url, **{"kind": "llama.cpp", "model": "qwen3", **fields})
        async with self.store_harness.database.transaction() as tx:
            await model_services.put(tx, service, now_ms=self.store_harness.clock.now_ms())
        await self.proxies.models.refresh()
        return service

    async def choose(self, work: WorkKind, *texts: str, may_be_dearer: bool = False) -> None:
        chosen = [ChosenModel(work, text, may_be_dearer) for text in texts]
        async with self.store_harness.database.transaction() as tx:
            await model_services.choose(tx, work, chosen, now_ms=self.store_harness.clock.now_ms())

    async def group(self, folder: str = "family") -> Group:
        async with self.store_harness.database.reading() as tx:
            return await groups.known(tx, folder)

    async def configure(self, **config: Any) -> None:
        async with self.store_harness.database.transaction() as tx:
            await groups.set_config(tx, Folder("family"), config, now_ms=0)

    async def asked(self, kind: TurnKind = TurnKind.CHAT) -> Turn:
        """Queue a turn of a kind: a question of a chat, a task with its own conversation, or a worker's."""
        if kind is TurnKind.CHAT:
            await self.store_harness.hear("@Andy what is on?")
            return (await self.store_harness.queued())[-1]
        group = await self.group()
        now_ms = self.store_harness.clock.now_ms()
        async with self.store_harness.database.transaction() as tx:
            cursor = await tx.execute(
                """
                INSERT INTO turns (group_folder, chat_jid, kind, is_isolated, prompt, state, queued_ms,
                                   not_before_ms)
                VALUES (?, ?, ?, 1, 'Look around.', 'queued', ?, ?) RETURNING id
                """,
                (group.folder, group.jid, kind, now_ms, now_ms),
            )
            row = await cursor.fetchone()
        assert row is not None
        return await self.store_harness.turn(row["id"])

    async def attempt(self, turn: Turn, body: dict[str, Any] | None = None) -> Turn:
        """Run a turn once as the pool would, with an agent that asks once; return what became of it."""
        if await self.available.turn_away(turn):
            return await self.store_harness.turn(turn.id)
        group, token = await self.group(), new_token()
        run = await self.store_harness.begin_run(is_isolated=turn.is_isolated)
        run = self.orders.chosen_agent(group, turn).recorded_in(replace(run, token_hash=token_hash(token)))
        async with self.store_harness.database.transaction() as tx:
            await runs.note_continued(tx, run)
            await tx.execute("UPDATE runs SET token_hash = ? WHERE id = ?", (run.token_hash, run.id))
        first = await self.store_harness.give(turn, run)
        order = self.orders.order(run, group, first, None)
        status, text, is_whole = await self.ask(token, body or {"messages": [said(first.prompt)]})
        self.attempts.append(Attempt(run, order, status, text))
        if is_whole:
            await self.store_harness.take(run, Result(n=2, turn=turn.id, result=text))
            await self.store_harness.take(run, TurnEnd(n=3, turn=turn.id))
        else:
            error = f"API Error: {status}"
            await self.store_harness.take(
                run, TurnEnd(n=3, turn=turn.id, status="error", error=error, code="agent")
            )
        await self._end(run)
        return await self.store_harness.turn(turn.id)

    async def settle(self, turn: Turn, *, most: int = 6) -> Turn:
        """Run a turn until it is answered or failed, each try at its time."""
        for _ in range(most):
            turn = await self.attempt(turn)
            if turn.state is not TurnState.QUEUED:
                return turn
            clock = self.store_harness.clock
            clock.wall_ms = max(clock.wall_ms, turn.not_before_ms)
        return turn

    async def settle_new(self) -> Turn:
        """Have the chat ask, and run that turn until it is answered or failed."""
        return await self.settle(await self.asked())

    async def ask(self, token: str, body: dict[str, Any]) -> tuple[int, str, bool]:
        """Ask as the CLI does: again after trouble, unless it is told not to."""
        status = 0
        for _ in range(MOST_TRIES):
            try:
                status, content, may_try_again = await self._post(token, body)
            except httpx.HTTPError:
                continue
            if status == 200 and b"message_stop" in content:
                return status, _text(content), True
            if not may_try_again:
                break
        return status, "", False

    async def _post(self, token: str, body: dict[str, Any]) -> tuple[int, bytes, bool]:
        content = {"model": "claude-sonnet-4-6", "max_tokens": 1000, "stream": True, **body}
        headers = {
            "x-api-key": token,
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "claude-code-20250219",
        }
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=60) as client:
            response = await client.post("/v1/messages?beta=true", json=content, headers=headers)
        return response.status_code, response.content, response.headers.get("x-should-retry") != "false"

    async def _end(self, run: Run) -> None:
        now_ms = self.store_harness.clock.now_ms()
        async with self.store_harness.database.transaction() as tx:
            await runs.end(tx, run.id, kind="closed", detail="", now_ms=now_ms)

    async def told(self, folder: str) -> list[str]:
        sql = "SELECT text FROM outbox WHERE group_folder = ? ORDER BY id"
        return [row["text"] for row in await self.store_harness.rows(sql, folder)]


@asynccontextmanager
async def several_services(
    store_harness: StoreHarness,
    database_path: Path,
    home: Path,
    *,
    url: str,
    limits: ModelProxyLimits | None = None,
    settings: Settings | None = None,
) -> AsyncIterator[ServicesHarness]:
    """Start the proxies of a host whose service in `.env` is at `url`."""
    await store_harness.add_group("main", is_main=True, requires_trigger=False)
    await store_harness.add_group("family")
    limits = limits or ModelProxyLimits()
    async with AsyncExitStack() as stack:
        reader = await Database.open_readonly(database_path)
        stack.push_async_callback(reader.close)
        host = host_context(store_harness, home, settings, reader=reader)
        credentials = CredentialSource(home, {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": url})
        proxies = ContainerProxies(
            host, credentials=credentials, address="127.0.0.1", on_runaway=_never, limits=limits
        )
        await proxies.open(stack)
        serving = asyncio.create_task(proxies.loops()["proxy"]())  # type: ignore[arg-type]
        stack.callback(serving.cancel)
        orders = RunOrders(host, credentials=credentials, proxies=proxies, uid=1000)
        available = Availability(
            store_harness.database,
            clock=store_harness.clock,
            wakeups=store_harness.wakeups,
            bus=store_harness.bus,
            refusal=orders.refusal,
        )
        group = await ServicesHarness(store_harness, proxies, orders, available, "", [], PRODUCTION).group()
        address = orders.environment(group, "claude", "")["ANTHROPIC_BASE_URL"]
        yield ServicesHarness(store_harness, proxies, orders, available, address, [], limits)


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def _never(run_id: str, reason: str) -> None:
    raise AssertionError(f"{run_id}: {reason}")


def _text(content: bytes) -> str:
    lines = [line[5:] for line in content.split(b"\n") if line.startswith(b"data:")]
    deltas = [json.loads(line).get("delta") or {} for line in lines]
    return "".join(str(delta.get("text", "")) for delta in deltas)
