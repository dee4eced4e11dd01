"""A host for turns that change something by commands, and for undoing them.

Intake, dispatcher and services are real.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_runner.wire.frames import Ack, Result, TurnEnd
from agent_runner.wire.mailbox import Reply
from orchestrator.domain.protocols import Channel
from orchestrator.domain.values import Turn, TurnId
from orchestrator.inbound.intake import build_intake
from orchestrator.ipc.command_dispatcher import CommandDispatcher
from orchestrator.loop.feature import LoopFeature
from orchestrator.notices.feature import NoticeFeature
from orchestrator.scheduler.timing import schedule_reader
from orchestrator.scheduler.when import point_ms
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.undo.turn_effects import TRACKED
from orchestrator.undo.feature import UndoFeature
from orchestrator.undo.service import UndoDone
from tests.support.command_dispatchers import dashboards_of
from tests.support.host_contexts import host_context
from tests.support.store_harness import SEOUL, StoreHarness

_NTH = re.compile(r'"<(\w+) (\d+)>"')
Rows = dict[str, list[dict[str, Any]]]


async def nothing_at_once(*_: object, **__: object) -> None:
    return None


@dataclass
class UndoHarness:
    """Groups `family`, `work` and `main`, whose agents send the commands that a test names."""

    store: StoreHarness
    root: Path | None = None
    """The home, where turns change files, too."""
    channel: Channel | None = None
    """The messenger of all chats."""

    def __post_init__(self) -> None:
        host = host_context(self.store, self.root)
        self.numbers = itertools.count(1)
        self.feature = UndoFeature(host, channel_for=lambda _: self.channel)
        self.undos = self.feature.service
        self.dashboards = dashboards_of(self.store, lambda _: SEOUL)
        self.dispatcher = CommandDispatcher(
            self.store.database,
            clock=self.store.clock,
            read_time=point_ms,
            times=schedule_reader(lambda _: SEOUL),
            zone_of=lambda _: SEOUL,
            wakeups=self.store.wakeups,
            bus=self.store.bus,
            dashboards=self.dashboards,
            loops=LoopFeature(host, summary=_no_summary, stop_run=_stop_nothing),
            notices=NoticeFeature(host).service,
            features_of=lambda _: self.channel.features if self.channel is not None else frozenset(),
        )
        self.store.intake = build_intake(host, at_once=nothing_at_once, undo=self.feature.requests.answer)

    async def add_groups(self) -> None:
        await self.store.add_group("family")
        await self.store.add_group("work")
        await self.store.add_group("main", is_main=True)

    async def turn(
        self,
        *commands: dict[str, Any],
        folder: str = "family",
        text: str = "@Andy do it",
        says: str = "Done.",
        is_checked: bool = True,
        writes: Callable[[Path], object] | None = None,
        **changes: Any,
    ) -> Turn:
        """A whole turn in which the agent sends these commands, writes files, and answers."""
        await self.store.hear(text, folder, **changes)
        turn, run, _ = await self.store.start_next(folder)
        if self.root is not None:
            await self.feature.before_turn(turn)
        await self.store.take(run, Ack(n=1, turn=turn.id))
        if writes is not None:
            writes(self.folder(folder))
        for command in commands:
            reply = await self.command(turn, command, folder=folder)
            assert reply.ok or not is_checked, reply.text
        await self.store.take(run, Result(n=2, turn=turn.id, result=says))
        await self.store.take(run, TurnEnd(n=3, turn=turn.id))
        return turn

    def folder(self, name: str = "family") -> Path:
        """The folder of a group, which is made."""
        assert self.root is not None
        folder = self.root / "groups" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    async def command(self, turn: Turn | None, command: dict[str, Any], *, folder: str = "family") -> Reply:
        async with self.store.database.reading() as tx:
            group = await groups.known(tx, folder)
        named = {} if turn is None else {"turn": turn.id}
        text = json.dumps({"requestId": f"r{next(self.numbers)}", **named, **command})
        for marked in _NTH.finditer(text):
            text = text.replace(marked[0], json.dumps(await self._nth(marked[1], int(marked[2]))))
        return await self.dispatcher.handle(group, "f.json", text.encode())

    async def _nth(self, table: str, place: int) -> Any:
        is_number = table in {"reminders", "cross_session_notifications"}
        column = "number" if table == "reminders" else "id"
        table = "notifications" if table == "reminders" else table
        found = await self.store.rows(f"SELECT {column} AS id FROM {table} ORDER BY rowid")
        return found[place % len(found)]["id"] if found else (999 if is_number else "none")

    async def say(self, text: str, folder: str = "family", **changes: Any) -> str:
        """Write in the chat and return what Andy answers at once; empty where he does not."""
        accepted = await self.store.hear(text, folder, **changes)
        if not accepted.is_replied_to or accepted.turn_id is None:
            return ""
        found = await self.store.rows(
            "SELECT text FROM outbox WHERE dedupe_key = ?", f"at-once:{accepted.turn_id}"
        )
        return str(found[0]["text"])

    async def undo(self, number: int, **changes: Any) -> TurnId:
        async def work(tx: Tx) -> UndoDone:
            turn = await self.undos.by_number(tx, number)
            return await self.undos.undo(tx, turn, by="test", **changes)

        return (await self.store.database.write(work)).turn_id

    async def state(self) -> Rows:
        """All rows of the tables that can be put back."""
        return {
            table.name: [
                row
                for row in await self.store.rows(
                    f"SELECT * FROM {table.name} ORDER BY {', '.join(table.key)}"
                )
                # The host's own facts say that something was undone.
                if row.get("agent") != "host"
            ]
            for table in TRACKED
            if not table.is_sending
        }


async def _no_summary(*_: object, **__: object) -> str:
    return ""


def _stop_nothing(*_: object) -> None:
    return None


def nth(table: str, place: int) -> str:
    """Stands in a command for the id of the table's row at a place, from 0, as it is then."""
    return f"<{table} {place}>"


def use(tool: str, **arguments: Any) -> dict[str, Any]:
    """A command that uses a tool of the board."""
    return {"type": "dashboard", "tool": tool, "arguments": arguments}
