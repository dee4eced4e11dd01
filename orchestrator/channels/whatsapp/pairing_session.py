"""Run the bridge's side of pairing: report codes until a phone has accepted one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orchestrator.channels.whatsapp import addresses
from orchestrator.channels.whatsapp.protocol import FromBridge, PairingCode, PairingEnd

if TYPE_CHECKING:
    from neonize.aioze.client import NewAClient

log = logging.getLogger(__name__)

FIRST_SECONDS, NEXT_SECONDS = 60, 20
"""Seconds for which the first QR code is valid, and for which each later one is."""
LETTERS_SECONDS = 160
"""Seconds for which the letters are valid that a person can type in instead of scanning a QR code."""
SLACK_SECONDS = 5
"""Seconds that the next code may come later than expected."""
SETTLE_SECONDS = 8.0
"""Seconds to stay connected after pairing: a phone shows an error if a new device leaves at once."""


class PairingSession:
    """Reports codes until a phone accepts one or the last one has expired."""

    def __init__(self, client: NewAClient, emit: Callable[[FromBridge], None], *, phone: str = "") -> None:
        """Subscribe to the library's events; `run` connects.

        `emit` queues a line for the host. `phone` is the number of the phone that pairs by letters; empty for
        a QR code.
        """
        from neonize.aioze import events

        self._client = client
        self._emit = emit
        # The library takes ASCII digits alone; `isdecimal` also accepts those of other scripts, but not `²`.
        self._phone = "".join(str(int(digit)) for digit in phone if digit.isdecimal())
        self._codes: asyncio.Queue[str] = asyncio.Queue()
        self._results: asyncio.Queue[PairingEnd] = asyncio.Queue()
        client.event.qr(self._on_code)
        client.event(events.ConnectedEv)(self._on_connected)
        client.event(events.PairStatusEv)(self._on_status)

    async def _on_code(self, _: Any, code: bytes) -> None:
        """Queue a QR code of the library."""
        self._codes.put_nowait(code.decode())

    async def _on_connected(self, client: Any, _: Any) -> None:
        """Queue the result of pairing: the library connects once a phone has accepted a code."""
        own_address = addresses.of(client.me.JID) if client.me is not None else None
        self._results.put_nowait(PairingEnd(ok=own_address is not None, jid=str(own_address or "")))

    async def _on_status(self, _: Any, event: Any) -> None:
        """Queue the error with which WhatsApp refused the pairing."""
        if event.Error:
            self._results.put_nowait(PairingEnd(ok=False, text=event.Error[:200]))

    async def run(self) -> int:
        """Connect, and report each code and the result of pairing to the host.

        Return the exit code: 0 when paired, 1 when the codes ran out, WhatsApp refused or the connection
        ended.
        """
        # The library returns a task that ends with the connection.
        connection_task = await self._client.connect()
        codes_task = asyncio.create_task(self._show(), name="pairing:show")
        result_task = asyncio.create_task(self._results.get(), name="pairing:paired")
        done, _ = await asyncio.wait(
            {connection_task, codes_task, result_task}, return_when=asyncio.FIRST_COMPLETED
        )
        codes_task.cancel()
        if result_task in done:
            result = result_task.result()
        else:
            result = _failed_result(connection_task if connection_task in done else codes_task)
        self._emit(result)
        if result.ok:
            await asyncio.sleep(SETTLE_SECONDS)
        return 0 if result.ok else 1

    async def _show(self) -> None:
        """Report each code to the host when the library provides it; return when the last one has expired.

        If a phone number was given, the codes are not reported, but letters to type in on that phone.
        """
        seconds = FIRST_SECONDS
        # Letters can be requested only once the library has a first QR code, which is not reported then.
        code = await self._codes.get()
        if self._phone:
            await self._show_letters()
            return
        while True:
            self._emit(PairingCode(qr=code, seconds=seconds))
            try:
                async with asyncio.timeout(seconds + SLACK_SECONDS):
                    code = await self._codes.get()
            except TimeoutError:
                return
            seconds = NEXT_SECONDS

    async def _show_letters(self) -> None:
        """Request the letters to type in on the phone, report them, and wait until they have expired."""
        letters = await self._client.PairPhone(self._phone, show_push_notification=True)
        self._emit(PairingCode(letters=letters, seconds=LETTERS_SECONDS))
        await asyncio.sleep(LETTERS_SECONDS)


def _failed_result(task: asyncio.Task[Any]) -> PairingEnd:
    """Return the failed result of pairing when a task ended before a phone had accepted a code.

    Its text is the error of the task, or "expired" if the task ended without an error.
    """
    error = task.exception()
    if error is None:
        return PairingEnd(ok=False, text="expired")
    return PairingEnd(ok=False, text=" ".join(str(error).split())[:300] or type(error).__name__)
