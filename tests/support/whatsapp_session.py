"""A session of the WhatsApp bridge on a double of the client.

A test sends it the library's own events. A test module has to call `pytest.importorskip` on
`tests.support.whatsapp_library` before it imports this.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from orchestrator.channels.whatsapp.addresses import Address
from orchestrator.channels.whatsapp.neonize_session import NeonizeSession
from orchestrator.channels.whatsapp.protocol import BridgeResponse, Delivered, SendRequest, StateReport
from orchestrator.channels.whatsapp.spool import Spool
from tests.doubles import whatsapp_events as wa
from tests.doubles.whatsapp_client import FakeWhatsApp
from tests.support.until import until

FAMILY = f"{wa.FAMILY}@g.us"
OWN = Address(user=wa.ANDY, server="s.whatsapp.net")


class SessionHarness:
    """A session with what it said."""

    def __init__(self, whatsapp: FakeWhatsApp, spool: Path, *, name: str = "") -> None:
        self.whatsapp = whatsapp
        self.said: list[Any] = []
        self.spool = Spool(spool)
        self.session = NeonizeSession(
            whatsapp.client,
            self.spool,
            self.said.append,
            own=OWN,
            assistant=name,
            has_own_number=bool(name),
        )

    def heard(self, kind: type) -> list[Any]:
        return [one for one in self.said if isinstance(one, kind)]

    def texts(self) -> list[str]:
        return [one.message.text for one in self.heard(Delivered)]

    async def ask(self, ask: Any) -> BridgeResponse:
        await self.session.handle(ask)
        return next(one for one in self.heard(BridgeResponse) if one.id == ask.id)

    async def until_connected(self) -> None:
        await self.whatsapp.connect_as()
        await until(lambda: [one for one in self.heard(StateReport) if one.state == "connected"], "connected")


@asynccontextmanager
async def running(bridge: SessionHarness) -> AsyncIterator[SessionHarness]:
    task = asyncio.create_task(bridge.session.run())
    await until(lambda: bridge.heard(StateReport), "started")
    try:
        yield bridge
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        bridge.spool.close()


def a_send(text: str = "hello", *, number: int = 1, mark: str = "3EB0AA", **more: Any) -> SendRequest:
    return SendRequest(id=number, chat=FAMILY, text=text, mark=mark, **more)
