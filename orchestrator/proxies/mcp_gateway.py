"""Pass an agent's calls on to the MCP servers of the owner's that its group may use, with their secrets.

container --run token--> /mcp/NAME --the server's own secret--> the server's URL

It is streamable HTTP: POST sends a message, GET listens, DELETE ends a session.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from orchestrator.base.clock import Clock
from orchestrator.domain.errors import SettingError
from orchestrator.domain.values import Folder
from orchestrator.proxies import mcp_logins
from orchestrator.proxies.mcp_logins import LoginNeeded, LoginUnreachable, McpTokens
from orchestrator.proxies.mcp_message import CALL_METHOD, McpMessage
from orchestrator.proxies.model import error_responses
from orchestrator.proxies.model.client import ClientSide
from orchestrator.proxies.model.credentials import forms_of, json_escapes
from orchestrator.proxies.model.error_responses import AnswerCut, ProxyRefused
from orchestrator.proxies.model.exchange import RunIdentity
from orchestrator.proxies.model.headers import Header
from orchestrator.proxies.model.limits import MIB, BodyBytes, TurnCounts
from orchestrator.proxies.parsing_process import ParsingProcess
from orchestrator.store.audit import AuditEvent
from orchestrator.store.settings.mcp_servers import McpServer

if TYPE_CHECKING:
    from orchestrator.proxies.model.upstream_client import UpstreamClient, UpstreamRequest

PREFIX = "/mcp/"
"""The beginning of the paths at which containers reach the servers; a server's name follows."""
METHODS = ("POST", "GET", "DELETE")
CALLS_A_TURN = 300
"""Requests to MCP servers that one turn may send."""
MAX_REQUEST_BYTES = 4 * MIB
MAX_ANSWER_BYTES = 16 * MIB
MAX_NAME_CHARS = 100
"""Characters of an unknown server's name that a refusal repeats."""
MASK = b"[secret]"
"""The text that stands for a secret in an answer."""
SESSION = b"mcp-session-id"
"""The header with the id of a session."""
NO_TASKS = "tasks are not passed on, call the tool without 'task' and wait for its result"
"""The refusal of the protocol's tasks: to a server all groups are one client, so
one could list another's tasks.
"""
_REQUEST_NAMES = frozenset({b"accept", b"last-event-id", b"mcp-protocol-version"})
_RESPONSE_NAMES = frozenset({b"content-type", b"retry-after"})

FindServer = Callable[[Folder, str], Awaitable[McpServer | None]]
"""Returns a server by name if this group's agents may call it."""
FindSecret = Callable[[str], str | None]
"""Returns the value that is set under a name; None if none is.

Raises `SettingError` if `.env` cannot be read.
"""


Send = Callable[[str | None, BodyBytes | None], Awaitable[None]]
"""`(secret, held)`: send a message with this secret or token, and release its held bytes."""
Approve = Callable[[RunIdentity, str, McpMessage], Awaitable[str | None]]
"""`(identity, server, message)`: ask the owner if a rule of the group demands it. Returns None when the
message may be sent, else the reason.
"""


class _MessageRefused(Exception):
    """A message is not passed on; the agent reads the text."""


class _Unauthorised(Exception):
    """The server rejects the credential: 401."""


class _MoreRightsNeeded(Exception):
    """The server demands a token with more rights: 403, and the `scope` that it names."""

    def __init__(self, scope: str) -> None:
        super().__init__()
        self.scope = scope


