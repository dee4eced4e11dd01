"""Send the host's own requests to a model, through the containers' proxy: counted and limited like theirs.

Each request has its own token, valid while the request runs, for a group and outside of any turn. The request
is charged to that group's background work, and is refused when the group's budgets are spent.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from orchestrator.base.import_blocker import without
from orchestrator.domain.errors import AndyError
from orchestrator.domain.model_services import ModelService
from orchestrator.domain.values import Folder, RunId
from orchestrator.proxies.model.exchange import RunIdentity
from orchestrator.proxies.model.proxy import MESSAGES_PATH
from orchestrator.proxies.run_tokens import new_token, token_hash
from orchestrator.store.money.budgets import Budget

if TYPE_CHECKING:
    from starlette.types import ASGIApp

MAX_REASON_CHARS = 300
"""Characters of a refusal's message that the error repeats."""


class NotAnswered(AndyError):
    """The model did not answer."""


class HostModelCalls:
    """Sends requests of the host's own through the model proxy, each with a token of its own.

    The proxy calls `identify` for each token before it looks for a run with that token.
    """

    def __init__(self, budgets: Callable[[], Awaitable[tuple[Budget, ...]]]) -> None:
        """`budgets` returns all budgets that are set."""
        self._budgets = budgets
        self._open: dict[str, RunIdentity] = {}
        """The requests that are running, by the hash of their token."""

    def identify(self, token_hash_text: str) -> RunIdentity | None:
        """Return the identity of the running request whose token has this hash; None if there is none."""
        return self._open.get(token_hash_text)

    async def ask(
        self,
        app: ASGIApp,
        folder: Folder,
        *,
        is_main: bool,
        model: str,
        system: str,
        text: str,
        max_tokens: int,
        service: ModelService | None = None,
    ) -> str:
        """Send a model one message, and return the text of its answer.

        Args:
            app: the model proxy.
            folder: the group to whose background work the request is charged.
            is_main: whether that group is the owner's own.
            model: the model's name.
            system: the system prompt.
            text: the message.
            max_tokens: the most tokens of the answer.
            service: the model service; None for the one of `.env`.

        Raises:
            NotAnswered: the request was refused (a budget may be spent), or the answer is not whole.
        """
        body = {
            "model": model,
            "max_tokens": max_tokens,
            "system": system,
            "messages": [{"role": "user", "content": text}],
        }
        token = new_token()
        self._open[token_hash(token)] = RunIdentity(
            run_id=RunId(f"host-{secrets.token_hex(6)}"),
            folder=folder,
            is_main=is_main,
            budgets=await self._budgets(),
            service=service,
            model=model,
        )
        try:
            return await _request_answer(app, token, body)
        finally:
            del self._open[token_hash(token)]


async def _request_answer(app: ASGIApp, token: str, body: dict[str, Any]) -> str:
    """Send a request of the Messages API through the proxy `app`, and return the text of the answer.

    Raises `NotAnswered` if the answer is an error, no JSON, or cut short, or breaks off.
    """
    with without("pygments"):  # saves 5 MiB of memory: httpx loads it with rich for its own command
        import httpx

    headers = {"x-api-key": token, "anthropic-version": "2023-06-01"}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://own", timeout=None) as client:  # noqa: S113 - the caller limits the time
        try:
            response = await client.post(MESSAGES_PATH, json=body, headers=headers)
        except (AssertionError, httpx.HTTPError) as error:
            # httpx asserts that an app ends its answer: the proxy does not if the service's answer broke off,
            # or would quote the key. An answer in a content coding may be broken as well.
            raise NotAnswered("The model's answer broke off.") from error
    try:
        document = json.loads(response.content)
    except (ValueError, RecursionError) as error:
        raise NotAnswered(f"The model's answer is no JSON (HTTP {response.status_code}).") from error
    if response.is_error or not isinstance(document, dict):
        raise NotAnswered(_reason(response.status_code, document))
    return _text_of(document)


def _reason(status: int, document: Any) -> str:
    """Return the text of `NotAnswered` for an answer that is an error; `document` is its parsed body."""
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return f"The model refused (HTTP {status}): {str(message or 'no reason given')[:MAX_REASON_CHARS]}"


def _text_of(document: dict[str, Any]) -> str:
    """Return the text of an answer of the Messages API. Raises `NotAnswered` if the model did not end it."""
    if document.get("stop_reason") != "end_turn":
        raise NotAnswered(f"The model did not come to an end ({document.get('stop_reason')}).")
    blocks = document.get("content")
    texts = [
        str(block.get("text", ""))
        for block in (blocks if isinstance(blocks, list) else [])
        if isinstance(block, dict) and block.get("type") == "text"
    ]
    return "\n".join(texts).strip()
