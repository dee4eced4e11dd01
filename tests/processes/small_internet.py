"""An internet of a few names: lookups come from a table, and every address leads to a server on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.domain.network_targets import NetworkTarget
from orchestrator.domain.values import Folder
from orchestrator.proxies.egress.public_addresses import EgressConnection, Resolver

PUBLIC = "93.184.215.14"


@dataclass
class SmallInternet(Resolver):
    """`names` says what each lookup of a host gives, one list a lookup; the last is given again and again."""

    names: dict[str, list[Sequence[str]]] = field(default_factory=dict)
    port: int = 0
    """Of the server on loopback that stands for all of the internet."""
    looked_up: list[str] = field(default_factory=list)
    dialled: list[tuple[str, int]] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)

    async def resolve(self, target: NetworkTarget, folder: Folder) -> Sequence[str]:
        self.looked_up.append(target.host)
        answers = self.names.get(target.host)
        if not answers:
            raise OSError("no such name")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def dial(self, address: str, port: int) -> EgressConnection:
        self.dialled.append((address, port))
        if address in self.dead:
            raise ConnectionRefusedError
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        return EgressConnection(address=address, reader=reader, writer=writer)
