"""Talk to the agent without a model, whose requests go to the host's real dispatcher."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from agent_runner.agents.offline import OfflineAgent
from agent_runner.ans.lazy_notices import LazyNotices
from agent_runner.ipc_client import HostClient
from agent_runner.wire.mailbox import Command, Reply
from agent_runner.wire.order import Request, RunOrder, TurnOrder
from agent_runner.workspace import Workspace
from orchestrator.context.group_memory import GroupMemory
from orchestrator.context.recorder import ContextRecorder
from orchestrator.context.tokens import EstimatingCounter
from orchestrator.domain.values import TurnKind, person_of
from tests.support.dashboard_harness import DashboardHarness
from tests.support.store_harness import StoreHarness


class Mailbox(HostClient):
    """Hands a command to the reception at once."""

    def __init__(self, workspace: Workspace, home: DashboardHarness) -> None:
        super().__init__(workspace)
        self._home = home

    async def ask(self, command: Command) -> Reply:
        return await self._home.ask_raw(json.loads(command.to_json()))


@dataclass
class Chat:
    agent: OfflineAgent
    home: DashboardHarness
    workspace: Workspace

    async def say(self, text: str, *, sender: str = "Jane", quoted: str = "") -> str:
        """Say something in a turn of its own; a sender called `Owner` is the owner."""
        async with self.turn() as turn_id:
            return await self.take(turn_id, text, sender=sender, quoted=quoted)

    def turn(self) -> AbstractAsyncContextManager[int]:
        return self.home.turn(TurnKind.CHAT)

    async def take(self, turn_id: int, text: str, *, sender: str = "Jane", quoted: str = "") -> str:
        """Have the agent take a text as what is asked in a turn."""
        said: list[str] = []

        async def hear(words: str) -> None:
            said.append(words)

        person, is_owner = person_of(f"local:{sender}"), sender == "Owner"
        asked = (Request(sender=sender, text=text, person=person, is_owner=is_owner, quoted=quoted),)
        turn = TurnOrder(run="r", turn=turn_id, kind="chat", prompt="", requests=asked)
        await self.agent.start()
        await self.agent.answer(turn, hear)
        return "\n".join(said)

    def anew(self, folder: Path | None = None) -> Chat:
        """The same group in another container, or in another folder."""
        workspace = self.workspace if folder is None else Workspace(self.workspace.root / folder)
        workspace.group.mkdir(parents=True, exist_ok=True)
        return chat_in(workspace, self.home)


def chat_in(workspace: Workspace, home: DashboardHarness) -> Chat:
    turn = TurnOrder(run="r", turn=0, kind="chat", prompt="")
    order = RunOrder(run="r", group="family", chat_jid="local:family", timezone="Asia/Seoul", turn=turn)
    agent = OfflineAgent(
        order,
        workspace,
        Mailbox(workspace, home),
        LazyNotices(order, workspace),
        now=lambda: datetime.fromtimestamp(home.clock.now_ms() / 1000, UTC),
    )
    return Chat(agent, home, workspace)


@asynccontextmanager
async def talking(store_harness: StoreHarness, workspace: Workspace) -> AsyncIterator[Chat]:
    """A chat with a new group's agent, Monday 2026-02-09 at 08:30 in Seoul."""
    await store_harness.add_group("family")
    workspace.group.mkdir(parents=True)
    yield chat_in(
        workspace, DashboardHarness(store_harness, contexts=_memory_of(store_harness, workspace.root))
    )


def _memory_of(store_harness: StoreHarness, home: Path) -> GroupMemory:
    recorder = ContextRecorder(
        store_harness.database,
        contexts=home / "data" / "context",
        env=home / "data" / "env",
        counter=EstimatingCounter(),
        clock=store_harness.clock,
        bus=store_harness.bus,
        name="Andy",
        on_notified=store_harness.wakeups.outbox.set,
    )
    return GroupMemory(
        store_harness.database, recorder, home=home, clock=store_harness.clock, bus=store_harness.bus
    )
