"""Send the outbox of a home to a homeserver, and die between each send and its record, as by `kill -9`.

    python killing_matrix.py HOME KILLS

Each life is a fork, in which the message that the one before it died with is sent again, and the next one is
died with: after its answer came, or within the transaction that records it. The last life lives on until all
is sent. Prints how many lives ended by SIGKILL.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeup
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.matrix import channel, login, session  # noqa: F401 - imported before the forks
from orchestrator.channels.matrix.channel import MatrixChannel
from orchestrator.outbound.delivery import Delivery
from orchestrator.store.conversation import messages, outbox
from orchestrator.store.database import Database


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingDelivery(Delivery):
    """Dies where a message that was not tried before is to be recorded as sent."""

    dies_within = False

    async def _mark_sent(self, head: Any, *more: Any) -> None:
        if head.attempts == 0 and self.dies_within:
            messages.add_own = _die_in_transaction  # type: ignore[assignment]
        elif head.attempts == 0:
            die()
        await super()._mark_sent(head, *more)


async def _die_in_transaction(*_: Any, **__: Any) -> None:
    die()


async def is_all_sent(database: Database) -> bool:
    async with database.reading() as tx:
        return not await outbox.unsent(tx, limit=1)


async def live(home: Path, kind: type[Delivery]) -> None:
    """Send what is in the outbox until nothing is left."""
    clock, wakeup = SystemClock(), Wakeup()
    database, bus = await Database.open(home / "store" / "messages.db"), EventBus(clock)
    context = ChannelContext(
        home=home,
        database=database,
        clock=clock,
        bus=bus,
        assistant="Andy",
        has_own_number=True,
        attachment_bytes=0,
        wake_outbox=wakeup.set,
    )
    matrix = MatrixChannel(context)

    async def receive(*_: Any, **__: Any) -> None:
        pass

    async with asyncio.TaskGroup() as tasks:
        delivery = kind(
            database,
            clock=clock,
            name="Andy",
            channel_for=lambda _: matrix,
            tasks=tasks,
            wakeup=wakeup,
            bus=bus,
        )
        connection = tasks.create_task(matrix.run(receive), name="matrix")
        while matrix.status()["state"] != "connected":  # noqa: ASYNC110 - its status has no event
            await asyncio.sleep(0.005)
        sending = tasks.create_task(delivery.run(), name="delivery")
        while not await is_all_sent(database):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        connection.cancel()
        sending.cancel()
    await database.close()


def main() -> None:
    home, kills = Path(sys.argv[1]), int(sys.argv[2])
    deaths = 0
    for number in range(kills + 1):
        child = os.fork()
        if child == 0:
            DyingDelivery.dies_within = number % 2 == 1
            asyncio.run(live(home, DyingDelivery if number < kills else Delivery))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        deaths += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    print(deaths)


if __name__ == "__main__":
    main()
