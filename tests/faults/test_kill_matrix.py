"""`kill -9` between a send and its record, as another client of a real homeserver sees the room."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nio")

from orchestrator.store.conversation import chats, outbox
from orchestrator.store.database import Database
from tests.support.matrix_home import MatrixHome, address_of

pytestmark = pytest.mark.host
KILLS = int(os.environ.get("MATRIX_KILLS", "5"))
PROGRAM = Path(__file__).with_name("killing_matrix.py")


def test_what_was_sent_and_not_recorded_is_in_the_room_once(tmp_path, migrated_database, homeserver):
    path = tmp_path / "store" / "messages.db"
    path.parent.mkdir()
    path.write_bytes(migrated_database.read_bytes())
    texts = [f"message {number}" for number in range(KILLS + 3)]
    owner, room, andy = asyncio.run(fill(tmp_path, path, homeserver, texts))

    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), str(KILLS)], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == str(KILLS), done.stderr[-2000:]
    shown = owner.texts(room, andy)
    assert shown == texts, "nothing is lost, nothing is twice, and all is in its order"


async def fill(home: Path, path: Path, server, texts: list[str]):
    """Have the owner make a room with Andy in it, and put `texts` into the outbox for it."""
    database = await Database.open(path)
    try:
        harness = MatrixHome(home, database, server)
        owner = harness.owner
        room = owner.make_room(harness.andy)
        server.post(f"join/{room}", token=harness.token)
        async with database.transaction() as tx:
            jid = address_of(room)
            await chats.upsert(tx, jid, name="Room", channel="matrix", is_group=True, at_ms=None)
            for text in texts:
                await outbox.add(tx, chat_jid=jid, text=text, dedupe_key=text, now_ms=harness.clock.now_ms())
    finally:
        await database.close()
    return owner, room, harness.andy