class McpGateway:
    """Passes agents' messages on to MCP servers. The model proxy has identified the run before."""

    def __init__(
        self,
        find: FindServer,
        secret: FindSecret,
        *,
        note: Callable[[AuditEvent], None],
        clock: Clock,
        parsing: ParsingProcess,
        sessions: SessionSeal,
        approve: Approve | None = None,
        tokens: McpTokens | None = None,
    ) -> None:
        """Build the gateway.

        Args:
            find: returns a server by name.
            secret: returns the value of a server's secret.
            note: records a request for the audit.
            clock: the host's clock.
            parsing: parses messages in a process of its own.
            sessions: seals the servers' session ids.
            approve: asks the owner about a message; without it, no message needs the owner.
            tokens: provides the tokens of logins; without it, no server has a login.
        """
        self._tokens = tokens
        self._parsing = parsing
        self._sessions = sessions
        self._find = find
        self._secret = secret
        self._note = note
        self._clock = clock
        self._approve = approve
        self._calls = TurnCounts()

    async def pass_on(
        self,
        name: str,
        client: ClientSide,
        identity: RunIdentity,
        upstream: UpstreamClient,
        held: BodyBytes,
    ) -> None:
        """Rebuild a request from its parsed content, send it to the server `name`, and pass back the answer.

        The audit gets a row for each message that was read, also for a refused one. A POST whose message is
        refused is answered in the protocol's own form.

        Args:
            name: the server's name, as the container wrote it.
            client: the container's request, and the way back for the answer.
            identity: the run that sent it.
            upstream: the HTTP client that sends requests.
            held: counts the bytes of the request's body in memory.

        Raises:
            ProxyRefused: the group or the person's role may not use the server, the turn has called too
                often, or the server refuses or is silent.
            AnswerCut: the answer broke off or was too long.
        """
        if not identity.may_call_servers:
            raise ProxyRefused(error_responses.not_allowed(f"MCP servers in a turn of a {identity.role}"))
        server = await self._find(identity.folder, name)
        if server is None or server.url is None:
            raise ProxyRefused(error_responses.not_allowed(f"an MCP server '{name[:MAX_NAME_CHARS]}'"))
        if self._calls.add(identity.run_id, identity.turn_id, 1) > CALLS_A_TURN:
            raise ProxyRefused(
                error_responses.not_allowed(f"MCP servers more than {CALLS_A_TURN} times a turn")
            )
        secret = self._secret_of(server)
        session = self._sessions.unseal(identity.folder, server.name, client.headers)
        message = await self._read_message(client, identity, held)
        detail = {"server": server.name, **_audit_names(client.method, message)}
        started = time.perf_counter()
        try:
            if client.method == "POST":
                await self._check_allowed(server, identity, message)
            seal = self._sessions.sealer(identity.folder, server.name)
            send = partial(_send, server, client, upstream, message, session=session, seal=seal)
            # A server without a secret in `.env` may have a login of the owner's, with a token.
            if secret is not None or self._tokens is None:
                await _send_with_secret(send, secret, held)
            else:
                await _send_with_token(send, self._tokens, server, held)
        except _MessageRefused as error:
            detail["refused"] = str(error)
            if client.method != "POST":
                raise ProxyRefused(error_responses.mcp_not_done(str(error))) from error
            await _answer_refusal(client, message, str(error))
        except ProxyRefused as error:
            if error.cause is not None:
                detail["cause"] = error.cause
            raise
        finally:
            detail |= {
                "status": client.status,
                "ms": round((time.perf_counter() - started) * 1000),
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

    async def _check_allowed(self, server: McpServer, identity: RunIdentity, message: McpMessage) -> None:
        """Raise `_MessageRefused` if the message concerns a task of MCP, or the owner does not allow it.

        `NO_TASKS` says why no such task is passed on.
        """
        reason = NO_TASKS if message.is_of_task else None
        if reason is None and self._approve is not None:
            reason = await self._approve(identity, server.name, message)
        if reason is not None:
            raise _MessageRefused(reason)

    async def _read_message(self, client: ClientSide, identity: RunIdentity, held: BodyBytes) -> McpMessage:
        """Read and parse the message of a POST; return an empty one for GET and DELETE, which have no body.

        `held` counts the bytes of the body in memory.
        """
        if client.method != "POST":
            await client.expect_no_body()
            return McpMessage()
        from orchestrator.proxies.model.forwarder import whole_body

        body = await whole_body(client, MAX_REQUEST_BYTES, held)
        return await self._parsing.read_mcp_message(identity.folder, body)

    def _secret_of(self, server: McpServer) -> str | None:
        """Return the secret of a server; None if it needs none.

        Raises `ProxyRefused` if it is not set or cannot be sent, or `.env` cannot be read.
        """
        if server.secret_env is None:
            return None
        try:
            secret = self._secret(server.secret_env)
        except SettingError as error:
            reason = f"the MCP server '{server.name}': its owner has to correct .env, see 'andy doctor'"
            raise ProxyRefused(error_responses.not_allowed(reason)) from error
        if not secret:
            raise ProxyRefused(
                error_responses.not_allowed(
                    f"the MCP server '{server.name}': its owner has to set {server.secret_env} in .env"
                )
            )
        return secret


async def _send_with_secret(send: Send, secret: str | None, held: BodyBytes) -> None:
    """Send a message with the secret that the owner has set, None if the server needs none.

    `held` counts the bytes of the body in memory. Raises `ProxyRefused` if the server rejects the secret.
    """
    try:
        await send(secret, held)
    except (_Unauthorised, _MoreRightsNeeded):
        raise ProxyRefused(error_responses.MCP_REFUSES) from None


async def _send_with_token(send: Send, tokens: McpTokens, server: McpServer, held: BodyBytes) -> None:
    """Send a message with the token of the owner's login, and again if the server rejects an old token.

    Without a login it is sent without a token, which some servers accept. `held` counts the bytes of the body
    in memory.

    Raises:
        _MessageRefused: the owner has to log in, or to log in again for more rights.
        ProxyRefused: the token has to be renewed, and that is not possible now.
    """
    try:
        token = await tokens.token(server)
        try:
            await send(token, held)
        except _Unauthorised:
            # `refused` is the token that the server has rejected. If none was sent it is empty: no token
            # equals that, so the token of a login made meanwhile is used.
            renewed = await tokens.token(server, refused=token or "")
            if renewed is None:
                raise  # caught below: there is no login
            # No bytes to release: the first attempt has released them.
            await send(renewed, None)
    except _Unauthorised:
        raise _MessageRefused(mcp_logins.login_again_text(server.name)) from None
    except _MoreRightsNeeded as error:
        await tokens.note_wanted_scope(server, error.scope)
        raise _MessageRefused(mcp_logins.more_rights_text(server.name)) from None
    except LoginNeeded as error:
        raise _MessageRefused(str(error)) from error
    except LoginUnreachable as error:
        raise ProxyRefused(error_responses.mcp_no_token(server.name), cause=str(error)) from error


async def _send(
    server: McpServer,
    client: ClientSide,
    upstream: UpstreamClient,
    message: McpMessage,
    secret: str | None,
    held: BodyBytes | None,
    *,
    session: bytes | None,
    seal: Callable[[bytes], bytes],
) -> None:
    """Send a message and pass its answer back.

    `secret` is sent to the server and removed from its answer, `held` counts the bytes of the body, and
    `session` is the server's id of the session; each may be None. `seal` makes the session's id that the
    client gets. Raises `_Unauthorised` and `_MoreRightsNeeded` before the answer starts, and otherwise what
    `_pass_answer` raises.
    """
    from orchestrator.proxies.model.forwarder import one_piece
    from orchestrator.proxies.model.upstream_client import UpstreamRequest

    assert server.url is not None
    request = UpstreamRequest(
        method=client.method,
        url=server.url,
        headers=_request_headers(server, client, secret=secret, session=session, body=message.body),
        body=one_piece(message.body, held) if client.method == "POST" else None,
    )
    try:
        await _pass_answer(request, client, upstream, secret=secret, seal=seal)
    except ProxyRefused as error:
        if error.cause is None:  # the server has answered, and its answer is not passed on
            raise
        raise ProxyRefused(
            error_responses.of_mcp_server(server.name, error.refusal), cause=error.cause
        ) from error


async def _answer_refusal(client: ClientSide, message: McpMessage, reason: str) -> None:
    """Answer a refused message as an MCP server would, so that the agent reads the reason."""
    if message.id is None:  # a notification, to which the protocol has no answer
        await client.reply(202, b"")
        return
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message.id}
    if message.method == CALL_METHOD:
        answer["result"] = {"content": [{"type": "text", "text": f"Not done: {reason}."}], "isError": True}
    else:
        method_not_found = -32601  # the code of JSON-RPC
        answer["error"] = {"code": method_not_found, "message": f"Not done: {reason}."}
    await client.reply(200, json.dumps(answer).encode())


