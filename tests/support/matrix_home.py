"""A home with the Matrix channel, whose chats are rooms of a real homeserver."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.matrix import login
from orchestrator.channels.matrix.channel import MatrixChannel
from orchestrator.channels.matrix.incoming import address_of
from orchestrator.channels.matrix.login import MatrixLogin
from orchestrator.domain.values import ChatJid
from orchestrator.groups import registration
from orchestrator.inbound.intake import Intake
from orchestrator.outbound.delivery import Delivery
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Database
from tests.processes.synapse import Synapse
from tests.support.store_harness import a_group
from tests.support.until import until

_NUMBERS = itertools.count(1)


class MatrixHome:
    """A home whose Andy has an account of its own, with an owner who has made a room and invited him."""

    def __init__(
        self,
        home: Path,
        database: Database,
        server: Synapse,
        *,
        address: str = "",
        attachment_bytes: int = 10_000,
    ) -> None:
        """`address` is where Andy finds the server: through something that can be cut, for one."""
        number = next(_NUMBERS)
        self.home, self.database, self.clock = home, database, SystemClock()
        self.bus, self.wakeups = EventBus(self.clock), Wakeups()
        self.intake = Intake(database, clock=self.clock, name="Andy", wakeups=self.wakeups, bus=self.bus)
        self.owner, andy = server.person(f"owner{number}"), server.person(f"andy{number}")
        self.andy, self.token = andy.user_id, andy.token
        (home / "groups").mkdir(exist_ok=True)
        made = MatrixLogin(
            homeserver=address or server.address,
            user_id=andy.user_id,
            device_id=andy.device_id,
            token=andy.token,
            owner=self.owner.user_id,
        )
        login._write_login(home, made)
        self.context = ChannelContext(
            home=home,
            database=database,
            clock=self.clock,
            bus=self.bus,
            assistant="Andy",
            has_own_number=True,
            attachment_bytes=attachment_bytes,
            wake_outbox=self.wakeups.outbox.set,
        )
        self.channel = self.new_channel()

    def new_channel(self) -> MatrixChannel:
        return MatrixChannel(self.context, chance=lambda: 0.0)

    @property
    def state(self) -> str:
        return str(self.channel.status()["state"])

    async def until_state(self, state: str) -> None:
        await until(lambda: self.state == state, f"{state}, not {self.channel.status()}")

    async def add_room(self, name: str = "Family", *, folder: str = "family", **more: Any) -> str:
        """Have the owner make a room and invite Andy; register it once he has come. Returns its id."""
        room = await asyncio.to_thread(lambda: self.owner.make_room(self.andy, name=name, **more))
        await seen(lambda: self.andy in self.owner.members(room), "Andy comes")
        await self.register(room, folder=folder)
        # Only from here on does Andy know that he is in it.
        await until(lambda: self.channel._session and self.channel._session.room_name(room), "known")
        return room

    async def register(self, room: str, *, folder: str = "family") -> ChatJid:
        async with self.database.transaction() as tx:
            await registration.register(tx, a_group(folder, jid=address_of(room), requires_trigger=False))
        return address_of(room)

    async def post(self, room: str, text: str, **more: Any) -> str:
        """Put a message into the outbox and return its id."""
        key = f"k{next(_NUMBERS)}"
        async with self.database.transaction() as tx:
            await outbox.add(
                tx, chat_jid=address_of(room), text=text, dedupe_key=key, now_ms=self.clock.now_ms(), **more
            )
            found = await outbox.by_key(tx, key)
        assert found is not None
        self.wakeups.outbox.set()
        return found.message_id

    async def rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        async with self.database.reading() as tx:
            return [dict(row) for row in await tx.execute_fetchall(sql, values)]

    async def texts(self) -> list[str]:
        rows = await self.rows("SELECT content FROM messages WHERE is_bot_message = 0 ORDER BY seq")
        return [row["content"] for row in rows]

    async def until_heard(self, *texts: str) -> None:
        async def holds() -> bool:
            await asyncio.sleep(0.02)
            return await self.texts() == list(texts)

        await until(holds, f"heard {texts}")

    async def until_sent(self) -> None:
        async def holds() -> bool:
            await asyncio.sleep(0.02)
            return not await self.rows("SELECT 1 FROM outbox WHERE state <> 'sent'")

        await until(holds, "all is sent")

    @asynccontextmanager
    async def living(self, *, connects: bool = True) -> AsyncIterator[None]:
        """Have the channel run, and what is in the outbox delivered."""
        async with asyncio.TaskGroup() as tasks:
            delivery = Delivery(
                self.database,
                clock=self.clock,
                name="Andy",
                channel_for=lambda jid: self.channel if self.channel.owns(jid) else None,
                tasks=tasks,
                wakeup=self.wakeups.outbox,
                bus=self.bus,
            )
            loops = [
                tasks.create_task(self.channel.run(self.intake.receive), name="channel"),
                tasks.create_task(delivery.run(), name="delivery"),
            ]
            try:
                if connects:
                    await self.until_state("connected")
                yield
            finally:
                for loop in loops:
                    loop.cancel()


async def seen(holds: Callable[[], object], what: str) -> None:
    """Wait until what the homeserver is asked for holds."""

    async def asked() -> object:
        await asyncio.sleep(0.05)
        return await asyncio.to_thread(holds)

    await until(asked, what)
