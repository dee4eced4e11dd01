"""A Bot API on a real socket. A test writes and reads its chats, and can make calls fail.

It runs in a thread of its own:

    with ScriptedBotApi() as api:
        api.write(-100, "hello")                # somebody writes
        api.fail("sendMessage", 429, retry=3)   # the next call of a method fails
        assert api.shown(-100) == ["hi"]        # what the bot has sent
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent_runner.wire.listeners import listen

TOKEN = "123456:abcdefghijklmnopqrstuvwxyz"
BOT = {"id": 123456, "is_bot": True, "first_name": "Andy", "username": "andy_test_bot"}
JANE = {"id": 77, "is_bot": False, "first_name": "Jane", "last_name": "Doe"}
SENDING = ("sendPoll", "sendMessage", "sendPhoto", "sendDocument", "sendVoice", "sendAudio", "sendVideo")


@dataclass(frozen=True, slots=True)
class Failure:
    """How one call fails: an answer with this status, or with `is_cut` no answer at all."""

    status: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)
    text: str = "refused by the script"
    is_cut: bool = False
    is_done: bool = False
    """Whether it is carried out all the same."""


class ScriptedBotApi:
    """Enter it to start; leave it to end."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        """The messages that the bot has sent, as Telegram would show them."""
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.is_token_known = True
        self.files: dict[str, bytes] = {}
        self.are_files_slow = False
        """Whether a file that is asked for does not come until this is False again."""
        self.confirmed = 0
        """The number of the first update that the bot has not confirmed."""
        self._updates: list[dict[str, Any]] = []
        self._failures: dict[str, list[Failure]] = {}
        self._numbers = itertools.count(1)
        self._update_numbers = itertools.count(1_000)
        self._polling = 0
        self._is_ending = False
        self._lock = threading.Lock()
        self._listener = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        routes = [
            Route("/bot{token}/{method}", self._call, methods=["GET", "POST"]),
            Route("/file/bot{token}/{name}", self._file),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes),
            log_level="error",
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=5,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._server.serve([self._listener])), name="bot-api", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Who waits for updates is let go first: a connection that is cut off here is left unclosed.
        self._is_ending = True
        self._server.should_exit = True
        self._thread.join(timeout=60)
        self._listener.close()

    # What people do

    def write(self, chat: int, text: str, *, sender: dict[str, Any] = JANE, **more: Any) -> int:
        """Have somebody write in a chat; return the message's number."""
        return self._add("message", {**self._message(chat, sender), "text": text, **more})

    def send(self, chat: int, **content: Any) -> int:
        """Have somebody send what is neither text nor a file, such as a poll; return the message's number."""
        return self._add("message", {**self._message(chat, JANE), **content})

    def send_file(self, chat: int, kind: str, body: bytes, *, caption: str = "", **more: Any) -> int:
        """Have somebody send a file; `kind` is Telegram's word, such as `document`."""
        file_id = f"f{next(self._numbers)}"
        self.files[file_id] = body
        facts = {"file_id": file_id, "file_unique_id": file_id, "file_size": len(body), **more}
        shown = [{**facts, "width": 1, "height": 1}] if kind == "photo" else facts
        words = {"caption": caption} if caption else {}
        return self._add("message", {**self._message(chat, JANE), kind: shown, **words})

    def edit(self, chat: int, number: int, text: str) -> None:
        """Have somebody change a message."""
        message = {
            **self._message(chat, JANE),
            "message_id": number,
            "edit_date": 1_780_000_100,
            "text": text,
        }
        self._add("edited_message", message)

    def react(self, chat: int, number: int, sign: str) -> None:
        """Have somebody put a sign under a message."""
        self._add(
            "message_reaction",
            {
                "chat": self._chat(chat),
                "message_id": number,
                "user": JANE,
                "date": 1_780_000_000,
                "old_reaction": [],
                "new_reaction": [{"type": "emoji", "emoji": sign}],
            },
        )

    def vote(self, poll_id: str, *chosen: int, sender: dict[str, Any] = JANE) -> None:
        """Have somebody choose options of a poll of the bot's, or none to take their vote back."""
        names = [str(one) for one in chosen]
        answer = {"poll_id": poll_id, "option_ids": list(chosen), "option_persistent_ids": names}
        self._add("poll_answer", {**answer, "user": sender})

    def add_raw(self, content: dict[str, Any]) -> None:
        """Add an update of any shape, as a newer Telegram might send one."""
        with self._lock:
            self._updates.append({"update_id": next(self._update_numbers), **content})

    def restart_numbers(self) -> None:
        """Number the messages from 1 on again, as for another bot."""
        self._numbers = itertools.count(1)

    def repeat(self) -> None:
        """Tell of all that was not confirmed again, the newest first."""
        with self._lock:
            self._updates.reverse()

    def shown(self, chat: int) -> list[str]:
        """Return the texts that the bot has sent to a chat, those under files too."""
        return [one.get("text", one.get("caption", "")) for one in self.sent if one["chat"]["id"] == chat]

    def fail(self, method: str, status: int = 0, **more: Any) -> None:
        """Have the next call of a method fail."""
        names = {"retry": "retry_after", "moved_to": "migrate_to_chat_id"}
        parameters = {names[key]: more.pop(key) for key in names if key in more}
        self._failures.setdefault(method, []).append(Failure(status, parameters, **more))

    @property
    def is_polled(self) -> bool:
        """Whether a bot waits for updates now."""
        return self._polling > 0

    def _message(self, chat: int, sender: dict[str, Any]) -> dict[str, Any]:
        return {
            "message_id": next(self._numbers),
            "from": sender,
            "chat": self._chat(chat),
            "date": 1_780_000_000,
        }

    def _chat(self, chat: int) -> dict[str, Any]:
        if chat > 0:
            return {"id": chat, "type": "private", "first_name": "Jane"}
        return {"id": chat, "type": "supergroup", "title": "Family"}

    def _add(self, kind: str, content: dict[str, Any]) -> int:
        with self._lock:
            self._updates.append({"update_id": next(self._update_numbers), kind: content})
        return int(content.get("message_id", 0))

    # What the bot asks

    async def _call(self, request: Request) -> Response:
        method = request.path_params["method"]
        if request.path_params["token"] != TOKEN or not self.is_token_known:
            return _error(401, "Unauthorized")
        given = await _given(request)
        self.calls.append((method, given))
        failure = self._failures[method].pop(0) if self._failures.get(method) else None
        if failure is not None and not failure.is_done and not failure.is_cut:
            return _error(failure.status, failure.text, **failure.parameters)
        result = None
        if failure is None or failure.is_done:
            result = await self._answer(request, method, given)
        if failure is not None:
            return _Cut()
        if isinstance(result, Response):
            return result
        return JSONResponse({"ok": True, "result": result})

    async def _answer(self, request: Request, method: str, given: dict[str, Any]) -> Any:
        return await self._do(request, method, given) if method not in SENDING else self._send(method, given)

    async def _do(self, request: Request, method: str, given: dict[str, Any]) -> Any:
        if method == "getUpdates":
            return await self._updates_after(request, given)
        if method == "getMe":
            return {**BOT, "can_join_groups": True, "can_read_all_group_messages": False}
        if method == "getFile":
            name = given["file_id"]
            return {"file_id": name, "file_unique_id": name, "file_path": name}
        if method == "stopPoll":
            found = next(one["poll"] for one in self.sent if one["message_id"] == int(given["message_id"]))
            return {**found, "is_closed": True}
        if method == "deleteMessage":
            remaining = [one for one in self.sent if one["message_id"] != int(given["message_id"])]
            if len(remaining) == len(self.sent):
                return _error(400, "Bad Request: message to delete not found")
            self.sent[:] = remaining
            return True
        return True

    def _send(self, method: str, given: dict[str, Any]) -> Any:
        chat = int(given["chat_id"])
        if len(str(given.get("text", "")).encode("utf-16-le")) // 2 > 4096:
            return _error(400, "Bad Request: message is too long")
        message = {**self._message(chat, BOT), **{k: given[k] for k in ("text", "caption") if k in given}}
        if method == "sendPoll":
            message |= self._poll(given)
        for key in ("entities", "caption_entities", "reply_parameters", "message_thread_id"):
            if key in given:
                message[f"given_{key}"] = given[key]
        self.sent.append(message)
        return {key: value for key, value in message.items() if not key.startswith("given_")}

    def _poll(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return a poll with its question as `text`, by which `shown` has it."""
        options = given["options"]
        options = json.loads(options) if isinstance(options, str) else options
        assert given.get("is_anonymous") in (False, "false", "False"), "else nobody is told who chose what"
        poll_options = [
            {"text": one["text"], "voter_count": 0, "persistent_id": str(place)}
            for place, one in enumerate(options)
        ]
        poll = {
            "id": f"5{next(self._numbers)}", "question": given["question"], "options": poll_options,
            "total_voter_count": 0, "is_closed": False, "is_anonymous": False, "type": "regular",
            "allows_multiple_answers": False, "allows_revoting": True, "members_only": False,
        }  # fmt: skip
        return {"poll": poll, "text": given["question"]}

    async def _updates_after(self, request: Request, given: dict[str, Any]) -> Any:
        if self._polling:
            return _error(409, "Conflict: terminated by other getUpdates request")
        offset, loop = int(given.get("offset", 0)), asyncio.get_running_loop()
        self.confirmed = max(self.confirmed, offset)
        deadline = loop.time() + float(given.get("timeout", 0))
        self._polling += 1
        try:
            while True:
                with self._lock:
                    self._updates = [one for one in self._updates if one["update_id"] >= offset]
                    found = list(self._updates[:100])
                is_over = self._is_ending or loop.time() >= deadline
                if found or is_over or await request.is_disconnected():
                    return found
                await asyncio.sleep(0.01)
        finally:
            self._polling -= 1

    async def _file(self, request: Request) -> Response:
        if request.path_params["token"] != TOKEN:
            return _error(401, "Unauthorized")
        # Another thread says when: there is no event of this loop to wait for.
        while self.are_files_slow and not self._is_ending and not await request.is_disconnected():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return Response(self.files[request.path_params["name"]])


class _Cut(Response):
    """An answer that breaks off before it begins."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"99")]})
        raise ConnectionResetError


def _error(status: int, text: str, **parameters: Any) -> Response:
    body = {"ok": False, "error_code": status, "description": text, "parameters": parameters}
    # No `JSONResponse`, which refuses NaN: a server may send it.
    return Response(json.dumps(body), status_code=status, media_type="application/json")


async def _given(request: Request) -> dict[str, Any]:
    given: dict[str, Any] = dict(request.query_params)
    if request.headers.get("content-type", "").startswith("application/json"):
        return given | json.loads(await request.body())
    async with request.form() as form:
        for key, value in form.items():
            given[key] = value if isinstance(value, str) else f"({value.filename})"
    for key in ("entities", "caption_entities", "reply_parameters"):
        if key in given:
            given[key] = json.loads(given[key])
    return given
