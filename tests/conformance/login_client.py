"""A client for the conformance suite that is Andy: he logs in, then an agent calls through his gateway.

`… login_client.py URL` is what the suite starts for each scenario of logins. The owner allows everything.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from gateway import GROUP, TOKEN, gateway
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from orchestrator.base.clock import SystemClock
from orchestrator.cli.mcp_login import result_of, state_of
from orchestrator.proxies import mcp_logins, mcp_oauth
from orchestrator.proxies.mcp_logins import LoginRefused, McpTokens
from orchestrator.proxies.model.limits import ModelProxyLimits
from orchestrator.proxies.model.upstream_client import UpstreamClient
from orchestrator.store.settings.mcp_servers import McpServer

LOGINS = 3
REDIRECT = "http://127.0.0.1:8765/callback"


async def main(url: str) -> None:
    """Log in and call each tool, again where a server wants more rights. Raises `LoginRefused`."""
    clock = SystemClock()
    upstream = await asyncio.to_thread(UpstreamClient, ModelProxyLimits())

    async def client() -> UpstreamClient:
        return upstream

    async def ended(name: str, login: mcp_logins.McpLogin) -> None:
        print(f"The login at {name} is over: {login.refused}.", file=sys.stderr)

    with tempfile.TemporaryDirectory() as folder:
        data, server = Path(folder), McpServer(name="everything", url=url, groups=(GROUP,))
        tokens = McpTokens(data, client, clock=clock, on_refused=ended)
        before: mcp_logins.McpLogin | None = None
        for _ in range(LOGINS):
            login = await mcp_oauth.log_in(
                request(url, before), upstream, authorise=allow, now_ms=clock.now_ms
            )
            mcp_logins.write(data, server.name, login)
            async with gateway(url, tokens=tokens) as proxy:
                serving = asyncio.create_task(proxy.serve(), name="proxy")
                await call_all(f"http://127.0.0.1:{proxy.port}/mcp/{server.name}")
                serving.cancel()
                await asyncio.wait([serving])
            before = mcp_logins.read(data, server)
            if before is None or before.wanted_scope is None:
                break
    await upstream.close()


def request(url: str, before: mcp_logins.McpLogin | None) -> mcp_oauth.LoginRequest:
    """Return what the owner types, with the client's id where the suite gives one."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    return mcp_oauth.LoginRequest(
        url=url,
        redirect_uri=REDIRECT,
        client_id=context.get("client_id"),
        client_secret=context.get("client_secret"),
        scope=before.wanted_scope if before is not None else None,
    )


async def allow(address: str) -> Any:
    """Open the address as a browser does, and take what it is sent back with."""
    async with httpx2.AsyncClient(trust_env=False) as browser:
        answer = await browser.get(address)
    return result_of(urlsplit(answer.headers["location"]).query, state_of(address))


async def call_all(url: str) -> None:
    async with (
        httpx2.AsyncClient(headers={"x-api-key": TOKEN.decode()}, trust_env=False) as client,
        streamable_http_client(url, http_client=client) as (reader, writer, *_),
        ClientSession(reader, writer) as session,
    ):
        with suppress(MCPError):  # such as that more rights are wanted
            await session.initialize()
            for tool in (await session.list_tools()).tools:
                await session.call_tool(tool.name, {})


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1]))
    except LoginRefused as refused:
        sys.exit(str(refused))
