"""Channels in the console: every messenger with the way to add it, and the true number of its chats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.channels import discovery
from orchestrator.channels.telegram import description as telegram
from orchestrator.domain.errors import ChannelRefused
from orchestrator.domain.values import ChatJid
from orchestrator.home.directory import Home
from orchestrator.store.conversation import chats
from orchestrator.store.database import Database
from orchestrator.web.console.pages.channels import messenger_of
from tests.support.console_browser import console_browser, send_form


async def test_each_messenger_stands_with_the_line_that_adds_it_and_the_true_number_of_chats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telegram, "CHANNEL", replace(telegram.CHANNEL, library="no_such_library"))
    async with console_browser(tmp_path / "home") as browser:
        page = (await browser.get("/console/channels")).text
        for name in ("WhatsApp", "Telegram", "Matrix"):
            assert f"<strong>{name}</strong>" in page
        row = page.partition("<strong>Telegram</strong>")[2].partition("</li>")[0]
        assert "needs a library" in row
        assert "<code>make messengers</code>" in row, "this is a clone"
        row = page.partition("<strong>Matrix</strong>")[2].partition("</li>")[0]
        assert "needs a library" not in row
        assert 'action="/console/channels/add"' in row
        local = page.partition("Chats of this machine</h2>")[2]
        assert "2 seen, 2 of them with an agent." in local

        database = await Database.open(Home(tmp_path / "home").database)
        async with database.transaction() as tx:
            await chats.upsert(tx, ChatJid("local:odd"), name="Odd", channel=None, is_group=False, at_ms=None)
        await database.close()
        page = (await browser.get("/console/channels")).text
        assert "3 seen, 2 of them with an agent." in page


async def test_a_messenger_is_added_here_and_its_secret_is_nowhere_but_in_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    given: list[dict[str, str]] = []

    async def log_in(root: Path, answers: Mapping[str, str]) -> str:
        given.append(dict(answers))
        if answers["token"] != "1:good":
            raise ChannelRefused("Telegram does not know this token: copy it again.")
        (root / "secret").write_text(answers["token"])
        return "Logged in as @andy_bot."

    monkeypatch.setattr(telegram, "CHANNEL", replace(telegram.CHANNEL, library="", log_in=log_in))
    async with console_browser(home) as browser:
        before = await browser.get("/console/channels")
        assert '"telegram-server"' not in before.text, "a rare question has its default"
        sent = {"channel": "telegram", "telegram-owner": "77", "telegram-token": "1:bad"}
        page = await send_form(browser, "/channels/add", of="/channels", **sent)
        assert page.status_code == 422
        assert "Telegram does not know this token" in page.text, page.text[page.text.find("outcome") - 20 :][
            :300
        ]
        assert 'value="77"' in page.text
        assert "1:bad" not in page.text
        page = await send_form(browser, "/channels/add", of="/channels", channel="telegram")
        assert page.status_code == 422
        assert "Fill in this field, too: The bot&#39;s token" in page.text
        page = await send_form(
            browser, "/channels/add", of="/channels", **{**sent, "telegram-token": "1:good"}
        )
        assert "Logged in as @andy_bot. Telegram is on from Andy&#39;s next start" in page.text
        row = page.text.partition("<strong>Telegram</strong>")[2].partition("</li>")[0]
        assert "on from the next start" in row
        assert "channels/add" not in row
        unknown = await send_form(browser, "/channels/add", of="/channels", channel="smoke" * 99)
        assert unknown.status_code == 422
    assert [(one["owner"], one["server"]) for one in given] == [("77", "https://api.telegram.org")] * 2
    assert "telegram" in (home / ".env").read_text()
    held = [path for path in home.rglob("*") if path.is_file() and b"1:good" in path.read_bytes()]
    assert held == [home / "secret"]


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
