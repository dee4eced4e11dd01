"""The filter's own questions to the engine: what a container or a network is, before somebody may use it."""

from __future__ import annotations

import json
from typing import Any, Self
from urllib.parse import quote

import httpx

ASK_SECONDS = 30.0
RUNS = (httpx.codes.NO_CONTENT, httpx.codes.NOT_MODIFIED)


class Engine:
    """`async with Engine(path)`: answers as the engine gives them, None for what is not there."""

    def __init__(self, socket_path: str) -> None:
        transport = httpx.AsyncHTTPTransport(uds=socket_path)
        self._http = httpx.AsyncClient(transport=transport, base_url="http://docker", timeout=ASK_SECONDS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def container(self, ref: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = await self._get(f"/containers/{quote(ref, safe='')}/json")
        return found

    async def containers(self, *labels: str) -> list[dict[str, Any]]:
        """All that have those labels, running or not."""
        found: list[dict[str, Any]] = await self._get("/containers/json", all="1", filters={"label": labels})
        return found

    async def network(self, ref: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = await self._get(f"/networks/{quote(ref, safe='')}")
        return found

    async def networks(self, label: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self._get("/networks", filters={"label": [label]})
        return found

    async def start(self, ref: str) -> str | None:
        """Start a container; why it did not start, None when it runs."""
        answer = await self._http.post(f"/containers/{quote(ref, safe='')}/start")
        return None if answer.status_code in RUNS else answer.text[:500]

    async def _get(self, path: str, *, filters: object = None, **query: str) -> Any:
        asked = query | ({"filters": json.dumps(filters)} if filters else {})
        answer = await self._http.get(path, params=asked)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        answer.raise_for_status()
        return answer.json()
