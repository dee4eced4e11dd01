"""Channels in the console: every messenger with the way to add it, and the true number of its chats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.channels import discovery
from orchestrator.channels.telegram import description as telegram
from orchestrator.domain.home import Home
from orchestrator.domain.values import ChatJid
from orchestrator.store import chats
from orchestrator.store.database import Database
from orchestrator.web.console.pages.channels import messenger_of
from tests.support.console_browser import console_browser


async def test_each_messenger_stands_with_the_line_that_adds_it_and_the_true_number_of_chats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telegram, "CHANNEL", replace(telegram.CHANNEL, library="no_such_library"))
    async with console_browser(tmp_path / "home") as browser:
        page = (await browser.get("/console/channels")).text
        for name in ("WhatsApp", "Telegram", "Matrix"):
            assert f"<strong>{name}</strong>" in page
        row = page.partition("<strong>Telegram</strong>")[2].partition("</ol>")[0]
        assert "needs a library" in row
        assert "<code>make messengers</code>" in row, "this is a clone"
        assert "<code>andy channels add telegram</code>" in row
        assert "needs a library" not in page.partition("<strong>Matrix</strong>")[2].partition("</ol>")[0]
        local = page.partition("Chats of this machine</h2>")[2]
        assert "2 seen, 2 of them with an agent." in local

        database = await Database.open(Home(tmp_path / "home").database)
        async with database.transaction() as tx:
            await chats.upsert(tx, ChatJid("local:odd"), name="Odd", channel=None, is_group=False, at_ms=None)
        await database.close()
        page = (await browser.get("/console/channels")).text
        assert "3 seen, 2 of them with an agent." in page


@pytest.mark.parametrize(
    ("jid", "channel", "owner"),
    [
        ("local:family", "local", "local"),
        ("local:family", None, "local"),
        ("123@g.us", None, "whatsapp"),
        ("tg:-100123", None, "telegram"),
        ("!room:example.org", "matrix", "matrix"),
        ("smoke:signal", "smoke", "smoke"),
        ("who knows", None, ""),
    ],
)
def test_a_chat_is_counted_for_the_messenger_that_owns_its_address(jid, channel, owner):
    assert messenger_of({"jid": jid, "channel": channel}, discovery.installed()) == owner
