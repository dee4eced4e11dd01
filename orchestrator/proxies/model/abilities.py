"""Test which of the agents' requests a model service can answer.

An ability counts only if the service's answer shows it; only the size of the window is taken from what the
service reports of itself. Each request is small; together they cost about a thousand tokens.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from orchestrator.domain.errors import SettingError
from orchestrator.domain.failures import ModelError
from orchestrator.domain.model_services import LEAST_WINDOW, Ability, ModelService, too_small
from orchestrator.proxies.model import forwarder, headers
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.proxies.model.error_responses import AnswerCut, ProxyRefused
from orchestrator.proxies.model.exchange import classify
from orchestrator.proxies.model.forwarder import UpstreamTarget
from orchestrator.proxies.model.limits import ModelProxyLimits
from orchestrator.proxies.model.upstream_client import UpstreamClient, UpstreamRequest

ASK_SECONDS = 120.0
"""Seconds that one answer may take: a model on this machine may be loaded for the first question."""
MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""Bytes of an answer that are read: some services list hundreds of models."""
WINDOW = "window"
"""The name of the finding with the size of the window."""
NEEDED = "Andy's agent needs it"
_WINDOW_PATHS = {"llama.cpp": "/props", "lmstudio": "/api/v0/models", "ollama": "/api/ps"}
"""The paths under which services report the window of a loaded model, by kind; others list it with models."""
_MODEL_NAMES = ("id", "name", "model")
_WINDOW_NAMES = ("n_ctx", "loaded_context_length", "max_model_len", "max_input_tokens", "context_length")
_COMMON = [
    (b"content-type", b"application/json"),
    (b"anthropic-version", b"2023-06-01"),
    (b"user-agent", b"andy"),
]
_RED_DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
"""A picture of one red point, as base64 of a PNG."""
_TOOL = {
    "name": "note__colour",
    "description": "Note a colour.",
    "input_schema": {
        "type": "object",
        "properties": {"colour": {"type": "string"}},
        "required": ["colour"],
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AbilityFinding:
    """The result of one test. `detail` is a fact or the reason, for people."""

    name: str
    is_there: bool
    detail: str
    error: ModelError | None = None
    tokens: int | None = None
    """The size of the window in tokens."""


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    kind: bytes
    body: bytes
    is_streamed: bool = False

    @property
    def error(self) -> ModelError | None:
        return classify(self.status, self.body, self.kind or None, is_streamed=self.is_streamed)

    def document(self) -> dict[str, Any]:
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


async def examine(
    credentials: CredentialSource, service: ModelService, model: str, *, briefly: bool = False
) -> list[AbilityFinding]:
    """Test a service with its own key; `briefly`, only whether it answers.

    Raises `SettingError` if its key is not set or cannot be used.
    """
    credential = await asyncio.to_thread(credentials.credential_of, service)
    if credential is None:
        raise SettingError(f"The key of '{service.name}' is not set: put {service.key_env}=… into .env.")
    client = UpstreamClient(ModelProxyLimits())
    target = UpstreamTarget(
        credential=credential, base_url=service.url, is_public_only=not service.is_near, service=service
    )
    try:
        return [await _Asking(client, target, model).text()] if briefly else await look(client, target, model)
    finally:
        await client.close()


async def look(client: UpstreamClient, target: UpstreamTarget, model: str) -> list[AbilityFinding]:
    """Test a service. The first finding is whether it answers at all; if not, it is the only one."""
    ask = _Asking(client, target, model)
    text = await ask.text()
    if not text.is_there:
        return [text]
    window = await ask.window(_WINDOW_PATHS.get(target.service.kind if target.service else "", "/v1/models"))
    return [text, await ask.stream(), await ask.tool(), await ask.image(), await ask.count(), window]


def abilities_of(found: list[AbilityFinding]) -> frozenset[Ability]:
    """Return the abilities among the findings."""
    names = {ability.value for ability in Ability}
    return frozenset(Ability(one.name) for one in found if one.is_there and one.name in names)


def window_of(document: dict[str, Any], model: str) -> int | None:
    """Return the size of a model's window in tokens, from what the service reports; None if it does not."""
    descriptions = [document.get("default_generation_settings")]  # of llama.cpp, which has one model
    for listed in (document.get("data"), document.get("models")):
        entries = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        names = {model, f"{model}:latest"}  # Ollama adds the default tag
        descriptions += [one for one in entries if not names.isdisjoint(map(str, map(one.get, _MODEL_NAMES)))]
    found = (one.get(name) for one in descriptions if isinstance(one, dict) for name in _WINDOW_NAMES)
    return next((tokens for tokens in found if type(tokens) is int and tokens > 0), None)


class _Asking:
    def __init__(self, client: UpstreamClient, target: UpstreamTarget, model: str) -> None:
        self._client = client
        self._target = target
        self._model = model

    async def text(self) -> AbilityFinding:
        reply = await self._ask(messages=_said("Say hello."), max_tokens=32)
        if isinstance(reply, AbilityFinding):
            return reply
        document = reply.document()
        if reply.error is not None:
            return AbilityFinding(name="text", is_there=False, detail=_why(reply), error=reply.error)
        said = " ".join(_texts(document))[:60]
        return AbilityFinding(name="text", is_there=True, detail=f"it says {said!r}")

    async def stream(self) -> AbilityFinding:
        reply = await self._ask(messages=_said("Say hello."), max_tokens=32, stream=True)
        if isinstance(reply, AbilityFinding):
            return _named(reply, Ability.STREAM)
        missing = [
            name
            for name in (b"message_start", b"content_block_delta", b"message_stop")
            if name not in reply.body
        ]
        is_there = reply.error is None and not missing
        detail = (
            "all events came" if is_there else f"without {', '.join(map(bytes.decode, missing))}; {NEEDED}"
        )
        return AbilityFinding(
            name=Ability.STREAM, is_there=is_there, detail=detail if reply.status == 200 else _why(reply)
        )

    async def tool(self) -> AbilityFinding:
        reply = await self._ask(
            messages=_said("Note the colour red: call the tool note__colour."),
            max_tokens=256,
            tools=[_TOOL],
            tool_choice={"type": "auto"},
        )
        if isinstance(reply, AbilityFinding):
            return _named(reply, Ability.TOOLS)
        content = reply.document().get("content")
        calls = [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []
        is_there = any(one.get("type") == "tool_use" and one.get("name") == _TOOL["name"] for one in calls)
        if reply.error is None and reply.document().get("stop_reason") == "max_tokens":
            # A model that thinks at length may not reach its call: that does not mean that it lacks the
            # ability.
            return AbilityFinding(
                name=Ability.TOOLS, is_there=True, detail="it takes tools; its answer was cut before a call"
            )
        taken = "it takes tools, but this model called none" if reply.error is None else _why(reply)
        return AbilityFinding(
            name=Ability.TOOLS, is_there=is_there, detail="it called the tool" if is_there else taken
        )

    async def image(self) -> AbilityFinding:
        source = {"type": "base64", "media_type": "image/png", "data": _RED_DOT}
        question: list[dict[str, Any]] = [
            {"type": "image", "source": source},
            {"type": "text", "text": "What colour is this?"},
        ]
        reply = await self._ask(messages=[{"role": "user", "content": question}], max_tokens=32)
        if isinstance(reply, AbilityFinding):
            return _named(reply, Ability.IMAGES)
        is_there = reply.error is None
        return AbilityFinding(
            name=Ability.IMAGES, is_there=is_there, detail="it takes a picture" if is_there else _why(reply)
        )

    async def count(self) -> AbilityFinding:
        reply = await self._ask(path="/v1/messages/count_tokens", messages=_said("Say hello."))
        if isinstance(reply, AbilityFinding):
            return _named(reply, Ability.COUNTING)
        count = reply.document().get("input_tokens")
        is_there = reply.status == 200 and type(count) is int
        return AbilityFinding(
            name=Ability.COUNTING, is_there=is_there, detail=f"{count} tokens" if is_there else _why(reply)
        )

    async def window(self, path: str) -> AbilityFinding:
        """Read the window with which the service runs the model, which may be smaller than the
        model's own.
        """
        reply = await self._send("GET", path, None)
        tokens = None if isinstance(reply, AbilityFinding) else window_of(reply.document(), self._model)
        if tokens is None:
            detail = "it does not say: give it with --window, else 200,000 tokens are believed"
        elif tokens < LEAST_WINDOW:
            detail = f"{tokens:,} tokens, and {too_small()}"
        else:
            detail = f"{tokens:,} tokens"
        is_enough = tokens is not None and tokens >= LEAST_WINDOW
        return AbilityFinding(name=WINDOW, is_there=is_enough, detail=detail, tokens=tokens)

    async def _ask(self, path: str = "/v1/messages", **fields: Any) -> _Reply | AbilityFinding:
        """Ask the model, and return the answer, or why none came."""
        return await self._send("POST", path, {"model": self._model, **fields})

    async def _send(self, method: str, path: str, document: dict[str, Any] | None) -> _Reply | AbilityFinding:
        body = None if document is None else json.dumps(document).encode()
        length = [] if body is None else [(b"content-length", str(len(body)).encode())]
        request = UpstreamRequest(
            method=method,
            url=f"{self._target.base_url}{path}",
            headers=headers.request_headers([*_COMMON, *length], self._target.credential),
            body=None if body is None else forwarder.once(body),
            first_byte_seconds=ASK_SECONDS,
            is_public_only=self._target.is_public_only,
        )
        try:
            async with asyncio.timeout(ASK_SECONDS), self._client.send(request) as answer:
                is_streamed = document is not None and document.get("stream") is True
                return _Reply(
                    answer.status, answer.kind or b"", await _read(answer.chunks), is_streamed=is_streamed
                )
        except TimeoutError:
            detail = f"no whole answer in {ASK_SECONDS:.0f} s"
        except AnswerCut:
            detail = "the answer broke off"
        except ProxyRefused as error:
            detail = error.cause or error.refusal.message
        return AbilityFinding(name="text", is_there=False, detail=detail, error=ModelError.OUTAGE)


async def _read(chunks: AsyncIterator[bytes]) -> bytes:
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            break
    return bytes(body)


def _named(found: AbilityFinding, ability: Ability) -> AbilityFinding:
    return AbilityFinding(name=ability, is_there=False, detail=found.detail, error=found.error)


def _said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _texts(document: dict[str, Any]) -> list[str]:
    content = document.get("content")
    blocks = [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []
    return [str(one.get("text", "")) for one in blocks if one.get("type") == "text"]


def _why(reply: _Reply) -> str:
    """Return in one line what came instead of an answer."""
    if reply.error is ModelError.FOREIGN:
        kind = reply.kind.decode("latin-1").partition(";")[0] or "nothing that it names"
        return f"HTTP {reply.status} with {kind}: no answer of the Messages API"
    error = reply.document().get("error")
    # A service that has the Messages API but not this model answers 404 as well, in the API's own form.
    if reply.status in (404, 405) and reply.document().get("type") != "error":
        return f"HTTP {reply.status}: no answer of the Messages API"
    message = error.get("message") if isinstance(error, dict) else error
    return f"HTTP {reply.status}: {' '.join(str(message or 'no reason given').split())[:160]}"
