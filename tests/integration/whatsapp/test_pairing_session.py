"""The bridge's side of pairing shows codes until a phone takes one."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("tests.support.whatsapp_library", exc_type=ImportError)

from neonize.aioze import events

from orchestrator.channels.whatsapp.pairing_session import PairingSession
from orchestrator.channels.whatsapp.protocol import (
    PairingCode,
    PairingEnd,
)
from tests.doubles import whatsapp_events as wa
from tests.doubles.whatsapp_client import FakeWhatsApp
from tests.support.until import until


async def test_pairing_shows_codes_until_a_phone_takes_one(monkeypatch):
    monkeypatch.setattr("orchestrator.channels.whatsapp.pairing_session.SETTLE_SECONDS", 0)
    whatsapp, said = FakeWhatsApp(), []
    task = asyncio.create_task(PairingSession(whatsapp.client, said.append).run())
    await until(lambda: whatsapp.login is not None, "connecting")
    for code in (b"2@one", b"2@two"):
        await whatsapp.client.event._qr(whatsapp.client, code)
    await until(lambda: len(said) == 2, "two codes")
    await whatsapp.connect_as()

    assert await task == 0
    assert [(one.qr, one.seconds) for one in said[:2]] == [("2@one", 60), ("2@two", 20)]
    assert said[2] == PairingEnd(ok=True, jid=f"{wa.ANDY}@s.whatsapp.net")


@pytest.mark.parametrize("phone", ["+49 170 0", "+٤٩ ١٧٠ ٠", "+４９ ²１７０-0"])
async def test_pairing_by_number_shows_letters(phone):
    whatsapp, said = FakeWhatsApp(), []
    task = asyncio.create_task(PairingSession(whatsapp.client, said.append, phone=phone).run())
    await until(lambda: whatsapp.login is not None, "connecting")
    await whatsapp.client.event._qr(whatsapp.client, b"2@one")
    await until(lambda: said, "the letters")
    task.cancel()

    assert said == [PairingCode(letters="ABCD-EFGH", seconds=160)]
    whatsapp.client.PairPhone.assert_called_once_with("491700", show_push_notification=True)


async def test_codes_that_run_out_are_told_as_expired(monkeypatch):
    for name in ("FIRST_SECONDS", "SLACK_SECONDS"):
        monkeypatch.setattr(f"orchestrator.channels.whatsapp.pairing_session.{name}", 0)
    whatsapp, said = FakeWhatsApp(), []
    task = asyncio.create_task(PairingSession(whatsapp.client, said.append).run())
    await until(lambda: whatsapp.login is not None, "connecting")
    await whatsapp.client.event._qr(whatsapp.client, b"2@one")

    assert await task == 1
    assert said[-1] == PairingEnd(ok=False, text="expired")


async def test_a_pairing_that_whatsapp_refuses_says_why():
    whatsapp, said = FakeWhatsApp(), []
    task = asyncio.create_task(PairingSession(whatsapp.client, said.append).run())
    await until(lambda: whatsapp.login is not None, "connecting")
    await whatsapp.tell(events.PairStatusEv(Error="client outdated"))

    assert await task == 1
    assert said == [PairingEnd(ok=False, text="client outdated")]
