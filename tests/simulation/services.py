"""The model services of a simulated world: what each answers, and for how long it does not.

They stand behind the real proxy, in the place of its HTTP client: what a request meets is drawn for each
service as faults of some time. A fault that begins meets the answers under way, too.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from orchestrator.domain.model_services import OF_DOTENV, PRESETS, ModelService, WorkKind
from orchestrator.proxies.model import error_responses
from orchestrator.proxies.model.error_responses import AnswerCut, ProxyRefused
from orchestrator.proxies.model.limits import ModelProxyLimits
from orchestrator.proxies.model.upstream_client import UpstreamRequest, UpstreamResponse
from orchestrator.store.database import Tx
from orchestrator.store.settings import model_services
from orchestrator.store.settings.model_services import ChosenModel
from tests.simulation.loop import SimulatedLoop

SHARE = 0.25
"""The share of the worlds whose agents ask a model."""
MODEL = "claude-sonnet-4-6"
KEYS = {
    "ANTHROPIC_API_KEY": "sk-ant-api03-the-key-of-dotenv",
    "SPARE_KEY": "the-key-of-the-spare-one",
}
PLACES = {"api.anthropic.com": OF_DOTENV, "spare.example": "spare", "192.168.1.20:8080": "near"}
"""The services by the hosts of their addresses."""
REFUSALS: dict[str, tuple[int, str, str]] = {
    "refused key": (401, "authentication_error", "invalid x-api-key"),
    "no credit": (400, "invalid_request_error", "Your credit balance is too low."),
    "unknown model": (404, "not_found_error", "model: claude-9"),
    "overload": (529, "overloaded_error", "Overloaded"),
    "5xx": (500, "api_error", "Internal server error"),
}
STRANGE: dict[str, tuple[int, bytes, bytes]] = {
    "another format": (200, b"application/json", b'{"object":"chat.completion","choices":[]}'),
    "a page": (200, b"text/html", b"<html>Log in</html>"),
    "a redirect": (302, b"text/plain", b""),
}
BROKEN = ("no answer", "no first byte", "a stream that stops", "a break within a tool call", "no event")
SERVICES_RECOVER_SECONDS = 90.0
"""Seconds after which a service that works again is asked again."""
KINDS = (*REFUSALS, *STRANGE, *BROKEN)
SILENT = ("no first byte", "a stream that stops", "no event")
CUTTING = ("no answer", "no first byte", "a stream that stops", "a break within a tool call")
"""Faults that meet an answer that is under way as they begin."""
OPTIONS = ("tea", "coffee", "water")
"""Options of each poll that a model asks people."""
WORD = re.compile(r"\bzq\d+x\b")
CALLED_BEFORE = re.compile(r"^- mcp__andy__\w+: .*$", re.MULTILINE)
"""Lines of a prompt that name a call of a tool which was made before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFault:
    """A time in which a service does not answer as it should."""

    service: str
    kind: str
    at_s: float
    seconds: float

    @property
    def end_s(self) -> float:
        return self.at_s + self.seconds

    def __str__(self) -> str:
        return f"{self.service}: {self.kind} ({self.seconds:.0f} s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicesPlan:
    """The services of a world besides the one of `.env`, and what goes wrong at each."""

    asks_model: bool = False
    """Whether agents ask a model."""
    fallbacks: tuple[str, ...] = ()
    """The services that stand in for the one of `.env`, in order."""
    faults: tuple[ServiceFault, ...] = ()
    is_sound: bool = True
    """Whether the last service always works."""
    is_alone: bool = False
    """Whether nothing but the services goes wrong."""

    @classmethod
    def drawn(cls, seed: str, *, seconds: float, near: Sequence[float]) -> ServicesPlan:
        chance = random.Random(f"{seed}:services of models")
        if chance.random() >= SHARE:
            return cls()
        fallbacks = chance.choice((("spare",), ("spare", "near"), ("spare", "near")))
        is_sound = chance.random() < 0.75
        names = (OF_DOTENV, *fallbacks)
        faulty = names[:-1] if is_sound else names
        faults = sorted(_faults(chance, seconds, near, faulty), key=lambda one: one.at_s)
        is_faulty, is_alone = chance.random() < 0.9, chance.random() < 0.6
        has_list = chance.random() < 0.85
        return cls(
            asks_model=True,
            fallbacks=fallbacks if has_list else (),
            faults=tuple(faults) if is_faulty else (),
            is_sound=is_sound and has_list,
            is_alone=is_alone,
        )

    def of(self, service: str, now_s: float) -> ServiceFault | None:
        """Return what is wrong with a service now."""
        return next(
            (one for one in self.faults if one.service == service and one.at_s <= now_s < one.end_s), None
        )

    def ends_before(self, service: str, at_s: float) -> list[float]:
        """Return when the faults of a service ended that began before a time, which may be later."""
        return [one.end_s for one in self.faults if one.service == service and one.at_s <= at_s]

    def has_silence(self, from_s: float, to_s: float) -> bool:
        """Return whether any service is silent at some moment of a time."""
        return any(one.kind in SILENT and one.at_s <= to_s and one.end_s > from_s for one in self.faults)

    def has_worked_since(self, service: str, from_s: float, to_s: float) -> bool:
        """Return whether nothing was wrong with a service in all of a time."""
        return not any(
            one.service == service and one.at_s <= to_s and one.end_s > from_s for one in self.faults
        )


