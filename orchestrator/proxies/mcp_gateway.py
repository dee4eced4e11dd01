"""Pass an agent's calls on to the MCP servers of the owner's that its group may use, with their secrets.

container --run token--> /mcp/NAME --the server's own secret--> the server's URL

It is streamable HTTP: POST sends a message, GET listens, DELETE ends a session.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.base.clock import Clock
from orchestrator.domain.values import Folder
from orchestrator.proxies.model import error_responses, request_policy
from orchestrator.proxies.model.client import ClientSide
from orchestrator.proxies.model.error_responses import AnswerCut, ProxyRefused
from orchestrator.proxies.model.exchange import RunIdentity
from orchestrator.proxies.model.headers import Header
from orchestrator.proxies.model.limits import MIB, TurnCounts
from orchestrator.store.audit import AuditEvent
from orchestrator.store.mcp_servers import McpServer

if TYPE_CHECKING:
    from orchestrator.proxies.model.upstream_client import UpstreamClient, UpstreamRequest

PREFIX = "/mcp/"
CALL = "tools/call"
METHODS = ("POST", "GET", "DELETE")
CALLS_A_TURN = 300
MAX_REQUEST_BYTES = 4 * MIB
MAX_ANSWER_BYTES = 16 * MIB
MAX_NAME_CHARS = 100
MASK = b"[secret]"
_REQUEST_NAMES = frozenset(
    {
        b"accept",
        b"content-length",
        b"content-type",
        b"last-event-id",
        b"mcp-protocol-version",
        b"mcp-session-id",
    }
)
_RESPONSE_NAMES = frozenset({b"content-type", b"mcp-session-id", b"retry-after"})

FindServer = Callable[[Folder, str], Awaitable[McpServer | None]]
"""Return a server by name if the agents of this group may call it."""
FindSecret = Callable[[str], str | None]
"""Return the value that is set under this name; None where none is."""


Approve = Callable[[RunIdentity, str, str, object], Awaitable[str | None]]
"""`(identity, server, tool, arguments)`: ask the owner where a rule of the group says so. Return None when it
may be called, else why not.
"""


class McpGateway:
    """Passes calls on. Whose they are, the credential proxy has found out before."""

    def __init__(
        self,
        find: FindServer,
        secret: FindSecret,
        *,
        note: Callable[[AuditEvent], None],
        clock: Clock,
        approve: Approve | None = None,
    ) -> None:
        self._find = find
        self._secret = secret
        self._note = note
        self._clock = clock
        self._approve = approve
        self._calls = TurnCounts()

    async def pass_on(
        self, name: str, client: ClientSide, identity: RunIdentity, upstream: UpstreamClient
    ) -> None:
        """Send one request to the server `name` and its answer back.

        Raises:
            ProxyRefused: the group may not use it, has called too often, or the server does not answer.
            AnswerCut: the answer broke off or was too long.
        """
        server = await self._find(identity.folder, name)
        if server is None or server.url is None:
            raise ProxyRefused(error_responses.not_allowed(f"an MCP server '{name[:MAX_NAME_CHARS]}'"))
        if self._calls.add(identity.run_id, identity.turn_id, 1) > CALLS_A_TURN:
            raise ProxyRefused(
                error_responses.not_allowed(f"MCP servers more than {CALLS_A_TURN} times a turn")
            )
        secret = self._secret_of(server)
        body = b"".join([chunk async for chunk in client.body(MAX_REQUEST_BYTES)])
        message = _message(client.method, body)
        detail = {"server": server.name, **_called(client.method, message)}
        began = time.perf_counter()
        try:
            if (reason := await self._why_not(server, identity, message)) is not None:
                detail["refused"] = reason
                await _answer_refusal(client, message, reason)
                return
            await _exchange(_request(server, server.url, secret, client, body), client, upstream, secret)
        finally:
            detail |= {
                "status": client.status,
                "ms": round((time.perf_counter() - began) * 1000),
                "bytes_in": client.bytes_in,
                "bytes_out": client.bytes_out,
            }
            self._note(
                AuditEvent(
                    at_ms=self._clock.now_ms(),
                    kind="mcp.request",
                    folder=identity.folder,
                    run_id=identity.run_id,
                    turn_id=identity.turn_id,
                    detail=detail,
                )
            )

    async def _why_not(
        self, server: McpServer, identity: RunIdentity, message: Mapping[str, Any]
    ) -> str | None:
        """Ask the owner before a tool is called; None where it may be."""
        parameters = message.get("params")
        if self._approve is None or message.get("method") != CALL:
            return None
        given = parameters if isinstance(parameters, dict) else {}
        return await self._approve(identity, server.name, str(given.get("name")), given.get("arguments"))

    def _secret_of(self, server: McpServer) -> str | None:
        if server.secret_env is None:
            return None
        secret = self._secret(server.secret_env)
        if not secret:
            raise ProxyRefused(
                error_responses.not_allowed(
                    f"the MCP server '{server.name}': its owner has to set {server.secret_env} in .env"
                )
            )
        return secret


def _message(method: str, body: bytes) -> dict[str, Any]:
    """Return the message that is sent; an empty one where the method sends none."""
    message = request_policy.parsed(body) if method == "POST" else {}
    if not isinstance(message, dict):
        raise ProxyRefused(error_responses.malformed("an MCP server takes one message at a time"))
    return message


async def _answer_refusal(client: ClientSide, message: Mapping[str, Any], reason: str) -> None:
    """Answer a call that is not passed on as a tool does that has failed, so that the agent reads why."""
    result = {"content": [{"type": "text", "text": f"Not done: {reason}."}], "isError": True}
    answer = {"jsonrpc": "2.0", "id": message.get("id"), "result": result}
    await client.begin(200, [(b"content-type", b"application/json")])
    await client.write(json.dumps(answer).encode())
    await client.end()


def _called(method: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """What is called, for the audit: names, and nothing of what is handed over."""
    if method != "POST":
        return {"method": method}
    called: dict[str, Any] = {"method": _bounded(message.get("method"))}
    parameters = message.get("params")
    if called["method"] == CALL and isinstance(parameters, dict):
        called["tool"] = _bounded(parameters.get("name"))
    return called


def _bounded(name: object) -> str | None:
    return name[:MAX_NAME_CHARS] if isinstance(name, str) else None


def _request(
    server: McpServer, url: str, secret: str | None, client: ClientSide, body: bytes
) -> UpstreamRequest:
    from orchestrator.proxies.model.forwarder import once
    from orchestrator.proxies.model.upstream_client import UpstreamRequest

    return UpstreamRequest(
        method=client.method,
        url=url,
        headers=[*_passed(client.headers, _REQUEST_NAMES), *_added(server, secret)],
        body=once(body) if client.method == "POST" else None,
    )


def _added(server: McpServer, secret: str | None) -> list[Header]:
    added: list[Header] = [(b"accept-encoding", b"identity"), (b"user-agent", b"andy")]
    if secret is not None:
        is_bearer = server.header.lower() == "authorization" and " " not in secret
        added.append((server.header.lower().encode(), f"{'Bearer ' if is_bearer else ''}{secret}".encode()))
    return added


def _passed(headers: list[Header], names: frozenset[bytes]) -> list[Header]:
    return [(name.lower(), value) for name, value in headers if name.lower() in names]


async def _exchange(
    request: UpstreamRequest, client: ClientSide, upstream: UpstreamClient, secret: str | None
) -> None:
    mask = SecretMask(secret)
    async with upstream.send(request) as answer:
        if answer.status in {401, 403}:
            raise ProxyRefused(error_responses.MCP_REFUSES)
        passed = _passed(answer.headers, _RESPONSE_NAMES)
        await client.begin(answer.status, [(name, mask.whole(value)) for name, value in passed])
        async for chunk in answer.chunks:
            if client.bytes_out + len(chunk) > MAX_ANSWER_BYTES:
                raise AnswerCut
            await client.write(mask.part(chunk))
        await client.write(mask.rest())
        await client.end()


class SecretMask:
    """Takes a secret out of a stream of chunks, also one that is cut across them."""

    def __init__(self, secret: str | None) -> None:
        self._secret = (secret or "").encode()
        self._held = b""

    def whole(self, text: bytes) -> bytes:
        """Return a text that is there whole, without the secret."""
        return text.replace(self._secret, MASK) if self._secret else text

    def part(self, chunk: bytes) -> bytes:
        """Return what may pass of the chunks until now: the end is held while it may begin the secret."""
        seen = self.whole(self._held + chunk)
        longest = min(len(self._secret) - 1, len(seen))
        held = next((size for size in range(longest, 0, -1) if self._secret.startswith(seen[-size:])), 0)
        self._held = seen[len(seen) - held :]
        return seen[: len(seen) - held]

    def rest(self) -> bytes:
        """Return what was held, for nothing comes after it."""
        held, self._held = self._held, b""
        return held