def _audit_names(method: str, message: McpMessage) -> dict[str, Any]:
    """Return the fields of the audit that name a request: the method, and the tool if one is called.

    `method` is the one of HTTP; for a POST, the method of its message is named instead.
    """
    if method != "POST":
        return {"method": method}
    tool_name = {} if message.tool is None else {"tool": message.tool}
    return {"method": message.method, **tool_name}


def _request_headers(
    server: McpServer, client: ClientSide, *, secret: str | None, session: bytes | None, body: bytes
) -> list[Header]:
    """Return the headers for a server: a few of the container's, the secret, and the server's session id.

    `secret` and `session` are None if there is none; `body` is what the request will send.
    """
    headers = [*_select_headers(client.headers, _REQUEST_NAMES), *_added_headers(server, secret)]
    if session is not None:
        headers.append((SESSION, session))
    else:  # the header "last-event-id" is left out
        # Ids of events belong to a session: without one, another group's events could be requested.
        headers = [header for header in headers if header[0] != b"last-event-id"]
    if client.method == "POST":
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return headers


def _added_headers(server: McpServer, secret: str | None) -> list[Header]:
    """Return the headers that the host adds: its own, and the one in which the server wants the secret."""
    added: list[Header] = [(b"accept-encoding", b"identity"), (b"user-agent", b"andy")]
    if secret is not None:
        # A secret with a space names its scheme itself, such as `Basic …`.
        is_bearer = server.header.lower() == "authorization" and " " not in secret
        added.append((server.header.lower().encode(), f"{'Bearer ' if is_bearer else ''}{secret}".encode()))
    return added


