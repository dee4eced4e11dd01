"""Fixtures of the WhatsApp tests: a phone with the channel that talks to it, a session with its double.

The library is imported inside the fixtures: where it is missing, the tests are skipped and this file is not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.channels.whatsapp import bridge_process
from orchestrator.groups import registration
from orchestrator.store.database import Database
from tests.processes.forked_programs import forked_bridge
from tests.support.store_harness import a_group

if TYPE_CHECKING:
    from tests.doubles.whatsapp_client import FakeWhatsApp
    from tests.doubles.whatsapp_phone import Phone
    from tests.support.whatsapp_home import WhatsAppHome
    from tests.support.whatsapp_session import SessionHarness


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Phone]:
    from tests.doubles.whatsapp_phone import Phone

    with Phone(tmp_path) as made:
        monkeypatch.setattr(bridge_process, "_PROGRAM", forked_bridge())
        yield made


@pytest.fixture
async def build(tmp_path: Path, database: Database) -> Callable[..., WhatsAppHome]:
    from tests.support.whatsapp_home import FAMILY, WhatsAppHome

    (tmp_path / "groups" / "family").mkdir(parents=True)
    async with database.transaction() as tx:
        await registration.register(tx, a_group(jid=FAMILY))
    return lambda **more: WhatsAppHome(tmp_path, database, **{"has_own_number": False, **more})


@pytest.fixture
async def harness(phone: Phone, build: Callable[..., WhatsAppHome]) -> AsyncIterator[WhatsAppHome]:
    from tests.support.whatsapp_home import living

    phone.pair()
    async with living(build()) as opened:
        await opened.until_state("connected")
        yield opened


@pytest.fixture
def whatsapp() -> FakeWhatsApp:
    from tests.doubles.whatsapp_client import FakeWhatsApp

    return FakeWhatsApp()


@pytest.fixture
async def bridge(whatsapp: FakeWhatsApp, tmp_path: Path) -> AsyncIterator[SessionHarness]:
    from tests.support.whatsapp_session import SessionHarness, running

    async with running(SessionHarness(whatsapp, tmp_path / "spool.db")) as opened:
        await opened.until_connected()
        yield opened
