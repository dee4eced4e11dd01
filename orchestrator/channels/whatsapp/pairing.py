"""The host's side of pairing: one attempt at a time, its codes for whoever shows them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import structlog
from pydantic import BaseModel, ConfigDict

from orchestrator.base.clock import Clock
from orchestrator.channels.whatsapp import addresses, bridge_process
from orchestrator.channels.whatsapp.bridge_process import BridgeProcess
from orchestrator.channels.whatsapp.neonize_database import NeonizeDatabase
from orchestrator.channels.whatsapp.protocol import FromBridge, PairingCode, PairingEnd, StateReport
from orchestrator.domain.errors import BadRequest

log = structlog.get_logger(__name__)

EXPIRED = "The code has expired and nobody took it: ask for a new one."
_UNREACHABLE = ("failed to dial", "no such host", "network is unreachable", "connection refused",
                "i/o timeout", "proxyconnect", "tls: ", "x509: ")  # fmt: skip
_NUMBER = re.compile(r"[1-9]\d{6,14}")


class PairingRefused(BadRequest):
    """It cannot be paired like this."""

    code = "not_to_pair"
    http_status = 409


class PairingProgress(BaseModel):
    """How far pairing is. `text` is a sentence for people; `qr` is what the QR code says."""

    model_config = ConfigDict(frozen=True)

    state: Literal["idle", "starting", "showing", "paired", "expired", "failed"] = "idle"
    qr: str = ""
    letters: str = ""
    until_ms: int | None = None
    """Until when the code holds."""
    account: str = ""
    text: str = ""

    @property
    def is_over(self) -> bool:
        return self.state in ("paired", "expired", "failed")

    @property
    def failure(self) -> str:
        """Why it failed; empty when it did not."""
        return self.text if self.state in ("expired", "failed") else ""


class Pairing:
    """Pairs the login at `store`. `ask` from anywhere; one task calls `run`."""

    def __init__(
        self,
        store: Path,
        *,
        clock: Clock,
        command: Callable[..., Sequence[str]] = bridge_process.command,
        on_change: Callable[[PairingProgress], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._ledger = NeonizeDatabase(store)
        self._clock = clock
        self._command = command
        self._on_change = on_change
        self._told = PairingProgress()
        self._wish: tuple[str, ...] | None = None
        self._current: tuple[str, ...] = ()
        self._life: asyncio.Task[int] | None = None

    @property
    def is_asked(self) -> bool:
        return self._wish is not None

    async def ask(self, phone: str = "") -> PairingProgress:
        """Wish for a code: a QR code, or letters for the phone of this number. One of its kind that is shown
        stays; one of the other kind goes.

        Raises:
            PairingRefused: somebody is paired, or it is no phone number.
            ChannelDown: the login cannot be read.
        """
        number = number_of(phone) if phone else ""
        if (await self.look()).state == "paired":
            raise PairingRefused(
                f"WhatsApp is paired with {self._told.account} already: to pair another phone, take this"
                " device off on that one (Settings, Linked devices), or stop Andy and use --anew."
            )
        wish = ("--pair", "--phone", number) if number else ("--pair",)
        if self._told.state not in ("starting", "showing") or wish != self._current:
            self._wish = self._current = wish
            self._tell(PairingProgress(state="starting", text="WhatsApp is asked for a code."))
            if self._life is not None:
                self._life.cancel()
        return self._told

    async def look(self) -> PairingProgress:
        """How far it is now. Raises `ChannelDown` when the login cannot be read."""
        account = await asyncio.to_thread(self._ledger.account)
        if account is not None and self._told.state not in ("starting", "showing"):
            text = f"WhatsApp is paired with {account.number}."
            self._told = PairingProgress(state="paired", account=account.number, text=text)
        elif account is None and self._told.state == "paired":
            self._told = PairingProgress()
        return self._told

    async def run(self) -> PairingProgress:
        """Do what was asked for, to its end."""
        while self._wish is not None:
            wish, self._wish = self._wish, None
            bridge = BridgeProcess(self._command(self._store, *wish), self._hear)
            try:
                await self._live(bridge)
            finally:
                if self._wish is None and not self._told.is_over:
                    self._tell(PairingProgress(state="failed", text=trouble_of(bridge.exit_state().reason)))
        return self._told

    async def _live(self, bridge: BridgeProcess) -> None:
        """Until its process ends, or something else is asked for."""
        life = self._life = asyncio.create_task(bridge.run(), name="whatsapp:pairing")
        try:
            await asyncio.wait([life])
        finally:
            self._life = None
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
        if not life.cancelled():
            life.result()

    def _hear(self, said: FromBridge) -> None:
        match said:
            case PairingCode():
                until_ms = self._clock.now_ms() + said.seconds * 1000
                text = words_of(said)
                self._tell(
                    PairingProgress(
                        state="showing", qr=said.qr, letters=said.letters, until_ms=until_ms, text=text
                    )
                )
            case PairingEnd(ok=True):
                account = _number_in(said.jid)
                text = f"WhatsApp is paired with {account}."
                self._tell(PairingProgress(state="paired", account=account, text=text))
            case PairingEnd(text="expired"):
                self._tell(PairingProgress(state="expired", text=EXPIRED))
            case PairingEnd():
                self._tell(PairingProgress(state="failed", text=trouble_of(said.text)))
            case StateReport():
                self._tell(PairingProgress(state="failed", text=_sentence(said.reason)))
            case _:
                log.warning("whatsapp.unasked", kind=said.kind)

    def _tell(self, told: PairingProgress) -> None:
        self._told = told
        self._on_change(told)


def number_of(text: str) -> str:
    """The digits of a phone number with its country's. Raises `PairingRefused`."""
    digits = re.sub(r"[\s()./-]", "", text.strip()).removeprefix("+")
    if not _NUMBER.fullmatch(digits):
        raise PairingRefused(
            f"'{text[:40]}' is no phone number: write it with its country, such as +49 170 1234567."
        )
    return digits


def words_of(code: PairingCode) -> str:
    """What to do with a code."""
    if code.letters:
        return (
            f"On the phone: WhatsApp › Settings › Linked devices › Link a device › Link with phone number"
            f" instead, and enter {code.letters}"
        )
    return "On the phone: WhatsApp › Settings › Linked devices › Link a device, and point it at this code."


def trouble_of(text: str) -> str:
    """Why it failed and what to do, in one line. Pure."""
    words = " ".join(text.split()) or "it said nothing"
    if any(sign in words for sign in _UNREACHABLE):
        return (
            f"WhatsApp cannot be reached from this machine ({words.rsplit(': ', 1)[-1][:120]}): mend its"
            " network or proxy and try again."
        )
    return _sentence(f"Pairing failed: {words[:300]}")


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _number_in(jid: str) -> str:
    address = addresses.parse(jid)
    return f"+{address.user}" if address is not None else jid
