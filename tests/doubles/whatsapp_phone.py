"""WhatsApp's side of a test: the messages that chats show, and those that people write.

It outlives the processes of the bridge. A thread serves the bridge on a socket beside the store of the login;
a test may call it from any thread.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from base64 import b64decode, b64encode
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from google.protobuf.message import Message as Protobuf
from neonize.aioze import events
from neonize.proto.Neonize_pb2 import Device, GroupInfo
from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import Message

from orchestrator.channels.whatsapp import neonize_database
from tests.doubles import whatsapp_events as wa
from tests.doubles import whatsapp_store

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(__file__).parents[1] / "processes" / "whatsapp_site"


@dataclass(frozen=True)
class Bubble:
    """A message of Andy's as its chat shows it."""

    chat: str
    id: str
    mark: str | None
    message: Message

    @property
    def text(self) -> str:
        return wa.words_of(self.message)


class Phone:
    """Enter it to listen; `pair` makes the login."""

    def __init__(self, home: Path) -> None:
        self.store = home / "store" / "whatsapp.db"
        self.environment = {"PYTHONPATH": os.pathsep.join([str(SITE), str(ROOT)])}
        self.shown: list[Bubble] = []
        self.signs: list[tuple[str, bool]] = []
        self.reactions: list[tuple[str, str]] = []
        """Each message with the sign that it got; an empty one took that away."""
        self.read: list[str] = []
        """Messages that were marked as read."""
        self.groups: list[GroupInfo] = []
        self.files: dict[bytes, bytes] = {}
        self.hanging: set[bytes] = set()
        """Media keys whose download never ends."""
        self.logins = 0
        self.codes = ["2@one"]
        """The QR codes that whoever pairs is shown at once."""
        self.haste: dict[str, float] = {}
        """`module.NAME` → value: what the bridge waits for less long."""
        self.refusal: str | None = None
        """Why a login is refused."""
        self.trouble: deque[str] = deque()
        """Why the next sends fail, one each; `swallow` shows the message and never answers."""
        self._waiting: deque[Protobuf] = deque()
        self._line: socket.socket | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        self.store.parent.mkdir(parents=True, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.store.with_name("phone.sock")))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self.hang_up()
        for thread in self._threads:
            thread.join(60)
        self._listener.close()

    def pair(self, **who: Any) -> None:
        whatsapp_store.lay_store(self.store, **who)

    def scan(self) -> None:
        """Take the code that is shown."""
        with self._lock:  # else a bridge that connects just now finds the login, and is greeted twice
            self.pair()
            self._greet()

    # What people do

    def write(self, event: Protobuf) -> None:
        """Send an event; while no bridge is connected it waits, as WhatsApp holds it."""
        with self._lock:
            if self._line is None:
                self._waiting.append(event)
            else:
                self._send_event(event)

    @property
    def is_connected(self) -> bool:
        with self._lock:  # who has connected has been shown its codes
            return self._line is not None

    def hang_up(self) -> None:
        """Break the connection."""
        with self._lock:
            if self._line is not None:
                with suppress(OSError):
                    self._line.shutdown(socket.SHUT_RDWR)
                self._line = None

    def texts(self, chat: str | None = None) -> list[str]:
        return [one.text for one in self.shown if chat in (None, one.chat)]

    # What the bridge does

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(line,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, line: socket.socket) -> None:
        with line, line.makefile("rb") as lines, suppress(OSError):
            for said in lines:
                self._take(line, json.loads(said))
        with self._lock:
            if self._line is line:
                self._line = None

    def _take(self, line: socket.socket, asked: dict[str, Any]) -> None:
        with self._lock:
            try:
                answer = getattr(self, f"_on_{asked['call']}")(asked)
            except RuntimeError as error:
                answer = {"error": str(error)}
            if answer is None:
                return
            line.sendall(json.dumps({"n": asked["n"], **answer}).encode() + b"\n")
            if asked["call"] == "connect" and "error" not in answer:
                self._line = line
                if whatsapp_store.is_paired(self.store):
                    self._greet()
                else:
                    self._show_codes()

    def _show_codes(self) -> None:
        assert self._line is not None
        for code in self.codes:
            self._line.sendall(json.dumps({"qr": code}).encode() + b"\n")

    def _greet(self) -> None:
        self.logins += 1
        self._send_event(Device(JID=wa.jid(wa.ANDY, device=9), LID=wa.lid(wa.ANDY_LID)))
        self._send_event(events.ConnectedEv(status=True))
        while self._waiting:
            self._send_event(self._waiting.popleft())

    def _send_event(self, event: Protobuf) -> None:
        assert self._line is not None
        body = b64encode(wa.complete(event).SerializeToString()).decode()
        told = {"event": type(event).__name__, "body": body}
        self._line.sendall(json.dumps(told).encode() + b"\n")

    def _on_connect(self, _: dict[str, Any]) -> dict[str, Any]:
        if self.refusal is not None:
            raise RuntimeError(self.refusal)
        return {"haste": self.haste}

    def _on_pairphone(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {"letters": f"{asked['phone'][-4:]}-ABCD"}

    def _on_send(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        trouble = self.trouble.popleft() if self.trouble else ""
        if trouble not in ("", "swallow"):
            raise RuntimeError(trouble)
        message = Message.FromString(b64decode(asked["message"]))
        mark = neonize_database.mark_in(message.messageContextInfo.messageSecret)
        self.shown.append(Bubble(asked["chat"], asked["id"], mark, message))
        return None if trouble else {}

    def _on_react(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.reactions.append((asked["message"], asked["sign"]))
        return {}

    def _on_read(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.read.extend(asked["messages"])
        return {}

    def _on_revoke(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.shown = [one for one in self.shown if one.id != asked["id"]]
        return {}

    def _on_typing(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.signs.append((asked["chat"], asked["on"]))
        return {}

    def _on_groups(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"groups": [b64encode(wa.complete(one).SerializeToString()).decode() for one in self.groups]}

    def _on_download(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        key = b64decode(asked["key"])
        if key in self.hanging:
            return None
        if key not in self.files:
            raise RuntimeError("download failed with status code 404")
        return {"body": b64encode(self.files[key]).decode()}

    def _on_upload(self, asked: dict[str, Any]) -> dict[str, Any]:
        key = f"up{len(self.files)}".encode()
        self.files[key] = b64decode(asked["body"])
        return {"key": b64encode(key).decode()}
