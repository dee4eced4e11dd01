"""A Messages API on a real socket whose answers a test has written.

It runs in a thread of its own, so that tests with and without asyncio, and child processes, can use it:

    with ScriptedMessagesApi([UseTool("send_message", {"text": "hi"}), Say("done")]) as api:
        ...  # ANTHROPIC_BASE_URL=api.url
    assert last_user_text(api.turns[0]) == "…"

A script is a list of steps, used in the order of the requests, or a function from a request to its step. The
CLI's own requests (quota probes, titles, compaction) use no step. Neither does the request by which the host
checks whether the service answers: its answer is `probe`, or else that of the last turn.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

Event = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What a response says it used."""

    input_tokens: int = 11
    output_tokens: int = 7
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0

    def as_usage(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Say:
    """Answer with a text."""

    text: str
    tokens: Tokens | None = None
    stop_reason: str = "end_turn"


@dataclass(frozen=True, slots=True)
class UseTool:
    """Call a tool, after a word or two if `text` is given. A name without `__` is one of Andy's own."""

    name: str
    input: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    tokens: Tokens | None = None


@dataclass(frozen=True, slots=True)
class UseTools:
    """Call several tools at once."""

    calls: tuple[UseTool, ...]
    tokens: Tokens | None = None


@dataclass(frozen=True, slots=True)
class Search:
    """Answer as the service does that has searched the web: its searches, what they found, and a text."""

    text: str
    found: tuple[tuple[str, str], ...]
    """Title and address of each page."""
    query: str = "weather"
    searches: int = 1
    tokens: Tokens | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """Refuse with an HTTP status and an error body."""

    status: int = 400
    type: str = "invalid_request_error"
    message: str = "refused by the script"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hang:
    """Take the request and say nothing until `release` or the end."""


@dataclass(frozen=True, slots=True)
class SayThenCut:
    """Begin to answer, then break the connection."""

    text: str


@dataclass(frozen=True, slots=True)
class SayInParts:
    """Answer with the first part of a text at once, and with the second after `go_on`."""

    first: str
    second: str


@dataclass(frozen=True, slots=True)
class SayLate:
    """Answer with a text after `go_on`, and send no byte before, not even the head."""

    text: str


@dataclass(frozen=True, slots=True)
class FailLate(Fail):
    """Refuse after `go_on`, and send no byte before."""


Step = Say | UseTool | UseTools | Search | Fail | Hang | SayThenCut | SayInParts | SayLate
Decide = Callable[["Recorded"], Step]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One request as it came. `kind` tells a turn of the agent from what the CLI does on the side."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float
    """`time.time()` of its arrival: other processes can compare."""
    kind: Literal["turn", "side", "count", "probe"]


def last_user_text(request: Recorded) -> str:
    """Return the newest words of the user in a request, without what the CLI adds around them."""
    for message in reversed(request.body.get("messages", [])):
        words = [text for text in _texts(message) if not text.startswith("<system-reminder>")]
        if message["role"] == "user" and words:
            return words[-1]
    return ""


def all_text(request: Recorded) -> str:
    """Return every text of the conversation in a request, the system prompt left out."""
    return "\n".join(text for message in request.body.get("messages", []) for text in _texts(message))


def system_text(request: Recorded) -> str:
    return "\n".join(_texts({"content": request.body.get("system", "")}))


def tool_results(request: Recorded) -> list[dict[str, Any]]:
    """Return the tool results of the newest user message that has any."""
    for message in reversed(request.body.get("messages", [])):
        found = [block for block in _blocks(message) if block.get("type") == "tool_result"]
        if found:
            return found
    return []


def tool_names(request: Recorded) -> list[str]:
    return [str(tool.get("name")) for tool in request.body.get("tools") or []]


def is_offered(request: Recorded, name: str) -> bool:
    """Tell whether a model may call a tool: it is described to it, or named to be looked up."""
    if name in tool_names(request):
        return True
    told = all_text(request)
    at = told.rfind(f"\n{name}\n")  # a session that goes on may have named it before, and taken it back since
    return at >= 0 and told.rfind("are now available", 0, at) > told.rfind("are no longer available", 0, at)


class ScriptedMessagesApi:
    """The server. Enter it to start, leave it to stop; `requests` keeps everything that came.

    `host` is where it binds: a container reaches it only through something that listens for it.
    """

    def __init__(
        self,
        script: Iterable[Step] | Decide = (),
        *,
        default: Step = Say("Nothing is scripted."),
        tokens: Tokens | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self._decide = script if callable(script) else None
        self._steps = [] if callable(script) else list(script)
        self._default = default
        self._tokens = tokens or Tokens()
        self._changed = threading.Condition()
        self._requests: list[Recorded] = []
        self._released = threading.Event()
        self._gone_on = threading.Event()
        self.probe: Step | None = None
        """What the host's own requests get, where that is not what the last turn got."""
        self._last: Step = Say("ok")
        self._socket = socket.create_server((host, 0))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{host}:{self.port}"
        self._server = uvicorn.Server(
            uvicorn.Config(
                Starlette(routes=self._routes()),
                log_config=None,
                log_level=logging.CRITICAL + 1,
                lifespan="off",
                ws="none",
            )
        )
        self._thread = threading.Thread(target=self._serve, name="scripted-messages-api", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def go_on(self) -> None:
        """Let every `SayInParts` say its second part and every late step answer, those to come too."""
        self._gone_on.set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        self.go_on()
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(timeout=60)
        self._socket.close()

    @property
    def requests(self) -> list[Recorded]:
        """Everything that came, in order."""
        with self._changed:
            return list(self._requests)

    @property
    def probes(self) -> list[Recorded]:
        """What the host has asked on its own account."""
        return [one for one in self.requests if (one.kind, one.path) == ("probe", "/v1/messages")]

    @property
    def turns(self) -> list[Recorded]:
        """The requests that took a step of the script."""
        return [request for request in self.requests if request.kind == "turn"]

    def then(self, *steps: Step) -> None:
        """Append to the script."""
        with self._changed:
            self._steps.extend(steps)

    def release(self) -> None:
        """Break the connections of every `Hang`, those to come too."""
        self._released.set()

    def start_over(self) -> None:
        """Forget what came and what was scripted, as another test on the same port needs it."""
        with self._changed:
            self._requests.clear()
            self._steps.clear()
            self._last = Say("ok")
        self.probe = None
        self._released.clear()
        self._gone_on.clear()

    def wait_for_turns(self, count: int, *, seconds: float = 120) -> list[Recorded]:
        """Block until `count` turns have come. Raises `TimeoutError`."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: self._count_turns() >= count, timeout=seconds)
        if not arrived:
            raise TimeoutError(f"{len(self.turns)} of {count} turns came in {seconds:g} s")
        return self.turns

    def _count_turns(self) -> int:
        return sum(request.kind == "turn" for request in self._requests)

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def _routes(self) -> list[Route]:
        return [
            Route("/v1/messages", self._messages, methods=["POST"]),
            Route("/v1/messages/count_tokens", self._count, methods=["POST"]),
            Route("/{path:path}", self._probe, methods=["GET", "HEAD", "POST"]),
        ]

    async def _messages(self, request: Request) -> Response:
        body = json.loads(await request.body())
        recorded, step = self._take(request, body)
        model = str(body.get("model"))
        if isinstance(step, SayLate | FailLate):
            while not self._gone_on.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            step = Say(step.text) if isinstance(step, SayLate) else step
        match step:
            case Fail():
                return _refusal(step)
            case Hang():
                return StreamingResponse(self._nothing(), media_type="text/event-stream")
            case SayThenCut():
                return StreamingResponse(_cut(step, model), media_type="text/event-stream")
            case SayInParts():
                return StreamingResponse(self._in_parts(step, model), media_type="text/event-stream")
        message = _message(step, model, step.tokens or self._tokens, number=len(self.requests))
        if recorded.body.get("stream"):
            return StreamingResponse(_stream(message), media_type="text/event-stream")
        return JSONResponse(message)

    def _take(self, request: Request, body: dict[str, Any]) -> tuple[Recorded, Step]:
        if request.headers.get("user-agent") == "andy":
            recorded = self._record(request, body, "probe")
            return recorded, self.probe or (self._decide(recorded) if self._decide else self._last)
        kind: Literal["turn", "side"] = "side" if _is_side(request, body) else "turn"
        if kind == "side":
            return self._record(request, body, kind), Say("<summary>Scripted summary.</summary>")
        if self._decide is not None:
            recorded = self._record(request, body, kind)
            return recorded, self._decide(recorded)
        with self._changed:  # who sees the request may append steps, which are not for it
            recorded = self._record(request, body, kind)
            self._last = self._steps.pop(0) if self._steps else self._default
            return recorded, self._last

    def _record(
        self, request: Request, body: dict[str, Any], kind: Literal["turn", "side", "count", "probe"]
    ) -> Recorded:
        recorded = Recorded(
            method=request.method,
            path=request.url.path,
            headers=dict(request.headers),
            body=body,
            at=time.time(),
            kind=kind,
        )
        with self._changed:
            self._requests.append(recorded)
            self._changed.notify_all()
        return recorded

    async def _count(self, request: Request) -> Response:
        body = await request.body()
        self._record(request, json.loads(body), "count")
        return JSONResponse({"input_tokens": max(1, len(body) // 4)})

    async def _probe(self, request: Request) -> Response:
        self._record(request, {}, "probe")
        return JSONResponse({})

    async def _nothing(self) -> AsyncIterator[bytes]:
        while not self._released.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        raise ClientDisconnect
        yield b""

    async def _in_parts(self, step: SayInParts, model: str) -> AsyncIterator[bytes]:
        message = _message(Say(step.first + step.second), model, self._tokens, number=len(self.requests))
        for name, data in _events(message):
            if name != "content_block_delta":
                yield _sse(name, data)
                continue
            for text in (step.first, step.second):
                yield _sse(name, {**data, "delta": {"type": "text_delta", "text": text}})
                while not self._gone_on.is_set():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)


def _is_side(request: Request, body: dict[str, Any]) -> bool:
    """Tell what the CLI asks on its own account; every other client's request is a turn."""
    if not request.headers.get("user-agent", "").startswith("claude-cli"):
        return False
    if body.get("max_tokens") == 1 or not body.get("tools"):
        return True
    last = (body.get("messages") or [{}])[-1]
    return any("detailed summary of the conversation" in text for text in _texts(last))


def _blocks(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    content = message.get("content", "")
    yield from [{"type": "text", "text": content}] if isinstance(content, str) else content


def _texts(message: dict[str, Any]) -> list[str]:
    return [str(block["text"]) for block in _blocks(message) if block.get("type") == "text"]


def _refusal(step: Fail) -> Response:
    error = {"type": "error", "error": {"type": step.type, "message": step.message}}
    return JSONResponse(error, status_code=step.status, headers=step.headers)


def _message(
    step: Say | UseTool | UseTools | Search, model: str, tokens: Tokens, *, number: int
) -> dict[str, Any]:
    return {
        "id": f"msg_{number:06d}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": _searched(step, number) if isinstance(step, Search) else _content(step, number),
        "stop_reason": _stop_reason(step),
        "stop_sequence": None,
        "usage": tokens.as_usage() | _searches_in(step),
    }


def _stop_reason(step: Say | UseTool | UseTools | Search) -> str:
    match step:
        case Say():
            return step.stop_reason
        case Search():
            return "end_turn"
        case _:
            return "tool_use"


def _searches_in(step: Say | UseTool | UseTools | Search) -> dict[str, Any]:
    is_search = isinstance(step, Search)
    return {"server_tool_use": {"web_search_requests": step.searches}} if is_search else {}


def _searched(step: Search, number: int) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    for index in range(step.searches):
        use = f"srvtoolu_{number:06d}{index}"
        pages = [
            {
                "type": "web_search_result",
                "title": title,
                "url": url,
                "encrypted_content": "EqgfCioIARgBIiQ3YTAw",
                "page_age": "2 days ago",
            }
            for title, url in step.found
        ]
        content += [
            {"type": "server_tool_use", "id": use, "name": "web_search", "input": {"query": step.query}},
            {"type": "web_search_tool_result", "tool_use_id": use, "content": pages},
        ]
    return [*content, {"type": "text", "text": step.text}]


def _content(step: Say | UseTool | UseTools, number: int) -> list[dict[str, Any]]:
    calls = step.calls if isinstance(step, UseTools) else (step,) if isinstance(step, UseTool) else ()
    texts = [part.text for part in ((step,) if isinstance(step, Say) else calls) if part.text]
    content: list[dict[str, Any]] = [{"type": "text", "text": text} for text in texts]
    for index, call in enumerate(calls):
        name = call.name if "__" in call.name or call.name[:1].isupper() else f"mcp__andy__{call.name}"
        block = {"type": "tool_use", "id": f"toolu_{number:06d}{'abcdefgh'[index]}", "name": name}
        content.append({**block, "input": call.input})
    return content


async def _stream(message: dict[str, Any]) -> AsyncIterator[bytes]:
    for name, data in _events(message):
        yield _sse(name, data)


async def _cut(step: SayThenCut, model: str) -> AsyncIterator[bytes]:
    message = _message(Say(step.text), model, Tokens(), number=0)
    for name, data in _events(message):
        if name == "content_block_stop":
            await asyncio.sleep(0)
            raise ClientDisconnect
        yield _sse(name, data)


def _events(message: dict[str, Any]) -> Iterator[Event]:
    """Spell a message as the events of a stream."""
    usage = message["usage"]
    begun = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    yield "message_start", {"message": begun}
    for index, block in enumerate(message["content"]):
        yield from _block_events(index, block)
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield "message_delta", {"delta": delta, "usage": usage}
    yield "message_stop", {}


def _block_events(index: int, block: dict[str, Any]) -> Iterator[Event]:
    if block["type"] == "text":
        empty = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": block["text"]}
    elif block["type"] == "web_search_tool_result":  # comes whole
        yield "content_block_start", {"index": index, "content_block": block}
        yield "content_block_stop", {"index": index}
        return
    else:
        empty = {**block, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"], ensure_ascii=False)}
    yield "content_block_start", {"index": index, "content_block": empty}
    yield "content_block_delta", {"index": index, "delta": delta}
    yield "content_block_stop", {"index": index}


def _sse(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **data}, ensure_ascii=False)}\n\n".encode()
