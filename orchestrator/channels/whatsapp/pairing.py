"""Pair the host with a phone, one attempt at a time.

The terminal and the console show the attempt's codes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import structlog
from pydantic import BaseModel, ConfigDict

from agent_runner.wire.unicode_forms import normalized
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
_NUMBER = re.compile(r"[1-9][0-9]{6,14}")
_BETWEEN_DIGITS = re.compile(r"[\s./\u2010-\u2015\u2212\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff-]")
"""Blanks, dashes, and the invisible characters with which a contact may be copied."""
_TRUNK_ZERO = re.compile(r"^(\(?\+?(?!39\)?\()[1-9][0-9]{0,2}\)?)\(0\)")
"""A country code and the zero that is dialled only within the country; Italians dial it from abroad, too."""


class PairingRefused(BadRequest):
    """Pairing was not started: a phone is paired already, or the given number is no phone number."""

    code = "not_to_pair"
    http_status = 409


class PairingProgress(BaseModel):
    """The progress of pairing.

    `text` is a sentence for people, `qr` the content of the QR code, and `letters` the code to type in
    instead.
    """

    model_config = ConfigDict(frozen=True)

    state: Literal["idle", "starting", "showing", "paired", "expired", "failed"] = "idle"
    qr: str = ""
    letters: str = ""
    until_ms: int | None = None
    """The time when the code expires, in epoch milliseconds."""
    account: str = ""
    text: str = ""

    @property
    def is_over(self) -> bool:
        """Whether pairing has ended, well or not."""
        return self.state in ("paired", "expired", "failed")

    @property
    def failure(self) -> str:
        """The reason why pairing failed or expired; empty if it did neither."""
        return self.text if self.state in ("expired", "failed") else ""


class Pairing:
    """Pairs the login at `store`. Any task may call `request_code`; only one task calls `run`."""

    def __init__(
        self,
        store: Path,
        *,
        clock: Clock,
        command: Callable[..., Sequence[str]] = bridge_process.command,
        on_change: Callable[[PairingProgress], None] = lambda _: None,
    ) -> None:
        """Set up pairing; nothing is requested yet.

        Args:
            store: the path of the login's database.
            clock: the clock by which codes expire.
            command: returns the command line that starts the bridge, the process that speaks WhatsApp.
            on_change: called with each new progress.
        """
        self._store = store
        self._login = NeonizeDatabase(store)
        self._clock = clock
        self._command = command
        self._on_change = on_change
        self._progress = PairingProgress()
        self._requested: tuple[str, ...] | None = None
        """The bridge's options for an attempt that has not started; None if none is requested."""
        self._current: tuple[str, ...] = ()
        """The bridge's options for the last requested attempt, which show of which kind it is."""
        self._process: asyncio.Task[int] | None = None

    @property
    def is_requested(self) -> bool:
        """Whether an attempt is requested that has not started."""
        return self._requested is not None

    async def request_code(self, phone: str = "") -> PairingProgress:
        """Request a QR code or, with a phone number, letters to type in on that phone; return the progress.

        The code comes later: `run`, in another task, starts the attempt. An attempt of the same kind that is
        running continues; one of another kind is cancelled.

        Raises:
            PairingRefused: a phone is paired already, or `phone` is no phone number.
            ChannelDown: the login cannot be read.
        """
        number = number_of(phone) if phone else ""
        if (await self.progress()).state == "paired":
            raise PairingRefused(
                f"WhatsApp is paired with {self._progress.account} already: to pair another phone, take this"
                " device off on that one (Settings, Linked devices), or stop Andy and use --anew."
            )
        request = ("--pair", "--phone", number) if number else ("--pair",)
        if self._progress.state not in ("starting", "showing") or request != self._current:
            self._requested = self._current = request
            self._publish(PairingProgress(state="starting", text="WhatsApp is asked for a code."))
            if self._process is not None:
                self._process.cancel()
        return self._progress

    async def progress(self) -> PairingProgress:
        """Return the progress of pairing, updated from the login's database.

        It is "paired" if the database has a login and no attempt is running, and idle again once that login
        is gone.

        Raises `ChannelDown` when the database cannot be read.
        """
        account = await asyncio.to_thread(self._login.account)
        if account is not None and self._progress.state not in ("starting", "showing"):
            text = f"WhatsApp is paired with {account.number}."
            self._progress = PairingProgress(state="paired", account=account.number, text=text)
        elif account is None and self._progress.state == "paired":
            self._progress = PairingProgress()
        return self._progress

    async def run(self) -> PairingProgress:
        """Run the requested attempts to pair until none is left; return the progress of the last one."""
        while self._requested is not None:
            request, self._requested = self._requested, None
            bridge = BridgeProcess(self._command(self._store, *request), self._on_report)
            try:
                await self._run_bridge(bridge)
            finally:
                # The process ended without a result, and no other attempt was requested meanwhile.
                if self._requested is None and not self._progress.is_over:
                    self._publish(
                        PairingProgress(state="failed", text=failure_text(bridge.exit_state().reason))
                    )
        return self._progress

    async def _run_bridge(self, bridge: BridgeProcess) -> None:
        """Run an attempt's bridge process until it ends; raise its error.

        `request_code` cancels it when a code of another kind is requested: then nothing is raised.
        """
        process = self._process = asyncio.create_task(bridge.run(), name="whatsapp:pairing")
        try:
            await asyncio.wait([process])
        finally:
            self._process = None
            process.cancel()
            await asyncio.gather(process, return_exceptions=True)
        if not process.cancelled():
            process.result()

    def _on_report(self, report: FromBridge) -> None:
        """Publish the progress of pairing that a report of the bridge process shows."""
        match report:
            case PairingCode():
                until_ms = self._clock.now_ms() + report.seconds * 1000
                text = instruction_of(report)
                self._publish(
                    PairingProgress(
                        state="showing", qr=report.qr, letters=report.letters, until_ms=until_ms, text=text
                    )
                )
            case PairingEnd(ok=True):
                account = _number_in(report.jid)
                text = f"WhatsApp is paired with {account}."
                self._publish(PairingProgress(state="paired", account=account, text=text))
            case PairingEnd(text="expired"):
                self._publish(PairingProgress(state="expired", text=EXPIRED))
            case PairingEnd():
                self._publish(PairingProgress(state="failed", text=failure_text(report.text)))
            case StateReport():
                # During pairing, the bridge reports a state only if another process uses the login, or if the
                # library cannot be loaded.
                self._publish(PairingProgress(state="failed", text=_sentence(report.reason)))
            case _:
                log.warning("whatsapp.unexpected_report", kind=report.kind)

    def _publish(self, progress: PairingProgress) -> None:
        """Store the progress of pairing and call `on_change` with it."""
        self._progress = progress
        self._on_change(progress)


