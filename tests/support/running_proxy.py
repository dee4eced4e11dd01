"""A real proxy on a real socket in front of a `FaultyUpstream`, with two runs and their tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from orchestrator.domain.values import Folder, RunId
from orchestrator.proxies.mcp_gateway import McpGateway
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.proxies.model.exchange import Admit, Judge, ProxyExchange, RunIdentity
from orchestrator.proxies.model.limits import ModelProxyLimits, SearchCounts
from orchestrator.proxies.model.proxy import CredentialProxy
from orchestrator.proxies.model.server import ProxyServer, bind
from orchestrator.proxies.model.usage_writer import UsageWriter
from orchestrator.proxies.run_tokens import new_token, token_hash
from orchestrator.store.money.budgets import Budget
from tests.doubles.faulty_upstream import FaultyUpstream
from tests.support.until import DEADLINE_SECONDS

REAL_KEY = "sk-ant-api03-the-real-key"
BODY = b'{"model":"claude","messages":[]}'


@dataclass(slots=True, kw_only=True)
class Proxied:
    upstream: FaultyUpstream
    port: int
    home: Path
    token: str
    other_token: str
    runs: dict[str, RunIdentity]
    environment: dict[str, str]
    proxy: CredentialProxy = field(init=False)
    source: CredentialSource
    usage_writer: UsageWriter | None = None
    fault: Exception | None = None
    """Raised when a token is looked up."""
    exchanges: list[ProxyExchange] = field(default_factory=list)
    _noted: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def end_run(self) -> None:
        del self.runs[token_hash(self.token)]

    def head(self, *lines: str, path: str = "/v1/messages") -> bytes:
        """The head of a raw request, with the first run's token."""
        own = (f"POST {path} HTTP/1.1", "host: proxy", f"x-api-key: {self.token}")
        return "\r\n".join([*own, *lines, "", ""]).encode("latin-1")

    async def call(
        self, path: str = "/v1/messages", *, token: str | None = None, method: str = "POST", **options: object
    ) -> httpx.Response:
        headers = {"x-api-key": token or self.token, **options.pop("headers", {})}  # type: ignore[dict-item]
        content = options.pop("content", BODY if method == "POST" else None)
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, verify=False, timeout=60) as client:
            return await client.request(method, path, headers=headers, content=content, **options)  # type: ignore[arg-type]

    @asynccontextmanager
    async def streaming(self, content: bytes) -> AsyncIterator[httpx.Response]:
        """Ask the model and enter with an answer whose head has come."""
        async with (
            httpx.AsyncClient(base_url=self.url, trust_env=False, verify=False, timeout=60) as client,
            client.stream(
                "POST", "/v1/messages", headers={"x-api-key": self.token}, content=content
            ) as response,
        ):
            yield response

    async def say(self, raw: bytes) -> bytes:
        """Write `raw` and return all that comes back until the proxy closes."""
        async with self.socket() as (reader, writer):
            writer.write(raw)
            return await reader.read()

    @asynccontextmanager
    async def socket(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                yield reader, writer
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def recorded(self, count: int = 1) -> list[ProxyExchange]:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(self.exchanges) < count:
                self._noted.clear()
                await self._noted.wait()
        return self.exchanges

    def note(self, identity: RunIdentity, exchange: ProxyExchange) -> None:
        if self.usage_writer is not None:
            self.usage_writer.note_exchange(identity, exchange)
        self.exchanges.append(exchange)
        self._noted.set()


@asynccontextmanager
async def proxied(
    home: Path,
    *,
    limits: ModelProxyLimits | None = None,
    settings: Iterable[str] = (f"ANTHROPIC_API_KEY={REAL_KEY}",),
    usage_writer: UsageWriter | None = None,
    admit: Admit | None = None,
    searches: SearchCounts | None = None,
    judge: Judge | None = None,
    mcp: McpGateway | None = None,
    budgets: Callable[[], Awaitable[tuple[Budget, ...]]] | None = None,
) -> AsyncIterator[Proxied]:
    async with FaultyUpstream() as upstream:
        (home / ".env").write_text("\n".join([*settings, ""]))
        environment = {"ANTHROPIC_BASE_URL": upstream.url}
        source = CredentialSource(home, environment)
        listener = bind("127.0.0.1", 0)
        runs: dict[str, RunIdentity] = {}
        tokens = [new_token(), new_token()]
        for number, token in enumerate(tokens):
            runs[token_hash(token)] = RunIdentity(
                run_id=RunId(f"run-{number}"), folder=Folder(f"group-{number}")
            )
        served = Proxied(
            upstream=upstream,
            port=listener.getsockname()[1],
            home=home,
            token=tokens[0],
            other_token=tokens[1],
            runs=runs,
            environment=environment,
            source=source,
            usage_writer=usage_writer,
        )

        async def identify(hashed: str) -> RunIdentity | None:
            if served.fault is not None:
                raise served.fault
            found = runs.get(hashed)
            return replace(found, budgets=await budgets()) if found and budgets else found

        async with CredentialProxy(
            source,
            identify,
            limits=limits,
            on_exchange=served.note,
            on_denial=usage_writer.note_denial if usage_writer else None,
            admit=admit,
            searches=searches,
            judge=judge,
            mcp=mcp,
        ) as proxy:
            served.proxy = proxy
            server = ProxyServer(proxy.app, listener, limits=limits)
            serving = asyncio.create_task(server.serve(), name="proxy")
            try:
                yield served
            finally:
                serving.cancel()
                with suppress(asyncio.CancelledError):
                    await serving
                server.close()
