"""Channels are found by what describes them, other packages' too, and commands work with any of them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.base.event_bus import EventBus
from orchestrator.channels import discovery, registry, status
from orchestrator.channels.connection import ChannelConnection
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.discovery import BrokenChannel, UnknownChannel
from orchestrator.cli import channels as commands
from orchestrator.cli import doctor, doctor_checks
from orchestrator.cli.client import Client
from orchestrator.cli.exit_codes import UsageError
from orchestrator.cli.main import app
from orchestrator.domain.errors import ChannelDown, ChannelRefused, SettingError
from orchestrator.domain.values import ChatJid, MessageId
from orchestrator.home import settings
from orchestrator.home.directory import Home
from orchestrator.reports.status import channel_states
from tests.support.foreign_channel import SOURCE, installed_channel

LOFT = ["loft=north"]


@pytest.fixture
def pigeons(tmp_path):
    (tmp_path / "site").mkdir()
    with installed_channel(tmp_path / "site"):
        yield


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.delenv("ANDY_CHANNELS", raising=False)
    monkeypatch.setenv("TZ", "Asia/Seoul")
    made = Home(tmp_path / "home")
    made.make()
    return made


def andy(monkeypatch, *words: str, stdin: str = "") -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
    app([*words], exit_on_error=False, print_error=False, result_action="return_value")


def test_a_channel_of_another_package_is_found_beside_those_of_andy(pigeons):
    assert discovery.names()[-1] == "pigeon"
    assert discovery.find("pigeon").title == "Pigeon"
    assert [one.name for one in discovery.switched_on(["pigeon", "local"])] == ["local", "pigeon"]


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(UnknownChannel, match="'matrx' is no channel: known are local, "):
        discovery.switched_on(["matrx"])


@pytest.mark.parametrize("source", ["1 / 0", "CHANNEL = 3", SOURCE.replace('name="pigeon"', 'name="dove"')])
def test_a_package_that_does_not_hold_what_it_says_is_named(tmp_path, home, source):
    with installed_channel(tmp_path, source):
        with pytest.raises(BrokenChannel, match="The channel 'pigeon'"):
            discovery.find("pigeon")
        assert commands._channel_rows(home)[-1]["state"] == "broken"


def test_a_channel_that_is_not_on_is_not_loaded():
    program = (
        "import sys; from orchestrator import app; from orchestrator.channels import discovery;"
        "discovery.switched_on([]); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    own = {name for name in discovery.names() if name != "local"}
    loaded = {name.split(".")[2] for name in done.stdout.split() if name.startswith("orchestrator.channels.")}
    assert "local" in loaded
    assert not own & loaded


@pytest.fixture
def context(tmp_path, database, clock) -> ChannelContext:
    return ChannelContext(
        home=tmp_path,
        database=database,
        clock=clock,
        bus=EventBus(clock),
        assistant="Andy",
        has_own_number=False,
        attachment_bytes=0,
        wake_outbox=lambda: None,
    )


async def test_a_channel_without_its_library_lets_the_host_start_and_says_what_to_install(pigeons, context):
    channels = registry.Channels(registry.build(context, ["pigeon"]))

    owner = channels.owner(ChatJid("pigeon:north"))
    assert owner is not None
    assert owner.status()["state"] == "unusable"
    with pytest.raises(ChannelDown, match="needs a library that is not installed: "):
        await owner.send(ChatJid("pigeon:north"), "x", MessageId("1"))
    assert channels.pairings == {}
    assert [one.name for one in channels.messengers] == ["pigeon"]


async def test_a_channel_that_breaks_lets_the_host_start_and_names_the_error(pigeons, context, monkeypatch):
    def build(_: ChannelContext) -> Any:
        raise RuntimeError("no wind")

    broken = replace(discovery.find("pigeon"), build=build)
    monkeypatch.setattr(registry, "switched_on", lambda _: [broken])
    (channel,) = registry.build(context, ["pigeon"])

    advice = channel.status()["advice"]
    assert "Pigeon cannot be started (RuntimeError: no wind)" in advice
    assert "library" not in advice
    with pytest.raises(ChannelDown, match="no wind"):
        await channel.send(ChatJid("pigeon:north"), "x", MessageId("1"))


@pytest.mark.parametrize("braces", ["{reason.x}", "{reason[x]}", "{0}", "{", "{other}"])
async def test_an_end_is_recorded_whatever_braces_the_advice_of_a_channel_has(context, braces):
    advice = {"disconnected": {"en": f"{braces} The line broke ({{reason}}).", "ko": ""}}
    channel = replace(discovery.find("telegram"), advice=advice)
    connection = ChannelConnection(
        context, channel, read_login=lambda _: None, address_prefix="x:", chance=lambda: 0.0
    )
    await connection._record_end("disconnected", "no route", seconds=1.0)
    assert connection.status.current.advice == f"{braces} The line broke (no route)."


def test_a_channel_is_added_looked_at_and_removed(pigeons, home, monkeypatch, capsys):
    at = ("--home", str(home.root))
    andy(monkeypatch, "channels", "add", "pigeon", "--set", "loft=north", *at, stdin="secret\n")
    assert (
        "Logged in at north. Pigeon is on from Andy's next start: if he runs now, stop"
        in capsys.readouterr().out
    )
    assert settings.load(home.root, {}).channels == ("whatsapp", "pigeon")

    andy(monkeypatch, "channels", "status", "pigeon", "--json", *at)
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["account"], row["state"], row["is_running"]) == ("north", "down", False)
    andy(monkeypatch, "channels", "list", *at)
    shown = capsys.readouterr().out
    assert "pigeon     on     Letters on wings." in shown
    assert "typing; 160 characters a message" in shown

    andy(monkeypatch, "channels", "remove", "pigeon", *at)
    assert "The login is deleted." in capsys.readouterr().out
    assert settings.load(home.root, {}).channels == ("whatsapp",)
    assert not (home.root / "data/channels/pigeon/login").exists()


async def test_a_channel_that_the_running_andy_does_not_use_is_not_connected(pigeons, home, monkeypatch):
    @asynccontextmanager
    async def running(_: Home) -> AsyncIterator[SimpleNamespace]:
        async def report() -> dict[str, Any]:
            return {"channels": {}}

        yield SimpleNamespace(status=report)

    monkeypatch.setattr(Client, "of", running)
    pigeon = replace(discovery.find("pigeon"), status_file="data/channels/pigeon/status")
    login = home.root / "data/channels/pigeon/login"
    login.parent.mkdir(parents=True)
    login.write_text("north")
    # A host that is stopped leaves its last state in the file.
    status.write(
        home.root / "data/channels/pigeon/status",
        status.ChannelStatus(state="connected", connected_since_ms=1),
    )

    row = await commands.connection_status(home, pigeon)

    assert (row["account"], row["state"], row["connected_since_ms"]) == ("north", "down", None)
    assert row["is_running"]
    assert row["advice"] == (
        "The running Andy does not use Pigeon: if it is switched on, stop him and start him again, else type"
        " 'andy channels add pigeon'."
    )
    assert (await doctor_checks.channel(home, pigeon)).state == "note"


async def test_a_channel_in_use_that_reports_no_connection_is_not_called_unused(pigeons, home, monkeypatch):
    used = [SimpleNamespace(name=name, status=dict) for name in ("local", "pigeon")]
    states = channel_states(used, {})
    assert states == {"pigeon": {}}

    @asynccontextmanager
    async def running(_: Home) -> AsyncIterator[SimpleNamespace]:
        async def report() -> dict[str, Any]:
            return {"channels": states}

        yield SimpleNamespace(status=report)

    monkeypatch.setattr(Client, "of", running)
    login = home.root / "data/channels/pigeon/login"
    login.parent.mkdir(parents=True)
    login.write_text("north")

    row = await commands.connection_status(home, discovery.find("pigeon"))

    assert (row["account"], row["state"], row["advice"]) == ("north", "connected", "")
    assert (await doctor_checks.channel(home, discovery.find("pigeon"))).state == "ok"


def test_what_is_not_given_without_a_terminal_has_its_default_or_is_named(pigeons, home, monkeypatch, capsys):
    at = ("--home", str(home.root))
    with pytest.raises(
        UsageError, match=r"An answer is missing: give it as a line on stdin\. The question: Password\."
    ):
        andy(monkeypatch, "channels", "add", "pigeon", *at)
    with pytest.raises(UsageError, match="nothing named 'nest': it takes loft, password"):
        andy(monkeypatch, "channels", "add", "pigeon", "--set", "nest=1", *at)
    andy(monkeypatch, "channels", "status", "pigeon", *at)
    assert "unpaired (Andy is not running)\n" in (shown := capsys.readouterr().out)
    assert "→ andy channels add pigeon" in shown
    andy(monkeypatch, "channels", "add", "pigeon", *at, stdin="secret\n")
    assert "Logged in at home." in capsys.readouterr().out


def test_a_login_that_is_refused_changes_nothing(pigeons, home, monkeypatch):
    with pytest.raises(ChannelRefused, match="do not know this password"):
        andy(monkeypatch, "channels", "add", "pigeon", "--home", str(home.root), stdin="wrong\n")
    assert not (home.root / ".env").exists()


def test_a_setting_that_counts_before_the_file_is_named(pigeons, home, monkeypatch):
    monkeypatch.setenv("ANDY_CHANNELS", "none")
    with pytest.raises(SettingError, match="ANDY_CHANNELS of the environment counts before"):
        andy(monkeypatch, "channels", "add", "pigeon", "--home", str(home.root), stdin="secret\n")


def test_every_messenger_can_be_switched_off(home, monkeypatch, capsys):
    andy(monkeypatch, "channels", "remove", "whatsapp", "--home", str(home.root))
    assert "Its login stays in the home." in capsys.readouterr().out
    assert settings.load(home.root, {}).channels == ()
    andy(monkeypatch, "channels", "add", "whatsapp", "--home", str(home.root))
    assert "Pair it: 'andy whatsapp pair'." in capsys.readouterr().out
    assert settings.load(home.root, {}).channels == ("whatsapp",)


def test_chats_of_this_machine_cannot_be_switched_off(home, monkeypatch):
    with pytest.raises(UsageError, match="cannot be switched off"):
        andy(monkeypatch, "channels", "remove", "local", "--home", str(home.root))


async def test_the_doctor_asks_the_channel_itself(pigeons, home, monkeypatch):
    monkeypatch.setenv("ANDY_CHANNELS", "pigeon,owl")
    monkeypatch.setenv("ANDY_RUNTIME", "process")
    login = home.root / "data/channels/pigeon/login"

    async def found():
        return {one.name: one for one in await doctor.examine(home.root, is_online=False)}

    assert (await found())["pigeon"].fix == "andy channels add pigeon"
    assert "'owl' is no channel" in (await found())["owl"].text
    login.parent.mkdir(parents=True)
    login.write_text("north")
    login.chmod(0o644)
    assert f"others may read {login}" in (await found())["permissions"].text
    (home.root / "ill").touch()
    assert (await found())["pigeon"].text == "The pigeon is ill: feed it."


def test_every_description_is_light():
    """To describe all channels loads no library of a messenger, and nothing of the host."""
    program = (
        "import sys; from orchestrator.channels import discovery;"
        "[discovery.find(name) for name in discovery.names()]; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {
        "neonize",
        "nio",
        "telegram",
        "aiosqlite",
        "pydantic",
        "structlog",
        "httpx",
        "aiohttp",
    }


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        ("1 / 0", "The channel 'pigeon' cannot be loaded (division by zero): fix or remove pigeons."),
        (
            SOURCE.replace(
                "return path.read_text()", "raise RuntimeError('no loft')\n    return path.read_text()"
            ),
            "It cannot say how it is (RuntimeError: no loft): upgrade it.",
        ),
    ],
)
def test_a_broken_channel_hides_the_state_of_no_other(tmp_path, home, monkeypatch, capsys, source, advice):
    monkeypatch.setenv("ANDY_CHANNELS", "pigeon,foo,whatsapp")
    at = ("--home", str(home.root))
    with installed_channel(tmp_path, source):
        andy(monkeypatch, "channels", "status", "--json", *at)
        rows = json.loads(capsys.readouterr().out)
        andy(monkeypatch, "channels", "status", *at)
        shown = capsys.readouterr().out

    assert [(row["name"], row["state"]) for row in rows] == [
        ("pigeon", "broken"), ("foo", "broken"), ("whatsapp", "unpaired")
    ]  # fmt: skip
    assert rows[0]["advice"] == advice
    assert rows[1]["advice"].startswith("'foo' is no channel: known are local, ")
    assert [row.keys() for row in rows] == [rows[2].keys()] * 3
    assert f"pigeon     account unknown: broken (Andy is not running)\n           → {advice}\n" in shown


def test_the_state_of_one_channel_that_does_not_exist_is_refused(home, monkeypatch):
    with pytest.raises(UnknownChannel, match="'foo' is no channel"):
        andy(monkeypatch, "channels", "status", "foo", "--home", str(home.root))


def test_a_damaged_login_hides_the_state_of_no_other_channel(home, monkeypatch, capsys):
    monkeypatch.setenv("ANDY_CHANNELS", "matrix,whatsapp")
    login = home.root / "data" / "channels" / "matrix" / "login.json"
    login.parent.mkdir(parents=True)
    login.write_text("")
    andy(monkeypatch, "channels", "status", "--json", "--home", str(home.root))
    rows = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["state"]) for row in rows] == [("matrix", "broken"), ("whatsapp", "unpaired")]
    with pytest.raises(ChannelDown) as refused:
        andy(monkeypatch, "channels", "status", "matrix", "--home", str(home.root))
    assert rows[0]["advice"] == str(refused.value)
