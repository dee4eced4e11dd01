"""Send a request to the host and wait for its answer."""

from __future__ import annotations

import asyncio
import secrets
import time
from pathlib import Path

from agent_runner.watch import DirectoryWatch
from agent_runner.wire.document import WireError
from agent_runner.wire.files import unique_name, write_whole
from agent_runner.wire.mailbox import REPLY_SECONDS, Command, Reply, SendFile, SendMessage
from agent_runner.workspace import Workspace

SWEEP_SECONDS = 0.25
"""Seconds after which the folder is looked at without a signal of a change."""


class HostClient:
    """The host as a container sees it: requests are files, answers are files in `replies/`."""

    def __init__(self, workspace: Workspace, *, reply_seconds: float = REPLY_SECONDS) -> None:
        """`workspace` has the directories of requests and replies.

        `reply_seconds` is the time that the host may take to answer a request.
        """
        self._workspace = workspace
        self._reply_seconds = reply_seconds
        self._replies: DirectoryWatch | None = None

    async def ask(self, command: Command) -> Reply:
        """Write `command` as a request, wait for the host's reply and return it.

        If the command has a request id, that is used: the host does nothing twice for one id.

        Failures are returned as replies, too: the code is `no_answer` without an answer in time,
        `not_written` for a request that cannot be written, and `bad_reply` for an unreadable answer.
        """
        request_id = command.request_id or secrets.token_hex(16)
        asked_ms = time.time_ns() // 1_000_000
        request = command.model_copy(update={"request_id": request_id, "asked_ms": asked_ms})
        # Watched before the request is written, because the reply may come at once.
        checks = self._watch().checks(SWEEP_SECONDS)
        try:
            await asyncio.to_thread(write_whole, self._outbox(command) / unique_name(), request.to_json())
            async with asyncio.timeout(self._reply_seconds):
                async for _ in checks:
                    text = await asyncio.to_thread(_text_of, self._workspace.replies / f"{request_id}.json")
                    # A power failure may leave a reply empty; the host writes it again when the request is
                    # repeated.
                    if text:
                        return Reply.parse(text)
        except TimeoutError:
            return _no_answer(request_id, self._reply_seconds)
        except OSError as error:
            return _failed(request_id, "not_written", f"The request could not be written: {error.strerror}.")
        except WireError as error:
            return _failed(request_id, "bad_reply", f"The host's answer could not be read: {error}.")
        raise AssertionError("checks never ends")

    def close(self) -> None:
        """Stop watching for replies."""
        if self._replies is not None:
            self._replies.stop()
            self._replies = None

    def _outbox(self, command: Command) -> Path:
        """Return the folder in which the host expects a request of this kind."""
        is_message = isinstance(command, SendMessage | SendFile)
        return self._workspace.messages if is_message else self._workspace.tasks

    def _watch(self) -> DirectoryWatch:
        """Return the watch of the replies' folder; the first call starts it."""
        if self._replies is None:
            self._replies = DirectoryWatch(self._workspace.replies)
            self._replies.start()
        return self._replies


def _text_of(path: Path) -> str | None:
    """Return the text of a file; None if it is missing."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _no_answer(request_id: str, seconds: float) -> Reply:
    """Return the reply to a request that the host did not answer in time."""
    return _failed(
        request_id,
        "no_answer",
        f"The host did not answer in {seconds:g} s; it may still do what was asked, and then tells the chat. "
        "Do not repeat it before looking whether it was done.",
    )


def _failed(request_id: str, code: str, text: str) -> Reply:
    """Return the reply to a request that failed in the container itself, with a code and a text."""
    return Reply(request_id=request_id, ok=False, code=code, text=text)