def _select_headers(headers: list[Header], names: frozenset[bytes]) -> list[Header]:
    """Return the headers with one of these names, which are in lower case."""
    return [(name.lower(), value) for name, value in headers if name.lower() in names]


async def _pass_answer(
    request: UpstreamRequest,
    client: ClientSide,
    upstream: UpstreamClient,
    *,
    secret: str | None,
    seal: Callable[[bytes], bytes],
) -> None:
    """Send a request and pass its answer back without the secret.

    `secret` is the one that was sent, None if none was. `seal` makes the session's id that the client gets.

    Raises:
        _Unauthorised, _MoreRightsNeeded: the server rejects the secret; nothing was answered yet.
        ProxyRefused: the server forbids the request, compresses its answer, or is silent.
        AnswerCut: the answer broke off or was too long.
    """
    mask = SecretMask(secret)
    async with upstream.send(request) as answer:
        if answer.status == 401:
            raise _Unauthorised
        if answer.status == 403:
            scope = mcp_logins.wanted_scope(_header_values(answer.headers, b"www-authenticate"))
            if scope is not None:
                raise _MoreRightsNeeded(scope)
            raise ProxyRefused(error_responses.MCP_REFUSES)
        if any(
            value.strip().lower() != b"identity"
            for value in _header_values(answer.headers, b"content-encoding")
        ):
            # The answer was requested unencoded: in a content coding the secret could not be found.
            raise ProxyRefused(error_responses.MCP_ENCODED)
        headers = [
            (name, mask.whole(value)) for name, value in _select_headers(answer.headers, _RESPONSE_NAMES)
        ]
        session_ids = _header_values(answer.headers, SESSION)[:1]  # of several, only the first counts
        # A server may put the secret into its session id; such an id is not passed on.
        headers += [(SESSION, seal(value)) for value in session_ids if mask.whole(value) == value]
        await client.begin(answer.status, headers)
        async for chunk in answer.chunks:
            if client.bytes_out + len(chunk) > MAX_ANSWER_BYTES:
                raise AnswerCut
            await client.write(mask.part(chunk))
        await client.write(mask.rest())
        await client.end()


