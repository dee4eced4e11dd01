"""Test which of the agents' requests a model service can answer.

An ability counts only if the service has answered a request that uses it; only the size of the window is
taken from what the service reports of itself. Each request is small; together they cost about a thousand
tokens.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from orchestrator.domain.errors import SettingError
from orchestrator.domain.failures import ModelError
from orchestrator.domain.model_services import (
    LEAST_WINDOW,
    MAX_WINDOW,
    Ability,
    ModelService,
    too_small_text,
)
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
MAX_EXCERPT_CHARS = 60
"""Characters of a model's answer that a finding shows."""
MAX_REASON_CHARS = 160
"""Characters of a service's own reason that a finding shows."""
_WINDOW_PATHS = {"llama.cpp": "/props", "lmstudio": "/api/v0/models", "ollama": "/api/ps"}
"""The paths under which services report the window of a loaded model, by kind; others list it with models."""
_MODEL_NAMES = ("id", "name", "model")
"""The members in which services name a model in a list of models."""
_WINDOW_NAMES = ("n_ctx", "loaded_context_length", "max_model_len", "max_input_tokens", "context_length")
"""The members in which services report the size of a window."""
_COMMON_HEADERS = [
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
    """An HTTP answer of a model service, as far as it was read."""

    status: int
    content_type: bytes
    """The value of that header; empty without one."""
    body: bytes
    is_streamed: bool = False
    """Whether the request demanded a stream of events."""

    @property
    def error(self) -> ModelError | None:
        """The error that the reply stands for; None if it is a real answer."""
        return classify(self.status, self.body, self.content_type or None, is_streamed=self.is_streamed)

    def document(self) -> dict[str, Any]:
        """Return the JSON object in the body; an empty one if there is none."""
        try:
            document = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}


async def examine_service(
    credentials: CredentialSource, service: ModelService, model: str, *, briefly: bool = False
) -> list[AbilityFinding]:
    """Send requests to a model service with its own key, and return a finding for each ability.

    The first finding is whether the service answers a message at all. It is the only one if `briefly`, or if
    the service does not.

    Raises `SettingError` if the service's key is not set or cannot be used.
    """
    credential = await asyncio.to_thread(credentials.credential_of, service)
    if credential is None:
        raise SettingError(f"The key of '{service.name}' is not set: put {service.key_env}=… into .env.")
    client = await asyncio.to_thread(UpstreamClient, ModelProxyLimits())
    target = UpstreamTarget(
        credential=credential, base_url=service.url, is_public_only=not service.is_near, service=service
    )
    try:
        if briefly:
            return [await _AbilityTests(client, target, model).text()]
        return await examine_abilities(client, target, model)
    finally:
        await client.close()


async def examine_abilities(
    client: UpstreamClient, target: UpstreamTarget, model: str
) -> list[AbilityFinding]:
    """Send a model service requests, and return a finding for each ability and for the window.

    The first finding is whether the service answers a message at all. It is the only one if the service does
    not.
    """
    tests = _AbilityTests(client, target, model)
    text_finding = await tests.text()
    if not text_finding.is_there:
        return [text_finding]
    # By now the model is loaded: some services report the window of a loaded model only.
    window = await tests.window(
        _WINDOW_PATHS.get(target.service.kind if target.service else "", "/v1/models")
    )
    return [
        text_finding,
        await tests.stream(),
        await tests.tool(),
        await tests.image(),
        await tests.count(),
        window,
    ]


def abilities_of(findings: list[AbilityFinding]) -> frozenset[Ability]:
    """Return the abilities that the findings show to be there."""
    names = {ability.value for ability in Ability}
    return frozenset(
        Ability(finding.name) for finding in findings if finding.is_there and finding.name in names
    )


def window_of(document: dict[str, Any], model: str) -> int | None:
    """Return the size of a model's window in tokens; None if the service does not report it.

    `document` is the JSON in which the service describes its models; each kind of service has its own form.
    """
    descriptions = [document.get("default_generation_settings")]  # of llama.cpp, which has one model
    for listed in (document.get("data"), document.get("models")):
        entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        names = {model, f"{model}:latest"}  # Ollama adds the default tag
        descriptions += [
            entry for entry in entries if any(str(entry.get(member)) in names for member in _MODEL_NAMES)
        ]
    sizes = (
        description.get(name)
        for description in descriptions
        if isinstance(description, dict)
        for name in _WINDOW_NAMES
    )
    # `type`, because True is an instance of `int`.
    return next((tokens for tokens in sizes if type(tokens) is int and 0 < tokens <= MAX_WINDOW), None)


