"""A Docker engine for tests of the socket filter: it answers from tables and records all bytes received."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SELF, ANDY = "f" * 64, "a" * 64


@dataclass
class EngineDouble:
    """`answers` by method and path without version and query; what is not there is a 404, or `missing`."""

    socket: Path
    answers: dict[str, Any] = field(default_factory=dict)
    heads: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    wires: list[bytes] = field(default_factory=list)
    """What came after a head that asked for an upgrade."""
    refuses_attach: bool = False
    refusal: bytes = b'{"message": "busy"'
    """The body with which it refuses."""
    attach_head: bytes = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
    """The head of its answer to an attach that it does not refuse."""
    missing: int = 404
    """The status of what is not there."""

    async def start(self) -> asyncio.Server:
        return await asyncio.start_unix_server(self._serve, str(self.socket))

    def asked(self) -> list[str]:
        """The request lines that were passed on, without those by which the filter itself looks."""
        return [head.split(" HTTP")[0] for head in self.heads if "User-Agent: andy\r" in head]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        length = next(
            (
                int(line.split(":")[1])
                for line in head.split("\r\n")
                if line.lower().startswith("content-length")
            ),
            0,
        )
        self.bodies.append(await reader.readexactly(length))
        if "Upgrade: tcp" in head:
            await self._attach(reader, writer)
        else:
            await self._answer(head, writer)
        writer.close()

    async def _answer(self, head: str, writer: asyncio.StreamWriter) -> None:
        method, target, _ = head.split(" ", 2)
        path = target.partition("?")[0].removeprefix("/v1.41")
        found = self.answers.get(f"{method} {path}")
        status, document = (self.missing, {"message": f"no {path}"}) if found is None else (200, found)
        body = json.dumps(document).encode()
        writer.write(
            f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        )
        writer.write(body)
        await writer.drain()

    async def _attach(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses_attach:
            writer.write(b"HTTP/1.1 409 x\r\nContent-Length: %d\r\n\r\n" % len(self.refusal) + self.refusal)
        else:
            writer.write(self.attach_head + b"hello ")
        await writer.drain()
        while data := await reader.read(1000):
            self.wires.append(data)
            if not self.refuses_attach:
                writer.write(data.upper())


def a_container(
    ref: str, *, sources: tuple[str, ...], labels: dict[str, str] | None = None
) -> dict[str, Any]:
    """What inspecting it tells; with `Labels` where a list has them, too."""
    own = {"andy.install": "i", "andy.group": "g", "andy.run": "r"} if labels is None else labels
    mounts = [{"Type": "bind", "Source": one, "Destination": "/x", "RW": True} for one in sources]
    return {"Id": ref, "Created": 1, "Config": {"Labels": own}, "Labels": own, "Mounts": mounts}