def _header_values(headers: Iterable[Header], name: bytes) -> list[bytes]:
    """Return all values of a header; `name` is in lower case."""
    return [value for header, value in headers if header.lower() == name]


class SessionSeal:
    """Binds a session id to the group that started it: no other group can use it."""

    def __init__(self, key: bytes) -> None:
        """`key` is a secret of the host, with which the seals are computed."""
        self._key = key

    def sealer(self, folder: Folder, server: str) -> Callable[[bytes], bytes]:
        """Return a function that turns a server's session id into the one that the container sees.

        `server` is the server's name, and `folder` the group that starts the session.
        """
        return lambda session: self._seal_of(folder, server, session) + b"." + session

    def unseal(self, folder: Folder, server: str, headers: list[Header]) -> bytes | None:
        """Return the server's id of the session that a request names, or None if it names none.

        The container's id has the form `SEAL.ID`, as the function that `sealer` returned has made it.

        Raises:
            ProxyRefused: it is no session of this group at this server (404, as for an ended one).
        """
        session_ids = _header_values(headers, SESSION)
        if not session_ids:
            return None
        seal, _, session = session_ids[0].partition(b".")
        # Compared in constant time, so that a seal cannot be guessed byte by byte.
        is_own = hmac.compare_digest(seal, self._seal_of(folder, server, session))
        if len(session_ids) > 1 or not is_own:
            raise ProxyRefused(error_responses.MCP_NO_SESSION)
        return session

    def _seal_of(self, folder: Folder, server: str, session: bytes) -> bytes:
        """Return the seal of a session: a hash that only this host can compute, as 32 hexadecimal digits."""
        text = f"{folder}\0{server}\0".encode() + session
        return hmac.new(self._key, text, sha256).hexdigest()[:32].encode()


class SecretMask:
    """Replaces a secret in a stream of chunks, also where one chunk ends and the next begins.

    It finds the secret in each form in which JSON and URLs write it.
    """

    def __init__(self, secret: str | None) -> None:
        """`secret` is None if there is nothing to replace."""
        # `forms_of` leaves out short secrets, because stored texts contain such words by chance. Here they
        # are masked as well.
        forms = [secret, *forms_of([secret]), *json_escapes(secret)] if secret else []
        self._forms = sorted({form.encode() for form in forms if form}, key=len, reverse=True)
        self._first = frozenset(form[0] for form in self._forms)
        """The first byte of each form."""
        self._pending = b""
        """The end of the stream so far, which may be the beginning of the secret."""

    def whole(self, content: bytes) -> bytes:
        """Return complete bytes, such as a header's value, with `MASK` in place of the secret."""
        for form in self._forms:  # a pattern of a token of some kilobytes would take 30 ms to compile
            content = content.replace(form, MASK)
        return content

    def part(self, chunk: bytes) -> bytes:
        """Add a chunk of the stream; return the bytes that may pass now, with the secret masked.

        An end that may be the beginning of the secret is held back for the next call.
        """
        masked = self.whole(self._pending + chunk)
        # The size of the longest end that is the beginning of one of the forms of the secret.
        max_held = min(max((len(form) for form in self._forms), default=1) - 1, len(masked))
        held_count = next(
            (
                size
                for size in range(max_held, 0, -1)
                if masked[-size] in self._first  # a quick look, before all forms are compared
                and any(len(form) > size and form.startswith(masked[-size:]) for form in self._forms)
            ),
            0,
        )
        self._pending = masked[len(masked) - held_count :]
        return masked[: len(masked) - held_count]

    def rest(self) -> bytes:
        """Return the bytes that are held back, at the end of the stream."""
        pending, self._pending = self._pending, b""
        return pending
