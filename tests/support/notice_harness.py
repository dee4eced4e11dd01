"""A host without containers whose agents store notices.

A test starts and ends the turns, and answers for the containers.
"""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Sequence
from typing import Any

from agent_runner.wire.frames import TurnEnd
from agent_runner.wire.mailbox import Reply
from agent_runner.wire.notices import DeliveredNotice, Notice
from agent_runner.wire.order import TurnOrder
from orchestrator.containers import frame_effects
from orchestrator.domain.values import Folder, Run, Turn, TurnKind
from orchestrator.inbound import prompt
from orchestrator.ipc.command_dispatcher import CommandDispatcher
from orchestrator.notices.feature import NoticeFeature
from orchestrator.scheduler.timing import schedule_reader
from orchestrator.scheduler.when import point_ms
from orchestrator.store.groups import groups
from orchestrator.store.loop import loops
from orchestrator.store.notices import notices
from orchestrator.store.notices.notices import NoticeRow
from orchestrator.store.runs import sessions, turns
from tests.support.host_contexts import host_context
from tests.support.store_harness import SEOUL, StoreHarness

HOUR = 3_600_000


def told(notice: Notice | int | None, text: str = "noted", **changes: Any) -> DeliveredNotice:
    """What a container says that its model was told."""
    number = notice.id if isinstance(notice, Notice) else notice
    fields = {"id": number, "event_type": "agent.self.notify", "text": text}
    return DeliveredNotice(**{**fields, **changes})


class NoticeHarness:
    """Groups are added to `harness`; each turn goes the way that the pool lets it go."""

    def __init__(self, harness: StoreHarness) -> None:
        self.harness = harness
        self.frame = itertools.count(1)
        self.noticing = NoticeFeature(host_context(harness))
        self.dispatcher = CommandDispatcher(
            harness.database,
            clock=harness.clock,
            read_time=point_ms,
            times=schedule_reader(lambda _: SEOUL),
            zone_of=lambda _: SEOUL,
            wakeups=harness.wakeups,
            bus=harness.bus,
            notices=self.noticing.service,
        )

    # The agent asks

    async def ask(self, type_: str, *, by: str = "family", **fields: Any) -> Reply:
        """Have a group's agent write a command, and give the answer."""
        async with self.harness.database.reading() as tx:
            group = await groups.known(tx, by)
        request = fields.pop("request", f"r-{secrets.token_hex(6)}")
        body = json.dumps({"type": type_, "requestId": request, **fields})
        return await self.dispatcher.handle(group, "letter", body.encode())

    async def note(self, message: str = "look at the oven", **fields: Any) -> int:
        """Keep a notice; gives its number."""
        reply = await self.ask("notify_self", message=message, **fields)
        assert reply.ok, reply.text
        return int(reply.data["id"])

    # The lanes and a container

    async def start(self, folder: str = "family") -> tuple[Turn, Run, TurnOrder]:
        """Give the group's queued turn to a new run, with its notices, in one transaction."""
        turn = (await self.harness.queued(folder))[0]
        self.harness.clock.wall_ms = max(self.harness.clock.wall_ms, turn.not_before_ms)
        run = await self.harness.begin_run(folder, is_isolated=turn.is_isolated)
        async with self.harness.database.transaction() as tx:
            await turns.start(tx, turn.id, run.id, now_ms=self.harness.clock.now_ms())
            order = await self.compose(tx, turn, run)
        return turn, run, order

    async def compose(self, tx: Any, turn: Turn, run: Run) -> TurnOrder:
        group = await groups.known(tx, turn.folder)
        now_ms = self.harness.clock.now_ms()
        order = await prompt.compose(tx, turn, group, run_id=run.id, name="Andy", zone=SEOUL, now_ms=now_ms)
        return await self.noticing.add(tx, turn, order)

    async def begin(self, folder: str = "family") -> tuple[Turn, Run, TurnOrder]:
        """Ask something and start the turn that this makes."""
        await self.harness.hear("@Andy hi", folder)
        return await self.start(folder)

    async def begin_free(self, folder: str = "family") -> tuple[Turn, Run, TurnOrder]:
        """Start a turn that nobody asked for."""
        async with self.harness.database.transaction() as tx:
            group = await groups.known(tx, folder)
            await loops.add_turn(tx, group, now_ms=self.harness.clock.now_ms())
        return await self.start(folder)

    async def begin_apart(
        self, folder: str = "family", kind: TurnKind = TurnKind.TASK
    ) -> tuple[Turn, Run, TurnOrder]:
        """Start a turn that has a conversation of its own."""
        now_ms = self.harness.clock.now_ms()
        async with self.harness.database.transaction() as tx:
            await tx.execute(
                """
                INSERT INTO turns (group_folder, chat_jid, kind, is_isolated, prompt, state, queued_ms,
                                   not_before_ms)
                VALUES (?, ?, ?, 1, 'water', 'queued', ?, ?)
                """,
                (folder, f"local:{folder}", kind.value, now_ms, now_ms),
            )
        return await self.start(folder)

    async def end(
        self, turn: Turn, run: Run, *said: DeliveredNotice, session: str | None = "s1", **fields: Any
    ) -> frame_effects.FrameEffect | None:
        """End a turn, well unless `status` says otherwise."""
        end = TurnEnd(n=next(self.frame), turn=turn.id, told=said, new_session_id=session, **fields)
        return await self.harness.take(run, end)

    async def turn(
        self, *, folder: str = "family", session: str | None = "s1", tells: Sequence[int] | None = None
    ) -> tuple[Notice, ...]:
        """A whole good turn, which tells all that it was given or what `tells` names; gives what that was."""
        turn, run, order = await self.begin(folder)
        ids = [one.id for one in order.notices] if tells is None else tells
        await self.end(turn, run, *(told(number) for number in ids), session=session)
        return order.notices

    async def clear(self, folder: str = "family") -> None:
        """End the group's conversation, as `/clear` does."""
        async with self.harness.database.transaction() as tx:
            await sessions.forget(tx, Folder(folder), now_ms=self.harness.clock.now_ms())

    # What the store holds

    async def kept(self, number: int, folder: str = "family") -> NoticeRow:
        async with self.harness.database.reading() as tx:
            found = await notices.get(tx, Folder(folder), number)
        assert found is not None
        return found

    async def state(self, number: int, folder: str = "family") -> str:
        return (await self.kept(number, folder)).state.value
