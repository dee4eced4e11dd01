"""Andy's MCP gateway before one server, for clients without a token: `… gateway.py URL` says its address."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path

from orchestrator.base.clock import SystemClock
from orchestrator.domain.values import Folder, RunId
from orchestrator.proxies.mcp_gateway import McpGateway, SessionSeal
from orchestrator.proxies.mcp_logins import McpTokens
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.proxies.model.exchange import RunIdentity
from orchestrator.proxies.model.proxy import CredentialProxy
from orchestrator.proxies.model.server import ProxyServer, bind
from orchestrator.proxies.parsing_process import ParsingProcess
from orchestrator.store.settings.mcp_servers import McpServer

GROUP = Folder("family")
TOKEN = b"token-of-a-run"


@asynccontextmanager
async def gateway(url: str, *, tokens: McpTokens | None = None) -> AsyncIterator[ProxyServer]:
    """The proxy that agents reach, with one server at `/mcp/everything`; every token is of one group."""
    server = McpServer(name="everything", url=url, groups=(GROUP,))
    runs = iter(range(10**9))

    async def find(folder: Folder, name: str) -> McpServer | None:
        return server

    async def identify(token_hash: str) -> RunIdentity:
        # A run of its own for each request: the suite makes more of them than a turn may.
        return RunIdentity(run_id=RunId(f"run-{next(runs)}"), folder=GROUP)

    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        clock = SystemClock()
        parsing = await stack.enter_async_context(aclosing(ParsingProcess(clock=clock)))
        mcp = McpGateway(
            find,
            lambda _: None,
            note=lambda _: None,
            clock=clock,
            parsing=parsing,
            sessions=SessionSeal(b"key"),
            tokens=tokens,
        )
        credentials = CredentialSource(home, {"ANTHROPIC_API_KEY": "none"})
        proxy = await stack.enter_async_context(
            CredentialProxy(credentials, identify, mcp=mcp, parsing=parsing)
        )
        inner = ProxyServer(proxy.app, bind("127.0.0.1", 0))
        stack.callback(inner.close)
        yield inner


async def serve(url: str) -> None:
    """Serve until cancelled."""
    async with gateway(url) as inner:

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, EOFError):
                head = with_token(await reader.readuntil(b"\r\n\r\n"))
                other_reader, other_writer = await asyncio.open_connection("127.0.0.1", inner.port)
                other_writer.write(head)
                ways = {
                    asyncio.create_task(pipe(reader, other_writer), name="forth"),
                    asyncio.create_task(pipe(other_reader, writer), name="back"),
                }
                _, open_ways = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in open_ways:
                    way.cancel()
                await asyncio.wait(ways)
                other_writer.close()
            writer.close()

        async with await asyncio.start_server(carry, "127.0.0.1", 0) as outer:
            print(f"http://127.0.0.1:{outer.sockets[0].getsockname()[1]}/mcp", flush=True)
            await inner.serve()


def with_token(head: bytes) -> bytes:
    """Return the head of a request with a token, for the gateway's path, and alone on its connection."""
    line, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    method, _, version = line.split(b" ")
    others = [field for field in fields if not field.lower().startswith(b"connection:")]
    first = b" ".join([method, b"/mcp/everything", version])
    return b"\r\n".join([first, *others, b"x-api-key: " + TOKEN, b"connection: close", b"", b""])


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