class _AbilityTests:
    """The tests of one model at one service; each sends one request and returns its finding.

    If no whole reply comes, `_ask` returns a finding that says why. The test returns it under its own name;
    `window` only reports that the size is not known.
    """

    def __init__(self, client: UpstreamClient, target: UpstreamTarget, model: str) -> None:
        """`client` sends the requests, `target` is the service with its key, `model` the model's name."""
        self._client = client
        self._target = target
        self._model = model

    async def text(self) -> AbilityFinding:
        """Test whether the service answers a message: any answer that is no error counts."""
        reply = await self._ask(messages=_user_message("Say hello."), max_tokens=32)
        if isinstance(reply, AbilityFinding):
            return reply
        document = reply.document()
        if reply.error is not None:
            return AbilityFinding(
                name="text", is_there=False, detail=_failure_detail(reply), error=reply.error
            )
        excerpt = " ".join(_texts(document))[:MAX_EXCERPT_CHARS]
        return AbilityFinding(name="text", is_there=True, detail=f"it says {excerpt!r}")

    async def stream(self) -> AbilityFinding:
        """Test whether the service sends its answer as a stream with the events of the Messages API."""
        reply = await self._ask(messages=_user_message("Say hello."), max_tokens=32, stream=True)
        if isinstance(reply, AbilityFinding):
            return _missing_ability(reply, Ability.STREAM)
        missing = [
            name
            for name in (b"message_start", b"content_block_delta", b"message_stop")
            if name not in reply.body
        ]
        is_whole = reply.error is None and not missing
        missing_names = ", ".join(map(bytes.decode, missing)) or "an event that ends it"
        detail = "all events came" if is_whole else f"without {missing_names}; {NEEDED}"
        return AbilityFinding(
            name=Ability.STREAM,
            is_there=is_whole,
            detail=detail if reply.status == 200 else _failure_detail(reply),
        )

    async def tool(self) -> AbilityFinding:
        """Test whether the service takes tools and the model calls one.

        A model whose answer was cut at `max_tokens` counts as able.
        """
        reply = await self._ask(
            messages=_user_message("Note the colour red: call the tool note__colour."),
            max_tokens=256,
            tools=[_TOOL],
            tool_choice={"type": "auto"},
        )
        if isinstance(reply, AbilityFinding):
            return _missing_ability(reply, Ability.TOOLS)
        content = reply.document().get("content")
        blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
        called_tool = any(
            block.get("type") == "tool_use" and block.get("name") == _TOOL["name"] for block in blocks
        )
        # A model that thinks at length may not reach its call: that does not mean that it lacks the ability.
        is_cut = reply.error is None and reply.document().get("stop_reason") == "max_tokens"
        if called_tool:
            detail = "it called the tool"
        elif is_cut:
            detail = "it takes tools; its answer was cut before a call"
        elif reply.error is None:
            detail = "it takes tools, but this model called none"
        else:
            detail = _failure_detail(reply)
        return AbilityFinding(name=Ability.TOOLS, is_there=called_tool or is_cut, detail=detail)

    async def image(self) -> AbilityFinding:
        """Test whether the service answers a question about a picture, whatever it says."""
        source = {"type": "base64", "media_type": "image/png", "data": _RED_DOT}
        question: list[dict[str, Any]] = [
            {"type": "image", "source": source},
            {"type": "text", "text": "What colour is this?"},
        ]
        reply = await self._ask(messages=[{"role": "user", "content": question}], max_tokens=32)
        if isinstance(reply, AbilityFinding):
            return _missing_ability(reply, Ability.IMAGES)
        is_there = reply.error is None
        return AbilityFinding(
            name=Ability.IMAGES,
            is_there=is_there,
            detail="it takes a picture" if is_there else _failure_detail(reply),
        )

    async def count(self) -> AbilityFinding:
        """Test whether the service counts the tokens of a request."""
        reply = await self._ask(path="/v1/messages/count_tokens", messages=_user_message("Say hello."))
        if isinstance(reply, AbilityFinding):
            return _missing_ability(reply, Ability.COUNTING)
        count = reply.document().get("input_tokens")
        has_count = reply.status == 200 and type(count) is int
        return AbilityFinding(
            name=Ability.COUNTING,
            is_there=has_count,
            detail=f"{count} tokens" if has_count else _failure_detail(reply),
        )

    async def window(self, path: str) -> AbilityFinding:
        """Test whether the window with which the service runs the model is large enough.

        The window may be smaller than the model's own. `path` is where the service reports it.
        """
        reply = await self._send("GET", path, None)
        tokens = None if isinstance(reply, AbilityFinding) else window_of(reply.document(), self._model)
        if tokens is None:
            detail = "it does not say: give it with --window, else 200,000 tokens are believed"
        elif tokens < LEAST_WINDOW:
            detail = f"{tokens:,} tokens, and {too_small_text()}"
        else:
            detail = f"{tokens:,} tokens"
        is_enough = tokens is not None and tokens >= LEAST_WINDOW
        return AbilityFinding(name=WINDOW, is_there=is_enough, detail=detail, tokens=tokens)

    async def _ask(self, path: str = "/v1/messages", **fields: Any) -> _Reply | AbilityFinding:
        """Send the model a request with these fields of the Messages API.

        Return the reply, or a finding with the reason if no whole reply came, as `_send` does.
        """
        return await self._send("POST", path, {"model": self._model, **fields})

    async def _send(self, method: str, path: str, document: dict[str, Any] | None) -> _Reply | AbilityFinding:
        """Send a request to a path of the service, with `document` as its JSON body if there is one.

        Return the reply. If no whole reply came, return a finding with the reason instead; its name is
        "text", and a test of another ability sets the right name by `_missing_ability`.
        """
        body = None if document is None else json.dumps(document).encode()
        length = [] if body is None else [(b"content-length", str(len(body)).encode())]
        request = UpstreamRequest(
            method=method,
            url=f"{self._target.base_url}{path}",
            headers=headers.request_headers([*_COMMON_HEADERS, *length], self._target.credential),
            body=None if body is None else forwarder.one_piece(body),
            first_byte_seconds=ASK_SECONDS,
            is_public_only=self._target.is_public_only,
        )
        try:
            async with asyncio.timeout(ASK_SECONDS), self._client.send(request) as answer:
                is_streamed = document is not None and document.get("stream") is True
                return _Reply(
                    answer.status,
                    answer.kind or b"",
                    await _read_body(answer.chunks),
                    is_streamed=is_streamed,
                )
        except TimeoutError:
            detail = f"no whole answer in {ASK_SECONDS:.0f} s"
        except AnswerCut:
            detail = "the answer broke off"
        except ProxyRefused as error:
            detail = error.cause or error.refusal.message
        return AbilityFinding(name="text", is_there=False, detail=detail, error=ModelError.OUTAGE)