def _faults(
    chance: random.Random, seconds: float, near: Sequence[float], faulty: Sequence[str]
) -> Iterator[ServiceFault]:
    for _ in range(chance.randrange(1, 16)):
        service = faulty[0] if chance.random() < 0.6 else chance.choice(faulty)
        # Most begin while a turn is under way, so that some come between a tool and the answer.
        ahead = chance.uniform(-1, 14) if chance.random() < 0.6 else chance.uniform(-60, 0)
        at_s = max(0.0, chance.choice(near) + ahead)
        lasts = min(chance.choice((3, 8, 20, 20, 90, 90, 400, 1500)), seconds - at_s)
        if lasts > 0:
            yield ServiceFault(service=service, kind=chance.choice(KINDS), at_s=at_s, seconds=lasts)


async def add_services(tx: Tx, fallbacks: Sequence[str]) -> None:
    """Store the services, as the owner would, and the list of what stands in."""
    places = {name: place for place, name in PLACES.items()}
    for name in fallbacks:
        is_near = name == "near"
        kind = "llama.cpp" if is_near else "openrouter"
        service = ModelService(
            name=name,
            kind=kind,
            url=f"{'http' if is_near else 'https'}://{places[name]}",
            key_env=None if is_near else "SPARE_KEY",
            model=f"{name}-model",
            abilities=PRESETS[kind].abilities,
        )
        await model_services.put(tx, service, now_ms=0)
    chosen = [ChosenModel(WorkKind.FALLBACK, name, True) for name in fallbacks]
    await model_services.choose(tx, WorkKind.FALLBACK, chosen, now_ms=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that a service has had."""

    at_s: float
    service: str
    is_of_host: bool
    words: tuple[str, ...]
    is_of_task: bool
    """Whether it is for a task that a model had set before."""
    fault: str | None


class Services:
    """All model services of a world."""

    def __init__(self, loop: SimulatedLoop, seed: str, plan: ServicesPlan, note: Callable[..., None]) -> None:
        self.loop = loop
        self.plan = plan
        self.asked: list[Asked] = []
        self.open_requests = 0
        """The number of requests under way."""
        self.chance = random.Random(f"{seed}:services' answers")
        self._note = note

    def fault(self, service: str) -> str | None:
        """Return the kind of what is wrong with a service now."""
        found = self.plan.of(service, self.loop.time())
        return None if found is None else found.kind

    def note_asked(self, service: str, request: UpstreamRequest, body: dict[str, Any]) -> None:
        agents = [value for name, value in request.headers if name.lower() == b"user-agent"]
        is_of_host = agents == [b"andy"]
        wish = _wish_of(body)
        words = tuple(WORD.findall(wish))
        fault = self.fault(service)
        self.asked.append(
            Asked(
                at_s=self.loop.time(),
                service=service,
                is_of_host=is_of_host,
                words=words,
                is_of_task="⏰" in wish,
                fault=fault,
            )
        )
        who = "the host" if is_of_host else " ".join(words) or "an agent"
        self._note("service", f"{service} is asked by {who}: {fault or 'it answers'}")


class SimulatedUpstream:
    """In the place of the proxy's `UpstreamClient`."""

    def __init__(self, services: Services, limits: ModelProxyLimits) -> None:
        self._services = services
        self._limits = limits

    @asynccontextmanager
    async def send(self, request: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
        """Send a request and enter with what its service makes of it. Raises `ProxyRefused`."""
        self._services.open_requests += 1
        try:
            async with self._answered(request) as response:
                yield response
        finally:
            self._services.open_requests -= 1

    @asynccontextmanager
    async def _answered(self, request: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
        raw = b"" if request.body is None else b"".join([piece async for piece in request.body])
        body = json.loads(raw or b"{}")
        services, chance = self._services, self._services.chance
        service = PLACES[request.url.split("/")[2]]
        await asyncio.sleep(chance.uniform(0.02, 0.3))
        services.note_asked(service, request, body)
        fault = services.fault(service)
        if fault == "no answer":
            if chance.random() < 0.5:
                raise ProxyRefused(error_responses.UNREACHABLE, cause="ConnectError: refused")
            raise ProxyRefused(error_responses.BROKEN, cause="RemoteProtocolError")
        if fault == "no first byte":
            await asyncio.sleep(request.first_byte_seconds)
            raise ProxyRefused(error_responses.SILENT, cause="ReadTimeout")
        if fault is None:
            await asyncio.sleep(chance.uniform(0.2, 3.0))
        response = self._response(service, fault, body)
        try:
            yield response
        finally:
            await response.chunks.aclose()

    async def close(self) -> None:
        pass

    def _response(self, service: str, fault: str | None, body: dict[str, Any]) -> UpstreamResponse:
        if fault in REFUSALS:
            status, kind, message = REFUSALS[fault]
            error = {"type": "error", "error": {"type": kind, "message": message}}
            headers = [(b"content-type", b"application/json")]
            if fault == "overload" and (wait := self._services.chance.choice((b"", b"", b"1", b"4"))):
                headers.append((b"retry-after", wait))
            return UpstreamResponse(status=status, headers=headers, chunks=_whole(json.dumps(error).encode()))
        if fault in STRANGE:
            status, content_type, text = STRANGE[fault]
            headers = [(b"content-type", content_type)]
            if status == 302:
                headers.append((b"location", b"https://login.example/"))
            return UpstreamResponse(status=status, headers=headers, chunks=_whole(text))
        if not body.get("stream"):
            message = json.dumps(_message(service, [{"type": "text", "text": "Hello"}])).encode()
            headers = [(b"content-type", b"application/json")]
            return UpstreamResponse(status=200, headers=headers, chunks=self._cut(service, fault, [message]))
        verb = self._services.chance.choice(("says", "writes", "adds", "reports"))
        events = _events(service, _answer_of(f"{verb} {service}", body))
        return UpstreamResponse(
            status=200,
            headers=[(b"content-type", b"text/event-stream; charset=utf-8")],
            chunks=self._cut(service, fault, events),
        )

    async def _cut(self, service: str, fault: str | None, events: Sequence[bytes]) -> AsyncGenerator[bytes]:
        """Yield an answer as far as what is wrong lets it come."""
        chance = self._services.chance
        if fault == "no event":
            for _ in range(600):
                yield b":"
                await asyncio.sleep(1)
            raise AnswerCut("ReadTimeout")
        if fault == "a break within a tool call":
            yield _event("message_start", message=_message(service, []))
            tool = {"type": "tool_use", "id": "t", "name": "Bash", "input": {}}
            yield _event("content_block_start", index=0, content_block=tool)
            raise AnswerCut("RemoteProtocolError")
        for number, event in enumerate(events):
            # A whole answer that came at once is too short for a fault to begin in it.
            now = fault if number == 1 else self._services.fault(service) if number > 1 else None
            if now in CUTTING:
                if now in ("no first byte", "a stream that stops"):
                    await asyncio.sleep(self._limits.answer_seconds)
                raise AnswerCut("ReadTimeout")
            yield event
            if number + 1 < len(events):
                await asyncio.sleep(chance.uniform(0.01, 0.5))
        if fault == "a stream that stops" and len(events) == 1:
            await asyncio.sleep(self._limits.answer_seconds)
            raise AnswerCut("ReadTimeout")


async def _whole(body: bytes) -> AsyncGenerator[bytes]:
    if body:
        yield body


def _event(kind: str, **data: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()


def _message(service: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL if service == OF_DOTENV else f"{service}-model",
        "content": content,
        "usage": {"input_tokens": 20, "output_tokens": 5},
    }


def _events(service: str, part: dict[str, Any]) -> list[bytes]:
    """Return an answer of one part as the events of a stream."""
    if part["type"] == "text":
        begun: dict[str, Any] = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(part["text"])]
    else:
        begun = {**part, "input": {}}
        deltas = [
            {"type": "input_json_delta", "partial_json": piece}
            for piece in _pieces(json.dumps(part["input"]))
        ]
    stop = "end_turn" if part["type"] == "text" else "tool_use"
    return [
        _event("message_start", message=_message(service, [])),
        _event("content_block_start", index=0, content_block=begun),
        *(_event("content_block_delta", index=0, delta=delta) for delta in deltas),
        _event("content_block_stop", index=0),
        _event("message_delta", delta={"stop_reason": stop}, usage={"output_tokens": 9}),
        _event("message_stop"),
    ]


def _pieces(text: str) -> list[str]:
    half = len(text) // 2
    return [piece for piece in (text[:half], text[half:]) if piece]


# -- what a model says ---------------------------------------------------------------------------------


def _texts(body: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [
        part
        for message in body.get("messages", ())
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if part.get("type") == kind
    ]


def _wish_of(body: dict[str, Any]) -> str:
    """Return the last text of the first message of an agent's request: what is to be done."""
    found = _texts(body, "text")
    return str(found[-1]["text"]) if found else ""


def is_said_by_tool(word: str) -> bool:
    """Return whether a model says a word that it is asked for by a tool, before its answer."""
    return int(word[2:-1]) % 3 == 0


def _answer_of(wording: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the part with which a model answers: a call of a tool, or its text.

    A model does not word things twice alike, so that the host cannot take a call for an earlier one. What the
    prompt says was called before, and what it has called itself, it does not call again.
    """
    prompts = _texts(body, "text")
    before = CALLED_BEFORE.findall(str(prompts[0]["text"])) if prompts else []
    called = " ".join([*before, *(json.dumps(part["input"]) for part in _texts(body, "tool_use"))])
    failed = [str(part.get("content")) for part in _texts(body, "tool_result") if part.get("is_error")]
    said: list[str] = []
    for line in _wish_of(body).splitlines():
        for word in WORD.findall(line):
            call = _call(wording, line, word)
            if call is None:
                said.append(line.replace("echo ", ""))
            elif not re.search(rf"\b{word}\b", called):
                return {"type": "tool_use", "id": f"toolu_{word}", **call}
    return {"type": "text", "text": "\n".join([*said, *failed]) or "It is done."}


def _call(wording: str, line: str, word: str) -> dict[str, Any] | None:
    if minutes := re.search(r"remind me in (\d+) minutes", line):
        given = {
            "prompt": f"⏰ {word}, {wording}",
            "schedule_type": "once",
            "schedule_value": f"{minutes[1]}m",
        }
        return {"name": "schedule_task", "input": given}
    if line.startswith("poll "):
        question = f"{word}, {wording}?"
        ends = {"until": "5m"} if int(word[2:-1]) % 2 else {}
        return {"name": "send_poll", "input": {"question": question, "options": OPTIONS, **ends}}
    if line.startswith("echo ") and is_said_by_tool(word):
        return {"name": "send_message", "input": {"text": f"{word}, {wording}"}}
    return None
