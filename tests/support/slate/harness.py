"""The harness of the slate for the tests of the channel contract: the people at its other end."""

from __future__ import annotations

import json
import time
from typing import Any, Self

from orchestrator.channels.context import ChannelContext
from slate.board import Board
from slate.channel import JID, LOGIN, SlateChannel

TOKEN = "chalk-4711-secret"


class SlateHarness:
    jid = JID
    has_outside = True
    takes_bytes = 50_000

    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        folder = context.home.parent / f"{context.home.name}-slate"
        self._board, self._numbers = Board(folder), {}
        login = context.home / LOGIN
        login.parent.mkdir(parents=True)
        login.touch(mode=0o600)
        login.write_text(json.dumps({"folder": str(folder), "token": TOKEN}))
        self.channel = self.new_channel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def new_channel(self) -> SlateChannel:
        return SlateChannel(self._context)

    @property
    def is_connected(self) -> bool:
        return self.channel.status()["state"] == "connected"

    def write(self, text: str) -> None:
        self._numbers[text] = self._add(text=text)

    def write_with_file(self, text: str, body: bytes, *, announced: int) -> None:
        self._add(text=text, body=body.decode(), announced=announced)

    def change(self, text: str, new: str) -> None:
        self._add(text=new, edits=self._numbers[text])

    def take_back(self, text: str) -> None:
        self._add(deletes=self._numbers[text])

    def answer(self, text: str, words: str) -> None:
        self._add(text=words, quotes=self._numbers[text])

    def refuse_next_send(self) -> None:
        self._board.refuse_next()

    def shown(self) -> list[str]:
        return self._board.shown()

    def secrets(self) -> list[str]:
        return [TOKEN]

    def _add(self, **fields: Any) -> int:
        return self._board.add("message", at_ms=int(time.time() * 1000), **fields)
