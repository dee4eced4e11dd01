"""The library's real client, logged in, where no network is: it fails, rests ever longer, does no harm."""

from __future__ import annotations

import asyncio
import os
import secrets
import sqlite3
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.skips import THIS_MACHINE

pytest.importorskip("tests.support.whatsapp_library", exc_type=ImportError)

from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.channels import status
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.whatsapp import bridge_process, reconnect_policy
from orchestrator.channels.whatsapp.channel import WhatsAppChannel
from orchestrator.channels.whatsapp.neonize_database import NeonizeDatabase
from orchestrator.channels.whatsapp.pairing import Pairing
from orchestrator.domain.errors import ChannelDown
from orchestrator.domain.values import ChatJid, MessageId
from orchestrator.store.database import Database
from tests.support.until import until
from tests.support.whatsapp_names import ANDY, ANDY_LID

WALLS = (("unshare", "--net"), ("unshare", "--map-root-user", "--net"))
"""Ways to run a program without any network: as root, and for whoever may have a user namespace."""


def wall() -> tuple[str, ...] | None:
    for way in WALLS:
        try:
            if subprocess.run([*way, "true"], capture_output=True, check=False).returncode == 0:
                return way
        except OSError:
            return None
    return None


WALL = wall()
pytestmark = pytest.mark.skipif(
    WALL is None, reason=f"{THIS_MACHINE}a process cannot be cut off the network here (unshare)"
)


def walled(store: Path, *more: str) -> Sequence[str]:
    assert WALL is not None
    return (*WALL, *bridge_process.command(store, *more))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A login that the library itself laid out, with keys that WhatsApp has never seen."""
    path = tmp_path / "store" / "whatsapp.db"
    path.parent.mkdir()
    made = subprocess.run(
        walled(path, "--pair"),
        env=bridge_process.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert path.exists(), made.stderr
    with closing(sqlite3.connect(path)) as connection, connection:
        row = {
            "jid": f"{ANDY}:9@s.whatsapp.net",
            "lid": f"{ANDY_LID}:9@lid",
            "registration_id": 1,
            "signed_pre_key_id": 1,
            "adv_details": b"",
            "push_name": "Andy",
            **{name: secrets.token_bytes(32) for name in
               ("noise_key", "identity_key", "signed_pre_key", "adv_key", "adv_account_sig_key")},
            **{name: secrets.token_bytes(64) for name in
               ("signed_pre_key_sig", "adv_account_sig", "adv_device_sig")},
        }  # fmt: skip
        connection.execute(
            f"INSERT INTO whatsmeow_device ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",
            tuple(row.values()),
        )
    return path


def mode_of(path: Path) -> int:
    return path.stat().st_mode


def children() -> set[int]:
    mine = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {int(one) for one in mine}


@pytest.mark.slow
async def test_a_login_without_a_network_fails_rests_longer_each_time_and_ends_without_a_trace(
    tmp_path: Path, store: Path, database: Database, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reconnect_policy, "FIRST_SECONDS", 0.2)
    before = children()
    context = ChannelContext(
        home=tmp_path,
        database=database,
        clock=SystemClock(),
        bus=EventBus(SystemClock()),
        assistant="Andy",
        has_own_number=False,
        attachment_bytes=0,
        wake_outbox=lambda: None,
    )
    channel = WhatsAppChannel(context, command=walled, chance=lambda: 0.0)
    pauses: list[float] = []
    rest = reconnect_policy.wait_seconds_after

    def noted(*given: Any, **more: Any) -> float:
        pauses.append(rest(*given, **more))
        return pauses[-1]

    monkeypatch.setattr(reconnect_policy, "wait_seconds_after", noted)

    async def receive(_: Any, **__: Any) -> None:
        raise AssertionError("nothing can come in")

    async with asyncio.TaskGroup() as tasks:
        loop = tasks.create_task(channel.run(receive))
        await until(lambda: len(pauses) >= 2, "two failures")
        with pytest.raises(ChannelDown):
            await channel.send(ChatJid("1@g.us"), "x", MessageId("3EB0AA"))
        await channel.set_typing(ChatJid("1@g.us"), is_typing=True)
        told = channel.status()
        loop.cancel()

    assert pauses[:2] == [0.2, 0.4]
    assert "failed to dial" in told["last_error"]
    assert told["account"] == f"+{ANDY}"
    assert told.get("connected_since_ms") is None
    # The login is still there and still the owner's alone; no process of it is.
    account = NeonizeDatabase(store).account()
    assert account is not None
    assert account.device == f"{ANDY}:9@s.whatsapp.net"
    assert mode_of(store) & 0o077 == 0
    assert status.read(tmp_path / "data/whatsapp/condition.json").account == f"+{ANDY}"
    assert children() <= before


async def test_pairing_without_a_network_says_so_in_one_line(tmp_path: Path):
    pairing = Pairing(tmp_path / "whatsapp.db", clock=SystemClock(), command=walled)
    await pairing.request_code()

    told = await pairing.run()

    assert told.state == "failed"
    assert told.text.startswith("WhatsApp cannot be reached from this machine (")
    assert told.text.endswith("): fix its network or proxy and try again.")
