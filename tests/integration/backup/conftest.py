"""A home as backups find it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.home.directory import Home
from orchestrator.store.database import Database
from tests.support.backups import KEY


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the disk: a power cut is not what is tried here."""
    monkeypatch.setattr(os, "sync", lambda: None)


@pytest.fixture
async def home(tmp_path: Path) -> Home:
    """A home in use: a store, two groups, a session, settings, a key, and what no backup needs."""
    home = Home(tmp_path / "home")
    home.make()
    home.token()
    home.install_id()
    opened = await Database.open(home.database)
    async with opened.transaction() as tx:
        await tx.execute("INSERT INTO chats (jid, name) VALUES ('local:main', 'first')")
    await opened.close()
    for name, text in {
        "groups/main/CLAUDE.md": "remember 우유",
        "groups/main/conversations/2026-01-01.md": "hello",
        "groups/global/CLAUDE.md": "for all",
        "data/sessions/main/.claude/projects/x/1.jsonl": "{}\n",
        "data/context/main/.ai-brain/context.json": "{}",
        "data/archive/2025.jsonl": "{}\n",
        "data/logs/main/20260101T000000Z-abc.log": "log",
        "data/ipc/main/tasks/1.json": "{}",
        "andy.toml": "assistant_name = 'Andy'\n",
        ".env": f"ANTHROPIC_API_KEY={KEY}\n",
        "store/whatsapp.db": "a login, which must not go back in time",
    }.items():
        path = home.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (home.root / ".env").chmod(0o600)
    (home.groups / "main" / "run.sh").write_text("#!/bin/sh\n")
    (home.groups / "main" / "run.sh").chmod(0o755)
    (home.groups / "main" / "empty").mkdir()
    return home