def number_of(text: str) -> str:
    """Return the digits of a phone number that a person typed, with its country code and without `+`.

    Raises `PairingRefused` for a text that is no such number.
    """
    # East Asian keyboards also write wide digits.
    typed = _BETWEEN_DIGITS.sub("", normalized("NFKC", text))
    digits = re.sub(r"[()]", "", _TRUNK_ZERO.sub(r"\1", typed)).removeprefix("+")
    if not _NUMBER.fullmatch(digits):
        raise PairingRefused(
            f"'{text[:40]}' is no phone number: write it with its country, such as +49 170 1234567."
        )
    return digits


def instruction_of(code: PairingCode) -> str:
    """Return the instruction to a person how to use a code, which is a QR code or letters."""
    if code.letters:
        return (
            f"On the phone: WhatsApp › Settings › Linked devices › Link a device › Link with phone number"
            f" instead, and enter {code.letters}"
        )
    return "On the phone: WhatsApp › Settings › Linked devices › Link a device, and point it at this code."


def failure_text(text: str) -> str:
    """Return a sentence that says why pairing failed and, if it was the network, what to do. Pure.

    `text` is the reason as the library or its process gave it; it may be empty.
    """
    reason = " ".join(text.split()) or "it said nothing"
    # Of `failed to dial: lookup web.whatsapp.com: no such host`, only the last part is shown.
    if any(network_error in reason for network_error in _UNREACHABLE):
        return (
            f"WhatsApp cannot be reached from this machine ({reason.rsplit(': ', 1)[-1][:120]}): fix its"
            " network or proxy and try again."
        )
    return _sentence(f"Pairing failed: {reason[:300]}")


def _sentence(text: str) -> str:
    """Return a text with a full stop at its end, unless it ends with a punctuation mark."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _number_in(jid: str) -> str:
    """Return the phone number in an address, with `+`; an address that cannot be parsed stays unchanged."""
    address = addresses.parse(jid)
    return f"+{address.user}" if address is not None else jid