async def _read_body(chunks: AsyncIterator[bytes]) -> bytes:
    """Return the beginning of a body, up to a little more than `MAX_ANSWER_BYTES`."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            break
    return bytes(body)


def _missing_ability(failure: AbilityFinding, ability: Ability) -> AbilityFinding:
    """Return the finding that an ability is missing, for the reason in `failure`: no whole reply came."""
    return AbilityFinding(name=ability, is_there=False, detail=failure.detail, error=failure.error)


def _user_message(text: str) -> list[dict[str, str]]:
    """Return a conversation with one message of a user."""
    return [{"role": "user", "content": text}]


def _texts(document: dict[str, Any]) -> list[str]:
    """Return the texts of the blocks in an answer of the Messages API; none if it has another form."""
    content = document.get("content")
    blocks = [item for item in content if isinstance(item, dict)] if isinstance(content, list) else []
    return [str(block.get("text", "")) for block in blocks if block.get("type") == "text"]


def _failure_detail(reply: _Reply) -> str:
    """Return one line that says what came instead of the expected answer, with the service's own reason."""
    if reply.error is ModelError.FOREIGN:
        kind = reply.content_type.decode("latin-1").partition(";")[0] or "nothing that it names"
        return f"HTTP {reply.status} with {kind}: no answer of the Messages API"
    error = reply.document().get("error")
    # A service that has the Messages API but not this model answers 404 as well, in the API's own form.
    if reply.status in (404, 405) and reply.document().get("type") != "error":
        return f"HTTP {reply.status}: no answer of the Messages API"
    message = error.get("message") if isinstance(error, dict) else error  # some services send only a text
    return f"HTTP {reply.status}: {' '.join(str(message or 'no reason given').split())[:MAX_REASON_CHARS]}"
