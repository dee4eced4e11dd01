"""Names to addresses, and connections to addresses: the only two things that reach outside."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.domain.network_targets import NetworkTarget
from orchestrator.proxies.egress.addresses import is_public


class EgressUnreachable(Exception):
    """The place cannot be reached, or must not be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressConnection:
    """An open connection, and the address at its other end."""

    address: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Resolver:
    """Resolves and connects. A name is looked up once, and the address that was judged is the one dialled."""

    async def resolve(self, target: NetworkTarget) -> Sequence[str]:
        """Return the addresses of a host. Raises `OSError` when it has none."""
        found = await asyncio.get_running_loop().getaddrinfo(
            target.host, target.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    async def dial(self, address: str, port: int) -> EgressConnection:
        """Connect to an address. Raises `OSError`."""
        reader, writer = await asyncio.open_connection(address, port, flags=socket.AI_NUMERICHOST)
        return EgressConnection(address=address, reader=reader, writer=writer)


async def connect(internet: Resolver, target: NetworkTarget) -> EgressConnection:
    """Connect to a place on the internet.

    A name with a single address that is not public is refused as a whole: nobody gives one by mistake.

    Raises:
        Unreachable: it leads elsewhere, has no address, or does not answer.
    """
    try:
        addresses = await internet.resolve(target)
    except OSError as error:
        raise EgressUnreachable("the name has no address") from error
    if not addresses or not all(is_public(address) for address in addresses):
        raise EgressUnreachable("the name leads to an address that is not of the internet")
    for address in addresses:
        try:
            return await internet.dial(address, target.port)
        except OSError:
            continue
    raise EgressUnreachable("nothing answers there")
