"""The channels that come with Andy keep to `orchestrator.testing.channel_contract`.

A new one is run through it by one more entry in `HARNESSES`.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pkgutil import resolve_name
from typing import Any, Self

import pytest

from orchestrator.channels import discovery
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.local.channel import LocalChannel, new_message
from orchestrator.channels.telegram.description import MAX_FILE_BYTES
from orchestrator.channels.whatsapp import bridge_process
from orchestrator.channels.whatsapp.channel import WhatsAppChannel
from orchestrator.channels.whatsapp.send_rate import SendRate
from orchestrator.containers import mounts
from orchestrator.containers.run_orders import RunOrders
from orchestrator.domain.protocols import Channel
from orchestrator.domain.values import ChatJid, Group, Inbound
from orchestrator.groups import registration
from orchestrator.groups.host_context import HostContext
from orchestrator.home.directory import Home
from orchestrator.home.settings import Settings
from orchestrator.proxies.feature import ContainerProxies
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.testing.channel_contract import *  # noqa: F403 - the tests themselves
from tests.processes.forked_programs import forked_bridge
from tests.processes.synapse import UPLOAD_BYTES, Synapse
from tests.support.runtimes import ProcessBench, a_spec, all_of
from tests.support.runtimes import running as running_container
from tests.support.store_harness import a_group


class LocalHarness:
    """Chats of this machine: what is sent is shown by being stored; who writes does so through the door."""

    jid = ChatJid("local:family")
    has_outside = False

    def __init__(self, context: ChannelContext, monkeypatch: pytest.MonkeyPatch) -> None:
        del context, monkeypatch
        self.channel = self.new_channel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def is_connected(self) -> bool:
        return True

    def new_channel(self) -> Channel:
        return LocalChannel()

    def write(self, text: str) -> Inbound:
        return new_message(self.jid, text, sender="jane", now_ms=1)

    def shown(self) -> list[str]:
        return []


class WhatsAppHarness:
    """WhatsApp with its real process and a phone at its other end."""

    has_outside = True

    def __init__(self, context: ChannelContext, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("tests.support.whatsapp_library", exc_type=ImportError)
        from tests.doubles import whatsapp_events as wa
        from tests.doubles.whatsapp_phone import Phone

        self._wa, self._numbers = wa, iter(range(1_000))
        self._ids: dict[str, str] = {}
        self.jid = ChatJid(f"{wa.FAMILY}@g.us")
        self.phone = Phone(context.home)
        monkeypatch.setattr(bridge_process, "_PROGRAM", forked_bridge())
        self._context = context
        self.channel = self.new_channel()

    def new_channel(self) -> Channel:
        return WhatsAppChannel(self._context, rate=SendRate(chat_gap_ms=0, burst=1_000, every_ms=0))

    def refuse_next_send(self) -> None:
        self.phone.trouble.append("server returned error 463")

    @property
    def takes_bytes(self) -> None:
        return None

    def __enter__(self) -> Self:
        self.phone.__enter__()
        self.phone.pair()
        return self

    def __exit__(self, *_: object) -> None:
        self.phone.__exit__()

    @property
    def is_connected(self) -> bool:
        return self.channel.status()["state"] == "connected" and self.phone.is_connected

    def write(self, text: str) -> None:
        self._ids[text] = f"3A{next(self._numbers)}"
        self.phone.write(self._wa.heard(text, message_id=self._ids[text], at_ms=now_ms()))

    def write_with_file(self, text: str, body: bytes, *, announced: int) -> None:
        from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import DocumentMessage
        from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import Message as Sent

        file = DocumentMessage(
            mediaKey=b"k", directPath="/v", mimetype="application/pdf", fileLength=announced, caption=text
        )
        self.phone.files[b"k"] = body
        sent = self._wa.heard(Sent(documentMessage=file), message_id=f"3A{next(self._numbers)}")
        self.phone.write(sent)

    def change(self, text: str, new: str) -> None:
        edit = self._wa.edit(self._ids[text], self._wa.text(new))
        self.phone.write(self._wa.heard(edit, message_id=f"3A{next(self._numbers)}"))

    def take_back(self, text: str) -> None:
        deletion = self._wa.deletion(self._ids[text])
        self.phone.write(self._wa.heard(deletion, message_id=f"3A{next(self._numbers)}"))

    def answer(self, text: str, words: str) -> None:
        quoted = {"stanzaID": self._ids[text], "participant": f"{self._wa.JANE}@s.whatsapp.net"}
        answer = self._wa.text(words, **quoted)
        self.phone.write(self._wa.heard(answer, message_id=f"3A{next(self._numbers)}"))

    def vote(self, question: str, *options: str) -> None:
        poll = next(one for one in reversed(self.phone.shown) if one.text.endswith(question))
        author = f"{self._wa.ANDY}@s.whatsapp.net"
        vote = self._wa.a_vote(poll.id, *options, author=author)
        self.phone.write(self._wa.heard(vote, message_id=f"3A{next(self._numbers)}", at_ms=now_ms()))

    def secrets(self) -> list[str]:
        # The login is a database of the library, with keys in it: this is one that any of its files may hold.
        return [self._wa.ANDY_LID]

    def shown(self) -> list[str]:
        return [one.removeprefix("Andy: ") for one in self.phone.texts()]


class MatrixHarness:
    """Matrix with a real homeserver, in a room where somebody else has a client of their own."""

    has_outside = True

    def __init__(self, context: ChannelContext, monkeypatch: pytest.MonkeyPatch, homeserver: Synapse) -> None:
        del monkeypatch
        pytest.importorskip("nio")
        from tests.support.matrix_home import MatrixHome, address_of

        self._harness = MatrixHome(
            context.home, context.database, homeserver, attachment_bytes=context.attachment_bytes
        )
        self._room = self._harness.owner.make_room(self._harness.andy, name="Family")
        homeserver.post(f"join/{self._room}", token=self._harness.token)
        self.jid = address_of(self._room)
        self.channel = self.new_channel()
        self._ids: dict[str, str] = {}

    def new_channel(self) -> Any:
        return self._harness.new_channel()

    def refuse_next_send(self) -> None:
        self._harness.owner.call("POST", f"rooms/{self._room}/kick", user_id=self._harness.andy)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def is_connected(self) -> bool:
        return self.channel._session is not None

    def write(self, text: str) -> None:
        self._ids[text] = self._harness.owner.write(self._room, text)

    def write_with_file(self, text: str, body: bytes, *, announced: int) -> None:
        uri = self._harness.owner.upload(body, "application/pdf")
        file = {"msgtype": "m.file", "filename": "big.pdf", "url": uri, "info": {"size": announced}}
        self._harness.owner.write(self._room, text, **file)

    @property
    def takes_bytes(self) -> int:
        return UPLOAD_BYTES

    def change(self, text: str, new: str) -> None:
        relation = {"rel_type": "m.replace", "event_id": self._ids[text]}
        more = {"m.new_content": {"msgtype": "m.text", "body": new}, "m.relates_to": relation}
        self._harness.owner.write(self._room, f"* {new}", **more)

    def take_back(self, text: str) -> None:
        self._harness.owner.redact(self._room, self._ids[text])

    def answer(self, text: str, words: str) -> None:
        relation = {"m.relates_to": {"m.in_reply_to": {"event_id": self._ids[text]}}}
        self._harness.owner.write(self._room, words, **relation)

    def vote(self, question: str, *options: str) -> None:
        start = "org.matrix.msc3381.poll.start"
        (poll,) = self._harness.owner.events(self._room, start)
        assert poll["content"]["org.matrix.msc1767.text"].startswith(question)
        known = {one["org.matrix.msc1767.text"]: one["id"] for one in poll["content"][start]["answers"]}
        response = {
            "m.relates_to": {"rel_type": "m.reference", "event_id": poll["event_id"]},
            "org.matrix.msc3381.poll.response": {"answers": [known[one] for one in options]},
        }
        self._harness.owner.send(self._room, "org.matrix.msc3381.poll.response", response)

    def secrets(self) -> list[str]:
        return [self._harness.token]

    def shown(self) -> list[str]:
        return self._harness.owner.texts(self._room, self._harness.andy)


class TelegramHarness:
    """Telegram with the real library and a Bot API of this machine, in a group where somebody writes."""

    has_outside = True
    jid = ChatJid("tg:-100200")
    _chat = -100200

    def __init__(self, context: ChannelContext, monkeypatch: pytest.MonkeyPatch) -> None:
        del monkeypatch
        pytest.importorskip("telegram")
        from orchestrator.channels.telegram import login
        from orchestrator.channels.telegram.channel import TelegramChannel
        from tests.doubles.telegram_api import BOT, TOKEN, ScriptedBotApi

        self.api = ScriptedBotApi()
        username = str(BOT["username"])
        made = login.TelegramLogin(
            token=TOKEN, bot_id=123456, username=username, owner=1, server=self.api.url
        )
        login.write(context.home, made)
        self._new = partial(TelegramChannel, context, chance=lambda: 0.0, poll_seconds=1)
        self.channel = self.new_channel()
        self._ids: dict[str, int] = {}

    def new_channel(self) -> Any:
        return self._new()

    def refuse_next_send(self) -> None:
        self.api.fail("sendMessage", 400, text="Bad Request: not enough rights")

    def __enter__(self) -> Self:
        self.api.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.api.__exit__(None, None, None)

    @property
    def is_connected(self) -> bool:
        return self.channel._bot is not None

    def write(self, text: str) -> None:
        self._ids[text] = self.api.write(self._chat, text, date=now_ms() // 1000)

    def write_with_file(self, text: str, body: bytes, *, announced: int) -> None:
        self.api.send_file(self._chat, "document", body, caption=text, file_size=announced)

    @property
    def takes_bytes(self) -> int:
        return MAX_FILE_BYTES

    def change(self, text: str, new: str) -> None:
        self.api.edit(self._chat, self._ids[text], new)

    def answer(self, text: str, words: str) -> None:
        answered = {
            "message_id": self._ids[text],
            "date": 1_780_000_000,
            "chat": {"id": self._chat, "type": "supergroup"},
            "text": text,
        }
        self.api.write(self._chat, words, reply_to_message=answered)

    def vote(self, question: str, *options: str) -> None:
        shown = next(one["poll"] for one in reversed(self.api.sent) if one.get("text") == question)
        places = {one["text"]: at for at, one in enumerate(shown["options"])}
        self.api.vote(shown["id"], *(places[one] for one in options))

    def secrets(self) -> list[str]:
        from tests.doubles.telegram_api import TOKEN

        return [TOKEN, TOKEN.partition(":")[2]]

    def shown(self) -> list[str]:
        return self.api.shown(self._chat)


HARNESSES: dict[str, Any] = {
    "local": LocalHarness,
    "whatsapp": WhatsAppHarness,
    "matrix": MatrixHarness,
    "telegram": TelegramHarness,
}


def now_ms() -> int:
    return int(time.time() * 1000)


NEEDS = {"matrix": ("homeserver",)}
"""What a harness is given beside the context."""
WHOLE = {"matrix"}
"""What takes long enough to be left to `make check`."""


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.host] * (name in WHOLE)) for name in sorted(HARNESSES)]
)
async def harness(
    request: pytest.FixtureRequest,
    context: ChannelContext,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Any]:
    needed = [request.getfixturevalue(name) for name in NEEDS.get(request.param, ())]
    with HARNESSES[request.param](context, monkeypatch, *needed) as made:
        async with context.database.transaction() as tx:
            await registration.register(tx, a_group(jid=made.jid))
        yield made


def test_every_channel_that_comes_with_andy_is_tried_here():
    assert sorted(discovery.shipped()) == sorted(HARNESSES)


@pytest.mark.parametrize("name", discovery.shipped())
def test_what_a_description_names_is_there(name):
    described = discovery.find(name)
    named = (described.build, described.log_in, described.log_out, described.account, *described.checks)

    deferred = [each.args[0] for each in named if isinstance(each, partial)]

    assert deferred
    assert all(callable(resolve_name(each)) for each in deferred)


SHOW_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


async def environments(context: ChannelContext, groups: Sequence[Group], *, token: str) -> list[str]:
    """Return the environment of a container of each group, as a program in it reads it."""

    async def never(run_id: str, reason: str) -> None:
        raise AssertionError(f"{run_id}: {reason}")

    found = []
    async with AsyncExitStack() as stack:
        known = HostContext(
            home=Home(context.home),
            settings=Settings(tz="Asia/Seoul"),
            clock=context.clock,
            database=context.database,
            reader=context.database,
            bus=context.bus,
        )
        credentials = CredentialSource(context.home, {"ANTHROPIC_API_KEY": "sk-ant-api03-the-key"})
        proxies = ContainerProxies(known, credentials=credentials, address="127.0.0.1", on_runaway=never)
        await proxies.open(stack)
        orders = RunOrders(known, credentials=credentials, proxies=proxies, uid=os.getuid())
        for group in groups:
            spec = a_spec(
                folder=group.folder,
                mounts=await orders.prepare(group),
                environment=orders.environment(group, orders.agent(group), token),
            )
            # The runtime that stands nearest to the host: an engine's containers are given the spec's alone.
            runtime = ProcessBench(context.home).runtime(SHOW_ENVIRONMENT)
            async with running_container(runtime, spec=spec) as container:
                found.append((await all_of(container)).decode())
    return found


async def test_no_container_is_given_a_place_that_its_secrets_are_in(host, outside, monkeypatch):
    for number, secret in enumerate(outside.secrets()):
        # As a shell has them from which Andy is started.
        monkeypatch.setenv(f"MESSENGER_TOKEN_{number}", secret)
    async with host.living():
        await host.post("hello")
        await host.until_settled()
    home = host.context.home
    groups = (a_group(jid=outside.jid), a_group("main", is_main=True))
    shown = {
        mount.source: mount for group in groups for mount in mounts.prepare(group, home=home, uid=os.getuid())
    }
    held = [file for source in shown for file in source.rglob("*") if file.is_file()]
    logins = [home / path for path in discovery.find(outside.channel.name).secret_files]
    assert all(login.is_file() for login in logins)
    read = await environments(host.context, groups, token="the-runs-own")
    assert ["the-runs-own" in one for one in read] == [True, True]
    for login in logins:
        assert not any(login.is_relative_to(source) for source in shown)
    for secret in outside.secrets():
        assert any(secret.encode() in login.read_bytes() for login in logins)
        assert not any(secret.encode() in file.read_bytes() for file in held)
        assert not any(secret in one for one in read)
